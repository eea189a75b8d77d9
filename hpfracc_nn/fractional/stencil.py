"""The operator on a uniform grid: a few float64 arrays, and the same thing as a dense matrix.

With u = x - x[0] - k S (nothing is subtracted when `subtract` is false; S = 0 unless `taylor` is 2) and d the m-th
backward difference of u,

    y = T(weights) d + start * d[start_index] + analytic @ (x[0], S),

where T(w) is the lower triangular Toeplitz matrix with first column w, and S = dt x'(0) by a one-sided
formula of third order. On the right side the same is done in reversed time; on both sides the mean of the two is taken.

The inverse: all but a few columns is lower triangular Toeplitz, whose inverse is the reciprocal of a power series,

    U = sum^m T(1 / weights),    u = U y' - U start (D^m U y')[s] / (1 + (D^m U start)[s]),    x = u + x(0) + k S,

with y' = y less the analytic terms. The reciprocal comes from Newton's iteration g <- g (2 - weights g), which doubles
the terms that are right: O(n log n), and `xp` follows it to any derivative in alpha.

Here k numbers the samples from 0, D is one backward difference, and s is `start_index`. In shapes n counts samples, k
lags or rows, *c are the axes of the orders, and ... those of the signals, against which *c broadcasts.

Kung, Numer. Math. 22 (1974) 341, for the reciprocal; the corrections are those of Sherman & Morrison (1950).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace

_PANEL, _NODES = 4096, 16  # rows of a boundary column that one polynomial meets, and its degrees of freedom


@dataclass(frozen=True)
class Stencil:
    """A discretised operator on `n` samples: differences before a Toeplitz product, and columns added to it.

    Attributes:
        n: Number of samples.
        column: The weights at increasing lags: [k] -> [*c, k].
        differences: m, the backward differences taken before the product, -1 (a cumulative sum) to 2.
        subtract: Whether the Taylor polynomial at the first sample is subtracted.
        taylor: Number of terms of that polynomial, 1 or 2.
        start_column: The starting column at increasing rows: [k] -> [*c, k]; None where there is none.
        start_index: Index of the entry of d, the differenced samples, that the starting column multiplies.
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
    def weights(self) -> Array:
        """The Toeplitz weights at all lags, [*c, n]."""
        return self.column(np.arange(self.n))

    @property
    def left(self) -> Array:
        """The former name of `weights`, deprecated: reading it warns."""
        warnings.warn("Stencil.left is now called Stencil.weights.", DeprecationWarning, stacklevel=2)
        return self.weights

    @cached_property
    def start(self) -> Array:
        """The starting column [*c, n], or None."""
        return None if self.start_column is None else self.start_column(np.arange(self.n))

    @cached_property
    def analytic(self) -> Array:
        """The columns [*c, terms, n] that multiply x[0] and S = dt x'(0), or None."""
        return None if self.analytic_columns is None else self.analytic_columns(np.arange(self.n))

    @property
    def starts(self) -> bool:
        """Whether there is a starting column, and there are enough samples for it to act on."""
        return self.start_column is not None and self.n > self.start_index

    @property
    def ahead(self) -> int:
        """How many samples at the start count in all results.

        That is 1, x(0); 4 where x'(0) is estimated; at least start_index + 1 where there is a starting column.
        """
        slopes = self.terms == 2 or (self.subtract and self.taylor == 2)
        return max(4 if slopes else 1, self.start_index + 1 if self.starts else 1)

    def boundary_columns(self, rows: Callable[[Callable[[np.ndarray], Array]], Array], xp: Namespace) -> Array | None:
        """Return the columns, those that exist, that multiply d[start_index], x[0] and dt x'(0), [*c, columns, k].

        None where there are none. `rows(column)` returns the k rows that are wanted of a column, in arrays of `xp`.
        """
        found = []
        if self.starts and self.start_column is not None:
            found.append(rows(self.start_column)[..., None, :])
        if self.analytic_columns is not None:
            found.append(rows(self.analytic_columns))
        return xp.concat(found, axis=-2) if found else None

    def as_matrix(self) -> np.ndarray:
        """Return the dense float64 matrix M with y = M x, shape [*c, n, n]; for NumPy stencils."""
        n, column = self.n, np.asarray(self.weights)
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
            first: x(0), [..., 1], where the operator subtracts it and y does not determine it; None is 0.
            slope: S = dt x'(0), [..., 1], in the same case; None is 0.

        Returns:
            x, of the shape of `y`.
        """
        column = reciprocal(self.weights, NUMPY)

        def multiply(z: np.ndarray) -> np.ndarray:
            return summed(NUMPY.convolve(z, column), self.differences, NUMPY)

        return solved(inverse_columns(self, NUMPY), y, multiply, first, slope, NUMPY)


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


@dataclass(frozen=True, eq=False)
class InverseColumns:
    """The columns that the inverse of a stencil needs besides the product with U; float64 arrays of a namespace.

    Attributes:
        stencil: The operator that is inverted.
        known: At most two columns [*c, n]: what x(0) = 1 gives in y, and what S = 1 gives in y.
        start: U start / (1 + (D^m U start)[s]), [*c, n], or None.
        head: The first weights of U, [*c, 4] or fewer, where S is found from y; else None.
    """

    stencil: Stencil
    known: list[Array]
    start: Array | None
    head: Array | None

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(array.nbytes for array in (*self.known, self.start) if array is not None)


def inverse_columns(stencil: Stencil, xp: Namespace) -> InverseColumns:
    """Return the columns of a stencil's inverse."""
    known = [stencil.analytic[..., j, :] for j in range(stencil.terms)]
    if known and not stencil.subtract:  # an integral's first sample counts like the others and has a column besides
        known = [known[0] + stencil.weights]
    head = None
    if stencil.terms == 2:
        head = summed(reciprocal(stencil.weights[..., :4], xp), stencil.differences, xp)
    if not stencil.starts:
        return InverseColumns(stencil, known, None, head)
    start = summed(xp.convolve(reciprocal(stencil.weights, xp), stencil.start), stencil.differences, xp)
    return InverseColumns(stencil, known, start / (1 + _starting_entry(start, stencil)), head)


