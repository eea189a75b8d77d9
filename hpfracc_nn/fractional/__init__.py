"""What an operator is: definitions, schemes, stencils, and the functions that apply them.

The names below are loaded when they are first asked for: importing the package loads neither SciPy nor a
framework.
"""

from typing import TYPE_CHECKING, Any

from hpfracc_nn import lazy
from hpfracc_nn.fractional import dispatch

if TYPE_CHECKING:
    from hpfracc_nn.fractional.definitions import DEFINITIONS as DEFINITIONS
    from hpfracc_nn.fractional.definitions import MULTIPLIERS as MULTIPLIERS
    from hpfracc_nn.fractional.definitions import AtanganaBaleanu as AtanganaBaleanu
    from hpfracc_nn.fractional.definitions import Caputo as Caputo
    from hpfracc_nn.fractional.definitions import CaputoFabrizio as CaputoFabrizio
    from hpfracc_nn.fractional.definitions import CaputoHadamard as CaputoHadamard
    from hpfracc_nn.fractional.definitions import Definition as Definition
    from hpfracc_nn.fractional.definitions import DistributedOrder as DistributedOrder
    from hpfracc_nn.fractional.definitions import FourierMultiplier as FourierMultiplier
    from hpfracc_nn.fractional.definitions import FractionalLaplacian as FractionalLaplacian
    from hpfracc_nn.fractional.definitions import GrunwaldLetnikov as GrunwaldLetnikov
    from hpfracc_nn.fractional.definitions import Hadamard as Hadamard
    from hpfracc_nn.fractional.definitions import HadamardIntegral as HadamardIntegral
    from hpfracc_nn.fractional.definitions import Marchaud as Marchaud
    from hpfracc_nn.fractional.definitions import PeriodicRiesz as PeriodicRiesz
    from hpfracc_nn.fractional.definitions import PeriodicWeyl as PeriodicWeyl
    from hpfracc_nn.fractional.definitions import RiemannLiouville as RiemannLiouville
    from hpfracc_nn.fractional.definitions import RiemannLiouvilleIntegral as RiemannLiouvilleIntegral
    from hpfracc_nn.fractional.definitions import Riesz as Riesz
    from hpfracc_nn.fractional.definitions import TemperedCaputo as TemperedCaputo
    from hpfracc_nn.fractional.definitions import TemperedRiemannLiouville as TemperedRiemannLiouville
    from hpfracc_nn.fractional.definitions import logarithmic_times as logarithmic_times
    from hpfracc_nn.fractional.differencing import fdiff as fdiff
    from hpfracc_nn.fractional.inverse import solve as solve
    from hpfracc_nn.fractional.operator import caputo as caputo
    from hpfracc_nn.fractional.operator import choose as choose
    from hpfracc_nn.fractional.operator import derivative as derivative
    from hpfracc_nn.fractional.operator import grunwald_letnikov as grunwald_letnikov
    from hpfracc_nn.fractional.operator import integral as integral
    from hpfracc_nn.fractional.operator import riemann_liouville as riemann_liouville
    from hpfracc_nn.fractional.operator import variable_order as variable_order
    from hpfracc_nn.fractional.schemes import SCHEMES as SCHEMES
    from hpfracc_nn.fractional.special.functions import fractional_fourier as fractional_fourier
    from hpfracc_nn.fractional.special.functions import mittag_leffler as mittag_leffler
    from hpfracc_nn.fractional.stencil import Stencil as Stencil
    from hpfracc_nn.fractional.workloads import workload as workload

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__, renamed={"Multiplier": "FourierMultiplier"})


def _numpy() -> tuple[Any, ...]:
    from hpfracc_nn.fractional import multipliers
    from hpfracc_nn.fractional.numpy import operator, product_integration, special

    return operator, product_integration, multipliers, special


def _torch() -> tuple[Any, ...]:
    from hpfracc_nn.fractional import multipliers
    from hpfracc_nn.fractional.torch import operator, product_integration, special

    return operator, product_integration, multipliers, special


def _jax() -> tuple[Any, ...]:
    from hpfracc_nn.fractional import multipliers
    from hpfracc_nn.fractional.jax import operator, product_integration, special

    return operator, product_integration, multipliers, special


def _cupy() -> tuple[Any, ...]:
    from hpfracc_nn.fractional.torch import cupy_arrays

    return (cupy_arrays,)


dispatch.IMPORTS.update(numpy=_numpy, torch=_torch, jax=_jax, cupy=_cupy)
