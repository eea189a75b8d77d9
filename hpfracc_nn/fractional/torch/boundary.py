"""What the data see before the product, its transpose, the boundary values, and a look at the results' ends.

Tensors are [batch, channels, n, width]. Differencing first keeps float32 right (see `stencil.py`). Each map is here
twice: in plain aten, which autograd and tracing can follow, and written into a buffer, one vectorised pass per
difference, for the eager path.

Every plain call on a CPU looks at the ends of its results (`fractional.gaps`), so that this must take no longer than
one small call of torch. `y.numpy()` alone takes that long, and afterwards y's memory could never be resized.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.gaps import are_finite
from hpfracc_nn.fractional.stencil import Stencil, slope_row

_BY_NUMPY = 32768  # samples: torch's own grain for a second thread


def two_terms(stencil: Stencil) -> bool:
    """Whether the slope at the first sample is subtracted too."""
    return stencil.subtract and stencil.taylor == 2


def slope(x: Tensor) -> Tensor:
    """Return S = dt x'(0) from the first samples, float64, [batch, channels, 1, width]."""
    head = _head(x, 4).to(torch.float64)
    return (head * _slope_row(x)).sum(dim=2, keepdim=True)


def difference(x: Tensor, stencil: Stencil) -> Tensor:
    """Return d in plain aten."""
    m, n = stencil.differences, x.shape[2]
    if m <= 0:
        u = x - _head(x, 1) if stencil.subtract else x
        if two_terms(stencil):
            u = (u - _ramp(x) * slope(x)).to(x.dtype)
        return u if m == 0 else torch.cumsum(u, dim=2, dtype=torch.float64).to(x.dtype)
    first = torch.zeros_like(_head(x, 1)) if stencil.subtract else _head(x, 1)
    d = torch.cat([first, x[:, :, 1:] - x[:, :, :-1]], dim=2)
    if m == 1:
        if two_terms(stencil):
            d = torch.cat([first, (d[:, :, 1:] - slope(x)).to(x.dtype)], dim=2)
        return d
    d = torch.cat([first, d[:, :, 1:] - d[:, :, :-1]], dim=2)
    if two_terms(stencil) and n > 1:
        following = d.narrow(2, 2, min(2, n - 2))
        d = torch.cat([first, _second_sample(following), d.narrow(2, 2, n - 2)], dim=2)
    return d


def difference_adjoint(g: Tensor, stencil: Stencil) -> Tensor:
    """Return the transpose of `difference` applied to g, in plain aten."""
    m, n = stencil.differences, g.shape[2]
    if m <= 0:
        if m < 0:
            g = torch.cumsum(g.flip(2), dim=2, dtype=torch.float64).flip(2).to(g.dtype)
        if not stencil.subtract:
            return g
        x = add_at(g, 0, -g.sum(dim=2, keepdim=True))
        if two_terms(stencil):
            x = add_at(x, 0, -(g * _ramp(g)).sum(dim=2, keepdim=True) * _slope_row(g))
        return x
    head = torch.zeros_like(_head(g, 1)) if stencil.subtract else _head(g, 1)
    if m == 1:
        x = _transposed_difference(torch.cat([head, g[:, :, 1:]], dim=2))
        if two_terms(stencil):
            x = add_at(x, 0, -g[:, :, 1:].sum(dim=2, keepdim=True, dtype=torch.float64) * _slope_row(g))
        return x
    if two_terms(stencil) and n > 1:
        weights = _second_sample_weights(n, g)
        rest = add_at(g[:, :, 2:], 0, g[:, :, 1:2] * weights) if n > 2 else g[:, :, 2:]
        g = torch.cat([head, torch.zeros_like(head), rest], dim=2)
    else:
        g = torch.cat([head, g[:, :, 1:]], dim=2)
    e = _transposed_difference(g)
    if stencil.subtract:
        e = torch.cat([torch.zeros_like(head), e[:, :, 1:]], dim=2)
    return _transposed_difference(e)


