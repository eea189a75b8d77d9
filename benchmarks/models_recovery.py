"""What fits of rheological models recover: bias, coverage of profile intervals, and the choice by BIC.

Each model's response at 60 log-spaced times over 5 decades is simulated by mpmath's Talbot rule from its transform,
which is written here once more, and gets 3 % noise, 200 times.

    python benchmarks/models_recovery.py --draws 200 --output benchmarks/results

A mean error of some standard errors has three parts: the linear response to the noise that was drawn, whose mean is 0
whatever the estimator, the bias of second order that least squares has of any curved model, and what is wrong. With
`--bias` the three are told apart, for fits that begin at the truth.

    python benchmarks/models_recovery.py --bias --draws 1000 --output benchmarks/results
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
from hpfracc_nn.models.estimation import Problem
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


def second_order_bias(problem: Problem, point: np.ndarray, noise: float) -> np.ndarray:
    """Return the bias of the least-squares estimates at a point of a problem, to second order in the noise.

    Box, J. R. Statist. Soc. B 33 (1971) 171, equation 2.8; second derivatives by differences of exact first ones.
    """
    jacobian, h = problem(point)[1](), 1e-5
    curvature = [(problem(point + step)[1]() - problem(point - step)[1]()) / (2 * h) for step in h * np.eye(point.size)]
    inverse = np.linalg.inv(jacobian.T @ jacobian)
    bent = np.einsum("jik,jk->i", np.array(curvature), inverse)
    return -(noise**2) / 2 * inverse @ (jacobian.T @ bent)


def split(name: str, case: Case, noise: float, draws: int, table: Table) -> None:
    """Add a row for each parameter of a model: the mean error and its parts."""
    t = np.geomspace(case.first, case.first * 10**DECADES, POINTS)
    exact, rng, model = simulated(case, t), np.random.default_rng(21), case.model.named()

    def problem_of(data: np.ndarray) -> Problem:
        return Problem(model.network, model.roles, [getattr(Experiment, case.kind)(t, data)])

    problem = problem_of(exact)
    truth = problem.point(np.array([float(getattr(case.truth, each)) for each in problem.names]))
    limits = np.where(problem.is_order, [[0.0], [1.0]], truth + 30 * np.array([[-1.0], [1.0]]))
    drawn = noise * rng.standard_normal((draws, POINTS))
    found = np.array([problem_of(exact * np.exp(each)).minimum(truth, limits).point for each in drawn])
    errors, linear = found - truth, drawn @ np.linalg.pinv(problem(truth)[1]()).T
    bias, spread = second_order_bias(problem, truth, noise), errors.std(axis=0, ddof=1)
    in_all = np.sqrt(draws) / spread
    for place, each in enumerate(problem.names):
        table.add(
            model=name,
            parameter=each,
            noise=100 * noise,
            mean=errors[:, place].mean() * in_all[place],
            linear=linear[:, place].mean() * in_all[place],
            bias=bias[place] * in_all[place],
            left=((errors - linear)[:, place].mean() - bias[place]) * in_all[place],
            single=bias[place] / spread[place],
        )


def _coordinate(model: Model, name: str, value: float) -> float:
    return value if model.roles[name] == "order" else float(np.log(value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--bias", action="store_true")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # notes on single draws
    if arguments.bias:
        table_of_bias(arguments)
        return
    table = Table(
        "models-recovery",
        f"{arguments.draws} draws of {POINTS} log-spaced times over {DECADES} decades with {100 * NOISE:g} % noise; "
        "errors of orders, and of the logarithm of what is positive. The noise is the same in all models; models-bias "
        "says of what a mean error of more than 3 consists.",
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
    for name in arguments.only:
        recover(name, CASES[name], arguments.draws, table)


def table_of_bias(arguments: argparse.Namespace) -> None:
    table = Table(
        "models-bias",
        f"Mean errors of {arguments.draws} draws of {POINTS} log-spaced times over {DECADES} decades, and their parts, "
        "in standard errors of the mean. The linear part is the noise that was drawn; the bias is Box's (1971).",
        {
            "model": ("model", ""),
            "parameter": ("parameter", ""),
            "noise": ("noise, %", "g"),
            "mean": ("mean error", ".2f"),
            "linear": ("linear part", ".2f"),
            "bias": ("bias of second order", ".2f"),
            "left": ("left", ".2f"),
            "single": ("bias in standard errors of one fit", ".3f"),
        },
        folder=arguments.output,
    )
    table.begin("rheology")
    for name in arguments.only:
        for noise in (NOISE, NOISE / 3):
            split(name, CASES[name], noise, arguments.draws, table)


if __name__ == "__main__":
    main()
