"""Collocation for tensors: what is solved, its past, the stage equations, the steps, and the adjoint."""

from __future__ import annotations

from hpfracc_nn.solvers.torch.collocation.adjoint import recorded, solved
from hpfracc_nn.solvers.torch.collocation.past import Mesh, dense_weights, evaluated_at
from hpfracc_nn.solvers.torch.collocation.problem import TINIEST, Problem, by_sample, samples_of
from hpfracc_nn.solvers.torch.collocation.steps import Integrator, Taken, Track

__all__ = [
    "TINIEST",
    "Integrator",
    "Mesh",
    "Problem",
    "Taken",
    "Track",
    "by_sample",
    "dense_weights",
    "evaluated_at",
    "recorded",
    "samples_of",
    "solved",
]
