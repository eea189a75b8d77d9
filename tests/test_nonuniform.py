"""Operators at times that are not equally spaced: weights, orders of convergence, identities, refusals."""

import itertools
import math
import re

import mpmath
import numpy as np
import pytest

import hpfracc_nn as fnn
from hpfracc_nn.fractional import DEFINITIONS, SCHEMES, Caputo, RiemannLiouville, RiemannLiouvilleIntegral, exact
from hpfracc_nn.fractional.exponentials import POWER_TOLERANCES, power_nodes
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.product_integration import LENGTH, OP, cellwise, fixed_weights, workload
from hpfracc_nn.fractional.sample_times import Times
from hpfracc_nn.fractional.schemes.cells import moments
from hpfracc_nn.selection import BackendManager, Settings, kernels

ANY_TIMES = [
    (kind, scheme)
    for kind in (Caputo, RiemannLiouville, RiemannLiouvilleIntegral)
    for scheme in kind.schemes
    if SCHEMES[scheme].pieces is not None
]
KERNELS = kernels(OP, "numpy")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
every_scheme = pytest.mark.parametrize(("kind", "scheme"), ANY_TIMES)


def manager_for(kernel):
    return BackendManager(
        Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm, calibration="shipped", mode="prior")
    )


def random_times(n, seed=0, last=1.0):
    """Return n + 1 times from 0 on whose steps differ tenfold."""
    steps = np.random.default_rng(seed).uniform(0.1, 1, n)
    return last * np.concatenate([[0], np.cumsum(steps) / steps.sum()])


def rates(errors):
    return [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]


# The weights


@pytest.mark.parametrize("power", [0.0, 1e-8, 0.3, 1.0, 1.7])
def test_the_integrals_over_cells_agree_with_mpmath(power):
    lengths = np.array([1e-6, 3.0, 1e-3, 1.0, 2e-4, 0.5, 0.01])  # near and far cells, both orders of lengths
    times = np.concatenate([[0], np.cumsum(lengths)])
    rows = range(1, times.size)
    zeroth, first = moments(np.array([power]), times, rows, range(lengths.size), NUMPY)
    with mpmath.workdps(40):
        p, t = mpmath.mpf(power), [mpmath.mpf(each) for each in times.tolist()]
        for n, i in itertools.product(rows, range(lengths.size)):
            got = zeroth[0, n - 1, i], first[0, n - 1, i]
            if i >= n:
                assert got == (0, 0)
                continue
            far, near, half = t[n] - t[i], t[n] - t[i + 1], (t[i + 1] - t[i]) / 2
            integral = (far**p - (near**p if near else 0)) * mpmath.rgamma(p + 1)
            weighted = (far ** (p + 1) - near ** (p + 1)) * p * mpmath.rgamma(p + 2)  # of t_n - s
            moment = (integral * (far - half) - weighted) / half
            # The times themselves are rounded: their differences to eps t / (t_n - t_(i+1)).
            noise = 1e-15 * times[n] / min(x for x in (float(near), float(half)) if x > 0)
            assert got[0] == pytest.approx(float(integral), rel=1e-13 + noise)
            assert got[1] == pytest.approx(float(moment), rel=1e-13 + 30 * noise, abs=1e-14 * abs(float(integral)))


