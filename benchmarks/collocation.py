"""Solving to a tolerance: is the error what was asked, what does it cost, and is an answer ever silently wrong.

    python benchmarks/collocation.py [--group NAME ...] [--cells NAME] [--output DIR]

Groups: `tolerance` (the reference problems at three tolerances: true error against the tolerance, evaluations), `work`
(work and precision: true error against evaluations and seconds, every scheme), `fewest` (evaluations against the fewest
with which the same scheme has the same error, whatever its tolerance or mesh), `batch` (a network on a batch of 256
states, both passes, against predictor_corrector at equal true error, PyTorch and JAX), `drawn` (linear problems drawn
at random, whose solutions are Mittag-Leffler functions: right, an error, or wrong). All by default. float64, one
thread. Evaluations count points at which f is evaluated and products with its Jacobian. Times are those of the
processor, but for the minutes of `drawn`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
import torch
from extent import Cells, add_cells
from results import Group, Table
from timing import machine, torch_threads
from torch import Tensor

from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers import Points, fdeint

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from solver_cases import CASES, lorenz, problem, tensor

TOLERANCES = (1e-4, 1e-7, 1e-10)


def brusselator(t: Tensor, y: Tensor) -> Tensor:
    a, b = y.unbind(-1)
    return torch.stack([1 - 4 * a + a**2 * b, 3 * a - a**2 * b], -1)


def van_der_pol(t: Tensor, y: Tensor) -> Tensor:
    a, b = y.unbind(-1)
    return torch.stack([b, 4 * (1 - a**2) * b - a], -1)


@dataclass(frozen=True)
class Known:
    """A problem with its solution at some times.

    Attributes:
        name: What it is called.
        f: The right-hand side.
        y0: The state at 0.
        alpha: The order, or those of the entries.
        dy0: The derivative at 0, or None.
        ts: 0, then the times at which the solution is known.
        values: There, [times - 1, entries].
        entries: Which entries are known.
    """

    name: str
    f: Callable[..., Tensor]
    y0: Tensor
    alpha: Any
    dy0: Tensor | None
    ts: Tensor
    values: Tensor
    entries: tuple[int, ...]

    def solve(self, **options: Any) -> Any:
        return fdeint(self.f, self.y0, self.ts, self.alpha, dy0=self.dy0, **options)

    def error(self, ys: Tensor, tolerance: float) -> float:
        """Return the largest error, as a part of tolerance (1 + |y|)."""
        allowed = tolerance * (1 + self.values.abs())
        return float(((ys[1:, self.entries] - self.values).abs() / allowed).max())


def relaxation(alpha: float, rate: float) -> Known:
    points = torch.logspace(-3, 0, 13).double()
    values = torch.as_tensor(mittag_leffler(-rate * points.numpy() ** alpha, alpha))[:, None]
    slope = tensor(0.0) if alpha > 1 else None
    ts = torch.cat([tensor(0.0), points])
    return Known(
        f"relaxation, {alpha:g}, {rate:g}", lambda t, y: -rate * y, tensor(1.0), alpha, slope, ts, values, (0,)
    )


NUMERICAL = {
    "Brusselator, T = 100": (brusselator, (1.2, 2.8), 0.7, 100.0),
    "van der Pol, T = 20": (van_der_pol, (1.0, 0.0), 0.8, 20.0),
    "Lorenz, T = 5": (lorenz, (1.0, 1.0, 1.0), 0.99, 5.0),
}


def known_problems(is_quick: bool) -> Iterator[Known]:
    """Yield the problems; those whose values are numerical are solved at rtol 1e-12 for values."""
    for alpha in (0.5,) if is_quick else (0.1, 0.3, 0.5, 0.7, 0.9, 1.1, 1.5, 1.9):
        yield relaxation(alpha, 1.0)
    yield relaxation(0.5, 1000.0)
    for name in () if is_quick else CASES:
        p = problem(name)
        ts = torch.cat([tensor(0.0), p.points])
        every = tuple(range(p.y0.numel()))
        if CASES[name].get("closed_form"):
            yield Known(name, p.f, p.y0, p.alpha, p.dy0, ts, p.values, p.known)
        else:
            yield with_values(name, p.f, p.y0, p.alpha, ts, every)
    for name, (f, y0, alpha, end) in () if is_quick else NUMERICAL.items():
        ts = torch.linspace(0, end, 11).double()
        yield with_values(name, f, tensor(*y0), alpha, ts, tuple(range(len(y0))))


def with_values(
    name: str, f: Callable[..., Tensor], y0: Tensor, alpha: Any, ts: Tensor, entries: tuple[int, ...]
) -> Known:
    values = fdeint(f, y0, ts, alpha, rtol=1e-12, atol=1e-13)[1:]
    return Known(name, f, y0, alpha, None, ts, values, entries)


def tolerance_table(cells: Cells) -> Table:
    return Table(
        "collocation-tolerance",
        f"Reference problems, rtol = atol, one thread, float64, {machine()}. Errors are the largest over the outputs, "
        "in tolerances (1 + |y|). Values without a closed form are those of rtol 1e-12.",
        {
            "problem": ("problem", ""),
            "tolerance": ("tolerance", ".0e"),
            "error": ("error / tolerance", ".2g"),
            "steps": ("steps", ""),
            "rejected": ("rejected", ""),
            "evaluations": ("evaluations", ""),
            "ms": ("processor ms", ".3g"),
        },
    )


def fill_tolerance(table: Table, allocator: str, cells: Cells) -> None:
    ratios = []
    for known in known_problems(cells.is_quick):
        for tolerance in TOLERANCES:
            begin = time.process_time()
            found = known.solve(rtol=tolerance, atol=tolerance, full=True)
            seconds, cost = time.process_time() - begin, found.statistics
            ratios.append(known.error(found.ys, tolerance))
            table.add(
                problem=known.name,
                tolerance=tolerance,
                error=ratios[-1],
                steps=cost.steps,
                rejected=cost.rejected,
                evaluations=cost.evaluations + cost.products,
                ms=1e3 * seconds,
            )
    table.note(
        f"Median error / tolerance {np.median(ratios):.2g}; at most 10 in {np.mean(np.array(ratios) <= 10):.0%} of "
        f"{len(ratios)} solves."
    )


def work_table(cells: Cells) -> Table:
    return Table(
        "collocation-work",
        f"Work and precision, one thread, float64, {machine()}. The error is the largest over the outputs, relative to "
        "1 + |y|. Schemes with fixed steps take a uniform mesh, or a graded one where it says so.",
        {
            "problem": ("problem", ""),
            "scheme": ("scheme", ""),
            "given": ("steps or tolerance", ""),
            "error": ("error", ".1e"),
            "evaluations": ("evaluations", ""),
            "ms": ("processor ms", ".3g"),
        },
    )


class Counted:
    """f, and how often it was called."""

    def __init__(self, f: Callable[..., Tensor]):
        self.f, self.calls = f, 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return self.f(t, y)


def fill_work(table: Table, allocator: str, cells: Cells) -> None:
    problems = [relaxation(0.5, 1.0), relaxation(0.5, 1000.0), relaxation(1.5, 1.0)]
    for _ in range(2):  # what is loaded and chosen once
        problems[0].solve(n_steps=250)
        problems[0].solve(rtol=1e-3)
    if not cells.is_quick:
        for name in ("Brusselator, T = 100", "Lorenz, T = 5"):
            f, y0, alpha, end = NUMERICAL[name]
            ts = tensor(0.0, end)
            problems.append(with_values(name, f, tensor(*y0), alpha, ts, tuple(range(len(y0)))))
    counts = (250, 1000) if cells.is_quick else (250, 1000, 4000, 16000)
    for known in problems:
        last = Known(
            known.name, known.f, known.y0, known.alpha, known.dy0, known.ts[[0, -1]], known.values[-1:], known.entries
        )
        for scheme, mesh in (
            ("predictor_corrector", "uniform"),
            ("bdf2", "uniform"),
            ("trapezoid", "uniform"),
            ("trapezoid", "graded"),
        ):
            for n in counts:
                if mesh == "graded" and n > 4000:
                    continue  # its weights are all different
                row = {"problem": known.name, "scheme": scheme + (", graded" if mesh == "graded" else ""), "given": n}
                measured(table, row, last, scheme=scheme, mesh=mesh, n_steps=n)
        for tolerance in (1e-3, 1e-5, 1e-7, 1e-9, 1e-11):
            row = {"problem": known.name, "scheme": "collocation", "given": f"{tolerance:.0e}"}
            measured(table, row, last, rtol=tolerance, atol=tolerance, full=True)


def measured(table: Table, row: dict[str, Any], known: Known, **options: Any) -> None:
    """Add a row of one solve; schemes with fixed steps count calls, which leaves out the rows of Jacobians."""
    f = Counted(known.f)
    counted = Known(known.name, f, known.y0, known.alpha, known.dy0, known.ts, known.values, known.entries)
    begin = time.process_time()
    try:
        found = counted.solve(**options)
    except (FloatingPointError, RuntimeError):
        return  # it is not stable with so few steps
    seconds = time.process_time() - begin
    is_full = options.get("full", False)
    evaluations = found.statistics.evaluations + found.statistics.products if is_full else f.calls
    table.add(
        **row,
        error=known.error(found.ys if is_full else found, 1.0),
        evaluations=evaluations,
        ms=1e3 * seconds,
    )


def fewest_table(cells: Cells) -> Table:
    return Table(
        "collocation-fewest",
        f"Evaluations to a tolerance, rtol = atol, against the fewest with which collocation has an error as small, by "
        f"{len(LADDER)} tolerances and {len(SHAPES)} geometric meshes, float64, {machine()}. The error is the largest "
        "over the outputs, relative to 1 + |y|.",
        {
            "problem": ("problem", ""),
            "tolerance": ("tolerance", ".0e"),
            "error": ("error", ".1e"),
            "evaluations": ("evaluations", ""),
            "fewest": ("fewest", ""),
            "by": ("by", ""),
            "ratio": ("ratio", ".2f"),
        },
    )


LADDER = tuple(10.0 ** (-k / 2) for k in range(4, 23))  # tolerances from 1e-2 to 1e-11
SHAPES = tuple((n, first) for n in (4, 8, 16, 24, 40) for first in (1e-3, 1e-6, 1e-10))  # steps, and the first of them


def fill_fewest(table: Table, allocator: str, cells: Cells) -> None:
    ratios = []
    for known in known_problems(cells.is_quick):
        if known.name in NUMERICAL or not (known.name.startswith("relax") or CASES[known.name].get("closed_form")):
            continue
        runs = {f"rtol {each:.0e}": priced(known, rtol=each, atol=each) for each in {*LADDER, *TOLERANCES}}
        end = float(known.ts[-1])
        for n, first in SHAPES:
            mesh = Points((0.0, *np.geomspace(first * end, end, n).tolist()))
            runs[f"{n} steps from {first:.0e}"] = priced(known, scheme="collocation", mesh=mesh)
        for tolerance in TOLERANCES:
            error, count = runs[f"rtol {tolerance:.0e}"]
            fewest, by = min((other, name) for name, (size, other) in runs.items() if size <= error)
            ratios.append(count / fewest)
            table.add(
                problem=known.name,
                tolerance=tolerance,
                error=error,
                evaluations=count,
                fewest=fewest,
                by=by,
                ratio=ratios[-1],
            )
    table.note(
        f"Median ratio {np.median(ratios):.2f}, largest {np.max(ratios):.2f}; at most 3 in "
        f"{np.mean(np.array(ratios) <= 3):.0%} of {len(ratios)} solves."
    )


def priced(known: Known, **options: Any) -> tuple[float, int]:
    """Return the error of a solve and its evaluations; an infinite error where there is no solution."""
    try:
        found = known.solve(full=True, **options)
    except (FloatingPointError, RuntimeError):
        return np.inf, 0
    return known.error(found.ys, 1.0), found.statistics.evaluations + found.statistics.products


def batch_table(cells: Cells) -> Table:
    return Table(
        "collocation-batch",
        f"A network 16-64-16 on a batch of 256, alpha 0.7 on [0, 1], one thread, float64, {machine()}. Seconds of the "
        "processor.",
        {
            "framework": ("", ""),
            "scheme": ("scheme", ""),
            "given": ("steps or tolerance", ""),
            "error": ("largest error at the end", ".1e"),
            "forward": ("forward", ".3g"),
            "backward": ("backward; JAX: value and gradient", ".3g"),
        },
    )


def fill_batch(table: Table, allocator: str, cells: Cells) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16)).double()
    y0 = torch.randn(256, 16, dtype=torch.float64, requires_grad=True)
    ts = [0.0, 1.0]

    def f(t: Tensor, y: Tensor) -> Tensor:
        found: Tensor = net(y) - y
        return found

    with torch.no_grad():
        exact = fdeint(f, y0, ts, 0.7, rtol=1e-11, atol=1e-12)[-1]
    given: list[tuple[str, Any, dict[str, Any]]] = [
        ("collocation", f"{rtol:.0e}", {"rtol": rtol, "atol": rtol}) for rtol in (1e-4, 1e-6, 1e-8)
    ]
    given += [("predictor_corrector", n, {"n_steps": n}) for n in ((50,) if cells.is_quick else (200, 800, 3200))]
    for scheme, what, options in given:
        seconds = []
        for _ in range(1 if cells.is_quick else 2):
            begin = time.process_time()
            y = fdeint(f, y0, ts, 0.7, **options)[-1]
            middle = time.process_time()
            y.square().sum().backward()
            seconds.append((middle - begin, time.process_time() - middle))
        forward, backward = min(seconds)
        error = float((y.detach() - exact).abs().max())
        table.add(framework="PyTorch", scheme=scheme, given=what, error=error, forward=forward, backward=backward)
    parameters = [each.detach().numpy() for each in net.parameters()]
    for scheme, what, options in given:
        y, forward, backward = jax_batch(parameters, y0.detach().numpy(), ts, options)
        error = float(np.abs(y - exact.numpy()).max())
        table.add(framework="JAX", scheme=scheme, given=what, error=error, forward=forward, backward=backward)


def jax_batch(
    parameters: list[np.ndarray], y0: np.ndarray, ts: list[float], options: dict[str, Any]
) -> tuple[np.ndarray, float, float]:
    """Return the states at the end, and the seconds of a solve and of its value and gradient, compiled before."""
    import jax
    from jax import numpy as jnp

    from hpfracc_nn.solvers.jax import fdeint as solve

    jax.config.update("jax_enable_x64", True)

    def f(t: Any, y: Any, p: list[Any]) -> Any:
        return jnp.tanh(y @ p[0].T + p[1]) @ p[2].T + p[3] - y

    def at_end(p: list[Any], y0: Any) -> Any:
        return solve(f, y0, np.array(ts), 0.7, args=p, **options)[-1]

    calls = [jax.jit(at_end), jax.jit(jax.value_and_grad(lambda p, y0: (at_end(p, y0) ** 2).sum(), (0, 1)))]
    given = [jnp.asarray(each) for each in parameters], jnp.asarray(y0)
    seconds = []
    for call in calls:
        jax.block_until_ready(call(*given))
        taken = []
        for _ in range(3):
            begin = time.process_time()
            jax.block_until_ready(call(*given))
            taken.append(time.process_time() - begin)
        seconds.append(min(taken))
    return np.asarray(calls[0](*given)), seconds[0], seconds[1]


def drawn_table(cells: Cells) -> Table:
    return Table(
        "collocation-drawn",
        f"D^alpha y = -rate y on [0, 1], alpha from .02 to 1.98, rates from 1e-2 to 1e6, rtol 1e-4, {machine()}. Right "
        "is within 1 % of the largest value at 9 times.",
        {
            "count": ("problems", ""),
            "right": ("right", ""),
            "raised": ("an error", ""),
            "wrong": ("wrong", ""),
            "minutes": ("minutes", ".3g"),
        },
    )


def fill_drawn(table: Table, allocator: str, cells: Cells) -> None:
    rng, count = np.random.default_rng(0), {Cells.QUICK: 20, Cells.REPORT: 100, Cells.FULL: 1000}[cells]
    ts, begin = np.linspace(0, 1, 9), time.perf_counter()
    outcomes = {"right": 0, "raised": 0, "wrong": 0}
    for _ in range(count):
        alpha, rate = float(rng.uniform(0.02, 1.98)), float(10 ** rng.uniform(-2, 6))
        slope = {"dy0": tensor(0.0)} if alpha > 1 else {}
        exact = exact_decay(alpha, rate, ts)
        try:
            y = fdeint(lambda t, y, rate=rate: -rate * y, tensor(1.0), ts, alpha, rtol=1e-4, atol=1e-6, **slope)
        except (FloatingPointError, RuntimeError) as error:
            outcomes["raised"] += 1
            table.note(f"alpha {alpha:.4g}, rate {rate:.4g}: {error}")
            continue
        is_right = float(np.abs(y[:, 0].numpy() - exact).max()) <= 0.01
        outcomes["right" if is_right else "wrong"] += 1
        if not is_right:
            table.note(f"wrong: alpha {alpha:.6g}, rate {rate:.6g}")
    table.add(count=count, **outcomes, minutes=(time.perf_counter() - begin) / 60)


def exact_decay(alpha: float, rate: float, ts: np.ndarray) -> np.ndarray:
    """Return E_alpha(-rate t**alpha): where the argument is large, by its asymptotic series and the poles' residues."""
    z = rate * ts**alpha
    found = np.asarray(mittag_leffler(-np.minimum(z, 1e3), alpha))
    large = z > 1e3
    if large.any():
        from scipy.special import rgamma

        series = sum((-1) ** (k + 1) * z[large] ** -float(k) * rgamma(1 - alpha * k) for k in range(1, 8))
        if alpha > 1:
            root = z[large] ** (1 / alpha) * np.exp(1j * np.pi / alpha)
            series = series + 2 / alpha * np.exp(root).real
        found[large] = series
    return found


GROUPS = {
    "tolerance": Group(tolerance_table, fill_tolerance),
    "work": Group(work_table, fill_work),
    "fewest": Group(fewest_table, fill_fewest),
    "batch": Group(batch_table, fill_batch),
    "drawn": Group(drawn_table, fill_drawn),
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
