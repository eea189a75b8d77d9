"""Networks of power laws and relaxations: one function of s = i omega, from which every response follows.

A network F(s) is a modulus (stress over strain) or an impedance (voltage over current). It is built of a few leaves,
sums and reciprocals. Springs side by side add their moduli, and so do resistors in a row their impedances; the other
arrangement adds reciprocals:

    series modulus = inverse(added((inverse(a), inverse(b))))

A field of a leaf is a number, an array, or a name, whose value is looked up when the network is evaluated. The same
name may stand in several fields.

Responses in time are inverse Laplace transforms. F has no singularity but on the negative real axis, since that holds
for the leaves and is kept by sums and reciprocals (they are complete Bernstein or Stieltjes functions for orders in
[0, 1]). So one parabola as a path of integration suits all networks at all times,

    f(t) = 1 / (2 pi i) int exp(z) F(z / t) dz / t,

with the same 20 nodes z, and suits each derivative by a parameter too. The error is about 1e-14 of |F(1 / t)|.
Where the response itself is exponentially smaller, as that of a spring and a dashpot in a row, a closed form is used.

Weideman & Trefethen, Parabolic and hyperbolic contours for computing the Bromwich integral, Math. Comp. 76 (2007);
Schilling, Song & Vondracek, Bernstein Functions (2012), chapters 6 and 7.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.special.mittag_leffler import reciprocal_gamma

Values = Mapping[str, Any]  # values of the parameters, by name
Slopes = dict[str, Array]  # derivatives by the parameters, by name
Pullback = Callable[[Any, Slopes], None]  # (factor, slopes): adds the derivatives of a value, times factor, to slopes
Tangents = Callable[[], Slopes]  # returns the derivatives of a value that has been computed
Clock = Callable[[], float]  # returns a time

POSITIVE, ORDER = "positive", "order"  # what a parameter may be: above 0, or in [0, 1]

# The parabola z = _MU (1 + i u)**2 at u = (k + 1/2) h. The rule's error is about exp(-2 pi / h) = 1e-15, what lies
# beyond the last node exp(-35) = 1e-15, and rounding is exp(_MU) = 20 times that of F. A pole of F s**-k at 0 is in u
# one of order 2 k - 1, and multiplies the error by (2 pi / h)**(2 k - 2) / (2 k - 2)!, to 4e-11 for k = 3: so k > 1 has
# the finer steps _MORE_NODES.
_MU, _NODES, _MORE_NODES = 3.0, (2 * np.pi / 35, 20), (2 * np.pi / 50, 29)  # h, and the number of nodes
# In cell k terms fall like (2 k - 1)**-i, and what the parabola leaves out grows to exp(-35 (1 - 1 / (2 k - 1))).
_DIFFERENCES, _TERMS = 6, 14  # cells that are differences; terms from the next on, where 13**-14 = 3e-16
_POWER_TERMS = 36  # of a power of time, from the second cell on: 3**-36 = 7e-18
_NEAR = 0.02  # below it tanh(y) / y is a series


class Points(NamedTuple):
    """Points s = exp(angle + size) at which networks are evaluated, kept as two terms of log s.

    Attributes:
        angle: Complex term of log s, with an imaginary part between -pi and pi; broadcasts with `size`.
        size: Real term of log s.
        turn: exp(angle) without rounding, or None: i to the first power has no real part.
    """

    angle: Array
    size: Array
    turn: Array | None = None

    def log(self, time: Any, xp: Namespace) -> Array:
        """Return the logarithm of the product of `time` and s."""
        return self.angle + self._size(time, xp)

    def power(self, exponent: Any, time: Any, xp: Namespace, factor: Any = 1.0) -> Array:
        """Return factor (time s)**exponent."""
        is_number = type(exponent) in (int, float)
        if is_number and exponent == 0:
            return factor + 0 * (self.angle + self.size)
        turn = xp.exp(exponent * self.angle)
        if is_number and exponent in (1, -1) and self.turn is not None:
            turn = self.turn if exponent == 1 else 1 / self.turn
        return turn * (factor * xp.exp(exponent * self._size(time, xp)))

    def _size(self, time: Any, xp: Namespace) -> Array:
        if isinstance(time, int | float):
            return self.size if time == 1 else self.size + math.log(time)
        return self.size + xp.log(time)


class Network(ABC):
    """A modulus or an impedance as a function F(s) with parameters.

    The fields of a network are numbers, arrays, or names; methods take the values of the names in `values`.
    """

    @abstractmethod
    def value(self, s: Points, values: Values, xp: Namespace) -> Array:
        """Return F(s)."""

    @abstractmethod
    def pullback(self, s: Points, values: Values) -> tuple[np.ndarray, Pullback]:
        """Return F(s), and a function (factor, slopes) that adds derivatives of F by all names to `slopes`.

        The function multiplies them by `factor`, an array or a number.
        """

    @abstractmethod
    def mapped(self, field: Callable[[Any], Any]) -> Network:
        """Return the network with `field(name or value)` in place of the name or value in each of its fields."""

    @abstractmethod
    def guess(self, scale: float, time: Clock, values: dict[str, float]) -> None:
        """Add to `values`, which hold the orders, values of the other names that make every leaf of a typical size.

        A leaf is about `scale` (under a reciprocal 1 / scale) at s = 1 / time(), with a new time for each leaf.
        """


@dataclass(frozen=True)
class Leaf(Network):
    """A network that has no parts; its fields are parameters."""

    names: ClassVar[tuple[str, ...]]  # of the fields that are parameters

    def mapped(self, field: Callable[[Any], Any]) -> Network:
        """See `Network.mapped`."""
        return replace(self, **{name: field(getattr(self, name)) for name in self.names})

    def pullback(self, s: Points, values: Values) -> tuple[np.ndarray, Pullback]:
        """See `Network.pullback`."""
        value, steepness = self._steepness(s, values)
        by_name = [
            (getattr(self, field), by) for field, by in steepness.items() if isinstance(getattr(self, field), str)
        ]

        def pull(factor: Any, slopes: Slopes) -> None:
            whole = factor * value
            for name, by in by_name:
                slope = whole * by()
                slopes[name] = slopes[name] + slope if name in slopes else slope

        return value, pull

    @abstractmethod
    def _steepness(self, s: Points, values: Values) -> tuple[np.ndarray, dict[str, Callable[[], Any]]]:
        """Return F(s), and by the name of each field a function that returns the derivative of log F by this field."""


def _valued(field: Any, values: Values) -> Any:
    return values[field] if isinstance(field, str) else field


@dataclass(frozen=True)
class Power(Leaf):
    """F = coefficient (time s)**exponent, or its reciprocal where `sign` is -1, which is no parameter."""

    coefficient: Any
    exponent: Any
    time: Any = 1.0
    sign: int = 1

    names: ClassVar[tuple[str, ...]] = ("coefficient", "exponent", "time")

    def value(self, s: Points, values: Values, xp: Namespace) -> Array:
        """See `Network.value`."""
        coefficient, exponent, time = (_valued(each, values) for each in (self.coefficient, self.exponent, self.time))
        return s.power(self.sign * exponent, time, xp, coefficient**self.sign)

    def _steepness(self, s: Points, values: Values) -> tuple[np.ndarray, dict[str, Callable[[], Any]]]:
        coefficient, exponent, time = (_valued(each, values) for each in (self.coefficient, self.exponent, self.time))
        return self.value(s, values, NUMPY), {
            "coefficient": lambda: self.sign / coefficient,
            "exponent": lambda: self.sign * s.log(time, NUMPY),
            "time": lambda: self.sign * exponent / time,
        }

    def guess(self, scale: float, time: Clock, values: dict[str, float]) -> None:
        """See `Network.guess`."""
        when = time()
        if isinstance(self.time, str):
            values[self.time] = when
        if isinstance(self.coefficient, str):
            ratio = _valued(self.time, values) / when
            values[self.coefficient] = scale**self.sign * ratio ** -_valued(self.exponent, values)


class _Timed(Leaf):
    """A leaf with a strength and a time of its own."""

    strength: Any
    time: Any

    def guess(self, scale: float, time: Clock, values: dict[str, float]) -> None:
        """See `Network.guess`."""
        if isinstance(self.time, str):
            values[self.time] = time()
        if isinstance(self.strength, str):
            values[self.strength] = scale


@dataclass(frozen=True)
class HavriliakNegami(_Timed):
    """F = strength (1 + (time s)**alpha)**-gamma."""

    strength: Any
    time: Any
    alpha: Any = 1.0
    gamma: Any = 1.0

    names: ClassVar[tuple[str, ...]] = ("strength", "time", "alpha", "gamma")

    def value(self, s: Points, values: Values, xp: Namespace) -> Array:
        """See `Network.value`."""
        strength, time, alpha, gamma = (_valued(each, values) for each in vars(self).values())
        power = s.power(alpha, time, xp)
        if type(gamma) in (int, float) and gamma == 1:
            return strength / (1 + power)
        return strength * xp.exp(-gamma * xp.log(1 + power))

    def _steepness(self, s: Points, values: Values) -> tuple[np.ndarray, dict[str, Callable[[], Any]]]:
        strength, time, alpha, gamma = (_valued(each, values) for each in vars(self).values())
        power = s.power(alpha, time, NUMPY)
        part = -gamma * power / (1 + power)  # by the logarithm of the power
        return self.value(s, values, NUMPY), {
            "strength": lambda: 1 / strength,
            "time": lambda: part * alpha / time,
            "alpha": lambda: part * s.log(time, NUMPY),
            "gamma": lambda: -np.log(1 + power),
        }


@dataclass(frozen=True)
class Diffusion(_Timed):
    """F = strength tanh(y) / y with y = (time s)**alpha; strength coth(y) / y where `is_blocked`.

    Blocked diffusion is that into a layer which nothing leaves at the far end. `is_blocked` is no parameter.
    """

    strength: Any
    time: Any
    alpha: Any = 0.5
    is_blocked: bool = False

    names: ClassVar[tuple[str, ...]] = ("strength", "time", "alpha")

    def value(self, s: Points, values: Values, xp: Namespace) -> Array:
        """See `Network.value`."""
        strength, time, alpha = (_valued(each, values) for each in (self.strength, self.time, self.alpha))
        y = s.power(alpha, time, xp)
        ratio = tanh_ratio(y, xp)
        return strength * (1 / (y * y * ratio) if self.is_blocked else ratio)

    def _steepness(self, s: Points, values: Values) -> tuple[np.ndarray, dict[str, Callable[[], Any]]]:
        strength, time, alpha = (_valued(each, values) for each in (self.strength, self.time, self.alpha))
        y = s.power(alpha, time, NUMPY)
        ratio = tanh_ratio(y, NUMPY)
        part = (1 - y * y * ratio * ratio) / ratio - 1  # by log y, as the derivative of tanh is 1 - tanh**2
        part = -2 - part if self.is_blocked else part
        return self.value(s, values, NUMPY), {
            "strength": lambda: 1 / strength,
            "time": lambda: part * alpha / time,
            "alpha": lambda: part * s.log(time, NUMPY),
        }


def tanh_ratio(y: Array, xp: Namespace) -> Array:
    """Return tanh(y) / y for complex y with a real part that is not negative."""
    is_near = xp.abs(y) < _NEAR
    square = xp.where(is_near, y * y, 0.0)
    far = xp.where(is_near, 1.0 + 0 * y, y)
    decay = xp.exp(-2 * far)
    series = 1 - square / 3 * (1 - square * (2 / 5) * (1 - square * (17 / 42)))
    return xp.where(is_near, series, (1 - decay) / ((1 + decay) * far))


@dataclass(frozen=True)
class Sum(Network):
    """The sum of networks."""

    parts: tuple[Network, ...]

    def value(self, s: Points, values: Values, xp: Namespace) -> Array:
        """See `Network.value`."""
        total = self.parts[0].value(s, values, xp)
        for part in self.parts[1:]:
            total = total + part.value(s, values, xp)
        return total

    def pullback(self, s: Points, values: Values) -> tuple[np.ndarray, Pullback]:
        """See `Network.pullback`."""
        found = [part.pullback(s, values) for part in self.parts]
        total = found[0][0]
        for value, _ in found[1:]:
            total = total + value

        def pull(factor: Any, slopes: Slopes) -> None:
            for _, each in found:
                each(factor, slopes)

        return total, pull

    def mapped(self, field: Callable[[Any], Any]) -> Network:
        """See `Network.mapped`."""
        return Sum(tuple(part.mapped(field) for part in self.parts))

    def guess(self, scale: float, time: Clock, values: dict[str, float]) -> None:
        """See `Network.guess`."""
        for part in self.parts:
            part.guess(scale, time, values)


@dataclass(frozen=True)
class Reciprocal(Network):
    """The reciprocal of a network."""

    of: Network

    def value(self, s: Points, values: Values, xp: Namespace) -> Array:
        """See `Network.value`."""
        return 1 / self.of.value(s, values, xp)

    def pullback(self, s: Points, values: Values) -> tuple[np.ndarray, Pullback]:
        """See `Network.pullback`."""
        below, pulled = self.of.pullback(s, values)
        value = 1 / below
        return value, lambda factor, slopes: pulled(-factor * value * value, slopes)

    def mapped(self, field: Callable[[Any], Any]) -> Network:
        """See `Network.mapped`."""
        return Reciprocal(self.of.mapped(field))

    def guess(self, scale: float, time: Clock, values: dict[str, float]) -> None:
        """See `Network.guess`."""
        self.of.guess(1 / scale, time, values)


def tangents(network: Network, s: Points, values: Values) -> tuple[np.ndarray, Tangents]:
    """Return F(s), and a function that returns its derivatives by all names."""
    value, pull = network.pullback(s, values)

    def slopes() -> Slopes:
        found: Slopes = {}
        pull(1.0, found)
        return found

    return value, slopes


def inverse(network: Network) -> Network:
    """Return the network 1 / F."""
    if isinstance(network, Power):
        return replace(network, sign=-network.sign)
    return network.of if isinstance(network, Reciprocal) else Reciprocal(network)


def added(parts: tuple[Network, ...]) -> Network:
    """Return the sum of networks; the parts of a network that is a sum itself become parts of the whole sum."""
    flat = tuple(each for part in parts for each in (part.parts if isinstance(part, Sum) else (part,)))
    return flat[0] if len(flat) == 1 else Sum(flat)


def joined(parts: tuple[Network, ...]) -> Network:
    """Return the network whose reciprocal is the sum of the reciprocals of others."""
    return inverse(added(tuple(inverse(part) for part in parts)))


def on_axis(omega: Array, xp: Namespace) -> Points:
    """Return the points s = i omega."""
    angle, turn = (xp.constant(np.asarray(each), omega) for each in (0.5j * np.pi, 1j))
    return Points(angle, xp.log(omega), turn)


def on_reals(logs: Array, xp: Namespace) -> Points:
    """Return the points s = exp(logs)."""
    return Points(xp.constant(np.asarray(0.0), logs), logs)


def response(network: Network, t: Array, integrals: int, values: Values, xp: Namespace) -> Array:
    """Return the inverse Laplace transform of F(s) s**-integrals at times t > 0.

    Args:
        network: F, with parameters that broadcast with t.
        t: float64, of any shape.
        integrals: 1 is the response to a step, 2 the integral of that response, and so on.
        values: Values of the network's names.
        xp: The namespace of t.
    """
    if isinstance(network, Sum):
        total = response(network.parts[0], t, integrals, values, xp)
        for part in network.parts[1:]:
            total = total + response(part, t, integrals, values, xp)
        return total
    exponent = _exponent(network, values)
    if exponent is not None:
        order = integrals - exponent
        return (
            network.value(on_reals(0 * t, xp), values, xp)
            * xp.exp((order - 1) * xp.log(t))
            * _reciprocal_gamma(order, xp)
        )
    parts = _decay(network, integrals, values)
    if parts is not None:
        first, second = (part.value(on_reals(0 * t, xp), values, xp) for part in parts)
        return xp.exp(-second / first * t) / first
    return _summed(network.value(_on_parabola(t, integrals, xp), values, xp), t, integrals, xp)


def cell_integrals(network: Network, t: Array, values: Values, xp: Namespace) -> tuple[Array, Array]:
    """Return the integrals of the step response R over cells, and those of R times (middle - time), [n] each.

    They are sums over the Taylor coefficients of R at the middle of each cell, R(m (1 + w)) = sum_i d_i w**i: the
    difference of two responses integrated once more loses digits like n, and of two integrated twice like n**2. R is
    analytic to the right of 0, so that terms fall like (2 k - 1)**-i in cell k. The first cells are differences.

    Args:
        network: F, with parameters without axes.
        t: The ends of the cells dt, 2 dt, ..., n dt; float64, [n].
        values: Values of the network's names.
        xp: The namespace of t.
    """
    if isinstance(network, Sum):
        parts = [cell_integrals(part, t, values, xp) for part in network.parts]
        whole, moment = parts[0]
        for more in parts[1:]:
            whole, moment = whole + more[0], moment + more[1]
        return whole, moment
    exponent, dt = _exponent(network, values), t[:1]
    first = 1 if exponent is not None else _DIFFERENCES
    once = response(network, t[:first], 2, values, xp)
    if exponent is not None:  # R is a power of time, and the moment of a constant is exactly 0
        head = once, once * dt * exponent / (2 * (2 - exponent))
    else:
        twice = response(network, t[:first], 3, values, xp)
        before = [xp.pad(each[:-1], 1, axis=-1) for each in (once, twice)]
        head = once - before[0], twice - before[1] - dt / 2 * (once + before[0])
    if t.shape[0] <= first:
        return head
    middle = t[first:] - dt / 2
    narrow = xp.constant(1 / (2 * np.arange(first + 1.0, t.shape[0] + 1) - 1), t)  # half a cell over its middle
    if exponent is not None:
        coefficients = _binomials(-exponent, _POWER_TERMS)
        factor = response(network, middle, 1, values, xp)
    else:
        value = network.value(_on_parabola(middle, 1, xp), values, xp)
        coefficients = xp.matmul(xp.constant(_taylor_weights(), t), value).real
        factor = 1.0
    square, whole, moment = narrow * narrow, 0.0, 0.0
    for j in reversed(range(len(coefficients) // 2)):
        whole = whole * square + coefficients[2 * j] / (2 * j + 1)
        moment = moment * square + coefficients[2 * j + 1] / (2 * j + 3)
    tail = dt * factor * whole, -dt * dt / 2 * factor * narrow * moment
    return xp.concat([head[0], tail[0]], axis=0), xp.concat([head[1], tail[1]], axis=0)


def _binomials(a: Any, count: int) -> list[Any]:
    """Return the first `count` Taylor coefficients of (1 + w)**a."""
    found = [1.0 + 0 * a]
    for i in range(count - 1):
        found.append(found[-1] * (a - i) / (i + 1))
    return found


@cache
def _taylor_weights() -> np.ndarray:
    """Return the weights of F(z / m) in the Taylor coefficients of the step response at time m, [terms, nodes]."""
    logs, weights = _parabola(1)
    return np.stack([weights * np.exp(i * logs) / math.factorial(i) for i in range(_TERMS)])


def response_tangents(network: Network, t: np.ndarray, integrals: int, values: Values) -> tuple[np.ndarray, Tangents]:
    """Return what `response` returns for NumPy at times t [n], and a function that returns its derivatives by names."""
    if isinstance(network, Sum):
        found = [response_tangents(part, t, integrals, values) for part in network.parts]
        total = sum((value for value, _ in found[1:]), start=found[0][0])
        return total, lambda: _added(slopes() for _, slopes in found)
    if isinstance(network, Power):
        return _power_tangents(network, t, integrals, values)
    parts = _decay(network, integrals, {})
    if parts is not None:
        (first, by_first), (second, by_second) = (tangents(part, on_reals(0 * t, NUMPY), values) for part in parts)
        value = np.exp(-second / first * t) / first

        def slopes() -> Slopes:
            factor = value * (second / first * t - 1) / first
            return _added(
                (
                    {name: factor * slope for name, slope in by_first().items()},
                    {name: -value * t / first * slope for name, slope in by_second().items()},
                )
            )

        return value, slopes
    value, by_name = tangents(network, _on_parabola(t, integrals, NUMPY), values)
    weights, factor = _parabola(integrals)[1], 1.0 if integrals == 1 else t ** (integrals - 1)
    return (weights @ value).real * factor, lambda: {
        name: (weights @ slope).real * factor for name, slope in by_name().items()
    }


def _power_tangents(power: Power, t: np.ndarray, integrals: int, values: Values) -> tuple[np.ndarray, Tangents]:
    """Return the response of a power c s**p, and a function that returns its derivatives by the names.

    With k = `integrals` the response is c t**(k - p - 1) / Gamma(k - p).
    """
    exponent, logs = float(_exponent(power, values)), np.log(t)
    gamma, slope = (float(reciprocal_gamma(np.asarray(integrals - exponent), n, NUMPY)) for n in (0, 1))
    base = np.exp((integrals - exponent - 1) * logs)
    at_one, by_name = tangents(power, on_reals(0 * t, NUMPY), values)

    def slopes() -> Slopes:
        found = {name: each * base * gamma for name, each in by_name().items()}
        if isinstance(power.exponent, str):
            found[power.exponent] -= power.sign * at_one * base * (logs * gamma + slope)
        return found

    return at_one * base * gamma, slopes


def _added(found: Iterable[Slopes]) -> Slopes:
    total: Slopes = {}
    for slopes in found:
        for name, slope in slopes.items():
            total[name] = total[name] + slope if name in total else slope
    return total


def _exponent(network: Network, values: Values) -> Any:
    """Return p if a network is a constant times s**p; None if it is not, or p is a name without a value."""
    if not isinstance(network, Power) or (isinstance(network.exponent, str) and network.exponent not in values):
        return None
    return network.sign * _valued(network.exponent, values)


def _decay(network: Network, integrals: int, values: Values) -> tuple[Network, Network] | None:
    """Return the parts a s**p and b s**(p - 1) of a network whose response is exp(-b t / a) / a; None for other ones.

    The result is None, too, where exponents are arrays.
    """
    if not (isinstance(network, Reciprocal) and isinstance(network.of, Sum) and len(network.of.parts) == 2):
        return None
    exponents = [_exponent(part, values) for part in network.of.parts]
    if not all(isinstance(each, int | float) for each in exponents):
        return None
    first, second = sorted(zip(exponents, network.of.parts, strict=True), key=lambda pair: -pair[0])
    return (first[1], second[1]) if (first[0], second[0]) == (1 - integrals, -integrals) else None


def _reciprocal_gamma(x: Any, xp: Namespace) -> Any:
    return (
        float(reciprocal_gamma(np.asarray(x), 0, NUMPY)) if isinstance(x, int | float) else reciprocal_gamma(x, 0, xp)
    )


@cache
def _parabola(integrals: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log z, and exp(z) z**-integrals dz / (pi i), at the nodes of the parabola's upper half.

    The real part of a sum over these nodes is the sum over both halves.
    """
    step, nodes = _NODES if integrals == 1 else _MORE_NODES
    roots = 1 + 1j * step * (np.arange(nodes) + 0.5)
    logs = np.log(_MU) + 2 * np.log(roots)
    return logs, 2 * step * _MU / np.pi * np.exp(_MU * roots**2 - integrals * logs) * roots


def _on_parabola(t: Array, integrals: int, xp: Namespace) -> Points:
    """Return the points z / t for the nodes z of the parabola, [nodes, *t]."""
    logs, _ = _parabola(integrals)
    return Points(xp.constant(logs.reshape(-1, *(1,) * t.ndim), t), -xp.log(t))


def _summed(value: Array, t: Array, integrals: int, xp: Namespace) -> Array:
    """Return the response to a step at times t, integrated `integrals` - 1 times more.

    `value` is F at the points z / t, [nodes, *t]; the result is a weighted sum over the nodes.
    """
    weights = xp.constant(_parabola(integrals)[1].reshape(-1, *(1,) * t.ndim), t)
    return xp.sum(weights * value, axis=0).real * t ** (integrals - 1)
