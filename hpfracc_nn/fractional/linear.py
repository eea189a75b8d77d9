"""The weights of a causal Toeplitz product as linear operators, one text for NumPy, PyTorch and JAX.

Each operator is the product with the lower triangular Toeplitz matrix whose first column are the weights: `matvec`, and
its transpose `rmatvec`. Both are pure, and linear in the data: every transform of a framework follows them. Kernels
compute the same two maps in place.

Data are [batch, channels, n, width], with `width` 1 where there are several channels, and each channel has weights.

`StateSpace` is a diagonal state space model over chunks of L samples, in the letters of Mamba-2: with X [L] a chunk and
S [K] the states before it,

    Y = X intra + S C,      S' = A * S + X B.

The first states are those of the exponentials, the last few the samples just before the chunk, whose lags are exact.
`intra` and `C` are linear in the weights, `A` and `B` do not depend on them.

An *arrangement* is a kernel's class or object whose `operands(operator)` makes of an operator's arrays what the kernel
reads, such as another layout of them; an operator caches the result under the arrangement.

Source: Dao & Gu, arXiv 2405.21060.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import scipy

from hpfracc_nn.fractional.cache import nbytes
from hpfracc_nn.fractional.namespace import OF_CLASS, Array, Namespace, namespace
from hpfracc_nn.selection import Workload

_DENSE_UP_TO = 256  # samples, above which the operator of a whole column goes through the FFT


@dataclass(frozen=True, eq=False)
class DenseToeplitz:
    """The product by dense matrices M [channels, n, n], which rows of samples are multiplied by: M[j, l] = w[l - j]."""

    matrix: Array

    def matvec(self, x: Array) -> Array:
        """Return the Toeplitz matrix times x, of x's shape."""
        return multiplied(x[:, :, None], self.matrix)[:, :, 0]

    def rmatvec(self, g: Array) -> Array:
        """Return the transposed Toeplitz matrix times g, of g's shape."""
        return multiplied(g[:, :, None], self.matrix.mT)[:, :, 0]


@dataclass(frozen=True, eq=False)
class FFTToeplitz:
    """The product by the FFT, zero-padded to `length` so that nothing wraps round.

    `spectrum`, [channels, length // 2 + 1, 1], is the transform of the column of weights.
    """

    spectrum: Array
    length: int

    def matvec(self, x: Array) -> Array:
        """Return the Toeplitz matrix times x, of x's shape."""
        return self._filtered(x, self.spectrum)

    def rmatvec(self, g: Array) -> Array:
        """Return the transposed Toeplitz matrix times g, of g's shape."""
        return self._filtered(g, self.spectrum.conj())

    def _filtered(self, x: Array, spectrum: Array) -> Array:
        xp = namespace(x)
        y = xp.irfft(xp.rfft(x, self.length, axis=2) * spectrum[None], self.length, axis=2)
        return xp.contiguous(xp.part(y, 0, x.shape[2], axis=2))


class _Matrix:
    @staticmethod
    def operands(column: Column) -> Array:
        w = column.weights
        xp = OF_CLASS.get(type(w)) or namespace(w)  # the shorter way, as every call of a learned order comes here
        return xp.toeplitz(w, w.shape[-1])


class _Spectrum:
    @staticmethod
    def operands(column: Column) -> Array:
        w = column.weights
        xp = OF_CLASS.get(type(w)) or namespace(w)  # as for the matrix
        return xp.spectrum(w, padded_length(w.shape[-1]))[..., None]


class _Cached:
    """A descriptor: an array that an arrangement makes of a `Column`, which then has it as a plain attribute if kept.

    On a CUDA device the array is looked up each time, because the current stream may have to wait for it.
    """

    def __init__(self, arrangement: Any, make: Callable[[Column, Any], Array]):
        self._arrangement, self._make = arrangement, make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, column: Column, owner: type) -> Array:
        found = self._make(column, self._arrangement)
        if column.streams is None and self._arrangement in column.made:
            column.__dict__[self._name] = found
        return found


