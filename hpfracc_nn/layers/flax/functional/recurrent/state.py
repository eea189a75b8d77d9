"""The state of a recurrent layer for Flax between two steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.layers.flax.functional.core import serializable
from hpfracc_nn.layers.flax.functional.recurrent.memory import Lags, Past
from hpfracc_nn.layers.flax.functional.recurrent.run import Before


@dataclass(frozen=True)
class RecurrentState:
    """What a recurrent layer remembers between two steps, or two parts of a series: all of its past.

    It is made by `initial_state`, returned by a call with `return_carry=True`, and is a pytree of arrays with the batch
    first, which `lax.scan` carries. It takes as much memory after a million steps as at the first, and does not depend
    on alpha: what goes on from it with other parameters weighs the whole past by the new order.

    Attributes:
        h: The last output of each cell, [*batch, cells, outputs]; cells are layers times directions.
        value: What each cell remembered last, [*batch, cells, units]: c of an LSTM, h of a GRU.
        near: The last values, newest first, [*batch, cells, K, units].
        far: Sums over the older ones, [*batch, cells, Q, units].
        horizon: The longest series that the exponentials are fitted for.
    """

    h: Array
    value: Array
    near: Array
    far: Array
    horizon: int

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, the same at every step."""
        return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(self))

    def cell(self, number: int, lags: Lags) -> Before:
        """Return the part of one cell, with one axis of the batch."""
        h, value = (_joined(each[..., number, :], 1) for each in (self.h, self.value))
        near, far = (_joined(each[..., number, :, :], 2) for each in (self.near, self.far))
        return Before(h, value, Past(near, far))


jax.tree_util.register_dataclass(RecurrentState, data_fields=["h", "value", "near", "far"], meta_fields=["horizon"])
serializable(RecurrentState, "h", "value", "near", "far", "horizon")


class Start(NamedTuple):
    """A start as ordinary cells have one: of all that is remembered one value is not 0.

    Attributes:
        h: [*batch, cells, outputs].
        value: [*batch, cells, units].
    """

    h: Array
    value: Array

    def cell(self, number: int, lags: Lags) -> Before:
        """Return the part of one cell, with one axis of the batch."""
        h, value = (_joined(each[..., number, :], 1) for each in self)
        return Before(h, value, lags.begun(value))

    def state(self, lags: Lags, horizon: int) -> RecurrentState:
        """Return the state that it is."""
        batch = self.value.shape[:-1]
        near, far = (each.reshape(*batch, *each.shape[1:]) for each in lags.begun(_joined(self.value, 1)))
        return RecurrentState(self.h, self.value, near, far, horizon)


def stacked(befores: Sequence[Before], batch: tuple[int, ...], horizon: int) -> RecurrentState:
    """Return the state of cells whose parts have one axis of the batch."""
    flat = [(h, value, *past) for h, value, past in befores]
    parts = (unplaced(partial(jnp.stack, axis=1), each) for each in zip(*flat, strict=True))
    h, value, near, far = (each.reshape(*batch, *each.shape[1:]) for each in parts)
    return RecurrentState(h, value, near, far, horizon)


def read_start(owner: str, given: Any, shapes: Sequence[tuple[int, ...]], names: str, dtype: Any) -> Start:
    """Return the start that a caller gave, or raise.

    Args:
        owner: Who asks, for messages.
        given: None for zeros, h and c of an LSTM in Flax's order, (c, h), or h of a GRU; each as `shapes` has it, or
            without the axis of the cells where there is one cell.
        shapes: Of h and of what is remembered, [*batch, cells, ...].
        names: "(c, h)" or "h".
        dtype: What it is computed in.
    """
    if given is None:
        return Start(*(jnp.zeros(shape, dtype) for shape in shapes))
    parts = (given, given) if names == "h" else given
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not all(hasattr(each, "shape") for each in parts):
        raise TypeError(
            f"{owner}(initial_carry of type {type(given).__name__}): needs a state, or {names}; "
            "pass what initial_state returned, or None for zeros."
        )
    found = []
    for each, shape in zip(reversed(parts), shapes, strict=True):
        whole = each[..., None, :] if shape[-2] == 1 and each.ndim == len(shape) - 1 else each
        if whole.shape != shape:
            raise ValueError(
                f"{owner}(initial_carry of shape {each.shape}): needs {shape}, the batch first, then one row for each "
                "layer and direction; pass None for zeros."
            )
        found.append(whole.astype(dtype))
    return Start(*found)


def check_state(owner: str, state: RecurrentState, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise unless the arrays of a state have these shapes."""
    for name, wanted in zip(("h", "value", "near", "far"), shapes, strict=True):
        found = getattr(state, name).shape
        if found != wanted:
            raise ValueError(
                f"{owner}(state with {name} of shape {found}): needs {wanted}; pass what the layer's own initial_state "
                "returned for such a batch."
            )


def _joined(x: Array, kept: int) -> Array:
    """Return x with one axis in the place of all but the last `kept`."""
    rest = x.ndim - kept
    return x.reshape(math.prod(x.shape[:rest]), *x.shape[rest:])
