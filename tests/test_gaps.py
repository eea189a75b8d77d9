"""Samples that are not finite: what comes before them is what it is without them, whatever computes it.

Each row of the data is spoilt at a place of its own, one is not; the oracle is the same call on data that are whole.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpfracc_nn import Caputo, GrunwaldLetnikov, RiemannLiouville, derivative, integral, solve, variable_order
from hpfracc_nn.fractional.dispatch import load
from hpfracc_nn.fractional.gaps import are_finite, carried_forward
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch.linear_map import is_clear
from hpfracc_nn.layers.torch import FractionalDifference, FractionalLayer
from hpfracc_nn.selection import BackendManager, Kernel, Settings, kernels
from tests.definition_cases import ALL, CLASSICAL, within

for framework in ("numpy", "torch"):
    load("test_gaps", framework)  # which registers the kernels
BAD = (np.nan, np.inf, -np.inf)
HOSTS = [
    each
    for framework in ("numpy", "torch")
    for each in kernels("toeplitz", framework)
    if each.backend not in ("cuda", "triton")
]
TOLERANCE = 1e-11  # of results up to some ten: 300 rounded terms, and an FFT's passes

Run = Callable[[Any], Any]  # from samples or a gradient [rows, n, width], NumPy arrays, to results of that shape


def manager_for(kernel: Kernel) -> BackendManager:
    return BackendManager(
        Settings(force_backend=kernel.backend, force_algorithm=kernel.algorithm, calibration="shipped", mode="prior")
    )


def spoilt(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return samples [rows, n, width], the same with one or two bad ones in the first signal of all rows but one.

    And the first and the last bad one of each row.
    """
    rows, n, _ = shape
    rng = np.random.default_rng(n)
    whole = rng.standard_normal(shape)
    holed, places = whole.copy(), np.full((2, rows), -1)
    for row in range(1, rows):
        places[:, row] = np.sort(rng.integers(0, n, 2)) if row > 4 else [0, 2 % n, n // 2, n - 1][row - 1]
        holed[row, places[:, row], 0] = BAD[row % 3]
    return whole, holed, places


def check(
    run: Run, n: int, *, ahead: int, width: int = 2, backwards: bool = False, first_is_zero: bool = False
) -> None:
    """Compare what `run` makes of spoilt data and of data that are whole.

    Args:
        run: The operator, or its gradient.
        n: Samples.
        ahead: See `Stencil.ahead`.
        width: Signals side by side.
        backwards: Whether results depend on later samples, as gradients do.
        first_is_zero: Whether the operator's first result is 0, whatever the samples, and has no gradient.
    """
    whole, holed, (first, last) = spoilt((9, n, width))
    expected, found = run(whole), run(holed)
    scale = max(1.0, np.abs(expected).max())
    for row in range(9):
        if row == 0:
            wrong = slice(0)
        elif backwards:
            wrong = slice(0 if first_is_zero and last[row] == 0 else max(last[row] + 1, min(ahead, n)))
        else:
            wrong = slice(int(first_is_zero) if first[row] < ahead else first[row], n)
        left = np.ones(n, bool)
        left[wrong] = False
        assert np.isnan(found[row, wrong, 0]).all(), (n, row)
        assert np.allclose(found[row, left, 0], expected[row, left, 0], rtol=0, atol=TOLERANCE * scale), (n, row)
    assert np.array_equal(found[:, :, 1:], expected[:, :, 1:])
    assert np.array_equal(found[0], expected[0])


def with_gradient(run: Callable[[Tensor], Tensor]) -> tuple[Run, Run]:
    """Return what computes the operator on tensors, and what computes its gradient, for NumPy arrays."""

    def gradient(g: np.ndarray) -> np.ndarray:
        x = torch.zeros(g.shape, dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(run(x), x, torch.tensor(g))
        return found.numpy()

    return lambda x: run(torch.tensor(x)).detach().numpy(), gradient


def operators() -> Iterator[Any]:
    for kind in CLASSICAL:
        for alpha in within(kind, (0.5, 1.0, 1.5)):
            yield kind(alpha)


@pytest.mark.parametrize("kernel", HOSTS, ids=lambda kernel: f"{kernel.framework}-{kernel.name}")
def test_all_before_a_bad_sample_is_what_it_is_without_it(kernel):
    if kernel.backend == "xla":
        pytest.importorskip("jax")
    manager, is_compiled = manager_for(kernel), kernel.backend == "xla"
    for definition in [Caputo(1.5)] if is_compiled else operators():
        ahead = definition.stencil(9, 1.0, NUMPY).ahead

        def run(x: Any, definition: Any = definition) -> Any:
            return derivative(x, definition, dim=1, manager=manager)

        for n, width in [(40, 2)] if is_compiled else [(3, 2), (40, 2), (300, 1)]:
            if kernel.framework == "numpy":
                check(run, n, ahead=ahead, width=width)
                continue
            forward, gradient = with_gradient(run)
            check(forward, n, ahead=ahead, width=width)
            check(gradient, n, ahead=ahead, width=width, backwards=True)


@pytest.mark.parametrize("name", ALL)
def test_no_result_reads_further_ahead_than_the_stencil_says(name):
    kind, options = ALL[name]
    for alpha in within(kind, (0.5, 1.0, 1.5, 2.0)):
        stencil = kind(alpha, **options).stencil(12, 0.5, NUMPY) if kind(alpha, **options).side == "left" else None
        if stencil is not None:
            later = np.triu(stencil.as_matrix(), 1)
            assert not later[..., stencil.ahead :].any()


def test_time_runs_the_other_way_on_the_right_and_both_ways_on_both_sides():
    flipped = with_gradient(lambda x: derivative(x.flip(1), Caputo(0.5, side="right"), dim=1).flip(1))
    for run, backwards in zip(flipped, (False, True), strict=True):
        check(run, 70, ahead=2, backwards=backwards)
    check(lambda x: derivative(x[:, ::-1], Caputo(0.5, side="right"), dim=1)[:, ::-1], 70, ahead=2)
    _, holed, _ = spoilt((9, 70, 2))
    for x in (holed, torch.tensor(holed)):
        found = np.asarray(derivative(x, GrunwaldLetnikov(0.5, side="both"), dim=1))
        assert np.isnan(found[1:, :, 0]).all()
        assert np.isfinite(found[:, :, 1]).all()


TIMES = np.cumsum(np.random.default_rng(0).uniform(0.5, 1.5, 90))
ORDERS = np.linspace(0.3, 0.7, 90)[:, None]


@pytest.mark.parametrize("kernel", kernels("nonuniform", "torch"), ids=lambda kernel: kernel.name)
def test_the_same_holds_at_any_times_and_for_orders_that_change(kernel):
    twin = next(each for each in kernels("nonuniform", "numpy") if each.algorithm == kernel.algorithm)
    for ahead, operator in [
        (1, partial(derivative, definition=Caputo(0.5), t=TIMES)),
        (4, partial(derivative, definition=Caputo(1.5), t=TIMES)),
        (1, partial(integral, alpha=0.5, t=TIMES)),
        (1, partial(variable_order, alpha=ORDERS, kind=Caputo)),
    ]:
        check(partial(operator, dim=1, manager=manager_for(twin)), 90, ahead=ahead, first_is_zero=True)
        runs = with_gradient(partial(operator, dim=1, manager=manager_for(kernel)))
        for run, backwards in zip(runs, (False, True), strict=True):
            check(run, 90, ahead=ahead, backwards=backwards, first_is_zero=True)


@pytest.mark.parametrize(("definition", "ahead"), [(GrunwaldLetnikov(0.5), 1), (RiemannLiouville(1.5), 4)])
def test_the_same_holds_for_inverses(definition, ahead):
    inverse = partial(solve, definition=definition, dim=1)
    check(inverse, 90, ahead=ahead)
    for run, backwards in zip(with_gradient(inverse), (False, True), strict=True):
        check(run, 90, ahead=ahead, backwards=backwards)


@pytest.mark.parametrize("learn_alpha", [False, True])
def test_the_same_holds_in_layers_whose_channels_have_their_own_orders(learn_alpha):
    orders = [0.3, 0.6]
    for layer, ahead in [
        (FractionalLayer(orders, channels=2, learn_alpha=learn_alpha, dim=1), 2),
        (FractionalDifference(2, init=orders, learn_alpha=learn_alpha, dim=1), 1),
    ]:
        for run, backwards in zip(with_gradient(layer), (False, True), strict=True):
            check(run, 70, ahead=ahead, backwards=backwards)


def test_the_orders_gradient_is_nan_where_its_channel_holds_a_bad_sample():
    layer = FractionalLayer([0.3, 0.6], channels=2, learn_alpha=True, dim=1)
    layer(torch.tensor(spoilt((9, 70, 2))[1]))[:, :, 1].sum().backward()
    (order,) = layer.parameters()
    assert order.grad is not None
    assert order.grad.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("framework", "dtype"),
    [("numpy", "float16"), ("numpy", "float32"), ("torch", "float16"), ("torch", "bfloat16"), ("torch", "float32")],
)
def test_the_same_holds_in_single_and_half_precision(framework, dtype):
    whole, holed, (first, _) = spoilt((9, 70, 2))
    kernel = next(each for each in HOSTS if each.algorithm == "dense" and each.framework == framework)
    for definition in (GrunwaldLetnikov(0.5), GrunwaldLetnikov(1.0)):

        def run(x: np.ndarray, definition: Any = definition) -> np.ndarray:
            data: Any = torch.tensor(x).to(getattr(torch, dtype)) if framework == "torch" else x.astype(dtype)
            y = derivative(data, definition, dim=1, manager=manager_for(kernel))
            return y.double().numpy() if framework == "torch" else y

        expected, found = run(whole), run(holed)
        for row in range(1, 9):
            assert np.isnan(found[row, first[row] :, 0]).all()
            np.testing.assert_array_equal(found[row, : first[row], 0], expected[row, : first[row], 0])
        assert np.array_equal(found[0], expected[0])


def test_an_offset_costs_no_digits_before_a_bad_sample():
    x = torch.full((1, 600), 1e6) + torch.linspace(0, 1, 600)
    spoilt = x.clone()
    spoilt[:, 400:] = torch.nan
    for kernel in kernels("toeplitz", "torch"):
        if kernel.backend == "torch":
            found, expected = (derivative(each, Caputo(0.5), manager=manager_for(kernel)) for each in (spoilt, x))
            # A jump of 1e6, at an FFT's relative error of 1e-7, would leave nothing of results near one.
            torch.testing.assert_close(found[:, :400], expected[:, :400], rtol=0, atol=1e-4)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_kernel_runs_once_where_all_samples_are_finite(framework):
    derivative(np.ones(3) if framework == "numpy" else torch.ones(3), Caputo(0.5))
    kernel = next(each for each in kernels("toeplitz", framework) if each.algorithm == "fft" and each.backend != "xla")
    manager, before = manager_for(kernel), kernel.calls["run"]
    large = np.full((2, 40), 3e38, np.float32)  # the results overflow
    large[:, ::2] = -3e38
    with np.errstate(over="ignore"):
        for x in (np.ones((2, 40)), large):
            derivative(x if framework == "numpy" else torch.tensor(x), GrunwaldLetnikov(0.9), manager=manager)
    assert kernel.calls["run"] == before + 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 1), (2, 1, 5, 3), (20, 4, 3, 1), (7, 1, 2, 20)])
def test_the_first_and_the_last_results_are_looked_at_and_no_others(dtype, shape):
    for value in (torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max, torch.finfo(dtype).min):
        for place in np.ndindex(shape):
            y = torch.full(shape, -1.5, dtype=dtype)
            y[place] = value
            for at_end, time in ((True, shape[2] - 1), (False, 0)):
                assert is_clear(y, shape, at_end=at_end) == (np.isfinite(value) or place[2] != time)


def test_what_is_looked_at_may_overflow_when_squared():
    assert are_finite(np.array([1e300, -1e300]))
    assert are_finite(np.full((4, 1), 6e4, np.float16))
    assert not are_finite(np.array([[1.0, np.inf], [1.0, -np.inf]]))
    assert carried_forward(np.full((2, 5, 1), 1e300)) is None
