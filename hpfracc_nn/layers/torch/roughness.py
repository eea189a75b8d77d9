"""How rough a signal is: the logarithms of the energies of a bank of fractional differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.layers.roughness_orders import checked_orders
from hpfracc_nn.layers.torch.difference import FractionalDifference
from hpfracc_nn.layers.torch.order import check_no_module
from hpfracc_nn.layers.torch.roughness_state import RoughnessState
from hpfracc_nn.selection import BackendManager

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
        init, within = _orders(alpha, bounds, channels, orders, learn_alpha)
        self.differences = FractionalDifference(
            channels,
            orders,
            bounds=within,
            init=init,
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
        """Return the features of every channel."""
        wide = _wide(_OWNER, x)
        y = self.differences(x.to(wide))
        axis = errors.axis(_OWNER, self.differences.dim, y.ndim)
        n = y.shape[axis]
        if n <= self.skip:
            raise ValueError(
                f"{_OWNER}(x of {n} samples, skip={self.skip}): needs more samples than are left out; "
                "pass longer signals or a smaller skip."
            )
        energies = y.narrow(axis, self.skip, n - self.skip).square().mean(axis)
        return torch.log(energies + self.floor).to(x.dtype)

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> RoughnessState:
        """Return the state before the first sample, for `step`.

        Args:
            shape: Of one time slice, [batch, channels].
            horizon: As in `FractionalLayer.initial_state`.
            device: As there.
        """
        states = self.differences.initial_state(shape, horizon=horizon, device=device)
        features = self.differences.channels * self.differences.orders
        return RoughnessState(states, torch.zeros(shape[0], features, dtype=torch.float64, device=states[0].device))

    def step(self, x: Tensor, state: RoughnessState) -> tuple[Tensor, RoughnessState]:
        """Return the features of all samples so far, and the state after this one.

        Until a sample counts, for the first `skip`, they are log(floor).

        Args:
            x: One time slice, [batch, channels].
            state: From `initial_state` or the step before; it stays as it is.

        Raises:
            TypeError: `state` is none, or x is not real and floating.
            ValueError: x has another shape than the state.
        """
        _wide(f"{_OWNER}.step", x)
        if not isinstance(state, RoughnessState):
            raise TypeError(
                f"{_OWNER}.step(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
            )
        # The result has the dtype of x, and squares add up in float64.
        y, states = self.differences.step(x.to(torch.float64), state.differences)
        counts = state.step >= self.skip
        sums = state.sums + y.square() if counts else state.sums
        after = RoughnessState(states, sums)
        return torch.log(sums / max(1, after.step - self.skip) + self.floor).to(x.dtype), after

    def extra_repr(self) -> str:
        return f"skip={self.skip}, floor={self.floor:g}"


def _orders(
    alpha: Any, bounds: Any, channels: int, orders: int, learn_alpha: bool
) -> tuple[float | Sequence[float] | Alpha | None, tuple[float, float] | None]:
    """Return the orders, and where they stay, as `FractionalDifference` takes them: an `Alpha` has its own bounds."""
    if isinstance(alpha, Alpha):
        return alpha, bounds
    check_no_module(_OWNER, "alpha", alpha)
    return checked_orders(_OWNER, alpha, bounds, channels, orders, learn_alpha)


def _wide(owner: str, x: Tensor) -> torch.dtype:
    """Return the dtype that energies of `x` are computed in, or raise."""
    check_dense(owner, "x", x)
    return computed_in(owner, x)
