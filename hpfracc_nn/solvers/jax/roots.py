"""The solution of the equation of an implicit step, y = m + w f(y), and of the linear equation of its derivative.

Newton's method computes the Jacobian at each iteration: a step needs few iterations, and under `vmap` the members of a
batch could not keep a Jacobian for some and compute it for others. The rules by which an iteration has converged are
those of `torch/roots.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.export import is_symbolic_dim
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
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
    """The solution of the equation of an implicit step.

    Attributes:
        y: The solution, or NaN if the iteration did not converge.
        is_found: Whether the iteration converged.
    """

    y: Array
    is_found: Array


class _State(NamedTuple):
    """The state of the iteration for y = m + w f(y); all but y are scalars.

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
    """Return the solution y of y = m + w f(y); see `torch.roots.Convergence` for the rules of convergence.

    Args:
        roots: The method, `Newton` or `FixedPoint`.
        f: The right-hand side at the step's time, a function of y.
        m: The weighted sum over the past, an array like y.
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
            delta = divided(roots, lambda v: v - w * slope(v), residual)
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
    """Return y, a known solution of y = m + w f(y), with the derivatives of the implicit function theorem attached.

    Derivatives are in m, w and whatever else f reads, to any order; `roots` says how their linear equation is solved.
    """
    closed = jax.make_jaxpr(f)(y)

    def residual(y: Array, knowns: tuple[Array, ...]) -> Array:
        m, w, *read = knowns
        return m + w * jax.core.eval_jaxpr(closed.jaxpr, read, y)[0] - y

    def tangent(y: Array, knowns: tuple[Array, ...], moved: tuple[Array, ...]) -> Array:
        _, pushed = jax.jvp(lambda knowns: residual(y, knowns), (knowns,), (moved,))
        _, slope = jax.linearize(lambda y: -residual(y, knowns), y)
        return divided(roots, slope, pushed)

    return _ROOT.bind(y, m, w, *closed.consts, tangent=tangent)  # type: ignore[no-any-return]


# A primitive, as in `fractional/jax/float64.py`, in place of `jax.lax.custom_root`: in second derivatives of a step,
# JAX's partial evaluation loses the rule for the derivative of `custom_root`, so that a term is missing.
_ROOT = Primitive("root")


def _solution(y: Any, *knowns: Any, tangent: Callable[..., Array]) -> Any:
    """Return y unchanged: the value of the primitive, its abstract value, and its lowering.

    Args:
        y: The solution.
        knowns: All that the solution depends on: m, w and what f reads.
        tangent: Called as tangent(y, knowns, tangents of the knowns); returns the tangent of y.
    """
    return y


def _moved(primals: Sequence[Array], tangents: Sequence[Any], *, tangent: Callable[..., Array]) -> tuple[Array, Any]:
    """JVP rule of the primitive: return the solution and its tangent.

    The tangent is computed from the result of the primitive, so that higher derivatives are right too.
    """
    y, knowns = _ROOT.bind(*primals, tangent=tangent), tuple(primals[1:])
    if all(isinstance(each, ad.Zero) for each in tangents[1:]):
        return y, ad.Zero(jax.typeof(y).to_tangent_aval())
    return y, tangent(y, knowns, tuple(map(ad.instantiate_zeros, tangents[1:])))


def _batched(
    arguments: Sequence[Array], axes: Sequence[int | None], *, tangent: Callable[..., Array]
) -> tuple[Array, int]:
    """Batching rule of the primitive: return the solutions with the batch as their first axis, and 0, its number."""
    y, axis = arguments[0], axes[0]
    size = next(each.shape[axis] for each, axis in zip(arguments, axes, strict=True) if axis is not None)
    y = jnp.broadcast_to(y, (size, *y.shape)) if axis is None else jnp.moveaxis(y, axis, 0)
    every = jax.vmap(tangent, in_axes=(0, tuple(axes[1:]), tuple(axes[1:])))
    return _ROOT.bind(y, *arguments[1:], tangent=every), 0


_ROOT.def_impl(_solution)
_ROOT.def_abstract_eval(_solution)
mlir.register_lowering(_ROOT, mlir.lower_fun(_solution, multiple_results=False))
ad.primitive_jvps[_ROOT] = _moved
batching.primitive_batchers[_ROOT] = _batched


def divided(roots: Roots, apply: Map, b: Array, residual: float | None = None) -> Array:
    """Return the solution x of apply(x) = b for a linear function `apply`; the result is linear in b.

    Args:
        roots: The method for implicit steps; it says up to which size a dense matrix is used, and GMRES's tolerance.
        apply: The linear function, from arrays like b to arrays like b.
        b: The right-hand side, of any shape.
        residual: GMRES's tolerance, compared with the residual after each product with `apply`; None is the tolerance
            of `roots`, compared after every forty products.
    """
    if _known(b.size) <= (roots.dense if isinstance(roots, Newton) else Newton().dense):
        return _by_matrix(apply, b)
    own = TOLERANCES[b.dtype.name] if roots.tolerance is None else roots.tolerance
    tolerance = own if residual is None else residual

    def solve(apply: Map, b: Array) -> Array:
        return _by_products(apply, b, tolerance, "batched" if residual is None else "incremental")

    return lax.custom_linear_solve(apply, b, solve, transpose_solve=solve)  # type: ignore[no-any-return]


def _newton_converged(change: Array, last: Array, size: Array, tolerance: float) -> Array:
    """Return whether Newton's method has converged.

    Args:
        change: The largest absolute value of this correction.
        last: The largest absolute value of the previous correction.
        size: The largest absolute value in the guess, m and all iterates so far.
        tolerance: The correction that counts as converged, relative to `size`.
    """
    rounding = ROUNDING * TOLERANCES[change.dtype.name] * size
    return (change <= tolerance * size) | ((change <= rounding) & (change > last / 2))


def _fixed_point_converged(change: Array, last: Array, size: Array, tolerance: float) -> Array:
    """Return whether a fixed-point iteration has converged; arguments as of `_newton_converged`.

    While corrections decay like a geometric series, the sum of all that would follow must be within the tolerance; once
    corrections decay no longer, they must be as small as rounding.
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


def _by_products(apply: Map, b: Array, tolerance: float, way: str) -> Array:
    """Return the solution x of apply(x) = b, `apply` linear, by GMRES to a residual of `tolerance` times b's norm.

    If GMRES does not converge, the solution is that by a dense matrix for up to `LARGEST_DENSE` numbers, else NaN.
    `way` is GMRES's variant in JAX, its `solve_method`: "batched" or "incremental".

    Saad & Schultz, SIAM J. Sci. Stat. Comput. 7 (1986) 856.
    """
    if is_placed(b) or is_varying(b):  # the loop in JAX's GMRES would change the sharding of its carry
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
    found, _ = gmres(apply, b, tol=tolerance, atol=0.0, restart=min(_RESTART, b.size), maxiter=cycles, solve_method=way)
    length = jnp.linalg.norm(b.reshape(-1))
    is_solved = jnp.linalg.norm((b - apply(found)).reshape(-1)) <= _SOLVED * tolerance * length
    if not is_small:
        return jnp.where(is_solved, found, jnp.nan)
    return lax.cond(is_solved, lambda b: found, lambda b: _by_matrix(apply, b), b)  # type: ignore[no-any-return]


def _size(x: Array) -> Array:
    return jnp.max(jnp.abs(x))
