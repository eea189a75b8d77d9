"""The causal Toeplitz product on a CUDA device: every kernel against cuFFT, against a copy, and against the plan.

    python benchmarks/gpu.py [--quick] [--strict] [--output DIR]

Times are the device's own, by events, medians of rounds in which all calls take turns. A copy reads x and writes as
much: nothing is faster. Without a device it says so and ends. Tables: `gpu-forward`, `gpu-gradient` (in x and in a
learned alpha), `gpu-plan` (what the manager chooses, by its estimate and after it has learned, against the fastest
kernel), `gpu-memory`.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from baselines import FFTLayer, autograd_fft, copied
from results import Table
from torch import Tensor

from hpfracc_nn import FractionalLayer, GrunwaldLetnikov, derivative, workload
from hpfracc_nn.selection import BackendManager, Kernel, Settings, Workload, kernels

ROUNDS, QUICK_ROUNDS = 15, 3
CALLS = 10  # of one kind in a round: the device is never idle between them
LEARNING_CALLS = 400
ALPHA = 0.5
LARGE = [(4096, 1024), (4096, 4096), (1024, 4096), (256, 16384), (256, 65536), (16, 262144), (1, 4194304)]
MIDDLE = [(16, 1024, 256), (64, 1024, 512), (4, 16384, 64)]
HALVES = [(4096, 4096), (256, 65536), (16, 1024, 256)]
SMALL = [(16, 32), (256, 64), (16, 128), (256, 128), (4096, 128), (16, 512), (256, 512), (4096, 512), (16, 4096)]
FLOOR_COPIES = 2.0  # of a copy's time, from 4 M samples on
LARGE_ENOUGH = 4 << 20
AGAINST_FFT = {(4096, 4096): 5.0, (256, 65536): 5.0}
GRADIENT_AGAINST_FFT = 3.0
PLAN_REGRET = 1.2
MOST_BESIDE = 64 << 20  # bytes beyond x and y


@dataclass(frozen=True)
class Cell:
    """Samples on the device, and their time axis."""

    x: Tensor
    dim: int

    @property
    def name(self) -> str:
        return " x ".join(map(str, self.x.shape))

    @property
    def dtype(self) -> str:
        return str(self.x.dtype).removeprefix("torch.")

    def workload(self, **given: bool) -> Workload:
        place = {"framework": "torch", "dtype": self.dtype, "device": str(self.x.device)}
        return workload(tuple(self.x.shape), dim=self.dim, **place, **given)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three cells, few rounds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a floor is not reached")
    parser.add_argument("--output", type=Path, help="also write each table into this folder, as Markdown and JSON")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu: no CUDA device can be used here; nothing was measured.")
        return
    rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
    tables = [forward(rounds, arguments.quick), gradient(rounds, arguments.quick), plans(rounds, arguments.quick)]
    tables.append(memory())
    for table in tables:
        if arguments.output:
            table.write(arguments.output)
    if arguments.strict and any(record.get("verdict") == "FAIL" for table in tables for record in table.records):
        sys.exit("a floor was not reached")


def machine() -> str:
    """Return device, driver and versions in one line."""
    found = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    packages = [f"{name} {version(name)}" for name in ("cupy-cuda12x", "cupy-cuda13x", "jax") if version(name)]
    return (
        f"{found.name}, {found.multi_processor_count} multiprocessors, {found.total_memory / 2**30:.0f} GiB, driver "
        f"{driver}, torch {torch.__version__} (CUDA {torch.version.cuda}), Python {platform.python_version()}, "
        + ", ".join(packages or ["without CuPy"])
    )


def version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cells(shapes: list[tuple[int, ...]], quick: bool, dtype: torch.dtype = torch.float32) -> list[Cell]:
    chosen = shapes[:2] if quick else shapes
    return [Cell(torch.randn(shape, device="cuda:0").to(dtype), 1 if len(shape) == 3 else -1) for shape in chosen]


def device_times(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call, by events of the device."""
    for call in calls.values():
        for _ in range(3):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(CALLS):
                call()
            end.record()
            end.synchronize()
            found[name].append(1e-3 * begin.elapsed_time(end) / CALLS)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def accepting(cell: Cell, **given: bool) -> list[Kernel]:
    """Return the kernels that take a cell. XLA's are not started here: that would take the device's memory."""
    asked = cell.workload(**given)
    return [
        each for each in kernels("toeplitz", "torch") if each.backend != "xla" and each.ask("refuses", asked) is None
    ]


def manager_for(kernel: Kernel) -> BackendManager:
    settings = {"force_backend": kernel.backend, "force_algorithm": kernel.algorithm}
    return BackendManager(Settings(**settings, mode="prior", sample=False, wisdom="off"))  # type: ignore[arg-type]


def operator(cell: Cell, manager: BackendManager) -> Callable[[], Tensor]:
    definition = GrunwaldLetnikov(ALPHA)
    return lambda: derivative(cell.x, definition, dim=cell.dim, manager=manager)


def by_fft(cell: Cell) -> Callable[[], Tensor]:
    """Filter by cuFFT with a spectrum that was made before, time last."""
    n = cell.x.shape[cell.dim]
    layer = FFTLayer(ALPHA, n, learn_alpha=False).to(cell.x.device)
    return lambda: layer(cell.x.movedim(cell.dim, -1).float()).to(cell.x.dtype)


