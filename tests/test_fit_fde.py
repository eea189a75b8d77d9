"""Orders and parameters from observations: what is found, how sure, and what is said about it."""

import functools
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("torch")

import torch

from hpfracc_nn import data
from hpfracc_nn.fractional import mittag_leffler
from hpfracc_nn.solvers import Graded, fdeint
from hpfracc_nn.training import fit_fde
from hpfracc_nn.training.fit import least_squares

TIMES = np.linspace(0.1, 4, 40)


def decay(t, y, p):
    return -p["rate"] * y


def fitted(order, rng, *, noise=0.02, times=TIMES, **options):
    observed = data.relaxation(times, order, noise=noise, rng=rng)
    start = torch.ones(1, dtype=torch.float64)
    return fit_fde(decay, times, observed[:, None], start, {"rate": 0.7}, **{"n_steps": 40, **options})


def oscillation(alpha, rate, slope, times=TIMES):
    """Return the solution of D^alpha y = -rate y, y(0) = 1, y'(0) = slope."""
    z = -rate * times**alpha
    return mittag_leffler(z, alpha) + slope * times * mittag_leffler(z, alpha, 2.0)


@pytest.mark.parametrize(
    "alpha", [0.3, pytest.param(0.6, marks=pytest.mark.slow), pytest.param(0.9, marks=pytest.mark.slow)]
)
def test_with_little_noise_the_order_is_found(alpha):
    fit = fitted(alpha, np.random.default_rng(0), noise=2e-3)
    assert fit.estimates["alpha"] == pytest.approx(alpha, abs=4e-3)  # four standard errors at least
    assert fit.estimates["rate"] == pytest.approx(1.0, abs=6e-3)


@pytest.mark.parametrize("scheme", [pytest.param("trapezoid", marks=pytest.mark.slow), "predictor_corrector"])
def test_a_state_may_have_no_axes(scheme):
    observed = data.relaxation(TIMES, 0.6, noise=0.02, rng=np.random.default_rng(0))

    def estimates(shape):
        fit = fit_fde(
            decay,
            TIMES,
            observed,
            lambda p: p["start"].view(shape),
            {"rate": 0.7, "start": 1.0},
            n_steps=40,
            scheme=scheme,
        )
        return fit.values, fit.covariance

    for one, other in zip(estimates(()), estimates((1,)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


@pytest.fixture(scope="module")
def fit():
    return fitted(0.6, np.random.default_rng(1))


def test_with_noise_the_truth_lies_within_a_few_standard_errors(fit):
    assert abs(fit.estimates["alpha"] - 0.6) < 4 * fit.standard_errors["alpha"] < 0.06
    assert fit.deviation == pytest.approx(0.02, rel=0.4)
    low, high = fit.intervals["alpha"]
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 38) * fit.standard_errors["alpha"])


def test_standard_errors_are_those_of_the_exact_model(fit):
    alpha, rate = fit.estimates["alpha"], fit.estimates["rate"]
    step = 1e-5
    jacobian = np.stack(
        [
            (data.relaxation(TIMES, alpha + step, rate=rate) - data.relaxation(TIMES, alpha - step, rate=rate))
            / (2 * step),
            (data.relaxation(TIMES, alpha, rate=rate + step) - data.relaxation(TIMES, alpha, rate=rate - step))
            / (2 * step),
        ],
        axis=1,
    )
    expected = fit.deviation * np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))
    np.testing.assert_allclose([*fit.standard_errors.values()], expected, rtol=5e-3)


def test_an_interval_that_passes_a_bound_is_remarked():
    fit = fitted(0.6, np.random.default_rng(1), bounds=(0.02, 0.61))
    assert fit.intervals["alpha"][0] < fit.estimates["alpha"] < 0.61 < fit.intervals["alpha"][1]
    assert "the interval of alpha passes its bound 0.61: " in fit.summary()
    inside = fitted(0.6, np.random.default_rng(1), bounds=(0.02, 0.7))
    assert inside.intervals == fit.intervals
    assert inside.notes == ()


