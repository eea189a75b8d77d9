"""The noises, by name."""

from __future__ import annotations

from hpfracc_nn.solvers.noise.brownian import Brownian
from hpfracc_nn.solvers.noise.fractional import FractionalBrownian
from hpfracc_nn.solvers.noise.noise import Noise, Shape, State
from hpfracc_nn.solvers.noise.riemann_liouville import RiemannLiouvilleBrownian
from hpfracc_nn.solvers.noise.source import NumpySource, Source

NOISES: dict[str, type[Noise]] = {
    noise.name: noise for noise in (Brownian, FractionalBrownian, RiemannLiouvilleBrownian)
}

__all__ = [
    "NOISES",
    "Brownian",
    "FractionalBrownian",
    "Noise",
    "NumpySource",
    "RiemannLiouvilleBrownian",
    "Shape",
    "Source",
    "State",
]
