"""The weights of every scheme against mpmath at any lag; the number of differences, which changes nothing."""

import functools

import numpy as np
import pytest
from mpmath import binomial, exp, gamma, loggamma, mpf, rgamma, workdps

from hpfracc_nn.fractional import DEFINITIONS, SCHEMES, GrunwaldLetnikov, RiemannLiouvilleIntegral, exact
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.differences import bdf2_start
from tests.definition_cases import CLASSICAL
from tests.definition_cases import SCHEMES as CLASSICAL_SCHEMES

LAGS = (*range(18), 31, 32, 63, 64, 65, 127, 128, 129, 1000, 1023, 1024, 10**4, 10**5, 10**6)
ALPHAS = (0.001, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 1.9, 2.0)
EPS = np.finfo(float).eps
DIGITS = 50  # 18 are lost to third differences at lag 1e6


# The definitions of the schemes, summed as they stand.


def power(base, exponent):
    return mpf(base) ** exponent if base > 0 else mpf(0)  # also for exponent 0: the limit from above


def integral_of_powers(p, k):
    """(k + 1)**p, whose backward difference is the integral of p t**(p - 1) over cell k."""
    return power(k + 1, p)


def trapezoid_error(p, k):
    """What the trapezoid rule for t**p misses on cell k."""
    return (power(k + 1, 1 + p) - power(k, 1 + p)) / (1 + p) - (power(k + 1, p) + power(k, p)) / 2


def convolved(polynomial, sequence, p, k):
    return sum(a * sequence(p, k - i) for i, a in enumerate(polynomial) if k >= i)


def product(*factors):
    out = np.array([mpf(1)], dtype=object)
    for factor in factors:
        out = np.convolve(out, np.array([mpf(a) for a in factor], dtype=object))
    return out


def cells(alpha, taylor, m, *sequences):
    slope = (1.5, -0.5) if taylor == 2 else (1,)
    polynomial, p = product(slope, *[(1, -1)] * (taylor + 1 - m)), taylor - alpha
    return lambda k: sum(convolved(polynomial, sequence, p, k) for sequence in sequences) / gamma(1 + p)


def l1(alpha, taylor, m):
    return cells(alpha, taylor, m, integral_of_powers)


def l1_2(alpha, taylor, m):
    return cells(alpha, taylor, m, integral_of_powers, trapezoid_error)


def grunwald(alpha, taylor, m):
    return lambda k: (-1) ** k * binomial(alpha - m, k)


def bdf2(alpha, taylor, m):
    inner = grunwald(alpha, taylor, m)
    third = [(-1) ** j * binomial(alpha, j) / mpf(3) ** j for j in range(50)]  # 3**-50 < 2e-24
    return lambda k: mpf(1.5) ** alpha * sum(c * inner(k - j) for j, c in enumerate(third) if k >= j)


def trapezoid(alpha, taylor, m):
    polynomial = product(*[(1, -1)] * (2 - m))
    return lambda k: convolved(polynomial, integral_of_powers, 1 + alpha, k) / gamma(2 + alpha)


ORACLES = {"l1": l1, "l1_2": l1_2, "grunwald": grunwald, "bdf2": bdf2, "trapezoid": trapezoid}


def test_every_scheme_has_its_definition_here():
    assert set(ORACLES) == {scheme for _, scheme in CLASSICAL_SCHEMES}  # others: `test_definitions.py`
    assert set(ORACLES) < set(SCHEMES)


@functools.cache
def exact_weights(scheme, alpha, taylor, m, lags):
    with workdps(DIGITS):
        weight = ORACLES[scheme](mpf(alpha), taylor, m)
        return np.array([float(weight(k)) for k in lags])


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_weights_are_exact_to_rounding_at_every_lag(kind, scheme, alpha):
    definition = kind(alpha, scheme)
    got = definition.stencil(1, 1.0, NUMPY).column(np.array(LAGS))
    wanted = exact_weights(scheme, alpha, definition.taylor, definition.differences, LAGS)
    # For the integral third differences of powers up to 16**2.5 leave weights above 0.15: one rounding of the
    # largest term is 16**2.5 * EPS / 0.15 = 1.5e-12.
    rtol = 2e-12 if kind is RiemannLiouvilleIntegral else 1e-12
    # Where a weight crosses zero, and at whole orders, where it is zero, the first weight is the measure.
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=4 * EPS * abs(wanted[0]))


