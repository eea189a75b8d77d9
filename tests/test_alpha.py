"""Learned orders: what they begin with, what they refuse, and what a state dict says of them."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.utils.parametrize
from torch import Tensor, nn

from hpfracc_nn.layers.torch import (
    ARFIMA,
    Alpha,
    FractionalConv1d,
    FractionalDifference,
    FractionalLayer,
    ProbabilisticAlpha,
)

MAKES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], str]] = {
    "bounds": (
        lambda: FractionalLayer(0.4, "grunwald_letnikov", learn_alpha=True),
        lambda: FractionalLayer(0.4, "grunwald_letnikov", learn_alpha=True, bounds=(0, 2)),
        r"order: needs a state with bounds=\(0\.0, 2\.0\), which it was made with; the state has bounds=\(0\.0, 1\.0\)",
    ),
    "law": (
        lambda: FractionalConv1d(2, 3, 4, alpha=ProbabilisticAlpha(0.4, distribution="beta")),
        lambda: FractionalConv1d(2, 3, 4, alpha=ProbabilisticAlpha(0.4, distribution="normal")),
        r"derivative\.order: needs a state with distribution='normal', .* the state has distribution='beta'",
    ),
    "parts of a bank": (
        lambda: FractionalDifference(2, bounds=(-1, 1), init=[-0.5, 0.5]),
        lambda: FractionalDifference(2, bounds=(-1, 1), init=[0.5, -0.5]),
        r"needs a state with parts=\(\(1,\), \(0,\)\), which it was made with; the state has parts=\(\(0,\), \(1,\)\)",
    ),
    "halves of a bank": (
        lambda: FractionalDifference(2, bounds=(0, 1)),
        lambda: FractionalDifference(2, bounds=(0, 0.9)),
        r"parts\.0: needs a state with bounds=\(0\.0, 0\.9\)",
    ),
    "an order itself": (lambda: Alpha(0.4, (0, 1)), lambda: Alpha(0.4, (0, 2)), "Alpha: needs a state with bounds="),
}


def saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", MAKES)
def test_a_state_is_loaded_only_where_its_numbers_mean_the_same(name: str, strict: bool) -> None:
    make, other, message = MAKES[name]
    state = saved(make().state_dict())
    make().load_state_dict(state, strict=strict)
    with pytest.raises(RuntimeError, match=message):
        other().load_state_dict(state, strict=strict)


@pytest.mark.parametrize("name", MAKES)
def test_a_format_of_tensors_alone_says_so_too(name: str) -> None:
    make, other, message = MAKES[name]
    layer = make()
    state = tensors_alone(layer.state_dict())
    assert set(state) == {key for key, _ in [*layer.named_parameters(), *layer.named_buffers()]}
    make().load_state_dict(state)
    with pytest.raises(RuntimeError, match=message):
        other().load_state_dict(state)
    nn.ModuleDict({"inner": make()}).load_state_dict({f"inner.{key}": value for key, value in state.items()})


def tensors_alone(state: Any) -> dict[str, Tensor]:
    """What safetensors gives back, and torch.distributed.checkpoint: the tensors by their keys."""
    return {key: value.clone() for key, value in state.items()}


@pytest.mark.parametrize("name", MAKES)
def test_a_state_that_does_not_say_it_loads(name: str) -> None:
    make, other, _ = MAKES[name]
    layer = make()
    older = OrderedDict((key, value) for key, value in layer.state_dict().items() if "stated_" not in key)
    other().load_state_dict(older)
    wrapped = nn.ModuleDict({"inner": layer}).state_dict()
    nn.ModuleDict({"inner": make()}).load_state_dict(wrapped)
    given = nn.ModuleDict({"inner": other()}).load_state_dict({}, strict=False)  # a part of a state
    assert not [key for key in given.missing_keys if "stated_" in key]


@pytest.mark.parametrize("move", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda m: m.to("meta")])
def test_a_cast_leaves_the_bounds_and_the_law_as_they_are(move: Callable[[nn.Module], Any]) -> None:
    def make(low: float) -> nn.Module:
        return nn.ModuleList([ProbabilisticAlpha(0.3, (low, 0.7), distribution="uniform")])

    moved = move(make(0.1 + 1e-12))
    loaded = make(0.1 + 1e-12)
    if moved.state_dict()["0.raw"].is_meta:
        moved.load_state_dict(tensors_alone(loaded.state_dict()), assign=True)
    state = tensors_alone(moved.state_dict())
    loaded.load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"0: needs .* bounds=\(0.1, 0.7\), .* has bounds=\(0.10000000000100"):
        make(0.1).load_state_dict(state)
    cast = {key: value.to(torch.bfloat16) for key, value in state.items()}  # all of them, as some programs do
    loaded.load_state_dict(cast)


def test_a_fixed_order_adds_no_key() -> None:
    plain, layer = nn.Conv1d(2, 3, 4), FractionalConv1d(2, 3, 4, alpha=0.3)
    layer.load_state_dict(plain.state_dict())
    assert list(layer.state_dict()) == list(plain.state_dict())
    fixed = FractionalDifference(2, bounds=(-1, 1), init=[0.5, -0.5], learn_alpha=False)
    assert not fixed.state_dict()
    assert not FractionalLayer(0.3).state_dict()


@pytest.mark.parametrize("name", ["raw", "spread"])
def test_a_state_with_nan_is_refused_and_the_order_stays(name: str) -> None:
    net = nn.ModuleDict({"order": ProbabilisticAlpha([0.3, 0.4])})
    state = net.state_dict()
    kept = copy.deepcopy(state)
    broken = {**kept, f"order.{name}": torch.tensor([0.1, math.nan])}
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=rf"order\.{name}: needs numbers, and the state has NaN"):
            net.load_state_dict(broken, strict=strict)
    assert all(torch.equal(kept[key], value) for key, value in net.state_dict().items())
    net.load_state_dict(kept)


def older_of(order: Alpha) -> Alpha:
    """Return an order as earlier versions pickled it: without an axis, buffers or first values."""
    found = copy.deepcopy(order)
    for parameter in found.parameters():
        parameter.data = parameter.data.reshape(())
    found._buffers.clear()
    del found._shape, found._first
    return found


def test_what_had_no_axis_loads() -> None:
    order, old = ProbabilisticAlpha(0.3), older_of(ProbabilisticAlpha(0.7, std=0.01))
    assert [tuple(each.shape) for each in order.parameters()] == [(1,), (1,)]
    state = {name: parameter.detach() for name, parameter in old.named_parameters()}
    assert state["raw"].ndim == 0
    order.load_state_dict(state)
    assert order.mean.shape == order().shape == order.shape == ()
    assert order.mean.item() == pytest.approx(0.7)
    assert order.std.item() == pytest.approx(0.01)
    model = FractionalLayer(Alpha(0.3, (0, 1)), "grunwald_letnikov")
    torch.nn.utils.parametrize.register_parametrization(model.order, "raw", nn.Identity())
    model.load_state_dict({"order.parametrizations.raw.original": torch.tensor(1.0)})
    assert model.alpha.item() == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.parametrize("kind", [torch.optim.Adam, partial(torch.optim.SGD, momentum=0.9), torch.optim.Adagrad])
def test_an_optimizer_s_state_without_an_axis_goes_on_as_the_docs_say(kind: Any) -> None:
    def step(optimizer: Any, parameter: Tensor) -> None:
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()

    old = nn.Parameter(torch.tensor(0.3))
    first = kind([old], lr=0.1)
    step(first, old)
    new = nn.Parameter(old.detach().reshape(1).clone())
    second = kind([new], lr=0.1)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for parameter, state in second.state.items():
        for name, value in state.items():
            if name != "step" and torch.is_tensor(value) and value.ndim == 0:
                state[name] = value.reshape(parameter.shape)
    step(first, old)
    step(second, new)
    assert new.item() == old.item()


def test_an_order_that_was_pickled_without_an_axis_is_unpickled_with_one() -> None:
    old = older_of(ProbabilisticAlpha(0.7, distribution="beta"))
    order, parameters = pickle.loads(pickle.dumps((old, list(old.parameters()))))  # an optimizer's are the same ones
    assert all(one is other for one, other in zip(order.parameters(), parameters, strict=True))
    assert [tuple(each.shape) for each in parameters] == [(1,), (1,)]
    assert order.mean.item() == pytest.approx(0.7)
    assert set(order.state_dict()) == {"raw", "spread", "stated_bounds", "stated_distribution"}
    order.reset_parameters()
    assert order.mean.item() == pytest.approx(0.7)


@pytest.mark.parametrize("empty", [nn.Module.to_empty, lambda m, device: m.to("meta").to_empty(device=device)])
def test_orders_that_were_left_empty_begin_anew(empty: Callable[..., nn.Module]) -> None:
    with torch.device("meta"):
        net: Any = nn.Sequential(
            FractionalLayer([0.2, 0.4], "grunwald_letnikov", learn_alpha=True),
            FractionalLayer(ProbabilisticAlpha(0.3, std=0.05, distribution="beta")),
            FractionalDifference(2, bounds=(-1, 1), init=[0.5, -0.5]),
            ARFIMA(2, alpha=0.1),
        )
    net = empty(net, device="cpu")
    for tensor in [*net.parameters(), *net.buffers()]:
        tensor.data.fill_(7)
    for part in net.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    first, second, third, fourth = net
    torch.testing.assert_close(first.alpha.float(), torch.tensor([0.2, 0.4]))
    torch.testing.assert_close(torch.stack([second.alpha, second.order.std]).float(), torch.tensor([0.3, 0.05]))
    torch.testing.assert_close(third.alpha.float(), torch.tensor([0.5, -0.5]))
    assert (fourth.mean.item(), fourth.ar.tolist()) == (0, [0, 0])
    buffers = dict(net.named_buffers())
    assert len(buffers) == 7
    assert all(torch.equal(buffers[key], value) for key, value in net.state_dict().items() if key in buffers)


def test_an_ensemble_of_orders_goes_through_vmap() -> None:
    layers = [FractionalLayer(alpha, "grunwald_letnikov", learn_alpha=True) for alpha in (0.2, 0.7)]
    x = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
    stacked = torch.func.stack_module_state(layers)  # type: ignore[arg-type]
    found = torch.func.vmap(lambda *state: torch.func.functional_call(layers[0], state, (x,)))(*stacked)
    torch.testing.assert_close(found, torch.stack([layer(x) for layer in layers]), rtol=1e-5, atol=1e-6)
    again = torch.func.functional_call(layers[0], layers[1].state_dict(), (x,))
    torch.testing.assert_close(again, layers[1](x))


def test_a_prior_that_is_set_later_counts() -> None:
    order = ProbabilisticAlpha(0.5, std=0.1, prior=(0.5, 0.2), dtype=torch.float64)
    order.prior = (0.5, 0.1)
    assert order.prior == (0.5, 0.1)
    assert order.kl().item() == pytest.approx(0, abs=1e-12)
    assert "prior=(0.5, 0.1)" in repr(order)
    with pytest.raises(ValueError, match=r"ProbabilisticAlpha\(prior=\(2\.0, 0\.1\)\): needs a mean inside the bounds"):
        order.prior = (2, 0.1)
    assert order.prior == (0.5, 0.1)


def test_the_shape_of_an_order_is_that_of_its_first_values() -> None:
    assert Alpha([0.5] * 3, (0, 1)).shape == (3,)
    assert Alpha(0.5, (0, 1)).shape == ()
    assert Alpha(0.5, (0, 1), (2, 3)).shape == (2, 3)
    assert ProbabilisticAlpha([0.5, 0.6]).shape == (2,)
    spread = ProbabilisticAlpha(0.5, std=[0.1, 0.2], dtype=torch.float64)
    torch.testing.assert_close(spread.std, torch.tensor([0.1, 0.2], dtype=torch.float64))


REFUSALS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: Alpha(0.5, (0, math.inf)),
        ValueError,
        "Alpha(bounds=(0, inf)): needs finite low < high; pass a pair such as (0, 1).",
    ),
    (
        lambda: Alpha(0.5, (1, 0)),
        ValueError,
        "Alpha(bounds=(1, 0)): needs finite low < high; pass a pair such as (0, 1).",
    ),
    (
        lambda: Alpha(0.5, 1.0),  # type: ignore[arg-type]
        TypeError,
        "Alpha(bounds=1.0): needs two numbers; pass a pair such as (0, 1).",
    ),
    (
        lambda: Alpha([0.5, -0.2], (0, 1)),
        ValueError,
        "Alpha(alpha=[0.5, -0.2]): needs low < alpha < high to be learned within bounds (0, 1); start inside, for "
        "example at 0.01.",
    ),
    (
        lambda: Alpha(math.nan, (0, 1)),
        ValueError,
        "Alpha(alpha=nan): needs low < alpha < high to be learned within bounds (0, 1); start inside, for example at "
        "0.5.",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_cannot_be_is_refused_with_the_rule(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message


WRITES: dict[str, Callable[[Alpha], Any]] = {
    "in place": lambda order: order.raw.fill_(0.3),
    "data": lambda order: order.raw.data.fill_(0.3),
    "NumPy": lambda order: order.raw.detach().numpy().fill(0.3),
    "another parameter": lambda order: setattr(order, "raw", nn.Parameter(torch.tensor([0.3]))),
    "a state": lambda order: order.load_state_dict(Alpha(1 / (1 + math.exp(-0.3)), (0, 1)).state_dict()),
    "bounds": lambda order: setattr(order, "bounds", (0.0, 0.5)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("frozen", [False, True], ids=["no_grad", "frozen"])
def test_an_order_without_a_gradient_is_read_anew_where_it_has_changed(
    write: Callable[[Alpha], Any], frozen: bool
) -> None:
    order = Alpha(0.4, (0, 1)).requires_grad_(not frozen)
    layer, x = FractionalLayer(order), torch.randn(3, 20)
    with torch.set_grad_enabled(frozen):
        before = [layer(x) for _ in range(3)]
        with torch.no_grad():
            write(order)
        after = [layer(x) for _ in range(3)]
    assert all(torch.equal(each, before[0]) for each in before)
    assert all(torch.equal(each, after[0]) for each in after)
    fixed = FractionalLayer(order().item(), bounds=(0, 1))(x)
    assert torch.allclose(after[0], fixed, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before[0], fixed, rtol=1e-3, atol=1e-3)


def test_an_order_whose_forward_is_its_own_is_always_asked() -> None:
    class Scaled(Alpha):
        scale = 1.0

        def forward(self) -> Tensor:
            return self.scale * super().forward()

    order = Scaled(0.4, (0, 1))
    layer, x = FractionalLayer(order), torch.randn(3, 20)
    hooked = Alpha(0.4, (0, 1))
    with torch.no_grad():
        before = layer(x)
        order.scale = 0.5
        assert not torch.equal(layer(x), before)
        plain = FractionalLayer(hooked)(x)
        hooked.register_forward_hook(lambda module, given, alpha: alpha / 2)
        assert not torch.equal(FractionalLayer(hooked)(x), plain)
