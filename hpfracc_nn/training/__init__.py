"""Training: the report of what ran where, and what forecasts are compared with.

`BackendReport` needs `hpfracc-nn[lightning]`; it is loaded when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpfracc_nn.training.torch.backend_report import BackendReport

__all__ = ["BackendReport"]

_ROOMS = {"BackendReport": "hpfracc_nn.training.torch.backend_report"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_ROOMS[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in {"lightning", "torch"}:
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name}: needs the package {error.name!r}; pip install 'hpfracc-nn[lightning]'.",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
