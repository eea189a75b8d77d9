"""States, orders and times of a solve, how a state is laid out, and the right-hand side as a traced function.

Concrete arguments are checked, and a wrong one raises an error. Traced arguments have no numbers yet: their shapes and
dtypes are checked, and their numbers only by `jax.experimental.checkify`, if a caller uses it.

Shapes: inside of a solve a state is an array [a, *rest], with a orders alpha and the axes that share each of them. For
one order this array is the user's with an axis of 1 put in front, or the user's pytree joined into a vector,
[1, numbers].

A right-hand side is traced once. Arrays that the right-hand side reads besides t and y, from `args`, a closure or a
module, become arguments, so that JAX differentiates in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import within
from hpfracc_nn.fractional.jax.float64 import in_float64, mapped
from hpfracc_nn.fractional.jax.sharding import beside, unplaced
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.mesh import Graded, Mesh, Points

State = Any  # a pytree of arrays
_DTYPES = tuple(map(np.dtype, ("float32", "float64", "complex64", "complex128")))


def is_traced(x: Any) -> bool:
    """Return whether x is a tracer of JAX, which has no numbers yet."""
    return isinstance(x, jax.core.Tracer)


def checked_state(owner: str, name: str, y: State, is_complex: bool = False) -> State:
    """Return the user's state with all leaves as arrays of JAX; raise an error for a state that cannot be solved.

    Args:
        owner: The name of the public function, for messages.
        name: The name of its argument, for messages.
        y: The state, a pytree of arrays.
        is_complex: Whether complex dtypes are allowed.

    Raises:
        TypeError: A leaf is no array, its dtype is not allowed, or dtypes of leaves differ.
        ValueError: The state holds no numbers, or a number that is not finite.
    """
    leaves, tree = jax.tree.flatten(y)
    if not leaves:
        raise ValueError(f"{owner}({name}={y!r}): needs an array, or some of them; pass the state at the start.")
    for leaf in leaves:
        if isinstance(leaf, bool) or not isinstance(leaf, jax.Array | np.ndarray | np.generic | float | complex):
            raise TypeError(
                f"{owner}({name} of type {type(leaf).__name__}): needs an array, or a pytree of arrays; pass "
                f"jax.numpy.asarray({name})."
            )
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    for k, part in enumerate(arrays):
        if part.dtype not in (_DTYPES if is_complex else _DTYPES[:2]):
            raise checks.wrong_dtype(owner, name, part.dtype, jnp.iscomplexobj(part), "astype(jax.numpy.float32)")
        if part.dtype != arrays[0].dtype:
            raise TypeError(
                f"{owner}({name}): needs arrays of one dtype; they are {arrays[0].dtype} and {part.dtype}; convert "
                "them with .astype(...)."
            )
        if part.size == 0:
            raise ValueError(f"{owner}({name} of shape {part.shape}): needs numbers; pass a state that has some.")
        if is_traced(part):
            arrays[k] = checked(part, jnp.isfinite(part).all(), f"{owner}({name}): needs finite numbers.")
        elif not np.isfinite(np.asarray(part)).all():
            values = np.asarray(part).reshape(-1)
            i = int(np.argmin(np.isfinite(values)))
            raise ValueError(
                f"{owner}({name}): needs finite numbers; {name} holds {values[i]} at place {i} of {values.size}; "
                "replace it, or leave what it belongs to out."
            )
    return jax.tree.unflatten(tree, arrays)


@dataclass(frozen=True, eq=False)
class Orders:
    """The orders alpha of a solve, concrete or traced: either `values` or `traced` is None.

    Attributes:
        values: Concrete orders, [a], float64.
        traced: Traced orders, [a]; an order out of range is NaN.
        shape: The shape of the user's alpha.
        highest: The upper end of the range of traced orders.
        lowest: The lower end of the range of traced orders.
    """

    values: np.ndarray | None
    traced: Array | None
    shape: tuple[int, ...]
    highest: float
    lowest: float = 0.0

    @property
    def alpha(self) -> np.ndarray | Array:
        """The orders, concrete or traced, [a]."""
        return self.traced if self.values is None else self.values  # type: ignore[return-value]

    def computed(self, formulas: Callable[[Any, Namespace], Any], dtype: Any, alpha: Array | None = None) -> Any:
        """Return formulas(alpha, xp), arrays [a, ...]: of NumPy in float64, or of JAX in `dtype` if alpha is traced.

        Both are computed in float64. Traced orders may be replaced by other ones, `alpha`, in which the caller
        differentiates.
        """
        if self.values is not None:
            return formulas(self.values, NUMPY)
        made = mapped(lambda alpha: formulas(alpha, JAX), 1)
        return in_float64(made, self.traced if alpha is None else alpha, jnp.dtype(dtype))  # type: ignore[arg-type]


def orders_of(
    owner: str, alpha: Any, low: float, high: float, check: Callable[[np.ndarray], None], example: float
) -> Orders:
    """Return the orders of a call, checked.

    Args:
        owner: The name of the public function, for messages.
        alpha: The user's alpha, a number or an array.
        low: The lower end of the range of traced orders, not itself an order.
        high: The upper end of this range; not itself an order if `high` is above 1.
        check: Raises an error if concrete orders, [a], are out of range.
        example: An order in the range, for messages.

    Raises:
        TypeError: `alpha` is neither a number nor a floating array.
        ValueError: `alpha` is concrete and out of range.
    """
    if isinstance(alpha, jax.Array | np.ndarray):
        if not jnp.issubdtype(alpha.dtype, jnp.floating):
            raise TypeError(
                f"{owner}(alpha of dtype {alpha.dtype}): needs a floating array; pass alpha.astype(jax.numpy.float32)."
            )
    elif isinstance(alpha, bool) or not isinstance(alpha, int | float | np.floating):
        raise TypeError(
            f"{owner}(alpha of type {type(alpha).__name__}): needs a float or a floating array; pass for example "
            f"{example:g}."
        )
    shape = tuple(np.shape(alpha))
    if not is_traced(alpha):
        values = np.asarray(alpha, np.float64).reshape(-1)
        check(values)
        return Orders(values, None, shape, high, low)
    eps = float(jnp.finfo(alpha.dtype).eps)
    nearest = low + eps, high if high == 1 else high - 2 * eps
    lowest = low and nearest[0]  # at 1/2 a residual's deviation is infinite
    return Orders(None, within(owner, alpha, low, high, nearest).reshape(-1), shape, high, lowest)


def smallest_order(owner: str, orders: Orders, mesh: Mesh | Points) -> float:
    """Return the smallest order, by which a graded mesh chooses its exponent; 1 if alpha is traced.

    Raises:
        ValueError: The mesh needs the smallest order, and alpha is traced.
    """
    if orders.values is not None:
        return float(orders.values.min())
    if not isinstance(mesh, Graded) or mesh.exponent is not None:
        return 1.0
    raise ValueError(
        f"{owner}(mesh={mesh}): needs an exponent where alpha is traced, because the mesh is made "
        "before alpha has a value; pass mesh=Graded(2 / alpha) with a number."
    )


def slope_of(owner: str, dy0: State, layout: Layout, orders: Orders) -> Array:
    """Return the user's derivative at the start, `dy0`, as an array [a, *rest], with 0 for orders up to 1.

    Raise ValueError for another tree or shapes than the state's.
    """
    shapes = tuple(tuple(leaf.shape) for leaf in jax.tree.leaves(dy0))
    if jax.tree.structure(dy0) != layout.tree or shapes != layout.shapes:
        raise checks.slope_shape(owner, shapes, layout.shapes)
    slope = layout.joined(dy0)
    return slope * layout.spread(jnp.asarray(orders.alpha > 1)).astype(slope.dtype)


def times_of(owner: str, ts: Any) -> np.ndarray | Array:
    """Return the output times `ts`, checked: concrete times in float64; a derivative in traced times raises an error.

    Raises:
        ValueError: `ts` does not have two or more times along one axis, or is concrete and does not increase.
        TypeError: `ts` is traced and not floating.
    """
    if not is_traced(ts):
        return checks.increasing(owner, np.asarray(ts))
    if ts.ndim != 1 or ts.size < 2:
        raise ValueError(checks.times_message(owner, ts.shape))
    if not jnp.issubdtype(ts.dtype, jnp.floating):
        raise TypeError(f"{owner}(ts of dtype {ts.dtype}): needs floating times; pass ts.astype(jax.numpy.float32).")
    return without_gradient(owner, checked(ts, jnp.all(ts[1:] > ts[:-1]), f"{owner}(ts=...): times must increase."))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def without_gradient(owner: str, ts: Array) -> Array:
    """Return the times `ts` unchanged; to differentiate in them raises a ValueError that names the function `owner`."""
    return ts


def _refused(owner: str, primals: tuple[Array], tangents: tuple[Any]) -> tuple[Array, Any]:
    (ts,), (moved,) = primals, tangents
    if not isinstance(moved, jax.custom_derivatives.SymbolicZero):
        raise ValueError(
            f"{owner}(ts that a gradient is wanted of): needs times that are given, because steps are constants; "
            "pass jax.lax.stop_gradient(ts)."
        )
    return ts, moved


without_gradient.defjvp(_refused, symbolic_zeros=True)


def resolution(ts: Any) -> float:
    """Return the relative precision of the user's times: the eps of their dtype, of float64 if it is not floating."""
    dtype = getattr(ts, "dtype", None)
    is_floating = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    return float(jnp.finfo(dtype if is_floating else np.float64).eps)