def test_the_summary_names_everything(fit):
    text = fit.summary()
    for part in ("alpha", "rate", "95 % interval", "residual deviation", "moved by", "doubled to 80"):
        assert part in text


@pytest.mark.slow
def test_the_state_at_the_start_may_be_estimated_and_part_of_it_observed():
    observed = 2.0 * data.relaxation(TIMES, 0.5, rate=1.3, noise=1e-3, rng=np.random.default_rng(0))

    def start(p):
        return torch.stack([p["height"], 0 * p["height"]])

    def field(t, y, p):
        return torch.stack([-p["rate"] * y[0], y[0] - y[1]])

    fit = fit_fde(
        field, TIMES, observed, start, {"rate": 1.0, "height": 1.0}, observe=lambda ys: ys[:, 0], n_steps=40
    )  # fmt: skip
    assert fit.estimates == pytest.approx({"alpha": 0.5, "rate": 1.3, "height": 2.0}, abs=2e-2)


@pytest.mark.parametrize(
    "rate", [1e-9, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (1e-6, 1e-3, 1e6, 1e9))]
)
def test_a_rate_of_any_size_is_measured_alike(rate):
    # In units of its own time, where it is 1, the same numbers are fitted.
    unit = rate ** (-1 / 0.6)
    observed = data.relaxation(TIMES, 0.6, noise=0.02, rng=np.random.default_rng(1))[:, None]
    start = torch.ones(1, dtype=torch.float64)
    one, other = (
        fit_fde(decay, scale * TIMES, observed, start, {"rate": first}, n_steps=40)
        for scale, first in ((1.0, 0.7), (unit, 0.7 * rate))
    )
    # The optimisation ends at a step of 1e-4 standard errors, which are 0.02 to 0.06.
    assert other.estimates["alpha"] == pytest.approx(one.estimates["alpha"], abs=5e-6)
    assert other.standard_errors["alpha"] == pytest.approx(one.standard_errors["alpha"], rel=1e-4)
    assert other.estimates["rate"] * unit ** other.estimates["alpha"] == pytest.approx(one.estimates["rate"], abs=1e-5)


def test_parameters_of_very_different_sizes_are_measured_together():
    times = 1e13 * TIMES
    observed = 3e9 * data.relaxation(times, 0.5, rate=2e-7, noise=1e-3, rng=np.random.default_rng(0))
    fit = fit_fde(
        decay, times, observed[:, None], lambda p: p["height"][None], {"rate": 1e-7, "height": 1e9}, n_steps=40
    )
    for name, true in (("alpha", 0.5), ("rate", 2e-7), ("height", 3e9)):
        assert abs(fit.estimates[name] - true) < 5 * fit.standard_errors[name] + 1e-4 * true


def test_a_parameter_may_begin_at_zero_or_be_zero():
    def forced(t, y, p):
        return p["force"] - p["rate"] * y

    observed = data.relaxation(TIMES, 0.6, noise=1e-3, rng=np.random.default_rng(0))[:, None]
    fit = fit_fde(forced, TIMES, observed, torch.ones(1).double(), {"rate": 0.7, "force": 0.0}, n_steps=40)
    assert abs(fit.estimates["force"]) < 4 * fit.standard_errors["force"] < 0.1


def test_a_process_without_memory_is_fitted_up_to_the_bound():
    for seed in range(4):
        observed = np.exp(-TIMES) + 0.02 * np.random.default_rng(seed).standard_normal(40)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            fit = fit_fde(decay, TIMES, observed[:, None], torch.ones(1).double(), {"rate": 0.7}, alpha=1.0, n_steps=40)
        at_bound = fit.estimates["alpha"] == 1
        assert at_bound == any("alpha is at its bound 1" in str(each.message) for each in said)
        assert at_bound == ("at its bound" in fit.summary())
        assert fit.estimates["alpha"] <= 1
        assert abs(fit.estimates["alpha"] - 1) < 4 * fit.standard_errors["alpha"] < 0.2


