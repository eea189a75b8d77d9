"""A linear layer on the fractional derivative of its features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from flax import linen
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.streaming import HORIZON, StreamState, slice_shape
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Array,
    Initializer,
    Params,
    kernel_init,
    keys,
    settle,
    weights,
)
from hpfracc_nn.layers.flax.functional.fractional import FractionalLayer, settle_derivative
from hpfracc_nn.layers.flax.functional.order import Alpha, Operator, Ordered
from hpfracc_nn.layers.order import counted_orders
from hpfracc_nn.layers.shapes import check_features
from hpfracc_nn.selection import BackendManager


@dataclass(frozen=True)
class FractionalLinear(Ordered):
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
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        dtype: What the product with the kernel is computed in; None promotes the derivative and the parameters.
        precision: Of that product, as in Flax.
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
    manager: BackendManager | None = None
    dtype: Any = None
    precision: Any = None
    kernel_init: Initializer = kernel_init
    bias_init: Initializer = BIAS_INIT
    derivative: FractionalLayer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        owner = "FractionalLinear"
        for name in ("in_features", "out_features"):
            settle(self, **{name: errors.count(owner, name, getattr(self, name))})
        if self.dim == -1:
            raise ValueError(f"{owner}(dim=-1): needs a time axis before the features, the last axis; pass dim=-2.")
        derivative = FractionalLayer(
            self.alpha,
            self.definition,
            scheme=self.scheme,
            channels=counted_orders(owner, self.alpha, "in_features", self.in_features),
            learn_alpha=self.learn_alpha,
            bounds=self.bounds,
            dt=self.dt,
            dim=self.dim,
            manager=self.manager,
        )
        settle_derivative(self, derivative)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"kernel": [in_features, out_features], "bias": [out_features]}, and "order" where it is learned."""
        for_kernel, for_bias = keys("FractionalLinear", key, 2)
        params = {"kernel": self.kernel_init(for_kernel, (self.in_features, self.out_features), param_dtype)}
        if self.use_bias:
            params["bias"] = self.bias_init(for_bias, (self.out_features,), param_dtype)
        return {**params, **self._order_params(key, param_dtype)}

    def __call__(self, params: Params, x: Array, *, key: Array | None = None) -> Array:
        """Return the layer's value at x, [..., n, in_features].

        Args:
            params: From `init`.
            x: Floating.
            key: For a random order; None is its mean.
        """
        owner = "FractionalLinear"
        check_features(owner, "x", x.shape, 2, self.in_features)
        if errors.axis(owner, self.dim, x.ndim) == x.ndim - 1:
            raise ValueError(
                f"{owner}(dim={self.dim}): needs a time axis before the features, the last axis; "
                f"x has shape {tuple(x.shape)}, pass dim=-2."
            )
        return self._product(params, self.derivative(params, x, key=key))

    def initial_state(self, params: Params, shape: Sequence[int], *, horizon: int = HORIZON) -> StreamState:
        """Return the state before the first sample, for `step`.

        Args:
            params: From `init`.
            shape: Of one time slice, [..., in_features]: of x without its time axis.
            horizon: As in `FractionalLayer.initial_state`, where more is said.

        Raises:
            ValueError: As there, or `shape` has another number of features.
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

    def _product(self, params: Params, d: Array) -> Array:
        dense = linen.Dense(self.out_features, self.use_bias, dtype=self.dtype, precision=self.precision, parent=None)
        return dense.apply({"params": weights(params)}, d)  # type: ignore[return-value]
