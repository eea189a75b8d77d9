"""What a convolution remembers between two samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree

from hpfracc_nn.fractional.torch.streaming import StreamState


@dataclass(frozen=True, eq=False)
class ConvolutionState:
    """What a causal `FractionalConv1d` remembers between two steps: that of its derivative, and its last samples.

    It is never written to, and is a pytree of float64 tensors, as `StreamState` is.

    Attributes:
        derivative: The state of the derivative.
        past: Its last dilation * (kernel_size - 1) samples, [*shape, samples].
    """

    derivative: StreamState
    past: Tensor

    @property
    def step(self) -> int:
        """How many samples it has seen."""
        return self.derivative.step

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice."""
        return self.derivative.shape

    @property
    def horizon(self) -> int:
        """How many steps it serves."""
        return self.derivative.horizon

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.derivative.device

    @property
    def nbytes(self) -> int:
        """Memory of all its tensors; the same at every step."""
        return self.derivative.nbytes + self.past.numel() * self.past.element_size()

    def to(self, device: torch.device | str | int) -> ConvolutionState:
        """Return the state on another device, see `StreamState.to`."""
        return ConvolutionState(self.derivative.to(device), self.past.to(device))

    def detach(self) -> ConvolutionState:
        """Return the state without its history of gradients."""
        return ConvolutionState(self.derivative.detach(), self.past.detach())

    def renew(self, weights: ConvolutionState) -> ConvolutionState:
        """Return this past, detached, with the weights of another state's alpha, see `StreamState.renew`.

        The last samples of the derivative stay as they were computed.

        Raises:
            ValueError: The other state was made for another kernel, shape or horizon.
        """
        if weights.past.shape != self.past.shape:
            raise ValueError(
                f"ConvolutionState.renew(weights: state with past of shape {tuple(weights.past.shape)}): needs "
                f"{tuple(self.past.shape)}, that of this one; make it with the same layer and arguments."
            )
        return ConvolutionState(self.derivative.renew(weights.derivative), self.past.detach())


_pytree.register_pytree_node(
    ConvolutionState,
    lambda state: ([state.derivative, state.past], None),
    lambda parts, _: ConvolutionState(*parts),
    serialized_type_name="hpfracc_nn.layers.torch.convolution_state.ConvolutionState",
)
