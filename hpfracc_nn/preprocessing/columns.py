"""What the transformers share: a difference along the rows of every column, with a window, and what scikit-learn asks.

A result depends on the rows before it: rows are moments of one series and cannot be taken one by one or in another
order. scikit-learn's checks of that property are left out for estimators whose tag says that they are not
deterministic, the only one there is for it; the same rows give the same result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted, validate_data

from hpfracc_nn import errors
from hpfracc_nn.fractional import fdiff
from hpfracc_nn.fractional.differencing import MODES
from hpfracc_nn.fractional.framework import type_name

POLICIES = ("expanding", "fixed")


class ColumnDifferences(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Differences of order `alpha_[j]` of each column j. Subclasses have window, mode and window_policy, and fit."""

    alpha_: np.ndarray
    window: int
    mode: str
    window_policy: str

    def transform(self, X: Any) -> Any:
        """Return the differences of the columns of `X`, a series of its own: nothing is remembered of other calls.

        To go on with a series, pass the last `window` - 1 rows again before the new ones, with mode="valid" and
        window_policy="fixed": the result is that of the new rows. With window_policy="expanding" pass all rows.

        Args:
            X: [rows, columns], a row for each moment; an array or a data frame.

        Returns:
            [rows, columns]; in mode "valid" without the first `window` - 1 rows, in a data frame with the index of the
            others. scikit-learn's own containers take as many rows as they gave: in a Pipeline with a y, or in a
            ColumnTransformer beside columns that keep theirs, use mode "same", and leave the first rows out of both
            afterwards.

        Raises:
            ValueError: `X` has other columns than in `fit`, or in mode "valid" fewer rows than the window.
        """
        check_is_fitted(self)
        values = self._read(X, reset=False)
        left_out = 0 if self.mode == "same" else self.window - 1
        if left_out >= len(values):
            raise ValueError(
                f"{type(self).__name__}(window={self.window}, mode='valid'): needs at least {self.window} rows; X has "
                f"{len(values)}, pass more, or a shorter window."
            )
        return self._as_asked(self._differences(values, self.alpha_)[left_out:], X, left_out)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.non_deterministic = True
        return tags

    def _read(self, X: Any, **options: Any) -> np.ndarray:
        """Return what scikit-learn makes of the rows, or raise."""
        if isinstance(X, list | tuple):
            try:
                np.asarray(X)
            except ValueError:
                raise ValueError(
                    f"{type(self).__name__}(X of type {type_name(X)}): needs rows of one length; pass an array, or a "
                    "list of equal lists."
                ) from None
        return validate_data(self, X, dtype=[np.float64, np.float32], **options)

    def _check_window(self) -> None:
        owner = type(self).__name__
        errors.count(owner, "window", self.window)
        errors.one_of(owner, "mode", self.mode, MODES)
        errors.one_of(owner, "window_policy", self.window_policy, POLICIES)

    def _differences(self, values: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """The differences of each column, those of the warm-up too."""
        window = self.window if self.window_policy == "fixed" else None
        found = np.empty_like(values)
        for alpha in np.unique(alphas):
            which = alphas == alpha
            found[:, which] = fdiff(values[:, which], float(alpha), axis=0, window=window)
        return found

    def _as_asked(self, found: np.ndarray, X: Any, left_out: int) -> Any:
        """The result, in a frame where one is asked for and rows are missing: scikit-learn would give it all of X's."""
        if left_out and hasattr(X, "iloc") and _get_output_config("transform", self)["dense"] == "pandas":
            return type(X)(found, index=X.index[left_out:])
        return found
