"""The operators on NumPy arrays: the public call is the stencil's matrix, for any shape, dtype and kernel."""

import copy
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpfracc_nn as fnn
from hpfracc_nn import lazy
from hpfracc_nn.fractional import DEFINITIONS, exact
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numba import threads
from hpfracc_nn.fractional.numpy import weights
from hpfracc_nn.fractional.weights import forget
from hpfracc_nn.selection import BackendManager, Machine, Settings, Workload, probe
from tests.definition_cases import CLASSICAL
from tests.numpy_cases import ALPHAS, DT, EPS, KERNELS, every_scheme, matrix, rng

SIZES = (1, 2, 3, 4, 5, 63, 64, 65, 200)


@pytest.fixture(params=KERNELS)
def manager(request):
    return BackendManager(
        Settings(force_algorithm=request.param.algorithm, calibration="shipped", mode="prior"), machine=Machine()
    )


def assert_close(got, wanted, scale):
    """The sum of 200 rounded terms, and an FFT's log2(400) passes; `scale` bounds the terms' sum."""
    np.testing.assert_allclose(got, wanted, rtol=0, atol=32 * EPS * scale)


@pytest.mark.parametrize("alpha", ALPHAS)
@every_scheme
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
@settings(deadline=None, max_examples=25, derandomize=True)
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
@pytest.mark.parametrize("kind", CLASSICAL)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_probe_measures_this_machine(dtype):
    asked = probe("numpy")
    rates = asked.calibrate("cpu", dtype)
    assert all(1e6 < rate < 1e15 for rate in (*rates.flops.values(), rates.bandwidth))
    assert 1e-8 < rates.launch < 1e-2
    assert asked.threads() == 1
    free = asked.free_memory("cpu")
    assert free is None or free > 0


def test_each_call_is_a_consultation_and_runs_in_the_kernel(manager):
    states = weights.weights_of(fnn.Caputo(0.5), 30, 1.0, np.dtype("float64")).states
    plan = manager.plan(Workload("toeplitz", "numpy", dtype="float64", rows=2, n=30, exponentials=states))
    ran = plan.kernel.calls["run"]
    for _ in range(300):
        fnn.caputo(np.ones((2, 30)), 0.5, manager=manager)
    assert plan.kernel.calls["run"] == ran + 300
    assert manager.counters()["picks"] == {plan.kernel.name: 300}
    assert [row.forwards for row in manager.report()] == [300]
    assert manager.history()  # some are timed; the first sample is dropped, and each that was preempted


def test_a_change_of_settings_changes_the_kernel_of_the_next_call():
    manager, x = BackendManager(Settings(mode="prior", calibration="shipped")), rng().standard_normal((3, 40))
    results = []
    for algorithm in ("dense", "fft", "dense"):
        manager.configure(force_algorithm=algorithm)
        results.append(fnn.caputo(x, 0.3, manager=manager))
    assert manager.counters()["picks"] == {"numpy/dense": 2, "numpy/fft": 1}
    np.testing.assert_array_equal(results[0], results[2])
    assert_close(results[1], results[0], 20)


def test_weights_that_were_dropped_are_made_again(manager):
    x = rng().standard_normal((3, 40))
    first = fnn.caputo(x, 0.3, manager=manager)
    forget()
    np.testing.assert_array_equal(fnn.caputo(x, 0.3, manager=manager), first)


def test_weights_kept_are_bounded_for_many_orders_and_many_shapes():
    kept = weights.weights_of(fnn.Caputo(0.5), 8, 1.0, np.dtype("float64")).kept
    for rows in range(200):
        fnn.caputo(np.ones((rows + 1, 8)), 0.5)
        assert len(kept) <= 64


@pytest.mark.parametrize("dim", [True, 1.0, [1]])
def test_an_axis_is_an_integer_also_in_a_repeated_call(dim):
    x = np.ones((3, 4))
    fnn.caputo(x, 0.5, dim=1)
    with pytest.raises(TypeError, match=re.escape(f"caputo(dim={dim!r}): needs an integer")):
        fnn.caputo(x, 0.5, dim=dim)


def strange(x):
    """Yield the samples as arrays that are read-only, backwards in memory, not aligned, or of a subclass."""
    read_only = x.copy()
    read_only.flags.writeable = False
    yield read_only
    yield x[..., ::-1].copy()[..., ::-1]
    yield np.asfortranarray(x)
    odd = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    odd[...] = x
    yield odd
    yield x.view(np.matrix)


def test_samples_of_any_kind_are_taken_without_compiling_anew():
    recurrence = pytest.importorskip("hpfracc_nn.fractional.numba.recurrence")
    manager = BackendManager(Settings(force_backend="numba", calibration="shipped", mode="prior"))
    x = rng().standard_normal((3, 40))
    wanted = fnn.caputo(x, 0.5, manager=manager)
    compiled = len(recurrence.forward.signatures)
    for samples in strange(x):
        np.testing.assert_array_equal(fnn.caputo(samples, 0.5, manager=manager), wanted)
    assert len(recurrence.forward.signatures) == compiled


