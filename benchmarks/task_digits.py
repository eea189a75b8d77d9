"""Handwritten digits of 8 x 8 pixels: a fractional block in place of a residual one, at several orders.

The residual block is the baseline; nothing is tuned for either. The fractional order is worth nothing here, and costs
a sum over the past: the row says that it does no harm.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpfracc_nn.layers.torch import FDEBlock

SEEDS = (0, 1, 2)
ALPHAS = (0.3, 0.6, 0.9, 1.0)
WIDTH, STEPS, TRAIN, BATCH = 64, 5, 1200, 64


class Branch(nn.Module):
    """The residual branch, and the right-hand side of the fractional block: a layer, tanh, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        return self.net(z)


class Residual(nn.Module):
    """z + f(z), once."""

    def __init__(self) -> None:
        super().__init__()
        self.f = Branch()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.f(x.new_zeros(()), x)


def rows(quick: bool) -> list[dict]:
    """Return a row for each model: accuracies on 597 images that it was not trained on, one for each seed.

    The bar of a fractional block is 0.02 below the residual one's mean; the baseline has none.
    """
    epochs = 1 if quick else 5
    found = [row("residual block", Residual, epochs, None)]
    bar = found[0]["mean"] - 0.02
    return found + [row(f"FDE block, alpha={alpha:g}", lambda a=alpha: block(a), epochs, bar) for alpha in ALPHAS]


def row(name: str, make: Callable[[], nn.Module], epochs: int, bar: float | None) -> dict:
    """Return the row of one model."""
    trained = [accuracy(seed, make, epochs) for seed in SEEDS]
    values = [value for value, _ in trained]
    return {
        "task": "digits",
        "model": name,
        "parameters": trained[0][1],
        "metric": "test accuracy",
        "values": values,
        "mean": statistics.fmean(values),
        "spread": statistics.stdev(values),
        "bar": bar,
        "higher_is_better": True,
    }


def block(alpha: float) -> FDEBlock:
    """Return the fractional block: time 1 in five steps."""
    return FDEBlock(Branch(), alpha, t1=1.0, n_steps=STEPS)


def accuracy(seed: int, make: Callable[[], nn.Module], epochs: int) -> tuple[float, int]:
    """Return the accuracy after so many epochs of Adam, and the number of parameters."""
    images, labels = digits(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(64, WIDTH), make(), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(epochs):
        for batch in torch.randperm(TRAIN).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        right = net(images[TRAIN:]).argmax(1) == labels[TRAIN:]
    return right.double().mean().item(), sum(each.numel() for each in net.parameters())


def digits(seed: int) -> tuple[Tensor, Tensor]:
    """Return scikit-learn's images and labels in an order of the seed."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(seed))
    return torch.as_tensor(found.data / 16, dtype=torch.float32)[order], torch.as_tensor(found.target)[order]
