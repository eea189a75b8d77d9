"""What attention remembers between two samples: everything."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils import _pytree


@dataclass(frozen=True, eq=False)
class AttentionState:
    """The keys and values of all samples so far, and the order. It is never written to, and is a pytree of tensors.

    Attributes:
        key: Of each head, [batch, heads, steps, head_dim].
        value: Of each head, of the same shape.
        alpha: The order that it was made with, float64, [] or [heads, 1, 1]: a random one is drawn once for a stream.
            None for alpha = 2.
        horizon: The most steps it serves; None is no bound.
    """

    key: Tensor
    value: Tensor
    alpha: Tensor | None = None
    horizon: int | None = None

    @property
    def step(self) -> int:
        """How many samples it has seen."""
        return self.key.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice."""
        batch, heads, _, size = self.key.shape
        return batch, heads * size

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.key.device

    @property
    def nbytes(self) -> int:
        """Memory of keys and values: it grows with every step."""
        return sum(each.numel() * each.element_size() for each in (self.key, self.value))

    def to(self, device: torch.device | str | int) -> AttentionState:
        """Return the state on another device."""
        alpha = None if self.alpha is None else self.alpha.to(device)
        return replace(self, key=self.key.to(device), value=self.value.to(device), alpha=alpha)

    def detach(self) -> AttentionState:
        """Return the state without its history of gradients."""
        alpha = None if self.alpha is None else self.alpha.detach()
        return replace(self, key=self.key.detach(), value=self.value.detach(), alpha=alpha)

    def renew(self, weights: AttentionState) -> AttentionState:
        """Return this past, detached, with the order and the horizon of another state.

        Keys and values stay as the projections made them when the samples came.
        """
        return replace(self.detach(), alpha=weights.alpha, horizon=weights.horizon)

    def grown(self, owner: str, key: Tensor, value: Tensor) -> AttentionState:
        """Return the state after one more key and value.

        Raises:
            ValueError: There are as many steps as the horizon allows.
        """
        if self.horizon is not None and self.step >= self.horizon:
            raise ValueError(
                f"{owner}: the state has reached its horizon of {self.horizon} steps; "
                "call initial_state with a longer horizon."
            )
        if not self.step:
            return replace(self, key=key, value=value)  # of the samples' dtype from now on
        return replace(self, key=torch.cat((self.key, key), 2), value=torch.cat((self.value, value), 2))


_pytree.register_pytree_node(
    AttentionState,
    lambda state: ([state.key, state.value, state.alpha], state.horizon),
    lambda parts, horizon: AttentionState(*[*parts, horizon]),
    serialized_type_name="hpfracc_nn.layers.torch.attention_state.AttentionState",
    to_dumpable_context=lambda horizon: horizon,
    from_dumpable_context=lambda horizon: horizon,
)
