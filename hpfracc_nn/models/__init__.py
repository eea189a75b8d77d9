"""Models by name, of rheology and impedance, and their fits to data.

The names below are loaded when they are first asked for.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.models import impedance as impedance
    from hpfracc_nn.models import rheology as rheology

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
