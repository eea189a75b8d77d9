"""Series in blocks: the results and gradients of the whole series, however it is cut."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.definitions import DEFINITIONS, Caputo, Definition, DistributedOrder, RiemannLiouville
from hpfracc_nn.fractional.exponentials import exponentials_over
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import consecutive
from hpfracc_nn.fractional.streaming import HORIZON
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.layers.torch import (
    ARFIMA,
    FractionalAttention,
    FractionalConv1d,
    FractionalDifference,
    FractionalGRU,
    FractionalLayer,
    FractionalLinear,
    FractionalLSTM,
    RoughnessFeatures,
)
from tests.torch_cases import DT, every_scheme

CAUSAL = [name for name, kind in DEFINITIONS.items() if kind(0.5).side == "left"]


def data(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def cuts(n: int, seed: int, blocks: int) -> list[int]:
    """Return the lengths of drawn blocks that make up n samples; some are 0."""
    ends = np.sort(np.random.default_rng(seed).integers(0, n + 1, blocks - 1))
    return np.diff(np.concatenate([[0], ends, [n]])).tolist()


def in_blocks(layer: Any, x: Tensor, dim: int, lengths: list[int]) -> tuple[Tensor, Any]:
    """Return the results for all blocks, joined, and the last state."""
    state, ys = None, []
    for part in x.split(lengths, dim):
        y, state = layer.run(part, state)
        ys.append(y)
    return torch.cat(ys, dim), state


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max().clamp(min=1e-300))


# float64: what exponentials leave of a weight, and the sums of 3000 of them; float32: its rounding, summed up.
LARGEST = {torch.float64: 1e-12, torch.float32: 3e-6}


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_long_blocks_without_gradients_are_the_whole_series(name: str, dtype: torch.dtype) -> None:
    """They are computed as slices are, where the state allows it; short ones between and steps go on with theirs."""
    x, lengths = (5 + data(2, 3, 5000).cumsum(-1)).to(dtype), [1100, 3, 2000, 1897]
    for alpha in (0.3, 1.0, [0.2, 0.4, 0.6]):
        if not DEFINITIONS[name].lowest <= np.max(alpha) <= DEFINITIONS[name].highest:
            continue
        layer = FractionalLayer(alpha, name, dt=DT)
        with torch.no_grad():
            wanted = layer(torch.cat([x, x[..., :1]], -1).double())
            found, state = in_blocks(layer, x, -1, lengths)
            last, _ = layer.step(x[..., 0], state)
        assert apart(torch.cat([found, last[..., None]], -1).double(), wanted) < LARGEST[dtype], alpha


@every_scheme
@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("blocks", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_any_blocks_give_the_whole_series(kind: type[Definition], scheme: str, dtype: torch.dtype, blocks: int) -> None:
    if kind(0.5).side != "left":
        pytest.skip("it reads samples ahead")
    n = 700
    t = torch.arange(n, dtype=torch.float64)
    x = torch.stack([data(n), 5 + data(n, seed=1).cumsum(0), 20 + torch.sin(t / 9), (t == 1).to(t.dtype)]).to(dtype)
    g = data(4, n, seed=2, dtype=dtype)
    for seed, alpha in enumerate((0.0, 0.3, 1.0)):
        layer = FractionalLayer(alpha, kind(0.5, scheme), dt=DT).to(dtype)
        given = x.clone().requires_grad_()
        wanted = layer(given)
        (gradient,) = torch.autograd.grad((wanted * g).sum(), given)
        found, state = in_blocks(layer, given, -1, cuts(n, seed, blocks))
        assert state.step == n
        assert found.dtype == dtype
        assert apart(found, wanted) < LARGEST[dtype], alpha
        (other,) = torch.autograd.grad((found * g).sum(), given)
        assert apart(other, gradient) < LARGEST[dtype], alpha


@pytest.mark.parametrize("alpha", [0.3, 0.8])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_long_blocks_far_from_zero_lose_no_digits(alpha: float, dtype: torch.dtype, bound: float) -> None:
    layer = FractionalLayer(alpha, "caputo", dt=0.5)
    x = (1e5 + data(2, 20_000)).to(dtype)  # a derivative of the differences alone
    with torch.no_grad():
        found, _ = in_blocks(layer, x, -1, [5000] * 4)
        assert apart(found.double(), layer(x.double())) < bound


@every_scheme
@pytest.mark.parametrize("begin", [0, 9000, 10**6])
def test_a_boundary_column_is_met_between_the_rows_that_are_evaluated(
    kind: type[Definition], scheme: str, begin: int
) -> None:
    if kind(0.5).side != "left":
        pytest.skip("it reads samples ahead")
    end, rows = begin + 3 * 4096 + 100, np.arange(begin, begin + 3 * 4096 + 100)
    for alpha in (0.05, 0.5, 0.95, 1.0):
        stencil = kind(alpha, scheme).stencil(end, DT, NUMPY)
        for column in (streaming.first_of(stencil.analytic_columns), stencil.start_column):
            if column:
                largest = np.abs(column(np.arange(16))).max()
                off = np.abs(consecutive(column, begin, end, NUMPY) - column(rows)).max()
                assert off <= 1e-14 * largest  # rounding of 16 values, times three of Lagrange's polynomials


def test_a_boundary_column_with_corners_is_evaluated_row_by_row() -> None:
    def column(rows: np.ndarray) -> np.ndarray:
        return np.where(rows % 7 == 0, 1.0, 0.5)

    assert np.array_equal(consecutive(column, 3, 20_000, NUMPY), column(np.arange(3, 20_000)))


@pytest.mark.parametrize("kind", [Caputo, RiemannLiouville])
def test_long_blocks_give_the_whole_series_and_alphas_gradient(kind: type[Definition]) -> None:
    n = 30_000
    x, g = 3 + data(n).cumsum(0) / 10, data(n, seed=2)
    layer = FractionalLayer(0.4, kind, learn_alpha=True, dt=DT)
    wanted = layer(x)
    (gradient,) = torch.autograd.grad((wanted * g).sum(), layer.order.raw)
    found, _ = in_blocks(layer, x, -1, [100, 14_000, 15_900])
    assert apart(found, wanted) < 1e-12
    assert apart(torch.autograd.grad((found * g).sum(), layer.order.raw)[0], gradient) < 1e-10


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize("channels", [None, 3])
def test_a_learned_order_has_its_gradient_from_all_blocks(name: str, channels: int | None) -> None:
    alpha: Any = 0.4 if channels is None else [0.2, 0.4, 0.7]
    layer = FractionalLayer(alpha, name, dt=DT, learn_alpha=True, channels=channels, dtype=torch.float64)
    if exponentials_over(layer.definition.in_steps(DT), HORIZON, "stream") is None:
        pytest.skip("no exponentials serve all orders in the bounds")
    x, g = data(2, 3, 300).cumsum(-1), data(2, 3, 300, seed=1)
    wanted = torch.autograd.grad((layer(x) * g).sum(), list(layer.parameters()))
    found = torch.autograd.grad((in_blocks(layer, x, -1, cuts(300, 3, 4))[0] * g).sum(), list(layer.parameters()))
    # tables of learned weights are right to 1e-12 of the largest weight, and 1800 products add up
    assert apart(found[0], wanted[0]) < 1e-10


def test_a_sum_of_orders_goes_on_from_block_to_block() -> None:
    definition, x, ys = DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0)), data(2, 500), []
    state = streaming.initial_state("test", definition, (2,), dt=DT)
    site = FractionalLayer(0.5).site
    for part in x.split([100, 0, 399, 1], -1):
        y, state = streaming.run("test", part, state, -1, site)
        ys.append(y)
    assert apart(torch.cat(ys, -1), definition(x, dt=DT)) < 1e-12


def test_a_fixed_order_with_bounds_goes_in_blocks() -> None:
    layer, x = FractionalLayer(0.6, Caputo(0.6, bounds=(0, 1)), dt=DT), data(2, 300)
    assert apart(in_blocks(layer, x, -1, cuts(300, 1, 5))[0], layer(x)) < 1e-12


@pytest.mark.parametrize(("shape", "dim"), [((300,), 0), ((2, 300, 3), 1), ((300, 2, 3), 0), ((2, 2, 3, 300), -1)])
def test_every_layout_goes_in_blocks(shape: tuple[int, ...], dim: int) -> None:
    layer, x = FractionalLayer(0.6, dt=DT, dim=dim), data(*shape)
    found, _ = in_blocks(layer, x, dim, cuts(300, 1, 5))
    assert found.shape == x.shape
    assert apart(found, layer(x)) < 1e-12


def moving(model: ARFIMA) -> ARFIMA:
    assert model.ar is not None
    assert model.ma is not None
    nn.init.constant_(model.ar, 0.2)
    nn.init.constant_(model.ma, 0.3)
    return model


DOUBLE: dict[str, Any] = {"dtype": torch.float64}
# A layer, the shape of its input and the axis of time.
LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "FractionalLayer": (FractionalLayer(0.4, "grunwald_letnikov"), (2, 3, 120), 2),
    "FractionalLinear": (FractionalLinear(3, 4, alpha=0.4, learn_alpha=True, **DOUBLE), (2, 120, 3), 1),
    "FractionalConv1d": (FractionalConv1d(3, 2, 4, dilation=3, padding="causal", alpha=0.4, **DOUBLE), (2, 3, 120), 2),
    "a kernel of one tap": (FractionalConv1d(3, 2, 1, padding="causal", alpha=0.4, **DOUBLE), (3, 120), 1),
    "FractionalDifference": (FractionalDifference(3, 2, bounds=(0, 1), init=[0.3, 0.4], **DOUBLE), (2, 3, 120), 2),
    "a bank of two parts": (FractionalDifference(3, 2, bounds=(-1, 1), init=[-0.5, 0.4], dim=1), (2, 120, 3), 1),
    "ARFIMA": (moving(ARFIMA(2, 3, alpha=0.3, **DOUBLE)), (4, 120), 1),
    "ARFIMA, time first": (moving(ARFIMA(3, 1, alpha=0.3, dim=0, **DOUBLE)), (120, 2), 0),
    "FractionalGRU": (FractionalGRU(3, 2, alpha=0.4, num_layers=2, **DOUBLE), (40, 2, 3), 0),
    "FractionalLSTM": (FractionalLSTM(3, 5, alpha=0.4, proj_size=2, batch_first=True, **DOUBLE), (2, 40, 3), 1),
    "a series alone": (FractionalLSTM(3, 2, alpha=0.4, memory=6, **DOUBLE), (40, 3), 0),
}


def whole(layer: nn.Module, x: Tensor) -> Tensor:
    found = layer(x)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_with_steps_goes_in_blocks(name: str) -> None:
    layer, shape, dim = LAYERS[name]
    x = data(*shape).requires_grad_()
    wanted = whole(layer, x)
    g = data(*wanted.shape, seed=1)
    inputs = [x, *layer.parameters()]
    gradients = torch.autograd.grad((wanted * g).sum(), inputs, allow_unused=True)
    for seed, blocks in enumerate((1, 3, 20)):
        found, _ = in_blocks(layer, x, dim, cuts(shape[dim], seed, blocks))
        assert found.shape == wanted.shape
        assert apart(found, wanted) < 1e-10  # the recurrent layers' own bound of a step
        others = torch.autograd.grad((found * g).sum(), inputs, allow_unused=True)
        for one, other in zip(others, gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert apart(one, other) < 1e-9


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("alpha", [0.5, None])
def test_attention_goes_in_blocks(batch_first: bool, alpha: float | None) -> None:
    options: dict[str, Any] = {} if alpha is None else {"alpha": alpha}
    layer = FractionalAttention(8, 2, batch_first=batch_first, **DOUBLE, **options).eval()
    x = data(2, 30, 8) if batch_first else data(30, 2, 8)
    causal = nn.Transformer.generate_square_subsequent_mask(30, dtype=torch.float64)
    wanted, _ = layer(x, x, x, attn_mask=causal, need_weights=False)
    found, state = in_blocks(layer, x, 1 if batch_first else 0, [1, 12, 0, 17])
    assert state.step == 30
    assert apart(found, wanted) < 1e-12


@pytest.mark.parametrize("skip", [0, 25])
def test_features_of_blocks_are_those_of_all_samples_so_far(skip: int) -> None:
    layer = RoughnessFeatures(3, orders=2, skip=skip)
    x, state = data(2, 3, 120), None
    for first, last in ((0, 10), (10, 60), (60, 120)):
        found, state = layer.run(x[..., first:last], state)
        if last > skip:
            assert apart(found, layer(x[..., :last])) < 1e-12


@pytest.mark.parametrize("name", LAYERS)
def test_blocks_and_steps_mix(name: str) -> None:
    layer, shape, dim = LAYERS[name]
    x, ys = data(*shape), []
    with torch.no_grad():
        y, state = layer.run(x.narrow(dim, 0, 10))  # type: ignore[operator]
        ys.append(y)
        for k in range(10, 15):
            y, state = layer.step(x.select(dim, k), state)  # type: ignore[operator]
            ys.append(y.unsqueeze(dim))
        kept = pickle.loads(pickle.dumps(state))
        rest = x.narrow(dim, 15, shape[dim] - 15)
        y, _ = layer.run(rest, state)  # type: ignore[operator]
        again, _ = layer.run(rest, kept)  # type: ignore[operator]
    assert torch.equal(y, again)
    assert apart(torch.cat([*ys, y], dim), whole(layer, x)) < 1e-10


class Run(nn.Module):
    """`layer.run` as a module's call, which functional_call takes."""

    def __init__(self, layer: FractionalLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self.layer.run(x, state)


def test_gradcheck_of_a_block_in_samples_state_and_order() -> None:
    layer = FractionalLayer(0.4, learn_alpha=True, dt=DT, **DOUBLE)

    def last(before: Tensor, x: Tensor, raw: Tensor) -> Tensor:
        given = {"layer.order.raw": raw}
        _, state = torch.func.functional_call(Run(layer), given, (before,))
        return torch.func.functional_call(Run(layer), given, (x, state))[0]

    before, x = data(1, 5).requires_grad_(), data(1, 6, seed=1).requires_grad_()
    raw = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(last, (before, x, raw))
    assert torch.autograd.gradgradcheck(last, (before, x, raw))


def test_a_state_after_a_block_is_no_larger_than_before() -> None:
    layers: list[Any] = [FractionalLayer(0.4), FractionalConv1d(3, 2, 4, padding="causal", alpha=0.4, **DOUBLE)]
    for layer in layers:
        first = layer.initial_state((2, 3))
        _, state = layer.run(data(2, 3, 5000), first)
        assert state.nbytes == first.nbytes
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(state) if isinstance(leaf, Tensor)]
        assert sum(leaf.untyped_storage().nbytes() for leaf in leaves) == state.nbytes


