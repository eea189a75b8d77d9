"""Product integration: what a definition is at any times, as matrices, with the kernels and their costs.

    y(t_n) = I^p w (t_n) + analytic terms,      w linear on each cell,

with w the derivative of the interpolated samples (above alpha = 1: of their slopes) and p = ceil(alpha) - alpha, or for
an integral w the interpolated samples and p = alpha. At equal steps these are the stencils of the schemes l1, l1_2 and
trapezoid: above alpha = 1 the slope at a sample is the two-step backward difference, at the first step that of the
parabola that begins with x'(0), and x'(0) comes from the first four samples.

The integral is a product with matrices,

    y(t_n) = sum over cells i < n of  M0[n, i] mean_i + M1[n, i] half_i,

mean_i the function's mean on cell i, half_i half its increase over it (absent where there is none), and M0, M1 the
memory function's integrals over the cell with weights 1 and x (`schemes/cells.py`). Rows are the ends of the cells: row
k stands for t_(k+1). In chunks of L cells the weights inside a chunk are a matrix, `near`; those of all cells before it
go through states, one for each node of a sum of exponentials (`schemes/exponentials.py`): with w the function and T_c
the time at which chunk c begins,

    S_q(T_c) = integral of exp(-s_q (T_c - s)) w(s) up to T_c,
    y(t_n)   = near + sum_q c_q exp(-s_q (t_n - T_c)) S_q(T_c).

Only `near` and c depend on p. Everything here is float64 and of shape [sets, ...]; sets is 1 where all signals share
times and orders.

Jiang, Zhang, Zhang & Zhang, Commun. Comput. Phys. 21 (2017) 650, for the states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouville, RiemannLiouvilleIntegral, family
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.sample_times import Times
from hpfracc_nn.fractional.schemes import SCHEMES, Scheme
from hpfracc_nn.fractional.schemes.cells import integrals, moments
from hpfracc_nn.fractional.schemes.exponentials import PowerNodes, power_nodes
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_KINDS = (Caputo, RiemannLiouville, RiemannLiouvilleIntegral)


@dataclass(frozen=True)
class Cellwise:
    """A definition's formulas at any times.

    Attributes:
        definition: Which; of orders in an array their family, so that nothing traced is kept with formulas.
        taylor: Terms of the Taylor polynomial, 1 or 2.
    """

    definition: Definition
    taylor: int

    @property
    def scheme(self) -> Scheme:
        """The definition's scheme."""
        return SCHEMES[self.definition.scheme]

    @property
    def inputs(self) -> int:
        """Numbers that stand on a cell: its mean, and half its increase where it is no constant."""
        return 1 if self.definition.scheme == "l1" else 2

    def power(self, alpha: Array) -> Array:
        """Return the order of the integral."""
        assert self.scheme.power is not None, "`cellwise` refuses such schemes"
        return self.scheme.power(alpha, self.taylor)

    def pieces(self, x: Array, times: Times, xp: Namespace) -> list[Array]:
        """Return what stands on each cell, each [sets, rows, n - 1], from samples x [sets, rows, n], n > 1."""
        steps = xp.constant(times.steps[:, None], x)
        samples = self._slopes(x, times, xp) if self.taylor == 2 else x
        assert self.scheme.pieces is not None, "`cellwise` refuses such schemes"
        return self.scheme.pieces(samples, steps, xp)

    def check(self, owner: str, times: Times) -> None:
        """Raise where there are too few times."""
        if times.cells == 0 and isinstance(self.definition, RiemannLiouville):
            raise ValueError(
                f"{owner}(t of one time): needs two times or more, because the first step scales the first sample, "
                "where this derivative is infinite; pass more samples, or dt."
            )

    def columns(self, alpha: Array, times: Times, xp: Namespace) -> Array | None:
        """Return the columns [sets, terms, n] that multiply x(0) and x'(0); None where there are none.

        Args:
            alpha: [a, 1], or each row its own, [a, n].
            times: More than one.
            xp: The namespace of alpha.
        """
        if isinstance(self.definition, RiemannLiouville):
            return _riemann_liouville(alpha, times, self.taylor, xp)
        if isinstance(self.definition, RiemannLiouvilleIntegral) and isinstance(alpha, np.ndarray):
            first = np.eye(1, times.n)
            is_identity = np.equal(alpha, 0) * first  # which the limit from above misses at the first sample
            return xp.stack([xp.constant(is_identity, alpha)], axis=-2) if is_identity.any() else None
        return None

    def heads(self, x: Array, times: Times, xp: Namespace) -> list[Array]:
        """Return what the columns multiply, each [sets, rows, 1]: x(0) and, of two, x'(0)."""
        return [x[..., :1]] if self.taylor == 1 else [x[..., :1], self._first_slope(x, times, xp)]

    def _slopes(self, x: Array, times: Times, xp: Namespace) -> Array:
        """Return the slope of x less its Taylor polynomial at every sample, 0 at the first."""
        steps = times.steps[:, None]
        before = np.concatenate([0 * steps[..., :1], steps[..., :-1]], axis=-1)  # the slope at 0 is known itself
        slope = (x[..., 1:] - x[..., :-1]) / xp.constant(steps, x) - self._first_slope(x, times, xp)
        nothing = 0 * slope[..., :1]
        increase = slope - xp.concat([nothing, slope[..., :-1]], axis=-1)
        return xp.concat([nothing, slope + increase * xp.constant(steps / (steps + before), x)], axis=-1)

    def _first_slope(self, x: Array, times: Times, xp: Namespace) -> Array:
        """Return x'(0) from the first four samples, [sets, rows, 1]."""
        row = first_slope_row(times.values[:, :4])[:, None, 1:]
        # The weights sum to zero. Of differences single precision loses no digit, and each counts in all that follows.
        increases = x[..., 1 : row.shape[-1] + 1] - x[..., :1]
        return xp.sum(increases * xp.constant(row, x), axis=-1)[..., None]


