"""Fits of models: what they find, how sure they are, what they remark, and what they refuse."""

import math
import re
import warnings
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import optimize, stats

from hpfracc_nn.models import Experiment, compare, fit
from hpfracc_nn.models.impedance import CIRCUITS, Capacitor, ConstantPhase, Resistor, Warburg
from hpfracc_nn.models.networks import POSITIVE
from hpfracc_nn.models.rheology import (
    MATERIALS,
    Dashpot,
    FractionalJeffreys,
    FractionalKelvinVoigt,
    FractionalMaxwell,
    FractionalZener,
    KelvinVoigt,
    Maxwell,
    Spring,
    SpringPot,
    Zener,
    prony,
)
from tests.models_cases import PARAMETERS

GEL = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2)
T = np.geomspace(0.01, 1000, 60)
OMEGA = np.geomspace(0.01, 100, 30)


def noisy(values, noise=0.03, seed=0):
    return values * np.exp(noise * np.random.default_rng(seed).standard_normal(np.shape(values)))


def step(model=GEL, seed=0, **statement):
    return Experiment.relaxation(T, noisy(model.relaxation(T), seed=seed), **statement)


def sweep(model=GEL, seed=1, **statement):
    modulus = model.complex_modulus(OMEGA)
    return Experiment.oscillation(OMEGA, *noisy(np.stack([modulus.real, modulus.imag]), seed=seed), **statement)


def quiet(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return fit(*arguments, **options)


@pytest.mark.parametrize("kind", ["relaxation", "creep", "oscillation"])
@pytest.mark.parametrize("name", MATERIALS)
def test_predictions_are_the_models_responses_and_their_slopes_are_right(name, kind):
    model = MATERIALS[name]().named()
    values = PARAMETERS[MATERIALS[name]]
    response = {"oscillation": "complex_modulus"}.get(kind, kind)
    experiment = {
        "relaxation": Experiment.relaxation(T, T, deviation=1.0),
        "creep": Experiment.creep(T, T, deviation=1.0),
        "oscillation": Experiment.oscillation(T, T, T, deviation=1.0),
    }[kind]
    found, jacobian = experiment.predictions(model.network, values)
    slopes = jacobian(tuple(values))
    expected = getattr(model.at(**values), response)(T)
    expected = np.concatenate([expected.real, expected.imag]) if kind == "oscillation" else expected
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12 * np.abs(expected).max())
    for place, (key, value) in enumerate(values.items()):
        high, low = (experiment.predictions(model.network, values | {key: value + h})[0] for h in (1e-5, -1e-5))
        difference = (high - low) / 2e-5
        size = np.abs(difference).max() + np.abs(expected).max()
        np.testing.assert_allclose(slopes[:, place], difference, rtol=1e-6, atol=1e-9 * size)


@pytest.mark.parametrize("name", CIRCUITS)
def test_slopes_of_circuits_are_right(name):
    network, values = CIRCUITS[name]().named().network, PARAMETERS[CIRCUITS[name]]
    network = CIRCUITS[name](**dict.fromkeys(values)).network  # the order of diffusion has a value else
    experiment = Experiment.impedance(OMEGA, OMEGA + 1j)
    _, jacobian = experiment.predictions(network, values)
    slopes = jacobian(tuple(values))
    for place, (key, value) in enumerate(values.items()):
        high, low = (experiment.predictions(network, values | {key: value + h})[0] for h in (1e-6, -1e-6))
        size = np.abs(slopes[:, place]).max() + np.abs(high).max()
        np.testing.assert_allclose(slopes[:, place], (high - low) / 2e-6, rtol=1e-6, atol=1e-8 * size)


@pytest.mark.parametrize(
    "model",
    [
        GEL,
        SpringPot(V=3, alpha=0.4),
        FractionalZener(K=1, V=2, alpha=0.7, G=9, beta=0.1),
        Maxwell(eta=3000, G=4),
        Zener(K=1, eta=20, G=9),
        prony([(2, 1), (1, 100)], equilibrium=0.5),
    ],
    ids=lambda model: model.label,
)
def test_exact_data_give_the_parameters_back(model):
    unknown = prony(2) if "MaxwellMode" in model.label else type(model)()
    found = quiet(unknown, Experiment.relaxation(T, model.relaxation(T)))
    truth = sorted(value for _, value in model._slots())
    np.testing.assert_allclose(sorted(found.values), truth, rtol=1e-5)
    assert found.starts[1] >= 1


