"""Where the clock begins is nothing to an operator: times t and t - t[0], subtracted exactly, give the same result."""

import re

import numpy as np
import pytest
import torch

from hpfracc_nn import Caputo, RiemannLiouville, derivative, integral, variable_order

jax = pytest.importorskip("jax")

N = 100  # several chunks of cells
X = np.random.default_rng(0).standard_normal((2, N)).cumsum(-1)
STEPS = np.random.default_rng(1).integers(1, 10**7, N - 1)
SINCE = np.concatenate([[0], np.cumsum(STEPS)])  # of integers: up to 5e8
ORDERS = 0.5 + 0.3 * np.sin(np.arange(N))
ALPHAS = np.array([0.3, 0.8])

FRAMEWORKS = {
    "numpy": (np.asarray, np.asarray),
    "torch": (torch.as_tensor, torch.as_tensor),
    "jax": (jax.numpy.asarray, np.asarray),  # whose own times are narrowed without 64 bit types
}
CALLS = {
    "derivative": lambda x, t, place: derivative(x, Caputo(ALPHAS), t=t),
    "above-one": lambda x, t, place: derivative(x, RiemannLiouville(1.6, "l1_2"), t=t),
    "integral": lambda x, t, place: integral(x, 0.4, t=t),
    "variable-order": lambda x, t, place: variable_order(x, ORDERS, t=t),
    "learned": lambda x, t, place: derivative(x, Caputo(place(ALPHAS)), t=t),
}
every_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
every_framework = pytest.mark.parametrize(("place", "times"), FRAMEWORKS.values(), ids=FRAMEWORKS)


def both(call, place, times, t, since):
    with jax.enable_x64(True):
        return [np.asarray(call(place(X), times(each), place)) for each in (t, since)]


@every_call
@every_framework
@pytest.mark.parametrize("begin", [1_700_000_000, 10**12, -(10**9)])
def test_seconds_since_an_epoch_lose_no_digit(place, times, begin, call):
    """The times are those that float64 holds, 2e-7 apart in 2023: how they were rounded before is not told."""
    t = begin + 1e-8 * SINCE  # steps of up to 0.1
    t = begin + 1e-3 * np.arange(N) + 0 * t if begin == 10**12 else t  # 1e12: 1.2e-4 apart
    found, wanted = both(call, place, times, t, t - t[0])  # Sterbenz: no difference is rounded
    np.testing.assert_array_equal(found, wanted)


@every_call
@every_framework
def test_integer_nanoseconds_are_exact(place, times, call):
    t = 1_700_000_000_123_456_789 + SINCE
    found, wanted = both(call, place, times, t, SINCE.astype(np.float64))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64])
def test_integers_of_any_width_do_not_overflow(dtype):
    ends = np.iinfo(dtype)
    t = np.array([ends.min, ends.min + 1, ends.max // 3, ends.max // 3 * 2, ends.max], dtype)
    since = np.array([int(each) - int(t[0]) for each in t], np.float64)
    x = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    np.testing.assert_array_equal(Caputo(0.5)(x, t=t), Caputo(0.5)(x, t=since))
    with pytest.raises(ValueError, match=r"needs times that increase; t\[1\]="):
        Caputo(0.5)(x, t=t[::-1])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble])
def test_floats_of_any_width_are_subtracted_before_they_are_rounded(dtype):
    t = (1000 + np.cumsum([0.0, 0.5, 1.0, 0.5, 2.5])).astype(dtype)  # held by float16
    t = t if dtype is not np.longdouble else t + dtype(2) ** 60
    since = np.array([0.0, 0.5, 1.5, 2.0, 4.5])
    x = np.array([1.0, 3.0, 2.0, 5.0, 4.0])
    np.testing.assert_array_equal(Caputo(0.5)(x, t=t), Caputo(0.5)(x, t=since))


def test_each_signal_has_an_origin_of_its_own():
    t = np.stack([SINCE, 1_700_000_000_000_000_000 + SINCE])
    found = Caputo(0.5)(X, t=t)
    wanted = Caputo(0.5)(X, t=np.stack([SINCE, SINCE]))
    np.testing.assert_array_equal(found, wanted)


def test_steps_that_the_time_since_the_first_swallows_are_refused():
    message = (
        "Caputo(t): needs times whose distance from the first is told apart in float64; t[2]=1e-20 follows t[1]=0: "
        "merge such samples, or begin later."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Caputo(0.5)(np.ones(3), t=[-1.0, 0.0, 1e-20])


def test_dates_are_refused_with_the_way_that_keeps_their_digits():
    t = np.datetime64("2023-11-14T00:00:00.000000001") + SINCE.astype("timedelta64[ns]")
    message = (
        "Caputo(t of dtype datetime64[ns]): needs real times; pass them since the first, in one unit of time, such as "
        "(t - t[0]) / numpy.timedelta64(1, 's')."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        Caputo(0.5)(X, t=t)
    seconds = (t - t[0]) / np.timedelta64(1, "s")
    wanted = Caputo(0.5)(X, t=SINCE) * 1e9**0.5
    np.testing.assert_allclose(Caputo(0.5)(X, t=seconds), wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())
