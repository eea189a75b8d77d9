"""What transformations ask of the trees that they are given, and in which precision they compute."""

from __future__ import annotations

from typing import Any

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array, at_least_single

Tree = Any  # of arrays, as the parameters


def exact(values: Array) -> Any:
    """Return the dtype in which sums of such values are formed: single precision or better."""
    return at_least_single(values.dtype)


def real(dtype: Any) -> Any:
    """Return the dtype of the real part."""
    return jnp.finfo(dtype).dtype


def arrays(tree: Tree) -> Tree:
    """Return a tree whose numbers are arrays too."""
    return jax.tree.map(jnp.asarray, tree)


def check_belongs(what: str, kept: Tree, updates: Tree, axes: int = 0) -> None:
    """Raise unless what is kept, behind so many axes, is that of parameters with such updates."""
    held_tree, given_tree = (str(jax.tree.structure(tree)) for tree in (kept, updates))
    if held_tree != given_tree:
        raise ValueError(
            f"the state holds {what} of the tree {held_tree}, and the updates are {given_tree}: what is remembered "
            "belongs to the parameters that init was given; make a new state with init, or leave parameters that have "
            "no gradient to optax.masked or optax.partition."
        )
    for held, update in zip(jax.tree.leaves(kept), jax.tree.leaves(updates), strict=True):
        shape, given = held.shape[axes:], jnp.shape(update)
        if shape != given:
            raise ValueError(
                f"the state holds {what} of shape {shape}, and the gradient has shape {given}: what is remembered "
                "belongs to the parameters that init was given; make a new state with init."
            )


def check_given(params: Tree, kind: str) -> None:
    """Raise unless the parameters were given."""
    if params is None:
        raise ValueError(
            f"scale_by_fractional(kind={kind!r}): needs the parameters; call update(updates, state, params)."
        )
