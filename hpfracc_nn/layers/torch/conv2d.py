"""The convolution of images' fractional derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.layers.order import definition_of, told
from hpfracc_nn.layers.shapes import PADDING_MODES, convolution_sizes, for_each_axis, image_axes, image_order_shape
from hpfracc_nn.layers.torch.order import started
from hpfracc_nn.layers.torch.transfer import arguments_of, check_images, place_of, with_weights_of
from hpfracc_nn.selection import BackendManager, given_manager


class FractionalConv2d(nn.Conv2d):
    """`torch.nn.Conv2d` on fractional derivatives of each channel along one axis of the images, or along both.

    y = conv2d(D_1^alpha_1 D_2^alpha_2 x, weight, bias), D_j the derivative along axis j of `dims`; they commute.
    Each has zero history and begins at the first row or column: for Grunwald-Letnikov along the last axis

    (D^alpha x)[..., t] = dt^-alpha sum over k = 0, ..., t of w_k x[..., t - k],

    w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k. With it alpha = 0 is `nn.Conv2d` and alpha = 1 is `nn.Conv2d` of
    (x[..., t] - x[..., t-1]) / dt with x[..., -1] = 0. What is padded is the derivative.

    Args:
        in_channels: As in `torch.nn.Conv2d`.
        out_channels: As there.
        kernel_size: As there.
        stride: As there.
        padding: As there.
        dilation: As there.
        groups: As there.
        bias: As there.
        padding_mode: As there.
        dims: The axes of the derivatives: (-1,), which is time where images are [..., features, n], (-2,) or (-2, -1).
        alpha: The order, one that all axes share, or a list of one for each axis; or an `Alpha` or `ProbabilisticAlpha`
            of shape [] or [axes], which then is the order.
        definition: As in `FractionalLayer`.
        scheme: The discretisation; None is the definition's default.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value.
        dt: Spacing of the samples, in the caller's unit, one for all axes or one for each.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        [batch, in_channels, height, width] -> [batch, out_channels, height_out, width_out], or both without batch; as
        in `torch.nn.Conv2d`.

    Raises:
        ValueError: alpha, bounds, dt, dims or an argument of the convolution is out of range.
        TypeError: An argument has the wrong type.

    Source: Oldham & Spanier, The Fractional Calculus (1974), section 2.2, for the derivative.

    Examples:
        >>> layer = FractionalConv2d(
        ...     3, 5, 3, padding="same", dims=(-2, -1), alpha=(0.4, 0.8), learn_alpha=True
        ... )
        >>> layer(torch.randn(8, 3, 28, 28)).shape
        torch.Size([8, 5, 28, 28])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: str | int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        *,
        dims: Sequence[int] = (-1,),
        alpha: float | Sequence[float] | Alpha = 0.5,
        definition: str | type[Definition] | Definition = "grunwald_letnikov",
        scheme: str | None = None,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dt: float | Sequence[float] = 1.0,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner = "FractionalConv2d"
        sizes = convolution_sizes(
            owner, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, axes=2
        )
        errors.one_of(owner, "padding_mode", padding_mode, PADDING_MODES)
        check_place(owner, device, dtype)
        super().__init__(*sizes, errors.claim(owner, "bias", bias), padding_mode, device, dtype)  # type: ignore[call-arg]
        self.dims = image_axes(owner, dims, (-2, -1))
        self.dt = tuple(errors.positive_step(owner, step) for step in for_each_axis(owner, "dt", dt, self.dims))
        self.definition, order = started(
            owner,
            definition_of(owner, definition, scheme),
            alpha,
            bounds=bounds,
            learn_alpha=learn_alpha,
            shape=lambda given: image_order_shape(owner, given, self.dims),
            device=device,
            dtype=dtype,
        )
        self.learn_alpha = order is not None
        if order is None:
            fixed = for_each_axis(owner, "alpha", self.definition.alpha, self.dims)
            self._fixed = [replace(self.definition, alpha=each) for each in fixed]
        else:
            self.order = order
        self.site = given_manager(owner, manager).site("toeplitz", "torch")

    @classmethod
    def from_torch(cls, module: nn.Conv2d, **options: Any) -> FractionalConv2d:
        """Return the layer with torch's arguments, weights, device and dtype; `options` are the keyword arguments.

        What is frozen stays so, and training or evaluation is taken over, but not by an order that is given. Nothing is
        shared with `module`.

        Raises:
            TypeError: `module` is no `torch.nn.Conv2d`, or is one of these layers.
            ValueError: As in `FractionalLinear.from_torch`.

        Examples:
            >>> ordinary, x = torch.nn.Conv2d(3, 5, 3), torch.randn(8, 3, 28, 28)
            >>> torch.allclose(
            ...     FractionalConv2d.from_torch(ordinary, alpha=0.0)(x), ordinary(x), atol=1e-6
            ... )
            True
            >>> layer = FractionalConv2d.from_torch(ordinary, dims=(-2, -1), alpha=0.4)
        """
        own = {**place_of(cls, module, nn.Conv2d), **arguments_of(module), **options}
        return with_weights_of(module, cls(**own), options.get("alpha"))

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units, or one for each axis; a float64 tensor where it is learned, random ones' mean."""
        return self.order.mean if self.learn_alpha else self.definition.alpha

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the derivatives of `input`; same dtype and device."""
        check_images("FractionalConv2d", input, self.in_channels, 2)
        x = input
        for dim, dt, definition, alpha in zip(self.dims, self.dt, *self._operators(), strict=True):
            x = apply_at("FractionalConv2d", x, definition, dt, dim, self.site, alpha)
        return self._conv_forward(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        alpha = "learn_alpha=True" if self.learn_alpha else f"alpha={self.definition.alpha}"
        return f"{super().extra_repr()}, {alpha}, {told(self.definition)}, dims={self.dims}, dt={self.dt}"

    def _operators(self) -> tuple[Sequence[Definition], Sequence[Tensor | None]]:
        """Return the definition of each axis, and the present alpha of each where it is learned, else None."""
        count = len(self.dims)
        if self.learn_alpha:
            return [self.definition] * count, self.order().expand(count).unbind()
        return self._fixed, [None] * count
