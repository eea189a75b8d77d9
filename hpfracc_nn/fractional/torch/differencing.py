"""Differences of any order of PyTorch tensors, differentiable in the samples and in an order that is a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.differencing import (
    OWNER,
    WindowedDifference,
    finite,
    is_exact,
    order_of,
    split,
    warm_up,
)
from hpfracc_nn.fractional.torch import operator
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.selection import BackendManager


def fdiff(a: Tensor, n: Any, axis: int, window: int | None, mode: str, manager: BackendManager | None) -> Tensor:
    """Return the difference of order `n`; see `fractional.fdiff`."""
    check_dense(OWNER, "a", a)
    order = _read(n) if isinstance(n, Tensor) else order_of(n)
    left_out = warm_up(None if isinstance(n, Tensor) else order, window, mode)
    if is_exact(order, window) and not isinstance(n, Tensor):
        found = _whole(a, int(order), axis)
    else:
        found = _any(a, n if isinstance(n, Tensor) else order, order, axis, window, manager)
    left_out = min(left_out, found.shape[axis])
    return found if left_out == 0 else found.narrow(axis, left_out, found.shape[axis] - left_out).contiguous()


def as_part(a: Tensor, part: Any, axis: int) -> Tensor:
    """Return samples that stand before or after `a`, as `torch.diff` takes them; a number is one sample."""
    found = part if isinstance(part, Tensor) else torch.as_tensor(part, device=a.device)
    if found.ndim:
        return found
    return found.to(torch.result_type(a, found)).expand(*a.shape[:axis], 1, *a.shape[axis + 1 :])


concatenate = torch.cat


def _read(n: Tensor) -> float:
    """Return the value of an order that is a tensor, or raise: it says how many whole differences there are."""
    if n.ndim != 0 or not n.is_floating_point():
        raise TypeError(
            f"{OWNER}(n: {n.dtype} tensor of shape {tuple(n.shape)}): needs a floating tensor of no axes; pass n[0], "
            "or a layer such as FractionalDifference for an order per channel."
        )
    return finite(float(n.detach()))


def _whole(a: Tensor, order: int, axis: int) -> Tensor:
    """The differences after so many zeros, in the dtype of the samples, or the sums, in that of `torch.cumsum`."""
    if order == 0:
        return a.clone()
    if order > 0:
        zeros = a.new_zeros((*a.shape[:axis], order, *a.shape[axis + 1 :]))
        return torch.diff(a, order, axis, prepend=zeros)
    is_half = a.dtype in (torch.float16, torch.bfloat16)
    sums = a.to(torch.float32) if is_half else a  # float16 stands still at 2048
    for _ in range(-order):
        sums = torch.cumsum(sums, axis)
    return sums.to(a.dtype) if is_half else sums


def _any(
    a: Tensor, n: Tensor | float, order: float, axis: int, window: int | None, manager: BackendManager | None
) -> Tensor:
    """The difference of order `n`, whose value is `order`."""
    if a.is_complex():
        parts = _any(torch.view_as_real(a.resolve_conj()), n, order, axis, window, manager)
        return torch.view_as_complex(parts.contiguous())
    if not a.is_floating_point():
        return _of_floats(a.to(torch.get_default_dtype()), n, order, axis, window, manager)
    # An FFT would spread them over all samples. Nothing is asked of the values: neither a device nor a compiler waits.
    filled = a.nan_to_num(0.0, 0.0, 0.0)
    found = _of_floats(filled, n, order, axis, window, manager)
    return found.masked_fill(_reached(filled != a, axis, window), torch.nan)


def _reached(gaps: Tensor, axis: int, window: int | None) -> Tensor:
    """Return which samples of the result have one of `gaps` in their window."""
    count = torch.cumsum(gaps, axis, dtype=torch.int32)
    if window is None or window >= gaps.shape[axis]:
        return count > 0
    kept = gaps.shape[axis] - window
    return count > torch.cat([torch.zeros_like(count.narrow(axis, 0, window)), count.narrow(axis, 0, kept)], axis)


def _of_floats(
    x: Tensor, n: Tensor | float, order: float, axis: int, window: int | None, manager: BackendManager | None
) -> Tensor:
    if window is not None and window < x.shape[axis]:
        cut = WindowedDifference(n, window=float(window), value=order)
        return operator.apply(OWNER, x, cut, 1.0, axis, manager)
    whole, rest = split(order)
    bounds = None if not isinstance(n, Tensor) else ((0.0, 1.0) if order >= 0 else (-1.0, 0.0))
    definition = GrunwaldLetnikov(rest if bounds is None else n - whole, bounds=bounds)
    if whole == 0:
        return operator.apply(OWNER, x, definition, 1.0, axis, manager)
    computed_in(OWNER, x)  # refuses what float64 could not hold
    wide = x.to(torch.float64)
    if whole > 0:
        wide = _whole(wide, whole, axis)
    wide = operator.apply(OWNER, wide, definition, 1.0, axis, manager)
    return (_whole(wide, whole, axis) if whole < 0 else wide).to(x.dtype)
