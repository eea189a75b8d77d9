"""What a mean of squares remembers between two samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree

from hpfracc_nn.fractional.torch.streaming import StreamState


@dataclass(frozen=True, eq=False)
class RoughnessState:
    """The states of the differences, and the sums of their squares so far.

    It is never written to, and is a pytree of float64 tensors, as `StreamState` is.

    Attributes:
        differences: One state for each part of the bank.
        sums: [batch, channels * orders], without the samples that are skipped.
    """

    differences: tuple[StreamState, ...]
    sums: Tensor

    @property
    def step(self) -> int:
        """How many samples it has seen."""
        return self.differences[0].step

    @property
    def horizon(self) -> int:
        """How many steps it serves."""
        return self.differences[0].horizon

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.sums.device

    @property
    def nbytes(self) -> int:
        """Memory of all its tensors; the same at every step."""
        return sum(each.nbytes for each in self.differences) + self.sums.numel() * self.sums.element_size()

    def to(self, device: torch.device | str | int) -> RoughnessState:
        """Return the state on another device, see `StreamState.to`."""
        return RoughnessState(tuple(each.to(device) for each in self.differences), self.sums.to(device))

    def detach(self) -> RoughnessState:
        """Return the state without its history of gradients."""
        return RoughnessState(tuple(each.detach() for each in self.differences), self.sums.detach())

    def renew(self, weights: RoughnessState) -> RoughnessState:
        """Return this past, detached, with the weights of another state's alpha, see `StreamState.renew`.

        The sums stay as they were computed.
        """
        pairs = zip(self.differences, weights.differences, strict=True)
        return RoughnessState(tuple(one.renew(other) for one, other in pairs), self.sums.detach())


_pytree.register_pytree_node(
    RoughnessState,
    lambda state: ([state.differences, state.sums], None),
    lambda parts, _: RoughnessState(*parts),
    serialized_type_name="hpfracc_nn.layers.torch.roughness_state.RoughnessState",
)