@dataclass(frozen=True)
class Layout:
    """How the user's state, a pytree of arrays, is laid out as one array [a, *rest].

    Attributes:
        tree: The structure of the pytree.
        shapes: The shapes of the pytree's leaves.
        given: The dtype of the pytree's leaves.
        varying: alpha's shape with as many axes as the state has: 1 on axes along which alpha does not vary.
    """

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    given: Any
    varying: tuple[int, ...]

    @property
    def is_complex(self) -> bool:
        """Whether the user's state is complex.

        Its array [a, *rest] is then real, with real and imaginary parts along an axis of two at the end.
        """
        return self.given.kind == "c"

    @property
    def dtype(self) -> Any:
        """The real dtype of a state inside of a solve, [a, *rest]."""
        return np.zeros(0, self.given).real.dtype

    @cached_property
    def _parts(self) -> list[tuple[int, ...]]:
        return [(*shape, 2) if self.is_complex else shape for shape in self.shapes]

    @property
    def is_array(self) -> bool:
        """Whether the user's state is one array."""
        return jax.tree_util.treedef_is_leaf(self.tree)

    @property
    def orders(self) -> int:
        """The number a of orders."""
        return math.prod(self.varying)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape [a, *rest] of a state inside of a solve."""
        if not self.is_array:
            return (1, sum(map(math.prod, self._parts)))
        shape = self._parts[0]
        return (self.orders, *(shape[axis] for axis in self._order[len(self._moved) :]))

    @cached_property
    def _moved(self) -> list[int]:
        return [axis for axis, size in enumerate(self.varying) if size > 1]

    @cached_property
    def _order(self) -> list[int]:
        return self._moved + [axis for axis in range(len(self._parts[0])) if axis not in self._moved]

    def joined(self, y: State) -> Array:
        """Return the user's state y as one array [a, *rest]."""
        if self.is_complex:
            y = jax.tree.map(lambda leaf: jnp.stack([leaf.real, leaf.imag], -1), y)
        if not self.is_array:
            flat: Array = unplaced(jnp.concatenate, [leaf.reshape(-1) for leaf in jax.tree.leaves(y)])
            return flat[None]
        return y.transpose(self._order).reshape(self.shape)  # type: ignore[no-any-return]

    def parted(self, z: Array) -> State:
        """Return states [*time, a, *rest] as the user's pytree, time first; the inverse of `joined`."""
        time = z.shape[: z.ndim - len(self.shape)]
        if self.is_array:
            split = z.reshape(*time, *(self._parts[0][axis] for axis in self._order))
            back = [len(time) + self._order.index(axis) for axis in range(len(self._order))]
            leaves = [split.transpose(*range(len(time)), *back)]
        else:
            ends = [sum(map(math.prod, self._parts[:k])) for k in range(1, len(self._parts))]
            parts = jnp.split(z[..., 0, :], ends, axis=-1)
            leaves = [part.reshape(*time, *shape) for part, shape in zip(parts, self._parts, strict=True)]
        if self.is_complex:
            leaves = [lax.complex(leaf[..., 0], leaf[..., 1]) for leaf in leaves]
        return jax.tree.unflatten(self.tree, leaves)

    def spread(self, weights: Array) -> Array:
        """Return weights [..., a] in a shape that broadcasts to [..., a, *rest]."""
        return weights.reshape(*weights.shape, *(1,) * (len(self.shape) - 1))


