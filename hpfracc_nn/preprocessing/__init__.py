"""Fractional differences as scikit-learn transformers: time along the rows, a series in each column.

The names are loaded when they are first used. They need `hpfracc-nn[sklearn]`.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.preprocessing.differencers import FractionalDifferencer as FractionalDifferencer
    from hpfracc_nn.preprocessing.differencers import StationaryDifferencer as StationaryDifferencer

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
