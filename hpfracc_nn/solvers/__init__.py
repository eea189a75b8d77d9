"""Solvers of fractional and of stochastic differential equations.

Schemes, histories, meshes and noises are plain options, without a framework. What solves is PyTorch's and is loaded
when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpfracc_nn.solvers.history import HISTORIES, Automatic, Exponentials, FFTBlocks, Full, History, Window
from hpfracc_nn.solvers.mesh import MESHES, Graded, Mesh, Uniform
from hpfracc_nn.solvers.noise import (
    NOISES,
    AlphaStable,
    Brownian,
    Coloured,
    CompoundPoisson,
    ExponentialJumps,
    FixedJumps,
    FractionalBrownian,
    Given,
    MarkovFractionalBrownian,
    MarkovRiemannLiouvilleBrownian,
    Noise,
    NormalJumps,
    RiemannLiouvilleBrownian,
)
from hpfracc_nn.solvers.roots import FixedPoint, Newton
from hpfracc_nn.solvers.schemes import BDF2, SCHEMES, PredictorCorrector, Rectangle, Scheme, Trapezoid
from hpfracc_nn.solvers.schemes.stochastic import (
    STOCHASTIC_SCHEMES,
    Euler,
    Heun,
    Milstein,
    ReversibleHeun,
    RungeKutta,
    StochasticScheme,
)
from hpfracc_nn.solvers.schemes.volterra import VOLTERRA_WEIGHTS, Average, Hybrid, Isometry, Left, VolterraWeights
from hpfracc_nn.solvers.sde import SDE, StochasticEquation

if TYPE_CHECKING:
    from hpfracc_nn.solvers.torch import (
        LatentFSDE,
        MultiTerm,
        NeuralFDE,
        NeuralFSDE,
        NoisePath,
        PathDivergence,
        fdeint,
        fsdeint,
        increments,
        paths,
    )

_TORCH = (
    "LatentFSDE",
    "MultiTerm",
    "NeuralFDE",
    "NeuralFSDE",
    "NoisePath",
    "PathDivergence",
    "fdeint",
    "fsdeint",
    "increments",
    "paths",
)

__all__ = [
    "BDF2",
    "HISTORIES",
    "MESHES",
    "NOISES",
    "SCHEMES",
    "SDE",
    "STOCHASTIC_SCHEMES",
    "VOLTERRA_WEIGHTS",
    "AlphaStable",
    "Automatic",
    "Average",
    "Brownian",
    "Coloured",
    "CompoundPoisson",
    "Euler",
    "ExponentialJumps",
    "Exponentials",
    "FFTBlocks",
    "FixedJumps",
    "FixedPoint",
    "FractionalBrownian",
    "Full",
    "Given",
    "Graded",
    "Heun",
    "History",
    "Hybrid",
    "Isometry",
    "LatentFSDE",
    "Left",
    "MarkovFractionalBrownian",
    "MarkovRiemannLiouvilleBrownian",
    "Mesh",
    "Milstein",
    "MultiTerm",
    "NeuralFDE",
    "NeuralFSDE",
    "Newton",
    "Noise",
    "NoisePath",
    "NormalJumps",
    "PathDivergence",
    "PredictorCorrector",
    "Rectangle",
    "ReversibleHeun",
    "RiemannLiouvilleBrownian",
    "RungeKutta",
    "Scheme",
    "StochasticEquation",
    "StochasticScheme",
    "Trapezoid",
    "Uniform",
    "VolterraWeights",
    "Window",
    "fdeint",
    "fsdeint",
    "increments",
    "paths",
]


def __getattr__(name: str) -> Any:
    if name in _TORCH:
        return getattr(import_module("hpfracc_nn.solvers.torch"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
