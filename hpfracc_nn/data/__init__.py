"""Series for the examples: loaded from packages that ship them, or generated; nothing is downloaded."""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.data.processes import creep as creep
    from hpfracc_nn.data.processes import relaxation as relaxation
    from hpfracc_nn.data.processes import subdiffusion as subdiffusion
    from hpfracc_nn.data.processes import zener as zener
    from hpfracc_nn.data.series import arfima as arfima
    from hpfracc_nn.data.series import arfima_covariance as arfima_covariance
    from hpfracc_nn.data.series import fgn as fgn
    from hpfracc_nn.data.series import log_parkinson as log_parkinson
    from hpfracc_nn.data.series import read_column as read_column
    from hpfracc_nn.data.series import read_header as read_header
    from hpfracc_nn.data.series import rfsv as rfsv
    from hpfracc_nn.data.series import sp500_volatility as sp500_volatility

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
