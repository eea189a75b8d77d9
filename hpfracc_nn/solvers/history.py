"""How a solver remembers the past: which weights the lags have, and which algorithms may add the past up.

A history is an option, a frozen value. From a scheme's weights on a uniform mesh it makes `Kept`, the weights that the
solve really uses; the adjoint of the solve uses the same, so that gradients are those of what was computed.

Shapes: a orders alpha, sets of weights as the scheme has them (`schemes`), lags from 0 to n_steps, q exponentials.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import nbytes
from hpfracc_nn.fractional.exponentials import FITS, LANES, TOLERANCES, Nodes, nodes
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers.schemes import Weights

ANY_MESH = "history.mesh"  # the operation where steps are not equal, whose weights are no function of the lag

_MOST_STATES = 14 * LANES
_CANCELLED = 32.0  # times a weight: what the absolute values of its exponentials may add up to at least


@dataclass(frozen=True, eq=False)
class Kept:
    """The weights that a solve on a uniform mesh uses: a scheme's weights as a history keeps them.

    Attributes:
        columns: Weights by lag, from 0 on, [a, sets, n_steps + 1].
        starts: What the weights of the first k right-hand sides have beside `columns` at each step,
            [a, sets, n_steps + 1, k], or None.
        nodes: Nodes of the sum of exponentials that stands, or may stand, for `columns` from lag `nodes.first` on; or
            None.
        coefficients: Coefficients of these exponentials, [a, sets, q], or None.
    """

    columns: Array
    starts: Array | None
    nodes: Nodes | None = None
    coefficients: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return nbytes((self.columns, self.starts, self.coefficients))


class _Whole:
    """The methods that most histories share: by default a solve uses the scheme's weights unchanged."""

    def keep(self, weights: Weights, dtype: str, xp: Namespace) -> Kept:
        """Return the weights that a solve uses, as `used` returns them, without exponentials."""
        return _kept(self, weights, None, xp)  # type: ignore[arg-type]

    def used(self, weights: Weights, found: Nodes | None, xp: Namespace) -> Weights:
        """Return the weights unchanged: a history that keeps all weights adds exact ones up, whatever `found` holds."""
        return weights


@dataclass(frozen=True)
class Automatic(_Whole):
    """All of the past, exact to the dtype's tolerance, by whatever algorithm the BackendManager picks.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 201),
        ...     0.5,
        ...     history=Automatic(),
        ... )
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
    """

    name: ClassVar[str] = "auto"
    op: ClassVar[str] = "history"
    needs_uniform: ClassVar[str | None] = None

    def keep(self, weights: Weights, dtype: str, xp: Namespace) -> Kept:
        """Return the weights as they are, with nodes and coefficients of exponentials that match them, if any do.

        The exponentials match every weight to the dtype's tolerance; `dtype` is a name such as "float32".
        """
        if _is_short(weights, dtype):
            return _kept(self, weights, None, xp)
        return _kept(self, weights, fitting(weights, TOLERANCES[dtype], dtype), xp)


@dataclass(frozen=True)
class Full(_Whole):
    """All of the past, added up directly: O(n**2) in matrix products.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 201),
        ...     0.5,
        ...     history=Full(),
        ... )
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
    """

    name: ClassVar[str] = "full"
    op: ClassVar[str] = "history.full"
    needs_uniform: ClassVar[str | None] = None


@dataclass(frozen=True)
class FFTBlocks(_Whole):
    """All of the past by square blocks of doubling size, the large ones by FFT: exact, O(n log(n)**2).

    Steps must be equal, as for `Exponentials` and `Window`: another mesh is a ValueError of the solve.

    Source: Hairer, Lubich & Schlichte, SIAM J. Sci. Stat. Comput. 6 (1985) 532.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 201),
        ...     0.5,
        ...     history=FFTBlocks(),
        ... )
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
    """

    name: ClassVar[str] = "fft"
    op: ClassVar[str] = "history.fft"
    needs_uniform: ClassVar[str | None] = "blocks of equal weights need equal steps"


