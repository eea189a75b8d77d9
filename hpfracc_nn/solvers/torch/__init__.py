"""Solvers for PyTorch."""

from hpfracc_nn.solvers.torch.multi_term import MultiTerm
from hpfracc_nn.solvers.torch.neural import NeuralFDE
from hpfracc_nn.solvers.torch.noise import NoisePath, increments, paths
from hpfracc_nn.solvers.torch.ode import fdeint

__all__ = ["MultiTerm", "NeuralFDE", "NoisePath", "fdeint", "increments", "paths"]
