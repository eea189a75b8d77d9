"""States in several pieces: those of the parts of a bank, or a state and tensors beside it."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree


class StateTuple(tuple[Any, ...]):
    """A tuple of states and tensors that is a state itself; the first piece is a state.

    It is never written to, and is a pytree of float64 tensors, as `StreamState` is.
    """

    __slots__ = ()

    @property
    def step(self) -> int:
        """How many samples it has seen."""
        found: int = self[0].step
        return found

    @property
    def horizon(self) -> int:
        """How many steps it serves."""
        found: int = self[0].horizon
        return found

    @property
    def device(self) -> torch.device:
        """Where it is."""
        found: torch.device = self[0].device
        return found

    @property
    def nbytes(self) -> int:
        """Memory of all its tensors; the same at every step."""
        return sum(each.numel() * each.element_size() if isinstance(each, Tensor) else each.nbytes for each in self)

    def to(self, device: torch.device | str | int) -> StateTuple:
        """Return the state on another device, see `StreamState.to`."""
        return StateTuple(each.to(device) for each in self)

    def detach(self) -> StateTuple:
        """Return the state without its history of gradients."""
        return StateTuple(each.detach() for each in self)

    def __deepcopy__(self, memo: dict[int, Any]) -> StateTuple:
        """Return the state in memory of its own; its graph is that of this one."""
        return StateTuple(each.clone() if isinstance(each, Tensor) else copy.deepcopy(each, memo) for each in self)

    def renew(self, weights: StateTuple) -> StateTuple:
        """Return this past, detached, with the weights of another state's alpha, see `StreamState.renew`.

        Tensors beside the states stay as they were computed.
        """
        pairs = zip(self, weights, strict=True)
        return StateTuple(one.detach() if isinstance(one, Tensor) else one.renew(other) for one, other in pairs)


_pytree.register_pytree_node(
    StateTuple,
    lambda state: (list(state), None),
    lambda pieces, _: StateTuple(pieces),
    serialized_type_name="hpfracc_nn.layers.torch.state_tuple.StateTuple",
)
