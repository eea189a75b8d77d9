"""A bank of learned fractional differences: the ARFIMA filter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.layers.torch.fractional import channel_axis
from hpfracc_nn.layers.torch.order import Alpha
from hpfracc_nn.selection import BackendManager, default_manager


class FractionalDifference(nn.Module):
    """(1 - z)**alpha with zero history, `orders` of them for every channel.

    Nothing is subtracted and nothing looks ahead: sample t of the output depends on samples up to t, with weight
    dt**-alpha on sample t itself. A negative alpha sums (fractional integration).

    Args:
        channels: Channels of the input.
        orders: Orders per channel; output channel c * orders + j is order j of channel c.
        bounds: Where the orders stay. A bank whose bounds contain a whole number is split there by the first values: an
            order stays on its side, so that each part is differenced as often as it needs.
        init: The first value or values: one, `orders`, or channels * orders of them; None spreads them evenly.
        learn_alpha: Whether the orders are parameters.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; the orders and the weights are computed in float64 whatever it is.

    Shape:
        [batch, channels, n] -> [batch, channels * orders, n]; with time in the middle, [batch, n, channels] ->
        [batch, n, channels * orders].

    Source: Hosking, Biometrika 68 (1981) 165.

    Example:
        >>> FractionalDifference(2, orders=3)(torch.randn(4, 2, 100)).shape
        torch.Size([4, 6, 100])
    """

    def __init__(
        self,
        channels: int,
        orders: int = 1,
        *,
        bounds: tuple[float, float] = (0, 1),
        init: float | Sequence[float] | None = None,
        learn_alpha: bool = True,
        dt: float = 1.0,
        dim: int = -1,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = "FractionalDifference"
        self.channels = errors.count(owner, "channels", channels)
        self.orders = errors.count(owner, "orders", orders)
        self.dt = errors.positive_step(owner, dt)
        self.dim = dim
        self.learn_alpha = bool(learn_alpha)
        low, high = GrunwaldLetnikov(_middle(bounds), bounds=bounds).interval
        values = self._values(init, low, high)
        self.bounds = (low, high)
        self._parts = _split(values, low, high)
        self.parts = nn.ModuleList()
        for index, interval in self._parts:
            start = values[index].tolist()
            if self.learn_alpha:
                self.parts.append(Alpha(start, interval, (len(start),), owner=owner, device=device, dtype=dtype))
        self._fixed = None if self.learn_alpha else values
        if self._fixed is not None:
            for value in values.tolist():
                GrunwaldLetnikov(value, bounds=(low, high))  # raises where a fixed order is out of range
        self._orders = [tuple(values[index].tolist()) for index, _ in self._parts]
        self._inverse = np.argsort(np.concatenate([index for index, _ in self._parts])).tolist()
        self.site = (manager or default_manager()).site("toeplitz", "torch")

    @property
    def alpha(self) -> Tensor:
        """The orders in real units, float64, [channels * orders]."""
        if self._fixed is not None:
            return torch.tensor(self._fixed)
        found = [part() for part in self.parts]
        return found[0] if len(found) == 1 else torch.cat(found)[self._inverse]

    def forward(self, x: Tensor) -> Tensor:
        """Return every channel's fractional differences."""
        if x.ndim != 3:
            raise ValueError(
                f"FractionalDifference(x of shape {tuple(x.shape)}): needs three axes, batch, channels and time; "
                "add the missing ones with x[None]."
            )
        axis = errors.axis("FractionalDifference", self.dim, 3)
        if axis == 0:
            raise ValueError(f"FractionalDifference(dim={self.dim}): needs time on axis 1 or 2; axis 0 is the batch.")
        where = channel_axis(3, axis)
        if x.shape[where] != self.channels:
            raise ValueError(
                f"FractionalDifference(channels={self.channels}): needs {self.channels} channels on axis {where}; "
                f"x has shape {tuple(x.shape)}, pass channels={x.shape[where]}."
            )
        if len(self._parts) == 1:
            wide = x if self.orders == 1 else x.repeat_interleave(self.orders, dim=where)
            return self._apply_part(wide, 0, axis)
        found = []
        for number, (index, _) in enumerate(self._parts):
            source = torch.as_tensor(index // self.orders, device=x.device)
            found.append(self._apply_part(x.index_select(where, source), number, axis))
        order = torch.as_tensor(self._inverse, device=x.device)
        return torch.cat(found, dim=where).index_select(where, order)

    def extra_repr(self) -> str:
        low, high = self.bounds
        kind = "learn_alpha=True" if self.learn_alpha else f"alpha={np.asarray(self._fixed).tolist()}"
        return (
            f"{self.channels}, orders={self.orders}, {kind}, bounds=({low:g}, {high:g}), dt={self.dt:g}, dim={self.dim}"
        )

    def _apply_part(self, x: Tensor, number: int, axis: int) -> Tensor:
        alpha: Any = self.parts[number]() if self._fixed is None else self._orders[number]
        definition = GrunwaldLetnikov(alpha, bounds=self._parts[number][1])
        return apply_at("FractionalDifference", x, definition, self.dt, axis, self.site)

    def _values(self, init: float | Sequence[float] | None, low: float, high: float) -> np.ndarray:
        count = self.channels * self.orders
        if init is None:
            spread = low + (high - low) * (np.arange(self.orders) + 1) / (self.orders + 1)
            init = np.where(
                spread == np.round(spread), spread + 0.05, spread
            ).tolist()  # a learned order starts between
        values = np.atleast_1d(np.asarray(init, dtype=np.float64)).ravel()
        if values.size not in (1, self.orders, count):
            raise ValueError(
                f"FractionalDifference(init of {values.size} values): needs 1, orders={self.orders} or "
                f"channels * orders={count} values; pass one for every order."
            )
        if not np.isfinite(values).all():
            raise ValueError(
                f"FractionalDifference(init={init}): needs finite orders; pass values within ({low:g}, {high:g})."
            )
        return np.tile(values, count // values.size)


def _middle(bounds: Any) -> float:
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise TypeError(
            f"FractionalDifference(bounds={bounds!r}): needs two numbers; pass a pair such as (0, 1)."
        ) from None
    return (low + high) / 2


def _split(values: np.ndarray, low: float, high: float) -> list[tuple[np.ndarray, tuple[float, float]]]:
    """Return (which orders, where they stay) for each stretch of the bounds between whole numbers that has any."""
    edges = [low, *range(math.floor(low) + 1, math.ceil(high)), high]
    parts = []
    for first, last in pairwise(edges):
        last_part = last == high
        inside = (values >= first if first != low else values > -math.inf) & ((values < last) | last_part)
        index = np.flatnonzero(inside)
        if index.size:
            parts.append((index, (float(first), float(last))))
    return parts
