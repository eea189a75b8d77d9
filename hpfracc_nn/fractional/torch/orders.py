"""Learned orders on one device, and what tables (`fractional.tables`) give for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.tables import Domain, Points, Table
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.probe import is_traced
from hpfracc_nn.fractional.torch.streams import kept, of

_DTYPES = {torch.float32: np.float32, torch.float64: np.float64}


class Orders:
    """The orders of all channels as points of a domain.

    They are evaluated in plain aten, which autograd and transforms follow to any order, or where nobody follows, and on
    a CPU, by NumPy: a call of it costs a quarter on arrays as small as these.

    Args:
        alpha: Any shape. A value further outside its bounds than a tenth of their width has weights that are NaN.
        domain: Where they lie.
        dt: Spacing of the samples.
        device: Of what is evaluated.
    """

    def __init__(self, alpha: Tensor, domain: Domain, dt: float, device: torch.device):
        self._device, self._traced = device, is_traced(alpha, ())
        is_followed = self._traced or (alpha.requires_grad and torch.is_grad_enabled())
        self._by_numpy = not is_followed and device.type == "cpu" and alpha.device.type == "cpu"
        if self._by_numpy:
            # A copy: the values must stay, whatever an optimizer writes into alpha.
            orders = alpha.detach().to(torch.float64).resolve_neg().numpy().reshape(-1, 1).copy()
            self._points = Points(orders, domain, dt, NUMPY, lambda name, array: array)
        else:
            self._points = Points(alpha.reshape(-1, 1).to(device, torch.float64), domain, dt, TORCH, self._constant)

    def evaluate(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return the arrays of a table, each [channels, *shape]."""
        return self._arrays(table, self._points.basis(table.degree), dtype)

    def slopes(self, table: Table, dtype: torch.dtype) -> list[Tensor]:
        """Return their derivatives in alpha, each [channels, *shape]."""
        return self._arrays(table, self._points.slope(table.degree), dtype)

    def constants(
        self, table: Table, name: str, arrays: Callable[[], tuple[np.ndarray, ...]], dtype: torch.dtype
    ) -> tuple[Tensor, ...]:
        """Return arrays that belong to a table as tensors: kept with it, but what a tracer sees is not kept."""

        def make() -> tuple[Tensor, ...]:
            return tuple(torch.as_tensor(array, device=self._device).to(dtype) for array in arrays())

        return self._kept(table.placed, (name, self._device, dtype), make)  # type: ignore[no-any-return]

    def shared(self, table: Table, dtype: torch.dtype) -> dict[Any, Any]:
        """Return what kernels keep with a table, on this device in this dtype."""
        return {} if self._traced else table.placed.setdefault(("shared", self._device, dtype), {})

    def _arrays(self, table: Table, basis: Any, dtype: torch.dtype) -> list[Tensor]:
        if self._by_numpy:
            return _split(np.matmul(basis, table.coefficients).astype(_DTYPES[dtype], copy=False), table)
        (coefficients,) = self.constants(table, "coefficients", lambda: (table.coefficients,), torch.float64)
        found = torch.mm(basis, coefficients).to(dtype)
        parts = torch.split_with_sizes(found, table.sizes, dim=1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, table.shapes, strict=True)]

    def _constant(self, name: str, array: np.ndarray) -> Tensor:
        def make() -> Tensor:
            return torch.as_tensor(array, device=self._device)

        return self._kept(_SMALL, (name, self._device), make)  # type: ignore[no-any-return]

    def _kept(self, store: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
        """Return what a store has; what a tracer sees is made for it."""
        return make() if self._traced else kept(of(store, self._device), store, key, make)


_SMALL: dict[Any, Any] = {}  # a few short ranges and matrices for each device


def _split(found: np.ndarray, table: Table) -> list[Tensor]:
    """Return the arrays of a table from all outputs, [channels, outputs]."""
    arrays, at = [], 0
    for size, shape in zip(table.sizes, table.shapes, strict=True):
        arrays.append(torch.from_numpy(found[:, at : at + size].reshape(-1, *shape)))
        at += size
    return arrays
