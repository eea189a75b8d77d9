"""What stands around the product on NumPy arrays: differences before it and boundary columns after it.

    y = T(left) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values. A kernel that brings its own passes reads the stencil and
the columns; `in_passes` makes the operator of one that only multiplies. Arrays are [batch, channels, n, width];
`torch/boundary.py` and `numba/boundary.py` say the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.numba.kernel import Around
from hpfracc_nn.fractional.stencil import Stencil, slope_row

Steps = tuple[Callable[..., None], Callable[..., None]]


@dataclass(frozen=True, eq=False)
class Frame:
    """The stencil of an operator and its boundary columns [terms, channels, n], of which there may be none."""

    stencil: Stencil
    columns: np.ndarray

    @cached_property
    def arrays(self) -> Around:
        """What compiled functions take: the columns, m, whether the Taylor polynomial is subtracted, and its terms.

        Last comes the entry of d that the first column multiplies, -1 where none does.
        """
        stencil = self.stencil
        start = stencil.start_index if stencil.starts else -1
        return self.columns, stencil.differences, stencil.subtract, stencil.taylor, start


def in_passes(run: Callable[..., None], adjoint: Callable[..., None]) -> Steps:
    """Return a kernel's run and adjoint, made of those of the product alone, each (form, data, room)."""

    def run_all(form: Any, frame: Frame, x: np.ndarray, y: np.ndarray) -> None:
        with _quietly():
            d = difference(x, frame.stencil)
            run(form, d, y)
            for column, value in zip(frame.columns, boundary_values(x, d, frame.stencil), strict=True):
                y += column[:, :, None] * value

    def adjoint_all(form: Any, frame: Frame, g: np.ndarray, gx: np.ndarray) -> None:
        stencil, gd = frame.stencil, np.empty_like(g)
        with _quietly():
            adjoint(form, g, gd)
            values = [(g * column[:, :, None]).sum(axis=2, keepdims=True) for column in frame.columns]
            if stencil.starts:
                gd[:, :, stencil.start_index : stencil.start_index + 1] += values.pop(0)
            gx[...] = difference_adjoint(gd, stencil)
            if values:
                gx[:, :, :4] += head_gradient(values, g.shape[2]).astype(g.dtype)

    return run_all, adjoint_all


def _quietly() -> np.errstate:
    """NumPy warns of infinities that meet; what they make of a row is computed again, see `fractional.gaps`."""
    return np.errstate(invalid="ignore")


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
            u = (u - _ramp(x.shape[2]) * slope(x)).astype(x.dtype)
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
        second[:, :, 1] = np.einsum("k,bckw->bcw", _second_sample(x.shape[2]), head)
    return second


def difference_adjoint(g: np.ndarray, stencil: Stencil) -> np.ndarray:
    """Return the transpose of `difference` applied to g, in float64."""
    m, n, two = stencil.differences, g.shape[2], stencil.subtract and stencil.taylor == 2
    g = g.astype(np.float64)
    if m <= 0:
        if m < 0:
            g = np.cumsum(g[:, :, ::-1], axis=2)[:, :, ::-1]
        x = g.copy()
        if stencil.subtract:
            x[:, :, :1] -= g.sum(axis=2, keepdims=True)
        if two:
            x[:, :, :4] -= (g * _ramp(n)).sum(axis=2, keepdims=True) * slope_row(n)[:4, None]
        return x
    if stencil.subtract:
        if m == 2 and two and n > 1:
            g[:, :, 2:4] += g[:, :, 1:2] * _second_sample(n)[:, None]
            g[:, :, 1] = 0
        g[:, :, 0] = 0
    x = _transposed(g)
    if m == 2:
        if stencil.subtract:
            x[:, :, 0] = 0
        x = _transposed(x)
    elif two:
        x[:, :, :4] -= g[:, :, 1:].sum(axis=2, keepdims=True) * slope_row(n)[:4, None]
    return x


def boundary_values(x: np.ndarray, d: np.ndarray, stencil: Stencil) -> list[np.ndarray]:
    """Return what the boundary columns multiply, [batch, channels, 1, width]: d[start_index], x(0), dt x'(0)."""
    values = []
    if stencil.starts:
        values.append(d[:, :, stencil.start_index : stencil.start_index + 1])
    if stencil.terms:
        values.append(x[:, :, :1])
    if stencil.terms == 2:
        values.append(slope(x).astype(x.dtype))
    return values


def head_gradient(analytic: list[np.ndarray], n: int) -> np.ndarray:
    """Return the gradients of x(0) and, where given, dt x'(0) as additions to the first four of n samples, float64."""
    head = analytic[0] * np.eye(1, n)[0, :4, None]
    return head if len(analytic) == 1 else head + analytic[1] * slope_row(n)[:4, None]


def _transposed(g: np.ndarray) -> np.ndarray:
    """Return the transpose of one backward difference."""
    x = g.copy()
    x[:, :, :-1] -= g[:, :, 1:]
    return x


def _second_sample(n: int) -> np.ndarray:
    """Return the weights of d[2] and d[3] in d[1]: x'(0) is subtracted where no digits are lost."""
    return np.array(((), (1 / 2,), (5 / 6, -1 / 3))[min(n, 4) - 2])


def _ramp(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float64)[:, None]
