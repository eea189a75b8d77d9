"""The convolutions of a derivative."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hpfracc_nn.layers.torch import Alpha, FractionalConv1d, FractionalConv2d
from tests.layer_cases import LayerCase
from tests.layer_cases.fractional import DT, differences


def convolved(layer: Any, d: np.ndarray, padding: list[tuple[int, int]]) -> np.ndarray:
    """Return sums over the kernel's places one by one; d is [batch, channels, *images], padded with zeros."""
    weight, groups = layer.weight.numpy(), layer.groups
    d = np.pad(d, [(0, 0), (0, 0), *padding])
    reach = [step * (size - 1) for step, size in zip(layer.dilation, layer.kernel_size, strict=True)]
    sizes = [(n - r - 1) // s + 1 for n, r, s in zip(d.shape[2:], reach, layer.stride, strict=True)]
    y = np.zeros((len(d), layer.out_channels, *sizes))
    for place in np.ndindex(*layer.kernel_size):
        window = d
        for axis, (k, step, size, s) in enumerate(zip(place, layer.dilation, sizes, layer.stride, strict=True), 2):
            window = np.take(window, k * step + s * np.arange(size), axis)
        for o in range(layer.out_channels):
            group = o // (layer.out_channels // groups)
            for i in range(layer.in_channels // groups):
                y[:, o] += weight[(o, i, *place)] * window[:, group * (layer.in_channels // groups) + i]
    return y if layer.bias is None else y + layer.bias.numpy().reshape(-1, *(1,) * len(sizes))


def of_conv1d(padding: tuple[int, int]) -> Any:
    def reference(layer: Any, x: np.ndarray) -> np.ndarray:
        alphas = np.broadcast_to(np.asarray(layer.alpha), x.shape[1:2])
        d = np.stack([differences(x[:, c], alpha, DT) for c, alpha in enumerate(alphas)], axis=1)
        return convolved(layer, d, [padding])

    return reference


def of_conv2d(dims: tuple[int, ...], dts: tuple[float, ...]) -> Any:
    def reference(layer: Any, x: np.ndarray) -> np.ndarray:
        alphas = np.broadcast_to(np.asarray(layer.alpha), (len(dims),))
        for dim, alpha, dt in zip(dims, alphas, dts, strict=True):
            x = np.moveaxis(differences(np.moveaxis(x, dim, -1), alpha, dt), -1, dim)
        return convolved(layer, x, [(1, 1), (1, 1)])

    return reference


def ordinary(layer: Any) -> nn.Module:
    kind: Any = nn.Conv1d if isinstance(layer, FractionalConv1d) else nn.Conv2d
    same = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    module = kind(**{name: getattr(layer, name) for name in same}, dtype=layer.weight.dtype)
    module.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    return module


def of_differences(layer: FractionalConv2d) -> Any:
    def call(x: torch.Tensor) -> torch.Tensor:
        for dim, dt in zip(layer.dims, layer.dt, strict=True):
            x = torch.diff(x, dim=dim, prepend=torch.zeros_like(x.narrow(dim, 0, 1))) / dt
        return ordinary(layer)(x)

    return call


REFUSALS_1D = (
    ("rank", lambda: FractionalConv1d(3, 4, 3)(torch.zeros(9)), ValueError, r"needs \[batch, 3, n\] or \[3, n\]"),
    ("channels", lambda: FractionalConv1d(3, 4, 3)(torch.zeros(2, 5, 9)), ValueError, r"x of shape \(2, 5, 9\)"),
    ("alpha", lambda: FractionalConv1d(3, 4, 3, alpha=2.5), ValueError, "alpha=2.5"),
    ("orders", lambda: FractionalConv1d(3, 4, 3, alpha=[0.2, 0.4]), ValueError, "in_channels=3.*pass 3 orders"),
    (
        "outside",
        lambda: FractionalConv1d(3, 4, 3, alpha=0.5, learn_alpha=True, bounds=(0.6, 1)),
        ValueError,
        "within its bounds",
    ),
    (
        "causal and circular",
        lambda: FractionalConv1d(3, 4, 3, padding="causal", padding_mode="circular"),
        ValueError,
        "padding_mode='zeros'",
    ),
    (
        "padding",
        lambda: FractionalConv1d(3, 4, 3, padding="before"),
        ValueError,
        "needs one of 'causal', 'same', 'valid'",
    ),
    ("a stream that sees later samples", lambda: FractionalConv1d(3, 4, 3).initial_state((2, 3)), ValueError, "later"),
    (
        "a stream that strides",
        lambda: FractionalConv1d(3, 4, 3, 2, "causal").initial_state((2, 3)),
        ValueError,
        "stride=1",
    ),
    (
        "a slice",
        lambda: FractionalConv1d(3, 4, 3, padding="causal").initial_state((2, 3, 9)),
        ValueError,
        r"\[batch, 3\] or \[3\]",
    ),
    (
        "a state",
        lambda: FractionalConv1d(3, 4, 3, padding="causal").step(torch.zeros(2, 3), None),  # type: ignore[arg-type]
        TypeError,
        "NoneType",
    ),
    ("from_torch", lambda: FractionalConv1d.from_torch(nn.Conv2d(1, 1, 1)), TypeError, "torch.nn.Conv1d"),  # type: ignore[arg-type]
)
REFUSALS_2D = (
    ("rank", lambda: FractionalConv2d(3, 4, 3)(torch.zeros(9, 9)), ValueError, r"needs \[batch, 3, height, width\]"),
    ("channels", lambda: FractionalConv2d(3, 4, 3)(torch.zeros(2, 5, 9, 9)), ValueError, r"x of shape \(2, 5, 9, 9\)"),
    ("alpha", lambda: FractionalConv2d(3, 4, 3, alpha=2.5), ValueError, "alpha=2.5"),
    ("orders", lambda: FractionalConv2d(3, 4, 3, alpha=[0.2, 0.4]), ValueError, "one for each axis"),
    ("dims", lambda: FractionalConv2d(3, 4, 3, dims=(2, 3)), ValueError, r"pass \(-1,\), \(-2,\) or"),
    ("dt", lambda: FractionalConv2d(3, 4, 3, dt=(1, 2)), ValueError, "dt="),
    (
        "order's shape",
        lambda: FractionalConv2d(3, 4, 3, alpha=Alpha(0.5, (0, 1), (2,))),
        ValueError,
        r"alpha of shape \(2,\), dims=\(-1,\)",
    ),
    ("from_torch", lambda: FractionalConv2d.from_torch(nn.Linear(1, 1)), TypeError, "torch.nn.Conv2d"),  # type: ignore[arg-type]
)

CASES = [
    LayerCase(
        FractionalConv1d,
        (4, 6, 3, 1, "causal", 2, 2),
        lambda draw, batch: (draw(batch, 4, 40),),
        of_conv1d((4, 0)),
        {"dt": DT},
        name="causal",
        time=-1,
        refusals=REFUSALS_1D,
    ),
    LayerCase(
        FractionalConv1d,
        (3, 4, 3, 2, 1),
        lambda draw, batch: (draw(batch, 3, 40),),
        of_conv1d((1, 1)),
        {"dt": DT},
        name="channels",
        alphas=([0.2, 0.5, 0.8], [0.6, 0.4, 0.5], [0.9, 0.1, 0.3]),
        limit=(0.0, ordinary),
    ),
    LayerCase(
        FractionalConv2d,
        (2, 3, 3, 2, 1),
        lambda draw, batch: (draw(batch, 2, 12, 20),),
        of_conv2d((-1,), (DT,)),
        {"dt": DT},
        limit=(0.0, ordinary),
        refusals=REFUSALS_2D,
    ),
    LayerCase(
        FractionalConv2d,
        (2, 3, 3, 1, "same"),
        lambda draw, batch: (draw(batch, 2, 12, 20),),
        of_conv2d((-2, -1), (DT, 0.1)),
        {"dims": (-2, -1), "dt": (DT, 0.1)},
        name="both axes",
        alphas=([0.4, 0.7], 0.5, [0.9, 0.2]),
        limit=(1.0, of_differences),
    ),
]
