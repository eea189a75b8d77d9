"""Series for the examples: loaded from packages that ship them, or generated; nothing is downloaded."""

from hpfracc_nn.data.processes import creep, relaxation, subdiffusion, zener
from hpfracc_nn.data.series import (
    arfima,
    arfima_covariance,
    fgn,
    log_parkinson,
    read_column,
    rfsv,
    sp500_volatility,
)

__all__ = [
    "arfima",
    "arfima_covariance",
    "creep",
    "fgn",
    "log_parkinson",
    "read_column",
    "relaxation",
    "rfsv",
    "sp500_volatility",
    "subdiffusion",
    "zener",
]
