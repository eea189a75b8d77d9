"""The operators against closed forms: values, orders of convergence, limits, identities."""

import itertools
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest

from hpfracc_nn.fractional import (
    DEFINITIONS,
    SCHEMES,
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    exact,
)
from hpfracc_nn.fractional.namespace import NUMPY
from tests.definition_cases import SCHEMES as CLASSICAL_SCHEMES
from tests.reference_cases import CASES, cases, definition_of, samples

STEPS = (400, 800, 1600)
EXACT = 1e-10  # an error below it need not fall

# (case, scheme) -> what is taken off the declared rate: the next term of the error is not yet small here
SLOWER = {("caputo_t2_a001", "l1"): 0.35, ("caputo_expm2_a03", "l1_2"): 0.35}
# not smooth at 0: there every scheme is promised first order
ROUGH = {"caputo_t07_a04", "caputo_ml_eigen_a06"}
# infinite at 0, where the first sample is the mean of the first cell: rate at t = 1
INFINITE = {
    "rl_tpow_am1_null_a06": (lambda dt: dt**-0.4 / 0.6, 0.55),
    "rlint_log_a05": (lambda dt: math.log(dt) - 1, 0.95),
}


def rates(errors):
    return [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]


def least_rate(case, scheme):
    if case["id"] in INFINITE:
        return INFINITE[case["id"]][1]
    if case["id"] in ROUGH:
        return 0.9 if scheme == "grunwald" else 1.0
    return definition_of(case, scheme).accuracy(case["alpha"]) - SLOWER.get((case["id"], scheme), 0.1)


@pytest.mark.parametrize(("case", "scheme"), [pytest.param(*pair, id=f"{pair[0]['id']}-{pair[1]}") for pair in cases()])
def test_the_error_falls_at_the_declared_rate(case, scheme):
    definition = definition_of(case, scheme)
    wanted = dict(zip(case["points"], map(float, case["values"]), strict=True))
    errors = []
    for n_steps in STEPS:
        x, dt = samples(case, n_steps)
        if case["id"] in INFINITE:
            x[0] = INFINITE[case["id"]][0](dt)
            wanted = {1.0: wanted[1.0]}
        y = definition(x, dt=dt)
        errors.append(max(abs(y[round(t / dt)] - value) for t, value in wanted.items()))
    assert max(errors) < EXACT or min(rates(errors)) >= least_rate(case, scheme), errors


def test_every_exception_names_a_case_that_is_tested():
    tested = {(case["id"], scheme) for case, scheme in cases()}
    assert set(SLOWER) <= tested
    assert (ROUGH | set(INFINITE)) <= {case for case, _ in tested}
    assert len(CASES) == 20


SMOOTH = {
    "t**2": (np.square, lambda t, definition: exact.power(t, 2, definition)),
    "exp(t)": (np.exp, lambda t, definition: exact.exponential(t, 1, definition)),
    "sin(t)": (np.sin, lambda t, definition: exact.sine(t, 1, definition)),
}


@pytest.mark.parametrize("function", SMOOTH)
@pytest.mark.parametrize("alpha", [1.1, 1.5, 1.9])
@pytest.mark.parametrize(("kind", "scheme"), [pair for pair in CLASSICAL_SCHEMES if pair[0].subtracts])
def test_the_error_above_one_falls_at_the_declared_rate(kind, scheme, alpha, function):
    f, closed_form = SMOOTH[function]
    definition, points = kind(alpha, scheme), np.array([0.1, 0.5, 1.0, 2.0])
    wanted, errors, floor = closed_form(points, definition), [], EXACT
    for n_steps in STEPS:
        dt = 2 / n_steps
        x = f(np.linspace(0, 2, n_steps + 1))
        y = definition(x, dt=dt)
        errors.append(np.abs(y[np.rint(points / dt).astype(int)] - wanted).max())
        if kind is not RiemannLiouvilleIntegral:
            floor = max(floor, 4 * np.finfo(float).eps * np.abs(x).max() / dt**alpha)  # samples are rounded
    assert max(errors) < floor or min(rates(errors)) >= SCHEMES[scheme].rate(alpha) - 0.1, errors


@pytest.mark.parametrize("scheme", ["l1", "l1_2", "bdf2"])
@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville])
def test_the_first_samples_of_a_second_derivative_are_right(kind, scheme):
    y = kind(2.0, scheme)(np.exp(np.arange(50) * 1e-3), dt=1e-3)
    np.testing.assert_allclose(y[1:4], 1, rtol=4e-3)  # dt times the third derivative, for a fault of 0.13 to 1


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.8])
@pytest.mark.parametrize("scheme", Caputo.schemes)
def test_data_that_begin_like_their_order_cost_the_slope_at_the_start(scheme, alpha):
    errors = []
    for n_steps in STEPS:
        y = Caputo(alpha, scheme)(np.linspace(0, 2, n_steps + 1) ** alpha, dt=2 / n_steps)
        errors.append(abs(y[-1] - math.gamma(1 + alpha)))
    assert min(rates(errors)) > alpha - 1 - 0.12, errors  # x'(0) = 0 is read as dt**(alpha - 1), beside order 1


