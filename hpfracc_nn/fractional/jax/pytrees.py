"""Definitions as pytrees: orders that are an array are a leaf, numbers and words are part of the structure."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import jax

from hpfracc_nn.fractional.definitions import DEFINITIONS, MULTIPLIERS

Value = Any  # a Definition or a Multiplier


def _flattened(value: Value) -> tuple[tuple[Any, ...], tuple[bool, tuple[Any, ...]]]:
    rest = tuple(getattr(value, field.name) for field in fields(value) if field.name != "alpha")
    if value.is_fixed:
        return (), (True, (value.alpha, *rest))
    return (value.alpha,), (False, rest)


def _restored(kind: type, structure: tuple[bool, tuple[Any, ...]], leaves: Any) -> Value:
    """Nothing is checked: JAX puts objects of its own in the place of arrays."""
    is_fixed, kept = structure
    value: Value = object.__new__(kind)
    names = [field.name for field in fields(kind) if field.name != "alpha"]
    object.__setattr__(value, "alpha", kept[0] if is_fixed else next(iter(leaves)))
    for name, given in zip(names, kept[1:] if is_fixed else kept, strict=True):
        object.__setattr__(value, name, given)
    return value


def _register(kind: type) -> None:
    jax.tree_util.register_pytree_node(kind, _flattened, lambda structure, leaves: _restored(kind, structure, leaves))


for _kind in {*DEFINITIONS.values(), *MULTIPLIERS.values()}:
    _register(_kind)
