"""What surrounds the causal Toeplitz product: differences before it, boundary columns after it, for every framework.

    y = T(weights) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values: d[start], x(0) and S = dt x'(0), as far as there are
columns for them. Differencing first keeps float32 right (see `stencil.py`). S is subtracted n times, so that no digit
of it may be lost: it comes from differences, in double precision where that is enabled.

`difference`, `finish` and `transposed` are pure and linear, and every transform of a framework follows them.
`difference_into` and `transposed_into` write into arrays of NumPy or PyTorch, one pass for each difference: new memory
takes longer than the arithmetic. Arrays are [batch, channels, n, width]: x samples, g what a transpose is applied to,
and b the `Boundary`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.namespace import Array, Namespace, namespace
from hpfracc_nn.fractional.stencil import Stencil, slope_row


@dataclass(eq=False)  # not frozen: a learned order makes one at every call
class Boundary:
    """What surrounds the Toeplitz product of an operator: how its data are differenced, and the columns added to it.

    Attributes:
        n: Number of samples.
        differences: m, how often the data are differenced, -1 (a cumulative sum) to 2.
        subtract: Whether the Taylor polynomial at 0 is subtracted.
        taylor: Number of terms of that polynomial; 1 where nothing is subtracted.
        start: Index of the entry of d that the starting column, the first one, multiplies; -1 if there is none.
        terms: Number of analytic columns, which come next: 0, 1 for x(0), or 2 for x(0) and S.
        ahead: How many samples at the start count in all results.
        columns: All columns, [columns, channels, n], or None where there are none.
        dtype: Dtype of the product.
        factors: Each column as [channels, n, 1], cached by the first caller that multiplies it with a boundary value.
    """

    n: int
    differences: int
    subtract: bool
    taylor: int
    start: int
    terms: int
    ahead: int
    columns: Array | None = None
    dtype: Any = None
    factors: list[Array] | None = field(default=None, init=False)

    def with_columns(self, columns: Array | None) -> Boundary:
        """Return a copy of a boundary without columns that has these; computed properties are kept."""
        found = object.__new__(Boundary)
        found.__dict__ = {**self.__dict__, "columns": columns, "factors": None}
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of the columns, of which the factors are views."""
        return nbytes(self.columns)

    @cached_property
    def slope(self) -> np.ndarray:
        """The weights [at most 3] of the first differences of x whose sum is S = dt x'(0)."""
        return np.ascontiguousarray(np.cumsum(slope_row(self.n)[:4][::-1])[::-1][1:])

    @cached_property
    def second(self) -> np.ndarray | None:
        """The weights [at most 2] of d[2] and d[3], second differences, whose sum is d[1] where S is subtracted.

        In this sum no digits are lost. None where S = dt x'(0) is not subtracted or m is not 2.
        """
        if self.differences < 2 or self.taylor < 2 or self.n < 2:
            return None
        return np.array(((), (1 / 2,), (5 / 6, -1 / 3))[min(self.n, 4) - 2])

    @cached_property
    def arrays(self) -> tuple[np.ndarray, int, bool, int, int]:
        """The arguments of compiled functions on a CPU: the columns, m, `subtract`, `taylor` and `start`."""
        if self.columns is None:
            columns = np.empty((0, 1, self.n), str(self.dtype).removeprefix("torch."))
        else:
            columns = self.columns if isinstance(self.columns, np.ndarray) else self.columns.detach().numpy()
        return columns, self.differences, self.subtract, self.taylor, self.start


def boundary_of(stencil: Stencil, columns: Array | None = None, dtype: Any = None) -> Boundary:
    """Return the Boundary of a stencil, with columns [columns, channels, n] of any framework."""
    start, taylor = stencil.start_index if stencil.starts else -1, stencil.taylor if stencil.subtract else 1
    ahead = stencil.ahead
    return Boundary(
        stencil.n, stencil.differences, stencil.subtract, taylor, start, stencil.terms, ahead, columns, dtype
    )


