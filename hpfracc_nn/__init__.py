"""Fractional calculus for neural networks: operators, layers and solvers.

The names below are loaded when they are first asked for; importing the package loads no framework.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn import analytics as analytics
    from hpfracc_nn import data as data
    from hpfracc_nn import distributed as distributed
    from hpfracc_nn import fractional as fractional
    from hpfracc_nn import layers as layers
    from hpfracc_nn import models as models
    from hpfracc_nn import preprocessing as preprocessing
    from hpfracc_nn import selection as selection
    from hpfracc_nn import series as series
    from hpfracc_nn import solvers as solvers
    from hpfracc_nn import training as training
    from hpfracc_nn.fractional import *  # noqa: F403
    from hpfracc_nn.installed import __version__ as __version__
    from hpfracc_nn.layers import *  # noqa: F403
    from hpfracc_nn.selection import BackendManager as BackendManager
    from hpfracc_nn.selection import configure as configure
    from hpfracc_nn.solvers import SDE as SDE
    from hpfracc_nn.solvers.torch import NeuralFDE as NeuralFDE
    from hpfracc_nn.solvers.torch import NeuralFSDE as NeuralFSDE
    from hpfracc_nn.solvers.torch import fdeint as fdeint
    from hpfracc_nn.solvers.torch import fsdeint as fsdeint

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, renamed={"Multiplier": "FourierMultiplier"})
