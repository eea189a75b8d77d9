"""Causal Toeplitz product of short signals in CUDA, time last, any weights: blocks of 8 x 8 weights, no matrix.

See cuda_dense.cu. Differences, product and boundary columns are one launch in either direction.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.forms import ColumnForm
from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Source
from hpfracc_nn.fractional.torch.kernels.cuda_product import Call
from hpfracc_nn.fractional.torch.tiles import Frame, Shape, multiplied
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Compilation, Cost, Kernel, Workload, register

LONGEST = 512  # samples: 64 threads of 8 positions each

_THREADS = 128  # of a block
_WIDTH, _ROWS = 8, 4  # positions and signals of a thread
_HEADS = {4: 32, 8: 48}  # bytes of `Head`


def prepare(weights: Weights, workload: Workload) -> ColumnForm:
    return weights.column()


def run(form: ColumnForm, frame: Frame, shape: Shape, x: Tensor, y: Tensor) -> None:
    _apply(form, frame, shape, x, y, backward=False)


def adjoint(form: ColumnForm, frame: Frame, shape: Shape, g: Tensor, gx: Tensor) -> None:
    _apply(form, frame, shape, g, gx, backward=True)


def inner(form: ColumnForm, frame: Frame, shape: Shape, x: Tensor, g: Tensor) -> Tensor:
    if frame.stencil.differences < 0:
        return multiplied(run, form, frame, shape, x, g)
    return _call(form, cuda_product.problem(frame.stencil, frame.columns, shape, x), shape, x).inner(g)


def _apply(form: ColumnForm, frame: Frame, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    if frame.stencil.differences >= 0:
        _launch(form, cuda_product.problem(frame.stencil, frame.columns, shape, x), shape, x, y, backward)
    else:
        for data, result in (frame.backward if backward else frame.forward)(x.view(shape), y.view(shape), 1):
            data = data.contiguous()
            _launch(form, cuda_product.problem(None, None, shape, data), shape, data, result, backward)


def _launch(form: ColumnForm, given: np.ndarray, shape: Shape, x: Tensor, y: Tensor, backward: bool) -> None:
    given["y"] = y.data_ptr()
    _call(form, given, shape, x).launch("backward" if backward else "forward")


def _call(form: ColumnForm, given: np.ndarray, shape: Shape, x: Tensor) -> Call:
    batch, channels, n, _ = shape
    column = form.column.contiguous()
    given["near"], given["padded"] = column.data_ptr(), -(-n // _WIDTH) * _WIDTH
    blocks = -(-batch // _group(n)) * channels
    shared = _shared(n, column.element_size())
    return Call(source_of(x.dtype), x.device, blocks, _THREADS, shared, given, [column])


def source_of(dtype: torch.dtype) -> Source:
    """Return the source for a dtype."""
    return Source(__package__, "cuda_dense.cu", str(dtype).removeprefix("torch."))


def _group(n: int) -> int:
    """Return the signals of a block."""
    return _THREADS // -(-n // _WIDTH) * _ROWS


def _shared(n: int, itemsize: int) -> int:
    """Return the bytes of a block's sums, heads, weights and data."""
    parts, group = -(-n // _WIDTH), _group(n)
    length = parts * _WIDTH
    weights = (length + _WIDTH) * (_WIDTH + 1) // _WIDTH + 1
    row = (length + 1) + (length + 1) // _WIDTH + 1
    return 8 * 5 * group * parts + group * _HEADS[itemsize] + (weights + group * row) * itemsize


def cost(workload: Workload) -> Cost:
    """Half the matrix, at the rate of the whole: threads wait for the one with the longest row."""
    passes = 1 + workload.needs_gradient + workload.learns_weights
    blocks = -(-workload.rows // workload.channels // _group(min(max(workload.n, 1), LONGEST))) * workload.channels
    return Cost(
        flops={"matmul": passes * 2.0 * workload.samples * workload.n},
        bytes=passes * 2.0 * workload.bytes,
        launches=2 * passes,
        workspace=8.0 * _THREADS * blocks * workload.learns_weights,
    )


def refuses(workload: Workload) -> str | None:
    if (found := cuda_launch.refusal(workload)) is not None:
        return found
    if workload.width > 1:
        return f"it takes time as the last axis; {workload.width} samples lie side by side"
    if workload.n > LONGEST:
        return f"n={workload.n} is longer than {LONGEST}"
    return cuda_product.too_much_shared(_shared(max(workload.n, 1), workload.converted.itemsize), workload)


def compiles(workload: Workload) -> Compilation | None:
    return cuda_launch.compilation(workload, source_of(getattr(torch, workload.dtype)))


register(
    Kernel(
        "toeplitz",
        "torch",
        "cuda",
        "dense",
        run,
        adjoint,
        prepare,
        cost,
        refuses,
        cuda_product.saves,
        compiles,
        as_stored=True,
        inner=inner,
    )
)
