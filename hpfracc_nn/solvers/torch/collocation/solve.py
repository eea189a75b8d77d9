"""`fdeint` by collocation: its arguments, its events, and the `Solution` that is made of the steps.

F are the values of f at the stages of all steps, [steps, s, *shape], [*shape] a state and s stages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.tracing import is_traced, uncompiled
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import Collocation, check_absolute, points_of, tolerances
from hpfracc_nn.solvers.mesh import Mesh as MeshOption
from hpfracc_nn.solvers.mesh import Points, Uniform
from hpfracc_nn.solvers.torch.adjoint import trainable
from hpfracc_nn.solvers.torch.collocation.adjoint import recorded, solved
from hpfracc_nn.solvers.torch.collocation.past import Mesh, evaluated_at
from hpfracc_nn.solvers.torch.collocation.problem import Problem
from hpfracc_nn.solvers.torch.collocation.steps import Integrator, Step, Track
from hpfracc_nn.solvers.torch.solution import Event, Occurrences, Solution, events_of
from hpfracc_nn.solvers.torch.state import (
    Casts,
    Field,
    Layout,
    RightHandSide,
    State,
    check_untraced,
    checked_state,
    layout_of,
    like_start,
    orders_of,
    present,
    times_of,
    without,
)

_FOLLOWED = ("rtol", "atol", "max_step", "breakpoints")  # options that `Solution.continued` takes over
_CHANGEABLE = {*_FOLLOWED, "mesh", "n_steps", "events", "max_steps", "throw", "progress"}


@dataclass(frozen=True, eq=False)
class Options:
    """The options of `fdeint` that choose, bound and watch the steps."""

    rtol: float | None = None
    atol: Any = None
    mesh: Any = None
    n_steps: int | None = None
    events: tuple[Event, ...] = ()
    max_steps: int = 10_000
    throw: bool = True
    progress: Callable[[int, int], None] | None = None
    max_step: float | None = None
    breakpoints: Any = None

    def check_steps_are_free(self) -> None:
        """Raise ValueError where a mesh is given beside tolerances, or max_step or breakpoints without tolerances."""
        is_free = self.rtol is not None or self.atol is not None
        if is_free and (self.mesh is not None or self.n_steps is not None):
            raise ValueError(
                "fdeint(rtol, atol): choose the steps, and so do mesh and n_steps; pass the former or the latter."
            )
        for name in () if is_free else ("max_step", "breakpoints"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"fdeint({name}, scheme='collocation'): needs steps that a tolerance chooses; pass rtol or atol, "
                    "or all steps by mesh=Points(...)."
                )


@dataclass(frozen=True, eq=False)
class DenseOutput:
    """The dense output of a solve by collocation: see `Path`.

    Attributes:
        solve: The solve.
        values: F of all steps, [steps, s, *shape].
        steps: The mesh of the steps.
        last: The state at the end of the last step, [*shape].
    """

    solve: Solve
    values: Tensor
    steps: Mesh
    last: Tensor

    @property
    def begin(self) -> float:
        """The time at the start."""
        return self.solve.begin

    def states(self, elapsed: np.ndarray, derivative: int) -> Tensor:
        """Return the states, or their derivatives in time, at times since the start, [times, *shape]; see `Path`."""
        with without(self.values.device.type):
            return self.solve.at(elapsed, self.values, self.steps, derivative)

    def unravel(self, states: Tensor, times: np.ndarray, failed: Tensor) -> Any:
        """Return states [times, *shape] as the user has them, with NaN for samples after they failed."""
        return self.solve.unravel(states, times, failed)

    def continued(self, earlier: Solution, ts: Any, options: dict[str, Any]) -> Solution:
        """Return the solution that goes on from the end of `earlier`: see `Solution.continued`."""
        return self.solve.go_on(earlier, ts, options)


class Solve:
    """One call of `fdeint` by collocation: its arguments, checked and laid out.

    `begin` is the time at the start, `casts` the autocast that f runs under; the other arguments are those of `fdeint`.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        f: RightHandSide,
        y0: State,
        begin: float,
        alpha: float | Tensor,
        scheme: Collocation,
        dy0: State | None,
        adjoint: bool,
        params: Iterable[Tensor] | None,
        casts: Casts | None,
    ):
        if not callable(f):
            raise TypeError(f"fdeint(f of type {type(f).__name__}): needs a function f(t, y); pass one.")
        self.y0, self.scheme, self.adjoint, self.params = checked_state("fdeint", "y0", y0), scheme, adjoint, params
        self.begin = begin
        self.like = self.y0[0] if isinstance(self.y0, tuple) else self.y0
        given = alpha if isinstance(alpha, Tensor) else None
        self.orders = orders_of("fdeint", alpha)
        self.layout: Layout = layout_of(self.y0, torch.Size(()) if given is None else given.shape)
        checks.orders("fdeint", self.orders, dy0 is not None, given is not None)
        self.z0 = self.layout.ravel(self.y0)
        self.dz0 = None if dy0 is None else self._slope(like_start(self.y0, checked_state("fdeint", "dy0", dy0)))
        self.alpha = None if given is None else given.to(self.z0.device, torch.float64).reshape(-1)
        self.field = Field(f, self.layout, np.array([begin]), self.like, casts)
        if is_traced(self.z0, ()) or forward_ad._current_level >= 0 or (not adjoint and torch.is_grad_enabled()):
            raise NotImplementedError(
                "fdeint(scheme='collocation'): has reverse mode by its adjoint only, and neither adjoint=False, "
                "transforms of torch.func nor forward mode; pass adjoint=True and use backward(), or another scheme."
            )

    def _slope(self, dy0: State) -> Tensor:
        slope = self.layout.ravel(dy0)
        return slope * self.layout.broadcast(torch.as_tensor(self.orders > 1)).to(slope)

    def problem(self, options: Options) -> Problem:
        """Return the `Problem` of this solve with the tolerances and limits of `options`."""
        rtol: float | None = None
        atol: Any = 0.0
        if options.rtol is not None or options.atol is not None:
            rtol, atol = tolerances("fdeint", options.rtol, options.atol, torch.finfo(self.like.dtype).eps)
            atol = self._absolute(atol)
        max_steps = errors.count("fdeint", "max_steps", options.max_steps)
        return Problem(self.field, self.scheme, self.orders, self.begin, rtol, atol, max_steps, options.throw)

    def _absolute(self, atol: Any) -> Any:
        if not isinstance(atol, Tensor):
            return errors.real("fdeint", "atol", atol, 0.0, example=1e-8)
        if self.layout.is_tuple or not bool((atol >= 0).all()):
            raise ValueError("fdeint(atol=...): needs a number >= 0, or for one tensor y0 a tensor of such; pass 1e-8.")
        check_absolute("fdeint", atol.shape, self.layout.shape)
        return atol.detach().to(self.like).expand(self.layout.shape)

    def at(self, elapsed: np.ndarray, values: Tensor, steps: Mesh, derivative: int = 0) -> Tensor:
        """Return the solution, or with derivative=1 its derivative in time, at times since the start, [times, *shape].

        `values` are F of the steps.
        """
        learns = self.alpha is not None and self.alpha.requires_grad and torch.is_grad_enabled()
        problem = Problem(self.field, self.scheme, self.orders, self.begin, None, 0.0, 1)
        if not values.shape[0]:
            return self.z0.expand(elapsed.size, *self.z0.shape)
        return evaluated_at(
            problem, steps, elapsed, values, self.z0, self.dz0, self.alpha if learns else None, derivative
        )

    def unravel(self, ys: Tensor, times: np.ndarray, failed: Tensor) -> Any:
        """Return states [times, *shape] as the user has them, with NaN for samples after they failed: see `Path`."""
        found = self.layout.unravel(ys)
        if bool(failed.isnan().all()):
            return found
        is_over = torch.as_tensor(times)[:, None] > failed

        def blank(part: Tensor) -> Tensor:
            over = is_over.to(part.device).view(*is_over.shape, *[1] * (part.ndim - 2))
            return torch.where(over, torch.full_like(part, torch.nan), part)

        return tuple(map(blank, found)) if isinstance(found, tuple) else blank(found)

    def run(self, ts: Any, options: Options, earlier: Solution | None = None) -> Solution:
        """Take the steps to the last of the times `ts` and return the `Solution`, after `earlier` if given."""
        times = checks.increasing("fdeint", np.asarray(times_of("fdeint", ts), dtype=np.float64))
        problem = self.problem(options)
        start = 0.0 if earlier is None else earlier.end - self.begin
        elapsed = times - self.begin
        watch = Watched(self.layout, options.events, self.begin)
        steps = self._steps(problem, options, start, elapsed, watch, earlier)
        past = _past(earlier)
        known = None if past is None else past.values
        before = None if past is None else past.last
        lengths = [] if past is None else past.steps.lengths.tolist()
        values, track = self._solved(problem, steps, lengths, known, before)
        if known is not None:
            values = torch.cat([known, values])
        found = self._solution(problem, track, times, values, np.array([*lengths, *track.lengths]), watch, earlier)
        if problem.rtol is not None:
            found.followed.update({name: getattr(options, name) for name in _FOLLOWED})
        return found

    def _steps(
        self,
        problem: Problem,
        options: Options,
        start: float,
        elapsed: np.ndarray,
        watch: Watched,
        earlier: Solution | None,
    ) -> Callable[[Integrator], Track]:
        hook = watch.look if options.events else None
        options.check_steps_are_free()
        if problem.rtol is not None:
            longest, points = (
                math.inf,
                np.array(points_of("fdeint", () if options.breakpoints is None else options.breakpoints)) - self.begin,
            )
            if options.max_step is not None:
                longest = errors.real("fdeint", "max_step", options.max_step, 0.0, above=True, example=0.1)
            end, places = float(elapsed[-1]), points.tolist()
            return lambda integrator: integrator.to(end, hook, options.progress, places, longest)
        mesh = self._mesh(options, start, elapsed)
        return lambda integrator: integrator.along(mesh, hook, options.progress)

    def _mesh(self, options: Options, start: float, elapsed: np.ndarray) -> np.ndarray:
        mesh: MeshOption | Points = Uniform() if options.mesh is None else options.mesh
        if options.n_steps is None and isinstance(mesh, Uniform):
            return elapsed
        if isinstance(mesh, Points):
            given = start + np.array(mesh.elapsed)
            if options.n_steps is not None or abs(given[-1] - elapsed[-1]) > 1e-9 * elapsed[-1]:
                raise ValueError(
                    f"fdeint(mesh=Points(...)): needs times up to the last output, {elapsed[-1] - start:g} after the "
                    f"start, and no n_steps; the last is {given[-1] - start:g}; end there."
                )
            return given
        n_steps = errors.count("fdeint", "n_steps", elapsed.size - 1 if options.n_steps is None else options.n_steps)
        return start + mesh.times(0.0, float(elapsed[-1] - start), n_steps, float(self.orders.min()))

    def _solved(
        self,
        problem: Problem,
        steps: Callable[[Integrator], Track],
        lengths: Sequence[float],
        known: Tensor | None,
        before: Tensor | None,
    ) -> tuple[Tensor, Track]:
        alpha = self.alpha
        if torch.is_grad_enabled():
            parameters, read = trainable(problem.field, self.z0, self.params)
            tensors = [self.z0, self.dz0, alpha, known, *parameters]
            if any(each is not None and each.requires_grad for each in tensors):
                return recorded(problem, steps, lengths, read, known, before, self.z0, self.dz0, alpha, parameters)
        return solved(problem, steps, lengths, known, before, self.z0, self.dz0)

    def _solution(
        self,
        problem: Problem,
        track: Track,
        times: np.ndarray,
        values: Tensor,
        lengths: np.ndarray,
        watch: Watched,
        earlier: Solution | None,
    ) -> Solution:
        steps = Mesh(lengths)
        end = watch.end if track.status == "event" else track.end
        elapsed = times - self.begin
        is_known = elapsed <= end * (1 + 1e-12)
        ys = self.at(np.clip(elapsed, 0.0, end)[is_known], values, steps)
        if not is_known.all():
            ys = torch.cat([ys, torch.full((int((~is_known).sum()), *self.layout.shape), torch.nan).to(ys)])
        errors_before = [] if earlier is None else earlier.errors.tolist()
        past = _past(earlier)
        last = track.ends[-1] if track.ends else (self.z0.detach() if past is None else past.last)
        if track.status == "event" and lengths.size:
            # The polynomial of the last step is cut at the event, so that what goes on begins there.
            last = self.at(np.array([end]), values.detach(), steps)[0].detach()
        failed = torch.full((problem.samples,), torch.nan, dtype=torch.float64)
        for sample, time in track.failed.items():
            failed[sample] = self.begin + time
        return Solution(
            torch.as_tensor(times),
            self.unravel(ys, times, failed),
            torch.from_numpy(self.begin + steps.times),
            torch.tensor([*errors_before, *track.errors], dtype=torch.float64),
            problem.statistics,
            track.status,
            track.message,
            tuple(self._occurrences(event, watch, k, values, steps) for k, event in enumerate(watch.events)),
            failed,
            DenseOutput(self, values, steps, last),
            float(times[-1]) if track.status == "finished" else self.begin + end,
        )

    def _occurrences(self, event: Event, watch: Watched, k: int, values: Tensor, steps: Mesh) -> Occurrences:
        """Return the zeros of an event, whose times have the gradients that the implicit function theorem gives.

        Args:
            event: The event.
            watch: All events of the solve, with the zeros that were found.
            k: The index of this event among them.
            values: F of the steps.
            steps: The mesh of the steps.
        """
        found = [(time, entry) for which, time, entry in watch.found if which == k]
        if not found:
            empty = self.z0.new_zeros(0, *self.layout.shape)
            return Occurrences(torch.zeros(0, dtype=self.like.dtype), self.layout.unravel(empty), ())
        elapsed = np.array([time for time, _ in found])
        states, slopes = self.at(elapsed, values, steps), self.at(elapsed, values, steps, 1)
        times = []
        for (time, entry), y, slope in zip(found, states.unbind(), slopes.unbind(), strict=True):
            times.append(self._zero(event, self.begin + time, entry, y, slope))
        moved = torch.stack(times)
        shift = (moved - moved.detach()).view(-1, *[1] * self.z0.ndim)
        return Occurrences(moved, self.layout.unravel(states + shift * slopes.detach()), tuple(e for _, e in found))

    def _zero(self, event: Event, time: float, entry: int, y: Tensor, slope: Tensor) -> Tensor:
        """Return the time of a zero of the event's function g, with the gradient of the implicit function theorem.

        It is the gradient of -g / (dg/dt) with the denominator fixed. `entry` is the index of the entry of g that is
        zero; `y` is the state there, with its graph, and `slope` its derivative in time.
        """
        plain = torch.tensor(time, dtype=torch.float64).to(y)
        if not torch.is_grad_enabled():
            return plain
        t, z = plain.clone().requires_grad_(), y.detach().requires_grad_()
        value = event.function(t, self.layout.unravel(z)).reshape(-1)[entry]
        of_t, of_z = torch.autograd.grad(value, (t, z), allow_unused=True)
        rate = torch.zeros_like(plain) if of_t is None else of_t
        rate = rate if of_z is None else rate + (of_z * slope.detach()).sum()
        here = event.function(plain, self.layout.unravel(y)).reshape(-1)[entry]
        return plain - (here - here.detach()) / rate

    def go_on(self, earlier: Solution, ts: Any, options: dict[str, Any]) -> Solution:
        """Return the solution that goes on from the end of `earlier`: see `Solution.continued`."""
        wrong = sorted(set(options) - _CHANGEABLE)
        if wrong:
            raise ValueError(
                f"Solution.continued({wrong[0]}): needs what may change, {', '.join(sorted(_CHANGEABLE))}; leave it "
                "out, or solve anew."
            )
        if not bool(earlier.failed.isnan().all()) or earlier.status in ("max_steps", "failed"):
            raise ValueError(
                "Solution.continued: needs a solve whose samples all have a solution up to its end; solve anew without "
                "those that failed."
            )
        if earlier.status == "event":
            raise ValueError(
                "Solution.continued: needs a solve that ended with a step, and this one was ended by an event inside "
                "of one; solve without is_terminal and go on, or solve up to the event."
            )
        times = np.asarray(times_of("fdeint", ts), dtype=np.float64)
        if times.ndim == 1 and times.size and abs(times[0] - earlier.end) > 1e-9 * max(1.0, abs(earlier.end)):
            raise ValueError(
                f"Solution.continued(ts=...): needs the end of the solution, {earlier.end:g}, as the first time; it is "
                f"{times[0]:g}; pass times from there on."
            )
        is_meshed = options.get("mesh") is not None or options.get("n_steps") is not None
        kept = {} if is_meshed else earlier.followed
        return self.run(times, options_of(**{"events": (), **kept, **options}), earlier)


