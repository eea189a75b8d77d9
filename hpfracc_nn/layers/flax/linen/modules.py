"""The layers as linen modules."""

from __future__ import annotations

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.linen.shell import Layer
from hpfracc_nn.layers.flax.nnx import modules


class FractionalAttention(Layer, core=functional.FractionalAttention, calls=modules.FractionalAttention):
    """Multi-head attention with power-law weights: see `functional.FractionalAttention`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalAttention(32, 4, alpha=1.2, learn_alpha=True)
        >>> x = jnp.ones((8, 50, 32))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 50, 32)
    """


class FractionalConv1d(Layer, core=functional.FractionalConv1d, calls=modules.FractionalConv1d):
    """A convolution of the fractional derivative of each feature along time: see `functional.FractionalConv1d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalConv1d(
        ...     3, 5, 7, padding="CAUSAL", alpha=0.4, learn_alpha=True
        ... )
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 5)
    """


class FractionalConv2d(Layer, core=functional.FractionalConv2d, calls=modules.FractionalConv2d):
    """A convolution of images' fractional derivatives: see `functional.FractionalConv2d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalConv2d(3, 5, 3, dims=(-3, -2), alpha=(0.4, 0.8))
        >>> x = jnp.ones((8, 28, 28, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 28, 28, 5)
    """


class FractionalDifference(Layer, core=functional.FractionalDifference, calls=modules.FractionalDifference):
    """(1 - z)**alpha with zero history, `orders` of them for every channel: see `functional.FractionalDifference`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalDifference(1, start=0.5)
        >>> x = jnp.eye(4, 1)
        >>> # Grünwald's weights
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """


class FractionalGRU(Layer, core=functional.FractionalGRU, calls=modules.FractionalGRU):
    """Flax's GRU whose cells remember by a power law: see `functional.FractionalGRU`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalGRU(3, 16, alpha=0.6, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 16)
    """


class FractionalLSTM(Layer, core=functional.FractionalLSTM, calls=modules.FractionalLSTM):
    """Flax's LSTM whose cells remember by a power law: see `functional.FractionalLSTM`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 16)
    """


class FractionalLayer(Layer, core=functional.FractionalLayer, calls=modules.FractionalLayer):
    """A fractional derivative or integral along `dim`: see `functional.FractionalLayer`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLayer(0.5, "caputo", dt=0.01)
        >>> x = jnp.linspace(0, 1, 101)[:, None] ** 2
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[-1].round(2)  # 2 / Gamma(2.5)
        Array([1.5], dtype=float32)
    """


class FractionalLinear(Layer, core=functional.FractionalLinear, calls=modules.FractionalLinear):
    """A linear layer on the fractional derivative of each feature: see `functional.FractionalLinear`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLinear(3, 5, alpha=0.4, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 5)
    """


class RoughnessFeatures(Layer, core=functional.RoughnessFeatures, calls=modules.RoughnessFeatures):
    """The logarithms of the mean squares of fractional differences: see `functional.RoughnessFeatures`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.RoughnessFeatures(2, orders=3)
        >>> x = jnp.ones((4, 100, 2))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (4, 6)
    """


class SpectralFractional(Layer, core=functional.SpectralFractional, calls=modules.SpectralFractional):
    """A fractional derivative of a periodic field along `dim`: see `functional.SpectralFractional`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.SpectralFractional(2.0, dt=1 / 8)
        >>> x = jnp.sin(2 * jnp.pi * jnp.arange(8) / 8)[:, None]
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[2].round(2)  # (2 pi)**2
        Array([39.48], dtype=float32)
    """
