"""The causal Toeplitz product of this package against torch's FFT with a cached spectrum.

    python benchmarks/product.py [--quick] [--output DIR]

One thread, float32, Grunwald-Letnikov and Caputo (l1_2) of order 0.5: the public call ("call"), all checks included,
and the product alone, which is the difference pass and the planned kernel. The baseline keeps the spectrum of its
weights and is the better of two paddings, the next power of two and the next fast length; it neither differences nor
copies its result. Medians of interleaved rounds in one process. The allocator is warm (it keeps freed memory) or cold
(every large array is fresh pages); glibc only, elsewhere both are the same.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.fft import next_fast_len

from hpfracc_nn import BackendManager, Caputo, Definition, GrunwaldLetnikov, derivative
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.product import Product
from hpfracc_nn.fractional.torch.weights import weights_of

SIZES = [
    (16, 1024),
    (256, 512),
    (256, 1024),
    (1024, 1024),
    (256, 4096),
    (16, 16384),
    (1, 4096),
    (1, 16384),
    (1, 65536),
]
QUICK = [(256, 1024), (1, 65536)]
DEFINITIONS: dict[str, Definition] = {"grunwald_letnikov": GrunwaldLetnikov(0.5), "caputo l1_2": Caputo(0.5)}
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def set_allocator(warm: bool) -> None:
    """Let glibc keep freed memory, or give every block from 64 KiB on back to the system."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30 if warm else 1 << 16)
        libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1 if warm else 1 << 16)


def interleaved(calls: dict[str, Callable[[], object]], rounds: int, seconds: float = 0.02) -> dict[str, float]:
    """Return the median seconds of each call over rounds in which all take turns."""
    repeats = {}
    for name, call in calls.items():
        call()
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(seconds / len(calls) / max(time.perf_counter() - start, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(found) for name, found in times.items()}


def fft_baseline(definition: Definition, x: torch.Tensor, padded: int) -> Callable[[], torch.Tensor]:
    """Filter by the undifferenced weights through a zero-padded transform whose spectrum is kept."""
    n = x.shape[-1]
    weights = np.ravel(definition.stencil(n, 1.0, NUMPY, differences=0).left)
    spectrum = torch.fft.rfft(torch.from_numpy(weights).to(x.dtype), padded)
    return lambda: torch.fft.irfft(torch.fft.rfft(x, padded) * spectrum, padded)[..., :n]


def product_alone(definition: Definition, x: torch.Tensor, manager: BackendManager) -> Callable[[], torch.Tensor]:
    """The difference pass and the planned kernel, without checks, manager and autograd."""
    rows, n = x.shape
    site = manager.shared_site("toeplitz", "torch", "functions")
    plan = site.plans()[-1]
    weights = weights_of(definition, n, 1.0, x.dtype, x.device)
    form = plan.kernel.prepare(weights, plan.workload)
    product = Product(site, plan, form, weights.stencil, weights.columns())
    return lambda: product.forward(x.view(rows, 1, n, 1))


def measure(rows: int, n: int, rounds: int) -> list[dict[str, object]]:
    """Return one record per definition."""
    x = torch.randn(rows, n, generator=torch.Generator().manual_seed(0))
    records = []
    for name, definition in DEFINITIONS.items():
        manager = BackendManager()
        paddings = {1 << (2 * n - 1).bit_length() if n & (n - 1) else 2 * n, next_fast_len(2 * n, real=True)}
        calls: dict[str, Callable[[], object]] = {
            f"fft {padded}": fft_baseline(definition, x, padded) for padded in sorted(paddings)
        }

        def public(definition: Definition = definition, manager: BackendManager = manager) -> torch.Tensor:
            return derivative(x, definition, manager=manager)

        public()
        calls["product"] = product_alone(definition, x, manager)
        calls["call"] = public
        times = interleaved(calls, rounds)
        call, product = times.pop("call"), times.pop("product")
        fft = min(times.values())
        plan = manager.report()[-1]
        records.append(
            {
                "rows": rows,
                "n": n,
                "definition": name,
                "fft_us": 1e6 * fft,
                "product_us": 1e6 * product,
                "call_us": 1e6 * call,
                "product_ratio": fft / product,
                "call_ratio": fft / call,
                "kernel": f"{plan.backend}/{plan.algorithm}",
            }
        )
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds")
    parser.add_argument("--output", type=Path, help="also write product.json and product.md into this folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 5 if arguments.quick else 21
    lines = [
        f"{_processor()}, one thread, torch {torch.__version__}, float32; medians of {rounds} interleaved rounds.",
        "",
        "| rows x n | definition | allocator | FFT us | product us | call us | FFT / product | FFT / call | kernel |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines))
    records = []
    for warm in (False, True):  # cold first: what malloc has once kept it hands out again
        set_allocator(warm)
        for rows, n in QUICK if arguments.quick else SIZES:
            for record in measure(rows, n, rounds):
                record["allocator"] = "warm" if warm else "cold"
                records.append(record)
                lines.append(
                    f"| {rows} x {n} | {record['definition']} | {record['allocator']} | {record['fft_us']:.0f} "
                    f"| {record['product_us']:.0f} | {record['call_us']:.0f} | {record['product_ratio']:.2f} "
                    f"| {record['call_ratio']:.2f} | {record['kernel']} |"
                )
                print(lines[-1], flush=True)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "product.json").write_text(json.dumps(records, indent=1) + "\n")
        (arguments.output / "product.md").write_text("\n".join(lines) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


if __name__ == "__main__":
    main()
