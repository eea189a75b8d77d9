"""Solvers of fractional and of stochastic differential equations.

Schemes, histories, meshes and noises are plain options that need no framework. The functions and modules that solve are
those of PyTorch and are imported when they are first used; those of JAX are in `hpfracc_nn.solvers.jax`.
"""

from typing import TYPE_CHECKING

from hpfracc_nn import lazy

if TYPE_CHECKING:
    from hpfracc_nn.solvers.checks import StepLimit as StepLimit
    from hpfracc_nn.solvers.collocation import Collocation as Collocation
    from hpfracc_nn.solvers.collocation import Statistics as Statistics
    from hpfracc_nn.solvers.history import HISTORIES as HISTORIES
    from hpfracc_nn.solvers.history import Automatic as Automatic
    from hpfracc_nn.solvers.history import Exponentials as Exponentials
    from hpfracc_nn.solvers.history import FFTBlocks as FFTBlocks
    from hpfracc_nn.solvers.history import Full as Full
    from hpfracc_nn.solvers.history import History as History
    from hpfracc_nn.solvers.history import Window as Window
    from hpfracc_nn.solvers.mesh import MESHES as MESHES
    from hpfracc_nn.solvers.mesh import Graded as Graded
    from hpfracc_nn.solvers.mesh import Mesh as Mesh
    from hpfracc_nn.solvers.mesh import Points as Points
    from hpfracc_nn.solvers.mesh import Uniform as Uniform
    from hpfracc_nn.solvers.noise import NOISES as NOISES
    from hpfracc_nn.solvers.noise import AlphaStable as AlphaStable
    from hpfracc_nn.solvers.noise import Brownian as Brownian
    from hpfracc_nn.solvers.noise import Coloured as Coloured
    from hpfracc_nn.solvers.noise import CompoundPoisson as CompoundPoisson
    from hpfracc_nn.solvers.noise import ExponentialJumps as ExponentialJumps
    from hpfracc_nn.solvers.noise import FixedJumps as FixedJumps
    from hpfracc_nn.solvers.noise import FractionalBrownian as FractionalBrownian
    from hpfracc_nn.solvers.noise import Given as Given
    from hpfracc_nn.solvers.noise import MarkovFractionalBrownian as MarkovFractionalBrownian
    from hpfracc_nn.solvers.noise import MarkovRiemannLiouvilleBrownian as MarkovRiemannLiouvilleBrownian
    from hpfracc_nn.solvers.noise import Noise as Noise
    from hpfracc_nn.solvers.noise import NormalJumps as NormalJumps
    from hpfracc_nn.solvers.noise import RiemannLiouvilleBrownian as RiemannLiouvilleBrownian
    from hpfracc_nn.solvers.schemes import BDF2 as BDF2
    from hpfracc_nn.solvers.schemes import SCHEMES as SCHEMES
    from hpfracc_nn.solvers.schemes import FixedPoint as FixedPoint
    from hpfracc_nn.solvers.schemes import Newton as Newton
    from hpfracc_nn.solvers.schemes import PredictorCorrector as PredictorCorrector
    from hpfracc_nn.solvers.schemes import Rectangle as Rectangle
    from hpfracc_nn.solvers.schemes import Scheme as Scheme
    from hpfracc_nn.solvers.schemes import Trapezoid as Trapezoid
    from hpfracc_nn.solvers.sde import SDE as SDE
    from hpfracc_nn.solvers.sde import StochasticEquation as StochasticEquation
    from hpfracc_nn.solvers.sde_schemes import STOCHASTIC_SCHEMES as STOCHASTIC_SCHEMES
    from hpfracc_nn.solvers.sde_schemes import Euler as Euler
    from hpfracc_nn.solvers.sde_schemes import Heun as Heun
    from hpfracc_nn.solvers.sde_schemes import Milstein as Milstein
    from hpfracc_nn.solvers.sde_schemes import ReversibleHeun as ReversibleHeun
    from hpfracc_nn.solvers.sde_schemes import RungeKutta as RungeKutta
    from hpfracc_nn.solvers.sde_schemes import StochasticScheme as StochasticScheme
    from hpfracc_nn.solvers.torch import *  # noqa: F403
    from hpfracc_nn.solvers.volterra import VOLTERRA_WEIGHTS as VOLTERRA_WEIGHTS
    from hpfracc_nn.solvers.volterra import Average as Average
    from hpfracc_nn.solvers.volterra import Hybrid as Hybrid
    from hpfracc_nn.solvers.volterra import Isometry as Isometry
    from hpfracc_nn.solvers.volterra import Left as Left
    from hpfracc_nn.solvers.volterra import VolterraWeights as VolterraWeights

else:
    __getattr__, __dir__, __all__ = lazy.attach(__name__)
