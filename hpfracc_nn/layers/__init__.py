"""The layers. PyTorch's are reached from here and from the package; the framework is loaded when one is asked for."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.layers.torch import *  # noqa: F403

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
