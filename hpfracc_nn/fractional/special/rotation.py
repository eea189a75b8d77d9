"""The fractional Fourier transform as a rotation of the plane of time and frequency: three shears, each unitary.

With theta = pi order / 2 and t = j / sqrt(n), a rotation by theta is

    exp(i theta / 2) M C M,    M = exp(-i pi tan(theta / 2) t**2),    C = F**-1 exp(-i pi sin(theta) f**2) F

(chirp, convolution with a chirp, chirp). Only orders within 1/2 of a whole one are computed so, where
|tan(theta / 2)| <= tan(pi / 8): a shear carries what lies at radius r to r / cos(theta / 2), at most 1.08 r, so that
little is wrapped round. The whole part is the FFT, the reversal or the inverse FFT.

Ozaktas, Arikan, Kutay & Bozdagi, Digital computation of the fractional Fourier transform, IEEE Trans. Signal Process.
44 (1996): the decomposition. Their sampling at twice the rate, which serves orders from 1/2 to 3/2, costs unitarity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.shelf import Charge
from hpfracc_nn.fractional.weights import SHELF


def check_shapes(owner: str, shape: tuple[int, ...], axis: int, order_shape: tuple[int, ...]) -> None:
    """Raise ValueError where there is no sample along `axis`, or the order does not broadcast over the other axes."""
    if shape[axis] == 0:
        raise ValueError(f"{owner}(x of shape {shape}): needs at least one sample along dim={axis}; pass a longer x.")
    rest = shape[:axis] + shape[axis + 1 :]
    padded = (1,) * (len(rest) - len(order_shape)) + order_shape
    if len(padded) > len(rest) or any(a not in (1, b) for a, b in zip(padded, rest, strict=True)):
        raise ValueError(
            f"{owner}(order of shape {order_shape}, x of shape {shape}): needs order to broadcast to the axes "
            f"other than dim={axis}, {rest}; pass one order, or one per signal shaped to fit."
        )


def nearest(owner: str, order: float) -> int:
    """Return the whole number nearest to an order, or raise ValueError."""
    if not math.isfinite(order):
        raise ValueError(f"{owner}(order={order}): needs a finite order; pass such as order=0.5.")
    return round(order)


def turned(x: Array, order: int | Array, xp: Namespace) -> Array:
    """Return the transform of a whole order 0 to 3, one number or an array [*o]; complex `x`, shape [..., n]."""
    if isinstance(order, int):
        x = _unitary_fft(x, xp) if order % 2 else x
        return _reversed(x, xp) if order >= 2 else x
    order = order[..., None]
    x = xp.where(order % 2 == 1, _unitary_fft(x, xp), x)
    return xp.where(order >= 2, _reversed(x, xp), x)


def _unitary_fft(x: Array, xp: Namespace) -> Array:
    return xp.fft(x, norm="ortho")


def _reversed(x: Array, xp: Namespace) -> Array:
    """Return x at the times -t: sample 0 stays."""
    return xp.concat([x[..., :1], xp.flip(x[..., 1:])])


def rotated(x: Array, chirps: Iterable[Array], xp: Namespace) -> Array:
    """Return the transform of the order that the chirps were made for; complex `x`, shape [..., n]."""
    multiplier, convolver = chirps
    return multiplier * xp.ifft(convolver * xp.fft(multiplier * x))


def fixed_chirps(order: float, n: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the chirps of one order, made once and kept with the weights."""

    def made(charge: Charge) -> tuple[np.ndarray, np.ndarray]:
        multiplier, convolver = chirps(np.float64(order), n, NUMPY)
        return charge((multiplier.astype(dtype), convolver.astype(dtype)))

    return SHELF.get(("fractional_fourier", order, n, dtype), made)


def chirps(order: Array, n: int, xp: Namespace) -> tuple[Array, Array]:
    """Return what multiplies in time and in frequency, complex128, shapes [*o, n], for orders in [-1/2, 1/2]."""
    angle = (math.pi / 2 * order)[..., None]
    half = angle / 2
    lag = np.arange(n // 2 + 1.0)
    squared = xp.constant(math.pi * (lag / n) * lag, order)
    multiplier = _chirp(-xp.sin(half) / xp.cos(half) * squared, n, xp)
    return multiplier, _chirp(half - xp.sin(angle) * squared, n, xp)


def _chirp(phase: Array, n: int, xp: Namespace) -> Array:
    """Return exp(i phase), which is even in time: given at the lags 0 to n // 2."""
    values = xp.cos(phase) + 1j * xp.sin(phase)
    return xp.concat([values, xp.flip(values[..., 1 : (n + 1) // 2])])
