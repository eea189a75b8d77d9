"""The operators, one file each, and the names that the public door accepts for them."""

from hpfracc_nn.fractional.definitions.caputo import Caputo
from hpfracc_nn.fractional.definitions.definition import Alpha, Definition, family
from hpfracc_nn.fractional.definitions.distributed_order import DistributedOrder
from hpfracc_nn.fractional.definitions.grunwald_letnikov import GrunwaldLetnikov
from hpfracc_nn.fractional.definitions.riemann_liouville import RiemannLiouville, RiemannLiouvilleIntegral

DEFINITIONS: dict[str, type[Definition]] = {
    "caputo": Caputo,
    "riemann_liouville": RiemannLiouville,
    "grunwald_letnikov": GrunwaldLetnikov,
    "riemann_liouville_integral": RiemannLiouvilleIntegral,
}

__all__ = [
    "DEFINITIONS",
    "Alpha",
    "Caputo",
    "Definition",
    "DistributedOrder",
    "GrunwaldLetnikov",
    "RiemannLiouville",
    "RiemannLiouvilleIntegral",
    "family",
]
