"""The order of a layer for Flax: a number, or learned between two bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.alpha import Bounds, check_inside, check_taken, finite_bounds, first_values, order_shape
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.arrays import Array, widest
from hpfracc_nn.layers.flax.functional.core import Params, hashable, settle
from hpfracc_nn.layers.order import Shape, begun


@dataclass(frozen=True)
class Alpha:
    """Orders that stay between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes one and calls it `order`. One that is passed as a layer's alpha says how that
    layer's order begins and where it stays.

    Attributes:
        start: The first value or values, strictly inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `start` is broadcast; None is its own.
        owner: Who asks, for messages.

    Raises:
        ValueError: `start` is not strictly inside the bounds, or they are no finite interval.

    Examples:
        >>> order = fjx.functional.Alpha(0.4, (0, 1))
        >>> float(order(order.init()).round(4))
        0.4
    """

    start: float | Sequence[float]
    bounds: Bounds
    shape: Any = None
    _: KW_ONLY
    owner: str = field(default="Alpha", repr=False, compare=False)

    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        bounds = finite_bounds(self.owner, self.bounds)
        values = first_values(self.owner, self.start)
        shape = order_shape(self.owner, self.shape, values)
        settle(self, start=hashable(values.tolist()), bounds=bounds, shape=shape)
        self._check(values)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"raw": [*shape]}, made of `start`; nothing is drawn."""
        low, high = self._ends()
        share = np.broadcast_to((np.asarray(self.start) - low) / (high - low), self.shape)
        return {"raw": jnp.asarray(np.log(share) - np.log1p(-share), dtype=param_dtype)}

    def __call__(self, params: Params, *, key: Array | None = None) -> Array:
        """Return alpha in real units, [*shape]: float64 where 64 bit types are enabled, else float32."""
        return self._scaled(jax.nn.sigmoid(params["raw"].astype(widest())))

    def mean(self, params: Params) -> Array:
        """Return alpha in real units; of a random one (`ProbabilisticAlpha`) its mean, which is never drawn."""
        return self(params)

    def taken_by(self, owner: str, bounds: Any, shape: Shape) -> Bounds:
        """Return its bounds for a layer that was given it as its order, or raise.

        Args:
            owner: The layer.
            bounds: What the layer was given as bounds besides, which must be None.
            shape: The shape that the layer needs.
        """
        check_taken(owner, type(self).__name__, self.bounds, self.shape, bounds, shape)
        return self.bounds

    def _check(self, values: np.ndarray) -> None:
        """Raise unless first values lie strictly inside the bounds."""
        check_inside(self.owner, self.start, values, self.bounds)

    def _ends(self) -> tuple[Any, Any]:
        """The bounds, of all orders or of each."""
        return self.bounds

    def _scaled(self, u: Array) -> Array:
        low, high = self._ends()
        return low + (high - low) * u


Operator = Any  # a definition's name, its class or a definition; a core holds the definition that it stands for


class Ordered:
    """What cores with one order share; `__post_init__` gives them both attributes, from `started`.

    Attributes:
        definition: The operator; where the order is learned, at its upper bound.
        order: The learned order, or None.
    """

    definition: Operator
    order: Alpha | None

    def alpha_of(self, params: Params) -> float | tuple[float, ...] | Array:
        """Return the order in real units: an array where it is learned, the mean where it is random."""
        return self.definition.alpha if self.order is None else self.order.mean(params["order"])

    def _order_params(self, key: Array | None, param_dtype: Any) -> Params:
        """The order's part of the parameters."""
        return {} if self.order is None else {"order": self.order.init(key, param_dtype)}

    def _present(self, params: Params, key: Array | None) -> Array:
        """Alpha of a learned order as it is now: a draw where it is random and there is a key."""
        assert self.order is not None, "only a learned order is asked for its present value"
        return self.order(params["order"], key=key)


def started(
    owner: str,
    given: Definition,
    alpha: Any,
    *,
    bounds: Any,
    learn_alpha: bool,
    shape: Callable[[Shape], Shape],
) -> tuple[Definition, Alpha | None]:
    """Return a layer's definition and its order, which is None where it is fixed; see `hpfracc_nn.layers.order.begun`.

    Args:
        owner: As there.
        given: As there.
        alpha: As there.
        bounds: As there.
        learn_alpha: As there.
        shape: As there.

    Raises:
        TypeError: alpha is an array of JAX.
        ValueError: alpha or bounds are out of range.
    """

    def make(first: Any, within: Bounds, wanted: Shape) -> Alpha:
        return Alpha(first, within, wanted, owner=owner)

    return begun(owner, given, alpha, Alpha, make, bounds=bounds, learn_alpha=learn_alpha, shape=shape)
