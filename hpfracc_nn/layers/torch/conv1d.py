"""The convolution of a series' fractional derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.layers.order import counted_orders
from hpfracc_nn.layers.shapes import PADDING_MODES, convolution_sizes
from hpfracc_nn.layers.torch.convolution_state import ConvolutionState
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.transfer import arguments_of, check_images, place_of, with_weights_of
from hpfracc_nn.selection import BackendManager


class FractionalConv1d(nn.Conv1d):
    """`torch.nn.Conv1d` on the fractional derivative of each channel along time, the last axis.

    y = conv1d(D^alpha x, weight, bias), and for Grunwald-Letnikov

    (D^alpha x)[t] = dt^-alpha sum over k = 0, ..., t of w_k x[t - k], w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k.

    With it alpha = 0 is `nn.Conv1d` and alpha = 1 is `nn.Conv1d` of (x[t] - x[t-1]) / dt with x[-1] = 0. What is
    padded is the derivative.

    Args:
        in_channels: As in `torch.nn.Conv1d`.
        out_channels: As there.
        kernel_size: As there.
        stride: As there.
        padding: As there; or "causal", dilation * (kernel_size - 1) zeros before the first sample and none behind the
            last, so that no sample of the output depends on later ones of the derivative, and `step` works.
        dilation: As there.
        groups: As there.
        bias: As there.
        padding_mode: As there; "zeros" where `padding` is "causal".
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

    @property
    def order(self) -> Alpha:
        """The module of a learned order."""
        return self.derivative.order

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.derivative.alpha

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of the derivative of `input`; same dtype and device."""
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
            device: As there.

        Raises:
            ValueError: The layer is not causal or strides, or as there.
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
                f"{owner}: needs padding='causal' one sample at a time, because with padding={self.padding} results "
                "belong to later samples; make the layer with padding='causal'."
            )
        if self.stride != (1,):
            raise ValueError(
                f"{owner}: needs stride=1 one sample at a time, because with stride={self.stride[0]} not every sample "
                "has a result; make the layer with stride=1 and leave results out."
            )
        shape = streaming.slice_shape(owner, shape)
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
        if not isinstance(state, ConvolutionState):
            raise TypeError(
                f"FractionalConv1d.step(state of type {type(state).__name__}): needs a state; pass what initial_state "
                "returned."
            )
        if state.past.shape[-1] != self._reach:
            raise ValueError(
                f"FractionalConv1d.step(state with {state.past.shape[-1]} past samples): needs {self._reach} of them, "
                "dilation * (kernel_size - 1); pass a state of this layer's initial_state."
            )
        d, derivative = self.derivative.step(x, state.derivative)
        window = torch.cat([state.past, d.unsqueeze(-1).to(torch.float64)], dim=-1)
        y = self._conv_forward(window.to(d.dtype), self.weight, self.bias).squeeze(-1)
        return y, ConvolutionState(derivative, window[..., 1:])

    def extra_repr(self) -> str:
        return super().extra_repr() + (", padding='causal'" if self.is_causal else "")

    @property
    def _reach(self) -> int:
        """How many samples before its own a result depends on, by the convolution."""
        return self.dilation[0] * (self.kernel_size[0] - 1)
