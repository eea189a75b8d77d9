"""A layer with an order as a linen module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flax import linen

from hpfracc_nn.layers.flax.functional.core import Array, hyperparameters
from hpfracc_nn.layers.flax.linen.order import Alpha
from hpfracc_nn.layers.flax.linen.shell import Shell


class Layer(Shell):
    """The shell of a core with an order.

    An `Alpha` that already is a part of the parent, among the fields, is the order itself, and may be that of several
    layers; its parameters are then the parent's. Any other says how the layer's own order is to be made.
    """

    @property
    def core(self) -> Any:
        """The core: the hyperparameters as they are understood, and the functions of the parameters."""
        fields = {each.name: getattr(self, each.name) for each in hyperparameters(self.core_class)}
        return self.core_class(**{name: _described(value) for name, value in fields.items()})

    @linen.nowrap
    def alpha_of(self, variables: Mapping[str, Any]) -> Any:
        """Return the order in real units, from the variables of the module: an array where it is learned."""
        return self.core.alpha_of(variables.get("params", {}))

    @linen.nowrap
    def _check(self) -> None:
        for name, value in self._orders().items():
            if value.scope is None:
                object.__setattr__(self, name, value.core)
        super()._check()

    def setup(self) -> None:
        """Make the parameters, or find them; those of a shared order are its own."""
        shared = next(iter(self._orders().values()), None)
        self._params = self._made({} if shared is None else {"order": shared.params()})

    @linen.nowrap
    def _orders(self) -> dict[str, Alpha]:
        """The fields that are modules of an order."""
        fields = {each.name: getattr(self, each.name) for each in hyperparameters(self.core_class)}
        return {name: value for name, value in fields.items() if isinstance(value, Alpha)}

    @linen.nowrap
    def _run(self, *inputs: Any, **options: Any) -> Any:
        """The core's value with the parameters, and a draw of a random order."""
        return self.core(self.params(), *inputs, **self._drawing(), **options)

    @linen.nowrap
    def _drawing(self) -> dict[str, Array]:
        """What a core takes besides where its order is random and drawn."""
        order = self.core.order
        if order is None or not order.is_random or not self.has_rng("alpha"):
            return {}
        return {"key": self.make_rng("alpha")}


def _described(field: Any) -> Any:
    """A module of an order as what it is made from, other modules without variables, all else as it is."""
    if isinstance(field, linen.Module):
        return field.core if isinstance(field, Alpha) else field.clone(parent=None, name=None)
    return field
