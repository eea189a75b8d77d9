"""Increments of a few states that decay exponentially, by matrix products over chunks of steps.

    increment_n = read . y_n + direct . xi_n,     y_(n+1) = decay * y_n + entry xi_n,     xi_n standard normal.

A chunk of s steps is linear in its normal numbers and in the state before it: one product with a Toeplitz matrix and
one with the powers of the decays, instead of s small steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.solvers.noise.noise import Shape
from hpfracc_nn.solvers.noise.source import Source

_CHUNK = 64  # steps


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear process with k states and r normal numbers a step, float64 arrays of a namespace.

    Attributes:
        rates: Of the decays in a step, [k]; a state is multiplied by exp(-rate).
        entry: Of the normal numbers into the states, [k, r].
        read: Of the states into the increment, [k].
        direct: Of the normal numbers into the increment of their step, [r].
    """

    rates: Array
    entry: Array
    read: Array
    direct: Array


def advance(
    process_of: Callable[..., Linear],
    parameters: tuple[Any, ...],
    n_steps: int,
    shape: Shape,
    state: Array,
    source: Source,
) -> tuple[Array, Array]:
    """Return the increments [n_steps, *shape] and the state [k, width] after them, width the product of `shape`.

    Args:
        process_of: The process as a function of a namespace and of parameters.
        parameters: Single numbers, or arrays that may be learned.
        n_steps: How many steps.
        shape: Of one step.
        state: Before them.
        source: Where normal numbers come from.
    """
    xp, width = source.xp, math.prod(shape)
    some = []
    steps = 0
    for begin in range(0, n_steps, _CHUNK):
        if steps != min(_CHUNK, n_steps - begin):
            steps = min(_CHUNK, n_steps - begin)
            own, past, kept, new = source.computed(partial(_chunk, process_of, steps), *parameters)
        numbers = source.normal((own.shape[-1], width))
        some.append(xp.matmul(own, numbers) + xp.matmul(past, state))
        state = kept * state + xp.matmul(new, numbers)
    found = some[0] if len(some) == 1 else source.joined(some, 0)
    return found.reshape(n_steps, *shape), state


def covariance(process: Linear, first: np.ndarray, n_steps: int) -> np.ndarray:
    """Return the covariance of the increments [n_steps, n_steps], `first` a root [k, r] of that of the first state."""
    decays = np.exp(-process.rates)
    powers = decays ** np.arange(n_steps)[:, None]  # by lag
    states, added = first @ first.T, process.entry @ process.entry.T
    own = process.direct @ process.direct
    found = np.empty((n_steps, n_steps))
    for i in range(n_steps):
        found[i, i] = process.read @ states @ process.read + own
        reached = decays * (states @ process.read) + process.entry @ process.direct  # the next state with increment i
        found[i + 1 :, i] = found[i, i + 1 :] = powers[: n_steps - i - 1] @ (process.read * reached)
        states = decays[:, None] * states * decays + added
    return found


def _chunk(
    process_of: Callable[..., Linear], steps: int, xp: Namespace, *parameters: Array
) -> tuple[Array, Array, Array, Array]:
    """Return what makes a chunk's increments and its last state of its normal numbers and of its first state.

    Shapes: [steps, steps * r], [steps, k], [k, 1], [k, steps * r].
    """
    process = process_of(xp, *parameters)
    k, r = process.entry.shape
    times = xp.constant(np.arange(float(steps)), process.rates)
    powers = xp.exp(-process.rates[:, None] * times)  # [k, steps]
    past = (process.read[:, None] * powers).T
    by_lag = xp.matmul(past, process.entry)  # [steps, r], from lag 1 on
    columns = xp.concat([process.direct, by_lag.reshape(steps * r), 0 * process.direct[:1]], axis=-1)
    lag = np.arange(steps)[:, None] - np.arange(steps)
    index = lag[:, :, None] * r + np.arange(r)
    index = np.where(lag[:, :, None] >= 0, index, (steps + 1) * r)  # the zero behind
    own = xp.take(columns, index.reshape(steps, steps * r), axis=-1)
    kept = xp.exp(-process.rates * steps)[:, None]
    new = (xp.flip(powers, axis=-1)[:, :, None] * process.entry[:, None, :]).reshape(k, steps * r)
    return own, past, kept, new
