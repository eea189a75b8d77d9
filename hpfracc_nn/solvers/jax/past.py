"""The sum over the past, one step after the other: loops whose programs are as long for 2000 steps as for 100.

`march` takes steps in order. Each is given its memory, the weighted sum of the values of all steps before it, and
returns its own value. Blocks of some steps add up their own values by one small product each; what they have of the
blocks before is the way of the history:

- `Recent`: the newest values are kept, be it all, and what the older ones have is carried by exponentials.
- `Squares`: a run of steps is two halves, and what the first has for the second is one product by FFT. Of all only this
  program grows, by one transform each time that the steps are twice as many.
- `Rows`: any weights, all values are kept.

All are linear in the values and the weights, and follow every transform. What is made of weights that are NumPy's is so
too, and a constant of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import product
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.solvers.jax.toeplitz import padded, square, toeplitz

# (carry, memory [sets, a, *rest], x, whether the step counts) -> (carry, value [a, *rest], what is returned of it)
Advance = Callable[[Any, Array, Any, Any], tuple[Any, Array, Any]]
_SHORTEST, _LONGEST = 16, 48  # steps of a block
DIRECT = 256  # steps whose past is added up directly


class Past(Protocol):
    """A way to add up the past."""

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """Return the last carry, the values of all steps, [steps, a, *rest], and what was returned of each, stacked.

        Args:
            advance: Takes a step.
            carry: What the first step is given of the one before.
            xs: What each step is given besides, [steps, ...] each.
            like: A value.
            is_remade: Whether a backward pass computes blocks anew, in place of keeping what is inside.
        """
        ...


@dataclass(frozen=True, eq=False)
class Recent:
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

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """See `Past`."""
        count = _length(xs)
        block = block_of(count)
        total = block * -(-count // block)
        kept = min(self.kept, total - block)
        columns = padded(self.columns, block + kept + 1)
        near, fade = _near(columns, block), self._fading(block, like)
        from_recent = toeplitz(columns, np.arange(block)[:, None] + kept - np.arange(kept))

        def taken(given: Any, xs: Any) -> tuple[Any, tuple[Array, Any]]:
            carry, recent, states = given
            past = product("saij,ja...->isa...", from_recent, recent)
            if fade is not None:
                past = past + product("saiq,qa...->isa...", fade.out, states)
            carry, (values, outs) = _block(advance, carry, past, near, xs, is_remade)
            joined = jnp.concatenate([recent, values])
            if fade is not None:
                leaving = product("qj,ja...->qa...", fade.into, joined[:block])
                states = fade.decay.reshape(-1, *(1,) * like.ndim) * states + leaving
            return (carry, joined[block:], states), (values, outs)

        recent = zeros(like, kept)
        states = None if fade is None else zeros(like, fade.decay.size)
        begin: Any = (carry, recent, states)
        (carry, *_), found = lax.scan(taken, begin, _split(_lengthened(xs, count, total), block))
        return carry, *_rejoined(found, count)

    def _fading(self, block: int, like: Array) -> _Fading | None:
        if self.nodes is None:
            return None
        assert self.coefficients is not None, "nodes have coefficients"
        rates = self.nodes.rates[:, None]
        decays = np.exp(-rates * np.arange(block)).astype(like.dtype)  # [q, block]
        out = self.coefficients.swapaxes(0, 1)[:, :, None, :] * decays.T[None, None]
        return _Fading(out, decays[:, ::-1], np.exp(-rates[:, 0] * block).astype(like.dtype))


class _Fading(NamedTuple):
    """Exponentials over a block.

    Attributes:
        out: From the states to its steps, [sets, a, block, q].
        into: From values, the newest last, to the states, [q, block].
        decay: Of the states, [q].
    """

    out: Array
    into: np.ndarray
    decay: np.ndarray


@dataclass(frozen=True, eq=False)
class Squares:
    """Halves of halves: every pair of steps that do not share a run of 256 is in exactly one square.

    Attributes:
        columns: By lag from 0 on, [a, sets, steps + 1].

    Source: Hairer, Lubich & Schlichte, SIAM J. Sci. Stat. Comput. 6 (1985) 532.
    """

    columns: Array

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """See `Past`."""
        count = _length(xs)
        levels = (-(-count // DIRECT) - 1).bit_length()
        run = -(-count // (1 << levels))
        total = run << levels
        columns = padded(self.columns, total + 1)
        squares = [square(columns, run << level) for level in range(levels)]
        direct, sets = Recent(columns, run), columns.shape[1]

        def segment(level: int, carry: Any, past: Array, xs: Any) -> tuple[Any, tuple[Array, Any]]:
            if level == 0:
                carry, values, outs = direct.march(_adding(advance), carry, (past, xs), like, is_remade)
                return carry, (values, outs)
            half = run << (level - 1)

            def taken(given: Any, x: Any) -> tuple[Any, tuple[Array, Any]]:
                carry, arrived = given
                is_first, past, xs = x
                carry, (values, outs) = segment(level - 1, carry, past + arrived, xs)
                arrived = lax.cond(is_first, squares[level - 1], lambda values: jnp.zeros_like(past), values)
                return (carry, arrived), (values, outs)

            nothing = zeros(like, half, sets)
            past, xs = _split((past, xs), half)
            (carry, _), found = lax.scan(taken, (carry, nothing), (np.array([True, False]), past, xs))
            return carry, _rejoined(found, 2 * half)

        nothing = zeros(like, total, sets)
        carry, found = segment(levels, carry, nothing, _lengthened(xs, count, total))
        return carry, *jax.tree.map(lambda each: each[:count], found)


@dataclass(frozen=True, eq=False)
class Rows:
    """All values, and weights that are no function of the lag.

    Attributes:
        rows: That of each value at each step, [steps, sets, a, steps].
    """

    rows: Array

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """See `Past`."""
        count = _length(xs)
        block = block_of(count)
        blocks = -(-count // block)
        total = block * blocks
        rows = jnp.pad(self.rows, [(0, total - count), (0, 0), (0, 0), (0, total - count)])
        rows = rows.reshape(blocks, block, *rows.shape[1:])

        def taken(given: Any, x: Any) -> tuple[Any, tuple[Array, Any]]:
            carry, values = given
            first, rows, xs = x
            past = product("isaj,ja...->isa...", rows, values)
            near = lax.dynamic_slice_in_dim(rows, first, block, axis=-1)
            carry, (found, outs) = _block(advance, carry, past, near, xs, is_remade)
            return (carry, lax.dynamic_update_slice_in_dim(values, found, first, 0)), (found, outs)

        values = zeros(like, total)
        split = _split(_lengthened(xs, count, total), block)
        (carry, _), found = lax.scan(taken, (carry, values), (np.arange(blocks) * block, rows, split))
        return carry, *_rejoined(found, count)


def _block(
    advance: Advance, carry: Any, past: Array, near: Array, xs: tuple[Any, Any], is_remade: bool
) -> tuple[Any, tuple[Array, Any]]:
    """Take the steps of a block.

    Args:
        advance: Takes a step.
        carry: Of the step before.
        past: What the block's memories have of what is before it, [block, sets, a, *rest].
        near: Weights of the block's own values, [block, sets, a, block].
        xs: Whether each step counts, and what it is given besides.
        is_remade: See `Past`.
    """

    def steps(carry: Any, past: Array, near: Array, xs: tuple[Any, Any]) -> tuple[Any, tuple[Array, Any]]:
        def taken(given: Any, x: Any) -> tuple[Any, tuple[Array, Any]]:
            carry, values = given
            i, past, row, (counts, x) = x
            memory = past + product("saj,ja...->sa...", row, values)
            carry, value, out = advance(carry, memory, x, counts)
            return (carry, lax.dynamic_update_index_in_dim(values, value, i, 0)), (value, out)

        block = past.shape[0]
        nothing = zeros(past[0, 0], block)
        (carry, _), found = lax.scan(taken, (carry, nothing), (np.arange(block), past, near, xs))
        return carry, found

    return (jax.checkpoint(steps, prevent_cse=False) if is_remade else steps)(carry, past, near, xs)


def _adding(advance: Advance) -> Advance:
    """Return the same for steps that are given what has arrived of the past from elsewhere, and whether they count."""

    def added(carry: Any, memory: Array, x: Any, counts: Any) -> tuple[Any, Array, Any]:
        past, (is_step, x) = x
        both = is_step if counts is None else counts if is_step is None else is_step & counts
        return advance(carry, memory + past, x, both)

    return added


def zeros(like: Array, *shape: int) -> Array:
    """Return zeros [*shape, *like.shape], laid over devices as `like` is."""
    return jnp.broadcast_to(jnp.zeros_like(like), (*shape, *like.shape))


def _near(columns: Array, block: int) -> Array:
    """Return the weights of a block's own values, [block, sets, a, block]; 0 at a step's own lag and above."""
    steps = np.arange(block)
    return toeplitz(columns, steps[:, None] - steps).transpose(2, 0, 1, 3)


def _lengthened(xs: Any, count: int, total: int) -> tuple[Any, Any]:
    """Return whether each step counts, or None, and what each is given; those that fill up repeat the last."""
    if total == count:
        return None, xs
    index = np.minimum(np.arange(total), count - 1)
    return np.arange(total) < count, jax.tree.map(lambda each: each[index], xs)


def _split(xs: Any, block: int) -> Any:
    """Return arrays by blocks, [blocks, block, ...]."""
    return jax.tree.map(lambda each: each.reshape(each.shape[0] // block, block, *each.shape[1:]), xs)


def _rejoined(found: Any, count: int) -> Any:
    """Return arrays [blocks, block, ...] as [count, ...]."""
    return jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:])[:count] if each.size else each[0, :0], found)


def block_of(count: int) -> int:
    """Return the steps of a block, of the lengths that fit best the one that fills up least."""
    if count <= _LONGEST:
        return count
    return min(range(_LONGEST, _SHORTEST - 1, -1), key=lambda block: -count % block)


def _length(xs: Any) -> int:
    return int(jax.tree.leaves(xs)[0].shape[0])
