"""`fdeint` by collocation in JAX: options, the solve, and the solution, which can be evaluated at any time.

Steps are taken without derivatives; `adjoint` attaches the derivatives to the values of f that the steps found.

Shapes: a orders alpha; r numbers of the state for each order; s stages of a step; N steps for which arrays have room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.float64 import jointly_in_float64
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import Statistics, check_absolute, points_of, tolerances, within
from hpfracc_nn.solvers.jax.collocation.adjoint import attached
from hpfracc_nn.solvers.jax.collocation.past import sums
from hpfracc_nn.solvers.jax.collocation.steps import (
    FAILED,
    FINISHED,
    MAX_STEPS,
    STATUSES,
    Problem,
    Steps,
    Tolerance,
    along,
    promoting,
    to,
)
from hpfracc_nn.solvers.jax.state import (
    Layout,
    State,
    is_traced,
    resolution,
    smallest_order,
    without_gradient,
)
from hpfracc_nn.solvers.mesh import MESHES, Graded, Mesh, Points, Uniform

OWNER = "fdeint"
_TINY = 1e-37  # in place of a time of 0

jax.tree_util.register_dataclass(
    Statistics,
    data_fields=["steps", "rejected", "evaluations", "products", "jacobians", "iterations"],
    meta_fields=[],
)


@dataclass(frozen=True, eq=False)
class Options:
    """The options of `fdeint` that say how steps by collocation are chosen; see there."""

    rtol: Any
    atol: Any
    mesh: str | Mesh | Points
    n_steps: int | None
    max_steps: int
    max_step: Any
    breakpoints: Any
    throw: bool
    adjoint: bool
    progress: Callable[[int, int], None] | None

    @property
    def has_tolerance(self) -> bool:
        """Whether a tolerance chooses the steps, not a mesh."""
        return self.rtol is not None or self.atol is not None


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["alpha", "begin", "z0", "dz0", "first", "lengths", "values", "n", "end"],
    meta_fields=["layout", "stages"],
)
@dataclass(frozen=True, eq=False)
class Path:
    """The steps of a solve, from which the solution at any time is computed.

    Attributes:
        layout: How the user's state is laid out.
        stages: The number of stages of a step.
        alpha: The orders, [a].
        begin: The time at the start, in the caller's unit.
        z0: The state at the start, [a, r].
        dz0: The derivative of the state at the start, [a, r], or None.
        first: The right-hand side f at the start, [a, r].
        lengths: The lengths of the steps, [N]; 0 for steps that were not taken.
        values: The values of f at the stages of all steps, [N, s, a, r].
        n: How many steps were taken.
        end: The time since the start up to which the steps reach.
    """

    layout: Layout
    stages: int
    alpha: Array
    begin: Array
    z0: Array
    dz0: Array | None
    first: Array
    lengths: Array
    values: Array
    n: Array
    end: Array

    @promoting
    def at(self, elapsed: Array, derivative: int = 0) -> State:
        """Return the user's states at the times `elapsed` since the start, [times]; with derivative=1 their slopes.

        States at times that the steps do not reach are NaN.
        """
        ends, real = jnp.cumsum(self.lengths), self.lengths.dtype
        begins = jnp.where(jnp.arange(ends.size) > 0, jnp.roll(ends, 1), 0)

        def one(t: Array) -> Array:
            own = jnp.clip(jnp.searchsorted(ends, t, side="left"), 0, jnp.maximum(self.n - 1, 0))
            since = jnp.maximum(t - begins[own], _TINY)
            h = jnp.where(self.lengths[own] > 0, self.lengths[own], 1.0)
            past = sums(self.stages, self.alpha, self.lengths, own, since[None], self.values, derivative)[0]
            local = self._within(jnp.clip(since / h, _TINY, 1.0), h, derivative)
            found = past + jnp.einsum("as,sar->ar", local, self.values[own], precision=lax.Precision.HIGHEST)
            if not derivative:
                found = found + self.z0
            if self.dz0 is not None:
                found = found + (self.dz0 if derivative else t.astype(found.dtype) * self.dz0)
            at_start = self.z0
            if derivative:  # below order 1 the derivative begins like t**(alpha - 1)
                at_start = jnp.where(self.alpha[:, None] < 1, self.first * jnp.inf, found)
                if self.dz0 is not None:
                    at_start = jnp.where(self.alpha[:, None] > 1, self.dz0, at_start)
            found = jnp.where(t > 0, found, at_start)
            return jnp.where((t <= self.end) & (t >= 0), found, jnp.nan)

        # A time may be off by its rounding, which is no reason to be outside.
        slack = 8 * jnp.finfo(real).eps * (jnp.abs(self.begin).astype(real) + self.end)
        is_end = (elapsed > self.end) & (elapsed <= self.end + slack)
        found = lax.map(one, jnp.where(is_end, self.end, elapsed.astype(real)))
        return self.layout.parted(found.reshape(-1, *self.layout.shape))

    def _within(self, place: Array, h: Array, derivative: int) -> Array:
        """Return the weights of a step's stages in the integral over this step up to a place in the step, [a, s].

        `place` is a fraction of the step in (0, 1], `h` the step's length; derivative=1 differentiates in time.
        """
        stages = self.stages

        def one(alpha: Array, place: Array, h: Array) -> Array:
            own = within(stages, alpha[None], place[None], JAX, derivative)[0, 0]
            return own * jnp.exp((alpha - derivative) * jnp.log(h))

        def every(alpha: Array, place: Array, h: Array) -> Array:
            found = jax.vmap(one)(alpha.reshape(-1), place.reshape(-1), h.reshape(-1))
            return found.reshape(*alpha.shape, stages)

        given = self.alpha, jnp.broadcast_to(place, self.alpha.shape), jnp.broadcast_to(h, self.alpha.shape)
        return jointly_in_float64(every, given, self.values.dtype)  # type: ignore[no-any-return]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["ts", "ys", "mesh", "errors", "statistics", "status", "path"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False)
class Solution:
    """The solution of an equation by collocation, on all of the time that was solved: a pytree.

    Arrays have room for `max_steps` steps, or for all steps of a mesh; in places of steps that were not taken `mesh`
    has the end and `errors` NaN. Of a batch under `jax.vmap` all attributes have the batch first.

    Attributes:
        ts: The output times, [times].
        ys: The states at `ts`, [times, *y0.shape], or a pytree of such; NaN after the end of a solve that ended early.
        mesh: Where steps begin and end, in the caller's unit, [room + 1].
        errors: The estimate of each step's error as a part of what the tolerances allow, [room]; NaN on a given mesh.
        statistics: What the solve cost.
        status: An int: 1 if the solve finished, 2 if max_steps did not lead to the end, 3 if no step was short
            enough, or a step's equations were not solved.
        path: The steps, from which states at other times are computed.

    Examples:
        >>> solve = jax.jit(
        ...     lambda y0, rtol: fdeint(lambda t, y: -y, y0, [0, 1], 0.5, rtol=rtol, full=True)
        ... )
        >>> found = solve(jnp.ones(1), 1e-4)
        >>> found.reason, found(0.5).round(3)  # E_(1/2)(-sqrt(1/2)) = 0.5232
        ('finished', Array([0.523], dtype=float32))
    """

    ts: Array
    ys: Any
    mesh: Array
    errors: Array
    statistics: Statistics
    status: Array
    path: Path

    @property
    def reason(self) -> Any:
        """Why the solve ended: "finished", "max_steps" or "failed", or a NumPy array of these for a batch.

        Raises:
            TypeError: The solution is traced; look at `status` there.
        """
        if is_traced(self.status):
            raise TypeError("Solution.reason: needs a solution that is not traced; look at its status there.")
        return np.array(STATUSES)[np.asarray(self.status)] if self.status.ndim else STATUSES[int(self.status)]

    @property
    def end(self) -> Array:
        """The time up to which the equation was solved, in the caller's unit."""
        return self.path.begin + self.path.end

    def __call__(self, ts: Any, derivative: int = 0) -> Any:
        """Return the states at any times, NaN at times that were not solved.

        States between the steps are as accurate as the steps, and JAX differentiates them in all that the solve is
        differentiated in. The derivative in time has one digit or two fewer; at the start this derivative is infinite
        for orders below 1, and NaN where f is 0 there. Of a batch, call
        `jax.vmap(lambda solution: solution(ts))(solutions)`.

        Args:
            ts: Times, [times], or one number; they need not increase, and may be traced.
            derivative: 0 for the states, 1 for their derivative in time.

        Returns:
            The states, [times, *y0.shape], or a pytree of such; without the first axis for one number.

        Raises:
            ValueError: `derivative` is neither 0 nor 1, or `ts` is neither one number nor times along one axis.
        """
        if derivative not in (0, 1):
            raise ValueError(f"Solution(derivative={derivative!r}): needs 0 or 1; pass 1 for the derivative in time.")
        given = ts if is_traced(ts) else np.asarray(ts, np.float64)
        if given.ndim > 1:
            raise ValueError(f"Solution(ts of shape {given.shape}): needs times along one axis, or one number.")
        moved = (jnp.atleast_1d(without_gradient("Solution", given)) - self.path.begin).astype(widest())
        # A time may be off by the rounding of its own dtype, which is no reason to be outside.
        end, slack = self.path.end, 2 * resolution(ts) * jnp.abs(moved + self.path.begin)
        elapsed = jnp.where((moved < 0) & (moved >= -slack), 0, moved)
        elapsed = jnp.where((elapsed > end) & (elapsed <= end + slack), end, elapsed)
        found = self.path.at(elapsed, derivative)
        return found if given.ndim else jax.tree.map(lambda part: part[0], found)


