"""The inverse operators: x from y.

Of a stencil y = T(left) d + start * d[s] + analytic @ (x(0), S), d = D^m (x - x(0) - k S), all but a few columns is
lower triangular Toeplitz, whose inverse is the reciprocal of a power series:

    U = sum^m T(1 / left),    u = U y' - U start (D^m U y')[s] / (1 + (D^m U start)[s]),    x = u + x(0) + k S,

with y' = y less the analytic terms. The reciprocal comes from Newton's iteration g <- g (2 - left g), which doubles
the terms that are right: O(n log n), and `xp` follows it to any derivative in alpha. U is one Toeplitz matrix of
weights that go like those of an integral: summed first they lose no digits, and above alpha = 1, where they grow, one
sum is taken of the data instead.

What a derivative does not know must be given: x(0) for Caputo, and above alpha = 1 x'(0). Riemann-Liouville's first
sample is dt**-alpha x(0), and above alpha = 1 S is the number for which the slope that the stencil would estimate of x
is S itself.

Kung, Numer. Math. 22 (1974) 341, for the reciprocal; the corrections are those of Sherman & Morrison (1950).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from hpfracc_nn.fractional.definitions import (
    Caputo,
    Definition,
    DistributedOrder,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    family,
)
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import Stencil, slope_row

SOLVABLE = (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral)

_KEPT = 8  # columns, of any length


@dataclass(frozen=True)
class Inverse(Definition):
    """U, the triangular part of an operator's inverse, computed in float64.

    Attributes:
        of: The operator; one with a tensor alpha at its upper bound.
    """

    of: Definition = field(default_factory=lambda: Caputo(0.5))

    subtracts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Nothing: the operator has checked all."""

    @property
    def _name(self) -> str:
        return f"inverse of {type(self.of).__name__}"

    @property
    def taylor(self) -> int:
        """One: nothing is subtracted."""
        return 1

    @property
    def differences(self) -> int:
        """Minus one above order 1, where the data are summed first, else 0."""
        return -1 if self.of.interval[1] > 1 and self.of.differences > 0 else 0

    @property
    def approximated(self) -> None:
        """Nothing: where rough data are undone, U y is a small rest of large terms."""
        return

    @property
    def is_wide(self) -> bool:
        """Always: what float32 rounds of the sums of n samples would be seen again where x is differentiated."""
        return True

    @property
    def dt_power(self) -> float:  # type: ignore[override]
        """The opposite of the operator's."""
        return -self.of.dt_power

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        """Return the stencil of other orders; see `Definition`."""
        m = self.differences if differences is None else differences

        def column(lags: np.ndarray) -> Array:
            return xp.take(_column(self.of, alpha, dt, self.of.differences + m, int(lags.max()) + 1, xp), lags)

        return Stencil(n=n, column=column, differences=m, subtract=False)


def inverse_of(owner: str, definition: Definition) -> Inverse:
    """Return the triangular part of a definition's inverse.

    Raises:
        ValueError: It has none that is causal and bounded.
    """
    kind = kind_of(definition)
    if kind not in SOLVABLE:
        names = ", ".join(each.__name__ for each in SOLVABLE)
        raise ValueError(f"{owner}({kind.__name__}): needs one of {names}, whose inverse is causal; pass one of these.")
    if definition.side != "left":
        raise ValueError(
            f"{owner}(side={definition.side!r}): needs side='left', the only one whose inverse is causal; of 'right' "
            "solve the reversed samples, y.flip(dim) or numpy.flip(y, dim), with side='left', and reverse the result."
        )
    if kind is type(definition) and not definition.is_plain:
        raise ValueError(f"{owner}({definition}): needs no option but alpha, scheme and bounds; leave the others out.")
    if kind is RiemannLiouvilleIntegral and not _is_inside(definition):
        raise ValueError(
            f"{owner}(alpha={definition.alpha}): needs an integral of an order between 0 and 1, because from 1 on the "
            "inverse of the trapezoid rule oscillates and grows; apply RiemannLiouville of that order in its place."
        )
    if kind is RiemannLiouville and definition.is_fixed and 2.0 in definition.orders:
        raise ValueError(
            f"{owner}(alpha={definition.alpha}): needs an order below 2, because the second derivative of t is zero; "
            "pass Caputo of order 2 with x0 and dx0."
        )
    of = definition if definition.is_fixed else family(definition)
    return Inverse(definition.alpha, definition.scheme, definition.bounds, of)


