"""Solvers of fractional and of stochastic differential equations for PyTorch: functions, modules, noise, solutions."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.solvers.torch.fde import fdeint as fdeint
    from hpfracc_nn.solvers.torch.fsde import fsdeint as fsdeint
    from hpfracc_nn.solvers.torch.latent import LatentFSDE as LatentFSDE
    from hpfracc_nn.solvers.torch.latent import PathDivergence as PathDivergence
    from hpfracc_nn.solvers.torch.modules import MultiTerm as MultiTerm
    from hpfracc_nn.solvers.torch.modules import NeuralFDE as NeuralFDE
    from hpfracc_nn.solvers.torch.modules import NeuralFSDE as NeuralFSDE
    from hpfracc_nn.solvers.torch.noise import NoisePath as NoisePath
    from hpfracc_nn.solvers.torch.noise import increments as increments
    from hpfracc_nn.solvers.torch.noise import paths as paths
    from hpfracc_nn.solvers.torch.solution import Event as Event
    from hpfracc_nn.solvers.torch.solution import Occurrences as Occurrences
    from hpfracc_nn.solvers.torch.solution import Solution as Solution

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
