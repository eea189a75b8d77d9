"""Orders and parameters from observations: what is found, how sure, and what is said about it."""

import math

import numpy as np
import pytest
from scipy import special, stats

pytest.importorskip("torch")

import torch

from hpfracc_nn import data
from hpfracc_nn.training import fit_fde
from hpfracc_nn.training.fit import least_squares

TIMES = np.linspace(0.1, 4, 40)


def decay(t, y, p):
    return -p["rate"] * y


def fitted(alpha, rng, *, noise=0.02, times=TIMES, **options):
    observed = data.relaxation(times, alpha, noise=noise, rng=rng)
    start = torch.ones(1, dtype=torch.float64)
    return fit_fde(decay, times, observed[:, None], start, {"rate": 0.7}, **{"n_steps": 40, **options})


def test_relaxation_is_the_complementary_error_function_at_one_half():
    t = np.array([0, 1e-6, 0.1, 1, 7, 300])
    np.testing.assert_allclose(data.relaxation(t, 0.5, rate=2.0), special.erfcx(2 * np.sqrt(t)), rtol=1e-13)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.7, 0.95])
def test_relaxation_agrees_with_the_power_series(alpha):
    t = np.array([0.01, 0.3, 0.9])
    series = sum((-(t**alpha)) ** k / math.gamma(1 + alpha * k) for k in range(int(150 / alpha)) if alpha * k < 160)
    np.testing.assert_allclose(data.relaxation(t, alpha), series, rtol=1e-10 if alpha > 0.1 else 1e-3)


def test_relaxation_at_one_is_the_exponential():
    np.testing.assert_allclose(data.relaxation(TIMES, 1.0, rate=3.0), np.exp(-3 * TIMES), rtol=1e-15)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": 1.2}, "above 1 the solution oscillates"),
        ({"alpha": 0.5, "rate": -1.0}, "finite rate > 0"),
        ({"alpha": 0.5, "noise": 0.1}, r"pass rng=numpy\.random"),
        ({"alpha": 0.5, "t": -TIMES}, "none negative"),
    ],
)
def test_relaxation_refuses_with_the_rule(options, text):
    with pytest.raises(ValueError, match=text):
        data.relaxation(**{"t": TIMES, **options})


@pytest.mark.parametrize(
    "alpha", [0.3, pytest.param(0.6, marks=pytest.mark.slow), pytest.param(0.9, marks=pytest.mark.slow)]
)
def test_with_little_noise_the_order_is_found(alpha):
    fit = fitted(alpha, np.random.default_rng(0), noise=2e-3)
    assert fit.estimates["alpha"] == pytest.approx(alpha, abs=4e-3)  # four standard errors at least
    assert fit.estimates["rate"] == pytest.approx(1.0, abs=6e-3)


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
        ({"level": 95}, r"level=95\)"),
        ({"n_steps": 0}, r"n_steps >= 1"),
    ],
)
def test_a_fit_refuses_with_the_rule(options, text):
    with pytest.raises(ValueError, match=text):
        fitted(0.5, None, noise=0.0, **options)


def test_shapes_and_counts_are_checked():
    start = torch.ones(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="an observation for each time"):
        fit_fde(decay, TIMES, TIMES[:3], start, {"rate": 1.0})
    with pytest.raises(ValueError, match="more than the 2 parameters"):
        fit_fde(decay, TIMES[:2], TIMES[:2, None], start, {"rate": 1.0})
    with pytest.raises(ValueError, match="alpha is a parameter already"):
        fit_fde(decay, TIMES, TIMES[:, None], start, {"alpha": 1.0})


def rosenbrock(x):
    return np.array([10 * (x[1] - x[0] ** 2), x[0]]), np.array([[-20 * x[0], 10], [1, 0]])


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
