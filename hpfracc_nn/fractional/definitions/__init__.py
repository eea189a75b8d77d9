"""The operators, and the names that public functions accept for them."""

from hpfracc_nn.fractional.definitions.definition import Alpha, Definition, family
from hpfracc_nn.fractional.definitions.distributed_order import DistributedOrder
from hpfracc_nn.fractional.definitions.fourier_multiplier import (
    FourierMultiplier,
    FractionalLaplacian,
    PeriodicRiesz,
    PeriodicWeyl,
)
from hpfracc_nn.fractional.definitions.memory import AtanganaBaleanu, CaputoFabrizio
from hpfracc_nn.fractional.definitions.power_law import (
    Caputo,
    CaputoHadamard,
    GrunwaldLetnikov,
    Hadamard,
    HadamardIntegral,
    Marchaud,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    Riesz,
    TemperedCaputo,
    TemperedRiemannLiouville,
    logarithmic_times,
)

DEFINITIONS: dict[str, type[Definition]] = {
    "caputo": Caputo,
    "riemann_liouville": RiemannLiouville,
    "grunwald_letnikov": GrunwaldLetnikov,
    "riemann_liouville_integral": RiemannLiouvilleIntegral,
    "tempered_caputo": TemperedCaputo,
    "tempered_riemann_liouville": TemperedRiemannLiouville,
    "caputo_fabrizio": CaputoFabrizio,
    "atangana_baleanu": AtanganaBaleanu,
    "marchaud": Marchaud,
    "hadamard": Hadamard,
    "caputo_hadamard": CaputoHadamard,
    "hadamard_integral": HadamardIntegral,
    "riesz": Riesz,
}

MULTIPLIERS: dict[str, type[FourierMultiplier]] = {
    "periodic_weyl": PeriodicWeyl,
    "periodic_riesz": PeriodicRiesz,
    "fractional_laplacian": FractionalLaplacian,
}

__all__ = [
    "DEFINITIONS",
    "MULTIPLIERS",
    "Alpha",
    "AtanganaBaleanu",
    "Caputo",
    "CaputoFabrizio",
    "CaputoHadamard",
    "Definition",
    "DistributedOrder",
    "FourierMultiplier",
    "FractionalLaplacian",
    "GrunwaldLetnikov",
    "Hadamard",
    "HadamardIntegral",
    "Marchaud",
    "PeriodicRiesz",
    "PeriodicWeyl",
    "RiemannLiouville",
    "RiemannLiouvilleIntegral",
    "Riesz",
    "TemperedCaputo",
    "TemperedRiemannLiouville",
    "family",
    "logarithmic_times",
]
