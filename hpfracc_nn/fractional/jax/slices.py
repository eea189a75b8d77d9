"""Series whose time axis lies over a named axis of a mesh, inside of `jax.shard_map`: every device holds a slice.

    y[t + k] = sum over earlier and own d of w[lag] d[t + k - lag] + columns[t + k] values,        k = 0, ..., n - 1,

for the slice of n samples that begins at sample t, as `torch/slices.py` says. Here all slices have the same length,
because `jax.shard_map` cuts an axis into equal parts, and one program runs on all devices, whose place is traced.

Three things are exchanged, and none depends on the length: the first four samples of the series, which the boundary
columns multiply; the last samples of the slice before; and what each slice adds to the states of the exponentials, the
past of later slices, in one all-gather. Where samples are summed up before the product, the sum of each slice goes
first. The backward pass is JAX's own transpose, with the exchanges the other way round.

Slices that are shorter than what is exchanged are gathered as they are.

Source: Sun et al., LASP-2 (2025), arXiv:2502.07563, for one all-gather of states along the sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.boundary import Boundary, boundary_of, difference, values
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import Nodes, exponentials
from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.fractional.jax.definitions import checked_alpha
from hpfracc_nn.fractional.jax.sharding import beside, is_placed
from hpfracc_nn.fractional.jax.streaming import (
    canonical,
    canonical_weights,
    chunked,
    column_rows,
    column_sums,
    fading,
    of_orders,
    restored,
    row_numbers,
)
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.namespace import Namespace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.streaming import HORIZON, Rules, begun, rows_first, sums
from hpfracc_nn.fractional.weights import fixed_stencil

AxisName = Hashable | tuple[Hashable, ...]
Whole = Callable[[Array, Definition, int], Array]  # an ordinary call on a whole series, with time on an axis

_HEAD = 4  # first samples that the boundary columns and the differences read


@dataclass(frozen=True)
class Slices:
    """A series in equal slices over an axis of a mesh, as one of the devices sees it.

    Attributes:
        axis_name: The axis of the mesh over which the slices lie.
        count: How many slices.
        place: The number of this one in the order of time, traced.
        backwards: Whether the last device has the first slice.
    """

    axis_name: AxisName
    count: int
    place: Array
    backwards: bool

    @classmethod
    def over(cls, axis_name: AxisName, *, backwards: bool = False) -> Slices:
        """Return the slices over an axis of the mesh, as this device sees them inside of `jax.shard_map`."""
        count, index = lax.axis_size(axis_name), lax.axis_index(axis_name)
        return cls(axis_name, count, count - 1 - index if backwards else index, backwards)

    def gathered(self, x: Array) -> Array:
        """Return the arrays x of all slices, in the order of time, [slices, *x]."""
        found = lax.all_gather(x, self.axis_name)
        return jnp.flip(found, 0) if self.backwards else found

    def of_first(self, x: Array) -> Array:
        """Return the array x of the first slice."""
        return lax.psum(jnp.where(self.place == 0, x, jnp.zeros_like(x)), self.axis_name)

    def of_previous(self, x: Array) -> Array:
        """Return the array x of the slice before this one; in the first slice zeros."""
        if isinstance(self.axis_name, tuple) and len(self.axis_name) > 1:  # `ppermute` counts in the mesh's own order
            found = self.gathered(x)[jnp.maximum(self.place - 1, 0)]
            return jnp.where(self.place == 0, jnp.zeros_like(found), found)
        ring = [(k, (k + 1) % self.count) for k in range(self.count)]  # `jax.vmap` knows whole permutations only
        found = lax.ppermute(x, self.axis_name, [(b, a) for a, b in ring] if self.backwards else ring)
        return jnp.where(self.place == 0, jnp.zeros_like(found), found)

    def weighted(self, x: Array, weights: Array) -> Array:
        """Return the sum over the slices before this one of their arrays x times weights [slices, ...].

        The weight of a slice is the entry whose number is how many slices lie between.
        """
        between = self.place - 1 - jnp.arange(self.count)
        factors = jnp.where((between >= 0).reshape(-1, *(1,) * (weights.ndim - 1)), weights[jnp.maximum(between, 0)], 0)
        return (factors * self.gathered(x)).sum(0)


def may_be_sliced(owner: str, x: Array, definition: Definition, dt: float, axis_name: Any) -> bool:
    """Return whether samples whose time axis is known to lie over mesh axes can be computed slice by slice.

    Where they cannot, XLA gathers the series, but over explicit axes ValueError is raised.
    """
    left = definition.to_the_left
    if x.size and exponentials(left.in_steps(dt), HORIZON, "stream") is not None:
        return True
    if x.size and is_placed(x):
        low, high = definition.interval
        raise ValueError(
            f"{owner}({type(definition).__name__}, alpha within ({low:g}, {high:g}), time over the mesh axis "
            f"{axis_name!r}): needs weights that are a sum of decaying exponentials, the same for every alpha, where "
            "time lies over devices; gather the series with jax.sharding.reshard(x, spec), None for time in the spec."
        )
    return False


def applied(
    owner: str,
    x: Array,
    definition: Definition,
    dt: float,
    axis: int,
    axis_name: AxisName,
    whole: Whole,
) -> Array:
    """Return the slice of an operator's result, of the shape and dtype of the slice x, with time on `axis`.

    Args:
        owner: Name of the public function, for messages.
        x: The slice.
        definition: The operator; its orders may be traced.
        dt: Spacing of the samples.
        axis: The time axis.
        axis_name: The axis of the mesh over which the slices lie.
        whole: An ordinary call, for slices that are gathered.

    Raises:
        ValueError: The definition has no exponentials, or the axis of the mesh is not there, or x does not lie over it.
    """
    shape = (*x.shape[:axis], *x.shape[axis + 1 :])
    begun(owner, definition.to_the_left, shape, dt, HORIZON, None, checked_alpha, knows_start=True)  # raises
    slices = _checked(owner, x, axis_name)
    if slices.count * x.shape[axis] == 0 or x.size == 0:
        return x
    left, side = definition.to_the_left, definition.side

    def along(samples: Array, *, backwards: bool) -> Array:
        ordered = Slices.over(axis_name, backwards=backwards)
        return _along(owner, samples, left, dt, axis, ordered, whole)

    if side == "left":
        return along(x, backwards=False).astype(x.dtype)
    reverse = jnp.flip(along(jnp.flip(x, axis), backwards=True), axis)
    if side == "right":
        return reverse.astype(x.dtype)
    return ((along(x, backwards=False) + reverse) / 2).astype(x.dtype)


def _checked(owner: str, x: Array, axis_name: AxisName) -> Slices:
    """Return the slices over a mesh axis, as this device sees them.

    Raises:
        ValueError: There is no such axis, or x is seen to be the same on all of its devices.
    """
    try:
        slices = Slices.over(axis_name)
    except (NameError, KeyError, ValueError, TypeError):
        raise ValueError(
            f"{owner}(axis_name={axis_name!r}): needs the name of a mesh axis over which time lies, inside of "
            "jax.shard_map; call it there with specs that split the time axis over it."
        ) from None
    seen = jax.typeof(slices.place)
    names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
    if slices.count > 1 and set(names) <= _varies(seen) and not set(names) & _varies(jax.typeof(x)):
        raise ValueError(
            f"{owner}(axis_name={axis_name!r}): needs slices of the series, and x is the same on all devices of that "
            "axis; split its time axis over it in in_specs, or leave out axis_name."
        )
    return slices


def _varies(kind: Any) -> set[Hashable]:
    """Return the axes of `jax.shard_map` over which a value is known to vary."""
    return set(kind.vma if hasattr(kind, "vma") else kind.mat.varying)  # by the version of JAX


def _along(
    owner: str,
    x: Array,
    definition: Definition,
    dt: float,
    axis: int,
    slices: Slices,
    whole: Whole,
) -> Array:
    """Return a left-sided operator's result for the slice x, in its shape."""
    shape, n = (*x.shape[:axis], *x.shape[axis + 1 :]), x.shape[axis]
    total = slices.count * n
    horizon = max(HORIZON, 1 << (total - 1).bit_length())
    rules, nodes, alpha = begun(owner, definition, shape, dt, horizon, None, checked_alpha, knows_start=True)
    first, m = nodes.first, max(0, rules.differences)
    if n < first + _HEAD:
        series = slices.gathered(jnp.moveaxis(x, axis, 0)).reshape(total, *shape)
        found = whole(jnp.moveaxis(series, 0, axis), definition, axis)
        return lax.dynamic_slice_in_dim(found, slices.place * n, n, axis)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        samples = jnp.moveaxis(x, axis, 0).astype(widest())
        stencil = fixed_stencil(rules.definition, total, rules.dt)
        start = _Start.of(slices.of_first(samples[:_HEAD]), stencil)
        d = _differenced(samples, start, first, m, slices)
        if (
            alpha is not None
        ):  # else devices would sum the gradients in whole matrices of weights in place of that in alpha
            alpha = beside(alpha, slices.place)
        weights = _weights(rules, alpha, nodes)
        taps, columns = weights["taps"], weights["columns"]
        layout = layout_of(owner, tuple(x.shape), axis, taps.shape[1:])
        rates = jnp.asarray(nodes.rates, widest())
        chunks = chunked(canonical(d, layout), canonical_weights(taps, layout), rates)
        between = fading(rates, n * np.arange(slices.count))[:, None, None, :, None]
        past = slices.weighted(chunks.carry_alone, between)
        y, t = restored(chunks.results(past), layout), slices.place * n
        for column, grows, value in zip(columns, _growing(rules, stencil), start.values, strict=True):
            rows = column_rows(column, rates, t, n)
            y = y + (rows * row_numbers(t, n, rows) if grows else rows) * value
        return jnp.moveaxis(y, 0, axis)


