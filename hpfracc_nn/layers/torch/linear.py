"""Linear layers and convolutions on the fractional derivative of their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.streaming import HORIZON, slice_shape, versioned
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place, is_spread
from hpfracc_nn.fractional.torch.streaming import StreamState, register_tree
from hpfracc_nn.layers.order import counted_orders, definition_of, options_text
from hpfracc_nn.layers.shapes import (
    PADDING_MODES,
    check_features,
    check_is_state,
    check_past,
    check_time_axis,
    convolution_sizes,
    for_each_axis,
    image_axes,
    image_order_shape,
)
from hpfracc_nn.layers.torch.fractional import (
    FractionalLayer,
    LayerState,
    Ordered,
    arguments_of,
    check_images,
    each_on_its_own,
    each_to_its_length,
    has_lengths,
    place_of,
    started,
    with_weights_of,
)
from hpfracc_nn.selection import BackendManager, given_manager


class Derived(nn.Module):
    """The base class of torch's layers on a fractional derivative of their input; `derivative` has the order."""

    derivative: FractionalLayer

    @property
    def order(self) -> Alpha:
        """The module of a learned order."""
        return self.derivative.order

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.derivative.alpha


class FractionalLinear(Derived, nn.Linear):
    """`torch.nn.Linear` on the fractional derivative of each feature along time.

    y[..., t, o] = bias[o] + sum over i of weight[o, i] (D^alpha x)[..., t, i], and for Grunwald-Letnikov

    (D^alpha x)[t] = dt^-alpha sum over k = 0, ..., t of w_k x[t - k], w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k.

    With it alpha = 0 is `nn.Linear` and alpha = 1 is `nn.Linear` of (x[t] - x[t-1]) / dt with x[-1] = 0. Sample t of
    the output depends on samples up to t.

    It may stand in a `torch.nn.TransformerEncoderLayer`, but not as the `out_proj` of `torch.nn.MultiheadAttention`,
    which multiplies by the weight of what stands there and never calls it.

    Args:
        in_features: As in `torch.nn.Linear`.
        out_features: As in `torch.nn.Linear`.
        bias: As in `torch.nn.Linear`.
        alpha: The order, or a list of one for each input feature, such as [0.5] * in_features; or an `Alpha` or
            `ProbabilisticAlpha` of shape [] or [in_features], which then is the order.
        definition: As in `FractionalLayer`.
        scheme: The discretisation; None is the definition's default.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis: any but the last, which are the features.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        [..., n, in_features] -> [..., n, out_features], with time on `dim`.

    Raises:
        ValueError: alpha, bounds, dt or dim is out of range.
        TypeError: An argument has the wrong type.

    Source: Oldham & Spanier, The Fractional Calculus (1974), section 2.2, for the derivative.

    Examples:
        >>> layer = FractionalLinear(3, 5, alpha=0.4, learn_alpha=True)
        >>> layer(torch.randn(8, 100, 3)).shape
        torch.Size([8, 100, 5])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        alpha: float | Sequence[float] | Alpha = 0.5,
        definition: str | type[Definition] | Definition = "grunwald_letnikov",
        scheme: str | None = None,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dt: float = 1.0,
        dim: int = -2,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner = "FractionalLinear"
        features = (errors.count(owner, "in_features", in_features), errors.count(owner, "out_features", out_features))
        check_place(owner, device, dtype)
        super().__init__(*features, errors.claim(owner, "bias", bias), device=device, dtype=dtype)
        if errors.index(owner, "dim", dim) == -1:
            raise ValueError(f"{owner}(dim=-1): needs a time axis before the features, the last axis; pass dim=-2.")
        self.derivative = FractionalLayer(
            alpha,
            definition,
            scheme=scheme,
            channels=counted_orders(owner, alpha, "in_features", self.in_features),
            learn_alpha=learn_alpha,
            bounds=bounds,
            dt=dt,
            dim=dim,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        self.register_forward_pre_hook(_watch)

    @classmethod
    def from_torch(cls, module: nn.Linear, **options: Any) -> FractionalLinear:
        """Return the layer with the weights, device and dtype of torch's; `options` are the keyword arguments.

        What is frozen stays so, and training or evaluation is taken over, but not by an order that is given. Nothing is
        shared with `module`.

        Raises:
            TypeError: `module` is no `torch.nn.Linear`, or is one of these layers.
            ValueError: An option changes the shape of a weight, or asks for one that `module` has not; or a hook makes
                its weights, as pruning does.

        Examples:
            >>> ordinary, x = torch.nn.Linear(3, 5), torch.randn(8, 100, 3)
            >>> torch.allclose(
            ...     FractionalLinear.from_torch(ordinary, alpha=0.0)(x), ordinary(x), atol=1e-6
            ... )
            True
        """
        place = place_of(cls, module, nn.Linear)
        arguments = {name: getattr(module, name) for name in ("in_features", "out_features")}
        arguments["bias"] = module.bias is not None
        return with_weights_of(module, cls(**{**arguments, **place, **options}), options.get("alpha"))

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's value at `input`; same dtype and device."""
        if is_spread(input):
            from hpfracc_nn.distributed.torch.meshes import beside  # torch.distributed.tensor is loaded by now

            self._check_features("FractionalLinear", input)
            return F.linear(self.derivative(input), beside(self.weight, input), beside(self.bias, input))
        if has_lengths(input) and self.derivative._split is None:
            of, looks_ahead = partial(FractionalLinear.forward, self), self.derivative.definition.looks_ahead
            return each_to_its_length("FractionalLinear", input, of, self.derivative.dim, looks_ahead)
        self._check("FractionalLinear", input)
        return F.linear(self.derivative(input), self.weight, self.bias)

    def split_time(self, group: Any = None) -> Self:
        """Let the time axis lie over the processes of a group from now on, and return the layer.

        The gradients of `weight` and `bias` are those of this process's slice, to be summed over the group; alpha's is
        complete. See `FractionalLayer.split_time`.

        Args:
            group: As in `FractionalLayer.split_time`.

        Raises:
            RuntimeError: There is no process group.
            TypeError: `group` is no process group.
            ValueError: This process is not in the group.
        """
        self.derivative.split_time(group)
        return self

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> StreamState:
        """Return the state before the first sample, for `step`.

        Args:
            shape: Of one time slice, [..., in_features]: of x without its time axis.
            horizon: As in `FractionalLayer.initial_state`, where more is said.
            device: As in `FractionalLayer.initial_state`.

        Raises:
            ValueError: As in `FractionalLayer.initial_state`, or `shape` has another number of features.
            TypeError: An argument has the wrong type.
        """
        owner = "FractionalLinear.initial_state"
        check_features(owner, "shape", slice_shape(owner, shape), 1, self.in_features)
        return self.derivative.initial_state(shape, horizon=horizon, device=device)

    def step(self, x: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
        """Return the next sample of the result, [..., out_features], and the state after it.

        Args:
            x: One time slice, [..., in_features], of the state's shape.
            state: From `initial_state` or the step before; it stays as it is.

        Raises:
            ValueError: As in `FractionalLayer.step`.
            TypeError: As in `FractionalLayer.step`.
        """
        d, state = self.derivative.step(x, state)
        return F.linear(d, self.weight, self.bias), state

    def run(self, input: Tensor, state: StreamState | None = None) -> tuple[Tensor, StreamState]:
        """Return the layer's value at the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            input: The next samples, as of `forward`; any number along `dim`.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `FractionalLayer.run`.
            TypeError: As in `FractionalLayer.run`.
        """
        self._check("FractionalLinear.run", input)
        d, state = self.derivative.run(input, state)
        return F.linear(d, self.weight, self.bias), state

    def _check(self, owner: str, input: Tensor) -> None:
        check_dense(owner, "input", input)
        self._check_features(owner, input)

    def _check_features(self, owner: str, input: Tensor) -> None:
        check_features(owner, "input", input.shape, 2, self.in_features)
        check_time_axis(owner, "input", input.shape, self.derivative.dim)


def _watch(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Do nothing: a forward pre-hook whose presence makes `nn.TransformerEncoderLayer` call the layer.

    Without a hook on `linear1` the encoder layer, in evaluation, multiplies by its weight and never calls it.
    """


class FractionalConv1d(Derived, nn.Conv1d):
    """`torch.nn.Conv1d` on the fractional derivative of each channel along time, the last axis.

    y = conv1d(D^alpha x, weight, bias), and for Grunwald-Letnikov

    (D^alpha x)[t] = dt^-alpha sum over k = 0, ..., t of w_k x[t - k], w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k.

    With it alpha = 0 is `nn.Conv1d` and alpha = 1 is `nn.Conv1d` of (x[t] - x[t-1]) / dt with x[-1] = 0. What is
    padded is the derivative.

    Args:
        in_channels: As in `torch.nn.Conv1d`.
        out_channels: As in `torch.nn.Conv1d`.
        kernel_size: As in `torch.nn.Conv1d`.
        stride: As in `torch.nn.Conv1d`.
        padding: As in `torch.nn.Conv1d`; or "causal", dilation * (kernel_size - 1) zeros before the first sample and
            none behind the last, so that no sample of the output depends on later ones of the derivative, and `step`
            works.
        dilation: As in `torch.nn.Conv1d`.
        groups: As in `torch.nn.Conv1d`.
        bias: As in `torch.nn.Conv1d`.
        padding_mode: As in `torch.nn.Conv1d`; "zeros" where `padding` is "causal".
        alpha: The order, or a list of one for each input channel, such as [0.5] * in_channels; or an `Alpha` or
            `ProbabilisticAlpha` of shape [] or [in_channels], which then is the order.
        definition: As in `FractionalLayer`.
        scheme: The discretisation; None is the definition's default.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value.
        dt: Spacing of the samples, in the caller's time unit.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        [batch, in_channels, n] -> [batch, out_channels, n_out], or both without batch; n_out as in `torch.nn.Conv1d`.

    Raises:
        ValueError: alpha, bounds, dt or an argument of the convolution is out of range.
        TypeError: An argument has the wrong type.

    Source: Oldham & Spanier, The Fractional Calculus (1974), section 2.2, for the derivative.

    Examples:
        >>> layer = FractionalConv1d(3, 5, 7, padding="causal", alpha=0.4, learn_alpha=True)
        >>> layer(torch.randn(8, 3, 100)).shape
        torch.Size([8, 5, 100])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: str | int | tuple[int] = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        *,
        alpha: float | Sequence[float] | Alpha = 0.5,
        definition: str | type[Definition] | Definition = "grunwald_letnikov",
        scheme: str | None = None,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dt: float = 1.0,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner, is_causal = "FractionalConv1d", isinstance(padding, str) and padding == "causal"
        errors.one_of(owner, "padding_mode", padding_mode, PADDING_MODES)
        if is_causal and padding_mode != "zeros":
            raise ValueError(
                f"{owner}(padding='causal', padding_mode={padding_mode!r}): needs padding_mode='zeros', because "
                "nothing is known before the first sample; leave it out, or pass another padding."
            )
        sizes = convolution_sizes(owner, in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        if is_causal:
            sizes = (*sizes[:4], 0, *sizes[5:])
        check_place(owner, device, dtype)
        super().__init__(*sizes, errors.claim(owner, "bias", bias), padding_mode, device, dtype)  # type: ignore[call-arg]
        self.is_causal = is_causal
        self.derivative = FractionalLayer(
            alpha,
            definition,
            scheme=scheme,
            channels=counted_orders(owner, alpha, "in_channels", in_channels),
            learn_alpha=learn_alpha,
            bounds=bounds,
            dt=dt,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    @classmethod
    def from_torch(cls, module: nn.Conv1d, **options: Any) -> FractionalConv1d:
        """Return the layer with torch's arguments, weights, device and dtype; `options` are the keyword arguments.

        `padding="causal"` may be among them, where torch's is 0. What is frozen stays so, and training or evaluation is
        taken over, but not by an order that is given. Nothing is shared with `module`.

        Raises:
            TypeError: `module` is no `torch.nn.Conv1d`, or is one of these layers.
            ValueError: As in `FractionalLinear.from_torch`.

        Examples:
            >>> ordinary, x = torch.nn.Conv1d(3, 5, 7), torch.randn(8, 3, 100)
            >>> torch.allclose(
            ...     FractionalConv1d.from_torch(ordinary, alpha=0.0)(x), ordinary(x), atol=1e-6
            ... )
            True
            >>> layer = FractionalConv1d.from_torch(ordinary, alpha=0.4, padding="causal")
        """
        own = {**place_of(cls, module, nn.Conv1d), **arguments_of(module), **options}
        return with_weights_of(module, cls(**own), options.get("alpha"))

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the derivative of `input`; same dtype and device."""
        if is_spread(input):
            return each_on_its_own("FractionalConv1d", self, FractionalConv1d.forward, [input], range(input.ndim - 2))
        if has_lengths(input):
            looks_ahead = not self.is_causal or self.derivative.definition.looks_ahead
            return each_to_its_length(
                "FractionalConv1d", input, partial(FractionalConv1d.forward, self), -1, looks_ahead
            )
        check_images("FractionalConv1d", input, self.in_channels, 1)
        d = self.derivative(input)
        if self.is_causal:
            d = F.pad(d, (self._reach, 0))
        return self._conv_forward(d, self.weight, self.bias)

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> ConvolutionState:
        """Return the state before the first sample, for `step`.

        Args:
            shape: Of one time slice, [batch, in_channels] or [in_channels].
            horizon: As in `FractionalLayer.initial_state`, where more is said.
            device: As in `FractionalLayer.initial_state`.

        Raises:
            ValueError: The layer is not causal, or its stride is not 1, or as in `FractionalLayer.initial_state`.
            TypeError: An argument has the wrong type.

        Examples:
            >>> layer = FractionalConv1d(3, 5, 7, padding="causal", alpha=0.4)
            >>> y, state = layer.step(torch.randn(8, 3), layer.initial_state((8, 3)))
            >>> y.shape
            torch.Size([8, 5])
        """
        owner = "FractionalConv1d.initial_state"
        if not self.is_causal:
            raise ValueError(
                f"{owner}: needs padding='causal' for step and run, because with padding={self.padding} results "
                "belong to later samples; make the layer with padding='causal'."
            )
        if self.stride != (1,):
            raise ValueError(
                f"{owner}: needs stride=1 for step and run, because with stride={self.stride[0]} not every sample "
                "has a result; make the layer with stride=1 and leave results out."
            )
        shape = slice_shape(owner, shape)
        if len(shape) not in (1, 2) or shape[-1] != self.in_channels:
            raise ValueError(
                f"{owner}(shape={shape}): needs [batch, {self.in_channels}] or [{self.in_channels}], the shape of one "
                "time slice; pass x.select(-1, 0).shape."
            )
        state = self.derivative.initial_state(shape, horizon=horizon, device=device)
        past = torch.zeros(*shape, self._reach, dtype=torch.float64, device=state.device)
        return ConvolutionState(state, past)

    def step(self, x: Tensor, state: ConvolutionState) -> tuple[Tensor, ConvolutionState]:
        """Return the next sample of the result, [batch, out_channels] or [out_channels], and the state after it.

        Args:
            x: One time slice, of the state's shape; any floating dtype.
            state: From `initial_state` or the step before; it stays as it is.

        Raises:
            ValueError: As in `FractionalLayer.step`, or the state was made for another kernel.
            TypeError: As in `FractionalLayer.step`.
        """
        self._check_state("FractionalConv1d.step", state)
        d, derivative = self.derivative.step(x, state.derivative)
        y, past = self._convolved(d.unsqueeze(-1), state.past)
        return y.squeeze(-1), ConvolutionState(derivative, past)

    def run(self, input: Tensor, state: ConvolutionState | None = None) -> tuple[Tensor, ConvolutionState]:
        """Return the results for the next samples of a series and the state after them; see `FractionalLayer.run`.

        Args:
            input: The next samples, [batch, in_channels, n] or [in_channels, n]; any n.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: As in `initial_state` and `FractionalLayer.run`, or the state was made for another kernel.
            TypeError: As in `FractionalLayer.run`.
        """
        owner = "FractionalConv1d.run"
        check_images(owner, input, self.in_channels, 1)
        if state is None:
            state = self.initial_state(input.shape[:-1], device=input.device)
        self._check_state(owner, state)
        d, derivative = self.derivative.run(input, state.derivative)
        if not d.shape[-1]:
            return d.new_empty(*d.shape[:-2], self.out_channels, 0), state
        y, past = self._convolved(d, state.past)
        return y, ConvolutionState(derivative, past)

    def _check_state(self, owner: str, state: Any) -> None:
        check_is_state(owner, state, ConvolutionState)
        check_past(owner, state.past.shape[-1], self._reach, "dilation")

    def _convolved(self, d: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the convolution for the derivative's next samples, and the last samples that later results depend on.

        Args:
            d: The next samples of the derivative, [*shape, n].
            past: The samples before them, as `ConvolutionState.past`.
        """
        window = torch.cat([past, d.to(torch.float64)], dim=-1)
        return self._conv_forward(window.to(d.dtype), self.weight, self.bias), window[..., d.shape[-1] :].clone()

    def extra_repr(self) -> str:
        return super().extra_repr() + (", padding='causal'" if self.is_causal else "")

    @property
    def _reach(self) -> int:
        """How many earlier samples of the derivative an output depends on: the receptive field minus one."""
        return self.dilation[0] * (self.kernel_size[0] - 1)


class FractionalConv2d(Ordered, nn.Conv2d):
    """`torch.nn.Conv2d` on fractional derivatives of each channel along one axis of the images, or along both.

    y = conv2d(D_1^alpha_1 D_2^alpha_2 x, weight, bias), D_j the derivative along axis j of `dims`; they commute.
    Each has zero history and begins at the first row or column: for Grunwald-Letnikov along the last axis

    (D^alpha x)[..., t] = dt^-alpha sum over k = 0, ..., t of w_k x[..., t - k],

    w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k. With it alpha = 0 is `nn.Conv2d` and alpha = 1 is `nn.Conv2d` of
    (x[..., t] - x[..., t-1]) / dt with x[..., -1] = 0. What is padded is the derivative.

    Args:
        in_channels: As in `torch.nn.Conv2d`.
        out_channels: As in `torch.nn.Conv2d`.
        kernel_size: As in `torch.nn.Conv2d`.
        stride: As in `torch.nn.Conv2d`.
        padding: As in `torch.nn.Conv2d`.
        dilation: As in `torch.nn.Conv2d`.
        groups: As in `torch.nn.Conv2d`.
        bias: As in `torch.nn.Conv2d`.
        padding_mode: As in `torch.nn.Conv2d`.
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
        found = started(
            owner,
            definition_of(owner, definition, scheme),
            alpha,
            bounds=bounds,
            learn_alpha=learn_alpha,
            shape=lambda given: image_order_shape(owner, given, self.dims),
            device=device,
            dtype=dtype,
        )
        self.hold(*found)
        if not self.learn_alpha:
            fixed = for_each_axis(owner, "alpha", self.definition.alpha, self.dims)
            self._fixed = [replace(self.definition, alpha=each) for each in fixed]
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

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the derivatives of `input`; same dtype and device."""
        if is_spread(input):
            return each_on_its_own("FractionalConv2d", self, FractionalConv2d.forward, [input], range(input.ndim - 3))
        check_images("FractionalConv2d", input, self.in_channels, 2)
        x = input
        for dim, dt, definition, alpha in zip(self.dims, self.dt, *self._operators(), strict=True):
            x = apply_at("FractionalConv2d", x, definition, dt, dim, self.site, alpha)
        return self._conv_forward(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        own = f"{self._alpha_text()}, {options_text(self.definition)}, dims={self.dims}, dt={self.dt}"
        return f"{super().extra_repr()}, {own}"

    def _operators(self) -> tuple[Sequence[Definition], Sequence[Tensor | None]]:
        """Return for each axis of `dims` its definition, and for each its present alpha, None where alpha is fixed."""
        count = len(self.dims)
        if self.learn_alpha:
            return [self.definition] * count, self.order.beside_local("FractionalConv2d").expand(count).unbind()
        return self._fixed, [None] * count


@versioned
@dataclass(frozen=True, eq=False)
class ConvolutionState(LayerState):
    """The state of a causal `FractionalConv1d` between two steps: its derivative's state and last samples.

    A state is never written to, and is a pytree of float64 tensors, as `StreamState` is.

    Attributes:
        derivative: The state of the derivative.
        past: The derivative's last dilation * (kernel_size - 1) samples, [*shape, samples].
    """

    derivative: StreamState
    past: Tensor

    @property
    def _first(self) -> StreamState:
        return self.derivative

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice, (batch, in_channels) or (in_channels,)."""
        return self.derivative.shape

    def renew(self, weights: ConvolutionState) -> ConvolutionState:
        """Return this state, detached, with the weights of another state, see `StreamState.renew`.

        The last samples of the derivative stay as they were computed.

        Raises:
            ValueError: The other state was made for another kernel, shape or horizon.
        """
        if weights.past.shape != self.past.shape:
            raise ValueError(
                f"ConvolutionState.renew(weights: state with past of shape {tuple(weights.past.shape)}): needs "
                f"{tuple(self.past.shape)}, that of this one; make it with the same layer and arguments."
            )
        return super().renew(weights)


register_tree(
    ConvolutionState,
    ("derivative", "past"),
    lambda _: None,
    lambda parts, _: ConvolutionState(*parts),
    serialized_type_name="hpfracc_nn.layers.torch.convolution_state.ConvolutionState",
)