@pytest.mark.parametrize(("scheme", "most"), [("l1_2", 5e-9), ("bdf2", 3e-7)])
def test_the_half_derivative_of_a_sine_is_this_accurate_everywhere(scheme, most):
    t, definition = np.linspace(0, 1, 1001), Caputo(0.5, scheme)
    error = np.abs(definition(np.sin(t), dt=1e-3) - exact.sine(t, 1, definition))
    assert error[1:].max() < most


# Limits

N = 50
X = np.random.default_rng(0).standard_normal(N)
DT = 0.1


@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_alpha_zero_is_the_identity_and_for_caputo_less_the_first_sample(kind, scheme):
    wanted = X - X[0] if kind is Caputo else X
    np.testing.assert_allclose(kind(0.0, scheme)(X, dt=DT), wanted, rtol=0, atol=1e-14)


# What the scheme takes for 1 - z.
ONE_STEP, TWO_STEPS = (1, -1), (1.5, -2, 0.5)
DIFFERENCE: dict[str, tuple[float, ...]] = {
    "l1": ONE_STEP,
    "grunwald": ONE_STEP,
    "l1_2": TWO_STEPS,
    "bdf2": TWO_STEPS,
}
SECOND = {
    "l1": np.convolve(TWO_STEPS, ONE_STEP),
    "grunwald": np.convolve(ONE_STEP, ONE_STEP),
    "l1_2": np.convolve(TWO_STEPS, TWO_STEPS),
    "bdf2": np.convolve(TWO_STEPS, TWO_STEPS),
}
DERIVATIVES = [pair for pair in CLASSICAL_SCHEMES if pair[0] is not RiemannLiouvilleIntegral]


@pytest.mark.parametrize(("kind", "scheme"), DERIVATIVES)
def test_alpha_one_is_the_ordinary_difference(kind, scheme):
    wanted = np.convolve(DIFFERENCE[scheme], X)[:N] / DT
    got = kind(1.0, scheme)(X, dt=DT)
    np.testing.assert_allclose(got[2:], wanted[2:], rtol=0, atol=1e-13 / DT)
    first = {Caputo: 0.0, RiemannLiouville: X[0] / DT}.get(kind, wanted[0])
    second = (X[1] - X[0]) / DT if kind.subtracts else wanted[1]
    np.testing.assert_allclose(got[:2], [first, second], rtol=0, atol=1e-13 / DT)


@pytest.mark.parametrize(("kind", "scheme"), DERIVATIVES)
def test_alpha_two_is_the_ordinary_second_difference(kind, scheme):
    wanted = np.convolve(SECOND[scheme], X)[:N] / DT**2
    reach = len(SECOND[scheme]) - 1 if kind.subtracts else 0  # before it the start is not differenced away
    got = kind(2.0, scheme)(X, dt=DT)
    np.testing.assert_allclose(got[reach:], wanted[reach:], rtol=0, atol=1e-12 / DT**2)


def test_integrals_of_order_one_and_two_are_the_trapezoid_rule_and_the_integral_of_its_lines():
    once = np.concatenate([[0], np.cumsum(X[1:] + X[:-1])]) * DT / 2
    lines = X[:-1] / 3 + X[1:] / 6  # integral of (1 - s) x(s) over a cell, x linear
    twice = np.concatenate([[0], np.cumsum(once[:-1] * DT + lines * DT**2)])
    np.testing.assert_allclose(RiemannLiouvilleIntegral(1.0)(X, dt=DT), once, rtol=0, atol=1e-13)
    np.testing.assert_allclose(RiemannLiouvilleIntegral(2.0)(X, dt=DT), twice, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("limit", "side"), [(0, 1), (1, -1), (2, -1)], ids=["above 0", "below 1", "below 2"])
@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_operators_are_continuous_towards_whole_orders(kind, scheme, limit, side):
    at_limit = kind(float(limit), scheme).stencil(N, 1.0, NUMPY).as_matrix()
    gaps = []
    for distance in (1e-4, 1e-6):
        near = kind(limit + side * distance, scheme).stencil(N, 1.0, NUMPY).as_matrix()
        rows = slice(1, None) if kind is RiemannLiouvilleIntegral else slice(None)  # an integral is 0 at t = 0
        gaps.append(np.abs(near - at_limit)[rows].max())
    assert gaps[1] < 2e-2 * gaps[0] + 1e-11  # linear in the distance; 1e-11 is rounding over the distance


