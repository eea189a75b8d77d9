"""The solver of stochastic equations against plain loops and torchsde.

    python benchmarks/sde.py [--group NAME ...] [--cells NAME] [--output DIR]

Groups: `classical` (alpha = 1, Euler: forward and training, against a plain loop, torchsde and diffrax, where they are
installed, and against the evaluations of drift and diffusion alone), `volterra` (alpha = 0.7: against a plain loop over
the whole past and against backpropagation through 16 exponentials), `gradient` (how far the gradient of an adjoint is
from that of the numbers that were computed), `memory` (peak memory of a fresh process at two numbers of steps). All by
default. A network 8-64-64-8, diagonal noise, float32, one thread. Medians of interleaved rounds in one process.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from extent import Cells, add_cells
from results import Group, Table
from timing import Call, interleaved, machine, torch_threads
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.solvers import Average, Brownian, fsdeint
from hpfracc_nn.solvers.torch import NoisePath

Draw = Callable[[Tensor], Tensor]

ALPHA, DIM = 0.7, 8
STATES = 16  # exponentials of the plain lift
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 7}
UNREPORTED = ("plain loop", "torchsde adjoint")  # memory: two processes each, of some seconds

PEAK = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import sde, torch

def peak():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

torch.set_num_threads(1)
name, n = sys.argv[2], int(sys.argv[3])
sde.CALLS[name](sde.Equation(), 8)()
pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
before = peak()
sde.CALLS[name](sde.Equation(), n)()
print(json.dumps(peak() - before))
"""


class Equation(torch.nn.Module):
    """Drift and diffusion, under the names of both libraries."""

    noise_type, sde_type = "diagonal", "ito"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(DIM, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, 64),
            torch.nn.Tanh(),
            torch.nn.Linear(64, DIM),
        )
        self.scale = torch.nn.Parameter(torch.full((DIM,), 0.3))

    def drift(self, t: Tensor, y: Tensor) -> Tensor:
        return self.net(y)

    def diffusion(self, t: Tensor, y: Tensor) -> Tensor:
        return self.scale * torch.sigmoid(y)

    f, g = drift, diffusion


def start(batch: int) -> Tensor:
    return torch.linspace(-1, 1, batch * DIM).view(batch, DIM)


def ours(sde: Equation, n: int, batch: int = 256, alpha: float = 1.0, weights: str = "hybrid") -> Tensor:
    return fsdeint(sde, start(batch), [0.0, 1.0], dt=1 / n, alpha=alpha, weights=weights)[-1]


def plain_loop(sde: Equation, n: int, batch: int = 256, normal: Draw = torch.randn_like) -> Tensor:
    """Euler and Maruyama's method as one writes it."""
    y, h, t = start(batch), 1 / n, torch.tensor(0.0)
    for _ in range(n):
        y = y + sde.drift(t, y) * h + sde.diffusion(t, y) * (normal(y) * math.sqrt(h))
    return y


def evaluations(sde: Equation, n: int, batch: int = 256) -> Tensor:
    """Drift, diffusion and noise of every step, and nothing else."""
    y, t = start(batch), torch.tensor(0.0)
    path = NoisePath(Brownian(), n, y.shape, dt=1 / n)
    for i in range(path.n_blocks):
        path.block(i)
    for _ in range(n):
        sde.drift(t, y)
        sde.diffusion(t, y)
    return y


def peer(sde: Equation, n: int, adjoint: bool, batch: int = 256) -> Tensor:
    solve = import_module("torchsde")
    solve = solve.sdeint_adjoint if adjoint else solve.sdeint
    found: Tensor = solve(sde, start(batch), torch.tensor([0.0, 1.0]), method="euler", dt=1 / n)[-1]
    return found


def whole_past(sde: Equation, n: int, batch: int = 64, normal: Draw = torch.randn_like) -> Tensor:
    """The Volterra equation by one product over the whole past at each step."""
    h, y0, t = 1 / n, start(batch), torch.tensor(0.0)
    k = torch.arange(n + 1, dtype=torch.float64)
    weights = (h ** (ALPHA - 1) / math.gamma(ALPHA + 1) * ((k + 1) ** ALPHA - k**ALPHA)).float().flip(0)
    past, y = torch.empty(n, batch * DIM), y0
    for i in range(n):
        noise = normal(y) * math.sqrt(h)
        past[i] = (sde.drift(t, y) * h + sde.diffusion(t, y) * noise).reshape(-1)
        y = y0 + (weights[n - i :] @ past[: i + 1]).view_as(y0)
    return y


