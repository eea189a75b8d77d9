"""The schemes, by name."""

from __future__ import annotations

from hpfracc_nn.solvers.schemes.bdf2 import BDF2
from hpfracc_nn.solvers.schemes.predictor_corrector import PredictorCorrector
from hpfracc_nn.solvers.schemes.rectangle import Rectangle
from hpfracc_nn.solvers.schemes.scheme import Scheme, Weights
from hpfracc_nn.solvers.schemes.trapezoid import Trapezoid

SCHEMES: dict[str, type[Rectangle] | type[PredictorCorrector] | type[Trapezoid] | type[BDF2]] = {
    scheme.name: scheme for scheme in (Rectangle, PredictorCorrector, Trapezoid, BDF2)
}

__all__ = ["BDF2", "SCHEMES", "PredictorCorrector", "Rectangle", "Scheme", "Trapezoid", "Weights"]
