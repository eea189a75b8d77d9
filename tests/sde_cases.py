"""Noise that is given, so that paths on several grids agree, and the stochastic equations with known solutions."""

import json
import math
import pathlib
from typing import Any

import torch

from hpfracc_nn.solvers import SDE, Given, fsdeint

REFERENCE = json.loads((pathlib.Path(__file__).parent / "reference" / "sdes.json").read_text("utf-8"))


def brownian(n_steps: int, shape: tuple[int, ...], end: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Return increments and, over the step, integrals of W over each step; [2, n_steps, *shape]."""
    generator = torch.Generator().manual_seed(seed)
    h = end / n_steps
    normal = torch.randn(2, n_steps, *shape, dtype=torch.float64, generator=generator) * math.sqrt(h)
    return torch.stack([normal[0], (normal[0] + normal[1] / math.sqrt(3)) / 2])


def coarser(path: torch.Tensor, times: int) -> torch.Tensor:
    """Return the same path on a grid with so many times longer steps."""
    increments, means = path.view(2, -1, times, *path.shape[2:])
    before = increments.cumsum(1) - increments
    return torch.stack([increments.sum(1), (means + before).mean(1)])


def streams(path: torch.Tensor, count: int) -> torch.Tensor:
    """Return a path as the increments that schemes of one or two streams take."""
    increments, means = path
    if count == 1:
        return increments
    return torch.stack([increments, math.sqrt(3) * (2 * means - increments)], 1)


def turned(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return a drift that couples the entries of the first axis, without a potential."""
    return torch.sin(2 * y.roll(1, 0)) - y + torch.cos(t)


def coupled(noise_type: str, interpretation: str = "ito") -> SDE:
    """Return an equation for two entries along the first axis whose noise is additive or diagonal."""
    if noise_type == "additive":
        return SDE(turned, lambda t, y: torch.ones_like(y), "additive")

    def drift(t, y):  # Stratonovich's is Ito's less g g' / 2
        return turned(t, y) + (torch.cos(y) * torch.sin(y) / 2 if interpretation == "stratonovich" else 0)

    return SDE(drift, lambda t, y: torch.cos(y))


def known(interpretation: str, a: float = 0.3, b: float = 0.6, x0: float = 0.2) -> tuple[SDE, float, Any]:
    """Return an equation, where it starts, and its solution at time 1 as a function of W(1).

    Kloeden & Platen (1992), (4.4.46): paths between -1 and 1; Stratonovich's drift is -a (1 - X**2).
    """

    def drift(t, y):
        return -(a + (b * b * y if interpretation == "ito" else 0)) * (1 - y * y)

    def solution(w):
        grown = (1 + x0) * torch.exp(-2 * a + 2 * b * w)
        return (grown + x0 - 1) / (grown + 1 - x0)

    return SDE(drift, lambda t, y: b * (1 - y * y)), x0, solution


def solved(sde: Any, y0: float, noise: torch.Tensor, entries: tuple[int, ...] = (), **options: Any) -> torch.Tensor:
    """Return the states at time 1 for given increments: [*entries, paths], one path for each entry of the last axis."""
    n_steps = noise.shape[0]
    start = torch.full((*entries, noise.shape[-1]), y0, dtype=torch.float64)
    given = Given(noise, **{key: options.pop(key) for key in ("holder", "brownian") if key in options})
    return fsdeint(sde, start, [0.0, 1.0], dt=1 / n_steps, noise=given, **options)[-1]


def responses(sde: Any, y0: float, n_steps: int, is_double: bool, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state at time 1 without noise, and what a unit of each increment adds to it.

    Of an equation that is linear in y and whose noise is additive this says all: its state is normal.
    """
    count = n_steps * (2 if is_double else 1)
    units = torch.eye(count, dtype=torch.float64).view(n_steps, 2, count) if is_double else torch.eye(count).double()
    noise = torch.cat([torch.zeros_like(units[..., :1]), units], -1)
    found = solved(sde, y0, noise, **options)
    return found[0], found[1:] - found[0]


def order(errors: list[float]) -> float:
    """Return the slope of errors on grids that halve the step, by least squares."""
    logs = torch.tensor(errors, dtype=torch.float64).log2()
    steps = torch.arange(len(errors), dtype=torch.float64)
    steps = steps - steps.mean()
    return float(-(steps * logs).sum() / (steps * steps).sum())


def rms(error: torch.Tensor) -> float:
    """Return the root mean square."""
    return float(error.square().mean().sqrt())


class Network(torch.nn.Module):
    """An equation whose drift and diffusion are small networks, for a state of three entries."""

    def __init__(self, noise_type="diagonal", channels=2):
        super().__init__()
        torch.manual_seed(0)
        self.noise_type = noise_type
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
        self.scale = torch.nn.Parameter(torch.tensor([0.3, 0.5, 0.7], dtype=torch.float64))
        self.mix = torch.nn.Parameter(torch.linspace(-0.4, 0.6, 3 * channels, dtype=torch.float64).view(3, channels))

    def drift(self, t, y):
        return self.inner(y) + torch.sin(t)

    def diffusion(self, t, y):
        if self.noise_type == "diagonal":
            return self.scale * torch.cos(y) * (1 + t)
        if self.noise_type == "scalar":
            return (self.scale * torch.cos(y.roll(1, -1)))[..., None]
        if self.noise_type == "additive":
            return self.mix.expand(*y.shape, -1) * (1 + t)
        return torch.cos(y)[..., None] * self.mix


def gradients(sde, adjoint, *, n_steps=20, alpha=None, noise=None, also=(), **options):
    """Return the solution and the gradients of a loss over all of it: y0, alpha, parameters, and others."""
    y0 = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3).requires_grad_()
    wanted = [y0, *(each for each in sde.parameters()), *also]
    if alpha is not None:
        options["alpha"] = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        wanted.append(options["alpha"])
    if noise is not None:
        options["noise"] = noise
    generator = torch.Generator().manual_seed(3)
    ts = options.pop("ts", torch.linspace(0, 1.2, n_steps + 1, dtype=torch.float64))
    ys = fsdeint(sde, y0, ts, adjoint=adjoint, generator=generator, **options)
    loss = (ys * torch.linspace(1, 9, ys.numel(), dtype=torch.float64).cos().view_as(ys)).sum()
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [ys.detach(), *(torch.zeros_like(x) if g is None else g for g, x in zip(found, wanted, strict=True))]


def assert_same(found, expected, tolerance=1e-12):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= tolerance * other.norm()
