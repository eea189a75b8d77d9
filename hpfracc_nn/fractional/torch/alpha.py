"""The learned order alpha: a free parameter mapped into bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Alpha(nn.Module):
    """Orders that stay strictly between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes one and calls it `order`. One that is passed as a layer's alpha is that
    layer's order itself, so that several layers may share it.

    Args:
        init: The first value or values, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha; `init` is broadcast to it.
        owner: Who asks, for messages.
        device: Of the parameter.
        dtype: Of the parameter; alpha itself is float64.

    Raises:
        ValueError: `init` is not strictly inside the bounds.

    Example:
        >>> order = Alpha(0.4, (0, 1))
        >>> torch.nn.Sequential(FractionalLayer(order), torch.nn.Tanh(), FractionalLayer(order))
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

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of alpha."""
        return tuple(self.raw.shape)

    @property
    def mean(self) -> Tensor:
        """Alpha in real units, float64; of a random one (`ProbabilisticAlpha`) its mean, which is never drawn."""
        return self()

    def taken_by(self, owner: str, bounds: Any, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return its bounds for a layer that was given it as its order, or raise.

        Args:
            owner: The layer.
            bounds: What the layer was given as bounds besides, which must be None.
            shape: The shape that the layer needs.
        """
        if bounds is not None:
            raise ValueError(
                f"{owner}(alpha of type {type(self).__name__}, bounds={bounds}): needs the order's own bounds, which "
                f"are ({self.bounds[0]:g}, {self.bounds[1]:g}); leave them out, or make the order with others."
            )
        if self.shape != shape:
            raise ValueError(
                f"{owner}(alpha: {type(self).__name__} of shape {self.shape}): needs an order of shape {shape}; "
                f"make it with shape={shape}."
            )
        return self.bounds

    def extra_repr(self) -> str:
        return f"shape={self.shape}, bounds=({self.bounds[0]:g}, {self.bounds[1]:g})"
