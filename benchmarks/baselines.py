"""What the operators are compared with, each written as its users write it.

All compute the causal product of Grunwald-Letnikov weights with the undifferenced data, time on axis -1 unless an axis
is given. None of them checks its arguments.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import signal
from scipy.fft import next_fast_len
from torch import Tensor, nn

from hpfracc_nn import Definition, GrunwaldLetnikov
from hpfracc_nn.fractional.namespace import NUMPY


def column(definition: Definition, n: int) -> np.ndarray:
    """Return the weights of a definition for undifferenced data, float64 [n]."""
    return np.ravel(definition.stencil(n, 1.0, NUMPY, differences=0).weights)


def paddings(n: int) -> list[int]:
    """Return the lengths worth trying for a transform that must not wrap round: a power of two, a fast length."""
    return sorted({1 << (2 * n - 1).bit_length() if n & (n - 1) else 2 * n, next_fast_len(2 * n, real=True)})


def cached_fft(weights: np.ndarray, x: Tensor, padded: int, dim: int = -1) -> Callable[[], Tensor]:
    """Filter through a zero-padded transform whose spectrum is kept; autograd follows it to x.

    It neither differences nor copies its result.
    """
    n = x.shape[dim]
    spectrum = torch.fft.rfft(torch.from_numpy(weights).to(x.dtype), padded)
    spectrum = spectrum.reshape(-1, *(1,) * (x.ndim - 1 - dim % x.ndim))

    def call() -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x, padded, dim=dim) * spectrum, padded, dim=dim).narrow(dim, 0, n)

    return call


def cached_ffts(weights: np.ndarray, x: Tensor, dim: int = -1) -> dict[str, Callable[[], Tensor]]:
    """Return `cached_fft` for each padding, named "fft <length>"."""
    return {f"fft {padded}": cached_fft(weights, x, padded, dim) for padded in paddings(x.shape[dim])}


def grunwald_weights(alpha: Tensor, n: int) -> Tensor:
    """Return (-1)**k binomial(alpha, k) for k < n by a cumulative product that autograd follows, dtype of alpha."""
    k = torch.arange(1, n, dtype=alpha.dtype)
    return torch.cat([torch.ones(1, dtype=alpha.dtype), torch.cumprod(1 - (alpha + 1) / k, dim=0)])


def autograd_fft(alpha: Tensor, x: Tensor) -> Tensor:
    """Filter with the weights made in the graph, so that the gradient reaches alpha too."""
    n = x.shape[-1]
    spectrum = torch.fft.rfft(grunwald_weights(alpha, n).to(x.dtype), 2 * n)
    return torch.fft.irfft(torch.fft.rfft(x, 2 * n) * spectrum, 2 * n)[..., :n]


class FFTLayer(nn.Module):
    """The Grunwald-Letnikov layer by torch.fft, with alpha fixed (its spectrum is a buffer) or learned."""

    def __init__(self, alpha: float, n: int, learn_alpha: bool):
        super().__init__()
        self.n = n
        self.spectrum: Tensor | None
        if learn_alpha:
            self.alpha = nn.Parameter(torch.tensor(alpha))
            self.spectrum = None
        else:
            weights = torch.from_numpy(column(GrunwaldLetnikov(alpha), n)).float()
            self.register_buffer("spectrum", torch.fft.rfft(weights, 2 * n))

    def forward(self, x: Tensor) -> Tensor:
        if self.spectrum is None:
            return autograd_fft(self.alpha, x)
        return torch.fft.irfft(torch.fft.rfft(x, 2 * self.n) * self.spectrum, 2 * self.n)[..., : self.n]


def conv1d(weights: np.ndarray, x: Tensor) -> Callable[[], Tensor]:
    """Filter x [rows, n] by torch's direct convolution with all n weights."""
    n = x.shape[-1]
    kernel = torch.from_numpy(weights[::-1].copy()).to(x.dtype)[None, None]
    return lambda: nn.functional.conv1d(x[:, None], kernel, padding=n - 1)[:, 0, :n]


def scipy_convolution(weights: np.ndarray, x: np.ndarray) -> Callable[[], np.ndarray]:
    """Filter x [n] by scipy.signal.fftconvolve with weights made before."""
    weights = weights.astype(x.dtype)
    return lambda: signal.fftconvolve(x, weights)[: x.size]


def dot_loop(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the product for x [n] by one NumPy dot for each sample, O(n**2): y[k] = sum over j of w[j] x[k - j]."""
    y = np.empty_like(x)
    for k in range(x.size):
        y[k] = np.dot(weights[: k + 1], x[k::-1])
    return y


def copied(x: Tensor) -> Callable[[], Tensor]:
    """Read x and write as much: about the least that a result of that size costs, its allocation included."""
    return lambda: x.clone()
