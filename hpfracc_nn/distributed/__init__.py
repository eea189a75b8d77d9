"""Operators on series that lie over several processes, as slices of the time axis or as DTensors."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.distributed.torch.operators import derivative as derivative
    from hpfracc_nn.distributed.torch.operators import integral as integral

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
