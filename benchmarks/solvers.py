"""The solver of fractional differential equations against the plain loop, and against torchfde and pycaputo.

    python benchmarks/solvers.py [--group NAME ...] [--cells NAME] [--output DIR]

Groups: `loop` (each history against a plain loop that adds up a preallocated history by one product a step), `steps`
(time per step of `Exponentials` against the length), `peers` (torchfde and pycaputo, where they are installed),
`adjoint` (forward and backward, against plain backpropagation), `schemes` (three schemes on a network, forward and with
the backward pass, for states of several sizes). All by default. But for `schemes`: D^0.5 y = -y, y(0) = 1 on [0, 1],
float64, one thread, predictor_corrector. Medians of interleaved rounds in one process.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from extent import Cells, add_cells
from results import Group, Table
from timing import Call, interleaved, machine, torch_threads
from torch import Tensor

from hpfracc_nn.solvers import Exponentials, fdeint

ALPHA = 0.5
EXACT = math.e * math.erfc(1)  # E_1/2(-1)
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 7}
HISTORIES = ("auto", "full", "fft", "exponentials")


def decay(t: Tensor, y: Tensor) -> Tensor:
    return -y


def grid(n_steps: int) -> Tensor:
    return torch.linspace(0, 1, n_steps + 1, dtype=torch.float64)


def ours(width: int, n_steps: int, history: Any = "auto") -> Tensor:
    with torch.no_grad():
        found = fdeint(decay, torch.ones(width, dtype=torch.float64), grid(n_steps), ALPHA, history=history)
    return found


def plain_loop(width: int, n_steps: int) -> Tensor:
    """The predictor-corrector scheme over a preallocated history, one product for each of its two sums."""
    dt = 1 / n_steps
    k = torch.arange(n_steps + 1, dtype=torch.float64)
    cells = (k + 1) ** ALPHA - k**ALPHA
    power = ALPHA + 1
    hats = (k + 2) ** power - 2 * (k + 1) ** power + k**power
    first = (k - 1).clamp(min=0) ** power - (k - ALPHA - 1) * k**ALPHA
    predict = (cells * dt**ALPHA / math.gamma(1 + ALPHA)).flip(0)
    correct = (hats * dt**ALPHA / math.gamma(2 + ALPHA)).flip(0)
    start = ((first - hats.roll(1)) * dt**ALPHA / math.gamma(2 + ALPHA)).tolist()
    own, last = dt**ALPHA / math.gamma(2 + ALPHA), n_steps + 1
    y0 = torch.ones(width, dtype=torch.float64)
    values, states = torch.zeros(2, n_steps + 1, width, dtype=torch.float64)
    times = grid(n_steps).unbind()
    states[0], values[0] = y0, decay(times[0], y0)
    for n in range(1, n_steps + 1):
        past = values[:n]
        predicted = y0 + predict[last - n :] @ past
        memory = y0 + correct[last - n :] @ past + start[n] * values[0]
        states[n] = memory + own * decay(times[n], predicted)
        values[n] = decay(times[n], states[n])
    return states


def loop_table(cells: Cells) -> Table:
    return Table(
        "solvers-loop",
        f"predictor_corrector by each history against the plain loop, one thread, float64, {machine()}. Milliseconds.",
        {
            "width": ("states", ""),
            "n": ("steps", ""),
            "loop": ("plain loop", ".4g"),
            **{name: (name, ".4g") for name in HISTORIES},
            "ratio": ("auto / loop", ".2f"),
            "difference": ("largest difference", ".1e"),
            "rounds": ("rounds", ""),
        },
    )


def fill_loop(table: Table, allocator: str, cells: Cells) -> None:
    for width, n, rounds in ((1, 1000, 15), (2048, 1000, 7), (2048, 5000, 1)):
        if cells.is_quick and width * n > 10_000:
            continue
        found: dict[str, Tensor] = {}  # the last results: the longest loop takes a quarter of a minute
        solves: dict[str, Callable[[], Tensor]] = {"loop": partial(plain_loop, width, n)}
        for name in HISTORIES[:1] if cells is Cells.REPORT and rounds == 1 else HISTORIES:
            solves[name] = partial(ours, width, n, name)
        calls: dict[str, Call] = {**solves}
        for name in ("loop", "auto"):
            calls[name] = partial(keep, found, name, solves[name])
        times = interleaved(calls, 3 if cells.is_quick else rounds)
        table.add(
            width=width,
            n=n,
            **{name: 1e3 * times[name] for name in calls},
            ratio=times["auto"] / times["loop"],
            difference=float((found["auto"] - found["loop"]).abs().max()),
            rounds=times.rounds,
        )


def keep(found: dict[str, Tensor], name: str, solve: Callable[[], Tensor]) -> None:
    found[name] = solve()


def steps_table(cells: Cells) -> Table:
    return Table(
        "solvers-steps",
        f"Exponentials(): microseconds per step against the number of steps, one state, one thread, {machine()}.",
        {"n": ("steps", ""), "step": ("us per step", ".3g"), "rounds": ("rounds", "")},
    )


def fill_steps(table: Table, allocator: str, cells: Cells) -> None:
    lengths = (1_000, 4_000) if cells.is_quick else (10_000, 100_000)
    calls: dict[str, Call] = {str(n): lambda n=n: ours(1, n, Exponentials()) for n in lengths}  # type: ignore[misc]
    times = interleaved(calls, ROUNDS[cells])
    for n in lengths:
        table.add(n=n, step=1e6 * times[str(n)] / n, rounds=times.rounds)


def peers_table(cells: Cells) -> Table:
    return Table(
        "solvers-peers",
        f"Other libraries, one state, 1000 steps, one thread, {machine()}. pycaputo's first step is fixed, so that "
        "it ends at t = 1.",
        {"peer": ("solver", ""), "ms": ("ms", ".4g"), "error": ("error at t = 1", ".2e"), "rounds": ("rounds", "")},
    )


def fill_peers(table: Table, allocator: str, cells: Cells) -> None:
    n = 100 if cells.is_quick else 1000
    calls: dict[str, Callable[[], float]] = {"fdeint": lambda: float(ours(1, n)[-1])}
    if find_spec("torchfde") is not None:
        calls |= {f"torchfde {method}": _torchfde(method, n) for method in ("predictor",)}
    else:
        table.note("torchfde is not installed.")
    if find_spec("pycaputo") is not None:
        calls["pycaputo PECE"] = _pycaputo(n)
    else:
        table.note("pycaputo is not installed.")
    times = interleaved(calls, ROUNDS[cells])
    for name, call in calls.items():
        table.add(peer=name, ms=1e3 * times[name], error=abs(call() - EXACT), rounds=times.rounds)


def _torchfde(method: str, n_steps: int) -> Callable[[], float]:
    solve = import_module("torchfde").fdeint
    y0, beta = torch.ones(1, dtype=torch.float64), torch.tensor(ALPHA, dtype=torch.float64)
    end, step = torch.tensor(1.0), torch.tensor(1 / n_steps, dtype=torch.float64)

    def call() -> float:
        with torch.no_grad():
            return float(solve(decay, y0, beta, end, step, method))

    return call


def _pycaputo(n_steps: int) -> Callable[[], float]:
    controller = import_module("pycaputo.controller")
    derivatives, fode = import_module("pycaputo.derivatives"), import_module("pycaputo.fode.caputo")
    stepping = import_module("pycaputo.stepping")
    method = fode.PECE(
        ds=(derivatives.CaputoDerivative(ALPHA),),
        control=controller.make_fixed_controller(1 / n_steps, tstart=0.0, tfinal=1.0),
        source=lambda t, y: -y,
        y0=(np.array([1.0]),),
        corrector_iterations=1,
    )

    def call() -> float:
        last = math.nan
        for event in stepping.evolve(method, dtinit=1 / n_steps):
            if hasattr(event, "y"):
                last = float(event.y[0])
        return last

    return call


def adjoint_table(cells: Cells) -> Table:
    return Table(
        "solvers-adjoint",
        f"Forward and backward of a network 32-32-32 on a batch of 64, float64, one thread, {machine()}. Milliseconds.",
        {
            "n": ("steps", ""),
            "adjoint": ("adjoint", ".4g"),
            "plain": ("backpropagation", ".4g"),
            "ratio": ("adjoint / backpropagation", ".2f"),
            "rounds": ("rounds", ""),
        },
    )


def fill_adjoint(table: Table, allocator: str, cells: Cells) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32)).double()
    y0 = torch.randn(64, 32, dtype=torch.float64, requires_grad=True)

    def both(n: int, adjoint: bool) -> None:
        ys = fdeint(lambda t, y: net(y), y0, grid(n), ALPHA, adjoint=adjoint)
        ys[-1].square().sum().backward()

    for n in (50,) if cells.is_quick else (50, 100, 200):
        calls: dict[str, Call] = {
            "adjoint": lambda n=n: both(n, True),  # type: ignore[misc]
            "plain": lambda n=n: both(n, False),  # type: ignore[misc]
        }
        times = interleaved(calls, ROUNDS[cells])
        table.add(
            n=n,
            adjoint=1e3 * times["adjoint"],
            plain=1e3 * times["plain"],
            ratio=times["adjoint"] / times["plain"],
            rounds=times.rounds,
        )


def schemes_table(cells: Cells) -> Table:
    return Table(
        "solvers-schemes",
        f"A network d-16-d on a batch of d numbers each, float32, one thread, {machine()}. Milliseconds.",
        {
            "scheme": ("scheme", ""),
            "batch": ("batch", ""),
            "width": ("d", ""),
            "n": ("steps", ""),
            "forward": ("forward", ".4g"),
            "both": ("forward and backward", ".4g"),
            "rounds": ("rounds", ""),
        },
    )


def autonomous(net: torch.nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda t, y: net(y)


def fill_schemes(table: Table, allocator: str, cells: Cells) -> None:
    n = 20 if cells.is_quick else 200
    times = torch.linspace(0, 1, n + 1)
    for batch, width in ((1, 8),) if cells.is_quick else ((1, 8), (16, 4), (256, 16)):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.Tanh(), torch.nn.Linear(16, width))
        y0 = torch.randn(batch, width)
        for scheme in ("rectangle", "predictor_corrector", "trapezoid"):
            if scheme == "trapezoid" and batch * width > 64:
                continue  # its equation is the cost, not what is around it
            solve = partial(fdeint, autonomous(net), y0, times, ALPHA, scheme=scheme)

            def forward(solve: Callable[[], Tensor] = solve) -> None:
                with torch.no_grad():
                    solve()

            def both(solve: Callable[[], Tensor] = solve) -> None:
                solve()[-1].square().sum().backward()

            found = interleaved({"forward": forward, "both": both}, ROUNDS[cells])
            table.add(
                scheme=scheme,
                batch=batch,
                width=width,
                n=n,
                forward=1e3 * found["forward"],
                both=1e3 * found["both"],
                rounds=found.rounds,
            )


GROUPS = {
    "loop": Group(loop_table, fill_loop),
    "steps": Group(steps_table, fill_steps),
    "peers": Group(peers_table, fill_peers),
    "adjoint": Group(adjoint_table, fill_adjoint),
    "schemes": Group(schemes_table, fill_schemes),
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
