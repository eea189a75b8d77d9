"""Weights of a stochastic Volterra equation: one sum over the past for drift and noise.

X(t) = x0 + integral of K(t - s) [f ds + g dW], K(t) = t**(a - 1) / Gamma(a), 1/2 < a <= 1, on equal steps h reads

    X_n = x0 + sum over j < n of w_(n-j) (h f_j + g_j dW_j) + g_(n-1) sigma zeta_(n-1),

with dW_j the increments of the Brownian motion and zeta_j standard normal numbers that are independent of them. The
choices differ in what w and sigma are. At a = 1 each has w = 1 and sigma = 0: Euler and Maruyama's method.

Bennedsen, Lunde & Pakkanen, Finance Stoch. 21 (2017) 931, for the hybrid scheme; Li, Huang & Hu, arXiv 2004.04916, for
the orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.schemes.powers import differences, power_weights
from hpfracc_nn.solvers.schemes import Weights, cohen_sum, lags, predictor

_LAGS = 24  # terms of an alternating sum, enough for 1e-15


class VolterraWeights(Protocol):
    """How the past of a stochastic Volterra equation is weighted; a frozen value.

    Attributes:
        name: The name by which a caller selects the weights.
        sets: 1 where drift and noise share their weights, else 2: the drift's, then the noise's.
        has_residual: Whether sigma is not 0, so that a step needs a second normal number beside its increment.

    Examples:
        >>> from hpfracc_nn.fractional.namespace import NUMPY
        >>> # 1 at alpha = 1: Euler and Maruyama's method
        >>> Left().weights(np.array([1.0]), 3, 0.1, NUMPY).columns
        array([[[0., 1., 1., 1.]]])
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...
    @property
    def sets(self) -> int: ...
    @property
    def has_residual(self) -> bool: ...

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return w by lag for orders alpha [a]: columns [a, sets, n_steps + 1], 0 at lag 0."""
        ...


@dataclass(frozen=True)
class Hybrid:
    """Weights that are the kernel's means over the cells, with a residual in the newest cell: the default.

    The newest cell holds the singularity and most of the variance. Its integral against W is split into its projection
    on the increment, w_1 dW, and the residual sigma zeta, so that it is exact where g is constant on the cell.

    Source: Bennedsen, Lunde & Pakkanen, Finance Stoch. 21 (2017) 931: the hybrid scheme with kappa = 1, in orthogonal
    form.

    Examples:
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y), "additive")
        >>> noise = Given(torch.eye(100).view(50, 2, 100))  # one increment for each path
        >>> x = fsdeint(
        ...     sde,
        ...     torch.zeros(100),
        ...     np.linspace(0, 1, 51),
        ...     alpha=0.6,
        ...     noise=noise,
        ...     weights=Hybrid(),
        ... )
        >>> # the variance at 1, which is 1 / (0.2 Gamma(0.6)**2) = 2.2546
        >>> 0.02 * x[-1].square().sum()
        tensor(2.2532)
    """

    name: ClassVar[str] = "hybrid"
    sets: ClassVar[int] = 1
    has_residual: ClassVar[bool] = True

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the means, `w_k = h**(a - 1) [k**a - (k - 1)**a] / Gamma(a + 1)`: see `VolterraWeights.weights`."""
        return Weights(xp.stack([_means(alpha, n_steps, dt, xp)], axis=-2), None)


@dataclass(frozen=True)
class Average:
    """Weights that are the kernel's means over the cells, without the residual, whose variance is missing.

    Examples:
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y), "additive")
        >>> noise = Given(torch.eye(50))  # one increment for each path
        >>> x = fsdeint(
        ...     sde,
        ...     torch.zeros(50),
        ...     np.linspace(0, 1, 51),
        ...     alpha=0.6,
        ...     noise=noise,
        ...     weights=Average(),
        ... )
        >>> # the variance at 1, which is 1 / (0.2 Gamma(0.6)**2) = 2.2546
        >>> 0.02 * x[-1].square().sum()
        tensor(1.7950)
    """

    name: ClassVar[str] = "average"
    sets: ClassVar[int] = 1
    has_residual: ClassVar[bool] = False

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the weights of `Hybrid`: see `VolterraWeights.weights`."""
        return Weights(xp.stack([_means(alpha, n_steps, dt, xp)], axis=-2), None)


@dataclass(frozen=True)
class Isometry:
    """Weights that are the kernel's means for the drift and its root mean squares over the cells for the noise.

    They make the variance of a driftless process exact.

    Paths are a little farther from the true ones than those of `Hybrid`, and there are two sums over the past.

    Examples:
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y), "additive")
        >>> noise = Given(torch.eye(50))  # one increment for each path
        >>> x = fsdeint(
        ...     sde,
        ...     torch.zeros(50),
        ...     np.linspace(0, 1, 51),
        ...     alpha=0.6,
        ...     noise=noise,
        ...     weights=Isometry(),
        ... )
        >>> # the variance at 1, which is 1 / (0.2 Gamma(0.6)**2) = 2.2546
        >>> 0.02 * x[-1].square().sum()
        tensor(2.2546)
    """

    name: ClassVar[str] = "isometry"
    sets: ClassVar[int] = 2
    has_residual: ClassVar[bool] = False

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the drift's weights, then the noise's, whose squares times h are the integrals of K**2 over the cells.

        See `VolterraWeights.weights`.
        """
        alpha = xp.asarray(alpha)
        power = 2 * alpha - 1
        cells = power_weights(power, lags(n_steps - 1), xp, differences(1))  # over Gamma(2 a)
        squares = xp.log(cells) + (xp.gammaln(1 + power) - xp.log(power) - 2 * xp.gammaln(alpha))[..., None]
        noise = xp.exp(squares / 2 + ((alpha - 1) * math.log(dt))[..., None])
        column = xp.concat([0 * alpha[..., None], noise], axis=-1)
        return Weights(xp.stack([_means(alpha, n_steps, dt, xp), column], axis=-2), None)