@pytest.mark.parametrize("limit", [1.0, 2.0])
def test_grunwald_letnikov_is_continuous_from_both_sides(limit):
    if limit == 2.0:
        limit = 1.999  # there is no order above 2
    below, above = (GrunwaldLetnikov(limit + gap).stencil(N, 1.0, NUMPY).as_matrix() for gap in (-1e-7, 1e-7))
    np.testing.assert_allclose(below, above, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "scheme"), [pair for pair in DERIVATIVES if pair[0].subtracts])
def test_an_order_on_its_lower_bound_is_the_limit_from_above(kind, scheme):
    orders = (1.0, 1 + 1e-8)
    at, above = (kind(a, scheme, bounds=(1, 2)).stencil(N, 1.0, NUMPY).as_matrix() for a in orders)
    np.testing.assert_allclose(at, above, rtol=0, atol=1e-5)
    bank = kind(list(orders), scheme, bounds=(1, 2)).stencil(N, 1.0, NUMPY).as_matrix()
    np.testing.assert_allclose(bank, [at, above], rtol=0, atol=1e-13)  # entries up to 3 N, rounded


# Identities


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.4, 2.0])
@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_constants(kind, scheme, alpha):
    definition, t = kind(alpha, scheme), np.arange(1, N) * DT
    y = definition(np.full(N, 3.0), dt=DT)[1:]
    if kind is Caputo:
        np.testing.assert_array_equal(y, 0)
    elif kind is GrunwaldLetnikov:  # Abel's sum of the weights: the order alpha - 1 of a unit pulse
        pulse = np.eye(1, N)[0]
        weights = GrunwaldLetnikov(alpha, scheme)(pulse, dt=DT)
        np.testing.assert_allclose(y, 3 * np.cumsum(weights)[1:], rtol=0, atol=1e-12 / DT**alpha)
    else:
        np.testing.assert_allclose(y, 3 * exact.power(t, 0, definition), rtol=1e-13, atol=1e-13 / DT**alpha)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.4, 2.0])
@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_operators_are_linear(kind, scheme, alpha):
    definition, other = kind(alpha, scheme), np.cos(np.arange(N))
    together = definition(2 * X - 5 * other, dt=DT)
    apart = 2 * definition(X, dt=DT) - 5 * definition(other, dt=DT)
    # some 50 terms of size 10 and of weights up to 2 dt**-alpha
    np.testing.assert_allclose(together, apart, rtol=0, atol=1e-12 * max(1, DT**-alpha))


@pytest.mark.parametrize(("a", "b"), [(0.3, 0.6), (0.5, 0.5), (0.9, 1.1), (-0.4, 0.4), (-1.0, 1.7)])
@pytest.mark.parametrize("scheme", GrunwaldLetnikov.schemes)
def test_grunwald_letnikov_orders_add(scheme, a, b):
    one, other, both = (GrunwaldLetnikov(order, scheme).stencil(N, DT, NUMPY).as_matrix() for order in (a, b, a + b))
    np.testing.assert_allclose(one @ other, both, rtol=0, atol=1e-12 * np.abs(both).max())


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0, 1.6])
@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville])
def test_a_derivative_undoes_the_integral_of_the_same_order(kind, alpha):
    errors = []
    for n_steps in STEPS:
        t, dt = np.linspace(0, 2, n_steps + 1), 2 / n_steps
        x = t**2 * np.exp(-t)  # the integral begins like t**(2 + alpha): smooth enough
        y = kind(alpha)(RiemannLiouvilleIntegral(alpha)(x, dt=dt), dt=dt)
        errors.append(np.abs(y - x)[n_steps // 20 :].max())
    assert min(rates(errors)) > 1.7, errors  # second order, and l1_2's 3 - alpha of the other sign beside it


@pytest.mark.parametrize("kind", DEFINITIONS.values())
def test_equal_definitions_have_equal_hashes_which_are_not_pickled(kind: type[Definition]) -> None:
    one, other = kind(0.5), kind(0.5)
    assert one == other
    assert hash(one) == hash(other) == hash(pickle.loads(pickle.dumps(one)))
    assert one.__getstate__() == kind(0.5).__getstate__()  # the hash of a text differs between processes
    assert len({one, other, kind(0.25), replace(one, alpha=0.25)}) == 2
    others = [each for each in DEFINITIONS.values() if each is not kind and one.scheme in each.schemes]
    assert all(each(0.5, one.scheme) != one for each in others)