@pytest.mark.parametrize(
    ("f", "params", "text"),
    [
        (lambda t, y, p: -(p["a"] + p["b"]) * y, {"a": 0.3, "b": 0.4}, "do not tell 'a' and 'b' from one another"),
        (lambda t, y, p: -p["a"] * y, {"a": 0.3, "b": 0.4}, "tell nothing of 'b'"),
        (lambda t, y, p: -1e9 * p["a"] * p["b"] * y, {"a": 3e-10, "b": 0.4}, "do not tell 'a' and 'b'"),
    ],
    ids=["sum", "unused", "product"],
)
def test_what_the_observations_do_not_determine_is_named(f, params, text):
    observed = data.relaxation(TIMES, 0.5, noise=0.02, rng=np.random.default_rng(0))[:, None]
    with pytest.raises(ValueError, match=rf"fit_fde\(params\): the observations {text}.*; fix"):
        fit_fde(f, TIMES, observed, torch.ones(1).double(), params, n_steps=10)


def test_where_the_observations_tell_nothing_of_a_parameter_is_said():
    # A negative tau grows without end in the fit, and then the solution no longer depends on tau.
    times = np.linspace(0.1, 4, 10)
    observed = data.relaxation(times, 0.8, noise=0.02, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"tell nothing of 'tau' at tau=-.*where the search ended.*other first values"):
        fit_fde(lambda t, y, p: -y / p["tau"], times, observed, torch.ones(()).double(), {"tau": -1.0}, n_steps=30)


def test_a_right_hand_side_without_params_is_shown_the_rule():
    alone: Any = lambda t, y: -y  # noqa: E731
    with pytest.raises(TypeError, match="positional arg") as caught:
        fit_fde(alone, TIMES, TIMES, torch.ones(()).double(), {"rate": 1.0}, n_steps=5)
    assert caught.value.__notes__[0].startswith("fit_fde(f): needs a function of (t, y, params); let it take them all")


def test_values_without_a_solution_are_named():
    def rooted(t, y, p):
        return -p["rate"] * torch.sqrt(y) - 2

    observed = data.relaxation(TIMES, 0.5)[:, None]
    with pytest.raises(RuntimeError, match=r"no solution at the first values alpha=0\.5, rate=5: .*begin") as caught:
        fit_fde(rooted, TIMES, observed, torch.ones(1).double(), {"rate": 5.0}, n_steps=10)
    assert isinstance(caught.value.__cause__, (FloatingPointError, RuntimeError))


def test_a_way_down_through_values_without_a_solution_is_taken_in_shorter_steps():
    # The first step of Gauss and Newton from 0.2 is to 0.2 + (0.8 - 0.008) / 0.12, where the solution blows up at once.
    def growing(t, y, p):
        return p["root"] ** 3 * y**2

    def f(t, y):
        return 0.8 * y**2

    start, times = torch.ones(1).double(), np.linspace(0.01, 0.3, 30)
    at = np.concatenate([[0], times])
    exact = fdeint(f, start, at, 0.7, scheme="trapezoid", mesh="graded", n_steps=400)[1:].numpy()
    noise = 3e-3 * np.random.default_rng(0).standard_normal(exact.shape)
    fit = fit_fde(growing, times, exact + noise, start, {"root": 0.2}, n_steps=40)
    for name, true in (("alpha", 0.7), ("root", 0.8 ** (1 / 3))):
        assert abs(fit.estimates[name] - true) < 4 * fit.standard_errors[name] < 0.1


def test_too_few_steps_are_noticed():
    with pytest.warns(UserWarning, match=r"alpha moved by .* raise n_steps"):
        fitted(
            0.3, None, noise=0.0, n_steps=8, mesh="uniform", times=np.linspace(0.5, 4, 8), scheme="rectangle", t0=0.0
        )


