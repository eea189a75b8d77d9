"""A bank of learned fractional differences, the ARFIMA filter; and features of roughness, the bank's log energies.

A bank has `orders` differences of each channel, [channels * orders] in all, those of one channel side by side. It is
computed in parts, groups of orders that lie between the same two whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import dispatch
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.distributions import Bounds, check_inside
from hpfracc_nn.fractional.jax import streaming
from hpfracc_nn.fractional.jax.arrays import Array, computed_in, of_numpy, widest
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamSource, StreamState
from hpfracc_nn.fractional.streaming import slice_shape
from hpfracc_nn.layers.flax.functional.core import Alpha, Ordered, Params, WithOrder, hashable, settle, settle_fields
from hpfracc_nn.layers.flax.functional.fractional import beside_others, without
from hpfracc_nn.layers.order import Part, bank_in_one, bank_of, roughness_orders
from hpfracc_nn.layers.shapes import beside_channels, channel_axis, check_channels, check_counted, check_is_state
from hpfracc_nn.selection import BackendManager


@dataclass(frozen=True)
class BankAlpha(Alpha):
    """The learned orders of a bank, each with bounds of its own.

    Attributes:
        within: The bounds (low, high) of each order.
    """

    _: KW_ONLY
    within: tuple[Bounds, ...] = ()

    def _check(self, values: np.ndarray) -> None:
        for bounds in sorted(set(self.within)):
            own = values[[each == bounds for each in self.within]]
            check_inside(self.owner, own.tolist(), own, bounds)

    def _ends(self) -> tuple[Any, Any]:
        low, high = np.asarray(self.within).T
        return low, high


@dataclass(frozen=True)
class FractionalDifference(Ordered):
    """(1 - z)**alpha with zero history, `orders` of them for every channel.

    Nothing is subtracted and nothing looks ahead: sample t of the output depends on samples up to t, with weight
    dt**-alpha on sample t itself. A negative alpha sums (fractional integration).

    Attributes:
        channels: Channels of the input.
        orders: Orders per channel; output channel c * orders + j has order j of channel c.
        bounds: Where the orders stay; None is (0, 1). A bank whose bounds contain a whole number is split there by the
            first values: an order stays on its side, so that each part is differenced as often as it needs.
        start: The first value or values: one, `orders`, or channels * orders of them; None spreads them evenly, but for
            a learned one that would be a whole number, which begins 0.05 above. Or an `Alpha` of shape
            [channels * orders], which then is the orders, with its own bounds and in one part.
        learn_alpha: Whether the orders are parameters; an `Alpha` always is one.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        parts: For each part of the bank the indices of its orders, and their bounds.
        definitions: The operator of each part; with learned orders its alpha is the upper bound, a placeholder.
        fixed: The fixed orders, [channels * orders]; empty where orders are learned.

    Shape:
        [..., n, channels] -> [..., n, channels * orders]; with time last, [batch, channels, ..., n] ->
        [batch, channels * orders, ..., n].

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.

    Source: Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> core = fjx.functional.FractionalDifference(2, orders=3)
        >>> core(core.init(), jnp.ones((4, 100, 2))).shape
        (4, 100, 6)
    """

    channels: int
    orders: int = 1
    _: KW_ONLY
    bounds: tuple[float, float] | None = None
    start: float | Sequence[float] | Alpha | None = None
    learn_alpha: bool = True
    dt: float = 1.0
    dim: int = -2
    manager: BackendManager | None = None
    parts: list[Part] = field(init=False, repr=False, compare=False)
    definitions: tuple[GrunwaldLetnikov, ...] = field(init=False, repr=False, compare=False)
    fixed: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = "FractionalDifference"
        settle_fields(owner, self)
        order, count = self.start, self.channels * self.orders
        if isinstance(order, Alpha):
            bank = bank_in_one(count, order.bounds_for(owner, self.bounds, (count,)))
        else:
            bank = bank_of(owner, "start", order, self.channels, self.orders, self.bounds, self.learn_alpha)
            order = None
            if self.learn_alpha:
                within = tuple(next(ends for index, ends in bank.parts if number in index) for number in range(count))
                order = BankAlpha(hashable(bank.values), bank.bounds, (count,), owner=owner, within=within)
        fixed = () if order else hashable(bank.values)
        settle(self, bounds=bank.bounds, parts=bank.parts, definitions=bank.definitions, fixed=fixed)
        settle(self, order=order, learn_alpha=order is not None, definition=bank.definitions[0])

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the fractional differences of every channel, [..., n, channels * orders]; see the class's Shape.

        Args:
            params: From `init`.
            x: The signals, floating.
            key: For random orders; None are their means.
        """
        owner, x = "FractionalDifference", of_numpy(x)
        axis = errors.axis(owner, self.dim, x.ndim)
        where = channel_axis(x.ndim, axis)
        check_channels(owner, self.channels, x.shape, x.ndim, where)
        alphas = self._present(params, key)
        parts = [
            dispatch.apply(owner, part, self._operator(number, alphas, x.ndim, axis), self.dt, axis, self.manager)
            for number, part in enumerate(self._split(x, where))
        ]
        return self._joined(parts, where)

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> tuple[StreamState, ...]:
        """Return the state before the first sample, for `step`: a tuple with one for each part of the bank.

        A bank has one part, or more where its bounds contain a whole number.

        Args:
            params: From `init`.
            shape: Of one time slice, with the channels last.
            horizon: As in `FractionalLayer.initial_state`, where more is said.

        Raises:
            ValueError: An argument is out of range.
            TypeError: An argument has the wrong type.
        """
        owner = "FractionalDifference.initial_state"
        shape = slice_shape(owner, shape)
        check_channels(owner, self.channels, shape, len(shape) + 1, len(shape) - 1)
        alphas = self._present(params, None)
        return tuple(
            streaming.initial_state(
                owner,
                self._operator(number, alphas, 1, 1),
                (*shape[:-1], len(index)),
                dt=self.dt,
                horizon=horizon,
                source=self._source(number),
            )
            for number, (index, _) in enumerate(self.parts)
        )

    def step(self, params: Params, x: Array, state: tuple[StreamState, ...]) -> tuple[Array, tuple[StreamState, ...]]:
        """Return the next sample of the result, [..., channels * orders], and the state after it.

        Args:
            params: From `init`; the orders' are read by `initial_state`.
            x: One time slice, [..., channels]; floating.
            state: From `initial_state` or the step before.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`.
        """
        owner = "FractionalDifference.step"
        self._check_state(owner, state)
        check_channels(owner, self.channels, x.shape, x.ndim + 1, x.ndim - 1)
        taken = [
            streaming.step(owner, part, one, self._source(number))
            for number, (part, one) in enumerate(zip(self._split(x, x.ndim - 1), state, strict=True))
        ]
        return self._joined([y for y, _ in taken], x.ndim - 1), tuple(one for _, one in taken)

    def run(
        self, params: Params, x: Array, state: tuple[StreamState, ...] | None = None
    ) -> tuple[Array, tuple[StreamState, ...]]:
        """Return the results for the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            params: From `init`; where there is a state, the orders' were read by `initial_state`.
            x: The next samples, [..., n, channels], or with time last [batch, channels, n]; any n.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `FractionalLayer.run`; or the channels are not the last of the axes beside time.
            TypeError: As in `FractionalLayer.run`.
        """
        owner, x = "FractionalDifference.run", of_numpy(x)
        shape, axis = without(owner, x, self.dim), errors.axis(owner, self.dim, x.ndim)
        where = channel_axis(x.ndim, axis)
        check_channels(owner, self.channels, x.shape, x.ndim, where)
        if where - (where > axis) != len(shape) - 1:
            raise ValueError(
                f"{owner}(x of shape {x.shape}): needs the channels last beside time, as a stream has them; pass "
                "jnp.moveaxis(x, -1, -2) to a layer with dim=-2."
            )
        state = self.initial_state(params, shape) if state is None else state
        self._check_state(owner, state)
        taken = [
            streaming.run(owner, part, one, axis, self._source(number))
            for number, (part, one) in enumerate(zip(self._split(x, where), state, strict=True))
        ]
        return self._joined([y for y, _ in taken], where), tuple(one for _, one in taken)

    def alpha_of(self, params: Params) -> tuple[float, ...] | Array:
        """Return the orders in real units, [channels * orders]; of random ones the mean."""
        return self.fixed if self.order is None else self.order.mean(params["order"])

    def _operator(self, number: int, alphas: Array | None, ndim: int, axis: int) -> GrunwaldLetnikov:
        """Return the operator of one part of the bank, its orders shaped to broadcast with the part's input.

        Args:
            number: The index of the part.
            alphas: The learned orders of the whole bank, [channels * orders], or None where they are fixed.
            ndim: The input's number of axes.
            axis: The input's time axis.
        """
        definition = self.definitions[number]
        if alphas is not None:
            return replace(definition, alpha=beside_others(alphas[self.parts[number][0]], ndim, axis))
        return replace(definition, alpha=beside_channels(definition.alpha, ndim - 3 if axis == ndim - 1 else 0))

    def _check_state(self, owner: str, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != len(self.parts):
            raise TypeError(
                f"{owner}(state of type {type(state).__name__}): needs the states of {len(self.parts)} parts; "
                "pass what initial_state returned."
            )

    def _source(self, number: int) -> StreamSource:
        return StreamSource("FractionalDifference", self.definitions[number], self.learn_alpha, self.dt)

    def _split(self, x: Array, where: int) -> list[Array]:
        """Return the input of each part of the bank: x with a channel on axis `where` for each of the part's orders."""
        if len(self.parts) == 1:
            return [x if self.orders == 1 else jnp.repeat(x, self.orders, axis=where)]
        return [jnp.take(x, index // self.orders, axis=where) for index, _ in self.parts]

    def _joined(self, parts: list[Array], where: int) -> Array:
        """Return the outputs of all parts joined along the channels, the axis `where`, in the order of the bank."""
        if len(parts) == 1:
            return parts[0]
        inverse = np.argsort(np.concatenate([index for index, _ in self.parts]))
        return jnp.take(jnp.concatenate(parts, axis=where), inverse, axis=where)


_OWNER = "RoughnessFeatures"


class RoughnessState(NamedTuple):
    """The state of `RoughnessFeatures` between two samples; a pytree.

    Attributes:
        differences: One state for each part of the bank.
        sums: Sums of the differences' squares, without the samples that are skipped, [..., channels * orders].
        seen: How many samples the state has seen, an array [] of int32.
    """

    differences: tuple[StreamState, ...]
    sums: Array
    seen: Array


class _Derived(WithOrder):
    """The attributes of `RoughnessFeatures` that its `__post_init__` computes from the fields.

    Attributes:
        differences: The bank of differences whose energies are the features, and whose order is that of the features.
    """

    differences: FractionalDifference


@dataclass(frozen=True)
class RoughnessFeatures(_Derived):
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
        settle_fields(_OWNER, self)
        start: Any = self.alpha
        within = self.bounds
        if not isinstance(start, Alpha):
            start, within = roughness_orders(_OWNER, start, within, self.channels, self.orders, self.learn_alpha)
        bank = FractionalDifference(
            self.channels,
            self.orders,
            bounds=within,
            start=start,
            learn_alpha=self.learn_alpha,
            dt=self.dt,
            dim=self.dim,
            manager=self.manager,
        )
        settle(
            self,
            learn_alpha=bank.learn_alpha,
            # A smaller one would vanish where energies are computed in float32, and a silent channel have -inf.
            floor=errors.real(_OWNER, "floor", self.floor, float(np.finfo(np.float32).tiny)),
            differences=bank,
            order=bank.order,
        )

    def alpha_of(self, params: Params) -> tuple[float, ...] | Array:
        """Return the orders in real units, [channels * orders]; of random ones the mean."""
        return self.differences.alpha_of(params)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the features of every channel, [..., channels * orders].

        Args:
            params: From `init`.
            x: Signals.
            key: For random orders; None are their means.
        """
        x = of_numpy(x)
        y = self.differences(params, x.astype(computed_in(_OWNER, x)), key=key)
        axis = errors.axis(_OWNER, self.dim, y.ndim)
        check_counted(_OWNER, y.shape[axis], self.skip)
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

        For the first `skip` samples, which do not count, the features are log(floor).

        Args:
            params: From `init`.
            x: One time slice, [..., channels].
            state: From `initial_state` or the step before.

        Raises:
            TypeError: `state` is no RoughnessState, or x is not real and floating.
            ValueError: x has another shape than the state.
        """
        x = of_numpy(x)
        computed_in(f"{_OWNER}.step", x)
        check_is_state(f"{_OWNER}.step", state, RoughnessState)
        y, states = self.differences.step(params, x.astype(state.sums.dtype), state.differences)
        count = state.seen + 1
        sums = state.sums + jnp.where(count > self.skip, y * y, 0)
        after = RoughnessState(states, sums, count)
        return self._features(after).astype(x.dtype), after

    def run(self, params: Params, x: Array, state: RoughnessState | None = None) -> tuple[Array, RoughnessState]:
        """Return the features of all samples so far, and the state after the next ones; see `FractionalLayer.run`.

        Args:
            params: From `init`.
            x: The next samples, as a call takes them; any number along `dim`.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            TypeError: As in `step`.
            ValueError: As in `step`.
        """
        owner, x = f"{_OWNER}.run", of_numpy(x)
        if state is None:
            state = self.initial_state(params, without(owner, x, self.dim))
        check_is_state(owner, state, RoughnessState)
        y, states = self.differences.run(params, x.astype(state.sums.dtype), state.differences)
        y = jnp.moveaxis(y, errors.axis(owner, self.dim, x.ndim), -1)
        counts = state.seen + jnp.arange(y.shape[-1], dtype=state.seen.dtype) >= self.skip
        after = RoughnessState(states, state.sums + jnp.where(counts, y * y, 0).sum(-1), state.seen + y.shape[-1])
        return self._features(after).astype(x.dtype), after

    def _features(self, state: RoughnessState) -> Array:
        return self._logarithm(state.sums / jnp.maximum(1, state.seen - self.skip).astype(state.sums.dtype))

    def _logarithm(self, energies: Array) -> Array:
        return jnp.log(energies + self.floor)
