"""The drop-in layer: a fractional operator along time, with a fixed or a learned order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import operator
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.layers.channels import beside_channels, channel_axis, check_channels, counted_channels
from hpfracc_nn.layers.flax.functional.core import Array, Params, hashable, settle
from hpfracc_nn.layers.flax.functional.order import Alpha, Operator, Ordered, started
from hpfracc_nn.layers.order import definition_of
from hpfracc_nn.selection import BackendManager


@dataclass(frozen=True)
class FractionalLayer(Ordered):
    """A fractional derivative or integral along `dim`; the shape stays as it is.

    It has no weights but its order: alpha = 1 is the scheme's ordinary difference quotient, alpha = 0 the identity
    (Caputo: less the first sample).

    Attributes:
        alpha: The order, or one per channel; or an `Alpha` of shape [] or [channels].
        definition: A name, such as "caputo" or "riemann_liouville_integral", a definition's class, or a definition: its
            options are taken, and its order and bounds are not.
        scheme: The discretisation; None is the definition's default.
        channels: C gives every channel its own alpha: the last axis, or axis 1 when time is the last.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value. They also decide how
            often the data are differenced.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating. Half precision is computed in float32.

    Raises:
        ValueError: alpha, bounds or dt is out of range.
        TypeError: An argument has the wrong type.

    Example:
        >>> core = FractionalLayer(0.6, "caputo", dt=0.01, learn_alpha=True)
        >>> core(core.init(), jnp.ones((8, 256, 3))).shape
        (8, 256, 3)
    """

    alpha: float | Sequence[float] | Alpha = 0.5
    definition: Operator = "caputo"
    _: KW_ONLY
    scheme: str | None = None
    channels: int | None = None
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dt: float = 1.0
    dim: int = -2
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        owner = "FractionalLayer"
        settle(
            self,
            alpha=hashable(self.alpha),
            bounds=hashable(self.bounds),
            dt=errors.positive_step(owner, self.dt),
            channels=None if self.channels is None else errors.count(owner, "channels", self.channels),
        )
        definition, order = started(
            owner,
            definition_of(owner, self.definition, self.scheme),
            self.alpha,
            bounds=self.bounds,
            learn_alpha=self.learn_alpha,
            shape=self._order_shape,
        )
        settle(self, definition=definition, order=order, learn_alpha=order is not None)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"order": {"raw": [] or [channels]}} where alpha is learned, else {}; nothing is drawn."""
        return self._order_params(key, param_dtype)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the operator applied to x; same shape and dtype.

        Args:
            params: From `init`.
            x: [..., n, ...].
            key: For a random order; None is its mean.
        """
        owner = "FractionalLayer"
        axis = errors.axis(owner, self.dim, x.ndim)
        if self.channels is not None:
            check_channels(owner, self.channels, x.shape, x.ndim, channel_axis(x.ndim, axis))
        definition = self._operator(params, x.ndim, axis, key)
        return operator.apply(owner, x, definition, self.dt, axis, self.manager)

    def _operator(self, params: Params, ndim: int, axis: int, key: Array | None) -> Definition:
        """The definition with the present alpha, shaped to fit x."""
        after = ndim - 3 if axis == ndim - 1 else 0  # axes between channels and time
        if self.order is not None:
            alpha = self._present(params, key)
            return replace(self.definition, alpha=alpha.reshape(alpha.shape + (1,) * (after if alpha.ndim else 0)))
        if isinstance(self.definition.alpha, tuple):
            return replace(self.definition, alpha=beside_channels(self.definition.alpha, after))
        return self.definition

    def _order_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        channels = counted_channels("FractionalLayer", given, self.channels)
        settle(self, channels=channels)
        return () if channels is None else (channels,)