def solved(
    found: InverseColumns,
    y: Array,
    multiply: Callable[[Array], Array],
    first: Array | None,
    slope: Array | None,
    xp: Namespace,
) -> Array:
    """Return the x that the operator maps to y, both [..., n].

    Args:
        found: The inverse's columns, which broadcast against y.
        y: What the operator gave, [..., n], n > 0; float64.
        multiply: Returns U z of data z [..., n], U the triangular matrix of the module's docstring.
        first: x(0), [..., 1], where y does not determine it; None is 0.
        slope: S = dt x'(0), [..., 1], where y does not determine it; None is 0.
        xp: The namespace of y.
    """
    stencil = found.stencil
    if not stencil.subtract and not found.known:
        return multiply(y)
    if not stencil.subtract:
        return _integrand(found.known[0], y, multiply, first, xp)
    if not found.known:
        x = _rest(found, y, multiply, xp)
        x = x if first is None else x + first
        return x if slope is None else x + slope * _ramp(y, xp)
    first = y[..., :1] / found.known[0][..., :1]
    y = y - found.known[0] * first
    if stencil.terms == 1 or stencil.n == 1:
        return _rest(found, y, multiply, xp) + first
    slope = _estimated(found, y, xp) / _estimated(found, found.known[1], xp)
    return _rest(found, y - found.known[1] * slope, multiply, xp) + first + slope * _ramp(y, xp)


def _estimated(columns: InverseColumns, y: Array, xp: Namespace) -> Array:
    """Return S = dt x'(0), [..., 1], as the stencil would estimate it from the u with u(0) = 0 that it maps to y.

    S is computed from the first four samples of y alone: an FFT would add to them its rounding of all others, and an
    error of S counts k times in x(k).

    Args:
        columns: The inverse's columns, with `head`, the first weights of U.
        y: What the operator gave, or a column of it, [..., n].
        xp: The namespace of y.
    """
    assert columns.head is not None, "there are two analytic columns"
    count = columns.head.shape[-1]
    u = _rest(columns, y[..., :count], lambda z: xp.convolve(z, columns.head), xp)
    return xp.sum(u * xp.constant(slope_row(columns.stencil.n)[:count], y), axis=-1)[..., None]


def reciprocal(series: Array, xp: Namespace) -> Array:
    """Return the power series 1 / series, as many coefficients as it has; [*c, n], n > 0."""
    n = series.shape[-1]
    found = 1 / series[..., :1]
    while found.shape[-1] < n:
        length = min(2 * found.shape[-1], n)
        padded = xp.concat([found, 0 * series[..., found.shape[-1] : length]], axis=-1)
        two = xp.constant(2 * np.eye(1, length)[0], series)
        found = xp.convolve(padded, two - xp.convolve(series[..., :length], padded))
    return found


