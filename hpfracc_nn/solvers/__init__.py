"""Solvers of fractional differential equations, and the noises that drive stochastic ones.

Schemes, histories, meshes and noises are plain options, without a framework. What solves or draws is PyTorch's and is
loaded when it is first asked for.
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
    MarkovFractionalBrownian,
    MarkovRiemannLiouvilleBrownian,
    Noise,
    NormalJumps,
    RiemannLiouvilleBrownian,
)
from hpfracc_nn.solvers.roots import FixedPoint, Newton
from hpfracc_nn.solvers.schemes import BDF2, SCHEMES, PredictorCorrector, Rectangle, Scheme, Trapezoid

if TYPE_CHECKING:
    from hpfracc_nn.solvers.torch import MultiTerm, NeuralFDE, NoisePath, fdeint, increments, paths

_TORCH = ("MultiTerm", "NeuralFDE", "NoisePath", "fdeint", "increments", "paths")

__all__ = [
    "BDF2",
    "HISTORIES",
    "MESHES",
    "NOISES",
    "SCHEMES",
    "AlphaStable",
    "Automatic",
    "Brownian",
    "Coloured",
    "CompoundPoisson",
    "ExponentialJumps",
    "Exponentials",
    "FFTBlocks",
    "FixedJumps",
    "FixedPoint",
    "FractionalBrownian",
    "Full",
    "Graded",
    "History",
    "MarkovFractionalBrownian",
    "MarkovRiemannLiouvilleBrownian",
    "Mesh",
    "MultiTerm",
    "NeuralFDE",
    "Newton",
    "Noise",
    "NoisePath",
    "NormalJumps",
    "PredictorCorrector",
    "Rectangle",
    "RiemannLiouvilleBrownian",
    "Scheme",
    "Trapezoid",
    "Uniform",
    "Window",
    "fdeint",
    "increments",
    "paths",
]


def __getattr__(name: str) -> Any:
    if name in _TORCH:
        return getattr(import_module("hpfracc_nn.solvers.torch"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
