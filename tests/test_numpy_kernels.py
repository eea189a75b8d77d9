"""Every kernel for NumPy arrays computes the operator's dense matrix, its transpose and the gradient of its weights."""

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.fractional.boundary import Boundary
from hpfracc_nn.fractional.definitions import (
    Caputo,
    CaputoFabrizio,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
)
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numba import kernel as numba_kernel
from hpfracc_nn.fractional.numpy.kernels import LONGEST
from hpfracc_nn.fractional.numpy.weights import MATRIX_KEPT, Weights, weights_of
from hpfracc_nn.selection import BackendManager, Kernel, Settings, Workload, kernels
from tests.numpy_cases import ALPHAS, DT, SIZES, every_kernel, every_scheme, matrix, rng

TOLERANCE = 1e-12  # of a weight in float64, for every kernel; rounding of n <= 1000 samples is below it
OPERATORS = [  # one for each number of differences, terms and columns
    Caputo(0.1),
    Caputo(0.5, "bdf2"),
    Caputo(1.2),
    Caputo(1.5),
    RiemannLiouville(0.3),
    RiemannLiouville(1.7, scheme="l1_2"),
    GrunwaldLetnikov(-0.6),
    GrunwaldLetnikov(0.1),
    GrunwaldLetnikov(0.6),
    GrunwaldLetnikov(1.4, scheme="bdf2"),
    RiemannLiouvilleIntegral(0.4),
    RiemannLiouvilleIntegral(1.6),
    CaputoFabrizio(0.4, unit=20.0),  # one state, and no exact lag but 0
]
every_operator = pytest.mark.parametrize("definition", OPERATORS, ids=repr)


def prepared(kernel: Kernel, definition: Definition, n: int, dtype: str = "float64") -> tuple[Any, Boundary]:
    """Return what a kernel takes besides the data."""
    weights = weights_of(definition, n, DT, np.dtype(dtype))
    channels = np.size(definition.alpha)
    work = Workload("toeplitz", "numpy", dtype=dtype, n=n, channels=channels, exponentials=weights.states)
    if reason := kernel.refuses(work):
        pytest.skip(reason)
    return kernel.prepare(weights, work), weights.boundary