@promoting
def collocated(
    problem: Problem, times: Any, options: Options, reporting: Callable[[int], Callable[[Array], None]]
) -> Solution:
    """Return the solution of a problem by collocation; raise an error if nothing is traced and the solve ended early.

    Args:
        problem: The initial value problem.
        times: The output times, concrete or traced.
        options: How steps are chosen.
        reporting: Called as reporting(count), `count` the number of steps for which there is room; returns a function
            that is called with the number of each step.
    """
    elapsed = (times - times[0]).astype(widest())

    def on_step(count: int) -> Callable[[Array], None] | None:
        return None if options.progress is None else reporting(count)

    z0, dz0, alpha, read = problem.z0, problem.dz0, problem.alpha, problem.right_side.read
    still = problem.of(*lax.stop_gradient((alpha, z0, dz0, read)))
    if options.has_tolerance:
        if options.mesh != "uniform" or options.n_steps is not None:
            raise ValueError(
                f"{OWNER}(rtol, atol): choose the steps, and so do mesh and n_steps; pass the former or the latter."
            )
        tolerance, stops = _tolerance(problem, options), _stops(options, times, elapsed)
        most = errors.count(OWNER, "max_steps", options.max_steps)
        found = to(still, stops, tolerance, most, on_step(most))
    else:
        lengths = _lengths(problem, options, times)
        found = along(still, lengths, on_step(lengths.size))
    if options.throw and not is_traced(found.values):
        _raise(still, found, options, float(elapsed[-1]))
    values = attached(problem, found, options.adjoint)
    if is_traced(found.values) and options.throw:
        values = checked(values, found.status != MAX_STEPS, f"{OWNER}: max_steps did not lead to the end.")
        values = checked(values, found.status != FAILED, f"{OWNER}: a step was not solved, or none is short enough.")
    begin = jnp.asarray(times[0], widest())
    path = Path(
        problem.layout,
        problem.scheme.stages,
        alpha,
        begin,
        z0,
        dz0,
        found.start,
        found.lengths,
        values,
        found.n,
        # Summed in single precision, the lengths of steps would miss the last time by more than its rounding.
        jnp.where(found.status == FINISHED, elapsed[-1], found.time).astype(found.time.dtype),
    )
    mesh = begin + jnp.append(0.0, jnp.cumsum(found.lengths))
    statistics = Statistics(found.n, *found.counts)  # type: ignore[arg-type]
    ys = path.at(jnp.asarray(elapsed))
    return Solution(jnp.asarray(times, widest()), ys, mesh, found.errors, statistics, found.status, path)