def test_estimates_are_those_of_another_least_squares():
    data = step()

    def residuals(point):
        V, G = np.exp(point[[0, 2]])
        return np.log(FractionalMaxwell(V, point[1], G, point[3]).relaxation(T) / data.observed[0])

    other = optimize.least_squares(residuals, [2, 0.7, 2, 0.3], xtol=1e-12, ftol=1e-12, gtol=1e-12)
    found = fit(FractionalMaxwell, data)
    np.testing.assert_allclose(
        found.values, [*np.exp(other.x[:1]), other.x[1], np.exp(other.x[2]), other.x[3]], rtol=1e-6
    )
    assert found.squares == pytest.approx(2 * other.cost, rel=1e-9)
    covariance = np.linalg.inv(other.jac.T @ other.jac) * 2 * other.cost / 56
    errors = np.sqrt(np.diag(covariance)) * [found.values[0], 1, found.values[2], 1]
    np.testing.assert_allclose(list(found.standard_errors.values()), errors, rtol=1e-4)  # differences there


def test_profile_intervals_of_a_linear_model_are_students():
    """V of a spring-pot with a known order is the mean of logarithms."""
    data = step(SpringPot(V=3, alpha=0.4))
    found = fit(SpringPot(alpha=0.4), data)
    logs = np.log(data.observed[0] / SpringPot(V=1, alpha=0.4).relaxation(T))
    half = stats.t(59).ppf(0.975) * logs.std(ddof=1) / np.sqrt(60)
    low, high = found.intervals["V"]
    assert math.log(found.estimates["V"]) == pytest.approx(logs.mean(), rel=1e-9)
    assert (math.log(low), math.log(high)) == pytest.approx((logs.mean() - half, logs.mean() + half), rel=1e-3)
    assert found.profile_intervals(0.5)["V"][0] > low


def test_the_ends_of_a_profile_interval_have_the_sum_of_squares_that_they_should():
    found = fit(FractionalMaxwell, step())
    variance = found.squares / found.freedom
    for name, ends in found.intervals.items():
        place = found.names.index(name)
        for end in ends:
            coordinate = end if name in ("alpha", "beta") else math.log(end)
            _, squares = found._with(place, coordinate, found.point)
            assert (squares - found.squares) / variance == pytest.approx(stats.t(56).ppf(0.975) ** 2, rel=5e-3)


def test_an_interval_of_what_the_data_leave_open_has_no_ends():
    found = quiet(KelvinVoigt, step(SpringPot(V=3, alpha=0.4), noise=0.03))
    assert found.intervals["eta"] == (0, math.inf)
    low, high = found.intervals["G"]
    half = stats.norm.ppf(0.975) * 0.03 / math.sqrt(60)
    assert (math.log(low), math.log(high)) == pytest.approx(
        (math.log(found.model.G) - half, math.log(found.model.G) + half)
    )
    # A mode too many: its strength may be nothing, and a mode of no strength may have any time
    found = quiet(prony(3), step(prony([(2, 1), (1, 100)], equilibrium=0.5), noise=0.03))
    for low, high in found.intervals.values():
        assert low == 0 or low > 1e-6
        assert high == math.inf or high < 1e6


def test_a_joint_fit_uses_all_data():
    alone, joint = fit(FractionalMaxwell, step()), fit(FractionalMaxwell, [step(), sweep()])
    assert joint.observations == 120
    errors = np.array(list(joint.standard_errors.values())) / list(alone.standard_errors.values())
    assert (errors < 0.8).all()
    assert [each.shape for each in joint.residuals] == [(1, 60), (2, 30)]
    creep = Experiment.creep(T, noisy(GEL.creep(T), seed=2))
    assert fit(FractionalMaxwell, [step(), sweep(), creep]).estimates["alpha"] == pytest.approx(0.8, abs=0.01)


def test_weights_are_one_over_the_standard_deviation():
    """A straight line through weighted points: J(t) = 1 / G of a spring."""
    compliance, deviation = np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.2, 1.0])
    found = quiet(Spring, Experiment.creep([1.0, 2.0, 3.0], compliance, deviation=deviation))
    weights = deviation**-2
    mean = (weights * compliance).sum() / weights.sum()
    assert 1 / found.estimates["G"] == pytest.approx(mean, rel=1e-7)
    error = weights.sum() ** -0.5
    assert found.standard_errors["G"] == pytest.approx(error / mean**2, rel=1e-6)
    assert any("times the stated noise" in note for note in found.notes)


