"""Kinds that replace the gradient with an average of the last ones.

Of each parameter are kept `history`, the memory's rows [R, ...], and `direction`, where the average is written. Both
have the parameter's shape, and its strides where these are dense: fused steps pair values by their addresses, kernels
see the rows as [R, n], and whoever copies a state between layouts, as distributed checkpoints do, copies what it means.
A parameter that was laid out anew takes both with it at the next step.

How many gradients were stored stands in `history_step`, and in `history_start` what the base optimizer's `step` was
when the history began. In capturable groups, whose steps a CUDA graph may replay without Python, the first is left out:
it is the difference of the other two. `history_memory` says what kind of rows these are. They are gradients or averages
of them, whatever the weights: another alpha, or another kind of weights, go on with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpfracc_nn.selection import Site
from hpfracc_nn.training.fractional_options import EXPONENTIALS, cannot_fade
from hpfracc_nn.training.power_law import Law
from hpfracc_nn.training.torch.optimizers import kernels  # noqa: F401  registered on import
from hpfracc_nn.training.torch.optimizers.kind import Directions, Group, State
from hpfracc_nn.training.torch.optimizers.memories import Exponentials, Memory, Window
from hpfracc_nn.training.torch.optimizers.mix import prepared
from hpfracc_nn.training.torch.optimizers.tensors import (
    check_belongs,
    dense_strides,
    in_order,
    line_of,
    lines_of,
    room_like,
    rows_like,
    shaped,
)


@dataclass(frozen=True)
class Average:
    """An average by weights of the lag, as its law says."""

    law: Law
    needs_closure = False
    keeps = ("history", "direction", "history_step", "history_start", "history_memory")

    def fault(self, group: Group) -> str | None:
        if group["memory"] == EXPONENTIALS and not self.law.fades:
            return cannot_fade(group["kind"])
        if self.law.drops and (group.get("capturable") or group.get("differentiable")):
            return (
                f"kind {group['kind']!r} does not support capturable or differentiable: it draws a number at each "
                "step; pass kind='integral'"
            )
        return None

    def is_identity(self, group: Group) -> bool:
        return group["alpha"] == 1 or group["memory"] == 1

    def prepared(
        self, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], site: Site
    ) -> Directions:
        memory = self.memory(group)
        kept = [_kept(state, memory, p, grad) for p, grad, state in zip(params, grads, states, strict=True)]
        if group.get("capturable") or group.get("differentiable"):
            return lambda: [_recorded(group, memory, *each) for each in zip(grads, states, kept, strict=True)]
        alike: dict[tuple, list[tuple[Tensor, State, State]]] = defaultdict(list)
        for grad, state, held in zip(grads, states, kept, strict=True):
            alike[grad.device, grad.dtype, _stored(held)].append((grad, state, held))
        mixes = []
        for (device, _, stored), found in alike.items():
            _check_capture(device)
            lines = [in_order(grad, held["direction"]) for grad, _, held in found]
            averages = [line_of(held["direction"]) for _, _, held in found]
            mix = memory.mix(group["alpha"], stored, group["seed"] if self.law.drops else None)
            rows = [lines_of(held["history"]) for _, _, held in found]
            mixes.append(prepared(site, lines, rows, averages, mix))

        def directions() -> list[Tensor]:
            for mixed, ((_, _, stored), found) in zip(mixes, alike.items(), strict=True):
                mixed()
                for _, state, held in found:
                    _keep(state, held, stored + 1)
            return [held["direction"] for held in kept]

        return directions

    def rewind(self, state: State) -> None:
        if "history_step" in state:
            state["history_step"] = 0
        if "history" in state:
            state["history_start"] = int(state.get("step", 0))

    def memory(self, group: Group) -> Memory:
        """Return the memory that the group's options name."""
        if group["memory"] == EXPONENTIALS:
            return Exponentials()
        return Window(group["memory"], self.law.weights, self.law.is_normalised)


def is_behind(state: State) -> bool:
    """Whether the base optimizer has taken steps since that were not remembered, as torch's own with such a state."""
    if not {"step", "history_step", "history_start"} <= state.keys():
        return False
    return int(state["step"]) != state["history_start"] + state["history_step"]


def _kept(state: State, memory: Memory, p: Tensor, grad: Tensor) -> State:
    """Return the state, if it is good for such a gradient, or what is to be written into it when the step is taken."""
    if "history" not in state:
        direction = room_like(grad, dense_strides(p))
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
    """Return the state, if its order and dtype are those needed, or what is to be written into it.

    The parameter may have been laid out anew; whoever loads a state may have given all of it the parameter's dtype.
    """
    direction, rows = state["direction"], state["history"]
    dtype = _dtype(memory, direction)
    strides = direction.stride()
    is_in_order = strides == p.stride() or strides == dense_strides(p)
    if is_in_order and rows.dtype == dtype and rows.stride() == (direction.numel(), *strides):
        return state
    laid = direction if is_in_order else room_like(direction, dense_strides(p)).copy_(direction)
    return {**state, "direction": laid, "history": rows_like(laid, memory.rows, dtype).copy_(rows)}


def _dtype(memory: Memory, values: Tensor) -> torch.dtype:
    """Return the dtype of the rows for such values."""
    if values.is_complex():
        return memory.dtype(values.dtype.to_real()).to_complex()
    return memory.dtype(values.dtype)


def _named(length: float | None) -> str:
    return repr(EXPONENTIALS) if length == Exponentials().length else str(length)


def _keep(state: State, held: State, stored: int) -> None:
    """Write what is kept into the state, with the number of gradients that were stored."""
    if held is not state:
        state.update(held)
    state["history_step"] = stored


def _stored(state: State) -> int:
    """Return how many gradients were stored."""
    if "history_step" in state:
        return state["history_step"]
    return int(state["step"]) - state["history_start"]  # the group was capturable before


def _recorded(group: Group, memory: Memory, grad: Tensor, state: State, held: State) -> Tensor:
    """Return the average of one parameter where a CUDA graph is to replay the step, or autograd to follow it."""
    direction, alpha = held["direction"], group["alpha"]
    line = in_order(grad, direction)
    if group.get("differentiable"):
        stored, rows = _stored(held), lines_of(held["history"]).clone()  # what former steps made is in their graph
        average = memory.recorded(alpha, torch.tensor(float(stored), device=grad.device), line, rows)
        _keep(state, {**held, "history": shaped(rows, direction)}, stored + 1)
        return shaped(average.to(line.dtype), direction)
    average = memory.recorded(alpha, _stored_on_device(state, held, grad.device), line, lines_of(held["history"]))
    line_of(direction).copy_(average)
    return direction


def _stored_on_device(state: State, held: State, device: torch.device) -> Tensor:
    """Return how many gradients were stored as a tensor, made of what the base optimizer counts up from now on."""
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
