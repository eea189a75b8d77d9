"""Every torch kernel computes the operator's dense matrix, wherever the data lie, in whatever layout."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import (
    Caputo,
    CaputoFabrizio,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    TemperedRiemannLiouville,
)
from hpfracc_nn.fractional.torch import tiles
from tests.torch_cases import (
    Forced,
    Tally,
    alphas_of,
    every_causal_kernel,
    every_kernel,
    every_kernel_always,
    every_scheme,
    magnitude,
    matrix,
    multiplied,
    stencil_of,
)

SIZES = (1, 2, 3, 4, 5, 8, 31, 32, 33, 63, 64, 65, 131, 200)
TOLERANCE = 1e-12  # of a weight in float64, for every kernel; rounding of n <= 1000 samples is below it
OPERATORS = [
    Caputo(0.5),
    Caputo(1.5),
    RiemannLiouville(0.3),
    RiemannLiouville(1.7, scheme="l1_2"),
    GrunwaldLetnikov(0.1),
    GrunwaldLetnikov(0.6),
    GrunwaldLetnikov(1.4, scheme="bdf2"),
    RiemannLiouvilleIntegral(0.4),
    RiemannLiouvilleIntegral(1.6),
    CaputoFabrizio(0.4, unit=20.0),  # one state, and no exact lag but 0
    TemperedRiemannLiouville(0.6, rate=0.1),
]
RARER = {Caputo(1.5), RiemannLiouville(1.7, scheme="l1_2"), GrunwaldLetnikov(0.6), RiemannLiouvilleIntegral(1.6)}
every_operator = pytest.mark.parametrize(
    "definition",
    [pytest.param(each, marks=pytest.mark.slow) if each in RARER else each for each in OPERATORS],
    ids=repr,
)


def backward_of(forced: Forced, x: Tensor, g: Tensor, definition: Definition, dim: int = -1) -> Tensor:
    """Return the gradient of <operator(x), g> in x, by the kernel's adjoint."""
    x = x.detach().requires_grad_()
    (gx,) = torch.autograd.grad(forced(x, definition, dim=dim), x, g)
    return gx


def learned_like(definition: Definition, device: str) -> tuple[tuple[float, float], Tensor]:
    """Return bounds around a definition's order, and an order in them that wants its gradient."""
    bounds = (0.0, 1.0) if definition.interval[1] <= 1 else (1.0, 2.0)
    middle = sum(bounds) / 2 + 0.1
    return bounds, torch.tensor(middle, dtype=torch.float64, device=device, requires_grad=True)


def assert_is_the_matrix(forced: Forced, definition: Definition, shape: tuple[int, ...], dim: int) -> None:
    n = shape[dim]
    x, g = forced.random(*shape, seed=n), forced.random(*shape, seed=n + 1)
    dense, stencil = matrix(definition, n), stencil_of(definition, n)
    bound = TOLERANCE * magnitude(stencil, x, dim)
    y = forced(x, definition, dim=dim)
    assert y.shape == x.shape
    assert y.dtype == torch.float64
    assert y.is_contiguous()
    assert (y.cpu() - multiplied(dense, x, dim)).abs().max() <= bound, definition
    # The transpose has the weights' size too, but sums where the operator differences.
    bound = TOLERANCE * n * float(dense.abs().max() + np.abs(stencil.weights).max()) * float(g.abs().max())
    gx = backward_of(forced, x, g, definition, dim)
    assert (gx.cpu() - multiplied(dense.T, g, dim)).abs().max() <= bound, definition


@every_kernel
@every_scheme
def test_a_kernel_and_its_adjoint_are_the_dense_matrix_and_its_transpose(
    forced: Forced, kind: type[Definition], scheme: str
) -> None:
    tally, widths = Tally(), (1, 2, 5)
    for (i, n), (j, alpha) in product(enumerate(SIZES), enumerate(alphas_of(kind))):
        if (i + j) % 3:  # every size and every order, but not every pair: see the slow test
            continue
        shape, dim = ((3, n), -1) if (i + j) % 2 else ((2, n, widths[j % 3]), 1)
        with tally.each():
            assert_is_the_matrix(forced, kind(alpha, scheme), shape, dim)
    tally.check()


@pytest.mark.slow
@every_kernel_always
@every_operator
def test_a_kernel_is_the_dense_matrix_over_many_chunks(forced: Forced, definition: Definition) -> None:
    assert_is_the_matrix(forced, definition, (2, 1000), -1)


@pytest.mark.slow
@every_kernel
@every_scheme
def test_a_kernel_is_the_dense_matrix_at_every_size_order_and_layout(
    forced: Forced, kind: type[Definition], scheme: str
) -> None:
    tally = Tally()
    for n in (*SIZES, 1000):
        for alpha in alphas_of(kind):
            for shape, dim in (((3, n), -1), ((2, n, 1), 1), ((2, n, 2), 1), ((n, 5), 0)):
                with tally.each():
                    assert_is_the_matrix(forced, kind(alpha, scheme), shape, dim)
    tally.check()