def test_data_with_deviations_may_have_any_sign():
    data = Experiment.relaxation([1.0, 2.0, 3.0], [0.1, -0.1, 0.3], deviation=0.2)
    assert np.isfinite(quiet(Spring, data).values).all()


def test_stated_noise_says_whether_a_model_fits():
    assert fit(FractionalMaxwell, step(noise=0.03)).notes == ()
    with pytest.warns(UserWarning, match="times the stated noise: the model does not describe the data"):
        wrong = fit(FractionalMaxwell(beta=0), step(noise=0.03))
    assert wrong.deviation > 2
    with pytest.warns(UserWarning, match="the model misses a trend"):
        fit(FractionalMaxwell(beta=0), step())


def test_what_the_data_do_not_determine_is_said():
    late = Experiment.relaxation(T, noisy(SpringPot(V=3, alpha=0.4).relaxation(T)))
    found = quiet(FractionalKelvinVoigt, late)
    assert any("do not determine V" in note for note in found.notes)
    assert math.isnan(found.standard_errors["V"])
    with pytest.warns(UserWarning, match="beta is at its bound 0"):
        found = fit(FractionalMaxwell, Experiment.relaxation(T, noisy(Maxwell(eta=3000, G=4).relaxation(T), 1e-3, 3)))
    low, high = found.intervals["beta"]
    assert 0 == low < high < 1


def test_the_pair_is_ordered_and_given_values_stay():
    for seed in range(3):
        found = fit(FractionalMaxwell, step(seed=seed))
        assert found.estimates["alpha"] > found.estimates["beta"]
        assert found.model == FractionalMaxwell(**found.estimates)
    held = quiet(FractionalMaxwell(beta=0.25), step())
    assert held.names == ("V", "alpha", "G")
    assert held.model.beta == 0.25
    tied = fit(SpringPot("V", 0.8) - SpringPot("G", "b"), step())
    assert tied.names == ("V", "G", "b")


def test_starts_and_bounds():
    found = fit(FractionalMaxwell, step(), start={"V": 9.0, "alpha": 0.75}, bounds={"alpha": (0.6, 1.0)}, starts=1)
    assert found.starts == (2, 2)
    bounded = quiet(FractionalMaxwell, step(), bounds={"alpha": (0.85, 1.0)})
    assert bounded.estimates["alpha"] == 0.85


@pytest.mark.parametrize(
    "bounds", [{"beta": (0.5, 1.0)}, {"V": (1.0, 7.0)}, {"alpha": (0.0, 0.5)}, {"G": (2.0, 100.0)}]
)
def test_the_pair_is_not_exchanged_across_bounds(bounds):
    """Either order of the two spring-pots describes the data; the bounds allow one, the last ones both."""
    found = quiet(FractionalMaxwell, Experiment.relaxation(T, GEL.relaxation(T)), bounds=bounds)
    assert found.deviation < 1e-6
    truth = dict(GEL._slots())
    swapped = dict(zip(truth, [truth[name] for name in ("G", "beta", "V", "alpha")], strict=True))
    np.testing.assert_allclose(found.values, list((truth if "G" in bounds else swapped).values()), rtol=1e-4)
    for name, (low, high) in bounds.items():
        assert low <= found.estimates[name] <= high


def test_intervals_end_at_the_bounds_that_were_passed():
    found = quiet(FractionalMaxwell, step(noise=0.03), bounds={"V": (9.9, 10.1)})
    assert found.intervals["V"] == pytest.approx((9.9, 10.1))
    found = quiet(FractionalMaxwell, step(noise=0.03), bounds={"V": (12, 13)})
    assert any("V is at its bound 12: its standard error" in note for note in found.notes)
    assert not any("do not determine V" in note for note in found.notes)
    low, high = found.intervals["V"]
    assert low == pytest.approx(12)
    assert 12 < high <= 13 * (1 + 1e-12)
    # where the data leave it open too
    found = quiet(KelvinVoigt, step(SpringPot(V=3, alpha=0.4)), bounds={"eta": (1, 100)})
    assert found.intervals["eta"] == pytest.approx((1, 100))
    assert any("do not determine eta" in note for note in found.notes)


