"""Estimates of the Hurst index."""

import pathlib
import re
import runpy
import sys

import numpy as np
import pytest

from hpfracc_nn.solvers.noise import FractionalBrownian, increments
from hpfracc_nn.training import hurst as estimators
from hpfracc_nn.training import structure_function, whittle


def paths(hurst: float, n: int, count: int, seed: int = 0) -> np.ndarray:
    """Return `count` paths of `n` samples, [count, n]."""
    rng = np.random.default_rng(seed)
    return np.cumsum(increments(FractionalBrownian(hurst), n, (count,), dt=1.0, rng=rng), 0).T


@pytest.mark.parametrize("hurst", [0.1, 0.3, 0.7])
def test_ten_paths_give_the_index_and_intervals_that_hold_it(hurst):
    found = [whittle(path) for path in paths(hurst, 4000, 10)]
    assert np.mean([each.hurst for each in found]) == pytest.approx(hurst, abs=0.01)  # 3 standard errors
    assert sum(each.interval[0] < hurst < each.interval[1] for each in found) >= 9
    assert np.mean([each.scale for each in found]) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("hurst", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_intervals_hold_the_index_as_often_as_they_say(hurst):
    found = [whittle(path) for path in paths(hurst, 1000, 400)]
    estimates = np.array([each.hurst for each in found])
    deviation = found[0].standard_error
    assert np.mean(estimates) == pytest.approx(hurst, abs=0.2 * deviation)
    assert np.std(estimates) == pytest.approx(np.mean([each.standard_error for each in found]), rel=0.15)
    assert 0.91 < np.mean([each.interval[0] < hurst < each.interval[1] for each in found]) <= 0.98


@pytest.mark.parametrize("ratio", [0.0, 0.4])
@pytest.mark.parametrize("hurst", [0.1, 0.8])
def test_the_periodogram_is_compared_with_its_own_mean(hurst, ratio):
    n = 33
    covariance = FractionalBrownian(hurst).covariance(n, 1.0)
    covariance += ratio * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    wave = np.exp(-2j * np.pi * np.outer(np.arange(n), np.arange(n)) / n)
    exact = np.einsum("fi,ij,fj->f", wave, covariance, wave.conj()).real / n
    found = estimators._Spectrum(np.arange(n) ** 2.0).expected(hurst, ratio)
    np.testing.assert_allclose(found, exact[1:17], rtol=1e-11)


@pytest.mark.parametrize("n", [33, 40])
@pytest.mark.parametrize("ratio", [0.0, 0.4])
@pytest.mark.parametrize("hurst", [0.1, 0.8])
def test_the_covariance_of_the_scores_is_that_of_quadratic_forms(hurst, ratio, n):
    covariance = FractionalBrownian(hurst).covariance(n, 1.0)
    covariance += ratio * (2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1))
    spectrum = estimators._Spectrum(np.arange(n) ** 2.0)
    expected = spectrum.expected(hurst, ratio)
    slopes = np.random.default_rng(0).standard_normal((2, expected.size))
    wave = np.exp(-2j * np.pi * np.outer(np.arange(1, expected.size + 1), np.arange(n)) / n)
    forms = [np.einsum("f,fi,fj->ij", each / expected, wave, wave.conj()).real / n for each in slopes]
    exact = [[2 * np.trace(one @ covariance @ other @ covariance) for other in forms] for one in forms]  # Isserlis
    np.testing.assert_allclose(spectrum._score_covariance(slopes, hurst, ratio), exact, rtol=1e-9, atol=1e-9)


def test_units_change_the_scale_alone():
    (path,) = paths(0.3, 1000, 1)
    one, other = whittle(path), whittle(5 - 3 * path, dt=0.01, level=0.8)
    assert other.hurst == pytest.approx(one.hurst, abs=1e-6)
    assert other.scale == pytest.approx(3 * one.scale * 0.01**-one.hurst, rel=1e-4)
    assert other.interval[1] - other.interval[0] < one.interval[1] - one.interval[0]
    assert one.noise == 0


@pytest.mark.slow
@pytest.mark.parametrize(("hurst", "noise"), [(0.3, 1.0), (0.7, 0.5)])
def test_noise_upon_the_samples_is_told_from_roughness(hurst, noise):
    rng = np.random.default_rng(1)
    noisy = [path + noise * rng.standard_normal(path.size) for path in paths(hurst, 4000, 6)]
    plain, found = [whittle(path) for path in noisy], [whittle(path, has_noise=True) for path in noisy]
    assert np.mean([each.hurst for each in plain]) < hurst - 0.02
    error = np.mean([each.standard_error for each in found]) / np.sqrt(6)
    assert np.mean([each.hurst for each in found]) == pytest.approx(hurst, abs=3 * error)
    assert np.mean([each.noise for each in found]) == pytest.approx(noise, rel=0.1)
    assert sum(each.interval[0] < hurst < each.interval[1] for each in found) >= 5