def _rest(columns: InverseColumns, y: Array, multiply: Callable[[Array], Array], xp: Namespace) -> Array:
    """Return the u with u(0) = 0 that the operator maps to y, both [..., n]; y[0] is not read.

    Args:
        columns: The inverse's columns, of which only `stencil` and `start` are read.
        y: What the operator gave, less what x(0) and S give in it.
        multiply: Returns U z of data z [..., n], U the triangular matrix of the module's docstring.
        xp: The namespace of y.
    """
    stencil = columns.stencil
    u = multiply(_later(y, xp))
    n = y.shape[-1]
    if columns.start is None or n <= stencil.start_index:
        return u
    return u - columns.start[..., :n] * _starting_entry(u, stencil)


def _starting_entry(u: Array, stencil: Stencil) -> Array:
    """Return the entry that the starting column multiplies, [..., 1], for samples u [..., n] with u(0) = 0.

    It is (D^m u)[s]: entry s of the m-th backward difference, m and s those of the stencil.
    """
    m, s = stencil.differences, stencil.start_index
    return sum(float((-1) ** i * math.comb(m, i)) * u[..., s - i : s - i + 1] for i in range(min(m, s) + 1))


def _integrand(
    column: Array, y: Array, multiply: Callable[[Array], Array], first: Array | None, xp: Namespace
) -> Array:
    """Return the x whose integral is y, both [..., n]; x(0) is `first` or 0, because y[0] is 0 whatever x(0) is.

    Args:
        column: What x(0) = 1 alone gives in y, [*c, n].
        y: The integral's values.
        multiply: Returns U z of data z [..., n], U the triangular matrix of the module's docstring.
        first: x(0), [..., 1], or None.
        xp: The namespace of y.
    """
    if first is None:
        return multiply(_later(y, xp))
    return multiply(_later(y - column * first, xp)) + xp.where(_ramp(y, xp) > 0, 0.0, first)


def _later(y: Array, xp: Namespace) -> Array:
    """Return y [..., n] with its first sample, which may be NaN or infinite, replaced by 0."""
    return xp.where(_ramp(y, xp) > 0, y, 0.0)


def summed(d: Array, times: int, xp: Namespace) -> Array:
    """Return d [..., n] cumulatively summed along the last axis, `times` times over."""
    for _ in range(times):
        d = xp.cumulative_sum(d, axis=-1)
    return d


def _ramp(y: Array, xp: Namespace) -> Array:
    return xp.constant(np.arange(y.shape[-1], dtype=np.float64), y)


def consecutive(column: Callable[[np.ndarray], Array], begin: int, end: int, xp: Namespace) -> Array:
    """Return a boundary column at the rows from `begin` to before `end`, [*c, end - begin].

    Far from the start a column is smooth: a polynomial through `_NODES` rows of each panel of `_PANEL` rows meets the
    rows between them to rounding, as a column that falls by a power or an exponential is analytic within a distance of
    two panels. A column that the polynomial does not meet at one row more of each panel is evaluated row by row.
    """
    far = max(begin, min(end, 2 * _PANEL))
    if end - far <= _PANEL:
        return column(np.arange(begin, end))
    nodes, through = _panel()
    starts = np.arange(far, end, _PANEL)
    values = column((starts[:, None] + nodes).ravel())
    values = values.reshape(*values.shape[:-1], starts.size, nodes.size)
    found = xp.matmul(values, xp.constant(through, values))
    checked = _PANEL // 3
    largest, off = xp.abs(column(np.arange(_NODES))).max(), xp.abs(found[..., checked] - column(starts + checked)).max()
    if not bool(off <= 1e-14 * largest):
        return column(np.arange(begin, end))
    found = found.reshape(*found.shape[:-2], starts.size * _PANEL)[..., : end - far]
    return xp.concat([column(np.arange(begin, far)), found], axis=-1) if begin < far else found


@lru_cache(maxsize=1)
def _panel() -> tuple[np.ndarray, np.ndarray]:
    """Return a panel's nodes, whole numbers near Chebyshev's points, and Lagrange's polynomials, [nodes, rows]."""
    at = np.arange(_PANEL)
    nodes = np.rint((_PANEL - 1) / 2 * (1 - np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)))
    apart = (nodes[:, None] - nodes) / _PANEL + np.eye(_NODES)
    distances = (at - nodes[:, None]) / _PANEL
    hit = distances == 0
    terms = 1 / (np.prod(apart, axis=1)[:, None] * np.where(hit, 1, distances))
    through = np.where(hit.any(0), hit, terms / terms.sum(0))
    return nodes.astype(np.int64), through
