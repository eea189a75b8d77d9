"""The special functions: points, orders and transforms of both frameworks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn.fractional.special.functions import fractional_fourier, mittag_leffler
from tests.parity_cases import Arrays, ParityCase

# In each zone and at each kind of pole.
POINTS = np.array([-30.0, -2.0, -0.06, 0.09, 0.8, 2.0])
ALPHAS = np.array([0.4, 0.8, 1.2, 1.9, 0.3, 1.5])


def points(rng: np.random.Generator, alpha: Any) -> dict[str, np.ndarray]:
    moved = 1 + 0.01 * rng.random(POINTS.size)
    return {"z": POINTS * moved, "alpha": np.asarray(alpha), "beta": np.asarray(1.3)}


def mittag_leffler_of(arrays: Arrays, **options: Any) -> Any:
    return mittag_leffler(arrays["z"], arrays["alpha"], arrays["beta"], **options)


def samples(rng: np.random.Generator, order: Any) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((2, 9)), "order": np.asarray(order) + 0.02 * rng.random(np.shape(order))}


def rotated(arrays: Arrays, **options: Any) -> Any:
    found = fractional_fourier(arrays["x"], arrays["order"], **options)
    return found.real, found.imag


def special_case(name: str, draw: Any, function: Any, **options: Any) -> ParityCase:
    return ParityCase(name, draw, function, function, slow=options.pop("slow", True), **options)


CASES = [
    special_case("mittag-leffler", partial(points, alpha=0.7), mittag_leffler_of),
    special_case("mittag-leffler-orders", partial(points, alpha=ALPHAS), mittag_leffler_of),
    special_case(
        "mittag-leffler-derivative",
        partial(points, alpha=0.7),
        partial(mittag_leffler_of, derivative=(1, 0, 1)),
        differentiable=("z", "alpha"),
    ),
    special_case("fractional-fourier", partial(samples, order=0.3), rotated),
    special_case("fractional-fourier-orders", partial(samples, order=[1.2, -0.7]), partial(rotated, centred=True)),
]
