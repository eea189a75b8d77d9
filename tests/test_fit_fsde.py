"""Fits of stochastic models by simulated moments: estimates, their errors, and what is refused."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import SDE, FractionalBrownian, fsdeint
from hpfracc_nn.training import StochasticFit, fit_fsde
from hpfracc_nn.training.torch.fit_fsde import _place, _within, default_moments

WHERE = {"rate": (0.05, 10.0), "sigma": (0.05, 5.0)}
HURST = (0.02, 0.98)
ZERO = torch.zeros((), dtype=torch.float64)


def ornstein_uhlenbeck(p):
    return SDE(lambda t, y: -p["rate"] * y, lambda t, y: p["sigma"].expand_as(y), "additive")


def paths(count, *, alpha=1.0, hurst=None, seed=0, end=4.0, n=100):
    """Return paths of rate 1 and sigma 0.7 by eight steps between two observations."""
    truth = {"rate": torch.tensor(1.0).double(), "sigma": torch.tensor(0.7).double()}
    ts = np.linspace(0, end, n + 1)
    options: dict[str, Any] = {} if hurst is None else {"noise": FractionalBrownian(hurst), "scheme": "heun"}
    generator = torch.Generator().manual_seed(seed)
    sde, start = ornstein_uhlenbeck(truth), torch.zeros(count, dtype=torch.float64)
    found = fsdeint(sde, start, ts, alpha=alpha, dt=end / n / 8, generator=generator, **options)
    return ts, found.numpy()


def fitted(ts, observed, **changes):
    given: dict[str, Any] = {"params": {"rate": 2.0, "sigma": 1.0}, "bounds": WHERE, "paths": 128, "seed": 7, **changes}
    return fit_fsde(ornstein_uhlenbeck, ts, observed, ZERO, given.pop("params"), **given)


def test_the_parameters_of_an_ornstein_uhlenbeck_process_are_found_within_their_errors():
    fit = fitted(*paths(24), substeps=2)
    assert isinstance(fit, StochasticFit)
    assert fit.names == ("rate", "sigma")
    for name, truth in (("rate", 1.0), ("sigma", 0.7)):
        assert abs(fit.estimates[name] - truth) < 3 * fit.standard_errors[name]
    assert fit.standard_errors["sigma"] < 0.05
    assert fit.freedom == 5
    assert fit.p_value > 0.001
    assert "95 % interval" in fit.summary()
    assert "24 paths observed, 128 simulated" in fit.summary()


@pytest.mark.slow
def test_a_model_without_the_memory_of_the_data_does_not_fit():
    fit = fitted(*paths(48, alpha=0.65))
    assert fit.p_value < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("hurst", "allowed"), [(0.15, 0.03), (0.7, 0.08)])
@pytest.mark.parametrize("seed", range(3))
def test_a_hurst_index_is_found_from_one_half(hurst, allowed, seed):
    ts, observed = paths(16, hurst=hurst, seed=seed, end=5.0, n=200)
    fit = fitted(
        ts,
        observed,
        params={"rate": 1.5, "sigma": 1.0, "hurst": 0.5},
        bounds={**WHERE, "hurst": HURST},
        noise=lambda p: FractionalBrownian(p["hurst"], bounds=HURST),
        scheme="heun",
        paths=256,
    )
    assert abs(fit.estimates["hurst"] - hurst) < allowed
    low, high = fit.intervals["hurst"]
    assert low - fit.standard_errors["hurst"] < hurst < high + fit.standard_errors["hurst"]


@pytest.mark.slow
def test_an_order_is_found():
    ts, observed = paths(32, alpha=0.75, seed=2)
    fit = fitted(
        ts,
        observed,
        params={"rate": 1.5, "sigma": 1.0, "alpha": 0.9},
        bounds={**WHERE, "alpha": (0.51, 1.0)},
        alpha=lambda p: p["alpha"],
        substeps=4,
    )
    assert fit.estimates["alpha"] == pytest.approx(0.75, abs=0.04)


def test_the_moments_are_those_of_each_path():
    x = torch.arange(12.0).view(6, 2, 1)
    found = default_moments(x)
    assert found.shape == (2, 5)  # lags up to 4
    torch.testing.assert_close(found[0], torch.tensor([5.0, 220 / 6, 4.0, 16.0, 64.0]))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"observed": np.zeros((5, 2))}, r"needs paths \[times, paths, \*state\]; pass a single path as observed"),
        ({"params": {}}, r"params=\{\}\): needs parameters"),
        ({"bounds": {"rate": (3.0, 4.0)}}, r"bounds of 'rate'=\(3\.0, 4\.0\).*around the first value"),
        ({"bounds": {"speed": (0.0, 4.0)}}, r"bounds of 'speed'"),
        ({"level": 1.0}, r"level=1\.0\): needs 0 < level < 1"),
        ({"paths": 1}, r"needs paths >= 2"),
        ({"moments": lambda x: x[-1][:, None]}, r"as many moments as there are parameters, 2; there are 1"),
        (
            {"moments": lambda x: torch.full((x.shape[1], 3), float("nan"))},
            r"needs finite numbers, and those of observed",
        ),
    ],
)
def test_a_wrong_argument_is_refused(changes, text):
    ts = np.linspace(0, 1, 11)
    with pytest.raises(ValueError, match=text):
        fitted(ts, changes.pop("observed", np.zeros((11, 2))), **changes)


BOUNDS = [(-2.0, 3.0), (-2.0, np.inf), (-np.inf, 3.0), (-np.inf, np.inf)]


def test_places_between_bounds_are_the_inverse_and_stay_inside():
    for low, high in BOUNDS:
        for value in (-1.9, 0.0, 2.5):
            place = torch.tensor(_place(value, low, high), dtype=torch.float64)
            assert _within(place, low, high).item() == pytest.approx(value, abs=1e-14)
        far = _within(torch.linspace(-30, 30, 7, dtype=torch.float64), low, high)
        assert torch.isfinite(far).all()
        assert (far >= low).all()
        assert (far <= high).all()


@pytest.mark.parametrize("bound", [(0.0, np.inf), (-np.inf, 3.0), (-np.inf, np.inf)])
@pytest.mark.slow
def test_a_bound_may_be_infinite(bound):
    given = paths(8, n=20, end=2.0)
    expected = fitted(*given, paths=32, tolerance=1e-10)
    found = fitted(*given, paths=32, tolerance=1e-10, bounds={"rate": bound, "sigma": (0.0, np.inf)})
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-2)
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=0.1)


def test_an_upper_bound_without_a_lower_one_holds():
    fit = fitted(
        *paths(8, n=20, end=2.0), paths=32, params={"rate": 0.2, "sigma": 0.3}, bounds={"sigma": (-np.inf, 0.5)}
    )
    assert fit.estimates["sigma"] < 0.5


def test_an_optimisation_that_stops_early_is_said():
    given = paths(8, n=20, end=2.0)
    with pytest.warns(UserWarning, match="stopped before it converged .*raise iterations=1"):
        fit = fitted(*given, paths=32, iterations=1)
    assert not fit.converged
    assert "has not converged" in fit.summary()
    fit = fitted(*given, paths=32)
    assert fit.converged
    assert "converged" not in fit.summary()


def test_a_moment_that_is_the_same_for_all_paths_is_named():
    def moments(x):
        return torch.stack([x.mean(0), 0 * x[0] + 3.0, x.square().mean(0)], 1)

    with pytest.raises(ValueError, match=r"differ from path to path; column 1 of 3 is 3 for all simulated paths"):
        fitted(*paths(8, n=20, end=2.0), paths=32, moments=moments)


def test_a_state_without_noise_is_named_too():
    # The first entry follows a drift alone: its sums over time differ by rounding, if at all.
    def sde(p):
        on = torch.tensor([0.0, 1.0]).double()
        return SDE(lambda t, y: -p["rate"] * y, lambda t, y: (p["sigma"] * on).expand_as(y), "additive")

    ts, observed = paths(8, n=20, end=2.0)
    both = np.stack([np.exp(-ts)[:, None] + 0 * observed, observed], -1)
    y0 = torch.tensor([1.0, 0.0], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"column 0 of 14 is"):
        fit_fsde(sde, ts, both, y0, {"rate": 2.0, "sigma": 1.0}, bounds=WHERE, paths=32)


@pytest.mark.parametrize(
    ("diffusion", "text"),
    [
        (
            lambda p: p["sigma"] * p["size"],
            "the moments do not tell 'sigma' and 'size' from one another at sigma=.*; fix all but",
        ),
        (lambda p: p["sigma"] + 0 * p["size"], "the moments tell nothing of 'size' at size=.*; fix it"),
    ],
)
def test_parameters_that_the_moments_do_not_tell_apart_are_named(diffusion, text):
    def sde(p):
        return SDE(lambda t, y: -p["rate"] * y, lambda t, y: diffusion(p).expand_as(y), "additive")

    params = {"rate": 2.0, "sigma": 1.0, "size": 1.0}
    ts, observed = paths(8, n=20, end=2.0)
    with pytest.raises(ValueError, match=rf"fit_fsde\(params\): {text}"):
        fit_fsde(sde, ts, observed, ZERO, params, bounds=WHERE, paths=32)


def test_paths_and_a_start_with_a_graph_are_taken_as_numbers():
    ts, observed = paths(8, n=20, end=2.0)
    graph = torch.tensor(observed, requires_grad=True) * 1
    y0 = torch.zeros((), dtype=torch.float64, requires_grad=True)
    found = fit_fsde(ornstein_uhlenbeck, torch.tensor(ts), graph, y0, {"rate": 2.0, "sigma": 1.0}, paths=32)
    expected = fit_fsde(ornstein_uhlenbeck, ts, observed, ZERO, {"rate": 2.0, "sigma": 1.0}, paths=32)
    assert found.estimates == expected.estimates
    number: Any = 0.0
    with pytest.raises(TypeError, match=r"y0 of type float\): needs a tensor"):
        fit_fsde(ornstein_uhlenbeck, ts, observed, number, {"rate": 2.0, "sigma": 1.0})