def test_residuals_likelihood_and_criteria():
    found = fit(FractionalMaxwell, step())
    (residuals,) = found.residuals
    np.testing.assert_allclose(residuals[0], np.log(step().observed[0] / found.model.relaxation(T)), atol=1e-10)
    assert found.squares == pytest.approx((residuals**2).sum())
    n, variance = 60, found.squares / 60
    expected = stats.norm(0, np.sqrt(variance)).logpdf(residuals).sum()
    assert found.log_likelihood == pytest.approx(expected)
    assert found.aic == pytest.approx(2 * 5 - 2 * expected)
    assert found.bic == pytest.approx(np.log(n) * 5 - 2 * expected)
    stated = fit(FractionalMaxwell, step(noise=0.03))
    (residuals,) = stated.residuals
    assert stated.log_likelihood == pytest.approx(stats.norm(0, 0.03).logpdf(0.03 * residuals).sum())
    assert stated.aic == pytest.approx(2 * 4 - 2 * stated.log_likelihood)


@pytest.mark.slow
def test_bands_hold_the_curve_as_often_as_they_say():
    x = np.geomspace(0.01, 1000, 5)
    inside = np.zeros((2, 5))
    for seed in range(60):
        found = fit(FractionalMaxwell, step(seed=seed), starts=1)
        band = found.predict("relaxation", x, level=0.9)
        inside[0] += (band.low <= GEL.relaxation(x)) & (GEL.relaxation(x) <= band.high)
        band, exact = found.predict("oscillation", x, level=0.9), GEL.complex_modulus(x)
        inside[1] += (band.low.imag <= exact.imag) & (exact.imag <= band.high.imag)
    low, high = stats.binom.ppf([5e-5, 1 - 5e-5], 60, 0.9)
    assert ((inside >= low) & (inside <= high)).all()


