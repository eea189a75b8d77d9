"""Optimizers, schedules, callbacks and transformers."""

from typing import Any

import numpy as np
import torch
from torch import nn

from hpfracc_nn import preprocessing, selection, training
from tests.constructor_cases import Call
from tests.frameworks import is_there

TORCHS = frozenset({"params", "lr", "smoothing"})  # torch's optimizers look at them
OPTIMIZERS = (training.FractionalSGD, training.FractionalAdam, training.FractionalAdamW, training.FractionalRMSprop)
SERIES = np.cumsum(np.random.default_rng(0).standard_normal((64, 2)), axis=0)


def with_parameters(**options: Any) -> dict[str, Any]:
    return {"params": [nn.Parameter(torch.ones(2))], "lr": 0.1, **options}


def own_options() -> dict[str, Any]:
    return with_parameters(alpha=0.9, kind="integral", memory=3, generator=None, manager=None)


def step(optimizer: Any) -> None:
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def transform(made: Any) -> Any:
    return made.fit_transform(SERIES)


def half(epoch: int) -> float:
    return 0.5


CASES = [
    *(Call(kind, own_options, step, TORCHS) for kind in OPTIMIZERS),
    Call(training.AlphaSchedule, lambda: {"optimizer": training.FractionalSGD(**with_parameters()), "alpha": half}),
    Call(training.GradientVariance, lambda: {"model": nn.Linear(2, 2)}),
    Call(selection.choose, lambda: {"op": "toeplitz", "shape": (2, 64), "framework": "torch"}),
]
if is_there("lightning"):
    CASES += [Call(training.AlphaLogger), Call(training.BackendReport)]
if is_there("sklearn"):
    CASES += [
        Call(preprocessing.FractionalDifferencer, lambda: {"window": 8}, transform),
        Call(preprocessing.StationaryDifferencer, lambda: {"window": 8, "precision": 0.25}, transform),
    ]