@pytest.mark.parametrize("alpha", [-0.999, -0.5, -0.1])
@pytest.mark.parametrize("scheme", GrunwaldLetnikov.schemes)
def test_weights_of_sums_are_exact_to_rounding(scheme, alpha):
    definition = GrunwaldLetnikov(alpha, scheme)
    got = definition.stencil(1, 1.0, NUMPY).column(np.array(LAGS))
    np.testing.assert_allclose(got, exact_weights(scheme, alpha, 1, 0, LAGS), rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.1, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("scheme", ["l1", "l1_2"])
def test_starting_columns_put_the_first_cell_right(scheme, alpha):
    """l1_2's takes the correction of the first cell back; above 1 both make the first slope 2 u[1] out of 3/2 u[1]."""
    definition = DEFINITIONS["caputo"](alpha, scheme)
    column = definition.stencil(2, 1.0, NUMPY).start_column
    if scheme == "l1" and alpha < 1:
        assert column is None
        return
    assert column is not None
    rows = np.array([1, 2, 3, 4, 16, 17, 18, 19, 100, 1999, 10**6])
    sequences = (integral_of_powers, trapezoid_error)[: 1 if scheme == "l1" else 2]
    with workdps(DIGITS):
        p = definition.taylor - mpf(alpha)

        def added(k):
            if alpha < 1:
                return -trapezoid_error(p, k) / gamma(1 + p)
            cell = [convolved(product((0.5, -0.5), (1, -1)), sequence, p, k) for sequence in sequences]
            return (sum(cell) - (2 * trapezoid_error(p, k) if scheme == "l1_2" else 0)) / gamma(1 + p)

        wanted = np.array([float(added(int(k) - 1)) for k in rows])
    assert column(np.array([0])) == 0
    near, got = rows <= 16, column(rows)
    # Up to lag 15 it is summed directly: differences of powers up to 16.
    np.testing.assert_allclose(got[near], wanted[near], rtol=1e-12, atol=16 * EPS)
    np.testing.assert_allclose(got[~near], wanted[~near], rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.95, 1.05, 1.5, 1.95])
@pytest.mark.parametrize("row", [150, 10**4, 10**7, 10**9])
def test_a_starting_column_keeps_its_digits_far_from_the_start(alpha, row):
    taylor = 1 if alpha < 1 else 2
    with workdps(60):
        a = mpf(alpha)
        weights = [  # of (1 + (1-z)/2)**alpha (1-z)**(alpha - taylor - 1), the binomial series of the first factor
            sum(binomial(a, i) / 2**i * _coefficient(a - taylor - 1 + i, lag) for i in range(60))
            for lag in range(row - 1, row - 1 - taylor, -1)
        ]
        true = float(taylor * mpf(row) ** (taylor - a) / gamma(1 + taylor - a) - sum(weights))
    found = bdf2_start(np.asarray(alpha), taylor, 2, np.array([row]), NUMPY).item()
    # The terms that cancel are row**(taylor - alpha - 1) times a few units.
    assert abs(found - true) < 1e-15 * max(row ** (taylor - alpha - 1), 1e-3)


def _coefficient(beta, lag):
    """Return the coefficient of (1-z)**beta."""
    return exp(loggamma(lag - beta) - loggamma(lag + 1)) * rgamma(-beta)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.001, 1.1, 1.5, 1.9, 2.0])
@pytest.mark.parametrize("scheme", ["l1", "l1_2", "bdf2"])
@pytest.mark.parametrize("kind", [DEFINITIONS["caputo"], DEFINITIONS["riemann_liouville"]])
def test_the_first_power_that_has_a_column_is_exact_at_every_sample(kind, scheme, alpha):
    n, definition = 300, kind(alpha, scheme)
    t, c = np.arange(n, dtype=float), definition.taylor
    got = (definition.stencil(n, 1.0, NUMPY).as_matrix() @ t**c)[1:]
    # sums of samples up to n**c, rounded, with weights that add up to at most 4**c
    np.testing.assert_allclose(got, exact.power(t[1:], c, definition), rtol=1e-12, atol=4**c * EPS * n**c)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 1.5, 2.0])
@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_boundary_columns_can_be_had_at_any_rows(kind, scheme, alpha):
    definition, n = kind(alpha, scheme), 300
    stencil = definition.stencil(n, 0.1, NUMPY)
    for rows in (np.arange(3), np.array([1, 2, 7, 140, 141]), np.array([5]), np.arange(200, n)):
        for column, whole in (
            (stencil.start_column, stencil.start),
            (stencil.analytic_columns, stencil.analytic),
        ):
            if column is not None:  # bdf2's is a small difference of powers up to n**2 that are rounded
                np.testing.assert_allclose(column(rows), whole[..., rows], rtol=1e-12, atol=8 * EPS * n**2)


# m


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 64])
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 1.9, 2.0])
@pytest.mark.parametrize(("kind", "scheme"), CLASSICAL_SCHEMES)
def test_the_number_of_differences_changes_only_the_rounding(kind, scheme, alpha, n):
    definition = kind(alpha, scheme)
    orders: tuple[int, ...] = (0, 1, 2)
    roundings = 64
    if kind is RiemannLiouvilleIntegral:
        orders = (0, -1)
    if kind is RiemannLiouvilleIntegral or (definition.subtracts and alpha > 1):
        # Third differences (coefficients of sum 16) of squares up to 16**2 below lag 16, and entries of d up
        # to 3 n where k S is subtracted: what the rule for m avoids.
        roundings = 16 * 16**2 * 3
    first, *others = (definition.stencil(n, 0.1, NUMPY, differences=m).as_matrix() for m in orders)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=0, atol=roundings * n * EPS * np.abs(first).max())


@pytest.mark.parametrize(("alpha", "m"), [(0.0, 0), (0.25, 0), (0.26, 1), (1.0, 1), (1.25, 1), (1.3, 2), (2.0, 2)])
def test_the_rule_for_the_number_of_differences(alpha, m):
    assert {kind(alpha).differences for kind in CLASSICAL if kind is not RiemannLiouvilleIntegral} == {m}
    assert DEFINITIONS["caputo"](0.1, bounds=(0, 1)).differences == 1
    assert RiemannLiouvilleIntegral(1.0).differences == 0
    assert RiemannLiouvilleIntegral(1.1).differences == -1
