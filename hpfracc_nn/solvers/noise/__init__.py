"""The noises, by name."""

from __future__ import annotations

from hpfracc_nn.solvers.noise.brownian import Brownian
from hpfracc_nn.solvers.noise.coloured import Coloured
from hpfracc_nn.solvers.noise.compound_poisson import CompoundPoisson
from hpfracc_nn.solvers.noise.fractional import FractionalBrownian
from hpfracc_nn.solvers.noise.given import Given
from hpfracc_nn.solvers.noise.jumps import ExponentialJumps, FixedJumps, Jumps, NormalJumps
from hpfracc_nn.solvers.noise.markov import MarkovError
from hpfracc_nn.solvers.noise.markov_brownian import MarkovFractionalBrownian, MarkovRiemannLiouvilleBrownian
from hpfracc_nn.solvers.noise.noise import Noise, Shape, State
from hpfracc_nn.solvers.noise.riemann_liouville import RiemannLiouvilleBrownian
from hpfracc_nn.solvers.noise.sampling import increments
from hpfracc_nn.solvers.noise.source import NumpySource, Source
from hpfracc_nn.solvers.noise.stable import AlphaStable

NOISES: dict[str, type[Noise]] = {
    noise.name: noise
    for noise in (
        Brownian,
        FractionalBrownian,
        MarkovFractionalBrownian,
        RiemannLiouvilleBrownian,
        MarkovRiemannLiouvilleBrownian,
        Coloured,
        AlphaStable,
        CompoundPoisson,
    )
}

__all__ = [
    "NOISES",
    "AlphaStable",
    "Brownian",
    "Coloured",
    "CompoundPoisson",
    "ExponentialJumps",
    "FixedJumps",
    "FractionalBrownian",
    "Given",
    "Jumps",
    "MarkovError",
    "MarkovFractionalBrownian",
    "MarkovRiemannLiouvilleBrownian",
    "Noise",
    "NormalJumps",
    "NumpySource",
    "RiemannLiouvilleBrownian",
    "Shape",
    "Source",
    "State",
    "increments",
]
