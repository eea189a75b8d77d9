"""`fdeint` in JAX: known solutions, every scheme by every history, transforms, and what goes wrong."""

import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax import numpy as jnp

from hpfracc_nn.solvers import SCHEMES, Full, Graded, Window
from hpfracc_nn.solvers.jax import MultiTerm, fdeint

FILE = pathlib.Path(__file__).parent / "reference" / "solvers.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))["cases"]}


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def logistic(t, y, rate):
    return rate * y * (1 - y) + 0.1 * jnp.sin(t)


def solved(y0, rate, alpha, n=41, **options):
    return fdeint(logistic, y0, np.linspace(0, 1, n), alpha, args=rate, **options)


START, RATE = np.array([0.2, 0.5]), np.array(1.3)


# What is known in closed form, or to many digits.


def gamma(x):
    return math.gamma(x)


def diethelm(a):
    """Diethelm, Ford & Freed (2004), section 5; y is t**8 - 3 t**(4 + a/2) + 9/4 t**a."""

    def f(t, y):
        forcing = (
            40320 / gamma(9 - a) * t ** (8 - a)
            - 3 * gamma(5 + a / 2) / gamma(5 - a / 2) * t ** (4 - a / 2)
            + 9 / 4 * gamma(a + 1)
            + (1.5 * t ** (a / 2) - t**4) ** 3
        )
        return forcing - jnp.abs(y) ** 1.5

    return f


def li(t, y):
    a = 0.5
    forcing = 120 / gamma(6 - a) * t ** (5 - a) - 72 / gamma(5 - a) * t ** (4 - a) + 12 / gamma(4 - a) * t ** (3 - a)
    return forcing - y**2 + (t**5 - 3 * t**4 + 2 * t**3) ** 2


def lorenz(t, y):
    return jnp.stack([10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]])


def brusselator(t, y):
    return jnp.stack([1 - 5 * y[0] + y[0] ** 2 * y[1], 4 * y[0] - y[0] ** 2 * y[1]])


def lotka_volterra(t, y):
    return jnp.stack([y[0] * (1 - 0.5 * y[1]), y[1] * (-0.75 + 0.25 * y[0])])


RIGHT_HAND_SIDES = {
    "fde_relax_a05": lambda t, y: -y,
    "fde_relax_a08": lambda t, y: -y,
    "fde_relax_stiff_a07": lambda t, y: -10 * y,
    "fde_osc_a15": lambda t, y: -y,
    "fde_step_a05": lambda t, y: 1 - y,
    "fde_growth_a06": lambda t, y: y,
    "fde_diethelm2004_a025": diethelm(0.25),
    "fde_diethelm2004_a09": diethelm(0.9),
    "fde_garrappa2009_a05": lambda t, y: t**2 - y + 2 * t**1.5 / gamma(2.5),
    "fde_garrappa2009_a08": lambda t, y: t**2 - y + 2 * t**1.2 / gamma(2.2),
    "fde_li2015_a05": li,
    "fde_lin_system_a07_y1": lambda t, y: jnp.stack([-0.5 * y[0] - 2 * y[1], 2 * y[0] - 0.5 * y[1]]),
    "fde_riccati_a05": lambda t, y: 1 - y**2,
    "fde_system_riccati_a08_long": lambda t, y: 1 - y**2,
    "fde_system_brusselator_a08_mu4": brusselator,
    "fde_system_lotka_volterra_a09": lotka_volterra,
    "fde_system_lorenz_a099": lorenz,
    "fde_system_sinus_forced_a05": lambda t, y: -jnp.sin(y) + jnp.cos(t),
}


def reference(name):
    """Return what solves a case: f, y0, alpha, dy0; and the values and which entries they are."""
    case = CASES[name]
    values = np.array([[float(each) for each in np.atleast_1d(value)] for value in case["values"]])
    if name.startswith("bagley_torvik"):
        if name == "bagley_torvik_1pt":
            equation = MultiTerm({2: 1.0, 1.5: 1.0, 0: 1.0}, lambda t, y: 1 + t)
            start = equation.state(jnp.ones(()), jnp.ones(()))
        else:
            equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, lambda t, y: 8.0)
            start = equation.state(jnp.zeros(()), jnp.zeros(()))
        return equation, start, equation.alpha, None, values, (0,)
    alpha, y0 = case["alpha"], case.get("y0", [1.0, 0.0])
    known = (case.get("component", 0),) if not isinstance(case["values"][0], list) else tuple(range(values.shape[1]))
    if alpha > 1:
        return RIGHT_HAND_SIDES[name], np.array(y0[:1]), alpha, np.array(y0[1:2]), values, known
    return RIGHT_HAND_SIDES[name], np.array(y0), alpha, None, values, known