def difference(x: Array, b: Boundary) -> Array:
    """Return d, the m-th differences of x, less its Taylor polynomial where `b` says so, of the shape of x."""
    xp, zeroth = namespace(x), _part(x, 0, 1)
    if b.differences <= 0:
        d = x - zeroth if b.subtract else x
        if b.taylor == 2:
            d = xp.astype(d - _ramp(x, xp) * _slope(x, b, xp), x.dtype)
        return d if b.differences == 0 else xp.astype(xp.cumulative_sum(d, axis=2, dtype=xp.float64), x.dtype)
    if b.subtract:
        zeroth = xp.zeros(zeroth.shape, x)
    steps = x[:, :, 1:] - x[:, :, :-1]
    if b.differences == 1:
        if b.taylor == 2:
            steps = xp.astype(steps - _slope(x, b, xp), x.dtype)
        return xp.concat([zeroth, steps], axis=2)
    d = xp.concat([zeroth, steps], axis=2)
    d = xp.concat([zeroth, d[:, :, 1:] - d[:, :, :-1]], axis=2)
    if b.second is not None:
        first = xp.astype(_along(b.second, xp.asarray(d[:, :, 2:4]), x, xp), x.dtype)
        d = xp.concat([zeroth, first, d[:, :, 2:]], axis=2)
    return d


def values(x: Array, d: Array, b: Boundary) -> list[Array]:
    """Return the boundary values that the columns multiply, [batch, channels, 1, width] each.

    They are d[start], x(0) and S = dt x'(0), as far as there are columns for them.
    """
    found = [_part(d, b.start, b.start + 1)] if b.start >= 0 else []
    if b.terms:
        found.append(_part(x, 0, 1))
    if b.terms == 2:
        xp = namespace(x)
        found.append(xp.astype(_slope(x, b, xp), x.dtype))
    return found


def finish(y: Array, x: Array, d: Array, b: Boundary) -> Array:
    """Return the operator on x: the Toeplitz product y plus each column times its boundary value."""
    if b.columns is not None:
        for j, value in enumerate(values(x, d, b)):
            y = y + b.columns[j][None, :, :, None] * value
    return y


def transposed(gd: Array, g: Array, b: Boundary) -> Array:
    """Return the operator's transpose applied to g, from the Toeplitz product's transpose applied to g.

    Args:
        gd: The transposed Toeplitz product with g.
        g: What the operator's transpose is applied to.
        b: What surrounds the product.
    """
    xp, m, n, dtype = namespace(g), b.differences, b.n, gd.dtype
    start, analytic = projected(g, b)
    g = xp.asarray(gd)
    if start is not None:
        g = _added(g, b.start, start, xp)
    if m < 0:
        g = xp.flip(xp.cumulative_sum(xp.flip(g, axis=2), axis=2), axis=2)
    first, slope = analytic[:1], [_sum(each, xp) for each in analytic[1:]]
    if m <= 0 and b.subtract:
        first.append(-_sum(g, xp))
    if m <= 0 and b.taylor == 2:
        slope.append(-_sum(g * _ramp(g, xp), xp))
    if m >= 1 and b.subtract:
        zero = xp.zeros(_part(g, 0, 1).shape, g)
        if m == 1 and b.taylor == 2:
            slope.append(-_sum(g[:, :, 1:], xp))
        if b.second is not None:
            rest = _added(g[:, :, 2:], 0, _column(b.second, g, xp) * g[:, :, 1:2], xp) if n > 2 else g[:, :, 2:]
            g = xp.concat([zero, zero, rest], axis=2)
        else:
            g = xp.concat([zero, g[:, :, 1:]], axis=2)
    for order in range(max(m, 0)):
        g = xp.concat([g[:, :, :-1] - g[:, :, 1:], _part(g, n - 1, n)], axis=2)
        if order == 0 and m == 2 and b.subtract:
            g = xp.concat([zero, g[:, :, 1:]], axis=2)
    for each in first:
        g = _added(g, 0, each, xp)
    for each in slope:
        g = _added(g, 0, _column(slope_row(n)[:4], g, xp) * each, xp)
    return xp.astype(g, dtype)


def projected(g: Array, b: Boundary) -> tuple[Array | None, list[Array]]:
    """Return the sums over time of g times each column, [batch, channels, 1, width].

    They are that of the starting column, or None, and a list of those of the other columns.
    """
    if b.columns is None:
        return None, []
    xp = namespace(g)
    found = [xp.sum(g * b.columns[j][None, :, :, None], axis=2, keepdims=True) for j in range(b.terms + (b.start >= 0))]
    return (found[0], found[1:]) if b.start >= 0 else (None, found)


