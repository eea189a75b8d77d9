"""What stands around the product: the differences before it and the boundary columns after it.

    y = T(left) d(x) + sum over j of columns[j] * v_j(x),

with d the differenced data and v_j their few boundary values. A kernel that brings its own passes reads `arrays`; the
others take the data tile by tile, differenced and padded to whole chunks, so that a tile stays in the cache, and what
belongs to the boundary is added when they ask for the next tile. Tensors are [batch, channels, n, width].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch import differences as diff
from hpfracc_nn.fractional.torch import tiles
from hpfracc_nn.fractional.torch.forms import Form
from hpfracc_nn.fractional.torch.tiles import cut

Pairs = Iterable[tuple[Tensor, Tensor]]
Shape = tuple[int, int, int, int]  # batch, channels, n, width


@dataclass(eq=False)
class Frame:
    """The stencil of an operator and its boundary columns [terms, channels, n], or None."""

    stencil: Stencil
    columns: Tensor | None
    dtype: torch.dtype

    @cached_property
    def arrays(self) -> tuple[np.ndarray, int, bool, int, int]:
        """The same for kernels that know no tensors, on a CPU.

        The columns, m, whether the Taylor polynomial is subtracted, its terms, and the entry of d that the first column
        multiplies, -1 where none does.
        """
        stencil, columns = self.stencil, self.columns
        if columns is None:
            found = np.empty((0, 1, stencil.n), np.float64 if self.dtype == torch.float64 else np.float32)
        else:
            found = columns.detach().numpy()
        start = stencil.start_index if stencil.starts else -1
        return found, stencil.differences, stencil.subtract, stencil.taylor, start

    def forward(self, x: Tensor, y: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (differenced data, room for the result), in whole chunks."""
        stencil, n = self.stencil, x.shape[2]
        rows, length = tiles.tile_rows(x), -(-n // chunk) * chunk
        work = tiles.buffer("result", x, rows, length) if length > n else None
        columns = self._each_column()
        for part, done, d in zip(cut(x, rows), cut(y, rows), tiles.differenced(x, rows, length, stencil), strict=True):
            values = diff.boundary_values(part, d, stencil) if columns else ()
            yield d, done if work is None else work[: d.shape[0]]
            if work is not None:
                done.copy_(work[: d.shape[0], :, :n])
            for column, value in zip(columns, values, strict=True):
                done.addcmul_(column, value)

    def backward(self, g: Tensor, gx: Tensor, chunk: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (gradient, room for the adjoint); when a tile is done it goes back through the differences."""
        stencil, n = self.stencil, g.shape[2]
        rows, length = tiles.tile_rows(g), -(-n // chunk) * chunk
        back = tiles.buffer("result", g, rows, length)
        columns = self._each_column()
        for part, found, padded in zip(cut(g, rows), cut(gx, rows), tiles.padded(g, rows, length), strict=True):
            out = back if part.shape[0] == rows else back[: part.shape[0]]
            yield padded, out
            values = [(part * column).sum(dim=2, keepdim=True) for column in columns]
            start, analytic = diff.split_boundary(values, stencil)
            gd = out.narrow(2, 0, n)
            if start is not None:
                gd[:, :, stencil.start_index : stencil.start_index + 1] += start
            diff.difference_adjoint_into(found, gd, stencil)
            if analytic:
                found[:, :, :4] += diff.head_gradient(analytic, found)

    def _each_column(self) -> list[Tensor]:
        return [] if self.columns is None else [column[:, :, None] for column in self.columns]


Steps = tuple[Callable[..., None], Callable[..., None]]


def by_tiles(run: Callable[..., None], adjoint: Callable[..., None], *, turns_narrow: bool = False) -> Steps:
    """Return a kernel's run and adjoint, made of functions (form, pairs) that write into the second of each pair.

    Args:
        run: The product.
        adjoint: Its transpose.
        turns_narrow: Whether data with time in the middle and few signals side by side are turned round first.
    """

    def arrays(shape: Shape, x: Tensor, y: Tensor) -> Pairs:
        both = x.view(shape), y.view(shape)
        return tiles.with_time_last(*both) if turns_narrow and tiles.is_narrow(x.numel(), shape[3]) else (both,)

    def run_all(form: Form, frame: Frame, shape: Shape, x: Tensor, y: Tensor) -> None:
        for data, result in arrays(shape, x, y):
            run(form, frame.forward(data, result, form.multiple))

    def adjoint_all(form: Form, frame: Frame, shape: Shape, g: Tensor, gx: Tensor) -> None:
        for data, result in arrays(shape, g, gx):
            adjoint(form, frame.backward(data, result, form.multiple))

    return run_all, adjoint_all