def test_where_there_is_no_noise_little_is_found():
    (path,) = paths(0.3, 4000, 1, seed=3)
    found = whittle(path, has_noise=True)
    assert found.interval[0] < 0.3 < found.interval[1]
    assert found.noise < 0.3


def test_a_straight_line_has_index_one():
    found = structure_function(np.arange(100.0), lags=[1, 2, 5])
    np.testing.assert_allclose(found.slopes, found.powers, rtol=1e-12)
    np.testing.assert_allclose(found.moments, found.lags ** found.powers[:, None], rtol=1e-12)
    assert found.hurst == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("hurst", [0.1, 0.3, 0.7])
def test_moments_of_fractional_brownian_motion_grow_by_its_index(hurst):
    found = [structure_function(path) for path in paths(hurst, 4000, 10)]
    assert np.mean([each.hurst for each in found]) == pytest.approx(hurst, abs=0.04)  # long lags have few, alike
    assert found[0].lags[0] == 1
    assert found[0].lags[-1] == 400


@pytest.mark.slow
def test_the_example_of_rough_volatility_runs(monkeypatch, capsys):
    pytest.importorskip("arch")
    example = pathlib.Path(__file__).parents[1] / "examples" / "rough_volatility.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--quick"])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.count("with noise     hurst 0.") == 3


REFUSALS = [
    (lambda: whittle(np.zeros((50, 2))), "whittle(x of shape (50, 2)): needs one path of 32 samples or more"),
    (lambda: whittle(np.arange(31.0)), "whittle(x of shape (31,)): needs one path of 32 samples or more"),
    (lambda: whittle(np.append(np.arange(50.0), np.nan)), "whittle(x): needs finite samples; x[50]=nan"),
    (lambda: whittle(np.ones(50)), "whittle(x): needs samples that change; all are 1."),
    (lambda: whittle(np.arange(50.0), dt=-1), "whittle(dt=-1): needs a finite dt > 0"),
    (lambda: whittle(np.arange(50.0), level=1), "whittle(level=1): needs 0 < level < 1; pass for example 0.95."),
    (lambda: structure_function(np.arange(50.0), lags=[1]), "structure_function(lags=[1]): needs two lags or more"),
    (lambda: structure_function(np.arange(50.0), lags=[1, 50]), "from 1 to 49; pass for example [1, 2, 4, 8]."),
    (lambda: structure_function(np.arange(50.0), powers=[0]), "structure_function(powers=[0]): needs positive numbers"),
]


@pytest.mark.parametrize("size", [2.0**700, 1e200, 1e-200, 1e308])
@pytest.mark.slow
def test_the_size_of_a_path_does_not_matter(size):
    path = paths(0.3, 500, 1)[0]
    path /= np.abs(path).max()
    found, expected = whittle(size * path), whittle(path)
    assert (found.hurst, found.standard_error) == pytest.approx((expected.hurst, expected.standard_error), rel=1e-5)
    assert found.scale == pytest.approx(size * expected.scale, rel=1e-5)
    noisy = whittle(size * path, has_noise=True)
    assert noisy.noise == pytest.approx(size * whittle(path, has_noise=True).noise, rel=1e-3)


@pytest.mark.parametrize("lags", [[1.0, 2.0], ["1", "2"], [True, 2]])
def test_lags_are_whole_numbers(lags):
    with pytest.raises(TypeError, match=r"structure_function\(lags=.*needs an integer"):
        structure_function(np.arange(50.0) ** 2, lags=lags)


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_bad_input_is_refused_with_the_way_out(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_line_has_increments_that_do_not_vary():
    with pytest.raises(ValueError, match=re.escape("whittle(x): needs increments that vary")):
        whittle(np.arange(50.0))


@pytest.mark.parametrize("n", [32, 1000, 100_000])
@pytest.mark.parametrize(("start", "slope"), [(0.0, 0.1), (5.0, -0.3), (1e6, 1e-3), (0.1, 1e-12)])
def test_a_straight_line_is_refused_however_it_is_rounded(n, start, slope):
    lines = (
        start + slope * np.arange(n),
        np.linspace(start, start + slope * n, n),
    )
    for line in lines:
        with pytest.raises(ValueError, match="those of a straight line have no Hurst index"):
            whittle(line)


def test_small_increments_upon_a_large_level_are_no_straight_line():
    path = np.cumsum(np.random.default_rng(0).standard_normal(4000))
    assert whittle(1e6 + 1e-6 * path).hurst == pytest.approx(whittle(path).hurst, abs=1e-2)
