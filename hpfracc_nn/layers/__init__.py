"""The layers. PyTorch's are imported from here or from the package; torch is loaded when the first one is accessed."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.layers.torch import *  # noqa: F403

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
