"""Tables of weights for learned orders: short Chebyshev series in alpha, evaluated on each step.

A tensor alpha has bounds, and between them every weight is an analytic function of alpha. The schemes' formulas are
run once, in NumPy and for all Chebyshev points together; what remains on each step is

    weight(alpha) = (dt reach)**(+-alpha) sum_i T_i(u) coefficients[i],      u = (alpha - centre) / radius,

a handful of small operations and one product, which autograd and transforms follow to any order. The weight at lag k
goes like k**-alpha times something slow: the power of `reach`, sqrt(n), is taken out so that no weight varies by much
more than sqrt(n) over the interval; without it the series, whose error is relative to the largest value, would lose a
digit for each power of ten in n at the longest lags. It is one power for all lags because the fit of the exponentials
is ill-conditioned: its rounding errors cancel in the weights, which they do no longer once lags are scaled apart.

Bounds wider than 1 are cut into cells with a series each. A cell's interval is wider than the cell, so that |u| < 1 and
T_i(u) = cos(i acos(u)) is smooth on it. The chunk matrices are linear in the weights: their table is made of the
weights' coefficients.

Trefethen, Approximation Theory and Approximation Practice (2013), chapters 3 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cache import ByteCache, cached_property, nbytes
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.weights import transitions

_POINTS = 40  # Chebyshev points per cell; n = 10**6 needs 26 of them
_TAIL = 30  # from this degree on coefficients must be the formula's own rounding, by which the degree is chosen
_ROUNDING = 1e-15  # coefficients this far below the largest value are dropped in any case
_LEFT = 1e-9  # a tail above this part of the largest of all values is no rounding
_ROUNDED_TO = 4  # the degree is rounded up, so that tables share their basis
_AT_ONCE = 1 << 18  # weights that are computed together, so that temporary arrays stay in the cache
_LARGEST = 1 << 25  # bytes of a table
CACHE = ByteCache(1 << 28)

Constant = Callable[[str, np.ndarray], Array]


@dataclass(frozen=True)
class Domain:
    """The interval of alpha: cells of equal width, each with a Chebyshev basis, and the power that is factored out.

    That power is (dt reach)**(power alpha).

    Attributes:
        low: The lower bound of alpha.
        width: Width of a cell.
        cells: Number of cells.
        radius: Half the width of the interval on which a cell's series is made, which is wider than the cell.
        power: The factor of alpha in the exponent, -1 for derivatives and 1 for integrals.
        reach: A lag in steps, the square root of the number of samples.
    """

    low: float
    width: float
    cells: int
    radius: float
    power: float
    reach: float

    @property
    def centres(self) -> np.ndarray:
        """Centre of each cell, [cells]."""
        return self.low + self.width * (np.arange(self.cells) + 0.5)


@dataclass(frozen=True, eq=False)
class Table:
    """Arrays that a kernel reads, every entry (an output) as a Chebyshev series in alpha.

    Attributes:
        domain: The interval of alpha.
        degree: Number of terms of each series.
        coefficients: Coefficients of every output, [cells * degree, outputs].
        shapes: Shapes of the arrays, whose entries follow each other as outputs.
        has_boundary: Whether the last array has the boundary columns, [columns, n].
        placed: A cache of what a framework made of the table, by device; it lives as long as the table.
    """

    domain: Domain
    degree: int
    coefficients: np.ndarray
    shapes: tuple[tuple[int, ...], ...]
    has_boundary: bool = False
    placed: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def sizes(self) -> list[int]:
        """Number of entries of each array."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def nbytes(self) -> int:
        """Bytes of the coefficients and of all that is cached in `placed`."""
        return nbytes((self.coefficients, self.placed))


