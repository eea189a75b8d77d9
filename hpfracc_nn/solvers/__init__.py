"""Solvers of fractional and of stochastic differential equations.

Schemes, histories, meshes and noises are plain options, without a framework. What solves is PyTorch's and is loaded
when it is first asked for.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.solvers.history import (
        HISTORIES as HISTORIES,
        Automatic as Automatic,
        Exponentials as Exponentials,
        FFTBlocks as FFTBlocks,
        Full as Full,
        History as History,
        Window as Window,
    )
    from hpfracc_nn.solvers.mesh import MESHES as MESHES, Graded as Graded, Mesh as Mesh, Uniform as Uniform
    from hpfracc_nn.solvers.noise import (
        NOISES as NOISES,
        AlphaStable as AlphaStable,
        Brownian as Brownian,
        Coloured as Coloured,
        CompoundPoisson as CompoundPoisson,
        ExponentialJumps as ExponentialJumps,
        FixedJumps as FixedJumps,
        FractionalBrownian as FractionalBrownian,
        Given as Given,
        MarkovFractionalBrownian as MarkovFractionalBrownian,
        MarkovRiemannLiouvilleBrownian as MarkovRiemannLiouvilleBrownian,
        Noise as Noise,
        NormalJumps as NormalJumps,
        RiemannLiouvilleBrownian as RiemannLiouvilleBrownian,
    )
    from hpfracc_nn.solvers.roots import FixedPoint as FixedPoint, Newton as Newton
    from hpfracc_nn.solvers.schemes import (
        BDF2 as BDF2,
        SCHEMES as SCHEMES,
        PredictorCorrector as PredictorCorrector,
        Rectangle as Rectangle,
        Scheme as Scheme,
        Trapezoid as Trapezoid,
    )
    from hpfracc_nn.solvers.schemes.stochastic import (
        STOCHASTIC_SCHEMES as STOCHASTIC_SCHEMES,
        Euler as Euler,
        Heun as Heun,
        Milstein as Milstein,
        ReversibleHeun as ReversibleHeun,
        RungeKutta as RungeKutta,
        StochasticScheme as StochasticScheme,
    )
    from hpfracc_nn.solvers.schemes.volterra import (
        VOLTERRA_WEIGHTS as VOLTERRA_WEIGHTS,
        Average as Average,
        Hybrid as Hybrid,
        Isometry as Isometry,
        Left as Left,
        VolterraWeights as VolterraWeights,
    )
    from hpfracc_nn.solvers.sde import SDE as SDE, StochasticEquation as StochasticEquation
    from hpfracc_nn.solvers.torch import *  # noqa: F403

__getattr__, __dir__, __all__ = lazy.attach(__name__)
