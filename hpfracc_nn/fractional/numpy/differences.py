"""What the data see before the product, for NumPy arrays [batch, channels, n, width]."""

from __future__ import annotations

import numpy as np

from hpfracc_nn.fractional.stencil import Stencil, slope_row


def slope(x: np.ndarray) -> np.ndarray:
    """Return S = dt x'(0), float64, [batch, channels, 1, width]."""
    head = x[:, :, :4].astype(np.float64)
    row = slope_row(x.shape[2])[:4]
    return np.einsum("k,bckw->bcw", row, head)[:, :, None]


def difference(x: np.ndarray, stencil: Stencil) -> np.ndarray:
    """Return d, the m-th backward difference of x less its Taylor polynomial at 0 (see `stencil.py`)."""
    m, subtract, two = stencil.differences, stencil.subtract, stencil.subtract and stencil.taylor == 2
    if m <= 0:
        u = x - x[:, :, :1] if subtract else x
        if two:
            ramp = np.arange(x.shape[2], dtype=np.float64)[:, None]
            u = (u - ramp * slope(x)).astype(x.dtype)
        return u if m == 0 else np.cumsum(u, axis=2, dtype=np.float64).astype(x.dtype)
    d = np.empty_like(x)
    d[:, :, 1:] = x[:, :, 1:] - x[:, :, :-1]
    d[:, :, :1] = 0 if subtract else x[:, :, :1]
    if m == 1:
        if two:
            d[:, :, 1:] = (d[:, :, 1:] - slope(x)).astype(x.dtype)
        return d
    second = np.empty_like(d)
    second[:, :, 1:] = d[:, :, 1:] - d[:, :, :-1]
    second[:, :, :1] = d[:, :, :1]
    if two and x.shape[2] > 1:
        head = second[:, :, 2:4].astype(np.float64)
        weights = ((), (1 / 2,), (5 / 6, -1 / 3))[head.shape[2]]
        second[:, :, 1] = np.einsum("k,bckw->bcw", np.array(weights), head)
    return second
