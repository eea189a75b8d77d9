"""Product integration: definitions at times of any spacing, as matrices, with the kernels and their costs.

    y(t_n) = I^p w (t_n) + analytic terms,      w linear on each cell,

with w the derivative of the interpolated samples (above alpha = 1: of their slopes) and p = ceil(alpha) - alpha, or for
an integral w the interpolated samples and p = alpha. At equal steps these are the stencils of the schemes l1, l1_2 and
trapezoid: above alpha = 1 the slope at a sample is the two-step backward difference, at the first step that of the
parabola that begins with x'(0), and x'(0) comes from the first four samples.

The integral is a product with matrices,

    y(t_n) = sum over cells i < n of  M0[n, i] mean_i + M1[n, i] half_i,

mean_i the function's mean on cell i, half_i half its increase over it (absent where there is none), and M0, M1 the
memory function's integrals over the cell with weights 1 and x (`schemes/cells.py`). Rows are the ends of the cells: row
k stands for t_(k+1). In chunks of L cells it is a state space model: the weights inside a chunk are a matrix, `intra`;
those of all cells before it go through states, one for each node of a sum of exponentials (`exponentials.py`):
with w the function and T_c the time at which chunk c begins,

    S_q(T_c) = integral of exp(-s_q (T_c - s)) w(s) up to T_c,
    y(t_n)   = intra + sum_q c_q exp(-s_q (t_n - T_c)) S_q(T_c).

Only `intra` and c depend on p. Everything is written once, over the namespace `xp` of NumPy, PyTorch and JAX arrays: in
the kernels' axes data are [sets, rows, inputs, cells] and results [sets, rows, cells]. A set is the signals that share
times and orders, one signal in each of its rows; inputs are the numbers that stand on a cell, mean_i and half_i. There
are C chunks and Q nodes. Orders are [a, ...] and times [grids, n], where a and grids are 1 or sets.

Jiang, Zhang, Zhang & Zhang, Commun. Comput. Phys. 21 (2017) 650, for the states; Dao & Gu, arXiv 2405.21060, for the
names A, B, C.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral, family
from hpfracc_nn.fractional.exponentials import PowerNodes, power_nodes
from hpfracc_nn.fractional.layout import Layout
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace, namespace
from hpfracc_nn.fractional.sample_times import Sampling, Times
from hpfracc_nn.fractional.schemes import SCHEMES, Scheme
from hpfracc_nn.fractional.schemes.cells import integrals, moments
from hpfracc_nn.fractional.weights import CACHE
from hpfracc_nn.selection import Cost, Kernel, Plan, Work, Workload, register

Formula = Callable[[Array, Namespace], Array]  # (orders, xp) -> an array of weights
Evaluate = Callable[[Formula, Array], Array]  # (formula, orders) -> the formula's values

_KINDS = (Caputo, RiemannLiouville, RiemannLiouvilleIntegral)


@dataclass(frozen=True)
class Cellwise:
    """A definition's formulas at times of any spacing.

    Attributes:
        definition: The operator; where alpha is an array, the operator at its upper bound (`definitions.family`), so
            that nothing traced is kept with the formulas.
        taylor: Number of terms of the Taylor polynomial, 1 or 2.
    """

    definition: Definition
    taylor: int

    @property
    def scheme(self) -> Scheme:
        """The definition's scheme."""
        return SCHEMES[self.definition.scheme]

    @property
    def inputs(self) -> int:
        """How many numbers describe the integrand w on a cell: 1, its mean, or 2, also half its increase there."""
        return 1 if self.definition.scheme == "l1" else 2

    def power(self, alpha: Array) -> Array:
        """Return p, the order of the integral, for orders alpha of the operator."""
        assert self.scheme.power is not None, "`cellwise` refuses such schemes"
        return self.scheme.power(alpha, self.taylor)

    def largest_power(self, alpha: Array) -> float:
        """Return the largest order p of the integral: for orders alpha that are no NumPy array, within their bounds."""
        if isinstance(alpha, np.ndarray):
            return float(self.power(alpha).max())
        return max(self.power(bound) for bound in self.definition.interval)

    def pieces(self, x: Array, times: Times, xp: Namespace) -> list[Array]:
        """Return the mean on each cell of the integrand w and, if `inputs` is 2, half its increase over the cell.

        Each is [sets, rows, n - 1], from samples x [sets, rows, n], n > 1.
        """
        steps = xp.constant(times.steps[:, None], x)
        samples = self._slopes(x, times, xp) if self.taylor == 2 else x
        assert self.scheme.pieces is not None, "`cellwise` refuses such schemes"
        return self.scheme.pieces(samples, steps, xp)

    def check(self, owner: str, times: Times) -> None:
        """Raise ValueError where a Riemann-Liouville derivative has one time only."""
        if times.cells == 0 and isinstance(self.definition, RiemannLiouville):
            raise ValueError(
                f"{owner}(t of one time): needs two times or more, because the first step scales the first sample, "
                "where this derivative is infinite; pass more samples, or dt."
            )

    def columns(self, alpha: Array, times: Times) -> Formula | None:
        """Return the formula of the columns [sets, n, terms] that multiply `heads`; None where there are none.

        Args:
            alpha: The orders, [a, 1], or one for each sample, [a, n].
            times: The times of the samples.
        """
        if isinstance(self.definition, RiemannLiouville):
            return partial(_riemann_liouville, times, self.taylor)
        is_integral = isinstance(self.definition, RiemannLiouvilleIntegral)
        if is_integral and isinstance(alpha, np.ndarray) and not alpha[:, 0].all():
            return partial(_identity, times)
        return None

    def heads(self, x: Array, times: Times, xp: Namespace) -> list[Array]:
        """Return what the columns multiply, each [sets, rows, 1]: x(0) and, if `taylor` is 2, x'(0)."""
        return [x[..., :1]] if self.taylor == 1 else [x[..., :1], self._first_slope(x, times, xp)]

    def _slopes(self, x: Array, times: Times, xp: Namespace) -> Array:
        """Return the slopes at the samples of x - x(0) - t x'(0), [sets, rows, n] as x; 0 at the first one."""
        steps = times.steps[:, None]
        before = np.concatenate([0 * steps[..., :1], steps[..., :-1]], axis=-1)  # the slope at 0 is known itself
        slope = (x[..., 1:] - x[..., :-1]) / xp.constant(steps, x) - self._first_slope(x, times, xp)
        zero = 0 * slope[..., :1]
        increase = slope - xp.concat([zero, slope[..., :-1]], axis=-1)
        return xp.concat([zero, slope + increase * xp.constant(steps / (steps + before), x)], axis=-1)

    def _first_slope(self, x: Array, times: Times, xp: Namespace) -> Array:
        """Return x'(0) from the first four samples, [sets, rows, 1]."""
        row = first_slope_row(times.values[:, :4])[:, None, 1:]
        # The weights sum to zero. Of differences single precision loses no digit, and each counts in all that follows.
        increases = x[..., 1 : row.shape[-1] + 1] - x[..., :1]
        return xp.sum(increases * xp.constant(row, x), axis=-1)[..., None]


