"""The names of the package for JAX: operators, Flax modules, optax transformations, solvers.

    import hpfracc_nn.jax as fjx

Operators and definitions are those of `hpfracc_nn`, which take JAX arrays too. Layers are Flax modules: those of
`fjx.nnx` stand here too, those of `fjx.linen` there. Names are loaded when they are first asked for; PyTorch never is.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        TemperedCaputo,
        TemperedRiemannLiouville,
        caputo,
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
    )
    from hpfracc_nn.fractional.jax.calibration import calibrate
    from hpfracc_nn.fractional.jax.lengths import pad_to_bucket
    from hpfracc_nn.fractional.jax.questions import choose, workload
    from hpfracc_nn.selection import BackendManager, configure

_OPERATORS = (
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
    "TemperedCaputo",
    "TemperedRiemannLiouville",
    "caputo",
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
)
_HOMES = {
    **dict.fromkeys(_OPERATORS, "hpfracc_nn.fractional"),
    **dict.fromkeys(("BackendManager", "configure"), "hpfracc_nn.selection"),
    **dict.fromkeys(("choose", "workload"), "hpfracc_nn.fractional.jax.questions"),
    "calibrate": "hpfracc_nn.fractional.jax.calibration",
    "pad_to_bucket": "hpfracc_nn.fractional.jax.lengths",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
