"""How rough a signal is: the logarithms of the energies of a bank of fractional differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy, widest
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.layers.flax.functional.core import Params, check_fields, hashable, settle
from hpfracc_nn.layers.flax.functional.difference import FractionalDifference
from hpfracc_nn.layers.flax.functional.order import Alpha
from hpfracc_nn.layers.order import roughness_orders
from hpfracc_nn.selection import BackendManager

_OWNER = "RoughnessFeatures"


class RoughnessState(NamedTuple):
    """What a mean of squares remembers between two samples; a pytree.

    Attributes:
        differences: One state for each part of the bank.
        sums: Of the squares so far, without the samples that are skipped, [..., channels * orders].
        seen: How many samples there were.
    """

    differences: tuple[StreamState, ...]
    sums: Array
    seen: Array


class _Made:
    """What follows from the fields.

    Attributes:
        differences: The bank.
        order: Its learned orders, or None.
    """

    differences: FractionalDifference
    order: Alpha | None


@dataclass(frozen=True)
class RoughnessFeatures(_Made):
    """The logarithm of the mean square of fractional differences, a few orders for every channel.

        e_j = log(floor + mean over t >= skip of y_j[t]**2),
        y_j = dt**-alpha_j (1 - z)**alpha_j x.

    Energies at several orders tell how the spectrum is distributed: a higher order weighs high frequencies more. For
    fractional Gaussian noise of Hurst index H, variance sigma**2 and density f_H, with dt = 1 and long signals,

        e(alpha) -> log sigma**2 + log of the integral over [-pi, pi] of
                    f_H(w) |2 sin(w / 2)|**(2 alpha),

    for alpha > H - 1. At any alpha its slope in alpha falls as H grows, whatever sigma is.

    Attributes:
        channels: Channels of the input.
        orders: Orders per channel; feature c * orders + j is order j of channel c.
        alpha: The orders: one, `orders`, or channels * orders of them; None spreads them evenly within the bounds, but
            for a learned one that would be a whole number, which begins 0.05 above. Or an `Alpha` of shape
            [channels * orders], with its own bounds.
        bounds: Where the orders stay; None is (-1, 1). A learned order that is given as a number does not cross a whole
            one. Those of an `Alpha` cross.
        learn_alpha: Whether the orders are parameters; an `Alpha` always is one.
        skip: Samples at the beginning that are left out of the mean.
        floor: Is added to the mean square: a silent channel has the feature log(floor). At least the least normal
            number of float32, some 1.2e-38.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Shape:
        [..., n, channels] -> [..., channels * orders]; with time last [batch, channels, n] ->
        [batch, channels * orders]. Half precision is computed in float32.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.

    Source: Hosking, Biometrika 68 (1981) 165, for the differences; Beran, Statistics for Long-Memory Processes (1994),
        section 2.3, for f_H.

    Examples:
        >>> core = fjx.functional.RoughnessFeatures(2, orders=3)
        >>> core(core.init(), jnp.ones((4, 100, 2))).shape
        (4, 6)
    """

    channels: int
    orders: int = 3
    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha | None = None
    bounds: tuple[float, float] | None = None
    learn_alpha: bool = False
    skip: int = 0
    floor: float = 1e-12
    dt: float = 1.0
    dim: int = -2
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        check_fields(_OWNER, self)
        channels, orders = (errors.count(_OWNER, name, getattr(self, name)) for name in ("channels", "orders"))
        start: Any = self.alpha
        within = self.bounds
        if not isinstance(start, Alpha):
            start, within = roughness_orders(_OWNER, start, within, channels, orders, self.learn_alpha)
        bank = FractionalDifference(
            channels,
            orders,
            bounds=within,
            start=start,
            learn_alpha=self.learn_alpha,
            dt=self.dt,
            dim=self.dim,
            manager=self.manager,
        )
        settle(
            self,
            channels=channels,
            orders=orders,
            alpha=hashable(self.alpha),
            bounds=hashable(self.bounds),
            learn_alpha=bank.learn_alpha,
            skip=errors.count(_OWNER, "skip", self.skip, least=0),
            # A smaller one would vanish where energies are computed in float32, and a silent channel have -inf.
            floor=errors.real(_OWNER, "floor", self.floor, float(np.finfo(np.float32).tiny)),
            dt=bank.dt,
            differences=bank,
            order=bank.order,
        )

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"order": {"raw": [channels * orders]}} where the orders are learned, else {}; nothing is drawn."""
        return self.differences.init(key, param_dtype)

    def alpha_of(self, params: Params) -> tuple[float, ...] | Array:
        """Return the orders in real units, [channels * orders]; of random ones the mean."""
        return self.differences.alpha_of(params)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the features of every channel.

        Args:
            params: From `init`.
            x: Signals.
            key: For random orders; None are their means.
        """
        x = of_numpy(x)
        y = self.differences(params, x.astype(computed_in(_OWNER, x)), key=key)
        axis = errors.axis(_OWNER, self.dim, y.ndim)
        n = y.shape[axis]
        if n <= self.skip:
            raise ValueError(
                f"{_OWNER}(x of {n} samples, skip={self.skip}): needs more samples than are left out; "
                "pass longer signals or a smaller skip."
            )
        counted = jnp.moveaxis(y, axis, -1)[..., self.skip :]
        return self._logarithm(jnp.mean(counted * counted, -1)).astype(x.dtype)

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> RoughnessState:
        """Return the state before the first sample, for `step`.

        Args:
            params: From `init`.
            shape: Of one time slice, [..., channels].
            horizon: As in `FractionalLayer.initial_state`.
        """
        states = self.differences.initial_state(params, shape, horizon=horizon)
        sums = jnp.zeros((*tuple(shape)[:-1], self.channels * self.orders), widest())
        return RoughnessState(states, sums, jnp.zeros((), jnp.int32))

    def step(self, params: Params, x: Array, state: RoughnessState) -> tuple[Array, RoughnessState]:
        """Return the features of all samples so far, and the state after this one.

        Until a sample counts, for the first `skip`, they are log(floor).

        Args:
            params: From `init`.
            x: One time slice, [..., channels].
            state: From `initial_state` or the step before.

        Raises:
            TypeError: `state` is none, or x is not real and floating.
            ValueError: x has another shape than the state.
        """
        x = of_numpy(x)
        computed_in(f"{_OWNER}.step", x)
        if not isinstance(state, RoughnessState):
            raise TypeError(
                f"{_OWNER}.step(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
            )
        y, states = self.differences.step(params, x.astype(state.sums.dtype), state.differences)
        count = state.seen + 1
        sums = state.sums + jnp.where(count > self.skip, y * y, 0)
        after = RoughnessState(states, sums, count)
        counted = jnp.maximum(1, count - self.skip).astype(sums.dtype)
        return self._logarithm(sums / counted).astype(x.dtype), after

    def _logarithm(self, energies: Array) -> Array:
        return jnp.log(energies + self.floor)
