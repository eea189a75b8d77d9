"""The equation of an implicit step, y = m + w f(y), and the linear one of its derivative.

Newton's iteration makes its Jacobian anew each time: a step takes few of them, and in a batch of `vmap` none could be
kept for one and made for another. `torch/solving.py` says when an iteration has converged; the rules are the same.
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
from hpfracc_nn.solvers.jax.past import zeros
from hpfracc_nn.solvers.schemes import LARGEST_DENSE, ROUNDING, STALLED, TOLERANCES, FixedPoint, Newton, Roots

Map = Callable[[Array], Array]
_RESTART = 40
_CYCLES = 50
_SOLVED = 1e3  # times the tolerance: what a residual may be of which rounding lets no more be asked


class Root(NamedTuple):
    """A solution, NaN where there is none.

    Attributes:
        y: It.
        is_found: Whether the iteration converged.
    """

    y: Array
    is_found: Array


class _State(NamedTuple):
    y: Array
    size: Array  # of the solution so far
    change: Array  # the last
    taken: Array
    is_found: Array
    is_lost: Array


def root(roots: Roots, f: Map, m: Array, w: Array, guess: Array) -> Root:
    """Return y with y = m + w f(y); see `torch.solving.Convergence` for when it is one.

    Args:
        roots: How.
        f: The right-hand side.
        m: What is known, like y.
        w: The weight, which broadcasts to y.
        guess: Where to begin.
    """
    dtype = m.dtype
    tolerance = TOLERANCES[dtype.name] if roots.tolerance is None else roots.tolerance
    reached = _exactly if isinstance(roots, Newton) else _slowly

    def iterate(state: _State) -> _State:
        residual = m + w * f(state.y) - state.y
        delta = residual if isinstance(roots, FixedPoint) else _correction(roots, f, state.y, w, residual, tolerance)
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


def divided(roots: Roots, f: Map, y: Array, w: Array, b: Array) -> Array:
    """Return x with x - w J x = b, J the Jacobian of f at y; linear in b, to be differentiated and transposed."""
    if _known(y.size) <= (roots.dense if isinstance(roots, Newton) else Newton().dense):
        return _dense(f, y, w, b)
    _, product = jax.linearize(f, y)
    tolerance = TOLERANCES[b.dtype.name] if roots.tolerance is None else roots.tolerance

    def solve(apply: Map, b: Array) -> Array:
        return _by_products(apply, b, tolerance)

    return lax.custom_linear_solve(lambda v: v - w * product(v), b, solve, transpose_solve=solve)  # type: ignore[no-any-return]


def _exactly(change: Array, last: Array, size: Array, tolerance: float) -> Array:
    """Whether a correction by the inverse at its own point says that this is the solution."""
    rounding = ROUNDING * TOLERANCES[change.dtype.name] * size
    return (change <= tolerance * size) | ((change <= rounding) & (change > last / 2))


def _slowly(change: Array, last: Array, size: Array, tolerance: float) -> Array:
    """Whether what would follow of a geometric series is within the tolerance, or rounding."""
    theta = jnp.where(last > 0, change / last, 0)
    rest = change * jnp.maximum(1, theta / jnp.where(theta < 1, 1 - theta, 1))
    stalled = change <= STALLED * jnp.finfo(change.dtype).eps * size
    return jnp.isfinite(last) & jnp.where(theta < 1, rest <= tolerance * size, stalled)


def _correction(roots: Newton, f: Map, y: Array, w: Array, residual: Array, tolerance: float) -> Array:
    if _known(y.size) <= roots.dense:
        return _dense(f, y, w, residual)
    _, product = jax.linearize(f, y)
    return _by_products(lambda v: v - w * product(v), residual, tolerance)


def _known(size: Any) -> int:
    if is_symbolic_dim(size):
        raise ValueError(
            f"fdeint(y0 of {size} numbers): needs a number that is known when the call is traced, because each step "
            "solves an equation of so many unknowns; pass jax.vmap of the solve over the open axis."
        )
    return size  # type: ignore[no-any-return]


def _dense(f: Map, y: Array, w: Array, b: Array) -> Array:
    return _by_matrix(lambda v: v - w * jax.jvp(f, (y,), (v,))[1], b)


def _by_matrix(apply: Map, b: Array) -> Array:
    """Return x with apply(x) = b, by the matrix of `apply`: what it makes of each entry, laid over devices as b is."""
    if b.size == 1:
        return b / apply(jnp.ones_like(b))
    units = zeros(b, b.size) + np.eye(b.size, dtype=b.dtype).reshape(b.size, *b.shape)

    def solved(rows: Array, b: Array) -> Array:
        return jnp.linalg.solve(rows.reshape(b.size, b.size).T, b.reshape(-1)).reshape(b.shape)

    rows = jax.vmap(apply)(units)
    return placed_like(b, solved, rows, b) if is_placed(b) else solved(rows, b)


def _by_products(apply: Map, b: Array, tolerance: float) -> Array:
    """Return x with apply(x) = b by GMRES; where it does not converge, by a dense matrix, or NaN where that is large.

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
