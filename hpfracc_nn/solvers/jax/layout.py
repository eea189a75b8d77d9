"""How a state is laid out: the user's pytree, and the one array that steps work with.

Steps work with [a, *rest], a orders alpha and the axes that share each of them: for one order the user's array with an
axis of 1 before it, or his pytree joined into a vector.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.solvers.checks import fitting_orders
from hpfracc_nn.solvers.jax.arguments import State


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes:
        tree: The structure of the user's state.
        shapes: Of its leaves.
        dtype: Theirs.
        varying: The sizes of alpha's axes, as many as the state has: 1 where it does not vary.
    """

    tree: Any
    shapes: tuple[tuple[int, ...], ...]
    dtype: Any
    varying: tuple[int, ...]

    @property
    def is_array(self) -> bool:
        """Whether the user's state is one array."""
        return jax.tree_util.treedef_is_leaf(self.tree)

    @property
    def orders(self) -> int:
        """A."""
        return math.prod(self.varying)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """[a, *rest]."""
        if not self.is_array:
            return (1, sum(map(math.prod, self.shapes)))
        shape = self.shapes[0]
        return (self.orders, *(shape[axis] for axis in self._order[len(self._moved) :]))

    @cached_property
    def _moved(self) -> list[int]:
        return [axis for axis, size in enumerate(self.varying) if size > 1]

    @cached_property
    def _order(self) -> list[int]:
        return self._moved + [axis for axis, size in enumerate(self.varying) if size == 1]

    def joined(self, y: State) -> Array:
        """Return the user's state as [a, *rest]."""
        if not self.is_array:
            flat: Array = unplaced(jnp.concatenate, [leaf.reshape(-1) for leaf in jax.tree.leaves(y)])
            return flat[None]
        return y.transpose(self._order).reshape(self.shape)  # type: ignore[no-any-return]

    def parted(self, z: Array) -> State:
        """Return states [*time, a, *rest] as the user's, time first."""
        time = z.shape[: z.ndim - len(self.shape)]
        if self.is_array:
            shape = self.shapes[0]
            split = z.reshape(*time, *(shape[axis] for axis in self._order))
            back = [len(time) + self._order.index(axis) for axis in range(len(shape))]
            return split.transpose(*range(len(time)), *back)
        ends = [sum(map(math.prod, self.shapes[:k])) for k in range(1, len(self.shapes))]
        parts = jnp.split(z[..., 0, :], ends, axis=-1)
        leaves = [part.reshape(*time, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return jax.tree.unflatten(self.tree, leaves)

    def spread(self, weights: Array) -> Array:
        """Return weights [..., a] in a shape that broadcasts to [..., a, *rest]."""
        return weights.reshape(*weights.shape, *(1,) * (len(self.shape) - 1))


def layout_of(owner: str, y0: State, alpha: tuple[int, ...]) -> Layout:
    """Return the layout of states like `y0` under an alpha of that shape.

    Raises:
        ValueError: alpha is not one number and y0 is no single array, or alpha does not broadcast to y0.
    """
    leaves, tree = jax.tree.flatten(y0)
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    if jax.tree_util.treedef_is_leaf(tree):
        return Layout(tree, shapes, leaves[0].dtype, fitting_orders(owner, alpha, shapes[0]))
    if math.prod(alpha) != 1:
        raise ValueError(
            f"{owner}(alpha of shape {alpha}): needs one alpha for a pytree of arrays; join the arrays into one and "
            "pass an alpha for each of its entries."
        )
    return Layout(tree, shapes, leaves[0].dtype, (1,))
