"""Fractional derivatives of periodic fields: a factor for every frequency, with a fixed or a learned order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.fractional import multipliers
from hpfracc_nn.fractional.definitions import FourierMultiplier
from hpfracc_nn.fractional.layout import check_dim
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.parameters import Alpha, is_spread
from hpfracc_nn.layers.multipliers import OWNER, axes_of, begun, check_channels, options_text
from hpfracc_nn.layers.torch.fractional import Ordered, each_on_its_own
from hpfracc_nn.selection import BackendManager, given_manager


class SpectralFractional(Ordered):
    """A fractional derivative of a PERIODIC field on one to three axes; the shape stays as it is.

    With F the discrete Fourier transform over the axes `dim` and omega the vector of angular frequencies,
    omega = 2 pi m / (n dt) on an axis of n samples dt apart, it computes

        y = F^-1 [ |omega|**alpha F x ], the fractional Laplacian (-Laplacian)**(alpha / 2).

    alpha = 0 is the identity, alpha = 2 minus the Laplacian, exact for a trigonometric polynomial that the grid
    resolves. "periodic_riesz" has the factor `-|omega|**alpha` and "periodic_weyl" `(i omega)**alpha`, both on one
    axis. A field that is not periodic has a jump at the box's edge, which the operator sees.

    Args:
        alpha: The order, or one per channel; or an `Alpha` or `ProbabilisticAlpha` of shape [] or [channels], which
            then is the layer's `order`, with its own bounds.
        definition: A name among `MULTIPLIERS`, the class of a multiplier, or one whose options are taken.
        channels: C gives every channel its own alpha: the channels are the last axis that is not in `dim`.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is (0, 2).
        dt: Spacing of the samples, in the caller's unit, or one for each axis of `dim`.
        dim: The axis or axes of space; None is the last. To be given where the operator takes several and the field
            has more axes than one and that of `channels`, such as one of a batch.
        manager: Taken for the sake of other layers; there is one routine, the FFT.
        device: Of the parameter, if there is one.
        dtype: Of the parameter; alpha and the factors are computed in float64 whatever it is.

    Shape:
        Input and output: any with the axes `dim`, floating. Half precision is computed in float32. In float32 and for
        alpha >= 1 the rounding of smooth, long signals is amplified: see the page on definitions.

    Raises:
        ValueError: An argument is out of range, or the definition takes fewer axes.
        TypeError: An argument has the wrong type.

    Source: Samko, Kilbas & Marichev (1993), section 25; Kwasnicki, Fract. Calc. Appl. Anal. 20 (2017) 7.

    Examples:
        >>> layer = SpectralFractional(1.5, dt=(0.1, 0.1), dim=(-2, -1), learn_alpha=True)
        >>> layer(torch.randn(8, 3, 32, 32)).shape
        torch.Size([8, 3, 32, 32])
        >>> x = torch.sin(2 * torch.pi * torch.arange(8) / 8)
        >>> round(SpectralFractional(2.0, dt=1 / 8)(x)[2].item(), 2)  # (2 pi)**2
        39.48
    """

    def __init__(
        self,
        alpha: float | Sequence[float] | Alpha = 1.0,
        definition: str | type[FourierMultiplier] | FourierMultiplier = "fractional_laplacian",
        *,
        channels: int | None = None,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dt: float | Sequence[float] = 1.0,
        dim: int | Sequence[int] | None = None,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        errors.claim(OWNER, "learn_alpha", learn_alpha)
        count = None if channels is None else errors.count(OWNER, "channels", channels)
        make = partial(Alpha, owner=OWNER, device=device, dtype=dtype)
        start, order, self.channels = begun(
            definition, alpha, Alpha, make, bounds=bounds, learn_alpha=learn_alpha, channels=count
        )
        self.dim, self.dt = axes_of(start, -1 if dim is None else dim, dt)
        self._is_told = dim is not None
        self.hold(start, order)
        given_manager(OWNER, manager)

    def forward(self, x: Tensor) -> Tensor:
        """Return the operator applied to x; same shape, dtype and device."""
        if is_spread(x):
            whole = {errors.axis(OWNER, dim, x.ndim) for dim in self.dim}
            if self.channels is not None:
                whole.add(1)
            return each_on_its_own(OWNER, self, SpectralFractional.forward, [x], {*range(x.ndim)} - whole)
        check_dense(OWNER, "x", x)
        if not self._is_told:
            check_dim(OWNER, x.shape, self.definition, 1 if self.channels is None else 2)
        if self.channels is not None:
            check_channels(x.shape, self.dim, self.channels)
        definition = self.definition
        if self.learn_alpha:
            definition = replace(definition, alpha=self.order.beside_local(OWNER))
        dt = self.dt * len(self.dim) if len(self.dt) == 1 else self.dt
        return multipliers.apply(OWNER, x, definition, dt, self.dim, "torch")

    def extra_repr(self) -> str:
        channels = "" if self.channels is None else f", channels={self.channels}"
        return f"{self._alpha_text()}, {options_text(self.definition)}{channels}, dt={self.dt}, dim={self.dim}"