class Points:
    """The basis functions of a domain, and their derivatives, at some orders alpha.

    Weights are products of these values with a table's coefficients.

    Args:
        alpha: The orders, a float64 array of `xp`, [channels, 1], or for NumPy one number. An order further outside its
            bounds than a tenth of their width gives NaN.
        domain: The interval of alpha.
        dt: Spacing of the samples.
        xp: The namespace of alpha.
        constant: Called as constant(name, array): returns a NumPy array, always the same one for a name, as an array of
            `xp`; None for NumPy.
    """

    def __init__(self, alpha: Array | float, domain: Domain, dt: float, xp: Namespace, constant: Constant | None):
        self._domain, self._xp, self._constant = domain, xp, constant
        self._log_base = domain.power * math.log(dt * domain.reach)
        self._series_of: dict[int, Array] = {}
        self._derivative_of: dict[int, Array] = {}
        if isinstance(alpha, float):
            if domain.cells == 1:  # Python's numbers are quicker than arrays
                u = (alpha - (domain.low + domain.width * 0.5)) * (1 / domain.radius)
                is_inside = -1.0 <= u <= 1.0
                self._angle = math.acos(u) if is_inside else math.nan
                self._power = math.exp(alpha * self._log_base) if is_inside else math.nan
                return
            alpha = np.array([[alpha]])
        self._power = xp.exp(alpha * self._log_base)
        self._cell = (
            0.0 if domain.cells == 1 else xp.floor((alpha - domain.low) / domain.width).clip(0, domain.cells - 1)
        )
        self._angle = xp.acos((alpha - (domain.low + domain.width * (self._cell + 0.5))) * (1 / domain.radius))

    def basis(self, degree: int) -> Array:
        """Return the basis functions (dt reach)**(power alpha) T_i(u), i < `degree`, at the orders.

        They are [channels, cells * degree], and zero but in alpha's cell.
        """
        series = self._series_of.get(degree)
        if series is None:
            angles = self._angle * self._array("degrees to {}", _range, degree)
            series = self._series_of[degree] = self._xp.cos(angles) * self._power
        return series if self._domain.cells == 1 else self._placed(series)

    def derivative(self, degree: int) -> Array:
        """Return the derivatives of `basis` in alpha, in which the derivative of T_i is a sum of other T_j."""
        found = self._derivative_of.get(degree)
        if found is None:
            self.basis(degree)
            series = self._series_of[degree]
            turned = self._xp.matmul(series, self._array("derivatives to {}", derivatives, degree))
            found = turned * (1 / self._domain.radius) + series * self._log_base
            found = self._derivative_of[degree] = found if self._domain.cells == 1 else self._placed(found)
        return found

    def _array(self, name: str, make: Callable[[int], np.ndarray], degree: int) -> Array:
        found = make(degree)
        return found if self._constant is None else self._constant(name.format(degree), found)

    def _placed(self, series: Array) -> Array:
        """Return basis functions [channels, degree] as [channels, cells * degree], 0 but in the cell of their alpha."""
        cells = self._array("cells to {}", _range, self._domain.cells)
        return ((self._cell == cells)[:, :, None] * series[:, None]).reshape(series.shape[0], -1)


@cache
def derivatives(degree: int) -> np.ndarray:
    """Return the matrix D [degree, degree] that differentiates Chebyshev polynomials.

    (T_0', T_1', ...) = (T_0, T_1, ...) D, with T_i' = 2 i (T_{i-1} + T_{i-3} + ...); for odd i the last term is i T_0
    and not 2 i T_0.
    """
    found = np.zeros((degree, degree))
    for i in range(degree):
        found[i - 1 :: -2, i] = 2 * i if i else 0
    found[0] /= 2
    return found


@cache
def _range(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float64)


def weight_table(family: Definition, n: int, nodes: Nodes | None, length: int) -> Table | None:
    """Return the table of all arrays that one kernel reads; None where it would be too large or does not converge.

    The arrays are intra [L, L] and, where there are nodes, C [K, L] of `linear.StateSpace`; or the whole column [n].
    Then come the boundary columns, unless there are none or their table is None.

    Args:
        family: The operator at its upper bound, with its bounds; see `definitions.family`.
        n: Number of samples.
        nodes: The exponentials, where there are more samples than one chunk has; else None.
        length: L, the number of samples in a chunk; 0 for the whole column.
    """
    return CACHE.get((family, n, nodes, length), lambda: _joined(family, n, nodes, length))


def boundary_table(family: Definition, n: int) -> Table | None:
    """Return the table of the boundary columns [columns, n]: the starting column, then the analytic ones.

    None where there are none, where the table would be too large, or where it does not converge.
    """
    return CACHE.get((family, n, "boundary"), lambda: _boundary(family, n))


@lru_cache(maxsize=1024)
def domain_of(family: Definition, n: int) -> Domain:
    """Return the Domain of a family's weights on `n` samples."""
    low, high = family.interval
    cells = max(1, math.ceil(high - low))
    width = (high - low) / cells
    # A tenth more on either side; a narrow interval is not worth less, and its derivative would lose digits.
    return Domain(low, width, cells, max(0.6 * width, 0.125), family.dt_power, math.sqrt(max(n, 1)))


def _column(family: Definition, n: int) -> Table | None:
    return _tabulated(family, n, n, lambda stencil: stencil.column(np.arange(n)), lambda column: [column])


