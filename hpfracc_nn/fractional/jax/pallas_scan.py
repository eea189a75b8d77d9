"""The chunked scan as a Pallas kernel for GPUs: the product in one pass over the samples, lowered to Triton's code.

A program has ROWS rows of one channel and goes through their chunks, with the states of all of them at hand. Rows are
those of the batch where time is the last axis, and else those of the width. With X a chunk of L samples and S the
states before it, in the letters of `fractional/linear.py`, Y = X intra + S C and S' = A S + X B. W [channels, L + K, L]
is `intra` above C: all that depends on the weights.

There are three maps: the product of W and x, its transpose of W and g, and the gradient in W of x and g. Each is linear
in either argument, and transposed in one it is another of the three. So they are one JAX primitive, and every transform
follows. States, and sums over time, are float64 whatever is enabled.

Importing this takes a fifth of a second, for Pallas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.export import is_symbolic_dim
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpfracc_nn.fractional.exponentials import Nodes
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.fractional.jax.weights import Weights
from hpfracc_nn.fractional.weights import transitions

ROWS, WARPS = 32, 4  # as of the kernel in Triton for torch, for which they were chosen by counting
LEAST_STATES = 16  # Triton multiplies no smaller matrices

Name = Literal["product", "transpose", "gradient"]


@dataclass(frozen=True)
class Model:
    """The static facts of the weights' state space model, known when a call is traced.

    Attributes:
        length: L, a power of two, at least 16.
        nodes: The exponentials; None where there is one chunk.
        interpret: Whether Pallas interprets the kernel, in which case it runs on a CPU: `pallas_call(interpret=...)`.
    """

    length: int
    nodes: Nodes | None
    interpret: bool = False

    @property
    def states(self) -> int:
        """K, the number of states: a power of two, at least 16. States beyond those of the nodes are zero."""
        count = 0 if self.nodes is None else self.nodes.states
        return max(LEAST_STATES, 1 << max(count - 1, 0).bit_length())

    def constants(self) -> tuple[np.ndarray, np.ndarray]:
        """Return B [L, K] and A [K], float64."""
        B, A = np.zeros((self.length, self.states)), np.zeros(self.states)
        if self.nodes is not None:
            found = transitions(self.nodes, self.length)
            B[:, : found.A.size], A[: found.A.size] = found.B, found.A
        return B, A


@dataclass(frozen=True, eq=False)
class PallasScan:
    """The product with weights W [channels, L + K, L]; see `fractional/linear.py`."""

    W: Array
    model: Model

    def matvec(self, x: Array) -> Array:
        """Return the product, of x's shape."""
        return self._by("product", x)

    def rmatvec(self, g: Array) -> Array:
        """Return the transpose applied to g."""
        return self._by("transpose", g)

    def _by(self, name: Name, x: Array) -> Array:
        if any(map(is_symbolic_dim, x.shape)):
            raise ValueError(
                f"pallas/chunked_scan(x of shape {x.shape}): needs sizes that are known when the call is traced; lift "
                "the force with configure(force_backend=None) to export a program with open ones."
            )
        return _applied(name, self.model, beside(self.W, x), beside(x, self.W))


def prepare(weights: Weights, length: int, interpret: bool = False) -> PallasScan:
    """Return the product with the weights in chunks of `length` samples; see `Model`."""
    found = weights.chunks(length)
    model = Model(length, None if found.B is None else weights.nodes, interpret)
    parts = [found.intra] if found.C is None else [found.intra, found.C]
    W = jnp.concatenate(parts, axis=1)
    return PallasScan(jnp.pad(W, ((0, 0), (0, length + model.states - W.shape[1]), (0, 0))), model)


_SCAN = Primitive("chunked_scan")


def _applied(name: Name, model: Model, p: Array, q: Array) -> Array:
    found: Array = _SCAN.bind(p, q, name=name, model=model)
    return found


