"""What attention for Flax remembers between two samples: everything, in room that is made beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array


@dataclass(frozen=True)
class AttentionState:
    """The keys and values of all samples so far, and room for others; a pytree, which `lax.scan` carries.

    Attributes:
        key: Of each head, [*batch, heads, horizon, head_dim]; zeros where there is none yet.
        value: The same of values.
        count: How many samples it has seen, an array [] of int32.
    """

    key: Array
    value: Array
    count: Array

    @property
    def horizon(self) -> int:
        """The most samples that it has room for."""
        return self.key.shape[-2]

    @property
    def nbytes(self) -> int:
        """Memory of its arrays, the same at every step."""
        return sum(each.size * each.dtype.itemsize for each in jax.tree.leaves(self))

    def grown(self, key: Array, value: Array) -> AttentionState:
        """Return the state after one more key and value, [*batch, heads, 1, head_dim].

        One that is full turns into NaN: how many samples it has seen is known to the compiled program alone.
        """
        is_full = self.count >= self.horizon

        def put(all_of: Array, new: Array) -> Array:
            found = lax.dynamic_update_slice_in_dim(all_of, new.astype(all_of.dtype), self.count, axis=-2)
            return jnp.where(is_full, jnp.nan, found)

        return AttentionState(put(self.key, key), put(self.value, value), self.count + 1)


jax.tree_util.register_dataclass(AttentionState, data_fields=["key", "value", "count"], meta_fields=[])