def forward(rounds: int, quick: bool) -> Table:
    columns = {
        "shape": ("shape", ""),
        "dtype": ("dtype", ""),
        "kernel": ("kernel", ""),
        "us": ("us", ".1f"),
        "copies": ("ours / copy", ".2f"),
        "fft": ("cuFFT / ours", ".2f"),
        "verdict": ("", ""),
    }
    table = Table("gpu-forward", f"Forward, alpha {ALPHA}. {machine()}. {rounds} rounds.", columns)
    table.begin("every kernel")
    for cell in [*cells([*LARGE, *MIDDLE], quick), *cells(HALVES, quick, torch.bfloat16)]:
        calls: dict[str, Callable[[], object]] = {"copy": copied(cell.x), "cuFFT": by_fft(cell)}
        calls.update({each.name: operator(cell, manager_for(each)) for each in accepting(cell)})
        times = device_times(calls, rounds)
        ours = [name for name in times if name.startswith("cuda/")]
        for name in (*ours, *(name for name in times if name.startswith("torch/"))):
            copies, against = times[name] / times["copy"], times["cuFFT"] / times[name]
            is_best = name == min(ours, key=times.__getitem__, default="")
            figures = {"us": 1e6 * times[name], "copies": copies, "fft": against}
            verdict = reached(cell, copies, against) if is_best else ""
            table.add(shape=cell.name, dtype=cell.dtype, kernel=name, verdict=verdict, **figures)
    return table


def reached(cell: Cell, copies: float, against: float) -> str:
    asked = AGAINST_FFT.get(tuple(cell.x.shape), 0.0)
    if cell.x.dtype != torch.float32 or (cell.x.numel() < LARGE_ENOUGH and not asked):
        return ""
    return "pass" if copies <= FLOOR_COPIES and against >= asked else "FAIL"


def gradient(rounds: int, quick: bool) -> Table:
    columns = {
        "shape": ("shape", ""),
        "ours_us": ("ours us", ".0f"),
        "fft_us": ("cuFFT us", ".0f"),
        "ratio": ("cuFFT / ours", ".2f"),
        "verdict": ("", ""),
    }
    table = Table(
        "gpu-gradient",
        f"Forward and backward in x and in a learned alpha, float32. {machine()}. {rounds} rounds.",
        columns,
    )
    table.begin("the plan")
    for cell in cells([(4096, 4096), (256, 65536), (1024, 1024)], quick):
        x = cell.x.requires_grad_()
        layer = FractionalLayer(ALPHA, "grunwald_letnikov", learn_alpha=True).to(x.device)
        alpha = torch.tensor(ALPHA, device=x.device, requires_grad=True)

        def ours(x: Tensor = x, layer: FractionalLayer = layer) -> None:
            torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))

        def theirs(x: Tensor = x, alpha: Tensor = alpha) -> None:
            torch.autograd.grad(autograd_fft(alpha, x).square().sum(), (x, alpha))

        times = device_times({"ours": ours, "fft": theirs}, rounds)
        ratio = times["fft"] / times["ours"]
        verdict = "pass" if ratio >= GRADIENT_AGAINST_FFT else "FAIL"
        table.add(shape=cell.name, ours_us=1e6 * times["ours"], fft_us=1e6 * times["fft"], ratio=ratio, verdict=verdict)
    return table


def plans(rounds: int, quick: bool) -> Table:
    columns = {
        "shape": ("shape", ""),
        "best": ("fastest", ""),
        "best_us": ("us", ".1f"),
        "prior": ("by the estimate", ""),
        "prior_regret": ("its regret", ".2f"),
        "learned": ("after learning", ""),
        "learned_regret": ("its regret", ".2f"),
        "verdict": ("", ""),
    }
    caption = (
        f"What the manager chooses, forward, float32. {machine()}. {rounds} rounds, {LEARNING_CALLS} calls to learn."
    )
    table = Table("gpu-plan", caption, columns)
    table.begin("small and large")
    for cell in cells([*SMALL, *LARGE], quick):
        times = device_times({each.name: operator(cell, manager_for(each)) for each in accepting(cell)}, rounds)
        best = min(times, key=times.__getitem__)
        allowed = frozenset({"xla"})
        prior = BackendManager(Settings(mode="prior", wisdom="off", disabled=allowed)).plan(cell.workload()).kernel.name
        learner = BackendManager(Settings(mode="learn", wisdom="off", disabled=allowed))
        learner.warm_up([cell.workload()])
        call = operator(cell, learner)
        for _ in range(LEARNING_CALLS):
            call()
        torch.cuda.synchronize()
        learner.harvest()
        learned = learner.plan(cell.workload()).kernel.name
        regret = times[learned] / times[best]
        table.add(
            shape=cell.name,
            best=best,
            best_us=1e6 * times[best],
            prior=prior,
            prior_regret=times[prior] / times[best],
            learned=learned,
            learned_regret=regret,
            verdict="pass" if regret <= PLAN_REGRET else "FAIL",
        )
    return table


def memory() -> Table:
    columns = {"kernel": ("kernel", ""), "mib": ("MiB beside x and y", ".1f"), "verdict": ("", "")}
    table = Table("gpu-memory", f"The most that a forward call of 4096 x 4096 holds. {machine()}.", columns)
    table.begin("every kernel")
    (cell,) = cells([(4096, 4096)], quick=False)
    for kernel in accepting(cell):
        call = operator(cell, manager_for(kernel))
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        y = call()
        beside = torch.cuda.max_memory_allocated() - before - y.numel() * y.element_size()
        verdict = ("pass" if beside <= MOST_BESIDE else "FAIL") if kernel.name == "cuda/chunked_scan" else ""
        table.add(kernel=kernel.name, mib=beside / 2**20, verdict=verdict)
    return table


if __name__ == "__main__":
    main()
