"""Fractional differences as scikit-learn transformers: time along the rows, a series in each column.

The names are loaded when they are first asked for. They need `hpfracc-nn[sklearn]`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpfracc_nn.preprocessing.fractional_differencer import FractionalDifferencer
    from hpfracc_nn.preprocessing.stationary_differencer import StationaryDifferencer

__all__ = ["FractionalDifferencer", "StationaryDifferencer"]

_HOMES = {
    "FractionalDifferencer": "hpfracc_nn.preprocessing.fractional_differencer",
    "StationaryDifferencer": "hpfracc_nn.preprocessing.stationary_differencer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name}: needs the package 'scikit-learn'; pip install 'hpfracc-nn[sklearn]'.",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