@dataclass(frozen=True)
class Exponentials:
    """The newest lags exact, the older ones as a sum of decaying exponentials: O(1) time a step, O(q) state.

    Args:
        tolerance: Relative error of every weight; None is 1e-11 in float64 and 1e-7 in float32.

    Raises:
        ValueError: The tolerance is not in (0, 0.1]; or, at the solve, no sum of exponentials comes so close.

    Source: Beylkin & Monzon, Appl. Comput. Harmon. Anal. 28 (2010) 131.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 201),
        ...     0.5,
        ...     history=Exponentials(1e-6),
        ... )
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
    """

    tolerance: float | None = None
    name: ClassVar[str] = "exponentials"
    op: ClassVar[str] = "history.exponentials"
    needs_uniform: ClassVar[str | None] = "states that decay by equal factors need equal steps"

    def __post_init__(self) -> None:
        if self.tolerance is None:
            return
        tolerance = errors.real("Exponentials", "tolerance", self.tolerance, 0.0, above=True, example=1e-8)
        if tolerance > 0.1:
            raise ValueError(
                f"Exponentials(tolerance={self.tolerance}): needs 0 < tolerance <= 0.1; pass for example 1e-8."
            )

    def keep(self, weights: Weights, dtype: str, xp: Namespace) -> Kept:
        """Return the weights with a sum of exponentials in place of those at older lags; exact ones for few steps.

        Raises:
            ValueError: No sum of exponentials matches the weights to the tolerance.
        """
        tolerance = TOLERANCES[dtype] if self.tolerance is None else self.tolerance
        if _is_short(weights, dtype):
            return _kept(self, weights, None, xp)
        found = fitting(weights, tolerance, dtype)
        if found is None:
            raise ValueError(
                f"Exponentials(tolerance={tolerance:g}): needs weights that are a sum of decaying exponentials to this "
                "tolerance, and those of this scheme, alpha and number of steps are not; pass a larger tolerance, or "
                "FFTBlocks()."
            )
        return _kept(self, weights, found, xp)

    def used(self, weights: Weights, found: Nodes | None, xp: Namespace) -> Weights:
        """Return the weights with sums of exponentials at the nodes `found` from lag `found.first` on.

        Where `found` is None, return the weights unchanged.
        """
        if found is None:
            return weights
        return Weights(summed(weights.columns, found, coefficients(weights, found, xp), xp), weights.starts)


@dataclass(frozen=True)
class Window(_Whole):
    """The newest `n` right-hand sides only: the short-memory principle. What is older is dropped, not replaced.

    Args:
        n: How many right-hand sides are kept.

    Raises:
        ValueError: `n` is not positive.
        TypeError: `n` is no whole number.

    Source: Podlubny, Fractional Differential Equations (1999), section 7.3.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y,
        ...     torch.ones(1).double(),
        ...     np.linspace(0, 1, 201),
        ...     0.5,
        ...     history=Window(50),
        ... )
        >>> y[-1]  # a quarter of the past; with all of it 0.4276
        tensor([0.6381], dtype=torch.float64)
    """

    n: int
    name: ClassVar[str] = "window"
    op: ClassVar[str] = "history.window"
    needs_uniform: ClassVar[str | None] = "a number of steps is no length of time on another mesh"

    def __post_init__(self) -> None:
        errors.count("Window", "n", self.n)

    def used(self, weights: Weights, found: Nodes | None, xp: Namespace) -> Weights:
        """Return the weights with 0 at lags above `n`, and with 0 for the starts at steps above `n`."""
        steps = np.arange(weights.columns.shape[-1])
        inside = xp.constant((steps <= self.n).astype(np.float64), weights.columns)  # [n_steps + 1]
        starts = None if weights.starts is None else weights.starts * inside[:, None]
        return Weights(weights.columns * inside, starts)

    def error_bound(self, alpha: float, dt: float, duration: float, largest: float, lipschitz: float) -> float:
        """Return a bound of the error that the window makes in y up to time `duration`.

        What is dropped of `I**alpha f` is at most `d = largest (duration**alpha - (n dt)**alpha) / Gamma(1 + alpha)`,
        and by Gronwall's inequality the error of y at most `d E_alpha(lipschitz duration**alpha)`.

        Args:
            alpha: The order, in (0, 2).
            dt: The step, in the caller's time unit.
            duration: The time that is solved over, in the same unit.
            largest: A bound of |f| along the solution.
            lipschitz: A Lipschitz constant of f in y.

        Source: Diethelm, The Analysis of Fractional Differential Equations (2010), lemma 6.19.

        Examples:
            >>> # 0.21 in truth
            >>> Window(50).error_bound(0.5, dt=0.005, duration=1.0, largest=1.0, lipschitz=1.0)
            2.826
        """
        kept = min(self.n * dt, duration)
        dropped = largest * (duration**alpha - kept**alpha) / math.gamma(1 + alpha)
        return dropped * float(mittag_leffler(lipschitz * duration**alpha, alpha))


