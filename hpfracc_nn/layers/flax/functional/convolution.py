"""What the convolutions of fractional derivatives share: Flax's own convolution, and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from flax import linen
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.layers.flax.functional.core import (
    BIAS_INIT,
    Array,
    Initializer,
    Params,
    hashable,
    kernel_init,
    keys,
    settle,
    weights,
)
from hpfracc_nn.layers.flax.functional.order import Ordered


@dataclass(frozen=True)
class Convolution(Ordered):
    """Flax's convolution over the last axes but the features, as a part of a core.

    Attributes:
        in_features: Features of the input, its last axis.
        out_features: Features of the output.
        kernel_size: Samples of the kernel along each axis, or one number for all.
        strides: As in `nnx.Conv`.
        padding: As there.
        kernel_dilation: As there.
        feature_group_count: As there.
        use_bias: Whether there is a bias.
        dtype: What the convolution is computed in; None promotes the derivative and the parameters.
        precision: Of it, as in Flax.
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

        And "order" where it is learned.
        """
        for_kernel, for_bias = keys(type(self).__name__, key, 2)
        shape = (*self._sizes, self.in_features // self.feature_group_count, self.out_features)
        params = {"kernel": self.kernel_init(for_kernel, shape, param_dtype)}
        if self.use_bias:
            params["bias"] = self.bias_init(for_bias, (self.out_features,), param_dtype)
        return {**params, **self._order_params(key, param_dtype)}

    def _settle_convolution(self, owner: str) -> None:
        """Read the convolution's fields, or raise."""
        for name in ("in_features", "out_features", "feature_group_count"):
            settle(self, **{name: errors.count(owner, name, getattr(self, name))})
        for name in ("kernel_size", "strides", "kernel_dilation"):
            settle(self, **{name: errors.counts(owner, name, hashable(getattr(self, name)), self.axes)})
        settle(self, padding=hashable(self.padding))
        for name in ("in_features", "out_features"):
            if getattr(self, name) % self.feature_group_count:
                raise ValueError(
                    f"{owner}({name}={getattr(self, name)}, feature_group_count={self.feature_group_count}): needs a "
                    "number of groups that divides the features; pass another."
                )

    def _convolved(self, params: Params, d: Array, padding: Any) -> Array:
        """Flax's convolution of d, [..., *sizes, in_features]."""
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
