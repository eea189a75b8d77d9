"""A neural stochastic differential equation as a module."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.selection import BackendManager, given_manager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.rules import NOISE_TYPES
from hpfracc_nn.solvers.schemes.stochastic import StochasticScheme
from hpfracc_nn.solvers.schemes.volterra import VolterraWeights
from hpfracc_nn.solvers.sde import SDE
from hpfracc_nn.solvers.stochastic import StochasticMethod
from hpfracc_nn.solvers.stochastic_orders import check_stochastic_orders, stochastic_bounds
from hpfracc_nn.solvers.torch.arguments import order_numbers
from hpfracc_nn.solvers.torch.fsde import integrated
from hpfracc_nn.solvers.torch.packing import S
from hpfracc_nn.solvers.torch.problem import Progress


class NeuralFSDE(nn.Module):
    """y0 to paths of dX = drift dt + diffusion dZ, or of the Volterra equation below alpha = 1, at given times.

    Beside networks that are free to change, an order or a Hurst index that is learned is a hyper-parameter and no
    measurement. To measure one fit a parametric model, by `fit_fsde`.

    Args:
        drift: Called as drift(t, y), of y's shape; its parameters are learned.
        diffusion: Called as diffusion(t, y), of the noise type's shape; its parameters are learned.
        noise_type: "additive", "diagonal", "scalar" or "general"; see `StochasticEquation`.
        alpha: The order, or orders along some of y0's axes, in (1/2, 1]; the first value where it is learned, then
            below 1; or an `Alpha`, which then is the order.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays; None is (1/2, 1).
        noise: What drives the equation; see `fsdeint`.
        learn_hurst: Whether the Hurst index of `noise` is a parameter, whose first value is the noise's.
        hurst_bounds: Where a learned Hurst index stays; None is where the noise says, by its bounds or its kind.
        scheme: As in `fsdeint`.
        weights: As in `fsdeint`.
        interpretation: As in `fsdeint`.
        history: As in `fsdeint`.
        dt: As in `fsdeint`.
        adjoint: As in `fsdeint`.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.
        device: Of the parameters of alpha and of the Hurst index.
        dtype: Of these parameters; alpha and the Hurst index themselves are float64.

    Shape:
        y0 [*shape] -> [times, *shape]; times in the caller's unit.

    Raises:
        ValueError: An argument is out of range, or things do not go together.
        TypeError: An argument has the wrong type.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992); Bennedsen, Lunde &
        Pakkanen, Finance Stoch. 21 (2017) 931, for the solver.

    Examples:
        >>> class Field(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(2, 2)
        ...
        ...     def forward(self, t, y):
        ...         return torch.tanh(self.net(y))
        >>> model = NeuralFSDE(Field(), Field(), alpha=0.8, learn_alpha=True)
        >>> model(torch.zeros(16, 2), torch.linspace(0, 1, 51)).shape
        torch.Size([51, 16, 2])
    """

    def __init__(
        self,
        drift: nn.Module,
        diffusion: nn.Module,
        noise_type: str = "diagonal",
        *,
        alpha: float | Sequence[float] | Alpha = 1.0,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        noise: Noise = Brownian(),  # noqa: B008  a frozen value
        learn_hurst: bool = False,
        hurst_bounds: tuple[float, float] | None = None,
        scheme: str | StochasticScheme = "euler",
        weights: str | VolterraWeights = "hybrid",
        interpretation: str = "ito",
        history: str | History = "auto",
        dt: float | None = None,
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.drift = errors.function(owner, "drift", drift)
        self.diffusion = errors.function(owner, "diffusion", diffusion)
        self.noise_type = errors.one_of(owner, "noise_type", noise_type, NOISE_TYPES)
        self.method = StochasticMethod.of(owner, noise, scheme, weights, interpretation, history)
        self.dt = None if dt is None else errors.positive_step(owner, dt)
        self.adjoint = errors.claim(owner, "adjoint", adjoint)
        self.learn_hurst = errors.claim(owner, "learn_hurst", learn_hurst)
        errors.claim(owner, "learn_alpha", learn_alpha)
        check_place(owner, device, dtype)
        # A fixed one is no buffer: model.float() would round it.
        self._fixed, self.order = stochastic_order(owner, alpha, learn_alpha, bounds, device, dtype)
        self.learn_alpha = self.order is not None
        self.index: Alpha | None = None
        if self.learn_hurst:
            first, self._hurst_bounds = _hurst_of(owner, noise, hurst_bounds)
            made: dict[str, Any] = {"owner": owner, "device": device, "dtype": dtype}
            self.index = Alpha(first.tolist(), self._hurst_bounds, first.shape, **made)
        self._present().rule(self.noise_type, 0.75 if self._fixed is None else min(np.ravel(self._fixed)))
        self.site = given_manager(owner, manager).site(self.method.history.op, "torch")

    @property
    def alpha(self) -> Tensor:
        """The order in real units, float64; of a random one its mean."""
        return self._fixed_alpha() if self.order is None else self.order.mean

    def _fixed_alpha(self) -> Tensor:
        return torch.tensor(self._fixed, dtype=torch.float64, device="cpu")

    @property
    def hurst(self) -> Tensor | None:
        """The Hurst index that is learned, float64, or None."""
        return None if self.index is None else self.index()

    def forward(
        self,
        y0: S,
        ts: Tensor | Sequence[float],
        *,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> S:
        """Return a path for each state of y0 at `ts`, time first; arguments as in `fsdeint`."""
        sde = SDE(self.drift, self.diffusion, self.noise_type)
        options = (self.dt, self.adjoint, generator, progress)
        alpha = self._fixed_alpha() if self.order is None else self.order()
        found: S = integrated(sde, y0, ts, alpha, self._present(), self.site, *options)
        return found

    def ensemble(
        self,
        y0: Tensor,
        ts: Tensor | Sequence[float],
        paths: int,
        *,
        generator: torch.Generator | None = None,
        progress: Progress | None = None,
    ) -> Tensor:
        """Return several paths from each state of y0, [times, paths, *shape].

        Args:
            y0: The state, or a batch of states, at the start; a tensor.
            ts: As in `fsdeint`.
            paths: How many from each.
            generator: As in `fsdeint`.
            progress: As in `fsdeint`.
        """
        count = errors.count("NeuralFSDE.ensemble", "paths", paths)
        return self(y0.expand(count, *y0.shape), ts, generator=generator, progress=progress)

    def _present(self) -> StochasticMethod:
        """Return the method with the noise of the present Hurst index."""
        if self.index is None:
            return self.method
        noise: Any = self.method.noise
        return dataclasses.replace(
            self.method, noise=dataclasses.replace(noise, hurst=self.index(), bounds=self._hurst_bounds)
        )

    def extra_repr(self) -> str:
        order = "learn_alpha=True" if self.learn_alpha else f"alpha={self.alpha.tolist()}"
        method, noise = self.method, "learn_hurst=True, " if self.learn_hurst else ""
        return (
            f"{self.noise_type!r}, {order}, noise={method.noise.name!r}, {noise}scheme={method.scheme.name!r}, "
            f"interpretation={method.interpretation!r}, dt={self.dt}"
        )


def stochastic_order(
    owner: str,
    alpha: float | Sequence[float] | Alpha,
    learn_alpha: bool,
    bounds: tuple[float, float] | None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Any, Alpha | None]:
    """Return the order of a stochastic equation as numbers that are fixed, and None, or None and what learns it.

    Args:
        owner: Who asks, for messages.
        alpha: In (1/2, 1], below 1 where it is learned; or an `Alpha`, which then is the order.
        learn_alpha: Whether numbers are to be learned.
        bounds: As given; None is (1/2, 1).
        device: Of a new order.
        dtype: Of a new order.

    Raises:
        TypeError: alpha is a tensor.
        ValueError: alpha or bounds are out of range.
    """
    if isinstance(alpha, Alpha):
        stochastic_bounds(owner, alpha.taken_by(owner, bounds, alpha.shape))
        return None, alpha
    values = order_numbers(owner, alpha)
    check_stochastic_orders(owner, alpha, values)
    if not learn_alpha:
        return values.tolist(), None
    within = stochastic_bounds(owner, bounds)
    return None, Alpha(values.tolist(), within, values.shape, owner=owner, device=device, dtype=dtype)


def _hurst_of(owner: str, noise: Noise, given: tuple[float, float] | None) -> tuple[np.ndarray, tuple[float, float]]:
    """Return the first value of a Hurst index, and its bounds."""
    value = getattr(noise, "hurst", None)
    if value is None:
        raise ValueError(
            f"{owner}(learn_hurst=True): needs a noise that has a Hurst index, and {type(noise).__name__} has none; "
            "pass for example noise=FractionalBrownian(0.3)."
        )
    if isinstance(value, Tensor):
        raise ValueError(
            f"{owner}(learn_hurst=True): needs a noise whose Hurst index is a number, the first value; pass for "
            "example noise=FractionalBrownian(0.3)."
        )
    widest: tuple[float, float] = getattr(noise, "widest", (0.0, 1.0))
    own: tuple[float, float] | None = getattr(noise, "bounds", None)
    bounds = errors.pair(owner, "hurst_bounds", (own or widest) if given is None else given, "(0.05, 0.5)")
    if not 0 <= bounds[0] < bounds[1] <= 1:
        raise ValueError(f"{owner}(hurst_bounds={bounds}): needs 0 <= low < high <= 1; pass for example (0.05, 0.5).")
    first = np.asarray(value, dtype=np.float64)
    if not ((first > bounds[0]) & (first < bounds[1])).all():
        raise ValueError(
            f"{owner}(hurst_bounds={bounds}): needs bounds around the noise's Hurst index {value}; pass others, or "
            "begin inside."
        )
    return first, bounds
