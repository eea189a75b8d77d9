"""The two forms in which weights reach a kernel, and the product and its adjoint in plain aten.

These formulas are what a traced call, a double backward or a batched gradient runs: autograd differentiates them to any
order. The kernels compute the same two maps faster. Arrays are [batch, channels, n, width], `width` 1 where there are
several channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.cache import cached_property, nbytes
from hpfracc_nn.fractional.torch.streams import Streams, kept
from hpfracc_nn.fractional.torch.tracing import is_traced

_DENSE_UP_TO = 256  # above it the aten formula of a column goes through the FFT


@dataclass(frozen=True, eq=False)
class ColumnForm:
    """The weights as they are, [channels, n]; `made` holds what was made of them, on a device for `streams` to read."""

    column: Tensor
    streams: Streams | None = field(default=None, repr=False)
    multiple: int = field(default=1, init=False)
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the column and of what was made of it."""
        return nbytes((self.column, self.made))

    @property
    def matrix(self) -> Tensor:
        """M [channels, n, n] with y = x M on the last axis: M[j, l] = w[l - j]."""
        found: Tensor = kept(self.streams, self.made, "matrix", self._matrix)
        return found

    @property
    def spectrum(self) -> Tensor:
        """The column's transform [channels, padded // 2 + 1], padded so that nothing wraps round; rounded once."""
        found: Tensor = kept(self.streams, self.made, "spectrum", self._spectrum)
        return found

    def _matrix(self) -> Tensor:
        return toeplitz(self.column, self.column.shape[-1])

    def _spectrum(self) -> Tensor:
        exact = torch.fft.rfft(self.column.to(torch.float64), padded_length(self.column.shape[-1]))
        return exact if self.column.dtype == torch.float64 else exact.to(torch.complex64)

    def product(self, x: Tensor) -> Tensor:
        if x.shape[2] > _DENSE_UP_TO:
            return self._filter(x, self.spectrum)
        return _samples(torch.bmm(_rows(x, x.shape[2]), self.matrix), x.shape)

    def adjoint(self, g: Tensor) -> Tensor:
        if g.shape[2] > _DENSE_UP_TO:
            return self._filter(g, self.spectrum.conj())
        return _samples(torch.bmm(_rows(g, g.shape[2]), self.matrix.transpose(1, 2)), g.shape)

    @staticmethod
    def _filter(x: Tensor, spectrum: Tensor) -> Tensor:
        n = x.shape[2]
        size = padded_length(n)
        y = torch.fft.irfft(torch.fft.rfft(x, size, dim=2) * spectrum[..., None], size, dim=2)
        return y.narrow(2, 0, n).contiguous()


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The weights as a diagonal state space model over chunks of `multiple` samples (Dao & Gu, arXiv 2405.21060).

    With X [.., L] a chunk and S [.., K] the states before it,

        Y = X near + S far,      S' = decay * S + X into,

    where the first entries of S are the exponentials and the last few are the samples just before the chunk, whose lags
    are exact. `decay` and the scan are float64: a float32 scan drifts by 1e-5 over 65536 samples.

    Attributes:
        near: Lags inside the chunk, [channels, L, L].
        far: From the states to the samples, [channels, K, L].
        into: From the samples to the states, [L, K].
        decay: Factor of each state from chunk to chunk, [K], float64.
        shared: What kernels made of `into` and `decay` alone; forms of the same two may share it.
        streams: Of a CUDA device, which may read the tensors.
        made: What kernels made of the four.
    """

    near: Tensor
    far: Tensor
    into: Tensor
    decay: Tensor
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)
    streams: Streams | None = field(default=None, repr=False)
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four tensors, in their order."""
        return self.near, self.far, self.into, self.decay

    @property
    def nbytes(self) -> int:
        """Bytes of the four and of what was made of them."""
        return nbytes((self.parts, self.made, self.shared))

    @cached_property
    def multiple(self) -> int:
        """L."""
        return self.near.shape[-1]

    @cached_property
    def factors(self) -> np.ndarray:
        """`decay` as a NumPy array, on a CPU."""
        return self.decay.numpy()

    def cached(self, arrangement: Any) -> Any:
        """Return arrangement.operands(self), made once per form."""
        return kept(self.streams, self.made, arrangement, partial(arrangement.operands, self))

    def cached_shared(self, arrangement: Any) -> Any:
        """Return the same for operands made of `into` and `decay` alone."""
        return kept(self.streams, self.shared, arrangement, partial(arrangement.operands, self))

    def product(self, x: Tensor) -> Tensor:
        rows = _rows(x, self.multiple)
        y = torch.bmm(rows, self.near)
        if x.shape[2] > self.multiple:
            y = y + torch.bmm(self._states(rows, x.shape), self.far)
        return _samples(y, x.shape)

    def adjoint(self, g: Tensor) -> Tensor:
        rows = _rows(g, self.multiple)
        x = torch.bmm(rows, self.near.transpose(1, 2))
        if g.shape[2] > self.multiple:
            added = torch.bmm(rows, self.far.transpose(1, 2))
            x = x + torch.matmul(self._scan(added, g.shape, reverse=True), self.into.t())
        return _samples(x, g.shape)

    def _states(self, rows: Tensor, shape: torch.Size) -> Tensor:
        return self._scan(torch.matmul(rows, self.into), shape)

    def _scan(self, added: Tensor, shape: torch.Size, reverse: bool = False) -> Tensor:
        """Return the state before each chunk, S[m] = sum over i < m of decay**(m-1-i) added[i], by doubling."""
        batch, channels, n, width = shape
        count = -(-n // self.multiple)
        k = added.shape[-1]
        states = added.reshape(channels, batch, count, width, k).to(torch.float64)
        states = _later(states.flip(2) if reverse else states, 1)
        step = 1
        while step < count:
            states = states + self.decay**step * _later(states, step)
            step *= 2
        states = states.flip(2) if reverse else states
        return states.reshape(channels, batch * count * width, k).to(added.dtype)


Form = ColumnForm | ChunkForm


def _later(states: Tensor, step: int) -> Tensor:
    """Move states [channels, batch, chunks, width, k] by `step` chunks, zeros first."""
    count = states.shape[2]
    return F.pad(states[:, :, : count - step], (0, 0, 0, 0, step, 0))


def _rows(x: Tensor, length: int) -> Tensor:
    """Return x [batch, channels, n, width] in pieces of `length`: [channels, batch * pieces * width, length]."""
    batch, channels, n, width = x.shape
    pieces = -(-n // length)
    if pieces * length != n:
        x = F.pad(x, (0, 0, 0, pieces * length - n))
    return x.reshape(batch, channels, pieces, length, width).permute(1, 0, 2, 4, 3).reshape(channels, -1, length)


def _samples(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return [batch, channels, n, width] from the pieces [channels, rows, length] that `_rows` makes."""
    batch, channels, n, width = shape
    length = rows.shape[-1]
    pieces = -(-n // length)
    x = rows.reshape(channels, batch, pieces, width, length).permute(1, 0, 2, 4, 3)
    x = x.reshape(batch, channels, pieces * length, width)
    return x if pieces * length == n else x.narrow(2, 0, n).contiguous()


def toeplitz(column: Tensor, length: int) -> Tensor:
    """Return M [*c, length, length] with M[j, l] = column[l - j], zero for l < j."""
    column = column.narrow(-1, 0, length)
    if not is_traced(column, ()):
        return F.pad(column, (length - 1, 0)).unfold(-1, length, 1).flip(-2)
    # vmap has no rule for the backward of unfold, and warns: skew repeated rows instead, at half the speed.
    rows = F.pad(column, (0, length)).unsqueeze(-2).expand(*column.shape[:-1], length, 2 * length)
    skewed = rows.reshape(*column.shape[:-1], 2 * length * length).narrow(-1, 0, length * (2 * length - 1))
    return skewed.reshape(*column.shape[:-1], length, 2 * length - 1).narrow(-1, 0, length)


@lru_cache(maxsize=4096)  # every first decision asks
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