def test_every_reference_problem_has_a_right_hand_side():
    assert {name for name in CASES if name.startswith("fde_")} == set(RIGHT_HAND_SIDES)


@pytest.mark.parametrize(
    "name",
    [name if name == "fde_relax_a05" else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
def test_reference_values_are_met_by_the_trapezoid_rule(name):
    f, y0, alpha, dy0, values, known = reference(name)
    case = CASES[name]
    points = np.array(case["points"], dtype=float)
    is_smooth = name.startswith(("fde_diethelm", "fde_garrappa", "fde_li", "fde_osc", "bagley", "fde_system"))
    is_fast = name in ("fde_relax_a05", "bagley_torvik_1pt")
    options: dict[str, Any] = {"mesh": "uniform" if is_smooth else "graded", "n_steps": 400 if is_fast else 4000}
    if options["mesh"] == "graded":
        options["n_steps"] = 400 if is_fast else 1600  # all of its weights are in memory at once
    end = float(case["interval"][1])
    ts = np.unique(np.concatenate([[0.0], points, [end]]))
    ys = np.asarray(jax.jit(lambda y0: fdeint(f, y0, ts, alpha, dy0=dy0, scheme="trapezoid", **options))(y0))
    found = ys[np.searchsorted(ts, points)][:, known]
    size = np.abs(values).max()
    # Second order at best, of solutions on intervals up to 50 long; the torch side states its own, finer bounds.
    tolerance = (1e-4 if is_fast else 2e-5) * size + max(case.get("tolerance", 0), 1e-9)
    assert np.abs(found - values).max() <= tolerance


PAIRS = [("rectangle", "exponentials"), ("rectangle", "fft"), ("rectangle", Window(60))]
PAIRS += [(scheme, "exponentials") for scheme in sorted(SCHEMES) if scheme != "rectangle"]


@pytest.mark.parametrize(
    ("scheme", "history"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] * (k > 0), id=f"{pair[0]}-{pair[1]}")
        for k, pair in enumerate(PAIRS)
    ],
)
def test_histories_agree_with_the_sum_over_all_of_the_past(scheme, history):
    expected, found = jax.jit(
        lambda: [solved(START, RATE, 0.7, 50, scheme=scheme, history=each) for each in (Full(), history)]
    )()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)  # 1e-11 per weight


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 257, 600, 1031])
def test_blocks_by_transform_are_the_sum_over_all_of_the_past(n):
    expected = jax.jit(lambda: solved(START, RATE, 0.7, n, history="full"))()
    for history in ("fft", "exponentials"):
        found = jax.jit(lambda history=history: solved(START, RATE, 0.7, n, history=history))()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_at_order_one_the_slope_is_that_from_below(scheme):
    """Without a derivative at the start there are no orders above; the quotient is off by step**2, 1e-8."""
    step = 1e-4
    end = jax.jit(lambda alpha: fdeint(lambda t, y: -y, np.ones(1), np.linspace(0, 2, 21), alpha, scheme=scheme)[-1, 0])
    quotient = (3 * end(1.0) - 4 * end(1 - step) + end(1 - 2 * step)) / (2 * step)
    assert jax.jit(jax.grad(end))(1.0) == pytest.approx(float(quotient), rel=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_steps_of_bdf2_are_exact_where_f_is_constant(n):
    """Its first two values have weights of their own, which make it so; of one or two steps there are no others."""
    ts = np.linspace(0, 1, n + 1)
    y = fdeint(lambda t, y: 1 + 0 * y, jnp.zeros(1), ts, 0.6, scheme="bdf2")
    np.testing.assert_allclose(y[:, 0], ts**0.6 / math.gamma(1.6), rtol=1e-12)


def test_a_slope_at_the_start_is_exact_between_the_steps_of_a_graded_mesh():
    """D^1.5 y = 0 has a line as its solution; JAX refuses to promote ranks here."""
    y0, dy0 = jnp.array([1.0, 2.0]), jnp.array([0.5, -3.0])
    ts = np.array([0.0, 0.3, 1.0])
    ys = fdeint(lambda t, y: 0 * y, y0, ts, 1.5, dy0=dy0, mesh=Graded(2.0), n_steps=7)
    np.testing.assert_allclose(ys, y0[None] + ts[:, None] * np.asarray(dy0), rtol=1e-6)  # float32
