"""Kinds that replace the gradient with an average of the last ones.

Of each parameter are kept `history`, the memory's rows [R, values], and `direction`, where the average is written, of
the gradient's shape and strides; the rows hold their values in the same order as `direction`. How many gradients were
stored stands in `history_step`. In capturable groups, whose steps a CUDA graph may replay without Python, it is the
difference between the base optimizer's `step`, a tensor, and `history_start`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpfracc_nn.selection import Site
from hpfracc_nn.training.torch.optimizers import kernels  # noqa: F401  registered on import
from hpfracc_nn.training.torch.optimizers.kind import EXPONENTIALS, Group, State
from hpfracc_nn.training.torch.optimizers.memories import Exponentials, Memory, WeightsByLag, Window
from hpfracc_nn.training.torch.optimizers.mix import mixed
from hpfracc_nn.training.torch.optimizers.tensors import in_order, room_like, shaped


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
    keeps = ("history", "direction", "history_step", "history_start")

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

    def directions(
        self, group: Group, params: Sequence[Tensor], grads: Sequence[Tensor], states: Sequence[State], site: Site
    ) -> list[Tensor]:
        memory = self.memory(group)
        for grad, state in zip(grads, states, strict=True):
            _prepare(state, memory, grad)
        if group.get("capturable") or group.get("differentiable"):
            return [_recorded(group, memory, grad, state) for grad, state in zip(grads, states, strict=True)]
        alike: dict[tuple, list[tuple[Tensor, State]]] = defaultdict(list)
        for grad, state in zip(grads, states, strict=True):
            alike[grad.device, grad.dtype, _stored(state)].append((grad, state))
        for (device, _, stored), found in alike.items():
            _check_capture(device)
            averages = [in_order(state["direction"], state["direction"]) for _, state in found]
            mixed(
                site,
                [in_order(grad, state["direction"]) for grad, state in found],
                [state["history"] for _, state in found],
                averages,
                memory.mix(group["alpha"], stored, group.get("seed")),
            )
            for _, state in found:
                state["history_step"] = stored + 1
        return [state["direction"] for state in states]

    def memory(self, group: Group) -> Memory:
        """Return the memory that the group's options name."""
        if group["memory"] == EXPONENTIALS:
            return Exponentials()
        return Window(group["memory"], self.weights, self.is_normalised)


def _prepare(state: State, memory: Memory, grad: Tensor) -> None:
    """Make room for what is kept, before the first gradient."""
    if "history" not in state:
        state["direction"] = room_like(grad)
        line = in_order(state["direction"], state["direction"])
        state["history"] = line.new_zeros(memory.rows, line.numel())
        state["history_step"] = 0
    elif state["history"].shape[0] != memory.rows:
        raise RuntimeError(
            f"the state holds {state['history'].shape[0]} rows of past gradients for each parameter and the options of "
            f"its group ask for {memory.rows}: memory is fixed at the first step; make a new optimizer for another one."
        )
    else:
        _check_fit(state["direction"], state["history"], grad)


def _check_fit(kept: Tensor, rows: Tensor, grad: Tensor) -> None:
    """Raise unless what is kept is that of such a gradient: kernels go by addresses."""
    values = kept.numel() * (2 if kept.is_complex() else 1)
    is_whole = (rows.dtype, rows.device, rows.shape[1]) == (kept.dtype.to_real(), kept.device, values)
    if is_whole and (kept.shape, kept.dtype, kept.device) == (grad.shape, grad.dtype, grad.device):
        return
    raise RuntimeError(
        f"the state holds past gradients of shape {tuple(kept.shape)}, {kept.dtype} on {kept.device}, in rows of "
        f"{rows.dtype}, and the gradient has shape {tuple(grad.shape)}, {grad.dtype} on {grad.device}: a history "
        "belongs to one parameter as it is; drop it with optimizer.state.pop(parameter), or make a new optimizer."
    )


def _recorded(group: Group, memory: Memory, grad: Tensor, state: State) -> Tensor:
    """Return the average of one parameter where a CUDA graph is to replay the step, or autograd to follow it."""
    direction, rows = state["direction"], state["history"]
    if group.get("differentiable"):
        rows = state["history"] = rows.clone()  # what former steps made is part of their graph
        stored = torch.tensor(float(_stored(state)), device=grad.device)
        state["history_step"] += 1
        return shaped(memory.recorded(group["alpha"], stored, in_order(grad, direction), rows), direction)
    stored = _stored_on_device(state, grad.device)
    average = memory.recorded(group["alpha"], stored, in_order(grad, direction), rows)
    in_order(direction, direction).copy_(average)
    return direction


def _stored(state: State) -> int:
    """Return how many gradients were stored."""
    if "history_step" not in state:  # the group was capturable before
        state["history_step"] = int(state["step"]) - state.pop("history_start")
    return state["history_step"]


def _stored_on_device(state: State, device: torch.device) -> Tensor:
    """Return the same as a tensor that the base optimizer counts up."""
    if "history_start" not in state:
        state["history_start"] = int(state.get("step", 0)) - state.pop("history_step")
    return state["step"] - state["history_start"] if "step" in state else torch.zeros((), device=device)


def _check_capture(device: torch.device) -> None:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "a CUDA graph would replay the same place in the history for ever: pass capturable=True to an optimizer "
            "that has it, or step outside the graph."
        )
