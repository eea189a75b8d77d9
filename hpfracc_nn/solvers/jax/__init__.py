"""Solvers of fractional and of stochastic differential equations for JAX's arrays."""

from hpfracc_nn.solvers.jax.fsde import fsdeint
from hpfracc_nn.solvers.jax.noise import increments, paths

__all__ = ["fsdeint", "increments", "paths"]
