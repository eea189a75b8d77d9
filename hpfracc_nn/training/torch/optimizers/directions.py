"""Directions that take the gradient's place: an average of the last gradients, or Caputo's derivative of the loss.

An average keeps in each parameter's state `history`, the memory's rows [R, ...], and `direction`, where the average is
written. Both have the parameter's shape, and its strides if these are dense: fused steps pair values by their
addresses, kernels see the rows as [R, n], and whoever copies a state between layouts, as distributed checkpoints do,
copies the right values. If a parameter's strides change, both are laid out like the parameter at the next step.

`history_step` is how many gradients were stored, and `history_start` the value of the base optimizer's `step` when the
history began. In capturable groups, whose steps a CUDA graph may replay without Python, `history_step` is left out: it
is the difference of `step` and `history_start`. `history_memory` says what kind of rows these are. Rows are gradients
or averages of them, whatever the weights: a history stays valid for another alpha, or another kind of weights.

A memory is a `Window` of the last gradients, or four `Exponentials`, moving averages. It says how many rows it keeps
for each parameter and what a step does with them (`mix.py`), by the number of gradients that were stored before: as a
whole number in `mix`, or as a tensor on the parameter's device, which a CUDA graph can replay, in `recorded`. At each
step the weights are those for the number of gradients stored so far.

Formulas and sources stand in `training/directions.py`.

In the private functions, `state` is the optimizer's state of one parameter p, `held` the result of `_kept` or
`_laid_out` for it, and `stored` the number of gradients that were stored before.
"""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gamma
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.streams import placed
from hpfracc_nn.selection import Site
from hpfracc_nn.training import directions
from hpfracc_nn.training.directions import (
    EXPONENTIALS,
    NODES,
    Law,
    cannot_fade,
    check_alpha,
    check_kind,
    check_memory,
    keeps_no_gradients,
    quadrature,
)
from hpfracc_nn.training.torch.optimizers import kernels  # noqa: F401  registered on import
from hpfracc_nn.training.torch.optimizers.mix import (
    Mix,
    as_real,
    check_belongs,
    dense_strides,
    empty_strided_like,
    in_order,
    line_of,
    lines_of,
    prepared,
    rows_like,
    shaped,
)

Group = dict[str, Any]  # a parameter group: the options of the base optimizer, alpha, kind, memory
State = dict[str, Any]  # the state of one parameter: the base optimizer's entries, and those of the kind
Directions = Callable[[], list[Tensor]]  # returns the directions, and changes the states


WeightsByLag = Callable[[float, int], np.ndarray]  # takes alpha and a count to the weights of lags 0 to count - 1


