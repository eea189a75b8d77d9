"""One sample at a time: the same as the whole series, with a state that does not grow."""

import copy
import itertools
import pathlib
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import (
    DEFINITIONS,
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
)
from hpfracc_nn.fractional.exponentials import exponentials
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.torch import (
    ARFIMA,
    FractionalConv1d,
    FractionalDifference,
    FractionalGRU,
    FractionalLayer,
    RoughnessFeatures,
)
from hpfracc_nn.selection import BackendManager, Settings
from tests.torch_cases import DT, alphas_of, every_scheme, matrix, multiplied, shipped_manager

STREAMED = [name for name, kind in DEFINITIONS.items() if kind(0.5).side == "left"]


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def streamed(definition: Definition, x: Tensor, dt: float = DT, **options: Any) -> tuple[Tensor, StreamState]:
    """Return the results of all steps over the last axis, and the last state."""
    state, ys = streaming.initial_state("test", definition, x.shape[:-1], dt=dt, **options), []
    for x_t in x.unbind(-1):
        y, state = streaming.step("test", x_t, state)
        ys.append(y)
    return torch.stack(ys, dim=-1), state


def by_layer(layer: Any, x: Tensor, dim: int, horizon: int = 100) -> Tensor:
    slices = x.unbind(dim)
    state, ys = layer.initial_state(slices[0].shape, horizon=horizon), []
    for x_t in slices:
        y, state = layer.step(x_t, state)
        ys.append(y)
    return torch.stack(ys, dim=dim)


def streamable(kind: type[Definition]) -> list[float]:
    """Return the orders at which a definition does not look ahead."""
    return [alpha for alpha in alphas_of(kind) if alpha <= 1 or not kind.subtracts]


def worst(got: Tensor, wanted: Tensor) -> float:
    """Return the largest error of any row, relative to the largest sample of the row."""
    return float(((got - wanted).abs().amax(-1) / wanted.abs().amax(-1).clamp(min=1e-300)).max())


# The result


@every_scheme
def test_every_step_is_the_sample_of_the_dense_matrix(kind: type[Definition], scheme: str) -> None:
    """Past several blocks of boundary rows, and on both sides of the first lag that is not exact."""
    n = 200
    t = torch.arange(n, dtype=torch.float64)
    x = torch.stack([data(n), 5 + data(n, seed=1).cumsum(0), 20 + torch.sin(t / 9), (t == 1).to(t.dtype)])
    for alpha in streamable(kind):
        definition = kind(alpha, scheme)
        y, _ = streamed(definition, x, horizon=n)
        assert worst(y, multiplied(matrix(definition, n), x)) < 1e-12, alpha


FFT = BackendManager(Settings(force_algorithm="fft", calibration="shipped"))  # weights as they are, no exponentials


def assert_ten_thousand_steps_are_the_whole_series(definition: Definition, channels: int) -> None:
    n = 10_000
    t = torch.arange(n, dtype=torch.float64) / n
    x = torch.stack([data(n), data(n, seed=1).cumsum(0), 20 + torch.sin(40 * t), (t == 0).to(t.dtype)])
    x = x[:, None].expand(-1, channels, -1)
    with torch.no_grad():
        y, state = streamed(definition, x)
    assert state.step == n
    assert worst(y, apply("test", x, definition, DT, -1, FFT)) < 1e-12


@pytest.mark.parametrize(
    "definition",
    [RiemannLiouville([0.1, 0.5, 0.9]), GrunwaldLetnikov([-0.9, -0.5, 0.2]), RiemannLiouvilleIntegral([0.3, 0.7, 1])],
    ids=lambda definition: type(definition).__name__,
)
@pytest.mark.slow
def test_ten_thousand_steps_are_the_whole_series(definition: Definition) -> None:
    assert_ten_thousand_steps_are_the_whole_series(definition, 3)


