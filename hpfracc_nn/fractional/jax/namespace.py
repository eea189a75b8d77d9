"""JAX's instance of the namespace. It makes float64 arrays where 64 bit types are enabled: see `precision.py`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from jax.scipy import special

Array = jax.Array


class JaxNamespace:
    """See `fractional.namespace.Namespace`."""

    exp = staticmethod(jnp.exp)
    log = staticmethod(jnp.log)
    log1p = staticmethod(jnp.log1p)
    expm1 = staticmethod(jnp.expm1)
    cos = staticmethod(jnp.cos)
    sin = staticmethod(jnp.sin)
    acos = staticmethod(jnp.arccos)
    floor = staticmethod(jnp.floor)
    lgamma = staticmethod(special.gammaln)
    is_complex = staticmethod(jnp.iscomplexobj)
    abs = staticmethod(jnp.abs)
    angle = staticmethod(jnp.angle)
    polygamma = staticmethod(special.polygamma)
    sigmoid = staticmethod(jax.nn.sigmoid)

    def asarray(self, value: Any) -> Array:
        return jnp.asarray(value, dtype=widest())

    def where(self, condition: Array, x: Any, y: Any) -> Array:
        return jnp.where(condition, x, y)

    def constant(self, values: np.ndarray, like: Array) -> Array:
        found = jnp.asarray(values)
        return found if jnp.iscomplexobj(found) else found.astype(widest())

    def matmul(self, a: Array, b: Array) -> Array:
        return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)

    def fft(self, x: Array, *, norm: str | None = None) -> Array:
        return jnp.fft.fft(x, norm=norm)

    def ifft(self, x: Array, *, norm: str | None = None) -> Array:
        return jnp.fft.ifft(x, norm=norm)

    def cumprod(self, x: Array) -> Array:
        return jnp.cumprod(x, axis=-1)

    def cumsum(self, x: Array) -> Array:
        return jnp.cumsum(x, axis=-1)

    def convolve(self, a: Array, b: Array) -> Array:
        n = a.shape[-1]
        return jnp.fft.irfft(jnp.fft.rfft(a, 2 * n) * jnp.fft.rfft(b, 2 * n), 2 * n)[..., :n]

    def sum(self, x: Array) -> Array:
        return jnp.sum(x, axis=-1)

    def max(self, x: Array) -> Array:
        return jnp.max(x, axis=-1)

    def take(self, x: Array, index: np.ndarray) -> Array:
        return x[..., index]

    def concat(self, arrays: list[Array]) -> Array:
        return jnp.concatenate(arrays, axis=-1)

    def flip(self, x: Array) -> Array:
        return jnp.flip(x, axis=-1)

    def stack(self, rows: list[Array]) -> Array:
        return jnp.stack(rows, axis=-2)


JAX = JaxNamespace()


def widest() -> Any:
    """Return float64 where 64 bit types are enabled here and now, else float32."""
    return jnp.float64 if jax.config.jax_enable_x64 else jnp.float32  # type: ignore[attr-defined]
