"""Collocation for tensors: what is solved, its past, the stage equations, the steps, the adjoint; `fdeint` by it."""

from __future__ import annotations

from hpfracc_nn.solvers.torch.collocation.past import Mesh, dense_weights

__all__ = ["Mesh", "dense_weights"]
