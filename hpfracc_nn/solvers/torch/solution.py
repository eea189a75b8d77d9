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
    """A function of the solution whose zeros a solve by collocation looks for.

    Args:
        function: Called as function(t, y), like f; returns a floating tensor of any shape, each entry of which is
            watched. Zeros are found where an entry's sign differs between the stages of a step.
        is_terminal: Whether the solve ends at the first zero.
        direction: 1 for zeros at which the function grows, -1 for those at which it falls, 0 for both.

    Raises:
        ValueError: The direction is none of -1, 0 and 1.
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
        times: The times of the zeros, in the caller's unit, [zeros], with their gradients.
        states: The states at these times, [zeros, *y0.shape], or a tuple of such.
        entries: For each zero, the index of the entry that is zero in the flattened result of the event's function.

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
    """Return events as a tuple of `Event`s, from an event, a function, or a list or tuple of these."""
    found = tuple(events) if isinstance(events, tuple | list) else (events,)
    return tuple(each if isinstance(each, Event) else Event(each) for each in found)


class Path(Protocol):
    """The dense output of a solve: from it a `Solution` evaluates states at any time.

    Attributes:
        begin: The time at the start, in the caller's unit.
    """

    @property
    def begin(self) -> float: ...

    def states(self, elapsed: np.ndarray, derivative: int) -> Tensor:
        """Return the states at times since the start, or with derivative=1 their derivatives in time, [times, *shape].

        [*shape] is the shape of the states that steps work with, see `Layout`.
        """
        ...

    def unravel(self, states: Tensor, times: np.ndarray, failed: Tensor) -> Any:
        """Return states [times, *shape] as the user has them, with NaN for samples after they failed.

        `failed` is the time at which each sample failed, [samples], NaN for samples that did not.
        """
        ...

    def continued(self, earlier: Solution, ts: Any, options: dict[str, Any]) -> Solution:
        """Return the solution that goes on from the end of `earlier`: see `Solution.continued`."""
        ...


@dataclass(eq=False)
class Solution:
    """The solution of an equation, at any time of the interval that was solved.

    Attributes:
        ts: The output times, float64 [times].
        ys: The states at `ts`, [times, *y0.shape], or a tuple of such; NaN after the end of a solve that ended early.
        mesh: The times at which steps begin and end, in the caller's unit, float64 [steps + 1].
        errors: The estimate of each step's error, relative to what the tolerances allow, [steps]; NaN where tolerances
            have not chosen the steps.
        statistics: What the solve cost.
        status: "finished", "event", "max_steps", "failed", or "inaccurate" where twice the steps show a larger error
            than the tolerances allow.
        message: The message of the error that `throw=False` has suppressed, or "".
        events: The zeros of each event.
        failed: With `throw=False` the time from which on each sample has no solution, and its states are NaN, float64
            [samples]; NaN for samples that were solved to the end.
        path: The dense output from which states at other times are made.
        end: The time up to which there is a solution.
        error: The error of `ys`, of the same form, estimated by twice as many steps where steps are fixed and a
            tolerance is given; else None. `ys + error` is Richardson's extrapolation.
        followed: The options that have chosen the steps, with which `continued` goes on; empty where steps are given.

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
    _layout: TreeLayout | None = field(default=None, repr=False)
    followed: dict[str, Any] = field(default_factory=dict, repr=False)

    def __call__(self, ts: Any, derivative: int = 0) -> Any:
        """Return the solution at any times between the start and the end.

        The solution is as accurate as at the steps, and has gradients in all that the solve has. The derivative has one
        digit or two fewer; with fixed steps it is of one order less. At the start itself the derivative is infinite for
        orders below 1, and NaN where f is 0 there. A solve with fixed steps saves no right-hand sides, so that f is
        evaluated again at all steps, once for all times of a call, unless the times are steps; f must not have changed.

        Args:
            ts: Times, [times], or one number; they need not increase.
            derivative: 0 for the solution, 1 for its derivative in time.

        Returns:
            The states or derivatives, [times, *y0.shape], or a tuple of such; without the first axis for one number.

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
        return found if self._layout is None else self._layout.tree(found)

    def continued(self, ts: Any, **options: Any) -> Solution:
        """Return the solution that goes on from the end, with all of its history.

        Args:
            ts: Times, increasing; the first is the end of this solution.
            options: Options of `fdeint`: rtol, atol, max_step, breakpoints, mesh, n_steps, events, max_steps, throw and
                progress. The first four are by default those of this solution, unless a mesh or n_steps is passed.

        Raises:
            ValueError: The first time is not the end of this solution, an option cannot change, the scheme has fixed
                steps, or this solution was ended by an event or lacks samples.
        """
        layout = self._layout
        if layout is None:
            return self.path.continued(self, ts, options)
        events = events_of(options.get("events", ()))
        watched = tuple(replace(each, function=layout.function(each.function)) for each in events)
        return self.path.continued(self, ts, {**options, "events": watched}).of(layout)

    def of(self, layout: TreeLayout) -> Solution:
        """Return this solution with states as trees or complex tensors of a `layout` in place of real tensors."""
        events = tuple(replace(each, states=layout.tree(each.states)) for each in self.events)
        error = None if self.error is None else layout.tree(self.error)
        return replace(self, ys=layout.tree(self.ys), events=events, error=error, _layout=layout)


def is_plain(y0: Any) -> bool:
    """Return whether a state needs no `TreeLayout`: a real tensor, a tuple of them, or what is refused later."""
    if isinstance(y0, Tensor):
        return not y0.is_complex()
    if type(y0) not in (tuple, list):
        return not isinstance(y0, tuple | list | dict)
    return not any(isinstance(each, tuple | list | dict) or _is_complex(each) for each in y0)


def _is_complex(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_complex()


class TreeLayout:
    """How a tree of tensors, real or complex, is made of real tensors: a complex one gets a last axis of its 2 parts.

    Args:
        y0: The state at the start.
    """

    def __init__(self, y0: Any):
        leaves, self._tree = pytree.tree_flatten(y0)
        self._are_complex = [_is_complex(each) for each in leaves]
        self._is_one = isinstance(y0, Tensor)

    def parts(self, y: Any, owner: str, name: str) -> Any:
        """Return the tree `y` as real tensors: one where the state at the start is a tensor, else a tuple of them.

        `owner` and `name` are the function and its argument, for messages.

        Raises:
            TypeError: `y` has another structure than the state at the start, or other tensors of it are complex.
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
        """Return the tree, with complex tensors where the state at the start has them, from its real tensors `y`.

        The tensors may have further axes in front.
        """
        parts = (y,) if isinstance(y, Tensor) else y
        leaves = [
            torch.view_as_complex(each.contiguous()) if is_complex else each
            for each, is_complex in zip(parts, self._are_complex, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self._tree)

    def right_hand_side(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return f(t, y), a function from trees to trees, as a function from real tensors to real tensors."""
        return partial(_applied, f, self)

    def function(self, g: Callable[..., Any]) -> Callable[..., Any]:
        """Return g(t, y), a function of trees, as a function of real tensors with the same results."""
        return partial(_read, g, self)


def _applied(f: Callable[..., Any], layout: TreeLayout, t: Tensor, y: Any) -> Any:
    return layout.parts(f(t, layout.tree(y)), "fdeint", "f")


def _read(g: Callable[..., Any], layout: TreeLayout, t: Tensor, y: Any) -> Any:
    return g(t, layout.tree(y))
