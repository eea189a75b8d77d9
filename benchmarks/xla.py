"""The XLA kernels against the others that compute on a CPU, as a Markdown table.

    taskset -c 0 python benchmarks/xla.py [--dtype float64] [--gradient]

Milliseconds of the processor for the public call, Grunwald-Letnikov of order 0.5: medians of interleaved rounds in one
process, after two calls that compile. XLA has threads of its own, which count too: one core is given to the process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from hpfracc_nn import BackendManager, GrunwaldLetnikov, derivative
from hpfracc_nn.selection import Settings

KERNELS = ("numba/recurrence", "torch/chunked_scan", "torch/fft", "xla/chunked_scan", "xla/fft")
SIZES = ((16, 64), (256, 1024), (16, 16384), (1, 65536), (1024, 1024))
ROUNDS = 25


def call_of(kernel: str, x: torch.Tensor, g: torch.Tensor | None) -> Callable[[], object]:
    backend, algorithm = kernel.split("/")
    manager = BackendManager(Settings(mode="prior", force_backend=backend, force_algorithm=algorithm, sample=False))

    def call() -> object:
        y = derivative(x, GrunwaldLetnikov(0.5), manager=manager)
        return y if g is None else torch.autograd.grad(y, x, g)

    return call


def medians(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of the processor for each call over rounds in which all take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(-2, ROUNDS):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if round_ >= 0:
                times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    options.add_argument("--gradient", action="store_true")
    chosen = options.parse_args()
    dtype = getattr(torch, chosen.dtype)
    print(f"| rows x n | {' | '.join(KERNELS)} |")
    print("| --- |" + " --- |" * len(KERNELS))
    for rows, n in SIZES:
        x = torch.randn(rows, n, dtype=dtype, requires_grad=chosen.gradient)
        g = torch.randn(rows, n, dtype=dtype) if chosen.gradient else None
        found = medians({name: call_of(name, x, g) for name in KERNELS})
        print(f"| {rows} x {n} | " + " | ".join(f"{found[name]:.2f}" for name in KERNELS) + " |", flush=True)


if __name__ == "__main__":
    main()
