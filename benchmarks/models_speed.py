"""One start of a fit of 60 points, beside `scipy.optimize.least_squares` over a Mittag-Leffler package.

Both fit the same coordinates of a fractional Maxwell model from the same first point, to logarithms of the same data,
until the sum of squares is the same to 1e-6; SciPy takes differences, as the package has no derivatives. Processor
seconds, medians of rounds that take turns.

    OMP_NUM_THREADS=1 python benchmarks/models_speed.py --output benchmarks/results

Limits: 0.3 s, and a fifth of SciPy's time. `pip install pymittagleffler` for the comparison.
"""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from results import Table
from scipy import optimize, special
from timing import interleaved

from hpfracc_nn.models import Experiment
from hpfracc_nn.models.estimation import Problem, fit
from hpfracc_nn.models.rheology import FractionalMaxwell

FIRST = {"V": 3.0, "alpha": 0.6, "G": 8.0, "beta": 0.35}
TRUTH = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2)
T = np.geomspace(0.01, 1000, 60)
SAME = 1e-6  # of the sums of squares


def packaged(t: np.ndarray, V: float, alpha: float, G: float, beta: float) -> np.ndarray:
    """Return G(t) by the package."""
    from pymittagleffler import mittag_leffler

    a = alpha - beta
    if a < 1e-3:  # out of the package's range
        return np.exp(-special.gammaln(1 - alpha)) * t**-alpha / (1 / V + 1 / G)
    return G * t**-beta * np.real(mittag_leffler((-(G / V) * t**a).astype(complex), a, 1 - beta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    data = TRUTH.relaxation(T) * np.exp(0.03 * np.random.default_rng(0).standard_normal(T.size))
    experiment = Experiment.relaxation(T, data)
    model = FractionalMaxwell()
    problem = Problem(model.network, model.roles, [experiment])
    start = problem.point(np.array(list(FIRST.values())))
    limits = np.array([[-30.0, 0, -30, 0], [30.0, 1, 30, 1]])
    squares: dict[str, float] = {}

    def ours() -> None:
        found = problem.minimum(start, limits)
        squares["hpfracc_nn, one start"] = float(found.residuals @ found.residuals)

    def whole() -> None:
        squares["hpfracc_nn, fit of four starts"] = fit(FractionalMaxwell, experiment).squares

    def residuals(point: np.ndarray) -> np.ndarray:
        found = packaged(T, *problem.values(point))
        return np.log(np.where(found > 0, found, 1e-300) / data)

    def scipys() -> None:
        found = optimize.least_squares(residuals, start, bounds=tuple(limits), x_scale="jac", ftol=1e-9, xtol=1e-9)
        squares["SciPy and pymittagleffler"] = float(2 * found.cost)

    calls = {"hpfracc_nn, one start": ours, "hpfracc_nn, fit of four starts": whole}
    if find_spec("pymittagleffler"):
        calls["SciPy and pymittagleffler"] = scipys
    times = interleaved(calls, arguments.rounds, clock=time.process_time)
    table = Table(
        "models-speed",
        f"Fractional Maxwell model, 60 points with 3 % noise; processor seconds, median of {times.rounds} rounds.",
        {
            "call": ("call", ""),
            "seconds": ("s", ".4f"),
            "ratio": ("times one start", ".1f"),
            "squares": ("squares", ".8f"),
        },
        folder=arguments.output,
    )
    table.begin("relaxation")
    own = times["hpfracc_nn, one start"]
    for name in calls:
        table.add(call=name, seconds=times[name], ratio=times[name] / own, squares=squares[name])
    least = min(squares.values())
    assert all(each <= least * (1 + SAME) for each in squares.values()), "the minima differ"
    table.note(f"Limits: 0.3 s for one start ({own:.4f}), and SciPy at least five times that.")


if __name__ == "__main__":
    main()
