"""Power-law attention: torch's own at alpha = 2 with every option, its kernels, its distances, its streams."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpfracc_nn import Alpha, BackendManager, FractionalAttention, ProbabilisticAlpha
from hpfracc_nn.layers.order import ATTENTION
from hpfracc_nn.layers.torch import attention_ops
from hpfracc_nn.layers.torch.attention_ops import Attention, Inputs, _picked, attended, workload
from hpfracc_nn.selection import Settings, kernels

KERNELS = kernels(ATTENTION, "torch")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
F64 = torch.float64


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True, "add_bias_kv": True, "batch_first": True},
        {"kdim": 4, "vdim": 3},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("masked", ["no", "bool", "float", "each"])
def test_at_two_it_is_torchs_with_every_mask_and_option(options: dict[str, Any], padded: bool, masked: str) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(6, 2, dtype=F64, **options)
    for parameter in (theirs.in_proj_bias, theirs.out_proj.bias):
        if parameter is not None:
            nn.init.normal_(parameter)
    ours = FractionalAttention.from_torch(theirs, alpha=2.0)
    batch, queries, keys = 3, 5, 7
    shapes = ((queries, 6), (keys, theirs.kdim), (keys, theirs.vdim))
    first = options.get("batch_first", False)
    given = [drawn(*((batch, n, c) if first else (n, batch, c)), seed=n + c) for n, c in shapes]
    masks: dict[str, Any] = {}
    if padded:
        masks["key_padding_mask"] = torch.arange(keys) >= torch.tensor([[7], [5], [2]])
    if masked == "bool":
        masks["attn_mask"] = torch.ones(queries, keys, dtype=torch.bool).triu(1)
    elif masked == "float":
        masks["attn_mask"] = drawn(queries, keys, seed=9)
    elif masked == "each":
        masks["attn_mask"] = drawn(2 * batch, queries, keys, seed=9) > 1.5
        masks["attn_mask"][..., 0] = False
    if padded and masked == "float":
        masks["key_padding_mask"] = (
            masks["key_padding_mask"].double().masked_fill(masks["key_padding_mask"], -torch.inf)
        )
    for need, average in ((True, True), (True, False), (False, True)):
        found = ours(*given, need_weights=need, average_attn_weights=average, **masks)
        expected = theirs(*given, need_weights=need, average_attn_weights=average, **masks)
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-13)
        assert (found[1] is None) == (expected[1] is None) == (not need)
        if need:
            torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-13)


def test_a_seed_gives_torchs_weights_and_a_sequence_needs_no_batch() -> None:
    made: list[Any] = []
    for kind in (nn.MultiheadAttention, FractionalAttention):
        torch.manual_seed(5)
        made.append(kind(6, 2, add_bias_kv=True))
    theirs, ours = (layer.state_dict() for layer in made)
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    x = drawn(5, 6).float()
    ours = FractionalAttention.from_torch(made[0], alpha=2)
    torch.testing.assert_close(ours(x, x, x), made[0](x, x, x))
    made[0].out_proj.weight.requires_grad_(False)
    copied = FractionalAttention.from_torch(made[0].eval(), alpha=1.2, learn_alpha=True, dropout=0.5)
    assert (copied.training, copied.out_proj.weight.requires_grad, copied.dropout) == (False, False, 0.5)
    assert copied.in_proj_weight is not None
    assert copied.in_proj_weight.data_ptr() != made[0].in_proj_weight.data_ptr()


def test_it_takes_the_place_of_torchs_in_an_encoder_in_training_and_evaluation() -> None:
    torch.manual_seed(0)
    layer: Any = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, dtype=F64)
    layer.self_attn = FractionalAttention.from_torch(layer.self_attn, alpha=0.7)
    x = drawn(2, 5, 8)
    trained = layer(x)
    with torch.no_grad():
        evaluated = layer.eval()(x)
    torch.testing.assert_close(evaluated, trained, rtol=0, atol=1e-13)
    layer.self_attn = FractionalAttention.from_torch(nn.MultiheadAttention(8, 2, batch_first=True, dtype=F64), alpha=2)
    assert (layer(x) - trained).abs().max() > 1e-3


def test_for_keys_of_one_norm_the_distance_is_that_of_query_and_key() -> None:
    q, k, v = drawn(1, 2, 4, 3), nn.functional.normalize(drawn(1, 2, 6, 3, seed=1), dim=-1) * 1.7, drawn(1, 2, 6, 3)
    attention = Attention(3.0, 0.8, needs_weights=True)
    _, weights = attention.formula(Inputs(q, k, v, alpha=torch.tensor(1.3, dtype=F64)))
    powers = (1 + torch.cdist(q, k) / 0.8**0.5) ** -4.3
    torch.testing.assert_close(weights, powers / powers.sum(-1, keepdim=True), rtol=1e-12, atol=0)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
def test_far_keys_weigh_like_a_power_of_their_distance(alpha: float) -> None:
    """The key at the query is 0 away, and the one opposite to it 2 R."""
    radii, dimension = torch.tensor([1e4, 1e6], dtype=F64), 2.0
    logs = []
    for radius in radii:
        k = torch.stack([torch.stack([radius, 0 * radius]), torch.stack([-radius, 0 * radius])])[None, None]
        q = torch.stack([radius, 0 * radius])[None, None, None]
        _, weights = Attention(dimension, 1.0, needs_weights=True).formula(
            Inputs(q, k, k, alpha=torch.tensor(alpha, dtype=F64))
        )
        assert weights is not None
        logs.append((weights[0, 0, 0, 1] / weights[0, 0, 0, 0]).log())
    slope = (logs[1] - logs[0]) / (radii[1] / radii[0]).log()
    assert float(slope) == pytest.approx(-(dimension + alpha), rel=1e-4)  # 1 + d is d to 1e-4 at the first


def given_of(case: str, causal: bool) -> Inputs:
    batch, heads, queries, keys = 3, 2, 9, 9 if causal else 11
    q, k, v = (
        drawn(batch, heads, queries, 4),
        drawn(batch, heads, keys, 4, seed=1),
        drawn(batch, heads, keys, 4, seed=2),
    )
    bias = {
        "plain": None,
        "row": drawn(batch, 1, 1, keys, seed=3),
        "full": drawn(1, heads, queries, keys, seed=3),
    }.get(case)
    kept = drawn(batch, heads, queries, keys, seed=4) > -1 if case == "dropped" else None
    alpha = None if case == "ordinary" else torch.tensor([[[0.8]], [[1.4]]], dtype=F64)
    if case == "hidden":
        bias = torch.zeros(batch, 1, 1, keys, dtype=F64)
        bias[1, ..., 5:] = -torch.inf
    leaves = [None if t is None else t.requires_grad_() for t in (q, k, v, bias, alpha)]
    return Inputs._make([*leaves, kept])


@every_kernel
@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("case", ["plain", "row", "full", "hidden", "dropped", "ordinary"])
def test_a_kernel_is_the_formula_and_its_adjoint_is_autograds(
    kernel: Any, case: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = given_of(case, causal)
    attention = Attention(2.0, 1.5, causal, needs_weights=True, gain=1.25)
    expected = attention.formula(given)
    grads = [drawn(*y.shape, seed=7) for y in expected if y is not None]
    asked = [t for t in given[:5] if t is not None]
    slopes = torch.autograd.grad([y for y in expected if y is not None], asked, grads)
    wanted = [t is not None for t in given[:5]]
    for block in (1, 30, 500, 1 << 18):  # less than a row, some rows, some items, all
        monkeypatch.setattr(attention_ops, "BLOCK", block)
        with torch.no_grad():
            found = kernel.run(attention, given)
        for y, other in zip(found, expected, strict=True):
            torch.testing.assert_close(y, None if other is None else other.detach(), rtol=0, atol=1e-13)
        adjoint = [g for g in kernel.adjoint(attention, given, grads, wanted) if g is not None]
        for g, other in zip(adjoint, slopes, strict=True):
            torch.testing.assert_close(g, other, rtol=0, atol=1e-12)


def test_only_what_is_asked_for_has_a_gradient() -> None:
    given = given_of("full", False)
    for kernel, which in itertools.product(KERNELS, range(5)):
        wanted = [number == which for number in range(5)]
        found = kernel.adjoint(Attention(2.0, 1.5), given, [drawn(3, 2, 9, 4), None], wanted)
        assert [g is not None for g in found] == wanted


def test_the_choice_follows_the_size_and_blocks_bound_the_memory() -> None:
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))

    def asked(queries: int) -> Any:
        return workload((4, 8, queries, 64), queries, "torch.float32", "cpu", True, Attention(64.0, 16.0))

    assert manager.plan(asked(8)).algorithm == "dense"
    assert manager.plan(asked(2048)).algorithm == "blocks"
    dense, blocks = (next(k for k in KERNELS if k.algorithm == name) for name in ("dense", "blocks"))
    assert dense.cost(asked(2048)).workspace > 1e9
    assert blocks.cost(asked(2048)).workspace < 2e7
    # Memory that is handed out page by page costs time however fast it is.
    assert dense.cost(asked(2048)).launches > 2 * blocks.cost(asked(2048)).launches
    assert dense.cost(asked(8)).launches < blocks.cost(asked(8)).launches


@every_kernel
@pytest.mark.parametrize("case", ["row", "full", "dropped"])
def test_within_a_limit_of_memory_items_of_the_batch_are_computed_in_turn(
    kernel: Any, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "BLOCK", 1)
    attention = Attention(2.0, 1.5, needs_weights=True, gain=1.25)
    found: list[list[Tensor]] = []
    limit: int | None = None
    for _ in range(2):
        given = given_of(case, False)
        settings = Settings(mode="prior", force_algorithm="dense", memory_limit=limit)
        site = BackendManager(settings).site(ATTENTION, "torch")
        plan = _picked(attention, given, site)
        assert (plan.chunk is None) == (limit is None)
        object.__setattr__(plan, "kernel", kernel)
        y, weights = attended(attention, given, site)
        assert weights is not None
        leaves = [t for t in given[:5] if t is not None]
        slopes = torch.autograd.grad((y.sin() * weights.sum(-1, keepdim=True)).sum(), leaves)
        found.append([y, weights, *slopes])
        limit = int(plan.workspace) - 1
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_a_plan_and_its_backward_pass_are_counted_where_they_ran() -> None:
    for kernel in KERNELS:
        manager = BackendManager(Settings(mode="prior", force_algorithm=kernel.algorithm))
        layer = FractionalAttention(6, 2, alpha=1.2, manager=manager, batch_first=True)
        before = kernel.calls["run"], kernel.calls["adjoint"]
        x = torch.randn(2, 5, 6)
        layer(x, x, x)[0].sum().backward()
        (plan,) = layer.site.plans()
        assert (plan.kernel, plan.forwards, plan.backwards) == (kernel, 1, 1)
        assert (kernel.calls["run"], kernel.calls["adjoint"]) == (before[0] + 1, before[1] + 1)


def test_dropout_keeps_the_mean_and_ends_in_evaluation() -> None:
    layer = FractionalAttention(4, 2, dropout=0.5, batch_first=True, alpha=1.2, dtype=F64)
    x = drawn(1, 6, 4)
    torch.manual_seed(0)
    with torch.no_grad():
        weights = torch.stack([layer(x, x, x, average_attn_weights=False)[1] for _ in range(1000)])
        exact = layer.eval()(x, x, x, average_attn_weights=False)[1]
    assert float((weights == 0).double().mean()) == pytest.approx(0.5, abs=4 * 0.5 / (1000 * 72) ** 0.5)
    error = (weights.mean(0) - exact).abs() / (weights.std(0) / 1000**0.5)
    assert float(error.max()) < 4.5  # standard errors; 72 of them
    everything = FractionalAttention(4, 2, dropout=1.0, bias=False, batch_first=True, alpha=1.2)
    assert not everything(x.float(), x.float(), x.float())[0].any()


@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_a_stream_is_the_causal_layer_and_its_states_stay(options: dict[str, Any]) -> None:
    layer = FractionalAttention(6, 2, batch_first=True, alpha=0.9, dimension=1.0, dtype=F64, **options)
    x = drawn(3, 8, 6)
    with torch.no_grad():
        whole, _ = layer(x, x, x, is_causal=True)
        mask = torch.ones(8, 8, dtype=torch.bool).triu(1)
        torch.testing.assert_close(layer(x, x, x, attn_mask=mask)[0], whole, rtol=0, atol=1e-13)
        state = layer.initial_state((3, 6), horizon=8)
        states = [state]
        for t in range(8):
            y, state = layer.step(x[:, t], state)
            states.append(state)
            torch.testing.assert_close(y, whole[:, t], rtol=0, atol=1e-13)
        assert [kept.step for kept in states] == list(range(9))
        assert state.nbytes == 2 * 3 * 8 * 6 * 8
        y, _ = layer.step(x[:, 3], states[3])
        torch.testing.assert_close(y, whole[:, 3], rtol=0, atol=1e-13)
        kept = pickle.loads(pickle.dumps(states[3].to("cpu").detach().renew(layer.initial_state((3, 6)))))
        torch.testing.assert_close(layer.step(x[:, 3], kept)[0], y, rtol=0, atol=0)
        assert (kept.shape, kept.device, kept.horizon) == ((3, 6), x.device, None)
        doubled = torch.utils._pytree.tree_map(lambda each: 2 * each, kept)
        torch.testing.assert_close(doubled.value, 2 * kept.value)
        with pytest.raises(ValueError, match="horizon of 8"):
            layer.step(x[:, 0], state)
    with pytest.raises(TypeError, match="initial_state"):
        layer.step(x[:, 0], None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one time slice"):
        layer.step(x[:, :1], layer.initial_state((3, 6)))


def test_a_stream_of_a_random_order_draws_it_once() -> None:
    order = ProbabilisticAlpha([0.8, 1.4], (0, 2), (2,), std=0.3, dtype=F64)
    layer = FractionalAttention(6, 2, batch_first=True, alpha=order, dtype=F64)
    x = drawn(3, 6, 6)
    state: Any = layer.initial_state((3, 6))
    fixed = FractionalAttention(6, 2, batch_first=True, alpha=state.alpha.flatten().tolist(), dtype=F64)
    fixed.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("order")})
    whole = fixed(x, x, x, is_causal=True)[0]
    for t in range(6):
        y, state = layer.step(x[:, t], state)
        torch.testing.assert_close(y, whole[:, t], rtol=0, atol=1e-13)
    y.sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in order.parameters())
    other: Any = layer.initial_state((3, 6))
    assert not torch.equal(state.renew(other).alpha, state.alpha)
    assert torch.equal(state.detach().to("cpu").alpha, state.alpha)


def test_a_learned_bias_of_the_mask_gets_its_gradient() -> None:
    layer = FractionalAttention(6, 2, batch_first=True, alpha=1.2, dtype=F64)
    x, mask = drawn(2, 5, 6), drawn(5, 5, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda mask: layer(x, x, x, attn_mask=mask), (mask,), fast_mode=True)


def test_gradients_that_are_recorded_are_those_that_are_not() -> None:
    """Queries are made of the keys and of the bias: each path counts once."""
    k, v, bias, g = (drawn(1, 2, 4, 4, seed=seed) for seed in range(4))
    leaves, site = (
        [each.requires_grad_() for each in (k, v, bias)],
        BackendManager(Settings(mode="prior", calibration="shipped")).site(ATTENTION, "torch", "test"),
    )

    def found(creates: bool) -> tuple[Tensor, ...]:
        given = Inputs(k.sin() + bias.sum(-1, keepdim=True), k, v * k, bias, torch.tensor(0.7, dtype=F64))
        y, _ = attended(Attention(4.0, 2.0), given, site)
        return torch.autograd.grad(y, leaves, g, create_graph=creates)

    torch.testing.assert_close(found(True), found(False), rtol=1e-12, atol=1e-13)


def test_at_two_or_below_the_order_is_what_it_was_given() -> None:
    assert FractionalAttention(4, 2, alpha=2).alpha == 2.0
    assert FractionalAttention(4, 2, alpha=[0.5, 1.5]).alpha == (0.5, 1.5)
    learned = FractionalAttention(4, 2, alpha=[0.5, 1.5], learn_alpha=True, dtype=F64).alpha
    torch.testing.assert_close(learned, torch.tensor([0.5, 1.5], dtype=F64))
    with pytest.raises(TypeError, match=r"nn\.MultiheadAttention"):
        FractionalAttention.from_torch(nn.Linear(2, 2))  # type: ignore[arg-type]


def test_an_order_that_is_a_module_is_the_layers_own() -> None:
    shared = Alpha(1.2, (0, 2), dtype=F64)
    x = drawn(2, 5, 4)
    layers = [FractionalAttention(4, 2, alpha=shared, batch_first=True, dtype=F64) for _ in range(2)]
    sum(layer(x, x, x)[0].square().sum() for layer in layers).backward()
    assert layers[0].order is layers[1].order is shared
    assert shared.raw.grad is not None
    random = FractionalAttention(4, 2, alpha=ProbabilisticAlpha([0.8, 1.4], (0, 2), (2,), std=0.2), batch_first=True)
    values = [random(*[x.float()] * 3)[0] for _ in range(2)]
    assert not torch.equal(*values)
    random.eval()
    torch.testing.assert_close(random(*[x.float()] * 3), random(*[x.float()] * 3), rtol=0, atol=0)
    with pytest.raises(ValueError, match="shape"):
        FractionalAttention(4, 2, alpha=Alpha([0.5] * 3, (0, 2), (3,)))
    with pytest.raises(ValueError, match="high <= 2"):
        FractionalAttention(4, 2, alpha=Alpha(0.5, (0, 3)))
