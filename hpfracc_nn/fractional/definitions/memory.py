"""Definitions with other memory functions: exponential (Caputo-Fabrizio), Mittag-Leffler (Atangana-Baleanu).

Weights multiply the first backward differences of x; they are for dt = 1, the cell at lag k being times from k to
k + 1. *c are the axes of the orders alpha.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions.definition import Definition
from hpfracc_nn.fractional.namespace import Array, Namespace
from hpfracc_nn.fractional.special.mittag_leffler import Options, partial_derivative

_LEAST = 2.0**-52  # stands for 1 - alpha = 0, where the memory is shorter than anything
_FASTEST = 700.0  # per step; exp(-700) = 1e-304
_SLOW = 0.25  # per step; below it the mean over a cell is a short series


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class CaputoFabrizio(Definition):
    """Caputo and Fabrizio's derivative, whose memory is one exponential, for 0 <= alpha <= 1.

        D x(t) = 1 / (1 - alpha) int_0^t x'(s) exp(-r (t - s)) ds,    r = alpha / (1 - alpha) / unit.

    An exponential in place of a power law: the memory is one number, and the derivative is a high-pass filter of
    first order, y' + r y = x' / (1 - alpha). It has a time scale, so that it depends on the unit of time: here that
    unit is an argument. alpha = 0 gives x - x(0), alpha = 1 the backward difference, times `unit`. The normalisation
    M(alpha) of the literature is 1: multiply by yours.

    The only scheme, `l1`, interpolates x linearly on each cell and integrates the exponential exactly: order 2 on
    smooth data for alpha < 1, once the steps are shorter than the memory 1 / r. Up to eight different fixed orders
    are as many states. A learned alpha, whose rate changes, takes those of any memory, where they reach the tolerance,
    else the matrix or the FFT. The result has the units of x.

    Attributes:
        unit: The length, in the caller's time unit, that the definition takes as 1; positive.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`; or `unit` is not positive.

    Source: Caputo & Fabrizio, Progr. Fract. Differ. Appl. 1 (2015) 73, equation 2.2.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(0, 1, 101)
        >>> float(CaputoFabrizio(0.5)(t, dt=0.01)[-1].round(4))  # 2 (1 - exp(-1))
        1.2642
    """

    scheme: str = "l1"
    unit: float = field(default=1.0, kw_only=True)

    highest: ClassVar[float] = 1.0
    schemes: ClassVar[tuple[str, ...]] = ("l1",)
    dt_power: ClassVar[float] = 0.0
    is_tabulated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", errors.real(self._name, "unit", self.unit, 0.0, above=True))
        super().__post_init__()

    def in_steps(self, dt: float) -> Definition:
        return self if dt == 1.0 else replace(self, unit=self.unit / dt)

    @property
    def differences(self) -> int:
        """Number of differences: 1, since the memory acts on x'."""
        return 1

    @property
    def fades(self) -> bool:
        """Whether weights decay exponentially: True."""
        return True

    @property
    def own_rates(self) -> tuple[float, ...]:
        """Decay rates per step, one for each order; empty if alpha is a tensor."""
        return tuple(sorted({self._decay(alpha) for alpha in self.orders})) if self.is_fixed else ()

    def accuracy(self, alpha: float) -> float:
        return 2.0

    def uniform_accuracy(self, alpha: float) -> float:
        return 2.0

    def _decay(self, alpha: float) -> float:
        """Return the decay rate r = alpha / (1 - alpha) / unit, finite at alpha = 1; per step for `unit` in steps."""
        return min(alpha / max(1 - alpha, _LEAST) / self.unit, _FASTEST)

    def _weights(self, alpha: Array, m: int, lags: np.ndarray, xp: Namespace) -> Array:
        """Return the Toeplitz weights [*c, k] at `lags` [k]: the mean of exp(-r s) / (1 - alpha) over each cell.

        The mean is (1 - exp(-r)) unit / alpha exp(-r k). `m`, the number of differences, is 1 and not read.
        """
        alpha = alpha[..., None]
        rest = (1 - alpha).clip(_LEAST)
        r = (alpha / (rest * self.unit)).clip(None, _FASTEST)
        is_slow = r < _SLOW
        slow = _mean(xp.where(is_slow, r, 0.0)) / rest
        fast = -xp.expm1(-r) * self.unit / xp.where(is_slow, 1.0, alpha)
        return xp.where(is_slow, slow, fast) * xp.exp(-r * xp.constant(lags.astype(np.float64), alpha))


def _mean(r: Array) -> Array:
    """Return (1 - exp(-r)) / r, the mean of exp(-r s) over a cell, for r < 1/4, by its power series.

    No digit cancels, in its derivatives in r either.
    """
    total = 1.0
    for k in range(13, 1, -1):  # the next term is below 4**-13 / 14! = 2e-19
        total = 1 - r / k * total
    return total


_HEAD = 16  # cells below it lie close to the branch point at 0
_NEAR, _FAR = 10, 4  # Gauss-Legendre points of a cell: 5.8**-20 from lag 1 on, 66**-8 from 16 on
_CHUNK = 4096  # points whose intermediate results stay in the cache
_SENSES = ("caputo", "riemann_liouville")


