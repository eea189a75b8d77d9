"""Fractional Brownian motion and Riemann and Liouville's, drawn exactly, and their covariances.

Shapes: n steps; *c, the axes of the Hurst index: none, or the channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.polynomial import legendre
from scipy import special

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.schemes.powers import differences, power_weights
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
from hpfracc_nn.solvers.noise.source import Source


def fgn_autocovariance(hurst: Array, n: int, xp: Namespace) -> Array:
    """Return the autocovariance of fractional Gaussian noise of unit step and variance at lags 0 to n - 1.

    (|k + 1|**2H - 2 |k|**2H + |k - 1|**2H) / 2, to 1e-11 of each value however large the lag.

    Shapes: hurst [*c], result [*c, n].

    Source: Mandelbrot & Van Ness, SIAM Review 10 (1968) 422.
    """
    power = 2 * xp.asarray(hurst)
    later = power_weights(power, np.arange(1, n), xp, differences(2)) if n > 1 else None
    first = 0 * power[..., None] + 1
    if later is None:
        return first
    return xp.concat([first, later * xp.exp(xp.gammaln(1 + power))[..., None] / 2], axis=-1)


def riemann_liouville_covariance(hurst: float, s: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return the covariance E B_s B_t of Riemann and Liouville's fractional Brownian motion at times s, t > 0.

    The motion is scaled to the variance t**(2 hurst); s and t broadcast to the result.

    Source: Marinucci & Robinson, J. Statist. Plann. Inference 80 (1999) 111; Gradshteyn & Ryzhik, 3.197.8.
    """
    earlier, later = np.minimum(s, t), np.maximum(s, t)
    ratio = earlier / later
    part = special.hyp2f1(0.5 - hurst, 1.0, hurst + 1.5, np.where(ratio < 1, ratio, 0.0))
    mixed = 2 * hurst / (hurst + 0.5) * earlier ** (hurst + 0.5) * later ** (hurst - 0.5) * part
    return np.where(ratio < 1, mixed, later ** (2 * hurst))


def circulant_roots(hurst: Array, n: int, xp: Namespace) -> Array:
    """Return the roots of eigenvalue / size of a circulant matrix that contains the covariance of n increments.

    The circulant's first row is the autocovariance of fractional Gaussian noise up to lag m >= n and back; m makes the
    FFT fast. For no Hurst index in (0, 1) an eigenvalue of the circulant is negative.

    Shapes: hurst [*c], result [*c, 2 m].

    Source: Davies & Harte, Biometrika 74 (1987) 95; nonnegative by Craigmile, J. Time Series Anal. 24 (2003) 505, for
    hurst <= 1/2, and by Perrin et al., IEEE Signal Process. Lett. 9 (2002) 382, for all.
    """
    m = fast_length(n)
    covariance = fgn_autocovariance(hurst, m + 1, xp)
    mirrored = xp.flip(xp.take(covariance, np.arange(1, max(2, m)), axis=-1), axis=-1)
    row = xp.concat([covariance, mirrored], axis=-1) if m > 1 else covariance
    eigenvalues = xp.fft(row).real / (2 * m)
    # Rounding may make an eigenvalue close to 0 negative; the inner `where` keeps the gradient finite there.
    is_positive = eigenvalues > 0
    roots = xp.exp(xp.log(xp.where(is_positive, eigenvalues, 1.0)) / 2)
    return xp.where(is_positive, roots, 0.0)


def fast_length(n: int) -> int:
    """Return the least number >= n of the form 2**a 3**b 5**c, for which an FFT is fast."""
    best = 1 << max(0, (n - 1).bit_length())
    five = 1
    while five < best:
        three = five
        while three < best:
            twos = 1 << max(0, math.ceil(math.log2(n / three))) if three < n else 1
            best = min(best, three * twos) if three * twos >= n else best
            three *= 3
        five *= 5
    return best