def test_a_network_is_no_measurement():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(1, 1).double()
            torch.nn.init.zeros_(self.net.weight)
            torch.nn.init.zeros_(self.net.bias)

        def forward(self, t, y, p):
            return self.net(y) - p["rate"] * y

    observed = data.relaxation(TIMES, 0.5, noise=0.02, rng=np.random.default_rng(0))[:, None]
    with pytest.warns(UserWarning, match="hyper-parameter and no measurement"):
        fit_fde(Network(), TIMES, observed, torch.ones(1).double(), {"rate": 0.7}, n_steps=10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bounds": (0.5, 1.5)}, r"needs 0 < low < high <= 1"),
        ({"bounds": (0.6, 1.0)}, r"between the bounds"),
        ({"bounds": (0.02, 1.5)}, r"above 1 pass dy0="),
        ({"dy0": torch.ones(1)}, r"first value between the bounds \[\[1\.02, 1\.98\]\]"),
        ({"dy0": torch.ones(1), "bounds": (0.02, 1.98)}, r"one side of 1"),
        ({"dy0": torch.zeros(1), "bounds": (0.02, 2)}, r"needs 0 < low < high < 2"),
        ({"alpha": [0.5, 0.7]}, r"alpha of shape \(2,\)"),
        ({"times": TIMES[::-1]}, r"times must increase; ts\[1\]=3\.9 follows ts\[0\]=4"),
        ({"times": TIMES, "t0": 0.15}, r"t0=0\.15\): .*ts\[0\]=0\.1"),
        ({"tolerance": 0.0}, r"tolerance=0\.0"),
        ({"iterations": 0}, r"iterations >= 1"),
        ({"level": 95}, r"level=95\)"),
        ({"n_steps": 0}, r"n_steps >= 1"),
    ],
)
def test_a_fit_refuses_with_the_rule(options, text):
    with pytest.raises(ValueError, match=text):
        fitted(0.5, None, noise=0.0, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": []}, r"alpha=\[\]\): needs one number"),
        ({"alpha": "half"}, r"alpha='half'\): needs one number"),
        ({"bounds": [(0.1, 1.0), (0.1, 1.0)]}, r"bounds=.*needs two numbers"),
        ({"level": [0.95]}, r"level=\[0\.95\]\): needs a real number"),
        ({"tolerance": "small"}, r"tolerance='small'\): needs a real number"),
    ],
)
def test_what_is_no_number_is_refused_with_the_way_out(options, text):
    with pytest.raises(TypeError, match=rf"fit_fde\({text}"):
        fit_fde(decay, TIMES, TIMES[:, None], torch.ones(1).double(), {"rate": 1.0}, **options)


def test_one_time_of_many_numbers_is_enough():
    starts, noise = torch.linspace(0.5, 2, 12).double(), 1e-3 * np.random.default_rng(0).standard_normal(12)
    rates = torch.linspace(0.2, 3, 12).double()
    observed = [float(data.relaxation(np.array([0.8]), 0.6, rate=rate)[0]) for rate in rates.tolist()]

    def f(t, y, p):
        return -p["factor"] * rates * y

    fit = fit_fde(f, [0.8], (starts.numpy() * observed + noise)[None], starts, {"factor": 0.5}, n_steps=40)
    for name, true in (("alpha", 0.6), ("factor", 1.0)):
        assert abs(fit.estimates[name] - true) < 4 * fit.standard_errors[name] < 0.1
    with pytest.raises(ValueError, match="two times or more"):
        fit_fde(f, [0.0], np.ones((1, 12)), starts, {"factor": 0.5})


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda t, y, p: -p["rate"].item() * y, r"differentiable in params\['rate'\].*float\(\)"),
        (lambda t, y, p: -p["rate"].detach() * y, r"differentiable in params\['rate'\]"),
        (lambda t, y, p: -p["rate"] * y + torch.rand_like(y), r"the same value.*at t=0 .*random numbers"),
    ],
)
def test_a_right_hand_side_without_derivatives_is_refused(f, text):
    observed = data.relaxation(TIMES, 0.5)[:, None]
    with pytest.raises(ValueError, match=text):
        fit_fde(f, TIMES, observed, torch.ones(1).double(), {"rate": 0.7}, n_steps=10)


