"""The memory of a solve: the weights of the past, and the sums over the past inside of the loop over the steps.

A step's value is what the step adds to the past: f(t_j, y_j), or f and the noise. A step's memory is the weighted sum
of the values of all steps before it:

    memory[n, s, a] = sum over j < n of weight[s, a, n, j] value[j, a]

Symbols in shapes: `a` orders alpha; `rest` the axes of a state that share an order; `sets` the memories that a step
needs, each with its own weights (a predictor's and a corrector's, or the drift's and the noise's); `q` exponentials.
A lag is n - j, the number of steps from a value to a memory. Weights that depend on the lag alone are columns, [a,
sets, lags], from lag 0 on.

Weights of fixed orders are computed by NumPy in float64 and cached; those of traced orders are computed in float64
inside of the program. The weights of a scheme's first H values do not depend on the lag alone. These values are the
head: they are kept apart, and only later values are added up by lag.

`march` takes the steps in order, in loops whose programs are as long for 2000 steps as for 100. Steps are taken in
blocks. Inside of a block one small product for each step adds up the block's own values. Three classes add up the
values of the blocks before, each for one way to keep the history:

- `Recent` keeps the newest values, or all, and carries the sum over the older ones by exponentials.
- `Squares` halves the steps again and again: one product by FFT takes the values of a first half to the memories of the
  second. Only its program grows: by one transform each time that the number of steps doubles.
- `Rows` keeps all values and takes any weights.

All are linear in the values and the weights, and all of JAX's transformations apply to them. Arrays that depend on
weights of NumPy alone are NumPy's too, and constants of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.cache import ByteCache
from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import product
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.solvers import history
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax.state import Orders
from hpfracc_nn.solvers.schemes import Scheme

_DIRECT = 512  # steps up to which `causal` multiplies by a matrix, not by FFT


def toeplitz(columns: Array, lags: np.ndarray) -> Array:
    """Return the matrices of weights whose entries have the given lags, [sets, a, *lags.shape]; 0 for lags up to 0.

    Args:
        columns: The weights by lag from 0 on, [a, sets, lags].
        lags: The lag of each entry: a row for each step that adds up, a column for each step that is added.
    """
    found = columns[:, :, np.maximum(lags, 0)] * (lags > 0)[None, None].astype(columns.dtype)
    return found.swapaxes(0, 1)


def padded(columns: Array, length: int) -> Array:
    """Return columns of weights, [a, sets, lags], with zeros appended up to `length` lags; NumPy arrays remain such."""
    missing = max(0, length - columns.shape[-1])
    if not missing:
        return columns
    return _module(columns).pad(columns, [(0, 0), (0, 0), (0, missing)])  # type: ignore[no-any-return]


def _module(x: Any) -> Any:
    """Return the module of an array, numpy or jax.numpy."""
    return np if isinstance(x, np.ndarray) else jnp


def square(columns: Array, half: int) -> Callable[[Array], Array]:
    """Return a function from the values of `half` steps to their part of the memories of the next `half` steps.

    The function takes [half, a, *rest] to [half, sets, a, *rest] by an FFT of 2 `half` numbers. Cyclic wrapping spoils
    only rows that are left out. `columns`, the weights by lag, [a, sets, lags], have at least 2 `half` lags.
    """
    return _transformed(columns[..., : 2 * half], half)


def causal(columns: Array, values: Array) -> Array:
    """Return the causal weighted sums sum_(j < n) w_(n-j) value_j at all steps, [n, sets, a, *rest].

    `columns` are the weights w by lag, [a, sets, lags]; `values` are those of all steps, [n, a, *rest].
    """
    n = values.shape[0]
    if n <= _DIRECT:
        steps = np.arange(n)
        matrix = toeplitz(columns, steps[:, None] - steps)
        return product("saij,ja...->isa...", matrix, values)
    past = jnp.concatenate([0 * columns[..., :1], columns[..., 1:n], 0 * columns[..., :n]], axis=-1)
    return _transformed(past, 0)(values)


def _transformed(columns: Array, first: int) -> Callable[[Array], Array]:
    """Return a function that convolves values with columns of weights cyclically, by FFT.

    The function takes values [n, a, *rest] to [n, sets, a, *rest]: n of the 2 n rows of the cyclic product, from row
    `first` on. `columns` is [a, sets, 2 n].
    """
    length = columns.shape[-1]
    spectrum = jnp.fft.rfft(columns, length).transpose(2, 1, 0)  # [frequencies, sets, a]

    def applied(values: Array) -> Array:
        transformed = jnp.fft.rfft(values, length, axis=0)[:, None]
        weighted = spectrum.reshape(*spectrum.shape, *(1,) * (values.ndim - 2)) * transformed
        return jnp.fft.irfft(weighted, length, axis=0)[first : first + values.shape[0]]

    return applied


_CACHE = ByteCache(1 << 28)
# Orders at which exponentials for a traced order must fit: parts of the way from the lowest order to the highest.
_GRID = (1e-3, 0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98, 1 - 1e-3, 1)


class Weights(NamedTuple):
    """The weights of a solve's values in the memories of its steps; a pytree.

    Arrays are NumPy's if nothing in them is traced.

    Attributes:
        own: The weight of a step's own right-hand side in the last set, [n_steps + 1, a]: a corrector and an implicit
            step need this weight.
        head: The weights of the first H values in the memory of each step, [n_steps + 1, H, sets, a].
        later: The weights of all other values. On equal steps by lag from 0 on, [a, sets, n_steps + 1]; on any other
            mesh of each value in the memory of each step, [n_steps + 1, sets, a, n_steps + 1], values last.
        coefficients: The coefficients of the exponentials that replace the weights of older lags, [a, sets, q], or
            None.
    """

    own: Array
    head: Array
    later: Array
    coefficients: Array | None


@dataclass(frozen=True)
class Sum:
    """The sum over the past of a solve: all that determines its weights but the orders and the step.

    Attributes:
        scheme: The scheme, which has formulas for its weights.
        history: How the past is kept: which weights are dropped or replaced by exponentials.
        n_steps: The number of steps.
        times: The times since the start, n_steps + 1 of them, if steps are not equal; else None.
        dtype: The name of the states' dtype.
    """

    scheme: Scheme
    history: History
    n_steps: int
    times: tuple[float, ...] | None
    dtype: str

    def nodes(self, orders: Orders) -> Nodes | None:
        """Return the exponentials whose sum replaces older weights within the history's tolerance, or None.

        For traced orders the exponentials fit the weights of every order in the range.
        """
        if self.times is not None:
            return None
        if orders.values is None:
            low, high = orders.lowest, orders.highest
            return _nodes(self, tuple(low + part * (high - low) for part in _GRID))
        return _nodes(self, tuple(orders.values.tolist()))

    def weights(self, orders: Orders, dt: float | Array, nodes: Nodes | None) -> Weights:
        """Return the weights for steps of length `dt`, which may be traced if steps are equal.

        `nodes` are the exponentials that replace older weights, or None.
        """
        step = dt if isinstance(dt, float) else 1.0

        def made() -> Weights:
            parts = orders.computed(lambda alpha, xp: self._parts(alpha, step, nodes, xp), self.dtype)
            return _of_block(**parts) if "block" in parts else _of_columns(**parts)

        def rounded() -> Weights:
            return jax.tree.map(lambda each: np.ascontiguousarray(each, dtype=self.dtype), made())  # type: ignore[no-any-return]

        known = None if orders.values is None else tuple(orders.values.tolist())
        found = made() if known is None else _CACHE.get((self, known, step, nodes), rounded)
        return found if isinstance(dt, float) else _scaled(found, orders, dt)

    def _parts(self, alpha: Any, dt: float, nodes: Nodes | None, xp: Namespace) -> dict[str, Any]:
        """Return the weights of orders `alpha` [a] as the scheme has them, arrays by name.

        `dt` is the length of a step, and `nodes` are the exponentials that replace older weights, or None.

        On equal steps the names are "columns" [a, sets, n_steps + 1] and, if there are any, "starts" [a, sets,
        n_steps + 1, H] and the "coefficients" [a, sets, q] of `nodes`; on any other mesh there is only "block" [a,
        sets, n_steps + 1, n_steps + 1].
        """
        if self.times is not None:
            times = np.array(self.times)
            steps = range(times.size)
            return {"block": self.scheme.block(alpha, times, steps, steps, xp)}
        weights = self.scheme.weights(alpha, self.n_steps, dt, xp)
        used = self.history.used(weights, nodes, xp)
        found = {"columns": used.columns}
        if used.starts is not None:
            found["starts"] = used.starts
        if nodes is not None:
            found["coefficients"] = history.coefficients(weights, nodes, xp)
        return found


@lru_cache(maxsize=64)
def _nodes(given: Sum, orders: tuple[float, ...]) -> Nodes | None:
    weights = given.scheme.weights(np.array(orders), given.n_steps, 1.0, NUMPY)
    return given.history.keep(weights, given.dtype, NUMPY).nodes


def _of_columns(columns: Any, starts: Any = None, coefficients: Any = None) -> Weights:
    """Return the weights of a solve with equal steps from a scheme's.

    Args:
        columns: The scheme's weights by lag from 0 on, [a, sets, n_steps + 1].
        starts: What is added to the weights of the first H values at each step, [a, sets, n_steps + 1, H], or None.
        coefficients: The coefficients of the exponentials, [a, sets, q], or None.
    """
    n, xp = columns.shape[-1], _module(columns)
    count = 1 if starts is None else min(starts.shape[-1], n)
    lag = np.arange(n)[:, None] - np.arange(count)  # [n, H]
    head = xp.where(lag > 0, columns[:, :, np.maximum(lag, 0)], 0)
    own = xp.broadcast_to(columns[:, -1, 0], (n, columns.shape[0]))
    if starts is not None:
        head = head + xp.where(lag > 0, starts[..., :count], 0)
        first = [columns[:, -1, 0] + starts[:, -1, k, k] for k in range(count)]
        own = xp.concatenate([xp.stack(first, axis=-2), own[len(first) :]])
    return Weights(own, head.transpose(2, 3, 1, 0), columns, coefficients)


def _of_block(block: Any) -> Weights:
    """Return the weights of a solve on any mesh from a scheme's `block` of weights.

    `block` is [a, sets, n_steps + 1, n_steps + 1]: a row for each step that adds up, a column for each that is added.
    """
    n = block.shape[-1]
    is_earlier = np.arange(n)[:, None] > np.arange(n)
    later = _module(block).where(is_earlier, block, 0).transpose(2, 1, 0, 3)
    own = block[:, -1, np.arange(n), np.arange(n)].T
    return Weights(own, later[..., :1].transpose(0, 3, 1, 2), later, None)


def _scaled(weights: Weights, orders: Orders, dt: Array) -> Weights:
    """Return the weights for steps of a traced length `dt`: `weights`, for steps of length 1, times dt**alpha."""
    scale = jnp.exp(jnp.asarray(orders.alpha, dt.dtype) * jnp.log(dt)).astype(weights.own.dtype)
    coefficients = weights.coefficients
    return Weights(
        weights.own * scale[None],
        weights.head * scale[None, None, None],
        weights.later * scale[:, None, None],
        None if coefficients is None else coefficients * scale[:, None, None],
    )


# Takes one step: (carry, memory [sets, a, *rest], x, mask) -> (carry, value [a, *rest], output). `x` holds the step's
# other inputs. `mask` is False for a step that only fills up a block, and None where no step does.
Advance = Callable[[Any, Array, Any, Any], tuple[Any, Array, Any]]
_SHORTEST, _LONGEST = 16, 48  # steps of a block
DIRECT = 256  # steps of a run, inside of which `Squares` adds up the past without FFT


class Past(Protocol):
    """A loop over the steps of a solve, with one way to add up the weighted values of earlier steps."""

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """Take all steps; return the last carry, the values [steps, a, *rest] and the outputs, stacked along time.

        Args:
            advance: Takes one step: (carry, memory [sets, a, *rest], x, mask) -> (carry, value, output); `mask` is
                False for a step that only fills up a block, and None where no step does.
            carry: What the first step gets; each step returns the carry for the next.
            xs: A pytree of the other inputs of the steps, arrays [steps, ...]; `x` is its slice at one step.
            like: An array with the shape and dtype of a step's value, [a, *rest].
            is_remade: Whether a backward pass computes each block of steps again instead of saving what its steps
                compute.
        """
        ...


@dataclass(frozen=True, eq=False)
class Recent:
    """The sum over the newest values with exact weights, and over older values by a sum of exponentials.

    Attributes:
        columns: The weights by lag from 0 on, [a, sets, steps + 1].
        kept: The number of newest values that are kept. Values at larger lags are in the states of the exponentials,
            or have no weight.
        nodes: The exponentials, which stand for the weights from lag kept + 1 on, or None.
        coefficients: The coefficients of the exponentials, [a, sets, q], or None.
    """

    columns: Array
    kept: int
    nodes: Nodes | None = None
    coefficients: Array | None = None

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """Take all steps; see `Past.march`."""
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
    """The linear maps that read and update the states of the exponentials, [q, a, *rest], in one block of steps.

    Attributes:
        out: The map from the states at the block's start to the memories of the block's steps, [sets, a, block, q].
        into: The map from the `block` values that are kept no longer, oldest first, to the states, [q, block].
        decay: The factor by which each state decays over a block, [q].
    """

    out: Array
    into: np.ndarray
    decay: np.ndarray


@dataclass(frozen=True, eq=False)
class Squares:
    """The sum over all values by products of doubling size, the large ones by FFT.

    The matrix of weights below its diagonal is cut into squares, each of which takes the values of the first half of
    some steps to the memories of the second half, down to runs of at most 256 steps. A run adds up its own values
    directly.

    Attributes:
        columns: The weights by lag from 0 on, [a, sets, steps + 1].

    Source: Hairer, Lubich & Schlichte, SIAM J. Sci. Stat. Comput. 6 (1985) 532.
    """

    columns: Array

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """Take all steps; see `Past.march`."""
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
    """The sum over all values with weights that do not depend on the lag alone.

    Attributes:
        rows: The weights of each value in the memory of each step, [steps, sets, a, steps], values last.
    """

    rows: Array

    def march(self, advance: Advance, carry: Any, xs: Any, like: Array, is_remade: bool) -> tuple[Any, Array, Any]:
        """Take all steps; see `Past.march`."""
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
    """Take the steps of one block; return the last carry, and the values and outputs, stacked along time.

    Args:
        advance: Takes one step; see `Past.march`.
        carry: The carry that the step before the block returned.
        past: The memories of the block's steps from all values before the block, [block, sets, a, *rest].
        near: The weights of the block's own values in these memories, [block, sets, a, block], values last.
        xs: The mask of the steps, [block] or None, and their other inputs, arrays [block, ...].
        is_remade: Whether a backward pass computes the block again instead of saving what its steps compute.
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
    """Return a version of `advance` for an inner loop, which adds what an outer loop has added up to the memory.

    The returned function's `x` is (the outer loop's part of the memory, (the outer loop's mask or None, the `x` of
    `advance`)). A step counts if neither loop's mask is False.
    """

    def added(carry: Any, memory: Array, x: Any, counts: Any) -> tuple[Any, Array, Any]:
        past, (is_step, x) = x
        both = is_step if counts is None else counts if is_step is None else is_step & counts
        return advance(carry, memory + past, x, both)

    return added