def in_pairs(
    drawn: Callable[[int], Array], n_steps: int, shape: Shape, channels: Shape, length: int, source: Source
) -> Array:
    """Return real increments [n_steps, *shape] drawn in pairs: the real and imaginary parts of complex increments.

    Args:
        drawn: Draws pairs: takes their number to complex increments [pairs, *channels, n_steps], whose real and
            imaginary parts are independent.
        n_steps: How many steps.
        shape: The shape of one step's increments.
        channels: The last axes of `shape`, which are drawn together.
        length: The length of the FFT that makes one path.
        source: The source of random numbers.
    """
    paths = math.prod(shape[: len(shape) - len(channels)])
    pairs = -(-paths // 2)
    if not pairs or not math.prod(channels):
        return source.normal((n_steps, *shape))  # an empty array
    most = max(1, source.at_once // (math.prod(channels) * length))
    both = source.by_time((drawn(min(most, pairs - begin)) for begin in range(0, pairs, most)), pairs)
    return both[:, :paths].reshape(n_steps, *shape)


@dataclass(frozen=True)
class HurstNoise(Noise):
    """A noise with a Hurst index: what fractional Brownian motions share.

    Attributes:
        hurst: The Hurst index, in (0, 1); a number, one for each channel, or a framework's tensor.
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
        """Whether the noise is Brownian motion, known to have the Hurst index 1/2 in all channels."""
        return not is_tensor(self.hurst) and set(np.ravel(self.hurst)) == {0.5}

    @property
    def regularity(self) -> float:
        """See `Noise.regularity`; the lower end of the interval in which the Hurst index lies."""
        return self.interval[0]

    @property
    def is_open(self) -> bool:
        """See `Noise.is_open`; True for a tensor, False for numbers, which may lie on their bounds."""
        return is_tensor(self.hurst)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval in which the Hurst index lies.

        The interval is `bounds` if there are bounds; else `widest` for a tensor, and the least and the largest of
        numbers.
        """
        if self.bounds is not None:
            return self.bounds
        return self.widest if is_tensor(self.hurst) else (float(np.min(self.hurst)), float(np.max(self.hurst)))

    @property
    def trailing(self) -> Shape:
        """See `Noise.trailing`; the shape of `hurst`."""
        return shape_of(self.hurst)


@dataclass(frozen=True)
class FractionalBrownian(HurstNoise):
    """Fractional Brownian motion: Gaussian, with stationary increments, Var B_t = t**(2 hurst).

    Exact: the increments have their covariance to the dtype's rounding, by Davies and Harte's circulant in
    O(n log n), two paths for each complex FFT. All steps are drawn at once. Differentiable in the Hurst index.

    Args:
        hurst: In (0, 1); a number, one for each channel (the last axis), or a framework's tensor [*c], which may be
            learned and is not checked.
        bounds: Where a tensor lies; None is (0, 1). By these bounds it is decided whether a scheme for Hurst indices
            above 1/2, or below, may be used.

    Raises:
        TypeError: `hurst` is neither a number nor a tensor.
        ValueError: `hurst` is not in (0, 1), or not within the bounds.

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
        """Return the roots of the circulant covariance's eigenvalues over its size, [*c, size], for steps of `dt`.

        The FFT of independent complex normal numbers times these roots has the increments of two paths as its real and
        imaginary parts.
        """

        def roots(xp: Namespace, hurst: Array) -> tuple[Array, ...]:
            return (circulant_roots(hurst, n_steps, xp) * xp.exp(hurst * math.log(dt))[..., None],)

        if is_tensor(self.hurst):
            return source.computed(roots, self.hurst)[0]
        return _fixed_roots(self.hurst, n_steps) * (dt ** np.asarray(self.hurst))[..., None]


@lru_cache(maxsize=8)
def _fixed_roots(hurst: float | tuple[float, ...], n: int) -> np.ndarray:
    """Return `circulant_roots` for Hurst indices that are numbers, [*c, size], cached; for steps of length 1."""
    return circulant_roots(hurst, n, NUMPY)


_TERMS = 5  # Legendre polynomials on a cell; each one more divides the error by six
_POINTS = 20  # points of the Gauss-Legendre quadrature


@dataclass(frozen=True)
class RiemannLiouvilleBrownian(HurstNoise):
    """`B_t = sqrt(2 hurst) int_0^t (t - s)**(hurst - 1/2) dW_s`: begins at 0 without a past, `Var B_t = t**(2 hurst)`.

    The increments are not stationary. The logarithm of rough Bergomi's variance is a multiple of B, and the solution
    of a Volterra equation without drift is, with alpha = hurst + 1/2, B divided by sqrt(2 hurst) Gamma(alpha).

    On each cell the power is projected on Legendre polynomials, whose integrals with dW are independent normal numbers;
    what remains of the power on the newest cell is one more. So all correlations on the mesh are right to 2e-6 and the
    variances to 1e-9, in O(n log n); the hybrid scheme with kappa = 1 is the first term alone, right to 3e-2. All steps
    are drawn at once. Differentiable in the Hurst index.

    Args:
        hurst: In (0, 1); a number, one for each channel (the last axis), or a framework's tensor [*c], which may be
            learned and is not checked.
        bounds: Where a tensor lies; None is (0, 1).

    Raises:
        TypeError: `hurst` is neither a number nor a tensor.
        ValueError: `hurst` is not in (0, 1), or not within the bounds.

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
    """Yield, for each of a cell's normal numbers, the weights of this number in the increments from the cell's own on.

    The increments are those of Riemann and Liouville's fractional Brownian motion over steps of length 1; a cell is a
    step. Weights are by lag from 0 to n - 1.

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
    """Return quadrature points in (0, 1), and weights for the integrals against Legendre polynomials.

    The points are [points]. The weights are [r, points], with a row for each of the first r polynomials, which are
    orthonormal on (0, 1).
    """
    nodes, weights = legendre.leggauss(_POINTS)
    values = legendre.legvander(nodes, _TERMS - 1).T * np.sqrt(2 * np.arange(_TERMS) + 1)[:, None]
    return (nodes + 1) / 2, values * weights / 2
