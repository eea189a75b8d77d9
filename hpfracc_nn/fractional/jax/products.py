"""The causal Toeplitz products in jax.numpy: what XLA compiles for JAX's own arrays and for those that torch lends it.

Arrays are [batch, channels, n, width], weights of one channel or of all. Every function is linear in the data and made
of operations that all transforms of JAX follow. What stands around the product is in `fractional/boundary.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array, fits

_EXACT = lax.Precision.HIGHEST


def dense(x: Array, matrix: Array) -> Array:
    """Return x M along n, M [channels or 1, n, n] with M[j, l] = w[l - j]."""
    return multiply(x[:, :, None], matrix)[:, :, 0]


def chunked(x: Array, near: Array, into: Array, far: Array, powers: Sequence[Array]) -> Array:
    """Return the product by chunks; n is a multiple of their length L. See `weights.py`.

    Args:
        x: The data.
        near: Lags inside a chunk, [channels or 1, L, L].
        into: From the samples to the states, [L, K].
        far: From the states to the samples, [channels or 1, K, L].
        powers: The factor of each state from chunk to chunk [K], its square, that one's square, ...: as many as
            `doublings` says; in the dtype of the scan.
    """
    return _applied(x, near, into[None], far, powers, reverse=False)


def chunked_transpose(g: Array, near: Array, into: Array, far: Array, powers: Sequence[Array]) -> Array:
    """Return the transpose of `chunked` applied to g."""
    return _applied(g, near.mT, far.mT, into.T[None], powers, reverse=True)


def filtered(x: Array, spectrum: Array, length: int) -> Array:
    """Return the product by a transform of `length`, at least 2 n - 1, where nothing wraps round.

    Args:
        x: The data.
        spectrum: Of the column, [1, channels or 1, length // 2 + 1, 1]; conjugated it gives the transpose.
        length: Of the transforms.
    """
    return jnp.fft.irfft(jnp.fft.rfft(x, length, axis=2) * spectrum, length, axis=2)[:, :, : x.shape[2]]


def doublings(chunks: int) -> int:
    """Return how many powers a scan over so many chunks takes."""
    return max(0, (chunks - 1).bit_length())


def squares(decay: Any, count: int) -> list[Any]:
    """Return `decay` and its repeated squares."""
    found = [decay]
    while len(found) < count:
        found.append(found[-1] * found[-1])
    return found[:count]


def multiply(data: Array, matrix: Array) -> Array:
    """Multiply chunks [batch, channels, chunks, L, width] by one matrix for all or for each channel, [.., L, K]."""
    *outer, length, width = data.shape
    if width == 1 and matrix.shape[0] == 1:  # one large product, which XLA does not make of it by itself
        rows = jnp.matmul(data.reshape(-1, length), matrix[0], precision=_EXACT)
        return rows.reshape(*outer, matrix.shape[2], 1)
    return jnp.einsum("bcmlw,clk->bcmkw", data, matrix, precision=_EXACT)


def _applied(x: Array, near: Array, into: Array, out_of: Array, powers: Sequence[Array], reverse: bool) -> Array:
    batch, channels, n, width = x.shape
    length = near.shape[-1]
    data = x.reshape(batch, channels, n // length, length, width)
    y = multiply(data, near)
    if data.shape[2] > 1:
        y += multiply(_states(data, into, powers, reverse), out_of)
    return y.reshape(x.shape)


def _states(data: Array, into: Array, powers: Sequence[Array], reverse: bool) -> Array:
    """Return the state before each chunk, or with `reverse` after it."""
    added = multiply(data, into).astype(powers[0].dtype)
    before = _scanned(added[:, :, ::-1] if reverse else added, powers)
    return (before[:, :, ::-1] if reverse else before).astype(data.dtype)


def _scanned(added: Array, powers: Sequence[Array]) -> Array:
    """Exclusive scan along axis 2 of [batch, channels, chunks, K, width]: over pairs of chunks, then inside a pair.

    Every step decays alike, so lax.associative_scan, which carries the decays along, does twice the work.
    """
    *outer, count, k, width = added.shape
    if count == 1:
        return jnp.zeros_like(added)
    factor = powers[0].reshape(1, 1, 1, k, 1)
    pairs = jnp.pad(added, ((0, 0), (0, 0), (0, count % 2), (0, 0), (0, 0))).reshape(*outer, -1, 2, k, width)
    first, second = pairs[:, :, :, 0], pairs[:, :, :, 1]
    before = _scanned(factor * first + second, powers[1:])
    both = jnp.stack([before, factor * before + first], axis=3)
    return both.reshape(*outer, -1, k, width)[:, :, :count]


Run = Callable[[Any, Array], Array]


def transposed(run: Run) -> Run:
    """Return the transpose of run(form, x), which is linear in x and keeps its shape."""

    def adjoint(form: Any, g: Array) -> Array:
        return jax.linear_transpose(lambda x: run(form, x), g)(g)[0]

    return adjoint


def in_parts(run: Run, form: Any, x: Array, chunk: int | None) -> Array:
    """Return run(form, x) of x [batch, channels, ...], of at most `chunk` rows at a time where memory is short."""
    count = None if chunk is None else max(1, chunk // x.shape[1])
    if count is None or fits(count, x.shape[0]):
        return run(form, x)
    return jax.lax.map(lambda row: run(form, row[None])[0], x, batch_size=count)  # type: ignore[no-any-return]
