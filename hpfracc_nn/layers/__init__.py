"""The layers. PyTorch's are reached from here and from the package; the framework is loaded when one is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_TORCH = (
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGraphConv",
    "FractionalGRU",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "param_groups",
)

__all__ = [
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGRU",
    "FractionalGraphConv",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "param_groups",
]


def __getattr__(name: str) -> Any:
    if name in _TORCH:
        return getattr(import_module("hpfracc_nn.layers.torch"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
