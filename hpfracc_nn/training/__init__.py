"""Training: optimizers, losses, fits of fractional models, Hurst indices, the report of what ran where, baselines.

The names are loaded when they are first asked for. `AlphaLogger` and `BackendReport` need `hpfracc-nn[lightning]`,
`whittle` and `structure_function` nothing, all others `hpfracc-nn[torch]`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpfracc_nn.training.fit import Fit
    from hpfracc_nn.training.hurst import HurstEstimate, StructureFunction, structure_function, whittle
    from hpfracc_nn.training.stochastic_fit import StochasticFit
    from hpfracc_nn.training.torch.alpha_logger import AlphaLogger
    from hpfracc_nn.training.torch.backend_report import BackendReport
    from hpfracc_nn.training.torch.batch_size import suggest_batch_size
    from hpfracc_nn.training.torch.fit_fde import fit_fde
    from hpfracc_nn.training.torch.fit_fsde import fit_fsde
    from hpfracc_nn.training.torch.gradient_variance import GradientVariance
    from hpfracc_nn.training.torch.losses import energy_score, moment_loss, trajectory_loss, variogram_loss
    from hpfracc_nn.training.torch.optimizers import (
        AlphaSchedule,
        FractionalAdam,
        FractionalAdamW,
        FractionalRMSprop,
        FractionalSGD,
    )

__all__ = [
    "AlphaLogger",
    "AlphaSchedule",
    "BackendReport",
    "Fit",
    "FractionalAdam",
    "FractionalAdamW",
    "FractionalRMSprop",
    "FractionalSGD",
    "GradientVariance",
    "HurstEstimate",
    "StochasticFit",
    "StructureFunction",
    "energy_score",
    "fit_fde",
    "fit_fsde",
    "moment_loss",
    "structure_function",
    "suggest_batch_size",
    "trajectory_loss",
    "variogram_loss",
    "whittle",
]

_HURST = "hpfracc_nn.training.hurst"
_LOSSES = "hpfracc_nn.training.torch.losses"
_OPTIMIZERS = "hpfracc_nn.training.torch.optimizers"
_ROOMS = {
    "AlphaLogger": "hpfracc_nn.training.torch.alpha_logger",
    "GradientVariance": "hpfracc_nn.training.torch.gradient_variance",
    "StochasticFit": "hpfracc_nn.training.stochastic_fit",
    "AlphaSchedule": _OPTIMIZERS,
    "BackendReport": "hpfracc_nn.training.torch.backend_report",
    "Fit": "hpfracc_nn.training.fit",
    "FractionalAdam": _OPTIMIZERS,
    "FractionalAdamW": _OPTIMIZERS,
    "FractionalRMSprop": _OPTIMIZERS,
    "FractionalSGD": _OPTIMIZERS,
    "HurstEstimate": _HURST,
    "StructureFunction": _HURST,
    "energy_score": _LOSSES,
    "fit_fde": "hpfracc_nn.training.torch.fit_fde",
    "fit_fsde": "hpfracc_nn.training.torch.fit_fsde",
    "moment_loss": _LOSSES,
    "structure_function": _HURST,
    "suggest_batch_size": "hpfracc_nn.training.torch.batch_size",
    "trajectory_loss": _LOSSES,
    "variogram_loss": _LOSSES,
    "whittle": _HURST,
}
_EXTRAS = {"lightning": "lightning", "torch": "torch"}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_ROOMS[name]), name)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        extra = "lightning" if name in ("AlphaLogger", "BackendReport") else _EXTRAS[error.name]
        raise ModuleNotFoundError(
            f"{__name__}.{name}: needs the package {error.name!r}; pip install 'hpfracc-nn[{extra}]'.",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    return sorted(__all__)
