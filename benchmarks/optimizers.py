"""Fractional optimizers against torch's: how far they get, what a step costs, what they keep.

    python benchmarks/optimizers.py [--quick] [--only tasks|cost] [--output DIR]

Tasks: the learning rate of every optimizer is the best of a grid on one seed; the scores are those of three others.
Cost: medians of interleaved rounds in one process, one thread, gradients given. Without scikit-learn the digits are
left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from optimizer_tasks import TASKS, Task, run
from results import Table
from timing import machine, torch_threads

from hpfracc_nn.selection import BackendManager, Kernel, Settings, Workload, default_manager, kernels
from hpfracc_nn.training import FractionalAdam, FractionalAdamW, FractionalSGD

SEEDS, TUNING_SEED = (0, 1, 2), 100
Make = Callable[..., torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": torch.optim.SGD,
    "SGD, momentum 0.9": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "Adam, beta1 0": partial(torch.optim.Adam, betas=(0.0, 0.999)),
    "AdamW": torch.optim.AdamW,
    "FractionalSGD 0.9": partial(FractionalSGD, alpha=0.9),
    "FractionalSGD 0.5": partial(FractionalSGD, alpha=0.5),
    "FractionalSGD 0.5, exponentials": partial(FractionalSGD, alpha=0.5, memory="exponentials"),
    "FractionalAdam 0.9": partial(FractionalAdam, alpha=0.9),
    "FractionalAdam 0.5": partial(FractionalAdam, alpha=0.5),
    "FractionalAdam 0.9, exponentials": partial(FractionalAdam, alpha=0.9, memory="exponentials"),
    "FractionalAdam 0.5, beta1 0": partial(FractionalAdam, alpha=0.5, betas=(0.0, 0.999)),
    "FractionalAdamW 0.9": partial(FractionalAdamW, alpha=0.9),
    "FractionalAdam 0.5, difference": partial(FractionalAdam, alpha=0.5, kind="difference"),
    "FractionalAdam 0.9, fcgd": partial(FractionalAdam, alpha=0.9, kind="fcgd", memory=11),
    "FractionalAdam 0.7, caputo": partial(FractionalAdam, alpha=0.7, kind="caputo"),
}


def tasks_table(quick: bool) -> Table:
    caption = (
        f"{machine()}, one thread. Learning rate: best of a grid on one seed. Quadratic and Rosenbrock: median of "
        "three other seeds; digits and LSTM: mean and standard deviation. Differences below two of these are none."
    )
    columns = {"optimizer": ("optimizer", ""), **{name: (_heading(name), "") for name in TASKS}}
    return Table("optimizers-tasks" + "-quick" * quick, caption, columns)


def fill_tasks(table: Table, quick: bool) -> None:
    """Run every optimizer on every task."""
    tasks = {name: task for name, task in TASKS.items() if name != "digits" or importlib.util.find_spec("sklearn")}
    if len(tasks) < len(TASKS):
        table.note("digits: left out, scikit-learn is not installed.")
    table.begin("final scores")
    for name, make in OPTIMIZERS.items():
        torch.manual_seed(0)  # where kind "fcgd" begins
        cells = {title: _cell(title, *_scores(task, make, quick)) for title, task in tasks.items()}
        table.add(optimizer=name, **cells)


def _scores(task: Task, make: Make, quick: bool) -> tuple[float, list[dict[str, float]]]:
    """Return the learning rate that was chosen, and the scores of each seed."""
    steps = task.steps // 20 if quick else task.steps
    rates = task.rates[2:4] if quick else task.rates
    goal = {rate: run(task, make, rate, TUNING_SEED, steps)[task.goal] for rate in rates}
    rate = min(goal, key=goal.__getitem__)
    return rate, [run(task, make, rate, seed, steps) for seed in (SEEDS[:1] if quick else SEEDS)]


def _cell(title: str, rate: float, scores: list[dict[str, float]]) -> str:
    parts = []
    for name in scores[0]:
        values = [each[name] for each in scores]
        if title in ("digits", "LSTM") and len(values) > 1 and max(values) < math.inf:
            digits = 3 if name in ("loss", "accuracy") else 4
            parts.append(f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}")
        else:
            parts.append(f"{statistics.median(values):.1e}")
    return f"{' / '.join(parts)} ({rate:g})"


def _heading(name: str) -> str:
    return {"digits": "digits: loss / accuracy (lr)", "LSTM": "LSTM: error (lr)"}.get(name, f"{name}: value (lr)")


SHAPES = {
    "10 M, one tensor": [(10_000_000,)],
    "10 M, 40 tensors": [(500, 500)] * 40,
    "0.33 M, 160 tensors": [(64, 64), (64,)] * 80,
}
QUICK_SHAPES = {"10 k, 4 tensors": [(50, 50)] * 4}


def cost_table(quick: bool) -> Table:
    caption = (
        f"{machine()}, one thread, float32, alpha 0.9; ratios to torch's Adam with foreach, in the same rounds. "
        "Copies: what is kept beyond Adam's two moments, in sizes of the parameters."
    )
    columns = {
        "parameters": ("parameters", ""),
        "memory": ("memory", ""),
        "kernel": ("kernel", ""),
        "ms": ("ms", ".2f"),
        "ratio": ("times Adam", ".2f"),
        "copies": ("copies", ".1f"),
    }
    return Table("optimizers-cost" + "-quick" * quick, caption, columns)


def fill_cost(table: Table, quick: bool) -> None:
    """Time the steps of all kernels, and of what the manager chooses."""
    table.begin("a step of Adam")
    for name, shapes in (QUICK_SHAPES if quick else SHAPES).items():
        values = sum(math.prod(shape) for shape in shapes)
        rounds = 3 if quick else 10 if values > 1_000_000 else 100  # short steps need more rounds on a busy machine
        made: dict[tuple[str, str], torch.optim.Optimizer] = {
            ("", "torch.optim.Adam"): torch.optim.Adam(_params(shapes), foreach=True)
        }
        managers = {"chosen": default_manager()}
        managers |= {kernel.name: _forced(kernel.backend, kernel.algorithm) for kernel in _usable()}
        for memory in (10, "exponentials"):
            for kernel, manager in managers.items():
                made[str(memory), kernel] = FractionalAdam(
                    _params(shapes), alpha=0.9, memory=memory, foreach=True, manager=manager
                )
        for optimizer in made.values():
            for _ in range(12):  # until the window is full and the code compiled
                optimizer.step()
        times = _interleaved(made, rounds)
        base = times["", "torch.optim.Adam"]
        for (memory, kernel), seconds in times.items():
            kept = _kept(made[memory, kernel])
            table.add(
                parameters=name, memory=memory, kernel=kernel, ms=1e3 * seconds, ratio=seconds / base, copies=kept
            )
        del made


def _interleaved(made: dict[tuple[str, str], torch.optim.Optimizer], rounds: int) -> dict[tuple[str, str], float]:
    times: dict[tuple[str, str], list[float]] = {key: [] for key in made}
    for _ in range(rounds):
        for key, optimizer in made.items():
            start = time.perf_counter()
            optimizer.step()
            times[key].append(time.perf_counter() - start)
    return {key: statistics.median(found) for key, found in times.items()}


def _kept(optimizer: torch.optim.Optimizer) -> float:
    """Return how many copies of the parameters the state holds beyond Adam's."""
    held = {"exp_avg", "exp_avg_sq", "step"}
    values = sum(
        value.numel()
        for state in optimizer.state.values()
        for name, value in state.items()
        if name not in held and torch.is_tensor(value)
    )
    return values / sum(p.numel() for group in optimizer.param_groups for p in group["params"])


def _params(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def _usable() -> list[Kernel]:
    """Return the kernels that take float32 here."""
    work = Workload("history_mix", "torch", width=10)
    return [kernel for kernel in kernels("history_mix", "torch") if kernel.refuses(work) is None]


def _forced(backend: str, algorithm: str) -> BackendManager:
    return BackendManager(Settings(mode="prior", wisdom="off", force_backend=backend, force_algorithm=algorithm))


PARTS = {"tasks": (tasks_table, fill_tasks), "cost": (cost_table, fill_cost)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, one seed, small tensors")
    parser.add_argument("--only", choices=PARTS, help="one of the two tables")
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    with torch_threads(1):
        for name, (make, fill) in PARTS.items():
            if arguments.only in (None, name):
                table = make(arguments.quick)
                fill(table, arguments.quick)
                if arguments.output:
                    table.write(arguments.output)


if __name__ == "__main__":
    main()
