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
from hpfracc_nn.fractional.weights import CACHE


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
    """Return the whole number nearest to an order; raise ValueError unless the order is finite."""
    if not -math.inf < order < math.inf:  # torch.compile follows comparisons
        raise ValueError(f"{owner}(order={order}): needs a finite order; pass such as order=0.5.")
    return round(order)


def transformed(x: Array, whole: int | Array, chirps: Iterable[Array] | None, xp: Namespace) -> Array:
    """Return the fractional Fourier transform of complex samples [..., n].

    The FFT comes before the rotation, the inverse FFT after it: so the transform of order -a is the inverse of that of
    order a for every signal, and not only where rotations commute with the FFT.

    Args:
        x: Complex samples, shape [..., n].
        whole: The whole part of the order modulo 4, one number or an array [*o].
        chirps: The two chirps for the rest of the order, see `chirps_of`; None where there is no rest.
        xp: The namespace of the arrays.
    """
    if isinstance(whole, int):
        x = xp.fft(x, norm="ortho") if whole == 1 else _reversed(x, xp) if whole == 2 else x
        x = x if chirps is None else _rotated(x, chirps, xp)
        return xp.ifft(x, norm="ortho") if whole == 3 else x
    whole = whole[..., None]
    x = xp.where(whole == 1, xp.fft(x, norm="ortho"), xp.where(whole == 2, _reversed(x, xp), x))
    x = x if chirps is None else _rotated(x, chirps, xp)
    return xp.where(whole == 3, xp.ifft(x, norm="ortho"), x)


def _reversed(x: Array, xp: Namespace) -> Array:
    """Return x [..., n] at times -t, periodically: x[0], x[n-1], ..., x[1]."""
    return xp.concat([x[..., :1], xp.flip(x[..., 1:], axis=-1)], axis=-1)


def _rotated(x: Array, chirps: Iterable[Array], xp: Namespace) -> Array:
    multiplier, convolver = chirps
    return multiplier * xp.ifft(convolver * xp.fft(multiplier * x))


def fixed_chirps(order: float, n: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Return the two chirps of one fixed order in [-1/2, 1/2], [n] each, from the cache; see `chirps_of`."""

    def build() -> tuple[np.ndarray, np.ndarray]:
        multiplier, convolver = chirps_of(np.float64(order), n, NUMPY)
        return multiplier.astype(dtype), convolver.astype(dtype)

    return CACHE.get(("fractional_fourier", order, n, dtype), build)


def chirps_of(order: Array, n: int, xp: Namespace) -> tuple[Array, Array]:
    """Return the two chirps that rotate a signal, in time and in frequency, for orders [*o] in [-1/2, 1/2].

    They are complex128 [*o, n]: the diagonal of M, and exp(i theta / 2) times the factor exp(-i pi sin(theta) f**2) of
    C; see the module's docstring.
    """
    angle = (math.pi / 2 * order)[..., None]
    half = angle / 2
    lag = np.arange(n // 2 + 1.0)
    squared = xp.constant(math.pi * (lag / n) * lag, order)
    multiplier = _chirp(-xp.sin(half) / xp.cos(half) * squared, n, xp)
    return multiplier, _chirp(half - xp.sin(angle) * squared, n, xp)


def _chirp(phase: Array, n: int, xp: Namespace) -> Array:
    """Return exp(i phase), even in time, at all n lags, [*o, n], from the phase at lags 0 to n // 2 [*o, ...]."""
    values = xp.cos(phase) + 1j * xp.sin(phase)
    return xp.concat([values, xp.flip(values[..., 1 : (n + 1) // 2], axis=-1)], axis=-1)
