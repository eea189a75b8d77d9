"""Products with weights by lag, of values along the first axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import product

_DIRECT = 512  # steps up to which a product is made by a matrix


def toeplitz(columns: Array, lags: np.ndarray) -> Array:
    """Return the weights at `lags` [rows, columns], 0 where they are not positive; [sets, a, rows, columns].

    Args:
        columns: By lag from 0 on, [a, sets, lags].
        lags: Whole numbers.
    """
    found = columns[:, :, np.maximum(lags, 0)] * (lags > 0)[None, None].astype(columns.dtype)
    return found.swapaxes(0, 1)


def padded(columns: Array, length: int) -> Array:
    """Return columns with zeros up to so many lags; NumPy's where they are."""
    missing = max(0, length - columns.shape[-1])
    if not missing:
        return columns
    return (np if isinstance(columns, np.ndarray) else jnp).pad(columns, [(0, 0), (0, 0), (0, missing)])  # type: ignore[return-value]


def square(columns: Array, half: int) -> Callable[[Array], Array]:
    """Return what takes the values of `half` steps [half, a, *rest] to the next ones' memories [half, sets, a, *rest].

    By a transform of twice as many numbers: what wraps round ends before the rows that are wanted.
    """
    return _transformed(columns[..., : 2 * half], half)


def causal(columns: Array, values: Array) -> Array:
    """Return the memories of all steps that values [n, a, *rest] have at lags from 1 on, [n, sets, a, *rest]."""
    n = values.shape[0]
    if n <= _DIRECT:
        steps = np.arange(n)
        matrix = toeplitz(columns, steps[:, None] - steps)
        return product("saij,ja...->isa...", matrix, values)
    past = jnp.concatenate([0 * columns[..., :1], columns[..., 1:n], 0 * columns[..., :n]], axis=-1)
    return _transformed(past, 0)(values)


def _transformed(columns: Array, first: int) -> Callable[[Array], Array]:
    """Return the cyclic product with columns of 2 n lags: its rows from `first` on, as many as there are values."""
    length = columns.shape[-1]
    spectrum = jnp.fft.rfft(columns, length).transpose(2, 1, 0)  # [frequencies, sets, a]

    def applied(values: Array) -> Array:
        transformed = jnp.fft.rfft(values, length, axis=0)[:, None]
        weighted = spectrum.reshape(*spectrum.shape, *(1,) * (values.ndim - 2)) * transformed
        return jnp.fft.irfft(weighted, length, axis=0)[first : first + values.shape[0]]

    return applied
