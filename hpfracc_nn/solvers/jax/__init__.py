"""The solvers for JAX: pure functions over pytrees."""

from hpfracc_nn.solvers.jax.fsde import fsdeint
from hpfracc_nn.solvers.jax.multi_term import MultiTerm
from hpfracc_nn.solvers.jax.noise import increments, paths
from hpfracc_nn.solvers.jax.ode import fdeint

__all__ = ["MultiTerm", "fdeint", "fsdeint", "increments", "paths"]
