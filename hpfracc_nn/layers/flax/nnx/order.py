"""Learned orders as nnx modules."""

from __future__ import annotations

from typing import Any

from flax import nnx

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.shell import Shell


class Alpha(Shell, core=functional.Alpha):
    """Orders that stay between two bounds, a module: see `functional.Alpha`.

    A layer that is given one as `alpha` has it as its `order`, so that several layers may share it.

    Example:
        >>> order = Alpha(0.4, (0, 1))
        >>> layers = nnx.List([FractionalLayer(order), FractionalLayer(order)])
    """

    def __call__(self) -> Array:
        """Return alpha in real units; of a random one a draw, see `ProbabilisticAlpha`."""
        return self.core(self.params(), key=self.next_key())

    @property
    def mean(self) -> Array:
        """Alpha in real units; of a random one its mean, which is never drawn."""
        return self.core.mean(self.params())

    def next_key(self) -> Array | None:
        """Return the key of the next draw, or None where nothing is drawn."""
        return None


def module_of(core: functional.Alpha, param_dtype: Any, rngs: nnx.Rngs | None) -> Alpha:
    """Return the module of an order."""
    return Alpha(core, param_dtype=param_dtype, rngs=rngs)
