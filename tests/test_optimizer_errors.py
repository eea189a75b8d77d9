"""What the optimizers refuse, with what words, and that nothing is left behind."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.training import FractionalAdam, FractionalSGD
from tests.optimizer_cases import (
    BASES,
    every_class,
    every_open_kind,
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
    ({"memory": np.float64(10)}, TypeError, "Invalid memory type: float64"),
    ({"memory": np.ones(2)}, TypeError, "Invalid memory type: ndarray"),
    ({"kind": ["integral"]}, ValueError, "Invalid kind: ['integral']: needs one of 'integral', 'difference', 'fcgd'"),
    ({"kind": None}, ValueError, "Invalid kind: None: needs one of"),
    ({"kind": "difference", "memory": "exponentials"}, ValueError, "Invalid memory value: 'exponentials' with kind"),
    ({"kind": "caputo", "memory": "exponentials"}, ValueError, "which keeps no past gradients; pass a number"),
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


@pytest.mark.parametrize(("before", "after"), [(10, 5), (5, "exponentials"), ("exponentials", 5)])
def test_memory_is_fixed_at_the_first_step(before, after):
    """Five gradients and the exponentials take four rows each, of which one says nothing of the other."""
    optimizer = train(FractionalSGD, 2, alpha=0.5, memory=before)
    optimizer.param_groups[0]["memory"] = after
    expected = f"holds what memory={before!r} remembers and .* ask for memory={after!r}: memory is fixed at the first"
    with pytest.raises(RuntimeError, match=expected):
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


def sparse(p: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(p).to_sparse()


class Other(torch.Tensor):
    pass


FAULTS: dict[str, Any] = {
    "sparse": ({"alpha": 0.5}, sparse),
    "sparse at alpha 1": ({"alpha": 1.0}, sparse),
    "subclass": ({"alpha": 0.5}, lambda p: torch.ones_like(p).as_subclass(Other)),
    "no kernel": ({"alpha": 0.5, "memory": 3}, lambda p: torch.ones_like(p)),
    "another's history": ({"alpha": 0.5}, lambda p: torch.ones_like(p)),
    "another kind": ({"alpha": 0.5, "kind": "caputo"}, lambda p: torch.ones_like(p)),
}


@pytest.mark.parametrize("fault", FAULTS)
@every_open_kind
def test_a_step_that_is_refused_changes_nothing_in_any_group(options, fault):
    """The fault lies in the second group; the first one goes on as if the step had not been tried."""
    other, bad = FAULTS[fault]
    dtype = torch.bfloat16 if fault == "no kernel" else torch.float64  # only the foreach kernel takes it
    groups = [{"params": parameters(seed=1), "alpha": 0.7, **options}, {"params": parameters([(4, 2)]), **other}]
    manager = BackendManager(Settings(mode="prior", wisdom="off", force_backend="torch", force_algorithm="matmul"))
    optimizer = FractionalAdam(groups, lr=0.1, manager=manager)
    second = parameters_of(optimizer)[-1]
    for _ in range(4):
        quartic(optimizer)()
        second.grad = None if fault == "no kernel" else second.grad
        optimizer.step()
    undisturbed = copy.deepcopy(optimizer)
    quartic(optimizer)()
    second.grad = None
    second.data = second.data.to(dtype)
    if fault == "another's history":
        optimizer.state[second]["direction"] = torch.zeros(3, dtype=torch.float64)
    if fault == "another kind":
        optimizer.state[second]["previous"] = torch.zeros(3, dtype=torch.float64)
    second.grad = bad(second.detach())
    before = copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises((RuntimeError, LookupError)):
        optimizer.step()
    torch.testing.assert_close(optimizer.state_dict()["state"], before, rtol=0, atol=0)
    for each in (optimizer, undisturbed):
        quartic(each)()
        parameters_of(each)[-1].grad = None
        each.step()
    first = [parameters_of(each)[:-1] for each in (optimizer, undisturbed)]
    assert all(torch.equal(p, q) for p, q in zip(*first, strict=True))


def test_a_first_step_that_is_refused_leaves_no_state():
    groups = [{"params": parameters(seed=1)}, {"params": parameters([(4, 2)])}]
    optimizer = FractionalAdam(groups, alpha=0.5)
    quartic(optimizer)()
    second = parameters_of(optimizer)[-1]
    second.grad = sparse(second.detach())
    with pytest.raises(RuntimeError, match="does not support sparse gradients"):
        optimizer.step()
    assert not any(optimizer.state.values())


def test_options_that_are_refused_in_one_group_draw_no_seed_in_another():
    optimizer = FractionalSGD([{"params": parameters()}, {"params": parameters(seed=1)}], alpha=0.5)
    optimizer.param_groups[0]["kind"] = "fcgd"
    optimizer.param_groups[1]["alpha"] = 2.0
    with pytest.raises(ValueError, match="Invalid alpha value"):
        optimizer.step()
    assert "seed" not in optimizer.param_groups[0]


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
