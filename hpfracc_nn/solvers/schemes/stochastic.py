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
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def needs_diagonal(self) -> bool: ...


@dataclass(frozen=True)
class Euler:
    """y + f h + g dZ: Euler and Maruyama's method. One evaluation of each a step.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992), section 10.2.
    """

    name: ClassVar[str] = "euler"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = False


@dataclass(frozen=True)
class Milstein:
    """Euler's step + g g' (dW**2 - h) / 2, in Stratonovich's sense + g g' dW**2 / 2; the derivative by autograd.

    Source: Kloeden & Platen (1992), section 10.3.
    """

    name: ClassVar[str] = "milstein"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = True


@dataclass(frozen=True)
class Heun:
    """Predict by Euler's step, average f and g of both ends: Stratonovich's integral. Two evaluations of each a step.

    Source: Rumelin, SIAM J. Numer. Anal. 19 (1982) 604.
    """

    name: ClassVar[str] = "heun"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = False


@dataclass(frozen=True)
class RungeKutta:
    """Strong order 3/2, free of derivatives: SRA1 for additive noise (f twice, g twice), SRI1W1 for diagonal noise (f
    twice, g four times).

    Source: Rossler, SIAM J. Numer. Anal. 48 (2010) 922, tables 6.1 and 6.3.
    """

    name: ClassVar[str] = "srk"
    streams: ClassVar[int] = 2
    needs_diagonal: ClassVar[bool] = True


@dataclass(frozen=True)
class ReversibleHeun:
    """Heun's method with one evaluation of each a step, kept from the step before.

    Source: Kidger, Foster, Li & Lyons, Efficient and accurate gradients for neural SDEs, NeurIPS (2021), algorithm 1.
    """

    name: ClassVar[str] = "reversible_heun"
    streams: ClassVar[int] = 1
    needs_diagonal: ClassVar[bool] = False


STOCHASTIC_SCHEMES: dict[str, type[Euler] | type[Milstein] | type[Heun] | type[RungeKutta] | type[ReversibleHeun]] = {
    each.name: each for each in (Euler, Milstein, Heun, RungeKutta, ReversibleHeun)
}