def _computed(p: Array, q: Array, *, name: Name, model: Model) -> Array:
    """Return one of the three maps, `name`, of p, which is W or data, and q, data [batch, channels, n, width]."""
    batch, channels, _, width = q.shape
    programs = -(-batch // ROWS) if width == 1 else batch * -(-width // ROWS)
    data = [x.reshape(x.shape[:3]) if width == 1 and x.ndim == 4 else x for x in (p, q)]
    shape = (programs, channels, model.length + model.states, model.length) if name == "gradient" else data[1].shape
    with jax.enable_x64(True):
        B, A = model.constants()
        found = pl.pallas_call(
            _gradient if name == "gradient" else partial(_product, is_transposed=name == "transpose"),
            out_shape=jax.ShapeDtypeStruct(shape, q.dtype, manual_axis_type=jax.typeof(q).mat),
            grid=(programs * channels,),
            interpret=model.interpret,
            compiler_params=triton.CompilerParams(num_warps=WARPS, num_stages=1),
            name=f"chunked_scan_{name}",
        )(*data, jnp.asarray(B, q.dtype), jnp.asarray(A))
    return found.sum(0) if name == "gradient" else found.reshape(q.shape)


def _type(p: Any, q: Any, *, name: Name, model: Model) -> Any:
    """Abstract evaluation rule: return the result's type, which varies over mesh axes as the arguments do."""

    def alike(p: Array, q: Array) -> Array:
        if name != "gradient":
            return q + 0 * p.sum()
        return jnp.zeros((q.shape[1], model.length + model.states, model.length), q.dtype) + (p * q).sum()

    return jax.make_jaxpr(alike)(p, q).out_avals[0]


def _in_first(cotangent: Array, p: Any, q: Array, *, name: Name, model: Model) -> Array:
    """Transposition rule in p: return the cotangent of p."""
    if name == "product":
        return _applied("gradient", model, q, cotangent)
    if name == "transpose":
        return _applied("gradient", model, cotangent, q)
    return _applied("transpose", model, cotangent, q)


def _in_second(cotangent: Array, p: Array, q: Any, *, name: Name, model: Model) -> Array:
    """Transposition rule in q: return the cotangent of q."""
    if name == "product":
        return _applied("transpose", model, p, cotangent)
    if name == "transpose":
        return _applied("product", model, p, cotangent)
    return _applied("product", model, cotangent, p)


def _batched(arguments: Sequence[Array], axes: Sequence[int | None], *, name: Name, model: Model) -> tuple[Array, int]:
    """Batching rule: return the map of arguments with a batch axis, and the result's batch axis.

    Where W has none, the batch axis becomes part of the data's batch, and else of the channels.
    """
    (p, q), (i, j) = arguments, axes
    size = p.shape[i] if i is not None else q.shape[j]  # type: ignore[index]
    if i is None and name != "gradient":
        data = jnp.moveaxis(q, j, 0)  # type: ignore[arg-type]
        found = _applied(name, model, p, data.reshape(-1, *data.shape[2:]))
        return found.reshape(data.shape), 0

    def in_channels(x: Array, axis: int | None, at: int) -> Array:
        moved = jnp.moveaxis(x, axis, at) if axis is not None else jnp.repeat(jnp.expand_dims(x, at), size, at)
        return moved.reshape(*moved.shape[:at], -1, *moved.shape[at + 2 :])

    found = _applied(name, model, in_channels(p, i, int(name == "gradient")), in_channels(q, j, 1))
    at = int(name != "gradient")
    return found.reshape(*found.shape[:at], size, -1, *found.shape[at + 1 :]), at


_SCAN.def_impl(jax.jit(_computed, static_argnames=("name", "model")))
_SCAN.def_abstract_eval(_type)
mlir.register_lowering(_SCAN, mlir.lower_fun(_computed, multiple_results=False))
ad.defbilinear(_SCAN, _in_first, _in_second)
batching.primitive_batchers[_SCAN] = _batched


class _Tiles:
    """The chunks [ROWS, L] of this program's rows, of data [batch, channels, n] or [batch, channels, n, width].

    Attributes:
        program: Number of the program among those of its channel.
        channel: Number of the channel.
    """

    def __init__(self, shape: Sequence[int], length: int):
        self._length, self._n, self._is_last = length, shape[2], len(shape) == 3
        self.program, self.channel = _divided(pl.program_id(0), shape[1])
        if self._is_last:
            block, rows = self.program, shape[0]
        else:
            self._batch, block = _divided(self.program, -(-shape[3] // ROWS))
            rows = shape[3]
        self._row = block * ROWS
        self._is_row = self._row + lax.iota(jnp.int32, ROWS) < rows

    def _place(self, begin: Array) -> tuple[Any, Array]:
        """Return the index of the chunk from time `begin` on in an array, and a mask of the samples that there are."""
        times, rows = pl.ds(begin, self._length), pl.ds(self._row, ROWS)
        is_time = begin + lax.iota(jnp.int32, self._length) < self._n
        if self._is_last:
            return (rows, self.channel, times), self._is_row[:, None] & is_time[None]
        return (self._batch, self.channel, times, rows), is_time[:, None] & self._is_row[None]

    def read(self, ref: Any, begin: Array) -> Array:
        """Return the chunk [ROWS, L] from time `begin` on, 0 where there are no samples."""
        at, is_there = self._place(begin)
        found: Array = triton.load(ref.at[at], mask=is_there, other=0.0)
        return found if self._is_last else found.T

    def write(self, ref: Any, begin: Array, y: Array) -> None:
        at, is_there = self._place(begin)
        triton.store(ref.at[at], y if self._is_last else y.T, mask=is_there)


def _divided(number: Array, by: int) -> tuple[Array, Array]:
    """Return the quotient and the remainder of a number that is not negative."""
    return lax.div(number, jnp.int32(by)), lax.rem(number, jnp.int32(by))


_dot = partial(jnp.dot, precision=lax.Precision.HIGHEST)


def _product(w_ref: Any, x_ref: Any, b_ref: Any, a_ref: Any, y_ref: Any, *, is_transposed: bool) -> None:
    """Write the product with x, or with `is_transposed` its transpose, into y for this program's rows.

    The transpose goes through the chunks from the last to the first.
    """
    length, states = b_ref.shape
    tiles, steps = _Tiles(x_ref.shape, length), -(-x_ref.shape[2] // length)
    near, outward = w_ref[tiles.channel, :length, :], w_ref[tiles.channel, length:, :]
    inward, decay = b_ref[...], a_ref[...][None]
    if is_transposed:
        near, outward, inward = near.T, inward.T, outward.T

    def step(number: Array, state: Array) -> Array:
        begin = ((steps - 1 - number if is_transposed else number) * length).astype(jnp.int32)
        x = tiles.read(x_ref, begin)
        tiles.write(y_ref, begin, _dot(x, near) + _dot(state.astype(x.dtype), outward))
        return state * decay + _dot(x, inward).astype(state.dtype)

    lax.fori_loop(0, steps, step, jnp.zeros((ROWS, states), jnp.float64))


def _gradient(x_ref: Any, g_ref: Any, b_ref: Any, a_ref: Any, w_ref: Any) -> None:
    """Write this program's part of the gradient in W of the sum of the product with x, times g."""
    length, states = b_ref.shape
    tiles, steps = _Tiles(x_ref.shape, length), -(-x_ref.shape[2] // length)
    inward, decay = b_ref[...], a_ref[...][None]

    def step(number: Array, carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        near, outward, state = carried
        begin = (number * length).astype(jnp.int32)
        x, g = tiles.read(x_ref, begin), tiles.read(g_ref, begin)
        near += _dot(x.T, g).astype(near.dtype)
        outward += _dot(state.astype(x.dtype).T, g).astype(near.dtype)
        return near, outward, state * decay + _dot(x, inward).astype(state.dtype)

    sizes = ((length, length), (states, length), (ROWS, states))
    near, outward, _ = lax.fori_loop(0, steps, step, tuple(jnp.zeros(size, jnp.float64) for size in sizes))
    w_ref[tiles.program, tiles.channel, :length, :] = near.astype(w_ref.dtype)
    w_ref[tiles.program, tiles.channel, length:, :] = outward.astype(w_ref.dtype)
