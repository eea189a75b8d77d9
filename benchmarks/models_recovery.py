"""What fits of rheological models recover: bias, coverage of profile intervals, and the choice by BIC.

Each model's response at 60 log-spaced times over 5 decades is simulated by mpmath's Talbot rule from its transform,
which is written here once more, and gets 3 % noise, 200 times.

    python benchmarks/models_recovery.py --draws 200 --output benchmarks/results
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from results import Table
from scipy import stats

from hpfracc_nn.models import Experiment, fit
from hpfracc_nn.models.model import Model
from hpfracc_nn.models.rheology import (
    FractionalJeffreys,
    FractionalKelvinVoigt,
    FractionalMaxwell,
    FractionalPoyntingThomson,
    FractionalZener,
    Jeffreys,
    KelvinVoigt,
    Maxwell,
    PoyntingThomson,
    Spring,
    SpringPot,
    Zener,
)

NOISE, POINTS, DECADES = 0.03, 60, 5
LEVEL, BAND = 0.95, 0.999


@dataclass(frozen=True)
class Case:
    """A model to simulate.

    Attributes:
        truth: With values for all parameters.
        model: What is fitted.
        classical: What it is compared with.
        kind: "relaxation" or "creep".
        first: The first time.
        F: Its modulus as a function of s.
    """

    truth: Model
    model: Model
    classical: Model
    kind: str
    first: float
    F: Callable[[Any], Any]


def _series(a: Any, b: Any) -> Any:
    return 1 / (1 / a + 1 / b)


CASES = {
    "SpringPot": Case(
        SpringPot(V=3, alpha=0.4), SpringPot(), Spring(), "relaxation", 1e-2, lambda s: 3 * s ** mpmath.mpf(0.4)
    ),
    "FractionalMaxwell": Case(
        FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2),
        FractionalMaxwell(),
        Maxwell(),
        "relaxation",
        1e-2,
        lambda s: _series(10 * s**0.8, 5 * s**0.2),
    ),
    "FractionalKelvinVoigt": Case(
        FractionalKelvinVoigt(V=3, alpha=0.8, G=4, beta=0.2),
        FractionalKelvinVoigt(),
        KelvinVoigt(),
        "creep",
        1e-2,
        lambda s: 3 * s**0.8 + 4 * s**0.2,
    ),
    "FractionalZener": Case(
        FractionalZener(K=1, V=2, alpha=0.7, G=9, beta=0.1),
        FractionalZener(),
        Zener(),
        "relaxation",
        1e-3,
        lambda s: 1 + _series(2 * s**0.7, 9 * s**0.1),
    ),
    "FractionalZener, beta=0": Case(
        FractionalZener(K=1, V=2, alpha=0.5, G=9, beta=0),
        FractionalZener(beta=0),
        Zener(),
        "relaxation",
        1e-3,
        lambda s: 1 + _series(2 * s**0.5, 9 + 0 * s),
    ),
    "FractionalPoyntingThomson": Case(
        FractionalPoyntingThomson(K=9, V=2, alpha=0.8, G=1, beta=0.1),
        FractionalPoyntingThomson(),
        PoyntingThomson(),
        "creep",
        1e-3,
        lambda s: _series(9 + 0 * s, 2 * s**0.8 + s**0.1),
    ),
    "FractionalPoyntingThomson, beta=0": Case(
        FractionalPoyntingThomson(K=9, V=2, alpha=0.6, G=1, beta=0),
        FractionalPoyntingThomson(beta=0),
        PoyntingThomson(),
        "creep",
        1e-3,
        lambda s: _series(9 + 0 * s, 2 * s**0.6 + 1),
    ),
    "FractionalJeffreys": Case(
        FractionalJeffreys(eta=0.2, V=5, alpha=0.9, G=4, beta=0.3),
        FractionalJeffreys(),
        Jeffreys(),
        "creep",
        1e-3,
        lambda s: 0.2 * s + _series(5 * s**0.9, 4 * s**0.3),
    ),
    "Maxwell": Case(
        Maxwell(eta=2000, G=4), Maxwell(), SpringPot(), "creep", 1e-2, lambda s: _series(2000 * s, 4 + 0 * s)
    ),
    "Zener": Case(
        Zener(K=1, eta=20, G=9), Zener(), SpringPot(), "relaxation", 1e-2, lambda s: 1 + _series(20 * s, 9 + 0 * s)
    ),
}


def simulated(case: Case, t: np.ndarray) -> np.ndarray:
    """Return the response by mpmath, and raise where the package's differs: the two are independent."""
    with mpmath.workdps(30):
        step = (lambda s: case.F(s) / s) if case.kind == "relaxation" else (lambda s: 1 / (s * case.F(s)))
        exact = np.array([float(mpmath.invertlaplace(step, each, method="talbot", degree=30)) for each in t])
    np.testing.assert_allclose(getattr(case.truth, case.kind)(t), exact, rtol=1e-10)
    return exact


def recover(name: str, case: Case, draws: int, table: Table) -> None:
    """Add a row for each parameter of a model."""
    t = np.geomspace(case.first, case.first * 10**DECADES, POINTS)
    exact, rng = simulated(case, t), np.random.default_rng(20)
    names = case.model.unknowns
    truth = {each: float(getattr(case.truth, each)) for each in names}
    errors, inside, chosen, seconds = [], [], 0, 0.0
    for _ in range(draws):
        data = exact * np.exp(NOISE * rng.standard_normal(POINTS))
        experiment = getattr(Experiment, case.kind)(t, data)
        begun = time.process_time()
        found = fit(case.model, experiment, level=LEVEL)
        ends = found.profile_intervals()
        seconds += time.process_time() - begun
        errors.append([_coordinate(case.model, each, found.estimates[each]) for each in names])
        inside.append([ends[each][0] <= truth[each] <= ends[each][1] for each in names])
        chosen += found.bic < fit(case.classical, experiment).bic
    low, high = stats.binom.ppf([(1 - BAND) / 2, (1 + BAND) / 2], draws, LEVEL)
    for place, each in enumerate(names):
        off = np.array(errors)[:, place] - _coordinate(case.model, each, truth[each])
        covered = int(np.array(inside)[:, place].sum())
        table.add(
            model=name,
            parameter=each,
            truth=truth[each],
            spread=float(off.std(ddof=1)),
            bias=float(off.mean() / (off.std(ddof=1) / np.sqrt(draws))),
            covered=covered,
            band=f"{low:.0f} to {high:.0f}",
            chosen=chosen / draws,
            seconds=seconds / draws,
        )


def _coordinate(model: Model, name: str, value: float) -> float:
    return value if model.roles[name] == "order" else float(np.log(value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    table = Table(
        "models-recovery",
        f"{arguments.draws} draws of {POINTS} log-spaced times over {DECADES} decades with {100 * NOISE:g} % noise; "
        "errors of orders, and of the logarithm of what is positive.",
        {
            "model": ("model", ""),
            "parameter": ("parameter", ""),
            "truth": ("truth", "g"),
            "spread": ("spread of the estimate", ".3g"),
            "bias": ("mean error / its standard error", ".2f"),
            "covered": ("95 % intervals that cover", ""),
            "band": ("99.9 % band", ""),
            "chosen": ("BIC prefers it to the classical model", ".2f"),
            "seconds": ("s a fit with intervals", ".2f"),
        },
        folder=arguments.output,
    )
    table.begin("rheology")
    warnings.simplefilter("ignore", UserWarning)  # notes on single draws
    for name in arguments.only:
        recover(name, CASES[name], arguments.draws, table)


if __name__ == "__main__":
    main()