def _boundary(family: Definition, n: int) -> Table | None:
    facts = family.stencil(n, 1.0, NUMPY)
    count = facts.starts + facts.terms

    def columns(stencil: Stencil) -> np.ndarray:
        found: Any = stencil.boundary_columns(lambda column: column(np.arange(n)), NUMPY)
        return found.reshape(-1, count * n)

    def as_rows(values: np.ndarray) -> list[np.ndarray]:
        return [values.reshape(-1, count, n)]

    return _tabulated(family, n, count * n, columns, as_rows) if count else None


def _chunks(family: Definition, n: int, nodes: Nodes | None, length: int) -> Table | None:
    if nodes is None:
        lags = np.arange(min(n, length))
        return _tabulated(
            family, n, length**2, lambda stencil: stencil.column(lags), lambda values: [NUMPY.toeplitz(values, length)]
        )
    found = transitions(nodes, length)
    outputs = length * (length + nodes.states)
    return _tabulated(
        family, n, outputs, lambda stencil: stencil.column(found.lags), lambda values: found.matrices(values, NUMPY)
    )


def _joined(family: Definition, n: int, nodes: Nodes | None, length: int) -> Table | None:
    weights = _chunks(family, n, nodes, length) if length else _column(family, n)
    boundary = boundary_table(family, n)
    if weights is None or boundary is None:
        return weights
    domain, degree = weights.domain, max(weights.degree, boundary.degree)
    parts = [each.coefficients.reshape(domain.cells, each.degree, -1) for each in (weights, boundary)]
    parts = [np.pad(each, [(0, 0), (0, degree - each.shape[1]), (0, 0)]) for each in parts]
    joined = np.concatenate(parts, axis=2).reshape(domain.cells * degree, -1)
    return Table(domain, degree, joined, weights.shapes + boundary.shapes, has_boundary=True)


def _tabulated(
    family: Definition,
    n: int,
    outputs: int,
    sampled: Callable[[Stencil], np.ndarray],
    expanded: Callable[[np.ndarray], Sequence[np.ndarray]],
) -> Table | None:
    """Return the table of some arrays that are linear in weights; None if it is too large or not accurate.

    Args:
        family: The operator at its upper bound, with its bounds.
        n: Number of samples.
        outputs: How many numbers the arrays have together.
        sampled: Returns the weights that the arrays are made of, [alphas, samples], from a stencil of orders [alphas].
        expanded: The linear map: returns the arrays, each [rows, ...], of weights or coefficients [rows, samples].
    """
    domain = domain_of(family, n)
    if 8 * domain.cells * _POINTS * outputs > 2 * _LARGEST:  # about half the points are kept
        return None
    coefficients = _series(domain, lambda alpha: sampled(family.stencil_at(alpha, n, 1.0, NUMPY)), outputs)
    if coefficients is None:
        return None
    degree = coefficients.shape[1]
    arrays = expanded(coefficients.reshape(domain.cells * degree, -1))
    flat = np.concatenate([array.reshape(array.shape[0], -1) for array in arrays], axis=1)
    return Table(domain, degree, flat, tuple(array.shape[1:] for array in arrays))


def _series(domain: Domain, sampled: Callable[[np.ndarray], np.ndarray], outputs: int) -> np.ndarray | None:
    """Return Chebyshev coefficients [cells, degree, samples], or None if they do not fall to the formula's rounding.

    Args:
        domain: The interval of alpha, in cells.
        sampled: The formula: returns weights [alphas, samples] of orders [alphas], for dt = 1.
        outputs: How many numbers are made of a row of weights; so many rows are sampled at a time that they fit.
    """
    angles = np.pi * (np.arange(_POINTS) + 0.5) / _POINTS
    alpha = np.add.outer(domain.centres, domain.radius * np.cos(angles)).ravel()
    pieces = np.array_split(alpha, min(alpha.size, 1 + alpha.size * outputs // _AT_ONCE))
    values = np.concatenate([sampled(piece) * domain.reach ** (-domain.power * piece[:, None]) for piece in pieces])
    values = values.reshape(domain.cells, _POINTS, -1)
    transform = np.cos(np.outer(np.arange(_POINTS), angles)) * (2 / _POINTS)
    transform[0] /= 2
    coefficients = transform @ values
    size, largest = np.abs(coefficients), np.abs(values).max(axis=1, keepdims=True)
    tail = size[:, _TAIL:].max(axis=1, keepdims=True)
    counted = np.flatnonzero((size > np.maximum(_ROUNDING * largest, 10 * tail)).any(axis=(0, 2)))
    degree = int(counted.max(initial=0)) + 1  # all values may be zero, as those of one sample are
    if degree >= _TAIL or tail.max() > _LEFT * largest.max():
        return None
    return coefficients[:, : -(-degree // _ROUNDED_TO) * _ROUNDED_TO]
