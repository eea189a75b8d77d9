"""PyTorch's instance of the namespace: the formulas' gradient in alpha comes from tracing them here, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class TorchNamespace:
    """See `fractional.namespace.Namespace`."""

    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    expm1 = staticmethod(torch.expm1)
    cos = staticmethod(torch.cos)
    sin = staticmethod(torch.sin)
    acos = staticmethod(torch.acos)
    floor = staticmethod(torch.floor)
    lgamma = staticmethod(torch.lgamma)
    matmul = staticmethod(torch.matmul)
    is_complex = staticmethod(torch.is_complex)
    abs = staticmethod(torch.abs)
    angle = staticmethod(torch.angle)
    polygamma = staticmethod(torch.polygamma)
    sigmoid = staticmethod(torch.sigmoid)

    def asarray(self, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.to(torch.float64)
        return torch.as_tensor(value, dtype=torch.float64, device="cpu")  # a number's own dtype would be single

    def constant(self, values: np.ndarray, like: Tensor) -> Tensor:
        found = torch.as_tensor(values, device=like.device)
        return found if found.is_complex() else found.to(torch.float64)

    def where(self, condition: Tensor, x: Any, y: Any) -> Tensor:
        return torch.where(condition, x, y)

    def fft(self, x: Tensor, *, norm: str | None = None) -> Tensor:
        return torch.fft.fft(x, norm=norm) if x.numel() else x + 0j  # MKL refuses to transform no signal

    def ifft(self, x: Tensor, *, norm: str | None = None) -> Tensor:
        return torch.fft.ifft(x, norm=norm) if x.numel() else x + 0j

    def cumprod(self, x: Tensor) -> Tensor:
        return torch.cumprod(x, dim=-1)

    def cumsum(self, x: Tensor) -> Tensor:
        return torch.cumsum(x, dim=-1)

    def convolve(self, a: Tensor, b: Tensor) -> Tensor:
        n = a.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(a, 2 * n) * torch.fft.rfft(b, 2 * n), 2 * n)[..., :n]

    def sum(self, x: Tensor) -> Tensor:
        return torch.sum(x, dim=-1)

    def max(self, x: Tensor) -> Tensor:
        return torch.amax(x, dim=-1)

    def take(self, x: Tensor, index: np.ndarray) -> Tensor:
        if index.ndim == 1 and int(index[-1]) - int(index[0]) + 1 == index.size:
            return x.narrow(-1, int(index[0]), index.size)
        return x[..., torch.as_tensor(index, device=x.device)]

    def concat(self, arrays: list[Tensor]) -> Tensor:
        return torch.cat(arrays, dim=-1)

    def flip(self, x: Tensor) -> Tensor:
        return torch.flip(x, (-1,))

    def stack(self, rows: list[Tensor]) -> Tensor:
        return torch.stack(rows, dim=-2)


TORCH = TorchNamespace()
