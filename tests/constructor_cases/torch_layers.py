"""The layers for PyTorch."""

from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import solvers
from hpfracc_nn.layers import torch as layers
from hpfracc_nn.solvers.torch import LatentFSDE, NeuralFDE, NeuralFSDE
from tests.constructor_cases import Call


class Field(nn.Module):
    """A right-hand side, and a diffusion, of any shape."""

    def forward(self, t: Tensor, y: Tensor, context: Any = None) -> Tensor:
        return -0.5 * y


def on(*shape: int) -> Any:
    return lambda layer: layer(torch.zeros(shape))


def solved(layer: Any) -> Any:
    return layer(torch.zeros(2, 3), torch.linspace(0, 1, 4))


def learning_index() -> dict[str, Any]:
    noise = solvers.FractionalBrownian(0.3)
    return {"drift": Field(), "diffusion": Field(), "noise": noise, "learn_hurst": True, "noise_type": "additive"}


def ring(layer: Any) -> Any:
    return layer(torch.zeros(3, 2), torch.tensor([[0, 1, 2], [1, 2, 0]]))


CASES = [
    Call(layers.ARFIMA, use=on(2, 9)),
    Call(layers.Alpha, lambda: {"init": 0.5, "bounds": (0.0, 1.0)}, lambda order: order()),
    Call(layers.ProbabilisticAlpha, lambda: {"init": 0.5}, lambda order: order()),
    Call(layers.FDEBlock, lambda: {"f": Field(), "n_steps": 2}, on(2, 3)),
    Call(layers.FSDEBlock, lambda: {"drift": Field(), "diffusion": Field(), "n_steps": 2}, on(2, 3)),
    Call(
        layers.FractionalAttention,
        lambda: {"embed_dim": 4, "num_heads": 2},
        lambda layer: layer(*[torch.zeros(3, 1, 4)] * 3),
    ),
    Call(layers.FractionalConv1d, lambda: {"in_channels": 2, "out_channels": 2, "kernel_size": 1}, on(1, 2, 5)),
    Call(layers.FractionalConv2d, lambda: {"in_channels": 2, "out_channels": 2, "kernel_size": 1}, on(1, 2, 5, 5)),
    Call(layers.FractionalDifference, lambda: {"channels": 2}, on(1, 2, 5)),
    Call(layers.FractionalGraphConv, lambda: {"in_channels": 2, "out_channels": 2, "n_steps": 2}, ring),
    Call(layers.FractionalGRU, lambda: {"input_size": 2, "hidden_size": 2}, on(3, 1, 2)),
    Call(layers.FractionalLSTM, lambda: {"input_size": 2, "hidden_size": 2}, on(3, 1, 2)),
    Call(layers.FractionalLayer, use=on(2, 5)),
    Call(layers.FractionalLayer, lambda: {"learn_alpha": True}, on(2, 5), name="FractionalLayer that learns"),
    Call(layers.FractionalLinear, lambda: {"in_features": 2, "out_features": 2}, on(5, 2)),
    Call(layers.RoughnessFeatures, lambda: {"channels": 2}, on(1, 2, 9)),
    Call(layers.SpectralFractional, lambda: {"dim": -1}, on(2, 8)),
    Call(NeuralFDE, lambda: {"f": Field()}, solved),
    Call(NeuralFSDE, lambda: {"drift": Field(), "diffusion": Field()}, solved),
    Call(NeuralFSDE, learning_index, name="NeuralFSDE that learns its index"),
    Call(solvers.MultiTerm, lambda: {"terms": {0.5: 1.0}}),
    Call(solvers.PathDivergence, lambda: dict.fromkeys(("posterior", "prior", "diffusion"), Field())),
    Call(solvers.NoisePath, lambda: {"noise": solvers.Brownian(), "n_steps": 4, "shape": (2,), "dt": 0.1}),
    Call(LatentFSDE, lambda: {"prior": Field(), "posterior": Field(), "diffusion": Field()}),
]
