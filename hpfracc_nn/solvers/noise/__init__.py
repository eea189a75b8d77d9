"""The noises that drive stochastic equations; `NOISES` has their classes by name."""

from __future__ import annotations

from hpfracc_nn.solvers.noise.fractional import FractionalBrownian, RiemannLiouvilleBrownian
from hpfracc_nn.solvers.noise.jumps import (
    AlphaStable,
    CompoundPoisson,
    ExponentialJumps,
    FixedJumps,
    Jumps,
    NormalJumps,
)
from hpfracc_nn.solvers.noise.markov import (
    Coloured,
    MarkovError,
    MarkovFractionalBrownian,
    MarkovRiemannLiouvilleBrownian,
)
from hpfracc_nn.solvers.noise.noise import Brownian, Given, Noise, Shape, State, increments
from hpfracc_nn.solvers.noise.source import NumpySource, Source

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
