"""The recurrent layers as linen modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array
from hpfracc_nn.layers.flax.functional.recurrent import RecurrentState
from hpfracc_nn.layers.flax.linen.dropout import Dropping


class _Recurrent(Dropping):
    """What both layers share."""

    def __call__(
        self,
        x: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Array | None = None,
        return_carry: bool = False,
        deterministic: bool | None = None,
    ) -> Any:
        """Return the outputs of the last layer at all steps; with `return_carry` the pair of the state and these.

        Args:
            x: [..., n, ..., in_features], time on `dim`.
            initial_carry: A state, from which the series goes on exactly, or the start of an ordinary cell: see the
                core.
            seq_lengths: Steps of each series, [*batch]; None: all.
            return_carry: Whether the state after the last step of each series is returned too.
            deterministic: Whether nothing is dropped between layers. None: dropout where there is a stream "dropout".
        """
        how = {"initial_carry": initial_carry, "seq_lengths": seq_lengths, "return_carry": return_carry}
        return self._run(x, **how, **self._dropping(deterministic))

    def initial_state(
        self, shape: Sequence[int], *, initial_carry: Any = None, horizon: int = HORIZON
    ) -> RecurrentState:
        """Return the state before the first sample, for `step` or a call; `shape` is (*batch, in_features)."""
        found: RecurrentState = self.core.initial_state(
            self.params(), shape, initial_carry=initial_carry, horizon=horizon
        )
        return found

    def step(self, x: Array, state: RecurrentState) -> tuple[Array, RecurrentState]:
        """Return the outputs of the next step and the state after it; x is one time slice, [*batch, in_features]."""
        found: tuple[Array, RecurrentState] = self.core.step(self.params(), x, state)
        return found


class FractionalLSTM(_Recurrent, core=functional.FractionalLSTM):
    """Flax's LSTM whose cells remember by a power law: see `functional.FractionalLSTM`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 16)
    """


class FractionalGRU(_Recurrent, core=functional.FractionalGRU):
    """Flax's GRU whose cells remember by a power law: see `functional.FractionalGRU`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalGRU(3, 16, alpha=0.6, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 16)
    """
