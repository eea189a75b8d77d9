"""What an operator is: definitions, schemes, stencils, and the functions that apply them.

The names below are loaded when they are first asked for: importing the package loads neither SciPy nor a
framework.
"""

from typing import TYPE_CHECKING, Any

from hpfracc_nn import lazy
from hpfracc_nn.fractional import dispatch

if TYPE_CHECKING:
    from hpfracc_nn.fractional.definitions import (
        DEFINITIONS as DEFINITIONS,
        MULTIPLIERS as MULTIPLIERS,
        AtanganaBaleanu as AtanganaBaleanu,
        Caputo as Caputo,
        CaputoFabrizio as CaputoFabrizio,
        CaputoHadamard as CaputoHadamard,
        Definition as Definition,
        DistributedOrder as DistributedOrder,
        FractionalLaplacian as FractionalLaplacian,
        GrunwaldLetnikov as GrunwaldLetnikov,
        Hadamard as Hadamard,
        HadamardIntegral as HadamardIntegral,
        Marchaud as Marchaud,
        Multiplier as Multiplier,
        PeriodicRiesz as PeriodicRiesz,
        PeriodicWeyl as PeriodicWeyl,
        RiemannLiouville as RiemannLiouville,
        RiemannLiouvilleIntegral as RiemannLiouvilleIntegral,
        Riesz as Riesz,
        TemperedCaputo as TemperedCaputo,
        TemperedRiemannLiouville as TemperedRiemannLiouville,
        logarithmic_times as logarithmic_times,
    )
    from hpfracc_nn.fractional.differencing import fdiff as fdiff
    from hpfracc_nn.fractional.inverse import solve as solve
    from hpfracc_nn.fractional.nonuniform.variable import variable_order as variable_order
    from hpfracc_nn.fractional.operator import (
        caputo as caputo,
        choose as choose,
        derivative as derivative,
        grunwald_letnikov as grunwald_letnikov,
        integral as integral,
        riemann_liouville as riemann_liouville,
    )
    from hpfracc_nn.fractional.schemes import SCHEMES as SCHEMES
    from hpfracc_nn.fractional.special.functions import (
        fractional_fourier as fractional_fourier,
        mittag_leffler as mittag_leffler,
    )
    from hpfracc_nn.fractional.stencil import Stencil as Stencil
    from hpfracc_nn.fractional.workloads import workload as workload

__getattr__, __dir__, __all__ = lazy.attach(__name__)


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
