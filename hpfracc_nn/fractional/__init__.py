"""What an operator is: definitions, schemes, stencils, and the functions that apply them.

The names below are loaded when they are first asked for: importing the package loads neither SciPy nor a
framework.
"""

import importlib
from typing import TYPE_CHECKING, Any

from hpfracc_nn.fractional import dispatch

if TYPE_CHECKING:
    from hpfracc_nn.fractional.definitions import (
        DEFINITIONS,
        MULTIPLIERS,
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
        TemperedCaputo,
        TemperedRiemannLiouville,
        logarithmic_times,
    )
    from hpfracc_nn.fractional.differencing import fdiff
    from hpfracc_nn.fractional.inverse import solve
    from hpfracc_nn.fractional.nonuniform.variable import variable_order
    from hpfracc_nn.fractional.operator import (
        caputo,
        choose,
        derivative,
        grunwald_letnikov,
        integral,
        riemann_liouville,
    )
    from hpfracc_nn.fractional.schemes import SCHEMES
    from hpfracc_nn.fractional.special.functions import fractional_fourier, mittag_leffler
    from hpfracc_nn.fractional.stencil import Stencil
    from hpfracc_nn.fractional.workloads import workload

__all__ = [
    "DEFINITIONS",
    "MULTIPLIERS",
    "SCHEMES",
    "AtanganaBaleanu",
    "Caputo",
    "CaputoFabrizio",
    "CaputoHadamard",
    "Definition",
    "DistributedOrder",
    "FractionalLaplacian",
    "GrunwaldLetnikov",
    "Hadamard",
    "HadamardIntegral",
    "Marchaud",
    "Multiplier",
    "PeriodicRiesz",
    "PeriodicWeyl",
    "RiemannLiouville",
    "RiemannLiouvilleIntegral",
    "Riesz",
    "Stencil",
    "TemperedCaputo",
    "TemperedRiemannLiouville",
    "caputo",
    "choose",
    "derivative",
    "fdiff",
    "fractional_fourier",
    "grunwald_letnikov",
    "integral",
    "logarithmic_times",
    "mittag_leffler",
    "riemann_liouville",
    "solve",
    "variable_order",
    "workload",
]

_DEFINITIONS = "hpfracc_nn.fractional.definitions"
_SPECIAL = "hpfracc_nn.fractional.special.functions"
_OPERATOR = "hpfracc_nn.fractional.operator"
_HOMES = {
    "DEFINITIONS": _DEFINITIONS,
    "MULTIPLIERS": _DEFINITIONS,
    "SCHEMES": "hpfracc_nn.fractional.schemes",
    "AtanganaBaleanu": _DEFINITIONS,
    "Caputo": _DEFINITIONS,
    "CaputoFabrizio": _DEFINITIONS,
    "CaputoHadamard": _DEFINITIONS,
    "Definition": _DEFINITIONS,
    "DistributedOrder": _DEFINITIONS,
    "FractionalLaplacian": _DEFINITIONS,
    "GrunwaldLetnikov": _DEFINITIONS,
    "Hadamard": _DEFINITIONS,
    "HadamardIntegral": _DEFINITIONS,
    "Marchaud": _DEFINITIONS,
    "Multiplier": _DEFINITIONS,
    "PeriodicRiesz": _DEFINITIONS,
    "PeriodicWeyl": _DEFINITIONS,
    "RiemannLiouville": _DEFINITIONS,
    "RiemannLiouvilleIntegral": _DEFINITIONS,
    "Riesz": _DEFINITIONS,
    "Stencil": "hpfracc_nn.fractional.stencil",
    "TemperedCaputo": _DEFINITIONS,
    "TemperedRiemannLiouville": _DEFINITIONS,
    "caputo": _OPERATOR,
    "choose": _OPERATOR,
    "derivative": _OPERATOR,
    "fdiff": "hpfracc_nn.fractional.differencing",
    "fractional_fourier": _SPECIAL,
    "grunwald_letnikov": _OPERATOR,
    "integral": _OPERATOR,
    "logarithmic_times": _DEFINITIONS,
    "mittag_leffler": _SPECIAL,
    "riemann_liouville": _OPERATOR,
    "solve": "hpfracc_nn.fractional.inverse",
    "variable_order": "hpfracc_nn.fractional.nonuniform.variable",
    "workload": "hpfracc_nn.fractional.workloads",
}


def _numpy() -> Any:
    import hpfracc_nn.fractional.numpy.backend as found

    return found


def _torch() -> Any:
    import hpfracc_nn.fractional.torch.backend as found

    return found


def _jax() -> Any:
    import hpfracc_nn.fractional.jax.backend as found

    return found


dispatch.IMPORTS.update(numpy=_numpy, torch=_torch, jax=_jax)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