def difference_into(x: Array, d: Array, b: Boundary, xp: Namespace) -> None:
    """Write the differences of x into the first n samples of d, an array at least as long; `xp` is their namespace."""
    m, n = b.differences, b.n
    if m <= 0:
        if m == 0 and b.subtract and b.taylor == 1:
            xp.subtract(x, x[:, :, :1], out=d[:, :, :n])
        else:
            d[:, :, :n] = difference(x, b)
        return
    zeroth, each = 0 if b.subtract else x[:, :, :1], x
    for out in (d,) if m == 1 else (xp.empty_like(x), d):
        if out.shape == x.shape and x.shape[3] == 1:  # nothing is padded: one pass over all signals
            flat = each.reshape(-1)
            xp.subtract(flat[1:], flat[:-1], out=out.reshape(-1)[1:])
        else:
            xp.subtract(each[:, :, 1:], each[:, :, :-1], out=out[:, :, 1:n])
        out[:, :, :1] = zeroth
        each = out
    if m == 1 and b.taylor == 2:
        d[:, :, 1:n] -= xp.astype(_slope(x, b, xp), x.dtype)
    if m == 2 and b.second is not None:
        d[:, :, 1:2] = _along(b.second, xp.asarray(d[:, :, 2 : min(4, n)]), x, xp)


def transposed_into(gd: Array, g: Array, gx: Array, b: Boundary) -> None:
    """Write what `transposed` returns into gx; gd, of n samples, is overwritten."""
    xp, m, n, slope = namespace(g), b.differences, b.n, []
    if m <= 0:
        gx[...] = transposed(gd, g, b)
        return
    start, analytic = projected(g, b)
    if start is not None:
        gd[:, :, b.start : b.start + 1] += start
    if b.taylor == 2 and m == 1:
        slope.append(-_sum(gd[:, :, 1:], xp))
    if b.second is not None:
        if n > 2:
            gd[:, :, 2:4] += xp.astype(_column(b.second, gd, xp) * gd[:, :, 1:2], gd.dtype)
        gd[:, :, 1:2] = 0
    if b.subtract:
        gd[:, :, :1] = 0
    if m == 2:
        once = xp.empty_like(gx)
        xp.subtract(gd[:, :, :-1], gd[:, :, 1:], out=once[:, :, :-1])
        once[:, :, -1:] = gd[:, :, -1:]
        if b.subtract:
            once[:, :, :1] = 0
        gd = once
    xp.subtract(gd[:, :, :-1], gd[:, :, 1:], out=gx[:, :, :-1])
    gx[:, :, -1:] = gd[:, :, -1:]
    if analytic:
        gx[:, :, :1] += analytic[0]
    for each in (*slope, *analytic[1:]):
        gx[:, :, :4] += xp.astype(_column(slope_row(n)[:4], gx, xp) * each, gx.dtype)


def _slope(x: Array, b: Boundary, xp: Namespace) -> Array:
    """Return S = dt x'(0), [batch, channels, 1, width], estimated from the first four samples of x."""
    head = xp.asarray(_part(x, 0, min(4, b.n)))
    return _along(b.slope, head[:, :, 1:] - head[:, :, :-1], x, xp)


def _along(row: np.ndarray, x: Array, like: Array, xp: Namespace) -> Array:
    """Return the sum over k of row[k] x[:, :, k], [batch, channels, 1, width].

    For an empty row the sum is zeros with batch, channels, width, dtype and device of `like`.
    """
    if not row.size:
        return xp.zeros(_part(like, 0, 1).shape, like)
    return xp.sum(_column(row, x, xp) * x, axis=2, keepdims=True)


def _column(row: np.ndarray, like: Array, xp: Namespace) -> Array:
    return xp.constant(row.reshape(1, 1, -1, 1), like)


def _sum(g: Array, xp: Namespace) -> Array:
    return xp.sum(g, axis=2, keepdims=True, dtype=xp.float64)


def _added(x: Array, index: int, more: Array, xp: Namespace) -> Array:
    """Return a copy of x with `more` [batch, channels, k, width] added to its k samples from number `index` on."""
    end = index + more.shape[2]
    parts = [x[:, :, :index], _part(x, index, end) + more, x[:, :, end:]]
    return xp.concat([each for each in parts if each.shape[2]], axis=2)


def _part(x: Array, begin: int, end: int) -> Array:
    """Return x[:, :, begin:end], or x itself if that is all of it: torch.vmap cannot follow a slice of everything."""
    return x if end - begin == x.shape[2] else x[:, :, begin:end]


def _ramp(x: Array, xp: Namespace) -> Array:
    return _column(np.arange(x.shape[2], dtype=np.float64), x, xp)