@pytest.mark.slow
def test_many_draws_have_no_bias_and_honest_intervals(load):
    """The benchmark's acceptance at fewer draws; 200 are in benchmarks/results/models-recovery.md."""
    recovery = load("models_recovery")
    table = recovery.Table("recovery", "", {"model": ("", "")})
    for name in ("FractionalMaxwell", "FractionalZener, beta=0", "FractionalKelvinVoigt"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            recovery.recover(name, recovery.CASES[name], 30, table)
    assert len(table.records) == 12
    low, high = stats.binom.ppf([5e-4, 1 - 5e-4], 30, 0.95)
    for row in table.records:
        assert abs(row["bias"]) < 4  # standard errors of the mean; one of 12 is above 3 in 3 % of all runs
        assert low <= row["covered"] <= high
        assert row["chosen"] >= 0.9


def test_the_band_of_what_the_data_leave_open_is_infinite():
    """Relaxation says nothing of a dashpot in parallel, and creep depends on it."""
    truth = FractionalJeffreys(eta=2, V=10, alpha=0.8, G=5, beta=0.1)
    found = quiet(FractionalJeffreys, step(truth, noise=0.03))
    assert math.isnan(found.standard_errors["eta"])
    band = found.predict("creep", [1.0, 10.0])
    np.testing.assert_array_equal(band.low, 0)
    np.testing.assert_array_equal(band.high, np.inf)
    band = found.predict("relaxation", T)
    assert (band.high < 1.1 * band.low).all()
    band = found.predict("oscillation", OMEGA)  # the storage modulus has no part of the dashpot, the loss has
    assert (band.high.real < 1.2 * band.low.real).all()
    assert (band.low.imag == 0).all()
    assert np.isposinf(band.high.imag).all()


def test_the_band_is_that_of_the_full_covariance_where_parameters_are_open():
    """V, alpha and G, beta of a Zener model of a spring-pot are not told from one another; the curve is known."""
    t = np.geomspace(0.01, 100, 40)
    data = Experiment.relaxation(t, noisy(SpringPot(V=3, alpha=0.4).relaxation(t), seed=2), noise=0.03)
    found = quiet(FractionalZener, data)
    assert np.isnan(list(found.standard_errors.values())).any()
    band = found.predict("relaxation", t)
    jacobian = found._problem(found.point)[1]()
    scale = np.linalg.norm(jacobian, axis=0)
    left = np.linalg.svd(jacobian / np.where(scale > 0, scale, 1.0), full_matrices=False)
    leverage = np.sqrt((left[0][:, left[1] > 1e-7 * left[1][0]] ** 2).sum(1))
    half = 0.03 * stats.norm.ppf(0.975) * leverage
    np.testing.assert_allclose(np.log(band.high / band.value), half, rtol=1e-3)
    np.testing.assert_allclose(np.log(band.value / band.low), half, rtol=1e-3)


def test_extrapolation_is_the_error_over_decades_that_were_hidden():
    right, wrong = fit(FractionalMaxwell, step()), quiet(SpringPot, step())
    assert right.extrapolation(1) < 0.1 < 0.3 < wrong.extrapolation(1)
    late = T > 100
    early = fit(FractionalMaxwell, step().part(~late))
    missed = np.log(step().observed[0] / early.model.relaxation(T))[late]
    assert right.extrapolation(1) == pytest.approx(np.sqrt((missed**2).mean()), rel=1e-3)
    with pytest.raises(ValueError, match=r"needs more than 4 numbers before the hidden decades"):
        right.extrapolation(5)


def test_models_are_compared():
    table = compare([Maxwell, SpringPot, FractionalMaxwell, FractionalMaxwell(beta=0)], step())
    assert table.best.fitted == FractionalMaxwell().named()
    assert table.rows[0].bic == 0
    assert [row.bic for row in table.rows] == sorted(row.bic for row in table.rows)
    assert sum(row.weight for row in table.rows) == pytest.approx(1)
    text = table.table()
    assert "FractionalMaxwell(beta=0)" in text
    assert "last decade" in text


@pytest.mark.parametrize(("model", "data"), [(Spring, sweep()), (Dashpot, step())], ids=["Spring", "Dashpot"])
def test_a_model_that_cannot_be_fitted_has_a_row_that_says_why(model, data):
    with pytest.raises(ValueError, match="needs a model that has G"):
        fit(model, data)
    table = compare([model, Maxwell, FractionalMaxwell], data)
    assert [each.fitted.label for each in table.fits] == ["FractionalMaxwell", "Maxwell"]
    assert [row.model for row in table.rows] == ["FractionalMaxwell", "Maxwell", model.__name__]
    assert sum(row.weight for row in table.rows[:2]) == pytest.approx(1)
    assert table.rows[0].failure == table.rows[1].failure == ""
    assert "needs a model that has G" in table.rows[2].failure
    assert math.isnan(table.rows[2].bic)
    assert "needs a model that has G" in table.table().splitlines()[-1]
    with pytest.raises(RuntimeError, match=r"compare: no model could be fitted[^$]*needs a model that has G"):
        compare([model], data)


def test_a_profile_passes_where_predictions_are_not_finite():
    """A storage modulus taken for a relaxation: no member of the model rises, and profiles lead to its limits."""
    found = quiet(FractionalMaxwell, Experiment.relaxation(OMEGA, GEL.complex_modulus(OMEGA).real))
    for (low, high), value in zip(found.intervals.values(), found.values, strict=True):
        assert low <= value * (1 + 1e-12)
        assert value <= high * (1 + 1e-12)


def test_circuits_are_fitted():
    omega = np.geomspace(0.01, 1e5, 60)
    cell = Resistor(R=10) - (Resistor(R=100) | ConstantPhase(Q=1e-4, alpha=0.85)) - Warburg(sigma=5)
    z = cell.impedance(omega)
    rng = np.random.default_rng(0)
    data = Experiment.impedance(
        omega[::-1],
        (z + 0.005 * np.abs(z) * (rng.standard_normal(60) + 1j * rng.standard_normal(60)))[::-1],
        noise=0.005,
    )
    found = fit(Resistor() - (Resistor() | ConstantPhase()) - Warburg(), data)
    assert found.names == ("R_1", "R_2", "Q", "alpha", "sigma")
    for value, error, truth in zip(found.values, found.standard_errors.values(), (10, 100, 1e-4, 0.85, 5), strict=True):
        assert abs(value - truth) < 4 * error
    others = compare([found.fitted, Resistor() - (Resistor() | Capacitor()) - Warburg()], data)
    assert others.rows[1].bic > 1000
    # Randles' circuit, with diffusion beside the double layer
    randles = Resistor(R=10) - (ConstantPhase(Q=1e-4, alpha=0.85) | (Resistor(R=100) - Warburg(sigma=5)))
    exact = Experiment.impedance(omega, randles.impedance(omega))
    found = fit(Resistor() - (ConstantPhase() | (Resistor() - Warburg())), exact)
    np.testing.assert_allclose(found.values, [10, 1e-4, 0.85, 100, 5], rtol=1e-5)


def test_a_search_may_pass_orders_at_which_the_response_is_zero():
    """At alpha = 1 a spring-pot is a dashpot, which has no G(t); a first value may be there."""
    G = noisy(SpringPot(V=3, alpha=0.97).relaxation(T), 0.1)
    found = quiet(SpringPot, Experiment.relaxation(T, G), start={"alpha": 1.0, "V": 1.0})
    assert 0.9 < found.estimates["alpha"] < 1


def test_an_exact_fit_has_intervals_without_width():
    found = quiet(Resistor(), Experiment.impedance(OMEGA, np.full(30, 2.0 + 0j)))
    assert found.intervals["R"] == pytest.approx((2.0, 2.0), rel=1e-6)
    assert np.isfinite(found.bic)


def test_an_impedance_of_the_other_sign_is_remarked():
    omega = np.geomspace(0.1, 1e3, 30)
    truth = Resistor(R=10) - (Resistor(R=100) | ConstantPhase(Q=1e-2, alpha=0.8))
    Z = noisy(truth.impedance(omega), 0.01)
    unknown = Resistor() - (Resistor() | ConstantPhase())
    turned = quiet(unknown, Experiment.impedance(omega, np.conj(Z), name="cell"))
    assert re.search(r"most imaginary parts of the cell are positive.*np\.conj", "\n".join(turned.notes))
    assert not any("inductor" in each for each in quiet(unknown, Experiment.impedance(omega, Z)).notes)


def test_figures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    found = fit(FractionalMaxwell, [step(), sweep()])
    figure = found.plot()
    assert len(figure.axes) == 4
    figure.savefig(tmp_path / "fit.png")
    compare([Maxwell, FractionalMaxwell], step(noise=0.03)).plot().savefig(tmp_path / "models.png")
    omega = np.geomspace(0.1, 1000, 20)
    z = (Resistor(R=1) - Capacitor(C=0.1)).impedance(omega)
    quiet(Resistor() - ConstantPhase(), Experiment.impedance(omega, z)).plot().savefig(tmp_path / "z.png")
    positive = Experiment.creep([1.0, 2.0, 4.0], [1.0, -0.1, 1.0], deviation=0.5)
    quiet(Spring, positive).plot().savefig(tmp_path / "signs.png")


def test_a_sweep_may_be_a_complex_modulus():
    modulus = GEL.complex_modulus(OMEGA)
    one = Experiment.oscillation(OMEGA, np.ma.masked_array(modulus, OMEGA > 50), noise=0.03)
    other = Experiment.oscillation(OMEGA[OMEGA <= 50], modulus.real[OMEGA <= 50], modulus.imag[OMEGA <= 50])
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.observed, other.observed)


