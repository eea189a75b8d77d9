"""The array functions that the formulas need, and their NumPy instance.

A formula is written once over a namespace `xp`; torch and jax bring their own instance in their own folder.
Every array that a namespace makes is float64, or complex128 where a formula asks for the imaginary unit.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from scipy import fft as scipy_fft
from scipy import special

Array = Any  # an array of the namespace's framework


class Namespace(Protocol):
    """What a framework must offer to run the formulas of this package."""

    def asarray(self, value: Any) -> Array: ...
    def constant(self, values: np.ndarray, like: Array) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def log(self, x: Array) -> Array: ...
    def log1p(self, x: Array) -> Array: ...
    def expm1(self, x: Array) -> Array: ...
    def cos(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def acos(self, x: Array) -> Array: ...
    def floor(self, x: Array) -> Array: ...
    def lgamma(self, x: Array) -> Array: ...
    def cumprod(self, x: Array) -> Array: ...
    def cumsum(self, x: Array) -> Array: ...
    def matmul(self, a: Array, b: Array) -> Array: ...
    def convolve(self, a: Array, b: Array) -> Array: ...
    def sum(self, x: Array) -> Array: ...
    def max(self, x: Array) -> Array: ...
    def take(self, x: Array, index: np.ndarray) -> Array: ...
    def concat(self, arrays: list[Array]) -> Array: ...
    def stack(self, rows: list[Array]) -> Array: ...
    def flip(self, x: Array) -> Array: ...
    def where(self, condition: Array, x: Any, y: Any) -> Array: ...
    def is_complex(self, x: Array) -> bool: ...
    def abs(self, x: Array) -> Array: ...
    def angle(self, x: Array) -> Array: ...
    def polygamma(self, n: int, x: Array) -> Array: ...
    def sigmoid(self, x: Array) -> Array: ...
    def fft(self, x: Array, *, norm: str | None = None) -> Array: ...
    def ifft(self, x: Array, *, norm: str | None = None) -> Array: ...


class NumpyNamespace:
    """NumPy's instance; what reduces or joins acts on the last axis, `stack` makes one before it."""

    def asarray(self, value: Any) -> np.ndarray:
        return np.asarray(value, dtype=np.float64)

    def constant(self, values: np.ndarray, like: np.ndarray) -> np.ndarray:
        return values

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    log1p = staticmethod(np.log1p)
    expm1 = staticmethod(np.expm1)
    cos = staticmethod(np.cos)
    sin = staticmethod(np.sin)
    floor = staticmethod(np.floor)
    lgamma = staticmethod(special.gammaln)
    matmul = staticmethod(np.matmul)
    where = staticmethod(np.where)
    is_complex = staticmethod(np.iscomplexobj)
    abs = staticmethod(np.abs)
    angle = staticmethod(np.angle)
    polygamma = staticmethod(special.polygamma)
    sigmoid = staticmethod(special.expit)
    fft = staticmethod(scipy_fft.fft)
    ifft = staticmethod(scipy_fft.ifft)

    def acos(self, x: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # NaN, as in other frameworks, without a warning
            return np.arccos(x)

    def cumprod(self, x: np.ndarray) -> np.ndarray:
        return np.cumprod(x, axis=-1)

    def cumsum(self, x: np.ndarray) -> np.ndarray:
        return np.cumsum(x, axis=-1)

    def convolve(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        n = a.shape[-1]  # the product of two power series, as many coefficients as they have
        return np.fft.irfft(np.fft.rfft(a, 2 * n) * np.fft.rfft(b, 2 * n), 2 * n)[..., :n]

    def sum(self, x: np.ndarray) -> np.ndarray:
        return np.sum(x, axis=-1)

    def max(self, x: np.ndarray) -> np.ndarray:
        return np.max(x, axis=-1)

    def take(self, x: np.ndarray, index: np.ndarray) -> np.ndarray:
        return x[..., index]

    def concat(self, arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays, axis=-1)

    def flip(self, x: np.ndarray) -> np.ndarray:
        return x[..., ::-1]

    def stack(self, rows: list[np.ndarray]) -> np.ndarray:
        return np.stack(rows, axis=-2)


NUMPY = NumpyNamespace()