@pytest.mark.parametrize("name", ["caputo", "grunwald_letnikov"])
def test_compiled_blocks_leave_the_states_of_plain_ones(name: str) -> None:
    layer = FractionalLayer(0.4, name)
    run, x, state, ys = torch.compile(layer.run, backend="eager"), data(2, 96), None, []
    for part in x.split(32, -1):
        y, state = run(part, state)
        ys.append(y)
    assert apart(torch.cat(ys, -1), layer(x)) < 1e-12


def test_truncated_backpropagation_ends_at_a_detached_state() -> None:
    layer = FractionalLayer(0.4, "grunwald_letnikov", learn_alpha=True, **DOUBLE)
    x = data(2, 200).requires_grad_()
    _, state = layer.run(x[:, :100])
    y, _ = layer.run(x[:, 100:], state.renew(layer.initial_state((2,))))
    y.sum().backward()
    assert x.grad is not None
    assert not x.grad[:, :100].any()
    assert x.grad[:, 100:].any()


def test_a_stream_goes_on_for_longer_than_anyone_waits() -> None:
    """With room for 2**45 samples, a year at a million a second, the weights are as exact as with 2**20."""
    layer, x = FractionalLayer(0.4, dt=DT), data(2, 3000)
    state = layer.initial_state((2,), horizon=2**45)
    y, state = layer.run(x[:, :1000], state)
    z, state = layer.run(x[:, 1000:], state)
    assert apart(torch.cat([y, z], -1), layer(x)) < 1e-12
    assert state.nbytes < 2.5 * layer.initial_state((2,)).nbytes


