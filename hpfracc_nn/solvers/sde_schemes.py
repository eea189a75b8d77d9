"""One-step schemes for dX = f dt + g dZ: options, and their steps in plain arithmetic on a framework's arrays.

Which scheme goes with which driver, integral, order and noise, and how fast it converges there, is the table of
`solvers.rules`. A step takes the noise of this step and the carry that the step before returned: a tuple of arrays, the
first of which is the state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, Protocol

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.rules import ITO


class StochasticScheme(Protocol):
    """A one-step scheme for a stochastic equation; a frozen value.

    Attributes:
        name: The name by which a caller selects the scheme.
        streams: How many independent normal numbers each channel of the noise needs per step: 1, or 2 where an integral
            of the path over the step is needed beside its increment.
        needs_diagonal: Whether the scheme relies on each entry of a diagonal diffusion depending on its own entry of y
            alone.
        stability: The largest dt * rate with which the scheme is stable for a decay, y' = -rate y; 0 where it is with
            none.

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


Carry = tuple[Array, ...]
Index = Any  # the index of a step: an int, or an integer array of a framework


class Coefficients(Protocol):
    """Drift f and diffusion g of a solve, evaluated at steps n by a framework.

    Attributes:
        noise_type: The noise type of the equation.
        dt: The step size, in the caller's time unit.
        step: `dt` as an array of the framework, to multiply by.
    """

    @property
    def noise_type(self) -> str: ...
    @property
    def dt(self) -> float: ...
    @property
    def step(self) -> Array: ...

    def drift(self, n: Index, y: Array) -> Array:
        """Return f at the time of step n and the state y."""
        ...

    def diffusion(self, n: Index, y: Array) -> Array:
        """Return g at the time of step n and the state y."""
        ...

    def with_slope(self, n: Index, y: Array, factor: Array) -> tuple[Array, Array]:
        """Return g, and g g' times `factor`, of a diagonal diffusion; g' is the derivative of each entry in y's own."""
        ...

    def applied(self, g: Array, noise: Array) -> Array:
        """Return g times the noise of a step, an array of the state's shape."""
        ...

    def shifted(self, part: float) -> Coefficients:
        """Return the coefficients evaluated `part` of a step later: their step n is at time t_n + part dt."""
        ...


class OneStep(Protocol):
    """The steps of one scheme, which pass a carry on: a tuple of arrays, the state first."""

    def start(self, z0: Array) -> Carry:
        """Return the carry of step 0, from the initial state z0."""
        ...

    def step(self, n: Index, carry: Carry, noise: Array) -> Carry:
        """Return the carry of step n + 1.

        Args:
            n: The index of the step.
            carry: The carry of step n.
            noise: The noise's increments over the step, [*shape] with the noise's shape; [2, *shape] where the scheme
                has two streams.
        """
        ...


class EulerStep:
    """The step of `Euler`: y + f h + g dZ."""

    def __init__(self, scheme: Euler, coefficients: Coefficients, interpretation: str):
        self.c, self.h = coefficients, coefficients.step

    def start(self, z0: Array) -> Carry:
        """Return the carry of step 0: the initial state z0 alone."""
        return (z0,)

    def step(self, n: Index, carry: Carry, noise: Array) -> Carry:
        """Return the carry of step n + 1, the state after Euler's step: see `OneStep.step`."""
        (y,) = carry
        c = self.c
        return (y + c.drift(n, y) * self.h + c.applied(c.diffusion(n, y), noise),)


class MilsteinStep:
    """The step of `Milstein`: Euler's + g g' (dW**2 - h) / 2, in Stratonovich's sense + g g' dW**2 / 2; g diagonal."""

    def __init__(self, scheme: Milstein, coefficients: Coefficients, interpretation: str):
        self.c, self.h = coefficients, coefficients.step
        self.corrected = coefficients.dt if interpretation == ITO else 0.0

    def start(self, z0: Array) -> Carry:
        """Return the carry of step 0: the initial state z0 alone."""
        return (z0,)

    def step(self, n: Index, carry: Carry, noise: Array) -> Carry:
        """Return the carry of step n + 1, the state after Milstein's step: see `OneStep.step`."""
        (y,) = carry
        g, second = self.c.with_slope(n, y, (noise * noise - self.corrected) / 2)
        return (y + self.c.drift(n, y) * self.h + g * noise + second,)


class HeunStep:
    """The step of `Heun`: predict by Euler's step, then step with the averages of f and g at both ends."""

    def __init__(self, scheme: Heun, coefficients: Coefficients, interpretation: str):
        self.c, self.h, self.half = coefficients, coefficients.step, coefficients.step / 2

    def start(self, z0: Array) -> Carry:
        """Return the carry of step 0: the initial state z0 alone."""
        return (z0,)

    def step(self, n: Index, carry: Carry, noise: Array) -> Carry:
        """Return the carry of step n + 1, the state after Heun's step: see `OneStep.step`."""
        (y,) = carry
        c, h = self.c, self.h
        f, g = c.drift(n, y), c.diffusion(n, y)
        end = y + f * h + c.applied(g, noise)
        return (y + (f + c.drift(n + 1, end)) * self.half + c.applied(g + c.diffusion(n + 1, end), noise / 2),)


