"""A layer with an order as an nnx module."""

from __future__ import annotations

from typing import Any

from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.nnx.order import Alpha, module_of
from hpfracc_nn.layers.flax.nnx.shell import Shell


class Layer(Shell):
    """The shell of a core with an order, which is the module `order` where it is learned.

    An `Alpha` among the constructor's arguments is the order itself, and may be that of several layers.
    """

    order: Alpha

    def __init__(
        self, *arguments: Any, param_dtype: Any = jnp.float32, rngs: nnx.Rngs | None = None, **hyperparameters: Any
    ):
        order = next((each for each in (*arguments, *hyperparameters.values()) if isinstance(each, Alpha)), None)
        plain = [_described(each) for each in arguments]
        named = {name: _described(each) for name, each in hyperparameters.items()}
        self._begin(self._core_of(*plain, **named), param_dtype, rngs, {} if order is None else {"order": order})

    @property
    def alpha(self) -> Any:
        """The order in real units: an array where it is learned, the mean where it is random."""
        return self.core.alpha_of(self.params())

    def _run(self, *inputs: Any, **options: Any) -> Any:
        """The core's value with the present parameters, and a draw of a random order."""
        return self.core(self.params(), *inputs, **self._drawing(), **options)

    def _drawing(self) -> dict[str, Array]:
        """What a core takes besides where its order is random and drawn."""
        key = None if self.core.order is None else self.order.next_key()
        return {} if key is None else {"key": key}

    def _part(self, name: str, value: Any, rngs: nnx.Rngs | None) -> Any:
        if name == "order":
            return module_of(self.core.order, self.param_dtype, rngs)
        return super()._part(name, value, rngs)


def _described(argument: Any) -> Any:
    """A module of an order as what it is made from, all else as it is."""
    return argument.core if isinstance(argument, Alpha) else argument
