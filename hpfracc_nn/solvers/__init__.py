"""Solvers of fractional differential equations.

Schemes, histories and meshes are plain options, without a framework. What solves is PyTorch's and is loaded when it is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hpfracc_nn.solvers.history import HISTORIES, Automatic, Exponentials, FFTBlocks, Full, History, Window
from hpfracc_nn.solvers.mesh import MESHES, Graded, Mesh, Uniform
from hpfracc_nn.solvers.roots import FixedPoint, Newton
from hpfracc_nn.solvers.schemes import BDF2, SCHEMES, PredictorCorrector, Rectangle, Scheme, Trapezoid

if TYPE_CHECKING:
    from hpfracc_nn.solvers.torch import MultiTerm, NeuralFDE, fdeint

_TORCH = ("MultiTerm", "NeuralFDE", "fdeint")

__all__ = [
    "BDF2",
    "HISTORIES",
    "MESHES",
    "SCHEMES",
    "Automatic",
    "Exponentials",
    "FFTBlocks",
    "FixedPoint",
    "Full",
    "Graded",
    "History",
    "Mesh",
    "MultiTerm",
    "NeuralFDE",
    "Newton",
    "PredictorCorrector",
    "Rectangle",
    "Scheme",
    "Trapezoid",
    "Uniform",
    "Window",
    "fdeint",
]


def __getattr__(name: str) -> Any:
    if name in _TORCH:
        return getattr(import_module("hpfracc_nn.solvers.torch"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
