"""Operators at given times, varying orders, inverses and differences, in the samples and in the orders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn import fdiff, solve, variable_order
from hpfracc_nn.fractional import (
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    derivative,
)
from tests.parity_cases import Arrays, ParityCase

N = 70  # three chunks
TIMES = 2 * np.cumsum(np.random.default_rng(5).uniform(0.1, 1, (2, N)), axis=-1) / N
SCHEMES = {Caputo: "l1_2", RiemannLiouville: "l1_2", RiemannLiouvilleIntegral: "trapezoid"}


def inputs(rng: np.random.Generator, shape: tuple[int, ...], alpha: Any) -> dict[str, np.ndarray]:
    alpha = np.asarray(alpha, dtype=np.float64)
    return {"x": rng.standard_normal(shape).cumsum(-1) / 4, "alpha": alpha + 0.02 * rng.random(alpha.shape)}


def at_times(arrays: Arrays, kind: type[Definition], times: np.ndarray, bounds: Any) -> Any:
    return derivative(arrays["x"], kind(arrays["alpha"], SCHEMES[kind], bounds), t=times)


def varying(arrays: Arrays, kind: type[Definition]) -> Any:
    return variable_order(arrays["x"], arrays["alpha"], kind, t=TIMES[0])


def solved(arrays: Arrays, kind: type[Definition], bounds: Any, names: tuple[str, ...]) -> Any:
    told = {name: arrays[name] for name in names}
    return solve(arrays["x"], kind(arrays["alpha"], bounds=bounds), dt=0.5, **told)


def told_inputs(rng: np.random.Generator, alpha: float, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    return {**inputs(rng, (2, 30), alpha), **{name: rng.standard_normal(2) for name in names}}


def differenced(arrays: Arrays, window: int | None) -> Any:
    return fdiff(arrays["x"], arrays["alpha"], window=window)


def case(name: str, draw: Any, function: Any, slow: bool = True, cancels: bool = False) -> ParityCase:
    return ParityCase(name, draw, function, function, slow=slow, cancels=cancels)


def timed(
    name: str, kind: Any, alpha: Any, times: np.ndarray = TIMES[0], bounds: Any = None, **options: Any
) -> ParityCase:
    function = partial(at_times, kind=kind, times=times, bounds=bounds)
    return case(name, partial(inputs, shape=(2, N), alpha=alpha), function, **options)


def inverse(
    name: str, kind: Any, alpha: float, names: tuple[str, ...] = (), bounds: Any = None, cancels: bool = False
) -> ParityCase:
    function = partial(solved, kind=kind, bounds=bounds, names=names)
    found = partial(told_inputs, alpha=alpha, names=names)
    return case(name, found, function, cancels=cancels)


CASES = [
    timed("caputo-at-times", Caputo, 0.4),
    timed("caputo-at-own-times", Caputo, [0.4, 0.7], TIMES),
    timed("caputo-at-times-above-one", Caputo, 1.4, bounds=(1, 2), cancels=True),  # 1.4e-6 itself
    timed("riemann-liouville-at-times", RiemannLiouville, 0.4),
    timed("integral-at-times", RiemannLiouvilleIntegral, 0.4),
    *[
        case(
            f"variable-{name}",
            partial(inputs, shape=(2, N), alpha=np.linspace(0.2, 0.9, N)),
            partial(varying, kind=kind),
        )
        for name, kind in {
            "caputo": Caputo,
            "riemann-liouville": RiemannLiouville,
            "integral": RiemannLiouvilleIntegral,
        }.items()
    ],
    inverse("solve-caputo", Caputo, 0.4, ("x0",)),
    inverse("solve-caputo-above-one", Caputo, 1.4, ("x0", "dx0"), (1, 2)),
    inverse("solve-riemann-liouville", RiemannLiouville, 0.4),
    inverse("solve-grunwald-letnikov", GrunwaldLetnikov, 0.4),
    inverse("solve-integral", RiemannLiouvilleIntegral, 0.4, ("x0",), cancels=True),  # 1.8e-6 of alpha's itself
    case("fdiff", partial(inputs, shape=(2, 30), alpha=0.4), partial(differenced, window=None)),
    case(
        "fdiff-above-one",
        partial(inputs, shape=(2, 30), alpha=1.4),
        partial(differenced, window=None),
        cancels=True,  # 3.0e-6 of the gradient in alpha itself
    ),
    case("fdiff-window", partial(inputs, shape=(2, 30), alpha=0.4), partial(differenced, window=7)),
]
