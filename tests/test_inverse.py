"""The inverse operators: what an operator gave is undone, whatever the scheme, the order and the samples."""

import re

import mpmath
import numpy as np
import pytest
import torch

import hpfracc_nn as fnn
from hpfracc_nn.fractional import (
    Caputo,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    TemperedCaputo,
    exact,
)
from hpfracc_nn.fractional.inverse import SOLVABLE, inverse_of
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import inverse_columns, reciprocal, slope_row

DT = 0.1
SCHEMES = [(kind, scheme) for kind in SOLVABLE for scheme in kind.schemes]
every_scheme = pytest.mark.parametrize(("kind", "scheme"), SCHEMES)


def orders_of(kind):
    """Return the orders at which a definition has an inverse."""
    if kind is RiemannLiouvilleIntegral:
        return (0.05, 0.5, 0.95)
    below, above = (-1.0, -0.4) if kind.lowest < 0 else (), () if kind is RiemannLiouville else (2.0,)
    return (*below, 0.0, 0.1, 0.5, 1.0, 1.1, 1.5, 1.9, *above)


def start_of(definition, x):
    """Return what `solve` must be told of x [rows, n]: x0 and dx0, as the operator estimates it."""
    given = {}
    if isinstance(definition, Caputo | RiemannLiouvilleIntegral):
        given["x0"] = x[:, 0]
    if isinstance(definition, Caputo) and definition.taylor == 2:
        given["dx0"] = x @ slope_row(x.shape[1]) / DT
    return given


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 200])
@every_scheme
def test_it_undoes_the_operator_on_noise(kind, scheme, n):
    x = np.random.default_rng(n).standard_normal((2, n))
    for alpha in orders_of(kind):
        definition = kind(alpha, scheme)
        given = start_of(definition, x)
        y = definition(x, dt=DT)
        # Rounding errors of y are summed up like y itself: alpha times for each sample.
        size = np.abs(x).max() * max(1.0, n**alpha) * (8 if kind is RiemannLiouville else 1)
        np.testing.assert_allclose(fnn.solve(y, definition, dt=DT, **given), x, rtol=0, atol=1e-13 * size * n**0.5)
        stencil = definition.stencil(n, DT, NUMPY)
        first, slope = (given[name][:, None] if name in given else None for name in ("x0", "dx0"))
        again = stencil.solve(y, first, None if slope is None else slope * DT)
        np.testing.assert_allclose(again, x, rtol=0, atol=1e-13 * size * n**0.5)


@every_scheme
def test_the_operator_undoes_it_where_nothing_is_lost(kind, scheme):
    y = np.random.default_rng(0).standard_normal(50)
    for alpha in orders_of(kind):
        definition = kind(alpha, scheme)
        if isinstance(definition, Caputo) and definition.taylor == 2:
            continue  # it would take its own estimate of x'(0) away
        got = definition(fnn.solve(y, definition, dt=DT), dt=DT)
        lost = 1 if kind is Caputo or kind is RiemannLiouvilleIntegral else 0  # its first sample is zero
        np.testing.assert_allclose(got[lost:], y[lost:], rtol=0, atol=1e-11 * max(1, DT**-alpha))


@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_a_differential_equation_is_solved_by_its_definition(alpha):
    definition = Caputo(alpha)
    errors = []
    for n in (100, 200):
        t = np.linspace(0, 2, n + 1)
        x = fnn.solve(exact.exponential(t, -1, definition), definition, x0=1.0, dt=2 / n, **_slope(alpha, -1.0))
        errors.append(np.abs(x - np.exp(-t)).max())
    assert errors[0] / errors[1] > 3.5  # second order at least
    assert errors[1] < 3e-4


def _slope(alpha, slope):
    return {"dx0": slope} if alpha > 1 else {}


@pytest.mark.parametrize("alpha", [-0.5, 0.3, 1.7])
def test_the_inverse_of_grunwalds_filter_is_that_of_the_opposite_order(alpha):
    inverse = inverse_of("test", GrunwaldLetnikov(alpha)).stencil(2000, 1.0, NUMPY)
    column = np.cumsum(inverse.weights) if inverse.differences < 0 else inverse.weights
    lags = np.array([0, 1, 2, 17, 1999])
    with mpmath.workdps(30):  # -alpha is below the least order for alpha = 1.7
        wanted = [float(mpmath.binomial(mpmath.mpf(alpha) + k - 1, k)) for k in lags.tolist()]
    np.testing.assert_allclose(column[lags], wanted, rtol=1e-11)


def test_a_reciprocal_series_is_right_to_rounding():
    series = np.random.default_rng(0).standard_normal((3, 77)) * 0.7 ** np.arange(77)
    series[:, 0] = 2
    product = [np.convolve(a, b)[:77] for a, b in zip(series, reciprocal(series, NUMPY), strict=True)]
    np.testing.assert_allclose(product, np.eye(1, 77).repeat(3, 0), rtol=0, atol=1e-13)


