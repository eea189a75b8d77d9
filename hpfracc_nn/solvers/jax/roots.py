"""The equation of an implicit step, y = m + w f(y), and the linear equation of its derivative.

Newton's method computes the Jacobian at each iteration: a step needs few iterations, and under `vmap` the members of a
batch could not keep a Jacobian for some and compute it for others. The rules by which an iteration has converged are
those of `torch/solving.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.export import is_symbolic_dim
from jax.scipy.sparse.linalg import gmres

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import beside, is_placed, is_varying, placed_like
from hpfracc_nn.solvers.jax.memory import zeros
from hpfracc_nn.solvers.schemes import (
    LARGEST_DENSE,
    ROUNDING,
    STALLED,
    TOLERANCES,
    Newton,
    Roots,
)

Map = Callable[[Array], Array]  # from an array to one of the same shape
_RESTART = 40
_CYCLES = 50
_SOLVED = 1e3  # times the tolerance: the relative residual that rounding may leave after GMRES has converged


class Root(NamedTuple):
    """The solution of the equation of a step.

    Attributes:
        y: The solution, or NaN if the iteration did not converge.
        is_found: Whether the iteration converged.
    """

    y: Array
    is_found: Array


class _State(NamedTuple):
    """The state of an iteration; all but y are scalars.

    Attributes:
        y: The solution so far.
        size: The largest absolute value in the guess, m and all y so far.
        change: The largest absolute value of the last correction of y.
        taken: The number of iterations.
        is_found: Whether the iteration has converged.
        is_lost: Whether a correction was not finite.
    """

    y: Array
    size: Array
    change: Array
    taken: Array
    is_found: Array
    is_lost: Array


def root(roots: Roots, f: Map, m: Array, w: Array, guess: Array) -> Root:
    """Return the solution y of y = m + w f(y); see `torch.solving.Convergence` for the rules of convergence.

    Args:
        roots: The method, `Newton` or `FixedPoint`.
        f: The right-hand side at the step's time, a function of y.
        m: The memory of the step, an array like y.
        w: The weight of f(y), which broadcasts to y.
        guess: The first iterate.
    """
    dtype = m.dtype
    tolerance = TOLERANCES[dtype.name] if roots.tolerance is None else roots.tolerance
    reached = _newton_converged if isinstance(roots, Newton) else _fixed_point_converged

    def iterate(state: _State) -> _State:
        residual = m + w * f(state.y) - state.y
        delta = residual
        if isinstance(roots, Newton):
            _, slope = jax.linearize(f, state.y)
            delta = _divided(roots, lambda v: v - w * slope(v), residual)
        change, y = _size(delta), state.y + delta
        size = jnp.maximum(state.size, _size(y))
        is_finite = jnp.isfinite(change)
        is_found = is_finite & reached(change, state.change, size, tolerance)
        return _State(y, size, change, state.taken + 1, is_found, ~is_finite)

    def goes_on(state: _State) -> Array:
        return ~(state.is_found | state.is_lost) & (state.taken < roots.iterations)

    size = jnp.maximum(jnp.maximum(_size(guess), _size(m)), jnp.finfo(dtype).tiny)
    never, none = beside(jnp.zeros((), bool), m), beside(jnp.zeros((), int), m)
    infinite = beside(jnp.asarray(jnp.inf, dtype), m)
    begin = _State(beside(guess, m), size, infinite, none, never, never)
    end = lax.while_loop(goes_on, iterate, begin)
    return Root(jnp.where(end.is_found, end.y, jnp.nan), end.is_found)


def at_root(roots: Roots, f: Map, y: Array, m: Array, w: Array) -> Array:
    """Return y, a solution of y = m + w f(y), with derivatives up to the third, by the implicit function theorem."""

    def residual(y: Array) -> Array:
        return m + w * f(y) - y

    def solved(product: Map, b: Array) -> Array:
        return -_divided(roots, lambda v: -product(v), b)

    def corrected(residual: Map, y: Array) -> Array:
        # Derivatives above the first may follow this function and not the rule: JAX drops the rule where it splits a
        # step into what is saved and what is not. Of the solution alone they would be zero. k steps of Newton's
        # method have the solution's derivatives up to order 2**k - 1.
        for _ in range(2):
            value, slope = jax.linearize(residual, y)
            y = y - solved(slope, value)
        return y

    return lax.custom_root(residual, y, corrected, solved)  # type: ignore[no-any-return]


def _divided(roots: Roots, apply: Map, b: Array) -> Array:
    """Return the solution x of apply(x) = b for a linear function `apply`; the result is linear in b.

    Args:
        roots: The method for implicit steps; it says up to which size a dense matrix is used, and GMRES's tolerance.
        apply: The linear function, from arrays like b to arrays like b.
        b: The right-hand side, of any shape.
    """
    if _known(b.size) <= (roots.dense if isinstance(roots, Newton) else Newton().dense):
        return _by_matrix(apply, b)
    tolerance = TOLERANCES[b.dtype.name] if roots.tolerance is None else roots.tolerance

    def solve(apply: Map, b: Array) -> Array:
        return _by_products(apply, b, tolerance)

    return lax.custom_linear_solve(apply, b, solve, transpose_solve=solve)  # type: ignore[no-any-return]


def _newton_converged(change: Array, last: Array, size: Array, tolerance: float) -> Array:
    """Return whether Newton's method has converged.

    Args:
        change: The largest absolute value of this correction.
        last: That of the correction before.
        size: The largest absolute value of the solution so far.
        tolerance: Relative to `size`.
    """
    rounding = ROUNDING * TOLERANCES[change.dtype.name] * size
    return (change <= tolerance * size) | ((change <= rounding) & (change > last / 2))


def _fixed_point_converged(change: Array, last: Array, size: Array, tolerance: float) -> Array:
    """Return whether a fixed-point iteration has converged; arguments as of `_newton_converged`.

    While corrections decay like a geometric series, its remainder must be within the tolerance; once they do not, they
    must be as small as rounding.
    """
    theta = jnp.where(last > 0, change / last, 0)
    rest = change * jnp.maximum(1, theta / jnp.where(theta < 1, 1 - theta, 1))
    stalled = change <= STALLED * jnp.finfo(change.dtype).eps * size
    return jnp.isfinite(last) & jnp.where(theta < 1, rest <= tolerance * size, stalled)


def _known(size: Any) -> int:
    if is_symbolic_dim(size):
        raise ValueError(
            f"fdeint(y0 of {size} numbers): needs a number that is known when the call is traced, because each step "
            "solves an equation of so many unknowns; pass jax.vmap of the solve over the open axis."
        )
    return size  # type: ignore[no-any-return]


def _by_matrix(apply: Map, b: Array) -> Array:
    """Return the solution x of apply(x) = b by the dense matrix of the linear function `apply`, sharded as b is."""
    if b.size == 1:
        return b / apply(jnp.ones_like(b))
    units = zeros(b, b.size) + np.eye(b.size, dtype=b.dtype).reshape(b.size, *b.shape)

    def solved(rows: Array, b: Array) -> Array:
        return jnp.linalg.solve(rows.reshape(b.size, b.size).T, b.reshape(-1)).reshape(b.shape)

    rows = jax.vmap(apply)(units)
    return placed_like(b, solved, rows, b) if is_placed(b) else solved(rows, b)


def _by_products(apply: Map, b: Array, tolerance: float) -> Array:
    """Return the solution x of apply(x) = b by GMRES.

    If GMRES does not converge, by a dense matrix for up to `LARGEST_DENSE` numbers, else NaN.

    Saad & Schultz, SIAM J. Sci. Stat. Comput. 7 (1986) 856.
    """
    if is_placed(b) or is_varying(b):  # JAX's GMRES begins with arrays that lie elsewhere than those it ends with
        where, otherwise = (
            ("over the explicit axes of a mesh", "make the mesh with axis_types=AxisType.Auto")
            if is_placed(b)
            else ("inside of jax.shard_map", "jax.shard_map(..., check_vma=False)")
        )
        raise ValueError(
            f"fdeint(y0 of {b.size} numbers {where}): needs a state whose Jacobian is dense where a step solves an "
            f"equation; pass roots=Newton(dense=...) with as many numbers, or {otherwise}."
        )
    is_small = b.size <= LARGEST_DENSE
    cycles = -(-b.size // _RESTART) if is_small else _CYCLES
    found, _ = gmres(apply, b, tol=tolerance, atol=0.0, restart=min(_RESTART, b.size), maxiter=cycles)
    length = jnp.linalg.norm(b.reshape(-1))
    is_solved = jnp.linalg.norm((b - apply(found)).reshape(-1)) <= _SOLVED * tolerance * length
    if not is_small:
        return jnp.where(is_solved, found, jnp.nan)
    return lax.cond(is_solved, lambda b: found, lambda b: _by_matrix(apply, b), b)  # type: ignore[no-any-return]


def _size(x: Array) -> Array:
    return jnp.max(jnp.abs(x))
