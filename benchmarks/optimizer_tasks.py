"""Four problems for optimizers: how far each gets in a fixed number of steps.

Small, and the same for all: they show differences between optimizers, not what any of them can reach.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Problem:
    """One start of a task.

    Args:
        params: To optimize.
        loss: Of a step, by its number.
        scores: What counts at the end, by name.
    """

    params: list[Tensor]
    loss: Callable[[int], Tensor]
    scores: Callable[[], dict[str, float]]


@dataclass(frozen=True)
class Task:
    """A problem for every seed.

    Args:
        make: Returns the problem of a seed.
        steps: That an optimizer has.
        rates: Learning rates to choose from.
        goal: The score by which the rate is chosen; the least is the best.
    """

    make: Callable[[int], Problem]
    steps: int
    rates: tuple[float, ...]
    goal: str


def quadratic(seed: int, size: int = 100, condition: float = 1e3) -> Problem:
    """Half the sum of d_i y_i**2 in rotated coordinates y, d from 1 to 1 / condition: its value."""
    generator = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=generator))
    curvatures = torch.logspace(0, -math.log10(condition), size, dtype=torch.float64)
    x = nn.Parameter(torch.randn(size, dtype=torch.float64, generator=generator))

    def value(step: int = 0) -> Tensor:
        return (curvatures * (rotation @ x).square()).sum() / 2

    return Problem([x], value, lambda: {"value": value().item()})


def rosenbrock(seed: int) -> Problem:
    """Rosenbrock's valley in two dimensions: the value, 0 at (1, 1)."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor([-1.5, 2.0], dtype=torch.float64)
    x = nn.Parameter(start + 0.3 * torch.randn(2, dtype=torch.float64, generator=generator))

    def value(step: int = 0) -> Tensor:
        return (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2

    return Problem([x], value, lambda: {"value": value().item()})


def digits(seed: int, batch: int = 64) -> Problem:
    """A perceptron 64-64-10 on scikit-learn's 8 x 8 digits, 1400 to train: loss and accuracy on the other 397."""
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.as_tensor(found.data / 16, dtype=torch.float32)
    labels = torch.as_tensor(found.target)
    torch.manual_seed(seed)
    order = torch.randperm(len(labels))
    images, labels = images[order], labels[order]
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    batches = torch.randint(1400, (1000, batch), generator=torch.Generator().manual_seed(seed))

    def loss(step: int) -> Tensor:
        taken = batches[step]
        return functional.cross_entropy(net(images[taken]), labels[taken])

    def scores() -> dict[str, float]:
        with torch.no_grad():
            answers = net(images[1400:])
            right = (answers.argmax(1) == labels[1400:]).double().mean().item()
            return {"loss": functional.cross_entropy(answers, labels[1400:]).item(), "accuracy": right}

    return Problem(list(net.parameters()), loss, scores)


class Forecaster(nn.Module):
    """An LSTM that says the next value of a series at each of its steps."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.memory = nn.LSTM(1, width, batch_first=True)
        self.answer = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.memory(x[:, :-1, None])
        return (self.answer(states)[..., 0] - x[:, 1:]).square().mean()


def lstm(seed: int, batch: int = 32, length: int = 40) -> Problem:
    """An LSTM of width 16 that forecasts noisy sums of two sines: the mean squared error on 256 new ones."""
    torch.manual_seed(seed)
    net, generator = Forecaster(), torch.Generator().manual_seed(seed)

    def series(count: int) -> Tensor:
        rates = 0.2 + 0.8 * torch.rand(count, 2, 1, generator=generator)
        phases = 2 * math.pi * torch.rand(count, 2, 1, generator=generator)
        sines = torch.sin(rates * torch.arange(length) + phases).sum(1)
        return sines / 2 + 0.05 * torch.randn(count, length, generator=generator)

    unseen = series(256)

    def scores() -> dict[str, float]:
        with torch.no_grad():
            return {"error": net(unseen).item()}

    return Problem(list(net.parameters()), lambda step: net(series(batch)), scores)


_COARSE = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
TASKS = {
    "quadratic": Task(quadratic, 300, _COARSE, "value"),
    "Rosenbrock": Task(rosenbrock, 1000, (1e-4, 3e-4, *_COARSE), "value"),
    "digits": Task(digits, 132, _COARSE, "loss"),
    "LSTM": Task(lstm, 100, _COARSE, "error"),
}


def run(task: Task, make: Callable[..., torch.optim.Optimizer], rate: float, seed: int, steps: int) -> dict[str, float]:
    """Return the scores after so many steps; infinite where the run diverged."""
    problem = task.make(seed)
    optimizer = make(problem.params, lr=rate)
    for step in range(steps):
        optimizer.zero_grad()
        loss = problem.loss(step)
        if not math.isfinite(loss.item()):
            break
        loss.backward()
        optimizer.step()
    scores = problem.scores()
    return {name: value if math.isfinite(value) else math.inf for name, value in scores.items()}
