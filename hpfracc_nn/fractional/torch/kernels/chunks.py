"""The steps of the chunked scan, for kernels that bring their own scan between chunks.

Matrix products inside the chunks, a small sequential scan between them (state space duality; Dao & Gu, arXiv 2405.21060).
A scan is called as scan(states, decay, reverse): it replaces states [rows, chunks, k] in place by the state before each
chunk, S[m] = decay * S[m-1] + states[m-1] with S[0] = 0, in float64; with `reverse`, from the last chunk to the first.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hpfracc_nn.fractional.schemes.exponentials import FIRST_LAG
from hpfracc_nn.fractional.torch.forms import ChunkForm
from hpfracc_nn.fractional.torch.weights import Weights
from hpfracc_nn.selection import Cost, Workload

Scan = Callable[[Tensor, Tensor, bool], None]


def chunk_length(workload: Workload) -> int:
    """Samples per chunk: short where the products are large anyway, longer where the number of chunks counts."""
    return 32 if workload.samples >= 32768 or workload.n <= 64 else 64


def prepare(weights: Weights, workload: Workload) -> ChunkForm:
    return weights.chunks(chunk_length(workload))


def run(form: ChunkForm, x: Tensor, out: Tensor, scan: Scan) -> None:
    """Write the product with x [batch, channels, chunks * L, width] into out."""
    data, result = _Chunks(x, form), _Chunks(out, form, fill=False)
    data.multiply(form.near, result)
    if data.count > 1:
        states = data.into(form.into)
        scan(states, form.decay, False)
        result.add_states(states, form.far)
    result.put_back(out)


def adjoint(form: ChunkForm, g: Tensor, out: Tensor, scan: Scan) -> None:
    """Write the transpose applied to g into out."""
    data, result = _Chunks(g, form), _Chunks(out, form, fill=False)
    data.multiply(form.near.transpose(1, 2), result)
    if data.count > 1:
        states = data.into(form.far.transpose(1, 2))
        scan(states, form.decay, True)
        result.add_states(states, form.into.t()[None])
    result.put_back(out)


def gram(form: ChunkForm, x: Tensor, g: Tensor, scan: Scan) -> tuple[Tensor, ...]:
    """Return the gradients in `near` and `far`."""
    data, grads = _Chunks(x, form), _Chunks(g, form)
    if data.count == 1:
        return data.correlate(grads), torch.zeros_like(form.far)
    states = data.into(form.into)
    scan(states, form.decay, False)
    return data.correlate(grads), grads.correlate_states(states)


class _Chunks:
    """An array as chunks: [channels, rows, L] with time last, [rows, L, width] with time in the middle."""

    def __init__(self, x: Tensor, form: ChunkForm, fill: bool = True):
        self.batch, self.channels, n, self.width = x.shape
        self.length = form.multiple
        self.count = n // self.length
        self.rows = self.batch * self.count
        if self.width > 1:
            self.data = x.view(self.rows, self.length, self.width)
        elif self.channels == 1:
            self.data = x.view(1, self.rows, self.length)
        else:
            shape = self.channels, self.batch, self.count, self.length
            if self.batch == 1:
                self.data = x.view(self.channels, self.rows, self.length)
            elif fill:
                ordered = x.view(self.batch, self.channels, self.count, self.length).transpose(0, 1)
                self.data = ordered.reshape(self.channels, self.rows, self.length)
            else:
                self.data = x.new_empty(shape).view(self.channels, self.rows, self.length)

    def multiply(self, matrix: Tensor, result: _Chunks) -> None:
        """result = data @ matrix, chunk by chunk; matrix [channels, L, L]."""
        if self.width > 1:
            torch.bmm(matrix.transpose(1, 2).expand(self.rows, -1, -1), self.data, out=result.data)
        elif self.channels == 1:
            torch.mm(self.data[0], matrix[0], out=result.data[0])
        else:
            torch.bmm(self.data, matrix, out=result.data)

    def into(self, matrix: Tensor) -> Tensor:
        """The states that each chunk adds, [signals, chunks, k] (time last) or [batch, chunks, k, width]."""
        k = matrix.shape[-1]
        if self.width > 1:
            states = torch.bmm(matrix.transpose(-1, -2).expand(self.rows, -1, -1), self.data)
            return states.view(self.batch, self.count, k, self.width)
        if matrix.ndim == 2 or self.channels == 1:
            states = torch.mm(self.data.view(-1, self.length), matrix.view(self.length, k) if matrix.ndim == 2 else matrix[0])
        else:
            states = torch.bmm(self.data, matrix)
        return states.view(self.channels * self.batch, self.count, k)

    def add_states(self, states: Tensor, matrix: Tensor) -> None:
        """data += states @ matrix; matrix [channels or 1, k, L]."""
        k = matrix.shape[1]
        if self.width > 1:
            flat = states.view(self.rows, k, self.width)
            self.data.baddbmm_(matrix.transpose(1, 2).expand(self.rows, -1, -1), flat)
        elif matrix.shape[0] == 1:
            self.data.view(-1, self.length).addmm_(states.view(-1, k), matrix[0])
        else:
            self.data.baddbmm_(states.view(self.channels, self.rows, k), matrix)

    def correlate(self, grads: _Chunks) -> Tensor:
        """Sum over chunks of x^T g, [channels, L, L]."""
        if self.width > 1:
            x, g = (t.data.permute(1, 0, 2).reshape(self.length, -1) for t in (self, grads))
            return torch.mm(x, g.t())[None]
        return torch.bmm(self.data.transpose(1, 2), grads.data)

    def correlate_states(self, states: Tensor) -> Tensor:
        """Sum over chunks of states^T g, [channels, k, L], called on g."""
        k = states.shape[2]
        if self.width > 1:
            flat = states.view(self.rows, k, self.width).permute(1, 0, 2).reshape(k, -1)
            return torch.mm(flat, self.data.permute(1, 0, 2).reshape(self.length, -1).t())[None]
        return torch.bmm(states.view(self.channels, self.rows, k).transpose(1, 2), self.data)

    def put_back(self, out: Tensor) -> None:
        """Copy into `out` what was regrouped by channel; elsewhere the data are views of it already."""
        if self.channels > 1 and self.batch > 1:
            ordered = self.data.view(self.channels, self.batch, self.count, self.length).transpose(0, 1)
            out.view(self.batch, self.channels, self.count, self.length).copy_(ordered)


def cost(workload: Workload) -> Cost:
    """Two products inside the chunks, one into and one out of the states; twice that and two correlations to learn."""
    length = chunk_length(workload)
    chunks = -(-workload.n // length)
    k = workload.exponentials + FIRST_LAG - 1 if chunks > 1 else 0
    samples = workload.rows * workload.width * chunks * length
    passes = 1 + workload.needs_gradient
    matmul = samples * (2.0 * length + 4.0 * k) * passes + samples * (2.0 * length + 4.0 * k) * workload.learns_weights
    scans = (passes + workload.learns_weights) * samples / length * k
    size = workload.itemsize
    return Cost(
        flops={"matmul": matmul, "scan": scans},
        bytes=(passes + workload.learns_weights) * samples * size * (3.0 + 2.0 * k / length),
        launches=(passes + workload.learns_weights) * (3 if chunks > 1 else 1),
        workspace=samples / length * k * size,
    )


def refuses(workload: Workload) -> str | None:
    """The weights must be a sum of exponentials as soon as there is more than one chunk."""
    if workload.exponentials == 0 and workload.n > chunk_length(workload):
        return f"the weights are no sum of exponentials to {workload.dtype} tolerance"
    return None


def saves(workload: Workload) -> float:
    """The data, where the weights are learned; nothing else."""
    return float(workload.bytes if workload.learns_weights else 0)
