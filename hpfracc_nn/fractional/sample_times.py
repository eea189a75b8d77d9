"""Checked sample times as a hashable value, by which weights are cached, and how they fit samples and orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.layout import Layout, layout_of
from hpfracc_nn.fractional.namespace import Array, namespace


@dataclass(frozen=True)
class Times:
    """Increasing sample times; two objects are equal if the shape and the bytes of their values are.

    Attributes:
        values: Times since the first one of each grid; float64, [grids, n], read-only. There is one grid for all
            signals, or one for each set of weights.
    """

    values: np.ndarray = field(compare=False)
    _key: tuple[tuple[int, ...], bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", (self.values.shape, self.values.tobytes()))

    @cached_property
    def steps(self) -> np.ndarray:
        """The lengths of the cells, which are the intervals between times, [grids, n - 1]."""
        return np.diff(self.values, axis=-1)

    @property
    def n(self) -> int:
        """The number of times in each grid."""
        return self.values.shape[1]

    @property
    def cells(self) -> int:
        """The number of cells, which are the intervals between times: n - 1."""
        return self.n - 1


@dataclass(frozen=True, eq=False)
class Sampling:
    """How the axes of samples, times and orders correspond.

    Attributes:
        layout: The samples' layout; its channels are sets of weights, which differ in times, orders or both.
        times: The times, of one grid for all sets or of one for each.
        sets: The shape to which orders broadcast; flattened, it has one entry for each set.
    """

    layout: Layout
    times: Times
    sets: tuple[int, ...]

    def by_set(self, orders: Array) -> Array:
        """Return orders [*c, r] as [1, r], or as [sets, r] where they differ between sets; r is 1 or counts samples."""
        r = orders.shape[-1]
        if prod(orders.shape) == r:
            return orders.reshape(1, r)
        return namespace(orders).broadcast_to(orders, (*self.sets, r)).reshape(-1, r)


def sampling_of(
    owner: str, t: Any, shape: Sequence[int], axis: int, alpha: Array, *, varies: bool
) -> tuple[Sampling, Array]:
    """Return the Sampling of samples at times `t`, and the orders with time last: [*c, 1], or [*c, n] if they vary.

    Args:
        owner: The public function, for messages.
        t: Times, [n], or of a shape that broadcasts to that of the samples.
        shape: Shape of the samples.
        axis: Their time axis, not negative.
        alpha: Orders that broadcast to the axes other than time; where they vary with time, to all axes.
        varies: Whether the orders vary with time.

    Raises:
        TypeError: The times are no real numbers.
        ValueError: The times are not as many as the samples, do not broadcast, are not finite, do not increase or
            require a gradient; or alpha does not broadcast.
    """
    shape = tuple(shape)
    alpha = _time_last(owner, "alpha", alpha, shape, axis) if varies else alpha[..., None]
    orders = tuple(alpha.shape[:-1])
    layout_of(owner, shape, axis, orders)  # raises for alpha alone, before times and orders are broadcast together
    values = _since_first(owner, _time_last(owner, "t", _read(owner, t), shape, axis))
    grids, n = values.shape[:-1], values.shape[-1]
    sets = np.broadcast_shapes(grids, orders)
    if prod(grids) > 1:
        values = np.broadcast_to(values, (*sets, n))
    values = np.array(values.reshape(prod(values.shape[:-1]), n))  # a copy: the caller may go on writing into his
    values.flags.writeable = False
    return Sampling(layout_of(owner, shape, axis, sets), Times(values), sets), alpha


def _read(owner: str, t: Any) -> np.ndarray:
    if getattr(t, "requires_grad", False):
        raise ValueError(f"{owner}(t): needs times without a gradient, which it does not have; pass t.detach().")
    values = np.asarray(t.cpu() if hasattr(t, "cpu") else t)
    if values.dtype.kind not in "iuf":
        since = "since the first, in one unit of time, such as (t - t[0]) / numpy.timedelta64(1, 's')"
        way = since if values.dtype.kind in "mM" else "as float64 in one unit of time"
        raise TypeError(f"{owner}(t of dtype {values.dtype}): needs real times; pass them {way}.")
    return values


def _time_last(owner: str, name: str, values: Array, shape: tuple[int, ...], axis: int) -> Array:
    """Return times or orders with time last, [..., n], where ... broadcasts to the signals.

    Raise ValueError unless there is one for each sample.

    Args:
        owner: The public function, for messages.
        name: Name of the values, for messages.
        values: Times or orders, [n] or of a shape that broadcasts to that of the samples.
        shape: Shape of the samples.
        axis: Their time axis, not negative.
    """
    given = tuple(values.shape)
    full = tuple(given[0] if i == axis else 1 for i in range(len(shape))) if len(given) == 1 else given
    padded = (1,) * (len(shape) - len(full)) + full
    if len(padded) != len(shape) or padded[axis] != shape[axis]:
        raise ValueError(
            f"{owner}({name} of shape {given}, x of shape {shape}): needs one number for each of the {shape[axis]} "
            f"samples along dim; pass {name} of that length, or of x's shape."
        )
    if any(size not in (1, of) for size, of in zip(padded, shape, strict=True)):
        raise ValueError(
            f"{owner}({name} of shape {given}, x of shape {shape}): needs {name} to broadcast to x; pass one row, or "
            "one for each signal, shaped to fit."
        )
    axes = [i for i in range(len(shape)) if i != axis]
    return namespace(values).permute_dims(values.reshape(padded), (*axes, axis))


def _since_first(owner: str, values: np.ndarray) -> np.ndarray:
    """Return times [..., n] minus the first of each grid, subtracted in their own precision and rounded to float64.

    Raise ValueError unless they are finite and increase, also after rounding.
    """
    _check_increasing(owner, values)
    # In 64 unsigned bits no difference of integers that increase overflows.
    wide = np.uint64 if values.dtype.kind in "iu" else np.result_type(values, np.float64)
    found = (values.astype(wide) - values[..., :1].astype(wide)).astype(np.float64)
    steps = np.diff(found, axis=-1)
    is_bad = ~((steps > 0) & (steps < np.inf))
    if is_bad.any():
        raise ValueError(
            f"{owner}(t): needs times whose distance from the first is told apart in float64; {_pair(values, is_bad)}: "
            "merge such samples, or begin later."
        )
    return found


def _check_increasing(owner: str, values: np.ndarray) -> None:
    is_bad = ~np.isfinite(values)
    if is_bad.any():
        index = tuple(int(i) for i in np.argwhere(is_bad)[0])
        raise ValueError(f"{owner}(t): needs finite times; {_name(index)}={values[index]:g}: leave such samples out.")
    is_bad = values[..., 1:] <= values[..., :-1]  # a difference of unsigned integers would wrap round
    if is_bad.any():
        raise ValueError(
            f"{owner}(t): needs times that increase; {_pair(values, is_bad)}: sort the samples by time and merge those "
            "of one time."
        )


def _pair(values: np.ndarray, is_bad: np.ndarray) -> str:
    """Return the text "t[i]=... follows t[i-1]=..." for the first of the times [..., n] that is bad.

    `is_bad` [..., n - 1] has no entry for the first time.
    """
    index = tuple(int(i) for i in np.argwhere(is_bad)[0])
    after = (*index[:-1], index[-1] + 1)
    first, second = (values[at] if values.dtype.kind in "iu" else f"{values[at]:.15g}" for at in (index, after))
    return f"{_name(after)}={second} follows {_name(index)}={first}"


def _name(index: tuple[int, ...]) -> str:
    used = index[-1:] if not any(index[:-1]) else index
    return f"t[{', '.join(map(str, used))}]"
