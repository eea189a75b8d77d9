"""The energies of a bank of differences, lag by lag."""

from typing import Any

import numpy as np
import torch

from hpfracc_nn.layers.torch import RoughnessFeatures
from tests.layer_cases import LayerCase
from tests.layer_cases.fractional import of_bank

OPTIONS = {"dt": 0.5, "skip": 3}


def reference(layer: Any, x: np.ndarray) -> np.ndarray:
    y = of_bank(layer.differences, x)[..., layer.skip :]
    return np.log(np.array([[np.mean(signal**2) for signal in item] for item in y]).reshape(y.shape[:2]) + layer.floor)


def made(**options: Any) -> RoughnessFeatures:
    return RoughnessFeatures(1, **options)


def stepped(x: Any) -> Any:
    layer = RoughnessFeatures(1)
    return layer.step(x, layer.initial_state((2, 1)))


CASES = [
    LayerCase(
        RoughnessFeatures,
        (2, 2),
        lambda draw, batch: (draw(batch, 2, 40),),
        reference,
        OPTIONS,
        alphas=([-0.4, 0.7], [0.4, 0.5], [-0.2, 0.9]),
        limit=(
            0.0,
            lambda layer: lambda x: x[..., 3:].square().mean(-1).add(layer.floor).log().repeat_interleave(2, 1),
        ),
        refusals=(
            ("skip", lambda: RoughnessFeatures(1, skip=-1), ValueError, "skip=-1"),
            ("floor", lambda: RoughnessFeatures(1, floor=0.0), ValueError, "floor=0"),
            ("short", lambda: RoughnessFeatures(1, skip=9)(torch.zeros(2, 1, 9)), ValueError, "more samples"),
            ("rank", lambda: RoughnessFeatures(1)(torch.zeros(2, 9)), ValueError, "three axes"),
            ("channels", lambda: RoughnessFeatures(1)(torch.zeros(2, 3, 9)), ValueError, "channels=3"),
            ("outside", lambda: RoughnessFeatures(1, alpha=1.5), ValueError, r"RoughnessFeatures\(alpha=1.5\)"),
            (
                "few",
                lambda: RoughnessFeatures(1, alpha=[0.1, 0.2]),
                ValueError,
                r"RoughnessFeatures\(alpha of 2 values",
            ),
            ("words", lambda: made(alpha="rough"), TypeError, "alpha of type str"),
            (
                "whole",
                lambda: RoughnessFeatures(1, alpha=0.0, learn_alpha=True),
                ValueError,
                r"RoughnessFeatures\(alpha=0.0, learn_alpha=True\): needs first orders inside \(-1, 1\) and beside",
            ),
            ("bounds", lambda: made(bounds=0.5), TypeError, "two numbers"),
            ("order of bounds", lambda: RoughnessFeatures(1, bounds=(1, -1)), ValueError, "low < high"),
            ("tiny floor", lambda: RoughnessFeatures(1, floor=1e-50), ValueError, "floor=1e-50"),
            ("integers", lambda: RoughnessFeatures(1)(torch.ones(2, 1, 9, dtype=torch.int64)), TypeError, "int64"),
            ("step of integers", lambda: stepped(torch.ones(2, 1, dtype=torch.int64)), TypeError, "int64"),
            ("step of complex", lambda: stepped(torch.ones(2, 1, dtype=torch.complex64)), TypeError, r"x\.real"),
            ("step of a list", lambda: stepped([[1.0], [2.0]]), TypeError, "x of type list"),
        ),
    ),
]
