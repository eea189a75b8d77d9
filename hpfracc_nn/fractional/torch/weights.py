"""From a definition to the form that a kernel wants: cached by value for a fixed alpha, traced for a tensor."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.schemes.exponentials import Nodes, exponentials
from hpfracc_nn.fractional.torch.forms import ChunkForm, ColumnForm, toeplitz
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.weights import fixed_stencil

_NEGLIGIBLE = 1e-20  # smaller entries are zero: subnormal numbers slow a float32 product tenfold
_SHORTEST = 8  # no chunk is shorter
_KEPT = 64


class Weights:
    """The stencil of one definition on `n` samples, and the forms that kernels asked for.

    Args:
        definition: With alpha a number, numbers, or a tensor of as many values as there are channels.
        n: Samples.
        dt: Their spacing.
        dtype: What the product is computed in.
        device: Where.
    """

    def __init__(self, definition: Definition, n: int, dt: float, dtype: torch.dtype, device: torch.device):
        self.definition, self.n, self.dtype, self.device = definition, n, dtype, device
        self.nodes: Nodes | None = None
        if n > _SHORTEST:
            self.nodes = exponentials(definition, n, "float64" if dtype == torch.float64 else "float32")
        if definition.is_fixed:
            self.stencil = fixed_stencil(definition, n, dt)
        else:
            traced = replace(definition, alpha=definition.alpha.reshape(-1), bounds=definition.interval)
            self.stencil = traced.stencil(n, dt, TORCH)
        self._forms: dict[int, ColumnForm | ChunkForm] = {}
        self._columns: Tensor | None = None

    @property
    def is_fixed(self) -> bool:
        return self.definition.is_fixed

    def column(self) -> ColumnForm:
        """The whole column, [channels, n]."""
        if 0 not in self._forms:
            self._forms[0] = ColumnForm(self._cast(self._at(np.arange(self.n))))
        return self._forms[0]  # type: ignore[return-value]

    def chunks(self, length: int) -> ChunkForm:
        """The chunk matrices for chunks of `length`; with more than one chunk `nodes` may not be None."""
        if length not in self._forms:
            self._forms[length] = self._chunk_form(length)
        return self._forms[length]  # type: ignore[return-value]

    def columns(self) -> Tensor | None:
        """The columns that multiply boundary values, [terms, channels, n]: start, then those of x(0) and dt x'(0)."""
        if self._columns is None:
            stencil, rows = self.stencil, []
            if stencil.start is not None and self.n > stencil.start_index:
                rows.append(self._tensor(stencil.start).reshape(1, -1, self.n))
            if stencil.analytic is not None:
                terms = stencil.analytic.shape[-2]
                rows.append(self._tensor(stencil.analytic).reshape(-1, terms, self.n).transpose(0, 1))
            if rows:
                self._columns = self._cast(torch.cat(rows)).contiguous()
        return self._columns

    def _chunk_form(self, length: int) -> ChunkForm:
        if self.n <= length:
            near = self._cast(toeplitz(F.pad(self._at(np.arange(self.n)), (0, length - self.n)), length))
            channels = near.shape[0]
            zeros = near.new_zeros(channels, 1, length), near.new_zeros(length, 1)
            return ChunkForm(near, *zeros, torch.zeros(1, dtype=torch.float64, device=self.device))
        nodes = self.nodes
        assert nodes is not None, "the kernel accepts weights that are sums of exponentials only"
        lags = np.union1d(np.arange(length), nodes.lags)
        values = self._at(lags)
        near = values[..., :length]
        coefficients = nodes.fit(TORCH.take(values, np.searchsorted(lags, nodes.lags)), TORCH)
        far, into, decay = _chunk_matrices(nodes, length)
        slow = coefficients[..., None] * self._tensor(far)
        # More rows: what the exponentials leave wrong at the exact lags, r samples before the chunk.
        exact_lags = nodes.first - 1
        r, at = np.arange(1, nodes.first)[:, None], np.arange(length)[None, :]
        inside = (r + at <= exact_lags).astype(np.float64)
        lag = np.minimum(r + at, exact_lags)
        exact = near[..., self._tensor(lag)]
        reach = np.exp(-nodes.rates[:, None] * (np.arange(nodes.first) - nodes.first))
        fitted = (coefficients @ self._tensor(reach))[..., self._tensor(lag)]
        correction = (exact - fitted) * self._tensor(inside)
        return ChunkForm(
            self._cast(toeplitz(near, length)),
            self._cast(torch.cat([slow, correction], dim=-2)),
            self._tensor(into).to(self.dtype),
            self._tensor(decay),
        )

    def _at(self, lags: np.ndarray) -> Tensor:
        values = self._tensor(self.stencil.column(lags))
        return values.reshape(-1, lags.size)

    def _tensor(self, values: np.ndarray | Tensor) -> Tensor:
        return torch.as_tensor(values, device=self.device)

    def _cast(self, values: Tensor) -> Tensor:
        if self.is_fixed:
            values = torch.where(values.abs() < _NEGLIGIBLE, 0.0, values)
        return values.to(self.dtype).contiguous()


def _chunk_matrices(nodes: Nodes, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return exp(-s (l + 1 - first)) [Q, L], into [L, states] and decay [states]."""
    s, at, exact = nodes.rates, np.arange(length), nodes.first - 1
    far = np.exp(-np.outer(s, at + 1 - nodes.first))
    into = np.concatenate([np.exp(-np.outer(length - 1 - at, s)), np.eye(length)[:, : length - 1 - exact : -1]], axis=1)
    decay = np.concatenate([np.exp(-s * length), np.zeros(exact)])
    for matrix in (far, into, decay):
        matrix[np.abs(matrix) < _NEGLIGIBLE] = 0
    return far, into, decay


class _Cache:
    """The weights of fixed orders, least recently used first out; keyed by value, dtype and device."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple, Weights] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, definition: Definition, n: int, dt: float, dtype: torch.dtype, device: torch.device) -> Weights:
        key = (definition, n, dt, dtype, device)
        found = self._kept.get(key)
        if found is None:
            found = Weights(definition, n, dt, dtype, device)
        with self._lock:
            self._kept[key] = found
            self._kept.move_to_end(key)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


_CACHE = _Cache()


def weights_of(definition: Definition, n: int, dt: float, dtype: torch.dtype, device: torch.device) -> Weights:
    """Return the weights of a definition: from the cache where alpha is a number or numbers, else fresh and traced."""
    if definition.is_fixed:
        return _CACHE.get(definition, n, dt, dtype, device)
    return Weights(definition, n, dt, dtype, device)
