"""The smallest order whose differences pass a test for a unit root, as a scikit-learn transformer."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from hpfracc_nn import errors
from hpfracc_nn.preprocessing.columns import ColumnDifferences
from hpfracc_nn.preprocessing.unit_root import unit_root

_EPSILON = float(np.finfo(np.float64).eps)
_LAST_DIGITS = 4  # roundings that a computed sample may have gone through
_STEPS = 10  # of the walk up to `upper`
_LEAST = 10  # rows, with one lag
_ROWS_OF_A_LAG = 10  # rows for each lag at most: with all their lags 20 rows of a walk pass at 5 % in 22 of 100 cases


class StationaryDifferencer(ColumnDifferences):
    """Differences of each column of the smallest order found for which a unit root is rejected.

    Memory is kept that a whole difference would take away: an order below 1 leaves the series correlated with itself
    before.

    The test is that of Dickey and Fuller, augmented by the lags that the Akaike criterion takes, with a constant. It
    looks at the rows that `transform` returns for the training data less their first row, so that the jump from zeros
    to the first row, which mode "same" differences too, is no sign of anything; in mode "valid" with the fixed window
    that is the result itself but for a constant, which the test does not see. Its p-value need not fall as the order
    rises. Orders are therefore tried from 0 up to `upper` in ten steps until one passes, and between it and the step
    before, which does not, bisection finds an order that passes within `precision` of one that does not. A smaller one
    may pass between steps that do not.

    A column that is constant up to rounding passes. One whose samples the lags tell exactly, such as a straight line of
    187 rows or more (by the defaults), has no noise for the test to measure by, and passes at the order alone at which
    it is constant; of fewer rows the lags leave something of a line, and it may pass just above 0. There are at most as
    many lags as a tenth of the rows; with less than 80 rows a random walk still passes at 5 % in some 10 of 100 cases,
    and fewer than 10 are refused.

    Args:
        level: At which the test rejects a unit root, between 0 and 1.
        upper: The largest order to try, positive.
        precision: How far the order may lie above one that does not pass, positive; at least rounding is left.
        window: As in `FractionalDifferencer`.
        mode: As there.
        window_policy: As there.
        n_jobs: How many columns are looked at side by side, in threads; None is one, unless joblib's settings say
            otherwise, and -1 as many as there are processors.

    Attributes:
        alpha_: The orders, [columns]; `upper`, with a warning, where no order that was tried passes.
        pvalues_: Of the test at these orders, [columns]; 0 for a constant column. A column passes where it is not above
            `level`.
        rows_: As in `FractionalDifferencer`.
        n_features_in_: Columns seen in `fit`.
        feature_names_in_: Their names, where they have any.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or there are too few rows.

    Source: Said & Dickey, Biometrika 71 (1984) 599; MacKinnon, J. Business & Economic Statistics 12 (1994) 167; Lopez
    de Prado, Advances in Financial Machine Learning (2018), section 5.6.

    Examples:
        >>> X = np.cumsum(np.random.default_rng(0).standard_normal((1000, 1)), axis=0)
        >>> bool(StationaryDifferencer(window=50, mode="valid").fit(X).alpha_[0] < 1)
        True
    """

    def __init__(
        self,
        level: float = 0.05,
        *,
        upper: float = 1.0,
        precision: float = 0.01,
        window: int = 100,
        mode: str = "same",
        window_policy: str = "fixed",
        n_jobs: int | None = None,
    ) -> None:
        self.level = level
        self.upper = upper
        self.precision = precision
        self.window = window
        self.mode = mode
        self.window_policy = window_policy
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any = None) -> StationaryDifferencer:
        """Find the order of each column of `X` [rows, columns]; `y` counts for nothing."""
        self._check()
        values = self._read(X, ensure_min_samples=2)
        left_out = self.window - 1 if self.mode == "valid" else 0
        if len(values) - left_out < _LEAST:
            raise ValueError(
                f"StationaryDifferencer(window={self.window}, mode={self.mode!r}): needs at least {left_out + _LEAST} "
                f"rows to test; X has {len(values)}, pass more{', or a shorter window' if left_out else ''}."
            )
        rounding = _LAST_DIGITS * np.finfo(values.dtype).eps * np.abs(values).max(axis=0)
        columns = zip(values.T.astype(np.float64), rounding, strict=True)
        found = Parallel(n_jobs=self.n_jobs, prefer="threads")(
            delayed(self._smallest)(column, float(size)) for column, size in columns
        )
        self.alpha_, self.pvalues_ = np.array(found).T
        self._remember(X, values)
        for column in np.flatnonzero(~(self.pvalues_ <= self.level)):
            warnings.warn(
                f"StationaryDifferencer: column {column} keeps its unit root at level {self.level:g} up to order "
                f"{self.upper:g} (p-value {self.pvalues_[column]:.2g}); raise upper or level, or pass more rows.",
                UserWarning,
                stacklevel=2,
            )
        return self

    def _check(self) -> None:
        owner = type(self).__name__
        self._check_window()
        errors.probability(owner, "level", self.level)
        errors.real(owner, "upper", self.upper, 0.0, above=True)
        errors.real(owner, "precision", self.precision, 0.0, above=True)

    def _smallest(self, column: np.ndarray, rounding: float) -> tuple[float, float]:
        """Return an order that passes, and its p-value; the samples are known up to `rounding`."""
        low = 0.0
        for step in range(_STEPS + 1):
            high = self.upper * step / _STEPS
            reached = self._p_value(column, high, rounding)
            if reached <= self.level:
                break
            low = high
        else:
            return high, reached
        while high - low > self.precision and high > 0:
            middle = (low + high) / 2
            if not low < middle < high:  # neighbours: there is no order between them
                break
            p_value = self._p_value(column, middle, rounding)
            if p_value <= self.level:
                high, reached = middle, p_value
            else:
                low = middle
        return high, reached

    def _p_value(self, column: np.ndarray, alpha: float, rounding: float) -> float:
        left_out = self.window - 1 if self.mode == "valid" else 0
        centred = column - column[0]
        differences = self._differences(centred[:, None], np.array([alpha]))[left_out:, 0]
        # Of the samples, times the sum of the weights' sizes, and of an FFT.
        noise = 2 ** math.ceil(alpha) * rounding + _EPSILON * len(column) * float(np.ptp(centred))
        most = _lags(len(differences))
        if np.ptp(differences[most:]) <= noise:
            return 0.0
        found = unit_root(differences - differences.mean(), most)
        # Lags that tell the samples up to noise, as of a straight line, leave the test nothing to measure by.
        return 1.0 if found.is_singular or found.deviation <= noise else found.pvalue


def _lags(rows: int) -> int:
    """The most lags of the test: by Schwert, J. Business & Economic Statistics 7 (1989) 147, where rows allow it."""
    return min(math.ceil(12 * (rows / 100) ** 0.25), rows // _ROWS_OF_A_LAG)
