"""What linen modules with dropout share: Flax's conventions for it."""

from __future__ import annotations

from flax import linen

from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.linen.base import Layer


class Dropping(Layer):
    """A layer that drops something where `apply` is given `rngs={"dropout": key}`, unless it is told not to."""

    @linen.nowrap
    def _dropping(self, deterministic: bool | None) -> dict[str, Array]:
        """What a core takes besides where it drops."""
        is_off = not self.has_rng("dropout") if deterministic is None else deterministic
        return {} if is_off or not self.core.dropout_rate else {"dropout_key": self.make_rng("dropout")}
