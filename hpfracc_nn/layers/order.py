"""How layers read orders, bounds and definitions, in every framework.

Recurrent layers remember m_t = sum over k >= 1 of a_k c_(t-k), with a_k = -w_k and (1 - z)**alpha = sum of w_k z**k
(Grünwald's weights): for 0 < alpha <= 1 no a_k is negative, they go like alpha k**(-1-alpha) / Gamma(1 - alpha), and
they add up to 1, so that m is an average by a power law.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition, DistributedOrder, GrunwaldLetnikov
from hpfracc_nn.fractional.definitions.definition import read_fixed
from hpfracc_nn.fractional.exponentials import FITS, Nodes, exponentials

Shape = tuple[int, ...]
Bounds = tuple[float, float]


class Order(Protocol):
    """A learned order, as layers take it: `Alpha` of each framework."""

    @property
    def shape(self) -> Shape:
        """The shape of alpha."""

    @property
    def bounds(self) -> Bounds:
        """The interval that alpha stays in."""

    def bounds_for(self, owner: str, bounds: Any, shape: Shape) -> Bounds:
        """Return the order's bounds, for a layer that takes it as its argument `alpha`.

        Args:
            owner: The layer, for messages.
            bounds: The layer's own argument `bounds`, which must be None.
            shape: The shape of alpha that the layer needs.

        Raises:
            ValueError: `bounds` is not None, or alpha has another shape.
        """


AnOrder = TypeVar("AnOrder", bound=Order)


def definition_of(owner: str, definition: str | type[Definition] | Definition, scheme: str | None) -> Definition:
    """Return a layer's argument `definition` as a Definition; a name or a class gets alpha = 0.5, a placeholder.

    Args:
        owner: The layer, for messages.
        definition: A name, a class, or a definition, whose alpha the layer replaces.
        scheme: The discretisation; None is the definition's own.

    Raises:
        TypeError: `definition` is none of them, or is of distributed order, which has no single alpha to set.
        ValueError: The name or the scheme is not known.
    """
    kind = definition if isinstance(definition, type) else type(definition)
    if issubclass(kind, DistributedOrder):
        raise TypeError(
            f"{owner}(definition={kind.__name__}): needs a definition with one order, and this one sums over its own; "
            "call the definition itself on the samples."
        )
    given = definition if isinstance(definition, Definition) else _kind(owner, definition)(0.5)
    return given if scheme is None else replace(given, scheme=scheme)


def begun(
    owner: str,
    given: Definition,
    alpha: Any,
    kind: type[AnOrder],
    make: Callable[[Any, Bounds, Shape], AnOrder],
    *,
    bounds: Any,
    learn_alpha: bool,
    shape: Callable[[Shape], Shape],
) -> tuple[Definition, AnOrder | None]:
    """Return a layer's definition and its learned order, None where the order is fixed.

    With a learned order the definition's own alpha is the upper bound, a placeholder.

    Args:
        owner: The layer, for messages.
        given: The definition, from `definition_of`.
        alpha: The layer's argument: a number, numbers, or an order, which then is the layer's own.
        kind: The framework's class of learned orders, `Alpha`.
        make: Makes a learned order from first values, bounds and a shape.
        bounds: The layer's argument; None is the unit interval around numbers to be learned.
        learn_alpha: Whether numbers are to be learned.
        shape: Maps the shape of `alpha` to the shape that the layer's order must have, or raises ValueError.

    Raises:
        TypeError: alpha is neither numbers nor an order of class `kind`; an array of the framework is not.
        ValueError: alpha or bounds are out of range, or alpha has a shape that does not fit the layer.
    """
    if isinstance(alpha, kind):
        low, high = alpha.bounds_for(owner, bounds, shape(alpha.shape))
        return replace(given, alpha=high, bounds=(low, high)), alpha
    errors.claim(owner, "learn_alpha", learn_alpha)
    start = replace(given, alpha=alpha, bounds=bounds)
    if not start.is_fixed:
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train it, or use derivative() for an alpha that you compute."
        )
    wanted = shape(np.shape(start.alpha))
    if not learn_alpha:
        return start, None
    within = start.bounds or _around(owner, start)
    return replace(start, alpha=within[1], bounds=within), make(start.alpha, within, wanted)


def options_text(definition: Definition) -> str:
    """Return a definition's name, scheme and further options as text for a layer's repr."""
    kind = type(definition)
    name = next((name for name, known in DEFINITIONS.items() if kind is known), None)
    said = kind.__name__ if name is None else repr(name)
    own = "".join(f", {option}={getattr(definition, option)!r}" for option in definition.own_fields)
    side = "" if definition.side == "left" else f", side={definition.side!r}"
    return f"definition={said}, scheme={definition.scheme!r}{own}{side}"


def unit_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return (c - 1, c) as floats, with c the upper end of an interval of orders rounded up, or 1 where it is 0."""
    c = math.ceil(interval[1]) if interval[1] != 0 else 1
    return float(c - 1), float(c)


