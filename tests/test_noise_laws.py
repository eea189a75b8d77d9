"""The laws that the noises state, against reference values and mpmath, and what follows from them."""

import json
import math
import pathlib
import re

import mpmath
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scipy import fft, stats  # noqa: E402

from hpfracc_nn.fractional.namespace import NUMPY  # noqa: E402
from hpfracc_nn.solvers import (  # noqa: E402
    AlphaStable,
    Brownian,
    Coloured,
    CompoundPoisson,
    ExponentialJumps,
    FixedJumps,
    FractionalBrownian,
    MarkovFractionalBrownian,
    MarkovRiemannLiouvilleBrownian,
    NoisePath,
    NormalJumps,
    RiemannLiouvilleBrownian,
    increments,
)
from hpfracc_nn.solvers.noise import increments as numpy_increments  # noqa: E402
from hpfracc_nn.solvers.noise import markov  # noqa: E402
from hpfracc_nn.solvers.noise.fractional import (  # noqa: E402
    circulant_roots,
    columns,
    fast_length,
    fgn_autocovariance,
    riemann_liouville_covariance,
)

REFERENCE = json.loads((pathlib.Path(__file__).parent / "reference" / "noise.json").read_text("utf-8"))
HURSTS = [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98]


def cases(name: str) -> list[dict]:
    return REFERENCE[name]["cases"]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def fbm_covariance(hurst: float, t: np.ndarray) -> np.ndarray:
    return (t[:, None] ** (2 * hurst) + t ** (2 * hurst) - np.abs(t[:, None] - t) ** (2 * hurst)) / 2


@pytest.mark.parametrize("case", cases("fgn_autocov"), ids=lambda case: case["H"])
def test_the_autocovariance_of_fractional_noise_is_the_reference(case):
    hurst = float(case["H"])
    found = (1 / 64) ** (2 * hurst) * fgn_autocovariance(hurst, 64, NUMPY)
    for lag, value in case["lags"].items():
        assert found[int(lag)] == pytest.approx(float(value), rel=1e-12)


