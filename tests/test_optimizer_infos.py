"""PyTorch's own description of its optimizers, and what it tests of each, run on the fractional ones.

An `OptimizerInfo` lists the options, errors, implementations and schedulers that PyTorch tests an optimizer with. Those
of the base optimizers are taken over for subclasses that have an alpha of their own; the tests are the generic ones
that PyTorch applies to every optimizer. Those that need an accelerator are marked `gpu`.
"""

import copy
import io
import itertools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    OptimizerInfo,
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)
from torch.testing._internal.common_utils import TestCase

from hpfracc_nn.training import FractionalAdam
from tests.optimizer_cases import AVERAGES, BASES, named

INFOS: dict[Any, Any] = {info.optim_cls: info for info in optim_db}
MEMORIES = [options for options in AVERAGES if options["kind"] == "integral"]
OTHERS = [*AVERAGES, {"kind": "caputo"}]
VARIANTS: list[dict[str, Any]] = [{"alpha": 1.0}, *({"alpha": 0.8, **each} for each in OTHERS)]


def subclass(cls, options):
    """Return the class with other defaults, as PyTorch's tests construct an optimizer: by the base's options only."""

    def __init__(self, params, *args, **kwargs):
        cls.__init__(self, params, *args, **options, generator=torch.Generator().manual_seed(0), **kwargs)

    return type(f"{cls.__name__}-{named(options)}", (cls,), {"__init__": __init__})


def info_of(cls, options):
    """Return the base optimizer's description, of the subclass; with its own kinds of gradients and flags."""
    base = INFOS[BASES[cls]]
    is_base = options["alpha"] == 1
    follows = is_base or options["kind"] in ("integral", "difference")
    return OptimizerInfo(
        subclass(cls, options),
        optim_inputs_func=base.optim_inputs_func,
        optim_error_inputs_func=base.optim_error_inputs_func,
        scheduler_inputs=base.scheduler_inputs,
        supported_impls=tuple(flag for flag in base.supported_impls if follows or flag != "differentiable"),
        not_og_supported_flags=base.not_og_supported_flags,
        supports_sparse=base.supports_sparse and is_base,
        metadata_for_sparse=base.metadata_for_sparse,
        has_capturable_arg=base.has_capturable_arg,
        supports_fused_on=base.supports_fused_on,
    )


DB = {(cls, named(options)): info_of(cls, options) for cls in BASES for options in VARIANTS}
FAST = {(cls, named({"alpha": 0.8, **MEMORIES[0]})) for cls in BASES}
FAST |= {(FractionalAdam, named({"alpha": 0.8, **options})) for options in MEMORIES}


def described(chosen=lambda info: True):
    """Parametrise over the descriptions that are chosen; the fast suite takes each class and each memory once."""
    cases = [
        pytest.param(info, id=info.name, marks=[] if key in FAST else [pytest.mark.slow])
        for key, info in DB.items()
        if chosen(info)
    ]
    return pytest.mark.parametrize("info", cases)


every_info = described()
with_foreach = described(lambda info: "foreach" in info.supported_impls)
with_fused = described(lambda info: "cpu" in info.supports_fused_on)


JUDGE = TestCase()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(info, skip=("differentiable",)):
    """Return every combination of options, and each implementation by itself."""
    return [
        copy.deepcopy(each.kwargs)
        for each in _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info, skip=skip)
    ]


def linear(contiguous=True, dtype=torch.float32):
    """Return a weight and a bias, and a function that makes a closure of an optimizer of theirs."""
    x = torch.randn(5, dtype=dtype)
    if contiguous:
        weight, bias = torch.randn(10, 5, dtype=dtype), torch.randn(10, dtype=dtype)
    else:
        weight, bias = torch.randn(10, 5, 2, dtype=dtype)[..., 0], torch.randn(10, 2, dtype=dtype)[..., 0]
    params = [torch.nn.Parameter(weight), torch.nn.Parameter(bias)]

    def closure_of(optimizer, params=params):
        def closure():
            optimizer.zero_grad()
            loss = (params[0].mv(x) + params[1]).square().sum()
            loss.backward()
            return loss

        return closure

    return params, closure_of


