"""Every definition with every scheme, in the samples and in its orders."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn.fractional import DEFINITIONS, Definition, DistributedOrder, dispatch
from tests.parity_cases import Arrays, ParityCase

OPTIONS: dict[str, dict[str, Any]] = {
    "tempered_caputo": {"rate": 1.5},
    "tempered_riemann_liouville": {"rate": 1.5},
}

QUICK = [("caputo", "l1_2")]  # what XLA compiles, it compiles slowly


def applied(arrays: Arrays, kind: type[Definition], dim: int, options: dict[str, Any]) -> Any:
    return dispatch.apply("parity", arrays["x"], kind(arrays["alpha"], **options), 0.1, dim, None)


def inputs(rng: np.random.Generator, shape: tuple[int, ...], alpha: Any) -> dict[str, np.ndarray]:
    alpha = np.asarray(alpha, dtype=np.float64)
    return {"x": rng.standard_normal(shape).cumsum(-1), "alpha": alpha + 0.02 * rng.random(alpha.shape)}


def case(
    name: str,
    kind: type[Definition],
    shape: tuple[int, ...],
    alpha: Any,
    dim: int = -1,
    slow: bool = True,
    cancels: bool = False,
    **options: Any,
) -> ParityCase:
    both = partial(applied, kind=kind, dim=dim, options=options)
    tolerance = {"float64": 1e-12, "float32": SINGLE.get(name, 1e-6)}
    draw = partial(inputs, shape=shape, alpha=alpha)
    return ParityCase(name, draw, both, both, tolerance=tolerance, slow=slow, cancels=cancels)


def fixed(arrays: Arrays) -> Any:
    return dispatch.apply("parity", arrays["x"], DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0)), 0.1, -1, None)


# Without 64 bit types JAX sums in single precision what torch sums in double: the gradient in one order over both
# sides, 2.1e-6 measured.
SINGLE = {"riesz-centred": 4e-6}

CASES = [
    case(
        f"{name}-{scheme}",
        kind,
        (2, 41),
        0.4,
        slow=(name, scheme) not in QUICK,
        scheme=scheme,
        **OPTIONS.get(name, {}),
    )
    for name, kind in DEFINITIONS.items()
    if name != "distributed_order"
    for scheme in kind.schemes
]
CASES += [
    case("caputo-channels", DEFINITIONS["caputo"], (2, 3, 200), [0.3, 0.5, 0.8]),
    case("caputo-above-one", DEFINITIONS["caputo"], (2, 300), 1.4, bounds=(1.0, 2.0), cancels=True),  # 1.02e-6 itself
    case("riemann-liouville-middle", DEFINITIONS["riemann_liouville"], (2, 300, 3), 0.4, dim=1),
    case("caputo-right", DEFINITIONS["caputo"], (2, 41), 0.4, side="right"),
    case("grunwald-letnikov-both", DEFINITIONS["grunwald_letnikov"], (2, 41), 0.4, side="both"),
    ParityCase(
        "distributed-order", lambda rng: {"x": rng.standard_normal((2, 41)).cumsum(-1)}, fixed, fixed, slow=True
    ),
]
