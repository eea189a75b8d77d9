"""The drop-in layer: a fractional operator along time, with a fixed or a learned order.

`params` are a layer's parameters, nested dicts of arrays; a `key` is JAX's, for a random order, None for its mean; and
`owner` is the class or function that messages name. See `core` for the conventions.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from hpfracc_nn import errors
from hpfracc_nn.distributed import jax as distributed
from hpfracc_nn.fractional import dispatch
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax import streaming
from hpfracc_nn.fractional.jax.arrays import computed_in, of_numpy
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamSource, StreamState
from hpfracc_nn.fractional.streaming import slice_shape
from hpfracc_nn.layers.flax.functional.core import (
    Alpha,
    Array,
    Operator,
    Ordered,
    Params,
    serializable,
    settle,
    settle_fields,
)
from hpfracc_nn.layers.order import counted_orders, definition_of
from hpfracc_nn.layers.shapes import beside_channels, channel_axis, check_channels, counted_channels
from hpfracc_nn.selection import BackendManager

serializable(streaming.StreamWeights, "taps", "rates", "analytic", "start")
serializable(StreamState, "step", "weights", "memory", "before", "held")


@dataclass(frozen=True)
class FractionalLayer(Ordered):
    """A fractional derivative or integral along `dim`; the shape stays as it is.

    It has no weights but its order: alpha = 1 is the scheme's ordinary difference quotient, alpha = 0 the identity
    (Caputo: less the first sample).

    Attributes:
        alpha: The order, or one per channel; or an `Alpha` of shape [] or [channels].
        definition: A name, such as "caputo" or "riemann_liouville_integral", a definition's class, or a definition: its
            options are taken, and its order and bounds are not.
        scheme: The discretisation; None is the definition's default.
        channels: C gives every channel its own alpha: the last axis, or axis 1 when time is the last.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value. They also decide how
            often the data are differenced.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        axis_name: The mesh axis over which time lies, or a tuple of such: inside of `jax.shard_map` a call then takes
            and returns one device's slice, see `fjx.distributed.derivative`. None: inputs are whole series.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating. Half precision is computed in float32. The output has
        the input's units / time**alpha, an integral's times it.

    Raises:
        ValueError: alpha, bounds or dt is out of range.
        TypeError: An argument has the wrong type.

    Source: that of the definition; of the default, Oldham & Spanier, The Fractional Calculus (1974), section 8.2.

    Examples:
        >>> core = fjx.functional.FractionalLayer(0.6, "caputo", dt=0.01, learn_alpha=True)
        >>> core(core.init(), jnp.ones((8, 256, 3))).shape
        (8, 256, 3)
    """

    alpha: float | Sequence[float] | Alpha = 0.5
    definition: Operator = "caputo"
    _: KW_ONLY
    scheme: str | None = None
    channels: int | None = None
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dt: float = 1.0
    dim: int = -2
    axis_name: Hashable = None
    manager: BackendManager | None = None

    def __post_init__(self) -> None:
        owner = "FractionalLayer"
        settle_fields(owner, self)
        self.settle_order(owner, definition_of(owner, self.definition, self.scheme), self._order_shape)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the operator applied to x; same shape and dtype.

        Args:
            params: From `init`.
            x: [..., n, ...].
            key: For a random order; None is its mean.
        """
        owner, x = "FractionalLayer", of_numpy(x)
        axis = errors.axis(owner, self.dim, x.ndim)
        if self.channels is not None:
            check_channels(owner, self.channels, x.shape, x.ndim, channel_axis(x.ndim, axis))
        definition = self._operator(params, x.ndim, axis, key)
        if self.axis_name is not None:
            return distributed.applied(owner, x, definition, self.axis_name, self.dt, axis, self.manager)
        return dispatch.apply(owner, x, definition, self.dt, axis, self.manager)

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> StreamState:
        """Return the state before the first sample, for `step`.

        The state holds the weights of the present alpha, and is a pytree that `lax.scan` carries.

        Args:
            params: From `init`.
            shape: Of one time slice: of x without its time axis.
            horizon: The longest series that the state will serve. The memory is a sum of exponentials fitted up to the
                horizon; a step costs in proportion to the logarithm of the horizon.

        Raises:
            ValueError: The operator looks ahead, as Caputo's and Riemann-Liouville's do above alpha = 1; or orders lie
                on both sides of a whole number; or time lies over a mesh axis; or an argument is out of range.
            TypeError: An argument has the wrong type.

        Examples:
            >>> core = fjx.functional.FractionalLayer(0.6, dt=0.01)
            >>> state = core.initial_state({}, (8, 3))
            >>> y, state = core.step({}, jnp.ones((8, 3)), state)
            >>> y.shape
            (8, 3)
        """
        owner = "FractionalLayer.initial_state"
        if self.axis_name is not None:
            raise ValueError(
                f"{owner}(axis_name={self.axis_name!r}): needs whole series for step and run; make a layer without "
                "axis_name."
            )
        shape = slice_shape(owner, shape)
        ndim = len(shape) + 1
        axis = errors.axis(owner, self.dim, ndim)
        if self.channels is not None:
            where = channel_axis(ndim, axis)
            check_channels(owner, self.channels, shape, ndim, where - (where > axis))
        definition = self._operator(params, ndim, axis, None)
        return streaming.initial_state(owner, definition, shape, dt=self.dt, horizon=horizon, source=self._source())

    def step(self, params: Params, x: Array, state: StreamState) -> tuple[Array, StreamState]:
        """Return the next sample of the result and the state after it.

        Fed one time slice after another, the results are those of the whole series, to 1e-12 of their size where 64 bit
        types are enabled, else to float32's rounding. The cost of a step does not grow with the number of steps.

        Args:
            params: From `init`; the order's are read by `initial_state`.
            x: One time slice, of the state's shape; floating.
            state: From `initial_state` or the step before.

        Returns:
            The result in the shape and dtype of x, and the next state.

        Raises:
            ValueError: x has another shape than the state, the state was made by another layer, or it has reached its
                horizon and is not traced.
            TypeError: x is no real floating array, or `state` no state.
        """
        return streaming.step("FractionalLayer.step", x, state, self._source())

    def run(self, params: Params, x: Array, state: StreamState | None = None) -> tuple[Array, StreamState]:
        """Return the results for the next samples of a series and the state after them.

        A series in blocks of any lengths gives the results of the whole series, and their gradients in x, the state and
        a learned alpha: relative to the largest to 1e-12 where 64 bit types are enabled, else to float32's rounding. It
        is a pure function, and mixes with `step`. What a block costs grows with its length and with no other.

        Args:
            params: From `init`; where there is a state, the order's were read by `initial_state`.
            x: The next samples, along `dim`; any number, any floating dtype.
            state: From `initial_state`, `step` or the block before; None begins a series, of at most 2**20 samples.

        Returns:
            The result in the shape and dtype of x, and the next state.

        Raises:
            ValueError: As in `initial_state` and `step`.
            TypeError: As in `initial_state` and `step`.

        Examples:
            >>> core = fjx.functional.FractionalLayer(0.6, dt=0.01)
            >>> x = jnp.ones((8, 100, 3))
            >>> first, state = core.run({}, x[:, :70])
            >>> second, state = core.run({}, x[:, 70:], state)
            >>> second.shape
            (8, 30, 3)
        """
        owner, x = "FractionalLayer.run", of_numpy(x)
        if state is None:
            state = self.initial_state(params, without(owner, x, self.dim))
        return streaming.run(owner, x, state, self.dim, self._source())

    def _source(self) -> StreamSource:
        return StreamSource("FractionalLayer", self.definition, self.learn_alpha, self.dt)

    def _operator(self, params: Params, ndim: int, axis: int, key: Array | None) -> Definition:
        """Return the operator with its present alpha, shaped to broadcast with the input.

        Args:
            params: The layer's parameters.
            ndim: The input's number of axes.
            axis: The input's time axis.
            key: Randomness of a random order, or None for its mean.
        """
        alpha = self._present(params, key)
        if alpha is not None:
            return replace(self.definition, alpha=beside_others(alpha, ndim, axis))
        if isinstance(self.definition.alpha, tuple):
            after = ndim - 3 if axis == ndim - 1 else 0
            return replace(self.definition, alpha=beside_channels(self.definition.alpha, after))
        return self.definition

    def _order_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        channels = counted_channels("FractionalLayer", given, self.channels)
        settle(self, channels=channels)
        return () if channels is None else (channels,)


