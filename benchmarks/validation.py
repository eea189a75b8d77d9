"""The validation report: values, gradients, intervals and kernels against what is known in closed form.

Run:  python benchmarks/validation.py [--output docs/validation.md]

The script takes some minutes on one core. With the same versions the report is the same on every
machine: the random numbers have seeds.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

os.environ.setdefault("HPFRACC_NN_WISDOM", "off")

import mpmath
import numpy as np
import torch

import hpfracc_nn as fnn
from hpfracc_nn import data
from hpfracc_nn.fractional import exact
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition
from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.selection.registry import kernels
from hpfracc_nn.series import fit_arfima
from hpfracc_nn.solvers.noise import FractionalBrownian, increments
from hpfracc_nn.training import fit_fde, whittle

ROOT = Path(__file__).parents[1]
TEMPLATE = Path(__file__).with_suffix(".md")
SEED = 0
PACKAGES = ("hpfracc-nn", "numpy", "scipy", "torch", "numba", "mpmath")
SIGNALS = ("power", "sine")
GRIDS = (129, 257, 513)
BOUNDS = {"float64": 1e-12, "float32": 64 * 2.0**-23}  # largest errors without fault, up to 64 samples
Row = Sequence[object]


def table(heads: Sequence[str], rows: Iterator[Row]) -> str:
    """Return the rows as a table of Markdown; numbers get two digits."""
    lines = [heads, ["---"] * len(heads)]
    lines += [[f"{cell:.2g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def rate(errors: Sequence[float]) -> str:
    """Return the order of convergence between the last two grids."""
    if errors[-1] < 1e-12:
        return "exact to rounding"
    return f"{math.log2(errors[-2] / errors[-1]):.2f}"


def operators() -> Iterator[Row]:
    """Yield errors at t = 1 for every causal definition and scheme with a closed form, on a power and a sinusoid."""
    cases: list[tuple[str, Definition]] = []
    for name, kind in DEFINITIONS.items():
        for scheme in kind.schemes:
            for alpha in (0.3, 0.7, 1.4):
                if kind.lowest <= alpha <= kind.highest:
                    cases.append((f"`{name}`, `{scheme}`", kind(alpha, scheme=scheme)))
    for name, definition in cases:
        try:
            for what in SIGNALS:
                closed_form(definition, np.linspace(0, 1, 3), what)
        except ValueError:
            continue  # exact.py says that there is none from 0 on, as for operators on the whole line
        errors = [[error_at_end(definition, n, what) for n in GRIDS] for what in SIGNALS]
        stated = definition.accuracy(definition.alpha) if hasattr(definition, "accuracy") else ""
        found = [cell for each in errors for cell in (each[-1], rate(each))]
        yield name, f"{definition.alpha:g}", *found, f"{stated:g}"


def closed_form(definition: Definition, t: np.ndarray, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of a signal and the exact result, or raise ValueError where none is known."""
    if what == "power":
        return t**2.5, exact.power(t, 2.5, definition)
    return np.sin(3 * t), exact.sine(t, 3.0, definition)


def error_at_end(definition: Definition, n: int, what: str) -> float:
    """Return the error at the last of n samples on [0, 1], over the largest value of the exact result."""
    # For Hadamard's operators t is the logarithm of time.
    x, wanted = closed_form(definition, np.linspace(0, 1, n), what)
    found = definition(x, dt=1 / (n - 1))
    return float(abs(found[-1] - wanted[-1]) / np.abs(wanted[1:]).max())


def series(alpha: mpmath.mpf, beta: float, z: float) -> mpmath.mpf:
    """Return the Mittag-Leffler function by its series, with enough digits for terms far larger than the sum."""
    with mpmath.workdps(120):
        total, k, term = mpmath.mpf(0), 0, mpmath.mpf(1)
        while k < 20 or abs(term) > mpmath.mpf(10) ** -80:
            term = mpmath.mpf(z) ** k * mpmath.rgamma(mpmath.mpf(alpha) * k + mpmath.mpf(beta))
            total, k = total + term, k + 1
        return total


def mittag_leffler() -> Iterator[Row]:
    """Yield relative errors of the Mittag-Leffler function at random points against mpmath."""
    rng = np.random.default_rng(SEED)
    for title, sign in (("negative z", -1.0), ("positive z", 1.0)):
        errors = []
        for _ in range(100):
            alpha, beta = rng.uniform(0.3, 1.95), rng.uniform(0.2, 3)
            z = sign * rng.uniform(0, 60) ** alpha
            wanted = float(series(alpha, beta, z))
            errors.append(abs(float(fnn.mittag_leffler(z, alpha, beta)) / wanted - 1))
        yield title, len(errors), float(np.median(errors)), float(np.max(errors))


