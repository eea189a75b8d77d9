"""What PyTorch tests of every optimizer's state and hooks, run on the fractional ones."""

import copy
import io

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tests.optimizer_infos import every_info, inputs, linear, same


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@every_info
def test_the_state_is_the_same_for_equal_runs(info):
    for options in inputs(info):
        params, closure_of = linear()
        optimizer = info.optim_cls(params, **options)
        for _ in range(12):
            optimizer.step(closure_of(optimizer))
        copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
        other = info.optim_cls(copies, **options)
        state = copy.deepcopy(optimizer.state_dict())
        given = copy.deepcopy(state)
        other.load_state_dict(given)
        same(given, state)  # loading leaves what it is given alone
        for _ in range(12):
            optimizer.step(closure_of(optimizer))
            other.step(closure_of(other, copies))
            assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))
        same(optimizer.state_dict(), other.state_dict())


@every_info
def test_older_states_can_be_loaded(info):
    for options in inputs(info):
        params, closure_of = linear()
        optimizer = info.optim_cls(params, **options)
        optimizer.step(closure_of(optimizer))
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            order = "fractional_alpha" if "fractional_alpha" in group else "alpha"
            for flag in (*info.not_og_supported_flags, order, "memory"):
                group.pop(flag, None)
        for each in state["state"].values():
            if torch.is_tensor(each.get("step")):
                each["step"] = each["step"].item()
        optimizer.load_state_dict(state)
        optimizer.step(closure_of(optimizer))


@pytest.mark.parametrize("is_named", [False, True])
@every_info
def test_states_are_saved_and_loaded_without_code(info, is_named):
    for options in inputs(info):
        params, closure_of = linear()
        given = list(zip(("weight", "bias"), params, strict=True)) if is_named else params
        optimizer = info.optim_cls(given, **options)
        optimizer.step(closure_of(optimizer))
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=not torch.is_tensor(options.get("lr")))
        same(loaded, optimizer.state_dict())
        other = info.optim_cls(given, **options)
        other.load_state_dict(loaded)
        same(other.state_dict(), loaded)


@every_info
def test_copies_have_all_public_attributes_and_go_on_alike(info):
    for options in inputs(info, skip=("differentiable", "foreach", "fused")):
        params, closure_of = linear()
        optimizer = info.optim_cls(params, **options)
        for _ in range(3):
            optimizer.step(closure_of(optimizer))
        duplicate = copy.deepcopy(optimizer)
        public = [{name for name in vars(each) if not name.startswith("_")} for each in (optimizer, duplicate)]
        assert public[0] == public[1]
        same(duplicate.state_dict(), optimizer.state_dict())
        copies = [p for group in duplicate.param_groups for p in group["params"]]
        optimizer.step(closure_of(optimizer))
        duplicate.step(closure_of(duplicate, copies))
        assert all(torch.equal(p, q) for p, q in zip(params, copies, strict=True))


@every_info
def test_a_group_can_be_added_between_steps(info):
    params, closure_of = linear()
    optimizer = info.optim_cls(params[:1])
    optimizer.step(closure_of(optimizer))
    optimizer.add_param_group({"params": params[1:]})
    old = params[1].detach().clone()
    optimizer.step(closure_of(optimizer))
    assert not torch.equal(params[1], old)
    with pytest.raises(ValueError, match="some parameters appear in more than one"):
        optimizer.add_param_group({"params": params[1:]})


def stepped(info, **options):
    """Return an optimizer after a step."""
    params, closure_of = linear()
    optimizer = info.optim_cls(params, **options)
    optimizer.step(closure_of(optimizer))
    return optimizer


@every_info
def test_hooks_around_the_step_run_in_their_order_and_once(info):
    """Those of all optimizers and those of this one."""
    seen: list[str] = []

    def note(name):
        return lambda optimizer, args, kwargs: seen.append(name)

    optimizer = stepped(info)
    handles = [
        register_optimizer_step_pre_hook(note("before all")),
        register_optimizer_step_post_hook(note("after all")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    try:
        optimizer.step()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["before all", "before", "after", "after all"]
    optimizer.step()
    assert len(seen) == 4


@every_info
def test_a_hook_before_the_step_may_change_its_arguments(info):
    params, closure_of = linear()
    optimizer = info.optim_cls(params)
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: (args, {"closure": closure_of(optimizer)}))
    assert isinstance(optimizer.step(), torch.Tensor)


@pytest.mark.parametrize("prepend", [False, True])
@every_info
def test_hooks_around_saving_and_loading_run_in_their_order(info, prepend):
    optimizer = stepped(info)
    seen: list[str] = []
    for name in ("first", "second"):
        optimizer.register_state_dict_pre_hook(lambda _, n=name: seen.append(f"save {n}"), prepend=prepend)
        optimizer.register_state_dict_post_hook(lambda _, state, n=name: seen.append(f"saved {n}"), prepend=prepend)
        optimizer.register_load_state_dict_pre_hook(lambda _, state, n=name: seen.append(f"load {n}"), prepend=prepend)
        optimizer.register_load_state_dict_post_hook(lambda _, n=name: seen.append(f"loaded {n}"), prepend=prepend)
    order = ("second", "first") if prepend else ("first", "second")
    optimizer.load_state_dict(optimizer.state_dict())
    assert seen == [f"{when} {name}" for when in ("save", "saved", "load", "loaded") for name in order]


@every_info
def test_hooks_may_change_what_is_saved_and_loaded(info):
    optimizer = stepped(info, lr=0.5)

    def doubled(_, state):
        groups = [{**group, "lr": 2 * group["lr"]} for group in state["param_groups"]]
        return {**state, "param_groups": groups}

    optimizer.register_state_dict_post_hook(doubled)
    assert optimizer.state_dict()["param_groups"][0]["lr"] == 1.0
    optimizer.register_load_state_dict_pre_hook(doubled)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 2.0


@every_info
def test_states_of_named_and_unnamed_parameters_are_exchanged(info):
    params, closure_of = linear()
    names = list(zip(("weight", "bias"), params, strict=True))
    for given, other in ((names, params), (params, names)):
        optimizer = info.optim_cls(given)
        optimizer.step(closure_of(optimizer))
        again = info.optim_cls(other)
        again.load_state_dict(optimizer.state_dict())
        same(again.state_dict()["state"], optimizer.state_dict()["state"])


@every_info
def test_states_that_fit_no_group_are_refused(info):
    optimizer = stepped(info)
    params, _ = linear()
    with pytest.raises(ValueError, match="different number of parameter groups"):
        info.optim_cls([{"params": p} for p in params]).load_state_dict(optimizer.state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        info.optim_cls(params[:1]).load_state_dict(optimizer.state_dict())