def cellwise(owner: str, definition: Definition) -> Cellwise:
    """Return a definition's formulas at times of any spacing.

    Raises:
        ValueError: The definition or its scheme has no such formulas.
    """
    if type(definition) not in _KINDS:
        names = ", ".join(kind.__name__ for kind in _KINDS)
        raise ValueError(
            f"{owner}(definition={type(definition).__name__}, t=...): needs one of {names} at times that are not "
            "equally spaced; pass one of these, or dt."
        )
    if not definition.is_plain:
        raise ValueError(
            f"{owner}({definition}, t=...): needs no option but alpha, scheme and bounds at times that are not equally "
            "spaced; leave the others out, or pass dt."
        )
    if SCHEMES[definition.scheme].pieces is None:
        usable = [name for name in type(definition).schemes if SCHEMES[name].pieces is not None]
        raise ValueError(
            f"{owner}({type(definition).__name__}(scheme={definition.scheme!r}), t=...): needs a scheme that takes any "
            f"steps; pass scheme={' or '.join(map(repr, usable))}, or dt."
        )
    return Cellwise(definition if definition.is_fixed else family(definition), definition.taylor)


def first_slope_row(times: np.ndarray) -> np.ndarray:
    """Return weights [grids, k] of samples at k times: the weighted sum is a derivative at the first time.

    The derivative is that of the polynomial through all k samples.
    """
    t = times - times[:, :1]
    grids, k = t.shape
    row = np.zeros((grids, k))
    for j in range(1, k):
        others = [i for i in range(1, k) if i != j]
        row[:, j] = np.prod([-t[:, i] / (t[:, j] - t[:, i]) for i in others], axis=0) / t[:, j]
    row[:, 0] = -row[:, 1:].sum(axis=1)
    return row