@dataclass(frozen=True)
class _Start:
    """What all results take from the first samples of the series.

    Attributes:
        x: The first samples, [4, *shape].
        d: Their differences, [4, *shape].
        values: What the boundary columns multiply, [*shape] each.
        boundary: The boundary of the whole series.
    """

    x: Array
    d: Array
    values: list[Array]
    boundary: Boundary

    @classmethod
    def of(cls, head: Array, stencil: Stencil) -> _Start:
        boundary, shape = boundary_of(stencil), head.shape[1:]
        flat = head.reshape(1, 1, head.shape[0], -1)
        d = difference(flat, boundary)
        found = [each.reshape(shape) for each in values(flat, d, boundary)]
        return cls(head, d.reshape(head.shape), found, boundary)


def _differenced(x: Array, start: _Start, first: int, m: int, slices: Slices) -> Array:
    """Return d of the last `first` samples before a slice x [n, *shape], and of its own, [first + n, *shape]."""
    b = start.boundary
    z = x - start.x[:1] if b.differences == 0 and b.subtract else x
    if b.differences < 0:
        before = slices.weighted(x.sum(0), jnp.ones((slices.count, *(1,) * (x.ndim - 1)), x.dtype))
        z = before + jnp.cumsum(x, axis=0)
    d = jnp.concatenate([slices.of_previous(z[-first - m :]), z])
    for _ in range(m):
        d = d[1:] - d[:-1]
    if m == 1 and b.taylor == 2:  # of the first differences, too, the straight line is subtracted
        d = d - (start.x[1:2] - start.x[:1] - start.d[1:2])
    if m == 0:
        return d
    is_first = slices.place == 0
    own = jnp.where(is_first, start.d, d[first : first + _HEAD])
    return jnp.concatenate([jnp.where(is_first, 0, d[:first]), own, d[first + _HEAD :]])


def _weights(rules: Rules, alpha: Array | None, nodes: Nodes) -> dict[str, Any]:
    """Return "taps", as those of a stream, and "columns", a list of the boundary columns, [rows, *c] each.

    The columns are in the order of `boundary.values`, as `column_rows` takes them. `nodes` are the exponentials.
    """

    def made(orders: Array | None, xp: Namespace) -> dict[str, Any]:
        stencil = rules.stencil(orders, xp)
        columns = [] if stencil.start_column is None else [sums(stencil.start_column, nodes, xp)]
        grows = _growing(rules, stencil)[len(columns) :]
        columns += [column_sums(stencil, nodes, j, grows=grows[j], xp=xp) for j in range(stencil.terms)]
        return {"taps": sums(stencil.column, nodes, xp), "columns": columns}

    return jax.tree.map(lambda each: rows_first(each, len(rules.shape), JAX), of_orders(made, alpha))  # type: ignore[no-any-return]


def _growing(rules: Rules, stencil: Stencil) -> list[bool]:
    """Return for each boundary column whether it grows, as that on x(0) of an integral above order 1 does."""
    return [False] * (stencil.start_column is not None) + [rules.differences < 0] * stencil.terms
