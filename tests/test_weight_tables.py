"""Tables give a learned order the weights of the formulas, and their derivatives, wherever alpha lies in its bounds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import jvp

from hpfracc_nn.fractional import derivative, tables
from hpfracc_nn.fractional.definitions import (
    DEFINITIONS,
    Caputo,
    Definition,
    DistributedOrder,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    family,
)
from hpfracc_nn.fractional.exponentials import tolerance
from hpfracc_nn.fractional.linear import StateSpace
from hpfracc_nn.fractional.torch.weights import Operators, Weights
from tests.table_rounding import H, rounding
from tests.torch_cases import DT, SCHEMES

CPU = torch.device("cpu")
PARTS = (1e-6, 0.02, 0.37, 0.52, 0.8, 1 - 1e-6)  # of the way from the lower to the upper bound
BOUNDS: dict[type[Definition], tuple[tuple[float, float], ...]] = {
    Caputo: ((0, 1), (1, 2), (0.3, 0.32)),
    RiemannLiouville: ((0, 1), (1, 2)),
    GrunwaldLetnikov: ((-1, 0), (0, 1), (-0.4, 0.5), (-1, 2)),
    RiemannLiouvilleIntegral: ((0, 1), (1, 2), (0, 2)),
}
CASES = [(kind, scheme, bounds) for kind, scheme in SCHEMES for bounds in BOUNDS[kind]]
every_case = pytest.mark.parametrize(
    ("kind", "scheme", "bounds"), CASES, ids=[f"{kind.__name__}-{scheme}-{bounds}" for kind, scheme, bounds in CASES]
)
LENGTHS = [1000, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 20000))]
Case = tuple[type[Definition], str, tuple[float, float]]


def orders(bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    return torch.tensor([low + part * (high - low) for part in PARTS], dtype=torch.float64)


def weights(case: Case, alpha: Tensor, n: int, tabulated: bool, dt: float = DT) -> Weights:
    kind, scheme, bounds = case
    return Weights(kind(alpha, scheme, bounds), n, dt, torch.float64, CPU, tabulated=tabulated)


def tangent(values: Callable[[Tensor], Any], alpha: Tensor, direction: Tensor) -> tuple[Any, Any]:
    """Return values(alpha) and its derivative along `direction`, by forward mode."""
    value, found = jvp(values, (alpha,), (direction,))  # type: ignore[misc]
    return value, found


def derivatives(values: Callable[[Tensor], Any], alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the values of all channels and their first and second derivatives, each in its channel's alpha."""
    one = torch.ones_like(alpha)
    (value, first), (_, second) = tangent(lambda a: tangent(values, a, one), alpha, one)
    return value, first, second