def counted_orders(owner: str, alpha: Any, argument: str, count: int) -> int | None:
    """Return `count` where alpha has one order for each feature, None where alpha is a single order.

    Args:
        owner: The layer, for messages.
        alpha: The layer's argument: numbers or an order.
        argument: The layer's name for the number of features, for messages.
        count: The number of features.

    Raises:
        ValueError: alpha has another shape than [] or [count].
    """
    numbers = errors.as_numbers(alpha) if isinstance(alpha, list | tuple | np.ndarray) else None
    given = getattr(alpha, "shape", ()) if numbers is None else numbers.shape
    shape = given if isinstance(given, tuple) else ()
    if shape not in ((), (count,)):
        raise ValueError(
            f"{owner}(alpha of shape {shape}, {argument}={count}): needs one order, or one for each of them; "
            f"pass {count} orders."
        )
    return count if shape else None


def _around(owner: str, start: Definition) -> tuple[float, float]:
    """Return the default bounds of learned orders, the interval between whole numbers that holds their first values.

    Args:
        owner: The layer, for messages.
        start: The operator with the first values of alpha.

    Raises:
        ValueError: The first values lie on both sides of a whole number.
    """
    low, high = unit_interval(start.interval)
    least = start.interval[0]
    if least < low:
        raise ValueError(
            f"{owner}(alpha={start.alpha}, bounds=None): needs bounds for orders on both sides of a whole number; pass "
            f"bounds=({math.ceil(least) - 1}, {high:g})."
        )
    return low, high


def _kind(owner: str, definition: Any) -> type[Definition]:
    if isinstance(definition, type) and issubclass(definition, Definition):
        return definition
    if not isinstance(definition, str):
        raise TypeError(
            f"{owner}(definition={definition!r}): needs a name, a definition or the class of one; pass one of "
            f"{', '.join(map(repr, sorted(DEFINITIONS)))}."
        )
    return DEFINITIONS[errors.one_of(owner, "definition", definition, DEFINITIONS)]


def check_block_orders(owner: str, alpha: Any, values: np.ndarray, bounds: tuple[float, float] | None) -> None:
    """Raise ValueError unless orders are in (0, 1], where a solve needs no initial value but the state.

    Args:
        owner: The layer, for messages.
        alpha: The layer's argument, for messages.
        values: The orders as numbers.
        bounds: The layer's argument, checked by `block_bounds`; None is (0, 1).
    """
    if not ((values > 0) & (values <= 1)).all():
        raise ValueError(
            f"{owner}(alpha={alpha}): needs 0 < alpha <= 1, where the state at the start says all; above 1 use "
            "NeuralFDE, which takes its derivative too."
        )
    block_bounds(owner, bounds)


def block_bounds(owner: str, bounds: tuple[float, float] | None) -> Bounds:
    """Return bounds as floats, (0, 1) for None; raise ValueError unless they are an interval within [0, 1]."""
    low, high = errors.pair(owner, "bounds", (0.0, 1.0) if bounds is None else bounds)
    if not 0 <= low < high <= 1:
        raise ValueError(f"{owner}(bounds={(low, high)}): needs 0 <= low < high <= 1; pass for example (0, 1).")
    return low, high


