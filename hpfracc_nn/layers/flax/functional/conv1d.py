"""The convolution of a series' fractional derivative."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import jax
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import widest
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState, slice_shape
from hpfracc_nn.layers.flax.functional.convolution import Convolution
from hpfracc_nn.layers.flax.functional.core import Array, Params, check_fields, serializable
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer, settle_derivative
from hpfracc_nn.layers.flax.functional.order import Alpha, Operator
from hpfracc_nn.layers.order import counted_orders
from hpfracc_nn.layers.shapes import check_features
from hpfracc_nn.selection import BackendManager


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConvolutionState:
    """What a causal `FractionalConv1d` remembers between two steps: that of its derivative, and its last samples.

    Attributes:
        derivative: The state of the derivative.
        past: Its last kernel_dilation * (kernel_size - 1) samples, [..., samples, in_features].
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
        padding: As there; with "CAUSAL" no sample of the output depends on later ones of the derivative, and `step`
            works.
        kernel_dilation: As there.
        feature_group_count: As there.
        use_bias: Whether there is a bias.
        dtype: What the convolution is computed in; None promotes the derivative and the parameters.
        precision: Of it, as in Flax.
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
        check_fields(owner, self)
        self._settle_convolution(owner)
        derivative = FractionalLayer(
            self.alpha,
            self.definition,
            scheme=self.scheme,
            channels=counted_orders(owner, self.alpha, "in_features", self.in_features),
            learn_alpha=self.learn_alpha,
            bounds=self.bounds,
            dt=self.dt,
            manager=self.manager,
        )
        settle_derivative(self, derivative)

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
            ValueError: The layer is not causal or strides, or as there.
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
        owner = "FractionalConv1d.step"
        if not isinstance(state, ConvolutionState):
            raise TypeError(
                f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
            )
        if state.past.shape[-2] != self._reach:
            raise ValueError(
                f"{owner}(state with {state.past.shape[-2]} past samples): needs {self._reach} of them, "
                "kernel_dilation * (kernel_size - 1); pass a state of this layer's initial_state."
            )
        d, derivative = self.derivative.step(params, x, state.derivative)
        window = jnp.concatenate([state.past, d[..., None, :].astype(state.past.dtype)], axis=-2)
        y = self._convolved(params, window.astype(d.dtype), "VALID")
        return y[..., 0, :], ConvolutionState(derivative, window[..., 1:, :])

    @property
    def _reach(self) -> int:
        """How many samples before its own a result depends on, by the convolution."""
        (dilation,), (size,) = self.kernel_dilation, self._sizes  # type: ignore[misc]
        return dilation * (size - 1)