def lift(sde: Equation, n: int, batch: int = 64, normal: Draw = torch.randn_like) -> Tensor:
    """The Volterra equation by the first lag and exponentials, one state of them for each number: what one writes."""
    h, y0, t = 1 / n, start(batch), torch.tensor(0.0)
    column = torch.from_numpy(Average().weights(np.array([ALPHA]), n, h, NUMPY).columns[0, 0])
    rates = torch.logspace(math.log10(0.3), math.log10(6 * n), STATES, dtype=torch.float64)
    decays = torch.exp(-rates * h)
    matrix = decays ** (torch.arange(2, n + 1)[:, None] - 1) / column[2:, None]
    c = torch.linalg.lstsq(matrix, torch.ones(n - 1, 1, dtype=torch.float64)).solution[:, 0].float()
    first, decay = float(column[1]), decays.float()[:, None]
    states, y = torch.zeros(STATES, batch * DIM), y0
    for _ in range(n):
        noise = normal(y) * math.sqrt(h)
        z = sde.drift(t, y) * h + sde.diffusion(t, y) * noise
        states = decay * states
        y = y0 + first * z + (c @ states).view_as(y0)
        states = states + z.reshape(-1)
    return y


def forward(solve: Callable[[], Tensor]) -> Call:
    def call() -> None:
        with torch.no_grad():
            solve()

    return call


def training(sde: Equation, solve: Callable[[], Tensor]) -> Call:
    def call() -> None:
        sde.zero_grad()
        solve().square().mean().backward()

    return call


CALLS: dict[str, Callable[[Equation, int], Call]] = {
    "fsdeint": lambda sde, n: training(sde, lambda: ours(sde, n)),
    "plain loop": lambda sde, n: training(sde, lambda: plain_loop(sde, n)),
    "torchsde": lambda sde, n: training(sde, lambda: peer(sde, n, False)),
    "torchsde adjoint": lambda sde, n: training(sde, lambda: peer(sde, n, True)),
    "fsdeint, alpha 0.7": lambda sde, n: training(sde, lambda: ours(sde, n, 64, ALPHA)),
    "16 exponentials": lambda sde, n: training(sde, lambda: lift(sde, n)),
}


def has_peer(table: Table) -> bool:
    if find_spec("torchsde") is None:
        table.note("torchsde is not installed.")
        return False
    return True


def classical_table(cells: Cells) -> Table:
    return Table(
        "sde-classical",
        f"Euler and Maruyama's method, batch 256, one thread, {machine()}. Microseconds per step.",
        {
            "what": ("", ""),
            "n": ("steps", ""),
            "us": ("us per step", ".4g"),
            "ratio": ("fsdeint's over it", ".2f"),
            "rounds": ("rounds", ""),
        },
    )


def fill_classical(table: Table, allocator: str, cells: Cells) -> None:
    sde, n = Equation(), 50 if cells.is_quick else 1000
    passes: dict[str, dict[str, Call]] = {
        "forward": {
            "fsdeint": forward(lambda: ours(sde, n)),
            "drift, diffusion and noise alone": forward(lambda: evaluations(sde, n)),
            "plain loop": forward(lambda: plain_loop(sde, n)),
        },
        "forward and backward": {name: CALLS[name](sde, n) for name in ("fsdeint", "plain loop")},
    }
    if has_peer(table):
        passes["forward"]["torchsde"] = forward(lambda: peer(sde, n, False))
        for name in ("torchsde", "torchsde adjoint"):
            passes["forward and backward"][name] = CALLS[name](sde, n)
    if find_spec("diffrax") is None:
        table.note("diffrax is not installed.")
    else:
        compiled = import_module("sde_diffrax").calls(sde.net, sde.scale, start(256), n)
        for calls, call in zip(passes.values(), compiled, strict=True):
            calls["diffrax, compiled"] = call
    for part, calls in passes.items():
        times = interleaved(calls, ROUNDS[cells], budget=60)
        for name in calls:
            ratio = times["fsdeint"] / times[name]
            table.add(what=f"{part}: {name}", n=n, us=1e6 * times[name] / n, ratio=ratio, rounds=times.rounds)


def volterra_table(cells: Cells) -> Table:
    return Table(
        "sde-volterra",
        f"Stochastic Volterra equation, alpha 0.7, batch 64, one thread, {machine()}. Microseconds per step.",
        {
            "what": ("", ""),
            "n": ("steps", ""),
            "us": ("us per step", ".4g"),
            "ratio": ("over the first", ".2f"),
            "rounds": ("rounds", ""),
        },
    )