def signals(*shape: int, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    x, g = rng().standard_normal((2, *shape)).astype(dtype)
    return x, g


def both_ways(kernel: Kernel, form: Any, b: Boundary, x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the operator on x and its transpose on g, written over what is no number."""
    y, gx = np.full_like(x, np.nan), np.full_like(g, np.nan)
    before = x.copy(), g.copy()
    kernel.run(form, b, x, y)
    kernel.adjoint(form, b, g, gx)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(g, before[1])
    return y, gx


def assert_is_the_matrix(kernel: Kernel, definition: Definition, n: int, batch: int, width: int) -> None:
    channels = np.size(definition.alpha)
    form, b = prepared(kernel, definition, n)
    x, g = signals(batch, channels, n, width)
    y, gx = both_ways(kernel, form, b, x, g)
    m, left = matrix(definition, n).reshape(channels, n, n), definition.stencil(n, DT, NUMPY).weights
    # as large as the samples' differences get on their way: k S, summed by weights up to n
    bound = TOLERANCE * 3 * n * (np.abs(m).sum(axis=2).max() + np.abs(left).max()) * np.abs(x).max()
    np.testing.assert_allclose(y, np.einsum("cij,bcjw->bciw", m, x), rtol=0, atol=bound)
    # The transpose has the weights' size too, but sums where the operator differences.
    bound = TOLERANCE * n * (np.abs(m).max() + np.abs(left).max()) * np.abs(g).max()
    np.testing.assert_allclose(gx, np.einsum("cij,bciw->bcjw", m, g), rtol=0, atol=bound)


@every_kernel
@every_scheme
def test_a_kernel_and_its_adjoint_are_the_dense_matrix_and_its_transpose(
    kernel: Kernel, kind: type[Definition], scheme: str
) -> None:
    for (i, n), (j, alpha) in product(enumerate(SIZES), enumerate(ALPHAS)):
        if (i + j) % 3 == 0:  # every size and every order, but not every pair: see the slow test
            assert_is_the_matrix(kernel, kind(alpha, scheme), n, 2, (1, 1, 2, 9)[(i + j) % 4])


@pytest.mark.slow
@every_kernel
@every_scheme
def test_a_kernel_is_the_dense_matrix_at_every_size_order_and_layout(
    kernel: Kernel, kind: type[Definition], scheme: str
) -> None:
    for n, alpha, width in product((*SIZES, 300), ALPHAS, (1, 9)):
        assert_is_the_matrix(kernel, kind(alpha, scheme), n, 2, width)


@pytest.mark.slow
@every_kernel
@every_operator
def test_a_kernel_is_the_dense_matrix_over_many_chunks(kernel: Kernel, definition: Definition) -> None:
    assert_is_the_matrix(kernel, definition, 1100, 1, 1)


@every_kernel
@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral])
@pytest.mark.parametrize("n", [1, 16, 70])
def test_every_channel_has_its_own_order(kernel: Kernel, kind: type[Definition], n: int) -> None:
    assert_is_the_matrix(kernel, kind((0.2, 0.5, 0.9)), n, 4, 1)


@every_kernel
@every_operator
@pytest.mark.parametrize("width", [1, 5])
def test_float32_is_the_same_operator(kernel: Kernel, definition: Definition, width: int) -> None:
    x, g = signals(2, 1, 100, width, dtype="float32")
    y, gx = both_ways(kernel, *prepared(kernel, definition, 100, "float32"), x, g)
    m = matrix(definition, 100)
    for found, wanted in ((y, np.einsum("ij,bcjw->bciw", m, x)), (gx, np.einsum("ij,bciw->bcjw", m, g))):
        assert found.dtype == np.float32
        assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)  # some 10 eps of float32


@every_kernel
def test_weights_of_any_unit_of_time_are_kept(kernel: Kernel) -> None:
    """No weight is taken for nothing because the step is large."""
    definition = GrunwaldLetnikov((0.1, 0.9), bounds=(0, 1))
    x, _ = signals(1, 2, 50, 1)
    results = []
    for dt in (1.0, 1e30):
        weights = Weights(definition, 50, dt, x.dtype)
        y = np.empty_like(x)
        work = Workload("toeplitz", "numpy", dtype="float64", n=50, channels=2, exponentials=weights.states)
        kernel.run(kernel.prepare(weights, work), weights.boundary, x, y)
        results.append(y * dt ** np.array([0.1, 0.9]).reshape(1, 2, 1, 1))
    np.testing.assert_allclose(results[1], results[0], rtol=1e-9, atol=1e-12)  # 1e30 ** -0.9 loses some digits


def test_only_a_small_matrix_is_kept() -> None:
    n = int((MATRIX_KEPT // 8) ** 0.5)
    small, large = (weights_of(Caputo(0.5), size, DT, np.dtype("float64")).column() for size in (n, n + 1))
    assert small.matrix is small.matrix
    assert large.matrix is not large.matrix


def refusal(kernel: Any, **facts: Any) -> str | None:
    return kernel.refuses(Workload("toeplitz", "numpy", **facts))


@every_kernel
def test_half_precision_is_refused(kernel: Kernel) -> None:
    half = "float16 is not computed in; it takes float32 and float64"
    assert refusal(kernel, dtype="float16", exponentials=20) == half


def test_the_matrix_is_refused_where_it_is_too_large() -> None:
    (dense,) = (each for each in kernels("toeplitz", "numpy") if each.algorithm == "dense")
    assert refusal(dense, n=4096) is None
    assert refusal(dense, n=65536) == "n=65536 is above 4096: the matrix needs 16 GiB"
    many = "the matrices of 100 channels need 6.25 GiB, above 1 GiB"
    assert refusal(dense, n=4096, channels=100) == many
    assert LONGEST == 4096


def test_the_recurrence_needs_exponentials_and_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(numba_kernel, "find_spec", lambda name: object())
    assert refusal(numba_kernel, n=16) is None
    assert refusal(numba_kernel, n=10**6, exponentials=30) is None
    assert refusal(numba_kernel, n=17) == "the weights are no sum of exponentials to float32 tolerance"
    monkeypatch.setattr(numba_kernel, "find_spec", lambda name: None)
    assert refusal(numba_kernel, n=8) == "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    assert manager.plan(Workload("toeplitz", "numpy", n=4096, exponentials=30)).kernel.name == "numpy/fft"


@every_kernel
@pytest.mark.parametrize("gradients", [{}, {"needs_gradient": True}, {"learns_weights": True}])
def test_a_cost_grows_with_the_work(kernel: Kernel, gradients: dict[str, Any]) -> None:
    without = Workload("toeplitz", "numpy", rows=4, n=128, exponentials=20)
    small, large = (dataclasses.replace(without, n=n, **gradients) for n in (128, 1280))
    assert sum(kernel.cost(large).flops.values()) > 9 * sum(kernel.cost(small).flops.values())
    assert kernel.cost(large).bytes > 9 * kernel.cost(small).bytes
    assert sum(kernel.cost(small).flops.values()) >= sum(kernel.cost(without).flops.values())
    assert kernel.saves(large) == (large.bytes if large.learns_weights else 0)
