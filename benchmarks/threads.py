"""Threads: how much a second thread of torch gains, and eight Python threads that call at once.

    python benchmarks/threads.py [--quick] [--output DIR]

The public call on 256 x 16384 samples, float32. The Python threads share one manager and one definition, each has
samples of its own, and every result is compared with what one thread alone computes. The FFT is timed apart: right
after one on two threads the call gains less from its second (1.5 against 1.8 times on two cores in one run).
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

from baselines import cached_ffts, column
from calls import calibrate, kernel_of, planner, public, signals
from results import Table
from timing import interleaved, machine, set_allocator, torch_threads
from torch import Tensor

from hpfracc_nn import BackendManager, Caputo, GrunwaldLetnikov, derivative

ROWS, N = 256, 16384
CALLERS = 8
DEFINITION = Caputo(0.5)
TOLERANCE = 1e-6  # of the largest value: float32 sums in another order


def torch_scaling(table: Table, rows: int, n: int, rounds: int) -> None:
    """Add the public call and torch's FFT, each by itself, with one and two threads of torch."""
    x, alone = signals(rows, n), 0.0
    for count in (1, 2):
        manager = planner()
        with torch_threads(count):
            ours = public(x, DEFINITION, manager)
            times = interleaved({"call": ours}, rounds)
            fft = interleaved(cached_ffts(column(GrunwaldLetnikov(0.5), n), x), rounds)
        alone = alone or times["call"]
        table.add(
            what="torch threads",
            count=count,
            call_ms=1e3 * times["call"],
            fft_ms=1e3 * fft.best("fft"),
            gain=alone / times["call"],
            kernel=kernel_of(manager),
        )


def python_threads(table: Table, rows: int, n: int, calls: int) -> None:
    """Add the throughput of one and of several Python threads, each with one thread of torch.

    Raises:
        RuntimeError: A result is not what one thread alone computes.
    """
    samples = [signals(rows, n) * (1 + caller) for caller in range(CALLERS)]
    manager = planner()
    with torch_threads(1):
        expected = [derivative(x, DEFINITION, manager=manager) for x in samples]
        alone = 0.0
        for count in (1, CALLERS):
            seconds, found = _at_once(samples[:count], manager, calls)
            for y, wanted in zip(found, expected[:count], strict=True):
                wrong = float((y - wanted).abs().max() / wanted.abs().max())
                if not wrong <= TOLERANCE:
                    raise RuntimeError(f"{count} threads: a result is off by {wrong:.1e} of its largest value")
            each = seconds / (count * calls)
            alone = alone or each
            table.add(
                what="Python threads, throughput",
                count=count,
                call_ms=1e3 * each,
                gain=alone / each,
                kernel=kernel_of(manager),
            )


def _at_once(samples: list[Tensor], manager: BackendManager, calls: int) -> tuple[float, list[Tensor]]:
    """Return the seconds from a common start to the last end, and each thread's last result."""
    start = Barrier(len(samples) + 1)

    def work(x: Tensor) -> Tensor:
        derivative(x, DEFINITION, manager=manager)  # this thread's working memory
        start.wait()
        for _ in range(calls):
            y = derivative(x, DEFINITION, manager=manager)
        return y

    with ThreadPoolExecutor(len(samples)) as pool:
        waiting = [pool.submit(work, x) for x in samples]
        start.wait()
        begin = time.perf_counter()
        found = [future.result() for future in waiting]
        return time.perf_counter() - begin, found


def empty(rows: int, n: int) -> Table:
    """Return the table."""
    return Table(
        "python-threads",
        f"{rows} x {n}, float32, Caputo l1_2 of order 0.5, {machine()}. Milliseconds for one call; with several Python "
        "threads the time of all divided by their calls. Gain: how much more is done than by one thread.",
        {
            "what": ("threads", ""),
            "count": ("count", ""),
            "call_ms": ("call", ".3f"),
            "fft_ms": ("FFT", ".3f"),
            "gain": ("gain", ".2f"),
            "kernel": ("kernel", ""),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    for count in (1, 2):
        calibrate(count)
    set_allocator("warm")
    table = empty(ROWS, N)
    table.begin("warm allocator")
    torch_scaling(table, ROWS, N, 3 if arguments.quick else 15)
    python_threads(table, ROWS, N, 3 if arguments.quick else 20)
    table.note("Every result was that of one thread alone.")
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
