"""The special functions against what else Python offers, and the fractional Fourier transform against the FFT.

    python benchmarks/special.py [--cells NAME] [--output DIR]

One thread. The others are timed where they are installed: pymittagleffler (Garrappa's algorithm in Rust), numfracpy
(quadrature in Python, a few points of which the time is multiplied) and torch-frft (Ozaktas' algorithm). Errors are
relative to SciPy's erfcx for E_(1/2), and to the eigenvalue of the third Hermite function for the transform.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from extent import Cells, add_cells
from numpy.polynomial import hermite
from results import Table
from scipy import fft, special
from timing import Call, interleaved, machine, torch_threads

from hpfracc_nn import fractional_fourier, mittag_leffler

POINTS = 100_000
FEW = 50  # of numfracpy
LENGTHS = (1000, 10_000, 16_384, 65_536)
MOST = 6.0  # times the FFT of 10 000 samples
ORDER = 0.3
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 9}  # of the functions, which others take long for


def installed(name: str) -> Any:
    """Return a module, or None where it is not installed."""
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


def functions(table: Table, points: int, rounds: int) -> None:
    """Add the time of E at `points` points, by everybody, multiplied up to POINTS."""
    x = np.random.default_rng(0).uniform(0, 50, points)
    cases: dict[str, tuple[np.ndarray, Any]] = {
        "E_0.5(-x)": (-x, 0.5),
        "E_0.7(-x)": (-x, 0.7),
        "E_1.5(-x)": (-x, 1.5),
        "E_0.7(-x + 3i)": (-x + 3j, 0.7),
        "E_a(-x), an alpha for every point": (-x, np.full(points, 0.7)),
    }
    for name, (z, alpha) in cases.items():
        calls = values(z, alpha) | theirs(z, alpha)
        if name in {"E_0.7(-x)", "E_1.5(-x)"}:
            calls |= gradients(z, alpha)
        times = interleaved(calls, rounds)
        for who, call in calls.items():
            count = FEW if who == "numfracpy" else points
            record = table.add(
                what=name, who=who, ms=1e3 * times[who] * POINTS / count, error=error(name, call, x[:count])
            )
            record["points"] = count


def error(name: str, call: Call, x: np.ndarray) -> float | None:
    """Return the largest relative error where SciPy knows the function."""
    if name != "E_0.5(-x)":
        return None
    exact = special.erfcx(x)
    return float(np.max(abs(np.asarray(call()) - exact) / exact))


def values(z: np.ndarray, alpha: Any) -> dict[str, Call]:
    tensor, order = torch.as_tensor(z), torch.as_tensor(alpha, dtype=torch.float64)
    return {"NumPy": lambda: mittag_leffler(z, alpha), "torch": lambda: mittag_leffler(tensor, order)}


def gradients(z: np.ndarray, alpha: float) -> dict[str, Call]:
    tensor, order = torch.as_tensor(z), torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    return {
        "NumPy, dE/dalpha": lambda: mittag_leffler(z, alpha, derivative=(0, 1, 0)),
        "torch, with the gradient in alpha": lambda: torch.autograd.grad(mittag_leffler(tensor, order).sum(), order),
    }


def theirs(z: np.ndarray, alpha: Any) -> dict[str, Call]:
    calls: dict[str, Call] = {}
    rust, quadrature = installed("pymittagleffler"), installed("numfracpy")
    if np.ndim(alpha):
        return calls
    if rust:
        calls["pymittagleffler"] = lambda: rust.mittag_leffler(z, alpha, 1.0)
    if quadrature and z.dtype == np.float64:
        calls["numfracpy"] = lambda: [quadrature.Mittag_Leffler_one(value, alpha) for value in z[:FEW]]
    return calls


def transforms(table: Table, lengths: tuple[int, ...], rounds: int) -> None:
    """Add the time of the transform over that of the FFT of the same framework."""
    for n in lengths:
        t = fft.fftfreq(n) * math.sqrt(n)
        x = hermite.hermval(math.sqrt(2 * math.pi) * t, [0, 0, 0, 1]) * np.exp(-math.pi * t**2)
        x = (x / np.linalg.norm(x)).astype(complex)
        expected = np.exp(-1.5j * math.pi * ORDER) * x
        calls = transform_calls(x)
        times = interleaved(calls, rounds)
        for who, call in calls.items():
            found = call()
            is_transform = who.startswith(("NumPy, o", "torch, order", "torch-frft"))
            error = float(np.max(abs(np.asarray(found.detach() if hasattr(found, "detach") else found) - expected)))
            base = times["NumPy FFT" if who.startswith("NumPy") else "torch FFT"]
            table.add(n=n, who=who, us=1e6 * times[who], ratio=times[who] / base, error=error if is_transform else None)


def transform_calls(x: np.ndarray) -> dict[str, Call]:
    tensor, order = torch.as_tensor(x), torch.tensor(ORDER, dtype=torch.float64, requires_grad=True)
    calls: dict[str, Call] = {
        "NumPy FFT": lambda: fft.fft(x),
        "NumPy, order 0.3": lambda: fractional_fourier(x, ORDER),
        "NumPy, 1.3": lambda: fractional_fourier(x, 1 + ORDER),
        "torch FFT": lambda: torch.fft.fft(tensor),
        "torch, order 0.3": lambda: fractional_fourier(tensor, ORDER),
        "torch, order in a tensor": lambda: fractional_fourier(tensor, order),
        "torch, with the gradient in the order": lambda: torch.autograd.grad(
            fractional_fourier(tensor, order).real.sum(), order
        )[0],
    }
    other = installed("torch_frft")
    if other and len(x) % 2 == 0:
        module = importlib.import_module("torch_frft.frft_module")
        centred = torch.fft.fftshift(tensor)
        calls["torch-frft, 0.3"] = lambda: torch.fft.ifftshift(module.frft(centred, ORDER))
    return calls


def empty() -> tuple[Table, Table]:
    """Return the tables of the functions and of the transform."""
    about = f"{machine()}, one thread, medians of interleaved rounds"
    first = Table(
        "special-mittag-leffler",
        f"Milliseconds for {POINTS} points, x uniform in [0, 50]; {about}. Error: relative, at most, of E_0.5.",
        {"what": ("function", ""), "who": ("by", ""), "ms": ("ms", ".1f"), "error": ("error", ".0e")},
    )
    second = Table(
        "special-fractional-fourier",
        f"Microseconds for one complex signal in double precision; {about}. Ratio: over the FFT of the same framework. "
        "Error: of the third Hermite function, of norm 1.",
        {
            "n": ("n", ""),
            "who": ("by", ""),
            "us": ("us", ".0f"),
            "ratio": ("ratio", ".1f"),
            "error": ("error", ".0e"),
        },
    )
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="also write the tables into this folder")
    arguments = parser.parse_args()
    first, second = empty()
    is_quick = arguments.cells.is_quick
    with torch_threads(1):
        first.begin("all")
        functions(first, POINTS // 20 if is_quick else POINTS, ROUNDS[arguments.cells])
        second.begin("all")
        transforms(second, LENGTHS[:2] if is_quick else LENGTHS, 3 if is_quick else 15)
    worst = max(record["ratio"] for record in second.records if record["n"] == 10_000 and ", order 0" in record["who"])
    second.note(f"An order that is a number, 10 000 samples: at most {worst:.1f} times the FFT; at most {MOST} wanted.")
    if arguments.output:
        for table in (first, second):
            table.write(arguments.output)


if __name__ == "__main__":
    main()