def test_shapes_and_counts_are_checked():
    start = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="an observation for each time"):
        fit_fde(decay, TIMES, TIMES[:3], start, {"rate": 1.0})
    with pytest.raises(ValueError, match=r"observed of shape \(40, 2\)\): .* the model predicts \(40, 1\)"):
        fit_fde(decay, TIMES, np.ones((40, 2)), start, {"rate": 1.0})
    broken = data.relaxation(TIMES, 0.5)[:, None]
    broken[3] = np.nan
    with pytest.raises(ValueError, match=r"observed\[3, 0\]=nan; leave"):
        fit_fde(decay, TIMES, broken, start, {"rate": 1.0})
    with pytest.raises(TypeError, match=r"params\['rate'\] of type str"):
        fit_fde(decay, TIMES, TIMES[:, None], start, {"rate": "fast"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=r"params\['rate'\]=nan"):
        fit_fde(decay, TIMES, TIMES[:, None], start, {"rate": float("nan")})
    with pytest.raises(TypeError, match=r"y0 of type list"):
        fit_fde(decay, TIMES, TIMES[:, None], [1.0], {"rate": 1.0})  # type: ignore[list-item]
    with pytest.raises(ValueError, match="more than the 2 parameters"):
        fit_fde(decay, TIMES[:2], TIMES[:2, None], start, {"rate": 1.0})
    with pytest.raises(ValueError, match="alpha is a parameter already"):
        fit_fde(decay, TIMES, TIMES[:, None], start, {"alpha": 1.0})


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), x[0]]), lambda: np.array([[-20 * x[0], 10], [1, 0]])


def test_least_squares_finds_the_minimum_of_a_narrow_valley():
    found = least_squares(rosenbrock, np.array([0.0, 1.0]), np.array([-1.2, 1.0]), tolerance=1e-12, iterations=100)
    np.testing.assert_allclose(found.point, [1, 1], rtol=1e-6)


def test_least_squares_says_when_it_does_not_end():
    with pytest.raises(RuntimeError, match="after 2 iterations"):
        least_squares(rosenbrock, np.array([0.0, 1.0]), np.array([-1.2, 1.0]), tolerance=1e-12, iterations=2)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.9])
def test_thirty_noisy_series_give_the_order_and_an_honest_interval(alpha):
    fits = [fitted(alpha, np.random.default_rng(seed), n_steps=100) for seed in range(30)]
    assert abs(np.mean([fit.estimates["alpha"] for fit in fits]) - alpha) < 0.005
    inside = sum(fit.intervals["alpha"][0] <= alpha <= fit.intervals["alpha"][1] for fit in fits)
    assert inside >= 26


@pytest.mark.parametrize("params", [None, [0.7], "rate", 0.7])
def test_parameters_without_names_are_refused(params):
    with pytest.raises(TypeError, match=r"fit_fde\(params of type .*needs first values by their names"):
        fit_fde(lambda t, y, p: -y, [0.5, 1.0], [[0.5], [0.4]], torch.ones(1), params)


