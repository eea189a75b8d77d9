"""The options of a fractional optimizer, alike in every framework: their checks, and the words of what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from numbers import Integral
from typing import Any

from hpfracc_nn.errors import as_float, as_index

EXPONENTIALS = "exponentials"
IN_RANGE = "needs 0 < alpha <= 1; pass alpha=1 for the base optimizer"


def check_alpha(alpha: Any) -> None:
    """Raise unless an order is a number in (0, 1]."""
    order = as_float(alpha)
    if order is None:
        raise TypeError(f"Invalid alpha type: {type(alpha).__name__}: needs a number; pass a float such as alpha=0.9")
    if not 0 < order <= 1:
        raise ValueError(f"Invalid alpha value: {alpha}: {IN_RANGE}")


def check_kind(kind: Any, kinds: Iterable[str]) -> None:
    """Raise unless a kind is one of the names."""
    names = tuple(kinds)
    if not (isinstance(kind, str) and kind in names):
        raise ValueError(f"Invalid kind: {kind!r}: needs one of {', '.join(map(repr, names))}; pass one of these names")


def check_memory(memory: Any) -> None:
    """Raise unless a memory is a whole number of at least 1, or "exponentials"."""
    if isinstance(memory, str) and memory == EXPONENTIALS:
        return
    length = as_index(memory) if isinstance(memory, Integral) else None
    if length is None:
        raise TypeError(
            f"Invalid memory type: {type(memory).__name__}: needs a whole number or {EXPONENTIALS!r}; "
            "pass the number of gradients to average, such as memory=10"
        )
    if length > sys.maxsize:
        raise ValueError(f"Invalid memory value: {memory}: needs memory < 2**63; pass such as memory=10")
    if length < 1:
        raise ValueError(
            f"Invalid memory value: {memory}: needs memory >= 1; pass the number of gradients to average, such as "
            "memory=10"
        )


def cannot_fade(kind: str) -> str:
    """Return what is wrong with exponentials for a kind of average that they do not stand for."""
    return (
        f"Invalid memory value: {EXPONENTIALS!r} with kind {kind!r}: exponentials stand for the "
        "weights of kind='integral'; pass the number of gradients, such as memory=10"
    )


def keeps_no_gradients(kind: str) -> str:
    """Return what is wrong with exponentials for a kind that is no average."""
    return (
        f"Invalid memory value: {EXPONENTIALS!r} with kind {kind!r}, which keeps no past gradients; pass "
        "a number, such as memory=10, which it leaves unused"
    )
