"""What a solve to a tolerance returns: the solution at any time, its events, and how it came about."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor
from torch.autograd import forward_ad

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.tracing import is_traced, uncompiled
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import Collocation, Statistics, points_of, tolerances
from hpfracc_nn.solvers.mesh import Mesh as MeshOption
from hpfracc_nn.solvers.mesh import Points, Uniform
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.adjoint import trainable
from hpfracc_nn.solvers.torch.collocation import (
    TINIEST,
    Integrator,
    Mesh,
    Problem,
    Taken,
    Track,
    by_sample,
    evaluated_at,
    recorded,
    samples_of,
    solved,
)
from hpfracc_nn.solvers.torch.state import (
    Casts,
    Field,
    Layout,
    RightHandSide,
    State,
    check_untraced,
    checked_state,
    layout_of,
    orders_of,
    present,
    times_of,
    without,
)
from hpfracc_nn.solvers.torch.trees import Form

EventFunction = Callable[[Tensor, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Event:
    """A time at which a function of the solution is zero.

    Args:
        function: Called as function(t, y), like f: a floating tensor of any shape, of which each entry is watched.
            Zeros are found where its sign differs between the stages of a step.
        is_terminal: Whether the solve ends at the first zero.
        direction: 1 for zeros where it grows, -1 where it falls, 0 for both.

    Raises:
        ValueError: The direction is another number.
        TypeError: `function` cannot be called, or `is_terminal` is no bool.

    Examples:
        >>> half = Event(lambda t, y: y[0] - 0.5, is_terminal=True)
        >>> found = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     [0, 9],
        ...     0.5,
        ...     rtol=1e-8,
        ...     events=half,
        ...     full=True,
        ... )
        >>> found.status, found.events[0].times  # E_(1/2)(-t**(1/2)) = 1/2 there
        ('event', tensor([0.5915], dtype=torch.float64))
    """

    function: EventFunction
    is_terminal: bool = False
    direction: int = 0

    def __post_init__(self) -> None:
        errors.function("Event", "function", self.function)
        errors.claim("Event", "is_terminal", self.is_terminal)
        if type(self.direction) is not int or self.direction not in (-1, 0, 1):
            raise ValueError(f"Event(direction={self.direction!r}): needs -1, 0 or 1; pass 0 for zeros of both kinds.")


@dataclass(frozen=True, eq=False)
class Occurrences:
    """The zeros of one event, in the order of time.

    Attributes:
        times: In the caller's unit, [zeros]; their gradients are those of the zeros.
        states: There, [zeros, *y0.shape], or a tuple of such.
        entries: Which entries of the event's function were zero, as indices of it when it is flattened.

    Examples:
        >>> zero = Event(lambda t, y: y[0])
        >>> y0, slope = torch.ones(1).double(), torch.zeros(1).double()
        >>> options = {"dy0": slope, "rtol": 1e-8, "events": zero, "full": True}
        >>> found = fdeint(lambda t, y: -y, y0, [0, 9], 1.5, **options).events[0]
        >>> len(found.times), found.entries  # E_(3/2)(-t**(3/2)) has three
        (3, (0, 0, 0))
    """

    times: Tensor
    states: Any
    entries: tuple[int, ...]


@dataclass(eq=False)
class Solution:
    """The solution of an equation, on all of the time that was solved.

    Attributes:
        ts: The output times, float64 [times].
        ys: The states there, [times, *y0.shape], or a tuple of such; NaN after the end of a solve that ended before.
        mesh: Where steps begin and end, in the caller's unit, float64 [steps + 1].
        errors: The estimate of each step's error as a part of what the tolerances allow, [steps]; NaN on a given mesh.
        statistics: What the solve cost.
        status: "finished", "event", "max_steps" or "failed".
        message: What an error would have said, or "".
        events: The zeros of each event.
        failed: With `throw=False` the time at which each sample had no solution any more, float64 [samples]; NaN of
            those that had. Its states are NaN after that.

    Examples:
        >>> found = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     [0, 1],
        ...     0.5,
        ...     rtol=1e-8,
        ...     atol=1e-8,
        ...     full=True,
        ... )
        >>> found.status, found(0.5)  # E_(1/2)(-sqrt(1/2)) = 0.5232
        ('finished', tensor([0.5232], dtype=torch.float64))
    """

    ts: Tensor
    ys: Any
    mesh: Tensor
    errors: Tensor
    statistics: Statistics
    status: str
    message: str
    events: tuple[Occurrences, ...]
    failed: Tensor
    _solve: Solve = field(repr=False)
    _values: Tensor = field(repr=False)
    _steps: Mesh = field(repr=False)
    _ends: Tensor = field(repr=False)
    end: float = 0.0
    _form: Form | None = field(default=None, repr=False)
    _followed: dict[str, Any] = field(default_factory=dict, repr=False)  # options that have chosen the steps

    def __call__(self, ts: Any, derivative: int = 0) -> Any:
        """Return the solution at any times between the start and the end, by the polynomials of the steps.

        It is as accurate as the steps, and has a gradient in all that the solve has. The derivative has one digit or
        two fewer. At the start itself it is infinite for orders below 1, and NaN where f is 0 there.

        Args:
            ts: Times, [times], or one number; they need not increase.
            derivative: 1 for that in time.

        Returns:
            [times, *y0.shape], or a tuple of such; without the first axis for one number.

        Raises:
            ValueError: A time is outside, or `derivative` is neither 0 nor 1.
        """
        if derivative not in (0, 1):
            raise ValueError(f"Solution(derivative={derivative!r}): needs 0 or 1; pass 1 for the derivative in time.")
        given = np.asarray(times_of("Solution", ts), dtype=np.float64)
        times = np.atleast_1d(given)
        first, last = self._solve.begin, self.end
        rounding = 1e-9 * (last - first)
        wrong = times[~((times >= first - rounding) & (times <= last + rounding))]
        if wrong.size:
            raise ValueError(
                f"Solution(ts=...): needs times from {first:g} to {last:g}, which were solved; {wrong[0]:g} is not; "
                "continue the solve by continued(ts)."
            )
        states = self._solve.at(np.clip(times, first, last) - first, self._values, self._steps, derivative)
        found = self._solve.unravel(states, times, self.failed)
        if given.ndim == 0:
            found = tuple(part[0] for part in found) if isinstance(found, tuple) else found[0]
        return found if self._form is None else self._form.tree(found)

    def continued(self, ts: Any, **options: Any) -> Solution:
        """Return the solution that goes on from the end, with all of its history.

        Args:
            ts: Times, increasing; the first is the end of this solution.
            options: As of `fdeint`: rtol, atol, max_step, breakpoints, mesh, n_steps, events, max_steps, throw and
                progress. Of the first four, those that are not given are those of this solution, unless a mesh or
                n_steps is.

        Raises:
            ValueError: The first time is another, an option cannot change, or this solution was ended by an event or
                lacks samples.
        """
        if self._form is None:
            return self._solve.go_on(self, ts, options)
        form, events = self._form, options_of(events=options.get("events", ())).events
        watched = tuple(replace(each, function=form.function(each.function)) for each in events)
        return self._solve.go_on(self, ts, {**options, "events": watched}).of(form)

    def of(self, form: Form) -> Solution:
        """Return this solution with states of a form in place of real tensors."""
        events = tuple(replace(each, states=form.tree(each.states)) for each in self.events)
        return replace(self, ys=form.tree(self.ys), events=events, _form=form)


_FOLLOWED = ("rtol", "atol", "max_step", "breakpoints")  # what a solve to a tolerance goes on with
_CHANGEABLE = {*_FOLLOWED, "mesh", "n_steps", "events", "max_steps", "throw", "progress"}


@dataclass(frozen=True, eq=False)
class Options:
    """How steps are chosen; see `fdeint`."""

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
        """Raise where a mesh and what chooses steps are given both, or what bounds such a choice without one."""
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


class Solve:
    """One solve by collocation: its arguments, checked and laid out; see `fdeint`.

    Raises:
        ValueError: One is out of range.
        TypeError: One has the wrong type.
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
        """Return what is solved with these options."""
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
        return atol.detach().to(self.like).expand(self.layout.shape)

    def at(self, elapsed: np.ndarray, values: Tensor, steps: Mesh, derivative: int = 0) -> Tensor:
        """Return the solution at times since the start, [times, *shape]."""
        learns = self.alpha is not None and self.alpha.requires_grad and torch.is_grad_enabled()
        problem = Problem(self.field, self.scheme, self.orders, self.begin, None, 0.0, 1)
        if not values.shape[0]:
            return self.z0.expand(elapsed.size, *self.z0.shape)
        return evaluated_at(
            problem, steps, elapsed, values, self.z0, self.dz0, self.alpha if learns else None, derivative
        )

    def unravel(self, ys: Tensor, times: np.ndarray, failed: Tensor) -> Any:
        """Return states [times, *shape] as the user's, NaN after samples have failed."""
        found = self.layout.unravel(ys)
        if bool(failed.isnan().all()):
            return found
        is_over = torch.as_tensor(times)[:, None] > failed

        def blank(part: Tensor) -> Tensor:
            over = is_over.to(part.device).view(*is_over.shape, *[1] * (part.ndim - 2))
            return torch.where(over, torch.full_like(part, torch.nan), part)

        return tuple(map(blank, found)) if isinstance(found, tuple) else blank(found)

    def run(self, ts: Any, options: Options, earlier: Solution | None = None) -> Solution:
        """Return the solution at times, after an earlier one where it goes on."""
        times = checks.increasing("fdeint", np.asarray(times_of("fdeint", ts), dtype=np.float64))
        problem = self.problem(options)
        start = 0.0 if earlier is None else earlier.end - self.begin
        elapsed = times - self.begin
        watch = Watched(self.layout, options.events, self.begin)
        steps = self._steps(problem, options, start, elapsed, watch, earlier)
        known = None if earlier is None else earlier._values
        before = None if earlier is None else earlier._ends
        lengths = [] if earlier is None else earlier._steps.lengths.tolist()
        values, track = self._solved(problem, steps, lengths, known, before)
        if known is not None:
            values = torch.cat([known, values])
        found = self._solution(problem, track, times, values, np.array([*lengths, *track.lengths]), watch, earlier)
        if problem.rtol is not None:
            found._followed.update({name: getattr(options, name) for name in _FOLLOWED})
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
            longest, points = math.inf, np.array(points_of("fdeint", options.breakpoints or ())) - self.begin
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
        ends = track.ends[-1] if track.ends else (self.z0.detach() if earlier is None else earlier._ends)
        if track.status == "event" and lengths.size:
            # The polynomial of the last step is cut at the event, so that what goes on begins there.
            ends = self.at(np.array([end]), values.detach(), steps)[0].detach()
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
            self,
            values,
            steps,
            ends,
            float(times[-1]) if track.status == "finished" else self.begin + end,
        )

    def _occurrences(self, event: Event, watch: Watched, k: int, values: Tensor, steps: Mesh) -> Occurrences:
        """Return the zeros of an event, whose times have the gradients that the implicit function theorem gives."""
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
        """Return the time of a zero, whose gradient is that of -g / (dg/dt) there."""
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
        """Return the solution that goes on after `earlier`; see `Solution.continued`."""
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
        kept = {} if is_meshed else earlier._followed
        return self.run(times, options_of(**{"events": (), **kept, **options}), earlier)