History = Automatic | Full | FFTBlocks | Exponentials | Window
HISTORIES: dict[str, type[Automatic] | type[Full] | type[FFTBlocks] | type[Exponentials]] = {
    each.name: each for each in (Automatic, Full, FFTBlocks, Exponentials)
}


def _kept(history: History, weights: Weights, found: Nodes | None, xp: Namespace) -> Kept:
    used = history.used(weights, found, xp)
    return Kept(used.columns, used.starts, found, None if found is None else coefficients(weights, found, xp))


def fitting(weights: Weights, tolerance: float, dtype: str) -> Nodes | None:
    """Return the smallest set of nodes whose exponentials match every weight to `tolerance`; None if there is none.

    `tolerance` is a relative error. Weights that grow with the lag, above alpha = 1, are sums whose terms cancel: a set
    with which a sum would lose more digits to the rounding of `dtype` than the tolerance allows is rejected.
    """
    columns, fit = weights.columns, FITS[dtype]
    n, most = columns.shape[-1], max(_CANCELLED, 0.1 * tolerance / float(np.finfo(dtype).eps))
    for states in range(LANES * math.ceil((fit.first + 3) / LANES), _MOST_STATES, LANES):
        found = nodes(n, fit, states)
        error, cancelled = _quality(columns, found)
        if error <= tolerance and cancelled <= most:
            return found
    return None


def coefficients(weights: Weights, found: Nodes, xp: Namespace) -> Array:
    """Return the coefficients of the exponentials at the nodes `found`, fitted to the weights, [a, sets, q]."""
    return found.fit(xp.take(weights.columns, found.lags, axis=-1), xp)


def summed(columns: Array, found: Nodes, c: Array, xp: Namespace) -> Array:
    """Return weights by lag, [a, sets, lags], with sums of exponentials from lag `found.first` on.

    `columns` are the exact weights, which stay at the lags before; `c` are the coefficients, [a, sets, q].
    """
    lags = np.arange(columns.shape[-1] - found.first)
    sums = xp.matmul(c, xp.constant(np.exp(-np.outer(found.rates, lags)), c))
    return xp.concat([columns[..., : found.first], sums], axis=-1)


def _is_short(weights: Weights, dtype: str) -> bool:
    """Return whether there are so few lags that no exponentials are fitted; `dtype` is a name such as "float32"."""
    return weights.columns.shape[-1] <= 4 * FITS[dtype].first


def _quality(columns: np.ndarray, exponentials: Nodes) -> tuple[float, float]:
    """Return how well exponentials stand for weights: the largest relative error, and the largest cancellation.

    The cancellation of a weight is the sum of its terms' absolute values over the weight's own; rounding grows by that
    factor. `columns` are the exact weights by lag, [a, sets, lags].
    """
    exact = columns[..., exponentials.certified_lags]
    size = np.maximum(np.abs(exact), 1e-300)
    decays = np.exp(-np.outer(exponentials.rates, exponentials.certified_lags - exponentials.first))
    c = exponentials.fit(columns[..., exponentials.lags], NUMPY)
    return float(np.max(np.abs(c @ decays - exact) / size)), float(np.max(np.abs(c) @ decays / size))
