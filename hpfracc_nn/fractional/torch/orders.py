"""Learned orders on one device, and what tables (`fractional.tables`) give for them: plain aten, float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.tables import Domain, Table
from hpfracc_nn.fractional.torch.probe import is_traced


class Orders:
    """The orders of all channels as points of a domain.

    Args:
        alpha: Any shape. A value further outside its bounds than a tenth of their width has weights that are NaN.
        domain: Where they lie.
        dt: Spacing of the samples.
        device: Of what is evaluated.
    """

    def __init__(self, alpha: Tensor, domain: Domain, dt: float, device: torch.device):
        self._domain, self._device, self._traced = domain, device, is_traced(alpha, ())
        self._alpha = alpha.reshape(-1, 1).to(device, torch.float64)
        self._log_reach = domain.power * math.log(dt * domain.reach)
        self._bases: dict[int, Tensor] = {}

    def evaluate(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return the arrays of a table, each [channels, *shape]."""
        (coefficients,) = self.constants(table, "coefficients", lambda: (table.coefficients,), torch.float64)
        found = torch.mm(self._basis(table), coefficients).to(dtype)
        if len(table.shapes) == 1:
            return [found.view(-1, *table.shapes[0])]
        parts = found.split(table.sizes, dim=1)
        return [part.reshape(-1, *shape).contiguous() for part, shape in zip(parts, table.shapes, strict=True)]

    def constants(
        self, table: Table, name: str, arrays: Callable[[], tuple[np.ndarray, ...]], dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Return arrays that belong to a table as tensors: kept with it, but what a tracer sees is not kept."""
        key: Any = (name, self._device, dtype)
        found = None if self._traced else table.placed.get(key)
        if found is None:
            found = tuple(torch.as_tensor(array, device=self._device).to(dtype) for array in arrays())
            if not self._traced:
                table.placed[key] = found
        return found

    def _basis(self, table: Table) -> Tensor:
        """(dt reach)**(power alpha) T_i(u), [channels, cells * degree]: zero but in the cell that alpha is in."""
        if table.degree not in self._bases:
            domain, alpha = self._domain, self._alpha
            (i,) = self.constants(table, "degrees", lambda: (np.arange(table.degree),), torch.float64)
            if domain.cells == 1:
                basis = torch.cos(self._angle(alpha, domain.centres[0]) * i)
            else:
                (cells,) = self.constants(table, "cells", lambda: (np.arange(domain.cells),), torch.float64)
                cell = ((alpha.detach() - domain.low) / domain.width).floor().clamp(0, domain.cells - 1)
                series = torch.cos(self._angle(alpha, domain.low + domain.width * (cell + 0.5)) * i)
                basis = ((cell == cells).unsqueeze(2) * series.unsqueeze(1)).flatten(1)
            self._bases[table.degree] = basis * torch.exp(alpha * self._log_reach)
        return self._bases[table.degree]

    def _angle(self, alpha: Tensor, centre: float | Tensor) -> Tensor:
        return torch.acos((alpha - centre) * (1 / self._domain.radius))
