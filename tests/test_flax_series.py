"""ARFIMA, the spectral layer and features of roughness for Flax: closed forms, streams, and their modules."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flax")

import jax
from flax import nnx
from jax import numpy as jnp

from hpfracc_nn import FractionalLaplacian
from hpfracc_nn.data import arfima, fgn
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax import linen as of_linen
from hpfracc_nn.layers.flax import nnx as of_nnx
from hpfracc_nn.layers.flax.functional import arfima_errors, arfima_forecast, arfima_nll
from hpfracc_nn.series import fit_arfima
from hpfracc_nn.series.covariance import Filter
from tests.jax_compilations import compilations
from tests.noise_spectrum import energy

SERIES = 3 + arfima(120, 0.3, np.random.default_rng(0))
NO_STATE: Any = None  # to a type checker
TWO_ORDERS: Any = [0.3, 0.4]
ORDERS: Any = np.array([0.3, 0.4])


def by_recurrence(x, alpha, ar=(), mean=0.0):
    """The errors of ARFIMA(p, alpha, 0), with the coefficients of (1 - z)**alpha one from another."""
    weights = np.cumprod([1.0, *[(k - 1 - alpha) / k for k in range(1, len(x))]])
    u = np.convolve(weights, x - mean)[: len(x)]
    return u - sum(weight * np.append(np.zeros(lag), u[:-lag]) for lag, weight in enumerate(ar, 1))


def test_errors_are_those_of_the_recurrence():
    expected = by_recurrence(SERIES, 0.3, (0.4, -0.2), 2.5)
    with jax.enable_x64(True):
        found = arfima_errors(jnp.asarray(SERIES), 0.3, [0.4, -0.2], 2.5)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)  # rounding of sums of 120


@pytest.mark.slow
def test_the_mean_is_integrated_out():
    # The integral over the mean of the likelihood at each; it is a normal density there, and the sum is exact.
    with jax.enable_x64(True):
        series = jnp.asarray(SERIES[:40])
        options: dict[str, Any] = {"deviation": 1.3}
        means = np.linspace(-60, 66, 4001)
        each = jax.vmap(lambda mean: arfima_nll(series, 0.3, [0.4], mean, **options))(jnp.asarray(means))
        least = float(each.min())
        total = least - math.log(np.sum(np.exp(least - np.asarray(each))) * (means[1] - means[0]))
        assert float(arfima_nll(series, 0.3, [0.4], **options)) == pytest.approx(total, rel=1e-10)


@pytest.mark.slow
def test_the_best_deviation_is_the_one_of_least_likelihood():
    with jax.enable_x64(True):
        series = jnp.asarray(SERIES)
        best = float(arfima_nll(series, 0.3, [0.4]))
        e, c = (by_recurrence(x, 0.3, (0.4,)) for x in (SERIES, np.ones(len(SERIES))))
        deviation = math.sqrt(((e - (e @ c) / (c @ c) * c) ** 2).sum() / (len(SERIES) - 1))
        around = [float(arfima_nll(series, 0.3, [0.4], deviation=deviation * by)) for by in (0.99, 1.0, 1.01)]
    assert around[1] == pytest.approx(best, rel=1e-12)
    assert around[0] > best < around[2]


@pytest.mark.slow
def test_newtons_steps_on_the_likelihood_find_the_order():
    true = 0.3
    with jax.enable_x64(True):
        series = jnp.asarray(5 + arfima(1000, true, np.random.default_rng(1)))
        slope, curve = (jax.jit(made(lambda alpha: arfima_nll(series, alpha))) for made in (jax.grad, jax.hessian))
        alpha = jnp.asarray(0.2)
        for _ in range(6):
            alpha = alpha - slope(alpha) / curve(alpha)
        assert abs(float(slope(alpha))) < 1e-8
        assert abs(float(alpha) - true) < 4 / math.sqrt(float(curve(alpha)))


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "bounds"), [(0.3, None), (1.4, (1.0, 2.0))])
def test_a_forecast_is_what_makes_the_next_errors_vanish(alpha, bounds):
    ar, mean = [0.4, -0.2], 2.5
    with jax.enable_x64(True):
        series = jnp.asarray(SERIES)
        ahead = jax.jit(lambda alpha: arfima_forecast(series, 5, alpha, ar, mean, bounds=bounds))(jnp.asarray(alpha))
        errors = by_recurrence(np.concatenate([series, ahead]), alpha, ar, mean)
    np.testing.assert_allclose(errors[-5:], 0, atol=1e-9)


@pytest.mark.slow
def test_a_level_for_each_series_is_that_of_each():
    series = jnp.asarray(np.random.default_rng(5).standard_normal((4, 4)) + np.arange(4.0)[:, None], jnp.float32)
    levels = series.mean(-1, keepdims=True)
    for function in (
        arfima_errors,
        arfima_nll,
        lambda x, alpha, ar, _: arfima_nll(x, alpha, ar),
        lambda x, *rest: arfima_forecast(x, 3, *rest),
    ):
        found = function(series, 0.3, [0.2], levels)
        each = [function(x, 0.3, [0.2], level[0]) for x, level in zip(series, levels, strict=True)]
        np.testing.assert_allclose(found, np.stack(each), rtol=1e-5, atol=1e-5)  # float32
    across = arfima_errors(series.T, 0.3, [0.2], levels[:, 0], dim=0)
    np.testing.assert_allclose(across.T, arfima_errors(series, 0.3, [0.2], levels), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_forecast_outside_of_jit_compiles_once():
    for _ in range(2):
        arfima_forecast(jnp.asarray(SERIES), 3, 0.3, [0.1])
    with compilations() as count:
        arfima_forecast(jnp.asarray(SERIES), 3, 0.3, [0.1])
    assert count() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("lags", "before"), [(0, 0), (2, 0), (0, 2), (2, 1)])
def test_the_filter_streams(lags, before):
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        core = functional.ARFIMA(lags, before, bounds=(0.0, 1.0))
        params = core.init(param_dtype=jnp.float64)
        params |= {"mean": jnp.asarray(0.7), **({"ar": jnp.array([0.5, -0.3])} if lags else {})}
        params |= {"ma": jnp.array([0.6, 0.2])[:before]} if before else {}
        x = jnp.asarray(rng.standard_normal((2, 50, 3)))
        state = core.initial_state(params, (2, 3))
        _, found = jax.lax.scan(lambda s, x: core.step(params, x, s)[::-1], state, x.swapaxes(0, 1))
        np.testing.assert_allclose(found.swapaxes(0, 1), core(params, x), rtol=0, atol=1e-11)


def test_errors_before_are_divided_out_and_forecast():
    with jax.enable_x64(True):
        series = jnp.asarray(SERIES)
        found = jax.jit(lambda x: arfima_errors(x, 0.3, [0.4], 2.5, ma=[0.6, 0.2]))(series)
        wanted = Filter(SERIES[:, None] - 2.5)(0.3, [0.4], [0.6, 0.2])[:, 0]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
        ahead = jax.jit(lambda x: arfima_forecast(x, 5, 0.3, [0.4], 2.5, ma=[0.6, 0.2]))(series)
        following = Filter(np.append(SERIES, ahead)[:, None] - 2.5)(0.3, [0.4], [0.6, 0.2])[-5:]
        np.testing.assert_allclose(following, 0, rtol=0, atol=1e-11)


def test_a_module_is_fitted_as_a_series_is():
    x = np.random.default_rng(1).standard_normal(len(SERIES))
    model = of_nnx.ARFIMA(1, bounds=(-0.9, 1.0)).fit(SERIES + x, x, likelihood="restricted")
    found = fit_arfima(SERIES + x, x, ar=1, bounds=(-0.9, 1.0), likelihood="restricted")
    assert model.results is not None
    assert model.results.params == pytest.approx(found.params, rel=1e-12)
    assert float(model.alpha) == pytest.approx(found.alpha, rel=1e-5)
    assert float(model.ar[0]) == pytest.approx(found.ar[0], rel=1e-5)
    assert model.results.forecast(3, np.ones(3)).shape == (3,)
    assert nnx.jit(lambda model, x: model(x))(model, jnp.ones((20, 1))).shape == (20, 1)
    fixed = of_nnx.ARFIMA(0, alpha=0.2, learn_alpha=False).fit(jnp.asarray(SERIES), likelihood="exact")
    assert fixed.results is not None
    assert fixed.results.param_names == ("const", "sigma2")


@pytest.mark.slow
def test_features_stream():
    with jax.enable_x64(True):
        core = functional.RoughnessFeatures(2, 3, skip=2)
        x = jnp.asarray(np.random.default_rng(3).standard_normal((4, 30, 2)))
        state = core.initial_state({}, (4, 2))
        _, found = jax.lax.scan(lambda s, x: core.step({}, x, s)[::-1], state, x.swapaxes(0, 1))
        np.testing.assert_allclose(found[:2], math.log(1e-12), rtol=1e-12)
        for t in (2, 10, 29):
            np.testing.assert_allclose(found[t], core({}, x[:, : t + 1]), rtol=0, atol=1e-10)


def test_features_of_noise_are_the_spectral_integral():
    alphas, count = [0.0, 0.4, 0.9], 12
    core = functional.RoughnessFeatures(1, 3, alpha=alphas, skip=256)
    rng = np.random.default_rng(0)
    signals = np.stack([fgn(1024, 0.3, rng) for _ in range(count)])[..., None]
    found = np.asarray(core({}, jnp.asarray(3.0 * signals, jnp.float32)))
    expected = [math.log(9 * energy(alpha, 0.3)) for alpha in alphas]
    # What lies before the first sample is worth less than skip**-1.4 at sample skip.
    assert (np.abs(found.mean(0) - expected) < 4 * found.std(0, ddof=1) / count**0.5 + 4e-3).all()


def waves(n, dt, k):
    return np.cos(2 * np.pi * k * np.arange(n) / n), 2 * np.pi * k / (n * dt)


def test_a_wave_in_a_plane_is_an_eigenfunction():
    with jax.enable_x64(True):
        (one, omega), (other, second) = waves(16, 0.3, 2), waves(12, 0.5, 3)
        field = jnp.asarray(np.stack([one[:, None] * other] * 2, -1))
        core = functional.SpectralFractional([0.7, 1.6], dt=(0.3, 0.5), dim=(-3, -2))
        expected = np.asarray(field) * (omega**2 + second**2) ** (np.array([0.7, 1.6]) / 2)
        np.testing.assert_allclose(core({}, field), expected, rtol=0, atol=1e-11)


MODULES = [
    ("ARFIMA", (2,), {}, (2, 20, 3), (2, 20, 3)),
    ("SpectralFractional", (0.8,), {"learn_alpha": True, "channels": 3, "dim": -2}, (2, 20, 3), (2, 20, 3)),
    ("RoughnessFeatures", (3, 2), {"learn_alpha": True}, (2, 20, 3), (2, 6)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments", "options", "shape", "result"), MODULES, ids=[row[0] for row in MODULES])
def test_modules_of_both_kinds_are_their_core(name, arguments, options, shape, result):
    x = jnp.asarray(np.random.default_rng(4).standard_normal(shape), jnp.float32)
    core = getattr(functional, name)(*arguments, **options)
    module, shell = (getattr(kind, name)(*arguments, **options) for kind in (of_nnx, of_linen))
    params = core.init()
    assert nnx.to_pure_dict(nnx.state(module)).keys() == params.keys()
    variables = shell.init(jax.random.key(0), x)
    jax.tree.map(np.testing.assert_array_equal, dict(variables["params"]), params)
    found = core(params, x)
    assert found.shape == result
    np.testing.assert_allclose(module(x), found, rtol=1e-6)
    np.testing.assert_allclose(shell.apply(variables, x), found, rtol=1e-6)
    np.testing.assert_allclose(module.alpha, core.alpha_of(params), rtol=1e-6)
    np.testing.assert_allclose(shell.alpha_of(variables), core.alpha_of(params), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: functional.ARFIMA(-1), ValueError, r"ARFIMA\(ar=-1\): needs ar >= 0"),
        (lambda: functional.ARFIMA(alpha=TWO_ORDERS), ValueError, r"ARFIMA\(alpha=.0.3, 0.4.\): needs one order"),
        (lambda: functional.ARFIMA(alpha=2.5), ValueError, "alpha=2.5"),
        (lambda: arfima_errors(jnp.arange(5), 0.3), TypeError, "dtype int32"),
        (
            lambda: functional.ARFIMA(alpha=functional.ProbabilisticAlpha(0.3)).fit(SERIES),
            ValueError,
            "alpha is random; pass an Alpha",
        ),
        (lambda: functional.ARFIMA().step({}, jnp.ones(2), NO_STATE), TypeError, "pass what initial_state"),
        (lambda: arfima_nll(jnp.ones(1), 0.3), ValueError, "two samples or more"),
        (lambda: arfima_nll(jnp.ones((3, 3)), 0.3, mean=jnp.ones(3)), ValueError, r"ARFIMA\(mean of shape \(3,\)"),
        (lambda: arfima_errors(jnp.ones(3), 0.3, mean=jnp.ones((2, 1))), ValueError, r"ARFIMA\(mean of shape \(2, 1"),
        (lambda: arfima_nll(jnp.ones(4), 0.3, jnp.ones((2, 3))), ValueError, r"ARFIMA\(ar of shape \(2, 3\)"),
        (lambda: arfima_forecast(jnp.ones(4), 2, 0.3, jnp.ones((2, 3))), ValueError, r"ARFIMA\(ar of shape \(2, 3\)"),
        (lambda: arfima_nll(jnp.ones(4), 0.3, deviation=-1.0), ValueError, r"arfima_nll\(deviation=-1.0\): needs dev"),
        (lambda: arfima_nll(jnp.ones((2, 4)), ORDERS, mean=0.0), ValueError, r"arfima_nll\(alpha of shape \(2,\)"),
        (lambda: arfima_errors(jnp.ones((2, 4)), ORDERS), ValueError, r"arfima_errors\(alpha of shape \(2,\)"),
        (lambda: arfima_forecast(jnp.ones((2, 4)), 2, ORDERS), ValueError, r"arfima_forecast\(alpha of shape \(2,\)"),
        (lambda: functional.SpectralFractional(0.5, "weyl"), ValueError, "periodic_weyl"),
        (lambda: functional.SpectralFractional(0.5, "periodic_riesz", dim=(-2, -1)), ValueError, "one to 1 axes"),
        (lambda: functional.SpectralFractional(0.5, dim=(-2, -1), dt=(1, 1, 1)), ValueError, "one spacing"),
        (lambda: functional.SpectralFractional(2.5, learn_alpha=True), ValueError, "alpha=2.5"),
        (lambda: functional.SpectralFractional([0.5, 1.5], channels=3), ValueError, "one order per channel"),
        (
            lambda: functional.SpectralFractional(0.5, channels=3, dim=-2)({}, jnp.zeros((2, 8, 4))),
            ValueError,
            "3 channels",
        ),
        (lambda: functional.RoughnessFeatures(1, skip=-1), ValueError, "skip=-1"),
        (lambda: functional.RoughnessFeatures(1, floor=1e-50), ValueError, "floor=1e-50"),
        (lambda: functional.RoughnessFeatures(1, alpha=1.5), ValueError, r"RoughnessFeatures\(alpha=1.5\)"),
        (lambda: functional.RoughnessFeatures(1, alpha=0.0, learn_alpha=True), ValueError, "beside whole numbers"),
        (lambda: functional.RoughnessFeatures(1).step({}, jnp.ones(1), NO_STATE), TypeError, "pass what initial_state"),
    ],
)
def test_what_cannot_be_is_told(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_a_field_of_several_axes_must_say_which_are_space():
    fields = jnp.ones((2, 8, 3))
    each: list[dict[str, Any]] = [{}, {"channels": 3}]
    for options in each:
        core = functional.SpectralFractional(0.5, **options)
        with pytest.raises(ValueError, match=r"^SpectralFractional\(dim=None, x of shape \(2, 8, 3\)\): needs dim, "):
            core({}, fields)
        np.testing.assert_array_equal(
            core({}, fields[0]), functional.SpectralFractional(0.5, dim=-2, **options)({}, fields[0])
        )
    assert functional.SpectralFractional(0.5, "periodic_riesz")({}, fields).shape == fields.shape
    with pytest.raises(ValueError, match=r"needs dim, because FractionalLaplacian takes one to 2 of 2 axes"):
        FractionalLaplacian(0.5)(fields[0])