def fixed_orders(owner: str, alpha: Any) -> np.ndarray:
    """Return a layer's argument `alpha`, a number or nested sequences of numbers, as a float64 array.

    Raises:
        TypeError: alpha is a framework's array, which the layer would not learn, or no numbers.
    """
    fixed = read_fixed(owner, alpha)
    if fixed is None:
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; pass learn_alpha=True "
            "to train it, an Alpha that several layers share, or use the function for an alpha that you compute."
        )
    return np.asarray(fixed, dtype=np.float64)


Part = tuple[np.ndarray, Bounds]  # indices of orders in their bank, and the bounds that they share


class Bank(NamedTuple):
    """A bank of differences of several orders, in parts: groups of orders between the same two whole numbers.

    Attributes:
        bounds: The bounds of all orders.
        values: First values of the orders, [channels * orders]; empty where the orders are an `Alpha`.
        parts: For each part the indices of its orders, and their bounds.
        definitions: The operator of each part; with learned orders its alpha is the upper bound, a placeholder.
    """

    bounds: Bounds
    values: np.ndarray
    parts: list[Part]
    definitions: tuple[GrunwaldLetnikov, ...]


def bank_of(
    owner: str, argument: str, given: Any, channels: int, orders: int, bounds: Bounds | None, learn_alpha: bool
) -> Bank:
    """Return the Bank of orders that are given as numbers.

    Args:
        owner: The layer, for messages.
        argument: The layer's name for the first values, for messages.
        given: First values: one, `orders`, or channels * orders numbers; None spreads them evenly over the bounds.
        channels: Channels of the input.
        orders: Orders per channel.
        bounds: The layer's argument; None is (0, 1).
        learn_alpha: Whether the orders are learned.

    Raises:
        TypeError: The first values are no real numbers, or the bounds no pair of numbers.
        ValueError: There are too few or too many first values, or they or the bounds are out of range.
    """
    low, high = errors.pair(owner, "bounds", (0.0, 1.0) if bounds is None else bounds)
    low, high = GrunwaldLetnikov((low + high) / 2, bounds=(low, high)).interval
    values = _first_orders(owner, argument, given, channels, orders, (low, high), learn_alpha)
    if not learn_alpha:
        for value in values.tolist():
            GrunwaldLetnikov(value, bounds=(low, high))  # raises where a fixed order is out of range
    parts = _stretches(values, low, high)
    definitions = tuple(
        GrunwaldLetnikov(ends[1] if learn_alpha else values[index].tolist(), bounds=ends) for index, ends in parts
    )
    return Bank((low, high), values, parts, definitions)


def bank_in_one(count: int, bounds: Bounds) -> Bank:
    """Return the Bank, a single part, whose `count` orders are an `Alpha` with these bounds."""
    definition = GrunwaldLetnikov(bounds[1], bounds=bounds)
    return Bank(bounds, np.empty(0), [(np.arange(count), bounds)], (definition,))


