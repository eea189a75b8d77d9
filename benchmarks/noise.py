"""Fractional Brownian motion against the package fbm, and what a number of each noise costs.

    python benchmarks/noise.py [--quick] [--output DIR]

One thread. The package fbm draws one path a call; where it is not installed, its method is written out here. Both are
warmed up, so that their eigenvalues are known before.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import Table
from timing import Call, interleaved, machine, set_allocator, torch_threads

from hpfracc_nn.solvers import NOISES, FractionalBrownian, NoisePath, increments, paths

STEPS, BATCH = 1024, 1024
HURSTS = (0.1, 0.3, 0.7)
FEW = 4  # paths of the package, of which the time is multiplied
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LEAST = 100.0  # times the package's rate
SHAPE, LONG = (256, 8), 1000  # of one step, and steps, where a number of each noise is timed


class OneByOne:
    """Davies and Harte's method for one path a call, eigenvalues kept: what the package fbm 0.3 does.

    Source: github.com/crflynn/fbm, method daviesharte.
    """

    def __init__(self, n: int, hurst: float):
        lag = np.arange(n, dtype=np.float64)
        row = ((lag + 1) ** (2 * hurst) - 2 * lag ** (2 * hurst) + abs(lag - 1) ** (2 * hurst)) / 2
        self.n, self.scale, self.rng = n, (1 / n) ** hurst, np.random.default_rng(0)
        self.eigenvalues = np.fft.fft(np.concatenate([row, [0.0], row[:0:-1]])).real

    def fbm(self) -> np.ndarray:
        """Return one path at n + 1 times of [0, 1]."""
        n, eigenvalues = self.n, self.eigenvalues
        one, other = self.rng.normal(0.0, 1.0, n), self.rng.normal(0.0, 1.0, n)
        w = np.zeros(2 * n, dtype=complex)
        for i in range(2 * n):
            if i == 0:
                w[i] = np.sqrt(eigenvalues[i] / (2 * n)) * one[i]
            elif i < n:
                w[i] = np.sqrt(eigenvalues[i] / (4 * n)) * (one[i] + 1j * other[i])
            elif i == n:
                w[i] = np.sqrt(eigenvalues[i] / (2 * n)) * other[0]
            else:
                w[i] = np.sqrt(eigenvalues[i] / (4 * n)) * (one[2 * n - i] - 1j * other[2 * n - i])
        return np.insert((np.fft.fft(w)[:n].real * self.scale).cumsum(), [0], 0)


def package(hurst: float) -> tuple[str, Any]:
    """Return the package's sampler, or the one above, and its name."""
    if importlib.util.find_spec("fbm"):
        return "package fbm", importlib.import_module("fbm").FBM(STEPS, hurst)
    return "its method, written out", OneByOne(STEPS, hurst)


def fractional(table: Table, batch: int, rounds: int) -> None:
    """Add paths per second of fractional Brownian motion."""
    generator = torch.Generator().manual_seed(0)
    for hurst in HURSTS:
        name, sampler = package(hurst)

        def draw(dtype: torch.dtype, hurst: float = hurst) -> torch.Tensor:
            noise = FractionalBrownian(hurst)
            return paths(noise, STEPS, (batch,), dt=1 / STEPS, generator=generator, dtype=dtype)

        calls: dict[str, Call] = {
            name: lambda sampler=sampler: [sampler.fbm() for _ in range(FEW)],  # type: ignore[misc]
            **{who: lambda draw=draw, dtype=dtype: draw(dtype) for who, dtype in DTYPES.items()},  # type: ignore[misc]
        }
        times = interleaved(calls, rounds)
        base = FEW / times[name]
        for who in calls:
            rate = (FEW if who == name else batch) / times[who]
            table.add(hurst=hurst, who=who, rate=rate, ratio=rate / base)


def numbers(table: Table, steps: int, rounds: int) -> None:
    """Add nanoseconds per number of every noise, drawn once and drawn again by blocks."""
    generator = torch.Generator().manual_seed(0)
    count = steps * SHAPE[0] * SHAPE[1]
    for name, kind in NOISES.items():
        noise = kind.examples()[min(1, len(kind.examples()) - 1)]
        path = NoisePath(noise, steps, SHAPE, dt=1 / steps, generator=generator)
        calls: dict[str, Call] = {
            "drawn": lambda noise=noise: increments(noise, steps, SHAPE, dt=1 / steps, generator=generator),  # type: ignore[misc]
            "again": lambda path=path: [path.block(i) for i in reversed(range(path.n_blocks))],  # type: ignore[misc]
        }
        path.whole()
        times = interleaved(calls, rounds)
        again = None if path.n_blocks == 1 else 1e9 * times["again"] / count
        table.add(noise=repr(noise), name=name, drawn=1e9 * times["drawn"] / count, again=again)


def empty() -> tuple[Table, Table]:
    """Return the tables of the paths and of the numbers."""
    about = f"{machine()}, one thread, memory that is used again, medians of interleaved rounds"
    first = Table(
        "noise-fractional",
        f"Paths of {STEPS} steps a second; ours {BATCH} at a time, the package's one by one; {about}.",
        {"hurst": ("Hurst index", ""), "who": ("by", ""), "rate": ("paths / s", ".0f"), "ratio": ("ratio", ".0f")},
    )
    second = Table(
        "noise-numbers",
        f"Nanoseconds per number, {LONG} steps of shape {SHAPE}, float32; {about}. Again: block by block, from the "
        "last to the first, by the states that were kept; no figure where all is drawn, and kept, at once.",
        {"noise": ("noise", ""), "drawn": ("drawn", ".0f"), "again": ("again", ".0f")},
    )
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer paths and rounds")
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    first, second = empty()
    set_allocator("warm")
    with torch_threads(1):
        first.begin("all")
        fractional(first, BATCH // 16 if arguments.quick else BATCH, 3 if arguments.quick else 9)
        second.begin("all")
        numbers(second, LONG // 10 if arguments.quick else LONG, 3 if arguments.quick else 7)
    single, double = (min(each["ratio"] for each in first.records if each["who"] == who) for who in DTYPES)
    first.note(
        f"At least {single:.0f} times the rate in float32, where {LEAST:.0f} are wanted, and {double:.0f} times "
        "in float64, in which the package computes."
    )
    if arguments.output:
        for table in (first, second):
            table.write(arguments.output)


if __name__ == "__main__":
    main()