def cellwise(owner: str, definition: Definition) -> Cellwise:
    """Return a definition's formulas at any times.

    Raises:
        ValueError: There are none for this definition or scheme.
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
    """Return the rows [grids, k] that give the derivative at the first of k times of the polynomial through all k."""
    t = times - times[:, :1]
    grids, k = t.shape
    row = np.zeros((grids, k))
    for j in range(1, k):
        others = [i for i in range(1, k) if i != j]
        row[:, j] = np.prod([-t[:, i] / (t[:, j] - t[:, i]) for i in others], axis=0) / t[:, j]
    row[:, 0] = -row[:, 1:].sum(axis=1)
    return row


def _riemann_liouville(alpha: Array, times: Times, terms: int, xp: Namespace) -> Array:
    """Return (t - t_0)**(j - alpha) / Gamma(j + 1 - alpha), j < terms, [sets, terms, n].

    The first sample's are h**-alpha, h the first step, and 0; the gamma functions as in `definition.taylor_columns`.
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
    return xp.stack(columns, axis=-2)


LENGTH = 32  # L
ROWS = 64  # of a matrix that are computed together
CHUNKS = 128  # the same of chunks
_NEGLIGIBLE = 1e-20  # decays below it are 0: subnormal numbers slow a float32 product tenfold
_SHORT = 0.5  # s d, below which the integral of x exp(-s ...) takes its series


def matrix(power: Array, times: Times, inputs: int, xp: Namespace) -> Array:
    """Return all weights, [sets, rows, inputs * cells]: those of the means, then those of the increases.

    Args:
        power: p, [a, 1], or each row its own, [a, cells]; float64.
        times: The times.
        inputs: 1 where all increases are 0, else 2.
        xp: The namespace of `power`.
    """
    blocks = [matrix_rows(power, xp, times=times, inputs=inputs, rows=rows) for rows in blocks_of(times.cells, ROWS)]
    joined = xp.concat([block.reshape(block.shape[0], -1) for block in blocks], axis=-1)
    return joined.reshape(joined.shape[0], times.cells, inputs * times.cells)


def matrix_rows(power: Array, xp: Namespace, *, times: Times, inputs: int, rows: range) -> Array:
    """Return some rows of the matrix, [sets, rows, inputs * cells]."""
    own = power if power.shape[-1] == 1 else power[..., rows.start : rows.stop]
    parts = moments(own, times.values, range(rows.start + 1, rows.stop + 1), range(rows.stop), xp)[:inputs]
    rest = xp.constant(np.zeros((parts[0].shape[0], len(rows), times.cells - rows.stop)), power)
    return xp.concat([each for part in parts for each in (part, rest)], axis=-1)


