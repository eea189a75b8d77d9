"""`RoughnessFeatures` as an nnx module."""

from __future__ import annotations

from collections.abc import Sequence

from hpfracc_nn.fractional.jax.streaming import HORIZON
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.functional.roughness import RoughnessState
from hpfracc_nn.layers.flax.nnx.base import Layer


class RoughnessFeatures(Layer, core=functional.RoughnessFeatures):
    """The logarithms of the mean squares of fractional differences: see `functional.RoughnessFeatures`.

    Arguments, shapes, errors and source are the core's; `param_dtype` and `rngs` come besides, by name.

    Examples:
        >>> # at the highest frequency, where orders weigh by 2**(2 alpha)
        >>> x = jnp.array([1.0, -1.0] * 500)[:, None]
        >>> RoughnessFeatures(1, alpha=(-0.5, 0.0, 0.5), learn_alpha=False)(x).round(2)
        Array([-0.69,  0.  ,  0.69], dtype=float32)
    """

    def __call__(self, x: Array) -> Array:
        """Return the features of every channel of x, [..., n, channels]: [..., channels * orders]."""
        return self._run(x)

    def initial_state(self, shape: Sequence[int], *, horizon: int = HORIZON) -> RoughnessState:
        """Return the state before the first sample, for `step`; `shape` is that of one time slice."""
        return self.core.initial_state(self.params(), shape, horizon=horizon)

    def step(self, x: Array, state: RoughnessState) -> tuple[Array, RoughnessState]:
        """Return the features of all samples so far, and the state after this one; x is one time slice."""
        return self.core.step(self.params(), x, state)
