"""The solvers for JAX: pure functions over pytrees."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.solvers.jax.collocation.solve import Solution as Solution
    from hpfracc_nn.solvers.jax.fde import fdeint as fdeint
    from hpfracc_nn.solvers.jax.fsde import fsdeint as fsdeint
    from hpfracc_nn.solvers.jax.multi_term import MultiTerm as MultiTerm
    from hpfracc_nn.solvers.jax.noise import increments as increments
    from hpfracc_nn.solvers.jax.noise import paths as paths

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
