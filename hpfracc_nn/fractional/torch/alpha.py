"""The learned order alpha: a free parameter mapped into bounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Alpha(nn.Module):
    """Orders that stay strictly between two bounds: alpha = low + (high - low) sigmoid(raw).

    Args:
        init: The first value or values, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha; `init` is broadcast to it.
        owner: Who asks, for messages.
        device: Of the parameter.
        dtype: Of the parameter; alpha itself is float64.

    Raises:
        ValueError: `init` is not strictly inside the bounds.
    """

    def __init__(
        self,
        init: float | Sequence[float],
        bounds: tuple[float, float],
        shape: tuple[int, ...] = (),
        *,
        owner: str = "Alpha",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        low, high = bounds
        values = torch.as_tensor(init, dtype=torch.float64, device="cpu")
        if not bool(((values > low) & (values < high)).all()):
            raise ValueError(
                f"{owner}(alpha={init}): needs low < alpha < high to be learned within bounds ({low:g}, {high:g}); "
                f"start inside, for example at {low + 0.99 * (high - low):g}."
            )
        self.bounds = (float(low), float(high))
        raw = torch.empty(shape, device=device, dtype=dtype or torch.get_default_dtype())
        self.raw = nn.Parameter(raw.copy_(torch.logit((values - low) / (high - low))))

    def forward(self) -> Tensor:
        """Return alpha in real units, float64."""
        low, high = self.bounds
        return low + (high - low) * torch.sigmoid(self.raw.to(torch.float64))

    def extra_repr(self) -> str:
        return f"shape={tuple(self.raw.shape)}, bounds=({self.bounds[0]:g}, {self.bounds[1]:g})"
