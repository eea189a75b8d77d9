"""The operators at times that are not equally spaced: kernels, fixed and learned orders, beside equal steps.

    python benchmarks/nonuniform.py [--cells NAME] [--output DIR]

One thread, float32, Caputo of order 0.5 with its default scheme, random times. Forward and backward: the gradient in
the data, and in the order where it is learned. "plan" is what the manager's estimate picks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from extent import Cells, add_cells
from results import Table
from timing import Call, interleaved, machine, torch_threads

from hpfracc_nn import BackendManager, Caputo
from hpfracc_nn.selection import Settings

WHOLE = ((1, 256), (64, 256), (64, 1024), (256, 1024), (16, 4096), (1, 16384))
SHAPES = {Cells.QUICK: WHOLE[:2], Cells.REPORT: (WHOLE[0], WHOLE[2], WHOLE[4]), Cells.FULL: WHOLE}
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 9}
LONGEST_DENSE = 2048
ALGORITHMS = ("dense", "chunked_scan")


def cases(rows: int, n: int) -> dict[str, Call]:
    """Return what is timed on data of one shape."""
    rng = np.random.default_rng(0)
    t = np.cumsum(rng.uniform(0.1, 1, n))
    x = torch.as_tensor(rng.standard_normal((rows, n)), dtype=torch.float32).requires_grad_()
    learned = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    calls: dict[str, Call] = {}
    for order, alpha in (("fixed", 0.5), ("learned", learned)):
        inputs = [x] if order == "fixed" else [x, learned]
        for algorithm in ALGORITHMS if n <= LONGEST_DENSE else ALGORITHMS[1:]:
            manager = BackendManager(Settings(mode="prior", wisdom="off", force_algorithm=algorithm))
            calls[f"{algorithm}, {order}"] = _both(Caputo(alpha), x, inputs, t=t, manager=manager)
        calls[f"equal steps, {order}"] = _both(Caputo(alpha), x, inputs, manager=BackendManager())
    return calls


def _both(definition: Caputo, x: torch.Tensor, inputs: list[torch.Tensor], **given: object) -> Call:
    def call() -> object:
        return torch.autograd.grad(definition(x, **given).sum(), inputs)  # type: ignore[arg-type]

    return call


def chosen(rows: int, n: int, *, learned: bool) -> str:
    """Return the kernel that the manager's estimate picks at random times."""
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    t = np.cumsum(np.random.default_rng(0).uniform(0.1, 1, n))
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True) if learned else 0.5
    Caputo(alpha)(torch.zeros(rows, n, requires_grad=True), t=t, manager=manager).sum().backward()
    (plan,) = manager.shared_site("nonuniform", "torch", "functions").plans()
    return plan.kernel.name


def fill(table: Table, shapes: tuple[tuple[int, int], ...], rounds: int) -> None:
    """Add the times of all cases."""
    for rows, n in shapes:
        calls = cases(rows, n)
        times = interleaved(calls, rounds)
        for who in calls:
            is_learned = who.endswith("learned")
            base = times[f"equal steps, {'learned' if is_learned else 'fixed'}"]
            table.add(
                rows=rows,
                n=n,
                who=who,
                ms=1e3 * times[who],
                ratio=times[who] / base,
                plan=chosen(rows, n, learned=is_learned) if who.startswith("chunked") else "",
            )


def empty() -> Table:
    """Return the table."""
    return Table(
        "nonuniform",
        f"Milliseconds forward and backward; {machine()}, one thread, medians of interleaved rounds. Ratio: over equal "
        "steps.",
        {
            "rows": ("signals", ""),
            "n": ("n", ""),
            "who": ("kernel, order", ""),
            "ms": ("ms", ".2f"),
            "ratio": ("ratio", ".1f"),
            "plan": ("plan", ""),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    table = empty()
    with torch_threads(1):
        table.begin("all")
        fill(table, SHAPES[arguments.cells], ROUNDS[arguments.cells])
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
