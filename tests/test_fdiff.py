"""Differences of any order, as numpy.diff takes those of whole order."""

import math
import re
from typing import Any

import numpy as np
import pytest
from scipy.special import gammaln, gammasgn

from hpfracc_nn import fdiff
from hpfracc_nn.selection import BackendManager, Settings

torch = pytest.importorskip("torch")

ORDERS = (-2.5, -1, -0.3, 0, 0.3, 1, 1.6, 2, 4.5)
WINDOWS = (None, 1, 7, 70, 200)
FRAMEWORKS: dict[str, tuple[Any, Any]] = {
    "numpy": (np.asarray, np.asarray),
    "torch": (torch.as_tensor, lambda y: y.detach().numpy()),
}
frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)


def differenced(framework, a, *args, **options):
    into, out = FRAMEWORKS[framework]
    return out(fdiff(into(a), *args, **options))


def sliding(a, n, window):
    """The sum over lags along the last axis, sample by sample."""
    weights = np.cumprod([1.0, *((k - 1 - n) / k for k in range(1, a.shape[-1]))])[:window]
    reach = [min(t + 1, len(weights)) for t in range(a.shape[-1])]
    return np.stack([(weights[:m] * a[..., t - m + 1 : t + 1][..., ::-1]).sum(-1) for t, m in enumerate(reach)], -1)


@pytest.fixture
def a():
    return np.random.default_rng(0).standard_normal((2, 150))


@frameworks
@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered")  # the 149th difference of half precision
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64", "uint8", "bool", "complex128"])
def test_at_a_whole_order_it_is_diff_bit_for_bit(a, framework, dtype):
    a = (10 * a).astype(np.int64) if dtype in ("int64", "uint8", "bool") else a + 1j if dtype == "complex128" else a
    a = a.astype(dtype)
    for n, axis in ((0, 0), (0, 1), (1, 0), (1, 1), (2.0, 0), (2.0, 1), (5, 1), (149, 1), (150, 1), (160, 1)):
        expected = np.diff(a, int(n), axis)
        if framework == "torch":
            expected = torch.diff(torch.as_tensor(a), int(n), axis).numpy()
        found = differenced(framework, a, n, axis, mode="valid")
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected, equal_nan=True)
        same = differenced(framework, a, n, axis)
        assert same.shape == a.shape
        later = np.take(same, range(min(int(n), a.shape[axis]), a.shape[axis]), axis)
        assert np.array_equal(later, expected, equal_nan=True)


@frameworks
@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_sums_undo_whole_differences_in_the_same_dtype(a, framework, dtype):
    a = (100 * abs(a)).astype(np.int64).astype(dtype)
    found = differenced(framework, differenced(framework, a, 2), -2)
    assert found.dtype == a.dtype
    assert np.array_equal(found, a)
    assert np.array_equal(differenced(framework, a, -1), np.cumsum(a, -1, dtype=a.dtype))


@frameworks
@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_sums_of_short_integers_are_those_of_cumsum_and_do_not_wrap(framework, dtype):
    ones = np.ones(1000, dtype)
    found = differenced(framework, ones, -1)
    expected = np.cumsum(ones) if framework == "numpy" else torch.cumsum(torch.as_tensor(ones), -1).numpy()
    assert found.dtype == expected.dtype
    assert found[-1] == 1000
    assert differenced(framework, ones, -2)[-1] == 1000 * 1001 / 2


@frameworks
def test_sums_of_half_precision_do_not_stand_still(framework):
    """4096 ones: the sum is a float16, and 2048 + 1 is not."""
    found = differenced(framework, np.ones(4096, np.float16), -1)
    assert found.dtype == np.float16
    assert found[-1] == 4096
    assert fdiff(torch.ones(4096, dtype=torch.bfloat16), -1)[-1] == 4096


@frameworks
@pytest.mark.parametrize("n", [0.4, -0.4, 1.4, -1.4])
@pytest.mark.parametrize("window", [None, 7, 1000])
@pytest.mark.parametrize("gap", [np.nan, np.inf])
def test_a_gap_leaves_nan_in_its_window_only(framework, n, window, gap):
    a = np.random.default_rng(2).standard_normal((3, 300))
    holed = a.copy()
    holed[0, 120], holed[1, [5, 200]] = gap, gap
    found = differenced(framework, holed, n, window=window)
    lags = np.arange(300)[:, None] - np.arange(300)
    seen = (lags >= 0) & (lags < (window or 300))
    reached = (~np.isfinite(holed)) @ seen.T
    assert np.array_equal(np.isnan(found), reached)
    whole = differenced(framework, np.where(np.isfinite(holed), holed, 0), n, window=window)
    assert np.allclose(found[~reached], whole[~reached], rtol=1e-12, atol=1e-12)
    assert np.allclose(differenced(framework, holed.T, n, 0, window), found.T, rtol=0, atol=1e-9, equal_nan=True)