def difference_into(d: Tensor, x: Tensor, stencil: Stencil) -> None:
    """Write d into the first n samples of a buffer at least as long as x."""
    m, n = stencil.differences, x.shape[2]
    if m <= 0:
        d = d.narrow(2, 0, n)
        d.copy_(difference(x, stencil)) if m < 0 or two_terms(stencil) else torch.sub(x, _head(x, 1), out=d)
        return
    first = None if stencil.subtract else _head(x, 1)
    if m == 1:
        difference_once(x, first, d)
        if two_terms(stencil):
            d[:, :, 1:n] -= slope(x).to(x.dtype)
        return
    e = difference_once(x, first, torch.empty_like(x))
    difference_once(e, first, d)
    if two_terms(stencil) and n > 1:
        d[:, :, 1:2] = _second_sample(d[:, :, 2 : min(4, n)])


def difference_once(x: Tensor, first: Tensor | None, out: Tensor) -> Tensor:
    """Write x[k] - x[k-1] into out, `first` or zero at k = 0. One pass for all where nothing is padded."""
    if out.shape == x.shape and x.shape[3] == 1:
        if x.device.type == "cpu" and x.numel() <= _BY_NUMPY:
            _difference_small(x.detach().numpy(), None if first is None else first.detach().numpy(), out.numpy())
            return out
        size, step = (x.numel() - 1,), (1,)  # as_strided, because a view of a view costs a call more
        later = x.as_strided(size, step, x.storage_offset() + 1)
        inside = out.as_strided(size, step, out.storage_offset() + 1)
        torch.sub(later, x.as_strided(size, step), out=inside)
    else:
        torch.sub(x[:, :, 1:], x[:, :, :-1], out=out[:, :, 1 : x.shape[2]])
    start = out.narrow(2, 0, 1)
    start.zero_() if first is None else start.copy_(first)
    return out


def _difference_small(x: np.ndarray, first: np.ndarray | None, out: np.ndarray) -> None:
    """The same by NumPy, whose views cost a tenth of torch's; torch would use one thread here too."""
    flat, result = x.reshape(-1), out.reshape(-1)
    np.subtract(flat[1:], flat[:-1], out=result[1:])
    out[:, :, :1] = 0 if first is None else first


def difference_adjoint_into(x: Tensor, g: Tensor, stencil: Stencil) -> None:
    """Write the transpose applied to g into x; g is overwritten."""
    m, n = stencil.differences, x.shape[2]
    if m <= 0:
        x.copy_(difference_adjoint(g, stencil))
        return
    total = g[:, :, 1:].sum(dim=2, keepdim=True, dtype=torch.float64) if m == 1 and two_terms(stencil) else None
    if stencil.subtract:
        if m == 2 and two_terms(stencil) and n > 1:
            if n > 2:
                g[:, :, 2:4] += g[:, :, 1:2] * _second_sample_weights(n, g)
            g[:, :, 1:2] = 0
        g[:, :, :1] = 0
    if m == 2:
        e = torch.empty_like(x)
        torch.sub(g[:, :, :-1], g[:, :, 1:], out=e[:, :, :-1])
        e[:, :, -1:] = g[:, :, -1:]
        if stencil.subtract:
            e[:, :, :1] = 0
        g = e
    torch.sub(g[:, :, :-1], g[:, :, 1:], out=x[:, :, :-1])
    x[:, :, -1:] = g[:, :, -1:]
    if total is not None:
        x[:, :, :4] -= (total * _slope_row(x)).to(x.dtype)


def boundary_values(x: Tensor, d: Tensor, stencil: Stencil) -> list[Tensor]:
    """Return what the boundary columns multiply, [batch, channels, 1, width]: d[start_index], x(0), dt x'(0)."""
    values = []
    if stencil.starts:
        values.append(d[:, :, stencil.start_index : stencil.start_index + 1])
    if stencil.terms:
        values.append(_head(x, 1))
        if stencil.terms == 2:
            values.append(slope(x).to(x.dtype))
    return values


def split_boundary(values: list[Tensor], stencil: Stencil) -> tuple[Tensor | None, list[Tensor]]:
    """Return what belongs to the starting column, or None, and what belongs to the analytic columns."""
    if stencil.starts:
        return values[0], values[1:]
    return None, values