def test_weights_are_those_of_least_squares_and_zero_leaves_out():
    t = np.linspace(0.1, 4, 40)
    y = data.relaxation(t, 0.6, noise=0.02, rng=np.random.default_rng(0))[:, None]
    call = functools.partial(fit_fde, decay, y0=torch.ones(1).double(), params={"rate": 1.0}, n_steps=40)
    plain, same = call(ts=t, observed=y), call(ts=t, observed=y, weights=3.0)
    np.testing.assert_allclose(same.values, plain.values, rtol=1e-10)
    np.testing.assert_allclose(same.covariance, plain.covariance, rtol=1e-8)
    # A weight of 2 is an observation that was made twice; 0 is none.
    twice = np.ones((40, 1))
    twice[::2] = 2
    weighted = call(ts=t, observed=y, weights=twice)
    pairs, seen = np.concatenate([y, y], 1), np.concatenate([twice > 0, twice > 1], 1)
    both = call(ts=t, observed=pairs, weights=seen, observe=lambda states: states.repeat(1, 2))
    np.testing.assert_allclose(weighted.values, both.values, rtol=1e-7)
    gaps = y.copy()
    gaps[5:9] = np.nan
    kept = np.delete(np.arange(40), np.arange(5, 9))
    left_out = call(ts=t, observed=gaps, weights=np.isfinite(gaps))
    assert left_out.observations == 36
    np.testing.assert_allclose(left_out.values, call(ts=t[kept], observed=y[kept]).values, atol=2e-4)  # another mesh
    for weights, text in [(-1.0, "needs finite numbers >= 0"), (np.ones(3), "broadcasts to that of observed")]:
        with pytest.raises(ValueError, match=text):
            call(ts=t, observed=y, weights=weights)
    with pytest.raises(ValueError, match="pass weights that are 0 there"):
        call(ts=t, observed=gaps)


def test_an_order_above_one_is_found_with_its_slope_at_the_start():
    exact = oscillation(1.6, 2.0, 0.5)
    observed = exact + 0.01 * np.random.default_rng(0).standard_normal(40)
    fit = fit_fde(
        decay,
        TIMES,
        observed[:, None],
        torch.ones(1),
        {"rate": 1.5, "slope": 0.0},
        dy0=lambda p: p["slope"][None],
        alpha=1.4,
        n_steps=80,
    )
    for name, true in (("alpha", 1.6), ("rate", 2.0), ("slope", 0.5)):
        assert abs(fit.estimates[name] - true) < 4 * fit.standard_errors[name] < 0.1


@pytest.mark.parametrize("order", [0.9, 1.2])
def test_a_start_at_rest_has_orders_on_both_sides_of_one(order):
    observed = oscillation(order, 1.0, 0.0) + 0.01 * np.random.default_rng(0).standard_normal(40)
    fit = fit_fde(decay, TIMES, observed, torch.ones(()), {"rate": 0.7}, dy0=torch.zeros(()), alpha=1.0, n_steps=60)
    assert abs(fit.estimates["alpha"] - order) < 4 * fit.standard_errors["alpha"] < 0.1


def test_each_entry_may_have_an_order_of_its_own():
    rng = np.random.default_rng(0)
    observed = np.stack([data.relaxation(TIMES, order, noise=0.01, rng=rng) for order in (0.4, 0.8)], 1)
    start = torch.ones(2)
    fit = fit_fde(
        lambda t, y, p: -torch.stack([p["a"], p["b"]]) * y,
        TIMES,
        observed,
        start,
        {"a": 0.7, "b": 0.7},
        alpha=[0.5, 0.6],
        bounds=[(0.02, 1.0), (0.5, 1.0)],
        n_steps=80,
    )
    assert fit.names == ("alpha_1", "alpha_2", "a", "b")
    assert "the orders moved by at most" in fit.summary()
    for name, true in (("alpha_1", 0.4), ("alpha_2", 0.8), ("a", 1.0), ("b", 1.0)):
        assert abs(fit.estimates[name] - true) < 4 * fit.standard_errors[name] < 0.1
    for place, order in enumerate(("alpha_1", "alpha_2")):  # each is what it is of its own entry alone
        alone = fit_fde(decay, TIMES, observed[:, place], torch.ones(()), {"rate": 0.7}, n_steps=80, mesh=Graded(3.0))
        assert fit.estimates[order] == pytest.approx(alone.estimates["alpha"], abs=0.1 * fit.standard_errors[order])