def options_of(**given: Any) -> Options:
    """Return options, one event as a tuple of it."""
    events = given.pop("events", ()) or ()
    found = tuple(events) if isinstance(events, tuple | list) else (events,)
    return replace(Options(**given), events=tuple(each if isinstance(each, Event) else Event(each) for each in found))


class Watched:
    """The events of a solve, and the zeros that were found.

    Args:
        layout: Of the states.
        events: What is watched.
        begin: The time at the start.
    """

    def __init__(self, layout: Layout, events: Sequence[Event], begin: float):
        self.layout, self.events, self.begin = layout, events, begin
        self.found: list[tuple[int, float, int]] = []  # which event, when since the start, which entry
        self.end = 0.0

    def look(self, integrator: Integrator, step: Taken) -> bool:
        """Look for zeros in a step that is about to be accepted; return whether the solve ends in it."""
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
        """Return where a sign changes between rows of values [rows, entries]; a zero ends what comes before it."""
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

    def _inside(self, integrator: Integrator, step: Taken, places: np.ndarray) -> list[Tensor]:
        problem = integrator.problem
        found = integrator.sums(step.h * places) + problem.mixed(problem.weights_at(step.h, places), step.values)
        return list(found.unbind())

    def _root(
        self, integrator: Integrator, step: Taken, event: Event, entry: int, ends: np.ndarray, values: np.ndarray
    ) -> float:
        if values[1, entry] == 0:
            return float(ends[1])

        def at(x: float) -> float:
            if x in ends:
                return float(values[int(x == ends[1]), entry])
            (y,) = self._inside(integrator, step, np.array([x]))
            return float(self._value(event, integrator.time + step.h * x, y)[entry])

        return float(brentq(at, *ends.tolist(), xtol=1e-15, rtol=8.9e-16))


