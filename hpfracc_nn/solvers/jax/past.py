"""The sum over the past, one step after the other: loops whose programs are as long for 2000 steps as for 100.

`march` takes steps in order. Each is given its memory, the weighted sum of the values of all steps before it, and
returns its own value. Blocks of some steps add up their own values by one small product each; what they have of the
blocks before is the way of the history:

- `Squares`: a run of steps is two halves, and what the first has for the second is one product, direct or by FFT.
- `States`: exponentials carry the older values, and the newest ones are kept as they are; O(1) a step.
- `Rows`: any weights, all values are kept.

All are linear in the values and the weights, and follow every transform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.solvers.jax.toeplitz import Product, product_by, toeplitz

# (carry, memory [sets, a, *rest], x, whether the step counts) -> (carry, value [a, *rest], what is returned of it)
Advance = Callable[[Any, Array, Any, Array], tuple[Any, Array, Any]]
_BLOCK = 32  # steps
_SHORTEST, _LONGEST = 16, 48
_EXACT = lax.Precision.HIGHEST


class Past(Protocol):
    """A way to add up the past."""

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Array, Any]:
        """Return the values of all steps, [steps, a, *rest], and what was returned of each, stacked.

        Args:
            advance: Takes a step.
            carry: What the first step is given of the one before.
            xs: What each step is given besides, [steps, ...] each.
            like: A value.
            is_remade: Whether a backward pass computes blocks anew, in place of keeping what is inside.
        """
        ...


@dataclass(frozen=True, eq=False)
class Squares:
    """Halves of halves: every pair of steps that do not share a block is in exactly one square.

    Attributes:
        columns: By lag from 0 on, [a, sets, steps + 1].
        product: How a square is multiplied.

    Source: Hairer, Lubich & Schlichte, SIAM J. Sci. Stat. Comput. 6 (1985) 532.
    """

    columns: Array
    product: Product

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Array, Any]:
        """See `Past`."""
        count = _length(xs)
        levels = max(0, -(-count // _BLOCK) - 1).bit_length()
        block = -(-count // (1 << levels))
        total = block << levels
        columns = _padded(self.columns, total + 1)
        near = _near(columns, block)
        squares = [product_by(self.product, columns, block << level) for level in range(levels)]
        sets = columns.shape[1]

        def segment(level: int, carry: Any, past: Array, xs: Any) -> tuple[Any, tuple[Array, Any]]:
            if level == 0:
                return _block(advance, carry, past, near, xs, is_remade)
            half = block << (level - 1)
            square = squares[level - 1]

            def taken(given: tuple[Any, Array], x: tuple[Array, Array, Any]) -> tuple[Any, tuple[Array, Any]]:
                carry, arrived = given
                is_first, past, xs = x
                carry, (values, outs) = segment(level - 1, carry, past + arrived, xs)
                arrived = lax.cond(is_first, square, lambda values: jnp.zeros_like(past), values)
                return (carry, arrived), (values, outs)

            split = _split((past, xs), half)
            nothing = jnp.zeros((half, sets, *like.shape), like.dtype)
            (carry, _), found = lax.scan(taken, (carry, nothing), (jnp.array([True, False]), *split))
            return carry, jax.tree.map(lambda each: each.reshape(2 * half, *each.shape[2:]), found)

        past = jnp.zeros((total, sets, *like.shape), like.dtype)
        _, found = segment(levels, carry, past, _lengthened(xs, count, total))
        return jax.tree.map(lambda each: each[:count], found)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class States:
    """The newest values as they are, and what the older ones have as exponentials.

    Attributes:
        columns: By lag from 0 on, [a, sets, steps + 1].
        kept: How many values are kept: those at larger lags are in the states, or have no weight.
        nodes: Of the exponentials, from lag kept + 1 on, or None where there are none.
        coefficients: Theirs, [a, sets, q], or None.
    """

    columns: Array
    kept: int
    nodes: Nodes | None = None
    coefficients: Array | None = None

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Array, Any]:
        """See `Past`."""
        count = _length(xs)
        block = _even_block(count)
        total = block * -(-count // block)
        kept = min(self.kept, total)
        columns = _padded(self.columns, block + kept + 1)
        near = _near(columns, block)
        recent_weights = toeplitz(columns, np.arange(block)[:, None] + kept - np.arange(kept))
        fade = self._fading(block, like)

        def taken(given: tuple[Any, Array, Any], xs: Any) -> tuple[Any, tuple[Array, Any]]:
            carry, recent, states = given
            past = jnp.einsum("saij,ja...->isa...", recent_weights, recent, precision=_EXACT)
            if fade is not None:
                past = past + jnp.einsum("saiq,qa...->isa...", fade.out, states, precision=_EXACT)
            carry, (values, outs) = _block(advance, carry, past, near, xs, is_remade)
            joined = jnp.concatenate([recent, values])
            if fade is not None:
                leaving = jnp.einsum("qj,ja...->qa...", fade.into, joined[:block], precision=_EXACT)
                states = fade.decay.reshape(-1, *(1,) * like.ndim) * states + leaving
            return (carry, joined[block:], states), (values, outs)

        recent = jnp.zeros((kept, *like.shape), like.dtype)
        states = None if fade is None else jnp.zeros((fade.decay.size, *like.shape), like.dtype)
        split = _split(_lengthened(xs, count, total), block)
        _, found = lax.scan(taken, (carry, recent, states), split)
        return jax.tree.map(lambda each: each.reshape(total, *each.shape[2:])[:count], found)  # type: ignore[no-any-return]

    def _fading(self, block: int, like: Array) -> _Fading | None:
        if self.nodes is None:
            return None
        assert self.coefficients is not None, "nodes have coefficients"
        rates, steps = self.nodes.rates[:, None], np.arange(block)
        decays = jnp.asarray(np.exp(-rates * steps), like.dtype)  # [q, block]
        out = self.coefficients.swapaxes(0, 1)[:, :, None, :] * decays.T
        return _Fading(out, decays[:, ::-1], jnp.asarray(np.exp(-rates[:, 0] * block), like.dtype))


@dataclass(frozen=True, eq=False)
class _Fading:
    """Exponentials over a block.

    Attributes:
        out: From the states to its steps, [sets, a, block, q].
        into: From values, the newest last, to the states, [q, block].
        decay: Of the states, [q].
    """

    out: Array
    into: Array
    decay: Array


@dataclass(frozen=True, eq=False)
class Rows:
    """All values, and weights that are no function of the lag.

    Attributes:
        rows: That of each value at each step, [steps, sets, a, steps].
    """

    rows: Array

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Array, Any]:
        """See `Past`."""
        count = _length(xs)
        block = _even_block(count)
        blocks = -(-count // block)
        total = block * blocks
        rows = jnp.pad(self.rows, [(0, total - count), (0, 0), (0, 0), (0, total - count)])
        rows = rows.reshape(blocks, block, *rows.shape[1:])
        own = jnp.stack([rows[k, ..., k * block : (k + 1) * block] for k in range(blocks)])

        def taken(given: tuple[Any, Array], x: tuple[Array, Array, Array, Any]) -> tuple[Any, tuple[Array, Any]]:
            carry, values = given
            first, rows, near, xs = x
            past = jnp.einsum("isaj,ja...->isa...", rows, values, precision=_EXACT)
            carry, (found, outs) = _block(advance, carry, past, near, xs, is_remade)
            return (carry, lax.dynamic_update_slice_in_dim(values, found, first, 0)), (found, outs)

        values = jnp.zeros((total, *like.shape), like.dtype)
        split = _split(_lengthened(xs, count, total), block)
        firsts = jnp.arange(blocks) * block
        _, found = lax.scan(taken, (carry, values), (firsts, rows, own, split))
        return jax.tree.map(lambda each: each.reshape(total, *each.shape[2:])[:count], found)  # type: ignore[no-any-return]


def _block(
    advance: Advance, carry: Any, past: Array, near: Array, xs: Any, is_remade: bool
) -> tuple[Any, tuple[Array, Any]]:
    """Take the steps of a block.

    Args:
        advance: Takes a step.
        carry: Of the step before.
        past: What the block's memories have of what is before it, [block, sets, a, *rest].
        near: Weights of the block's own values, [block, sets, a, block].
        xs: What each step is given besides.
        is_remade: See `Past`.
    """

    def steps(carry: Any, past: Array, near: Array, xs: Any) -> tuple[Any, tuple[Array, Any]]:
        def taken(given: tuple[Any, Array], x: tuple[Array, Array, Array, Any]) -> tuple[Any, tuple[Array, Any]]:
            carry, values = given
            i, past, row, (counts, x) = x
            memory = past + jnp.einsum("saj,ja...->sa...", row, values, precision=_EXACT)
            carry, value, out = advance(carry, memory, x, counts)
            return (carry, values.at[i].set(value)), (value, out)

        block = past.shape[0]
        nothing = jnp.zeros((block, *past.shape[2:]), past.dtype)
        (carry, _), found = lax.scan(taken, (carry, nothing), (jnp.arange(block), past, near, xs))
        return carry, found

    return (jax.checkpoint(steps) if is_remade else steps)(carry, past, near, xs)


def _near(columns: Array, block: int) -> Array:
    """Return the weights of a block's own values, [block, sets, a, block]; 0 at a step's own lag and above."""
    steps = np.arange(block)
    return toeplitz(columns, steps[:, None] - steps).transpose(2, 0, 1, 3)


def _lengthened(xs: Any, count: int, total: int) -> tuple[Array, Any]:
    """Return whether each step counts, and what each is given; those that fill up repeat the last one."""
    index = np.minimum(np.arange(total), count - 1)
    given = xs if total == count else jax.tree.map(lambda each: each[index], xs)
    return jnp.arange(total) < count, given


def _split(xs: Any, block: int) -> Any:
    """Return arrays by blocks, [blocks, block, ...]."""
    return jax.tree.map(lambda each: each.reshape(each.shape[0] // block, block, *each.shape[1:]), xs)


def _padded(columns: Array, length: int) -> Array:
    missing = max(0, length - columns.shape[-1])
    return jnp.pad(columns, [(0, 0), (0, 0), (0, missing)])


def _even_block(count: int) -> int:
    """Return the steps of a block, of the lengths that fit best the one that fills up least."""
    if count <= _LONGEST:
        return count
    return min(range(_LONGEST, _SHORTEST - 1, -1), key=lambda block: -count % block)


def _length(xs: Any) -> int:
    return int(jax.tree.leaves(xs)[0].shape[0])