def forced(t, y, p):
    return p["force"] - p["rate"] * y


def test_experiments_are_fitted_jointly():
    """Two experiments are one of two entries where times are the same."""
    rng = np.random.default_rng(3)
    observed = np.stack([size * data.relaxation(TIMES, 0.6, noise=0.02, rng=rng) for size in (1.0, 3.0)], 1)
    starts = [torch.ones(1), torch.full((1,), 3.0)]
    one = fit_fde(decay, TIMES, observed, torch.cat(starts), {"rate": 0.7}, weights=[1.0, 0.2], n_steps=40)
    two = fit_fde(
        decay, [TIMES, TIMES], list(observed.T), starts, {"rate": 0.7}, weights=[1.0, np.full(40, 0.2)], n_steps=40
    )
    np.testing.assert_allclose(two.values, one.values, rtol=1e-6)
    np.testing.assert_allclose(two.covariance, one.covariance, rtol=1e-4)
    assert two.observations == 80


def test_each_experiment_has_its_own_times_start_and_right_hand_side():
    rng = np.random.default_rng(4)
    late = np.linspace(2.5, 6, 10)  # begins at 2
    fall = data.relaxation(TIMES, 0.6, noise=0.01, rng=rng)
    rise = 1 - data.relaxation(late - 2, 0.6, noise=0.01, rng=rng)
    fit = fit_fde(
        [decay, forced],
        [TIMES, late],
        [fall, rise],
        [torch.ones(()), lambda p: 0 * p["rate"]],
        {"rate": 0.7, "force": 0.7},
        t0=[0.0, 2.0],
        n_steps=60,
    )
    for name, true in (("alpha", 0.6), ("rate", 1.0), ("force", 1.0)):
        assert abs(fit.estimates[name] - true) < 4 * fit.standard_errors[name] < 0.1


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"observed": [TIMES]}, r"ts of 2 experiments, observed of 1\)"),
        ({"weights": [None, None, None]}, r"weights of 3\): needs one for each of the 2 experiments"),
        ({"y0": [torch.ones(())]}, r"y0 of 1\): needs one for each"),
    ],
)
def test_lists_of_experiments_are_checked(options, text):
    arguments = {"observed": [TIMES, TIMES], "y0": torch.ones(()), **options}
    with pytest.raises(ValueError, match=text):
        fit_fde(decay, [TIMES, TIMES], params={"rate": 1.0}, **arguments)


def test_a_rejected_step_has_no_jacobian():
    taken = []

    def model(x):
        predicted, jacobian = rosenbrock(x)

        def counted():
            taken.append(x)
            return jacobian()

        return predicted, counted

    found = least_squares(model, np.array([0.0, 1.0]), np.array([-1.2, 1.0]), tolerance=1e-12, iterations=100)
    assert len(taken) == found.iterations + 1


def test_a_point_without_a_finite_jacobian_is_no_way_down():
    def model(x):
        return x, lambda: np.full((1, 1), 1.0 if x[0] < 0.5 else np.nan)

    found = least_squares(model, np.ones(1), np.zeros(1), tolerance=1e-12, iterations=100, is_search=True)
    assert 0 < found.point[0] < 0.5


def test_a_fit_that_swings_about_its_minimum_ends_at_the_bound():
    # Of order 1.5, fitted by orders up to 1: residuals are large, and undamped steps in the rate alternate.
    t = np.linspace(0.1, 8, 30)
    y = mittag_leffler(-1.2 * t**1.5, 1.5) + 0.01 * np.random.default_rng(0).standard_normal(30)
    with pytest.warns(UserWarning, match="alpha is at its bound 1"):
        found = fit_fde(lambda t, y, p: -p["rate"] * y, t, y, torch.ones((), dtype=torch.float64), {"rate": 1.0})
    assert found.values[found.names.index("alpha")] == 1