def like_start(y0: State, dy0: State) -> State:
    """Return dy0, or raise where its shape is not that of y0."""
    shapes = [tuple(part.shape) for part in (y0 if isinstance(y0, tuple) else (y0,))]
    given = [tuple(part.shape) for part in (dy0 if isinstance(dy0, tuple) else (dy0,))]
    if shapes != given or isinstance(y0, tuple) != isinstance(dy0, tuple):
        raise ValueError(
            f"fdeint(dy0 of shape {given}): needs the shape of y0, {shapes}; pass a derivative for each entry."
        )
    return dy0


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
    """Return what `fdeint` does with `full=True`, by collocation."""
    check_untraced("fdeint", "y0")
    first = next((each for each in (y0 if isinstance(y0, tuple | list) else (y0,)) if isinstance(each, Tensor)), None)
    kind = "cpu" if first is None else first.device.type
    times = checks.increasing("fdeint", np.asarray(times_of("fdeint", ts), dtype=np.float64))
    solve = Solve(f, y0, float(times[0]), alpha, scheme, dy0, adjoint, params, present(kind))
    with without(kind):
        return solve.run(times, options)


def check_doubled(
    scheme: Scheme, found: State, other: State, ts: Any, n_steps: int, alpha: float, rtol: Any, atol: Any
) -> None:
    """Raise where states at outputs differ from those of twice the steps by more than the tolerances allow.

    With p the scheme's order, the error is 2**p / (2**p - 1) times the change.

    Args:
        scheme: Which one.
        found: The states, [times, *shape].
        other: With twice the steps.
        ts: The times.
        n_steps: Of `found`.
        alpha: The smallest order.
        rtol: As of `fdeint`.
        atol: As of `fdeint`.

    Raises:
        FloatingPointError: They do.
    """
    every = [each if isinstance(each, tuple) else (each,) for each in (found, other)]
    pairs = list(zip(*every, strict=True))
    first = pairs[0][0]
    relative, absolute = tolerances("fdeint", rtol, atol, torch.finfo(first.dtype).eps)
    power = 2 ** scheme.order(alpha)
    parts = [(one.detach() - two) / (absolute + relative * two.abs()).clamp(min=TINIEST) for one, two in pairs]
    layout = Layout(tuple(part.shape[1:] for part in parts), len(parts) > 1, (1,) * (parts[0].ndim - 1))
    flat = parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], 1)
    sizes = power / (power - 1) * by_sample(flat, layout, samples_of(layout)).amax(1)
    if not bool((sizes <= 1).all()):
        worst = int(torch.nan_to_num(sizes, torch.inf).argmax())
        t = float(np.asarray(times_of("fdeint", ts), dtype=np.float64)[worst])
        raise checks.inaccurate("fdeint", scheme.name, n_steps, float(sizes[worst]), t)