def _first_orders(
    owner: str, argument: str, given: Any, channels: int, orders: int, bounds: Bounds, learn_alpha: bool
) -> np.ndarray:
    """Return the first value of each order of a bank, [channels * orders].

    Args:
        owner: The layer, for messages.
        argument: The layer's name for the first values, for messages.
        given: One, `orders`, or channels * orders numbers; None spreads them evenly over the bounds.
        channels: Channels of the input.
        orders: Orders per channel.
        bounds: The bounds of the orders.
        learn_alpha: Whether the orders are learned; if so, values spread evenly keep off whole numbers.

    Raises:
        TypeError: `given` is no real numbers.
        ValueError: `given` has another number of values, or one that is not finite.
    """
    low, high = bounds
    if given is None:
        spread = low + (high - low) * (np.arange(orders) + 1) / (orders + 1)
        whole = np.isclose(spread, np.round(spread), rtol=0, atol=1e-9)
        # A learned order starts between whole numbers, and far enough from them to move.
        given = np.where(whole, np.round(spread) + 0.05 * learn_alpha, spread).tolist()
    numbers = errors.as_numbers(given)
    if numbers is None:
        raise TypeError(
            f"{owner}({argument} of type {type(given).__name__}): needs real numbers; pass one, or one for every order."
        )
    values = _counted(owner, argument, numbers, channels, orders)
    if not np.isfinite(values).all():
        raise ValueError(f"{owner}({argument}={given}): needs finite orders; pass values within ({low:g}, {high:g}).")
    return np.tile(values, channels * orders // values.size)


def _stretches(values: np.ndarray, low: float, high: float) -> list[Part]:
    """Return the parts of a bank: cut (low, high) at whole numbers, and keep each interval that holds some of `values`.

    Each part is the indices of its values, and its interval.
    """
    edges = [low, *range(math.floor(low) + 1, math.ceil(high)), high]
    parts = []
    for first, last in pairwise(edges):
        last_part = last == high
        inside = (values >= first if first != low else values > -math.inf) & ((values < last) | last_part)
        index = np.flatnonzero(inside)
        if index.size:
            parts.append((index, (float(first), float(last))))
    return parts


def roughness_orders(
    owner: str, alpha: Any, bounds: Any, channels: int, orders: int, learn_alpha: bool
) -> tuple[list[float] | None, Bounds]:
    """Return first orders and bounds of a layer of roughness features, as `FractionalDifference` takes them.

    Args:
        owner: The layer, for messages.
        alpha: The layer's argument: numbers, or None, which is returned as None.
        bounds: The layer's argument; None is (-1, 1).
        channels: Channels of the input.
        orders: Orders per channel.
        learn_alpha: Whether the orders are to be learned.

    Raises:
        TypeError: alpha is no numbers, or the bounds no pair of numbers.
        ValueError: Orders are out of bounds or of the wrong number, or a learned one is a bound or a whole number.
    """
    low, high = interval(owner, (-1.0, 1.0) if bounds is None else bounds, "(-1, 1)")
    if alpha is None:
        return None, (low, high)
    values = errors.as_numbers(alpha)
    if values is None:
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train them."
        )
    values = _counted(owner, "alpha", values, channels, orders)
    if not ((values >= low) & (values <= high)).all():
        raise ValueError(
            f"{owner}(alpha={alpha}): needs {low:g} <= alpha <= {high:g}; pass other orders, or bounds around them."
        )
    if learn_alpha and ((values == np.round(values)) | (values == low) | (values == high)).any():
        raise ValueError(
            f"{owner}(alpha={alpha}, learn_alpha=True): needs first orders inside ({low:g}, {high:g}) and beside whole "
            "numbers, which a learned order does not cross; start for example 0.05 above, or pass an Alpha, whose "
            "orders cross."
        )
    return values.tolist(), (low, high)


def interval(owner: str, bounds: Any, example: str) -> Bounds:
    """Return bounds as floats; raise ValueError unless low < high. `example` is a pair that messages suggest."""
    low, high = errors.pair(owner, "bounds", bounds, example)
    if not low < high:
        raise ValueError(f"{owner}(bounds={bounds!r}): needs low < high; pass a pair such as {example}.")
    return low, high


def _counted(owner: str, argument: str, values: np.ndarray, channels: int, orders: int) -> np.ndarray:
    """Return the values on one axis; raise ValueError unless there are 1, `orders` or channels * orders of them."""
    count = channels * orders
    if values.size not in (1, orders, count):
        raise ValueError(
            f"{owner}({argument} of {values.size} values): needs 1, orders={orders} or "
            f"channels * orders={count} values; pass one for every order."
        )
    return values.ravel()


_USUAL = 0.3  # the first alpha of ARFIMA where the caller gives none


