"""Causal Toeplitz product by chunks, compiled by XLA: the products and a scan of log(chunks) levels in one call.

Batch, chunks and states are rounded up, so that few shapes are compiled; channels and width are the model's own.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.kernels import chunks, xla_arrays
from hpfracc_nn.fractional.torch.kernels.xla_arrays import Array
from hpfracc_nn.fractional.torch.tiles import by_tiles, tile_bytes
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
    from hpfracc_nn.fractional.jax import products

    return (products.chunked(x, near, into, far, _powers(x, near, decay)),)


def _transpose(g: Array, near: Array, into: Array, far: Array, decay: Array) -> tuple[Array]:
    from hpfracc_nn.fractional.jax import products

    return (products.chunked_transpose(g, near, into, far, _powers(g, near, decay)),)


def _powers(x: Array, near: Array, decay: Array) -> list[Array]:
    """Those that a scan over the chunks takes, in float64."""
    from hpfracc_nn.fractional.jax import products

    return products.squares(decay, max(1, products.doublings(x.shape[2] // near.shape[-1])))


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
