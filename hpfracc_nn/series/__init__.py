"""Series in time as statistics has them: ARFIMA models with regressors, their likelihood and forecasts.

NumPy and SciPy alone; pandas where a series is of pandas. The layers named ARFIMA are fitted by this.
"""

from hpfracc_nn.series.arfima import fit_arfima
from hpfracc_nn.series.results import ArfimaResults, Forecast
from hpfracc_nn.series.spectrum import MemoryEstimate, gph, local_whittle

__all__ = ["ArfimaResults", "Forecast", "MemoryEstimate", "fit_arfima", "gph", "local_whittle"]
