"""PyTorch's functions for formulas that are written once for all frameworks (`fractional.namespace`).

The formulas' gradient in alpha comes from tracing them with these functions, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.namespace import NAMESPACES, NUMPY, OF_CLASS, Namespace
from hpfracc_nn.fractional.torch.tracing import is_traced

_BY_NUMPY = 1 << 17  # entries of a matrix that NumPy fills in three quarters of torch's time (measured)
_PLANNED = 2048  # points, above which one transform takes torch, which plans it anew, twice NumPy's time (measured)


class TorchNamespace:
    """The functions that formulas call, by PyTorch; see `fractional.namespace.Namespace`."""

    float32 = torch.float32
    result_type = staticmethod(torch.result_type)
    moveaxis = staticmethod(torch.movedim)
    nan_to_num = staticmethod(torch.nan_to_num)
    float64 = torch.float64
    empty_like = staticmethod(torch.empty_like)
    subtract = staticmethod(torch.sub)
    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    expm1 = staticmethod(torch.expm1)
    cos = staticmethod(torch.cos)
    sin = staticmethod(torch.sin)
    acos = staticmethod(torch.acos)
    floor = staticmethod(torch.floor)
    gammaln = staticmethod(torch.lgamma)
    matmul = staticmethod(torch.matmul)
    iscomplexobj = staticmethod(torch.is_complex)
    abs = staticmethod(torch.abs)
    angle = staticmethod(torch.angle)
    polygamma = staticmethod(torch.polygamma)
    expit = staticmethod(torch.sigmoid)
    broadcast_to = staticmethod(torch.broadcast_to)

    def asarray(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(torch.float64)
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")  # a number's own dtype would be single

    def constant(self, values: np.ndarray, like: Tensor) -> Tensor:
        found = torch.as_tensor(values, device=like.device)
        return found if found.is_complex() else found.to(torch.float64)

    def tensordot(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(a[None], b.flatten(1) if b.ndim > 1 else b[:, None]).reshape(b.shape[1:])

    def addcmul(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.addcmul(x, y, z)

    def where(self, condition: Tensor, x: Any, y: Any) -> Tensor:
        return torch.where(condition, x, y)

    def fft(self, x: Tensor, *, norm: str | None = None) -> Tensor:
        return torch.fft.fft(x, norm=norm) if x.numel() else x + 0j  # MKL refuses to transform no signal

    def ifft(self, x: Tensor, *, norm: str | None = None) -> Tensor:
        return torch.fft.ifft(x, norm=norm) if x.numel() else x + 0j

    def rfft(self, x: Tensor, n: int, *, axis: int) -> Tensor:
        return torch.fft.rfft(x, n, dim=axis)

    def irfft(self, x: Tensor, n: int, *, axis: int) -> Tensor:
        return torch.fft.irfft(x, n, dim=axis)

    def toeplitz(self, column: Tensor, length: int) -> Tensor:
        if length * length <= _BY_NUMPY and column.shape[-1] == length and _may_be_read(column):
            values, (*outer, n) = column.numpy(), column.shape
            padded = np.zeros((*outer, 2 * n - 1), values.dtype)
            padded[..., n - 1 :] = values
            *steps, step = padded.strides
            matrices = np.ndarray((*outer, n, n), values.dtype, padded, (n - 1) * step, (*steps, -step, step))
            return torch.from_numpy(matrices.copy())
        more = max(0, length - column.shape[-1])
        column = F.pad(column, (0, more)) if more else column.narrow(-1, 0, length)
        if not is_traced(column, ()):
            return F.pad(column, (length - 1, 0)).unfold(-1, length, 1).flip(-2)
        # vmap has no rule for the backward of unfold, and warns: skew repeated rows instead, at half the speed.
        rows = F.pad(column, (0, length)).unsqueeze(-2).expand(*column.shape[:-1], length, 2 * length)
        skewed = rows.reshape(*column.shape[:-1], 2 * length * length).narrow(-1, 0, length * (2 * length - 1))
        return skewed.reshape(*column.shape[:-1], length, 2 * length - 1).narrow(-1, 0, length)

    def spectrum(self, column: Tensor, length: int) -> Tensor:
        if length > _PLANNED and column.shape[:-1].numel() == 1 and _may_be_read(column):
            return torch.from_numpy(NUMPY.spectrum(column.numpy(), length))
        return torch.fft.rfft(column.to(torch.float64), length).to(column.dtype.to_complex())

    def complex_of(self, dtype: torch.dtype) -> torch.dtype:
        return dtype.to_complex()

    def astype(self, x: Tensor, dtype: Any) -> Tensor:
        return x.to(dtype)

    def like(self, x: Tensor, other: Tensor) -> Tensor:
        return x.to(other)

    def contiguous(self, x: Tensor) -> Tensor:
        return x.contiguous()

    def zeros(self, shape: Sequence[int], like: Tensor) -> Tensor:
        return like.new_zeros(shape)

    def cumulative_prod(self, x: Tensor, *, axis: int) -> Tensor:
        return torch.cumprod(x, dim=axis)

    def cumulative_sum(self, x: Tensor, *, axis: int, dtype: Any = None) -> Tensor:
        return torch.cumsum(x, dim=axis, dtype=dtype)

    def part(self, x: Tensor, begin: int, end: int | None, *, axis: int) -> Tensor:
        return x.narrow(axis, begin, (x.shape[axis] if end is None else end) - begin)

    def pad(self, x: Tensor, before: int, after: int = 0, *, axis: int) -> Tensor:
        return F.pad(x, (0, 0) * (x.ndim - 1 - axis % x.ndim) + (before, after))

    def fftfreq(self, n: int, d: float, like: Tensor) -> Tensor:
        return torch.fft.fftfreq(n, d, dtype=torch.float64, device=like.device)

    def rfftfreq(self, n: int, d: float, like: Tensor) -> Tensor:
        return torch.fft.rfftfreq(n, d, dtype=torch.float64, device=like.device)

    def diff(self, x: Tensor, *, n: int, axis: int) -> Tensor:
        return torch.diff(x, n, axis)

    def chunk_matmul(self, data: Tensor, matrix: Tensor) -> Tensor:
        # vmap of batched gradients has no rule for einsum; few signals side by side are slow to multiply from the left
        batch, channels, chunks, length, width = data.shape
        rows = data.permute(1, 0, 2, 4, 3).reshape(channels, -1, length)
        found = torch.matmul(rows, matrix).reshape(channels, batch, chunks, width, -1)
        return found.permute(1, 0, 2, 4, 3)

    def convolve(self, a: Tensor, b: Tensor) -> Tensor:
        n = a.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(a, 2 * n) * torch.fft.rfft(b, 2 * n), 2 * n)[..., :n]

    def permute_dims(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(*axes)

    def sum(self, x: Tensor, *, axis: int, keepdims: bool = False, dtype: Any = None) -> Tensor:
        return torch.sum(x, dim=axis, keepdim=keepdims, dtype=dtype)

    def max(self, x: Tensor, *, axis: int) -> Tensor:
        return torch.amax(x, dim=axis)

    def take(self, x: Tensor, index: np.ndarray, *, axis: int) -> Tensor:
        is_range = index.ndim == 1 and int(index[-1]) - int(index[0]) + 1 == index.size and (np.diff(index) == 1).all()
        if is_range:
            return x.narrow(axis, int(index[0]), index.size)
        return x[(slice(None),) * (axis % x.ndim) + (torch.as_tensor(index, device=x.device),)]

    def concat(self, arrays: Sequence[Tensor], *, axis: int) -> Tensor:
        return torch.cat(list(arrays), dim=axis)

    def stack(self, arrays: Sequence[Tensor], *, axis: int) -> Tensor:
        return torch.stack(list(arrays), dim=axis)

    def flip(self, x: Tensor, *, axis: int) -> Tensor:
        return torch.flip(x, (axis,))


def _may_be_read(x: Tensor) -> bool:
    """Whether x lies on a CPU and neither autograd nor a transform follows it, so that NumPy may compute with it."""
    return x.is_cpu and not (x.requires_grad or is_traced(x, ()))


TORCH: Namespace = TorchNamespace()
NAMESPACES["torch"] = OF_CLASS[Tensor] = OF_CLASS[torch.nn.Parameter] = TORCH
