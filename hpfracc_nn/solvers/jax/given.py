"""Noise that is brought along: arrays of increments, and Brownian paths of diffrax."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.solvers.noise import Given, Noise
from hpfracc_nn.solvers.sde import OWNER


def as_noise(noise: Any, times: np.ndarray, streams: int, dtype: Any) -> Any:
    """Return a noise: itself, one whose increments are an array, or those of a path with a method `evaluate`.

    Both are taken for those of Brownian motion.

    Args:
        noise: What the user passes.
        times: Of all steps, [n + 1].
        streams: Normal numbers that each channel needs per step.
        dtype: Of the states.

    Raises:
        ValueError: A path has not what the scheme needs beside its increments.
    """
    if isinstance(noise, Noise):
        return noise
    if isinstance(noise, jax.Array | np.ndarray):
        return Given(jnp.asarray(noise, dtype))
    if callable(getattr(noise, "evaluate", None)):
        return Given(_along(noise, jnp.asarray(times, dtype), streams).astype(dtype))
    return noise


def _along(path: Any, times: jax.Array, streams: int) -> jax.Array:
    """Return the increments of a path over the steps; in two streams, [steps, 2, *shape], where there are two."""
    if streams == 1:
        return jax.vmap(path.evaluate)(times[:-1], times[1:])  # type: ignore[no-any-return]
    area = getattr(path, "levy_area", None)
    if area is None or not hasattr(_evaluated(path, times), "H"):
        raise ValueError(
            f"{OWNER}(noise of type {type(path).__name__}): needs the space-time Levy area of each step beside its "
            "increment, for this scheme or these weights; pass levy_area=diffrax.SpaceTimeLevyArea to the path, or "
            "scheme='euler' and, below alpha = 1, weights='average'."
        )
    found = jax.vmap(lambda begin, end: path.evaluate(begin, end, use_levy=True))(times[:-1], times[1:])
    # The integral of W over a step h is h (W / 2 + H), and ours h (W + V / sqrt(3)) / 2.
    return jnp.stack([found.W, math.sqrt(12) * found.H], 1)


def _evaluated(path: Any, times: jax.Array) -> Any:
    return jax.eval_shape(lambda: path.evaluate(times[0], times[1], use_levy=True))