def start_in(bounds: tuple[float, float] | None) -> float:
    """Return the first alpha of ARFIMA where none is given: 0.3, or the middle of bounds that do not contain 0.3."""
    if bounds is None:
        return _USUAL
    low, high = errors.pair("ARFIMA", "bounds", bounds, "(-0.5, 0.5)")
    return _USUAL if low < _USUAL < high else (low + high) / 2


ATTENTION = "attention"  # the operation that kernels of attention are registered for

# Below the greatest mask of its row a key is hidden: exp(-1e4) is 0 in every dtype, and what people write for minus
# infinity, such as -1e9 or the least number of any dtype, lies farther. Relative, because a number that is added to a
# whole row changes no weight.
NEGLIGIBLE = 1e4


def attention_orders(owner: str, alpha: Any, heads: int) -> float | tuple[float, ...]:
    """Return the fixed or first orders of attention: a float, or a tuple with one for each head.

    Raises:
        TypeError: alpha is neither a number nor a list or tuple of numbers.
        ValueError: There is not one order for each head, one is not in (0, 2], or some are 2 and others are not.
    """
    each = alpha if isinstance(alpha, list | tuple) else (alpha,)
    values = tuple(value for value in map(errors.as_float, each) if value is not None)
    if len(values) < len(each):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train it."
        )
    if isinstance(alpha, list | tuple) and len(values) != heads:
        raise ValueError(f"{owner}(alpha of {len(values)} values): needs one order, or one for each of {heads} heads.")
    if not all(0 < value <= 2 for value in values):
        raise ValueError(f"{owner}(alpha={alpha}): needs 0 < alpha <= 2; pass 2 for ordinary attention.")
    if 2.0 in values and set(values) != {2.0}:
        raise ValueError(f"{owner}(alpha={alpha}): needs 2 for all heads or none; pass for example 1.99 in its place.")
    return values if isinstance(alpha, list | tuple) else values[0]


def attention_bounds(owner: str, bounds: Any) -> Bounds:
    """Return the bounds of a learned order of attention, (0, 2) for None; raise ValueError unless within [0, 2]."""
    if bounds is None:
        return 0.0, 2.0
    low, high = errors.pair(owner, "bounds", bounds, "(0, 2)")
    if not 0 <= low < high <= 2:
        raise ValueError(f"{owner}(bounds={bounds!r}): needs 0 <= low < high <= 2; pass a pair such as (0, 2).")
    return low, high


_EXACT = 4  # up to this many times the lags that are exact anyway, all lags are exact


def averaging(owner: str, definition: Definition) -> GrunwaldLetnikov:
    """Return `definition` after checking that its weights average the past, as they do for 0 < alpha <= 1.

    Args:
        owner: The layer, for messages.
        definition: The difference with the layer's fixed order, or with the bounds of its learned order.

    Raises:
        ValueError: Some order is not in 0 < alpha <= 1, or some bound not in [0, 1].
    """
    assert isinstance(definition, GrunwaldLetnikov)
    bounds, lowest = definition.bounds, 0.0
    if bounds is None:
        bounds, lowest = (min(definition.orders), max(definition.orders)), math.ulp(0.0)
    if bounds[0] < lowest or bounds[1] > 1:
        what = f"bounds={bounds}" if definition.bounds is not None else f"alpha={definition.alpha}"
        raise ValueError(
            f"{owner}({what}): needs 0 < alpha <= 1, where the weights of the past are an average; "
            "alpha=1 is the ordinary cell."
        )
    return definition


def memory_nodes(definition: Definition, n: int, dtype: str, window: int | None) -> Nodes | None:
    """Return the sum of exponentials that replaces a memory's weights at old lags, or None where all weights are used.

    Args:
        definition: The difference; if its alpha is an array of a framework, the sum serves all orders in its bounds.
        n: Steps of the series.
        dtype: Name of the dtype that the memory is computed in, such as "float32".
        window: The largest lag that counts, for which all weights are used; None is no limit.
    """
    if window is not None or n <= _EXACT * FITS[dtype].first:
        return None
    return exponentials(definition, n + 1, dtype)
