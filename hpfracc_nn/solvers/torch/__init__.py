"""Solvers for PyTorch."""

from hpfracc_nn.solvers.torch.ode import fdeint

__all__ = ["fdeint"]