def blocks_of(count: int, length: int) -> list[range]:
    """Return 0 to count - 1 in ranges of `length` and one of the rest."""
    return [range(begin, min(begin + length, count)) for begin in range(0, count, length)]


@dataclass(frozen=True, eq=False)
class Chunks:
    """What chunks take from the times alone, in NumPy; the last chunk is filled up with more cells like the last one.

    Attributes:
        times: The times.
        inputs: As in `matrix`.
        precision: Name of the dtype whose tolerance the exponentials meet.
    """

    times: Times
    inputs: int
    precision: str

    @cached_property
    def count(self) -> int:
        """How many chunks, C."""
        return -(-self.times.cells // LENGTH)

    @cached_property
    def _padded(self) -> np.ndarray:
        """The times up to the end of the last chunk, [grids, C L + 1]."""
        values, more = self.times.values, self.count * LENGTH - self.times.cells
        return np.concatenate([values, values[:, -1:] + self.times.steps[:, -1:] * np.arange(1, more + 1)], axis=-1)

    @cached_property
    def nodes(self) -> PowerNodes | None:
        """Those of the exponentials, for all lags between a chunk's rows and what is before it; None for one chunk."""
        starts = self._padded[:, LENGTH:-1:LENGTH]
        if not starts.size:
            return None
        shortest = (self._padded[:, LENGTH + 1 :: LENGTH] - starts).min()
        longest = (self._padded[:, -1] - self._padded[:, 0]).max()
        return power_nodes(float(shortest), float(longest), self.precision)

    @property
    def states(self) -> int:
        """Q, 0 for one chunk."""
        return 0 if self.nodes is None else self.nodes.rates.size

    def near(self, power: Array, xp: Namespace, chunks: range | None = None) -> Array:
        """Return the weights inside chunks, all or some, [sets, chunks, L rows, inputs * L]; `power` as in `matrix`."""
        chunks = range(self.count) if chunks is None else chunks
        at = np.arange(chunks.start * LENGTH, chunks.stop * LENGTH)
        rows, columns = np.tril_indices(LENGTH)  # the others are zero
        if power.shape[-1] > 1:
            power = xp.take(power, np.minimum(at, self.times.cells - 1), axis=-1).reshape(-1, len(chunks), LENGTH)
            power = xp.take(power, rows, axis=-1)
        else:
            power = power[..., None]
        half, middle, end = (each[:, at].reshape(-1, len(chunks), LENGTH) for each in self._cells)
        distance = end[..., rows] - middle[..., columns]
        parts = integrals(power, distance, half[..., columns] / distance, rows - columns + 1, xp)[: self.inputs]
        places = np.full((LENGTH, LENGTH), rows.size)
        places[rows, columns] = np.arange(rows.size)
        padded = [xp.concat([part, 0 * part[..., :1]], axis=-1) for part in parts]
        return xp.concat([xp.take(part, places, axis=-1) for part in padded], axis=-1)

    def coefficients(self, power: Array, xp: Namespace) -> Array:
        """Return c, [a, 1, 1, Q], or each row its own, [a, C, L, Q]."""
        assert self.nodes is not None, "one chunk has no states"
        if power.shape[-1] == 1:
            return self.nodes.coefficients(power, xp)[..., None, None, :]
        power = xp.take(power, np.minimum(np.arange(self.count * LENGTH), self.times.cells - 1), axis=-1)
        return self.nodes.coefficients(power.reshape(-1, self.count, LENGTH, 1), xp)

    @cached_property
    def into(self) -> np.ndarray:
        """From a chunk's cells to the states at its end, [grids, C, inputs * L, Q]."""
        assert self.nodes is not None, "one chunk has no states"
        half, _, end = (each.reshape(-1, self.count, LENGTH) for each in self._cells)
        decay = _decay(self.nodes.rates, end[..., -1:] - end)
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
    def out(self) -> np.ndarray:
        """From the states at a chunk's begin to its rows, without the coefficients, [grids, C, L rows, Q]."""
        assert self.nodes is not None, "one chunk has no states"
        end = self._padded[:, 1:].reshape(-1, self.count, LENGTH)
        return _decay(self.nodes.rates, end - self._starts[..., None])

    @cached_property
    def decays(self) -> list[np.ndarray]:
        """The states' decay over 1, 2, 4, ... chunks up to each begin, each [grids, C, 1, Q]; 0 where fewer are."""
        assert self.nodes is not None, "one chunk has no states"
        found, step = [], 1
        while step < self.count:
            passed = self._starts[:, step:] - self._starts[:, :-step]
            decay = _decay(self.nodes.rates, passed)[:, :, None]
            found.append(np.concatenate([np.zeros((decay.shape[0], step, *decay.shape[2:])), decay], axis=1))
            step *= 2
        return found

    @cached_property
    def _starts(self) -> np.ndarray:
        return self._padded[:, :-1:LENGTH]

    @cached_property
    def _cells(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Half the length, the middle and the end of each cell, [grids, C L]."""
        left, right = self._padded[:, :-1], self._padded[:, 1:]
        return (right - left) / 2, left + (right - left) / 2, right


def _decay(rates: np.ndarray, passed: np.ndarray) -> np.ndarray:
    """Return exp(-s passed), [..., Q], 0 where it is negligible."""
    found = np.exp(-passed[..., None] * rates)
    found[found < _NEGLIGIBLE] = 0
    return found


def _mean_integral(w: np.ndarray) -> np.ndarray:
    """Return the integral of exp(-w (1 - x)) over x from -1 to 1: that of exp(-s (end - t)) over a cell of length 2.

    It is 2 exp(-w) times the modified spherical Bessel function i_0(w) = sinh(w) / w.
    """
    with np.errstate(invalid="ignore"):
        return np.where(w > 0, -np.expm1(-2 * w) / w, 2.0)


def _half_integral(w: np.ndarray) -> np.ndarray:
    """Return the same with x as a factor: 2 exp(-w) i_1(w), by its series where the closed form cancels."""
    is_short = w < _SHORT
    found, short, long = np.empty(w.shape), w[is_short], w[~is_short]
    found[~is_short] = ((long - 1) + (long + 1) * np.exp(-2 * long)) / long**2
    square, series = short**2, np.ones(short.shape)
    for k in range(7, 0, -1):  # _SHORT**14 / (2**7 7! 17!! / 3!!) < 1e-17
        series = 1 + series * square / (2 * k * (2 * k + 3))
    found[is_short] = np.exp(-short) * short * series * (2 / 3)
    return found


OP = "nonuniform"
_LARGEST = 1 << 30  # bytes of all matrices
_WEIGHT = 150.0  # element-wise operations that make a weight of the matrix and its derivative
_NEAR_WEIGHT = 300.0  # the same of one near the diagonal, where there is no series
_KEPT = 30  # numbers that autograd keeps of a learned weight while its derivative is computed


def dense(workload: Workload) -> Cost:
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


def chunks(workload: Workload) -> Cost:
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


def refuses_chunks(workload: Workload) -> str | None:
    """Return why there are no states, or None."""
    if workload.exponentials == 0 and workload.n > LENGTH:
        return "above order 1 an integral's memory grows, and is no sum of decaying exponentials"
    return None


def saves(workload: Workload) -> float:
    """Return the bytes that are held for the backward pass: the data, where the weights learn."""
    return float(workload.bytes if workload.learns_weights else 0)


def _passes(workload: Workload) -> int:
    return 1 + workload.needs_gradient + workload.learns_weights


def register_kernels(framework: str, backend: str, **options: Any) -> None:
    """Register both kernels for the arrays of a framework; `options` are those of `Kernel`."""
    for algorithm, prepare, cost, refuses in (
        ("dense", _matrix, dense, refuses_dense),
        ("chunked_scan", _chunks, chunks, refuses_chunks),
    ):
        register(
            Kernel(
                op=OP,
                framework=framework,
                backend=backend,
                algorithm=algorithm,
                run=_run,
                adjoint=_adjoint,
                prepare=prepare,
                cost=cost,
                refuses=refuses,
                **options,
            )
        )


def _matrix(weights: Any, workload: Workload) -> Any:
    return weights.matrix()


def _chunks(weights: Any, workload: Workload) -> Any:
    return weights.chunks()


def _run(form: Any, z: Any) -> Any:
    return form.product(z)


def _adjoint(form: Any, g: Any) -> Any:
    return form.adjoint(g)
