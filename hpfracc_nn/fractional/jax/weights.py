"""From a definition to what a kernel multiplies with: computed in NumPy for a fixed alpha, traced in float64 else.

`torch/weights.py` is the twin. There are no tables here: XLA compiles the formulas with all that uses them.

A Stencil has the formulas of an operator at equal steps: its column of weights, and the boundary columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.exponentials import SHORTEST, Nodes, exponentials, exponentials_over
from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.linear import DenseToeplitz, FFTToeplitz, StateSpace, padded_length, powers
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.weights import CACHE, fixed_stencil, transitions, without_negligible

Formula = Callable[[Stencil, Namespace], tuple[Any, ...]]


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of one definition on `n` samples, as the linear operators that kernels are.

    Args:
        definition: With alpha a number or numbers; of traced orders, their family at its upper bound.
        n: Samples, at least 1.
        dt: Their spacing.
        dtype: That of the weights, in which the product is computed.
        orders: Traced orders, [channels]; None where the definition's own are meant.
    """

    definition: Definition
    n: int
    dt: float
    dtype: np.dtype
    orders: Array | None = None

    @property
    def nodes(self) -> Nodes | None:
        """The exponentials that can stand for the weights; None where none can, or the series is short."""
        return nodes_of(self.definition, self.n, self.dt, self.dtype, self.orders is not None)

    @cached_property
    def facts(self) -> Stencil:
        """A stencil with the operator's differences, terms and starting index; its columns may be of other orders."""
        return fixed_stencil(self.definition, self.n, self.dt)

    def dense(self) -> DenseToeplitz:
        """Return the weights as matrices, [channels, n, n]."""
        n = self.n

        def made(stencil: Stencil, xp: Namespace) -> tuple[Any]:
            return (xp.toeplitz(stencil.column(np.arange(n)), n),)

        return DenseToeplitz(self._made(("matrix", n), made)[0])

    def fft(self) -> FFTToeplitz:
        """Return the weights as the column's transform, [channels, length // 2 + 1, 1], made in float64."""
        n, length = self.n, padded_length(self.n)

        def made(stencil: Stencil, xp: Namespace) -> tuple[Any, Any]:
            transformed = xp.spectrum(stencil.column(np.arange(n)), length)
            return transformed.real, transformed.imag

        real, imaginary = self._made(("spectrum", length), made)
        return FFTToeplitz(lax.complex(real, imaginary)[:, :, None], length)

    def chunks(self, length: int) -> StateSpace:
        """Return the state space model over chunks of `length`; with more than one chunk `nodes` may not be None."""
        if self.n <= length:
            lags = np.arange(self.n)

            def single(stencil: Stencil, xp: Namespace) -> tuple[Any]:
                return (xp.toeplitz(stencil.column(lags), length),)

            return StateSpace(self._made(("intra", length), single)[0])
        nodes = self.nodes
        assert nodes is not None, "the kernel accepts sums of exponentials only"
        found = transitions(nodes, length)

        def made(stencil: Stencil, xp: Namespace) -> tuple[Any, Any]:
            return found.matrices(stencil.column(found.lags), xp)

        intra, C = self._made(("chunks", length, nodes), made)
        A = tuple(jnp.asarray(each, widest()) for each in powers(found.A, -(-self.n // length)))
        return StateSpace(intra, C, jnp.asarray(found.B, self.dtype), A)

    def boundary_columns(self) -> Array | None:
        """Return the columns that multiply boundary values, [terms, channels, n], or None where there are none.

        The columns are the starting column, then those of x(0) and dt x'(0).
        """
        facts, rows = self.facts, np.arange(self.n)
        if not (facts.starts or facts.terms):
            return None

        def made(stencil: Stencil, xp: Namespace) -> tuple[Any]:
            return (stencil.boundary_columns(lambda column: column(rows), xp),)

        return self._made(("boundary",), made)[0].swapaxes(0, 1)

    def _made(self, name: tuple[Hashable, ...], make: Formula) -> tuple[Array, ...]:
        """Return make(stencil, namespace), arrays [channels, ...] computed in float64, in the dtype of the weights.

        Arrays of fixed orders are cached, under `name` and all that the weights depend on; those of traced orders are
        traced.
        """
        definition, n, dt, orders = self.definition, self.n, self.dt, self.orders
        if orders is not None:
            found = in_float64(
                lambda alpha: make(definition.stencil_at(alpha, n, dt, JAX), JAX), orders, jnp.dtype(self.dtype)
            )
            return found

        def computed() -> tuple[np.ndarray, ...]:
            found = make(fixed_stencil(definition, n, dt), NUMPY)
            own = np.ndim(np.asarray(definition.alpha))
            # The orders' own axes become one, [channels].
            return tuple(self._rounded(each.reshape(-1, *each.shape[own:])) for each in found)

        kept = CACHE.get(("jax", name, definition, n, dt, self.dtype), computed)
        return tuple(jnp.asarray(each) for each in kept)

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        return without_negligible(values, NUMPY).astype(self.dtype)


def nodes_of(definition: Definition, n: int, dt: float, dtype: np.dtype, is_traced: bool) -> Nodes | None:
    """Return the exponentials that can stand for a definition's weights; None where none can, or n is small.

    Where orders are traced they stand for the weights of all orders in the bounds.
    """
    if n <= SHORTEST:
        return None
    found = exponentials_over if is_traced else exponentials
    return found(definition.in_steps(dt), n, np.dtype(dtype).name)