def wrong(value: Any) -> Any:
    return value


REFUSALS: list[tuple[Any, type, str]] = [
    (lambda: FractionalLayer(0.4).run(wrong([1.0])), TypeError, "needs a torch tensor"),
    (lambda: FractionalLayer(0.4).run(torch.ones(3, dtype=torch.int64)), TypeError, "needs float16"),
    (lambda: FractionalLayer(0.4).run(data(2, 9), wrong(3)), TypeError, "needs a state"),
    (lambda: FractionalLayer(0.4).run(data(2, 9), FractionalLayer(0.4).initial_state((3,))), ValueError, "(2, 9)"),
    (lambda: FractionalLayer(1.4).run(data(2, 9)), ValueError, "looks ahead"),
    (
        lambda: FractionalLayer(0.4).run(data(2, 9), FractionalLayer(0.5).initial_state((2,))),
        ValueError,
        "needs a state of this one",
    ),
    (
        lambda: FractionalLayer(0.4).run(data(2, 9), FractionalLayer(0.4).initial_state((2,), horizon=8)),
        ValueError,
        "horizon=8",
    ),
    (lambda: FractionalConv1d(3, 2, 4, alpha=0.4).run(data(2, 3, 9)), ValueError, "padding='causal'"),
    (lambda: FractionalGRU(3, 2, bidirectional=True).run(data(4, 2, 3)), ValueError, "bidirectional=False"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_what_cannot_go_in_blocks_is_named(call: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_an_empty_batch_goes_in_blocks():
    layer = FractionalLayer(0.5)
    y, state = layer.run(torch.zeros(0, 50))
    assert y.shape == (0, 50)
    assert layer.run(torch.zeros(0, 7), state)[0].shape == (0, 7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_leaves_the_past_of_its_samples(dtype):
    """The block is read as it lies: differences rounded to the samples' dtype would not add up to the past."""
    x = torch.randn(2, 5000, generator=torch.Generator().manual_seed(0)).to(dtype)
    layer, follows = FractionalLayer(0.5), torch.zeros(2, 50)
    (_, half), (_, single) = layer.run(x), layer.run(x.float())
    after, wanted = layer.run(follows, half)[0], layer.run(follows, single)[0]
    assert (after - wanted).abs().max() <= 1e-5 * wanted.abs().max()  # sums of 5000 samples in single precision
