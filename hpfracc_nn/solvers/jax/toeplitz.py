"""Products with weights by lag, of values along the first axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.namespace import Array

Product = Literal["dense", "fft"]
_DIRECT = 128  # steps up to which a square is multiplied directly
_ROWS = 512  # of a matrix that are made at once
_EXACT = lax.Precision.HIGHEST


def toeplitz(columns: Array, lags: np.ndarray) -> Array:
    """Return the weights at `lags` [rows, columns], 0 where they are not positive; [sets, a, rows, columns].

    Args:
        columns: By lag from 0 on, [a, sets, lags].
        lags: Whole numbers.
    """
    found = columns[:, :, np.maximum(lags, 0)] * (lags > 0)
    return found.swapaxes(0, 1)


def product_by(product: Product, columns: Array, half: int) -> Callable[[Array], Array]:
    """Return what takes the values of `half` steps [half, a, *rest] to the next ones' memories [half, sets, a, *rest].

    Args:
        product: "dense" for a matrix, "fft" for a transform where that is faster.
        columns: By lag from 0 on, [a, sets, 2 half or more].
        half: How many.
    """
    if product == "fft" and half > _DIRECT:
        return _transformed(columns, half, half)
    return _multiplied(columns, half, half)


def causal(columns: Array, values: Array) -> Array:
    """Return the memories of all steps that values [n, a, *rest] have at lags from 1 on, [n, sets, a, *rest]."""
    n = values.shape[0]
    if n <= _ROWS:
        return _multiplied(columns, n, 0)(values)
    ended = jnp.concatenate([0 * columns[..., :1], columns[..., 1:n], 0 * columns[..., :n]], axis=-1)
    return _transformed(ended, n, 0)(values)


def _multiplied(columns: Array, half: int, offset: int) -> Callable[[Array], Array]:
    """By the matrix, of at most so many rows at a time."""
    steps = np.arange(half)
    if half <= _ROWS:
        matrix = toeplitz(columns, offset + steps[:, None] - steps)
        return lambda values: jnp.einsum("saij,ja...->isa...", matrix, values, precision=_EXACT)
    rows = -(-half // _ROWS)
    firsts = jnp.arange(rows) * _ROWS
    padded = jnp.pad(columns, [(0, 0), (0, 0), (0, rows * _ROWS)])
    lags = offset + np.arange(_ROWS)[:, None] - steps

    def some(first: Array, values: Array) -> Array:
        at = first + lags
        matrix = padded[:, :, jnp.maximum(at, 0)] * (at > 0)
        return jnp.einsum("asij,ja...->isa...", matrix, values, precision=_EXACT)

    def product(values: Array) -> Array:
        found = lax.map(lambda first: some(first, values), firsts)
        return found.reshape(rows * _ROWS, *found.shape[2:])[:half]

    return product


def _transformed(columns: Array, half: int, offset: int) -> Callable[[Array], Array]:
    """By a transform of twice as many numbers: what wraps round ends before the rows that are wanted."""
    spectrum = jnp.fft.rfft(columns[..., : 2 * half], 2 * half).transpose(2, 1, 0)  # [frequencies, sets, a]

    def product(values: Array) -> Array:
        rest = values.ndim - 2
        transformed = jnp.fft.rfft(values, 2 * half, axis=0)[:, None]
        weighted = spectrum.reshape(*spectrum.shape, *(1,) * rest) * transformed
        return jnp.fft.irfft(weighted, 2 * half, axis=0)[offset : offset + half]

    return product
