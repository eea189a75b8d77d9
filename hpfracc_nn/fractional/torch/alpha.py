"""The learned order alpha: a free parameter mapped into bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.alpha import Bounds, check_inside, check_taken, finite_bounds
from hpfracc_nn.fractional.torch.stated import Stated


class Alpha(Stated):
    """Orders that stay strictly between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes one and calls it `order`. One that is passed as a layer's alpha is that
    layer's order itself, so that several layers may share it.

    A state dict says between which bounds alpha lies, in torch's metadata, which `torch.save` keeps; only an order with
    the same bounds loads it. One that does not say it is taken at its word.

    Args:
        init: The first value or values, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `init` is broadcast; None is its own.
        owner: Who asks, for messages.
        device: Of the parameter.
        dtype: Of the parameter; alpha itself is float64.

    Raises:
        ValueError: `init` is not strictly inside the bounds, or they are no finite interval.

    Examples:
        >>> order = Alpha(0.4, (0, 1))
        >>> torch.nn.Sequential(FractionalLayer(order), torch.nn.Tanh(), FractionalLayer(order))
    """

    def __init__(
        self,
        init: float | Sequence[float],
        bounds: Bounds,
        shape: tuple[int, ...] | None = None,
        *,
        owner: str = "Alpha",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        low, high = self.bounds = finite_bounds(owner, bounds)
        values = torch.as_tensor(init, dtype=torch.float64, device="cpu")
        check_inside(owner, init, values.numpy(), self.bounds)
        shape = values.shape if shape is None else shape
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
        check_taken(owner, type(self).__name__, self.bounds, self.shape, bounds, shape)
        return self.bounds

    def extra_repr(self) -> str:
        return f"shape={self.shape}, bounds=({self.bounds[0]:g}, {self.bounds[1]:g})"

    def stated(self) -> dict[str, Any]:
        """Return what alpha cannot be read from the parameters without, see `Stated`."""
        return {"bounds": self.bounds}
