"""The layer of an operator, and the bank of differences."""

from typing import Any

import numpy as np

from hpfracc_nn.layers.torch import FractionalDifference, FractionalLayer
from tests.layer_cases import LayerCase

DT = 0.5


def differences(x: np.ndarray, alpha: float, dt: float) -> np.ndarray:
    """Return the Grunwald-Letnikov difference along the last axis, lag by lag."""
    y, weight = np.zeros_like(x), dt**-alpha
    for lag in range(x.shape[-1]):
        y[..., lag:] += weight * x[..., : x.shape[-1] - lag]
        weight *= (lag - alpha) / (lag + 1)
    return y


def of_layer(layer: Any, x: np.ndarray) -> np.ndarray:
    alphas = np.broadcast_to(np.asarray(layer.alpha), x.shape[1:2])
    return np.stack([differences(x[:, c], alpha, DT) for c, alpha in enumerate(alphas)], axis=1)


def of_bank(bank: Any, x: np.ndarray) -> np.ndarray:
    alphas = bank.alpha.detach().numpy().reshape(x.shape[1], -1)
    return np.stack([differences(x[:, c], alpha, DT) for c, row in enumerate(alphas) for alpha in row], axis=1)


class Bank(FractionalDifference):
    """The bank, with its first orders called alpha as in the other layers."""

    def __init__(self, *args: Any, alpha: Any, **options: Any):
        super().__init__(*args, init=alpha, **options)


GRUNWALD = {"definition": "grunwald_letnikov", "dt": DT}
CASES = [
    LayerCase(
        FractionalLayer,
        (),
        lambda draw, batch: (draw(batch, 3, 40),),
        of_layer,
        GRUNWALD,
        limit=(0.0, lambda layer: lambda x: x),
        time=-1,
        refusals=(
            ("alpha", lambda: FractionalLayer(2.5), ValueError, "alpha=2.5"),
            (
                "outside",
                lambda: FractionalLayer(0.5, learn_alpha=True, bounds=(0.6, 1)),
                ValueError,
                "within its bounds",
            ),
        ),
    ),
    LayerCase(
        FractionalLayer,
        (),
        lambda draw, batch: (draw(batch, 3, 40),),
        of_layer,
        {**GRUNWALD, "channels": 3},
        name="channels",
        alphas=([0.2, 0.5, 0.8], 0.5, [0.9, 0.1, 0.3]),
        time=-1,
    ),
    LayerCase(
        Bank,
        (2, 2),
        lambda draw, batch: (draw(batch, 2, 40),),
        of_bank,
        {"dt": DT},
        alphas=([0.3, 0.7], 0.4, [0.2, 0.9, 0.6, 0.1]),
        time=-1,
        refusals=(("channels", lambda: Bank(0, alpha=0.3), ValueError, "channels"),),
    ),
]