def test_it_keeps_shape_dtype_axis_and_channels():
    x = np.random.default_rng(0).standard_normal((2, 40, 3))
    alpha = [0.2, 0.5, 0.9]
    y = Caputo(alpha)(x, dt=DT, dim=1)
    got = fnn.solve(y, Caputo(alpha), x0=x[:, 0], dt=DT, dim=1)
    np.testing.assert_allclose(got, x, rtol=0, atol=1e-11)
    single = fnn.solve(y.astype(np.float32), Caputo(alpha), x0=x[:, 0], dt=DT, dim=1)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, x, rtol=0, atol=2e-5)  # y is rounded to 1e-6, and summed
    assert fnn.solve(np.zeros((2, 0)), Caputo(0.5)).shape == (2, 0)


def test_long_series_cost_no_digits():
    x = np.random.default_rng(0).standard_normal(20_000)
    for definition in (GrunwaldLetnikov(0.4), RiemannLiouville(0.8)):
        np.testing.assert_allclose(fnn.solve(definition(x), definition), x, rtol=0, atol=1e-7)  # of forward's 1e-11


def test_columns_are_kept_by_value():
    kept = inverse_columns(Caputo(1.5, "bdf2").stencil(30, DT, NUMPY), NUMPY)
    assert kept.nbytes > 0
    assert kept.start is not None


def two_orders(kind, side):
    return fnn.DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0), kind=kind, side=side)


X = np.zeros(5)
REFUSED = [
    (
        lambda: fnn.solve(X, RiemannLiouvilleIntegral(1.0)),
        "solve(alpha=1.0): needs an integral of an order between 0 and 1, because from 1 on the inverse of the "
        "trapezoid rule oscillates and grows; apply RiemannLiouville of that order in its place.",
    ),
    (
        lambda: fnn.solve(X, RiemannLiouville(2.0)),
        "solve(alpha=2.0): needs an order below 2, because the second derivative of t is zero; "
        "pass Caputo of order 2 with x0 and dx0.",
    ),
    (
        lambda: fnn.solve(X, RiemannLiouville(0.5), x0=1.0),
        "solve(RiemannLiouville, x0=...): needs no first sample, which y tells; leave x0 out.",
    ),
    (
        lambda: fnn.solve(X, Caputo(0.5), dx0=1.0),
        "solve(Caputo(alpha=0.5), dx0=...): needs no derivative at the start, which only Caputo's above order 1 takes "
        "away; leave dx0 out.",
    ),
    (
        lambda: fnn.solve(X, TemperedCaputo(0.5), x0=1.0),
        "solve(TemperedCaputo): needs one of Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral, "
        "whose inverse is causal; pass one of these.",
    ),
    *(
        (
            lambda kind=kind, side=side: fnn.solve(X, two_orders(kind, side)),
            f"solve(side={side!r}): needs side='left', the only one whose inverse is causal; of 'right' solve the "
            "reversed samples, y.flip(dim) or numpy.flip(y, dim), with side='left', and reverse the result.",
        )
        for kind in SOLVABLE
        for side in ("right", "both")
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_has_no_inverse_is_refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("name", ["x0", "dx0"])
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_what_is_given_at_the_start_is_one_value_for_each_signal(convert, name):
    y = convert(np.random.default_rng(0).standard_normal((4, 5, 3)))
    for shape in ((5,), (4, 4), (4, 5, 3), (1, 4, 3)):
        message = (
            f"solve({name} of shape {shape}): needs a number, or a shape that broadcasts to that of y without dim, "
            "(4, 3); pass one value for each signal."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            fnn.solve(y, Caputo(1.5), dim=1, **{name: convert(np.ones(shape))})
    whole = fnn.solve(y, Caputo(1.5), dim=1, **{name: convert(np.ones((4, 3)))})
    for given in (1.0, np.ones(3), np.ones((1, 3)), np.ones((4, 1))):
        np.testing.assert_array_equal(fnn.solve(y, Caputo(1.5), dim=1, **{name: convert(given)}), whole)


@pytest.mark.parametrize("definition", [Caputo(0.4), RiemannLiouvilleIntegral(0.4)], ids=["caputo", "integral"])
@pytest.mark.parametrize("start", [{}, {"x0": 0.3}], ids=["", "told"])
@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_a_value_that_tells_nothing_of_the_first_sample_is_not_looked_at(convert, start, definition):
    y = np.random.default_rng(0).standard_normal((2, 16))
    wanted = fnn.solve(y, definition, dt=DT, **start)
    y[:, 0] = np.nan
    found = np.asarray(fnn.solve(convert(y), definition, dt=DT, **start))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13 * np.abs(wanted).max())
    np.testing.assert_allclose(found[:, 0], start.get("x0", 0), rtol=0, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.parametrize("definition", [Caputo(0.4), RiemannLiouvilleIntegral(0.4)], ids=["caputo", "integral"])
def test_a_first_sample_that_is_told_once_is_that_of_every_signal(definition):
    y = np.random.default_rng(0).standard_normal((2, 3, 20))
    wanted = fnn.solve(y, definition, x0=np.full((2, 3), 0.7), dt=0.1)
    np.testing.assert_array_equal(fnn.solve(y, definition, x0=0.7, dt=0.1), wanted)