def _riemann_liouville(times: Times, terms: int, alpha: Array, xp: Namespace) -> Array:
    """Return the columns (t - t_0)**(j - alpha) / Gamma(j + 1 - alpha), j < terms, at the times: [sets, n, terms].

    alpha is [a, 1] or, each sample its own, [a, n]. The first sample's are h**-alpha, h the first step, and 0; the
    gamma functions as in `definition.taylor_columns`.
    """
    elapsed = times.values[:, 1:] - times.values[:, :1]
    log_step = xp.constant(np.log(times.steps[:, :1]), alpha)
    log_t = xp.constant(np.log(elapsed), alpha)
    at_first, later = (alpha, alpha) if alpha.shape[-1] == 1 else (alpha[..., :1], alpha[..., 1:])
    reciprocal = xp.exp(-xp.gammaln(3 - later)) * (2 - later)
    first = xp.exp(-at_first * log_step)
    columns = [xp.concat([first, (1 - later) * reciprocal * xp.exp(-later * log_t)], axis=-1)]
    if terms == 2:
        columns.append(xp.concat([0 * first, reciprocal * xp.exp((1 - later) * log_t)], axis=-1))
    return xp.stack(columns, axis=-1)


def _identity(times: Times, alpha: np.ndarray, xp: Namespace) -> np.ndarray:
    """Return the column [sets, n, 1] that multiplies x(0) in an integral of orders alpha, [a, 1] or [a, n].

    It is 1 at the first sample where alpha is 0, and the integral the identity, and else 0.
    """
    return (np.equal(alpha, 0) * np.eye(1, times.n))[..., None]


def applied(
    formulas: Cellwise,
    sampling: Sampling,
    x: Array,
    orders: Array,
    evaluate: Evaluate,
    integral: Callable[[Array, Array], Array],
) -> Array:
    """Return the operator applied to samples, in the caller's axes and in the integral's dtype or float64.

    Args:
        formulas: The definition's formulas.
        sampling: The times, and how the samples' axes correspond to theirs.
        x: Samples, in the caller's axes.
        orders: The orders, [*c, 1], or one for each sample, [*c, n]; a NumPy array where they are fixed.
        evaluate: Returns a formula's values at orders that are not fixed, in float64 where there is one.
        integral: Called as integral(alpha, data): returns the integral at the cells' ends of data
            [sets, rows, inputs, cells], for orders alpha of the operator, [a, 1], or one for each row, [a, cells].
    """
    xp, times, alpha = namespace(x), sampling.times, sampling.by_set(orders)
    data = _by_set(x, sampling.layout, xp)
    y = data[..., 1:]
    if times.cells:
        pieces = xp.stack(formulas.pieces(data, times, xp), axis=2)
        y = integral(alpha if alpha.shape[-1] == 1 else alpha[:, 1:], pieces)
    y = xp.pad(y, 1, 0, axis=-1)  # the integral begins with 0
    formula = formulas.columns(alpha, times)
    if formula is not None:
        y, is_fixed = xp.asarray(y), isinstance(alpha, np.ndarray)
        columns = xp.constant(formula(alpha, NUMPY), data) if is_fixed else evaluate(formula, alpha)
        for j, head in enumerate(formulas.heads(data, times, xp)):
            y += columns[:, None, :, j] * head
    return _as_before(y, sampling.layout, xp)


def _by_set(x: Array, layout: Layout, xp: Namespace) -> Array:
    """Return the caller's samples x in the kernels' axes, [sets, rows, n], in float64 where there is one."""
    ordered = xp.asarray(x) if layout.order is None else xp.permute_dims(xp.asarray(x), layout.order)
    data = xp.permute_dims(ordered.reshape(layout.canonical), (1, 0, 3, 2))
    return data.reshape(layout.channels, -1, layout.n)


def _as_before(y: Array, layout: Layout, xp: Namespace) -> Array:
    """Return results [sets, rows, n] in the layout of the caller's samples; the inverse of `_by_set`."""
    canonical = xp.permute_dims(y.reshape(layout.channels, layout.batch, layout.width, layout.n), (1, 0, 3, 2))
    ordered = canonical.reshape(layout.permuted)
    return ordered if layout.inverse is None else xp.permute_dims(ordered, layout.inverse)


# The weights as linear operators


