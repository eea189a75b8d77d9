"""Losses of paths, in both the paths and what was observed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.parity_cases import Arrays, ParityCase


def paths(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Two batches that begin at one point, where nothing varies."""
    found = {"ys": rng.standard_normal((6, 4, 2)), "observed": rng.standard_normal((6, 5, 2))}
    return {name: each.cumsum(0) - each[:1] for name, each in found.items()}


def gaps(rng: np.random.Generator) -> dict[str, np.ndarray]:
    drawn = {"ys": rng.standard_normal((6, 4, 2)), "observed": rng.standard_normal((6, 1, 2))}
    return drawn | {"mask": rng.random((6, 1, 1)) < 0.6}


def by_torch(name: str, **options: Any) -> Any:
    def loss(arrays: Arrays) -> Any:
        from hpfracc_nn.training.torch import losses

        return getattr(losses, name)(**arrays, **options)

    return loss


def by_jax(name: str, **options: Any) -> Any:
    def loss(arrays: Arrays) -> Any:
        from hpfracc_nn.training.jax import losses

        return getattr(losses, name)(**arrays, **options)

    return loss


def case(name: str, inputs: Any = paths, slow: bool = True, **options: Any) -> ParityCase:
    title = "-".join([name, *(f"{key}-{value}" for key, value in options.items())])
    return ParityCase(title, inputs, by_torch(name, **options), by_jax(name, **options), slow=slow)


CASES = [
    case("trajectory_loss", gaps),
    case("moment_loss", orders=4),
    case("moment_loss", orders=1),
    case("variogram_loss", lags=(1, 3)),
    case("energy_score"),
]
