"""The user's right-hand side as a function of everything that it depends on.

It is traced once. What it reads besides t and y, be it `args`, arrays of its own or of a module that it is, becomes
arguments, so that derivatives by them are seen wherever they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.solvers.jax.arguments import State
from hpfracc_nn.solvers.jax.layout import Layout
from hpfracc_nn.solvers.jax.programs import is_staged

Field = Callable[[Array, Array], Array]  # f(t, z)
Slope = Callable[[Array, Array], tuple[Array, Array]]  # (z, dz) -> f and its derivative, at some time


@dataclass(frozen=True, eq=False)
class RightSide:
    """f(t, z) for states as steps work with them.

    Attributes:
        jaxpr: What it computes.
        given: What it reads besides t and z.
    """

    jaxpr: Any
    given: tuple[Array, ...]

    @property
    def count(self) -> int:
        """How many arrays it reads besides t and z."""
        return len(self.jaxpr.constvars)

    @property
    def bare(self) -> RightSide:
        """The same without what it reads."""
        return replace(self, given=())

    def field(self, given: Sequence[Array]) -> Field:
        """Return f with other values of what it reads."""
        return lambda t, z: beside(jax.core.eval_jaxpr(self.jaxpr, given, t, z)[0], z)

    def moving(self, read: Sequence[Array], moved: Sequence[Any]) -> Moving:
        """Return f with its derivative where what it reads moves; a part that does not has a symbolic zero."""
        which = [k for k, each in enumerate(moved) if not isinstance(each, SymbolicZero)]
        return Moving(self, tuple(read), tuple(which), [read[k] for k in which], [moved[k] for k in which])


@dataclass(frozen=True, eq=False)
class Moving:
    """f and its derivative.

    Attributes:
        right_side: f.
        read: What it reads.
        which: Parts of that move.
        given: These parts.
        slopes: Their derivatives.
    """

    right_side: RightSide
    read: tuple[Array, ...]
    which: tuple[int, ...]
    given: list[Array]
    slopes: list[Array]

    def at(self, t: Array, given: list[Array] | None = None, slopes: list[Array] | None = None) -> Slope:
        """Return f at a time; with other values of the parts that move, and other derivatives, where they are given."""
        parts, moved = self.given if given is None else given, self.slopes if slopes is None else slopes

        def f(some: Sequence[Array], z: Array) -> Array:
            read = list(self.read)
            for k, each in zip(self.which, some, strict=True):
                read[k] = each
            return self.right_side.field(read)(t, z)

        return lambda z, dz: jax.jvp(f, (parts, z), (moved, dz))


def traced(owner: str, f: Callable[..., State], args: Any, layout: Layout, t: Array, z: Array) -> RightSide:
    """Return the user's f, traced.

    Args:
        owner: Who asks, for messages.
        f: Called as f(t, y), or as f(t, y, args) where there are some.
        args: A pytree, or None.
        layout: Of the states.
        t: A time.
        z: A state.

    Raises:
        TypeError: f is no function, or returns what is no state.
        ValueError: It returns another shape.
    """
    if not callable(f):
        raise TypeError(f"{owner}(f of type {type(f).__name__}): needs a function f(t, y); pass one.")

    def flat(t: Array, z: Array, args: Any) -> Array:
        y = layout.parted(z)
        found = f(t, y) if args is None else f(t, y, args)
        return layout.joined(_checked(owner, found, layout))

    return right_side_of(flat, args, t, z)


def right_side_of(function: Callable[..., Array], args: Any, t: Array, z: Array) -> RightSide:
    """Return a function of t, of states and of args, traced for such as these.

    Outside of `jax.jit` floats in args are read as arrays are, so that a solve with others is not compiled again.
    """

    def reading(args: Any) -> RightSide:
        closed = jax.make_jaxpr(lambda t, z: function(t, z, args))(t, z)
        return RightSide(closed.jaxpr, tuple(closed.consts))

    if is_staged() or not any(type(each) is float for each in jax.tree.leaves(args)):
        return reading(args)
    try:
        return reading(jax.tree.map(lambda each: jnp.asarray(each) if type(each) is float else each, args))
    except jax.errors.JAXTypeError:  # the function asks in Python what a float is: then it is part of what it computes
        return reading(args)


def varying(z: Array, trace: Callable[[Array], Any], given: Callable[[Any], Any]) -> tuple[Array, Any]:
    """Return a state that varies over all axes of a mesh over which what is read does, and what is traced for it.

    Args:
        z: The state.
        trace: Returns what is traced for a state.
        given: Returns what that reads.
    """
    found = trace(z)
    wide = beside(z, given(found))
    return (z, found) if jax.typeof(wide) == jax.typeof(z) else (wide, trace(wide))


def _checked(owner: str, found: Any, layout: Layout) -> State:
    leaves, tree = jax.tree.flatten(found)
    count = len(layout.shapes)
    if tree != layout.tree:
        wanted = "an array" if layout.is_array else f"a pytree like y0, {layout.tree}"
        kind = type(found).__name__ if layout.is_array else tree
        raise TypeError(f"{owner}(f): needs {wanted}; f returned {kind}.")
    arrays = []
    for k, (leaf, shape) in enumerate(zip(leaves, layout.shapes, strict=True)):
        which = "" if count == 1 else f" in place {k}"
        if not isinstance(leaf, jax.Array | float | int) and not hasattr(leaf, "__array__"):
            raise TypeError(f"{owner}(f): needs an array of shape {shape}{which}; f returned {type(leaf).__name__}.")
        part = jnp.asarray(leaf)
        if part.dtype != layout.dtype and not part.weak_type:
            raise TypeError(
                f"{owner}(f): needs the state's dtype {layout.dtype}{which}; f returned {part.dtype}; convert it "
                "there, or pass y0 in that dtype."
            )
        if part.shape != shape:
            raise ValueError(
                f"{owner}(f): needs the state's shape {shape}{which}; f returned {part.shape}; return an array of "
                "that shape."
            )
        arrays.append(part.astype(layout.dtype))
    return jax.tree.unflatten(tree, arrays)
