"""How every layer reads its order and its definition, in every framework."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition, DistributedOrder

Shape = tuple[int, ...]
Bounds = tuple[float, float]


class Order(Protocol):
    """A learned order, as layers take it: `Alpha` of each framework."""

    @property
    def shape(self) -> Shape:
        """The shape of alpha."""

    def taken_by(self, owner: str, bounds: Any, shape: Shape) -> Bounds:
        """Return its bounds for a layer that was given it as its order, or raise."""


AnOrder = TypeVar("AnOrder", bound=Order)


def definition_of(owner: str, definition: str | type[Definition] | Definition, scheme: str | None) -> Definition:
    """Return the definition that a layer was given as a name, a class or a member of one, whose order means nothing.

    Raises:
        TypeError: It is none of them, or has no order of its own that a layer could set.
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
    """Return a layer's definition and its order, which is None where it is fixed.

    Args:
        owner: The layer, for messages.
        given: From `definition_of`.
        alpha: As the layer was given it: a number, numbers, or an order, which then is the layer's.
        kind: The class of the framework's orders.
        make: Makes one from first values, bounds and a shape.
        bounds: As the layer was given them; None is the unit interval around numbers to be learned.
        learn_alpha: Whether numbers are to be learned.
        shape: The shape of what was given -> the shape that the layer's order must have; raises where none will do.

    Raises:
        TypeError: alpha is an array of the framework.
        ValueError: alpha or bounds are out of range.
    """
    if isinstance(alpha, kind):
        low, high = alpha.taken_by(owner, bounds, shape(alpha.shape))
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


def told(definition: Definition) -> str:
    """Return a definition's options as a layer shows them."""
    kind = type(definition)
    name = next((name for name, known in DEFINITIONS.items() if kind is known), None)
    said = kind.__name__ if name is None else repr(name)
    own = "".join(f", {option}={getattr(definition, option)!r}" for option in definition.own_fields)
    side = "" if definition.side == "left" else f", side={definition.side!r}"
    return f"definition={said}, scheme={definition.scheme!r}{own}{side}"


def unit_interval(interval: tuple[float, float]) -> tuple[float, float]:
    """Return (c - 1, c) around orders that lie in it."""
    c = math.ceil(interval[1]) if interval[1] != 0 else 1
    return float(c - 1), float(c)


def counted_orders(owner: str, alpha: Any, argument: str, count: int) -> int | None:
    """Return `count` where alpha is one order for each feature, None where it is one order, or raise.

    Args:
        owner: The layer, for messages.
        alpha: As it was given.
        argument: What the layer calls the number of features.
        count: That number.
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
    """Return the unit interval around first orders, or raise where there is none."""
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