CHANNELS = [
    pytest.param((0.2, 0.5, 0.9), (4, 3, 70), -1, id="before time"),
    pytest.param((0.2, 0.5, 0.9), (3, 70), -1, id="before time, no batch"),
    pytest.param((0.2, 0.5, 0.9), (1, 3, 131), -1, id="batch of one"),
    pytest.param((0.2, 0.5, 0.9), (4, 70, 3), 1, id="after time"),
    pytest.param((0.2, 0.5, 0.9), (70, 3), 0, id="after time, no batch"),
    pytest.param(((0.2,), (0.5,), (0.9,)), (2, 3, 4, 70), -1, id="before time and another axis"),
    pytest.param(((0.2,), (0.5,), (0.9,)), (2, 131, 3, 2), 1, id="after time and before another axis"),
    pytest.param(((0.2,), (0.5,), (0.9,)), (3, 70, 2), 1, id="around time"),
    pytest.param(((0.2, 0.4), (0.6, 0.8)), (3, 2, 2, 70), -1, id="two axes"),
    pytest.param(((0.2, 0.4), (0.6, 0.8)), (2, 70, 2), 1, id="one axis on either side of time"),
    pytest.param((0.7,), (4, 3, 70), -1, id="one for all"),
]


@every_kernel_always
@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(("alpha", "shape", "dim"), CHANNELS)
@pytest.mark.slow
def test_every_channel_has_its_own_order(
    forced: Forced, alpha: tuple, shape: tuple[int, ...], dim: int, learned: bool
) -> None:
    x, g = forced.random(*shape), forced.random(*shape, seed=1)
    orders = torch.tensor(alpha, dtype=torch.float64, device=forced.device, requires_grad=learned)
    for kind in (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral):
        definition = kind(orders if learned else alpha, bounds=(0, 1))
        y, gx = forced(x, definition, dim=dim), backward_of(forced, x, g, definition, dim)
        n, last = shape[dim], x.ndim - 1
        each = np.broadcast_to(np.asarray(alpha), tuple(np.delete(shape, dim % x.ndim)))
        rows, signals = x.movedim(dim, last).reshape(-1, n), g.movedim(dim, last).reshape(-1, n)
        results, grads = y.movedim(dim, last).reshape(-1, n), gx.movedim(dim, last).reshape(-1, n)
        for order, row, result, signal, grad in zip(each.ravel(), rows, results, signals, grads, strict=True):
            dense = matrix(kind(float(order), bounds=(0, 1)), n)
            size = TOLERANCE * n * float(dense.abs().max())
            assert (result.detach().cpu() - multiplied(dense, row)).abs().max() <= size
            assert (grad.cpu() - multiplied(dense.T, signal)).abs().max() <= size


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "every other sample": lambda x: x[..., ::2],
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(1, 2, 0),
    "expanded": lambda x: x[:1].expand(7, -1, -1),
    "expanded in time": lambda x: x[..., :1].expand(-1, -1, 70),
    "a part": lambda x: x[1:, :, 3:-2],
}


@every_kernel
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dim", [-1, 1, 0])
@pytest.mark.slow
def test_strides_do_not_change_the_result(forced: Forced, view: str, dim: int) -> None:
    x, g = VIEWS[view](forced.random(66, 5, 132)), VIEWS[view](forced.random(66, 5, 132, seed=1))
    copy = x.clone(memory_format=torch.contiguous_format)
    per_channel = tuple(np.linspace(0.2, 0.8, x.shape[2 if dim != -1 else 1]))
    for definition in (Caputo(0.4), GrunwaldLetnikov(1.3), Caputo(per_channel)):
        assert torch.equal(forced(x, definition, dim=dim), forced(copy, definition, dim=dim))
        grads = [backward_of(forced, x, way, definition, dim) for way in (g, g.contiguous())]
        assert torch.equal(*grads)


@every_kernel
@every_operator
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((700, 131), -1), ((90, 131, 7), 1), pytest.param((40, 131, 17), 1, marks=pytest.mark.slow)],
    ids=["last", "narrow", "wide"],
)
def test_a_batch_of_several_tiles_is_all_computed(
    forced: Forced, definition: Definition, shape: tuple[int, ...], dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "_BYTES", 64 * 1024)  # 62 signals of 131 samples
    assert_is_the_matrix(forced, definition, shape, dim)


