"""A bank of learned fractional differences, the ARFIMA filter; and features of roughness, the bank's log energies.

A bank has `orders` differences of each channel, [channels * orders] in all, those of one channel side by side. It is
computed in parts, groups of orders that lie between the same two whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.streaming import HORIZON, StreamSource, slice_shape, versioned
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.fractional.torch.parameters import Alpha, StateMetadata, is_spread
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.order import bank_in_one, bank_of, roughness_orders
from hpfracc_nn.layers.shapes import channel_axis, check_counted, check_is_state
from hpfracc_nn.layers.torch.fractional import (
    LayerState,
    check_no_module,
    each_on_its_own,
    each_to_its_length,
    has_lengths,
)
from hpfracc_nn.selection import BackendManager, given_manager


class FractionalDifference(StateMetadata):
    """(1 - z)**alpha with zero history, `orders` of them for every channel.

    Nothing is subtracted and nothing looks ahead: sample t of the output depends on samples up to t, with weight
    dt**-alpha on sample t itself. A negative alpha sums (fractional integration).

    Args:
        channels: Channels of the input.
        orders: Orders per channel; output channel c * orders + j has order j of channel c.
        bounds: Where the orders stay; None is (0, 1). A bank whose bounds contain a whole number is split there by the
            first values: an order stays on its side, so that each part is differenced as often as it needs.
        init: The first value or values: one, `orders`, or channels * orders of them; None spreads them evenly, but for
            a learned one that would be a whole number, which begins 0.05 above. Or an `Alpha` or `ProbabilisticAlpha`
            of shape [channels * orders], which then is the orders, with its own bounds and in one part.
        learn_alpha: Whether the orders are parameters; an `Alpha` always is one.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters that it makes.
        dtype: Of the parameters; the orders and the weights are computed in float64 whatever it is.

    Shape:
        [batch, channels, n] -> [batch, channels * orders, n]; with time in the middle, [batch, n, channels] ->
        [batch, n, channels * orders].

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.

    Source: Hosking, Biometrika 68 (1981) 165.

    Examples:
        >>> FractionalDifference(2, orders=3)(torch.randn(4, 2, 100)).shape
        torch.Size([4, 6, 100])
        >>> # Grünwald's weights
        >>> FractionalDifference(1, init=0.5, learn_alpha=False)(torch.eye(1, 4)[None])
        tensor([[[ 1.0000, -0.5000, -0.1250, -0.0625]]])
    """

    def __init__(
        self,
        channels: int,
        orders: int = 1,
        *,
        bounds: tuple[float, float] | None = None,
        init: float | Sequence[float] | Alpha | None = None,
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
        self.dim = errors.index(owner, "dim", dim)
        self.learn_alpha = errors.claim(owner, "learn_alpha", learn_alpha) or isinstance(init, Alpha)
        self.parts = nn.ModuleList()
        self._fixed: np.ndarray | None = None
        count = self.channels * self.orders
        if isinstance(init, Alpha):
            bank = bank_in_one(count, init.bounds_for(owner, bounds, (count,)))
            self.parts.append(init)
        else:
            check_no_module(owner, "init", init)
            bank = bank_of(owner, "init", init, self.channels, self.orders, bounds, self.learn_alpha)
            if not self.learn_alpha:
                self._fixed = bank.values
            for index, within in bank.parts if self.learn_alpha else ():
                start = bank.values[index].tolist()
                self.parts.append(Alpha(start, within, (len(start),), owner=owner, device=device, dtype=dtype))
        self.bounds, self._parts, self._definitions = bank.bounds, bank.parts, bank.definitions
        for name, value in self.state_metadata().items():
            self.keep(name, value, self._learned[0].raw.device)
        self._inverse = np.argsort(np.concatenate([index for index, _ in self._parts])).tolist()
        self.site = given_manager(owner, manager).site("toeplitz", "torch")

    @property
    def alpha(self) -> Tensor:
        """The orders in real units, float64, [channels * orders]; of random ones the mean."""
        if self._fixed is not None:
            return torch.tensor(self._fixed)
        found = [part.mean for part in self._learned]
        return found[0] if len(found) == 1 else torch.cat(found)[self._inverse]

    def forward(self, x: Tensor) -> Tensor:
        """Return the fractional differences of every channel, [batch, channels * orders, n]; see the class's Shape."""
        if is_spread(x):
            return each_on_its_own("FractionalDifference", self, FractionalDifference.forward, [x], [0])
        if has_lengths(x):
            return each_to_its_length(
                "FractionalDifference", x, partial(FractionalDifference.forward, self), self.dim, False
            )
        axis, where = self._axes("FractionalDifference", x)
        return self._joined([self._apply_part(part, k, axis) for k, part in enumerate(self._split(x, where))], where)

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> StateTuple:
        """Return the state before the first sample, for `step`: a tuple with one for each part of the bank.

        A bank has one part, or more where its bounds contain a whole number.

        Args:
            shape: Of one time slice, [batch, channels], wherever the time axis is.
            horizon: As in `FractionalLayer.initial_state`, where more is said.
            device: As in `FractionalLayer.initial_state`.

        Raises:
            ValueError: An argument is out of range.
            TypeError: An argument has the wrong type.
        """
        owner = "FractionalDifference.initial_state"
        shape = slice_shape(owner, shape)
        if len(shape) != 2 or shape[1] != self.channels:
            raise ValueError(
                f"{owner}(shape={shape}): needs [batch, {self.channels}], the shape of one time slice; "
                f"pass for example ({shape[0] if shape else 1}, {self.channels})."
            )
        return StateTuple(
            streaming.initial_state(
                owner,
                self._definition(part),
                (shape[0], len(index)),
                dt=self.dt,
                horizon=horizon,
                device=device,
                source=self._source(part),
            )
            for part, (index, _) in enumerate(self._parts)
        )

    def step(self, x: Tensor, state: tuple[StreamState, ...]) -> tuple[Tensor, StateTuple]:
        """Return the next sample of the result, [batch, channels * orders], and the state after it.

        Args:
            x: One time slice, [batch, channels]; any floating dtype.
            state: From `initial_state` or the step before; it stays as it is.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`.
        """
        owner = "FractionalDifference.step"
        self._check_state(owner, state)
        check_dense(owner, "x", x)
        if x.ndim != 2 or x.shape[1] != self.channels:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs one time slice [batch, {self.channels}]; "
                "pass the samples of one step, without a time axis."
            )
        taken = [
            streaming.step(owner, part, one, self._source(k))
            for k, (part, one) in enumerate(zip(self._split(x, 1), state, strict=True))
        ]
        return self._joined([y for y, _ in taken], 1), StateTuple(one for _, one in taken)

    def run(self, x: Tensor, state: tuple[StreamState, ...] | None = None) -> tuple[Tensor, StateTuple]:
        """Return the results for the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            x: The next samples, as of `forward`; any number along `dim`.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `FractionalLayer.run`.
            TypeError: As in `FractionalLayer.run`.
        """
        owner = "FractionalDifference.run"
        axis, where = self._axes(owner, x)
        if state is None:
            state = self.initial_state((x.shape[0], self.channels), device=x.device)
        self._check_state(owner, state)
        if x.shape[0] != state[0].shape[0]:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs the state's batch of {state[0].shape[0]}; pass the next "
                "samples of the same series, or None as the state to begin."
            )
        taken = [
            streaming.run(owner, part, one, axis, self.site, self._source(k))
            for k, (part, one) in enumerate(zip(self._split(x, where), state, strict=True))
        ]
        return self._joined([y for y, _ in taken], where), StateTuple(one for _, one in taken)

    def _axes(self, owner: str, x: Tensor) -> tuple[int, int]:
        """Return the axes of time and of the channels of x.

        Raises:
            TypeError: x is no dense tensor.
            ValueError: x has not three axes, or not the layer's number of channels, or `dim` is the batch axis.
        """
        check_dense(owner, "x", x)
        if x.ndim != 3:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs three axes, batch, channels and time; "
                "add the missing ones with x[None]."
            )
        axis = errors.axis(owner, self.dim, 3)
        if axis == 0:
            raise ValueError(f"{owner}(dim={self.dim}): needs time on axis 1 or 2; axis 0 is the batch.")
        where = channel_axis(3, axis)
        if x.shape[where] != self.channels:
            raise ValueError(
                f"{owner}(channels={self.channels}): needs {self.channels} channels on axis {where}; "
                f"x has shape {tuple(x.shape)}, pass channels={x.shape[where]}."
            )
        return axis, where

    def _check_state(self, owner: str, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != len(self._parts):
            raise TypeError(
                f"{owner}(state of type {type(state).__name__}): needs the states of {len(self._parts)} parts; "
                "pass what initial_state returned, or step or run."
            )

    def state_metadata(self) -> dict[str, Any]:
        """Return the indices of the orders of each learned part, where there are several; see `StateMetadata`."""
        return {"parts": tuple(tuple(index.tolist()) for index, _ in self._parts)} if len(self.parts) > 1 else {}

    def extra_repr(self) -> str:
        low, high = self.bounds
        kind = "learn_alpha=True" if self.learn_alpha else f"alpha={np.asarray(self._fixed).tolist()}"
        return (
            f"{self.channels}, orders={self.orders}, {kind}, bounds=({low:g}, {high:g}), dt={self.dt:g}, dim={self.dim}"
        )

    @property
    def _learned(self) -> list[Alpha]:
        return list(self.parts)  # type: ignore[arg-type]

    def _split(self, x: Tensor, where: int) -> list[Tensor]:
        """Return the input of each part of the bank: x with a channel on axis `where` for each of the part's orders."""
        if len(self._parts) == 1:
            return [x if self.orders == 1 else x.repeat_interleave(self.orders, dim=where)]
        sources = (torch.as_tensor(index // self.orders, device=x.device) for index, _ in self._parts)
        return [x.index_select(where, source) for source in sources]

    def _joined(self, parts: list[Tensor], where: int) -> Tensor:
        """Return the outputs of all parts joined along the channels, the axis `where`, in the order of the bank."""
        if len(parts) == 1:
            return parts[0]
        order = torch.as_tensor(self._inverse, device=parts[0].device)
        return torch.cat(parts, dim=where).index_select(where, order)

    def _apply_part(self, x: Tensor, number: int, axis: int) -> Tensor:
        alpha = self._learned[number].beside_local("FractionalDifference") if self.learn_alpha else None
        return apply_at("FractionalDifference", x, self._definitions[number], self.dt, axis, self.site, alpha)

    def _definition(self, number: int) -> GrunwaldLetnikov:
        """Return the operator of part `number`, with its present orders."""
        definition = self._definitions[number]
        if self.learn_alpha:
            return replace(definition, alpha=self._learned[number].beside_local("FractionalDifference"))
        return definition

    def _source(self, number: int) -> StreamSource:
        return StreamSource(type(self).__name__, self._definitions[number], self.learn_alpha, self.dt)


_OWNER = "RoughnessFeatures"


class RoughnessFeatures(nn.Module):
    """The logarithm of the mean square of fractional differences, a few orders for every channel.

        e_j = log(floor + mean over t >= skip of y_j[t]**2),
        y_j = dt**-alpha_j (1 - z)**alpha_j x.

    Energies at several orders tell how the spectrum is distributed: a higher order weighs high frequencies more. For
    fractional Gaussian noise of Hurst index H, variance sigma**2 and density f_H, with dt = 1 and long signals,

        e(alpha) -> log sigma**2 + log of the integral over [-pi, pi] of
                    f_H(w) |2 sin(w / 2)|**(2 alpha),

    for alpha > H - 1. At any alpha its slope in alpha falls as H grows, whatever sigma is: differences of two energies
    identify H, and a linear map of the features of several orders can. Fractional Brownian motion is the same after
    one more difference: energies at orders alpha + 1. The n samples of one signal know H to some 0.5 / sqrt(n) only;
    the features cannot do better, and an estimator by likelihood such as `hpfracc_nn.training`'s Whittle's needs no
    training data.

    Args:
        channels: Channels of the input.
        orders: Orders per channel; feature c * orders + j is order j of channel c.
        alpha: The orders: one, `orders`, or channels * orders of them; None spreads them evenly within the bounds, but
            for a learned one that would be a whole number, which begins 0.05 above. Or an `Alpha` or
            `ProbabilisticAlpha` of shape [channels * orders], with its own bounds.
        bounds: Where the orders stay; None is (-1, 1). A learned order that is given as a number does not cross a whole
            one: where the bounds contain 0, one that begins below 0 stays below, and one above stays above. Those of
            an `Alpha` cross.
        learn_alpha: Whether the orders are parameters; an `Alpha` always is one.
        skip: Samples at the beginning that are left out of the mean. Differences there have little history, which
            matters for signals that do not begin at 0.
        floor: Is added to the mean square: a silent channel has the feature log(floor). At least the least normal
            number of float32, some 1.2e-38.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters, if there are any.
        dtype: Of the parameters.

    Shape:
        [batch, channels, n] -> [batch, channels * orders]; with time in the middle [batch, n, channels] ->
        the same. Half precision is computed in float32.

    Raises:
        ValueError: An argument is out of range.
        TypeError: An argument has the wrong type.

    Source: Hosking, Biometrika 68 (1981) 165, for the differences; Beran, Statistics for Long-Memory Processes (1994),
        section 2.3, for f_H.

    Examples:
        >>> RoughnessFeatures(2, orders=3)(torch.randn(4, 2, 100)).shape
        torch.Size([4, 6])
        >>> layer = RoughnessFeatures(1, alpha=(-0.5, 0.0, 0.5), learn_alpha=False)
        >>> # nearly alpha log(4), at the highest frequency
        >>> layer(torch.tensor([1.0, -1.0] * 500).view(1, 1, 1000))
        tensor([[-0.6914,  0.0000,  0.6927]])
    """

    def __init__(
        self,
        channels: int,
        orders: int = 3,
        *,
        alpha: float | Sequence[float] | Alpha | None = None,
        bounds: tuple[float, float] | None = None,
        learn_alpha: bool = False,
        skip: int = 0,
        floor: float = 1e-12,
        dt: float = 1.0,
        dim: int = -1,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.skip = errors.count(_OWNER, "skip", skip, least=0)
        # A smaller one would vanish where energies are computed in float32, and a silent channel have minus infinity.
        self.floor = errors.real(_OWNER, "floor", floor, torch.finfo(torch.float32).tiny)
        channels, orders = errors.count(_OWNER, "channels", channels), errors.count(_OWNER, "orders", orders)
        errors.claim(_OWNER, "learn_alpha", learn_alpha)
        if not isinstance(alpha, Alpha):
            check_no_module(_OWNER, "alpha", alpha)
            alpha, bounds = roughness_orders(_OWNER, alpha, bounds, channels, orders, learn_alpha)
        self.differences = FractionalDifference(
            channels,
            orders,
            bounds=bounds,
            init=alpha,
            learn_alpha=learn_alpha,
            dt=dt,
            dim=dim,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    @property
    def alpha(self) -> Tensor:
        """The orders in real units, float64, [channels * orders]."""
        return self.differences.alpha

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of every channel, [batch, channels * orders]."""
        if is_spread(x):
            return each_on_its_own(_OWNER, self, RoughnessFeatures.forward, [x], [0])
        wide = _wide(_OWNER, x)
        y = self.differences(x.to(wide))
        axis = errors.axis(_OWNER, self.differences.dim, y.ndim)
        n = y.shape[axis]
        check_counted(_OWNER, n, self.skip)
        energies = y.narrow(axis, self.skip, n - self.skip).square().mean(axis)
        return torch.log(energies + self.floor).to(x.dtype)

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> RoughnessState:
        """Return the state before the first sample, for `step`.

        Args:
            shape: Of one time slice, [batch, channels].
            horizon: As in `FractionalLayer.initial_state`.
            device: As in `FractionalLayer.initial_state`.
        """
        states = self.differences.initial_state(shape, horizon=horizon, device=device)
        features = self.differences.channels * self.differences.orders
        return RoughnessState(states, torch.zeros(shape[0], features, dtype=torch.float64, device=states[0].device))

    def step(self, x: Tensor, state: RoughnessState) -> tuple[Tensor, RoughnessState]:
        """Return the features of all samples so far, and the state after this one.

        For the first `skip` samples, which do not count, the features are log(floor).

        Args:
            x: One time slice, [batch, channels].
            state: From `initial_state` or the step before; it stays as it is.

        Raises:
            TypeError: `state` is no state of such a layer, or x is not real and floating.
            ValueError: x has another shape than the state.
        """
        _wide(f"{_OWNER}.step", x)
        check_is_state(f"{_OWNER}.step", state, RoughnessState)
        # The result has the dtype of x, and squares add up in float64.
        y, states = self.differences.step(x.to(torch.float64), state.differences)
        counts = state.step >= self.skip
        after = RoughnessState(states, state.sums + y.square() if counts else state.sums)
        return self._features(after).to(x.dtype), after

    def run(self, x: Tensor, state: RoughnessState | None = None) -> tuple[Tensor, RoughnessState]:
        """Return the features of all samples so far, and the state after the next ones; see `FractionalLayer.run`.

        Args:
            x: The next samples, as of `forward`; any number along `dim`.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            TypeError: As in `step`.
            ValueError: As in `step`.
        """
        owner = f"{_OWNER}.run"
        _wide(owner, x)
        axis, where = self.differences._axes(owner, x)
        if state is None:
            state = self.initial_state((x.shape[0], x.shape[where]), device=x.device)
        check_is_state(owner, state, RoughnessState)
        y, states = self.differences.run(x.to(torch.float64), state.differences)
        left_out = min(max(self.skip - state.step, 0), y.shape[axis])
        counted = y.narrow(axis, left_out, y.shape[axis] - left_out)
        after = RoughnessState(states, state.sums + counted.square().sum(axis))
        return self._features(after).to(x.dtype), after

    def _features(self, state: RoughnessState) -> Tensor:
        return torch.log(state.sums / max(1, state.step - self.skip) + self.floor)

    def extra_repr(self) -> str:
        return f"skip={self.skip}, floor={self.floor:g}"


def _wide(owner: str, x: Tensor) -> torch.dtype:
    """Return the dtype that the energies of x are computed in; raise TypeError unless x is dense, real and floating."""
    check_dense(owner, "x", x)
    return computed_in(owner, x)


@versioned
@dataclass(frozen=True, eq=False)
class RoughnessState(LayerState):
    """The states of the differences, and the sums of the differences' squares so far.

    A state is never written to, and is a pytree of float64 tensors, as `StreamState` is.

    Attributes:
        differences: One state for each part of the bank.
        sums: Sums of squares, [batch, channels * orders], without the samples that are skipped.
    """

    differences: StateTuple
    sums: Tensor

    @property
    def _first(self) -> StateTuple:
        return self.differences


streaming.register_tree(
    RoughnessState,
    ("differences", "sums"),
    lambda _: None,
    lambda parts, _: RoughnessState(*parts),
    serialized_type_name="hpfracc_nn.layers.torch.roughness_state.RoughnessState",
)


class StateTuple(LayerState, tuple[Any, ...]):
    """A tuple of states and tensors that is a state itself; its first element is a state.

    A state is never written to, and is a pytree of float64 tensors, as `StreamState` is.
    """

    __slots__ = ()

    @property
    def _first(self) -> Any:
        return self[0]


_pytree.register_pytree_node(
    StateTuple,
    lambda state: (list(state), None),
    lambda pieces, _: StateTuple(pieces),
    flatten_with_keys_fn=lambda state: ([(_pytree.SequenceKey(k), each) for k, each in enumerate(state)], None),
    serialized_type_name="hpfracc_nn.layers.torch.state_tuple.StateTuple",
)
torch.serialization.add_safe_globals([StateTuple])
