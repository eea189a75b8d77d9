"""Time `fdiff` against a strided dot product over the window, as a loop-free NumPy user writes it.

Run:  python benchmarks/differencing.py [--quick] [--output benchmarks/results]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from results import Table
from timing import interleaved, machine, torch_threads

from hpfracc_nn import fdiff

ORDER = 0.4
LEAST = 20  # times faster than the strided product, over the whole series
LENGTHS = (1000, 10_000, 100_000)
WINDOWS: tuple[int | None, ...] = (100, 1000, None)
_ROWS = 1 << 22  # products at once, and over all


def strided(a: np.ndarray, window: int, rows: int) -> np.ndarray:
    """Return the last `rows` differences by the dot product of a window that slides, blocks of it at a time."""
    weights = np.cumprod([1.0, *((k - 1 - ORDER) / k for k in range(1, window))])[::-1].copy()
    padded = np.concatenate([np.zeros(window - 1), a])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)[len(a) - rows :]
    block = max(1, _ROWS // window)
    return np.concatenate([windows[begin : begin + block] @ weights for begin in range(0, rows, block)])


def strided_seconds(a: np.ndarray, window: int, rounds: int) -> float:
    """Return the median seconds of the strided product, from part of its rows where all would take minutes."""
    rows = min(len(a), max(1000, 100 * _ROWS // window))
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        strided(a, window, rows)
        times.append(time.perf_counter() - begin)
    return float(np.median(times)) * len(a) / rows


def fill(table: Table, lengths: tuple[int, ...], rounds: int) -> None:
    """Add the times of all lengths and windows."""
    rng = np.random.default_rng(0)
    for n in lengths:
        a = rng.standard_normal(n)
        tensor = torch.from_numpy(a)
        for window in WINDOWS:
            lags = window or n
            if lags > n:
                continue
            found, expected = fdiff(a, ORDER, window=window)[-100:], strided(a, lags, 100)
            error = float(np.abs(found - expected).max() / np.abs(expected).max())
            calls = {
                "NumPy": lambda a=a, window=window: fdiff(a, ORDER, window=window),
                "torch": lambda a=tensor, window=window: fdiff(a, ORDER, window=window),
            }
            times, base = interleaved(calls, rounds), strided_seconds(a, lags, min(rounds, 3))
            for who in calls:
                table.add(
                    n=n,
                    window=str(window or "all"),
                    who=who,
                    ms=1e3 * times[who],
                    strided=1e3 * base,
                    ratio=base / times[who],
                    error=error,
                )


def empty() -> Table:
    """Return the table."""
    return Table(
        "differencing",
        f"Milliseconds for the difference of order {ORDER} of one series in double precision; {machine()}, one thread, "
        "medians. Strided: a sliding window times its weights in NumPy, of the longest from part of its rows. Error: "
        "NumPy's against it, at most, relative to the largest.",
        {
            "n": ("samples", ""),
            "window": ("window", ""),
            "who": ("fdiff of", ""),
            "ms": ("ms", ".3f"),
            "strided": ("strided, ms", ".1f"),
            "ratio": ("times faster", ".0f"),
            "error": ("error", ".0e"),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter series and fewer rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    table = empty()
    with torch_threads(1):
        table.begin("all")
        fill(table, LENGTHS[:2] if arguments.quick else LENGTHS, 3 if arguments.quick else 15)
    whole = [record for record in table.records if record["window"] == "all"]
    longest = min(record["ratio"] for record in whole if record["n"] == whole[-1]["n"])
    table.note(f"The whole window of {whole[-1]['n']} samples: {longest:.0f} times faster; at least {LEAST} wanted.")
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
