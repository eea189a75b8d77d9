"""`ARFIMA` as a linen module."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.linen.shell import Layer
from hpfracc_nn.layers.flax.nnx import arfima as modules


class ARFIMA(Layer, core=functional.ARFIMA, calls=modules.ARFIMA):
    """What a long memory and a few lags cannot foresee of a series: see `functional.ARFIMA`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.ARFIMA(ar=0, alpha=0.5)
        >>> x = jnp.eye(4, 1)
        >>> # Grünwald's weights
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """
