"""Options and states that change: alpha, kind and memory in the course of a run, states of other optimizers, seeds."""

import copy
import io
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.multiprocessing.reductions import StorageWeakRef

from hpfracc_nn.training import AlphaSchedule, FractionalAdam, FractionalRMSprop, FractionalSGD
from hpfracc_nn.training.torch.optimizers.directions import KINDS
from tests.optimizer_cases import (
    BASES,
    distance,
    every_average,
    every_class,
    gradients,
    parameters,
    parameters_of,
    quartic,
    train,
)


def fed(optimizer, steps):
    """Step along given gradients."""
    for step in steps:
        for p, grad in zip(parameters_of(optimizer), step, strict=True):
            p.grad = grad
        optimizer.step()


RINGS = [name for name, kind in KINDS.items() if "history" in kind.keeps]


@pytest.mark.parametrize("before", RINGS)
@pytest.mark.parametrize("after", RINGS)
def test_a_new_kind_of_weights_weighs_what_was_remembered_anew(before, after):
    """A window holds gradients, whatever their weights: equal gradients, equal steps."""
    runs = []
    for first in (before, after):
        optimizer = FractionalSGD(parameters(), lr=0.0, alpha=0.5, kind=first)
        steps = gradients(parameters_of(optimizer), 9)
        fed(optimizer, steps[:6])
        optimizer.param_groups[0].update(kind=after, lr=1.0, **({"seed": 3} if after == "fcgd" else {}))
        fed(optimizer, steps[6:])
        runs.append(optimizer)
    assert distance(*runs) == 0


@pytest.mark.parametrize("other", [{"kind": "caputo"}, {"alpha": 1.0}, {"memory": 1}], ids=str)
@every_average
def test_what_is_not_gone_on_with_is_dropped(options, other):
    """Gradients of long ago must not come back as the last ones."""
    given = {"alpha": 0.6, "memory": 10, **options}
    optimizer, fresh = FractionalSGD(parameters(), lr=0.0, **given), FractionalSGD(parameters(), lr=1.0, **given)
    steps = gradients(parameters_of(optimizer), 12)
    fed(optimizer, steps[:5])
    optimizer.param_groups[0].update({**given, "memory": 10, **other})
    fed(optimizer, steps[5:9])
    assert not any("history" in state for state in optimizer.state.values())
    optimizer.param_groups[0].update({**given, "lr": 1.0})
    fed(optimizer, steps[9:])
    fed(fresh, steps[9:])
    assert distance(optimizer, fresh) == 0
    assert not any("previous" in state for state in optimizer.state.values())


def test_a_parameter_without_a_gradient_forgets_too_where_alpha_becomes_1():
    optimizer = train(FractionalSGD, 4, alpha=0.5)
    optimizer.param_groups[0]["alpha"] = 1.0
    parameters_of(optimizer)[0].grad = None
    optimizer.step()
    assert not any(optimizer.state.values())


@pytest.mark.parametrize("shape", [(7,), (3, 5)])
def test_the_memory_of_a_state_that_is_dropped_is_free(shape):
    p = torch.nn.Parameter(torch.randn(shape))
    optimizer = FractionalSGD([p], lr=0.1, alpha=0.5)
    fed(optimizer, [[torch.randn(shape)] for _ in range(3)])
    storages = [StorageWeakRef(optimizer.state[p][name].untyped_storage()) for name in ("history", "direction")]
    assert not any(each.expired() for each in storages)
    optimizer.state.clear()
    assert all(each.expired() for each in storages)


@pytest.mark.parametrize("name", ["history", "direction", "history_memory"])
def test_a_state_of_which_a_part_is_missing_is_made_anew_or_refused(name):
    p = torch.nn.Parameter(torch.randn(3, 5))
    optimizer = FractionalSGD([p], lr=0.1, alpha=0.5)
    fed(optimizer, [[torch.randn(3, 5)] for _ in range(3)])
    del optimizer.state[p][name]
    if name == "history":
        fed(optimizer, [[torch.ones(3, 5)]])
        assert torch.equal(optimizer.state[p]["direction"], torch.ones(3, 5))  # an average of one gradient
        return
    with pytest.raises((RuntimeError, KeyError), match=name if name == "direction" else "memory is fixed"):
        fed(optimizer, [[torch.ones(3, 5)]])


def test_whole_numbers_of_numpy_are_saved_as_numbers():
    optimizer = train(FractionalSGD, 3, alpha=np.float32(0.5), memory=np.int64(4))
    optimizer.param_groups[0]["alpha"] = np.float64(0.4)
    optimizer.step(quartic(optimizer))
    buffer = io.BytesIO()
    torch.save(optimizer.state_dict(), buffer)
    buffer.seek(0)
    (group,) = torch.load(buffer, weights_only=True)["param_groups"]
    assert (group["alpha"], group["memory"]) == (0.4, 4)
    optimizer.param_groups[0]["memory"] = np.int32(4)
    optimizer.step(quartic(optimizer))


@every_class
def test_the_states_of_base_optimizers_are_exchanged(cls):
    """At alpha = 1 there is nothing else in a state; from a base optimizer's, the history begins anew."""
    theirs: Any = train(BASES[cls], 5, lr=0.01)
    ours = cls(copy.deepcopy(parameters_of(theirs)), lr=0.5, alpha=0.8)
    ours.load_state_dict(theirs.state_dict())
    (group,) = ours.param_groups
    assert (group["lr"], group["alpha"], group["kind"], group["memory"]) == (0.01, 0.8, "integral", 10)
    ours.step(quartic(ours))
    assert {"history", "direction"} <= set(ours.state[parameters_of(ours)[0]])
    theirs.load_state_dict(ours.state_dict())
    theirs.step(quartic(theirs))


def test_the_smoothing_of_rmsprop_and_the_order_are_not_taken_for_each_other():
    """Whoever loads whose state: a run at alpha = 1 goes on as torch's would, and an order comes back as it was."""
    ours = train(FractionalRMSprop, 5, lr=0.01, smoothing=0.9)
    theirs: Any = train(torch.optim.RMSprop, 5, lr=0.01, alpha=0.9)
    for state in (ours.state_dict(), theirs.state_dict()):
        mine = FractionalRMSprop(copy.deepcopy(parameters_of(ours)), smoothing=0.5)
        torchs = torch.optim.RMSprop(copy.deepcopy(parameters_of(ours)), alpha=0.5)
        for each in (mine, torchs):
            each.load_state_dict(copy.deepcopy(state))
            for _ in range(5):
                each.step(quartic(each))
        assert (mine.param_groups[0]["smoothing"], mine.param_groups[0]["alpha"]) == (0.9, 1.0)
        assert torchs.param_groups[0]["alpha"] == 0.9
        assert distance(mine, torchs) == 0
    fractional = train(FractionalRMSprop, 5, smoothing=0.9, alpha=0.6)
    torchs.load_state_dict(fractional.state_dict())
    assert torchs.param_groups[0]["alpha"] == 0.9
    again = FractionalRMSprop(parameters(), alpha=0.3)
    again.load_state_dict(torchs.state_dict())  # by way of torch's
    assert (again.param_groups[0]["smoothing"], again.param_groups[0]["alpha"]) == (0.9, 0.6)
    assert again.param_groups[0]["fractional_alpha"] is None


@pytest.mark.parametrize("memory", [5, "exponentials"])
@pytest.mark.parametrize("is_flat", [False, True])
def test_distributed_checkpoints_bring_everything_back(is_flat, memory):
    options = StateDictOptions(flatten_optimizer_state_dict=is_flat)
    given = {"lr": 0.01, "smoothing": 0.9, "memory": memory}
    net = torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    optimizer = FractionalRMSprop(net.parameters(), alpha=0.6, **given)
    for _ in range(4):
        optimizer.step(quartic(optimizer))
    again = copy.deepcopy(net)
    other = FractionalRMSprop(again.parameters(), alpha=0.3, **given)
    saved = copy.deepcopy(get_optimizer_state_dict(net, optimizer, options=options))
    set_optimizer_state_dict(again, other, saved, options=options)
    group = other.param_groups[0]
    assert (group["alpha"], group["smoothing"], group["fractional_alpha"]) == (0.6, 0.9, None)
    for each in (optimizer, other):
        each.step(quartic(each))
    assert distance(optimizer, other) == 0


def test_a_group_that_was_saved_as_it_is_is_loaded_as_it_is():
    """As from ZeroRedundancyOptimizer, which saves its own copies of the groups."""
    optimizer = train(FractionalRMSprop, 3, alpha=0.9, smoothing=0.9)
    optimizer.param_groups[0]["alpha"] = 0.6
    saved = torch.optim.Optimizer.state_dict(optimizer)
    again = FractionalRMSprop(parameters(), alpha=0.3)
    again.load_state_dict(saved)
    assert (again.param_groups[0]["alpha"], again.param_groups[0]["smoothing"]) == (0.6, 0.9)


