"""Series in time as statistics has them: ARFIMA models with regressors, their likelihood and forecasts.

NumPy and SciPy alone; pandas where a series is of pandas. The layers named ARFIMA are fitted by this.
"""

from hpfracc_nn.series.arfima import fit_arfima
from hpfracc_nn.series.results import ArfimaResults, Forecast

__all__ = ["ArfimaResults", "Forecast", "fit_arfima"]
