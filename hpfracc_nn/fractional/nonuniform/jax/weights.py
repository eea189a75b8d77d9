"""The weights at given times as JAX arrays: of fixed orders NumPy's, kept by value, of traced ones made in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.jax.namespace import JAX, Array, widest
from hpfracc_nn.fractional.jax.precision import in_float64, mapped
from hpfracc_nn.fractional.nonuniform import weights
from hpfracc_nn.fractional.nonuniform.cellwise import Cellwise
from hpfracc_nn.fractional.nonuniform.jax.forms import ChunkForm, MatrixForm
from hpfracc_nn.fractional.nonuniform.numpy import weights as by_numpy
from hpfracc_nn.fractional.nonuniform.times import Times
from hpfracc_nn.fractional.shelf import Charge
from hpfracc_nn.fractional.weights import SHELF


@dataclass(frozen=True, eq=False)
class FixedWeights:
    """An integral of fixed orders at given times.

    Attributes:
        of: NumPy's weights.
    """

    of: by_numpy.CellWeights

    @property
    def states(self) -> int:
        """See `nonuniform.numpy.weights`."""
        return self.of.states

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        return MatrixForm(jnp.asarray(self.of.matrix().weights))

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        found = self.of.chunks()
        if found.into is None or found.out is None:
            return ChunkForm(jnp.asarray(found.near))
        near, into, out = map(jnp.asarray, (found.near, found.into, found.out))
        return ChunkForm(near, into, out, tuple(jnp.asarray(decay, widest()) for decay in found.decays))


@dataclass(frozen=True, eq=False)
class TracedWeights:
    """The same of orders in an array.

    Attributes:
        formulas: Of the operator.
        alpha: Its orders, [a, 1], or each row its own, [a, cells].
        times: More than one.
        dtype: What the product is computed in.
    """

    formulas: Cellwise
    alpha: Array
    times: Times
    dtype: np.dtype

    @property
    def states(self) -> int:
        """What the exponentials carry; 0 where the order may be above 1, or where one chunk holds all cells."""
        largest = max(self.formulas.power(bound) for bound in self.formulas.definition.interval)
        return self._chunks().states if largest <= 1 else 0

    def matrix(self) -> MatrixForm:
        """All weights at once."""
        times, inputs, rows = self.times, self.formulas.inputs, range(self.times.cells)

        def made(power: Array) -> Array:
            return weights.matrix_rows(power, JAX, times=times, inputs=inputs, rows=rows)

        return MatrixForm(self._made(self._orders, made))

    def chunks(self) -> ChunkForm:
        """Weights inside chunks and states between them."""
        key = "jax nonuniform", self.times, self.formulas.inputs, self.dtype
        chunks = SHELF.get(key, self._chunks)

        def made(power: Array) -> tuple[Array, ...]:
            near = chunks.near(power, JAX)
            if chunks.nodes is None:
                return (near,)
            return near, JAX.constant(chunks.out, power) * chunks.coefficients(power, JAX)

        near, *out = self._made(self._orders_in_chunks, made)
        if not out:
            return ChunkForm(near)
        decays = tuple(jnp.asarray(decay, widest()) for decay in chunks.decays)
        return ChunkForm(near, jnp.asarray(chunks.into, self.dtype), out[0], decays)

    def _made(self, orders: Array, make: Callable[[Array], Any]) -> Any:
        """Return what `make` makes of the order of the integral, [sets, 1], or each row its own, [sets, rows]."""
        formulas = self.formulas  # and not self, which holds alpha: what makes weights stays in programs

        def of_alpha(alpha: Array) -> Any:
            return make(formulas.power(alpha.reshape(alpha.shape[0], -1)))

        return in_float64(mapped(of_alpha, orders.ndim), orders, jnp.dtype(self.dtype))

    @cached_property
    def _orders(self) -> Array:
        """The orders, [sets], or each row its own, [sets, cells]."""
        sets = max(self.alpha.shape[0], self.times.values.shape[0])
        alpha = jnp.broadcast_to(self.alpha, (sets, self.alpha.shape[1]))
        return alpha[:, 0] if alpha.shape[1] == 1 else alpha

    @property
    def _orders_in_chunks(self) -> Array:
        """The same, each row its own as [sets, C, L]: the last chunk is filled up."""
        if self._orders.ndim == 1:
            return self._orders
        count = self._chunks().count
        at = np.minimum(np.arange(count * weights.LENGTH), self.times.cells - 1)
        return self._orders[:, at].reshape(-1, count, weights.LENGTH)

    def _chunks(self, charge: Charge | None = None) -> weights.Chunks:
        """Return what chunks take from the times; who keeps it is charged for its arrays."""
        found = weights.Chunks(self.times, self.formulas.inputs, self.dtype.name)
        if charge is not None and found.nodes is not None:
            charge((found.into, found.out, *found.decays))
        return found


CellWeights = FixedWeights | TracedWeights


def weights_of(formulas: Cellwise, alpha: Any, times: Times, dtype: np.dtype) -> CellWeights:
    """Return the weights of orders [a, 1], or each row its own, [a, cells]: NumPy's where they are fixed, or traced."""
    if isinstance(alpha, np.ndarray):
        return FixedWeights(by_numpy.weights_of(formulas.power(alpha), times, formulas.inputs, dtype))
    return TracedWeights(formulas, alpha, times, dtype)