def solvers() -> Iterator[Row]:
    """Yield errors of fdeint at t = 1 on D^alpha y = -y, against the Mittag-Leffler function."""
    one = torch.ones((), dtype=torch.float64)
    ts = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for scheme, mesh in (
        *(("rectangle", "uniform"), ("predictor_corrector", "uniform"), ("trapezoid", "uniform")),
        *(("trapezoid", "graded"), ("bdf2", "uniform")),
    ):
        for alpha in (0.4, 0.8):
            wanted = float(fnn.mittag_leffler(-1.0, alpha))
            errors = [
                abs(
                    float(fnn.fdeint(lambda t, y: -y, one, ts, alpha, scheme=scheme, mesh=mesh, n_steps=n)[-1]) - wanted
                )
                for n in (200, 400)
            ]
            yield f"`{scheme}`, {mesh}, 400 steps", f"{alpha:g}", errors[-1], rate(errors)
    for tolerance in (1e-6, 1e-9):
        for alpha in (0.4, 0.8):
            found = fnn.fdeint(lambda t, y: -y, one, ts, alpha, rtol=tolerance, atol=tolerance)
            error = abs(float(found[-1]) - float(fnn.mittag_leffler(-1.0, alpha)))
            yield f"`collocation`, tolerance {tolerance:g}", f"{alpha:g}", error, ""


