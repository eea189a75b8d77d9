"""The names of the package for JAX: operators, Flax modules, optax transformations, solvers.

    import hpfracc_nn.jax as fjx

Operators and definitions are those of `hpfracc_nn`, which take JAX arrays too. Layers are Flax modules: those of
`fjx.nnx` stand here too, those of linen in `fjx.linen`, the pure cores of both in `fjx.functional`. Names are loaded
when they are first asked for, PyTorch never. Definitions are pytrees from this import on.
"""

import importlib
from typing import TYPE_CHECKING, Any

import hpfracc_nn.fractional.jax.pytrees  # noqa: F401

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
    from hpfracc_nn.layers.flax import functional, linen, nnx
    from hpfracc_nn.layers.flax.functional import arfima_errors, arfima_forecast, arfima_nll, param_labels
    from hpfracc_nn.layers.flax.nnx import (
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
    )
    from hpfracc_nn.selection import BackendManager, configure
    from hpfracc_nn.solvers import SDE
    from hpfracc_nn.solvers.jax import MultiTerm, fdeint, fsdeint, increments, paths
    from hpfracc_nn.training.jax.losses import energy_score, moment_loss, trajectory_loss, variogram_loss
    from hpfracc_nn.training.jax.optimizers import (
        fractional_adam,
        fractional_adamw,
        fractional_rmsprop,
        fractional_sgd,
        scale_by_fractional,
    )

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
    "MultiTerm",
    "Multiplier",
    "PeriodicRiesz",
    "PeriodicWeyl",
    "ProbabilisticAlpha",
    "RiemannLiouville",
    "RiemannLiouvilleIntegral",
    "Riesz",
    "RoughnessFeatures",
    "SpectralFractional",
    "TemperedCaputo",
    "TemperedRiemannLiouville",
    "arfima_errors",
    "arfima_forecast",
    "arfima_nll",
    "calibrate",
    "caputo",
    "choose",
    "configure",
    "derivative",
    "energy_score",
    "fdeint",
    "fdiff",
    "fractional_adam",
    "fractional_adamw",
    "fractional_fourier",
    "fractional_rmsprop",
    "fractional_sgd",
    "fsdeint",
    "functional",
    "grunwald_letnikov",
    "increments",
    "integral",
    "linen",
    "logarithmic_times",
    "mittag_leffler",
    "moment_loss",
    "nnx",
    "pad_to_bucket",
    "param_labels",
    "paths",
    "riemann_liouville",
    "scale_by_fractional",
    "solve",
    "trajectory_loss",
    "variable_order",
    "variogram_loss",
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
    "arfima_errors": "hpfracc_nn.layers.flax.functional",
    "arfima_forecast": "hpfracc_nn.layers.flax.functional",
    "arfima_nll": "hpfracc_nn.layers.flax.functional",
    "param_labels": "hpfracc_nn.layers.flax.functional",
    "ARFIMA": "hpfracc_nn.layers.flax.nnx",
    "Alpha": "hpfracc_nn.layers.flax.nnx",
    "FDEBlock": "hpfracc_nn.layers.flax.nnx",
    "FSDEBlock": "hpfracc_nn.layers.flax.nnx",
    "FractionalAttention": "hpfracc_nn.layers.flax.nnx",
    "FractionalConv1d": "hpfracc_nn.layers.flax.nnx",
    "FractionalConv2d": "hpfracc_nn.layers.flax.nnx",
    "FractionalDifference": "hpfracc_nn.layers.flax.nnx",
    "FractionalGRU": "hpfracc_nn.layers.flax.nnx",
    "FractionalGraphConv": "hpfracc_nn.layers.flax.nnx",
    "FractionalLSTM": "hpfracc_nn.layers.flax.nnx",
    "FractionalLayer": "hpfracc_nn.layers.flax.nnx",
    "FractionalLinear": "hpfracc_nn.layers.flax.nnx",
    "ProbabilisticAlpha": "hpfracc_nn.layers.flax.nnx",
    "RoughnessFeatures": "hpfracc_nn.layers.flax.nnx",
    "SpectralFractional": "hpfracc_nn.layers.flax.nnx",
    "BackendManager": "hpfracc_nn.selection",
    "configure": "hpfracc_nn.selection",
    "SDE": "hpfracc_nn.solvers",
    "MultiTerm": "hpfracc_nn.solvers.jax",
    "fdeint": "hpfracc_nn.solvers.jax",
    "fsdeint": "hpfracc_nn.solvers.jax",
    "increments": "hpfracc_nn.solvers.jax",
    "paths": "hpfracc_nn.solvers.jax",
    "energy_score": "hpfracc_nn.training.jax.losses",
    "moment_loss": "hpfracc_nn.training.jax.losses",
    "trajectory_loss": "hpfracc_nn.training.jax.losses",
    "variogram_loss": "hpfracc_nn.training.jax.losses",
    "fractional_adam": "hpfracc_nn.training.jax.optimizers",
    "fractional_adamw": "hpfracc_nn.training.jax.optimizers",
    "fractional_rmsprop": "hpfracc_nn.training.jax.optimizers",
    "fractional_sgd": "hpfracc_nn.training.jax.optimizers",
    "scale_by_fractional": "hpfracc_nn.training.jax.optimizers",
}
_MODULES = {
    "functional": "hpfracc_nn.layers.flax.functional",
    "linen": "hpfracc_nn.layers.flax.linen",
    "nnx": "hpfracc_nn.layers.flax.nnx",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value: Any = importlib.import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