@every_info
def test_errors_of_the_base_optimizer(info):
    for error in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        given = error.optimizer_error_input
        params = [torch.nn.Parameter(torch.randn(1, 1))] if given.params is None else given.params
        if error.error_on is not OptimizerErrorEnum.CONSTRUCTION_ERROR:
            continue  # none of these optimizers has any
        if issubclass(error.error_type, Warning):
            with pytest.warns(error.error_type, match=error.error_regex):
                info.optim_cls(params, **given.kwargs)
        else:
            with pytest.raises(error.error_type, match=error.error_regex):
                info.optim_cls(params, **given.kwargs)


@pytest.mark.parametrize("contiguous", [True, False])
@every_info
def test_it_goes_in_the_right_direction(info, contiguous):
    # Torch's fused kernels go wrong where parameters lie in memory with gaps, and PyTorch does not test them there.
    for options in inputs(info, skip=("differentiable",) if contiguous else ("differentiable", "fused")):
        params, closure_of = linear(contiguous)
        optimizer = info.optim_cls(params, **options)
        closure = closure_of(optimizer)
        first = closure().item()
        for _ in range(20):
            optimizer.step(closure)
        last = closure().item()
        assert last > first if options.get("maximize") else last < first, options


@every_info
def test_it_goes_in_the_right_direction_with_schedulers(info):
    for options, makers in itertools.product(info.optim_inputs_func(device="cpu"), info.scheduler_inputs):
        params, closure_of = linear()
        optimizer = info.optim_cls(params, **copy.deepcopy(options.kwargs))
        schedulers = [make(optimizer) for make in makers]
        closure = closure_of(optimizer)
        first = closure().item()
        for _ in range(20):
            optimizer.step(closure)
            for scheduler in schedulers:
                scheduler.step(*([closure().detach()] if "Plateau" in type(scheduler).__name__ else []))
        last = closure().item()
        assert last > first if options.kwargs.get("maximize") else last < first, options.kwargs


@every_info
def test_complex_parameters_are_pairs_of_real_ones(info):
    for options in inputs(info, skip=("differentiable", "fused")):
        shapes = [((10, 5), torch.complex64), ((10,), torch.complex64), ((10, 5), torch.float32)]
        complex_params = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape, dtype in shapes]
        real_params = [real(p).detach().clone().requires_grad_() for p in complex_params]
        one, other = info.optim_cls(complex_params, **options), info.optim_cls(real_params, **options)
        for _ in range(5):
            for p, q in zip(complex_params, real_params, strict=True):
                p.grad = torch.randn_like(p)
                q.grad = real(p.grad).clone()
            one.step()
            other.step()
        for p, q in zip(complex_params, real_params, strict=True):
            torch.testing.assert_close(real(p), q)


def real(x):
    """Return a complex tensor as a real one, and a real one as it is."""
    return torch.view_as_real(x) if x.is_complex() else x


def both_ways(info, flag, dtype, close):
    """Compare parameters and states of runs with a flag off and on."""
    for each in info.optim_inputs_func(device="cpu", dtype=dtype):
        runs = []
        for value in (False, True):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sigmoid(), torch.nn.Linear(3, 1)).to(dtype)
            empty = torch.empty(0, dtype=dtype, requires_grad=True)
            optimizer = info.optim_cls([*model.parameters(), empty], **{**each.kwargs, flag: value})
            for step in range(14 if dtype.itemsize > 2 else 7):  # as PyTorch: half precision drifts
                optimizer.zero_grad()
                if step != 3:  # a step without any gradient
                    model(torch.linspace(0.1, 0.6, 6, dtype=dtype).reshape(3, 2)).sum().backward()
                    empty.grad = torch.empty_like(empty)
                optimizer.step()
            runs.append((list(model.parameters()), optimizer))
        (params, one), (others, two) = runs
        for p, q in zip(params, others, strict=True):
            close(p, q)
            assert one.state[p].keys() == two.state[q].keys()
            for key, value in one.state[p].items():
                close(value, two.state[q][key])