def test_a_missing_matplotlib_is_named_with_its_extra(monkeypatch):
    found, absent = quiet(Maxwell, step()), ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=absent))
    with pytest.raises(ModuleNotFoundError, match=r"plot\(\): needs the package 'matplotlib'; pip install .*\[plot\]'"):
        found.plot()


REFUSALS = [
    (lambda: Experiment.relaxation([1.0], [1.0]), ValueError, "needs at least two"),
    (lambda: Experiment.relaxation([1.0, 1.0], [1.0, 2.0]), ValueError, r"t\[1\]=1 follows t\[0\]=1; sort them"),
    (lambda: Experiment.creep([2.0, 1.0], [1.0, 2.0]), ValueError, r"needs t to increase"),
    (lambda: Experiment.creep([0.0, 1.0], [1.0, 2.0]), ValueError, r"needs t > 0; t\[0\]=0; leave it out"),
    (
        lambda: Experiment.relaxation([1.0, 2.0], [1.0, 0.0]),
        ValueError,
        r"G=0 at t=2; leave it out, or pass deviation=",
    ),
    (lambda: Experiment.oscillation([1.0, 2.0], [1, 1], [1, -1]), ValueError, r"G''=-1 at omega=2"),
    (lambda: Experiment.oscillation([1.0, 2.0], [1, 1]), ValueError, r"needs both moduli; pass loss, or the complex"),
    (lambda: Experiment.oscillation([1.0, 2.0], [1 + 1j, 1 - 1j]), ValueError, r"G''=-1 at omega=2"),
    (lambda: Experiment.relaxation([1.0, 2.0], [1.0, math.nan]), ValueError, r"G\[1\]=nan\): needs finite"),
    (lambda: Experiment.relaxation([1.0, 2.0], [1.0]), ValueError, "needs a value for each t"),
    (lambda: Experiment.relaxation([[1.0, 2.0]], [1.0]), ValueError, "needs one axis"),
    (lambda: Experiment.relaxation([1.0, 2.0], [1, 1], noise=0), ValueError, "needs a finite noise > 0"),
    (lambda: Experiment.relaxation([1.0, 2.0], [1, 1], noise=1, deviation=1), ValueError, "needs one of the two"),
    (
        lambda: Experiment.relaxation([1.0, 2.0], [1, 1], deviation=[1, 2, 3]),
        ValueError,
        "needs one number, or the shape",
    ),
    (lambda: Experiment.relaxation([1.0, 2.0], [1, 1], deviation=-1), ValueError, "needs positive standard deviations"),
    (lambda: fit(GEL, step()), ValueError, "needs an unknown parameter"),
    (lambda: fit(cast(Any, "maxwell"), step()), TypeError, "needs a model"),
    (lambda: fit(Maxwell, cast(Any, T)), TypeError, "needs experiments"),
    (lambda: fit(Maxwell, []), TypeError, "needs experiments"),
    (lambda: fit(Resistor, step()), ValueError, "needs a model of rheology"),
    (lambda: fit(Maxwell, [step(), sweep(noise=0.03)]), ValueError, "needs the noise of all experiments, or of none"),
    (
        lambda: fit(FractionalMaxwell, Experiment.creep([1.0, 2.0], [1, 2])),
        ValueError,
        "needs more than the 4 parameters",
    ),
    (lambda: fit(Maxwell, step(), bounds={"V": (1, 2)}), ValueError, "needs the name of an unknown parameter: eta, G"),
    (lambda: fit(Maxwell, step(), bounds={"G": (2, 1)}), ValueError, "needs 0 < low < high"),
    (lambda: fit(SpringPot, step(), bounds={"alpha": (0, 2)}), ValueError, "needs 0 <= low < high <= 1"),
    (lambda: fit(Maxwell, step(), start={"V": 1}), ValueError, "needs the name of an unknown parameter"),
    (lambda: fit(Maxwell, step(), level=1.5), ValueError, "needs 0 < level < 1"),
    (lambda: fit(Maxwell, step(), starts=0), ValueError, "needs starts >= 1"),
    (lambda: compare([], step()), ValueError, "needs at least one model"),
    (lambda: compare(SpringPot, step()), TypeError, "needs a list of models"),  # type: ignore[arg-type]
    (lambda: Experiment.impedance(OMEGA, np.where(OMEGA > 1, 0, 1 - 1j)), ValueError, "needs data other than 0"),
    (lambda: quiet(SpringPot, step(), start={"alpha": 3}), ValueError, r"start\['alpha'\]=3\): needs a number from 0"),
    (lambda: quiet(SpringPot, step(), start={"V": "a"}), ValueError, r"start\['V'\]='a'\): needs a finite number > 0"),
    (lambda: quiet(SpringPot(V=np.ones(60)), step()), TypeError, r"V of type ndarray\): needs a number"),
    (lambda: quiet(Maxwell, step()).predict("impedance", T), ValueError, "needs a model of impedance"),
    (lambda: quiet(Maxwell, step()).predict("relaxation", [0.0]), ValueError, "needs t > 0"),
    (lambda: quiet(Maxwell, step()).predict("relaxation", T, level=95), ValueError, "needs 0 < level < 1"),
]


@pytest.mark.parametrize(("call", "error", "text"), REFUSALS)
def test_what_is_wrong_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_roles_are_known():
    assert FractionalZener().roles == {"K": POSITIVE, "V": POSITIVE, "alpha": "order", "G": POSITIVE, "beta": "order"}
