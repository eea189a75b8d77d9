"""Solvers for PyTorch."""

from hpfracc_nn.solvers.torch.fsde import fsdeint
from hpfracc_nn.solvers.torch.latent import LatentFSDE, PathDivergence
from hpfracc_nn.solvers.torch.multi_term import MultiTerm
from hpfracc_nn.solvers.torch.neural import NeuralFDE
from hpfracc_nn.solvers.torch.neural_fsde import NeuralFSDE
from hpfracc_nn.solvers.torch.noise import NoisePath, increments, paths
from hpfracc_nn.solvers.torch.ode import fdeint

__all__ = [
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
]
