"""What is remembered belongs to places of the parameter, whatever their order in memory, also in checkpoints."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from hpfracc_nn.training import FractionalAdam, FractionalRMSprop, FractionalSGD
from tests.optimizer_cases import every_average, every_class, every_open_kind

IMAGES = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def channels_last(layer: Any) -> torch.nn.Module:
    return layer.to(memory_format=torch.channels_last)


def net(is_channels_last: bool, seed: int = 0) -> torch.nn.Module:
    """Return a convolution in float64."""
    torch.manual_seed(seed)
    layer = torch.nn.Conv2d(3, 4, 3).double()
    return channels_last(layer) if is_channels_last else layer


def train(layer: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        layer(IMAGES).sin().square().mean().backward()
        optimizer.step()


def apart(one: torch.nn.Module, other: torch.nn.Module) -> float:
    return max(float((p - q).detach().abs().max()) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("saved_so", [False, True])
@every_open_kind
@pytest.mark.slow
def test_distributed_checkpoints_are_read_into_another_layout(tmp_path, options, saved_so, is_flat):
    """They copy value by value, as the shape says, and so must a history be."""
    how = StateDictOptions(flatten_optimizer_state_dict=is_flat)
    one, other = net(saved_so), net(not saved_so, seed=7)
    first = FractionalAdam(one.parameters(), lr=0.1, alpha=0.6, **options)
    train(one, first, 5)
    saved = {"net": get_model_state_dict(one), "optimizer": get_optimizer_state_dict(one, first, options=how)}
    dcp.save(saved, checkpoint_id=tmp_path, no_dist=True)  # type: ignore[attr-defined]
    second = FractionalAdam(other.parameters(), lr=0.3, alpha=0.6, **options)
    found: dict[str, Any] = {
        "net": get_model_state_dict(other),
        "optimizer": get_optimizer_state_dict(other, second, options=how),
    }
    dcp.load(found, checkpoint_id=tmp_path, no_dist=True)  # type: ignore[attr-defined]
    set_model_state_dict(other, found["net"])
    set_optimizer_state_dict(other, second, found["optimizer"], options=how)
    train(one, first, 5)
    train(other, second, 5)
    # Convolutions add up in another order; caputo magnifies the rounding by a power of a step, Adam by 1 / eps.
    assert apart(one, other) < 1e-9


@pytest.mark.parametrize("at", [0, 6])
@every_open_kind
def test_fused_steps_follow_a_parameter_that_is_laid_out_anew(options, at):
    """Torch's fused kernels take the values of parameter and gradient as they lie in memory."""
    runs = []
    for is_changed in (False, True):
        layer = net(False)
        optimizer = FractionalSGD(layer.parameters(), lr=0.1, fused=is_changed, alpha=0.6, **options)
        train(layer, optimizer, at)
        if is_changed:
            channels_last(layer)
        train(layer, optimizer, 12 - at)
        runs.append(layer)
    assert apart(*runs) < 1e-12


@every_average
def test_fused_steps_go_on_in_another_layout_from_a_saved_state(options):
    one = net(False)
    first = FractionalSGD(one.parameters(), lr=0.1, fused=True, alpha=0.6, **options)
    train(one, first, 5)
    other = channels_last(copy.deepcopy(one))
    second = FractionalSGD(other.parameters(), lr=0.1, fused=True, alpha=0.6, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    train(one, first, 5)
    train(other, second, 5)
    assert apart(one, other) < 1e-12


@pytest.mark.parametrize("transposed", [{0}, {2}, {0, 1, 2, 3, 4}], ids=str)
@every_average
def test_fused_steps_take_gradients_that_lie_in_another_order(options, transposed):
    torch.manual_seed(0)
    grads = torch.randn(5, 3, 5, dtype=torch.float64)
    runs = []
    for is_fused in (False, True):
        p = torch.nn.Parameter(torch.zeros(3, 5, dtype=torch.float64))
        optimizer = FractionalSGD([p], lr=0.1, fused=is_fused, alpha=0.6, **options)
        for step, grad in enumerate(grads):
            p.grad = grad.mT.contiguous().mT if is_fused and step in transposed else grad
            optimizer.step()
        runs.append(p.detach())
    torch.testing.assert_close(*runs, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("memory", [2, 5, "exponentials"])
@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=str)
def test_rows_have_the_shape_of_their_parameter(options, memory, dtype):
    """What is remembered of a permuted parameter is the permuted memory of the parameter; nothing is copied for it."""
    torch.manual_seed(0)
    grads = torch.randn(7, 2, 3, 4, dtype=dtype)
    states: list[dict[str, Any]] = []
    for order in ((0, 1, 2), (2, 0, 1)):
        p = torch.nn.Parameter(torch.zeros(2, 3, 4, dtype=dtype).permute(order))
        optimizer = FractionalRMSprop([p], alpha=0.6, memory=memory)
        optimizer.param_groups[0].update(options)
        optimizer._base_step = lambda: None  # type: ignore[method-assign]  # capturable ones want a GPU
        for step, grad in enumerate(grads):
            p.grad = grad.permute(order)
            optimizer.step()
            optimizer.state[p]["step"] = torch.tensor(step + 1.0)
        states.append(optimizer.state[p])
        rows = optimizer.state[p]["history"]
        assert rows.shape[1:] == p.shape
        assert rows[0].stride() == p.stride()
    for name in ("history", "direction"):
        ahead = (0,) if name == "history" else ()
        shift = len(ahead)
        permuted = states[0][name].permute(*ahead, *(axis + shift for axis in (2, 0, 1)))
        torch.testing.assert_close(states[1][name], permuted, rtol=0, atol=0)


@every_class
def test_a_history_of_another_shape_is_refused(cls):
    p = torch.nn.Parameter(torch.ones(3, 4))
    optimizer = cls([p], alpha=0.5, memory=5)
    for _ in range(2):
        p.grad = torch.ones(3, 4)
        optimizer.step()
    optimizer.state[p]["history"] = optimizer.state[p]["history"].flatten(1)
    with pytest.raises(RuntimeError, match=r"holds rows of shape \(4, 12\), .* they need 4 rows of that shape there"):
        optimizer.step()