class ReversibleHeunStep:
    """The step of `ReversibleHeun`: a second state z is reflected in y, and f and g are evaluated at z.

    The carry is y, z, f(z), g(z).
    """

    def __init__(self, scheme: ReversibleHeun, coefficients: Coefficients, interpretation: str):
        self.c, self.h, self.half = coefficients, coefficients.step, coefficients.step / 2

    def start(self, z0: Array) -> Carry:
        """Return the carry of step 0: y and z at z0, and f and g there."""
        return z0, z0, self.c.drift(0, z0), self.c.diffusion(0, z0)

    def step(self, n: Index, carry: Carry, noise: Array) -> Carry:
        """Return the carry of step n + 1, the new y, z, f(z) and g(z): see `OneStep.step`."""
        y, z, f, g = carry
        c, h = self.c, self.h
        z = 2 * y - z + f * h + c.applied(g, noise)
        f_end, g_end = c.drift(n + 1, z), c.diffusion(n + 1, z)
        y = y + (f + f_end) * self.half + c.applied(g + g_end, noise / 2)
        return y, z, f_end, g_end


class RungeKuttaStep:
    """The step of `RungeKutta`: SRA1 for additive noise, SRI1W1 for diagonal noise, in Rossler's notation.

    With dV independent of dW, I_10 = h (dW + dV / sqrt(3)) / 2 is the integral of W over the step.
    """

    def __init__(self, scheme: RungeKutta, coefficients: Coefficients, interpretation: str):
        self.c, self.h = coefficients, coefficients.dt
        self.later = coefficients.shifted(3 / 4)
        self.soon = coefficients.shifted(1 / 4)
        self.step = self._additive if coefficients.noise_type == "additive" else self._diagonal

    def start(self, z0: Array) -> Carry:
        """Return the carry of step 0: the initial state z0 alone."""
        return (z0,)

    def _additive(self, n: Index, carry: Carry, noise: Array) -> Carry:
        (y,) = carry
        c, h = self.c, self.h
        i_1, i_10 = noise[0], self._mean(noise)  # i_10 is I_10 / h
        f, g, g_end = c.drift(n, y), c.diffusion(n, y), c.diffusion(n + 1, y)
        stage = y + f * (3 / 4 * h) + c.applied(g_end, i_10 * (3 / 2))
        drift = f * (h / 3) + self.later.drift(n, stage) * (2 / 3 * h)
        return (y + drift + c.applied(g_end, i_1 - i_10) + c.applied(g, i_10),)

    def _diagonal(self, n: Index, carry: Carry, noise: Array) -> Carry:
        (y,) = carry
        c, h, root = self.c, self.h, math.sqrt(self.h)
        i_1, i_10 = noise[0], self._mean(noise)  # integrals from here on are divided by powers of h
        i_11, i_111 = (i_1 * i_1 - h) / (2 * root), (i_1 * i_1 - 3 * h) * i_1 / (6 * h)
        f, g1 = c.drift(n, y), c.diffusion(n, y)
        g2 = self.soon.diffusion(n, y + f * (h / 4) + g1 * (root / 2))
        g3 = c.diffusion(n + 1, y + f * h - g1 * root)
        g4 = self.soon.diffusion(n, y + f * (h / 4) + (g2 * 3 - g1 * 5 + g3 / 2) * root)
        f2 = self.later.drift(n, y + f * (3 / 4 * h) + g1 * (i_10 * (3 / 2)))
        noises = (
            g1 * (2 * i_10 - i_1 - i_11 - 2 * i_111)
            + g2 * ((i_1 + i_11 - i_10) * (4 / 3) + i_111 * (5 / 3))
            + g3 * ((i_1 - i_10 - i_111) * (2 / 3) - i_11 / 3)
            + g4 * i_111
        )
        return (y + f * (h / 3) + f2 * (2 / 3 * h) + noises,)

    @staticmethod
    def _mean(noise: Array) -> Array:
        """Return I_10 / h from dW and dV, the two entries of `noise` along its first axis."""
        return (noise[0] + noise[1] / math.sqrt(3)) / 2


@singledispatch
def one_step_of(scheme: StochasticScheme, coefficients: Coefficients, interpretation: str) -> OneStep:
    """Return the `OneStep` of a scheme; `interpretation` is the sense of the integral, "ito" or "stratonovich"."""
    raise TypeError(f"{scheme!r} has no step; register one by one_step_of.register.")


one_step_of.register(Euler, EulerStep)
one_step_of.register(Milstein, MilsteinStep)
one_step_of.register(Heun, HeunStep)
one_step_of.register(RungeKutta, RungeKuttaStep)
one_step_of.register(ReversibleHeun, ReversibleHeunStep)
