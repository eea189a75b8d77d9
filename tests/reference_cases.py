"""The reference values, and the samples that belong to them."""

import functools
import json
import pathlib
from collections.abc import Iterator

import mpmath
import numpy as np

from hpfracc_nn.fractional import DEFINITIONS, SCHEMES, Definition

FILE = pathlib.Path(__file__).parent / "reference" / "operators.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))["cases"]}

# Cases that have no beginning of time, or two ends: id -> case.
EXTENDED = {case["id"]: case for case in json.loads(FILE.with_name("extended.json").read_text("utf-8"))["cases"]}

# The reference file's name of an operator -> ours, where they differ.
NAMES = {
    "rl_integral": "riemann_liouville_integral",
    "tempered_rl": "tempered_riemann_liouville",
    "atangana_baleanu_caputo": "atangana_baleanu",
}
OPTIONS = {"tempered_rl_a06_l15": {"rate": 1.5}}


def cases() -> Iterator[tuple[dict, str]]:
    """Yield (case, scheme) for every case of a registered definition and every scheme of it."""
    for case in CASES.values():
        for scheme in kind_of(case).schemes:
            assert scheme in SCHEMES
            yield case, scheme


def kind_of(case: dict) -> type[Definition]:
    return DEFINITIONS[NAMES.get(case["operator"], case["operator"])]


def definition_of(case: dict, scheme: str | None = None) -> Definition:
    """Return the case's operator; None is its default scheme."""
    options: dict = {**OPTIONS.get(case["id"], {}), **({} if scheme is None else {"scheme": scheme})}
    return kind_of(case)(case["alpha"], **options)


def samples(case: dict, n_steps: int) -> tuple[np.ndarray, float]:
    """Return the case's function at `n_steps` + 1 times, and their spacing."""
    first, last = case["interval"]
    assert first == 0
    t = np.linspace(0, last, n_steps + 1)
    with np.errstate(divide="ignore"):  # infinite at 0, where the test gives another sample
        x = eval(case["function"], {"np": np, "t": t, "mittag_leffler": mittag_leffler})
    return x, last / n_steps


def mittag_leffler(alpha: float, beta: float, z: np.ndarray) -> np.ndarray:
    """Return E_(alpha, beta)(z), |z| <= 1, by its series in mpmath: 1 / Gamma(0.6 * 100) < 1e-80."""
    with mpmath.workdps(30):
        series = _mittag_leffler_series(alpha, beta)
        return np.array([float(mpmath.polyval(series, mpmath.mpf(value))) for value in z])


@functools.cache
def _mittag_leffler_series(alpha: float, beta: float) -> list[mpmath.mpf]:
    return [mpmath.rgamma(mpmath.mpf(alpha) * k + beta) for k in range(60, -1, -1)]
