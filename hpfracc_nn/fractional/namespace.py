"""The array functions that formulas and operators are written over, and their NumPy instance.

Code over a namespace `xp` is written once for NumPy, PyTorch and JAX. Names and arguments are those of the Python array
API standard; functions that the standard lacks are SciPy's (`gammaln`, `polygamma`, `expit`) or torch's (`addcmul`,
x + y z).
`asarray` and `constant` make float64 arrays, complex128 of complex values: weights are computed in double precision,
and cast once.

Source: https://data-apis.org/array-api/2024.12.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import scipy
from numpy.lib.stride_tricks import sliding_window_view

from hpfracc_nn.fractional.dispatch import framework_of

Array = Any  # an array of the namespace's framework


class Namespace(Protocol):
    """The functions on arrays that every framework offers under these names."""

    @property
    def float64(self) -> Any:
        """The dtype of double precision; JAX's is single where 64 bit types are not enabled."""

    float32: Any

    def asarray(self, value: Any) -> Array: ...
    def constant(self, values: np.ndarray, like: Array) -> Array: ...
    def astype(self, x: Array, dtype: Any) -> Array: ...
    def complex_of(self, dtype: Any) -> Any:
        """Return the complex dtype that has the precision of a real dtype."""

    def like(self, x: Array, other: Array) -> Array: ...
    def contiguous(self, x: Array) -> Array: ...
    def moveaxis(self, x: Array, source: Any, destination: Any) -> Array: ...
    def zeros(self, shape: Sequence[int], like: Array) -> Array: ...
    def empty_like(self, x: Array) -> Array: ...
    def subtract(self, a: Array, b: Array, *, out: Array | None = None) -> Array: ...
    def addcmul(self, x: Array, y: Array, z: Array) -> Array: ...
    def result_type(self, x: Array, y: Array) -> Any: ...
    def exp(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def log1p(self, x: Array) -> Array: ...
    def expm1(self, x: Array) -> Array: ...
    def cos(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def acos(self, x: Array) -> Array: ...
    def floor(self, x: Array) -> Array: ...
    def abs(self, x: Array) -> Array: ...
    def angle(self, x: Array) -> Array: ...
    def iscomplexobj(self, x: Array) -> bool: ...
    def where(self, condition: Array, x: Any, y: Any) -> Array: ...
    def gammaln(self, x: Array) -> Array: ...
    def polygamma(self, n: int, x: Array) -> Array: ...
    def expit(self, x: Array) -> Array: ...
    def matmul(self, a: Array, b: Array) -> Array: ...
    def tensordot(self, a: Array, b: Array) -> Array:
        """Return the sum of a [k] times b [k, ...] over k."""

    def chunk_matmul(self, data: Array, matrix: Array) -> Array:
        """Return data [batch, channels, chunks, L, width] times matrices [channels or 1, L, K] along L."""

    def convolve(self, a: Array, b: Array) -> Array: ...
    def fft(self, x: Array, *, norm: str | None = None) -> Array: ...
    def ifft(self, x: Array, *, norm: str | None = None) -> Array: ...
    def rfft(self, x: Array, n: int, *, axis: int) -> Array: ...
    def irfft(self, x: Array, n: int, *, axis: int) -> Array: ...
    def fftfreq(self, n: int, d: float, like: Array) -> Array: ...
    def rfftfreq(self, n: int, d: float, like: Array) -> Array: ...
    def sum(self, x: Array, *, axis: int, keepdims: bool = False, dtype: Any = None) -> Array: ...
    def max(self, x: Array, *, axis: int) -> Array: ...
    def cumulative_sum(self, x: Array, *, axis: int, dtype: Any = None) -> Array: ...
    def cumulative_prod(self, x: Array, *, axis: int) -> Array: ...
    def diff(self, x: Array, *, n: int, axis: int) -> Array: ...
    def nan_to_num(self, x: Array, *, nan: float, posinf: float, neginf: float) -> Array: ...
    def flip(self, x: Array, *, axis: int) -> Array: ...
    def take(self, x: Array, index: np.ndarray, *, axis: int) -> Array: ...
    def part(self, x: Array, begin: int, end: int | None, *, axis: int) -> Array: ...
    def concat(self, arrays: Sequence[Array], *, axis: int) -> Array: ...
    def stack(self, arrays: Sequence[Array], *, axis: int) -> Array: ...
    def permute_dims(self, x: Array, axes: Sequence[int]) -> Array: ...
    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array: ...
    def pad(self, x: Array, before: int, after: int = 0, *, axis: int) -> Array: ...
    def toeplitz(self, column: Array, length: int) -> Array:
        """Return M [*c, length, length] with M[j, l] = column[l - j], zero for l < j and beyond the column."""

    def spectrum(self, column: Array, length: int) -> Array:
        """Return the transform of columns [*c, n] padded to `length`, computed in float64 and rounded once."""


class NumpyNamespace:
    """NumPy's functions; those whose names came with NumPy 2.1 under their older ones."""

    def asarray(self, value: Any) -> np.ndarray:
        return np.asarray(value, dtype=np.float64)

    def constant(self, values: np.ndarray, like: np.ndarray) -> np.ndarray:
        return values

    def tensordot(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.matmul(a[None], b.reshape(a.size, math.prod(b.shape[1:]))).reshape(b.shape[1:])

    def complex_of(self, dtype: Any) -> Any:
        return np.result_type(dtype, np.complex64)

    def astype(self, x: np.ndarray, dtype: Any) -> np.ndarray:
        return x.astype(dtype, copy=False)

    def like(self, x: np.ndarray, other: np.ndarray) -> np.ndarray:
        return x.astype(other.dtype, copy=False)

    def zeros(self, shape: Sequence[int], like: np.ndarray) -> np.ndarray:
        return np.zeros(shape, like.dtype)

    float32 = np.float32
    result_type = staticmethod(np.result_type)
    contiguous = staticmethod(np.ascontiguousarray)
    moveaxis = staticmethod(np.moveaxis)
    float64 = np.float64
    empty_like = staticmethod(np.empty_like)
    subtract = staticmethod(np.subtract)
    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    expm1 = staticmethod(np.expm1)
    cos = staticmethod(np.cos)
    sin = staticmethod(np.sin)
    floor = staticmethod(np.floor)
    abs = staticmethod(np.abs)
    angle = staticmethod(np.angle)
    iscomplexobj = staticmethod(np.iscomplexobj)
    where = staticmethod(np.where)
    matmul = staticmethod(np.matmul)
    # SciPy loads its parts when they are first asked for, and these two take as long as the whole package.
    gammaln = cached_property(lambda self: scipy.special.gammaln)
    polygamma = cached_property(lambda self: scipy.special.polygamma)
    expit = cached_property(lambda self: scipy.special.expit)
    fft = cached_property(lambda self: scipy.fft.fft)
    ifft = cached_property(lambda self: scipy.fft.ifft)
    rfft = cached_property(lambda self: scipy.fft.rfft)
    irfft = cached_property(lambda self: scipy.fft.irfft)
    cumulative_sum = staticmethod(np.cumsum)
    cumulative_prod = staticmethod(np.cumprod)
    nan_to_num = staticmethod(np.nan_to_num)
    flip = staticmethod(np.flip)
    concat = staticmethod(np.concatenate)
    stack = staticmethod(np.stack)
    permute_dims = staticmethod(np.transpose)
    broadcast_to = staticmethod(np.broadcast_to)

    def addcmul(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return x + y * z

    def fftfreq(self, n: int, d: float, like: np.ndarray) -> np.ndarray:
        return np.fft.fftfreq(n, d)

    def rfftfreq(self, n: int, d: float, like: np.ndarray) -> np.ndarray:
        return np.fft.rfftfreq(n, d)

    def diff(self, x: np.ndarray, *, n: int, axis: int) -> np.ndarray:
        return np.diff(x, n, axis)

    def part(self, x: np.ndarray, begin: int, end: int | None, *, axis: int) -> np.ndarray:
        return x[(slice(None),) * axis + (slice(begin, end),)]

    def sum(self, x: np.ndarray, *, axis: int, keepdims: bool = False, dtype: Any = None) -> np.ndarray:
        return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=dtype))

    def max(self, x: np.ndarray, *, axis: int) -> np.ndarray:
        return np.asarray(np.max(x, axis=axis))

    def take(self, x: np.ndarray, index: np.ndarray, *, axis: int) -> np.ndarray:
        return np.take(x, index, axis=axis)

    def acos(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # NaN, as in other frameworks, without a warning
            return np.arccos(x)

    def pad(self, x: np.ndarray, before: int, after: int = 0, *, axis: int) -> np.ndarray:
        axis, n = axis % x.ndim, x.shape[axis]
        padded = np.zeros((*x.shape[:axis], before + n + after, *x.shape[axis + 1 :]), x.dtype)  # np.pad is slow
        padded[(slice(None),) * axis + (slice(before, before + n),)] = x
        return padded

    def toeplitz(self, column: np.ndarray, length: int) -> np.ndarray:
        column = column[..., :length]
        padded = self.pad(column, length - 1, length - column.shape[-1], axis=-1)
        # contiguous, or NumPy multiplies it without BLAS
        return np.ascontiguousarray(sliding_window_view(padded, length, axis=-1)[..., ::-1, :])

    def spectrum(self, column: np.ndarray, length: int) -> np.ndarray:
        return np.fft.rfft(self.asarray(column), length).astype(self.complex_of(column.dtype), copy=False)

    def chunk_matmul(self, data: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return np.matmul(matrix.mT[:, None], data)

    def convolve(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        n = a.shape[-1]  # the product of two power series, as many coefficients as they have
        return np.fft.irfft(np.fft.rfft(a, 2 * n) * np.fft.rfft(b, 2 * n), 2 * n)[..., :n]


NUMPY: Namespace = NumpyNamespace()

NAMESPACES: dict[str, Namespace] = {"numpy": NUMPY}  # torch's and JAX's add theirs when they are imported
OF_CLASS: dict[type, Namespace] = {np.ndarray: NUMPY}  # of the classes that need no further look


def namespace(x: Array) -> Namespace:
    """Return the namespace of an array's framework."""
    return OF_CLASS.get(type(x)) or NAMESPACES[framework_of(type(x))]