def fill_volterra(table: Table, allocator: str, cells: Cells) -> None:
    sde = Equation()
    for n in {Cells.QUICK: (100,), Cells.REPORT: (4000,), Cells.FULL: (1000, 4000)}[cells]:
        passes: dict[str, dict[str, Call]] = {
            "forward": {
                "plain loop": forward(lambda: whole_past(sde, n)),  # noqa: B023
                "16 exponentials": forward(lambda: lift(sde, n)),  # noqa: B023
                "fsdeint, average": forward(lambda: ours(sde, n, 64, ALPHA, "average")),  # noqa: B023
                "fsdeint, hybrid": forward(lambda: ours(sde, n, 64, ALPHA)),  # noqa: B023
            },
            "forward and backward": {
                "16 exponentials": CALLS["16 exponentials"](sde, n),
                "fsdeint, average": training(sde, lambda: ours(sde, n, 64, ALPHA, "average")),  # noqa: B023
                "fsdeint, hybrid": CALLS["fsdeint, alpha 0.7"](sde, n),
            },
        }
        for part, calls in passes.items():
            times = interleaved(calls, ROUNDS[cells], budget=40)
            first = times[next(iter(calls))]
            for name in calls:
                us = 1e6 * times[name] / n
                table.add(what=f"{part}: {name}", n=n, us=us, ratio=times[name] / first, rounds=times.rounds)


def gradient_table(cells: Cells) -> Table:
    return Table(
        "sde-gradient",
        "Relative distance of the adjoint's gradient in the scale of the noise from backpropagation of the same solve: "
        "geometric Brownian motion, batch 256, float64.",
        {"what": ("", ""), "n": ("steps", ""), "error": ("distance", ".1e")},
    )


def fill_gradient(table: Table, allocator: str, cells: Cells) -> None:
    class Geometric(torch.nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(0.8, dtype=torch.float64))

        def drift(self, t: Tensor, y: Tensor) -> Tensor:
            return 0.5 * y

        def diffusion(self, t: Tensor, y: Tensor) -> Tensor:
            return self.scale * y

        f, g = drift, diffusion

    sde, y0 = Geometric(), torch.ones(256, 1, dtype=torch.float64)

    def mine(n: int, adjoint: bool) -> Tensor:
        options = {"generator": torch.Generator().manual_seed(0), "adjoint": adjoint}
        return fsdeint(sde, y0, [0.0, 1.0], dt=1 / n, **options)[-1]  # type: ignore[arg-type]

    def theirs(n: int, adjoint: bool) -> Tensor:
        module = import_module("torchsde")
        ts = torch.tensor([0.0, 1.0], dtype=torch.float64)
        path = module.BrownianInterval(0.0, 1.0, size=(256, 1), dtype=torch.float64, entropy=0)
        solve = module.sdeint_adjoint if adjoint else module.sdeint
        found: Tensor = solve(sde, y0, ts, bm=path, method="euler", dt=1 / n)[-1]
        return found

    solvers = {"fsdeint": mine, **({"torchsde": theirs} if has_peer(table) else {})}
    for n in (16,) if cells.is_quick else (64, 512):
        for name, solve in solvers.items():
            exact, found = (
                torch.autograd.grad(solve(n, adjoint).square().mean(), sde.scale)[0] for adjoint in (False, True)
            )
            table.add(what=name, n=n, error=float((found / exact - 1).abs()))


def memory_table(cells: Cells) -> Table:
    return Table(
        "sde-memory",
        "Training: peak memory of a fresh process above what it held after eight steps, in MiB, and per step between "
        "the two numbers of steps. Batch 256; 64 below alpha = 1.",
        {
            "what": ("", ""),
            "few": ("1000 steps", ".4g"),
            "many": ("4000 steps", ".4g"),
            "slope": ("KiB per step", ".3g"),
        },
    )


def fill_memory(table: Table, allocator: str, cells: Cells) -> None:
    if not Path("/proc/self/clear_refs").exists():
        table.note("Peaks are read from Linux' /proc, which is not there.")
        return
    is_there = has_peer(table)
    for name in CALLS:
        if "torchsde" in name and (not is_there or cells.is_quick):
            continue
        if cells is Cells.REPORT and name in UNREPORTED:
            continue
        few, many = (_peak(name, n) for n in ((20, 40) if cells.is_quick else (1000, 4000)))
        steps = 20 if cells.is_quick else 3000
        table.add(what=name, few=few / 1024, many=many / 1024, slope=(many - few) / steps)


def _peak(name: str, n: int) -> int:
    """Return KiB."""
    command = [sys.executable, "-c", PEAK, str(Path(__file__).parent), name, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


GROUPS = {
    "classical": Group(classical_table, fill_classical),
    "volterra": Group(volterra_table, fill_volterra),
    "gradient": Group(gradient_table, fill_gradient),
    "memory": Group(memory_table, fill_memory),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="what to measure; may be repeated")
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="a folder for the tables")
    arguments = parser.parse_args()
    with torch_threads(1):
        for name in arguments.group or GROUPS:
            table = GROUPS[name].table(arguments.cells)
            table.begin(name)
            GROUPS[name].fill(table, "warm", arguments.cells)
            if arguments.output:
                table.write(arguments.output)


if __name__ == "__main__":
    main()
