"""The special functions on NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.special.fractional_fourier import check_shapes, chirps_of, fixed_chirps, nearest, transformed
from hpfracc_nn.fractional.special.mittag_leffler import (
    Options,
    check_each,
    combined,
    partial_derivative,
)

_CHUNK = 4096  # points whose intermediate results stay in the cache


def mittag_leffler(z: Any, alpha: Any, beta: Any, derivative: tuple[int, int, int]) -> np.ndarray:
    """Return the Mittag-Leffler function, or a derivative of it; see `fractional.special.functions`."""
    owner = "mittag_leffler"
    points, alphas, betas = _double(owner, "z", z), _real(owner, "alpha", alpha), _real(owner, "beta", beta)
    check_each(owner, alphas, betas)
    dtype = np.result_type(
        *(value if isinstance(value, int | float | complex) else np.asarray(value).dtype for value in (z, alpha, beta))
    )
    dtype = dtype if dtype.kind in "fc" else np.dtype(np.float64)
    shape = np.broadcast_shapes(points.shape, alphas.shape, betas.shape)
    flat = np.broadcast_to(points, shape).reshape(-1)
    flat_alpha, flat_beta = (v if v.ndim == 0 else np.broadcast_to(v, shape).reshape(-1) for v in (alphas, betas))
    with np.errstate(all="ignore"):  # overflow is inf, and what a mask drops may be anything
        total = combined(flat, derivative, lambda m, n: _partial(flat, flat_alpha, flat_beta, m, n))
        return total.reshape(shape).astype(dtype, copy=False)[()]


def _partial(z: np.ndarray, alpha: np.ndarray, beta: np.ndarray, m: int, n: int) -> np.ndarray:
    found = np.empty_like(z)
    options = Options(poles=2 if np.any(alpha > 1) else 1)
    for begin in range(0, z.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        its_alpha, its_beta = (v if v.ndim == 0 else v[part] for v in (alpha, beta))
        found[part] = partial_derivative(z[part], its_alpha, its_beta, m, n, NUMPY, options)
    return found


def fractional_fourier(x: Any, order: Any, dim: int, centred: bool) -> np.ndarray:
    """Return the fractional Fourier transform; see `fractional.special.functions`."""
    owner = "fractional_fourier"
    samples, orders = _numbers(owner, "x", x), _real(owner, "order", order)
    axis = errors.axis(owner, dim, samples.ndim)
    check_shapes(owner, samples.shape, axis, orders.shape)
    dtype = np.dtype(np.complex64 if samples.dtype in (np.float16, np.float32, np.complex64) else np.complex128)
    data = np.moveaxis(samples, axis, -1).astype(dtype, copy=False)
    data = np.fft.ifftshift(data, -1) if centred else data
    result = _by_each(data, orders) if orders.ndim else _by_one(data, float(orders))
    return np.moveaxis(np.fft.fftshift(result, -1) if centred else result, -1, axis)


def _by_each(x: np.ndarray, orders: np.ndarray) -> np.ndarray:
    for wrong in orders[~np.isfinite(orders)][:1]:
        nearest("fractional_fourier", float(wrong))
    whole = np.round(orders)
    chirps = chirps_of(orders - whole, x.shape[-1], NUMPY)
    return transformed(x, whole % 4, (chirp.astype(x.dtype) for chirp in chirps), NUMPY)


def _by_one(x: np.ndarray, order: float) -> np.ndarray:
    whole = nearest("fractional_fourier", order)
    if order == whole:
        return transformed(x.copy(), whole % 4, None, NUMPY)
    chirps = fixed_chirps(order - whole, x.shape[-1], x.dtype)
    return transformed(x, whole % 4, chirps, NUMPY)


def _numbers(owner: str, name: str, value: Any) -> np.ndarray:
    """Return the value as an array, or raise TypeError where its dtype is not numeric or entries are masked.

    `owner` and `name` are those of the public function and its argument, for the message.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{owner}({name}: masked array): needs all values; pass {name}.filled(value) for the gaps.")
    found = np.asarray(value)
    if found.dtype.kind not in "iufc":
        raise TypeError(
            f"{owner}({name} of dtype {found.dtype}): needs numbers; pass {name} as a float or complex array."
        )
    return found


def _double(owner: str, name: str, value: Any) -> np.ndarray:
    found = _numbers(owner, name, value)
    return found.astype(np.complex128 if found.dtype.kind == "c" else np.float64, copy=False)


def _real(owner: str, name: str, value: Any) -> np.ndarray:
    found = _double(owner, name, value)
    if found.dtype.kind == "c":
        raise TypeError(f"{owner}({name} of dtype {found.dtype}): needs real numbers; pass {name}.real.")
    return found