def test_hooks_see_the_state_that_is_saved_and_may_load_that_of_the_base():
    ours, theirs = train(FractionalRMSprop, 3, alpha=0.6), train(torch.optim.RMSprop, 3, alpha=0.8)
    seen = []
    ours.register_state_dict_post_hook(lambda _, state: seen.append(state["param_groups"][0]["alpha"]))
    ours.state_dict()
    assert seen == [0.99]
    ours.register_load_state_dict_pre_hook(lambda _, state: theirs.state_dict())
    ours.load_state_dict(ours.state_dict())
    assert (ours.param_groups[0]["smoothing"], ours.param_groups[0]["alpha"]) == (0.8, 0.6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rows_in_single_precision_are_loaded_as_they_are(dtype):
    params = [torch.nn.Parameter(p.detach().to(dtype)) for p in parameters()]
    optimizer = train(FractionalSGD, 30, params, lr=0.01, alpha=0.6, memory="exponentials")
    again = FractionalSGD(copy.deepcopy(params), alpha=0.6, memory="exponentials")
    seen = []
    again.register_load_state_dict_post_hook(
        lambda loaded: seen.append(loaded.state[parameters_of(loaded)[0]]["history"].dtype)
    )
    again.load_state_dict(optimizer.state_dict())
    assert seen == [torch.float32]
    for p, q in zip(params, parameters_of(again), strict=True):
        assert torch.equal(optimizer.state[p]["history"], again.state[q]["history"])


def test_a_state_in_single_precision_goes_on_in_half():
    """Whatever dtype a loader gave the rows, the next step has them as they are needed."""
    for memory, kept in ((5, torch.bfloat16), ("exponentials", torch.float32)):
        wide = train(FractionalSGD, 9, [torch.nn.Parameter(torch.ones(3))], alpha=0.5, memory=memory)
        p = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        narrow = FractionalSGD([p])
        narrow.load_state_dict(wide.state_dict())
        if memory == "exponentials":
            narrow.state[p]["history"] = narrow.state[p]["history"].bfloat16()
        narrow.step(quartic(narrow))
        assert narrow.state[p]["history"].dtype == kept


def test_the_random_terms_of_fcgd_follow_from_the_generator():
    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        return train(FractionalSGD, 15, lr=0.1, alpha=0.5, kind="fcgd", generator=generator)

    assert distance(run(0), run(0)) == 0
    assert distance(run(0), run(1)) > 0


def test_without_a_generator_fcgd_is_the_same_in_every_process_and_draws_nothing_from_torch():
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        groups = [{"params": parameters()}, {"params": parameters(seed=1)}]
        runs.append(FractionalSGD(groups, lr=0.1, alpha=0.5, kind="fcgd"))
        for _ in range(15):
            runs[-1].step(quartic(runs[-1]))
        assert torch.equal(before, torch.get_rng_state())
    assert distance(*runs) == 0
    seeds = [group["seed"] for group in runs[0].param_groups]
    assert seeds[0] != seeds[1]


def test_a_schedule_sets_the_alpha_of_every_group():
    one, other = parameters([(3,)]), parameters([(2,)])
    optimizer = FractionalAdam([{"params": one}, {"params": other}])
    schedule = AlphaSchedule(optimizer, [lambda epoch: 0.5 + 0.1 * epoch, lambda epoch: 1.0])
    assert schedule.get_last_alpha() == [0.5, 1.0]
    optimizer.step(quartic(optimizer))
    schedule.step()
    assert schedule.get_last_alpha() == [0.6, 1.0]
    again = AlphaSchedule(optimizer, [lambda epoch: 0.5 + 0.1 * epoch, lambda epoch: 1.0])
    again.load_state_dict(schedule.state_dict())
    assert again.get_last_alpha() == [0.6, 1.0]
    with pytest.raises(ValueError, match=r"Invalid alpha value: 0\.0"):
        AlphaSchedule(optimizer, lambda epoch: 0.0)
    with pytest.raises(ValueError, match=r"3 functions\): needs one for each of the 2 groups"):
        AlphaSchedule(optimizer, [lambda epoch: 1.0] * 3)
    for cls in (torch.optim.SGD, torch.optim.RMSprop):  # of which one has an alpha that is no order
        with pytest.raises(TypeError, match=rf"{cls.__name__}\): needs an optimizer with a fractional alpha, such as"):
            AlphaSchedule(cls(one), lambda epoch: 1.0)


def test_a_schedule_for_all_groups_takes_in_those_that_are_added():
    optimizer = FractionalAdam(parameters([(3,)]))
    schedule = AlphaSchedule(optimizer, lambda epoch: 0.5 + 0.1 * epoch)
    optimizer.add_param_group({"params": parameters([(2,)])})
    schedule.step()
    assert schedule.get_last_alpha() == [0.6, 0.6]


def test_groups_without_a_function_of_their_own_keep_their_alpha():
    optimizer = FractionalAdam([{"params": parameters([(3,)])}, {"params": parameters([(2,)]), "alpha": 0.9}])
    schedule = AlphaSchedule(optimizer, [lambda epoch: 0.5 + 0.1 * epoch, None])
    optimizer.add_param_group({"params": parameters([(4,)]), "alpha": 0.8})
    schedule.step()
    assert schedule.get_last_alpha() == [0.6, 0.9, 0.8]


def test_an_alpha_that_is_refused_leaves_the_schedule_where_it_was():
    optimizer = FractionalAdam([{"params": parameters([(3,)])}, {"params": parameters([(2,)])}])
    schedule = AlphaSchedule(optimizer, [lambda epoch: 0.5 + 0.1 * epoch, lambda epoch: 1.0 + epoch])
    with pytest.raises(ValueError, match=r"Invalid alpha value: 2\.0"):
        schedule.step()
    assert schedule.get_last_alpha() == [0.5, 1.0]
    assert schedule.state_dict() == {"last_epoch": 0}