@dataclass(frozen=True, eq=False)
class Dense:
    """The integral as a product with matrices.

    Attributes:
        weights: [sets, cells, inputs * cells]: weights of the cells' means, then those of half their increases.
    """

    weights: Array

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return nbytes(self.weights)

    def matvec(self, z: Array) -> Array:
        """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
        sets, rows, inputs, cells = z.shape
        return namespace(z).matmul(z.reshape(sets, rows, inputs * cells), self.weights.mT)

    def rmatvec(self, g: Array) -> Array:
        """Return the transpose of `matvec` applied to g."""
        sets, rows, cells = g.shape
        return namespace(g).matmul(g, self.weights).reshape(sets, rows, -1, cells)


@dataclass(frozen=True, eq=False)
class ChunkedScan:
    """The integral by chunks of L cells: matrices of weights inside a chunk, a state space model between chunks.

    Attributes:
        intra: Weights inside each chunk, [sets, C, L, inputs * L].
        B: From a chunk's cells to the states at its end, [grids, C, inputs * L, Q]; None where there is one chunk.
        C: From the states at a chunk's begin to its rows, times the coefficients, [sets, C, L, Q].
        A: The states' decay over k = 1, 2, 4, ... chunks, float64 where there is one, each [grids, C - k, 1, Q].
    """

    intra: Array
    B: Array | None = None
    C: Array | None = None
    A: tuple[Array, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return nbytes((self.intra, self.B, self.C, self.A))

    def matvec(self, z: Array) -> Array:
        """Return the integral at the cells' ends, [sets, rows, cells], of data [sets, rows, inputs, cells]."""
        xp = namespace(z)
        chunks = self._split(z, xp)
        y = xp.matmul(chunks, self.intra.mT)
        if self.B is not None and self.C is not None:
            y += xp.matmul(self._scan(xp.matmul(chunks, self.B), xp), self.C.mT)
        return y.swapaxes(1, 2).reshape(*z.shape[:2], -1)[..., : z.shape[-1]]

    def rmatvec(self, g: Array) -> Array:
        """Return the transpose of `matvec` applied to g."""
        xp = namespace(g)
        chunks = self._split(g[:, :, None], xp)
        z = xp.matmul(chunks, self.intra)
        if self.B is not None and self.C is not None:
            z += xp.matmul(self._scan_transposed(xp.matmul(chunks, self.C), xp), self.B.mT)
        sets, count, rows, _ = z.shape
        z = xp.permute_dims(z.reshape(sets, count, rows, -1, LENGTH), (0, 2, 3, 1, 4))
        return z.reshape(sets, rows, -1, count * LENGTH)[..., : g.shape[-1]]

    def _split(self, z: Array, xp: Namespace) -> Array:
        """Return data [sets, rows, inputs, cells] as C chunks of L cells, [sets, C, rows, inputs * L]."""
        sets, rows, inputs, cells = z.shape
        count = self.intra.shape[1]
        z = xp.pad(z, 0, count * LENGTH - cells, axis=-1).reshape(sets, rows, inputs, count, LENGTH)
        return xp.permute_dims(z, (0, 3, 1, 2, 4)).reshape(sets, count, rows, inputs * LENGTH)

    def _scan(self, added: Array, xp: Namespace) -> Array:
        """Return the states before each chunk, [sets, C, rows, Q], by recursive doubling.

        `added`, of the same shape, is what each chunk adds to the states.
        """
        states = xp.pad(xp.asarray(added[:, :-1]), 1, 0, axis=1)
        for k, decay in enumerate(self.A):
            step = 1 << k
            states += xp.pad(decay * states[:, :-step], step, 0, axis=1)
        return xp.astype(states, added.dtype)

    def _scan_transposed(self, grads: Array, xp: Namespace) -> Array:
        """Return the transpose of `_scan` applied to `grads`, [sets, C, rows, Q], which it may overwrite."""
        states = xp.asarray(grads)
        for k, decay in reversed(list(enumerate(self.A))):
            step = 1 << k
            states += xp.pad(decay * states[:, step:], 0, step, axis=1)
        return xp.astype(xp.pad(states[:, 1:], 0, 1, axis=1), grads.dtype)


LinearOperator = Dense | ChunkedScan