@dataclass(eq=False)  # not frozen, as no StateSpace is: a learned order makes one at every call
class Column:
    """The whole column of weights as a linear operator; its matrix and its transform are made at first use.

    Attributes:
        weights: The column, [channels, n].
        streams: The CUDA streams that may read the arrays, see `torch/streams.py`; None on other devices.
        largest: The most bytes of a matrix that is kept for the next product.
        multiple: Tiles of data are filled up to a multiple of this number of samples.
        made: A cache of what kernels made of the weights, by arrangement.
        matrix: M [channels, n, n] of `DenseToeplitz`.
        spectrum: That of `FFTToeplitz`, [channels, length // 2 + 1, 1], transformed in float64 and rounded once.
    """

    weights: Array
    streams: Any = field(default=None, repr=False)
    largest: float = math.inf
    multiple: int = field(default=1, init=False)
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights and of all that is cached in `made`."""
        return nbytes((self.weights, self.made))

    def matrix_by(self, arrangement: Any) -> Array:
        """Return a matrix [channels, n, n] that an arrangement makes; it is cached up to `largest` bytes."""
        is_kept = self.weights.nbytes * self._n <= self.largest
        return self.cached(arrangement) if is_kept else arrangement.operands(self)

    def cached(self, arrangement: Any) -> Any:
        """Return arrangement.operands(self), made once and then cached."""
        return _cached(self, self.made, arrangement)

    matrix = _Cached(_Matrix, matrix_by)
    spectrum = _Cached(_Spectrum, cached)

    def matvec(self, x: Array) -> Array:
        """Return the Toeplitz matrix times x, of x's shape."""
        return self._operator.matvec(x)

    def rmatvec(self, g: Array) -> Array:
        """Return the transposed Toeplitz matrix times g, of g's shape."""
        return self._operator.rmatvec(g)

    @property
    def _operator(self) -> DenseToeplitz | FFTToeplitz:
        if self._n > _DENSE_UP_TO:
            return FFTToeplitz(self.spectrum, padded_length(self._n))
        return DenseToeplitz(self.matrix)

    @property
    def _n(self) -> int:
        return self.weights.shape[-1]


@dataclass(eq=False)
class StateSpace:
    """The weights as a state space model over chunks; the letters are those of this module.

    Attributes:
        intra: Weights inside a chunk, [channels, L, L].
        C: From the states to a chunk's samples, [channels, K, L]; JAX has neither C nor B for one chunk.
        B: From a chunk's samples to the states, [L, K].
        A: The states' decay over 1, 2, 4, ... chunks, [K] each, float64 where there is one: a float32 scan drifts by
            1e-5 over 65536 samples.
        shared: A cache of what kernels made of A and B alone; operators with the same A and B may share it.
        streams: As in `Column`.
        made: A cache of what kernels made of the arrays, by arrangement.
    """

    intra: Array
    C: Array = None
    B: Array = None
    A: tuple[Array, ...] = ()
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)
    streams: Any = field(default=None, repr=False)
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays and of all that is cached."""
        return nbytes((self.intra, self.C, self.B, self.A, self.made, self.shared))

    @property
    def multiple(self) -> int:
        """L, the number of samples in a chunk."""
        return self.intra.shape[-1]

    def cached(self, arrangement: Any) -> Any:
        """Return arrangement.operands(self), made once and then cached."""
        return _cached(self, self.made, arrangement)

    def cached_shared(self, arrangement: Any) -> Any:
        """Return arrangement.operands(self), which reads A and B alone, made once and then cached in `shared`."""
        return _cached(self, self.shared, arrangement)

    def matvec(self, x: Array) -> Array:
        """Return the Toeplitz matrix times x, of x's shape."""
        data = self._in_chunks(x)
        y = multiplied(data, self.intra)
        if data.shape[2] > 1:
            xp, added = namespace(x), multiplied(data, self.B[None])
            before = states_before(xp.astype(added, self.A[0].dtype), self.A, xp)
            y = y + multiplied(xp.astype(before, x.dtype), self.C)
        return self._joined(y, x)

    def rmatvec(self, g: Array) -> Array:
        """Return the transposed Toeplitz matrix times g, of g's shape."""
        data = self._in_chunks(g)
        x = multiplied(data, self.intra.mT)
        if data.shape[2] > 1:
            xp, added = namespace(g), multiplied(data, self.C.mT)
            after = xp.flip(xp.astype(added, self.A[0].dtype), axis=2)
            after = xp.flip(states_before(after, self.A, xp), axis=2)
            x = x + multiplied(xp.astype(after, g.dtype), self.B.mT[None])
        return self._joined(x, g)

    def _in_chunks(self, x: Array) -> Array:
        """Return x [batch, channels, n, width] as chunks [batch, channels, chunks, L, width], with zeros at the end."""
        batch, channels, n, width = x.shape
        more = -n % self.multiple
        x = namespace(x).pad(x, 0, more, axis=2) if more else x
        return x.reshape(batch, channels, -1, self.multiple, width)

    def _joined(self, chunks: Array, x: Array) -> Array:
        """Return chunks [batch, channels, chunks, L, width] as samples of x's shape, without the end that was added."""
        batch, channels, n, width = x.shape
        xp, y = namespace(x), chunks.reshape(batch, channels, -1, width)
        return xp.contiguous(xp.part(y, 0, n, axis=2)) if n % self.multiple else y


