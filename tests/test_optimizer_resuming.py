"""Runs that are saved, copied, begun without a step, or gone on with by another optimizer."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from hpfracc_nn.training import AlphaSchedule, FractionalAdam, FractionalSGD
from hpfracc_nn.training.torch.optimizers.directions import KINDS
from tests.optimizer_cases import (
    BASES,
    distance,
    every_average,
    every_class,
    every_open_kind,
    parameters,
    parameters_of,
    quartic,
    train,
)


@pytest.mark.parametrize("kind", [*KINDS, "exponentials"])
def test_a_state_that_was_asked_for_before_the_first_step_remembers_nothing(kind):
    """Torch's distributed checkpoints make it by a step without rate or gradient, and give no closure."""
    options = {"memory": kind} if kind == "exponentials" else {"kind": kind}
    nets = [torch.nn.Linear(2, 1, dtype=torch.float64) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    asked, fresh = (FractionalSGD(net.parameters(), lr=0.1, alpha=0.5, **options) for net in nets)
    get_optimizer_state_dict(nets[0], asked)
    assert all(state.get("history_step", 0) == 0 for state in asked.state.values())
    for _ in range(5):
        for optimizer in (asked, fresh):
            optimizer.step(quartic(optimizer))
    assert distance(asked, fresh) == 0


def test_a_capturable_state_that_was_asked_for_remembers_nothing():
    """Its count is the difference of the base optimizer's steps and where the history began."""
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = FractionalAdam([p], lr=0.0, alpha=0.5)
    p.grad = torch.zeros(3)
    optimizer.step()
    state = optimizer.state[p]
    assert (int(state["step"]), state["history_step"], state["history_start"]) == (1, 0, 1)
    del state["history_step"]  # as a capturable group has it
    KINDS["integral"].rewind(state)
    assert (int(state["step"]), state["history_start"]) == (1, 1)


def test_a_first_step_with_a_gradient_is_remembered_whatever_its_rate():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = FractionalSGD([p], lr=0.0, alpha=0.5)
    for count in (1, 2):
        p.grad = torch.ones(3)
        optimizer.step()
        assert optimizer.state[p]["history_step"] == count


@every_class
def test_caputo_begins_where_the_rate_is_first_above_0(cls):
    """After steps of length 0 it takes the gradient as it is, as at its first step, and gets on."""
    runs = []
    for idle in (0, 3):
        p = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = cls([p], lr=0.0, alpha=0.7, kind="caputo")
        for step in range(idle + 300):
            optimizer.param_groups[0]["lr"] = 0.1 if step >= idle else 0.0
            p.grad = (p - 3).detach()
            optimizer.step()
            if step == idle:
                first = p.detach().clone()
        assert (first > 0).all()
        runs.append(p.detach())
    assert (runs[1] - 3).abs().max() < 0.3
    if cls is FractionalSGD:  # which counts no idle steps
        assert torch.equal(*runs)


@pytest.mark.parametrize("foreach", [False, True])
@every_open_kind
def test_gradients_stay_what_they_were_with_nesterovs_momentum(options, foreach):
    """Torch's foreach adds the velocity to what it is given in place."""
    optimizer = FractionalSGD(parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=foreach, alpha=0.6, **options)
    for _ in range(4):
        quartic(optimizer)()
        grads = [p.grad for p in parameters_of(optimizer)]
        before = copy.deepcopy(grads)
        optimizer.step()
        torch.testing.assert_close(grads, before, rtol=0, atol=0)
        assert all(p.grad is grad for p, grad in zip(parameters_of(optimizer), grads, strict=True))


@every_average
def test_a_change_of_kind_is_forgotten_by_parameters_without_a_gradient_too(options):
    p, q = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = FractionalSGD([p, q], lr=1.0, alpha=0.5, **options)
    group = optimizer.param_groups[0]
    given = {name: group[name] for name in ("kind", "memory")}

    def step(p_grad, q_grad):
        p.grad, q.grad = (None if each is None else torch.tensor([each]) for each in (p_grad, q_grad))
        optimizer.step()

    for _ in range(9):
        step(100.0, 1.0)
    group.update(kind="caputo", memory=10)
    step(None, 1.0)
    group.update(given)
    before = p.item()
    step(1.0, 1.0)
    assert before - p.item() == 1.0  # the weight of a first gradient, whatever the kind


def test_what_was_changed_is_saved_as_a_step_would_take_it():
    optimizer = train(FractionalSGD, 3, alpha=0.5, generator=torch.Generator().manual_seed(5))
    optimizer.param_groups[0].update(alpha=np.float64(0.4), memory=np.int64(10), kind="fcgd")
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    assert (saved["param_groups"][0]["alpha"], saved["param_groups"][0]["memory"]) == (0.4, 10)
    again = FractionalSGD(copy.deepcopy(parameters_of(optimizer)))
    again.load_state_dict(saved)
    for _ in range(12):
        for each in (optimizer, again):
            each.step(quartic(each))
    assert distance(optimizer, again) == 0
    optimizer.param_groups[0]["memory"] = 2.5
    with pytest.raises(TypeError, match="Invalid memory type: float"):
        optimizer.state_dict()


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_copies_draw_the_seeds_that_the_original_draws(duplicate):
    generator = torch.Generator().manual_seed(9)
    optimizer = FractionalAdam(parameters(), alpha=0.6, kind="fcgd", generator=generator)
    other = duplicate(optimizer)
    for each in (optimizer, other):
        each.add_param_group({"params": parameters(seed=1)})
    seeds = [[group["seed"] for group in each.param_groups] for each in (optimizer, other)]
    assert seeds[0] == seeds[1]
    assert seeds[0][1] > 1  # its place would be 1


@pytest.mark.parametrize("cls", [cls for cls in BASES if cls is not FractionalSGD], ids=lambda cls: cls.__name__)
@every_average
def test_a_history_begins_anew_where_torchs_optimizer_stepped_meanwhile(cls, options):
    ours = train(cls, 5, lr=0.01, alpha=0.6, **options)
    theirs: Any = BASES[cls]
    theirs = theirs(parameters_of(ours))
    again, straight = (cls(copy.deepcopy(parameters_of(ours)), lr=0.01, alpha=0.6, **options) for _ in range(2))
    straight.load_state_dict(copy.deepcopy(ours.state_dict()))
    assert all("history" in state for state in straight.state.values())
    theirs.load_state_dict(copy.deepcopy(ours.state_dict()))
    for steps in (0, 1):
        for _ in range(steps):
            theirs.step(quartic(theirs))
        again.load_state_dict(copy.deepcopy(theirs.state_dict()))
        assert all(("history" in state) == (steps == 0) for state in again.state.values())
    again.step(quartic(again))
    assert all(state["history_step"] == 1 for state in again.state.values())
    again.load_state_dict(copy.deepcopy(again.state_dict()))  # which began later than the base optimizer's count
    assert all(state["history_step"] == 1 for state in again.state.values())


def test_a_schedule_takes_tuples_and_knows_a_fractional_optimizer():
    optimizer = FractionalAdam([{"params": parameters([(3,)])}, {"params": parameters([(2,)])}])
    schedule = AlphaSchedule(optimizer, (lambda epoch: 0.5, None))
    assert schedule.get_last_alpha() == [0.5, 1.0]

    class Around(torch.optim.Optimizer):
        def __init__(self, optim):
            self.optim, self.param_groups = optim, optim.param_groups

    AlphaSchedule(Around(optimizer), lambda epoch: 0.7)
    assert [group["alpha"] for group in optimizer.param_groups] == [0.7, 0.7]


def test_a_schedule_refuses_torchs_optimizer_that_has_loaded_a_fractional_ones_groups():
    """Its alpha is the smoothing constant, whatever other names its groups have."""
    theirs = torch.optim.RMSprop(parameters())
    theirs.param_groups[0].update(kind="integral", memory=10)
    for optimizer in (theirs, torch.optim.SGD(parameters())):
        with pytest.raises(TypeError, match="needs an optimizer with a fractional alpha, such as FractionalAdam"):
            AlphaSchedule(optimizer, lambda epoch: 0.3)
