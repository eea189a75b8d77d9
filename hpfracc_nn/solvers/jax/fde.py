"""`fdeint`: Caputo's initial value problem for pytrees of JAX arrays.

Inside of a solve a state is an array [a, *rest], with a orders alpha and the axes that share each of them; see `state`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, widest
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import Collocation, check_history
from hpfracc_nn.solvers.explosions import Limits
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax.collocation.solve import Options, collocated
from hpfracc_nn.solvers.jax.collocation.steps import Problem
from hpfracc_nn.solvers.jax.integrate import Anew, Deterministic, Solution, checked_explosion
from hpfracc_nn.solvers.jax.kernels import with_history
from hpfracc_nn.solvers.jax.memory import Past, Sum, Weights
from hpfracc_nn.solvers.jax.state import (
    Orders,
    RightSide,
    State,
    checked_state,
    is_traced,
    layout_of,
    orders_of,
    resolution,
    slope_of,
    smallest_order,
    times_of,
    traced,
    varying,
)
from hpfracc_nn.solvers.mesh import ON_MESH, Mesh, Points, Uniform, interpolation
from hpfracc_nn.solvers.method import Method, laid_out
from hpfracc_nn.solvers.schemes import SCHEMES, Newton, Scheme

OWNER = "fdeint"

Progress = Callable[[int, int], None]  # steps done, steps in all


def fdeint(
    f: Callable[..., State],
    y0: State,
    ts: Array | np.ndarray | Sequence[float],
    alpha: float | np.ndarray | Array,
    *,
    args: Any = None,
    scheme: str | Scheme | Collocation | None = None,
    rtol: float | Array | None = None,
    atol: float | Array | None = None,
    max_steps: int = 256,
    max_step: float | Array | None = None,
    breakpoints: Sequence[float] | np.ndarray | Array | None = None,
    full: bool = False,
    throw: bool = True,
    history: str | History = "auto",
    mesh: str | Mesh | Points = "uniform",
    n_steps: int | None = None,
    dy0: State | None = None,
    adjoint: bool = True,
    checkpoint: bool = False,
    progress: Progress | None = None,
    manager: BackendManager | None = None,
) -> Any:
    """Return the solution of D^alpha y = f(t, y), Caputo's derivative from ts[0] on, at the times `ts`.

    A pure function: `jit`, `grad`, `jvp`, `vmap`, `jacfwd` and `hessian` apply to it, in y0, dy0, alpha, args and
    whatever else f reads, and sharded arrays may be passed. Call it inside `jax.jit` if you can: outside, every call
    traces f and compiles the loop again. The program is as long for 2000 steps as for 100, except with history="fft",
    which adds one FFT for twice the steps.

    Costs n_steps evaluations of f (twice that for predictor_corrector, more if a step solves an equation) and the
    history's sum over the past. For a gradient the states are saved and f is linearised at each step.

    Args:
        f: Called as f(t, y), or f(t, y, args) if args is not None, with t a scalar array and y like y0; returns the
            derivative, a pytree like y0. Any callable will do: a function, an Equinox module, a Flax module.
        y0: The state at ts[0]: an array of any shape, or a pytree of arrays, of one dtype: float32, float64, complex64
            or complex128. A complex state is solved as its real and imaginary parts.
        ts: Increasing times, in the caller's unit. On a uniform mesh each must be a point of the mesh; traced times are
            assumed to be, and the state at one that is not is NaN.
        alpha: In (0, 2): a float, or an array, which may be traced: one number, or one for each entry along some of
            y0's axes (a shape that broadcasts to y0's). If it is traced, the solution is NaN for an alpha outside
            (0, 1], or with `dy0` outside (0, 2).
        args: A pytree that f gets as its third argument, or None.
        scheme: "rectangle", "predictor_corrector", "trapezoid", "bdf2", "collocation", or a `Scheme` or `Collocation`
            with its options; None is "collocation" with a tolerance and "predictor_corrector" without.
        rtol: The error that a step by collocation may have, relative to the state: the root mean square over a sample
            of the step's error divided by atol + rtol |y| is at most 1. A sample is what belongs to one index of the
            first axis of y0, if y0 has several axes, else all of y0; all samples have the same steps, unless `jax.vmap`
            gives each its own. rtol may be traced: one program serves all tolerances. The least rtol is 100 times the
            dtype's rounding, for which 0 may be passed; None beside `atol` is 1e-3.
        atol: The absolute error that a step may have: a number, or an array that broadcasts to y0; None beside `rtol`
            is 1e-6.
        max_steps: The greatest number of steps to a tolerance: arrays have room for so many, also for a derivative.
        max_step: The longest step to a tolerance; None is any.
        breakpoints: Increasing times at which f may jump, where steps to a tolerance end and begin small again; traced
            ones need not increase.
        full: Whether a `Solution` is returned in place of the states; by collocation.
        throw: Whether a solve to a tolerance that ends before the last time raises an error, where nothing is traced,
            or under `checkify`. Its states are NaN from there on, and `Solution.status` says why.
        history: How the sum over the past is computed: "auto" (the BackendManager chooses), "full", "fft",
            "exponentials", or a `History` with its options.
        mesh: "uniform", "graded", or a `Mesh`. Graded meshes suit y that begins like t**alpha.
        n_steps: The number of steps from ts[0] to ts[-1]; None takes one step between two times of `ts`.
        dy0: The derivative at ts[0], like y0, if an order is above 1; its entries with an order up to 1 are ignored. If
            alpha is an array, dy0 may be passed whatever the orders are. When a learned order passes 1, the solution
            jumps by (t - ts[0]) dy0; gradients do not include this jump, which is 0 only for dy0 = 0.
        adjoint: Whether only the states are saved for a backward pass, which then evaluates f again at each; if False,
            all that f computes at every step is saved instead.
        checkpoint: With adjoint=False, whether a backward pass computes blocks of steps again, so that less is saved.
        progress: Called as progress(steps done, steps in all) after each step, by `jax.debug.callback`.
        manager: The manager that chooses how the past is added up; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a pytree of such arrays. If something is traced, states
        that diverge are not finite from that step on, and states from a step whose equation was not solved are NaN;
        `jax.experimental.checkify` raises an error for both.

    Raises:
        ValueError: An argument is out of range, or f returns another shape than y0's.
        TypeError: An argument, or what f returns, has the wrong type.
        FloatingPointError: Nothing is traced, and f returns numbers that are not finite, or the solution diverges or
            explodes, or no step is short enough for the tolerance.
        RuntimeError: Nothing is traced, and the equation of an implicit step is not solved, or `max_steps` do not lead
            to the end.
        LookupError: No kernel that the manager allows can compute this history.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16.

    Examples:
        >>> ts = jnp.linspace(0, 1, 101)
        >>> y = jax.jit(lambda y0: fdeint(lambda t, y: -y, y0, ts, 0.5))(jnp.ones(1))
        >>> y[-1].round(4)  # E_(1/2)(-1) = e erfc(1) = 0.4276
        Array([0.4276], dtype=float32)
        >>> solve = jax.jit(
        ...     lambda y0, tol: fdeint(lambda t, y: -y, y0, [0, 1], 0.5, rtol=tol, atol=tol)
        ... )
        >>> solve(jnp.ones(1), 1e-4)[-1].round(4)
        Array([0.4276], dtype=float32)
    """
    if scheme is None:
        scheme = "predictor_corrector" if rtol is None and atol is None else "collocation"
    options = Options(rtol, atol, mesh, n_steps, max_steps, max_step, breakpoints, throw, adjoint, progress)
    method = _checked_method(scheme, history, mesh, options, full)
    if checkpoint and adjoint:
        raise ValueError(
            "fdeint(checkpoint=True, adjoint=True): needs one of them, because the adjoint saves states alone; leave "
            "checkpoint out, or pass adjoint=False."
        )
    if not callable(f):
        raise TypeError(f"{OWNER}(f of type {type(f).__name__}): needs a function f(t, y); pass one.")
    y0 = checked_state(OWNER, "y0", y0, is_complex=True)
    has_slope = dy0 is not None

    def check(values: np.ndarray) -> None:
        checks.orders(OWNER, values, has_slope, isinstance(alpha, jax.Array))

    orders = orders_of(OWNER, alpha, 0.0, 2.0 if has_slope else 1.0, check, 0.5)
    layout = layout_of(OWNER, y0, orders.shape)
    slope = None if dy0 is None else checked_state(OWNER, "dy0", dy0, layout.is_complex)
    dz0 = None if slope is None else slope_of(OWNER, slope, layout, orders)
    begin = beside(layout.joined(y0), (args, alpha, ts, dy0))

    def begun(t: Array) -> tuple[Array, RightSide]:
        return varying(begin, lambda z: traced(f"{OWNER}(f)", f, args, layout, t, z))

    if method is None:
        outputs, real, flat = times_of(OWNER, ts), widest(), (layout.orders, -1)
        first = jnp.asarray(outputs[0], real)
        z0, right_side = begun(first.astype(layout.dtype))
        chosen, alpha = scheme if isinstance(scheme, Collocation) else Collocation(), jnp.asarray(orders.alpha, real)
        dz0 = None if dz0 is None else dz0.reshape(flat)
        problem = Problem(layout, right_side, chosen, orders, alpha, first, z0.reshape(flat), dz0)
        solution = collocated(problem, outputs, options, partial(_reporting, progress or (lambda *_: None)))
        return solution if full else solution.ys
    times = _times(ts, n_steps, method.mesh, orders, layout.dtype)
    z0, right_side = begun(times.at[0])
    n = times.at.size - 1
    on_step = None if progress is None else _reporting(progress, n)

    def solve(weights: Weights, past: Callable[[Weights], Past]) -> Solution:
        anew = Anew(adjoint, checkpoint)
        problem = Deterministic(layout, right_side, method.scheme, past, times.at, times.elapsed, anew, on_step)
        return problem.solve(weights, z0, dz0)

    sums = Sum(method.scheme, method.history, n, times.unequal, layout.dtype.name)
    found = with_history(OWNER, manager, method.op, sums, layout, orders, times.dt, solve)
    states = _checked_solution(method.scheme, right_side, times.at, found)
    limits = _limits(method.scheme, times, orders)
    if limits is not None:
        states = checked_explosion(limits, layout, z0, states, states, lambda: found.values)
    return layout.parted(_at_outputs(times, states, dz0))


def _checked_method(scheme: Any, history: Any, mesh: Any, options: Options, full: bool) -> Method | None:
    """Return the method of a scheme with fixed steps, or None for collocation.

    Raise ValueError for options that only the other of the two has, such as a tolerance with a scheme of fixed steps.
    """
    if isinstance(scheme, Collocation) or scheme == Collocation.name:
        check_history(OWNER, history)
        return None
    if isinstance(scheme, str):
        errors.one_of(OWNER, "scheme", scheme, (*SCHEMES, Collocation.name))
    method = Method.of(OWNER, scheme, history, mesh)
    asked = {"rtol": options.rtol, "atol": options.atol, "max_step": options.max_step}
    asked |= {"breakpoints": options.breakpoints, "full": full or None, "throw": None if options.throw else False}
    for name, value in asked.items():
        if value is not None:
            raise ValueError(
                f"{OWNER}({name}, scheme={method.scheme.name!r}): needs scheme='collocation', because the steps of "
                f"{method.scheme.name!r} are fixed; pass rtol without a scheme, or leave {name} out."
            )
    return method


@dataclass(frozen=True, eq=False)
class Times:
    """The times of the steps of a solve, and where its output times lie among them.

    Attributes:
        at: The time t of each step, [n_steps + 1].
        elapsed: The time since the start at each step, [n_steps + 1].
        dt: The length of a step, a float or traced; 1 on a mesh whose steps are not equal.
        unequal: The times `elapsed` as Python floats if steps are not equal, else None.
        index: The output times in units of steps, [outputs]; whole numbers at points of the mesh, else fractions.
        interpolation_error: The output times minus the times that interpolating `elapsed` between the points of the
            mesh gives, [outputs]; None if all outputs are points of the mesh.
        is_on_mesh: Whether each traced output time is a point of the mesh, [outputs]; None if they are not traced.
    """

    at: Array
    elapsed: Array
    dt: float | Array
    unequal: tuple[float, ...] | None
    index: np.ndarray | Array
    interpolation_error: np.ndarray | None = None
    is_on_mesh: Array | None = None


def _times(ts: Any, n_steps: int | None, mesh: Mesh, orders: Orders, dtype: Any) -> Times:
    """Return the times of the steps, and where the output times `ts` lie among them.

    Args:
        ts: The user's output times.
        n_steps: The user's number of steps, or None.
        mesh: How the times of the steps are chosen.
        orders: The orders alpha; a graded mesh depends on the smallest.
        dtype: The real dtype of the states, which the times of the steps get.
    """
    checked_ts = times_of(OWNER, ts)
    if is_traced(checked_ts):
        return _traced_times(checked_ts, n_steps, mesh, dtype)
    outputs = np.asarray(checked_ts)
    elapsed, index = laid_out(mesh, outputs, resolution(ts), n_steps, smallest_order(OWNER, orders, mesh))
    at, since = (jnp.asarray(each, dtype) for each in (outputs[0] + elapsed, elapsed))
    n = elapsed.size - 1
    if isinstance(mesh, Uniform):
        return Times(at, since, float(elapsed[-1]) / n, None, np.round(index).astype(np.int64))
    unequal, whole = tuple(elapsed.tolist()), np.round(index).astype(np.int64)
    if (whole == index).all():
        return Times(at, since, 1.0, unequal, whole)
    places, weights = interpolation(index, n)
    interpolation_error = (outputs - outputs[0]) - (weights * elapsed[places]).sum(-1)
    return Times(at, since, 1.0, unequal, index, interpolation_error)


def _traced_times(ts: Any, n_steps: int | None, mesh: Mesh, dtype: Any) -> Times:
    if not isinstance(mesh, Uniform):
        raise ValueError(
            f"{OWNER}(mesh={mesh}): needs times that are known when it is traced; pass ts as a NumPy "
            "array, or mesh='uniform'."
        )
    n = errors.count(OWNER, "n_steps", ts.size - 1 if n_steps is None else n_steps)
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
    return Times(at, since, duration / n, None, index, is_on_mesh=is_on_mesh)


def _at_outputs(times: Times, states: Array, dz0: Array | None) -> Array:
    """Return the states at the output times, [outputs, a, *rest].

    Args:
        times: The times of the steps and of the outputs.
        states: The states at all steps, [n_steps + 1, a, *rest].
        dz0: The derivative at the start, [a, *rest], or None. The solution's part (elapsed time) * dz0 is made exact
            after the interpolation between steps.
    """
    if times.interpolation_error is not None:
        places, weights = interpolation(np.asarray(times.index), states.shape[0] - 1)
        some = jnp.einsum("ti,ti...->t...", jnp.asarray(weights, states.dtype), states[places])
        if dz0 is None:
            return some
        error = jnp.asarray(times.interpolation_error, states.dtype)
        return some + error.reshape(-1, *(1,) * dz0.ndim) * dz0[None]
    if isinstance(times.index, np.ndarray) and np.array_equal(times.index, np.arange(states.shape[0])):
        return states
    wanted = states[times.index]
    if times.is_on_mesh is None:
        return wanted
    return jnp.where(times.is_on_mesh.reshape(-1, *(1,) * (states.ndim - 1)), wanted, jnp.nan)


def _limits(scheme: Scheme, times: Times, orders: Orders) -> Limits | None:
    """Return the rates of decay up to which an explicit scheme is stable with steps at `times`.

    The result is None for a scheme that is stable at any rate, and if the step or the orders are traced.
    """
    decay, values = getattr(scheme, "stability", None), orders.values
    if decay is None or values is None or is_traced(times.dt):
        return None
    elapsed = times.unequal or np.arange(times.at.size) * float(times.dt)
    first = 0.0 if is_traced(times.at) else float(times.at[0])
    return Limits(OWNER, scheme.name, decay, values, np.asarray(elapsed), first)


def _reporting(progress: Progress, n_steps: int) -> Callable[[Array], None]:
    """Return a function of a step's number that calls progress(step, n_steps), from compiled programs too."""

    def report(step: Array) -> None:
        jax.debug.callback(lambda step: progress(min(int(step), n_steps), n_steps), step)

    return report


