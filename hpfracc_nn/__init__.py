"""Fractional calculus for neural networks: operators, layers and solvers.

The names below are loaded when they are first asked for; importing the package loads no framework.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn import (
        analytics as analytics,
        data as data,
        fractional as fractional,
        layers as layers,
        preprocessing as preprocessing,
        selection as selection,
        series as series,
        solvers as solvers,
        training as training,
    )
    from hpfracc_nn.fractional import *  # noqa: F403
    from hpfracc_nn.installed import __version__ as __version__
    from hpfracc_nn.layers import *  # noqa: F403
    from hpfracc_nn.selection import BackendManager as BackendManager, configure as configure
    from hpfracc_nn.solvers import SDE as SDE
    from hpfracc_nn.solvers.torch import (
        NeuralFDE as NeuralFDE,
        NeuralFSDE as NeuralFSDE,
        fdeint as fdeint,
        fsdeint as fsdeint,
    )

__getattr__, __dir__, __all__ = lazy.attach(__name__)
