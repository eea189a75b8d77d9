"""Fractional derivatives of periodic fields: a factor for every frequency, with a fixed or a learned order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

from jax import numpy as jnp

from hpfracc_nn.fractional import dispatch
from hpfracc_nn.fractional.definitions import FourierMultiplier
from hpfracc_nn.fractional.jax.arrays import Array, of_numpy
from hpfracc_nn.fractional.layout import check_dim
from hpfracc_nn.layers.flax.functional.core import Alpha, Ordered, Params, settle, settle_fields
from hpfracc_nn.layers.multipliers import OWNER, axes_of, begun, check_channels
from hpfracc_nn.selection import BackendManager

_SPACE = (-2,)  # before the features


@dataclass(frozen=True)
class SpectralFractional(Ordered):
    """A fractional derivative of a PERIODIC field on one to three axes; the shape stays as it is.

    With F the discrete Fourier transform over the axes `dim` and omega the vector of angular frequencies,
    omega = 2 pi m / (n dt) on an axis of n samples dt apart, it computes

        y = F^-1 [ |omega|**alpha F x ], the fractional Laplacian (-Laplacian)**(alpha / 2).

    alpha = 0 is the identity, alpha = 2 minus the Laplacian, exact for a trigonometric polynomial that the grid
    resolves. "periodic_riesz" has the factor `-|omega|**alpha` and "periodic_weyl" `(i omega)**alpha`, both on one
    axis.

    Attributes:
        alpha: The order, or one per channel; or an `Alpha` of shape [] or [channels].
        definition: A name among `MULTIPLIERS`, the class of a multiplier, or one whose options are taken.
        channels: C gives every channel its own alpha: the channels are the last axis that is not in `dim`.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is (0, 2).
        dt: Spacing of the samples, in the caller's unit, or one for each axis of `dim`.
        dim: The axis or axes of space; None is the last but one, before the features. To be given where the operator
            takes several and the field has more axes than these two, such as one of a batch.
        manager: Taken for the sake of other layers; there is one routine, the FFT.

    Shape:
        Input and output: any with the axes `dim`, floating. Half precision is computed in float32.

    Raises:
        ValueError: An argument is out of range, or the definition takes fewer axes.
        TypeError: An argument has the wrong type.

    Source: Samko, Kilbas & Marichev (1993), section 25; Kwasnicki, Fract. Calc. Appl. Anal. 20 (2017) 7.

    Examples:
        >>> core = fjx.functional.SpectralFractional(
        ...     1.5, dt=0.1, dim=(-3, -2), learn_alpha=True
        ... )
        >>> core(core.init(), jnp.ones((8, 32, 32, 3))).shape
        (8, 32, 32, 3)
    """

    alpha: float | Sequence[float] | Alpha = 1.0
    definition: str | type[FourierMultiplier] | FourierMultiplier = "fractional_laplacian"
    _: KW_ONLY
    channels: int | None = None
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dt: float | Sequence[float] = 1.0
    dim: int | Sequence[int] | None = None
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        settle_fields(OWNER, self)
        how: dict[str, Any] = {"bounds": self.bounds, "learn_alpha": self.learn_alpha, "channels": self.channels}
        start, order, channels = begun(self.definition, self.alpha, Alpha, partial(Alpha, owner=OWNER), **how)
        axes, steps = axes_of(start, _SPACE if self.dim is None else self.dim, self.dt)
        settle(self, definition=start, channels=channels, learn_alpha=order is not None, order=order)
        if order is None:
            settle(self, alpha=start.alpha)
        dim = None if self.dim is None else axes
        settle(self, dt=steps * len(axes) if len(steps) == 1 else steps, dim=dim)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the operator applied to x; same shape and dtype.

        Args:
            params: From `init`.
            x: The field.
            key: For an order that is random.
        """
        x = of_numpy(x)
        definition: Any = self.definition
        axes: Any = _SPACE if self.dim is None else self.dim
        if self.dim is None:
            check_dim(OWNER, jnp.shape(x), definition, 2)
        if self.channels is not None:
            check_channels(jnp.shape(x), axes, self.channels)
        alpha = self._present(params, key)
        if alpha is not None:
            definition = replace(definition, alpha=alpha)
        return dispatch.apply_multiplier(OWNER, x, definition, self.dt, axes, self.manager)
