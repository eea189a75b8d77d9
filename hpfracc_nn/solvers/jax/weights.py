"""A scheme's weights as the loop over the steps takes them.

Fixed orders have theirs made by NumPy in float64 and kept; those of traced orders are a graph in float64 of their own.
A scheme's first right-hand sides have weights that are no function of the lag, so that their steps are a head, taken
one by one, and only the later ones are added up by lag.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.cache import ByteCache
from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.float64 import in_float64, mapped
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.solvers import history
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax.arguments import Orders
from hpfracc_nn.solvers.schemes import Scheme

_CACHE = ByteCache(1 << 28)
_GRID = (1e-3, 0.02, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.98, 1 - 1e-3, 1)  # of the interval of traced orders


class Weights(NamedTuple):
    """What right-hand sides have in the memories of steps, H of them in the head; a pytree.

    Arrays are NumPy's where nothing of them is traced.

    Attributes:
        own: That of f_n at step n in the last memory, [n_steps + 1, a].
        head: That of the first, [n_steps + 1, H, sets, a].
        later: That of the others: by lag from 0 on [a, sets, n_steps + 1], or on any mesh that of each at each step,
            [n_steps + 1, sets, a, n_steps + 1].
        coefficients: Of the exponentials that stand for the older lags, [a, sets, q], or None.
    """

    own: Array
    head: Array
    later: Array
    coefficients: Array | None


@dataclass(frozen=True)
class Grid:
    """Where steps are taken.

    Attributes:
        n_steps: How many.
        times: As time since the start where steps are not equal, a tuple; else None.
    """

    n_steps: int
    times: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Sum:
    """What the sum over the past is made of.

    Attributes:
        scheme: Whose weights.
        history: What of them is kept.
        grid: Where steps are taken.
        dtype: Of the states, by name.
    """

    scheme: Scheme
    history: History
    grid: Grid
    dtype: str

    def nodes(self, orders: Orders) -> Nodes | None:
        """Return the exponentials that come within the history's tolerance, for all that traced orders may be."""
        if self.grid.times is not None:
            return None
        if orders.values is None:
            low, high = orders.lowest, orders.highest
            return _nodes(self, tuple(low + part * (high - low) for part in _GRID))
        return _nodes(self, tuple(orders.values.tolist()))

    def weights(self, orders: Orders, dt: float | Array, nodes: Nodes | None) -> Weights:
        """Return the weights for a step, which may be traced where steps are equal."""
        step = dt if isinstance(dt, float) else 1.0
        if orders.values is not None:
            found = _fixed(self, tuple(orders.values.tolist()), step, nodes)
        else:
            assert orders.traced is not None, "one of the two is there"
            made = mapped(lambda alpha: self._parts(alpha, step, nodes, JAX), axes=1)
            parts = in_float64(made, orders.traced, jnp.dtype(self.dtype))
            found = self._joined(parts, jnp)
        return found if isinstance(dt, float) else _scaled(found, orders, dt)

    def _parts(self, alpha: Any, dt: float, nodes: Nodes | None, xp: Namespace) -> dict[str, Any]:
        """Return the scheme's own arrays, [a, ...] each."""
        if self.grid.times is not None:
            times = np.array(self.grid.times)
            steps = range(times.size)
            return {"block": self.scheme.block(alpha, times, steps, steps, xp)}
        weights = self.scheme.weights(alpha, self.grid.n_steps, dt, xp)
        used = self.history.used(weights, nodes, xp)
        found = {"columns": used.columns}
        if used.starts is not None:
            found["starts"] = used.starts
        if nodes is not None:
            found["coefficients"] = history.coefficients(weights, nodes, xp)
        return found

    def _joined(self, parts: dict[str, Any], np_or_jnp: ModuleType) -> Weights:
        if "block" in parts:
            return _of_block(parts["block"], np_or_jnp)
        return _of_columns(parts["columns"], parts.get("starts"), parts.get("coefficients"), np_or_jnp)


@lru_cache(maxsize=64)
def _nodes(given: Sum, orders: tuple[float, ...]) -> Nodes | None:
    weights = given.scheme.weights(np.array(orders), given.grid.n_steps, 1.0, NUMPY)
    return given.history.keep(weights, given.dtype, NUMPY).nodes


def _fixed(given: Sum, orders: tuple[float, ...], dt: float, nodes: Nodes | None) -> Weights:
    def computed() -> Weights:
        found = given._joined(given._parts(np.array(orders), dt, nodes, NUMPY), np)
        return jax.tree.map(lambda each: np.ascontiguousarray(each, dtype=given.dtype), found)  # type: ignore[no-any-return]

    return _CACHE.get((given, orders, dt, nodes), computed)


def _of_columns(columns: Any, starts: Any, coefficients: Any, xp: ModuleType) -> Weights:
    """Columns [a, sets, n + 1] and starts [a, sets, n + 1, k]."""
    n = columns.shape[-1]
    count = 1 if starts is None else starts.shape[-1]
    lag = np.arange(n)[:, None] - np.arange(count)  # [n, H]
    head = xp.where(lag > 0, columns[:, :, np.maximum(lag, 0)], 0)
    own = xp.stack([columns[:, -1, 0]] * n, axis=-2)
    if starts is not None:
        head = head + xp.where(lag > 0, starts, 0)
        first = [columns[:, -1, 0] + starts[:, -1, k, k] for k in range(min(count, n))]
        own = xp.concatenate([xp.stack(first, axis=-2), own[len(first) :]])
    return Weights(own, head.transpose(2, 3, 1, 0), columns, coefficients)


def _of_block(block: Any, xp: ModuleType) -> Weights:
    """W of any mesh, [a, sets, n + 1, n + 1]."""
    n = block.shape[-1]
    later = xp.where(np.arange(n)[:, None] > np.arange(n), block, 0).transpose(2, 1, 0, 3)
    own = block[:, -1, np.arange(n), np.arange(n)].T
    return Weights(own, later[..., :1].transpose(0, 3, 1, 2), later, None)


def _scaled(weights: Weights, orders: Orders, dt: Array) -> Weights:
    """Return weights of a step of 1 times dt**alpha; dt is traced."""
    alpha = orders.traced if orders.values is None else jnp.asarray(orders.values)
    assert alpha is not None, "one of the two is there"
    scale = jnp.exp(alpha.astype(dt.dtype) * jnp.log(dt)).astype(weights.own.dtype)
    coefficients = weights.coefficients
    return Weights(
        weights.own * scale[None],
        weights.head * scale[None, None, None],
        weights.later * scale[:, None, None],
        None if coefficients is None else coefficients * scale[:, None, None],
    )
