"""What stands around the product: the differences before it and the boundary columns after it.

    y = T(left) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values. A kernel that brings its own passes reads the stencil and
the columns; `in_passes` makes the operator of one that only multiplies. `torch/frame.py` is the twin.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.numba.kernel import Around
from hpfracc_nn.fractional.numpy.differences import boundary_values, difference, difference_adjoint, head_gradient
from hpfracc_nn.fractional.stencil import Stencil

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
