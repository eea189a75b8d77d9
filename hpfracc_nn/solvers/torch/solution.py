"""What a solve takes and returns: solutions at any time, events, and states that are trees or complex."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hpfracc_nn import errors
from hpfracc_nn.solvers.collocation import Statistics
from hpfracc_nn.solvers.torch.state import times_of

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


def events_of(events: Any) -> tuple[Event, ...]:
    """Return events: one, a function, or several of these, as a tuple."""
    found = tuple(events) if isinstance(events, tuple | list) else (events,)
    return tuple(each if isinstance(each, Event) else Event(each) for each in found)


class Path(Protocol):
    """What a solution is made of.

    Attributes:
        begin: The time at the start, in the caller's unit.
    """

    @property
    def begin(self) -> float: ...

    def states(self, elapsed: np.ndarray, derivative: int) -> Tensor:
        """Return the states at times since the start, or their derivatives in time, [times, *shape]."""
        ...

    def unravel(self, states: Tensor, times: np.ndarray, failed: Tensor) -> Any:
        """Return states [times, *shape] as the user's, NaN after samples have failed."""
        ...

    def continued(self, earlier: Solution, ts: Any, options: dict[str, Any]) -> Solution:
        """See `Solution.continued`."""
        ...


@dataclass(eq=False)
class Solution:
    """The solution of an equation, on all of the time that was solved.

    Attributes:
        ts: The output times, float64 [times].
        ys: The states there, [times, *y0.shape], or a tuple of such; NaN after the end of a solve that ended before.
        mesh: Where steps begin and end, in the caller's unit, float64 [steps + 1].
        errors: The estimate of each step's error as a part of what the tolerances allow, [steps]; NaN where these have
            not chosen the steps.
        statistics: What the solve cost.
        status: "finished", "event", "max_steps", "failed", or "inaccurate" where twice the steps say so.
        message: What an error would have said, or "".
        events: The zeros of each event.
        failed: With `throw=False` the time at which each sample had no solution any more, float64 [samples]; NaN of
            those that had. Its states are NaN after that.
        path: What the states at other times are made of.
        end: The time up to which there is a solution.
        error: The error of `ys`, like it, as twice as many steps estimate it, where steps are fixed and a tolerance is
            given; else None. `ys + error` is Richardson's extrapolation.
        followed: The options that have chosen the steps, with which `continued` goes on; none where steps are given.

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
    path: Path = field(repr=False)
    end: float
    error: Any = None
    _form: Form | None = field(default=None, repr=False)
    followed: dict[str, Any] = field(default_factory=dict, repr=False)

    def __call__(self, ts: Any, derivative: int = 0) -> Any:
        """Return the solution at any times between the start and the end.

        It is as accurate as the steps, and has a gradient in all that the solve has. The derivative has one digit or
        two fewer; with fixed steps it is of one order less. At the start itself it is infinite for orders below 1, and
        NaN where f is 0 there. Fixed steps save no right-hand sides, so that f is evaluated again at all of them, once
        for all times of a call, unless the times are steps; it must be what it was.

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
        first, last = self.path.begin, self.end
        rounding = 1e-9 * (last - first)
        wrong = times[~((times >= first - rounding) & (times <= last + rounding))]
        if wrong.size:
            raise ValueError(
                f"Solution(ts=...): needs times from {first:g} to {last:g}, which were solved; {wrong[0]:g} is not; "
                "continue the solve by continued(ts)."
            )
        states = self.path.states(np.clip(times, first, last) - first, derivative)
        found = self.path.unravel(states, times, self.failed)
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
            ValueError: The first time is another, an option cannot change, the steps are fixed, or this solution was
                ended by an event or lacks samples.
        """
        form = self._form
        if form is None:
            return self.path.continued(self, ts, options)
        events = events_of(options.get("events", ()))
        watched = tuple(replace(each, function=form.function(each.function)) for each in events)
        return self.path.continued(self, ts, {**options, "events": watched}).of(form)

    def of(self, form: Form) -> Solution:
        """Return this solution with states of a form in place of real tensors."""
        events = tuple(replace(each, states=form.tree(each.states)) for each in self.events)
        error = None if self.error is None else form.tree(self.error)
        return replace(self, ys=form.tree(self.ys), events=events, error=error, _form=form)


def is_plain(y0: Any) -> bool:
    """Return whether a state is what solvers work with: a real tensor, or a tuple or list of such."""
    if isinstance(y0, Tensor):
        return not y0.is_complex()
    if type(y0) not in (tuple, list):
        return not isinstance(y0, tuple | list | dict)  # what is no tree is refused
    return not any(isinstance(each, tuple | list | dict) or _is_complex(each) for each in y0)


def _is_complex(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_complex()


class Form:
    """How a state is made of real tensors: a complex one is its real and imaginary part, in a last axis of 2.

    Args:
        y0: The state at the start.
    """

    def __init__(self, y0: Any):
        leaves, self._tree = pytree.tree_flatten(y0)
        self._are_complex = [_is_complex(each) for each in leaves]
        self._is_one = isinstance(y0, Tensor)

    def parts(self, y: Any, owner: str, name: str) -> Any:
        """Return a tree as real tensors: one, or a tuple of them.

        Raises:
            TypeError: It is another tree than the state at the start, or another of its tensors is complex.
        """
        leaves, tree = pytree.tree_flatten(y)
        if tree != self._tree:
            raise TypeError(
                f"{owner}({name}): needs a tree like y0, {self._tree}; it is {tree}; return the same containers."
            )
        kinds = [_is_complex(each) for each in leaves]
        if kinds != self._are_complex:
            raise TypeError(
                f"{owner}({name}): needs complex tensors where those of y0 are complex, and only there; make them so "
                "by torch.complex or .real."
            )
        real = tuple(
            torch.view_as_real(each.resolve_conj()) if is_complex else each
            for each, is_complex in zip(leaves, kinds, strict=True)
        )
        return real[0] if self._is_one else real

    def tree(self, y: Any) -> Any:
        """Return real tensors, with more axes in front or without, as the tree."""
        parts = (y,) if isinstance(y, Tensor) else y
        leaves = [
            torch.view_as_complex(each.contiguous()) if is_complex else each
            for each, is_complex in zip(parts, self._are_complex, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self._tree)

    def right_hand_side(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return f(t, y) of trees as a function of real tensors."""
        return partial(_applied, f, self)

    def function(self, g: Callable[..., Any]) -> Callable[..., Any]:
        """Return g(t, y) of trees as a function of real tensors, which returns what g does."""
        return partial(_read, g, self)


def _applied(f: Callable[..., Any], form: Form, t: Tensor, y: Any) -> Any:
    return form.parts(f(t, form.tree(y)), "fdeint", "f")


def _read(g: Callable[..., Any], form: Form, t: Tensor, y: Any) -> Any:
    return g(t, form.tree(y))
