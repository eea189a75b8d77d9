"""The layers. PyTorch's are reached from here and from the package; the framework is loaded when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpfracc_nn.layers.torch import (
        ARFIMA,
        Alpha,
        FDEBlock,
        FractionalAttention,
        FractionalConv1d,
        FractionalConv2d,
        FractionalDifference,
        FractionalGraphConv,
        FractionalGRU,
        FractionalLayer,
        FractionalLinear,
        FractionalLSTM,
        FSDEBlock,
        ProbabilisticAlpha,
        RoughnessFeatures,
        SpectralFractional,
        param_groups,
    )

__all__ = [
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalAttention",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGRU",
    "FractionalGraphConv",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "RoughnessFeatures",
    "SpectralFractional",
    "param_groups",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("hpfracc_nn.layers.torch"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