@frameworks
def test_a_gap_in_the_imaginary_part_leaves_the_real_one(framework):
    z = np.ones(50, np.complex128)
    z.imag[20] = np.nan
    found = differenced(framework, z, 0.4)
    assert np.allclose(found.real, differenced(framework, np.ones(50), 0.4))
    assert np.isnan(found.imag[20:]).all()
    assert (found.imag[:20] == 0).all()


def test_gradients_pass_by_a_gap():
    a = torch.ones(30, dtype=torch.float64)
    a[20] = torch.nan
    a.requires_grad_()
    (slope,) = torch.autograd.grad(fdiff(a, 0.4)[:20].sum(), a)
    (expected,) = torch.autograd.grad(fdiff(a[:20], 0.4).sum(), a)
    assert torch.allclose(slope, expected)


@pytest.mark.parametrize("n", [-1, 0.4, 1, 1.4])
def test_samples_of_the_other_byte_order_are_taken(a, n):
    swapped = a.astype(a.dtype.newbyteorder())
    found = fdiff(swapped, n)
    assert found.dtype == np.float64
    assert found.dtype.isnative
    assert np.array_equal(found, fdiff(a, n))


@frameworks
@pytest.mark.parametrize("n", ORDERS)
def test_it_is_the_sum_over_the_lags_of_the_window(a, framework, n):
    for window in WINDOWS:
        expected = sliding(a, n, window)
        near = {"rtol": 0, "atol": 1e-13 * 150 * np.abs(expected).max()}  # 150 products and their weights, rounded
        assert np.allclose(differenced(framework, a, n, window=window), expected, **near)
        assert np.allclose(differenced(framework, a.T, n, 0, window).T, expected, **near)
        if window is not None:
            found = differenced(framework, a, n, window=window, mode="valid")
            assert found.shape[-1] == max(0, 150 - window + 1)
            assert np.allclose(found, expected[:, window - 1 :], **near)


@pytest.mark.parametrize("n", [-1.4, 0.4, 1.0, 2.3])
@pytest.mark.parametrize("window", [None, 6])
def test_its_gradients_in_samples_and_order_are_those_of_differences(n, window):
    a = torch.as_tensor(np.random.default_rng(1).standard_normal((2, 12))).requires_grad_()
    order = torch.tensor(n, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, n: fdiff(a, n, window=window), (a, order))
    assert torch.autograd.gradcheck(lambda a: fdiff(a, n, window=window), (a,))
    found = fdiff(a, order, window=window).detach().numpy()
    assert np.allclose(found, sliding(a.detach().numpy(), n, window), rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 6])
