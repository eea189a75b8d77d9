"""Fractional calculus for neural networks: operators, layers and solvers.

The names below are loaded when they are first asked for; importing the package loads no framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpfracc_nn import analytics, data, fractional, layers, preprocessing, selection, series, solvers, training
    from hpfracc_nn.fractional import (
        DEFINITIONS,
        MULTIPLIERS,
        SCHEMES,
        AtanganaBaleanu,
        Caputo,
        CaputoFabrizio,
        CaputoHadamard,
        Definition,
        DistributedOrder,
        FractionalLaplacian,
        GrunwaldLetnikov,
        Hadamard,
        HadamardIntegral,
        Marchaud,
        Multiplier,
        PeriodicRiesz,
        PeriodicWeyl,
        RiemannLiouville,
        RiemannLiouvilleIntegral,
        Riesz,
        Stencil,
        TemperedCaputo,
        TemperedRiemannLiouville,
        caputo,
        choose,
        derivative,
        fdiff,
        fractional_fourier,
        grunwald_letnikov,
        integral,
        logarithmic_times,
        mittag_leffler,
        riemann_liouville,
        solve,
        variable_order,
        workload,
    )
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
    from hpfracc_nn.selection import BackendManager, configure
    from hpfracc_nn.solvers import SDE
    from hpfracc_nn.solvers.torch import NeuralFDE, NeuralFSDE, fdeint, fsdeint

    __version__: str

__all__ = [
    "ARFIMA",
    "DEFINITIONS",
    "MULTIPLIERS",
    "SCHEMES",
    "SDE",
    "Alpha",
    "AtanganaBaleanu",
    "BackendManager",
    "Caputo",
    "CaputoFabrizio",
    "CaputoHadamard",
    "Definition",
    "DistributedOrder",
    "FDEBlock",
    "FSDEBlock",
    "FractionalAttention",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGRU",
    "FractionalGraphConv",
    "FractionalLSTM",
    "FractionalLaplacian",
    "FractionalLayer",
    "FractionalLinear",
    "GrunwaldLetnikov",
    "Hadamard",
    "HadamardIntegral",
    "Marchaud",
    "Multiplier",
    "NeuralFDE",
    "NeuralFSDE",
    "PeriodicRiesz",
    "PeriodicWeyl",
    "ProbabilisticAlpha",
    "RiemannLiouville",
    "RiemannLiouvilleIntegral",
    "Riesz",
    "RoughnessFeatures",
    "SpectralFractional",
    "Stencil",
    "TemperedCaputo",
    "TemperedRiemannLiouville",
    "__version__",
    "analytics",
    "caputo",
    "choose",
    "configure",
    "data",
    "derivative",
    "fdeint",
    "fdiff",
    "fractional",
    "fractional_fourier",
    "fsdeint",
    "grunwald_letnikov",
    "integral",
    "layers",
    "logarithmic_times",
    "mittag_leffler",
    "param_groups",
    "preprocessing",
    "riemann_liouville",
    "selection",
    "series",
    "solve",
    "solvers",
    "training",
    "variable_order",
    "workload",
]

_ROOMS = ("analytics", "data", "fractional", "layers", "preprocessing", "selection", "series", "solvers", "training")
_LAYERS = (
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalAttention",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGraphConv",
    "FractionalGRU",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "RoughnessFeatures",
    "SpectralFractional",
    "param_groups",
)
_HOMES = {
    **dict.fromkeys(("BackendManager", "configure"), "hpfracc_nn.selection"),
    **dict.fromkeys(_LAYERS, "hpfracc_nn.layers.torch"),
    **dict.fromkeys(("NeuralFDE", "NeuralFSDE", "fdeint", "fsdeint"), "hpfracc_nn.solvers.torch"),
    "SDE": "hpfracc_nn.solvers",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value: Any = _version()
    elif name in _ROOMS:
        value = importlib.import_module(f"hpfracc_nn.{name}")
    else:
        value = getattr(importlib.import_module(_HOMES.get(name, "hpfracc_nn.fractional")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    """Return the installed version, or "0+unknown" where the sources are used without an installation."""
    from importlib import metadata

    try:
        return metadata.version("hpfracc-nn")
    except metadata.PackageNotFoundError:
        return "0+unknown"
