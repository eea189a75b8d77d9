"""The order of a long memory, estimated with an interval from the lowest frequencies alone.

The short memory may be any: it has little effect at these frequencies.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize, stats

from hpfracc_nn import errors
from hpfracc_nn.series import labels
from hpfracc_nn.series.arfima import one_axis

_FEWEST = 16  # samples
_POWER = 0.65  # the number of frequencies is by default this power of the number of samples
_SURE = (-0.5, 0.75)  # alphas between which estimates are normal
_LOW, _HIGH = -0.999, 1.999  # bounds of alpha in the local likelihood


@dataclass(frozen=True)
class MemoryEstimate:
    """An order estimated by `gph` or `local_whittle`.

    Attributes:
        alpha: The estimate of the order.
        standard_error: Standard error of alpha.
        interval: Confidence interval of alpha, (low, high).
        level: Probability with which the interval holds the order.
        frequencies: How many frequencies were used.

    Examples:
        >>> from hpfracc_nn import data
        >>> found = local_whittle(data.arfima(4000, 0.3, np.random.default_rng(0)))
        >>> found.interval[0] < 0.3 < found.interval[1]
        True
    """

    alpha: float
    standard_error: float
    interval: tuple[float, float]
    level: float
    frequencies: int


def gph(series: Any, frequencies: int | None = None, *, level: float = 0.95) -> MemoryEstimate:
    """Return alpha by the regression of Geweke and Porter-Hudak.

    The logarithms of the periodogram at the lowest frequencies w go down like `-2 alpha log(2 sin(w / 2))`. The
    standard error is that of independent ordinates, whose logarithms have the variance pi**2 / 6. The estimate is
    consistent for alpha from -1/2 to 1, and its interval holds up to 3/4. Above 1 the estimate goes to 1, whatever
    alpha is, and below -1/2 it is too great: outside of (-1/2, 3/4) there is a warning.

    Args:
        series: [n], finite; NumPy, pandas or a list.
        frequencies: How many frequencies, zero not counted; None is `n**0.65`, rounded down. More frequencies have less
            variance, and more bias by short memory.
        level: Probability with which the interval holds alpha.

    Raises:
        ValueError: There are fewer than 16 samples, one is not finite, all are the same, or an argument is out of
            range.
        TypeError: The samples are not real numbers.

    Source: Geweke & Porter-Hudak, J. Time Series Analysis 4 (1983) 221; Hurvich, Deo & Brodsky 19 (1998) 19; Velasco,
    J. Econometrics 91 (1999) 325.

    Examples:
        >>> from hpfracc_nn import data
        >>> found = gph(data.arfima(4000, 0.3, np.random.default_rng(0)), 200)
        >>> found.interval[0] < 0.3 < found.interval[1]
        True
    """
    frequency, ordinates = _periodogram("gph", series, frequencies)
    slope = -2 * np.log(2 * np.sin(frequency / 2))
    slope -= slope.mean()
    size = float(slope @ slope)
    return _estimate("gph", float(slope @ np.log(ordinates)) / size, math.pi / math.sqrt(6 * size), level, len(slope))


def local_whittle(series: Any, frequencies: int | None = None, *, level: float = 0.95) -> MemoryEstimate:
    """Return alpha by the Gaussian likelihood of the lowest frequencies.

    The estimate has a smaller variance than that of `gph`: `1 / (4 m)` for m frequencies. Like that one it is
    consistent for alpha from -1/2 to 1, its interval holds up to 3/4, and outside of (-1/2, 3/4) there is a warning.

    Args:
        series: As in `gph`.
        frequencies: As in `gph`: how many, zero not counted; None is `n**0.65`, rounded down.
        level: As in `gph`.

    Raises:
        ValueError: As in `gph`.
        TypeError: As in `gph`.

    Source: Robinson, Annals of Statistics 23 (1995) 1630; Velasco, J. Time Series Analysis 20 (1999) 87; Phillips &
    Shimotsu, Annals of Statistics 32 (2004) 656.

    Examples:
        >>> from hpfracc_nn import data
        >>> walk = np.cumsum(data.arfima(4000, -0.4, np.random.default_rng(0)))
        >>> found = local_whittle(walk)
        >>> found.interval[0] < 0.6 < found.interval[1]
        True
    """
    frequency, ordinates = _periodogram("local_whittle", series, frequencies)
    logarithms = np.log(frequency) - np.log(frequency).mean()

    def loss(alpha: float) -> float:
        return float(np.log(np.mean(ordinates * np.exp(2 * alpha * logarithms))))

    found = optimize.minimize_scalar(loss, bounds=(_LOW, _HIGH), method="bounded", options={"xatol": 1e-8})
    error = 1 / math.sqrt(4 * float(logarithms @ logarithms))  # 1 / (4 m) at many frequencies
    return _estimate("local_whittle", float(found.x), error, level, len(frequency))


def _periodogram(owner: str, series: Any, frequencies: Any) -> tuple[np.ndarray, np.ndarray]:
    values = one_axis(owner, "series", labels.read(owner, series)[0])
    if len(values) < _FEWEST:
        raise ValueError(
            f"{owner}(series): needs at least {_FEWEST} samples; there are {len(values)}; pass a longer one."
        )
    if not np.isfinite(values).all():
        i = int(np.argmin(np.isfinite(values)))
        raise ValueError(
            f"{owner}(series): needs finite samples; series[{i}]={values[i]}; fill the gaps, or take fit_arfima, which "
            "has them."
        )
    if values.min() == values.max():
        raise ValueError(f"{owner}(series): needs samples that vary; all are {values[0]:.6g}; pass others.")
    n = len(values)
    count = int(n**_POWER) if frequencies is None else errors.count(owner, "frequencies", frequencies, 3)
    most = (n - 1) // 2
    if count > most:
        raise ValueError(f"{owner}(frequencies={count}): needs at most {most} of {n} samples; pass fewer.")
    scaled = (values - values.mean()) / np.abs(values - values.mean()).max()
    ordinates = np.abs(np.fft.rfft(scaled)[1 : count + 1]) ** 2
    return 2 * math.pi * np.arange(1, count + 1) / n, ordinates


def _estimate(owner: str, alpha: float, error: float, level: Any, count: int) -> MemoryEstimate:
    level = errors.probability(owner, "level", level, example=0.95)
    if not _SURE[0] < alpha < _SURE[1]:
        way = (
            "the differences of the series (np.diff) and add 1" if alpha > 0 else "its sums (np.cumsum) and subtract 1"
        )
        what = "goes to 1" if alpha > 0 else "is too great"
        warnings.warn(
            f"{owner}: alpha={alpha:.4g} is outside of (-1/2, 3/4), where the interval holds, and further out the "
            f"estimate {what} whatever the order is; take {way}.",
            UserWarning,
            stacklevel=3,
        )
    half = float(stats.norm.ppf((1 + level) / 2)) * error
    return MemoryEstimate(alpha, error, (alpha - half, alpha + half), level, count)