@dataclass(frozen=True)
class Window:
    """A memory of the last `memory` gradients: that of this step, and a ring of rows with those of the steps before.

    Args:
        memory: How many gradients are averaged, at least 2.
        weights: The weights by lag.
        is_normalised: Whether the weights are divided by their sum.
    """

    memory: int
    weights: WeightsByLag
    is_normalised: bool

    @property
    def length(self) -> float:
        """How many gradients are averaged, that of the step included; infinity for `Exponentials`."""
        return self.memory

    @property
    def rows(self) -> int:
        """The number R of rows of the parameter's size that are kept."""
        return self.memory - 1

    def dtype(self, values: torch.dtype) -> torch.dtype:
        """Return the dtype of the rows for gradients of the real dtype `values`."""
        return values  # the gradients as they are: nothing is rounded

    def mix(self, alpha: float, stored: int, seed: int | None) -> Mix:
        """Return the weights and gains of a step, before which `stored` gradients were stored.

        `seed` is that of a law that drops gradients at random, else None.
        """
        turn = stored if stored < self.rows else self.rows + stored % self.rows  # steps with one `turn` have one mix
        return _window_mix(self, alpha, turn, None if seed is None else dropped(seed, stored, self.rows))

    def recorded(self, alpha: float, stored: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
        """Return the average [n], and change the rows, by operations that autograd and CUDA graphs can follow.

        Sums are formed in single precision or better, whatever autocast says, and the result has this precision.

        Args:
            alpha: The order.
            stored: The number of gradients stored before, a tensor [].
            grad: The gradient, [n].
            rows: The rows, [R, n], changed in place.
        """
        slot = stored.long() % self.rows
        lags = (slot - 1 - torch.arange(self.rows, device=rows.device)) % self.rows + 1
        by_lag = _weights_on(self, alpha, rows.device)
        weights = by_lag[lags] * (lags <= stored)
        total = by_lag[0] + weights.sum() if self.is_normalised else by_lag[0]
        average = _summed(by_lag[0] / total, weights / total, grad, rows)
        rows.index_copy_(0, slot.reshape(1), grad[None])
        return average


@lru_cache(maxsize=1024)
def _window_mix(window: Window, alpha: float, turn: int, without: int | None) -> Mix:
    count = window.rows
    slot = turn % count
    by_lag = window.weights(alpha, window.memory)
    lags = (slot - 1 - np.arange(count)) % count + 1
    weights = np.where(lags <= turn, by_lag[lags], 0.0)
    if without is not None:
        weights[lags == without] = 0.0
    total = by_lag[0] + weights.sum() if window.is_normalised else 1.0
    gains = tuple(float(row == slot) for row in range(count))
    return Mix(float(by_lag[0] / total), tuple((weights / total).tolist()), gains)


@placed  # nothing can be copied from the host while a graph is captured: steps before the capture do so
def _weights_on(window: Window, alpha: float, device: torch.device) -> Tensor:
    return torch.as_tensor(window.weights(alpha, window.memory), device=device)


@placed
def _fading_on(alpha: float, device: torch.device) -> tuple[Tensor, Tensor]:
    decays = torch.as_tensor(directions.decays(), device=device)
    return decays, torch.as_tensor(directions.coefficients(alpha), device=device) / (1 - decays)


def dropped(seed: int, stored: int, lags: int) -> int:
    """Return the lag, drawn from 1 to `lags`, whose gradient is left out at a step before which `stored` were stored.

    The generator is counter-based: the lag follows from the seed and the number of steps, both of which are saved.
    """
    return 1 + int(np.random.Generator(np.random.Philox(key=seed, counter=stored)).integers(lags))


@dataclass(frozen=True)
class Exponentials:
    """A memory of four moving averages of gradients, which fade at different rates.

    Their weighted sum approximates the average by the tempered weights of the integral. Methods are as of `Window`.
    """

    @property
    def length(self) -> float:
        return math.inf

    @property
    def rows(self) -> int:
        return len(directions.RATES)

    def dtype(self, values: torch.dtype) -> torch.dtype:
        return torch.float32 if values.itemsize == 2 else values  # in half precision slow averages would stop short

    def mix(self, alpha: float, stored: int, seed: int | None) -> Mix:
        parts, total = _exponential_parts(alpha, np.float64(stored))
        gains = 1 - directions.decays()
        return Mix(float(1 / total), tuple((parts / total).tolist()), tuple(gains.tolist()))

    def recorded(self, alpha: float, stored: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
        decays, parts = _fading_on(alpha, rows.device)
        total = 1 + (parts * (1 - decays**stored)).sum()
        average = _summed(1 / total, parts / total, grad, rows)
        rows.lerp_(grad[None].to(rows.dtype), (1 - decays).to(rows.dtype)[:, None])
        return average


Memory = Window | Exponentials  # the kinds of history that an average keeps of one parameter's gradients


def _summed(first: Tensor, weights: Tensor, grad: Tensor, rows: Tensor) -> Tensor:
    """Return `first * grad + weights @ rows`, in single precision or better.

    Shapes: first [], weights [R], grad [n], rows [R, n], result [n].
    """
    exact = torch.promote_types(grad.dtype, torch.float32)
    average, weights = first.to(exact) * grad.to(exact), weights.to(exact)
    if rows.dtype == exact:
        with torch.autocast(rows.device.type, enabled=False):  # autocast would round both to half precision
            return average + weights @ rows
    for row, weight in zip(rows, weights, strict=True):  # row by row: all at once would need memory in `exact`
        average = average + weight * row.to(exact)
    return average


def _exponential_parts(alpha: float, stored: np.float64) -> tuple[np.ndarray, np.float64]:
    """Return the weights [4] of the moving averages, and the sum of the weights of all gradients, after `stored`.

    A step's average is (gradient + weights @ moving averages) / sum.
    """
    decays = directions.decays()
    parts = directions.coefficients(alpha) / (1 - decays)
    return parts, 1 + (parts * (1 - decays**stored)).sum()


@dataclass(frozen=True)
class Average:
    """The kinds of direction that average the last gradients, with weights by lag that a law gives.

    Attributes:
        law: The law of the weights.
        needs_closure: Whether gradients at other points are needed, so that `step` needs a closure.
        keeps: The keys of the entries that the kind keeps in a parameter's state.
    """

    law: Law
    needs_closure = False
    keeps = ("history", "direction", "history_step", "history_start", "history_memory")

    def fault(self, group: Group) -> str | None:
        """Return an error message if this kind does not support the options of a group, else None."""
        if group["memory"] == EXPONENTIALS and not self.law.fades:
            return cannot_fade(group["kind"])
        if self.law.drops and (group.get("capturable") or group.get("differentiable")):
            return (
                f"kind {group['kind']!r} does not support capturable or differentiable: it draws a number at each "
                "step; pass kind='integral'"
            )
        return None

    def is_identity(self, group: Group) -> bool:
        """Return whether the directions of a group are the gradients themselves, so that no state is kept."""
        return group["alpha"] == 1 or group["memory"] == 1

    def prepared(
        self,
        group: Group,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[State],
        site: Site,
        views: list[View] | None = None,
    ) -> Directions:
        """Return a function that makes the directions of a group, and updates the states for the next step.

        All errors for unsuitable gradients and states are raised here, before anything is changed: another group may
        raise an error, too.

        Args:
            group: The group's options.
            params: The parameters that have a gradient.
            grads: Their gradients.
            states: The states of these parameters.
            site: The call site that picks kernels.
            views: Flat views of the states, cached from step to step; the list is updated.
        """
        memory = self.memory(group)
        if group.get("capturable") or group.get("differentiable"):
            kept = [_kept(state, memory, p, grad) for p, grad, state in zip(params, grads, states, strict=True)]
            return lambda: [_recorded(group, memory, *each) for each in zip(grads, states, kept, strict=True)]
        views, length = [] if views is None else views, memory.length
        del views[len(params) :]
        taken: list[Tensor] = []
        alike: dict[tuple, list[tuple[State, State, View, Tensor]]] = defaultdict(list)
        for k, (p, grad, state) in enumerate(zip(params, grads, states, strict=True)):
            view = views[k] if k < len(views) else None
            held, line = state, None if view is None else view.line(state, length, p, grad)
            if view is None or line is None:
                held = _kept(state, memory, p, grad)
                view, line = View(held, p), in_order(grad, held["direction"])
                views[k : k + 1] = [view]
            alike[view.place, _stored(held)].append((state, held, view, line))
            taken.append(held["direction"])
        mixes = []
        for (place, stored), found in alike.items():
            _check_capture(place[0])
            _, _, each, lines = zip(*found, strict=True)
            mix = memory.mix(group["alpha"], stored, group["seed"] if self.law.drops else None)
            averages, rows = zip(*(view.lines for view in each), strict=True)
            mixes.append(prepared(site, [*lines], [*rows], [*averages], mix))

        def directions() -> list[Tensor]:
            for mixed, ((_, stored), found) in zip(mixes, alike.items(), strict=True):
                mixed()
                for state, held, _, _ in found:
                    _keep(state, held, stored + 1)
            return taken

        return directions

    def rewind(self, state: State) -> None:
        """Set the state's counts as if no step had been taken: the last one had neither gradient nor rate.

        That step only made the state.
        """
        if "history_step" in state:
            state["history_step"] = 0
        if "history" in state:
            state["history_start"] = int(state.get("step", 0))

    def memory(self, group: Group) -> Memory:
        """Return the memory, a `Window` or `Exponentials`, that a group's options ask for."""
        if group["memory"] == EXPONENTIALS:
            return Exponentials()
        return Window(group["memory"], self.law.weights, self.law.is_normalised)


class View:
    """Flat views of a parameter's direction and history, cached from step to step while both stay in their places.

    An optimizer keeps a list of these objects for each group: one for each parameter that had a gradient at the last
    step. The flat views, called lines, are dropped with the direction or the history, so that whoever drops a state
    gets its memory back.
    """

    def __init__(self, held: State, p: Tensor):
        direction: Tensor = held["direction"]
        history: Tensor = held["history"]
        # Views of `data`, because other views keep the tensors that they are views of alive.
        self.lines: tuple[Tensor, ...] = line_of(direction.data), lines_of(history.data)
        self._direction, self._history = weakref.ref(direction, self._drop), weakref.ref(history, self._drop)
        self.place = direction.device, direction.dtype
        self._address, self._history_address = direction.data_ptr(), history.data_ptr()
        self._device = direction.get_device()
        self._is_plain = p.is_contiguous() and direction.is_contiguous() and not direction.is_complex()
        self._shape, self._strides, self._order = direction.shape, direction.stride(), p.stride()

    def _drop(self, _: object) -> None:
        self.lines = ()

    def line(self, state: State, length: float, p: Tensor, grad: Tensor) -> Tensor | None:
        """Return a gradient with its values in the order of the lines: itself if possible, because views take long.

        The result is None if this cached view does not belong to the state, to a memory of this `length`, or to a
        gradient like `grad`.
        """
        direction, history = self._direction(), self._history()
        kept: tuple[object, object] = state.get("direction"), state.get("history")
        if (
            direction is None
            or history is None
            or kept[0] is not direction
            or kept[1] is not history
            or state.get("history_memory") != length
            or direction.data_ptr() != self._address
            or history.data_ptr() != self._history_address
            or grad.shape != self._shape
            or grad.dtype is not self.place[1]
            or grad.get_device() != self._device
        ):
            return None
        if self._is_plain and p.is_contiguous() and direction.is_contiguous():  # faster than strides
            return grad if grad.is_contiguous() and not grad.is_neg() else in_order(grad, direction)
        is_laid_out_alike = direction.stride() == self._strides and p.stride() == self._order
        return in_order(grad, direction) if is_laid_out_alike else None


def is_behind(state: State) -> bool:
    """Return whether the base optimizer has counted steps that are not in the history.

    A state is so after torch's own optimizer has taken steps with it.
    """
    if not {"step", "history_step", "history_start"} <= state.keys():
        return False
    return int(state["step"]) != state["history_start"] + state["history_step"]


def _kept(state: State, memory: Memory, p: Tensor, grad: Tensor) -> State:
    """Return the state if its history fits the memory and the gradient, or the entries of a new history if it has none.

    Nothing is written into the state yet: the step does so when all groups have been checked. A history that belongs to
    another memory or to other gradients raises RuntimeError.
    """
    if "history" not in state:
        direction = empty_strided_like(grad, dense_strides(p))
        return {
            "history": rows_like(direction, memory.rows, _dtype(memory, grad)),
            "direction": direction,
            "history_step": 0,
            "history_start": int(state.get("step", 0)),
            "history_memory": memory.length,
        }
    if state.get("history_memory") != memory.length:
        raise RuntimeError(
            f"the state holds what memory={_named(state.get('history_memory'))} remembers and the options of its group "
            f"ask for memory={_named(memory.length)}: memory is fixed at the first step; drop what is remembered with "
            "optimizer.state.pop(parameter), or make a new optimizer."
        )
    direction, rows = state["direction"], state["history"]
    check_belongs("past gradients", direction, grad)
    shape, is_complex = (memory.rows, *direction.shape), direction.is_complex()
    if rows.shape != shape or rows.device != direction.device or rows.is_complex() != is_complex:
        raise RuntimeError(
            f"the state holds rows of shape {tuple(rows.shape)}, {rows.dtype} on {rows.device} beside past gradients "
            f"of shape {tuple(direction.shape)}, {direction.dtype} on {direction.device}: they need {memory.rows} rows "
            "of that shape there; drop them with optimizer.state.pop(parameter), or make a new optimizer."
        )
    return _laid_out(state, memory, p)


def _laid_out(state: State, memory: Memory, p: Tensor) -> State:
    """Return the state if its rows have the right strides and dtype, else a new state with copies that have them.

    The given state is not changed. The parameter's strides may have changed, and whoever loads a state may have cast
    all of it to the parameter's dtype.
    """
    direction, rows = state["direction"], state["history"]
    dtype = _dtype(memory, direction)
    strides = direction.stride()
    is_in_order = strides == p.stride() or strides == dense_strides(p)
    if is_in_order and rows.dtype == dtype and rows.stride() == (direction.numel(), *strides):
        return state
    laid = direction if is_in_order else empty_strided_like(direction, dense_strides(p)).copy_(direction)
    return {**state, "direction": laid, "history": rows_like(laid, memory.rows, dtype).copy_(rows)}


def _dtype(memory: Memory, values: Tensor) -> torch.dtype:
    """Return the dtype of the rows that a memory keeps of gradients like `values`, complex for complex gradients."""
    if values.is_complex():
        return memory.dtype(values.dtype.to_real()).to_complex()
    return memory.dtype(values.dtype)


def _named(length: float | None) -> str:
    return repr(EXPONENTIALS) if length == Exponentials().length else str(length)


def _keep(state: State, held: State, stored: int) -> None:
    """Write the entries `held` into the state, with `stored`, the number of gradients stored by now."""
    if held is not state:
        state.update(held)
    state["history_step"] = stored


def _stored(state: State) -> int:
    """Return how many gradients the history in a state has stored."""
    if "history_step" in state:
        return state["history_step"]
    return int(state["step"]) - state["history_start"]  # the group was capturable before


def _recorded(group: Group, memory: Memory, grad: Tensor, state: State, held: State) -> Tensor:
    """Return the direction of one parameter, by operations that a CUDA graph can replay, or autograd follow.

    Groups that are neither capturable nor differentiable run a kernel for all parameters at once instead.
    """
    direction, alpha = held["direction"], group["alpha"]
    line = in_order(grad, direction)
    if group.get("differentiable"):
        stored, rows = _stored(held), lines_of(held["history"]).clone()  # the former rows are in the autograd graph
        average = memory.recorded(alpha, torch.tensor(float(stored), device=grad.device), line, rows)
        _keep(state, {**held, "history": shaped(rows, direction)}, stored + 1)
        return shaped(average.to(line.dtype), direction)
    average = memory.recorded(alpha, _stored_on_device(state, held, grad.device), line, lines_of(held["history"]))
    line_of(direction).copy_(average)
    return direction


def _stored_on_device(state: State, held: State, device: torch.device) -> Tensor:
    """Return how many gradients were stored, as a tensor on the device; the history is written into the state.

    The number is computed from the base optimizer's own count of steps, which a replayed CUDA graph increments.
    """
    if held is not state:
        state.update(held)
    if "history_step" in state:
        state["history_start"] = int(state.get("step", 0)) - state.pop("history_step")
    return state["step"] - state["history_start"] if "step" in state else torch.zeros((), device=device)


def _check_capture(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph would replay the same place in the history for ever: pass capturable=True to an optimizer "
            "that has it, or step outside the graph."
        )


@dataclass(frozen=True)
class Derivative:
    """The kinds of direction by Caputo's derivative of the loss along the way of the parameters.

    Either the derivative begins at the last point, in closed form: the gradient times a power of the last step's
    length; the first step takes the gradient as it is. Or the derivative begins at 0: `prepared` then gets mean
    gradients along the line, made by `mean_gradients`. Methods are as of `Average`.

    Args:
        needs_closure: Whether the derivative begins at 0, for which `step` needs a closure.
    """

    needs_closure: bool

    @property
    def keeps(self) -> tuple[str, ...]:
        return () if self.needs_closure else ("previous",)

    def fault(self, group: Group) -> str | None:
        if group["memory"] == EXPONENTIALS:
            return keeps_no_gradients(group["kind"])
        if group.get("differentiable"):
            return (
                f"kind {group['kind']!r} does not support differentiable: abs(x)**(1 - alpha) has no derivative at 0; "
                "pass kind='integral'"
            )
        return None

    def is_identity(self, group: Group) -> bool:
        return group["alpha"] == 1

    def rewind(self, state: State) -> None:
        """Do nothing: a previous point that is the present one has the same effect as none."""

    def prepared(
        self,
        group: Group,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[State],
        site: Site,
        views: list[View] | None = None,
    ) -> Directions:
        taken = []
        for p, grad, state in zip(params, grads, states, strict=True):
            previous = state.get("previous")
            if self.needs_closure:
                taken.append(_modulated(grad, p, group["alpha"]))
            elif previous is None:
                taken.append(grad.clone())  # a copy: the base optimizer may change the direction in place
            else:
                check_belongs("the previous point", previous, grad)
                taken.append(_along(grad, p - previous, group["alpha"]))

        def directions() -> list[Tensor]:
            for p, state in zip(params, states, strict=True):
                if not self.needs_closure:
                    state["previous"] = state["previous"].copy_(p) if "previous" in state else p.clone()
            return taken

        return directions


Kind = Average | Derivative  # what takes the place of the gradient


def mean_gradients(groups: Sequence[Group], closure: Callable[[], Any]) -> dict[Tensor, Tensor]:
    """Return the mean of each parameter's gradient on the line from 0 to its value, weighted by (1 - s)**-alpha.

    s, from 0 to 1, is the place on the line. The parameters of all groups move at once, each by the quadrature nodes of
    its group's alpha. A parameter that requires no gradient stays where it is, and one that gets none is left out of
    the result. The parameters have their old values again when this function returns or raises.
    """
    places = {p: p.detach().clone() for group in groups for p in group["params"] if p.requires_grad}
    rules = [(group, *(each.tolist() for each in quadrature(group["alpha"]))) for group in groups]
    means: dict[Tensor, Tensor] = {}
    try:
        for node in range(NODES):
            with torch.no_grad():
                for group, points, _ in rules:
                    for p in filter(places.__contains__, group["params"]):
                        p.copy_(points[node] * places[p])
            with torch.enable_grad():
                closure()
            for group, _, weights in rules:
                for p in group["params"]:
                    if p.grad is not None:
                        part = weights[node] * p.grad.detach()
                        means[p] = means[p].add_(part) if p in means else part
    finally:
        with torch.no_grad():
            for p, place in places.items():
                p.copy_(place)
    return means


def _along(grad: Tensor, way: Tensor, alpha: float) -> Tensor:
    """Return the direction of kind "caputo" for one parameter, or the gradient if the parameter did not move at all.

    No value is read by Python, so that nothing waits for a device.

    Args:
        grad: The gradient.
        way: How far the parameter moved at the last step, like `grad`.
        alpha: The order.
    """
    return torch.where(way.any(), _modulated(grad, way, alpha), grad)


def _modulated(grad: Tensor, way: Tensor, alpha: float) -> Tensor:
    """Return `grad * abs(way)**(1 - alpha) / Gamma(2 - alpha)`, for real and imaginary parts separately.

    `way` is the displacement of the parameter from the terminal, of the shape of `grad`.
    """
    real_grad, real_way = as_real([grad, way])
    result = real_way.abs().pow_(1 - alpha).mul_(real_grad).mul_(1 / gamma(2 - alpha))
    return torch.view_as_complex(result) if grad.is_complex() else result


KINDS: dict[str, Kind] = {
    **{name: Average(law) for name, law in directions.LAWS.items()},
    "caputo": Derivative(needs_closure=False),
    "caputo_terminal": Derivative(needs_closure=True),
}


def kind_of(group: Group) -> Kind:
    """Return the kind of direction of a parameter group, an `Average` or a `Derivative`."""
    return KINDS[group["kind"]]


def is_identity(group: Group) -> bool:
    """Return whether the directions of a parameter group are the gradients themselves, as with alpha = 1."""
    return kind_of(group).is_identity(group)


def check_options(group: Group) -> None:
    """Raise an error unless alpha, kind and memory of a parameter group are valid, alone and with its other options.

    Raises:
        TypeError: alpha is not a number, or memory neither a whole number nor "exponentials".
        ValueError: alpha, kind or memory is out of range or unknown, or the kind does not support another option.
    """
    check_alpha(group["alpha"])
    check_kind(group["kind"], KINDS)
    check_memory(group["memory"])
    fault = kind_of(group).fault(group)
    if fault is not None:
        raise ValueError(fault)
