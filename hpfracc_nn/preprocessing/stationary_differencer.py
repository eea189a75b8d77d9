"""The smallest order whose differences pass a test for a unit root, as a scikit-learn transformer."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data
from statsmodels.tsa.stattools import adfuller

from hpfracc_nn import errors
from hpfracc_nn.preprocessing.columns import ColumnDifferences

_STEPS = 10  # of the walk up to `upper`
_LEAST = 8  # rows, for a regression with a constant and a lag that has residuals


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

    Args:
        level: At which the test rejects a unit root, between 0 and 1.
        upper: The largest order to try, positive.
        precision: How far the order may lie above one that does not pass, positive.
        window: As in `FractionalDifferencer`.
        mode: As there.
        window_policy: As there.

    Attributes:
        alpha_: The orders, [columns]; `upper`, with a warning, where no order that was tried passes.
        pvalues_: Of the test at these orders, [columns]; 0 for a constant column. A column passes where it is not above
            `level`.
        n_features_in_: Columns seen in `fit`.
        feature_names_in_: Their names, where they have any.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or there are too few rows.

    Source: Said & Dickey, Biometrika 71 (1984) 599, by statsmodels; Lopez de Prado, Advances in Financial Machine
    Learning (2018), section 5.6.

    Example:
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
    ) -> None:
        self.level = level
        self.upper = upper
        self.precision = precision
        self.window = window
        self.mode = mode
        self.window_policy = window_policy

    def fit(self, X: Any, y: Any = None) -> StationaryDifferencer:
        """Find the order of each column of `X` [rows, columns]; `y` counts for nothing."""
        self._check()
        values = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=_LEAST)
        tested = len(values) - (self.window - 1 if self.mode == "valid" else 0)
        if tested < _LEAST:
            raise ValueError(
                f"StationaryDifferencer(window={self.window}, mode='valid'): needs at least {self.window + _LEAST - 1} "
                f"rows to test; X has {len(values)}, pass more, or a shorter window."
            )
        found = [self._smallest(column) for column in values.T.astype(np.float64)]
        self.alpha_, self.pvalues_ = np.array(found).T
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
        level = errors.real(owner, "level", self.level, 0.0, above=True)
        if not level < 1:
            raise ValueError(f"{owner}(level={self.level}): needs 0 < level < 1; pass for example level=0.05.")
        errors.real(owner, "upper", self.upper, 0.0, above=True)
        errors.real(owner, "precision", self.precision, 0.0, above=True)

    def _smallest(self, column: np.ndarray) -> tuple[float, float]:
        """Return an order that passes, and its p-value."""
        low = 0.0
        for step in range(_STEPS + 1):
            high = self.upper * step / _STEPS
            reached = self._p_value(column, high)
            if reached <= self.level:
                break
            low = high
        else:
            return high, reached
        while high - low > self.precision and high > 0:
            middle = (low + high) / 2
            p_value = self._p_value(column, middle)
            if p_value <= self.level:
                high, reached = middle, p_value
            else:
                low = middle
        return high, reached

    def _p_value(self, column: np.ndarray, alpha: float) -> float:
        left_out = self.window - 1 if self.mode == "valid" else 0
        differences = self._differences((column - column[0])[:, None], np.array([alpha]))[left_out:, 0]
        if np.ptp(differences) == 0:
            return 0.0
        p_value = float(adfuller(differences, regression="c", autolag="AIC", result_object=True).pvalue)
        return 1.0 if math.isnan(p_value) else p_value