def gradients() -> Iterator[Row]:
    """Yield gradients of autograd beside derivatives of closed forms, and beside central differences of the scheme."""
    t = torch.linspace(0, 1, 401, dtype=torch.float64)
    ts = torch.tensor([0.0, 1.0], dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)

    def derivative(alpha: torch.Tensor) -> torch.Tensor:
        return fnn.derivative(t**2, fnn.Caputo(alpha), dt=1 / 400)[-1]

    def solution(alpha: torch.Tensor) -> torch.Tensor:
        return fnn.fdeint(lambda t, y: -y, one, ts, alpha, n_steps=400)[-1]

    def function(alpha: torch.Tensor) -> torch.Tensor:
        return fnn.mittag_leffler(-one, alpha)

    closed = {
        "Caputo's derivative of t^2": (derivative, lambda a: mpmath.gamma(3) * mpmath.rgamma(3 - a)),
        "`fdeint`, D^alpha y = -y": (
            solution,
            lambda a: series(a, 1.0, -1.0),
        ),
        "`mittag_leffler(-1, alpha)`": (
            function,
            lambda a: series(a, 1.0, -1.0),
        ),
    }
    for name, (ours, known) in closed.items():
        for value in (0.4, 0.8):
            alpha = torch.tensor(value, dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(ours(alpha), alpha)
            with mpmath.workdps(50):
                wanted = float(mpmath.diff(known, mpmath.mpf(value)))
            with torch.no_grad():
                step = 1e-5
                central = float(ours(alpha + step) - ours(alpha - step)) / (2 * step)
            yield name, f"{value:g}", abs(slope.item() / wanted - 1), abs(slope.item() / central - 1)


def coverage() -> Iterator[Row]:
    """Yield how often stated intervals contain the truth, with the standard error of this share."""
    rng = np.random.default_rng(SEED)
    found = {
        "`ARFIMA`: alpha = 0.3, 1000 samples": (95, arfima_hits(rng, 60)),
        "`fit_arfima`, band of a forecast 10 steps ahead": (80, forecast_hits(rng, 150)),
        "`fit_fde`: alpha = 0.6, 40 values, noise 2 %": (95, relaxation_hits(rng, 40)),
        "`whittle`: Hurst index 0.1, 1000 samples": (95, hurst_hits(0.1, 100)),
        "`whittle`: Hurst index 0.7, 1000 samples": (95, hurst_hits(0.7, 100)),
    }
    for name, (stated, hits) in found.items():
        share, error = np.mean(hits), math.sqrt(stated / 100 * (1 - stated / 100) / len(hits))
        yield name, len(hits), f"{stated} %", f"{share:.0%}", f"{error:.1%}"


def arfima_hits(rng: np.random.Generator, count: int) -> list[bool]:
    """Return whether the interval of alpha contains 0.3, for ARFIMA layers fitted to `count` series of this order."""
    intervals = (
        fnn.ARFIMA(ar=0).fit(data.arfima(1000, 0.3, rng)).estimates.intervals_at(0.95)["alpha"] for _ in range(count)
    )
    return [low < 0.3 < high for low, high in intervals]


def forecast_hits(rng: np.random.Generator, count: int) -> list[bool]:
    """Return whether the 80 % band of a forecast contains the tenth sample after a series, for `count` series."""
    hits = []
    for _ in range(count):
        series = data.arfima(510, 0.3, rng)
        low, high = fit_arfima(series[:500]).get_forecast(10).conf_int(alpha=0.2)[-1]
        hits.append(bool(low < series[-1] < high))
    return hits


def relaxation_hits(rng: np.random.Generator, count: int) -> list[bool]:
    """Return whether the interval of alpha contains 0.6, for `count` noisy relaxations of this order."""
    times, start, hits = np.linspace(0.1, 4, 40), torch.ones(1, dtype=torch.float64), []
    for _ in range(count):
        stress = data.relaxation(times, 0.6, noise=0.02, rng=rng)
        fit = fit_fde(lambda t, y, p: -p["rate"] * y, times, stress[:, None], start, {"rate": 0.7}, n_steps=40)
        low, high = fit.intervals["alpha"]
        hits.append(bool(low < 0.6 < high))
    return hits


def hurst_hits(hurst: float, count: int) -> list[bool]:
    """Return whether the interval of the Hurst index contains `hurst`, for `count` simulated paths."""
    rng = np.random.default_rng(SEED)
    paths = np.cumsum(increments(FractionalBrownian(hurst), 1000, (count,), dt=1.0, rng=rng), 0).T
    intervals = (whittle(path).interval for path in paths)
    return [low < hurst < high for low, high in intervals]


def faults() -> Iterator[Row]:
    """Yield how many results of each kernel are not finite, or too far from the dense product in double precision."""
    rng = np.random.default_rng(SEED)
    definitions = [kind(0.6) for name, kind in DEFINITIONS.items() if kind.lowest <= 0.6 <= kind.highest]
    for framework in ("numpy", "torch"):
        for kernel in kernels("toeplitz", framework):
            settings = Settings(
                force_backend=kernel.backend, force_algorithm=kernel.algorithm, wisdom="off", sample=False
            )
            manager, done, wrong, worst = BackendManager(settings), 0, 0, dict.fromkeys(BOUNDS, 0.0)
            for definition, n, dtype in (
                (d, n, t) for d in definitions for n in (1, 2, 63, 64, 65, 1000) for t in ("float64", "float32")
            ):
                x = rng.standard_normal((3, n)).astype(dtype)
                try:
                    found = definition(torch.from_numpy(x) if framework == "torch" else x, dt=0.1, manager=manager)
                except (LookupError, ValueError):
                    continue  # the kernel refuses this workload, and says why
                wanted = definition(x.astype("float64"), dt=0.1, manager=DENSE)
                scale = max(np.abs(wanted).max(), np.abs(x).max())  # where the result is zero, it is so to rounding
                off = float(np.abs(np.asarray(found) - wanted).max() / scale)
                done += 1
                wrong += not off <= BOUNDS[dtype] * max(1, n / 64)
                worst[dtype] = max(worst[dtype], off)
            if done:
                yield framework, f"`{kernel.backend}/{kernel.algorithm}`", done, wrong, *worst.values()


DENSE = BackendManager(Settings(force_algorithm="dense", wisdom="off", sample=False, calibration="shipped"))


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "validation.md", help="the page that is written")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    versions = [("Python", platform.python_version()), *((name, metadata.version(name)) for name in PACKAGES)]
    versions += [("system", f"{platform.system()}, {platform.machine()}"), ("date", f"{datetime.now(UTC):%d %B %Y}")]
    heads = {
        operators: ("definition, scheme", "alpha", "error, power", "order", "error, sinusoid", "order", "stated order"),
        mittag_leffler: ("points", "number", "median", "largest"),
        solvers: ("scheme", "alpha", "error", "order"),
        gradients: ("of", "alpha", "from the closed form", "from central differences"),
        coverage: ("interval", "fits", "stated", "held", "standard error"),
        faults: ("framework", "kernel", "results", "faults", "largest error, float64", "float32"),
    }
    parts = {}
    for section, titles in heads.items():
        print(section.__name__, file=sys.stderr, flush=True)
        parts[section.__name__] = table(titles, section())
    shown = "\n".join(f"| {name} | {version} |" for name, version in versions)
    page = TEMPLATE.read_text("utf-8")
    for name, text in {"version": versions[1][1], "seed": str(SEED), "versions": shown, **parts}.items():
        page = page.replace(f"<<{name}>>", text)
    arguments.output.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
