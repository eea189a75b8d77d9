"""Learned orders: what they begin with, what they refuse, and what a state dict says of them."""

from __future__ import annotations

import io
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hpfracc_nn.layers.torch import Alpha, FractionalConv1d, FractionalDifference, FractionalLayer, ProbabilisticAlpha

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
def test_a_state_says_so_without_a_key_and_one_that_does_not_say_it_loads(name: str) -> None:
    make, other, _ = MAKES[name]
    layer = make()
    state = layer.state_dict()
    assert set(state) == set(dict(layer.named_parameters()))
    other().load_state_dict(OrderedDict(state))  # without metadata, as of files that have none
    wrapped = nn.ModuleDict({"inner": layer}).state_dict()
    nn.ModuleDict({"inner": make()}).load_state_dict(wrapped)
    nn.ModuleDict({"inner": other()}).load_state_dict({}, strict=False)  # a part of a state


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
