"""Kinds that replace the gradient with an average of the last ones.

Of each parameter are kept `history`, the memory's rows [R, values], and `direction`, where the average is written, of
the gradient's shape and strides; the rows hold their values in the same order as `direction`. How many gradients were
stored stands in `history_step`. In capturable groups, whose steps a CUDA graph may replay without Python, it is the
difference between the base optimizer's `step`, a tensor, and `history_start`. `history_memory` says what kind of rows
these are. They are gradients or averages of them, whatever the weights: another alpha, or another kind of weights, go
on with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpfracc_nn.selection import Site
from hpfracc_nn.training.torch.optimizers import kernels  # noqa: F401  registered on import
from hpfracc_nn.training.torch.optimizers.kind import EXPONENTIALS, Directions, Group, State
from hpfracc_nn.training.torch.optimizers.memories import Exponentials, Memory, WeightsByLag, Window
from hpfracc_nn.training.torch.optimizers.mix import prepared
from hpfracc_nn.training.torch.optimizers.tensors import check_belongs, in_order, room_like, shaped


@dataclass(frozen=True)
class Average:
    """An average by weights of the lag.

    Args:
        weights: By lag.
        is_normalised: Whether they are divided by their sum.
        drops: Whether one of the past gradients is left out at each step, at random.
        fades: Whether exponentials can stand for the weights.
    """

    weights: WeightsByLag
    is_normalised: bool
    drops: bool = False
    fades: bool = False
    needs_closure = False
    keeps = ("history", "direction", "history_step", "history_start", "history_memory")

    def fault(self, group: Group) -> str | None:
        if group["memory"] == EXPONENTIALS and not self.fades:
            return (
                f"Invalid memory value: {EXPONENTIALS!r} with kind {group['kind']!r}: exponentials stand for the "
                "weights of kind='integral'; pass the number of gradients, such as memory=10"
            )
        if self.drops and (group.get("capturable") or group.get("differentiable")):
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
        kept = [_kept(state, memory, grad) for grad, state in zip(grads, states, strict=True)]
        if group.get("capturable") or group.get("differentiable"):
            return lambda: [_recorded(group, memory, grad, each) for grad, each in zip(grads, kept, strict=True)]
        alike: dict[tuple, list[tuple[Tensor, _Kept]]] = defaultdict(list)
        for grad, each in zip(grads, kept, strict=True):
            alike[grad.device, grad.dtype, each.stored()].append((grad, each))
        mixes = []
        for (device, _, stored), found in alike.items():
            _check_capture(device)
            lines = [in_order(grad, each.direction) for grad, each in found]
            rows = [each.rows for _, each in found]
            averages = [in_order(each.direction, each.direction) for _, each in found]
            seed = group["seed"] if self.drops else None
            mixes.append(prepared(site, lines, rows, averages, memory.mix(group["alpha"], stored, seed)))

        def directions() -> list[Tensor]:
            for mix in mixes:
                mix()
            for (_, _, stored), found in alike.items():
                for _, each in found:
                    each.keep(stored + 1)
            return [each.direction for each in kept]

        return directions

    def memory(self, group: Group) -> Memory:
        """Return the memory that the group's options name."""
        if group["memory"] == EXPONENTIALS:
            return Exponentials()
        return Window(group["memory"], self.weights, self.is_normalised)


@dataclass(slots=True)
class _Kept:
    """What is kept of one parameter: what its state holds, or what is to be put there when the step is taken."""

    state: State
    direction: Tensor
    rows: Tensor
    memory: float

    def stored(self) -> int:
        """Return how many gradients were stored."""
        if "history_start" in self.state:  # the group was capturable before
            return int(self.state["step"]) - self.state["history_start"]
        return self.state.get("history_step", 0)

    def stored_on_device(self) -> Tensor:
        """Return the same as a tensor, made of what the base optimizer counts up."""
        if "step" not in self.state:  # the first step of all
            return torch.zeros((), device=self.rows.device)
        return self.state["step"] - self.state["history_start"]

    def keep(self, stored: int) -> None:
        """Write everything into the state."""
        self._keep_rows()
        self.state["history_step"] = stored
        self.state.pop("history_start", None)

    def keep_capturable(self) -> None:
        """Write everything but the count, which the base optimizer keeps from now on."""
        if "history_start" not in self.state:
            self.state["history_start"] = int(self.state.get("step", 0)) - self.stored()
            self.state.pop("history_step", None)
        self._keep_rows()

    def _keep_rows(self) -> None:
        self.state["history"], self.state["direction"] = self.rows, self.direction
        self.state["history_memory"] = self.memory


def _kept(state: State, memory: Memory, grad: Tensor) -> _Kept:
    """Return what the state holds, or room for it before the first gradient; the state is not changed."""
    if "history" not in state:
        direction = room_like(grad)
        line = in_order(direction, direction)
        rows = line.new_zeros(memory.rows, line.numel(), dtype=memory.dtype(line.dtype))
        return _Kept(state, direction, rows, memory.length)
    held = state.get("history_memory")
    if held != memory.length:
        raise RuntimeError(
            f"the state holds what memory={_named(held)} remembers and the options of its group ask for "
            f"memory={_named(memory.length)}: memory is fixed at the first step; drop what is remembered with "
            "optimizer.state.pop(parameter), or make a new optimizer."
        )
    direction, rows = state["direction"], state["history"]
    check_belongs("past gradients", direction, grad)
    values = direction.numel() * (2 if direction.is_complex() else 1)
    if (rows.shape, rows.device) != ((memory.rows, values), direction.device):
        raise RuntimeError(
            f"the state holds rows of shape {tuple(rows.shape)} on {rows.device} beside past gradients of shape "
            f"{tuple(direction.shape)} on {direction.device}: these need rows of shape ({memory.rows}, {values}); drop "
            "them with optimizer.state.pop(parameter), or make a new optimizer."
        )
    # Whoever loads a state may have given all of it the parameter's dtype.
    return _Kept(state, direction, rows.to(memory.dtype(direction.dtype.to_real())), memory.length)


def _named(length: float | None) -> str:
    return repr(EXPONENTIALS) if length == Exponentials().length else str(length)


def _recorded(group: Group, memory: Memory, grad: Tensor, kept: _Kept) -> Tensor:
    """Return the average of one parameter where a CUDA graph is to replay the step, or autograd to follow it."""
    line, alpha = in_order(grad, kept.direction), group["alpha"]
    if group.get("differentiable"):
        kept.rows = kept.rows.clone()  # what former steps made is part of their graph
        stored = kept.stored()
        count = torch.tensor(float(stored), device=grad.device)
        average = memory.recorded(alpha, count, line, kept.rows).to(line.dtype)
        kept.keep(stored + 1)
        return shaped(average, kept.direction)
    kept.keep_capturable()
    average = memory.recorded(alpha, kept.stored_on_device(), line, kept.rows)
    in_order(kept.direction, kept.direction).copy_(average)
    return kept.direction


def _check_capture(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph would replay the same place in the history for ever: pass capturable=True to an optimizer "
            "that has it, or step outside the graph."
        )
