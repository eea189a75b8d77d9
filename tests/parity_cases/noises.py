"""The noises: the same random numbers make the same increments, and the same gradients in what is learned."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpfracc_nn.solvers import (
    AlphaStable,
    Coloured,
    CompoundPoisson,
    FixedJumps,
    FractionalBrownian,
    MarkovFractionalBrownian,
    MarkovRiemannLiouvilleBrownian,
    Noise,
    NormalJumps,
    RiemannLiouvilleBrownian,
)
from tests.parity_cases import ParityCase

STEPS, DT = 9, 0.05


class Numbers:
    """A source's draws, from NumPy: mixed into a framework's source before its own."""

    def begin(self) -> Any:
        self.rng = np.random.default_rng(3)
        return self

    def normal(self, shape):
        return self.cast(self.rng.standard_normal(shape))

    def uniform(self, shape):
        return self.cast(self.rng.uniform(0.01, 0.99, shape))

    def exponential(self, shape):
        return self.cast(self.rng.exponential(1.0, shape) + 1e-3)

    def poisson(self, mean, shape):
        return self.cast(self.rng.poisson(mean, shape))

    def gamma(self, concentration):
        return self.cast(self.rng.standard_gamma(np.asarray(concentration)))

    def cast(self, x):
        raise NotImplementedError


def drawn(noise: Noise, shape: tuple[int, ...], source: Any) -> Any:
    return noise.increments(STEPS, shape, DT, source, noise.start(STEPS, shape, DT, source))[0]


def on_torch(noise: Noise, shape: tuple[int, ...], dtype: Any) -> Any:
    import torch

    from hpfracc_nn.solvers.torch.noise import TorchSource

    kind = type("GivenTorch", (Numbers, TorchSource), {"cast": TorchSource.cast, "__setattr__": object.__setattr__})
    return drawn(noise, shape, kind(torch.Generator(), dtype, torch.device("cpu")).begin())


def on_jax(noise: Noise, shape: tuple[int, ...], dtype: Any) -> Any:
    import jax

    from hpfracc_nn.solvers.jax.noise import JaxSource

    kind = type("GivenJax", (Numbers, JaxSource), {"cast": JaxSource.cast})
    return drawn(noise, shape, kind(jax.random.key(0), dtype).begin())


def case(name: str, make: Any, values: dict[str, Any], shape: tuple[int, ...] = (3,), **options: Any) -> ParityCase:
    """Return the case of a noise, `make` of the parameters in their order."""
    given = {key: np.asarray(value, dtype=np.float64) for key, value in values.items()}
    first = next(iter(given))
    return ParityCase(
        f"noise {name}",
        lambda rng: {key: value + 0.01 * rng.uniform(size=value.shape) for key, value in given.items()},
        lambda parts: on_torch(make(*parts.values()), shape, parts[first].dtype),
        lambda parts: on_jax(make(*(parts[key] for key in given)), shape, parts[first].dtype),
        **options,
    )


CASES = [
    case("fractional", FractionalBrownian, {"hurst": 0.3}),
    case("fractional by channel", FractionalBrownian, {"hurst": [0.2, 0.8]}, (3, 2), slow=True),
    case("riemann_liouville", RiemannLiouvilleBrownian, {"hurst": 0.3}, slow=True),
    case("markov_fractional", lambda h: MarkovFractionalBrownian(h, (0.2, 0.5), 4), {"hurst": 0.3}, slow=True),
    case(
        "markov_riemann_liouville",
        lambda h: MarkovRiemannLiouvilleBrownian(h, (0.2, 0.5), 4),
        {"hurst": 0.3},
        slow=True,
    ),
    case("coloured", Coloured, {"correlation_time": 0.4}, slow=True),
    case("coloured, long", Coloured, {"correlation_time": 40.0}, slow=True),
    case("alpha_stable", AlphaStable, {"stability": 1.6, "skewness": 0.4}, slow=True),
    case(
        "normal jumps",
        lambda a, b: CompoundPoisson(20.0, NormalJumps(a, b)),
        {"mean": 0.2, "deviation": 0.5},
        slow=True,
    ),
    case("fixed jumps", lambda a: CompoundPoisson(20.0, FixedJumps(a)), {"size": 0.7}, slow=True),
]
