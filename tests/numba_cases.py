"""What the tests of the compiled core share: operators made by hand, and the same maps by aten and direct sums."""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional import boundary
from hpfracc_nn.fractional.boundary import boundary_of
from hpfracc_nn.fractional.definitions import Caputo
from hpfracc_nn.fractional.linear import StateSpace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.torch.kernels import numba_recurrence as kernel
from hpfracc_nn.fractional.torch.weights import Weights

LONGEST = 3200
# Of |weights| |data|: the exponentials' fit and a few roundings per state and chunk.
TOLERANCE = {torch.float32: 32 * 2.0**-24, torch.float64: 2e-13}


@dataclass(frozen=True)
class Case:
    """The boundary of an operator: differences, what is subtracted, which columns there are."""

    m: int
    subtract: bool
    taylor: int
    start: int | None
    terms: int

    def stencil(self, n: int) -> Stencil:
        """Return a stencil that says so; its columns are made in `Operator`."""
        return Stencil(
            n=n,
            column=lambda lags: np.zeros((1, len(lags))),
            differences=self.m,
            subtract=self.subtract,
            taylor=self.taylor,
            start_column=None if self.start is None else lambda rows: np.zeros(rows.size),
            start_index=self.start or 0,
            terms=self.terms,
        )


CASES = [
    Case(m, subtract, taylor, start, terms)
    for m, (subtract, taylor), (start, terms) in product(
        (-1, 0, 1, 2), ((False, 1), (True, 1), (True, 2)), ((None, 0), (1, 0), (None, 2), (2, 1))
    )
]


def _shape(x: Tensor) -> tuple[int, int, int, int]:
    batch, channels, n, width = x.shape
    return batch, channels, n, width


@lru_cache(maxsize=16)
def weights_of(channels: int, short: bool, dtype: torch.dtype) -> tuple[StateSpace, np.ndarray]:
    """Return the weights in chunks and as columns [channels, length] in float64; `short` ones have no exponentials."""
    alpha: Any = 0.6 if channels == 1 else tuple(np.linspace(0.2, 0.9, channels))
    length = 16 if short else LONGEST
    weights = Weights(Caputo(alpha), length, 1.0, dtype, torch.device("cpu"))
    return weights.chunks(16), np.asarray(weights.stencil.weights).reshape(channels, length)


class Operator:
    """An operator on `n` samples: the kernel's two maps, and the same two in float64 by other means."""

    def __init__(self, case: Case, n: int, channels: int, dtype: torch.dtype):
        self.n, self.stencil = n, case.stencil(n)
        self.operator, column = weights_of(channels, n <= 16, dtype)
        self.column = column[:, :n]
        terms = self.stencil.starts + case.terms
        rng = np.random.default_rng(n)
        self.columns = torch.as_tensor(rng.standard_normal((terms, channels, n))).to(dtype)
        self.boundary = boundary_of(self.stencil, self.columns if terms else None, dtype)
        self.wide = replace(self.boundary, columns=self.columns.double() if terms else None)

    def run(self, x: Tensor) -> Tensor:
        y = torch.full_like(x, torch.nan)
        kernel.run(self.operator, self.boundary, _shape(x), x, y)
        return y

    def adjoint(self, g: Tensor) -> Tensor:
        gx = torch.full_like(g, torch.nan)
        kernel.adjoint(self.operator, self.boundary, _shape(g), g, gx)
        return gx

    def expected(self, x: Tensor) -> tuple[Tensor, float]:
        """Return the operator on x, and what its errors are relative to."""
        x = x.double()
        d = boundary.difference(x, self.wide)
        y, size = self._convolved(d), np.abs(self.column).sum() * float(d.abs().max())
        for column, value in zip(self.columns.double(), boundary.values(x, d, self.wide), strict=True):
            y = y + column[:, :, None] * value
            size += float(column.abs().max() * value.abs().max())
        return y, size + float(x.abs().max())

    def expected_adjoint(self, g: Tensor) -> tuple[Tensor, float]:
        """Return the transpose on g, and what its errors are relative to."""
        g = g.double()
        values = [(g * column[:, :, None]).sum(dim=2, keepdim=True) for column in self.columns.double()]
        gx = boundary.transposed(self._convolved(g.flip(2)).flip(2), g, self.wide)
        # Where the data are summed up, or a polynomial is subtracted, the transpose sums over all later samples.
        size = np.abs(self.column).sum() * float(g.abs().max()) * 4
        if self.stencil.differences < 0 or self.stencil.subtract:
            size *= self.n ** (2 if self.stencil.taylor == 2 or self.stencil.differences < 0 else 1)
        return gx, size + self.n * sum(float(value.abs().max()) for value in values) + float(g.abs().max())

    def _convolved(self, d: Tensor) -> Tensor:
        """Sum over lags directly, in float64."""
        y = np.empty(d.shape)
        for b, c, w in np.ndindex(d.shape[0], d.shape[1], d.shape[3]):
            y[b, c, :, w] = np.convolve(self.column[c], d[b, c, :, w].numpy())[: self.n]
        return torch.as_tensor(y)


def random(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return standard normal samples."""
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape)).to(dtype)