def head_gradient(analytic: list[Tensor], like: Tensor) -> Tensor:
    """Return the gradients of x(0) and dt x'(0) as additions to the first samples of x."""
    row = torch.eye(1, min(4, like.shape[2]), dtype=like.dtype, device=like.device).reshape(1, 1, -1, 1)
    head = analytic[0] * row
    return head if len(analytic) == 1 else head + (analytic[1] * _slope_row(like)).to(like.dtype)


def add_at(x: Tensor, index: int, values: Tensor) -> Tensor:
    """Return x with `values` added from sample `index` on."""
    return x + F.pad(values, (0, 0, index, x.shape[2] - index - values.shape[2])).to(x.dtype)


def _transposed_difference(g: Tensor) -> Tensor:
    return g - F.pad(g[:, :, 1:], (0, 0, 0, 1))


def _second_sample(following: Tensor) -> Tensor:
    """d[1] from d[2] and d[3]: x'(0) is subtracted, but the difference is taken where no digits are lost."""
    if following.shape[2] == 0:
        return torch.zeros_like(following.sum(dim=2, keepdim=True))
    return (following * _second_sample_weights(2 + following.shape[2], following)).sum(dim=2, keepdim=True)


def _second_sample_weights(n: int, like: Tensor) -> Tensor:
    weights = [1 / 2] if n == 3 else [5 / 6, -1 / 3]
    return torch.tensor(weights, dtype=like.dtype, device=like.device).reshape(1, 1, -1, 1)


def _slope_row(like: Tensor) -> Tensor:
    row = slope_row(like.shape[2])[:4]
    return torch.as_tensor(row, device=like.device).reshape(1, 1, -1, 1)


def _ramp(like: Tensor) -> Tensor:
    return torch.as_tensor(np.arange(like.shape[2], dtype=np.float64), device=like.device).reshape(1, 1, -1, 1)


def _head(x: Tensor, count: int) -> Tensor:
    """The first samples. A slice of all would be an alias, which batched gradients cannot follow; narrow is none."""
    return x.narrow(2, 0, min(count, x.shape[2]))


_FEW = 64  # numbers, up to which Python adds them up sooner than NumPy multiplies them (measured)
_READ_AS = {torch.bfloat16: "h", torch.float16: "e", torch.float32: "f", torch.float64: "d"}
_UPPER = int(sys.byteorder == "little")  # where the bits of bfloat16 stand in single precision
_memory = (ctypes.c_char * (1 << 46)).from_address


def is_clear(y: Tensor, shape: tuple[int, int, int, int], *, at_end: bool) -> bool:
    """Return whether a contiguous y of a canonical shape, on a CPU, is finite at its last time or its first."""
    return _look(shape, y.dtype, at_end)(_memory(y.data_ptr()))


@lru_cache(maxsize=4096)
def _look(shape: tuple[int, int, int, int], dtype: torch.dtype, at_end: bool) -> Callable[[Any], bool]:
    """Return what looks at the memory of such a tensor."""
    (batch, channels, n, width), kind = shape, _READ_AS[dtype]
    rows, size = batch * channels, struct.calcsize(kind)
    other = (n - 1) * width * size  # bytes of all other times
    place = other if at_end else 0

    def reader(kind: str) -> Callable[[Any], tuple[float, ...]]:
        return struct.Struct("=" + (f"{place}x{width}{kind}{other - place}x") * rows).unpack_from

    if rows * width > _FEW:
        strides, read = (n * width * size, size), np.dtype(kind)

        def look(memory: Any) -> bool:
            found = np.ndarray((rows, width), read, memory, place, strides)
            return are_finite(_widened(found) if dtype == torch.bfloat16 else found)

        return look
    if dtype == torch.bfloat16:
        signed, unsigned = reader("h"), reader("H")
        # Only ones in the exponent: the largest numbers of either sign.
        return lambda memory: max(signed(memory)) < 0x7F80 and max(unsigned(memory)) < 0xFF80
    numbers = reader(kind)
    return lambda memory: isfinite(sum(numbers(memory)))


def _widened(bits: np.ndarray) -> np.ndarray:
    """Return single precision that holds the numbers whose bfloat16 has these bits."""
    found = np.zeros((*bits.shape, 2), np.int16)
    found[..., _UPPER] = bits
    return found.view(np.float32)