def _kept(made: dict[str, Any], name: str, make: Callable[[], Any]) -> Any:
    operator = made.get(name)
    return made.setdefault(name, make()) if operator is None else operator


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of an integral at given times, from which kernels make their linear operators.

    Attributes:
        grid: The part of the weights that depends on the times alone.
        orders: The orders that `evaluate` takes: [a, 1], or one for each row, [a, cells].
        largest: The largest order of the integral; of learned orders, within their bounds.
        evaluate: Called as evaluate(formula, orders): returns the formula's values in the product's dtype.
        constants: Called as constants(grid): returns the grid's B and A in arrays like those of `evaluate`, and C as
            the formula `Grid.outputs` takes it.
        is_split: Whether a few rows or chunks are evaluated at a time, because autograd keeps much of each.
        keep: Called as keep(made, name, make): returns made[name], or make(), which it inserts there.
        made: The operators that were made so far, by name.
    """

    grid: Grid
    orders: Array
    largest: float
    evaluate: Evaluate
    constants: Callable[[Grid], Constants]
    is_split: bool = True
    keep: Callable[..., Any] = _kept
    made: dict[str, LinearOperator] = field(default_factory=dict, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the operators that were made so far."""
        return nbytes(self.made)

    @property
    def states(self) -> int:
        """Q; 0 where the order may be above 1, or where one chunk holds all cells."""
        return self.grid.states if self.largest <= 1 else 0

    @property
    def dense(self) -> Dense:
        """The operator by matrices of all weights, made at first use."""
        return self.keep(self.made, "dense", self._dense)

    @property
    def chunked_scan(self) -> ChunkedScan:
        """The operator by weights inside chunks and states between them, made at first use."""
        return self.keep(self.made, "chunked_scan", self._chunked_scan)

    def of(self, orders: Array, evaluate: Evaluate | None = None) -> Weights:
        """Return Weights of other orders at the same times; a new `evaluate` may compute derivatives in their place."""
        return replace(self, orders=orders, evaluate=evaluate or self.evaluate, keep=_kept)

    def _dense(self) -> Dense:
        return Dense(self._joined(self.grid.rows, self.orders, self.grid.times.cells, ROWS))

    def _chunked_scan(self) -> ChunkedScan:
        grid, orders = self.grid, self.grid.in_chunks(self.orders)
        intra = self._joined(grid.intra, orders, grid.count, CHUNKS)
        if grid.nodes is None:
            return ChunkedScan(intra)
        B, C, A = self.constants(grid)
        return ChunkedScan(intra, B, self.evaluate(partial(grid.outputs, C), orders), A)

    def _joined(
        self, formula: Callable[[range, Array, Namespace], Array], orders: Array, count: int, few: int
    ) -> Array:
        """Return a formula's values for all rows of the matrix, or all chunks, evaluated a few at a time.

        Args:
            formula: Takes a range of rows or chunks, their orders and a namespace; returns [sets, as many, ...].
            orders: Orders for all rows or chunks alike, [a, 1, ...], or for each, [a, count, ...].
            count: How many rows or chunks there are.
            few: How many of them are evaluated together if `is_split`.
        """
        few = few if self.is_split else count
        parts = []
        for begin in range(0, count, few):
            block = range(begin, min(begin + few, count))
            own = orders if orders.shape[1] == 1 else orders[:, block.start : block.stop]
            parts.append(self.evaluate(partial(formula, block), own))
        return parts[0] if len(parts) == 1 else namespace(parts[0]).concat(parts, axis=1)


def fixed_weights(power: np.ndarray, times: Times, inputs: int, dtype: np.dtype) -> Weights:
    """Return the NumPy weights of an integral of fixed orders, from the cache or new.

    Args:
        power: The orders of the integral, [a, 1], or one for each row, [a, cells].
        times: The times, more than one.
        inputs: As in `Cellwise`.
        dtype: Dtype of the product.
    """

    def evaluate(formula: Formula, power: np.ndarray) -> np.ndarray:
        return formula(power, NUMPY).astype(dtype)

    def build() -> Weights:
        grid = grid_of(times, inputs, dtype)
        return Weights(grid, power, float(power.max()), evaluate, lambda grid: grid.constants)

    return CACHE.get(("cells", power.shape, power.tobytes(), times, inputs, dtype), build)


def grid_of(times: Times, inputs: int, dtype: np.dtype) -> Grid:
    """Return the Grid of given times, from the cache or new; arguments as in `fixed_weights`."""
    return CACHE.get(("cells", times, inputs, dtype), lambda: Grid(times, inputs, dtype))