@with_foreach
def test_foreach_equals_the_loop(info):
    if BASES[info.optim_cls.__mro__[1]] is torch.optim.SGD:
        # with a tensor as learning rate, foreach is for accelerators only
        info = copy.copy(info)
        every = info.optim_inputs_func
        info.optim_inputs_func = lambda **given: [i for i in every(**given) if not torch.is_tensor(i.kwargs.get("lr"))]
    both_ways(info, "foreach", torch.float64, torch.testing.assert_close)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@with_fused
def test_fused_equals_the_loop(info, dtype):
    if dtype.itemsize == 2 and "caputo" in info.name:
        pytest.skip("a power of the last step's length magnifies its rounding")
    eps = torch.finfo(dtype).eps  # the loop rounds after every operation
    given: dict[str, Any] = {"atol": 8 * eps, "rtol": 8 * eps} if dtype.itemsize == 2 else {}
    both_ways(info, "fused", dtype, lambda p, q: torch.testing.assert_close(p, q, **given))


@every_info
def test_parameters_of_several_dtypes_in_one_optimizer(info):
    for options in inputs(info, skip=("differentiable", "fused")):
        dtypes = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        params = [torch.rand(2, 3, dtype=dtype, requires_grad=True) for dtype in dtypes]
        singles = [p.detach().clone().requires_grad_() for p in params]
        whole = info.optim_cls(params, **options)
        parts = [info.optim_cls([p], **options) for p in singles]
        for _ in range(3):
            for p, q in zip(params, singles, strict=True):
                p.grad = torch.rand_like(p)
                q.grad = p.grad.clone()
            whole.step()
            for part in parts:
                part.step()
        assert all(torch.equal(p, q) for p, q in zip(params, singles, strict=True)), options


@every_info
def test_groups_have_options_of_their_own(info):
    for options in inputs(info):
        params, closure_of = linear()
        for group in ({"lr": 1e-2}, {"lr": 0.0}, {"weight_decay": 0.5}):
            if options.get("maximize") and "weight_decay" in group:
                continue
            mine = [torch.nn.Parameter(p.detach().clone()) for p in params]
            optimizer = info.optim_cls([{"params": mine[:1]}, {"params": mine[1:], **group}], **options)
            closure = closure_of(optimizer, mine)
            first = closure().item()
            for _ in range(20):
                optimizer.step(closure)
            last = closure().item()
            assert last > first if options.get("maximize") else last < first, (options, group)
            assert torch.equal(mine[1], params[1]) == (group.get("lr") == 0.0)


@every_info
def test_a_step_without_gradients_changes_nothing(info):
    for options in inputs(info):
        param = torch.randn(2, 3, requires_grad=True)
        old = param.detach().clone()
        optimizer = info.optim_cls([param], **options)
        optimizer.step()
        assert torch.equal(param, old)
        assert not optimizer.state.get(param)


@every_info
def test_gradients_of_zero_are_no_step(info):
    for options in inputs(info):
        param = torch.randn(2, 3, requires_grad=True)
        optimizer = info.optim_cls([param], **{**options, "weight_decay": 0})
        old = param.detach().clone()
        param.grad = torch.zeros_like(param)
        optimizer.step()
        assert torch.equal(param, old)


@with_foreach
@pytest.mark.gpu
def test_foreach_takes_at_most_twice_the_parameters_more(info):
    """What the base optimizer may take for its own lists, and what the average adds to it is kept, not temporary."""
    peaks = []
    for foreach in (False, True):
        params = [torch.rand(2, 2**20, device="cuda", requires_grad=True) for _ in range(4)]
        optimizer = info.optim_cls(params, foreach=foreach)
        for _ in range(3):
            for p in params:
                p.grad = torch.rand_like(p)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            optimizer.step()
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] - peaks[0] <= 2 * 4 * 2**23


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


def same(one, other):
    """Assert that two nested states are equal bit for bit."""
    JUDGE.assertEqual(one, other, rtol=0, atol=0)  # noqa: PT009  it compares what is nested, tensors and text alike


@every_info
def test_older_states_can_be_loaded(info):
    for options in inputs(info):
        params, closure_of = linear()
        optimizer = info.optim_cls(params, **options)
        optimizer.step(closure_of(optimizer))
        state = copy.deepcopy(optimizer.state_dict())
        for group in state["param_groups"]:
            for flag in (*info.not_og_supported_flags, "alpha" if "smoothing" not in group else "kind", "memory"):
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
