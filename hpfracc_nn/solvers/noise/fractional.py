"""Fractional Brownian motion, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.solvers.noise.covariance import circulant_roots, fgn_autocovariance
from hpfracc_nn.solvers.noise.noise import (
    UNIT,
    Noise,
    Parameter,
    Shape,
    State,
    bounds_of,
    is_tensor,
    parameter,
    shape_of,
)
from hpfracc_nn.solvers.noise.pairs import in_pairs
from hpfracc_nn.solvers.noise.source import Source


@dataclass(frozen=True)
class HurstNoise(Noise):
    """What noises with a Hurst index share.

    Attributes:
        hurst: In (0, 1); a number, one for each channel, or a framework's tensor.
        bounds: Where a tensor lies; None is `widest`.
        widest: The widest bounds of a tensor.
    """

    hurst: Parameter
    bounds: tuple[float, float] | None = None

    is_whole: ClassVar[bool] = True
    widest: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __post_init__(self) -> None:
        value = parameter(type(self).__name__, "hurst", self.hurst, UNIT, "0.3")
        object.__setattr__(self, "hurst", value)
        object.__setattr__(self, "bounds", bounds_of(type(self).__name__, value, self.bounds))

    @classmethod
    def examples(cls) -> tuple[Noise, ...]:
        """See `Noise.examples`."""
        return tuple(cls(hurst) for hurst in (0.1, 0.3, 0.5, 0.7, 0.9))

    @property
    def is_semimartingale(self) -> bool:
        """Whether it is Brownian motion."""
        return not is_tensor(self.hurst) and set(np.ravel(self.hurst)) == {0.5}

    @property
    def regularity(self) -> float:
        """The least Hurst index that there may be."""
        return self.interval[0]

    @property
    def is_open(self) -> bool:
        """See `Noise.is_open`; numbers may lie on their bounds."""
        return is_tensor(self.hurst)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the Hurst index lies: its bounds, or its own least and largest value; `widest` for a tensor."""
        if self.bounds is not None:
            return self.bounds
        return self.widest if is_tensor(self.hurst) else (float(np.min(self.hurst)), float(np.max(self.hurst)))

    @property
    def trailing(self) -> Shape:
        """The shape of `hurst`."""
        return shape_of(self.hurst)


@dataclass(frozen=True)
class FractionalBrownian(HurstNoise):
    """Fractional Brownian motion: Gaussian, with stationary increments, Var B_t = t**(2 hurst).

    Exact: the increments have their covariance to the dtype's rounding, by Davies and Harte's circulant in
    O(n log n), two paths for each complex FFT. All steps are drawn at once. Differentiable in the Hurst index.

    Args:
        hurst: In (0, 1); a number, one for each channel (the last axis), or a framework's tensor [*c], which may be
            learned and is not checked.
        bounds: Where a tensor lies; None is (0, 1). What is allowed below 1/2, or above, is decided by it.

    Raises:
        TypeError: `hurst` is neither a number nor a tensor.
        ValueError: It is not in (0, 1), or not within the bounds.

    Source: Mandelbrot & Van Ness, SIAM Review 10 (1968) 422; Davies & Harte, Biometrika 74 (1987) 95.

    Examples:
        >>> FractionalBrownian(0.75).covariance(2, dt=1.0)  # neighbours: 2**(2 hurst - 1) - 1
        array([[1.        , 0.41421356],
               [0.41421356, 1.        ]])
        >>> x = paths(
        ...     FractionalBrownian(0.75),
        ...     100,
        ...     (4000,),
        ...     dt=0.04,
        ...     generator=torch.Generator().manual_seed(0),
        ... )
        >>> round(x[-1].var().item())  # 4**(2 hurst)
        8
    """

    name: ClassVar[str] = "fractional"

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`."""
        lag = np.arange(n_steps)
        return dt ** (2 * self.hurst) * fgn_autocovariance(self.hurst, n_steps, NUMPY)[np.abs(lag[:, None] - lag)]

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        roots = self._roots(n_steps, dt, source)

        def drawn(pairs: int) -> Array:
            return source.xp.fft(source.complex_normal((pairs, *self.trailing, roots.shape[-1]), roots))[..., :n_steps]

        return in_pairs(drawn, n_steps, shape, self.trailing, roots.shape[-1], source), ()

    def _roots(self, n_steps: int, dt: float, source: Source) -> Array:
        """Return what complex normal numbers are multiplied by, [*c, m]."""

        def roots(xp: Namespace, hurst: Array) -> tuple[Array, ...]:
            return (circulant_roots(hurst, n_steps, xp) * xp.exp(hurst * math.log(dt))[..., None],)

        if is_tensor(self.hurst):
            return source.computed(roots, self.hurst)[0]
        return _fixed_roots(self.hurst, n_steps) * (dt ** np.asarray(self.hurst))[..., None]


@lru_cache(maxsize=8)
def _fixed_roots(hurst: float | tuple[float, ...], n: int) -> np.ndarray:
    """The roots of fixed indices: a solve that is repeated asks for the same ones."""
    return circulant_roots(hurst, n, NUMPY)
