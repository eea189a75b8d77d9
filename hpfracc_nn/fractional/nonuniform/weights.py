"""The integral of order p of functions that are linear on each cell, as matrices.

    y(t_n) = sum over cells i < n of  M0[n, i] mean_i + M1[n, i] half_i,

mean_i the function's mean on cell i, half_i half its increase over it (absent where there is none), and M0, M1 the
memory function's integrals over the cell with weights 1 and x (`schemes/cells.py`). Rows are the ends of the cells: row
k stands for t_(k+1).

In chunks of L cells the weights inside a chunk are a matrix, `near`; those of all cells before it go through states,
one for each node of a sum of exponentials (`schemes/power_exponentials.py`): with w the function and T_c the time at
which chunk c begins,

    S_q(T_c) = integral of exp(-s_q (T_c - s)) w(s) up to T_c,
    y(t_n)   = near + sum_q c_q exp(-s_q (t_n - T_c)) S_q(T_c).

Only `near` and c depend on p.

Jiang, Zhang, Zhang & Zhang, Commun. Comput. Phys. 21 (2017) 650, for the states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.nonuniform.times import Times
from hpfracc_nn.fractional.schemes.cells import integrals, moments
from hpfracc_nn.fractional.schemes.power_exponentials import PowerNodes, power_nodes

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
    joined = xp.concat([block.reshape(block.shape[0], -1) for block in blocks])
    return joined.reshape(joined.shape[0], times.cells, inputs * times.cells)


def matrix_rows(power: Array, xp: Namespace, *, times: Times, inputs: int, rows: range) -> Array:
    """Return some rows of the matrix, [sets, rows, inputs * cells]."""
    own = power if power.shape[-1] == 1 else power[..., rows.start : rows.stop]
    parts = moments(own, times.values, range(rows.start + 1, rows.stop + 1), range(rows.stop), xp)[:inputs]
    rest = xp.constant(np.zeros((parts[0].shape[0], len(rows), times.cells - rows.stop)), power)
    return xp.concat([each for part in parts for each in (part, rest)])


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
            power = xp.take(power, np.minimum(at, self.times.cells - 1)).reshape(-1, len(chunks), LENGTH)
            power = xp.take(power, rows)
        else:
            power = power[..., None]
        half, middle, end = (each[:, at].reshape(-1, len(chunks), LENGTH) for each in self._cells)
        distance = end[..., rows] - middle[..., columns]
        parts = integrals(power, distance, half[..., columns] / distance, rows - columns + 1, xp)[: self.inputs]
        places = np.full((LENGTH, LENGTH), rows.size)
        places[rows, columns] = np.arange(rows.size)
        return xp.concat([xp.take(xp.concat([part, 0 * part[..., :1]]), places) for part in parts])

    def coefficients(self, power: Array, xp: Namespace) -> Array:
        """Return c, [a, 1, 1, Q], or each row its own, [a, C, L, Q]."""
        assert self.nodes is not None, "one chunk has no states"
        if power.shape[-1] == 1:
            return self.nodes.coefficients(power, xp)[..., None, None, :]
        power = xp.take(power, np.minimum(np.arange(self.count * LENGTH), self.times.cells - 1))
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
