"""The drop-in layer: a fractional operator along time, with a fixed or a learned order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.layers.torch.order import Alpha
from hpfracc_nn.selection import BackendManager, default_manager


class FractionalLayer(nn.Module):
    """A fractional derivative or integral along `dim`; the shape stays as it is.

    It has no weights but its order: alpha = 1 is the scheme's ordinary difference quotient, alpha = 0 the identity
    (Caputo: less the first sample).

    Args:
        alpha: The order, or one per channel.
        definition: "caputo", "riemann_liouville", "grunwald_letnikov" or "riemann_liouville_integral", or the class.
        scheme: The discretisation; None is the definition's default.
        channels: C gives every channel its own alpha: axis 1 when time is the last axis, else the last axis.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays; None is the unit interval around its first value. They also decide how
            often the data are differenced, so wide bounds cost digits in float32.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameter, if there is one.
        dtype: Of the parameter; alpha and the weights are computed in float64 whatever it is.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating. Half precision is computed in float32.

    Raises:
        ValueError: alpha, bounds or dt is out of range.
        TypeError: An argument has the wrong type.

    Example:
        >>> layer = FractionalLayer(0.6, "caputo", dt=0.01, learn_alpha=True)
        >>> layer(torch.randn(8, 3, 256)).shape
        torch.Size([8, 3, 256])
    """

    def __init__(
        self,
        alpha: float | Sequence[float] = 0.5,
        definition: str | type[Definition] = "caputo",
        *,
        scheme: str | None = None,
        channels: int | None = None,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dt: float = 1.0,
        dim: int = -1,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        kind = _kind(definition)
        options = {} if scheme is None else {"scheme": scheme}
        start = kind(alpha, bounds=bounds, **options)
        if not start.is_fixed:
            raise TypeError(
                f"FractionalLayer(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
                "pass learn_alpha=True to train it, or use derivative() for an alpha that you compute."
            )
        self.dt = errors.positive_step("FractionalLayer", dt)
        self.dim = dim
        self.channels = None if channels is None else errors.count("FractionalLayer", "channels", channels)
        self.learn_alpha = bool(learn_alpha)
        shape = self._shape(start.alpha)
        if self.learn_alpha:
            bounds = start.bounds or unit_interval(start.interval)
            self.order = Alpha(start.alpha, bounds, shape, owner="FractionalLayer", device=device, dtype=dtype)
            start = kind(bounds[1], bounds=bounds, **options)
        self.definition = start
        self.site = (manager or default_manager()).site("toeplitz", "torch")

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned."""
        return self.order() if self.learn_alpha else self.definition.alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the operator applied to x; same shape, dtype and device."""
        definition = self.definition
        axis = errors.axis("FractionalLayer", self.dim, x.ndim)
        if self.channels is not None:
            self._check_channels(x, axis)
        if self.learn_alpha:
            definition = replace(definition, alpha=self._aligned(self.order(), x.ndim, axis))
        elif isinstance(definition.alpha, tuple):
            definition = replace(
                definition, alpha=_trailing_ones(definition.alpha, x.ndim - 3 if axis == x.ndim - 1 else 0)
            )
        return apply_at("FractionalLayer", x, definition, self.dt, self.dim, self.site)

    def extra_repr(self) -> str:
        definition = self.definition
        name = next(name for name, kind in DEFINITIONS.items() if type(definition) is kind)
        alpha = f"alpha={definition.alpha}" if not self.learn_alpha else "learn_alpha=True"
        channels = "" if self.channels is None else f", channels={self.channels}"
        return f"{alpha}, definition={name!r}, scheme={definition.scheme!r}{channels}, dt={self.dt:g}, dim={self.dim}"

    def _shape(self, alpha: float | tuple) -> tuple[int, ...]:
        if isinstance(alpha, float):
            return () if self.channels is None else (self.channels,)
        if any(isinstance(value, tuple) for value in alpha):
            raise ValueError(
                f"FractionalLayer(alpha={alpha}): needs one order per channel; pass a flat list of floats."
            )
        if self.channels is None:
            self.channels = len(alpha)
        if len(alpha) != self.channels:
            raise ValueError(
                f"FractionalLayer(alpha of {len(alpha)} values, channels={self.channels}): needs one order per "
                f"channel; pass channels={len(alpha)}."
            )
        return (self.channels,)

    def _check_channels(self, x: Tensor, axis: int) -> None:
        if x.ndim < 2:
            raise ValueError(
                f"FractionalLayer(channels={self.channels}): needs a channel axis beside time; "
                f"x has shape {tuple(x.shape)}, add one with x[None]."
            )
        where = channel_axis(x.ndim, axis)
        if x.shape[where] != self.channels:
            raise ValueError(
                f"FractionalLayer(channels={self.channels}): needs {self.channels} channels on axis {where}; "
                f"x has shape {tuple(x.shape)}, pass channels={x.shape[where]}."
            )

    @staticmethod
    def _aligned(alpha: Tensor, ndim: int, axis: int) -> Tensor:
        if alpha.ndim == 0 or axis != ndim - 1 or ndim == 2:
            return alpha
        return alpha.reshape(-1, *(1,) * (ndim - 3))


def channel_axis(ndim: int, axis: int) -> int:
    """Return the channel axis: 1 when time is last (0 without a batch), else the last."""
    return min(1, ndim - 2) if axis == ndim - 1 else ndim - 1


def unit_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return (c - 1, c) around orders that lie in it."""
    c = math.ceil(interval[1]) if interval[1] != 0 else 1
    return float(c - 1), float(c)


def _kind(definition: str | type[Definition]) -> type[Definition]:
    if isinstance(definition, type) and issubclass(definition, Definition):
        return definition
    if not isinstance(definition, str):
        raise TypeError(
            f"FractionalLayer(definition={definition!r}): needs a name or a definition's class; pass one of "
            f"{', '.join(map(repr, sorted(DEFINITIONS)))}."
        )
    return DEFINITIONS[errors.one_of("FractionalLayer", "definition", definition, DEFINITIONS)]


def _trailing_ones(alpha: tuple, count: int) -> tuple:
    for _ in range(count):
        alpha = tuple((value,) if isinstance(value, float) else _trailing_ones(value, 1) for value in alpha)
    return alpha
