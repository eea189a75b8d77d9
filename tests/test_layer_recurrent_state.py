"""Recurrent layers as torch's: their arguments, what `from_torch` takes, which states a step takes."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpfracc_nn.layers.torch import (
    FractionalConv1d,
    FractionalConv2d,
    FractionalGRU,
    FractionalLayer,
    FractionalLinear,
    FractionalLSTM,
)

KINDS = [(FractionalLSTM, nn.LSTM), (FractionalGRU, nn.GRU)]
each_kind = pytest.mark.parametrize(("kind", "ordinary"), KINDS, ids=["lstm", "gru"])


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def made(kind: Any, **options: Any) -> Any:
    torch.manual_seed(1)
    return kind(3, 5, **{"alpha": 0.6, "dtype": torch.float64, **options})


STAND_INS = [
    (FractionalLSTM, "hx"),
    (FractionalGRU, "hx"),
    (FractionalLinear, None),
    (FractionalConv1d, None),
    (FractionalConv2d, None),
]


@pytest.mark.parametrize(("kind", "second"), STAND_INS, ids=[kind.__name__ for kind, _ in STAND_INS])
def test_forward_has_torchs_arguments(kind: Any, second: str | None) -> None:
    assert list(inspect.signature(kind.forward).parameters) == ["self", "input", *([second] if second else [])]


@pytest.mark.parametrize("alpha", [0.4, [0.2, 0.4, 0.6, 0.8, 0.95]], ids=["one order", "an order per unit"])
@pytest.mark.parametrize("learns", [False, True])
@each_kind
def test_its_results_are_contiguous_where_torchs_are(kind: Any, ordinary: Any, learns: bool, alpha: Any) -> None:
    layer, x = made(kind, alpha=alpha, learn_alpha=learns), drawn(6, 2, 3)
    for gradients in (False, True):
        with torch.set_grad_enabled(gradients):
            out, final = layer(x)
        assert out.is_contiguous()
        assert all(each.is_contiguous() for each in (final if isinstance(final, tuple) else [final]))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("input_size", 1),
        ("hidden_size", 4),
        ("num_layers", 1),
        ("num_layers", 3),
        ("bias", False),
        ("bidirectional", False),
    ],
)
@each_kind
def test_weights_are_not_taken_over_into_another_shape(kind: Any, ordinary: Any, name: str, value: Any) -> None:
    module = ordinary(3, 5, num_layers=2, bidirectional=True)
    with pytest.raises(ValueError, match=rf"from_torch\({name}={value}\): needs {name}={getattr(module, name)}"):
        kind.from_torch(module, **{name: value})
    assert kind.from_torch(module, batch_first=True, **{name: getattr(module, name)}).batch_first


def test_a_projection_is_not_made_up() -> None:
    with pytest.raises(ValueError, match=r"from_torch\(proj_size=2\): needs proj_size=0"):
        FractionalLSTM.from_torch(nn.LSTM(3, 5), proj_size=2)


@pytest.mark.parametrize("memory", [None, 4])
@each_kind
def test_a_step_takes_the_states_of_its_own_layer_alone(kind: Any, ordinary: Any, memory: Any) -> None:
    layer, x = made(kind, memory=memory), drawn(2, 3)
    (other,) = [each for each, _ in KINDS if each is not kind]
    strangers = (
        (made(kind, memory=3), "memory=3"),
        (made(kind, memory=None if memory else 4), "memory="),
        (made(kind, alpha=0.7, memory=memory), "alpha=0.7"),
        (made(kind, learn_alpha=True, memory=memory), "alpha learned"),
        (made(other, memory=memory), f"of {other.__name__}"),
        (kind(3, 4, alpha=0.6, memory=memory), "4 outputs and 4 units"),
    )
    for stranger, told in strangers:
        with pytest.raises(ValueError, match=rf"step\(state .*{told}.*its own initial_state"):
            layer.step(x, stranger.initial_state((2, 3)))
    assert layer.step(x, made(kind, memory=memory).initial_state((2, 3)))[0].shape == (2, 5)


def test_a_step_takes_no_state_of_another_projection() -> None:
    layer, stranger = made(FractionalLSTM, proj_size=2), made(FractionalLSTM)
    with pytest.raises(ValueError, match="state with 5 outputs and 5 units"):
        layer.step(drawn(2, 3), stranger.initial_state((2, 3)))


@pytest.mark.parametrize("starts", [False, True])
@each_kind
@torch.no_grad()
def test_a_state_serves_as_many_steps_as_its_horizon(kind: Any, ordinary: Any, starts: bool) -> None:
    layer = made(kind)
    start: Any = torch.ones(1, 2, 5, dtype=torch.float64)
    hx = None if not starts else (start, start) if kind is FractionalLSTM else start
    state = layer.initial_state((2, 3), hx=hx, horizon=4)
    for _ in range(4):
        _, state = layer.step(drawn(2, 3), state)
    with pytest.raises(ValueError, match=r"step\(step 5\): needs at most horizon=4 steps"):
        layer.step(drawn(2, 3), state)
    with pytest.raises(ValueError, match=r"initial_state\(horizon=0\)"):
        layer.initial_state((2, 3), horizon=0)


@pytest.mark.parametrize("memory", [None, 4])
@each_kind
def test_a_state_of_a_learned_order_is_copied_with_its_graph(kind: Any, ordinary: Any, memory: Any) -> None:
    layer, x = made(kind, memory=memory, learn_alpha=True), drawn(3, 2, 3)
    _, state = layer.step(x[0], layer.initial_state((2, 3)))
    copied = copy.deepcopy(state)
    assert copied.h[0].data_ptr() != state.h[0].data_ptr()
    values = [layer.step(x[1], each)[0].sum() for each in (state, copied)]
    slopes = [torch.autograd.grad(value, layer.order.raw, retain_graph=True)[0] for value in values]
    assert torch.equal(*slopes)
    assert bool(slopes[0] != 0)


def test_a_state_of_a_learned_operator_is_copied_with_its_graph() -> None:
    layer, x = FractionalLayer(0.6, learn_alpha=True, dtype=torch.float64), drawn(3, 2)
    _, state = layer.step(x[0], layer.initial_state((2,)))
    copied = copy.deepcopy(state)
    values = [layer.step(x[1], each)[0].sum() for each in (state, copied)]
    slopes = [torch.autograd.grad(value, layer.order.raw, retain_graph=True)[0] for value in values]
    assert torch.equal(*slopes)
    assert bool(slopes[0] != 0)
