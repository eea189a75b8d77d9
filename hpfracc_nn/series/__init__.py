"""Series in time as statistics has them: ARFIMA models with regressors, their likelihood and forecasts.

NumPy and SciPy alone; pandas where a series is of pandas. The layers named ARFIMA are fitted by this.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.series.arfima import fit_arfima as fit_arfima
    from hpfracc_nn.series.results import ArfimaResults as ArfimaResults, Forecast as Forecast
    from hpfracc_nn.series.spectrum import MemoryEstimate as MemoryEstimate, gph as gph, local_whittle as local_whittle

__getattr__, __dir__, __all__ = lazy.attach(__name__)