def check_given(owner: str, name: str, shape: tuple[int, ...], signals: tuple[int, ...]) -> None:
    """Raise unless what is given at the start is one value for each signal; `signals` is y's shape without `dim`.

    Raises:
        ValueError: It does not broadcast to that shape.
    """
    # Axes are compared from the last, and those that are not there are 1.
    fits = all(size in (1, many) for size, many in zip(shape[::-1], signals[::-1], strict=False))
    if len(shape) > len(signals) or not fits:
        raise ValueError(
            f"{owner}({name} of shape {shape}): needs a number, or a shape that broadcasts to that of y without dim, "
            f"{signals}; pass one value for each signal."
        )


def _is_inside(definition: Definition) -> bool:
    low, high = definition.interval
    return low > 0 and high < 1 if definition.is_fixed else high <= 1


def kind_of(definition: Definition) -> type[Definition]:
    """Return whose stencil a definition has: its own class, or that of the operators which it is a sum of."""
    return definition.kind if isinstance(definition, DistributedOrder) else type(definition)


@dataclass(frozen=True, eq=False)
class Columns:
    """What the inverse of a stencil needs besides the triangular product; float64 arrays of a namespace.

    Attributes:
        stencil: The operator.
        known: What x(0) and, of two, S give in y, each [*c, n].
        start: U start / (1 + (D^m U start)[s]), [*c, n], or None.
        head: The first weights of U, [*c, 4] or fewer, where S is to be found; else None.
    """

    stencil: Stencil
    known: list[Array]
    start: Array | None
    head: Array | None

    @property
    def nbytes(self) -> int:
        """Of all arrays."""
        return sum(array.nbytes for array in (*self.known, self.start) if array is not None)


def columns(stencil: Stencil, xp: Namespace) -> Columns:
    """Return the columns of a stencil's inverse."""
    known = [stencil.analytic[..., j, :] for j in range(stencil.terms)]
    if known and not stencil.subtract:  # an integral's first sample is one like the others and has a column besides
        known = [known[0] + stencil.left]
    head = None
    if stencil.terms == 2:
        head = summed(reciprocal(stencil.left[..., :4], xp), stencil.differences, xp)
    if not stencil.starts:
        return Columns(stencil, known, None, head)
    start = summed(xp.convolve(reciprocal(stencil.left, xp), stencil.start), stencil.differences, xp)
    return Columns(stencil, known, start / (1 + _starting_entry(start, stencil)), head)


def solved(
    found: Columns,
    y: Array,
    multiply: Callable[[Array], Array],
    first: Array | None,
    slope: Array | None,
    xp: Namespace,
) -> Array:
    """Return x, [..., n].

    Args:
        found: The columns, which broadcast against y.
        y: What the operator gave, [..., n], n > 0; float64.
        multiply: Returns U of data.
        first: x(0), [..., 1], where y does not tell; None is 0.
        slope: S = dt x'(0), the same.
        xp: The namespace of y.
    """
    stencil = found.stencil
    if not stencil.subtract and not found.known:
        return multiply(y)
    if not stencil.subtract:
        return _integrand(found.known[0], y, multiply, first, xp)
    if not found.known:
        x = _rest(found, y, multiply, xp)
        x = x if first is None else x + first
        return x if slope is None else x + slope * _ramp(y, xp)
    first = y[..., :1] / found.known[0][..., :1]
    y = y - found.known[0] * first
    if stencil.terms == 1 or stencil.n == 1:
        return _rest(found, y, multiply, xp) + first
    slope = _estimated(found, y, xp) / _estimated(found, found.known[1], xp)
    return _rest(found, y - found.known[1] * slope, multiply, xp) + first + slope * _ramp(y, xp)


