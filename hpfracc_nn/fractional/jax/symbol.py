"""The factors of a multiplier on a grid, as kernels ask for them: made in NumPy for a fixed alpha, traced else."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax import lax
from jax import numpy as jnp
from scipy import fft as scipy_fft

from hpfracc_nn.fractional import multiplier_costs as costs
from hpfracc_nn.fractional.cached import cached_property
from hpfracc_nn.fractional.definitions import Multiplier
from hpfracc_nn.fractional.jax.namespace import JAX, Array
from hpfracc_nn.fractional.jax.precision import in_float64
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.fractional.shelf import Charge
from hpfracc_nn.fractional.weights import SHELF


@dataclass(frozen=True, eq=False)
class Symbol:
    """The factors of one operator.

    Args:
        definition: The operator; of traced orders one with any other order.
        sizes: Samples on each transformed axis.
        steps: Their spacing.
        dtype: Of the samples.
        orders: Traced orders, [channels]; None where the definition's own are meant.
    """

    definition: Multiplier
    sizes: tuple[int, ...]
    steps: tuple[float, ...]
    dtype: np.dtype
    orders: Array | None = None

    @cached_property
    def parts(self) -> dict[str, Any]:
        """The real part and, where it has one, the imaginary part of the half spectrum, [channels, *half of sizes].

        On a line also what takes periodic images out: the columns `mass` and `moment`, each [channels, n].
        """
        if self.orders is not None:
            fixed = replace(self, orders=None)  # what makes the parts stays in programs
            return in_float64(lambda alpha: fixed._made(alpha, JAX), self.orders, jnp.dtype(self.dtype))  # type: ignore[no-any-return]

        def kept(charge: Charge) -> dict[str, np.ndarray]:
            found = self._made(np.asarray(self.definition.alpha, np.float64).reshape(-1), NUMPY)
            return {name: charge(values.astype(self.dtype)) for name, values in found.items()}

        return SHELF.get(self._key("parts"), kept)

    def values(self) -> Array:
        """The factors of the half spectrum, [channels, *half of sizes], real or complex."""
        return jnp.asarray(self._joined(lax.complex))

    def matrices(self) -> Array:
        """The transposed circulant matrices, [channels, N, N], N the samples of all axes."""
        last = tuple(range(-len(self.sizes), 0))
        where = costs.lags(self.sizes)
        if self.orders is not None:
            response = jnp.fft.irfftn(self.values(), self.sizes, axes=last)
            return response.reshape(response.shape[0], -1)[:, where]

        def kept(charge: Charge) -> np.ndarray:
            response = scipy_fft.irfftn(
                self._joined(lambda real, imaginary: real + 1j * imaginary), self.sizes, axes=last
            )
            return charge(response.reshape(response.shape[0], -1)[:, where])  # type: ignore[no-any-return]

        return jnp.asarray(SHELF.get(self._key("matrices"), kept))

    def _joined(self, join: Callable[[Any, Any], Any]) -> Any:
        real, imaginary = self.parts["real"], self.parts.get("imaginary")
        return real if imaginary is None else join(real, imaginary)

    def _made(self, alpha: Any, xp: Namespace) -> dict[str, Any]:
        found = self.definition.on_grid(alpha, self.sizes, self.steps, xp)
        parts = {"real": found.real}
        if found.imaginary is not None:
            parts["imaginary"] = found.imaginary
        if found.images is not None:
            parts["mass"], parts["moment"] = found.images
        return parts

    def _key(self, name: str) -> tuple[Hashable, ...]:
        return "jax multiplier", name, self.definition, self.sizes, self.steps, self.dtype
