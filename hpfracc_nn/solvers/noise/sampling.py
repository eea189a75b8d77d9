"""Increments of a noise in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.solvers.noise.noise import Noise, fits
from hpfracc_nn.solvers.noise.source import NumpySource


def increments(
    noise: Noise, n_steps: int, shape: Sequence[int] = (), *, dt: float, rng: np.random.Generator
) -> np.ndarray:
    """Return the increments of a noise over equal steps, [n_steps, *shape] in float64.

    Args:
        noise: The noise.
        n_steps: How many steps.
        shape: Of one step; all entries are independent.
        dt: The step, positive, in the caller's time unit.
        rng: Where the randomness comes from.

    Raises:
        ValueError: A number is out of range, or `shape` is not that of the noise's parameters.
        TypeError: `n_steps` or a size is no whole number, or `dt` no real one.

    Examples:
        >>> from hpfracc_nn.solvers import noise
        >>> dw = noise.increments(
        ...     Brownian(), 100, (4000,), dt=0.01, rng=np.random.default_rng(0)
        ... )
        >>> dw.shape, round(dw.sum(0).var().item(), 1)
        ((100, 4000), 1.0)
    """
    steps = errors.count("increments", "n_steps", n_steps)
    sizes = tuple(errors.count("increments", "shape", size, 0) for size in shape)
    fits("increments", noise, sizes)
    step = errors.positive_step("increments", dt)
    source = NumpySource(rng)
    state = noise.start(steps, sizes, step, source)
    return noise.increments(steps, sizes, step, source, state)[0]
