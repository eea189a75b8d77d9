"""The memory of recurrent cells in JAX: an average of the past by a power law, taken block by block of steps.

Between two blocks the past is a few numbers per unit: the last K values, whose lags are exact, newest first, and sums

    S_q = sum over k > K of exp(-s_q (k - K - 1)) c_(t+1-k)

for the exponentials that stand for the weights of older lags (`layers/recurrence.py`). None of them depends on alpha.
What they give to the memories of the next block is one product. Inside a block each value adds what it gives to the
memories that follow, a_1 c, a_2 c, ...: for a gradient in alpha nothing is kept of a step but its value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.differences import binomial
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.layers.recurrence import memory_nodes

_EXACTLY = jax.lax.Precision.HIGHEST


class Taps(NamedTuple):
    """Weights for a block of L steps.

    Attributes:
        past: What each step has of the past, [c, L, K + Q], c one or the units.
        within: a_1, ..., a_L, [c, L].
    """

    past: Array
    within: Array

    def given(self, value: Array) -> Array:
        """Return what a value [batch, units] adds to the memories of the steps that follow it, [L, batch, units]."""
        # A product and no multiplication, because of its transpose: XLA's sums over the first axis are no vector code.
        if self.within.shape[0] == 1:
            return jnp.einsum("l,bu->lbu", self.within[0], value)
        return jnp.einsum("ul,bu->lbu", self.within, value)


class Past(NamedTuple):
    """What is remembered between two blocks.

    Attributes:
        near: The last values, newest first, [batch, K, units].
        far: The sums of the exponentials, [batch, Q, units].
    """

    near: Array
    far: Array


@dataclass(frozen=True)
class Lags:
    """Which lags are exact, and what stands for the others.

    Attributes:
        exact: K.
        nodes: The exponentials for all older lags, or None: then these do not count.
        window: The largest lag that counts, or None.
    """

    exact: int
    nodes: Nodes | None
    window: int | None

    @property
    def rates(self) -> np.ndarray:
        """s, [Q]."""
        return np.empty(0) if self.nodes is None else self.nodes.rates

    def weights(self, length: int, alpha: Any, xp: Any) -> Taps:
        """Return the weights for orders [c] of a namespace, its arrays in float64."""
        near = np.arange(1, length + self.exact)
        lags = near if self.nodes is None else np.union1d(near, self.nodes.lags)
        column = -binomial(alpha, lags, xp)
        if self.window is not None:
            column = column * xp.constant((lags <= self.window).astype(np.float64), column)
        index = np.arange(length)[:, None] + np.arange(self.exact)
        past = column[..., index]
        if self.nodes is not None:
            fitted = self.nodes.fit(xp.take(column, np.searchsorted(lags, self.nodes.lags), axis=-1), xp)
            decays = np.exp(-np.outer(np.arange(length), self.rates))
            past = xp.concat([past, fitted[..., None, :] * xp.constant(decays, fitted)], axis=-1)
        return Taps(past, column[..., :length])

    def taps(self, definition: GrunwaldLetnikov, alpha: Array | None, length: int, dtype: Any) -> Taps:
        """Return the weights in the dtype of the data; `alpha` is a learned order, None that of the definition."""
        if alpha is None:
            return Taps(*(jnp.asarray(each, dtype) for each in _fixed(self, definition.orders, length)))
        return in_float64(lambda orders: self.weights(length, orders, JAX), alpha.reshape(-1), dtype)

    def begun(self, value: Array) -> Past:
        """Return the past that is one value, [batch, units]."""
        batch, units = value.shape
        near = jnp.pad(value[:, None], ((0, 0), (0, self.exact - 1), (0, 0)))
        return Past(near, jnp.zeros((batch, self.rates.size, units), value.dtype))

    def memories(self, taps: Taps, past: Past) -> Array:
        """Return what the steps of a block have of the past, [L, batch, units]."""
        kept = jnp.concatenate([past.near, past.far], axis=1)
        weights = taps.past
        if weights.shape[0] == 1:
            return jnp.einsum("lk,bku->lbu", weights[0], kept, precision=_EXACTLY)
        return jnp.einsum("ulk,bku->lbu", weights, kept, precision=_EXACTLY)

    def advanced(self, past: Past, values: Array, steps: Any) -> Past:
        """Return the past after the first `steps` of the values [L, batch, units]: one number, or one for each item."""
        length, dtype = values.shape[0], values.dtype
        held = jnp.concatenate([jnp.flip(past.near, 1), jnp.moveaxis(values, 0, 1)], axis=1)  # oldest first
        newest = jnp.broadcast_to(steps, held.shape[:1])[:, None] + (self.exact - 1 - np.arange(self.exact))[None]
        near = jnp.take_along_axis(held, newest[..., None], axis=1)
        if self.nodes is None:
            return Past(near, past.far)
        decay, gain = (jnp.asarray(each, dtype)[steps] for each in _decays(self.nodes, length))
        item = "b" if gain.ndim == 3 else ""
        entered = jnp.einsum(f"{item}qj,bju->bqu", gain, held[:, :length], precision=_EXACTLY)
        return Past(near, past.far * jnp.broadcast_to(decay[..., None], past.far.shape) + entered)


def lags_of(definition: GrunwaldLetnikov, n: int, dtype: Any, window: int | None, *, is_learned: bool) -> Lags:
    """Return how the past of n steps is kept."""
    if window is not None:
        return Lags(window, None, window)
    # Of a learned order all of its bounds count.
    known = replace(definition, alpha=jnp.float32(definition.interval[1])) if is_learned else definition
    nodes = memory_nodes(known, n, jnp.dtype(dtype).name, window)
    return Lags(n, None, None) if nodes is None else Lags(nodes.first - 1, nodes, None)


@lru_cache(maxsize=256)
def _fixed(lags: Lags, orders: tuple[float, ...], length: int) -> Taps:
    return lags.weights(length, np.array(orders), NUMPY)


@lru_cache(maxsize=64)
def _decays(nodes: Nodes, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what r steps leave of the sums, [L + 1, Q], and what the j-th of the values that enter gives them."""
    rates, steps = nodes.rates, np.arange(length + 1)
    ahead = steps[:, None] - 1 - np.arange(length)  # [r, j]
    gain = np.where(ahead[:, None] < 0, 0.0, np.exp(-rates[:, None] * np.maximum(ahead[:, None], 0)))
    return np.exp(-np.outer(steps, rates)), gain