def _tolerance(problem: Problem, options: Options) -> Tolerance:
    """Return the tolerance and the longest step that the user asked for; values that are not traced are checked."""
    layout, dtype = problem.layout, problem.layout.dtype
    eps = float(jnp.finfo(dtype).eps)
    rtol, atol = (_number(each) for each in (options.rtol, options.atol))
    for name, value in (("rtol", rtol), ("max_step", options.max_step)):
        if np.ndim(value):
            raise ValueError(
                f"{OWNER}({name} of shape {np.shape(value)}): needs one number, because all entries of a state "
                "have the same steps; pass jax.vmap of the solve for one each, or atol by entry."
            )
    if not (is_traced(rtol) or is_traced(atol)):
        rtol, atol = tolerances(OWNER, rtol, atol, eps)
    else:
        rtol = jnp.maximum(1e-3 if rtol is None else rtol, 100 * eps)
        atol = 1e-6 if atol is None else atol
    if isinstance(atol, jax.Array | np.ndarray) and atol.ndim:
        if not layout.is_array or (not is_traced(atol) and not bool((np.asarray(atol) >= 0).all())):
            raise ValueError(
                f"{OWNER}(atol=...): needs a number >= 0, or for one array y0 an array of such; pass 1e-8."
            )
        check_absolute(OWNER, atol.shape, layout.shapes[0])
        # A complex state has both parts along a last axis.
        whole = jnp.broadcast_to(jnp.asarray(atol, dtype), layout.shapes[0])
        atol = layout.joined(lax.complex(whole, whole) if layout.is_complex else whole).reshape(problem.z0.shape)
    elif not is_traced(atol):
        atol = errors.real(OWNER, "atol", atol, 0.0, example=1e-8)
    longest = _number(options.max_step)
    if longest is None:
        longest = np.inf
    elif not is_traced(longest):
        longest = errors.real(OWNER, "max_step", longest, 0.0, above=True, example=0.1)
    rtol, atol = (lax.stop_gradient(jnp.asarray(each, dtype)) for each in (rtol, atol))
    return Tolerance(rtol, atol, jnp.asarray(longest, widest()))


