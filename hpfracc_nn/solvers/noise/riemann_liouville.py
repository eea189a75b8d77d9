"""Riemann and Liouville's fractional Brownian motion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.polynomial import legendre

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.solvers.noise.covariance import fast_length, riemann_liouville_covariance
from hpfracc_nn.solvers.noise.fractional import HurstNoise
from hpfracc_nn.solvers.noise.noise import Shape, State, is_tensor
from hpfracc_nn.solvers.noise.pairs import in_pairs
from hpfracc_nn.solvers.noise.source import Source

_TERMS = 5  # Legendre polynomials on a cell; each one more divides the error by six
_POINTS = 20  # of Gauss and Legendre


@dataclass(frozen=True)
class RiemannLiouvilleBrownian(HurstNoise):
    """`B_t = sqrt(2 hurst) int_0^t (t - s)**(hurst - 1/2) dW_s`: begins at 0 without a past, `Var B_t = t**(2 hurst)`.

    Its increments are not stationary. Rough Bergomi's logarithm of the variance is a multiple of it, and the solution
    of a Volterra equation without drift is, with alpha = hurst + 1/2, this divided by sqrt(2 hurst) Gamma(alpha).

    On each cell the power is projected on Legendre polynomials, whose integrals with dW are independent normal numbers;
    what the first lag leaves over is one more. So all correlations on the mesh are right to 2e-6 and the variances to
    1e-9, in O(n log n); the hybrid scheme with kappa = 1 is the first term alone, right to 3e-2. All steps are drawn
    at once. Differentiable in the Hurst index.

    Args:
        hurst: In (0, 1); a number, one for each channel (the last axis), or a framework's tensor [*c], which may be
            learned and is not checked.
        bounds: Where a tensor lies; None is (0, 1).

    Raises:
        TypeError: `hurst` is neither a number nor a tensor.
        ValueError: It is not in (0, 1), or not within the bounds.

    Source: Levy (1953), after Marinucci & Robinson, J. Statist. Plann. Inference 80 (1999) 111; Bennedsen, Lunde &
    Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> RiemannLiouvilleBrownian(0.5).covariance(2, dt=0.25)  # Brownian motion
        array([[0.25, 0.  ],
               [0.  , 0.25]])
        >>> # of the path at 4: 4**(2 hurst)
        >>> round(RiemannLiouvilleBrownian(0.75).covariance(100, dt=0.04).sum())
        8
    """

    name: ClassVar[str] = "riemann_liouville"

    def covariance(self, n_steps: int, dt: float) -> np.ndarray:
        """See `Noise.covariance`."""
        steps = np.arange(1.0, n_steps + 1)
        path = riemann_liouville_covariance(self.hurst, steps[:, None], steps)
        return dt ** (2 * self.hurst) * np.diff(np.diff(path, prepend=0.0, axis=0), prepend=0.0, axis=1)

    def increments(self, n_steps: int, shape: Shape, dt: float, source: Source, state: State) -> tuple[Array, State]:
        """See `Noise.increments`."""
        xp = source.xp
        length = 2 * fast_length(n_steps)
        one, rest = source.cast(np.ones(n_steps)), np.zeros(length - n_steps, int)

        def spectrum(some: Array) -> Array:
            return xp.fft(xp.concat([some, 0 * xp.take(some, rest, axis=-1)], axis=-1))

        spectra = [spectrum(each) for each in self._columns(n_steps, dt, source)]

        def drawn(pairs: int) -> Array:
            shape = (pairs, *self.trailing, n_steps)
            return xp.ifft(sum(each[None] * spectrum(source.complex_normal(shape, one)) for each in spectra))[
                ..., :n_steps
            ]

        return in_pairs(drawn, n_steps, shape, self.trailing, length, source), ()

    def _columns(self, n_steps: int, dt: float, source: Source) -> Sequence[Array]:
        def made(xp: Namespace, hurst: Array) -> tuple[Array, ...]:
            scale = xp.exp(hurst * math.log(dt))[..., None]
            return tuple(each * scale for each in columns(hurst, n_steps, xp))

        if is_tensor(self.hurst):
            return source.computed(made, self.hurst)
        scale = (dt ** np.asarray(self.hurst))[..., None]
        return [source.cast(each * scale) for each in _fixed_columns(self.hurst, n_steps)]


def columns(hurst: Array, n: int, xp: Namespace) -> Iterator[Array]:
    """Yield what each of the normal numbers of a cell adds to this and the next n - 1 increments, at unit step.

    Shapes: hurst [*c], each result [*c, n].
    """
    p = hurst[..., None] - 0.5
    scale = xp.exp(xp.log(2 * hurst[..., None]) / 2)
    nodes, rules = _rules()
    lag = np.arange(3, n + 1)[:, None] - nodes  # [n - 2, points]
    power = xp.exp(p[..., None] * xp.constant(np.log(lag), p))
    steps = -power * xp.expm1(p[..., None] * xp.constant(np.log1p(-1 / lag), p))  # lag**p - (lag - 1)**p
    second = xp.exp(p * xp.constant(np.log(2 - nodes), p))
    first, rest = 1 / (1 + p), 1 / xp.exp(xp.log(1 + 2 * p) / 2)
    for r in range(_TERMS):
        rule = xp.constant(rules[r], p)
        # int_0^1 u**p P_r(1 - 2 u) du = (-p)_r / (p + 1)_(r + 1); the distance of u**p to polynomials is Muntz's.
        rest = rest * (p - r) / (p + r + 1)
        own = first * math.sqrt(2 * r + 1)
        first = first * (r - p) / (r + p + 2)
        later = [xp.sum(second * rule, axis=-1)[..., None] - own, xp.sum(steps * rule, axis=-1)]
        yield xp.take(xp.concat([own, *later], axis=-1) * scale, np.arange(n), axis=-1)
    zeros = 0 * p * xp.constant(np.ones(max(0, n - 2)), p)
    yield xp.take(xp.concat([rest, -rest, zeros], axis=-1) * scale, np.arange(n), axis=-1)


@lru_cache(maxsize=4)
def _fixed_columns(hurst: float | tuple[float, ...], n: int) -> list[np.ndarray]:
    return list(columns(np.asarray(hurst), n, NUMPY))


@lru_cache(maxsize=1)
def _rules() -> tuple[np.ndarray, np.ndarray]:
    """Return points of (0, 1), and the rules [r, points] for the integrals with the orthonormal polynomials."""
    nodes, weights = legendre.leggauss(_POINTS)
    values = legendre.legvander(nodes, _TERMS - 1).T * np.sqrt(2 * np.arange(_TERMS) + 1)[:, None]
    return (nodes + 1) / 2, values * weights / 2
