"""A look at how far a solution has grown, at its end; see `solvers.explosions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.solvers.explosions import GROWTH, WINDOW, Limits
from hpfracc_nn.solvers.jax.arguments import is_traced
from hpfracc_nn.solvers.jax.layout import Layout


def checked_explosion(
    limits: Limits, layout: Layout, z0: Array, result: Array, states: Array, drifts: Callable[[], Array]
) -> Array:
    """Return the result, or raise where the solution explodes at its end; under checkify where it is traced.

    Args:
        limits: How fast a decay the solve can follow.
        layout: Of the states.
        z0: The state at the start.
        result: Of the solve.
        states: Of the last steps, at least `WINDOW` + 1 of them or all, [steps, a, *rest].
        drifts: Returns the right-hand sides at all of these but the last, [steps - 1, a, *rest].

    Raises:
        FloatingPointError: It explodes.
    """
    n = limits.times.size - 1
    if n < WINDOW:
        return result
    if is_traced(states):
        states, traced, begun = (lax.stop_gradient(each) for each in (states, drifts(), jnp.abs(z0).max()))
        reach = layout.spread(jnp.asarray(limits.reach(n), states.dtype))
        found = limits.are_exploding(states[-WINDOW - 1 :], traced[-WINDOW:], reach, begun, jnp.abs(states).max(0))
        return checked(result, ~found.any(), f"{limits.owner}: the solution exploded; take more steps.")
    last, start = np.abs(np.asarray(states[-1])), float(np.abs(np.asarray(z0)).max())
    if not last.max() > GROWTH * start:
        return result
    rows, values = np.asarray(states[-WINDOW - 1 :]), np.asarray(drifts()[-WINDOW:])
    exact: Any = limits.reach(n).astype(rows.dtype)
    found = limits.are_exploding(rows, values, layout.spread(exact), start, np.abs(np.asarray(states)).max(0))
    if found.any():
        entry = int(np.argmax(np.where(found, last, 0)))
        rate = float(np.abs(values[-1]).reshape(-1)[entry] / np.abs(rows[-2]).reshape(-1)[entry])
        order = entry // (last.size // layout.orders)
        raise limits.error(n, float(last.reshape(-1)[entry]), start, rate, order)
    return result
