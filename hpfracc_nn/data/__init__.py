"""Series for the examples: loaded from packages that ship them, or generated; nothing is downloaded."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.data.processes import (
        creep as creep,
        relaxation as relaxation,
        subdiffusion as subdiffusion,
        zener as zener,
    )
    from hpfracc_nn.data.series import (
        arfima as arfima,
        arfima_covariance as arfima_covariance,
        fgn as fgn,
        log_parkinson as log_parkinson,
        read_column as read_column,
        rfsv as rfsv,
        sp500_volatility as sp500_volatility,
    )

__getattr__, __dir__, __all__ = lazy.attach(__name__)
