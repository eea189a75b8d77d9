"""Multipliers of periodic signals, in the samples and in their orders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn.fractional import MULTIPLIERS, FourierMultiplier, derivative
from tests.parity_cases import Arrays, ParityCase


def applied(arrays: Arrays, kind: type[FourierMultiplier], dim: Any, options: dict[str, Any]) -> Any:
    return derivative(arrays["x"], kind(arrays["alpha"], **options), dt=0.5, dim=dim)


def inputs(rng: np.random.Generator, shape: tuple[int, ...], alpha: Any) -> dict[str, np.ndarray]:
    alpha = np.asarray(alpha, dtype=np.float64)
    return {"x": rng.standard_normal(shape), "alpha": alpha + 0.02 * rng.random(alpha.shape)}


def case(
    name: str,
    kind: str,
    shape: tuple[int, ...],
    alpha: Any,
    dim: Any = -1,
    slow: bool = True,
    cancels: bool = False,
    **options: Any,
) -> ParityCase:
    both = partial(applied, kind=MULTIPLIERS[kind], dim=dim, options=options)
    return ParityCase(name, partial(inputs, shape=shape, alpha=alpha), both, both, slow=slow, cancels=cancels)


CASES = [
    case(name.replace("_", "-"), name, (2, 3, 17), 0.6, cancels=name == "periodic_weyl")  # 1.4e-6 of alpha's itself
    for name in MULTIPLIERS
]
CASES += [
    case("periodic-weyl-channels", "periodic_weyl", (2, 3, 200), [0.3, 0.5, 0.8]),
    case("periodic-weyl-right", "periodic_weyl", (2, 9, 3), 0.6, dim=1, side="right"),
    case("periodic-weyl-integral", "periodic_weyl", (2, 17), -0.6, side="both"),
    case("fractional-laplacian-line", "fractional_laplacian", (2, 33), 0.8, space="line"),
    case("fractional-laplacian-box", "fractional_laplacian", (3, 8, 9), [0.8, 1.0, 1.5], dim=(-2, -1)),
]