LENGTH = 32  # L
ROWS = 64  # rows of a matrix that are computed together
CHUNKS = 128  # chunks that are computed together
_NEGLIGIBLE = 1e-20  # decays below it are 0: subnormal numbers slow a float32 product tenfold
_SHORT = 0.5  # s d, below which the integral of x exp(-s ...) takes its series

Constants = tuple[Array, Array, tuple[Array, ...]]  # B, C without the coefficients, A


@dataclass(frozen=True, eq=False)
class Grid:
    """The part of an integral's weights that depends on the times alone, and the formulas of the rest, in NumPy.

    The last chunk is filled up with cells as long as the last one.

    Attributes:
        times: The times, more than one.
        inputs: As in `Cellwise`: 1 where all increases are 0, else 2.
        dtype: Dtype of the product, whose tolerance the exponentials meet.
        placed: Copies of `constants` by device.
    """

    times: Times
    inputs: int
    dtype: np.dtype
    placed: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that were made so far."""
        return nbytes(vars(self))

    @cached_property
    def count(self) -> int:
        """C, the number of chunks."""
        return -(-self.times.cells // LENGTH)

    @cached_property
    def _padded(self) -> np.ndarray:
        """The times, continued with steps like the last one until the chunks are full: [grids, C L + 1]."""
        values, more = self.times.values, self.count * LENGTH - self.times.cells
        return np.concatenate([values, values[:, -1:] + self.times.steps[:, -1:] * np.arange(1, more + 1)], axis=-1)

    @cached_property
    def nodes(self) -> PowerNodes | None:
        """The exponentials, for all times between a cell before a chunk and a row of the chunk; None for one chunk."""
        starts = self._padded[:, LENGTH:-1:LENGTH]
        if not starts.size:
            return None
        shortest = (self._padded[:, LENGTH + 1 :: LENGTH] - starts).min()
        longest = (self._padded[:, -1] - self._padded[:, 0]).max()
        return power_nodes(float(shortest), float(longest), self.dtype.name)

    @property
    def states(self) -> int:
        """Q, the number of states; 0 for one chunk."""
        return 0 if self.nodes is None else self.nodes.rates.size

    def in_chunks(self, orders: Array) -> Array:
        """Return orders [a, 1] as [a, 1, 1], those of each row, [a, cells], as [a, C, L]: the last one is repeated."""
        if orders.shape[-1] == 1:
            return orders[..., None]
        at = np.minimum(np.arange(self.count * LENGTH), self.times.cells - 1)
        return namespace(orders).take(orders, at, axis=-1).reshape(-1, self.count, LENGTH)

    def rows(self, rows: range, power: Array, xp: Namespace) -> Array:
        """Return some rows of the matrix, [sets, rows, inputs * cells], for orders p, [a, 1] or [a, rows]."""
        at, cells = range(rows.start + 1, rows.stop + 1), self.times.cells
        parts = moments(power, self.times.values, at, range(rows.stop), xp)[: self.inputs]
        rest = xp.constant(np.zeros((parts[0].shape[0], len(rows), cells - rows.stop)), power)
        return xp.concat([each for part in parts for each in (part, rest)], axis=-1)

    def intra(self, chunks: range, power: Array, xp: Namespace) -> Array:
        """Return the weights inside some chunks, [sets, chunks, L, inputs * L], for orders p of the integral.

        The orders are [a, 1, 1] or [a, chunks, L].
        """
        rows, columns = np.tril_indices(LENGTH)  # the others are zero
        if power.shape[-1] > 1:
            power = xp.take(power, rows, axis=-1)
        part = slice(chunks.start * LENGTH, chunks.stop * LENGTH)
        half, middle, end = (each[:, part].reshape(-1, len(chunks), LENGTH) for each in self._cells)
        distance = end[..., rows] - middle[..., columns]
        parts = integrals(power, distance, half[..., columns] / distance, rows - columns + 1, xp)[: self.inputs]
        places = np.full((LENGTH, LENGTH), rows.size)
        places[rows, columns] = np.arange(rows.size)
        padded = [xp.concat([each, 0 * each[..., :1]], axis=-1) for each in parts]
        return xp.concat([xp.take(each, places, axis=-1) for each in padded], axis=-1)

    def outputs(self, C: Array, power: Array, xp: Namespace) -> Array:
        """Return the array C times the coefficients, [sets, C, L, Q], for orders p of the integral.

        The orders are [a, 1, 1] or [a, C, L].
        """
        assert self.nodes is not None, "one chunk has no states"
        return xp.constant(C, power) * self.nodes.coefficients(power[..., None], xp)

    @cached_property
    def constants(self) -> Constants:
        """The arrays B in the product's dtype, C without the coefficients, and A; shapes as in `ChunkedScan`."""
        assert self.nodes is not None, "one chunk has no states"
        rates, starts = self.nodes.rates, self._padded[:, :-1:LENGTH]
        half, _, end = (each.reshape(-1, self.count, LENGTH) for each in self._cells)
        steps = [1 << k for k in range((self.count - 1).bit_length())]
        A = tuple(_decay(rates, starts[:, step:] - starts[:, :-step])[:, :, None] for step in steps)
        B = self._inputs(half, _decay(rates, end[..., -1:] - end)).astype(self.dtype)
        return B, _decay(rates, end - starts[..., None]), A

    def _inputs(self, half: np.ndarray, decay: np.ndarray) -> np.ndarray:
        """Return B in float64, [grids, C, inputs * L, Q].

        Args:
            half: Half the length of each cell, [grids, C, L].
            decay: exp(-s t), t the time from the end of a cell to that of its chunk, [grids, C, L, Q].
        """
        assert self.nodes is not None, "one chunk has no states"
        is_seen = decay > 0
        length = np.broadcast_to(half[..., None], decay.shape)[is_seen]
        w = (half[..., None] * self.nodes.rates)[is_seen]
        parts = []
        for integral in (_mean_integral, _half_integral)[: self.inputs]:
            part = np.zeros(decay.shape)
            part[is_seen] = decay[is_seen] * length * integral(w)
            parts.append(part)
        return np.concatenate(parts, axis=-2)

    @cached_property
    def _cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Half the length, the midpoint and the end of each cell, [grids, C L] each."""
        left, right = self._padded[:, :-1], self._padded[:, 1:]
        return (right - left) / 2, left + (right - left) / 2, right


def _decay(rates: np.ndarray, elapsed: np.ndarray) -> np.ndarray:
    """Return exp(-s t) for decay rates s [Q] and elapsed times t [...], [..., Q]; 0 below 1e-20."""
    found = np.exp(-elapsed[..., None] * rates)
    found[found < _NEGLIGIBLE] = 0
    return found


def _mean_integral(w: np.ndarray) -> np.ndarray:
    """Return the integral of exp(-w (1 - x)) over x from -1 to 1, w >= 0.

    Half a cell's length, d, times it is the integral of exp(-s (end - t)) over the cell, with w = s d. It is
    2 exp(-w) i_0(w), i_0(w) = sinh(w) / w the modified spherical Bessel function.
    """
    with np.errstate(invalid="ignore"):
        return np.where(w > 0, -np.expm1(-2 * w) / w, 2.0)


def _half_integral(w: np.ndarray) -> np.ndarray:
    """Return the integral of x exp(-w (1 - x)) over x from -1 to 1, w >= 0, by its series for small w.

    Half a cell's length, d, times it is the integral of x exp(-s (end - t)) over the cell, with w = s d, and x from -1
    to 1 on it. It is 2 exp(-w) i_1(w), i_1 the modified spherical Bessel function.
    """
    is_short = w < _SHORT
    found, short, long = np.empty(w.shape), w[is_short], w[~is_short]
    found[~is_short] = ((long - 1) + (long + 1) * np.exp(-2 * long)) / long**2
    square, series = short**2, np.ones(short.shape)
    for k in range(7, 0, -1):  # _SHORT**14 / (2**7 7! 17!! / 3!!) < 1e-17
        series = 1 + series * square / (2 * k * (2 * k + 3))
    found[is_short] = np.exp(-short) * short * series * (2 / 3)
    return found


# The kernels

OP = "nonuniform"
_LARGEST = 1 << 30  # bytes of all matrices
_WEIGHT = 150.0  # element-wise operations that make a weight of the matrix and its derivative
_NEAR_WEIGHT = 300.0  # the same of one near the diagonal, where there is no series
_KEPT = 30  # numbers that autograd keeps of each learned weight until its derivative is computed


def workload(framework: str, weights: Any, z: Array, **facts: Any) -> Workload:
    """Return the Workload of a product with data z [sets, rows, inputs, cells]; `facts` are further fields of it."""
    sets, rows, inputs, cells = z.shape
    return Workload(
        OP,
        framework,
        **{"rows": sets * rows, "channels": sets} | facts,
        dtype=str(z.dtype).removeprefix("torch."),
        n=cells,
        width=inputs,
        exponentials=weights.states,
    )


def in_parts(step: Callable[[Any, Array], Array], operator: LinearOperator, data: Array, chunk: int | None) -> Array:
    """Return step(operator, data), computed for a few signals at a time where memory is short.

    Args:
        step: A kernel's `run` or `adjoint`.
        operator: The weights, as the kernel takes them.
        data: Data of `matvec` or `rmatvec`, [sets, rows, ...].
        chunk: How many signals, of all sets together, the plan has memory for; None for all.
    """
    if chunk is None:
        return step(operator, data)
    count = max(1, chunk // data.shape[0])
    parts = [step(operator, data[:, i : i + count]) for i in range(0, data.shape[1], count)]
    return namespace(data).concat(parts, axis=1)


def _prepared(plan: Plan, weights: Any) -> tuple[Plan, LinearOperator]:
    return plan, plan.kernel.prepare(weights, plan.workload)


PREPARED = Work(_prepared, is_timed=False)


def dense_cost(workload: Workload) -> Cost:
    """Return the cost of the product with the matrices."""
    passes = _passes(workload)
    matrices = float(workload.channels * workload.n**2 * workload.width)
    return Cost(
        flops={
            "matmul": 2.0 * workload.samples * workload.n * passes,
            "elementwise": _WEIGHT * matrices / 2 * workload.learns_weights,
        },
        bytes=passes * (2.0 * workload.bytes + matrices * workload.itemsize),
        launches=passes * 2,
        workspace=(1 + workload.learns_weights) * matrices * workload.itemsize
        + 8.0 * _KEPT * workload.learns_weights * matrices * min(1.0, ROWS / workload.n),
    )


def scan_cost(workload: Workload) -> Cost:
    """Return the cost of products inside chunks and of the states between them."""
    passes, states, width = _passes(workload), workload.exponentials, workload.width
    count = math.ceil(workload.n / LENGTH)
    near = float(workload.channels * count * LENGTH**2 * width)
    far = float(workload.channels * count * LENGTH * states * (width + 1))
    scanned = 2.0 * (workload.rows * count * states) * max(1, math.ceil(math.log2(count)))
    return Cost(
        flops={
            "matmul": passes * 2.0 * workload.samples * (LENGTH + states * (1 + 1 / width)),
            "elementwise": passes * scanned + _NEAR_WEIGHT * near / 2 * workload.learns_weights,
        },
        bytes=passes * (4.0 * workload.bytes + (near + far) * workload.itemsize + 8 * scanned),
        launches=passes * (12 + 4 * math.ceil(math.log2(max(count, 2)))),
        workspace=(1 + workload.learns_weights) * (near + far) * workload.itemsize
        + 24.0 * workload.rows * count * states
        + 8.0 * _KEPT * workload.learns_weights * near * min(1.0, CHUNKS / count),
    )


def refuses_dense(workload: Workload) -> str | None:
    """Return why the matrices are too large, or None."""
    size = workload.channels * workload.n**2 * workload.width * workload.itemsize
    if size > _LARGEST:
        return f"n={workload.n + 1} needs {size / 2**30:.3g} GiB of matrices"
    return None


def refuses_scan(workload: Workload) -> str | None:
    """Return, as a text, that the weights have no states although there is more than one chunk; or None."""
    if workload.exponentials == 0 and workload.n > LENGTH:
        return "above order 1 an integral's memory grows, and is no sum of decaying exponentials"
    return None


def saves(workload: Workload) -> float:
    """Return the bytes that are held for the backward pass: the data, where the weights are learned."""
    return float(workload.bytes if workload.learns_weights else 0)


def _passes(workload: Workload) -> int:
    return 1 + workload.needs_gradient + workload.learns_weights


def register_kernels(framework: str, backend: str, **options: Any) -> None:
    """Register both kernels for the arrays of a framework; `options` are those of `Kernel`."""
    for algorithm, cost, refuses in (("dense", dense_cost, refuses_dense), ("chunked_scan", scan_cost, refuses_scan)):
        register(
            Kernel(
                OP,
                framework,
                backend,
                algorithm,
                run=lambda operator, z: operator.matvec(z),
                adjoint=lambda operator, g: operator.rmatvec(g),
                prepare=lambda weights, workload, name=algorithm: getattr(weights, name),
                cost=cost,
                refuses=refuses,
                **options,
            )
        )