@every_kernel
@pytest.mark.parametrize(
    ("shape", "dim"), [((0, 5), -1), ((3, 0), -1), ((2, 0, 3), 1), ((3, 5, 0), 1), ((0,), 0), ((0, 3, 9), -1)]
)
@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_nothing_in_gives_nothing_out_and_gradients_of_zero(
    forced: Forced, shape: tuple[int, ...], dim: int, learned: bool
) -> None:
    x = torch.empty(shape, device=forced.device, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(0.5, dtype=torch.float64, device=forced.device, requires_grad=True)
    y = forced(x, Caputo(alpha if learned else 0.5), dim=dim)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert alpha.grad is None if not learned else alpha.grad == 0


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill with NaN whatever is allocated without a value."""

    def poisoned(allocate: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def fill(*args: object, **options: object) -> Tensor:
            made = allocate(*args, **options)
            return made.fill_(torch.nan) if made.is_floating_point() else made

        return fill

    for owner, name in (
        (torch, "empty"),
        (torch, "empty_like"),
        (torch, "empty_strided"),
        (torch.Tensor, "new_empty"),
    ):
        monkeypatch.setattr(owner, name, poisoned(getattr(owner, name)))
    assert torch.zeros(2).new_empty(2).isnan().all()


@pytest.mark.usefixtures("poison")
@every_kernel
@every_operator
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((3, 2, 131), -1), ((2, 131, 3), 1), *(pytest.param((3, n), -1, marks=pytest.mark.slow) for n in (64, 5))],
)
def test_memory_that_was_never_written_is_never_read(
    forced: Forced, definition: Definition, shape: tuple[int, ...], dim: int
) -> None:
    assert_is_the_matrix(forced, definition, shape, dim)
    bounds, alpha = learned_like(definition, forced.device)
    x = forced.random(*shape).requires_grad_()
    y = forced(x, type(definition)(alpha, definition.scheme, bounds), dim=dim)
    for gradient in torch.autograd.grad(y.square().sum(), (x, alpha)):
        assert gradient.isfinite().all()


@every_kernel
@every_operator
@pytest.mark.parametrize(
    ("shape", "dim"), [((3, 2, 131), -1), ((2, 128, 3), 1), pytest.param((3, 64), -1, marks=pytest.mark.slow)]
)
def test_what_comes_in_is_never_written_to(
    forced: Forced, definition: Definition, shape: tuple[int, ...], dim: int
) -> None:
    bounds, alpha = learned_like(definition, forced.device)
    x, g = forced.random(*shape).requires_grad_(), forced.random(*shape, seed=1)
    copies = x.detach().clone(), g.clone(), alpha.detach().clone()
    for used in (definition, type(definition)(alpha, definition.scheme, bounds)):
        forced(x, used, dim=dim).backward(g)
        with torch.no_grad():
            forced(x, used, dim=dim)
    for now, before in zip((x, g, alpha), copies, strict=True):
        assert torch.equal(now.detach(), before)


@every_kernel
@every_scheme
@pytest.mark.slow
def test_the_adjoint_identity_holds_to_rounding(forced: Forced, kind: type[Definition], scheme: str) -> None:
    tally = Tally()
    for alpha in alphas_of(kind):
        definition = kind(alpha, scheme)
        for n in (7, 64, 131):
            x, g = forced.random(4, n), forced.random(4, n, seed=1)
            with tally.each():
                left = (forced(x, definition) * g).sum()
                right = (x * backward_of(forced, x, g, definition)).sum()
                size = magnitude(stencil_of(definition, n), x) * float(g.norm()) * 4
                assert abs(left - right) <= 1e-14 * size  # one rounding per term and the scan's
    tally.check()


@every_causal_kernel
@every_operator
@pytest.mark.parametrize(("shape", "dim"), [((2, 200), -1), ((2, 200, 3), 1)], ids=["last", "middle"])
def test_a_sample_never_depends_on_later_ones(
    forced: Forced, definition: Definition, shape: tuple[int, ...], dim: int
) -> None:
    x = forced.random(*shape)
    y = forced(x, definition, dim=dim)
    for t in (3, 4, 31, 32, 63, 64, 65, 100, 127, 128, 198):  # samples up to 3 may estimate x'(0)
        changed = x.clone()
        changed.narrow(dim, t + 1, 199 - t).mul_(-1e6)
        later = forced(changed, definition, dim=dim)
        assert torch.equal(later.narrow(dim, 0, t + 1), y.narrow(dim, 0, t + 1)), t
        assert not torch.equal(later, y)


@every_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
@pytest.mark.parametrize(
    ("shape", "dim", "alpha"),
    [
        ((5, 2, 131), -1, 0.5),
        ((5, 131, 4), 1, 0.5),
        ((5, 2, 40), -1, 0.5),
        ((5, 2, 131), -1, (0.3, 0.6)),
        ((5, 131, 2), 1, (0.3, 0.6)),
        ((400, 131), -1, 0.5),
    ],
)
def test_a_sample_that_is_not_finite_leaves_other_rows_exact(
    forced: Forced, value: float, shape: tuple[int, ...], dim: int, alpha: float | tuple
) -> None:
    for kind in (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral):
        definition = kind(alpha)
        x = forced.random(*shape)
        broken = x.clone()
        index: list[int] = [1] * x.ndim
        index[dim] = 17
        broken[tuple(index)] = value
        others = torch.ones(shape, dtype=torch.bool, device=forced.device)
        row: list[int | slice] = [1] * x.ndim
        row[dim] = slice(None)
        others[tuple(row)] = False
        results = [forced(data, definition, dim=dim)[others] for data in (broken, x)]
        assert torch.equal(*results)
        grads = [backward_of(forced, x, g, definition, dim)[others] for g in (broken, x)]
        assert torch.equal(*grads)
