"""Collocation for tensors: the problem, its past, the stage equations, the steps, the adjoint, and `fdeint` by it."""

from __future__ import annotations

from hpfracc_nn.solvers.torch.collocation.past import Mesh, dense_weights

__all__ = ["Mesh", "dense_weights"]
