"""A linear layer on the fractional derivative of its features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.order import counted_orders
from hpfracc_nn.layers.shapes import check_features
from hpfracc_nn.layers.torch.fractional import FractionalLayer
from hpfracc_nn.layers.torch.transfer import place_of, with_weights_of
from hpfracc_nn.selection import BackendManager


class FractionalLinear(nn.Linear):
    """`torch.nn.Linear` on the fractional derivative of each feature along time.

    y[..., t, o] = bias[o] + sum over i of weight[o, i] (D^alpha x)[..., t, i], and for Grunwald-Letnikov

    (D^alpha x)[t] = dt^-alpha sum over k = 0, ..., t of w_k x[t - k], w_0 = 1, w_k = w_(k-1) (k - 1 - alpha) / k.

    With it alpha = 0 is `nn.Linear` and alpha = 1 is `nn.Linear` of (x[t] - x[t-1]) / dt with x[-1] = 0. Sample t of
    the output depends on samples up to t.

    It may stand in a `torch.nn.TransformerEncoderLayer`, but not as the `out_proj` of `torch.nn.MultiheadAttention`,
    which multiplies by the weight of what stands there and never calls it.

    Args:
        in_features: As in `torch.nn.Linear`.
        out_features: As there.
        bias: As there.
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

    @property
    def order(self) -> Alpha:
        """The module of a learned order."""
        return self.derivative.order

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.derivative.alpha

    def forward(self, input: Tensor) -> Tensor:
        """Return the layer's value at `input`; same dtype and device."""
        check_dense("FractionalLinear", "input", input)
        check_features("FractionalLinear", "input", input.shape, 2, self.in_features)
        if errors.axis("FractionalLinear", self.derivative.dim, input.ndim) == input.ndim - 1:
            raise ValueError(
                f"FractionalLinear(dim={self.derivative.dim}): needs a time axis before the features, the last axis; "
                f"input has shape {tuple(input.shape)}, pass dim=-2."
            )
        return F.linear(self.derivative(input), self.weight, self.bias)

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> StreamState:
        """Return the state before the first sample, for `step`.

        Args:
            shape: Of one time slice, [..., in_features]: of x without its time axis.
            horizon: As in `FractionalLayer.initial_state`, where more is said.
            device: As there.

        Raises:
            ValueError: As there, or `shape` has another number of features.
            TypeError: An argument has the wrong type.
        """
        owner = "FractionalLinear.initial_state"
        check_features(owner, "shape", streaming.slice_shape(owner, shape), 1, self.in_features)
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


def _watch(layer: nn.Module, arguments: tuple[Any, ...]) -> None:
    """Do nothing. In evaluation torch's encoder layer multiplies by `linear1.weight` itself, unless it has a hook."""