def test_numpy_arrays_are_worked_on_by_the_callers_thread(monkeypatch):
    def spread(work, count, parts):
        raise AssertionError(f"{parts} parts")

    monkeypatch.setattr(threads, "spread", spread)
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    y = fnn.caputo(np.ones((4, 1 << 16)), 0.5, manager=manager)
    assert np.abs(y).max() == 0  # Caputo's derivative of a constant


def test_a_manager_that_nobody_holds_goes_away():
    manager = BackendManager(Settings(mode="prior", calibration="shipped"), machine=Machine())
    fnn.caputo(np.ones(8), 0.5, manager=manager)
    assert manager.shared_site("toeplitz", "numpy", "numpy") is manager.shared_site("toeplitz", "numpy", "numpy")
    gone = weakref.ref(manager)
    del manager
    gc.collect()
    assert gone() is None


# Names


def test_public_names_are_listed_and_found():
    for module in (fnn, fnn.fractional):
        assert set(vars(module)["__all__"]) <= set(dir(module))
    torch_only = {name for name, (home, _) in lazy.exports("hpfracc_nn").items() if "torch" in home.split(".")}
    for name in set(vars(fnn)["__all__"]) - ({"preprocessing", *torch_only}):  # these need extras
        assert getattr(fnn, name) is not None
    for name in vars(fnn.fractional)["__all__"]:
        assert getattr(fnn.fractional, name) is getattr(fnn, name)
    for module in (fnn, fnn.fractional):
        with pytest.raises(AttributeError, match=f"^module '{module.__name__}' has no attribute 'caputto'$"):
            module.caputto  # noqa: B018


def test_numpy_arrays_need_no_other_framework():
    source = (
        "import sys, hpfracc_nn as fnn; m = fnn.BackendManager(); m.configure(disable='numba'); "
        "fnn.choose('toeplitz', (4, 64), framework='numpy', exponentials=20, manager=m); "
        "fnn.Caputo(0.5)([0.0, 1.0, 2.0], manager=m); "
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


@pytest.mark.parametrize(
    "plan",
    [
        "f.choose('toeplitz', (4, 64), framework='numpy')",
        "f.BackendManager().plan(f.workload((4, 64), framework='numpy'))",
    ],
    ids=["choose", "workload"],
)
def test_a_plan_without_data_loads_the_kernels_it_chooses_from(plan):
    code = f"import hpfracc_nn as f; print({plan}.backend)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout in ("numpy\n", "numba\n")


@pytest.mark.parametrize("alpha", [0.4, [0.3, 0.6]])
@pytest.mark.parametrize(("dtype", "n"), [("float32", 1000), ("float64", 300), ("float64", 5)])
def test_a_workload_told_without_data_is_the_one_that_runs(alpha, dtype, n):
    definition, manager = fnn.RiemannLiouville(alpha), fnn.BackendManager()
    definition(np.ones((3, 2, n), dtype), manager=manager)
    ((plan,),) = [site.plans() for site in manager.sites()]
    assert fnn.workload((3, 2, n), definition, framework="numpy", dtype=dtype) == plan.workload
    found = fnn.choose("toeplitz", (3, 2, n), framework="numpy", definition=definition, dtype=dtype, manager=manager)
    assert found.kernel is plan.kernel


def test_a_workload_of_no_such_data_is_refused():
    with pytest.raises(ValueError, match=r"^workload\(dtype='int8'\): needs one of float16, bfloat16, "):
        fnn.workload((4, 64), framework="numpy", dtype="int8")
    with pytest.raises(ValueError, match=r"^workload\(dim=2\): needs -2 <= dim < 2"):
        fnn.workload((4, 64), framework="numpy", dim=2)
    with pytest.raises(ValueError, match=r"^workload\(framework='cupy'\): needs one of 'jax', 'numpy', 'torch'; "):
        fnn.workload((4, 64), framework="cupy")


def test_a_plan_for_an_unknown_framework_is_refused():
    message = "choose(framework='cupy'): needs one of 'jax', 'numpy', 'torch'; pass one of these names."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fnn.choose("toeplitz", (4, 64), framework="cupy")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:os.fork.. was called:RuntimeWarning")  # by JAX, where another test has loaded it
def test_a_child_that_is_forked_while_a_thread_makes_weights_can_make_its_own():
    begun, go_on = threading.Event(), threading.Event()

    def held(lags):
        begun.set()
        assert go_on.wait(60)
        return np.ones(lags.shape)

    def made(column):
        return fnn.Stencil(3, column, differences=0, subtract=False).weights.sum()

    thread = threading.Thread(target=made, args=(held,))
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(20)  # it ends the child where a lock of the thread would hold it
        os._exit(0 if made(lambda lags: np.ones(lags.shape)) == 3 else 1)
    go_on.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