def without(owner: str, x: Any, dim: int) -> tuple[int, ...]:
    """Return the shape of one time slice of x: its shape without the time axis `dim`.

    Raises:
        TypeError: x is no real floating array.
        ValueError: x has no such axis.
    """
    computed_in(owner, x)
    axis = errors.axis(owner, dim, x.ndim)
    return (*x.shape[:axis], *x.shape[axis + 1 :])


def settle_derivative(owner: str, core: Any) -> None:
    """Set a core's `derivative`, the FractionalLayer that its fields describe, and the fields that this layer reads.

    Args:
        owner: The core's class, for messages.
        core: The core, with `in_features` and the fields of a FractionalLayer.
    """
    given = ("scheme", "learn_alpha", "bounds", "dt", "dim", "axis_name", "manager")
    options = {name: getattr(core, name) for name in given if hasattr(core, name)}
    channels = counted_orders(owner, core.alpha, "in_features", core.in_features)
    derivative = FractionalLayer(core.alpha, core.definition, channels=channels, **options)
    named = ("alpha", "definition", "order", "learn_alpha", "bounds", "dt")
    settle(core, derivative=derivative, **{name: getattr(derivative, name) for name in named})


def beside_others(alpha: Array, ndim: int, axis: int) -> Array:
    """Return orders, [channels] or one, reshaped to broadcast with an array of `ndim` axes with time on `axis`."""
    if alpha.ndim == 0 or axis != ndim - 1:
        return alpha
    return alpha.reshape(-1, *(1,) * (ndim - 3))
