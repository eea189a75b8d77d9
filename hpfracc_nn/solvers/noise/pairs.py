"""Two real paths for each complex one, and as many at once as the source likes."""

from __future__ import annotations

import math
from collections.abc import Callable

from hpfracc_nn.fractional.namespace import Array
from hpfracc_nn.solvers.noise.noise import Shape
from hpfracc_nn.solvers.noise.source import Source


def in_pairs(
    drawn: Callable[[int], Array], n_steps: int, shape: Shape, channels: Shape, length: int, source: Source
) -> Array:
    """Return real paths [n_steps, *shape] from complex ones whose parts are independent.

    Args:
        drawn: How many pairs to those pairs, complex [pairs, *channels, n_steps].
        n_steps: How many steps.
        shape: Of one step.
        channels: The last axes of `shape`, which belong to one pair.
        length: Of what is transformed to make a path.
        source: Whose arrays they are.
    """
    paths = math.prod(shape[: len(shape) - len(channels)])
    pairs = -(-paths // 2)
    if not pairs or not math.prod(channels):
        return source.normal((n_steps, *shape))  # nothing
    most = max(1, source.at_once // (math.prod(channels) * length))
    both = source.by_time((drawn(min(most, pairs - begin)) for begin in range(0, pairs, most)), pairs)
    return both[:, :paths].reshape(n_steps, *shape)