def options_of(**given: Any) -> Options:
    """Return the `Options` of keyword arguments, with events as a tuple: see `events_of`."""
    return replace(Options(**given), events=events_of(given.get("events", ())))


def _past(earlier: Solution | None) -> DenseOutput | None:
    """Return the steps of the solution `earlier`, which is to go on; None where there is none."""
    if earlier is None:
        return None
    assert isinstance(earlier.path, DenseOutput), "it goes on by the same scheme"
    return earlier.path


class Watched:
    """The events of a solve, and their zeros as steps are taken.

    Args:
        layout: How the states are laid out.
        events: The events.
        begin: The time at the start.

    Attributes:
        found: For each zero, the index of its event, its time since the start, and the index of the entry that is zero.
        end: The time, since the start, of the zero that ended the solve.
    """

    def __init__(self, layout: Layout, events: Sequence[Event], begin: float):
        self.layout, self.events, self.begin = layout, events, begin
        self.found: list[tuple[int, float, int]] = []
        self.end = 0.0

    def look(self, integrator: Integrator, step: Step) -> bool:
        """Find the zeros of all events in a step that is about to be accepted; return whether one ends the solve."""
        problem, start = integrator.problem, integrator.time
        places = np.concatenate([[0.0], problem.rule.nodes, [1.0]])
        states = [integrator.before, *self._inside(integrator, step, problem.rule.nodes), step.end]
        zeros: list[tuple[float, int, int]] = []
        for k, event in enumerate(self.events):
            values = np.stack([self._value(event, start + step.h * x, y) for x, y in zip(places, states, strict=True)])
            if problem.mask is None and not np.isfinite(values).all():
                time = self.begin + start + step.h * places[np.argwhere(~np.isfinite(values))[0, 0]]
                raise FloatingPointError(
                    f"fdeint(events): the function of event {k} is not finite at t={time:g}; "
                    "let it be defined wherever the solution goes."
                )
            for i, entry in np.argwhere(self._changes(values, event.direction)).tolist():
                zeros.append(
                    (self._root(integrator, step, event, entry, places[i : i + 2], values[i : i + 2]), k, entry)
                )
        zeros.sort()
        for x, k, entry in zeros:
            self.found.append((k, start + step.h * x, entry))
            if self.events[k].is_terminal:
                self.end = start + step.h * x
                return True
        return False

    @staticmethod
    def _changes(values: np.ndarray, direction: int) -> np.ndarray:
        """Return where signs change from one row of values [rows, entries] to the next, bool [rows - 1, entries].

        A change that ends at zero counts, one that begins at zero does not. `direction` is that of `Event`.
        """
        before, later = values[:-1], values[1:]
        up, down = (before < 0) & (later >= 0), (before > 0) & (later <= 0)
        return up if direction > 0 else down if direction < 0 else up | down

    def _value(self, event: Event, elapsed: float, y: Tensor) -> np.ndarray:
        t = torch.tensor(self.begin + elapsed, dtype=torch.float64).to(y)
        with torch.no_grad():
            found = event.function(t, self.layout.unravel(y))
        if not isinstance(found, Tensor) or not found.is_floating_point():
            kind = f"a tensor of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
            raise TypeError(
                f"fdeint(events): needs a floating tensor, whose sign changes and which has gradients; the function of "
                f"event {self.events.index(event)} returned {kind}; return for example y[0] - 0.5."
            )
        return np.array(found.reshape(-1).tolist(), dtype=np.float64)

    def _inside(self, integrator: Integrator, step: Step, places: np.ndarray) -> list[Tensor]:
        problem = integrator.problem
        found = integrator.sums(step.h * places) + problem.mixed(problem.weights_at(step.h, places), step.values)
        return list(found.unbind())

    def _root(
        self, integrator: Integrator, step: Step, event: Event, entry: int, ends: np.ndarray, values: np.ndarray
    ) -> float:
        if values[1, entry] == 0:
            return float(ends[1])

        def at(x: float) -> float:
            if x in ends:
                return float(values[int(x == ends[1]), entry])
            (y,) = self._inside(integrator, step, np.array([x]))
            return float(self._value(event, integrator.time + step.h * x, y)[entry])

        return float(brentq(at, *ends.tolist(), xtol=1e-15, rtol=8.9e-16))


@uncompiled
def collocated(
    f: RightHandSide,
    y0: State,
    ts: Any,
    alpha: float | Tensor,
    scheme: Collocation,
    options: Options,
    dy0: State | None,
    adjoint: bool,
    params: Iterable[Tensor] | None,
) -> Solution:
    """Return the `Solution` that `fdeint` returns with `full=True`, by collocation; arguments as of `fdeint`."""
    check_untraced("fdeint", "y0")
    first = next((each for each in (y0 if isinstance(y0, tuple | list) else (y0,)) if isinstance(each, Tensor)), None)
    kind = "cpu" if first is None else first.device.type
    times = checks.increasing("fdeint", np.asarray(times_of("fdeint", ts), dtype=np.float64))
    solve = Solve(f, y0, float(times[0]), alpha, scheme, dy0, adjoint, params, present(kind))
    with without(kind):
        return solve.run(times, options)
