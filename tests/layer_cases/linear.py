"""The linear layer of a derivative."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hpfracc_nn.layers.torch import Alpha, FractionalLinear
from tests.layer_cases import LayerCase
from tests.layer_cases.fractional import DT, differences


def of_linear(layer: Any, x: np.ndarray, time: int = -2) -> np.ndarray:
    x = np.moveaxis(x, time, -1)  # [..., features, n]
    alphas = np.broadcast_to(np.asarray(layer.alpha), x.shape[-2:-1])
    d = np.stack([differences(x[..., i, :], alpha, DT) for i, alpha in enumerate(alphas)], axis=-2)
    weight, bias = layer.weight.numpy(), 0 if layer.bias is None else layer.bias.numpy()
    return np.moveaxis(np.einsum("oi,...it->...to", weight, d) + bias, -2, time)


def ordinary(layer: FractionalLinear) -> nn.Linear:
    linear = nn.Linear(layer.in_features, layer.out_features, dtype=layer.weight.dtype)
    linear.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    return linear


def of_differences(layer: FractionalLinear) -> Any:
    return lambda x: ordinary(layer)(torch.diff(x, dim=-2, prepend=torch.zeros_like(x[..., :1, :])) / DT)


SHAPES = (
    ("rank", lambda: FractionalLinear(3, 4)(torch.zeros(3)), ValueError, r"x of shape \(3,\)"),
    ("features", lambda: FractionalLinear(3, 4)(torch.zeros(2, 9, 5)), ValueError, r"needs \[..., n, 3\]"),
    ("features of a slice", lambda: FractionalLinear(3, 4).initial_state((2, 5)), ValueError, r"needs \[..., 3\]"),
    ("dim", lambda: FractionalLinear(3, 4, dim=-1), ValueError, "dim=-1"),
    (
        "dim of the features",
        lambda: FractionalLinear(3, 4, dim=1)(torch.zeros(9, 3)),
        ValueError,
        "before the features",
    ),
    ("alpha", lambda: FractionalLinear(3, 4, alpha=2.5), ValueError, "alpha=2.5"),
    (
        "outside",
        lambda: FractionalLinear(3, 4, alpha=0.5, learn_alpha=True, bounds=(0.6, 1)),
        ValueError,
        "within its bounds",
    ),
    ("orders", lambda: FractionalLinear(3, 4, alpha=[0.2, 0.4]), ValueError, "in_features=3.*pass 3 orders"),
    (
        "order's shape",
        lambda: FractionalLinear(3, 4, alpha=Alpha(0.5, (0, 1), (2,))),
        ValueError,
        r"shape \(2,\), in_features=3",
    ),
    (
        "order's bounds",
        lambda: FractionalLinear(3, 4, alpha=Alpha(0.5, (0, 1)), bounds=(0, 1)),
        ValueError,
        "own bounds",
    ),
    ("dt", lambda: FractionalLinear(3, 4, dt=0), ValueError, "dt > 0"),
    ("dtype", lambda: FractionalLinear(3, 4)(torch.zeros(2, 9, 3, dtype=torch.int64)), TypeError, "dtype"),
    ("from_torch", lambda: FractionalLinear.from_torch(nn.Conv1d(1, 1, 1)), TypeError, "torch.nn.Linear"),  # type: ignore[arg-type]
    ("from itself", lambda: FractionalLinear.from_torch(FractionalLinear(3, 4)), TypeError, "deepcopy"),
    ("from a lazy one", lambda: FractionalLinear.from_torch(nn.LazyLinear(4)), ValueError, "call the module once"),
)

CASES = [
    LayerCase(
        FractionalLinear,
        (3, 4),
        lambda draw, batch: (draw(batch, 40, 3),),
        of_linear,
        {"dt": DT},
        limit=(0.0, ordinary),
        time=-2,
        refusals=SHAPES,
    ),
    LayerCase(
        FractionalLinear,
        (3, 4),
        lambda draw, batch: (draw(batch, 2, 40, 3),),
        of_linear,
        {"dt": DT},
        name="features",
        alphas=([0.2, 0.5, 0.8], [0.6, 0.4, 0.5], [0.9, 0.1, 0.3]),
        limit=(1.0, of_differences),
        time=-2,
    ),
    LayerCase(
        FractionalLinear,
        (3, 4, False),
        lambda draw, batch: (draw(40, batch, 3),),
        lambda layer, x: of_linear(layer, x, time=0),
        {"dt": DT, "dim": 0},
        name="time first",
        time=0,
    ),
]