@pytest.mark.parametrize("power", [0.0, 1e-12, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("span", [1.0, 20.0, 1e6, 1e15])
@pytest.mark.parametrize("precision", POWER_TOLERANCES)
def test_a_power_is_a_sum_of_exponentials_on_any_interval(precision, span, power):
    found = power_nodes(7.0 / span, 7.0, precision)
    t = np.geomspace(7.0 / span, 7.0, 300)
    sums = found.coefficients(np.array([power]), NUMPY) @ np.exp(-np.outer(found.rates, t))
    wanted = [float(mpmath.mpf(each) ** (power - 1) * mpmath.rgamma(power)) for each in t]
    np.testing.assert_allclose(sums, wanted, rtol=POWER_TOLERANCES[precision])


@pytest.mark.parametrize("make", [random_times, lambda n: np.linspace(0, 1, n + 1) ** 8], ids=["random", "graded"])
@every_kernel
@every_scheme
def test_every_kernel_gives_the_weights(kind, scheme, kernel, make):
    for n, alpha in ((1, 0.4), (LENGTH, 0.0), (LENGTH + 1, 1.0), (5 * LENGTH - 3, 0.3), (5 * LENGTH - 3, 1.6)):
        times, definition = make(n), kind(alpha, scheme)
        formulas = cellwise("test", definition)
        if kernel.algorithm != "dense" and formulas.power(alpha) > 1 and n > LENGTH:
            with pytest.raises(LookupError, match="above order 1 an integral's memory grows"):
                definition(times, t=times, manager=manager_for(kernel))
            continue
        x = np.random.default_rng(1).standard_normal((3, n + 1))
        grid = Times(times[None])
        pieces = np.concatenate(formulas.pieces(x[None], grid, NUMPY), axis=-1)[0]
        weights = fixed_weights(
            np.array([[formulas.power(alpha)]]), grid, formulas.inputs, np.dtype(float)
        ).dense.weights[0]
        wanted = np.zeros(x.shape)
        wanted[:, 1:] = pieces @ weights.T
        size = np.abs(pieces) @ np.abs(weights).T
        columns = formulas.columns(np.array([[alpha]]), grid)
        if columns is not None:
            heads = formulas.heads(x[None], grid, NUMPY)
            for column, head in zip(columns(np.array([[alpha]]), NUMPY)[0].T, heads, strict=True):
                wanted += column * head[0]
        got = definition(x, t=times, manager=manager_for(kernel))
        assert np.all(np.abs(got - wanted)[:, 1:] <= 1e-11 * size + 1e-14 * np.abs(wanted[:, 1:]))  # as certified
        single = definition(x.astype(np.float32), t=times, manager=manager_for(kernel))
        rounded = definition(x.astype(np.float32).astype(np.float64), t=times)
        assert np.all(np.abs(single - rounded)[:, 1:] <= 2e-6 * size + 2e-7 * np.abs(rounded[:, 1:]))  # n eps at most


@every_kernel
def test_every_adjoint_is_the_transpose(kernel):
    rng, times = np.random.default_rng(0), Times(random_times(3 * LENGTH + 5)[None])
    weights = fixed_weights(np.array([[0.4]]), times, 2, np.dtype(float))
    z, g = rng.standard_normal((1, 2, 2, times.cells)), rng.standard_normal((1, 2, times.cells))
    operator = kernel.prepare(weights, workload("numpy", weights, z))
    assert np.vdot(kernel.run(operator, z), g) == pytest.approx(np.vdot(z, kernel.adjoint(operator, g)), rel=1e-12)


# Equal steps


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 1.9, 2.0])
@every_scheme
def test_equal_times_give_the_result_of_equal_steps(kind, scheme, alpha):
    definition, dt = kind(alpha, scheme), 0.07
    for n in (2, 3, 4, 80):
        x = np.random.default_rng(n).standard_normal((2, n))
        wanted = definition(x, dt=dt)
        got = definition(x, t=5 + dt * np.arange(n))
        # Differences of times near 5 are rounded to 1e-14 of the step, and samples to eps.
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12 * np.abs(x).max() / min(dt**alpha, 1))


# Convergence


@pytest.mark.parametrize("alpha", [0.3, 0.5, 0.8])
@pytest.mark.parametrize(("scheme", "order"), [("l1", 2), ("l1_2", 3)])
def test_graded_times_keep_the_order_of_data_that_begin_like_a_power(scheme, order, alpha):
    definition, errors = Caputo(alpha, scheme), []
    for n in (200, 400, 800):
        t = (np.arange(n + 1) / n) ** ((order - alpha) / alpha)
        wanted = math.gamma(1 + alpha) + exact.power(t, 2, definition)
        errors.append(np.abs(definition(t**alpha + t**2, t=t) - wanted)[t > 0.1].max())
    assert min(rates(errors)) > order - alpha - 0.1, errors