def differentiated(values: Callable[[Tensor], Any], alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same, the second derivative by differences of the first: torch's trigamma is right to 1e-9 only.

    Of fourth order at h = 1e-3: the error is about (h log n)**4 / 30, below 1e-9, and the rounding of the first / h.
    """
    one, h = torch.ones_like(alpha), H
    value, first = tangent(values, alpha, one)
    at = {i: tangent(values, alpha + i * h, one)[1] for i in (-2, -1, 1, 2)}
    return value, first, (8 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12 * h)


def assert_agree(got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], relative: float, noise: list[Tensor]) -> None:
    """Compare weights [..., channels, n] one by one; `noise`, [channels] of each derivative, is left by rounding.

    The derivatives are relative to the weight where they are smaller than it: they cross zero.
    """
    size = wanted[0].abs()
    for i, (one, other) in enumerate(zip(got, wanted, strict=True)):
        rtol = (relative, max(relative, 1e-11), 5e-9)[i]
        bound = rtol * torch.maximum(other.abs(), size) + noise[i][:, None]
        assert torch.all((one - other).abs() <= bound), (i, ((one - other).abs() / bound).max())


def noise_of(case: Case, alpha: Tensor, n: int, table: tables.Table | None, boundary: bool = False) -> list[Tensor]:
    """Return what rounding leaves of the weights of a table, and of their derivatives; see `table_rounding`."""
    assert table is not None
    kind, scheme, bounds = case
    return rounding(family(kind(alpha, scheme, bounds)), alpha, n, DT, table.degree, derivatives, boundary)


@every_case
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.slow
def test_the_column_and_its_derivatives_are_those_of_the_formula(
    kind: type[Definition], scheme: str, bounds: tuple[float, float], n: int
) -> None:
    case, alpha = (kind, scheme, bounds), orders(bounds)
    table = tables._column(family(kind(alpha, scheme, bounds)), n)
    got = derivatives(lambda a: weights(case, a, n, True).column().weights, alpha)
    wanted = differentiated(lambda a: weights(case, a, n, False).column().weights, alpha)
    assert_agree(got, wanted, 1e-12, noise_of(case, alpha, n, table))


def tensors(of: Operators) -> list[Tensor]:
    """Return all that kernels may ask for, as far as there are exponentials and columns."""
    found, columns = [of.column().weights], of.boundary_columns()
    if of.nodes is not None or of.n <= 16:
        chunks = of.chunks(16)
        found += [chunks.intra, chunks.C]
    return found if columns is None else [*found, columns]


@every_case
@pytest.mark.parametrize("tabulated", [True, False])
@pytest.mark.parametrize("n", [1, 16, 77, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_slopes_are_the_weights_tangent_in_alpha(
    kind: type[Definition], scheme: str, bounds: tuple[float, float], n: int, tabulated: bool
) -> None:
    case, alpha = (kind, scheme, bounds), orders(bounds)
    value, wanted = tangent(lambda a: tensors(weights(case, a, n, tabulated)), alpha, torch.ones_like(alpha))
    got = tensors(weights(case, alpha, n, tabulated).derivatives(alpha))
    for one, other, size in zip(got, wanted, value, strict=True):
        # two orders of the same operations: a few roundings of what is added, the largest of the weights and slopes
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-11 * float(size.abs().amax() + other.abs().amax()))


@pytest.mark.parametrize("tabulated", [True, False])
def test_slopes_are_differentiable_where_gradients_are_on(tabulated: bool) -> None:
    case, alpha = (RiemannLiouville, "bdf2", (0, 1)), torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    _, _, wanted = derivatives(lambda a: weights(case, a, 40, True).column().weights, alpha.detach())
    slopes = weights(case, alpha, 40, tabulated).derivatives(alpha).column().weights
    found = torch.stack([torch.autograd.grad(slope, alpha, retain_graph=True)[0] for slope in slopes[0]])
    torch.testing.assert_close(found, wanted[0], rtol=1e-8, atol=1e-9)  # torch's trigamma, as in `differentiated`
    with torch.no_grad():
        assert not weights(case, alpha, 40, tabulated).derivatives(alpha).column().weights.requires_grad


@every_case
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.slow
def test_boundary_columns_and_their_derivatives_are_those_of_the_formula(
    kind: type[Definition], scheme: str, bounds: tuple[float, float], n: int
) -> None:
    case, alpha = (kind, scheme, bounds), orders(bounds)
    if weights(case, alpha, n, False).boundary_columns() is None:
        assert weights(case, alpha, n, True).boundary_columns() is None
        return
    got = derivatives(lambda a: weights(case, a, n, True).boundary_columns(), alpha)
    wanted = differentiated(lambda a: weights(case, a, n, False).boundary_columns(), alpha)
    table = tables.boundary_table(family(kind(alpha, scheme, bounds)), n)
    assert_agree(got, wanted, 1e-12, noise_of(case, alpha, n, table, boundary=True))


def response(model: StateSpace, n: int, at: int) -> Tensor:
    """Return the weights that a model stands for, [channels, n - at]: its answer to an impulse at sample `at`."""
    channels = model.intra.shape[0]
    x = torch.zeros(1, channels, n, 1, dtype=torch.float64)
    x[:, :, at] = 1
    return model.matvec(x)[0, :, at:, 0]


@every_case
@pytest.mark.parametrize("n", [10, *(pytest.param(n, marks=pytest.mark.slow) for n in (64, 1000, 20000))])
@pytest.mark.slow
def test_chunk_forms_and_their_derivatives_are_those_of_the_formula(
    kind: type[Definition], scheme: str, bounds: tuple[float, float], n: int
) -> None:
    case, alpha, at = (kind, scheme, bounds), orders(bounds), 5
    wanted = differentiated(lambda a: weights(case, a, n, False).column().weights[:, : n - at], alpha)

    def chunked(a: Tensor, length: int) -> Tensor:
        return response(weights(case, a, n, True).chunks(length), n, at)

    for length in (16, 32) if n > 64 else (8, 16, 128):
        if length < n and weights(case, alpha, n, True).nodes is None:
            continue  # wide bounds: no sum of exponentials to tolerance
        got = derivatives(partial(chunked, length=length), alpha)
        nodes = weights(case, alpha, n, True).nodes if n > length else None
        table = tables._chunks(family(kind(alpha, scheme, bounds)), n, nodes, length)
        # The fit of the exponentials is as good as its tolerance says.
        assert_agree(got, wanted, max(1e-12, tolerance(n, "float64")), noise_of(case, alpha, n, table))


@every_case
def test_gradients_reach_alpha_as_through_the_formula(
    kind: type[Definition], scheme: str, bounds: tuple[float, float]
) -> None:
    n, alpha = 100, orders(bounds).requires_grad_()
    g = torch.randn(len(PARTS), n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    case = (kind, scheme, bounds)
    found = []
    for tabulated in (True, False):
        column = weights(case, alpha, n, tabulated).column().weights
        (first,) = torch.autograd.grad((column * g).sum(), alpha, create_graph=True)
        found.append((first, *torch.autograd.grad(first.sum(), alpha)))
    for one, other, rtol in zip(*found, (1e-9, 1e-8), strict=True):
        assert (one - other).abs().max() <= rtol * other.abs().max()


def test_one_table_serves_every_step_and_every_dt() -> None:
    alpha, n = torch.tensor(0.4, dtype=torch.float64), 256
    key = family(Caputo(alpha, bounds=(0, 1)))
    table = tables.weight_table(key, n, None, 0)
    assert tables.weight_table(family(Caputo(alpha + 0.1, bounds=(0, 1))), n, None, 0) is table
    assert tables.weight_table(family(Caputo(alpha, bounds=(0, 0.9))), n, None, 0) is not table
    one, other = (weights((Caputo, "l1_2", (0, 1)), alpha, n, True, dt).column().weights for dt in (1.0, 1e-3))
    torch.testing.assert_close(other, one * 1e-3**-0.4, rtol=1e-14, atol=0)
    assert tables.weight_table(key, n, None, 0) is table


def test_what_is_too_large_for_a_table_comes_from_the_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    tables.CACHE.clear()
    monkeypatch.setattr(tables, "_LARGEST", 1 << 10)
    case, alpha = (RiemannLiouville, "bdf2", (1.0, 2.0)), orders((1, 2))
    one, other = weights(case, alpha, 77, True), weights(case, alpha, 77, False)
    assert tables.boundary_table(family(one.definition), 77) is None
    for got, wanted in zip(
        tensors(one),
        tensors(other),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_a_series_that_does_not_converge_is_refused() -> None:
    domain = tables.domain_of(Caputo(1.0, bounds=(0, 1)), 100)
    assert tables._series(domain, lambda alpha: np.abs(alpha - 0.5)[:, None], 1) is None
    smooth = tables._series(domain, lambda alpha: np.exp(alpha)[:, None], 1)
    assert smooth is not None
    assert smooth.shape[1] <= 20


def test_tables_stay_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    tables.CACHE.clear()
    monkeypatch.setattr(tables.CACHE, "limit", 1 << 20)
    first = tables.weight_table(family(Caputo(0.5, bounds=(0, 0.5))), 2000, None, 0)
    assert first is not None
    assert len(tables.CACHE) == 2  # and that of the boundary columns alone
    assert tables.CACHE.size > first.coefficients.nbytes > (1 << 20) // 10
    for high in np.linspace(0.6, 0.9, 10):
        tables.weight_table(family(Caputo(0.5, bounds=(0, high))), 2000, None, 0)
        assert tables.CACHE.size <= 1 << 20
    assert tables.weight_table(family(Caputo(0.5, bounds=(0, 0.5))), 2000, None, 0) is not first


def test_an_alpha_far_outside_its_bounds_has_no_weights() -> None:
    case = (GrunwaldLetnikov, "grunwald", (0.0, 1.0))
    column = weights(case, torch.tensor([1.05, 1.2], dtype=torch.float64), 50, True).column().weights
    wanted = weights(case, torch.tensor([1.05], dtype=torch.float64), 50, False).column().weights
    torch.testing.assert_close(column[:1], wanted, rtol=1e-12, atol=1e-15)
    assert column[1].isnan().all()


def test_tables_first_used_inside_a_transform_serve_calls_outside() -> None:
    case, alpha = (Caputo, "l1_2", (0.1, 0.9)), torch.full((1,), 0.3, dtype=torch.float64)
    wanted = weights(case, alpha, 90, False).chunks(16).intra

    def near(a: Tensor) -> Tensor:
        return weights(case, a, 90, True).chunks(16).intra

    inside, _ = tangent(near, alpha, torch.ones_like(alpha))
    batched = torch.vmap(near)(alpha.expand(2, 1))
    for got in (inside, batched[0], batched[1], near(alpha)):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


FEW_SAMPLES = [
    (kind, scheme, low)
    for kind in DEFINITIONS.values()
    if kind is not DistributedOrder
    for scheme in kind.schemes
    for low in (0.0, 1.0)
    if kind.lowest <= low and low + 1 <= kind.highest
]


@pytest.mark.parametrize(("kind", "scheme", "low"), FEW_SAMPLES)
def test_a_learned_order_of_few_samples_is_the_fixed_one(kind: type[Definition], scheme: str, low: float) -> None:
    alpha = torch.tensor(low + 0.4, dtype=torch.float64, requires_grad=True)
    for n in (1, 2, 3):
        x = torch.linspace(1, 2, n, dtype=torch.float64) ** 2
        learned = derivative(x, kind(alpha, scheme, (low, low + 1)), dt=0.1)
        fixed = derivative(x, kind(low + 0.4, scheme), dt=0.1)
        scale = max(1.0, float(fixed.abs().max()))
        torch.testing.assert_close(learned.detach(), fixed, rtol=0, atol=1e-12 * scale)  # the tolerance of a table
        assert torch.autograd.grad(learned.sum(), alpha)[0].isfinite()
