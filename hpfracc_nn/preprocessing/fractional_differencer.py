"""The difference of a given order, as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import Tags

from hpfracc_nn import errors
from hpfracc_nn.preprocessing.columns import ColumnDifferences


class FractionalDifferencer(ColumnDifferences):
    """Differences of order `alpha` along the rows of every column: (1 - z)**alpha, with zeros before the first row.

    alpha = 0 leaves the series as it is, alpha = 1 takes its first difference, a negative alpha sums. A row that is NaN
    leaves NaN in the rows where it has a weight, as in `fdiff`.

    Args:
        alpha: The order, or one for each column.
        window: With window_policy="fixed" how many rows make one of the result: older ones have no weight. With
            "expanding" how many must be there, which counts in mode "valid" only.
        mode: "same": a row of the result for each row; the first window - 1 are made of fewer rows and of zeros before
            them. "valid": without these; not for a Pipeline with a y or a ColumnTransformer, see `transform`.
        window_policy: "fixed": the last `window` rows make a row of the result. "expanding": all rows since the first.

    Attributes:
        alpha_: The orders, [columns].
        rows_: What later rows are made of besides themselves: the last `window` - 1 training rows, or all of them.
        n_features_in_: Columns seen in `fit`.
        feature_names_in_: Their names, where they have any.

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
        """Check the arguments and look at the columns of `X` [rows, columns]; `y` counts for nothing."""
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
