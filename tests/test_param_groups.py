"""Parameter groups: every parameter once, orders apart, as torch's optimizers take them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hpfracc_nn.layers.torch import (
    Alpha,
    FractionalConv1d,
    FractionalDifference,
    FractionalLayer,
    ProbabilisticAlpha,
    param_groups,
)


def net() -> Any:
    shared = Alpha(0.4, (0, 1))
    return nn.Sequential(
        FractionalDifference(3, 2, bounds=(-1, 1)),
        FractionalConv1d(6, 4, 3, alpha=ProbabilisticAlpha(0.5)),
        FractionalLayer(shared),
        FractionalLayer(shared),
    )


def test_every_parameter_is_in_one_group() -> None:
    model = net()
    weights, orders = param_groups(model, 1e-3, 1e-2)
    held = [id(p) for group in (weights, orders) for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    names = {id(p): name for name, p in model.named_parameters()}
    assert [names[id(p)] for p in weights["params"]] == ["1.weight", "1.bias"]
    assert [names[id(p)].rpartition(".")[2] for p in orders["params"]] == ["raw"] * 2 + ["raw", "spread", "raw"]
    assert (weights["lr"], orders["lr"]) == (1e-3, 1e-2)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_an_optimizer_steps_both_groups_and_decays_no_order(kind: Any) -> None:
    model = net()
    optimizer = kind(param_groups(model, 1e-3, 1e-2, weight_decay=0.1))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    before = [p.detach().clone() for p in model.parameters()]
    model(torch.randn(2, 3, 30)).square().sum().backward()
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    again = kind(param_groups(net(), 1e-3, 1e-2))
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[1]["lr"] == 1e-2


def test_options_go_to_both_groups() -> None:
    groups = param_groups(net(), 1e-3, torch.tensor(1e-2), betas=(0.5, 0.9))
    assert [group["betas"] for group in groups] == [(0.5, 0.9)] * 2
    assert torch.is_tensor(groups[1]["lr"])
    assert [group["name"] for group in groups] == ["weights", "orders"]


def test_frozen_parameters_are_kept_and_not_moved() -> None:
    model = net()
    model[1].weight.requires_grad_(False)
    before = model[1].weight.clone()
    optimizer = torch.optim.AdamW(param_groups(model, 1e-3, 1e-2, weight_decay=0.1))
    model(torch.randn(2, 3, 30)).square().sum().backward()
    optimizer.step()
    assert torch.equal(model[1].weight, before)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_a_module_of_orders_alone_has_an_empty_group() -> None:
    layer = FractionalLayer(learn_alpha=True)
    torch.optim.Adam(param_groups(layer, 1e-3, 1e-2)).step()


REFUSALS: list[tuple[Any, type[Exception], str]] = [
    (
        lambda: param_groups(nn.Linear(2, 2), 1e-3, 1e-2),
        ValueError,
        "param_groups(Linear): needs a learned order; make a layer with learn_alpha=True, or pass module.parameters() "
        "to the optimizer.",
    ),
    (
        lambda: param_groups(net().parameters(), 1e-3, 1e-2),  # type: ignore[arg-type]
        TypeError,
        "param_groups(module of type generator): needs a torch module; pass the network.",
    ),
    (
        lambda: param_groups(net(), 1e-3, -1),
        ValueError,
        "param_groups(alpha_lr=-1): needs a finite alpha_lr >= 0; pass for example alpha_lr=1.",
    ),
    (
        lambda: param_groups(net(), 1e-3, 1e-2, params=[]),
        TypeError,
        "param_groups: makes the entries 'params' and 'name' itself; leave them out.",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_cannot_be_is_refused_with_the_rule(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == message
