"""The operators, one file each, and the names that the public door accepts for them."""

from hpfracc_nn.fractional.definitions.atangana_baleanu import AtanganaBaleanu
from hpfracc_nn.fractional.definitions.caputo import Caputo
from hpfracc_nn.fractional.definitions.caputo_fabrizio import CaputoFabrizio
from hpfracc_nn.fractional.definitions.definition import Alpha, Definition, family
from hpfracc_nn.fractional.definitions.distributed_order import DistributedOrder
from hpfracc_nn.fractional.definitions.fractional_laplacian import FractionalLaplacian
from hpfracc_nn.fractional.definitions.grunwald_letnikov import GrunwaldLetnikov
from hpfracc_nn.fractional.definitions.hadamard import (
    CaputoHadamard,
    Hadamard,
    HadamardIntegral,
    logarithmic_times,
)
from hpfracc_nn.fractional.definitions.marchaud import Marchaud
from hpfracc_nn.fractional.definitions.multiplier import Multiplier
from hpfracc_nn.fractional.definitions.periodic_riesz import PeriodicRiesz
from hpfracc_nn.fractional.definitions.periodic_weyl import PeriodicWeyl
from hpfracc_nn.fractional.definitions.riemann_liouville import RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.definitions.riesz import Riesz
from hpfracc_nn.fractional.definitions.tempered import TemperedCaputo, TemperedRiemannLiouville

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

MULTIPLIERS: dict[str, type[Multiplier]] = {
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
    "family",
    "logarithmic_times",
]
