"""The state of a recurrent layer between two steps: the outputs of its layers, and the memories of their cells."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from hpfracc_nn.fractional.streaming import Source
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.torch.recurrent.memory import lag_weights


@dataclass(frozen=True, eq=False)
class Recent:
    """The memory of a window: the values themselves, the newest first.

    Attributes:
        weights: a_1, a_2, ..., [window, *c], float64.
        values: [window, *shape], float64.
        source: The layer that made it.
    """

    weights: Tensor
    values: Tensor
    source: Source

    @classmethod
    def empty(cls, alpha: Tensor, window: int, shape: tuple[int, ...], device: torch.device, source: Source) -> Recent:
        """Return the memory of nothing; alpha is [] or broadcasts to `shape`."""
        weights = lag_weights(alpha, window + 1)[..., 1:].movedim(-1, 0).to(device)
        weights = weights.reshape(window, *(1,) * (len(shape) - weights.ndim + 1), *weights.shape[1:])
        return cls(weights, torch.zeros(window, *shape, dtype=torch.float64, device=device), source)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one value."""
        return tuple(self.values.shape[1:])

    def to(self, device: torch.device | str | int) -> Recent:
        """Return the same on another device."""
        return self._mapped(lambda each: each.to(device))

    def detach(self) -> Recent:
        """Return the same without its history of gradients."""
        return self._mapped(Tensor.detach)

    def __deepcopy__(self, memo: dict[int, Any]) -> Recent:
        """Return the same in memory of its own; its graph is that of this one."""
        return self._mapped(Tensor.clone)

    def renew(self, weights: Recent) -> Recent:
        """Return this past, detached, with the weights of another."""
        return replace(weights, values=self.values.detach())

    @property
    def nbytes(self) -> int:
        """Memory of its tensors."""
        return sum(each.numel() * each.element_size() for each in (self.weights, self.values))

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Recent:
        return replace(self, weights=change(self.weights), values=change(self.values))


@dataclass(frozen=True, eq=False)
class RecurrentState:
    """What a recurrent layer remembers between two steps; made by its `initial_state`.

    A state is never written to: `step` returns a new one. It takes as much memory after a million steps as at the
    first: for each unit some 75 numbers where the whole past counts, and K where a window of K does. It is a pytree of
    tensors.

    Attributes:
        step: How many samples it has seen.
        h: The output of each layer, [*batch, outputs].
        memory: The cells' memories, by layer.
    """

    step: int
    h: tuple[Tensor, ...]
    memory: tuple[StreamState | Recent, ...]

    @property
    def nbytes(self) -> int:
        """Memory of all its tensors, the weights included; the same at every step."""
        outputs = sum(each.numel() * each.element_size() for each in self.h)
        return outputs + sum(each.nbytes for each in self.memory)

    def to(self, device: torch.device | str | int) -> RecurrentState:
        """Return the state on another device."""
        return self._mapped(lambda part: part.to(device))

    def detach(self) -> RecurrentState:
        """Return the state without its history of gradients."""
        return self._mapped(lambda part: part.detach())

    def renew(self, weights: RecurrentState) -> RecurrentState:
        """Return this past, detached, with the weights of another state: see `StreamState.renew`."""
        pairs = zip(self.memory, weights.memory, strict=True)
        return replace(self.detach(), memory=tuple(past.renew(fresh) for past, fresh in pairs))  # type: ignore[arg-type]

    def __deepcopy__(self, memo: dict[int, Any]) -> RecurrentState:
        """Return the same in memory of its own; its graph is that of this one."""
        memories = tuple(copy.deepcopy(each, memo) for each in self.memory)
        return RecurrentState(self.step, tuple(map(Tensor.clone, self.h)), memories)

    def _mapped(self, change: Callable[[Any], Any]) -> RecurrentState:
        return RecurrentState(self.step, tuple(map(change, self.h)), tuple(map(change, self.memory)))


def check_state(
    owner: str, state: RecurrentState, outputs: int, units: int, window: int | None, source: Source
) -> None:
    """Raise unless a state is one of the layer's own, and serves another step.

    Args:
        owner: Who asks, for messages.
        state: Of the right number of layers.
        outputs: The layer's.
        units: The layer's.
        window: The largest lag that counts, or None.
        source: The layer.
    """
    batch = state.h[0].shape[:-1]
    for h, memory in zip(state.h, state.memory, strict=True):
        own = memory.values.shape[0] if isinstance(memory, Recent) else None
        sizes = h.shape[-1], memory.shape[-1], own
        if sizes != (outputs, units, window) or h.shape[:-1] != batch or memory.shape[:-1] != batch:
            raise ValueError(
                f"{owner}(state with {sizes[0]} outputs and {sizes[1]} units, memory={own}): needs {outputs} and "
                f"{units} of a layer with memory={window}; pass what its own initial_state returned."
            )
        if isinstance(memory, Recent):
            if memory.source != source:
                raise ValueError(
                    f"{owner}(state of {memory.source}): needs a state of this one, {source}; "
                    "pass what its own initial_state returned."
                )
        elif state.step >= memory.horizon - 1:  # a start is one sample more
            raise ValueError(
                f"{owner}(step {state.step + 1}): needs at most horizon={memory.horizon - 1} steps, for which the "
                "state was made; make it with a larger horizon."
            )


def recalled(owner: str, memory: StreamState | Recent, dtype: torch.dtype, source: Source) -> Tensor:
    """Return m of the next step, in the dtype of the cell."""
    if isinstance(memory, Recent):
        return (memory.weights * memory.values).sum(0).to(dtype)
    # The difference's next sample is the next value less its memory; of the value 0 it is the memory alone.
    nothing = torch.zeros(memory.shape, dtype=torch.float64, device=memory.device)
    return -streaming.step(owner, nothing, memory, source)[0].to(dtype)


def remembered(owner: str, value: Tensor, memory: StreamState | Recent, source: Source) -> StreamState | Recent:
    """Return the memory after one more value."""
    if isinstance(memory, Recent):
        return replace(memory, values=torch.cat([value[None].to(memory.values.dtype), memory.values[:-1]]))
    return streaming.step(owner, value, memory, source)[1]


def _flatten(state: RecurrentState) -> tuple[list[Any], int]:
    return [list(state.h), list(state.memory)], state.step


def _unflatten(parts: Any, step: int) -> RecurrentState:
    h, memory = parts
    return RecurrentState(step, tuple(h), tuple(memory))


def _unflatten_recent(parts: Any, source: Source) -> Recent:
    weights, values = parts
    return Recent(weights, values, source)


_pytree.register_pytree_node(Recent, lambda each: ([each.weights, each.values], each.source), _unflatten_recent)
_pytree.register_pytree_node(RecurrentState, _flatten, _unflatten)