@pytest.mark.parametrize(
    ("definition", "order"),
    [
        (Caputo(0.5, "l1"), 1.5),
        (Caputo(0.5), 2.5),
        (RiemannLiouville(0.3, "l1_2"), 2.7),
        (RiemannLiouvilleIntegral(0.5), 2),
        (RiemannLiouvilleIntegral(1.4), 2),
        (Caputo(1.5, "l1"), 1.5),
        (Caputo(1.5), 1.5),  # a last step that is short beside the one before costs 3/2 - 1/2 orders of its own
    ],
    ids=repr,
)
def test_random_times_converge(definition, order):
    errors = []
    for n in (100, 800):
        worst = []
        for seed in range(5):
            t = random_times(n, seed, last=2.0)
            y, points = definition(np.exp(-t), t=t), t > 0.1
            worst.append(np.abs(y[points] - exact.exponential(t[points], -1, definition)).max())
        errors.append(np.median(worst))
    assert math.log2(errors[0] / errors[1]) / 3 > order - 0.35, errors


@pytest.mark.parametrize("alpha", [0.4, 1.0, 1.6])
@every_scheme
def test_lines_are_exact(kind, scheme, alpha):
    definition, t = kind(alpha, scheme), random_times(60, last=3.0)
    wanted = 2 * exact.power(t, 0, definition) - 5 * exact.power(t, 1, definition)
    got = definition(2 - 5 * t, t=4 + t)
    # Samples of size 17, times near 5 and steps from 1e-2 on: rounding grows like eps 17 / step**alpha.
    np.testing.assert_allclose(got[1:], wanted[1:], rtol=1e-10, atol=2e-11 if alpha > 1 else 1e-12)


@pytest.mark.parametrize("alpha", [1.001, 1.4, 2.0])
@pytest.mark.parametrize("scheme", ["l1", "l1_2"])
@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville])
def test_above_one_parabolas_are_exact_from_the_second_sample_on(kind, scheme, alpha):
    definition, t = kind(alpha, scheme), random_times(60, last=3.0)
    # Samples of size 9 and steps from 1e-2 on: rounding grows like eps 9 / step**alpha.
    np.testing.assert_allclose(definition(t**2, t=t)[1:], exact.power(t[1:], 2, definition), rtol=0, atol=2e-11)


# Shapes


