"""The two forms in which weights reach a kernel, and the product, its adjoint and the Gram map in plain aten.

These formulas are what a traced call, a double backward or a batched gradient runs: autograd differentiates them to any
order. The kernels compute the same three maps faster. Arrays are [batch, channels, n, width], `width` 1 where there are
several channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

_DENSE_UP_TO = 256  # above it the aten formula of a column goes through the FFT


@dataclass(frozen=True, eq=False)
class ColumnForm:
    """The weights as they are, [channels, n]."""

    column: Tensor
    multiple: int = field(default=1, init=False)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a gradient in the weights flows into."""
        return (self.column,)

    def rebuilt(self, tensors: tuple[Tensor, ...]) -> ColumnForm:
        """Return the same form made of other tensors."""
        return ColumnForm(*tensors)

    @cached_property
    def matrix(self) -> Tensor:
        """M [channels, n, n] with y = x M on the last axis: M[j, l] = w[l - j]."""
        return toeplitz(self.column, self.column.shape[-1])

    @cached_property
    def spectrum(self) -> Tensor:
        """The column's transform [channels, padded // 2 + 1], padded so that nothing wraps round."""
        return torch.fft.rfft(self.column, padded_length(self.column.shape[-1]))

    def product(self, x: Tensor) -> Tensor:
        if x.shape[2] <= _DENSE_UP_TO:
            return torch.einsum("bcjw,cjl->bclw", x, self.matrix)
        return self._filter(x, self.spectrum)

    def adjoint(self, g: Tensor) -> Tensor:
        if g.shape[2] <= _DENSE_UP_TO:
            return torch.einsum("bclw,cjl->bcjw", g, self.matrix)
        return self._filter(g, self.spectrum.conj())

    def gram(self, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of <product(x), g> in the column: the correlation of g with x, [channels, n]."""
        n, size = x.shape[2], padded_length(x.shape[2])
        spectrum = torch.fft.rfft(g, size, dim=2) * torch.fft.rfft(x, size, dim=2).conj()
        return (torch.fft.irfft(spectrum.sum(dim=(0, 3)), size, dim=-1)[..., :n],)

    @staticmethod
    def _filter(x: Tensor, spectrum: Tensor) -> Tensor:
        n = x.shape[2]
        size = padded_length(n)
        y = torch.fft.irfft(torch.fft.rfft(x, size, dim=2) * spectrum[..., None], size, dim=2)
        return y[:, :, :n].contiguous()


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The weights as a diagonal state space model over chunks of `multiple` samples (Dao & Gu, arXiv 2405.21060).

    With X [.., L] a chunk and S [.., Q + 7] the state before it,

        Y = X near + S far,      S' = decay * S + X into,

    where the first Q entries of S are the exponentials and the last seven are the samples just before the chunk, whose
    lags are exact. `decay` and the scan are float64: a float32 scan drifts by 1e-5 over 65536 samples.

    Attributes:
        near: Lags inside the chunk, [channels, L, L].
        far: From the states to the samples, [channels, Q + 7, L].
        into: From the samples to the states, [L, Q + 7].
        decay: Factor of each state from chunk to chunk, [Q + 7], float64.
    """

    near: Tensor
    far: Tensor
    into: Tensor
    decay: Tensor

    @property
    def multiple(self) -> int:
        """L."""
        return self.near.shape[-1]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a gradient in the weights flows into."""
        return self.near, self.far

    def rebuilt(self, tensors: tuple[Tensor, ...]) -> ChunkForm:
        """Return the same form made of other tensors."""
        return ChunkForm(*tensors, self.into, self.decay)

    def product(self, x: Tensor) -> Tensor:
        chunks = self._chunks(x)
        y = torch.einsum("bcmjw,cjl->bcmlw", chunks, self.near)
        if chunks.shape[2] > 1:
            y = y + torch.einsum("bcmqw,cql->bcmlw", self._states(chunks), self.far)
        return self._samples(y, x.shape[2])

    def adjoint(self, g: Tensor) -> Tensor:
        chunks = self._chunks(g)
        x = torch.einsum("bcmlw,cjl->bcmjw", chunks, self.near)
        if chunks.shape[2] > 1:
            states = torch.einsum("bcmlw,cql->bcmqw", chunks, self.far).to(torch.float64)
            later = _scan(states.flip(2), self.decay).flip(2).to(g.dtype)
            x = x + torch.einsum("bcmqw,jq->bcmjw", later, self.into)
        return self._samples(x, g.shape[2])

    def gram(self, x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """Return the gradient of <product(x), g> in `near` and `far`."""
        chunks, grads = self._chunks(x), self._chunks(g)
        near = torch.einsum("bcmjw,bcmlw->cjl", chunks, grads)
        if chunks.shape[2] == 1:
            return near, torch.zeros_like(self.far)
        return near, torch.einsum("bcmqw,bcmlw->cql", self._states(chunks), grads)

    def _states(self, chunks: Tensor) -> Tensor:
        added = torch.einsum("bcmjw,jq->bcmqw", chunks, self.into).to(torch.float64)
        return _scan(added, self.decay).to(chunks.dtype)

    def _chunks(self, x: Tensor) -> Tensor:
        batch, channels, n, width = x.shape
        length = self.multiple
        count = -(-n // length)
        if count * length != n:
            x = F.pad(x, (0, 0, 0, count * length - n))
        return x.reshape(batch, channels, count, length, width)

    def _samples(self, chunks: Tensor, n: int) -> Tensor:
        batch, channels, count, length, width = chunks.shape
        y = chunks.reshape(batch, channels, count * length, width)
        return y if count * length == n else y[:, :, :n].contiguous()


Form = ColumnForm | ChunkForm


def _scan(added: Tensor, decay: Tensor) -> Tensor:
    """Return S[m] = sum over i < m of decay**(m - 1 - i) added[i] along axis 2, by doubling."""
    count = added.shape[2]
    states = F.pad(added, (0, 0, 0, 0, 1, 0))[:, :, :count]
    step = 1
    while step < count:
        moved = F.pad(states, (0, 0, 0, 0, step, 0))[:, :, :count]
        states = states + (decay**step)[:, None] * moved
        step *= 2
    return states


def toeplitz(column: Tensor, length: int) -> Tensor:
    """Return M [*c, length, length] with M[j, l] = column[l - j], zero for l < j."""
    padded = F.pad(column[..., :length], (length - 1, 0))
    return padded.unfold(-1, length, 1).flip(-2)


def padded_length(n: int) -> int:
    """Return the next length from 2 n - 1 on whose only factors are 2, 3 and 5: nothing wraps round."""
    best = 1 << (2 * n - 2).bit_length() if n > 1 else 1
    five = 1
    while five < 2 * n - 1:
        three = five
        while three < 2 * n - 1:
            rest = -(-(2 * n - 1) // three)
            best = min(best, three << (rest - 1).bit_length())
            three *= 3
        five *= 5
    return best
