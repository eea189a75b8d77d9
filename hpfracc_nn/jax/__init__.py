"""The names of the package for JAX: operators, Flax modules, optax transformations, solvers.

    import hpfracc_nn.jax as fjx

Operators and definitions are those of `hpfracc_nn`, which take JAX arrays too. Layers are Flax modules: those of
`fjx.nnx` stand here too, those of linen in `fjx.linen`. Names are loaded when they are first asked for, PyTorch never.
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

__all__ = [
    "DEFINITIONS",
    "MULTIPLIERS",
    "SCHEMES",
    "AtanganaBaleanu",
    "BackendManager",
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
    "calibrate",
    "caputo",
    "choose",
    "configure",
    "derivative",
    "fdiff",
    "fractional_fourier",
    "grunwald_letnikov",
    "integral",
    "logarithmic_times",
    "mittag_leffler",
    "pad_to_bucket",
    "riemann_liouville",
    "solve",
    "variable_order",
    "workload",
]

_HOMES = {
    "DEFINITIONS": "hpfracc_nn.fractional",
    "MULTIPLIERS": "hpfracc_nn.fractional",
    "SCHEMES": "hpfracc_nn.fractional",
    "AtanganaBaleanu": "hpfracc_nn.fractional",
    "Caputo": "hpfracc_nn.fractional",
    "CaputoFabrizio": "hpfracc_nn.fractional",
    "CaputoHadamard": "hpfracc_nn.fractional",
    "Definition": "hpfracc_nn.fractional",
    "DistributedOrder": "hpfracc_nn.fractional",
    "FractionalLaplacian": "hpfracc_nn.fractional",
    "GrunwaldLetnikov": "hpfracc_nn.fractional",
    "Hadamard": "hpfracc_nn.fractional",
    "HadamardIntegral": "hpfracc_nn.fractional",
    "Marchaud": "hpfracc_nn.fractional",
    "Multiplier": "hpfracc_nn.fractional",
    "PeriodicRiesz": "hpfracc_nn.fractional",
    "PeriodicWeyl": "hpfracc_nn.fractional",
    "RiemannLiouville": "hpfracc_nn.fractional",
    "RiemannLiouvilleIntegral": "hpfracc_nn.fractional",
    "Riesz": "hpfracc_nn.fractional",
    "TemperedCaputo": "hpfracc_nn.fractional",
    "TemperedRiemannLiouville": "hpfracc_nn.fractional",
    "caputo": "hpfracc_nn.fractional",
    "derivative": "hpfracc_nn.fractional",
    "fdiff": "hpfracc_nn.fractional",
    "fractional_fourier": "hpfracc_nn.fractional",
    "grunwald_letnikov": "hpfracc_nn.fractional",
    "integral": "hpfracc_nn.fractional",
    "logarithmic_times": "hpfracc_nn.fractional",
    "mittag_leffler": "hpfracc_nn.fractional",
    "riemann_liouville": "hpfracc_nn.fractional",
    "solve": "hpfracc_nn.fractional",
    "variable_order": "hpfracc_nn.fractional",
    "calibrate": "hpfracc_nn.fractional.jax.calibration",
    "pad_to_bucket": "hpfracc_nn.fractional.jax.lengths",
    "choose": "hpfracc_nn.fractional.jax.questions",
    "workload": "hpfracc_nn.fractional.jax.questions",
    "BackendManager": "hpfracc_nn.selection",
    "configure": "hpfracc_nn.selection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
