"""Causal Toeplitz product by chunks, compiled by XLA: the products and a scan of log(chunks) levels in one call.

Batch, chunks and states are rounded up, so that few shapes are compiled; channels and width are the model's own.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.frame import by_tiles
from hpfracc_nn.fractional.torch.kernels import chunks, xla_arrays
from hpfracc_nn.fractional.torch.kernels.xla_arrays import Array
from hpfracc_nn.fractional.torch.tiles import tile_bytes
from hpfracc_nn.selection import Cost, Kernel, Workload, register

_STATES = 8  # states are padded to a multiple of it: their number depends on scheme, dtype and length


def run(form: ChunkForm, pairs: chunks.Pairs) -> None:
    for x, out in pairs:
        _write(_product, form, x, out)


def adjoint(form: ChunkForm, pairs: chunks.Pairs) -> None:
    for g, out in pairs:
        _write(_transpose, form, g, out)


def _write(step: xla_arrays.Step, form: ChunkForm, x: Tensor, out: Tensor) -> None:
    (found,) = xla_arrays.compute(step, (x,), _shape(form, x), _operands(form))
    out.copy_(found[: x.shape[0], :, : x.shape[2]])


def _shape(form: ChunkForm, x: Tensor) -> tuple[int, ...]:
    batch, channels, n, width = x.shape
    return xla_arrays.bucket(batch), channels, xla_arrays.bucket(n // form.multiple) * form.multiple, width


def _operands(form: ChunkForm) -> tuple[Array, ...]:
    def padded() -> tuple[Tensor, ...]:
        more = -form.decay.shape[0] % _STATES
        return form.near, F.pad(form.into, (0, more)), F.pad(form.far, (0, 0, 0, more)), F.pad(form.decay, (0, more))

    return xla_arrays.kept(form, padded)


def _product(x: Array, near: Array, into: Array, far: Array, decay: Array) -> tuple[Array]:
    return (_apply(x, near, into[None], far, decay, reverse=False),)


def _transpose(g: Array, near: Array, into: Array, far: Array, decay: Array) -> tuple[Array]:
    return (_apply(g, near.mT, far.mT, into.T[None], decay, reverse=True),)


def _apply(x: Array, near: Array, into: Array, out_of: Array, decay: Array, reverse: bool) -> Array:
    data = _in_chunks(x, near.shape[-1])
    y = _multiply(data, near)
    if data.shape[2] > 1:
        y += _multiply(_states(data, into, decay, reverse), out_of)
    return y.reshape(x.shape)


def _in_chunks(x: Array, length: int) -> Array:
    batch, channels, n, width = x.shape
    return x.reshape(batch, channels, n // length, length, width)


def _multiply(data: Array, matrix: Array) -> Array:
    """Multiply the chunks [batch, channels, chunks, L, width] by one matrix for all or for each channel, [.., L, K]."""
    from jax import lax
    from jax import numpy as jnp

    *outer, length, width = data.shape
    if width == 1 and matrix.shape[0] == 1:  # one large product, which XLA does not make of it by itself
        rows = jnp.matmul(data.reshape(-1, length), matrix[0], precision=lax.Precision.HIGHEST)
        return rows.reshape(*outer, matrix.shape[2], 1)
    return jnp.einsum("bcmlw,clk->bcmkw", data, matrix, precision=lax.Precision.HIGHEST)


def _states(data: Array, into: Array, decay: Array, reverse: bool) -> Array:
    """Return the state before each chunk, or with `reverse` after it; the scan is float64."""
    added = _multiply(data, into).astype(decay.dtype)
    before = _scan(added[:, :, ::-1] if reverse else added, decay)
    return (before[:, :, ::-1] if reverse else before).astype(data.dtype)


def _scan(added: Array, decay: Array) -> Array:
    """Exclusive scan along axis 2 of [batch, channels, chunks, K, width]: over pairs of chunks, then inside a pair.

    Every step decays alike, so lax.associative_scan, which carries the decays along, does twice the work.
    """
    from jax import numpy as jnp

    *outer, count, k, width = added.shape
    if count == 1:
        return jnp.zeros_like(added)
    factor = decay.reshape(1, 1, 1, k, 1)
    pairs = jnp.pad(added, ((0, 0), (0, 0), (0, count % 2), (0, 0), (0, 0))).reshape(*outer, -1, 2, k, width)
    first, second = pairs[:, :, :, 0], pairs[:, :, :, 1]
    before = _scan(factor * first + second, decay * decay)
    both = jnp.stack([before, factor * before + first], axis=3)
    return both.reshape(*outer, -1, k, width)[:, :, :count]


_OPERATIONS = 30  # of one state in the scan and its conversions, measured on one core


def cost(workload: Workload) -> Cost:
    """The chunks' cost, of whole buckets, with a slower scan and the calls of XLA."""
    length = chunks.chunk_length(workload)
    batch = xla_arrays.bucket(max(1, workload.rows // workload.channels))
    count = xla_arrays.bucket(max(1, -(-workload.n // length)))
    found = chunks.cost_of(workload, batch * workload.channels, count)
    passes = 1 + workload.needs_gradient + workload.learns_weights
    return Cost(
        flops={"matmul": found.flops["matmul"], "scan": _OPERATIONS * found.flops["scan"]},
        bytes=found.bytes,
        launches=passes * xla_arrays.LAUNCHES,
        workspace=found.workspace + 2 * tile_bytes(workload),  # XLA also keeps the arguments and the result for itself
    )


def refuses(workload: Workload) -> str | None:
    return xla_arrays.refuses(workload) or chunks.refuses(workload)


register(
    Kernel(
        "toeplitz",
        "torch",
        "xla",
        "chunked_scan",
        *by_tiles(run, adjoint, turns_narrow=True),
        chunks.prepare,
        cost,
        refuses,
        chunks.saves,
        xla_arrays.compiles,
    )
)
