"""Fractional differences along the rows of every column, of a given order or of the smallest one that is stationary.

A row of a result depends on the rows before it: rows are moments of one series, and cannot be transformed one by one or
in another order. scikit-learn's checks that they can are left out only for estimators with the tag "not deterministic",
which these therefore have, although the same rows give the same result.

Tables are X as the user passes it, or arrays, [rows, columns]. Of the training rows, those of `fit`, an estimator keeps
the last ones, `rows_`, which differences of later rows depend on.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags, get_tags
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_feature_names, check_array, check_is_fitted, validate_data

from hpfracc_nn import errors
from hpfracc_nn.errors import package_of
from hpfracc_nn.fractional import fdiff
from hpfracc_nn.fractional.differencing import MODES, is_exact, undone
from hpfracc_nn.fractional.dispatch import type_name
from hpfracc_nn.labelled import times
from hpfracc_nn.labelled.tables import PACKAGES, raise_if_dated, time_dimension, times_of, with_numbers
from hpfracc_nn.preprocessing.unit_root import unit_root

POLICIES = ("expanding", "fixed")
_EPSILON = float(np.finfo(np.float64).eps)
_LAST_DIGITS = 4  # roundings that a computed sample may have gone through
_STEPS = 10  # of the search from order 0 up to `upper`
_LEAST = 10  # rows that the test needs, with one lag
_ROWS_OF_A_LAG = 10  # rows for each lag, at least: with Schwert's lags 20 rows of a walk pass at 5 % in 22 of 100 cases


# How much a series that was differenced and summed again may differ from the original, over the largest row.
_ALIKE = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-3}


class ColumnDifferences(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Differences of order `alpha_[j]` of each column j. Subclasses have window, mode and window_policy, and fit."""

    alpha_: np.ndarray
    rows_: np.ndarray
    window: int
    mode: str
    window_policy: str

    def transform(self, X: Any) -> Any:
        """Return the differences of the columns of `X`: of the training rows, or of rows that follow them.

        `X` is either the series from its first row on, which begins with the training rows and has zeros before it, or
        rows that follow the training rows. Of these `fit` has kept the rows that have a weight, so that the result is
        that of the whole series. Which of the two `X` is,

        - the index of a pandas or xarray table decides, where it holds numbers or times. `X` is the series where its
          labels are those of the training rows, as many as there are of both, and follows where its first label comes
          after the last training row. Labels after the last training row must come next by the frequency of the index.
          Without a frequency, or where it is inferred and of working days, which have holidays, they must come no later
          than the longest step between rows, in working days or, with half a step to spare, in time. Other rows, which
          overlap with the training rows, precede them, or come after a gap, are refused;
        - the values decide without such an index, or with the one that pandas makes where none is passed, 0, 1, 2 and
          so on, both in `fit` and here: rows that begin with all the training rows are the series, others follow.

        Args:
            X: [rows, columns], a row for each moment; an array or a table.

        Returns:
            [rows, columns], a table of the type of `X` with its index unless `set_output` asks for another. In mode
            "valid" the first `window` - 1 rows of the series are left out, which depend on fewer than `window` rows.
            scikit-learn's own containers expect as many rows as they passed: in a Pipeline with a y, or in a
            ColumnTransformer beside columns that keep all rows, use mode "same", and leave the first rows out of both
            afterwards.

        Raises:
            TypeError: A column holds times, or the index texts that are dates.
            ValueError: `X` has other columns than in `fit`, or in mode "valid" fewer rows than the window; its times do
                not increase, rows of a regular index are missing, or rows neither begin as the training rows do nor
                follow them.
        """
        check_is_fitted(self)
        values = self._read(X, reset=False)
        before = self._before("transform", X, _content(values[: self._n_rows]) == self._content)
        left_out = 0 if self.mode == "same" else max(0, self.window - 1 - (self._n_rows if len(before) else 0))
        if left_out >= len(values):
            raise ValueError(
                f"{type(self).__name__}(window={self.window}, mode='valid'): needs at least {left_out + 1} rows; X has "
                f"{len(values)}, pass more, or a shorter window."
            )
        series = np.concatenate([before.astype(values.dtype, copy=False), values])
        return self._as_asked(self._differences(series, self.alpha_)[len(before) + left_out :], X)

    def inverse_transform(self, X: Any) -> Any:
        """Return the rows whose differences are the columns of `X`: the series from its first row on, or rows after it.

        Exact to rounding; a fixed window that cuts the weights off needs an order between -1 and 1. A whole order from
        0 up to below the window has no weights beyond the window.

        Args:
            X: [rows, columns], what `transform` returned of the series from its first row on, or differences of rows
                that follow the training rows, such as forecasts. Which of the two `X` is, its index decides as in
                `transform`; without an index, `X` is the series if the result begins with the training rows, and
                follows otherwise.

        Returns:
            [rows, columns], of the type of `X`, with its index.

        Raises:
            ValueError: Rows were left out, the order cannot be undone, `X` has another number of columns than in `fit`,
                or its rows neither begin as the training rows do nor follow them.
        """
        check_is_fitted(self)
        owner = type(self).__name__
        raise_if_dated(f"{owner}.inverse_transform", "X", X)
        values = check_array(X, **self._accepted())
        if values.shape[1] != self.n_features_in_:
            raise ValueError(
                f"{owner}.inverse_transform(X of {values.shape[1]} columns): needs {self.n_features_in_} columns, as "
                "in fit; pass what transform returned."
            )
        _check_feature_names(self, X, reset=False)
        series = self._undone(values, self.rows_[:0])
        before = self._before("inverse_transform", X, self._holds(series))
        if self.mode == "valid" and not len(before):
            raise ValueError(
                f"{owner}(mode='valid'): needs mode='same' to be undone, which leaves no row out; transform with it."
            )
        return with_numbers(X, self._undone(values, before) if len(before) else series)

    def _undone(self, values: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the rows whose differences are `values`, [rows, columns], and which follow the rows `before`.

        Raises:
            ValueError: The window makes the order impossible to undo.
        """
        before = before.astype(values.dtype, copy=False)
        known = self._differences(np.concatenate([before, np.zeros_like(values)]), self.alpha_)[len(before) :]
        window, found = self._window, np.empty_like(values)
        for j, alpha in enumerate(self.alpha_):
            if window is not None and window < len(values) and not (-1 < alpha < 1 or is_exact(float(alpha), window)):
                raise ValueError(
                    f"{type(self).__name__}(alpha={alpha:g}, window={window}): needs an order between -1 and 1 to be "
                    "undone, or a whole one from 0 up to below the window, because errors of others grow where a "
                    "window cuts; use window_policy='expanding'."
                )
            found[:, j] = undone(values[:, j] - known[:, j], float(alpha), 0, window)
        return found

    def _holds(self, series: np.ndarray) -> bool:
        """Whether a series, [rows, columns], begins with the training rows, up to rounding.

        Only the rows that were kept are compared; gaps of the series are left out.
        """
        if len(series) < self._n_rows:
            return False
        found = series[self._n_rows - len(self.rows_) : self._n_rows]
        near = _ALIKE[found.dtype] * np.nanmax(np.abs(self.rows_), initial=0)
        return bool((~np.isfinite(found) | (np.abs(found - self.rows_) <= near)).all())

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = True
        return tags

    def _read(self, X: Any, **options: Any) -> np.ndarray:
        """Return X as a floating array, [rows, columns], checked by scikit-learn's `validate_data` with `options`.

        Raises:
            TypeError: A column holds times.
            ValueError: Rows have different lengths, a column holds texts that are no numbers, or `validate_data`
                refuses X.
        """
        if isinstance(X, list | tuple):
            try:
                np.asarray(X)
            except ValueError:
                raise ValueError(
                    f"{type(self).__name__}(X of type {type_name(X)}): needs rows of one length; pass an array, or a "
                    "list of equal lists."
                ) from None
        raise_if_dated(type(self).__name__, "X", X)
        _raise_if_text(type(self).__name__, X)
        return validate_data(self, X, **self._accepted(), **options)

    def _accepted(self) -> dict[str, Any]:
        gaps = get_tags(self).input_tags.allow_nan
        return {"dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan" if gaps else True}

    def _check_window(self) -> None:
        owner = type(self).__name__
        errors.count(owner, "window", self.window)
        errors.one_of(owner, "mode", self.mode, MODES)
        errors.one_of(owner, "window_policy", self.window_policy, POLICIES)

    def _remember(self, X: Any, values: np.ndarray) -> None:
        """Store the last training rows, the number and the times of all, and a hash that recognises them.

        Args:
            X: The training rows as the user passed them.
            values: The same rows as an array.
        """
        kept = len(values) if self.window_policy == "expanding" else min(self.window - 1, len(values))
        self.rows_ = values[len(values) - kept :].copy()
        self._n_rows = len(values)
        self._content = _content(values)
        self._times = times_of(type(self).__name__, "X", X)

    def _before(self, method: str, X: Any, begins: bool) -> np.ndarray:
        """Return the training rows that come before the rows of `X`, [rows, columns].

        These are no rows where X is the series from the first training row on, and all rows that were kept where X
        follows the training rows.

        Args:
            method: The public method that was called, for messages.
            X: The rows, whose index decides where it has times.
            begins: Whether the values of X begin with the training rows, which decides where there are no times.

        Raises:
            ValueError: By its index X neither begins as the training rows do nor follows them.
        """
        owner = type(self).__name__
        labels, trained = times_of(owner, "X", X), self._times
        if labels is None or trained is None or _are_counted(labels, trained):
            return self.rows_[:0] if begins else self.rows_
        if times.kind(labels) != times.kind(trained):
            raise ValueError(
                f"{owner}.{method}(X with an index of {labels.dtype}): needs labels like those of the training rows, "
                f"of {trained.dtype}; convert the index, or pass an array, such as X.to_numpy(), of rows that follow."
            )
        shared = min(len(labels), len(trained))
        alike = np.asarray(labels[:shared] == trained[:shared])  # `equals` tells units apart
        row, fault = 0, ""
        if labels[0] > trained[-1] or alike.all():
            later = 0 if labels[0] > trained[-1] else shared
            found = times.gap(trained, labels[later:]) if len(labels) > later else None
            if found is None:
                return self.rows_[:0] if later else self.rows_
            row, fault = found[0] + later, f"{found[1]}; the last training row is {trained[-1]}"
        elif labels[0] == trained[0]:
            row = int(np.argmin(alike))
            fault = f"is not the training row {trained[row]}, though row 0 is the first of them"
        else:
            where = "among" if labels[0] > trained[0] else "before"
            fault = f"lies {where} the training rows, which go from {trained[0]} to {trained[-1]}"
        raise ValueError(
            f"{owner}.{method}(X): needs the rows that follow the training rows, or the series from the first of them "
            f"on; row {row}, {labels[row]}, {fault}. Pass the rows between too, or fit on the rows before X; where the "
            "rows are the steps of the series, number all of them before they are split, "
            f"{times.numbered('X', time_dimension(X))}."
        )

    @property
    def _window(self) -> int | None:
        """How many rows a difference depends on, its own included; None for all rows before it."""
        return self.window if self.window_policy == "fixed" else None

    def _differences(self, values: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """Return the differences of order `alphas[j]` of each column j, for all rows; [rows, columns]."""
        found = np.empty_like(values)
        for alpha in np.unique(alphas):
            which = alphas == alpha
            found[:, which] = fdiff(values[:, which], float(alpha), axis=0, window=self._window)
        return found

    def _as_asked(self, found: np.ndarray, X: Any) -> Any:
        """Return an array of results as a table like X.

        It stays an array where the user's `set_output` names another kind of table, which scikit-learn then makes.
        """
        asked = _get_output_config("transform", self)["dense"]
        return with_numbers(X, found) if asked in ("default", package_of(type(X), PACKAGES)) else found


def _raise_if_text(owner: str, X: Any) -> None:
    """Raise ValueError where a column of a pandas or polars DataFrame holds strings that are no numbers."""
    if package_of(type(X), PACKAGES) not in ("pandas", "polars") or not hasattr(X, "columns"):
        return
    columns = X.get_columns() if hasattr(X, "get_columns") else [X.iloc[:, j] for j in range(X.shape[1])]
    for label, column in zip(X.columns, columns, strict=True):
        for row, value in enumerate(column.to_numpy() if _may_hold_text(column) else ()):
            if not isinstance(value, str):
                continue
            try:
                float(value)
            except ValueError:
                raise ValueError(
                    f"{owner}(X: column {label!r}): needs numbers; row {row} is {value!r}; leave the column out, or "
                    "make numbers of it."
                ) from None


def _may_hold_text(column: Any) -> bool:
    return str(column.dtype).lower() in ("object", "str", "string", "category", "categorical")


def _content(values: np.ndarray) -> bytes:
    """Return a hash of the rows' values and shape, the same for float32 and float64."""
    with np.errstate(over="ignore"):
        rows = np.ascontiguousarray(values, np.float32) + np.float32(0)  # -0 becomes 0
    return hashlib.blake2b(rows.tobytes() + repr(rows.shape).encode(), digest_size=16).digest()


def _are_counted(labels: Any, trained: Any) -> bool:
    """Whether the indexes of new rows and of the training rows do not say which rows follow which.

    Both indexes count rows as pandas does by default, or one does and the other has times of another kind.

    Args:
        labels: The index of the new rows.
        trained: The index of the training rows.
    """
    counted = [times.is_counted(labels), times.is_counted(trained)]
    return all(counted) or (any(counted) and times.kind(labels) != times.kind(trained))


class FractionalDifferencer(ColumnDifferences):
    """Differences of order `alpha` along the rows of every column: (1 - z)**alpha, with zeros before the first row.

    alpha = 0 leaves the series as it is, alpha = 1 takes its first difference, a negative alpha sums. A row that is NaN
    leaves NaN in the rows where it has a weight, as in `fdiff`.

    Args:
        alpha: The order, or one for each column.
        window: With window_policy="fixed" how many rows a row of the result depends on: older rows have no weight. With
            "expanding" how many rows the first row of a result in mode "valid" depends on; no effect in mode "same".
        mode: "same": a row of the result for each row; the first window - 1 depend on fewer rows, and on zeros before
            them. "valid": without these; not for a Pipeline with a y or a ColumnTransformer, see `transform`.
        window_policy: "fixed": a row of the result depends on the last `window` rows. "expanding": on all rows since
            the first.

    Attributes:
        alpha_: The orders, [columns].
        rows_: The training rows that differences of later rows depend on: the last `window` - 1, or all of them.
        n_features_in_: The number of columns seen in `fit`.
        feature_names_in_: The names of these columns, where they have any.

    Raises:
        TypeError: `window` is no integer.
        ValueError: An argument is out of range; there is not one order for each column.

    Source: Hosking, Biometrika 68 (1981) 165; Lopez de Prado, Advances in Financial Machine Learning (2018), section
    5.5, for the fixed window.

    Examples:
        >>> X = np.cumsum(np.random.default_rng(0).standard_normal((500, 2)), axis=0)
        >>> FractionalDifferencer(0.4, window=50, mode="valid").fit_transform(X).shape
        (451, 2)
    """

    def __init__(
        self, alpha: Any = 0.5, *, window: int = 100, mode: str = "same", window_policy: str = "fixed"
    ) -> None:
        self.alpha = alpha
        self.window = window
        self.mode = mode
        self.window_policy = window_policy

    def fit(self, X: Any, y: Any = None) -> FractionalDifferencer:
        """Check the arguments, and store the orders and the last rows of `X` [rows, columns]; `y` is ignored."""
        self._check_window()
        values = self._read(X)
        alphas = errors.as_numbers(self.alpha)
        if alphas is None or not np.isfinite(alphas).all():
            raise ValueError(
                f"FractionalDifferencer(alpha={self.alpha!r}): needs a finite order, or one for each column; pass for "
                "example alpha=0.5."
            )
        if alphas.ndim > 1 or alphas.size not in (1, values.shape[1]):
            raise ValueError(
                f"FractionalDifferencer(alpha of shape {alphas.shape}): needs one order, or one for each of "
                f"{values.shape[1]} columns; pass as many."
            )
        self.alpha_ = np.broadcast_to(alphas, values.shape[1:]).copy()
        self._remember(X, values)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class StationaryDifferencer(ColumnDifferences):
    """Differences of each column of the smallest order found for which a unit root is rejected.

    An order below 1 keeps memory that a whole difference would take away: the series stays correlated with its past.

    The test is that of Dickey and Fuller, augmented by the lags that the Akaike criterion selects, with a constant. It
    is applied to what `transform` returns for the training rows less their first row, so that the jump from zeros to
    the first row, which mode "same" differences too, does not count; in mode "valid" with the fixed window these are
    the differences themselves but for a constant, which has no effect on the test. The p-value need not fall as the
    order rises. Orders are therefore tried from 0 up to `upper` in ten steps until one passes. Between this order and
    the step before, which does not pass, bisection finds an order that passes within `precision` of one that does not.
    A smaller order may pass between steps that do not.

    A column that is constant up to rounding passes. A column whose samples the lags determine exactly, such as a
    straight line of 187 rows or more (by the defaults), has no noise for the test to measure by, and passes only at the
    order at which it is constant; with fewer rows the lags leave something of a line, which may pass just above 0. The
    number of lags is at most a tenth of the rows. With less than 80 rows a random walk still passes at 5 % in some 10
    of 100 cases, and fewer than 10 rows are refused.

    Args:
        level: Level at which the test rejects a unit root, between 0 and 1.
        upper: The largest order to try, positive.
        precision: How far the order may lie above one that does not pass, positive; at least rounding is left.
        window: As in `FractionalDifferencer`.
        mode: As in `FractionalDifferencer`.
        window_policy: As in `FractionalDifferencer`.
        n_jobs: How many columns are tested in parallel, in threads; None is one, unless joblib's settings say
            otherwise, and -1 as many as there are processors.

    Attributes:
        alpha_: The orders, [columns]; `upper`, with a warning, where no order that was tried passes.
        pvalues_: The p-values of the test at these orders, [columns]; 0 for a constant column. A column passes where
            its p-value is not above `level`.
        rows_: As in `FractionalDifferencer`.
        n_features_in_: The number of columns seen in `fit`.
        feature_names_in_: The names of these columns, where they have any.

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
        """Find the order of each column of `X` [rows, columns]; `y` is ignored."""
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
        """Return the smallest order found for which the test rejects a unit root, and the p-value at this order.

        Orders are tried on a grid, then by bisection. The order is `upper` where none on the grid passes.

        Args:
            column: The samples, [rows].
            rounding: By how much a sample may be off.
        """
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
            if not low < middle < high:  # neighbouring floats: no order lies between
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
        # Rounding of the samples, times the sum of the weights' absolute values, and rounding of an FFT.
        noise = 2 ** math.ceil(alpha) * rounding + _EPSILON * len(column) * float(np.ptp(centred))
        most = _lags(len(differences))
        if np.ptp(differences[most:]) <= noise:
            return 0.0
        found = unit_root(differences - differences.mean(), most)
        # Lags that determine the samples up to noise, as of a straight line, leave the test nothing to measure by.
        return 1.0 if found.is_singular or found.deviation <= noise else found.pvalue


def _lags(rows: int) -> int:
    """Return the largest number of lags that the unit root test of a series of `rows` rows may take.

    It is that of Schwert, J. Business & Economic Statistics 7 (1989) 147, or fewer where rows are few.
    """
    return min(math.ceil(12 * (rows / 100) ** 0.25), rows // _ROWS_OF_A_LAG)