def _number(value: Any) -> Any:
    """Return a concrete array without axes as a Python number, and anything else as it is."""
    is_scalar = isinstance(value, jax.Array | np.ndarray | np.generic) and not np.ndim(value)
    return float(value) if is_scalar and not is_traced(value) else value


def _stops(options: Options, times: Any, elapsed: Any) -> Array:
    """Return the times since the start at which f may jump, sorted, then the end.

    Breakpoints outside of the time of the solve are replaced by the end.
    """
    end = jnp.asarray(elapsed[-1], widest())
    points = options.breakpoints
    if points is None:
        return end[None]
    given = points if is_traced(points) else np.asarray(points_of(OWNER, points))
    inside = (given - times[0]).astype(widest())
    return jnp.append(jnp.sort(jnp.where((inside > 0) & (inside < end), inside, end)), end)


def _lengths(problem: Problem, options: Options, times: Any) -> Array:
    """Return the lengths of the steps of the mesh that the user asked for, [N]."""
    mesh = checks.named(OWNER, "mesh", options.mesh, MESHES, (Uniform, Graded, Points))
    n_steps, real = options.n_steps, widest()
    for name in ("max_step", "breakpoints"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"{OWNER}({name}, scheme='collocation'): needs steps that a tolerance chooses; pass rtol or atol, or "
                "all steps by mesh=Points(...)."
            )
    elapsed = times - times[0]
    if isinstance(mesh, Points):
        given = np.array(mesh.elapsed)
        if n_steps is not None or (not is_traced(elapsed) and abs(given[-1] - elapsed[-1]) > 1e-9 * elapsed[-1]):
            last = "as it is traced" if is_traced(elapsed) else f"{elapsed[-1]:g} after the start"
            raise ValueError(
                f"{OWNER}(mesh=Points(...)): needs times up to the last output, {last}, and no n_steps; the last is "
                f"{given[-1]:g}; end there."
            )
        return jnp.asarray(np.diff(given), real)
    if n_steps is None and isinstance(mesh, Uniform):
        return jnp.asarray(jnp.diff(elapsed) if is_traced(elapsed) else np.diff(elapsed), real)
    count = errors.count(OWNER, "n_steps", elapsed.size - 1 if n_steps is None else n_steps)
    if isinstance(mesh, Uniform):
        return jnp.full(count, elapsed[-1] / count, real)
    if is_traced(elapsed):
        raise ValueError(
            f"{OWNER}(mesh={mesh}): needs times that are known when it is traced; pass ts as a NumPy array, or "
            "mesh='uniform'."
        )
    alpha = smallest_order(OWNER, problem.orders, mesh)
    return jnp.asarray(np.diff(mesh.times(0.0, float(elapsed[-1]), count, alpha)), real)


def _raise(problem: Problem, found: Steps, options: Options, end: float) -> None:
    """Raise an error that says why the steps `found` did not reach the last time; do nothing if they did."""
    if int(found.status) == FINISHED:
        return
    n, begin = int(found.n), float(problem.begin)
    t, h, size = begin + float(found.time), float(found.h), float(np.abs(np.asarray(found.before)).max())
    if int(found.status) == MAX_STEPS:
        raise checks.too_many(OWNER, options.max_steps, t, begin + end, h)
    value = np.asarray(problem.value(jnp.asarray(t, found.before.dtype), found.before))
    if not np.isfinite(value).all():
        if n == 0:
            raise checks.singular(f"{OWNER}(f)", "f", t, bool(np.isnan(value).any()), size)
        raise checks.undefined(OWNER, n, t, size)
    if options.has_tolerance:
        raise checks.stuck(OWNER, n, t, h, size)
    way_out = "take more steps, or pass rtol and atol, which choose them"
    raise checks.unsolved(OWNER, n, t, problem.scheme.roots.iterations, way_out)