def zeros(like: Array, *shape: int) -> Array:
    """Return zeros [*shape, *like.shape], sharded over devices as `like` is."""
    return jnp.broadcast_to(jnp.zeros_like(like), (*shape, *like.shape))


def _near(columns: Array, block: int) -> Array:
    """Return the weights of a block's own values in the memories of its steps, [block, sets, a, block], values last.

    The weight of a value that does not come before the step is 0. `columns` has the weights by lag, [a, sets, lags],
    and `block` is the number of steps.
    """
    steps = np.arange(block)
    return toeplitz(columns, steps[:, None] - steps).transpose(2, 0, 1, 3)


def _lengthened(xs: Any, count: int, total: int) -> tuple[Any, Any]:
    """Lengthen the inputs of `count` steps to `total` steps by repeating the last; return (mask, inputs).

    The mask, [total], is False for the repeated steps; it is None if total == count. `xs` is a pytree of arrays
    [count, ...].
    """
    if total == count:
        return None, xs
    index = np.minimum(np.arange(total), count - 1)
    return np.arange(total) < count, jax.tree.map(lambda each: each[index], xs)


def _split(xs: Any, block: int) -> Any:
    """Return a pytree of arrays [steps, ...] cut into blocks: arrays [steps // block, block, ...]."""
    return jax.tree.map(lambda each: each.reshape(each.shape[0] // block, block, *each.shape[1:]), xs)


def _rejoined(found: Any, count: int) -> Any:
    """Return a pytree of arrays [blocks, block, ...] as arrays [count, ...]: the inverse of `_split`.

    Steps from `count` on, which only filled up the last block, are cut off.
    """
    return jax.tree.map(lambda each: each.reshape(-1, *each.shape[2:])[:count] if each.size else each[0, :0], found)


def block_of(count: int) -> int:
    """Return how many steps a block has: all `count` up to 48, else the length from 16 to 48 that needs least filling.

    The last block is filled up with steps that do not count; of equal lengths the longest is taken.
    """
    if count <= _LONGEST:
        return count
    return min(range(_LONGEST, _SHORTEST - 1, -1), key=lambda block: -count % block)


def _length(xs: Any) -> int:
    return int(jax.tree.leaves(xs)[0].shape[0])