def test_forward_mode_and_maps_follow_it(window):
    a, order = torch.randn(3, 20, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    (_, moved) = torch.func.jvp(lambda n: fdiff(a, n, window=window), (order,), (one,))
    step = 1e-6
    expected = (fdiff(a, 0.4 + step, window=window) - fdiff(a, 0.4 - step, window=window)) / (2 * step)
    assert torch.allclose(moved, expected, rtol=0, atol=1e-8)  # step**2 and rounding / step
    assert torch.equal(torch.vmap(lambda a: fdiff(a, 1))(a), fdiff(a, 1))
    assert torch.allclose(torch.vmap(lambda a: fdiff(a, 0.4, window=window))(a), fdiff(a, 0.4, window=window))


@frameworks
@pytest.mark.parametrize("n", [0.3, 0.5, -0.4])
def test_of_ones_it_leaves_the_partial_sums_of_the_weights(framework, n):
    length = 5000
    t = np.arange(length)
    size = gammaln(t + 1 - n) - gammaln(t + 1) - gammaln(1 - n)
    expected = gammasgn(1 - n) * np.exp(size)  # the coefficients of (1 - z)**(n - 1)
    assert np.allclose(differenced(framework, np.ones(length), n), expected, rtol=1e-11)


@frameworks
def test_the_opposite_order_undoes_it(a, framework):
    for n in (0.4, 1.7):
        assert np.allclose(differenced(framework, differenced(framework, a, n), -n), a, rtol=0, atol=1e-11)


@frameworks
def test_parts_of_complex_samples_are_taken_apart(a, framework):
    z = a + 1j * a[::-1]
    for window in (None, 9):
        found = differenced(framework, z, 0.4, window=window)
        expected = (
            differenced(framework, z.real, 0.4, window=window),
            differenced(framework, z.imag, 0.4, window=window),
        )
        assert np.allclose(found, expected[0] + 1j * expected[1], rtol=0, atol=1e-13)
    assert differenced(framework, z.astype(np.complex64), 1.5).dtype == np.complex64


@pytest.mark.parametrize("n", [0.5, 1.5, -1.5])
def test_integers_become_floats_where_the_order_is_not_whole(n):
    assert fdiff(np.arange(5, dtype=np.int8), n).dtype == np.float64
    assert fdiff(torch.arange(5), n).dtype == torch.get_default_dtype()
    assert fdiff(np.arange(5, dtype=np.float32), n).dtype == np.float32
    assert fdiff(torch.arange(5, dtype=torch.bfloat16), n).dtype == torch.bfloat16


def test_the_samples_stay_as_they_are_and_are_not_shared(a):
    kept = a.copy()
    for n in ORDERS:
        fdiff(a, n)[...] = 7.0
        fdiff(torch.from_numpy(a), n).fill_(7.0)
    assert np.array_equal(a, kept)


def test_lists_and_empty_series_are_taken():
    assert fdiff([1, 4, 9], 1).tolist() == [1, 3, 5]
    for n in (0.5, 1, -1):
        assert fdiff(np.ones((3, 0)), n).shape == (3, 0)
        assert fdiff(torch.ones(3, 0), n, window=2, mode="valid").shape == (3, 0)


def test_the_manager_is_asked_in_both_frameworks(a):
    for take, framework, site in ((np.asarray, "numpy", "numpy"), (torch.as_tensor, "torch", "functions")):
        manager = BackendManager(Settings(mode="prior", wisdom="off"))
        fdiff(take(a), 0.4, manager=manager)
        fdiff(take(a), 0.4, window=9, manager=manager)
        assert len(manager.shared_site("toeplitz", framework, site).plans()) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what dynamo tells about its own parts
def test_it_is_compiled_whole_where_the_order_is_a_number():
    a = torch.randn(3, 50, dtype=torch.float64)
    whole = torch.compile(lambda a: fdiff(a, 0.4) + fdiff(a, 1) + fdiff(a, 1.4), fullgraph=True)
    assert torch.allclose(whole(a), fdiff(a, 0.4) + fdiff(a, 1) + fdiff(a, 1.4))
    assert torch.allclose(torch.compile(lambda a: fdiff(a, 0.4, window=7))(a), fdiff(a, 0.4, window=7))


X = np.ones(5)
FAULTS = [
    ((X, "a"), {}, TypeError, "fdiff(n of type str): needs a real number; pass for example n=0.5, or a layer"),
    ((X, True), {}, TypeError, "fdiff(n of type bool): needs a real number"),
    ((X, math.nan), {}, ValueError, "fdiff(n=nan): needs a finite n; pass for example n=0.5."),
    ((X, [0.3, 0.4]), {}, TypeError, "fdiff(n of type list): needs a real number"),
    ((X, torch.tensor(0.4)), {}, TypeError, "fdiff(n of type Tensor): needs a real number"),
    ((torch.ones(5), torch.tensor([0.4])), {}, TypeError, "fdiff(n: torch.float32 tensor of shape (1,)): needs a"),
    ((torch.ones(5), torch.tensor(1)), {}, TypeError, "fdiff(n: torch.int64 tensor of shape ()): needs a floating"),
    ((X, 0.4), {"axis": 1}, ValueError, "fdiff(axis=1): needs -1 <= axis < 1 for 1 axes; pass the index of"),
    ((np.float64(2.0), 0.4), {}, ValueError, "fdiff(a): needs at least one axis; a has shape (), pass a series"),
    ((X, 0.4), {"window": 0}, ValueError, "fdiff(window=0): needs window >= 1; pass a whole number such as 1."),
    ((X, 0.4), {"window": 2.0}, TypeError, "fdiff(window=2.0): needs an integer; pass a whole number such as 1."),
    ((X, 0.4), {"mode": "full"}, ValueError, "fdiff(mode='full'): needs one of 'same', 'valid'; pass one of"),
    ((X, 0.4), {"mode": "valid"}, ValueError, "fdiff(n=0.4, mode='valid'): needs a window, because without one"),
    ((X, -1), {"mode": "valid"}, ValueError, "fdiff(n=-1, mode='valid'): needs a window, because without one"),
    (
        (torch.ones(5), torch.tensor(1.0)),
        {"mode": "valid"},
        ValueError,
        "fdiff(n=tensor, mode='valid'): needs a window",
    ),
    ((np.array(["a"]), 1), {}, TypeError, "fdiff(a of dtype <U1): needs numbers; pass a.astype(numpy.float64)."),
    ((X.astype(np.longdouble), 0.4), {}, TypeError, f"fdiff(a of dtype {np.dtype(np.longdouble)}): needs float64 or"),
    ((X, 0.4), {"manager": "fft"}, TypeError, "fdiff(manager='fft'): needs a BackendManager; pass None for the"),
    ((torch.ones(5).to_sparse(), 1), {}, TypeError, "fdiff(a of layout torch.sparse_coo): needs a dense tensor"),
]


@pytest.mark.parametrize(("given", "options", "kind", "message"), FAULTS, ids=[fault[3][:40] for fault in FAULTS])
def test_what_cannot_be_differenced_is_an_error(given, options, kind, message):
    with pytest.raises(kind, match=f"^{re.escape(message)}"):
        fdiff(*given, **options)
