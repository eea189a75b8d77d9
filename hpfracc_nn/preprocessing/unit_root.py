"""The test for a unit root of Dickey and Fuller, augmented by the number of lags that the Akaike criterion takes.

    y[t] - y[t-1] = c + rho y[t-1] + sum over i = 1 ... k of phi[i] (y[t-i] - y[t-i-1]) + e[t],

and the statistic is rho over its standard error. The regressions with 0 ... m lags are on the same rows and nested, so
that one QR factorisation of all regressors and of the left-hand side has the sum of squares of each: what is left of
the last column below the first k + 2 rows. With fewer lags than m there are m - k rows more, which the regression that
gives the statistic takes too: they are appended to the triangular factor, which is made triangular again.

Said & Dickey, Biometrika 71 (1984) 599; MacKinnon, J. Business & Economic Statistics 12 (1994) 167, for the p-value;
Golub & Van Loan, Matrix Computations (2013), section 6.5.3, for rows that are appended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

# MacKinnon's table 3 for one series and a constant: where the normal quantile is this polynomial of the statistic.
_LOWEST, _BREAK, _HIGHEST = -18.83, -1.61, 2.74
_BELOW = (2.1659, 1.4412, 0.038269)
_ABOVE = (1.7339, 0.93202, -0.12745, -0.010368)


@dataclass(frozen=True)
class Test:
    """The result of the unit root test of a series.

    Attributes:
        statistic: rho over its standard error; NaN where the regression leaves no residuals.
        pvalue: The p-value of a unit root; 1 where the statistic is NaN.
        lags: The number of lags that the Akaike criterion selects.
        deviation: The standard deviation of the residuals of the regression with the most lags.
        is_singular: Whether a regressor is a combination of others, up to rounding.
    """

    __test__ = False  # pytest collects classes of this name

    statistic: float
    pvalue: float
    lags: int
    deviation: float
    is_singular: bool


def unit_root(y: np.ndarray, most: int) -> Test:
    """Return the result of the test of the series `y` [n] with a constant, and with `most` lags or fewer.

    It needs 2 most + 4 samples or more, and costs O(n most**2).
    """
    rows = _rows(y, most)
    factor = _triangle(rows)
    # What lags 0 ... m leave: the squares of the last column from row k + 2 on, summed from below.
    left = np.cumsum(factor[::-1, -1] ** 2)[::-1][2:]
    sizes = np.linalg.norm(rows[:, :-1], axis=0)
    rounding = np.finfo(np.float64).eps * len(rows)
    is_singular = bool((np.abs(np.diag(factor)[:-1]) <= rounding * sizes).any())
    with np.errstate(divide="ignore"):
        lags = int(np.argmin(len(rows) * np.log(left) + 2 * np.arange(most + 1)))
    statistic = _statistic(y, factor, lags, most)
    pvalue = 1.0 if math.isnan(statistic) else p_value(statistic)
    return Test(statistic, pvalue, lags, math.sqrt(left[-1] / len(rows)), is_singular)


def p_value(statistic: float) -> float:
    """Return the probability that a series with a unit root has a statistic as low as `statistic`."""
    if statistic > _HIGHEST:
        return 1.0
    if statistic < _LOWEST:
        return 0.0
    coefficients = _BELOW if statistic <= _BREAK else _ABOVE
    quantile = sum(coefficient * statistic**power for power, coefficient in enumerate(coefficients))
    return math.erfc(-quantile / math.sqrt(2)) / 2


def _rows(y: np.ndarray, lags: int) -> np.ndarray:
    """Return the rows of the test's regression for t = lags + 1 ... n - 1, [n - 1 - lags, lags + 3].

    A row is 1, y[t-1], the differences `y[t-i] - y[t-i-1]` for i = 1 ... lags, and last the left-hand side.
    """
    steps = sliding_window_view(np.diff(y), lags + 1)
    found = np.empty((len(steps), lags + 3))
    found[:, 0] = 1
    found[:, 1] = y[lags:-1]
    found[:, 2:] = np.concatenate([steps[:, :-1][:, ::-1], steps[:, -1:]], axis=1)
    return found


def _triangle(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.linalg.qr(rows, mode="r"))


def _statistic(y: np.ndarray, factor: np.ndarray, lags: int, most: int) -> float:
    """Return the statistic, rho over its standard error, of the regression with `lags` lags; NaN without residuals.

    Args:
        y: The series, [n].
        factor: The triangular factor of the rows with the most lags, [most + 3, most + 3].
        lags: k, the number of lags of the regression.
        most: m, the number of lags that `factor` is for.
    """
    # The left-hand side last, and the level before it, whose coefficient then follows from its row alone.
    order = [0, *range(2, lags + 2), 1, lags + 2]
    kept = np.zeros((lags + 3, lags + 3))
    kept[: lags + 2, : lags + 2] = factor[: lags + 2, : lags + 2]
    kept[: lags + 2, -1] = factor[: lags + 2, -1]
    kept[-1, -1] = np.linalg.norm(factor[lags + 2 :, -1])
    if lags < most:
        kept = np.concatenate([kept, _rows(y[: most + 1], lags)])  # rows with k lags before them, but not m
    corner = _triangle(kept[:, order])[-2:, -2:]
    freedom = len(y) - 1 - lags - (lags + 2)
    deviation = abs(corner[1, 1]) / math.sqrt(freedom)
    return float(corner[0, 1] * math.copysign(1, corner[0, 0]) / deviation) if deviation > 0 else math.nan