@pytest.mark.slow
@every_scheme
def test_ten_thousand_steps_of_every_scheme_are_the_whole_series(kind: type[Definition], scheme: str) -> None:
    for _, group in itertools.groupby(streamable(kind), lambda alpha: kind(alpha).differences):
        alphas = list(group)
        assert_ten_thousand_steps_are_the_whole_series(kind(alphas, scheme), len(alphas))


@pytest.mark.parametrize("alpha", [-1.0, -0.5, 0.01, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("horizon", [1, 500, 2**20])
def test_the_weights_of_a_stream_are_fitted_to_rounding(alpha: float, horizon: int) -> None:
    nodes = exponentials(GrunwaldLetnikov(alpha), horizon, "stream")
    assert nodes is not None
    assert nodes.error(GrunwaldLetnikov(alpha)) < 3e-14  # measured 7e-15


# Shapes and dtypes


@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 3, 70), -1), ((4, 70, 3), 1), ((3, 70), -1), ((70, 3), 0), ((4, 3, 2, 70), -1)]
)
def test_a_layer_streams_every_layout_with_one_order_per_channel(learn: bool, shape: tuple[int, ...], dim: int) -> None:
    x = data(*shape)
    layer = FractionalLayer(
        [0.2, 0.5, 0.9], learn_alpha=learn, dt=DT, dim=dim, dtype=torch.float64, manager=shipped_manager()
    )
    torch.testing.assert_close(by_layer(layer, x, dim), layer(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.parametrize("shape", [(70,), (0, 70), (2, 0, 3, 70)])
def test_a_layer_streams_one_series_and_none(name: str, shape: tuple[int, ...]) -> None:
    x, layer = data(*shape), FractionalLayer(0.6, name, dt=DT, manager=shipped_manager())
    torch.testing.assert_close(by_layer(layer, x, -1), layer(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("dim", "shape"), [(-1, (3, 2, 70)), (1, (3, 70, 2))])
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("bounds", [(0, 1), (-1, 2)])
def test_a_bank_streams_all_its_parts(dim: int, shape: tuple[int, ...], learn: bool, bounds: tuple[int, int]) -> None:
    init = [0.2, 0.7, 0.5] if bounds == (0, 1) else [0.3, -0.4, 1.6]
    options: Any = {"bounds": bounds, "init": init, "learn_alpha": learn, "dim": dim, "dtype": torch.float64}
    bank, x = FractionalDifference(2, 3, manager=shipped_manager(), **options), data(*shape)
    torch.testing.assert_close(by_layer(bank, x, dim), bank(x), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 1e-6)],  # two roundings of the result
)
def test_the_result_has_the_dtype_of_the_sample_and_the_state_float64(dtype: torch.dtype, bound: float) -> None:
    x, layer = data(3, 90).to(dtype), FractionalLayer(0.6, dt=DT, manager=shipped_manager())
    y = by_layer(layer, x, -1)
    assert y.dtype == dtype
    assert worst(y.double(), layer(x.double())) < bound
    state = layer.step(x[:, 0], layer.initial_state((3,)))[1]
    assert {leaf.dtype for leaf in torch.utils._pytree.tree_leaves(state) if leaf is not None} == {torch.float64}


def test_autocast_changes_nothing() -> None:
    x, layer = data(3, 90).float(), FractionalLayer(0.6, channels=3)
    expected = by_layer(layer, x[None], -1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(by_layer(layer, x[None], -1), expected)


# The state


@pytest.mark.parametrize("name", STREAMED)
def test_the_memory_of_a_state_does_not_depend_on_the_step(name: str) -> None:
    layer, x = FractionalLayer([0.3, 0.8], name, dt=DT), data(4, 2)
    state = layer.initial_state(x.shape)
    sizes = {state.nbytes}
    for _ in range(200):
        _, state = layer.step(x, state)
        held = [leaf for leaf in torch.utils._pytree.tree_leaves(state) if leaf is not None]
        assert sum(leaf.untyped_storage().nbytes() for leaf in held) == state.nbytes  # no view of something larger
        sizes.add(state.nbytes)
    assert sizes == {state.nbytes}
    assert state.step == 200


def moving(model: ARFIMA) -> ARFIMA:
    """The model with weights of the errors before that are not zero."""
    assert model.ma is not None
    torch.nn.init.constant_(model.ma, 0.3)
    return model


OTHERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "a bank of two parts": (FractionalDifference(3, 2, bounds=(-1, 1), init=[-0.5, 0.4]), (2, 3)),
    "ARFIMA": (ARFIMA(2, alpha=0.3), (4,)),
    "ARFIMA with errors before": (moving(ARFIMA(2, 2, alpha=0.3)), (4,)),
    "ARFIMA without an axis": (ARFIMA(0, alpha=0.3), ()),
    "RoughnessFeatures": (RoughnessFeatures(3, orders=2), (2, 3)),
    "FractionalConv1d": (FractionalConv1d(3, 2, 4, padding="causal", alpha=0.4, dtype=torch.float64), (2, 3)),
    "FractionalGRU": (FractionalGRU(3, 2, alpha=0.4, dtype=torch.float64), (2, 3)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_state_of_every_layer_has_the_same_methods(name: str) -> None:
    (layer, shape), x = OTHERS[name], data(5, *OTHERS[name][1])
    first = layer.initial_state(shape, horizon=9)
    _, state = layer.step(x[0], first)
    expected, _ = layer.step(x[1], state)
    leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(state) if isinstance(leaf, Tensor)]
    assert state.nbytes == sum(leaf.numel() * leaf.element_size() for leaf in leaves) > 0
    assert state.step == 1
    copies = [copy.copy(state), copy.deepcopy(state), state.to("cpu"), state.detach(), state.renew(first)]
    copies.append(torch.utils._pytree.tree_map(lambda leaf: leaf, state))
    copies.append(pickle.loads(pickle.dumps(state.detach())))
    for each in copies:
        assert type(each) is type(state)
        assert torch.equal(layer.step(x[1], each)[0], expected)
    moved = torch.utils._pytree.tree_leaves(state.to("meta"))
    assert all(leaf.is_meta for leaf in moved if isinstance(leaf, Tensor))
    with pytest.raises(TypeError, match="needs a device"):
        state.to(torch.float32)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.slow
def test_a_state_can_be_kept_used_twice_copied_and_pickled(name: str) -> None:
    layer, x = FractionalLayer([0.3, 0.8], name, dt=DT), data(4, 2, 100)
    kept = layer.initial_state((4, 2), horizon=100)
    expected = by_layer(layer, x, -1)
    for k, x_t in enumerate(x.unbind(-1)):
        for state in (kept, copy.copy(kept), copy.deepcopy(kept), pickle.loads(pickle.dumps(kept)), kept.to("cpu")):
            assert torch.equal(layer.step(x_t, state)[0], expected[..., k])
        layer.step(1 + x_t, kept)  # another branch
        _, kept = layer.step(x_t, kept)


def test_a_state_that_an_older_version_pickled_goes_on() -> None:
    layer, x = FractionalLayer([0.3, 0.8], "riemann_liouville", channels=2, dt=DT), data(4, 2)
    _, state = layer.step(x, layer.initial_state((4, 2)))
    expected, _ = layer.step(x, state)
    written = pickle.dumps(state, protocol=2)  # classes stand in it by their names
    older = written.replace(
        b"chpfracc_nn.fractional.streaming\nRules\n", b"chpfracc_nn.fractional.torch.streaming\n_Rules\n"
    )
    assert older != written
    assert torch.equal(layer.step(x, pickle.loads(older))[0], expected)


def test_a_state_of_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    states = [layer.initial_state(shape, horizon=9).detach() for layer, shape in OTHERS.values()]
    with monkeypatch.context() as later:
        later.setattr("hpfracc_nn.fractional.streaming._VERSION", 7)
        written = [pickle.dumps(state) for state in states]
    for each in written:
        with pytest.raises(ValueError, match=r"needs a state pickled in version 1 or before, .* 7; load it with the"):
            pickle.loads(each)


def test_a_state_names_its_tensors_in_paths() -> None:
    for layer, shape in [(FractionalLayer(0.4), (2,)), *OTHERS.values()]:
        state = layer.initial_state(shape, horizon=9)
        paths, _ = torch.utils._pytree.tree_flatten_with_path(state)
        leaves = torch.utils._pytree.tree_leaves(state)
        assert [leaf for _, leaf in paths] == leaves
        assert len({torch.utils._pytree.keystr(path) for path, _ in paths}) == len(leaves)


class Served(torch.nn.Module):
    """A layer of which each call is a step."""

    def __init__(self, layer: torch.nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: Any) -> Any:
        return self.layer.step(x, state)  # type: ignore[operator]


EXPORTED = {
    "a starting column": lambda: FractionalLayer(0.4, "caputo", dt=DT),
    "an analytic column": lambda: FractionalLayer(0.4, "riemann_liouville", dt=DT),
    "bdf2": lambda: FractionalLayer([0.2, 0.4, 0.6], "caputo", scheme="bdf2", dt=DT),
    "x(0) subtracted": lambda: FractionalLayer(0.1, "caputo", dt=DT),
    "sums": lambda: FractionalLayer(0.5, "riemann_liouville_integral", dt=DT),
    "FractionalConv1d": lambda: OTHERS["FractionalConv1d"][0],
    "ARFIMA": lambda: ARFIMA(2, alpha=0.3, dtype=torch.float64),
}


@pytest.mark.filterwarnings("ignore")  # what torch says of its own parts
@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_step_serves_every_step(name: str) -> None:
    layer, xs = EXPORTED[name](), data(300, 2, 3)
    state = layer.initial_state((2, 3), horizon=1000)
    counted = state.counted()
    with torch.no_grad():
        program = torch.export.export(Served(layer), (xs[0], counted)).module()
        for x in xs:
            y, state = layer.step(x, state)
            found, counted = program(x, counted)
            assert torch.allclose(found, y, rtol=1e-12, atol=1e-12)  # what exponentials leave of the columns
    again = torch.utils._pytree.tree_map(lambda leaf: leaf, counted)
    assert type(again) is type(counted)
    assert torch.equal(layer.step(x, again)[0], layer.step(x, counted)[0])


def test_a_counted_state_says_where_its_horizon_ends() -> None:
    layer, x = FractionalLayer(0.4), torch.ones(2)
    state: Any = layer.initial_state((2,), horizon=4).counted()
    for _ in range(4):
        _, state = layer.step(x, state)
    with pytest.raises(ValueError, match=r"step\(step 5\): needs at most horizon=4 steps"):
        layer.step(x, state)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what torch says of its own parts
def test_an_exported_step_can_be_saved(tmp_path: pathlib.Path) -> None:
    layer, x = FractionalLayer(0.4, "caputo", dt=DT), data(2, 3)
    counted = layer.initial_state((2, 3), horizon=1000).counted()
    with torch.no_grad():
        torch.export.save(torch.export.export(Served(layer), (x, counted)), tmp_path / "step.pt2")
        program = torch.export.load(tmp_path / "step.pt2").module()
        _, counted = program(x, counted)
        expected = layer(torch.stack([x, x], -1))[..., 1]
        assert torch.allclose(program(x, counted)[0], expected, rtol=1e-12)


def test_a_state_passes_through_transforms() -> None:
    layer, x = FractionalLayer(0.6, dt=DT), data(5, 3, 4)

    def last(x: Tensor, state: StreamState) -> Tensor:
        for x_t in x.unbind(-1):
            y, state = layer.step(x_t, state)
        return y

    states = torch.utils._pytree.tree_map(lambda t: t, layer.initial_state((3,)))
    expected = layer(x)[..., -1]
    torch.testing.assert_close(torch.func.vmap(last, in_dims=(0, None))(x, states), expected)
    jacobian = torch.func.jacrev(last)(x[0], states)
    oracle = torch.einsum("ij,t->ijt", torch.eye(3, dtype=x.dtype), matrix(Caputo(0.6), 4)[-1])
    torch.testing.assert_close(jacobian, oracle)


# Gradients


@every_scheme
def test_gradients_flow_through_steps_to_samples_and_order(kind: type[Definition], scheme: str) -> None:
    x, alpha = data(2, 2, 20).requires_grad_(), torch.tensor([0.3, 0.8], dtype=torch.float64, requires_grad=True)
    seed = data(2, 2, 20, seed=1)

    def gradients(y: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((y * seed).sum(), (x, alpha))

    definition = kind(alpha, scheme, (0, 1))
    got = gradients(streamed(definition, x, horizon=20)[0])
    wanted = gradients(apply("test", x, definition, DT, -1, shipped_manager()))
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-10)


def test_gradcheck_of_some_steps_in_samples_state_and_order() -> None:
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    start = streamed(RiemannLiouville(0.4, bounds=(0, 1)), data(2, 3), horizon=60)[1]

    def steps(x: Tensor, memory: Tensor, alpha: Tensor) -> Tensor:
        fresh = streaming.initial_state("test", RiemannLiouville(alpha), (2,), dt=DT, horizon=60)
        leaves, spec = torch.utils._pytree.tree_flatten(start.renew(fresh))
        leaves = [memory if leaf is not None and leaf.shape == memory.shape else leaf for leaf in leaves]
        state, ys = torch.utils._pytree.tree_unflatten(leaves, spec), []
        for x_t in x.unbind(-1):
            y, state = streaming.step("test", x_t, state)
            ys.append(y)
        return torch.stack(ys)

    memory = start._memory.clone().requires_grad_()
    assert torch.autograd.gradcheck(steps, (data(2, 4, seed=2).requires_grad_(), memory, alpha))


def test_a_state_keeps_its_order_until_it_is_renewed() -> None:
    """The past is the samples', not alpha's: with new weights it continues as if they had been there all along."""
    x = data(3, 150)
    layer = FractionalLayer(0.3, "riemann_liouville", learn_alpha=True, dtype=torch.float64, manager=shipped_manager())
    state = layer.initial_state((3,), horizon=150)
    for x_t in x[:, :100].unbind(-1):
        y, state = layer.step(x_t, state)
    before = layer(x)
    y.sum().backward()
    with torch.no_grad():
        layer.order.raw.add_(0.7)
    torch.testing.assert_close(layer.step(x[:, 100], state)[0], before[:, 100], rtol=1e-11, atol=1e-11)
    state = state.renew(layer.initial_state((3,), horizon=150))
    for k in range(100, 150):
        y, state = layer.step(x[:, k], state)
        torch.testing.assert_close(y, layer(x)[:, k], rtol=1e-11, atol=1e-11)
    y.sum().backward()  # the first stretch's graph is gone and not asked for


def test_no_graph_grows_without_gradients() -> None:
    layer, x = FractionalLayer(0.3, learn_alpha=True), data(3)
    with torch.no_grad():
        y, state = layer.step(x, layer.initial_state((3,)))
    assert not y.requires_grad
    _, state = layer.step(x, layer.initial_state((3,)))
    assert state._memory.grad_fn is None  # the samples need no gradient
    assert not any(leaf.requires_grad for leaf in torch.utils._pytree.tree_leaves(state.detach()) if leaf is not None)


# Refusals


def at(steps: int, layer: FractionalLayer, shape: tuple[int, ...] = (2,), **options: Any) -> StreamState:
    state = layer.initial_state(shape, **options)
    for _ in range(steps):
        _, state = layer.step(torch.zeros(shape), state)
    return state


LAYER = FractionalLayer(0.5, dt=DT)
LEARNED = FractionalLayer(0.5, learn_alpha=True)
BANK = FractionalDifference(3)
REFUSALS = [
    (
        lambda: FractionalLayer(1.5).initial_state((2,)),
        ValueError,
        "FractionalLayer.initial_state(Caputo, alpha within (1.5, 1.5)): needs alpha <= 1 for step and run, "
        "because above it looks ahead 3 samples at the start; use GrunwaldLetnikov, or the whole series.",
    ),
    (
        lambda: FractionalLayer(1.5, "riemann_liouville", learn_alpha=True).initial_state((2,)),
        ValueError,
        "FractionalLayer.initial_state(RiemannLiouville, alpha within (1, 2)): needs alpha <= 1 for step and run, "
        "because above it looks ahead 3 samples at the start; use GrunwaldLetnikov, or the whole series.",
    ),
    (
        lambda: FractionalLayer([-0.5, 1.5], "grunwald_letnikov").initial_state((2,)),
        ValueError,
        "FractionalLayer.initial_state(GrunwaldLetnikov, alpha within (-0.5, 1.5)): needs weights that are a sum of "
        "decaying exponentials, the same for every alpha; keep the orders of one stream, or their bounds, between "
        "neighbouring whole numbers, or, where memory has a time scale, pass a fixed alpha or a shorter horizon.",
    ),
    (
        lambda: LAYER.step(torch.zeros(2), at(3, LAYER, horizon=3)),
        ValueError,
        "FractionalLayer.step(step 4): needs at most horizon=3 steps, for which the state was made; "
        "make it by initial_state with a larger horizon.",
    ),
    (
        lambda: LAYER.step(torch.zeros(2, 9), at(0, LAYER)),
        ValueError,
        "FractionalLayer.step(x of shape (2, 9)): needs one time slice of the state's shape (2,); "
        "pass the samples of one step, without a time axis.",
    ),
    (
        lambda: LAYER.step(torch.zeros(2, dtype=torch.int64), at(0, LAYER)),
        TypeError,
        "FractionalLayer.step(x of dtype torch.int64): needs float16, bfloat16, float32 or float64; "
        "convert with x.to(torch.float32).",
    ),
    (
        lambda: LAYER.step(torch.zeros(2, dtype=torch.complex64), at(0, LAYER)),
        TypeError,
        "FractionalLayer.step(x of dtype torch.complex64): needs float16, bfloat16, float32 or float64; "
        "take x.real and x.imag apart.",
    ),
    (
        lambda: LAYER.step(torch.zeros(2, device="meta"), at(0, LAYER)),
        ValueError,
        "FractionalLayer.step(x on meta): needs the state's device cpu; move it with state.to(x.device).",
    ),
    (
        lambda: LAYER.step(np.zeros(2), at(0, LAYER)),  # type: ignore[arg-type]
        TypeError,
        "FractionalLayer.step(x of type ndarray): needs a torch tensor; pass torch.as_tensor(x).",
    ),
    (
        lambda: LAYER.step(torch.zeros(2), None),  # type: ignore[arg-type]
        TypeError,
        "FractionalLayer.step(state of type NoneType): needs a state; pass what initial_state returned, or step or "
        "run.",
    ),
    (
        lambda: LAYER.step(torch.zeros(2), at(0, FractionalLayer(0.6))),
        ValueError,
        "FractionalLayer.step(state of FractionalLayer of Caputo(alpha=0.6, scheme='l1_2'), dt=1.0): needs a state of "
        "this one, FractionalLayer of Caputo(alpha=0.5, scheme='l1_2'), dt=0.5; "
        "pass what its own initial_state returned.",
    ),
    (
        lambda: LEARNED.step(torch.zeros(2), at(0, FractionalLayer(1.0, bounds=(0, 1)))),
        ValueError,
        "FractionalLayer.step(state of FractionalLayer of Caputo(alpha=1.0, scheme='l1_2', bounds=(0.0, 1.0)), "
        "dt=1.0): needs a state of this one, FractionalLayer of Caputo(alpha learned, scheme='l1_2', "
        "bounds=(0.0, 1.0)), dt=1.0; pass what its own initial_state returned.",
    ),
    (
        lambda: LAYER.step(torch.zeros(2), at(0, FractionalLayer(0.5, dt=DT + 1e-12))),
        ValueError,
        "FractionalLayer.step(state of FractionalLayer of Caputo(alpha=0.5, scheme='l1_2'), dt=0.500000000001): needs "
        "a state of this one, FractionalLayer of Caputo(alpha=0.5, scheme='l1_2'), dt=0.5; "
        "pass what its own initial_state returned.",
    ),
    (
        lambda: BANK.step(torch.zeros(2, 3), FractionalDifference(3, dt=2).initial_state((2, 3))),
        ValueError,
        "FractionalDifference.step(state of FractionalDifference of GrunwaldLetnikov(alpha learned, "
        "scheme='grunwald', bounds=(0.0, 1.0)), dt=2.0): needs a state of this one, FractionalDifference of "
        "GrunwaldLetnikov(alpha learned, scheme='grunwald', bounds=(0.0, 1.0)), dt=1.0; "
        "pass what its own initial_state returned.",
    ),
    (
        lambda: at(1, LAYER).to(torch.float32),  # type: ignore[arg-type]
        TypeError,
        "StreamState.to(torch.float32): needs a device, and stays float64 whatever the samples are; "
        "pass a device such as x.device, and samples of any floating dtype to step.",
    ),
    (
        lambda: at(1, LAYER).to(torch.zeros(2)),  # type: ignore[arg-type]
        TypeError,
        "StreamState.to(Tensor): needs a device, and stays float64 whatever the samples are; "
        "pass a device such as x.device, and samples of any floating dtype to step.",
    ),
    (
        lambda: LAYER.initial_state((2,), horizon=0),
        ValueError,
        "FractionalLayer.initial_state(horizon=0): needs horizon >= 1; pass a whole number such as 1.",
    ),
    (
        lambda: LAYER.initial_state(2),  # type: ignore[arg-type]
        TypeError,
        "FractionalLayer.initial_state(shape=2): needs the shape of one time slice; pass x.select(dim, 0).shape.",
    ),
    (
        lambda: FractionalLayer(channels=3).initial_state((4, 2)),
        ValueError,
        "FractionalLayer(channels=3): needs 3 channels on axis 1; x has shape (4, 2), pass channels=2.",
    ),
    (
        lambda: at(0, LAYER).renew(at(0, LAYER, (3,))),
        ValueError,
        "StreamState.renew(weights: state of shape (3,), horizon 1048576): needs a state made as this one was, "
        "of shape (2,) and horizon 1048576; make it with the same layer and arguments.",
    ),
    (
        lambda: BANK.initial_state((2,)),
        ValueError,
        "FractionalDifference.initial_state(shape=(2,)): needs [batch, 3], the shape of one time slice; "
        "pass for example (2, 3).",
    ),
    (
        lambda: BANK.step(torch.zeros(2, 3, 9), BANK.initial_state((2, 3))),
        ValueError,
        "FractionalDifference.step(x of shape (2, 3, 9)): needs one time slice [batch, 3]; "
        "pass the samples of one step, without a time axis.",
    ),
    (
        lambda: BANK.step(torch.zeros(2, 3), BANK.initial_state((2, 3))[0]),  # type: ignore[arg-type]
        TypeError,
        "FractionalDifference.step(state of type StreamState): needs the states of 1 parts; "
        "pass what initial_state returned, or step or run.",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_what_cannot_be_streamed_is_named(call: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()