@dataclass(frozen=True, eq=False)  # equal as `Definition` says, whose hash is kept
class AtanganaBaleanu(Definition):
    """Atangana and Baleanu's derivative, whose memory is a Mittag-Leffler function, for 0 <= alpha <= 1.

        D x(t) = 1 / (1 - alpha) int_0^t x'(s) E_alpha(-c ((t - s) / unit)**alpha) ds,    c = alpha / (1 - alpha).

    The memory is 1 at first and falls like `t**-alpha` in the end. That is the Caputo sense; in
    the Riemann-Liouville sense the derivative is taken of the integral, which adds
    `x(0) E_alpha(-c (t / unit)**alpha) / (1 - alpha)`. The operator has a time scale, so that it depends on the unit of
    time: here that unit is an argument. alpha = 0 gives x, less x(0) in the Caputo sense; alpha = 1 the backward
    difference, times `unit`. The normalisation B(alpha) of the literature is 1: multiply by yours.

    The only scheme, `l1`, interpolates x linearly on each cell and integrates the Mittag-Leffler function: order 2 on
    smooth data, once the steps are short against unit c**(-1/alpha). The result has the units of x.

    Attributes:
        sense: "caputo" or "riemann_liouville".
        unit: The length, in the caller's time unit, that the definition takes as 1; positive.

    Raises:
        TypeError: As in `Definition`.
        ValueError: As in `Definition`; or `sense` is none of the two, or `unit` not positive.

    Source: Atangana & Baleanu, Thermal Science 20 (2016) 763, definitions 3.1 and 3.2.

    Examples:
        >>> import numpy as np
        >>> t = np.linspace(0, 1, 101)
        >>> float(AtanganaBaleanu(0.5)(t, dt=0.01)[-1].round(6))  # 2 E_(1/2, 2)(-1)
        1.111925
    """

    scheme: str = "l1"
    sense: str = field(default="caputo", kw_only=True)
    unit: float = field(default=1.0, kw_only=True)

    highest: ClassVar[float] = 1.0
    schemes: ClassVar[tuple[str, ...]] = ("l1",)
    dt_power: ClassVar[float] = 0.0
    is_tabulated: ClassVar[bool] = False

    def __post_init__(self) -> None:
        errors.one_of(self._name, "sense", self.sense, _SENSES)
        object.__setattr__(self, "unit", errors.real(self._name, "unit", self.unit, 0.0, above=True))
        super().__post_init__()

    def in_steps(self, dt: float) -> Definition:
        return self if dt == 1.0 else replace(self, unit=self.unit / dt)

    @property
    def differences(self) -> int:
        """Number of differences: 1, since the memory acts on x'."""
        return 1

    def accuracy(self, alpha: float) -> float:
        return 2.0

    def uniform_accuracy(self, alpha: float) -> float:
        return 2.0

    @property
    def terms(self) -> int:
        return 1 if self.sense == "riemann_liouville" else 0

    def _weights(self, alpha: Array, m: int, lags: np.ndarray, xp: Namespace) -> Array:
        """Return the Toeplitz weights [*c, k] at `lags` [k]: the mean of the memory function over each cell.

        The mean over the first cell is in closed form, the others are computed by quadrature. `m`, the number of
        differences, is 1 and not read.
        """
        parts = [self._memory(alpha, np.ones(1), 2.0, xp)] * int((lags < 1).sum())
        for cells, count in ((lags[(lags >= 1) & (lags < _HEAD)], _NEAR), (lags[lags >= _HEAD], _FAR)):
            if cells.size:
                points, weights = np.polynomial.legendre.leggauss(count)
                values = self._memory(alpha, np.add.outer((points + 1) / 2, cells).ravel(), 1.0, xp)
                values = values.reshape(*values.shape[:-1], count, cells.size)
                parts.append(xp.matmul(xp.constant(weights / 2, alpha), values))
        return xp.concat(parts, axis=-1)

    def _analytic(self, alpha: Array, rows: np.ndarray, xp: Namespace) -> Array:
        return xp.stack([self._memory(alpha, rows.astype(np.float64), 1.0, xp)], axis=-2)

    def _memory(self, alpha: Array, times: np.ndarray, beta: float, xp: Namespace) -> Array:
        """Return E_(alpha, beta)(-c (times / unit)**alpha) / (1 - alpha), c = alpha / (1 - alpha), at `times` [k].

        With beta = 1 the result, [*c, k], is the memory function at each time t, with beta = 2 its mean from 0 to t.
        """
        order = alpha[..., None]
        rest = (1 - order).clip(_LEAST)
        is_later = times > 0  # at t = 0 the power is 0 for any order, also where t**alpha falls too slowly to tell
        log = np.log(np.where(is_later, times, 1.0) / self.unit)
        power = xp.exp(order * xp.constant(log, order)) * xp.constant(is_later.astype(np.float64), order)
        z = -(order / rest) * power
        with np.errstate(all="ignore"):  # what a mask drops may be anything
            return _mittag_leffler(z, order, beta, xp) / rest


def _mittag_leffler(z: Array, alpha: Array, beta: float, xp: Namespace) -> Array:
    """Return Mittag-Leffler's E_(alpha, beta)(z) for z [*c, k] and alpha [*c, 1], differentiable to any order."""
    flat = z.reshape(-1)
    orders = alpha.reshape(-1)[0] if alpha.shape == (1,) else (0 * z + alpha).reshape(-1)
    betas, options = 0 * orders + beta, Options(poles=1, is_differentiated=True)
    parts = []
    for begin in range(0, flat.shape[0], _CHUNK):
        part = slice(begin, begin + _CHUNK)
        its = (orders, betas) if alpha.shape == (1,) else (orders[part], betas[part])
        parts.append(partial_derivative(flat[part], *its, 0, 0, xp, options))
    return xp.concat(parts, axis=-1).reshape(z.shape)
