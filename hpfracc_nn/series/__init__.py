"""Series in time as statistics has them: ARFIMA models with regressors, their likelihood and forecasts.

This package needs NumPy and SciPy alone, and pandas where a series is a pandas object. The layers named `ARFIMA` are
fitted by its `fit_arfima`.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.series.arfima import fit_arfima as fit_arfima
    from hpfracc_nn.series.results import ArfimaResults as ArfimaResults
    from hpfracc_nn.series.results import Forecast as Forecast
    from hpfracc_nn.series.spectrum import MemoryEstimate as MemoryEstimate
    from hpfracc_nn.series.spectrum import gph as gph
    from hpfracc_nn.series.spectrum import local_whittle as local_whittle

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
