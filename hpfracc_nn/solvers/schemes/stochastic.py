"""One-step schemes for dX = f dt + g dZ: options, without a framework.

Which of them goes with which driver, integral, order and noise, and how fast it converges there, is the table of
`solvers.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol


class StochasticScheme(Protocol):
    """One way to take steps; a frozen value.

    Attributes:
        name: By which it is chosen.
        streams: Independent normal numbers that each channel of the noise needs per step: 1, or 2 where an integral
            of the path over the step is needed beside its increment.
        needs_diagonal: Whether it stands on each entry of a diagonal diffusion depending on its own entry of y alone.
        stability: The largest dt * rate with which a decay, y' = -rate y, is stable; 0 where none is.

    Examples:
        >>> scheme = RungeKutta()
        >>> scheme.name, scheme.streams, scheme.needs_diagonal
        ('srk', 2, True)
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def needs_diagonal(self) -> bool: ...
    @property
    def stability(self) -> float: ...


@dataclass(frozen=True)
class Euler:
    """y + f h + g dZ: Euler and Maruyama's method. One evaluation of each a step.

    Strong order 1/2 in Ito's sense, 1 for additive noise; below alpha = 1 it is alpha - 1/2.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992), section 10.2.

    Examples:
        >>> dw = increments(
        ...     Brownian(), 100, (500,), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: 0.5 * y)
        >>> y = fsdeint(
        ...     sde, torch.ones(500), np.linspace(0, 1, 101), noise=Given(dw), scheme=Euler()
        ... )
        >>> # the distance from the exact paths
        >>> (y[-1] - torch.exp(0.5 * dw.sum(0) - 0.125)).abs().mean()
        tensor(0.0140)
    """

    name: ClassVar[str] = "euler"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = False
    stability: ClassVar[float] = 2.0


@dataclass(frozen=True)
class Milstein:
    """Euler's step `+ g g' (dW**2 - h) / 2`, in Stratonovich's sense `+ g g' dW**2 / 2`; the derivative by autograd.

    Strong order 1 for diagonal noise.

    Source: Kloeden & Platen (1992), section 10.3.

    Examples:
        >>> dw = increments(
        ...     Brownian(), 100, (500,), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: 0.5 * y)
        >>> y = fsdeint(
        ...     sde, torch.ones(500), np.linspace(0, 1, 101), noise=Given(dw), scheme=Milstein()
        ... )
        >>> # the distance from the exact paths
        >>> (y[-1] - torch.exp(0.5 * dw.sum(0) - 0.125)).abs().mean()
        tensor(0.0004)
    """

    name: ClassVar[str] = "milstein"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = True
    stability: ClassVar[float] = 2.0


@dataclass(frozen=True)
class Heun:
    """Predict by Euler's step, average f and g of both ends: Stratonovich's integral. Two evaluations of each a step.

    Strong order 1 for diagonal, scalar or additive noise, 1/2 for general noise.

    Source: Rumelin, SIAM J. Numer. Anal. 19 (1982) 604.

    Examples:
        >>> dw = increments(
        ...     Brownian(), 100, (500,), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: 0.5 * y)
        >>> options = {"noise": Given(dw), "scheme": Heun(), "interpretation": "stratonovich"}
        >>> y = fsdeint(sde, torch.ones(500), np.linspace(0, 1, 101), **options)
        >>> # the distance from the exact paths
        >>> (y[-1] - torch.exp(0.5 * dw.sum(0))).abs().mean()
        tensor(0.0007)
    """

    name: ClassVar[str] = "heun"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = False
    stability: ClassVar[float] = 2.0


@dataclass(frozen=True)
class RungeKutta:
    """Strong order 3/2, free of derivatives: SRA1 for additive noise (f twice, g twice), SRI1W1 for diagonal noise (f
    twice, g four times).

    Source: Rossler, SIAM J. Numer. Anal. 48 (2010) 922, tables 6.1 and 6.3.

    Examples:
        >>> dw = increments(
        ...     Brownian(), 100, (2, 500), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: 0.5 * y)
        >>> y = fsdeint(
        ...     sde,
        ...     torch.ones(500),
        ...     np.linspace(0, 1, 101),
        ...     noise=Given(dw),
        ...     scheme=RungeKutta(),
        ... )
        >>> # the distance from exact paths
        >>> (y[-1] - torch.exp(0.5 * dw[:, 0].sum(0) - 0.125)).abs().mean() < 1e-4
        tensor(True)
    """

    name: ClassVar[str] = "srk"
    streams: ClassVar[int] = 2
    needs_diagonal: ClassVar[bool] = True
    stability: ClassVar[float] = 2.0


@dataclass(frozen=True)
class ReversibleHeun:
    """Heun's method with one evaluation of each a step, kept from the step before; strong orders as of `Heun`.

    Source: Kidger, Foster, Li & Lyons, Efficient and accurate gradients for neural SDEs, NeurIPS (2021), algorithm 1.

    Examples:
        >>> dw = increments(
        ...     Brownian(), 100, (500,), dt=0.01, generator=torch.Generator().manual_seed(0)
        ... )
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: 0.5 * y)
        >>> options = {
        ...     "noise": Given(dw),
        ...     "scheme": ReversibleHeun(),
        ...     "interpretation": "stratonovich",
        ... }
        >>> y = fsdeint(sde, torch.ones(500), np.linspace(0, 1, 101), **options)
        >>> # the distance from the exact paths
        >>> (y[-1] - torch.exp(0.5 * dw.sum(0))).abs().mean()
        tensor(0.0007)
    """

    name: ClassVar[str] = "reversible_heun"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = False
    stability: ClassVar[float] = 0.0  # a second root, -(r + sqrt(1 + r**2)) for r = dt * rate, always grows


STOCHASTIC_SCHEMES: dict[str, type[Euler] | type[Milstein] | type[Heun] | type[RungeKutta] | type[ReversibleHeun]] = {
    each.name: each for each in (Euler, Milstein, Heun, RungeKutta, ReversibleHeun)
}
