"""`SpectralFractional` as an nnx module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.base import Layer


class SpectralFractional(Layer, core=functional.SpectralFractional):
    """A fractional derivative of a periodic field along `dim`: see `functional.SpectralFractional`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> x = jnp.sin(2 * jnp.pi * jnp.arange(8) / 8)[:, None]
        >>> SpectralFractional(2.0, dt=1 / 8)(x)[2].round(2)  # (2 pi)**2
        Array([39.48], dtype=float32)
    """

    def __call__(self, x: Array) -> Array:
        """Return the operator applied to the field x; same shape and dtype."""
        return self._run(x)