def layout_of(owner: str, y0: State, alpha: tuple[int, ...]) -> Layout:
    """Return the layout of states like `y0` for orders of the shape `alpha`.

    Raises:
        ValueError: alpha is not one number and y0 is no single array, or alpha does not broadcast to y0.
    """
    leaves, tree = jax.tree.flatten(y0)
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    shape = shapes[0] if jax.tree_util.treedef_is_leaf(tree) else None
    return Layout(tree, shapes, leaves[0].dtype, checks.fitting_orders(owner, alpha, shape, "a pytree of arrays"))


Field = Callable[[Array, Array], Array]  # f(t, z) of states z [a, *rest]


@dataclass(frozen=True, eq=False)
class RightSide:
    """A traced right-hand side f(t, z) of states z [a, *rest].

    Attributes:
        jaxpr: The program of f, with the constants `read` and the arguments t and z.
        read: The arrays that f reads besides t and z.
    """

    jaxpr: Any
    read: tuple[Array, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array that f returns."""
        return self.jaxpr.outvars[0].aval.shape  # type: ignore[no-any-return]

    def __call__(self, t: Array, z: Array) -> Array:
        return beside(jax.core.eval_jaxpr(self.jaxpr, self.read, t, z)[0], z)

    def reading(self, read: tuple[Array, ...]) -> RightSide:
        """Return the same right-hand side with the arrays `read` in place of those that f reads now."""
        return replace(self, read=read)


def traced(
    what: str,
    f: Callable[..., State],
    args: Any,
    layout: Layout,
    t: Array,
    z: Array,
    returned: Callable[[str, Any, Layout], Array] | None = None,
) -> RightSide:
    """Return the user's f as a traced function of states [a, *rest].

    Args:
        what: The name of the right-hand side, for messages.
        f: The user's function, called as f(t, y), or as f(t, y, args) if `args` is not None.
        args: A pytree, or None.
        layout: How the user's state is laid out.
        t: A time, by whose dtype f is traced.
        z: A state [a, *rest], by whose shape and dtype f is traced.
        returned: Called as returned(what, result of f, layout); checks the result of f and returns it as an array.
            None is `checked_result`.

    Raises:
        TypeError: f returns another kind of pytree or dtype than the state's.
        ValueError: f returns another shape than the state's.
    """

    def flat(t: Array, z: Array) -> Array:
        y = layout.parted(z)
        found = f(t, y) if args is None else f(t, y, args)
        return (returned or checked_result)(what, found, layout)

    try:
        closed = jax.make_jaxpr(flat)(t, z)
    except TypeError as error:
        errors.note_arguments(error, what, f, "t, y" if args is None else "t, y, args")
        raise
    return RightSide(closed.jaxpr, tuple(closed.consts))


def varying(z: Array, trace: Callable[[Array], Any]) -> tuple[Array, Any]:
    """Return the state and trace(state); the state varies over all mesh axes over which the arrays that f reads vary.

    Inside of `jax.shard_map` the carry of a loop must have its final type, with these mesh axes, from the start.

    Args:
        z: The state.
        trace: Traces a right-hand side f for a state; returns an object such as `RightSide`, with f's arrays `read`.
    """
    found = trace(z)
    wide = beside(z, found.read)
    return (z, found) if jax.typeof(wide) == jax.typeof(z) else (wide, trace(wide))


def checked_result(what: str, found: Any, layout: Layout) -> Array:
    """Return `found`, the result of the user's right-hand side, as an array [a, *rest].

    Raise TypeError for another tree or dtype than the state's, and ValueError for another shape; `what` is the name of
    the right-hand side in messages.
    """
    leaves, tree = jax.tree.flatten(found)
    who = "f" if what.endswith("(f)") else "it"
    if tree != layout.tree:
        wanted = "an array" if layout.is_array else f"a pytree like y0, {layout.tree}"
        kind = type(found).__name__ if layout.is_array else tree
        raise TypeError(f"{what}: needs {wanted}; {who} returned {kind}.")
    arrays = []
    for k, (leaf, shape) in enumerate(zip(leaves, layout.shapes, strict=True)):
        which = "" if len(leaves) == 1 else f" in place {k}"
        part = checked_array(what, leaf, layout, which)
        if part.shape != shape:
            raise ValueError(
                f"{what}: needs the state's shape {shape}{which}; {who} returned {part.shape}; return an array of "
                "that shape."
            )
        arrays.append(part)
    return layout.joined(jax.tree.unflatten(tree, arrays))


def checked_array(what: str, leaf: Any, layout: Layout, which: str = "") -> Array:
    """Return an array that a right-hand side returned in the state's dtype; raise TypeError for another kind or dtype.

    Args:
        what: The name of the right-hand side, for messages.
        leaf: A leaf of the pytree that the right-hand side returned.
        layout: How the user's state is laid out.
        which: Which leaf this is, for messages.
    """
    who = "f" if what.endswith("(f)") else "it"
    if not isinstance(leaf, jax.Array | complex | float | int) and not hasattr(leaf, "__array__"):
        raise TypeError(f"{what}: needs an array{which}; {who} returned {type(leaf).__name__}.")
    part = jnp.asarray(leaf)
    if part.dtype != layout.given and not part.weak_type:
        raise TypeError(
            f"{what}: needs the state's dtype {layout.given}{which}; {who} returned {part.dtype}; convert it there, or "
            "pass y0 in that dtype."
        )
    return part.astype(layout.given)