def test_signals_may_have_their_own_times_and_orders():
    rng = np.random.default_rng(0)
    x, t = rng.standard_normal((2, 3, 50)), np.stack([random_times(49, seed) for seed in range(2)])[:, None]
    alpha = np.array([0.2, 0.5, 0.8])
    got = Caputo(alpha)(x, t=t)
    for i, j in itertools.product(range(2), range(3)):
        np.testing.assert_allclose(got[i, j], Caputo(alpha[j])(x[i, j], t=t[i, 0]), rtol=0, atol=1e-12)
    np.testing.assert_allclose(Caputo(0.5)(x, t=t), Caputo([0.5, 0.5, 0.5])(x, t=t), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_time_may_be_any_axis(dim):
    x, t = np.random.default_rng(0).standard_normal((2, 3, 40)), random_times(39)
    moved = np.moveaxis(x, -1, dim)
    np.testing.assert_array_equal(Caputo(0.5)(moved, t=t, dim=dim), np.moveaxis(Caputo(0.5)(x, t=t), -1, dim))
    own = np.moveaxis(np.stack([random_times(39, seed) for seed in range(3)])[None], -1, dim)
    got = np.moveaxis(Caputo(0.5)(moved, t=own, dim=dim), dim, -1)
    np.testing.assert_allclose(got, Caputo(0.5)(x, t=np.moveaxis(own, dim, -1)), rtol=0, atol=1e-12)


@every_scheme
def test_few_samples(kind, scheme):
    assert kind(0.5, scheme)(np.zeros((2, 0)), t=np.zeros(0)).shape == (2, 0)
    if kind is not RiemannLiouville:
        np.testing.assert_array_equal(kind(0.5, scheme)([3.0], t=[1.0]), [0.0])
    assert np.isfinite(kind(1.5, scheme)([3.0, 1.0], t=[1.0, 1.5])).all()


def test_all_doors_take_times():
    t = random_times(20)
    for x in (t**2, (t**2).astype(np.float32)):
        wanted = fnn.derivative(x, Caputo(0.5), t=t)
        np.testing.assert_array_equal(Caputo(0.5)(x, t=t), wanted)
        np.testing.assert_array_equal(fnn.caputo(x, 0.5, t=list(t)), wanted)
        assert wanted.dtype == x.dtype
        np.testing.assert_allclose(fnn.riemann_liouville(x, 0.5, scheme="l1_2", t=t), wanted, rtol=1e-5, atol=1e-12)
        np.testing.assert_array_equal(fnn.integral(x, 0.5, t=t), RiemannLiouvilleIntegral(0.5)(x, t=t))


def test_data_and_times_are_left_alone_and_kept_weights_do_not_follow_them():
    x, t = random_times(20) ** 2, random_times(20)
    before = x.copy(), t.copy()
    first = Caputo(0.5)(x, t=t)
    np.testing.assert_array_equal((x, t), before)
    t *= 2
    np.testing.assert_allclose(Caputo(0.5)(x, t=t), first / 2**0.5, rtol=1e-13, atol=1e-15)


def test_a_sample_that_is_not_finite_spoils_its_own_row_only():
    x, t = np.random.default_rng(0).standard_normal((2, 90)), random_times(89)
    spoilt = x.copy()
    spoilt[0, 30] = math.inf
    np.testing.assert_array_equal(Caputo(0.5)(spoilt, t=t)[1], Caputo(0.5)(x, t=t)[1])


# Refusals

X, T = np.zeros((2, 4)), np.array([0.0, 1.0, 1.5, 4.0])
REFUSED = [
    (
        lambda: Caputo(0.5)(X, t=[0, 2, 1, 3]),
        ValueError,
        "Caputo(t): needs times that increase; t[2]=1 follows t[1]=2: "
        "sort the samples by time and merge those of one time.",
    ),
    (
        lambda: Caputo(0.5)(X, t=[0, 1, 1, 3]),
        ValueError,
        "Caputo(t): needs times that increase; t[2]=1 follows t[1]=1: "
        "sort the samples by time and merge those of one time.",
    ),
    (
        lambda: Caputo(0.5)(X, t=[T, T[::-1]]),
        ValueError,
        "Caputo(t): needs times that increase; t[1, 1]=1.5 follows t[1, 0]=4: "
        "sort the samples by time and merge those of one time.",
    ),
    (
        lambda: Caputo(0.5)(X, t=[0, 1, math.nan, 3]),
        ValueError,
        "Caputo(t): needs finite times; t[2]=nan: leave such samples out.",
    ),
    (
        lambda: Caputo(0.5)(X, t=T[:3]),
        ValueError,
        "Caputo(t of shape (3,), x of shape (2, 4)): needs one number for each of the 4 samples along dim; "
        "pass t of that length, or of x's shape.",
    ),
    (
        lambda: Caputo(0.5)(X, t=np.broadcast_to(T, (3, 4))),
        ValueError,
        "Caputo(t of shape (3, 4), x of shape (2, 4)): needs t to broadcast to x; "
        "pass one row, or one for each signal, shaped to fit.",
    ),
    (
        lambda: Caputo(0.5)(X, t=T * 1j),
        TypeError,
        "Caputo(t of dtype complex128): needs real times; pass them as float64 in one unit of time.",
    ),
    (
        lambda: fnn.derivative(X, Caputo(0.5), t=T, dt=0.1),
        ValueError,
        "derivative(dt=0.1, t=...): needs one of the two; the times say how far apart samples are.",
    ),
    (
        lambda: fnn.derivative(X, RiemannLiouville(0.5), t=T),
        ValueError,
        "derivative(RiemannLiouville(scheme='bdf2'), t=...): needs a scheme that takes any steps; "
        "pass scheme='l1' or 'l1_2', or dt.",
    ),
    (
        lambda: RiemannLiouville(0.5, "l1")([1.0], t=[0.0]),
        ValueError,
        "RiemannLiouville(t of one time): needs two times or more, because the first step scales the first sample, "
        "where this derivative is infinite; pass more samples, or dt.",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_bad_times_are_refused_by_name(call, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        call()


@pytest.mark.parametrize("kind", [kind for kind in DEFINITIONS.values() if (kind, kind.schemes[0]) not in ANY_TIMES])
def test_definitions_that_need_equal_steps_say_so(kind):
    with pytest.raises(ValueError, match=r"at times that are not equally spaced; pass one of these, or dt\.$"):
        kind(0.5)(X, t=T)
