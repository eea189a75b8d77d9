"""How every layer reads its order and its definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition, DistributedOrder
from hpfracc_nn.fractional.torch.alpha import Alpha
from hpfracc_nn.fractional.torch.eager import alpha_shape

Shape = tuple[int, ...]


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


def started(
    owner: str,
    given: Definition,
    alpha: Any,
    *,
    bounds: Any,
    learn_alpha: bool,
    shape: Callable[[Shape], Shape],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Definition, Alpha | None]:
    """Return a layer's definition and its order, which is None where it is fixed.

    Args:
        owner: The layer, for messages.
        given: From `definition_of`.
        alpha: As the layer was given it: a number, numbers, or an `Alpha`, which then is the order.
        bounds: As the layer was given them; None is the unit interval around numbers to be learned.
        learn_alpha: Whether numbers are to be learned.
        shape: The shape of what was given -> the shape that the layer's order must have; raises where none will do.
        device: Of a new order.
        dtype: Of a new order.

    Raises:
        TypeError: alpha is a tensor, or a module that is no `Alpha`.
        ValueError: alpha or bounds are out of range.
    """
    if isinstance(alpha, Alpha):
        low, high = alpha.taken_by(owner, bounds, shape(alpha.shape))
        return replace(given, alpha=high, bounds=(low, high)), alpha
    check_no_module(owner, "alpha", alpha)
    start = replace(given, alpha=alpha, bounds=bounds)
    if not start.is_fixed:
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a list of floats; "
            "pass learn_alpha=True to train it, or use derivative() for an alpha that you compute."
        )
    wanted = shape(alpha_shape(start))
    if not learn_alpha:
        return start, None
    within = start.bounds or _around(owner, start)
    order = Alpha(start.alpha, within, wanted, owner=owner, device=device, dtype=dtype)
    return replace(start, alpha=within[1], bounds=within), order


def check_no_module(owner: str, argument: str, given: Any) -> None:
    """Raise where what should be numbers is a module that is no `Alpha`."""
    if isinstance(given, nn.Module) and not isinstance(given, Alpha):
        raise TypeError(
            f"{owner}({argument} of type {type(given).__name__}): needs numbers or an Alpha; make your module a "
            "subclass of Alpha, whose call returns the orders."
        )


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
