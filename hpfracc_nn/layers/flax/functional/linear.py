"""Linear layers and convolutions on the fractional derivative of their input.

`params` are a layer's parameters, nested dicts of arrays; a `key` is JAX's, for a random order, None for its mean; and
`owner` is the class or function that messages name. See `core` for the conventions.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import jax
from flax import linen
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional import dispatch
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.arrays import of_numpy, widest
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState
from hpfracc_nn.fractional.streaming import slice_shape, versioned
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Alpha,
    Array,
    Initializer,
    Operator,
    Ordered,
    Params,
    kernel_init,
    keys,
    serializable,
    settle,
    settle_fields,
    weights,
)
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer, settle_derivative, without
from hpfracc_nn.layers.order import definition_of
from hpfracc_nn.layers.shapes import (
    check_features,
    check_is_state,
    check_past,
    check_time_axis,
    for_each_axis,
    image_axes,
    image_order_shape,
)
from hpfracc_nn.selection import BackendManager


class Weighted(Ordered):
    """A core with a kernel and perhaps a bias, besides an order."""

    def _drawn(self, key: Array | None, shape: tuple[int, ...], param_dtype: Any) -> Params:
        """Return first parameters: the kernel, the bias where there is one, and those of the order.

        Args:
            key: Randomness of the draws.
            shape: The shape of the kernel; the last axis is that of the outputs.
            param_dtype: The dtype of the parameters.
        """
        core: Any = self
        for_kernel, for_bias = keys(type(self).__name__, key, 2)
        params = {"kernel": core.kernel_init(for_kernel, shape, param_dtype)}
        if core.use_bias:
            params["bias"] = core.bias_init(for_bias, shape[-1:], param_dtype)
        return {**params, **self._order_params(key, param_dtype)}


@dataclass(frozen=True)
class FractionalLinear(Weighted):
    """Flax's `Linear` (linen's `Dense`) on the fractional derivative of each feature along time.

    y[..., t, o] = bias[o] + sum over i of kernel[i, o] (D^alpha x)[..., t, i], and for Grunwald-Letnikov

    (D^alpha x)[t] = dt^-alpha sum over k = 0, ..., t of w_k x[t - k], w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k.

    With it alpha = 0 is `nnx.Linear` and alpha = 1 is `nnx.Linear` of (x[t] - x[t-1]) / dt with x[-1] = 0. Sample t of
    the output depends on samples up to t.

    Attributes:
        in_features: Features of the input, its last axis.
        out_features: Features of the output.
        use_bias: Whether there is a bias.
        alpha: The order, or a list of one for each input feature; or an `Alpha` of shape [] or [in_features].
        definition: As in `FractionalLayer`.
        scheme: The discretisation; None is the definition's default.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis: any but the last, which are the features.
        axis_name: The mesh axis over which time lies, as in `FractionalLayer`. Inside of `jax.shard_map` the gradients
            of kernel and bias that JAX returns are sums over its devices.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        dtype: What the product with the kernel is computed in; None promotes the derivative and the parameters.
        precision: Precision of that product, as in Flax.
        kernel_init: Draws the kernel.
        bias_init: Draws the bias.
        derivative: The layer that differentiates.

    Shape:
        [..., n, in_features] -> [..., n, out_features], with time on `dim`.

    Raises:
        ValueError: alpha, bounds, dt or dim is out of range.
        TypeError: An argument has the wrong type.

    Source: Oldham & Spanier, The Fractional Calculus (1974), section 2.2, for the derivative.

    Examples:
        >>> core = fjx.functional.FractionalLinear(3, 5, alpha=0.4, learn_alpha=True)
        >>> core(core.init(jax.random.key(0)), jnp.ones((8, 100, 3))).shape
        (8, 100, 5)
    """

    in_features: int
    out_features: int
    _: KW_ONLY
    use_bias: bool = True
    alpha: float | Sequence[float] | Alpha = 0.5
    definition: Operator = "grunwald_letnikov"
    scheme: str | None = None
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dt: float = 1.0
    dim: int = -2
    axis_name: Hashable = None
    manager: BackendManager | None = None
    dtype: Any = None
    precision: Any = None
    kernel_init: Initializer = kernel_init
    bias_init: Initializer = BIAS_INIT
    derivative: FractionalLayer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = "FractionalLinear"
        settle_fields(owner, self)
        if self.dim == -1:
            raise ValueError(f"{owner}(dim=-1): needs a time axis before the features, the last axis; pass dim=-2.")
        settle_derivative(owner, self)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"kernel": [in_features, out_features], "bias": [out_features]}, and "order" where it is learned."""
        return self._drawn(key, (self.in_features, self.out_features), param_dtype)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the layer's value at x, [..., n, in_features].

        Args:
            params: From `init`.
            x: Floating.
            key: For a random order; None is its mean.
        """
        self._check("FractionalLinear", x)
        return self._product(params, self.derivative(params, x, key=key))

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> StreamState:
        """Return the state before the first sample, for `step`.

        Args:
            params: From `init`.
            shape: Of one time slice, [..., in_features]: of x without its time axis.
            horizon: As in `FractionalLayer.initial_state`, where more is said.

        Raises:
            ValueError: As in `FractionalLayer.initial_state`, or `shape` has another number of features.
            TypeError: An argument has the wrong type.
        """
        owner = "FractionalLinear.initial_state"
        check_features(owner, "shape", slice_shape(owner, shape), 1, self.in_features)
        return self.derivative.initial_state(params, shape, horizon=horizon)

    def step(self, params: Params, x: Array, state: StreamState) -> tuple[Array, StreamState]:
        """Return the next sample of the result, [..., out_features], and the state after it.

        Args:
            params: From `init`.
            x: One time slice, [..., in_features], of the state's shape.
            state: From `initial_state` or the step before.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`.
        """
        d, state = self.derivative.step(params, x, state)
        return self._product(params, d), state

    def run(self, params: Params, x: Array, state: StreamState | None = None) -> tuple[Array, StreamState]:
        """Return the results for the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            params: From `init`.
            x: The next samples, [..., n, in_features]; any n.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `FractionalLayer.run`.
            TypeError: As in `FractionalLayer.run`.
        """
        owner, x = "FractionalLinear.run", of_numpy(x)
        self._check(owner, x)
        d, state = self.derivative.run(params, x, state)
        return self._product(params, d), state

    def _check(self, owner: str, x: Array) -> None:
        """Raise ValueError unless x has `in_features` features on its last axis, and time on another."""
        check_features(owner, "x", x.shape, 2, self.in_features)
        check_time_axis(owner, "x", x.shape, self.dim)

    def _product(self, params: Params, d: Array) -> Array:
        dense = linen.Dense(self.out_features, self.use_bias, dtype=self.dtype, precision=self.precision, parent=None)
        return dense.apply({"params": weights(params)}, d)  # type: ignore[return-value]


@dataclass(frozen=True)
class Convolution(Weighted):
    """The base class of cores with Flax's convolution over the `axes` axes before the features.

    Attributes:
        in_features: Features of the input, its last axis.
        out_features: Features of the output.
        kernel_size: Samples of the kernel along each axis, or one number for all.
        strides: As in `nnx.Conv`.
        padding: As in `nnx.Conv`.
        kernel_dilation: As in `nnx.Conv`.
        feature_group_count: As in `nnx.Conv`.
        use_bias: Whether there is a bias.
        dtype: What the convolution is computed in; None promotes the derivative and the parameters.
        precision: Precision of the convolution, as in Flax.
        kernel_init: Draws the kernel.
        bias_init: Draws the bias.
    """

    in_features: int
    out_features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] = 1
    _: KW_ONLY
    padding: Any = "SAME"
    kernel_dilation: int | Sequence[int] = 1
    feature_group_count: int = 1
    use_bias: bool = True
    dtype: Any = None
    precision: Any = None
    kernel_init: Initializer = kernel_init
    bias_init: Initializer = BIAS_INIT

    axes: ClassVar[int]

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"kernel": [*kernel_size, in_features // feature_group_count, out_features], "bias": [out_features]}.

        The dictionary has "bias" where the layer has one, and "order" where the order is learned.
        """
        shape = (*self._sizes, self.in_features // self.feature_group_count, self.out_features)
        return self._drawn(key, shape, param_dtype)

    def _settle_convolution(self, owner: str) -> None:
        """Check the fields, and store sizes as tuples with an entry for each axis.

        Raises:
            TypeError: A field has the wrong type.
            ValueError: A size is out of range, or the number of groups does not divide the features.
        """
        settle_fields(owner, self)
        for name in ("kernel_size", "strides", "kernel_dilation"):
            settle(self, **{name: errors.counts(owner, name, getattr(self, name), self.axes)})
        for name in ("in_features", "out_features"):
            if getattr(self, name) % self.feature_group_count:
                raise ValueError(
                    f"{owner}({name}={getattr(self, name)}, feature_group_count={self.feature_group_count}): needs a "
                    "number of groups that divides the features; pass another."
                )

    def _convolved(self, params: Params, d: Array, padding: Any) -> Array:
        """Return Flax's convolution of an array.

        Args:
            params: The layer's parameters.
            d: The array, [..., *sizes, in_features]: the derivative of the layer's input.
            padding: Flax's argument.
        """
        convolution = linen.Conv(
            self.out_features,
            self._sizes,
            self.strides,
            padding,
            kernel_dilation=self.kernel_dilation,
            feature_group_count=self.feature_group_count,
            use_bias=self.use_bias,
            dtype=self.dtype,
            precision=self.precision,
            parent=None,
        )
        return unplaced(lambda params, d: convolution.apply({"params": params}, d), weights(params), d)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return self.kernel_size  # type: ignore[return-value]  # settled


@jax.tree_util.register_dataclass
@versioned
@dataclass(frozen=True)
class ConvolutionState:
    """The state of a causal `FractionalConv1d` between two steps: its derivative's state and last samples.

    Attributes:
        derivative: The state of the derivative.
        past: The derivative's last kernel_dilation * (kernel_size - 1) samples, [..., samples, in_features].
    """

    derivative: StreamState
    past: Array


serializable(ConvolutionState, "derivative", "past")


@dataclass(frozen=True)
class FractionalConv1d(Convolution):
    """Flax's `Conv` over one axis, of the fractional derivative of each feature along it.

    y = conv(D^alpha x, kernel) + bias, and for Grunwald-Letnikov

    (D^alpha x)[t] = dt^-alpha sum over k = 0, ..., t of w_k x[t - k], w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k.

    With it alpha = 0 is `nnx.Conv` and alpha = 1 is `nnx.Conv` of (x[t] - x[t-1]) / dt with x[-1] = 0. What is padded
    is the derivative.

    Attributes:
        in_features: Features of the input, its last axis.
        out_features: Features of the output.
        kernel_size: Samples of the kernel.
        strides: As in `nnx.Conv`.
        padding: As in `nnx.Conv`; with "CAUSAL" no sample of the output depends on later ones of the derivative, and
            `step` works.
        kernel_dilation: As in `nnx.Conv`.
        feature_group_count: As in `nnx.Conv`.
        use_bias: Whether there is a bias.
        dtype: What the convolution is computed in; None promotes the derivative and the parameters.
        precision: Precision of the convolution, as in Flax.
        kernel_init: Draws the kernel.
        bias_init: Draws the bias.
        alpha: The order, or a list of one for each input feature; or an `Alpha` of shape [] or [in_features].
        definition: As in `FractionalLayer`.
        scheme: The discretisation; None is the definition's default.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value.
        dt: Spacing of the samples, in the caller's time unit.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        derivative: The layer that differentiates.

    Shape:
        [..., n, in_features] -> [..., n_out, out_features]; n_out as in `nnx.Conv`.

    Raises:
        ValueError: alpha, bounds, dt or an argument of the convolution is out of range.
        TypeError: An argument has the wrong type.

    Source: Oldham & Spanier, The Fractional Calculus (1974), section 2.2, for the derivative.

    Examples:
        >>> core = fjx.functional.FractionalConv1d(
        ...     3, 5, 7, padding="CAUSAL", alpha=0.4, learn_alpha=True
        ... )
        >>> core(core.init(jax.random.key(0)), jnp.ones((8, 100, 3))).shape
        (8, 100, 5)
    """

    _: KW_ONLY
    alpha: float | Sequence[float] | Alpha = 0.5
    definition: Operator = "grunwald_letnikov"
    scheme: str | None = None
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dt: float = 1.0
    manager: BackendManager | None = None
    derivative: FractionalLayer = field(init=False, repr=False, compare=False)

    axes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        owner = "FractionalConv1d"
        self._settle_convolution(owner)
        settle_derivative(owner, self)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the convolution of the derivative of x, [..., n, in_features].

        Args:
            params: From `init`.
            x: Floating.
            key: For a random order; None is its mean.
        """
        check_features("FractionalConv1d", "x", x.shape, 2, self.in_features)
        return self._convolved(params, self.derivative(params, x, key=key), self.padding)

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> ConvolutionState:
        """Return the state before the first sample, for `step`.

        Args:
            params: From `init`.
            shape: Of one time slice, [..., in_features].
            horizon: As in `FractionalLayer.initial_state`, where more is said.

        Raises:
            ValueError: The layer is not causal, or its strides are not 1, or as in `FractionalLayer.initial_state`.
            TypeError: An argument has the wrong type.
        """
        owner = "FractionalConv1d.initial_state"
        if self.padding != "CAUSAL":
            raise ValueError(
                f"{owner}: needs padding='CAUSAL' one sample at a time, because with padding={self.padding!r} results "
                "belong to later samples; make the layer with padding='CAUSAL'."
            )
        if self.strides != (1,):
            raise ValueError(
                f"{owner}: needs strides=1 one sample at a time, because with strides={self.strides} not every sample "
                "has a result; make the layer with strides=1 and leave results out."
            )
        shape = slice_shape(owner, shape)
        check_features(owner, "shape", shape, 1, self.in_features)
        past = jnp.zeros((*shape[:-1], self._reach, self.in_features), widest())
        return ConvolutionState(self.derivative.initial_state(params, shape, horizon=horizon), past)

    def step(self, params: Params, x: Array, state: ConvolutionState) -> tuple[Array, ConvolutionState]:
        """Return the next sample of the result, [..., out_features], and the state after it.

        Args:
            params: From `init`.
            x: One time slice, of the state's shape; floating.
            state: From `initial_state` or the step before.

        Raises:
            ValueError: As in `FractionalLayer.step`, or the state was made for another kernel.
            TypeError: As in `FractionalLayer.step`.
        """
        self._check_state("FractionalConv1d.step", state)
        d, derivative = self.derivative.step(params, x, state.derivative)
        y, past = self._continued(params, d[..., None, :], state.past)
        return y[..., 0, :], ConvolutionState(derivative, past)

    def run(self, params: Params, x: Array, state: ConvolutionState | None = None) -> tuple[Array, ConvolutionState]:
        """Return the results for the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            params: From `init`.
            x: The next samples, [..., n, in_features]; any n.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `initial_state` and `step`.
            TypeError: As in `initial_state` and `step`.
        """
        owner, x = "FractionalConv1d.run", of_numpy(x)
        check_features(owner, "x", x.shape, 2, self.in_features)
        if state is None:
            state = self.initial_state(params, without(owner, x, -2))
        self._check_state(owner, state)
        d, derivative = self.derivative.run(params, x, state.derivative)
        y, past = self._continued(params, d, state.past)
        return y, ConvolutionState(derivative, past)

    def _check_state(self, owner: str, state: ConvolutionState) -> None:
        check_is_state(owner, state, ConvolutionState)
        check_past(owner, state.past.shape[-2], self._reach, "kernel_dilation")

    def _continued(self, params: Params, d: Array, past: Array) -> tuple[Array, Array]:
        """Return the results for the derivative's next samples, and the last samples that later results depend on.

        Args:
            params: The layer's parameters.
            d: The next samples of the derivative, [..., n, in_features].
            past: The samples before them, as `ConvolutionState.past`.
        """
        window = jnp.concatenate([past, d.astype(past.dtype)], axis=-2)
        n = d.shape[-2]
        if n == 0:  # Flax convolves no empty arrays
            y, _ = self._continued(params, jnp.zeros_like(d, shape=(*d.shape[:-2], 1, d.shape[-1])), past)
            return y[..., :0, :], past
        return self._convolved(params, window.astype(d.dtype), "VALID"), window[..., n:, :]

    @property
    def _reach(self) -> int:
        """How many earlier samples of the derivative an output depends on: the receptive field minus one."""
        (dilation,), (size,) = self.kernel_dilation, self._sizes  # type: ignore[misc]
        return dilation * (size - 1)


@dataclass(frozen=True)
class FractionalConv2d(Convolution):
    """Flax's `Conv` over two axes, of fractional derivatives of each feature along one axis of the images, or both.

    y = conv(D_1^alpha_1 D_2^alpha_2 x, kernel) + bias, D_j the derivative along axis j of `dims`; they commute. Each
    has zero history and begins at the first row or column: for Grunwald-Letnikov along the columns

    (D^alpha x)[..., t, :] = dt^-alpha sum over k = 0, ..., t of w_k x[..., t - k, :],

    w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k. With it alpha = 0 is `nnx.Conv`. What is padded is the derivative.

    Attributes:
        in_features: Features of the input, its last axis.
        out_features: Features of the output.
        kernel_size: Samples of the kernel along each axis, or one number for both.
        strides: As in `nnx.Conv`.
        padding: As in `nnx.Conv`.
        kernel_dilation: As in `nnx.Conv`.
        feature_group_count: As in `nnx.Conv`.
        use_bias: Whether there is a bias.
        dtype: What the convolution is computed in; None promotes the derivative and the parameters.
        precision: Precision of the convolution, as in Flax.
        kernel_init: Draws the kernel.
        bias_init: Draws the bias.
        dims: The axes of the derivatives: (-2,), the width, (-3,), the height, or (-3, -2).
        alpha: The order, one that all axes share, or a list of one for each axis; or an `Alpha` of shape [] or [axes].
        definition: As in `FractionalLayer`.
        scheme: The discretisation; None is the definition's default.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value.
        dt: Spacing of the samples, in the caller's unit, one for all axes or one for each.
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Shape:
        [..., height, width, in_features] -> [..., height_out, width_out, out_features], as in `nnx.Conv`.

    Raises:
        ValueError: alpha, bounds, dt, dims or an argument of the convolution is out of range.
        TypeError: An argument has the wrong type.

    Source: Oldham & Spanier, The Fractional Calculus (1974), section 2.2, for the derivative.

    Examples:
        >>> core = fjx.functional.FractionalConv2d(
        ...     3, 5, 3, dims=(-3, -2), alpha=(0.4, 0.8), learn_alpha=True
        ... )
        >>> core(core.init(jax.random.key(0)), jnp.ones((8, 28, 28, 3))).shape
        (8, 28, 28, 5)
    """

    _: KW_ONLY
    dims: Sequence[int] = (-2,)
    alpha: float | Sequence[float] | Alpha = 0.5
    definition: Operator = "grunwald_letnikov"
    scheme: str | None = None
    learn_alpha: bool = False
    bounds: tuple[float, float] | None = None
    dt: float | Sequence[float] = 1.0
    manager: BackendManager | None = None

    axes: ClassVar[int] = 2

    def __post_init__(self) -> None:
        owner = "FractionalConv2d"
        self._settle_convolution(owner)
        dims = image_axes(owner, self.dims, (-3, -2))
        steps = for_each_axis(owner, "dt", self.dt, dims)
        settle(self, dims=dims, dt=tuple(errors.positive_step(owner, step) for step in steps))
        definition = definition_of(owner, self.definition, self.scheme)
        self.settle_order(owner, definition, lambda given: image_order_shape(owner, given, dims))
        if self.order is None:
            for_each_axis(owner, "alpha", self.definition.alpha, dims)

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the convolution of the derivatives of x, [..., height, width, in_features].

        Args:
            params: From `init`.
            x: Floating.
            key: For a random order; None is its mean.
        """
        owner, x = "FractionalConv2d", of_numpy(x)
        check_features(owner, "x", x.shape, 3, self.in_features)
        for dim, dt, definition in zip(self.dims, self._steps, self._operators(params, key), strict=True):
            x = dispatch.apply(owner, x, definition, dt, dim, self.manager)
        return self._convolved(params, x, self.padding)

    def _operators(self, params: Params, key: Array | None) -> list[Definition]:
        """Return the operator, with its present alpha, for each axis in `dims`."""
        alpha = self._present(params, key)
        if alpha is None:
            orders: Any = for_each_axis("FractionalConv2d", "alpha", self.definition.alpha, tuple(self.dims))
        else:
            orders = jnp.broadcast_to(alpha, len(self.dims))
        return [replace(self.definition, alpha=each) for each in orders]

    @property
    def _steps(self) -> tuple[float, ...]:
        return self.dt  # type: ignore[return-value]  # settled
