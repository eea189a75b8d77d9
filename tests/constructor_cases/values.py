"""Frozen values: definitions, noises, schemes, meshes, histories, settings."""

from functools import partial
from typing import Any

import numpy as np

from hpfracc_nn import fractional, selection, solvers
from tests.constructor_cases import Call
from tests.frameworks import is_there

X = np.zeros(8)
RATES = dict.fromkeys(("matmul", "fft", "scan", "elementwise"), 1e9)

OPERATORS = [*fractional.DEFINITIONS.values(), *fractional.MULTIPLIERS.values()]
REQUIRED: dict[str, dict[str, Any]] = {
    "AlphaStable": {"stability": 1.5},
    "Coloured": {"correlation_time": 0.5},
    "CompoundPoisson": {"rate": 1.0},
    "FractionalBrownian": {"hurst": 0.3},
    "MarkovFractionalBrownian": {"hurst": 0.3},
    "MarkovRiemannLiouvilleBrownian": {"hurst": 0.3},
    "RiemannLiouvilleBrownian": {"hurst": 0.3},
    "Given": {"values": np.zeros((3, 2))},
    "Points": {"elapsed": (0.0, 0.5, 1.0)},
    "Window": {"n": 4},
}
SOLVERS = (
    "AlphaStable", "Automatic", "Average", "BDF2", "Brownian", "Collocation", "Coloured", "CompoundPoisson",
    "Euler",
    "ExponentialJumps", "Exponentials", "FFTBlocks", "FixedJumps", "FixedPoint", "FractionalBrownian", "Full", "Given",
    "Graded", "Heun", "Hybrid", "Isometry", "Left", "MarkovFractionalBrownian", "MarkovRiemannLiouvilleBrownian",
    "Milstein", "Newton", "NormalJumps", "Points", "PredictorCorrector", "Rectangle", "ReversibleHeun",
    "RiemannLiouvilleBrownian", "RungeKutta", "Trapezoid", "Uniform", "Window",
)  # fmt: skip

CASES = [
    *(Call(kind, lambda: {"alpha": 0.5}, lambda made: made(X)) for kind in OPERATORS),
    Call(
        fractional.DistributedOrder,
        lambda: {"nodes": (0.3, 0.6), "weights": (0.5, 0.5), "kind": fractional.Caputo, "scheme": "l1"},
        lambda made: made(X),
    ),
    *(Call(getattr(solvers, name), partial(dict, REQUIRED.get(name, {}))) for name in SOLVERS),
    Call(solvers.SDE, lambda: {"drift": np.negative, "diffusion": np.negative}),
    *([Call(solvers.Event, lambda: {"function": np.negative})] if is_there("torch") else []),
    Call(selection.Settings),
    Call(selection.Workload, lambda: {"op": "toeplitz", "framework": "torch"}),
    Call(selection.Machine),
    Call(selection.Cost, lambda: {"flops": {"matmul": 1.0}, "bytes": 1.0, "launches": 1}),
    Call(selection.Rates, lambda: {"flops": RATES, "bandwidth": 1e9, "launch": 1e-6}),
    Call(
        selection.Timing,
        lambda: {"key": "a", "arm": "torch/fft", "forward": 1e-3, "backward": None, "samples": 1, "time": 1.0},
    ),
    Call(selection.WisdomFile, lambda: {"directory": "/nowhere", "machine": {"cpu": "a"}}),
    *([Call(selection.Telemetry)] if is_there("opentelemetry") else []),
    Call(selection.BackendManager, lambda: {"settings": selection.Settings(wisdom="off")}),
]