@pytest.mark.parametrize("hurst", HURSTS)
def test_the_autocovariance_keeps_its_digits_at_large_lags(hurst):
    found = fgn_autocovariance(hurst, 1_000_001, NUMPY)
    with mpmath.workdps(50):
        for lag in (2, 15, 16, 1023, 1024, 10**6):
            power = 2 * mpmath.mpf(hurst)
            exact = (mpmath.mpf(lag + 1) ** power - 2 * mpmath.mpf(lag) ** power + mpmath.mpf(lag - 1) ** power) / 2
            # Below lag 16 numbers are subtracted: of size 15, or near hurst 0 as small as the values are.
            assert found[lag] == pytest.approx(float(exact), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("case", cases("fgn_logpdf"), ids=lambda case: case["H"])
def test_the_density_of_fractional_noise_is_the_reference(case):
    x = np.sin(np.arange(1, case["n"] + 1))
    covariance = FractionalBrownian(float(case["H"])).covariance(case["n"], 1.0)
    assert stats.multivariate_normal(cov=covariance).logpdf(x) == pytest.approx(float(case["value"]), rel=1e-12)


@pytest.mark.parametrize("case", cases("fbm_cov"), ids=lambda case: case["H"])
def test_the_covariance_of_fractional_brownian_motion_is_the_reference(case):
    path = np.cumsum(np.cumsum(FractionalBrownian(float(case["H"])).covariance(4, 0.25), 0), 1)
    assert (case["s"], case["t"]) == ("0.25", "0.75")
    assert path[0, 2] == pytest.approx(float(case["value"]), rel=1e-13)


@pytest.mark.parametrize("hurst", [1e-6, *HURSTS, 1 - 1e-9])
def test_no_circulant_has_a_negative_eigenvalue(hurst):
    for n in (1, 2, 3, 64, 1000):
        m = fast_length(n)
        roots = circulant_roots(hurst, n, NUMPY)
        assert roots.shape == (2 * m,)
        assert (roots >= 0).all()
        # The squares are the transform of the covariance: what was negative would be missing in its inverse.
        covariance = np.fft.fft(roots**2).real
        np.testing.assert_allclose(covariance[: m + 1], fgn_autocovariance(hurst, m + 1, NUMPY), rtol=0, atol=1e-14)


def test_lengths_are_the_least_that_are_fast():
    assert [fast_length(n) for n in range(1, 3000)] == [fft.next_fast_len(n, real=True) for n in range(1, 3000)]


@pytest.mark.parametrize("hurst", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_the_covariance_of_drawn_paths_is_that_of_fractional_brownian_motion(hurst):
    n, paths = 64, 100_000
    x = increments(FractionalBrownian(hurst), n, (paths,), dt=1 / n, generator=generator(1)).double().numpy()
    motion = x.cumsum(0)
    expected = fbm_covariance(hurst, np.arange(1, n + 1) / n)
    variance = np.diag(expected)
    found = motion @ motion.T / paths
    z = (found - expected) / np.sqrt((expected**2 + np.outer(variance, variance)) / paths)
    assert np.abs(z).max() < 5
    # Entries of one path depend on each other, so that the mean square of z is itself random: from 0.3 to 1.7 in its
    # root at hurst 0.9. Whitened by the exact covariance they do not.
    root = np.linalg.cholesky(expected)
    whitened = np.linalg.solve(root, np.linalg.solve(root, found).T)
    white = (whitened - np.eye(n)) / np.sqrt((1 + np.eye(n)) / paths)
    assert np.abs(white).max() < 5
    assert 0.9 < math.sqrt(np.mean(white**2)) < 1.1


@pytest.mark.parametrize("case", cases("riemann_liouville_fbm_cov"), ids=lambda case: case["H"])
def test_the_covariance_of_riemann_and_liouville_is_the_reference(case):
    hurst, s, t = (float(case[key]) for key in ("H", "s", "t"))
    unit = 2 * hurst * math.gamma(hurst + 0.5) ** 2  # the reference has the kernel t**(H - 1/2) / Gamma(H + 1/2)
    found = riemann_liouville_covariance(hurst, np.array([s, t]), np.array([t, t])) / unit
    assert found == pytest.approx([float(case["cov"]), float(case["var_t"])], rel=1e-13)


@pytest.mark.parametrize("hurst", HURSTS)
def test_the_columns_of_a_cell_make_the_covariance_of_riemann_and_liouville(hurst):
    n = 48
    lag = np.arange(n)[:, None] - np.arange(n)
    matrices = [np.where(lag >= 0, column[np.maximum(lag, 0)], 0) for column in columns(np.asarray(hurst), n, NUMPY)]
    found = sum(matrix @ matrix.T for matrix in matrices)
    path = np.cumsum(np.cumsum(found, 0), 1)
    steps = np.arange(1.0, n + 1)
    expected = riemann_liouville_covariance(hurst, steps[:, None], steps)
    size = steps**hurst
    assert np.abs((path - expected) / np.outer(size, size)).max() < 2e-6  # five polynomials: 5.8**-5 of what is small
    np.testing.assert_allclose(np.diag(path), np.diag(expected), rtol=1e-9)


def test_at_one_half_both_motions_are_brownian():
    for noise in (FractionalBrownian(0.5), RiemannLiouvilleBrownian(0.5)):
        np.testing.assert_allclose(noise.covariance(9, 0.1), 0.1 * np.eye(9), rtol=0, atol=1e-15)
        assert noise.is_semimartingale
    column, *others = columns(np.asarray(0.5), 9, NUMPY)
    np.testing.assert_allclose(column, np.eye(9)[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(others, 0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("form", [markov.Stationary(), markov.AtRest()], ids=["stationary", "at rest"])
@pytest.mark.parametrize("hurst", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_what_the_weights_are_made_of_is_right_for_all_rates(form, hurst):
    duration = 3.0
    rates = np.array([1e-20, 1e-6, 0.01, 0.3, 0.34, 1.0, 20.0, 99.0, 101.0, 1e4, 1e12])
    with mpmath.workdps(60):
        for rate, found in zip(rates, form.cross(rates, hurst, duration), strict=True):
            assert found == pytest.approx(float(exact_cross(form, mpmath.mpf(rate), hurst, duration)), rel=1e-12)
        for i, j in ((0, 0), (0, 3), (2, 4), (5, 10), (10, 10)):
            exact = exact_gram(form, mpmath.mpf(rates[i]), mpmath.mpf(rates[j]), mpmath.mpf(duration))
            assert form.gram(rates, duration)[i, j] == pytest.approx(float(exact), rel=1e-12)


def exact_cross(form, rate, hurst, duration):
    """Daems et al., proposition 5 and its appendix."""
    a, t = mpmath.mpf(hurst) + 0.5, mpmath.mpf(duration)
    x = rate * t
    if isinstance(form, markov.AtRest):
        lower = mpmath.gammainc(a, 0, x) / mpmath.gamma(a)
        return rate**-a * (t * lower - a / rate * mpmath.gammainc(a + 1, 0, x) / mpmath.gamma(a + 1))
    upper = mpmath.exp(x) * mpmath.gammainc(a, x, regularized=True)
    rest = (mpmath.exp(-x) - upper) * rate ** -(a + 1)
    return 2 * t * rate**-a - t**a / (rate * mpmath.gamma(a + 1)) + rest


def exact_gram(form, one, other, t):
    both = one + other
    if isinstance(form, markov.AtRest):
        return (t - (1 - mpmath.exp(-both * t)) / both) / both
    return (2 * t - (1 - mpmath.exp(-one * t)) / one - (1 - mpmath.exp(-other * t)) / other) / both


@pytest.mark.parametrize(
    "case", cases("ma_fbm"), ids=lambda case: f"{case['type']}-{case['H']}-{case['K']}-{case['T']}"
)
def test_the_weights_are_the_reference(case):
    form = markov.Stationary() if case["type"] == 1 else markov.AtRest()
    hurst, duration = float(case["H"]), float(case["T"])
    rates = float(case["gamma_max"]) ** np.linspace(-1, 1, case["K"])
    np.testing.assert_allclose(rates, [float(each) for each in case["gamma"]], rtol=1e-14)
    weights = markov.weights_of(form, rates, hurst, duration, ridge=0.0)
    error = markov.mean_square(form, rates, weights, hurst, duration)
    kept = markov.weights_of(form, rates, hurst, duration)
    if case["type"] == 2 and case["K"] == 10:  # weights of 1e9 that cancel: ours are small, and hardly worse
        assert np.abs(kept).max() < 1e4
        assert markov.mean_square(form, rates, kept, hurst, duration) < 1.005 * float(case["rel_mse"])
        return
    # The reference's error has 12 digits; the weights at rest at H = 0.1 lose four of 16 to their condition.
    np.testing.assert_allclose(weights, [float(each) for each in case["omega"]], rtol=1e-9)
    assert error == pytest.approx(float(case["rel_mse"]), rel=1e-10, abs=1e-13)


@pytest.mark.parametrize("case", cases("mandelbrot_vanness_norm"), ids=lambda case: case["H"])
def test_the_variance_of_the_unscaled_motion_is_the_reference(case):
    assert markov.Stationary().variance(float(case["H"])) == pytest.approx(float(case["V_H"]), rel=1e-14)


@pytest.mark.parametrize("noise", [MarkovFractionalBrownian, MarkovRiemannLiouvilleBrownian])
@pytest.mark.parametrize("hurst", [0.1, 0.3, 0.7, 0.9])
def test_the_error_that_is_stated_is_that_of_the_approximation(noise, hurst):
    n, dt = 50, 0.04
    approximation, exact = noise(hurst), EXACT[noise](hurst)
    found, expected = approximation.covariance(n, dt), np.asarray(exact.covariance(n, dt))
    error = approximation.error(n, dt)
    steps = np.abs(np.diag(found) / np.diag(expected) - 1)
    # The closed form is a sum of terms that cancel, 4e10 to one at H = 0.9: its rounding is theirs, 5e-9 where long
    # doubles have 64 bits.
    rates = approximation.rates(n, dt)
    weights = markov.weights_of(approximation.form, rates, hurst, n * dt) / math.sqrt(
        approximation.form.variance(hurst)
    )
    terms = approximation.form.steps(rates, np.abs(weights), dt * np.arange(n), dt) / np.diag(expected)
    rounding = float(np.finfo(np.longdouble).eps * terms.max())
    assert error.step == pytest.approx(steps.max(), rel=1e-4, abs=1e-8 + rounding)
    assert error.end == pytest.approx(abs(found.sum() / expected.sum() - 1), rel=1e-4, abs=1e-9)


EXACT: dict[type, type[FractionalBrownian] | type[RiemannLiouvilleBrownian]] = {
    MarkovFractionalBrownian: FractionalBrownian,
    MarkovRiemannLiouvilleBrownian: RiemannLiouvilleBrownian,
}


@pytest.mark.parametrize("noise", [MarkovFractionalBrownian, MarkovRiemannLiouvilleBrownian])
@pytest.mark.parametrize(("hurst", "n_states"), [(0.1, 4), (0.3, 8), (0.7, 8), (0.8, 5)])
def test_the_error_of_the_path_is_the_distance_of_the_kernels(noise, hurst, n_states):
    # E (B - sum)**2 at t is the integral of what the kernels differ by, over the past of t; its mean over t by Gauss.
    approximation = noise(hurst, n_states=n_states)
    rates = approximation.rates(100, 0.01)
    weights = markov.weights_of(approximation.form, rates, hurst, 1.0)
    step = 0.01
    ages = np.exp(np.arange(-150.0, 35.0, step))

    def wrong(u):
        return u ** (hurst - 0.5) / math.gamma(hurst + 0.5) - sum(
            weight * np.exp(-rate * u) for rate, weight in zip(rates, weights, strict=True)
        )

    recent = ages[ages < 1]
    squared = np.sum((1 - recent) * wrong(recent) ** 2 * recent) * step
    if noise is MarkovFractionalBrownian:
        nodes, parts = np.polynomial.legendre.leggauss(20)
        for t, part in zip((nodes + 1) / 2, parts / 2, strict=True):
            squared += part * np.sum((wrong(t + ages) - wrong(ages)) ** 2 * ages) * step
    expected = math.sqrt(squared * (2 * hurst + 1) / approximation.form.variance(hurst))
    # The rules are right to 1e-4: the mean over t has an end in t**(2 H).
    assert approximation.error(100, 0.01).path == pytest.approx(expected, rel=1e-3)


NEGLIGIBLE = 1e-6  # of a path, the rounding of single precision: rates are searched no further


@pytest.mark.parametrize("noise", [MarkovFractionalBrownian, MarkovRiemannLiouvilleBrownian])
@pytest.mark.parametrize("hurst", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("n_states", [5, 16])
@pytest.mark.parametrize(("n_steps", "duration"), [(50, 1.0), (400, 30.0)])
def test_the_rates_are_better_than_those_whose_shares_are_equal(noise, hurst, n_states, n_steps, duration):
    dt, form = duration / n_steps, noise.form
    first, last = equal_shares(form, n_states, hurst, hurst, n_steps)
    rates = np.exp(np.linspace(first, last, n_states)) / duration
    weights = markov.weights_of(form, rates, hurst, duration)
    balanced = markov.error_of(form, rates, weights, hurst, n_steps, dt)
    found = noise(hurst, n_states=n_states).error(n_steps, dt)
    assert found.path < balanced.path / 1.2
    # The increments do not pay for it. At rest the search looks at six of them: others may be 20 % worse.
    assert found.step < 1.2 * max(balanced.step, found.path, NEGLIGIBLE)


def equal_shares(form, n_states, low, high, n_steps):
    """Ends where both, and the gaps between rates, leave out the same share of the path, times the duration."""
    mesh, stationary = math.log(n_steps), isinstance(form, markov.Stationary)
    spread = 1 / low + (1 / (1 - high) if stationary else 0)
    share = (math.sqrt(mesh**2 + 4 * spread * math.pi**2 * (n_states - 1)) - mesh) / (2 * spread)
    return -share / (1 - high) if stationary else math.log(0.1), share / low + mesh


@pytest.mark.parametrize(("hurst", "n_states", "largest"), [(0.5, 5, 20.0), (0.9, 10, 1000.0)])
def test_the_error_is_no_larger_than_that_of_published_rates(hurst, n_states, largest):
    # Daems et al. take rates from 1 / largest to largest; of the process that begins at rest.
    rates = largest ** np.linspace(-1, 1, n_states)
    form = markov.AtRest()
    published = markov.mean_square(form, rates, markov.weights_of(form, rates, hurst, 1.0, ridge=0.0), hurst, 1.0)
    assert MarkovRiemannLiouvilleBrownian(hurst, n_states=n_states).error(100, 0.01).path < 0.5 * math.sqrt(published)


def test_rates_are_found_once_and_are_the_same_in_any_unit_of_time():
    noise = MarkovFractionalBrownian(0.3, n_states=6)
    rates = noise.rates(200, 0.01)
    np.testing.assert_allclose(noise.rates(200, 5.0) * 500, rates, rtol=1e-14)
    searches = markov._ends.cache_info().misses
    for same in (noise, MarkovFractionalBrownian(0.3, n_states=6)):
        np.testing.assert_array_equal(same.rates(200, 0.01), rates)
    assert markov._ends.cache_info().misses == searches
    markov._ends.cache_clear()
    np.testing.assert_array_equal(noise.rates(200, 0.01), rates)


@pytest.mark.parametrize("noise", [MarkovFractionalBrownian, MarkovRiemannLiouvilleBrownian])
@pytest.mark.parametrize("bounds", [(0.2, 0.6), (0.5, 0.9)])
def test_rates_of_a_learned_index_follow_from_its_bounds_and_are_better_at_both(noise, bounds):
    learned = noise(torch.tensor(0.55), bounds)
    first, last = equal_shares(noise.form, 16, bounds[0], bounds[1], 100)
    rates = np.exp(np.linspace(first, last, 16))
    for hurst in bounds:
        weights = markov.weights_of(noise.form, rates, hurst, 1.0)
        balanced = markov.error_of(noise.form, rates, weights, hurst, 100, 0.01)
        assert learned.error(100, 0.01, hurst).path < max(balanced.path / 1.2, NEGLIGIBLE)
        assert learned.error(100, 0.01, hurst).step < 1.2 * max(balanced.step, balanced.path)
    same = noise(torch.tensor(0.51), bounds)  # what is learned does not move the rates
    np.testing.assert_array_equal(same.rates(100, 0.01), learned.rates(100, 0.01))


@pytest.mark.parametrize(("hurst", "most"), [(0.1, 0.042), (0.3, 0.004), (0.5, 1e-6), (0.7, 0.006), (0.9, 0.066)])
def test_sixteen_states_are_as_good_as_the_page_says(hurst, most):
    assert MarkovFractionalBrownian(hurst).error(1000, 1e-3).path < most
    for noise in (MarkovFractionalBrownian, MarkovRiemannLiouvilleBrownian):
        errors = [max(noise(hurst, n_states=k).error(50, 0.02).path, NEGLIGIBLE) for k in (4, 8, 16, 32)]
        assert errors == sorted(errors, reverse=True)


def test_a_learned_index_asks_for_the_number_whose_error_is_wanted():
    noise = MarkovFractionalBrownian(torch.tensor(0.3), (0.2, 0.4))
    with pytest.raises(ValueError, match=r"error\(hurst=None\): needs a number where the noise has a tensor"):
        noise.error(100, 0.01)
    assert noise.error(100, 0.01, 0.3).path < 0.02


def test_coloured_noise_becomes_brownian_motion_and_a_straight_line():
    np.testing.assert_allclose(Coloured(1e-9).covariance(5, 0.1), 0.1 * np.eye(5), rtol=0, atol=1e-8)
    slow = Coloured(1e9)  # the noise is one number of variance 1 / (2 tau)
    np.testing.assert_allclose(slow.covariance(5, 0.1), 0.1**2 / 2e9, rtol=1e-3)


@pytest.mark.parametrize("dt", [1e-6, 0.09, 0.11, 3.0])
def test_steps_of_coloured_noise_of_any_length_are_exact(dt):
    # The covariance of the path is tau (x - 1 + exp(-x)), of which two steps leave the exact correlation.
    noise = Coloured(1.0)
    x = increments(noise, 2, (200_000,), dt=dt, generator=generator(3), dtype=torch.float64).numpy()
    found, expected = np.cov(x), noise.covariance(2, dt)
    assert found / expected == pytest.approx(np.ones((2, 2)), abs=5 * math.sqrt(2 / 200_000))
    # What is new in the second step is a small part where dt is small, and must have its own variance.
    new, ratio = x[1] - x[0], expected[0, 1] / expected[0, 0]
    assert new.var() == pytest.approx(2 * expected[0, 0] * (1 - ratio), rel=5 * math.sqrt(2 / 200_000), abs=1e-30)


@pytest.mark.parametrize(("jumps", "mean"), [(NormalJumps(0.3, 0.5), 0.3), (ExponentialJumps(-0.4), -0.4)])
def test_a_compound_poisson_process_has_its_mean_and_variance(jumps, mean):
    rate, dt, paths = 3.0, 0.5, 200_000
    x = increments(CompoundPoisson(rate, jumps), 1, (paths,), dt=dt, generator=generator())[0].double()
    variance = rate * dt * jumps.mean_square
    assert float(x.mean()) == pytest.approx(rate * dt * mean, abs=4 * math.sqrt(variance / paths))
    assert float(x.var()) == pytest.approx(variance, abs=4 * float((x - x.mean()).square().std()) / math.sqrt(paths))
    none = math.exp(-rate * dt)
    assert float((x == 0).double().mean()) == pytest.approx(none, abs=4 * math.sqrt(none * (1 - none) / paths))


def test_jumps_are_counted_by_a_poisson_law():
    rate, dt, paths = 2.0, 0.7, 100_000
    counts = increments(CompoundPoisson(rate, FixedJumps()), 1, (paths,), dt=dt, generator=generator())[0].numpy()
    seen = np.array([(counts == k).sum() for k in range(7)] + [(counts > 6).sum()])
    law = stats.poisson(rate * dt)
    expected = paths * np.append(law.pmf(np.arange(7)), law.sf(6))
    assert stats.chisquare(seen, expected).pvalue > 1e-4


def test_gradients_reach_the_sizes_of_jumps():
    mean, deviation = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.3, 0.5))

    def draw(*law):
        noise = CompoundPoisson(2.0, NormalJumps(*law))
        return increments(noise, 5, (3,), dt=0.5, generator=generator(), dtype=torch.float64)

    assert torch.autograd.gradcheck(draw, (mean, deviation))


@pytest.mark.parametrize(("stability", "skewness"), [(0.7, 0.4), (1.4, -0.3), (1.8, 0.9)])
def test_gradients_reach_the_parameters_of_stable_noise(stability, skewness):
    parameters = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (stability, skewness)]

    def draw(*law):
        return increments(AlphaStable(*law), 5, (3,), dt=0.5, generator=generator(), dtype=torch.float64)

    assert torch.autograd.gradcheck(draw, parameters)
    fixed = increments(AlphaStable(stability, skewness), 5, (3,), dt=0.5, generator=generator(), dtype=torch.float64)
    torch.testing.assert_close(draw(*parameters), fixed)


def test_symmetric_stable_noise_may_be_learned_through_one():
    stability = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)

    def draw(value):
        return increments(AlphaStable(value), 5, (3,), dt=0.5, generator=generator(), dtype=torch.float64)

    assert torch.autograd.gradcheck(draw, (stability,))


def test_a_time_of_first_passage_is_positive_to_the_last_digit():
    # Stability 1/2, skewness 1: 1 / Z**2 times dt**2. Single precision meets the end of the uniform numbers.
    noise = AlphaStable(0.5, 1.0)
    x = increments(noise, 1, (400_000,), dt=2.0, generator=generator(1))[0].double().numpy()
    assert x.min() > 0
    assert stats.kstest(4 / x, stats.chi2(1).cdf).pvalue > 1e-3


REFUSALS = [
    (lambda: FractionalBrownian(1.2), "FractionalBrownian(hurst=1.2): needs 0 < hurst < 1; pass for example 0.3."),
    (lambda: FractionalBrownian(math.nan), "FractionalBrownian(hurst=nan): needs 0 < hurst < 1"),
    (lambda: RiemannLiouvilleBrownian((0.3, 0.0)), "RiemannLiouvilleBrownian(hurst=0): needs 0 < hurst < 1"),
    (lambda: FractionalBrownian([[0.3]]), "needs one number, or one for each channel"),
    (lambda: FractionalBrownian(0.3, (0.5, 1)), "needs hurst within its bounds; widen them."),
    (lambda: FractionalBrownian(0.3, (0.5, 0.4)), "needs 0 <= low < high <= 1; pass for example (0.5, 1)."),
    (lambda: MarkovFractionalBrownian((0.3, 0.4)), "needs one number; drive each channel by a noise of its own."),
    (lambda: MarkovFractionalBrownian(torch.tensor(0.3), (0.0, 1.0)), "within (0.05, 0.95), because at 0 and 1"),
    (lambda: MarkovRiemannLiouvilleBrownian(torch.tensor(0.3), (0.1, 0.99)), "needs bounds of a tensor within"),
    (lambda: MarkovFractionalBrownian(0.3, n_states=1), "MarkovFractionalBrownian(n_states=1): needs n_states >= 2"),
    (lambda: Coloured(0.0), "Coloured(correlation_time=0): needs a finite correlation_time > 0"),
    (lambda: Coloured((0.1, 0.2)), "Coloured(correlation_time of shape (2,)): needs one number"),
    (lambda: AlphaStable(2.1), "AlphaStable(stability=2.1): needs 0 < stability <= 2; pass for example 1.5."),
    (lambda: AlphaStable(1.5, -1.1), "AlphaStable(skewness=-1.1): needs -1 <= skewness <= 1; pass for example 0.0."),
    (lambda: AlphaStable((1.0, 1.5), 0.3), "needs no stability of 1 among several where there is skewness"),
    (lambda: CompoundPoisson(-1.0), "CompoundPoisson(rate=-1): needs a finite rate > 0; pass for example 1.0."),
    (lambda: NormalJumps(0.0, 0.0), "NormalJumps(deviation=0): needs a finite deviation > 0"),
    (lambda: NormalJumps(math.inf), "NormalJumps(mean=inf): needs a finite mean; pass for example 0.0."),
    (lambda: NoisePath(Brownian(), 10, (3,), dt=0.0), "NoisePath(dt=0.0): needs a finite dt > 0"),
    (lambda: NoisePath(Brownian(), 0, (3,), dt=0.1), "NoisePath(n_steps=0): needs n_steps >= 1"),
    (lambda: NoisePath(Brownian(), 1, (-3,), dt=0.1), "NoisePath(shape=-3): needs shape >= 0"),
    (lambda: NoisePath(Brownian(), 1, (), dt=0.1, dtype=torch.int64), "NoisePath(dtype=torch.int64): needs a floating"),
    (lambda: NoisePath(FractionalBrownian((0.3, 0.4)), 1, (3,), dt=0.1), "needs (2,) as its last axes"),
    (
        lambda: NoisePath(Brownian(), 1, (3,), dt=0.1, generator=generator(), device="meta"),
        "NoisePath(generator on cpu, device=meta): needs a generator of the device",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_bad_input_is_refused_with_the_way_out(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: FractionalBrownian("rough"),
        lambda: FractionalBrownian(0.3, 0.5),  # type: ignore[arg-type]
        lambda: CompoundPoisson(torch.tensor(1.0)),
    ],
)
def test_what_is_no_number_is_a_type_error(make):
    with pytest.raises(TypeError, match=r"needs (a number|one number|two numbers)"):
        make()


def test_numpy_refuses_too():
    with pytest.raises(ValueError, match=re.escape("increments(n_steps=0): needs n_steps >= 1")):
        numpy_increments(Brownian(), 0, dt=0.1, rng=np.random.default_rng(0))
    with pytest.raises(ValueError, match=re.escape("needs (2,) as its last axes")):
        numpy_increments(FractionalBrownian((0.3, 0.4)), 4, (3,), dt=0.1, rng=np.random.default_rng(0))
