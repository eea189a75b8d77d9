"""Hadamard's derivatives and integral: Riemann-Liouville's and Caputo's in the logarithm of time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.caputo import Caputo
from hpfracc_nn.fractional.definitions.riemann_liouville import RiemannLiouville, RiemannLiouvilleIntegral


def logarithmic_times(first: float, last: float, n: int) -> tuple[np.ndarray, float]:
    """Return `n` times from `first` to `last` whose ratio is constant, and the logarithm of that ratio.

    They are where Hadamard's operators want their samples, and the logarithm is their `dt`.

    Args:
        first: The lower terminal of the operators; positive, because log(t / first) must be finite.
        last: Above `first`.
        n: At least 2.

    Returns:
        Times [n], float64, and their step in log t.

    Raises:
        ValueError: `first` is not positive, `last` is not above it, or there are fewer than two times.
        TypeError: An argument is no number.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 16.0, 5)
        >>> t.round(6).tolist(), round(dt / math.log(2), 6)
        ([1.0, 2.0, 4.0, 8.0, 16.0], 1.0)
    """
    first = errors.real("logarithmic_times", "first", first, 0.0, above=True)
    last = errors.real("logarithmic_times", "last", last, first, above=True)
    n = errors.count("logarithmic_times", "n", n, least=2)
    step = math.log(last / first) / (n - 1)
    t = first * np.exp(step * np.arange(n))
    t[-1] = last
    return t, step


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class Hadamard(RiemannLiouville):
    """Hadamard's derivative (t d/dt)^c I^(c - alpha) x, with the memory log(t / s)**(c - alpha - 1) and ds / s.

    In u = log(t / t0) it is the Riemann-Liouville derivative: the samples are those at t0 exp(k dt), k = 0, 1, 2, ...
    (`logarithmic_times` makes them), and `dt` is the step of log t. All that is said of `RiemannLiouville` and its
    schemes holds in u. It has no unit, and does not change if time is counted in another one.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Kilbas, Srivastava & Trujillo, Theory and Applications of Fractional Differential Equations (2006),
        section 2.7.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 4.0, 201)
        >>> y = Hadamard(0.5)(np.log(t) ** 2, dt=dt)
        >>> float((y[-1] / math.log(4) ** 1.5).round(4))  # Gamma(3) / Gamma(2.5)
        1.5045
    """


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class CaputoHadamard(Caputo):
    """Caputo's derivative in log t: I^(c - alpha) (t d/dt)^c x; a constant has derivative zero. See `Hadamard`.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Jarad, Abdeljawad & Baleanu, Adv. Differ. Equ. 2012:142.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 4.0, 201)
        >>> y = CaputoHadamard(0.5)(1 + np.log(t), dt=dt)
        >>> # 1 / Gamma(1.5): the constant is not seen
        >>> float((y[-1] / math.log(4) ** 0.5).round(4))
        1.1284
    """

    beyond: ClassVar[str] = (
        "take the samples' own derivative in u = log(t) first, such as "
        "scipy.interpolate.CubicSpline(u, x, axis=-1)(u, 1), then alpha={rest} of it."
    )


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class HadamardIntegral(RiemannLiouvilleIntegral):
    """Hadamard's integral 1 / Gamma(alpha) int_t0^t log(t / s)**(alpha - 1) x(s) ds / s. See `Hadamard`.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`.

    Source: Hadamard, J. Math. Pures Appl. 8 (1892) 101; Kilbas, Srivastava & Trujillo (2006), equation 2.7.1.

    Examples:
        >>> t, dt = logarithmic_times(1.0, 4.0, 201)
        >>> y = HadamardIntegral(0.5)(np.ones(201), dt=dt)
        >>> float((y[-1] / math.log(4) ** 0.5).round(4))  # 1 / Gamma(1.5)
        1.1284
    """
