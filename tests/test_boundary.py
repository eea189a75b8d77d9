"""Differences before the product and columns after it make the dense matrix of a stencil, in every framework."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.fractional import boundary
from hpfracc_nn.fractional.boundary import Boundary, boundary_of
from hpfracc_nn.fractional.namespace import NUMPY, namespace
from hpfracc_nn.fractional.stencil import Stencil
from tests.definition_cases import ALL, within

LENGTHS = (1, 2, 3, 4, 5, 8, 33)
ORDERS = (0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.6, 2.0)
DT = 0.25
# Every kind of stencil, also those that no definition has.
STENCILS = [
    (m, taylor, ends)
    for m, taylor, ends in product(
        (-1, 0, 1, 2),
        ((False, 1), (False, 2), (True, 1), (True, 2)),
        ((None, 0), (0, 0), (1, 0), (2, 1), (None, 2), (1, 2)),
    )
    if ends[1] <= taylor[1]
]


def array(framework: str, x: np.ndarray) -> Any:
    """Return samples as an array of a framework."""
    if framework == "numpy":
        return x
    if framework == "torch":
        return import_module("torch").as_tensor(x)
    import_module("hpfracc_nn.fractional.jax.arrays")
    return import_module("jax.numpy").asarray(x)


@pytest.fixture(params=["numpy", "torch", "jax"])
def framework(request: pytest.FixtureRequest) -> Any:
    """Run a test in each framework, JAX's in double precision."""
    pytest.importorskip(request.param)
    if request.param == "torch":
        import_module("hpfracc_nn.fractional.torch.namespace")
    if request.param != "jax":
        yield request.param
        return
    with import_module("jax").enable_x64(True):
        yield "jax"


@cache
def toeplitz(n: int, weights: tuple[float, ...]) -> np.ndarray:
    lag = np.subtract.outer(np.arange(n), np.arange(n))
    return np.where(lag >= 0, np.asarray(weights)[np.maximum(lag, 0)], 0.0)


def columns_of(stencil: Stencil) -> np.ndarray | None:
    found = [] if not stencil.starts else [np.reshape(stencil.start, (1, -1, stencil.n))]
    if stencil.analytic is not None:
        found.append(np.reshape(stencil.analytic, (-1, stencil.terms, stencil.n)).swapaxes(0, 1))
    return np.concatenate(found) if found else None


def matrices(framework: str, stencil: Stencil) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrix of the operator, and that of its transpose, of unit vectors side by side."""
    n, columns = stencil.n, columns_of(stencil)
    b: Boundary = boundary_of(stencil, None if columns is None else array(framework, columns))
    left = array(framework, toeplitz(n, tuple(np.reshape(stencil.weights, n))))
    units = array(framework, np.eye(n).reshape(1, 1, n, n))
    xp = namespace(units)
    d = boundary.difference(units, b)
    y = boundary.finish(xp.matmul(left, d), units, d, b)
    gx = boundary.transposed(xp.matmul(xp.permute_dims(left, (1, 0)), units), units, b)
    return np.asarray(y)[0, 0], np.asarray(gx)[0, 0]


def written(framework: str, stencil: Stencil) -> tuple[np.ndarray, np.ndarray]:
    """Return the same, by what writes into arrays: padded, and with samples side by side or each signal by itself."""
    n, columns = stencil.n, columns_of(stencil)
    b: Boundary = boundary_of(stencil, None if columns is None else array(framework, columns))
    left, units = toeplitz(n, tuple(np.reshape(stencil.weights, n))), np.eye(n)
    x, d, gx = (array(framework, np.full((n, 1, n, 1), np.nan)) for _ in range(3))
    x[...] = array(framework, units[:, None, :, None])
    boundary.difference_into(x, d, b, namespace(x))
    y = boundary.finish(array(framework, (left @ np.asarray(d)[:, 0, :, 0].T).T[:, None, :, None]), x, d, b)
    padded = array(framework, np.full((1, 1, n + 3, n), np.nan))
    boundary.difference_into(array(framework, units[None, None]), padded, b, namespace(padded))
    np.testing.assert_array_equal(np.asarray(padded)[0, 0, :n], np.asarray(d)[:, 0, :, 0].T)
    boundary.transposed_into(array(framework, np.ascontiguousarray((left.T @ units).T[:, None, :, None])), x, gx, b)
    return np.asarray(y)[:, 0, :, 0].T, np.asarray(gx)[:, 0, :, 0].T


def assert_is_the_matrix(framework: str, stencil: Stencil) -> None:
    dense = replace(stencil, side="left").as_matrix().reshape(stencil.n, stencil.n)
    # Every entry is a sum of n weights at most, times coefficients of a few units, and k S of n.
    size = np.abs(dense).max() + np.abs(stencil.weights).max()
    made = [matrices(framework, stencil)] + ([] if framework == "jax" else [written(framework, stencil)])
    for found, wanted in ((each[i], (dense, dense.T)[i]) for each in made for i in (0, 1)):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-15 * stencil.n**2 * 4 * size)


@pytest.mark.parametrize(("kind", "options"), ALL.values(), ids=list(ALL))
def test_the_boundary_of_a_definition_makes_its_matrix(framework, kind, options):
    for n, alpha in product(LENGTHS, within(kind, ORDERS)):
        assert_is_the_matrix(framework, kind(alpha, **options).stencil(n, DT, NUMPY))


@pytest.mark.parametrize(("m", "taylor", "ends"), STENCILS)
def test_the_boundary_of_any_stencil_makes_its_matrix(framework, m, taylor, ends):
    rng = np.random.default_rng(0)
    weights, start, analytic = rng.standard_normal(33), rng.standard_normal(33), rng.standard_normal((2, 33))
    for n in LENGTHS:
        stencil = Stencil(
            n,
            lambda lags: weights[lags],
            m,
            taylor[0],
            taylor[1],
            start_column=None if ends[0] is None else lambda rows: start[rows],
            start_index=ends[0] or 0,
            analytic_columns=(lambda rows: analytic[: ends[1], rows]) if ends[1] else None,
            terms=ends[1],
        )
        assert_is_the_matrix(framework, stencil)


@pytest.mark.parametrize("m", [-1, 0, 1, 2])
@pytest.mark.parametrize("taylor", [1, 2])
def test_differences_of_single_precision_lose_no_digit_of_a_large_level(framework, m, taylor):
    """Where x(0) is subtracted, 2**20 added to all samples changes nothing: their differences are exact."""
    n, rng = 33, np.random.default_rng(0)
    x = rng.integers(-8, 8, (1, 1, n, 1)).astype(np.float32)
    b = boundary_of(Stencil(n, lambda lags: np.zeros(lags.size), m, True, taylor))
    low, high = (np.asarray(boundary.difference(array(framework, each), b)) for each in (x, x + np.float32(2**20)))
    assert low.dtype == np.float32
    np.testing.assert_array_equal(low, high)


def test_what_is_not_finite_at_the_start_does_not_reach_a_zero(framework):
    """The first difference less x(0) is 0, whatever x(0) is."""
    x = np.full((1, 1, 5, 1), np.inf)
    b = boundary_of(Stencil(5, lambda lags: np.zeros(lags.size), 1, True))
    with np.errstate(invalid="ignore"):
        assert np.asarray(boundary.difference(array(framework, x), b))[0, 0, 0, 0] == 0
