"""What PyTorch tests of every optimizer's steps, run on the fractional ones with every option of their bases.

Those that need an accelerator are marked `gpu`.
"""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_optimizers import OptimizerErrorEnum

from tests.optimizer_cases import BASES, every_class, parameters, parameters_of, train
from tests.optimizer_infos import INFOS, every_info, inputs, linear, with_foreach, with_fused


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
@every_class
def test_at_alpha_1_it_is_the_base_optimizer_bit_for_bit(cls, dtype):
    """After 50 steps: parameters, state and saved options."""
    for options in inputs(INFOS[BASES[cls]], skip=()):
        learns = not options.get("differentiable")  # then torch changes no leaf that requires a gradient
        start = [torch.nn.Parameter(p.detach().to(dtype), requires_grad=learns) for p in parameters()]
        ours = train(cls, 50, copy.deepcopy(start), **options)
        theirs = train(BASES[cls], 50, copy.deepcopy(start), **options)
        for p, q in zip(parameters_of(ours), parameters_of(theirs), strict=True):
            assert torch.equal(p, q), options
            torch.testing.assert_close(dict(ours.state[p]), dict(theirs.state[q]), rtol=0, atol=0)


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


@pytest.mark.slow
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
@pytest.mark.slow
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
@pytest.mark.slow
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
def test_a_learning_rate_may_be_a_tensor(info):
    for options in inputs(info, skip=("differentiable", "foreach", "fused")):
        params, closure_of = linear(dtype=torch.float64)
        runs = []
        for rate in (0.015625, torch.tensor(0.015625, dtype=torch.float64)):
            copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
            optimizer = info.optim_cls(copies, **{**options, "lr": rate, "foreach": False})
            for _ in range(5):
                optimizer.step(closure_of(optimizer, copies))
            runs.append(copies)
        for p, q in zip(*runs, strict=True):
            torch.testing.assert_close(p, q)


@every_info
def test_it_can_be_printed(info):
    for options in inputs(info):
        text = repr(info.optim_cls(linear()[0], **options))
        assert f"alpha: {info.optim_cls(linear()[0]).param_groups[0]['alpha']}" in text


@every_info
def test_another_default_dtype_changes_nothing_but_that_of_the_step(info):
    params, closure_of = linear(dtype=torch.float64)
    runs = []
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
            optimizer = info.optim_cls(copies)
            for _ in range(12):
                optimizer.step(closure_of(optimizer, copies))
        finally:
            torch.set_default_dtype(torch.float32)
        runs.append(copies)
    for p, q in zip(*runs, strict=True):
        assert torch.equal(p, q)
