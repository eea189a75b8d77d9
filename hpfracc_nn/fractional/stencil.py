"""The operator on a uniform grid: a few float64 arrays, and the same thing as a dense matrix.

With u = x - x[0] - k S (nothing is subtracted when `subtract` is false; S = 0 unless `taylor` is 2) and d the m-th
backward difference of u,

    y = T(left) d + start * d[start_index] + analytic @ (x[0], S),

where T(w) is the lower triangular Toeplitz matrix with first column w, and S = dt x'(0) by a one-sided
formula of third order. On the right side the same is done in reversed time; on both sides the mean of the two is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.namespace import NUMPY, Array


@dataclass(frozen=True)
class Stencil:
    """An operator on `n` samples.

    Attributes:
        n: Number of samples.
        column: The weights at increasing lags: [k] -> [*c, k].
        differences: m, the backward differences taken before the product, -1 (a cumulative sum) to 2.
        subtract: Whether the Taylor polynomial at the first sample is subtracted.
        taylor: Its number of terms, 1 or 2.
        start_column: The starting column at increasing rows: [k] -> [*c, k]; None where there is none.
        start_index: The entry of d that the starting column acts on.
        analytic_columns: The analytic columns at increasing rows: [k] -> [*c, terms, k]; None where there are none.
        terms: How many columns `analytic` has.
        side: "left", "right" or "both"; all other attributes are those of the left side.

    Examples:
        >>> from hpfracc_nn.fractional.namespace import NUMPY
        >>> # the difference over a step of 0.5
        >>> Caputo(1.0, "l1").stencil(3, 0.5, NUMPY).as_matrix()
        array([[ 0.,  0.,  0.],
               [-2.,  2.,  0.],
               [ 0., -2.,  2.]])
    """

    n: int
    column: Callable[[np.ndarray], Array]
    differences: int
    subtract: bool
    taylor: int = 1
    start_column: Callable[[np.ndarray], Array] | None = None
    start_index: int = 1
    analytic_columns: Callable[[np.ndarray], Array] | None = None
    terms: int = 0
    side: str = "left"

    @cached_property
    def left(self) -> Array:
        """The whole column, [*c, n]."""
        return self.column(np.arange(self.n))

    @cached_property
    def start(self) -> Array:
        """The starting column [*c, n], or None."""
        return None if self.start_column is None else self.start_column(np.arange(self.n))

    @cached_property
    def analytic(self) -> Array:
        """The columns [*c, terms, n] that multiply x[0] and S, or None."""
        return None if self.analytic_columns is None else self.analytic_columns(np.arange(self.n))

    @property
    def starts(self) -> bool:
        """Whether there are enough samples for the starting column to act on."""
        return self.start_column is not None and self.n > self.start_index

    @property
    def ahead(self) -> int:
        """How many samples at the start count in all results: those of x(0), of S, and of the starting column."""
        slopes = self.terms == 2 or (self.subtract and self.taylor == 2)
        return max(4 if slopes else 1, self.start_index + 1 if self.starts else 1)

    def as_matrix(self) -> np.ndarray:
        """Return the dense float64 matrix M with y = M x, shape [*c, n, n]; for NumPy stencils."""
        n, column = self.n, np.asarray(self.left)
        lag = np.subtract.outer(np.arange(n), np.arange(n))
        toeplitz = np.where(lag >= 0, column[..., np.maximum(lag, 0)], 0.0)
        first, slope = np.zeros(n), slope_row(n) if self.taylor == 2 else np.zeros(n)
        first[:1] = 1
        u = np.eye(n)
        if self.subtract:
            u = u - first - np.arange(n)[:, None] * slope
        backward = np.eye(n) - np.eye(n, k=-1)
        d = (
            np.linalg.matrix_power(backward, self.differences) @ u
            if self.differences >= 0
            else np.tril(np.ones((n, n))) @ u
        )
        matrix = toeplitz @ d
        if self.starts:
            matrix = matrix + np.asarray(self.start)[..., :, None] * d[self.start_index]
        if self.analytic is not None:
            rows = np.stack([first, slope])[: self.analytic.shape[-2]]
            matrix = matrix + np.swapaxes(np.asarray(self.analytic), -1, -2) @ rows
        if self.side == "left":
            return matrix
        reversed_time = matrix[..., ::-1, ::-1]
        return reversed_time if self.side == "right" else (matrix + reversed_time) / 2

    def solve(self, y: np.ndarray, first: np.ndarray | None = None, slope: np.ndarray | None = None) -> np.ndarray:
        """Return x with M x = y for y [..., n], n > 0, in O(n log n); for NumPy stencils.

        Args:
            y: float64; *c broadcasts to its other axes.
            first: x(0), [..., 1], where the operator subtracts it and y does not tell; None is 0.
            slope: S = dt x'(0), the same.

        Returns:
            Of the shape of `y`.
        """
        from hpfracc_nn.fractional import inverse  # it knows the definitions: at the top this would be a cycle

        column = inverse.reciprocal(self.left, NUMPY)

        def multiply(z: np.ndarray) -> np.ndarray:
            return inverse.summed(NUMPY.convolve(z, column), self.differences, NUMPY)

        return inverse.solved(inverse.columns(self, NUMPY), y, multiply, first, slope, NUMPY)  # type: ignore[no-any-return]


def slope_row(n: int) -> np.ndarray:
    """Return the row [n] that estimates S = dt x'(0) from the first samples, third order where there are four."""
    row = np.zeros(n)
    if n >= 4:
        row[:4] = np.array([-11, 18, -9, 2]) / 6
    elif n == 3:
        row[:3] = np.array([-3, 4, -1]) / 2
    elif n == 2:
        row[:2] = [-1, 1]
    return row