def _checked_solution(scheme: Scheme, f: RightSide, times: Array, found: Solution) -> Array:
    """Return the states of a solution, or raise an error if states are not finite; traced states only under `checkify`.

    Args:
        scheme: The scheme, whose iteration an error names.
        f: The right-hand side, evaluated again to see whether f is the cause.
        times: The time of each step, [n_steps + 1].
        found: The solution.

    Raises:
        FloatingPointError: The solution, or f, is not finite.
        RuntimeError: The equation of an implicit step was not solved.
    """
    if is_traced(found.states):
        solved = checked(found.states, found.is_solved.all(), f"{OWNER}: the equation of a step did not converge.")
        return checked(solved, jnp.isfinite(solved).all(), f"{OWNER}: the solution is not finite.")
    states = np.asarray(found.states)
    is_good = np.isfinite(states).reshape(states.shape[0], -1).all(-1)
    if is_good.all():
        return found.states
    n = int(np.argmin(is_good))
    t, size = float(times[n]), float(np.abs(states[n - 1]).max())
    is_solved = np.asarray(found.is_solved)
    for k in (n - 1, n):
        at = states[min(k, n - 1)]
        is_moderate = np.abs(at).max() < np.finfo(at.dtype).max ** 0.1
        if is_moderate and not np.isfinite(np.asarray(f(times[k], jnp.asarray(at)))).all():
            if k == 0:
                value = np.asarray(f(times[0], jnp.asarray(at)))
                raise checks.singular(
                    f"{OWNER}(f)", "f", float(times[0]), bool(np.isnan(value).any()), float(np.abs(at).max())
                )
            raise checks.undefined(OWNER, k, float(times[k]), float(np.abs(at).max()))
    if not is_solved[n - 1]:
        roots = scheme.roots  # type: ignore[attr-defined]  # only these solve equations
        way_out = checks.WITH_NEWTON if isinstance(roots, Newton) else checks.WITH_FIXED_POINT
        raise checks.unsolved(OWNER, n, t, roots.iterations, way_out)
    raise checks.diverged(OWNER, n, t, size)