def states_before(added: Array, A: Sequence[Array], xp: Namespace) -> Array:
    """Return the states before each chunk, S[m] = A * S[m - 1] + added[m - 1] and S[0] = 0, of the shape of `added`.

    By recursion, first over pairs of chunks and then inside a pair: that passes over the data twice, where a scan that
    doubles the step takes one pass for each power of two.

    Args:
        added: What each chunk adds to the states, [batch, channels, chunks, K, width].
        A: The states' decay over 1, 2, 4, ... chunks, [K] each.
        xp: The namespace of both.
    """
    *outer, count, k, width = added.shape
    if count == 1:
        return 0 * added
    pairs = added if count % 2 == 0 else xp.pad(added, 0, 1, axis=2)
    pairs = pairs.reshape(*outer, -1, 2, k, width)
    first, second, decay = pairs[:, :, :, 0], pairs[:, :, :, 1], A[0].reshape(1, 1, 1, k, 1)
    before = states_before(decay * first + second, A[1:], xp)
    both = xp.stack([before, decay * before + first], axis=3).reshape(*outer, -1, k, width)
    return both if count % 2 == 0 else xp.part(both, 0, count, axis=2)


def multiplied(data: Array, matrix: Array) -> Array:
    """Return data [batch, channels, chunks, L, width] times matrices [channels or 1, L, K] along L, which becomes K."""
    *outer, length, width = data.shape
    xp = namespace(data)
    if width == 1 and matrix.shape[0] == 1:  # one large product, which no framework makes of it by itself
        return xp.matmul(data.reshape(-1, length), matrix[0]).reshape(*outer, -1, 1)
    return xp.chunk_matmul(data, matrix)


def _cached(operator: Column | StateSpace, store: dict[Any, Any], arrangement: Any) -> Any:
    if operator.streams is not None:
        return operator.streams.kept(store, arrangement, lambda: arrangement.operands(operator))
    found = store.get(arrangement)
    return store.setdefault(arrangement, arrangement.operands(operator)) if found is None else found


def powers(decay: Any, chunks: int) -> tuple[Any, ...]:
    """Return decay, decay**2, decay**4, ...: as many as `states_before` reads for so many chunks, and at least one."""
    found = [decay]
    while len(found) < (chunks - 1).bit_length():
        found.append(found[-1] * found[-1])
    return tuple(found)


def padded_length(n: int) -> int:
    """Return the length of the FFT for n samples: the next one from 2 n - 1 on whose only factors are 2, 3 and 5.

    At that length nothing of the product wraps round.
    """
    return int(scipy.fft.next_fast_len(max(2 * n - 1, 1), real=True))


def saves(workload: Workload) -> float:
    """Return the bytes held for the backward pass: the data, where the weights are learned; nothing else."""
    return float(workload.bytes if workload.learns_weights else 0)


def refuses_large(workload: Workload, most: int) -> str | None:
    """Return, as a text, that the dense matrices would take more than `most` bytes together; or None."""
    size = workload.channels * workload.n**2 * workload.itemsize
    return f"n={workload.n} needs {size / 2**30:.3g} GiB of matrices" if size > most else None


def refuses_long(workload: Workload, length: int) -> str | None:
    """Return, as a text, that the weights have no states although there is more than one chunk of `length`; or None."""
    if workload.exponentials == 0 and workload.n > length:
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return None