@dataclass(frozen=True)
class Left:
    """Weights that are the kernel at the left end of each cell: for comparison only.

    A third of the variance is missing at a = 0.6 and 100 steps.

    Examples:
        >>> sde = SDE(lambda t, y: 0 * y, lambda t, y: torch.ones_like(y), "additive")
        >>> noise = Given(torch.eye(100))  # one increment for each path
        >>> x = fsdeint(
        ...     sde,
        ...     torch.zeros(100),
        ...     np.linspace(0, 1, 101),
        ...     alpha=0.6,
        ...     noise=noise,
        ...     weights=Left(),
        ... )
        >>> # the variance at 1, which is 1 / (0.2 Gamma(0.6)**2) = 2.2546
        >>> 0.01 * x[-1].square().sum()
        tensor(1.4602)
    """

    name: ClassVar[str] = "left"
    sets: ClassVar[int] = 1
    has_residual: ClassVar[bool] = False

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return w_k = K(k h): see `VolterraWeights.weights`."""
        alpha = xp.asarray(alpha)[..., None]
        times = xp.constant(np.log(lags(n_steps)[1:] * dt), alpha)
        column = xp.exp((alpha - 1) * times - xp.gammaln(alpha))
        return Weights(xp.stack([xp.concat([0 * alpha, column], axis=-1)], axis=-2), None)


VOLTERRA_WEIGHTS: dict[str, type[Hybrid] | type[Average] | type[Isometry] | type[Left]] = {
    each.name: each for each in (Hybrid, Average, Isometry, Left)
}


def stability(weights: VolterraWeights, alpha: float) -> float:
    """Return the largest h**a * rate with which steps are stable for a drift -rate X: see `Rectangle.stability`."""
    column = weights.weights(np.array([alpha]), _LAGS, 1.0, NUMPY).columns[0, 0, 1:]
    return 1 / cohen_sum(lambda k: float(column[k]), _LAGS)


@dataclass(frozen=True)
class OfRates:
    """The weights w h of the rates f_j + g_j dW_j / h, in place of w of the increments h f_j + g_j dW_j.

    Adding up rates saves one product for each step.

    Attributes:
        weights_of: The weights w of the increments.
    """

    weights_of: VolterraWeights

    @property
    def name(self) -> str:
        return self.weights_of.name

    @property
    def sets(self) -> int:
        return self.weights_of.sets

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return h times the weights of the increments: see `VolterraWeights.weights`."""
        return Weights(self.weights_of.weights(alpha, n_steps, dt, xp).columns * dt, None)


def residual(alpha: Array, dt: float, xp: Namespace) -> Array:
    """Return sigma, the deviation of the newest cell's integral about its projection on the increment; [a].

    sigma**2 = h**(2 a - 1) / Gamma(a)**2 (1 / (2 a - 1) - 1 / a**2), and the bracket is (1 - a)**2 / (a**2 (2 a - 1)).
    """
    alpha = xp.asarray(alpha)
    exponent = (alpha - 0.5) * math.log(dt) - xp.gammaln(1 + alpha) - xp.log(2 * alpha - 1) / 2
    return (1 - alpha) * xp.exp(exponent)


def _means(alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Array:
    """Return the mean of the kernel K over each cell by lag, [a, n_steps + 1], for orders [a]; 0 at lag 0."""
    return predictor(alpha, n_steps, dt, xp) / dt
