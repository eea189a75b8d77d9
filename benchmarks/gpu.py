"""The causal Toeplitz product on a CUDA device: every kernel against cuFFT, against a copy, and against the plan.

    python benchmarks/gpu.py [--quick] [--strict] [--only TABLE] [--output DIR] [--rehearse]

Times are the device's own, by events, medians of rounds in which all calls take turns. A copy reads x and writes as
much: nothing is faster. Without a device it says so and ends. Tables: `gpu-forward`, `gpu-gradient` (in x and in a
learned alpha), `gpu-plan` (what the manager chooses, by its estimate and after it has learned, against the fastest
kernel), `gpu-memory`, `gpu-host` (what the host does for a small call). Each line is written as it is measured. A
rehearsal runs all of it on the CPU, small, and measures nothing that is worth reading.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import time
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
class Run:
    """How it is measured: on which device, in how many rounds, whether only the first cells; where it is written."""

    device: str
    rounds: int
    is_quick: bool
    folder: Path | None

    @property
    def is_rehearsal(self) -> bool:
        return self.device == "cpu"

    @property
    def backend(self) -> str:
        """Whose kernels are ours."""
        return "torch" if self.is_rehearsal else "cuda"

    def table(self, name: str, caption: str, columns: dict[str, tuple[str, str]], part: str) -> Table:
        """Return an empty table that is written line by line."""
        found = Table(name, f"{caption} {machine(self)}. {self.rounds} rounds.", columns, folder=self.folder)
        found.begin(part)
        return found

    def cells(self, shapes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32) -> list[Cell]:
        """Return samples of shapes; few and small ones in a rehearsal."""
        chosen = shapes[:2] if self.is_quick else shapes
        if self.is_rehearsal:
            chosen = [(4, 64, 8) if len(shape) == 3 else (8, 64) for shape in dict.fromkeys((shapes[0], shapes[-1]))]
        return [
            Cell(torch.randn(shape, device=self.device).to(dtype), 1 if len(shape) == 3 else -1) for shape in chosen
        ]

    def wait(self) -> None:
        if not self.is_rehearsal:
            torch.cuda.synchronize()


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
    parser.add_argument("--only", choices=TABLES, action="append", help="of these tables; again for another")
    parser.add_argument("--output", type=Path, help="also write each table into this folder, as Markdown and JSON")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with small data")
    arguments = parser.parse_args()
    if not (arguments.rehearse or torch.cuda.is_available()):
        print("gpu: no CUDA device can be used here; nothing was measured.")
        return
    rounds = QUICK_ROUNDS if arguments.quick or arguments.rehearse else ROUNDS
    run = Run("cpu" if arguments.rehearse else "cuda:0", rounds, arguments.quick, arguments.output)
    tables = [TABLES[name](run) for name in arguments.only or TABLES]
    if arguments.strict and any(record.get("verdict") == "FAIL" for table in tables for record in table.records):
        sys.exit("a floor was not reached")


def machine(run: Run) -> str:
    """Return device, driver and versions in one line."""
    if run.is_rehearsal:
        return f"A rehearsal on the CPU, torch {torch.__version__}"
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


def device_times(calls: Mapping[str, Callable[[], object]], run: Run) -> dict[str, float]:
    """Return the median seconds of each call, by events of the device."""
    for call in calls.values():
        for _ in range(3):
            call()
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(run.rounds):
        for name, call in calls.items():
            found[name].append((host_seconds if run.is_rehearsal else event_seconds)(call))
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def event_seconds(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end) / CALLS


def host_seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) / CALLS


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


def forward(run: Run) -> Table:
    columns = {
        "shape": ("shape", ""),
        "dtype": ("dtype", ""),
        "kernel": ("kernel", ""),
        "us": ("us", ".1f"),
        "copies": ("ours / copy", ".2f"),
        "fft": ("cuFFT / ours", ".2f"),
        "verdict": ("", ""),
    }
    table = run.table("gpu-forward", f"Forward, alpha {ALPHA}.", columns, "every kernel")
    for cell in [*run.cells([*LARGE, *MIDDLE]), *run.cells(HALVES, torch.bfloat16)]:
        calls: dict[str, Callable[[], object]] = {"copy": copied(cell.x), "cuFFT": by_fft(cell)}
        calls.update({each.name: operator(cell, manager_for(each)) for each in accepting(cell)})
        times = device_times(calls, run)
        ours = [name for name in times if name.startswith(f"{run.backend}/")]
        for name in dict.fromkeys([*ours, *(name for name in times if name.startswith("torch/"))]):
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


def gradient(run: Run) -> Table:
    columns = {
        "shape": ("shape", ""),
        "ours_us": ("ours us", ".0f"),
        "fft_us": ("cuFFT us", ".0f"),
        "ratio": ("cuFFT / ours", ".2f"),
        "verdict": ("", ""),
    }
    caption = "Forward and backward in x and in a learned alpha, float32."
    table = run.table("gpu-gradient", caption, columns, "the plan")
    for cell in run.cells([(4096, 4096), (256, 65536), (1024, 1024)]):
        x = cell.x.requires_grad_()
        layer = FractionalLayer(ALPHA, "grunwald_letnikov", learn_alpha=True).to(x.device)
        alpha = torch.tensor(ALPHA, device=x.device, requires_grad=True)

        def ours(x: Tensor = x, layer: FractionalLayer = layer) -> None:
            torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))

        def theirs(x: Tensor = x, alpha: Tensor = alpha) -> None:
            torch.autograd.grad(autograd_fft(alpha, x).square().sum(), (x, alpha))

        times = device_times({"ours": ours, "fft": theirs}, run)
        ratio = times["fft"] / times["ours"]
        verdict = "pass" if ratio >= GRADIENT_AGAINST_FFT else "FAIL"
        table.add(shape=cell.name, ours_us=1e6 * times["ours"], fft_us=1e6 * times["fft"], ratio=ratio, verdict=verdict)
    return table


def plans(run: Run) -> Table:
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
    caption = f"What the manager chooses, forward, float32, {LEARNING_CALLS} calls to learn."
    table = run.table("gpu-plan", caption, columns, "small and large")
    for cell in run.cells([*SMALL, *LARGE]):
        times = device_times({each.name: operator(cell, manager_for(each)) for each in accepting(cell)}, run)
        best = min(times, key=times.__getitem__)
        allowed = frozenset({"xla"})
        prior = BackendManager(Settings(mode="prior", wisdom="off", disabled=allowed)).plan(cell.workload()).kernel.name
        learner = BackendManager(Settings(mode="learn", wisdom="off", disabled=allowed))
        learner.warm_up([cell.workload()])
        call = operator(cell, learner)
        for _ in range(LEARNING_CALLS):
            call()
        run.wait()
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


def memory(run: Run) -> Table:
    columns = {"kernel": ("kernel", ""), "mib": ("MiB beside x and y", ".1f"), "verdict": ("", "")}
    table = run.table("gpu-memory", "The most that a forward call of 4096 x 4096 holds.", columns, "every kernel")
    (cell,) = run.cells([(4096, 4096)])
    for kernel in accepting(cell):
        call = operator(cell, manager_for(kernel))
        call()
        beside = held_beside(call, run)
        verdict = ("pass" if beside <= MOST_BESIDE else "FAIL") if kernel.name == "cuda/chunked_scan" else ""
        table.add(kernel=kernel.name, mib=beside / 2**20, verdict=verdict)
    return table


def held_beside(call: Callable[[], Tensor], run: Run) -> float:
    """Return the most bytes that a call holds beside its result; nobody counts those of a CPU."""
    if run.is_rehearsal:
        call()
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = call()
    return torch.cuda.max_memory_allocated() - before - y.numel() * y.element_size()


def host(run: Run) -> Table:
    columns = {"kernel": ("kernel", ""), "us": ("us of the host", ".1f")}
    table = run.table("gpu-host", "What the host does for a forward call of 16 x 64.", columns, "every kernel")
    cell = Cell(torch.randn(16, 64, device=run.device), -1)
    for kernel in accepting(cell):
        call = operator(cell, manager_for(kernel))
        for _ in range(3):
            call()
        found = []
        for _ in range(run.rounds):
            run.wait()  # a device that has fallen behind would hold the host up
            found.append(host_seconds(call))
        table.add(kernel=kernel.name, us=1e6 * statistics.median(found))
    return table


TABLES: dict[str, Callable[[Run], Table]] = {
    "forward": forward,
    "plan": plans,
    "gradient": gradient,
    "memory": memory,
    "host": host,
}


if __name__ == "__main__":
    main()
