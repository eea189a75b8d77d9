"""What the optimizers refuse, with what words, and that nothing is left behind."""

import re
from typing import Any

import pytest
import torch

from hpfracc_nn.training import FractionalAdam, FractionalSGD
from tests.optimizer_cases import (
    BASES,
    every_class,
    parameters,
    parameters_of,
    quartic,
    train,
)

INVALID = [
    ({"alpha": 0.0}, ValueError, "Invalid alpha value: 0.0: needs 0 < alpha <= 1; pass alpha=1 for the base optimizer"),
    ({"alpha": 1.5}, ValueError, "Invalid alpha value: 1.5"),
    ({"alpha": -0.1}, ValueError, "Invalid alpha value: -0.1"),
    ({"alpha": float("nan")}, ValueError, "Invalid alpha value: nan"),
    ({"alpha": "half"}, TypeError, "Invalid alpha type: str: needs a number; pass a float such as alpha=0.9"),
    ({"alpha": True}, TypeError, "Invalid alpha type: bool"),
    ({"memory": 0}, ValueError, "Invalid memory value: 0: needs memory >= 1; pass the number of gradients to average"),
    ({"memory": -3}, ValueError, "Invalid memory value: -3"),
    ({"memory": 2.5}, TypeError, "Invalid memory type: float: needs a whole number or 'exponentials'"),
    ({"memory": "all"}, TypeError, "Invalid memory type: str"),
    ({"kind": "riesz"}, ValueError, "Invalid kind: 'riesz': needs one of 'integral', 'difference', 'fcgd', 'caputo'"),
    ({"kind": "difference", "memory": "exponentials"}, ValueError, "Invalid memory value: 'exponentials' with kind"),
    ({"kind": "caputo", "memory": "exponentials"}, ValueError, "which keeps no past gradients; leave memory as it is"),
    ({"kind": "fcgd", "differentiable": True}, ValueError, "kind 'fcgd' does not support capturable or differentiable"),
    ({"kind": "caputo", "differentiable": True}, ValueError, "kind 'caputo' does not support differentiable"),
    ({"lr": -1.0}, ValueError, "Invalid learning rate: -1.0"),
    ({"weight_decay": -1.0}, ValueError, "Invalid weight_decay value: -1.0"),
]


@pytest.mark.parametrize(("options", "error", "message"), INVALID, ids=[str(each[0]) for each in INVALID])
@every_class
def test_bad_options_are_refused_in_torchs_words(cls, options, error, message):
    with pytest.raises(error, match=f"^{re.escape(message)}|{re.escape(message)}"):
        cls(parameters(), **options)
    if not {"lr", "weight_decay", "differentiable"} & set(options):
        optimizer = cls(parameters())
        with pytest.raises(error, match=re.escape(message)):
            optimizer.add_param_group({"params": parameters(), **options})
        assert len(optimizer.param_groups) == 1
        optimizer.param_groups[0].update(options)
        with pytest.raises(error, match=re.escape(message)):
            optimizer.step()


def test_memory_is_fixed_at_the_first_step():
    optimizer = train(FractionalSGD, 2, alpha=0.5)
    optimizer.param_groups[0]["memory"] = 5
    with pytest.raises(
        RuntimeError, match=r"holds 9 rows of past gradients .* ask for 4: memory is fixed at the first"
    ):
        optimizer.step(quartic(optimizer))


@every_class
def test_sparse_gradients_are_refused_where_they_would_be_kept(cls):
    optimizer = cls(parameters([(4, 2)]), alpha=0.5)
    (p,) = parameters_of(optimizer)
    p.grad = torch.eye(4, 2, dtype=torch.float64).to_sparse()
    with pytest.raises(
        RuntimeError, match=f"{cls.__name__} does not support sparse gradients where alpha is less than"
    ):
        optimizer.step()


def test_sgd_takes_sparse_gradients_at_alpha_1():
    optimizer = FractionalSGD(parameters([(4, 2)]), lr=1.0)
    (p,) = parameters_of(optimizer)
    old = p.detach().clone()
    p.grad = torch.eye(4, 2, dtype=torch.float64).to_sparse()
    optimizer.step()
    assert torch.equal(p.detach(), old - torch.eye(4, 2, dtype=torch.float64))


def test_gradients_of_unknown_tensors_are_refused():
    class Other(torch.Tensor):
        pass

    optimizer = FractionalSGD(parameters([(3,)]), alpha=0.5)
    parameters_of(optimizer)[0].grad = torch.zeros(3, dtype=torch.float64).as_subclass(Other)
    with pytest.raises(RuntimeError, match="does not support gradients of type Other where alpha is less than 1"):
        optimizer.step()


def test_a_fixed_terminal_needs_a_closure():
    optimizer = FractionalSGD(parameters(), alpha=0.5, kind="caputo_terminal")
    with pytest.raises(
        RuntimeError, match="with kind 'caputo_terminal' needs gradients at other points; pass a closure"
    ):
        optimizer.step()


def test_parameters_are_put_back_where_the_closure_fails():
    optimizer = FractionalSGD(parameters(), alpha=0.5, kind="caputo_terminal")
    before = [p.detach().clone() for p in parameters_of(optimizer)]

    def closure():
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        optimizer.step(closure)
    assert all(torch.equal(p, old) for p, old in zip(parameters_of(optimizer), before, strict=True))


@every_class
def test_gradients_are_put_back_where_the_step_fails(cls, monkeypatch):
    optimizer = train(cls, 3, alpha=0.5)
    quartic(optimizer)()
    before = [p.grad for p in parameters_of(optimizer)]

    def fails(self, closure=None):
        raise RuntimeError("broken")

    monkeypatch.setattr(BASES[cls], "step", fails)
    with pytest.raises(RuntimeError, match="broken"):
        optimizer.step()
    assert all(p.grad is grad for p, grad in zip(parameters_of(optimizer), before, strict=True))


def test_gradients_that_are_still_scaled_are_refused():
    optimizer: Any = FractionalAdam(parameters(), alpha=0.6, fused=True)
    optimizer.grad_scale = torch.tensor(2.0)
    with pytest.raises(RuntimeError, match="cannot average gradients that are still scaled, each by another factor"):
        optimizer.step(quartic(optimizer))


@pytest.mark.parametrize("memory", [5, "exponentials"])
@pytest.mark.parametrize(
    "other",
    [torch.randn(30, 4), torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.complex64)],
    ids=["shape", "dtype", "complex"],
)
def test_a_history_of_another_parameter_is_refused(other, memory):
    # Compiled kernels go by addresses, and would write beyond it.
    p = torch.nn.Parameter(torch.randn(3, 4))
    optimizer = FractionalAdam([p], alpha=0.5, memory=memory)
    for _ in range(3):
        p.grad = torch.randn_like(p)
        optimizer.step()
    p.grad = None
    p.data = other
    p.grad = torch.randn_like(p)
    before = p.detach().clone()
    with pytest.raises(RuntimeError, match=r"^the state holds past gradients of shape \(3, 4\), torch.float32 on cpu"):
        optimizer.step()
    assert torch.equal(p, before)
    optimizer.state.pop(p)
    optimizer.step()
    assert not torch.equal(p, before)
