"""The operators on NumPy arrays: the public call is the stencil's matrix, for any shape, dtype and kernel."""

import copy
import gc
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpfracc_nn as fnn
from hpfracc_nn.fractional import DEFINITIONS, exact
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy.kernels import dense  # registers the kernels
from hpfracc_nn.selection import BackendManager, Machine, Settings, Workload, kernels, probe

EPS = np.finfo(float).eps
KERNELS = kernels("toeplitz", "numpy")
REGISTERED = [(definition, scheme) for definition in DEFINITIONS.values() for scheme in definition.schemes]
ALPHAS = (0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 1.9, 2.0)
SIZES = (1, 2, 3, 4, 5, 63, 64, 65, 200)
DT = 0.25


@pytest.fixture(params=[kernel.algorithm for kernel in KERNELS])
def manager(request):
    return BackendManager(Settings(force_algorithm=request.param, calibration="shipped"), machine=Machine())


def rng():
    return np.random.default_rng(0)


def matrix(definition, n, dt=DT):
    return definition.stencil(n, dt, NUMPY).as_matrix()


def assert_close(got, wanted, scale):
    """The sum of 200 rounded terms, and an FFT's log2(400) passes; `scale` bounds the terms' sum."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=32 * EPS * scale)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(("kind", "scheme"), REGISTERED)
def test_the_call_is_the_matrix(kind, scheme, alpha, manager):
    definition = kind(alpha, scheme)
    for n in SIZES:
        x, m = rng().standard_normal((3, n)), matrix(definition, n)
        y = fnn.derivative(x, definition, dt=DT, manager=manager)
        # as large as the samples' differences get on their way: k S, summed by weights up to n
        first = abs(definition.stencil(n, DT, NUMPY).column(np.arange(1))[..., 0])
        scale = 3 * n * max(np.abs(m).sum(axis=1).max(), first) * np.abs(x).max()
        assert_close(y, x @ m.T, scale)


@st.composite
def problems(draw):
    """Up to four axes, also empty; the time axis; orders that broadcast to the others; strided or not."""
    shape = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    others = [size for axis, size in enumerate(shape) if axis != dim % len(shape)]
    kept = draw(st.integers(0, len(others)))
    alpha_shape = [size if size and draw(st.booleans()) else 1 for size in others[len(others) - kept :]]
    return tuple(shape), dim, tuple(alpha_shape), draw(st.booleans())


@pytest.mark.parametrize("kind", DEFINITIONS.values())
@settings(deadline=None, max_examples=60, derandomize=True)
@given(problems())
def test_every_layout_gives_what_its_rows_give(kind, problem):
    shape, dim, alpha_shape, is_strided = problem
    generator = rng()
    x = generator.standard_normal(shape)
    if is_strided:
        x = generator.standard_normal(tuple(2 * size for size in shape))[tuple(slice(None, None, -2) for _ in shape)]
    alpha = generator.uniform(0.1, 0.9, alpha_shape)
    before = x.copy()
    y = kind(alpha)(x, dt=DT, dim=dim)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert y.flags["C_CONTIGUOUS"]
    np.testing.assert_array_equal(x, before)
    rows, results = np.moveaxis(x, dim, -1), np.moveaxis(y, dim, -1)
    orders = np.broadcast_to(alpha, rows.shape[:-1])
    for index in np.ndindex(rows.shape[:-1]):
        if rows.shape[-1]:
            wanted = matrix(kind(float(orders[index])), rows.shape[-1]) @ rows[index]
            assert_close(results[index], wanted, 100)  # at most 4 samples of size 3, weights below 4**0.9 * 3


@pytest.mark.parametrize(("shape", "dim", "alpha_shape"), [((2, 3, 65), -1, (3,)), ((2, 65, 3), 1, (3,))])
def test_one_order_per_channel(shape, dim, alpha_shape, manager):
    x, alpha = rng().standard_normal(shape), np.array([0.2, 0.5, 0.8])
    y = fnn.Caputo(alpha)(x, dt=DT, dim=dim, manager=manager)
    for channel, order in enumerate(alpha):
        alone = fnn.Caputo(order, bounds=(0, 1))(np.take(x, channel, 3 - dim % 3), dt=DT)
        assert_close(np.take(y, channel, 3 - dim % 3), alone, 200)


@pytest.mark.parametrize("width", [1, 5])
def test_time_in_the_middle_is_time_last_transposed(width, manager):
    x = rng().standard_normal((2, 70, width))
    middle = fnn.caputo(x, 0.6, dt=DT, dim=1, manager=manager)
    last = fnn.caputo(np.swapaxes(x, 1, 2), 0.6, dt=DT, manager=manager)
    assert_close(middle, np.swapaxes(last, 1, 2), 20)


# eps of the computing dtype, and for half precision one rounding of the result in its own
TOLERANCES = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-13}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", DEFINITIONS.values())
def test_the_dtype_stays_and_sets_the_accuracy(kind, dtype, manager):
    x = rng().standard_normal((3, 100)).astype(dtype)
    y = kind(0.5)(x, dt=DT, manager=manager)
    wanted = x.astype(float) @ matrix(kind(0.5), 100).T
    assert y.dtype == x.dtype
    assert np.linalg.norm(y - wanted) <= TOLERANCES[dtype] * np.linalg.norm(wanted)


def signals(n):
    t = np.linspace(0, 1, n)
    noise = rng().standard_normal(n)
    return np.stack([t**2, np.sin(6 * t), 20 + np.sin(6 * t), noise, np.cumsum(noise)]).astype(np.float32)


@pytest.mark.parametrize("n", [64, 1024, 16384])
@pytest.mark.parametrize(
    "definition",
    [*map(fnn.Caputo, (0.1, 0.5, 0.9, 1.1, 1.5, 1.9)), *map(fnn.RiemannLiouvilleIntegral, (0.1, 0.5, 0.9))],
    ids=str,
)
def test_float32_loses_less_than_one_part_in_a_million(definition, n):
    x = signals(n)
    exactly, rounded = definition(x.astype(np.float64)), definition(x)
    error = np.linalg.norm(rounded - exactly, axis=1) / np.linalg.norm(exactly, axis=1)
    assert error.max() <= 1e-6, error


def test_what_numpy_makes_an_array_of_is_accepted():
    class Held:
        def __array__(self, dtype=None, copy=None):
            return np.array([0.0, 1.0, 4.0])

    wanted = fnn.derivative(np.array([0.0, 1.0, 4.0]), fnn.Caputo(0.5))
    np.testing.assert_array_equal(fnn.derivative([0.0, 1.0, 4.0], fnn.Caputo(0.5)), wanted)
    np.testing.assert_array_equal(fnn.derivative(Held(), fnn.Caputo(0.5)), wanted)


def test_every_way_to_ask_gives_the_same():
    x = rng().standard_normal(20)
    same = np.testing.assert_array_equal
    same(fnn.caputo(x, 0.4, dt=DT), fnn.derivative(x, fnn.Caputo(0.4), dt=DT))
    same(fnn.caputo(x, 0.4, scheme="l1", dt=DT), fnn.Caputo(0.4, "l1")(x, dt=DT))
    same(fnn.riemann_liouville(x, 0.4, dt=DT), fnn.RiemannLiouville(0.4)(x, dt=DT))
    same(fnn.grunwald_letnikov(x, 0.4, dt=DT), fnn.GrunwaldLetnikov(0.4)(x, dt=DT))
    same(fnn.integral(x, 0.4, dt=DT), fnn.RiemannLiouvilleIntegral(0.4)(x, dt=DT))
    same(fnn.integral(x, fnn.RiemannLiouvilleIntegral(0.4), dt=DT), fnn.integral(x, 0.4, dt=DT))
    same(fnn.grunwald_letnikov(x, 0.4, bounds=(0, 2)), fnn.GrunwaldLetnikov(0.4, bounds=(0, 2))(x))


def test_a_step_of_any_unit_scales_the_result():
    x = rng().standard_normal(40)
    fine, unit = fnn.Caputo(0.7)(x, dt=1e-3), fnn.Caputo(0.7)(x)
    assert_close(fine, unit * 1e-3**-0.7, 10 * 1e-3**-0.7)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("alpha", [0.5, 1.5])
@pytest.mark.parametrize("kind", DEFINITIONS.values())
def test_a_bad_sample_spoils_its_own_row_only(kind, alpha, bad, manager):
    x = rng().standard_normal((3, 40, 2))
    spoilt = x.copy()
    spoilt[1, 7, 0] = bad
    clean = fnn.derivative(x, kind(alpha), dim=1, manager=manager)
    got = fnn.derivative(spoilt, kind(alpha), dim=1, manager=manager)
    others = np.ones((3, 2), bool)
    others[1, 0] = False
    np.testing.assert_array_equal(got.swapaxes(1, 2)[others], clean.swapaxes(1, 2)[others])
    assert not np.isfinite(got[1, 7, 0])


# Kernels


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request):
    return request.param


def problem(n, channels, width, dtype="float64"):
    generator = rng()
    x, g = generator.standard_normal((2, 2, channels, n, width)).astype(dtype)
    return generator.standard_normal((channels, n)).astype(dtype), x, g


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_a_kernel_is_the_matrix_its_transpose_and_its_gradient(kernel, n, channels, width):
    column, x, g = problem(n, channels, width)
    column = kernel.prepare(column, x.dtype)
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    m = np.where(lag >= 0, column[:, np.maximum(lag, 0)], 0)
    y, transposed, gradient = kernel.run(column, x), kernel.adjoint(column, g), kernel.gram(x, g)
    scale = 10 * n  # n products of normal numbers
    assert_close(y, np.einsum("cij,bcjw->bciw", m, x), scale)
    assert_close(transposed, np.einsum("cij,bciw->bcjw", m, g), scale)
    assert_close((y * g).sum(), (x * transposed).sum(), 10 * n * y.size)
    pulses = np.eye(n)[:, None, :].repeat(channels, 1)
    wanted = [(kernel.run(pulse, x) * g).sum(axis=(0, 2, 3)) for pulse in pulses]
    assert_close(gradient, np.transpose(wanted), 10 * y.size)
    for result in (y, transposed):
        assert (result.shape, result.dtype) == (x.shape, x.dtype)
        assert result.flags["C_CONTIGUOUS"]
        assert not np.shares_memory(result, x)
        assert not np.shares_memory(result, g)
    assert (gradient.shape, gradient.dtype) == (column.shape, x.dtype)


def test_a_kernel_keeps_float32_and_strided_input(kernel):
    column, x, g = problem(65, 2, 3, "float32")
    wide, _, _ = problem(65, 2, 3)
    strided = np.asfortranarray(x)
    assert_close(kernel.run(column, strided), kernel.run(column, x), 1e9)  # float32
    for result in (kernel.run(column, strided), kernel.adjoint(column, g), kernel.gram(x, g)):
        assert result.dtype == np.float32
    exactly = kernel.run(wide.astype(np.float32).astype(float), x.astype(float))
    assert np.linalg.norm(kernel.run(column, x) - exactly) < 1e-6 * np.linalg.norm(exactly)


def test_every_refusal_says_why():
    def refusal(kernel, **facts):
        return kernel.refuses(Workload("toeplitz", "numpy", **facts))

    by_name = {kernel.name: kernel for kernel in KERNELS}
    matrix, fft = by_name["numpy/dense"], by_name["numpy/fft"]
    half = "float16 is not computed in; it takes float32 and float64"
    assert refusal(matrix, dtype="float16") == refusal(fft, dtype="float16") == half
    assert refusal(matrix, n=4096) is refusal(fft, n=10**6) is None
    assert refusal(matrix, n=65536) == "n=65536 is above 4096: the matrix needs 16 GiB"
    many = "the matrices of 100 channels need 6.25 GiB, above 1 GiB"
    assert refusal(matrix, n=4096, channels=100) == many
    assert dense.LONGEST == 4096


@pytest.mark.parametrize("gradients", [{}, {"needs_gradient": True}, {"learns_weights": True}])
def test_a_cost_grows_with_the_work(kernel, gradients):
    small, large = (Workload("toeplitz", "numpy", rows=4, n=n, **gradients) for n in (100, 1000))
    assert sum(kernel.cost(large).flops.values()) > 9 * sum(kernel.cost(small).flops.values())
    assert kernel.cost(large).bytes > 9 * kernel.cost(small).bytes
    assert sum(kernel.cost(small).flops.values()) >= sum(
        kernel.cost(Workload("toeplitz", "numpy", rows=4, n=100)).flops.values()
    )
    assert kernel.saves(large) == (large.bytes if large.learns_weights else 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_probe_measures_this_machine(dtype):
    asked = probe("numpy")
    rates = asked.calibrate("cpu", dtype)
    assert all(1e6 < rate < 1e15 for rate in (*rates.flops.values(), rates.bandwidth))
    assert 1e-8 < rates.launch < 1e-2
    assert asked.threads() == 1
    assert set(asked.versions()) == {"numpy", "scipy"}
    free = asked.free_memory("cpu")
    assert free is None or free > 0


def test_each_call_is_a_consultation_and_runs_in_the_kernel(manager):
    plan = manager.plan(Workload("toeplitz", "numpy", dtype="float64", rows=2, n=30))
    ran = plan.kernel.calls["run"]
    for _ in range(3):
        fnn.caputo(np.ones((2, 30)), 0.5, manager=manager)
    assert plan.kernel.calls["run"] == ran + 3
    assert manager.counters()["picks"] == {plan.kernel.name: 3}
    assert [row.forwards for row in manager.report()] == [3]
    assert manager.history()  # the second call was timed; the first sample is dropped


def test_a_manager_that_nobody_holds_goes_away():
    manager = BackendManager(Settings(calibration="shipped"), machine=Machine())
    fnn.caputo(np.ones(8), 0.5, manager=manager)
    assert manager.shared_site("toeplitz", "numpy", "numpy") is manager.shared_site("toeplitz", "numpy", "numpy")
    gone = weakref.ref(manager)
    del manager
    gc.collect()
    assert gone() is None


# Names


def test_public_names_are_listed_and_found():
    for module in (fnn, fnn.fractional):
        assert set(module.__all__) <= set(dir(module))
    for name in set(fnn.__all__) - {"FractionalLayer", "FractionalDifference"}:  # these need torch
        assert getattr(fnn, name) is not None
    for name in fnn.fractional.__all__:
        assert getattr(fnn.fractional, name) is getattr(fnn, name)
    for module in (fnn, fnn.fractional):
        with pytest.raises(AttributeError, match=f"^module '{module.__name__}' has no attribute 'caputto'$"):
            module.caputto  # noqa: B018


def test_numpy_arrays_need_no_other_framework():
    source = (
        "import sys, hpfracc_nn as fnn; fnn.Caputo(0.5)([0.0, 1.0, 2.0]); "
        "assert not {'torch', 'jax', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


def test_definitions_are_values():
    assert fnn.Caputo(0.5) == copy.deepcopy(fnn.Caputo(0.5))
    assert hash(fnn.Caputo([0.5, 0.6])) == hash(fnn.Caputo(np.array([0.5, 0.6])))
    assert fnn.Caputo(0.5) != fnn.RiemannLiouville(0.5, "l1_2")


def test_the_docstring_example_holds():
    t = np.linspace(0, 1, 101)
    got = fnn.derivative(t**2, fnn.Caputo(0.5), dt=0.01)[-1]
    assert got == pytest.approx(exact.power(np.ones(1), 2, fnn.Caputo(0.5))[0], abs=1e-5)


def test_a_plan_without_data_loads_the_kernels_it_chooses_from():
    code = "import hpfracc_nn as f; print(f.choose('toeplitz', (4, 64), framework='numpy').backend)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "numpy\n"


def test_a_plan_for_an_unknown_framework_is_refused():
    message = "choose(framework='jax'): needs one of 'numpy', 'torch'; pass one of these names."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fnn.choose("toeplitz", (4, 64), framework="jax")