def _estimated(found: Columns, y: Array, xp: Namespace) -> Array:
    """Return the slope at the start of what `_rest` gives, [..., 1].

    From the first samples alone, which a transform of all would not leave untouched: each error counts k times in x(k).
    """
    assert found.head is not None, "there are two analytic columns"
    count = found.head.shape[-1]
    u = _rest(found, y[..., :count], lambda z: xp.convolve(z, found.head), xp)
    return xp.sum(u * xp.constant(slope_row(found.stencil.n)[:count], y))[..., None]


def reciprocal(series: Array, xp: Namespace) -> Array:
    """Return the power series 1 / series, as many coefficients as it has; [*c, n], n > 0."""
    n = series.shape[-1]
    found = 1 / series[..., :1]
    while found.shape[-1] < n:
        length = min(2 * found.shape[-1], n)
        padded = xp.concat([found, 0 * series[..., found.shape[-1] : length]])
        two = xp.constant(2 * np.eye(1, length)[0], series)
        found = xp.convolve(padded, two - xp.convolve(series[..., :length], padded))
    return found


def _rest(found: Columns, y: Array, multiply: Callable[[Array], Array], xp: Namespace) -> Array:
    """Return u with u(0) = 0 for y without analytic terms, whose first sample is not looked at."""
    stencil = found.stencil
    nothing = xp.sum(y[..., :0])[..., None]
    u = multiply(xp.concat([nothing, y[..., 1:]]))
    n = y.shape[-1]
    if found.start is None or n <= stencil.start_index:
        return u
    return u - found.start[..., :n] * _starting_entry(u, stencil)


def _starting_entry(u: Array, stencil: Stencil) -> Array:
    """Return d[s], [..., 1], of u with u(0) = 0."""
    m, s = stencil.differences, stencil.start_index
    return sum(float((-1) ** i * math.comb(m, i)) * u[..., s - i : s - i + 1] for i in range(min(m, s) + 1))


def _integrand(
    column: Array, y: Array, multiply: Callable[[Array], Array], first: Array | None, xp: Namespace
) -> Array:
    """Return x for an integral, whose own first sample is 0 and tells nothing."""
    nothing = xp.sum(y[..., :0])[..., None]
    start = nothing if first is None else nothing + first  # of each signal, also where one number is told for all
    rest = multiply(xp.concat([0 * start, (y - column * start)[..., 1:]]))
    return xp.concat([rest[..., :1] + start, rest[..., 1:]])


def summed(d: Array, times: int, xp: Namespace) -> Array:
    """Return the cumulative sums of d, taken so many times."""
    for _ in range(times):
        d = xp.cumsum(d)
    return d


def _ramp(y: Array, xp: Namespace) -> Array:
    return xp.constant(np.arange(y.shape[-1], dtype=np.float64), y)


def _column(of: Definition, alpha: Array, dt: float, sums: int, n: int, xp: Namespace) -> Array:
    """Return the sums of 1 / left, [*c, n]; NumPy's are kept, because they are asked for at several sets of lags."""
    if isinstance(alpha, np.ndarray):
        return _kept_column(of, alpha.tobytes(), alpha.shape, dt, sums, n)
    return summed(reciprocal(of.stencil_at(alpha, n, dt, xp).left, xp), sums, xp)


@lru_cache(maxsize=_KEPT)
def _kept_column(of: Definition, orders: bytes, shape: tuple[int, ...], dt: float, sums: int, n: int) -> np.ndarray:
    alpha = np.frombuffer(orders).reshape(shape)
    found = summed(reciprocal(of.stencil_at(alpha, n, dt, NUMPY).left, NUMPY), sums, NUMPY)
    found.flags.writeable = False
    return found
