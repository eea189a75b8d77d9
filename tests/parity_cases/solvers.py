"""`fdeint`: every scheme by every history, in the state, in what the right-hand side is given, and in the orders."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn.solvers import HISTORIES, SCHEMES, FixedPoint, Graded, PredictorCorrector, Trapezoid, Window
from tests.parity_cases import Arrays, ParityCase

STEPS = 40  # more than the lags that stay exact in float64
END = 0.8


def inputs(rng: np.random.Generator, shape: tuple[int, ...], alpha: Any, has_slope: bool) -> dict[str, np.ndarray]:
    alpha = np.asarray(alpha, dtype=np.float64)
    found = {
        "y0": 0.5 + 0.2 * rng.random(shape),
        "rate": 1 + 0.3 * rng.random(shape[-1:]),
        "alpha": alpha + 0.02 * rng.random(alpha.shape),
    }
    return found | ({"dy0": rng.random(shape)} if has_slope else {})


def on_torch(given: Arrays, options: dict[str, Any]) -> Any:
    import torch

    from hpfracc_nn.solvers.torch import fdeint

    rate, dtype = given["rate"], given["y0"].dtype
    ts = torch.linspace(0, END, STEPS + 1, dtype=torch.float64)

    def f(t: Any, y: Any) -> Any:
        return rate * torch.tanh(1 - y * y) - 0.3 * y.roll(1, -1) + 0.1 * torch.sin(t).to(dtype)

    return fdeint(f, given["y0"], ts, given["alpha"], dy0=given.get("dy0"), params=[rate], **options)


def on_jax(given: Arrays, options: dict[str, Any]) -> Any:
    from jax import numpy as jnp

    from hpfracc_nn.solvers.jax import fdeint

    def f(t: Any, y: Any, rate: Any) -> Any:
        return jnp.broadcast_to(rate, y.shape) * jnp.tanh(1 - y * y) - 0.3 * jnp.roll(y, 1, -1) + 0.1 * jnp.sin(t)

    ts = np.linspace(0, END, STEPS + 1)
    return fdeint(f, given["y0"], ts, given["alpha"], args=given["rate"], dy0=given.get("dy0"), **options)


def case(
    name: str,
    shape: tuple[int, ...] = (2,),
    alpha: Any = 0.7,
    *,
    has_slope: bool = False,
    slow: bool = True,
    cancels: bool = False,
    **options: Any,
) -> ParityCase:
    made: Callable[..., Any] = partial(inputs, shape=shape, alpha=alpha, has_slope=has_slope)
    # Exponentials for an order that is traced serve all orders: they are others than those for one, and a weight is
    # within 1e-11 of what it stands for.
    wide = 1e-10 if options.get("history") == "exponentials" else 1e-12
    return ParityCase(
        f"fdeint-{name}",
        made,
        partial(on_torch, options=options),
        partial(on_jax, options=options),
        tolerance={"float64": wide, "float32": 1e-6},
        slow=slow,
        cancels=cancels,
    )


CASES = [
    *[
        case(f"{scheme}-{history}", scheme=scheme, history=history)
        for scheme in SCHEMES
        for history in HISTORIES
        if history != "auto"
    ],
    case("plain", adjoint=False),
    case("plain-implicit", scheme="trapezoid", adjoint=False),
    # Of the gradients themselves 3.2e-6, 1.1e-6 and 3.7e-6; torch's own are as far off its float64 for other draws.
    case("window", history=Window(15), cancels=True),
    case("graded", mesh=Graded(2.0), scheme="trapezoid"),
    case("three-corrections", scheme=PredictorCorrector(3)),
    case("fixed-point", scheme=Trapezoid(FixedPoint())),
    case("above-one", alpha=1.5, has_slope=True),
    case("orders-of-entries", shape=(2, 3), alpha=np.array([0.5, 0.7, 0.9]), cancels=True),
    case("orders-of-rows", shape=(2, 3), alpha=np.array([[0.5], [0.9]]), scheme="bdf2", cancels=True),
]
