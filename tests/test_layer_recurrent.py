"""What is particular to the recurrent layers: torch's options, packed series, the memory, its kernels."""

from __future__ import annotations

import copy
import math
import pathlib
import pickle
import runpy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, pad_packed_sequence

from hpfracc_nn.layers.torch import FractionalGRU, FractionalLSTM, ProbabilisticAlpha, recurrence
from hpfracc_nn.layers.torch.recurrence import CELLS, lag_weights
from hpfracc_nn.selection import BackendManager, Settings, default_manager
from hpfracc_nn.selection.registry import kernels

KINDS: dict[str, tuple[Any, Any]] = {"lstm": (FractionalLSTM, nn.LSTM), "gru": (FractionalGRU, nn.GRU)}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layers": {"num_layers": 3, "dropout": 0.5},
    "both ways": {"num_layers": 2, "bidirectional": True},
    "batch first": {"batch_first": True, "bias": False},
}
SHARED = Settings(mode="prior", calibration="shipped")
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def draw() -> Any:
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def pair(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return torch's layer, which computes in evaluation, and ours with its weights at alpha = 1."""
    ours, torchs = KINDS[kind]
    torch.manual_seed(1)
    ordinary = torchs(3, 5, **options, dtype=torch.float64).eval()
    return ordinary, ours.from_torch(ordinary, alpha=1.0)


def made(kind: str, **options: Any) -> Any:
    torch.manual_seed(1)
    return KINDS[kind][0](3, 5, **{"alpha": 0.6, "learn_alpha": True, "dtype": torch.float64, **options})


def flat(result: Any) -> list[Tensor]:
    if isinstance(result, PackedSequence):
        return [result.data]
    return [result] if isinstance(result, Tensor) else [one for part in result for one in flat(part)]


def assert_same(found: Any, expected: Any, tolerance: float = 1e-13) -> None:
    """A hundred steps of cells whose states stay below some ones, each rounded to 1e-16."""
    for one, other in zip(flat(found), flat(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@each_kind
def test_at_alpha_one_it_is_torchs_layer_with_all_its_options(kind, options, draw):
    ordinary, layer = pair(kind, **options)
    assert not layer.training
    assert list(layer.state_dict()) == list(ordinary.state_dict())
    rows = layer.num_layers * (1 + layer.bidirectional)
    h, c = draw(rows, 4, 5), draw(rows, 4, 5)
    hx, single = ((h, c), (h[:, 0], c[:, 0])) if kind == "lstm" else (h, h[:, 0])
    x = draw(4, 70, 3) if layer.batch_first else draw(70, 4, 3)
    assert_same(layer(x), ordinary(x))
    assert_same(layer(x, hx), ordinary(x, hx))
    one = x[0] if layer.batch_first else x[:, 0]
    assert_same(layer(one, single), ordinary(one, single))
    packed = pack_sequence([draw(n, 3) for n in (4, 30, 1, 11)], enforce_sorted=False)
    found, expected = layer(packed, hx), ordinary(packed, hx)
    assert_same(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(found[0][1:], expected[0][1:], strict=True))


def test_at_alpha_one_projections_are_torchs_too(draw):
    ordinary, layer = pair("lstm", proj_size=2, num_layers=2)
    x, hx = draw(50, 4, 3), (draw(2, 4, 2), draw(2, 4, 5))
    assert_same(layer(x, hx), ordinary(x, hx))


@each_kind
def test_gradients_at_alpha_one_are_torchs(kind, draw):
    ordinary, layer = pair(kind, num_layers=2, bidirectional=True)
    x, weights = draw(70, 4, 3).requires_grad_(), draw(70, 4, 10)
    found, expected = (
        torch.autograd.grad(
            (one(x)[0] * weights).sum() + sum(each.square().sum() for each in flat(one(x)[1])), [x, *one.parameters()]
        )
        for one in (layer, ordinary)
    )
    assert_same(found, expected, 1e-11)  # sums of 280 samples' gradients, some tens large


@pytest.mark.parametrize("memory", [None, 4])
@pytest.mark.parametrize("bidirectional", [False, True])
@each_kind
def test_packed_series_are_computed_each_for_itself(kind, bidirectional, memory, draw):
    layer = made(kind, num_layers=2, bidirectional=bidirectional, memory=memory)
    series = [draw(n, 3) for n in (4, 30, 1, 11)]
    out, final = layer(pack_sequence(series, enforce_sorted=False))
    padded, lengths = pad_packed_sequence(out)
    for k, one in enumerate(series):
        alone, last = layer(one)
        assert_same(padded[: lengths[k], k], alone)
        assert_same([each[:, k] for each in flat(final)], flat(last))


@each_kind
def test_dropout_falls_between_the_layers_in_training_only(kind: str, draw: Any) -> None:
    layer, x = made(kind, num_layers=2, dropout=1.0), draw(9, 2, 3)
    first = made(kind)
    first.load_state_dict(layer.state_dict(), strict=False)
    nothing = KINDS[kind][0](5, 5, alpha=0.6, dtype=torch.float64)
    nothing.load_state_dict({n.replace("_l1", "_l0"): v for n, v in layer.state_dict().items() if "_l1" in n})
    assert_same(layer(x)[0], nothing(torch.zeros(9, 2, 5, dtype=torch.float64))[0])
    assert_same(layer.eval()(x)[0], nothing(first(x)[0])[0])


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9, 1.0])
def test_the_weights_are_an_average(alpha):
    a = lag_weights(torch.tensor(alpha, dtype=torch.float64), 5001)
    assert bool((a >= 0).all())
    # sum over k <= n of a_k = 1 - Gamma(n + 1 - alpha) / (Gamma(1 - alpha) Gamma(n + 1))
    lost = 0.0 if alpha == 1 else math.exp(math.lgamma(5001 - alpha) - math.lgamma(1 - alpha) - math.lgamma(5001))
    assert float(a.sum()) == pytest.approx(1 - lost, abs=1e-11)  # lgamma(5001) is 4e4, rounded to 4e-12


def with_gates(layer: Any, forget: float = 1.0) -> Any:
    """Return the layer with constant gates: its one cell takes in tanh of the input, and keeps a part of its memory."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.weight_ih_l0[2] = 1.0  # the candidate
        layer.bias_ih_l0[0] = 40.0  # 1 - sigmoid(40) is below the rounding of 1
        layer.bias_ih_l0[1] = 40.0 if forget == 1 else math.log(forget / (1 - forget))
    return layer


@pytest.mark.parametrize("memory", [None, 2000])
@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_with_open_gates_the_cell_is_a_fractional_integral(alpha, memory):
    """Where f = i = 1, c - m = (1 - z)**alpha c is the input: an impulse leaves the weights of (1 - z)**-alpha."""
    layer = with_gates(FractionalLSTM(1, 1, alpha=alpha, memory=memory, dtype=torch.float64))
    x = torch.zeros(1000, 1, dtype=torch.float64)
    x[0] = 1.0
    expected = math.exp(math.lgamma(999 + alpha) - math.lgamma(alpha) - math.lgamma(1000)) * math.tanh(1.0)
    _, (_, c) = layer(x)
    assert c.item() == pytest.approx(expected, rel=1e-9)  # exponentials to 1e-11 of a weight, and 1000 of them


@pytest.mark.parametrize("alpha", [0.3, 0.8])
def test_a_gate_that_forgets_leaves_a_power_law_too(alpha):
    """With i = 1, c = u / (1 - f + f (1 - z)**alpha): f a_n / (1 - f)**2 in the end, times 1 + O(n**-alpha)."""
    layer, n, f = with_gates(FractionalLSTM(1, 1, alpha=alpha, dtype=torch.float64), 0.25), 4000, 0.25
    x = torch.zeros(n + 1, 1, dtype=torch.float64)
    x[0] = 1.0
    _, (_, c) = layer(x)
    a = float(lag_weights(torch.tensor(alpha, dtype=torch.float64), n + 1)[n])
    assert c.item() == pytest.approx(f * a / (1 - f) ** 2 * math.tanh(1.0), rel=2 * n**-alpha)


BY_KERNEL = [
    (op, kernel.name)
    for op in ("history", "history.window")
    for kernel in kernels(op, "torch")
    if kernel.backend != "cuda"  # which a test of its own runs
]


@pytest.mark.parametrize(("op", "name"), BY_KERNEL, ids=[f"{op}-{name.replace('/', '-')}" for op, name in BY_KERNEL])
@pytest.mark.parametrize("alpha", [0.4, [0.2, 0.4, 0.6, 0.8, 0.95]], ids=["one order", "an order per unit"])
@each_kind
def test_every_kernel_computes_what_the_exact_weights_do(kind, alpha, op, name, draw, monkeypatch):
    backend, algorithm = name.split("/")
    if backend == "numba":
        pytest.importorskip("numba")
    manager = BackendManager(Settings(mode="prior", force_backend=backend, force_algorithm=algorithm))
    layer = made(kind, alpha=alpha, memory=40 if op == "history.window" else None, manager=manager)
    x, weights = draw(150, 2, 3).requires_grad_(), draw(150, 2, 5)

    def results() -> list[Tensor]:
        out, final = layer(x)
        loss = (out * weights).sum() + sum(each.square().sum() for each in flat(final))
        return [out, *torch.autograd.grad(loss, [x, *layer.parameters()])]

    found = results()
    assert {plan.kernel.name for plan in layer.site.plans()} == {name}
    monkeypatch.setattr(recurrence, "is_plain", lambda x: False)  # by the formula, in plain torch
    for one, other in zip(found, results(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9 * float(other.detach().abs().max()))


@pytest.mark.parametrize("memory", [None, 30])
@each_kind
@torch.no_grad()
def test_one_step_at_a_time_is_the_whole_series(kind, memory, draw):
    layer, x = made(kind, num_layers=2, memory=memory), draw(500, 2, 3)
    hx = (draw(2, 2, 5), draw(2, 2, 5)) if kind == "lstm" else draw(2, 2, 5)
    state = layer.initial_state((2, 3), hx=hx)
    size, found = state.nbytes, []
    for k, sample in enumerate(x):
        if k == 100:
            state = pickle.loads(pickle.dumps(copy.deepcopy(state))).to("cpu")
        y, state = layer.step(sample, state)
        found.append(y)
    assert (state.step, state.nbytes) == (500, size)
    assert_same(torch.stack(found), layer(x, hx)[0], 1e-10)
    single = layer.initial_state((3,))
    assert_same(layer.step(x[0, 0], single)[0], layer(x[:1, 0])[0][0])


@each_kind
def test_a_stretch_of_truncated_backpropagation_goes_on_with_new_weights(kind, draw):
    layer, x = made(kind), draw(20, 2, 3)
    state = layer.initial_state((2, 3))
    for sample in x[:10]:
        _, state = layer.step(sample, state)
    renewed = state.renew(layer.initial_state((2, 3)))
    one, _ = layer.step(x[10], renewed)
    assert_same(one, layer.step(x[10], state)[0])
    (slope,) = torch.autograd.grad(one.sum(), layer.order.raw)
    assert bool(slope != 0)
    assert not any(each.requires_grad for each in renewed.h)


@each_kind
def test_functorch_maps_and_differentiates_it(kind, draw):
    layer, x = made(kind, num_layers=2), draw(4, 8, 3)
    mapped = torch.vmap(lambda one: layer(one)[0])(x)
    assert_same(mapped, torch.stack([layer(one)[0] for one in x]))
    tangent = draw(8, 3)
    along = torch.func.jvp(lambda one: layer(one)[0], (x[0],), (tangent,))[1]
    jacobian = torch.func.jacrev(lambda one: layer(one)[0])(x[0])
    assert_same(along, torch.einsum("toni,ni->to", jacobian, tangent))
    rows = torch.autograd.functional.jacobian(lambda one: layer(one)[0], x[0], vectorize=True)
    assert_same(rows, jacobian)


@each_kind
def test_inference_mode_runs_the_kernels(kind, draw):
    layer, x = made(kind, manager=BackendManager(SHARED)), draw(30, 2, 3)
    with torch.inference_mode():
        found = layer(x)
    assert sum(plan.forwards for plan in layer.site.plans()) == 1
    assert_same(found, layer(x))


@each_kind
def test_new_weights_leave_the_order(kind):
    layer = made(kind)
    before = layer.alpha.item(), layer.weight_hh_l0.detach().clone()
    layer.reset_parameters()
    assert layer.alpha.item() == before[0]
    assert not torch.equal(layer.weight_hh_l0, before[1])


@each_kind
def test_a_result_may_be_changed_in_place(kind, draw):
    layer, x = made(kind), draw(6, 2, 3)
    with torch.no_grad():
        out, final = layer(x)
        kept = [each.clone() for each in flat(final)]
        out.zero_()
    assert_same(flat(final), kept)


@each_kind
def test_on_the_meta_device_it_tells_the_shapes(kind):
    layer = made(kind, device="meta", bidirectional=True, dtype=torch.float32)
    out, final = layer(torch.empty(6, 2, 3, device="meta"))
    assert out.shape == (6, 2, 10)
    assert {each.shape for each in flat(final)} == {(2, 2, 5)}
    with pytest.raises(ValueError, match="dtype of its weights"):
        layer(torch.empty(6, 2, 3, device="meta", dtype=torch.float64))


@each_kind
def test_outputs_may_be_changed_in_place_before_the_backward_pass(kind, draw):
    layer, x = made(kind), draw(40, 2, 3)
    expected = torch.autograd.grad((2 * layer(x)[0]).square().sum(), list(layer.parameters()))
    out, final = layer(x)
    for each in flat(final):
        each.mul_(3)
    assert_same(torch.autograd.grad(out.mul_(2).square().sum(), list(layer.parameters())), expected)


def test_an_order_that_is_trained_is_found():
    """The series is the output of a cell with another order, whose weights are known."""
    torch.manual_seed(0)
    truth: Any = FractionalLSTM(1, 2, alpha=0.35, dtype=torch.float64)
    layer: Any = FractionalLSTM(1, 2, alpha=0.8, learn_alpha=True, dtype=torch.float64)
    layer.load_state_dict(truth.state_dict(), strict=False)
    with torch.no_grad():
        for one in (truth, layer):
            one.bias_ih_l0[2:4] = 3.0  # what is forgotten at once says nothing of the order
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((60, 4, 1)))
    target = truth(x)[0].detach()
    optimizer = torch.optim.LBFGS(layer.order.parameters(), max_iter=30, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (layer(x)[0] - target).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert layer.order().item() == pytest.approx(0.35, abs=1e-4)


COMPILED = [{}, {"alpha": [0.2, 0.4, 0.6, 0.8, 0.95], "memory": 30}, {"alpha": 0.7, "learn_alpha": False}]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what the compiler tells about its own parts
@pytest.mark.parametrize("options", COMPILED, ids=["learned", "window", "fixed"])
@each_kind
def test_a_compiled_layer_asks_the_manager_whatever_the_number_of_steps(kind, options, draw):
    layer, x = made(kind, **options), draw(200, 2, 3).requires_grad_()
    op = "history.window" if layer.memory else "history"
    site = default_manager().shared_site(op, "torch", "compiled")
    before = sum(plan.forwards for plan in site.plans()), sum(plan.backwards for plan in site.plans())
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for n in (200, 90):
        found, expected = compiled(x[:n]), layer(x[:n])
        assert_same(found, expected)
        leaves = [x, *layer.parameters()]
        one, other = (torch.autograd.grad(out[0].square().sum(), leaves) for out in (found, expected))
        assert_same(one, other, 1e-11)
    after = sum(plan.forwards for plan in site.plans()), sum(plan.backwards for plan in site.plans())
    assert (after[0] - before[0], after[1] - before[1]) == (2, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@each_kind
def test_an_exported_layer_takes_series_of_any_length_and_is_saved(kind, draw, tmp_path):
    layer, n, batch = made(kind), torch.export.Dim("n", min=2, max=500), torch.export.Dim("batch", min=2, max=50)
    program = torch.export.export(layer, (draw(6, 2, 3),), dynamic_shapes=({0: n, 1: batch},))
    torch.export.save(program, tmp_path / "layer.pt2")
    x = draw(100, 5, 3)
    assert_same(torch.export.load(tmp_path / "layer.pt2").module()(x), layer(x))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.4, [0.2, 0.4, 0.6, 0.8, 0.95]], ids=["one order", "an order per unit"])
@pytest.mark.filterwarnings("ignore")
@each_kind
def test_the_operation_is_as_it_was_described_to_compilers(kind, alpha, draw):
    gates = CELLS[kind].gates * 5
    given = [draw(7, 2, gates), draw(2, 5), draw(2, 5), torch.tensor(alpha, dtype=torch.float64), draw(gates, 5)]
    given = [each.requires_grad_() for each in given]
    arguments = (*given, draw(gates).requires_grad_() if kind == "gru" else None, None, kind, 0, [], [0.0, 1.0])
    torch.library.opcheck(torch.ops.hpfracc_nn.recurrence.default, arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_manager_of_ones_own_runs_outside_of_a_graph(draw):
    layer, x = made("lstm", manager=BackendManager(SHARED)), draw(40, 2, 3)
    torch._dynamo.reset()
    assert_same(torch.compile(layer, backend="aot_eager")(x), layer(x))
    assert sum(plan.forwards for plan in layer.site.plans()) == 2
    with pytest.raises(ValueError, match="needs the process-wide BackendManager"):
        torch.export.export(layer, (x,), strict=False)


@pytest.mark.slow
def test_the_example_of_streaming_runs(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib")
    example = pathlib.Path(__file__).parents[1] / "examples" / "streaming_memory.py"
    picture = tmp_path / "streaming_memory.png"
    monkeypatch.setattr(sys, "argv", [str(example), "--quick", "--output", str(tmp_path)])
    runpy.run_path(str(example), run_name="__main__")
    assert "falls as t**-0.40" in capsys.readouterr().out
    assert picture.stat().st_size > 10_000


@each_kind
@torch.no_grad()
def test_a_stream_has_the_order_that_was_drawn_for_it_in_all_layers(kind, draw):
    layer, x = made(kind, num_layers=2, alpha=ProbabilisticAlpha(0.5, std=0.2), learn_alpha=False), draw(20, 2, 3)
    torch.manual_seed(2)
    whole = layer(x)[0]
    torch.manual_seed(2)
    state, found = layer.initial_state((2, 3)), []
    for sample in x:
        y, state = layer.step(sample, state)
        found.append(y)
    assert_same(torch.stack(found), whole, 1e-10)
    assert not torch.equal(layer(x)[0], whole)
