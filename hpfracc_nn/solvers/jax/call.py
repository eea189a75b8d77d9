"""The arguments of `fdeint`: what is solved, checked and laid out. `torch/call.py` is the twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Work, carried_out, given_manager
from hpfracc_nn.solvers.explosions import Limits
from hpfracc_nn.solvers.jax.arguments import State, checked_state, is_traced, orders_of, resolution, times_of
from hpfracc_nn.solvers.jax.explosions import checked_explosion
from hpfracc_nn.solvers.jax.faults import checked_solution
from hpfracc_nn.solvers.jax.layout import layout_of
from hpfracc_nn.solvers.jax.planning import workload_of
from hpfracc_nn.solvers.jax.programs import compiled, facts_of, is_staged
from hpfracc_nn.solvers.jax.right_side import traced, varying
from hpfracc_nn.solvers.jax.solving import Inputs, Solution, Solve
from hpfracc_nn.solvers.jax.steps import step_of
from hpfracc_nn.solvers.jax.weights import Grid, Sum
from hpfracc_nn.solvers.mesh import ON_MESH, Uniform, interpolation
from hpfracc_nn.solvers.method import Method, laid_out

OWNER = "fdeint"

Progress = Callable[[int, int], None]  # steps done, steps in all


@dataclass(frozen=True, eq=False)
class Times:
    """Where steps are taken and states wanted.

    Attributes:
        at: What f is given at each step, [n_steps + 1].
        elapsed: The time since the start, [n_steps + 1].
        dt: The step, a float, or traced; that of a mesh whose steps are not equal is 1.
        grid: What is static.
        index: Where the outputs lie, in steps, [times]: whole numbers or, on a graded mesh, between.
        missed: By what a line that is interpolated misses the outputs, [times].
        is_on_mesh: Whether outputs that are traced are points of the mesh, or None.
    """

    at: Array
    elapsed: Array
    dt: float | Array
    grid: Grid
    index: np.ndarray | Array
    missed: np.ndarray | None = None
    is_on_mesh: Array | None = None


class Call:
    """The arguments of one call, checked and laid out.

    Raises:
        ValueError: One is out of range.
        TypeError: One has the wrong type.
    """

    def __init__(
        self,
        f: Callable[..., State],
        y0: State,
        ts: Any,
        alpha: Any,
        args: Any,
        method: Method,
        n_steps: int | None,
        dy0: State | None,
    ):
        self.method = method
        y0 = checked_state(OWNER, "y0", y0)
        self.orders = orders_of(OWNER, alpha, dy0 is not None)
        self.layout = layout_of(OWNER, y0, self.orders.shape)
        self.dz0 = None if dy0 is None else self._slope(checked_state(OWNER, "dy0", dy0))
        self.times = self._times(ts, n_steps)
        begin = beside(self.layout.joined(y0), (args, alpha, ts, dy0))
        self.z0, self.right_side = varying(
            begin, lambda z: traced(OWNER, f, args, self.layout, self.times.at[0], z), lambda found: found.given
        )

    def solved(
        self,
        adjoint: bool,
        checkpoint: bool,
        progress: Progress | None,
        manager: BackendManager | None,
    ) -> State:
        """Return the states at the output times."""
        times, layout = self.times, self.layout
        sums = Sum(self.method.scheme, self.method.history, times.grid, jnp.dtype(layout.dtype).name)
        nodes = sums.nodes(self.orders)
        site = given_manager(OWNER, manager).shared_site(self.method.op, "jax", OWNER)
        key = sums, layout.shape, nodes is None, self.orders.values is None
        plan = site.pick_traced(key, lambda: workload_of(site.op, layout, times.grid.n_steps, nodes))
        inputs, found = carried_out(_TRACED, site, plan, self, sums, nodes, adjoint, checkpoint, progress)
        states = checked_solution(OWNER, self.method.scheme, self.right_side, inputs, found)
        limits = self._limits()
        if limits is not None:
            states = checked_explosion(limits, layout, self.z0, states, states, lambda: found.values)
        return layout.parted(self._at_outputs(states))

    def computed(
        self,
        kernel: Kernel,
        sums: Sum,
        nodes: Nodes | None,
        adjoint: bool,
        checkpoint: bool,
        progress: Progress | None,
    ) -> tuple[Inputs, Solution]:
        """Return what a solve with a kernel's history is given, and what it finds."""
        times, scheme, history = self.times, self.method.scheme, self.method.history
        nodes = nodes if kernel.algorithm == "recurrence" else None
        weights = sums.weights(self.orders, times.dt, nodes)
        is_program = not is_staged() and progress is None
        is_fixed = isinstance(weights.own, np.ndarray) and not is_program
        solve = Solve(
            self.layout,
            self.right_side.bare,
            step_of(scheme),
            scheme.is_implicit,
            lambda weights: kernel.run(weights, nodes, history),
            weights if is_fixed else None,
            times.grid.n_steps,
            checkpoint,
            None if progress is None else _telling(progress, times.grid.n_steps),
        )
        moving = None if is_fixed else weights
        inputs = Inputs(moving, self.z0, self.dz0, self.right_side.given, times.at, times.elapsed)
        run = solve.recorded if adjoint else solve.plain
        if is_program:
            what = facts_of(self.right_side.jaxpr), self.layout, scheme, history, times.grid
            run = compiled((OWNER, *what, kernel.name, kernel.run, nodes, adjoint, checkpoint), run)
        return inputs, run(inputs)

    def _limits(self) -> Limits | None:
        """Return how fast a decay a solve can follow; None for schemes that follow any, and where that is traced."""
        decay, times, values = getattr(self.method.scheme, "stability", None), self.times, self.orders.values
        if decay is None or values is None or is_traced(times.dt):
            return None
        n_steps = times.grid.n_steps
        elapsed = times.grid.times or np.arange(n_steps + 1) * float(times.dt)
        first = 0.0 if is_traced(times.at) else float(times.at[0])
        return Limits(OWNER, self.method.scheme.name, decay, values, np.asarray(elapsed), first)

    def _slope(self, dy0: State) -> Array:
        """Return the derivative at the start, 0 for the orders that have no such condition."""
        shapes = tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(dy0))
        if jax.tree.structure(dy0) != self.layout.tree or shapes != self.layout.shapes:
            raise ValueError(
                f"{OWNER}(dy0 of shape {list(shapes)}): needs the shape of y0, {list(self.layout.shapes)}; pass a "
                "derivative for each entry."
            )
        slope = self.layout.joined(dy0)
        orders = self.orders
        is_above = jnp.asarray((orders.traced if orders.values is None else orders.values) > 1)  # type: ignore[operator]
        return slope * self.layout.spread(is_above).astype(slope.dtype)

    def _times(self, ts: Any, n_steps: int | None) -> Times:
        given, mesh, dtype = times_of(OWNER, ts), self.method.mesh, self.layout.dtype
        if is_traced(given):
            return self._traced_times(cast(Array, given), n_steps)
        outputs = np.asarray(given)
        elapsed, index = laid_out(mesh, outputs, resolution(ts), n_steps, self._smallest())
        at, since = (jnp.asarray(each, dtype) for each in (outputs[0] + elapsed, elapsed))
        n = elapsed.size - 1
        if isinstance(mesh, Uniform):
            return Times(at, since, float(elapsed[-1]) / n, Grid(n), np.round(index).astype(np.int64))
        grid = Grid(n, tuple(elapsed.tolist()))
        whole = np.round(index).astype(np.int64)
        if (whole == index).all():
            return Times(at, since, 1.0, grid, whole)
        places, weights = interpolation(index, n)
        missed = (outputs - outputs[0]) - (weights * elapsed[places]).sum(-1)
        return Times(at, since, 1.0, grid, index, missed)

    def _smallest(self) -> float:
        """Return the smallest order, which a graded mesh is made for."""
        if self.orders.values is not None:
            return float(self.orders.values.min())
        if isinstance(self.method.mesh, Uniform) or self.method.mesh.exponent is not None:
            return 1.0
        raise ValueError(
            f"{OWNER}(mesh={self.method.mesh}): needs an exponent where alpha is traced, because the mesh is made "
            "before alpha has a value; pass mesh=Graded(2 / alpha) with a number."
        )

    def _traced_times(self, ts: Array, n_steps: int | None) -> Times:
        if not isinstance(self.method.mesh, Uniform):
            raise ValueError(
                f"{OWNER}(mesh={self.method.mesh}): needs times that are known when it is traced; pass ts as a NumPy "
                "array, or mesh='uniform'."
            )
        n = errors.count(OWNER, "n_steps", ts.size - 1 if n_steps is None else n_steps)
        dtype = self.layout.dtype
        duration = ts[-1] - ts[0]
        part = jnp.arange(n + 1, dtype=ts.dtype) / n
        elapsed = duration * part
        place = (ts - ts[0]) * (n / duration)
        index = jnp.arange(n + 1) if n_steps is None else jnp.clip(jnp.round(place), 0, n).astype(int)
        rounding = 2 * resolution(ts) * jnp.max(jnp.abs(ts))
        off = jnp.abs(ts - ts[0] - elapsed[index])
        is_on_mesh = (jnp.abs(place - index.astype(place.dtype)) <= ON_MESH) | (off <= rounding)
        message = f"{OWNER}(ts=...): needs output times that are points of the uniform mesh of {n} steps."
        is_on_mesh = checked(is_on_mesh, is_on_mesh.all(), message)
        at, since = (ts[0] + elapsed).astype(dtype), elapsed.astype(dtype)
        return Times(at, since, duration / n, Grid(n), index, is_on_mesh=is_on_mesh)

    def _at_outputs(self, states: Array) -> Array:
        """Return the states at the output times, [times, a, *rest]."""
        times = self.times
        if times.missed is not None:
            places, weights = interpolation(np.asarray(times.index), times.grid.n_steps)
            some = jnp.einsum("ti,ti...->t...", jnp.asarray(weights, states.dtype), states[places])
            if self.dz0 is None:
                return some
            missed = jnp.asarray(times.missed, states.dtype)
            return some + missed.reshape(-1, *(1,) * self.dz0.ndim) * self.dz0
        if isinstance(times.index, np.ndarray) and np.array_equal(times.index, np.arange(states.shape[0])):
            return states
        wanted = states[times.index]
        if times.is_on_mesh is None:
            return wanted
        return jnp.where(times.is_on_mesh.reshape(-1, *(1,) * self.z0.ndim), wanted, jnp.nan)


def _telling(progress: Progress, n_steps: int) -> Callable[[Array], None]:
    def tell(step: Array) -> None:
        jax.debug.callback(lambda step: progress(min(int(step), n_steps), n_steps), step)

    return tell


def _run(plan: Plan, call: Call, *given: Any) -> tuple[Inputs, Solution]:
    plan.kernel.calls["run"] += 1
    return call.computed(plan.kernel, *given)


_TRACED = Work(_run, is_timed=False)  # what is traced tells no time
