"""The convolution of images' fractional derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar

from hpfracc_nn import errors
from hpfracc_nn.fractional import dispatch
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.jax.arrays import of_numpy
from hpfracc_nn.layers.flax.functional.convolution import Convolution
from hpfracc_nn.layers.flax.functional.core import Array, Params, check_fields, hashable, settle
from hpfracc_nn.layers.flax.functional.order import Alpha, Operator, started
from hpfracc_nn.layers.order import definition_of
from hpfracc_nn.layers.shapes import check_features, for_each_axis, image_axes, image_order_shape
from hpfracc_nn.selection import BackendManager


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
        padding: As there.
        kernel_dilation: As there.
        feature_group_count: As there.
        use_bias: Whether there is a bias.
        dtype: What the convolution is computed in; None promotes the derivative and the parameters.
        precision: Of it, as in Flax.
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
        check_fields(owner, self)
        self._settle_convolution(owner)
        dims = image_axes(owner, hashable(self.dims), (-3, -2))
        steps = for_each_axis(owner, "dt", hashable(self.dt), dims)
        settle(
            self,
            dims=dims,
            dt=tuple(errors.positive_step(owner, step) for step in steps),
            alpha=hashable(self.alpha),
            bounds=hashable(self.bounds),
        )
        definition, order = started(
            owner,
            definition_of(owner, self.definition, self.scheme),
            self.alpha,
            bounds=self.bounds,
            learn_alpha=self.learn_alpha,
            shape=lambda given: image_order_shape(owner, given, dims),
        )
        if order is None:
            for_each_axis(owner, "alpha", definition.alpha, dims)
        settle(self, definition=definition, order=order, learn_alpha=order is not None)

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
        """The definition of each axis, with its present alpha."""
        count = len(self.dims)
        if self.order is None:
            orders: Any = for_each_axis("FractionalConv2d", "alpha", self.definition.alpha, tuple(self.dims))
        else:
            alpha = self._present(params, key)
            orders = [alpha] * count if alpha.ndim == 0 else [alpha[axis] for axis in range(count)]
        return [replace(self.definition, alpha=each) for each in orders]

    @property
    def _steps(self) -> tuple[float, ...]:
        return self.dt  # type: ignore[return-value]  # settled
