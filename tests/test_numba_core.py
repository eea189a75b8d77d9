"""The compiled core computes the operator at every size where its blocks, strides and lanes end differently."""

import importlib.util

import pytest
import torch

if importlib.util.find_spec("numba") is None:
    pytest.skip("needs Numba", allow_module_level=True)

from tests.numba_cases import CASES, LONGEST, TOLERANCE, Case, Operator, random

SIZES = (*range(1, 11), 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 191, 192, 193, 257)
LONG = tuple(1024 * k + more for k in (1, 2, 3) for more in (-1, 0, 1, 2, 63, 64, 65))
WIDTHS = (2, 7, 8, 15, 16, 17, 31, 33, 127, 128, 129, 130)
PRECISIONS = (torch.float32, torch.float64)
every_precision = pytest.mark.parametrize("dtype", PRECISIONS, ids=str)


def assert_is_the_operator(case: Case, shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    """Compare both maps with the float64 ones, and with each other by their identity."""
    operator = Operator(case, shape[2], shape[1], dtype)
    x, g, tolerance = random(shape, dtype), random(shape, dtype, seed=1), TOLERANCE[dtype]
    y, (expected, size) = operator.run(x), operator.expected(x)
    gx, (back, back_size) = operator.adjoint(g), operator.expected_adjoint(g)
    assert (y - expected).abs().max() <= tolerance * size, (case, shape)
    assert (gx - back).abs().max() <= tolerance * back_size, (case, shape)
    product = (y.double() * g.double()).sum()
    scale = size * float(g.double().abs().sum())  # what a rounding of y weighs in the products
    assert abs(product - (x.double() * gx.double()).sum()) <= tolerance * (
        scale + back_size * float(x.double().abs().sum())
    ), (case, shape)


@every_precision
@pytest.mark.parametrize("n", SIZES)
def test_a_few_signals_of_every_size_see_every_boundary(n: int, dtype: torch.dtype) -> None:
    for i, case in list(enumerate(CASES))[n % 2 :: 2]:
        channels, batch = 1 + 2 * (i % 2), 1 + i % 3
        assert_is_the_operator(case, (batch, channels, n, 1), dtype)


@every_precision
@pytest.mark.parametrize("n", LONG)
def test_blocks_of_a_signal_fit_together(n: int, dtype: torch.dtype) -> None:
    for case in CASES[n % 9 :: 9]:
        assert_is_the_operator(case, (1, 1, n, 1), dtype)


@pytest.mark.slow
@every_precision
@pytest.mark.parametrize("width", WIDTHS)
def test_lanes_that_lack_are_not_missed(width: int, dtype: torch.dtype) -> None:
    for n, case in zip(SIZES, CASES[width % 3 :: 2], strict=False):
        if width < 100 or n < 20 or n == 129:
            assert_is_the_operator(case, (1 + n % 2, 1, n, width), dtype)


@pytest.mark.slow
@every_precision
@pytest.mark.parametrize("width", [1, *WIDTHS])
def test_every_size_width_and_boundary(width: int, dtype: torch.dtype) -> None:
    for n in (*SIZES, *(LONG if width == 1 else LONG[2:9:3])):
        for i, case in enumerate(CASES):
            if width == 1 or (i + n) % 4 == 0:
                assert_is_the_operator(case, (2, 1, n, width), dtype)


@every_precision
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("shape", [(3, 2, 1100, 1), (2, 1, 150, 33)])
def test_what_is_not_finite_stays_in_its_signal(shape: tuple[int, ...], value: float, dtype: torch.dtype) -> None:
    for case in CASES[::5]:
        operator = Operator(case, shape[2], shape[1], dtype)
        x, signal = random(shape, dtype), (1, shape[1] - 1, slice(None), shape[3] - 1)
        for where in (0, 20, shape[2] - 1):
            broken, others = x.clone(), torch.ones(shape, dtype=torch.bool)
            broken[1, shape[1] - 1, where, shape[3] - 1], others[signal] = value, False
            for function in (operator.run, operator.adjoint):
                right, found = function(x), function(broken)
                assert torch.equal(found[others], right[others])
                assert not torch.equal(found[signal], right[signal])


def test_the_longest_case_is_covered_by_the_exponentials() -> None:
    assert max(LONG) < LONGEST
