"""The operation `history_mix`: its kernels, the manager that is asked at each step, and what is kept."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpfracc_nn.fractional.numba.kernel import unusable
from hpfracc_nn.selection import BackendManager, Kernel, Settings, register, unregister
from hpfracc_nn.training import FractionalAdam, FractionalSGD, directions
from hpfracc_nn.training.torch.optimizers.directions import KINDS, Exponentials, Window
from hpfracc_nn.training.torch.optimizers.mix import Mix, prepared, workload
from tests.optimizer_cases import (
    AVERAGES,
    KERNELS,
    distance,
    every_average,
    every_class,
    every_kernel,
    every_open_kind,
    gradients,
    manager_for,
    named,
    parameters,
    quartic,
    skip_where_refused,
    train,
)


def expected(grad, rows, mix):
    """Return average and rows after a step, in float64."""
    grad, rows = grad.double(), rows.double()
    weights, gains = (torch.tensor(each, dtype=torch.float64) for each in (mix.weights, mix.gains))
    return mix.first * grad + weights @ rows, rows + gains[:, None] * (grad - rows)


MIXES = {
    "ring": Mix(0.5, (0.1, 0.0, 0.3, 0.1), (0.0, 0.0, 1.0, 0.0)),
    "gaps": Mix(0.5, (0.0, 0.2, 0.0, 0.3), (1.0, 0.0, 0.0, 0.0)),
    "exponentials": Mix(0.4, (0.3, -0.2, 0.25, 0.25), (0.7, 0.2, 0.05, 0.01)),
    "nothing before": Mix(1.0, (0.0,), (1.0,)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MIXES)
@every_kernel
def test_every_kernel_computes_the_operation(kernel, name, dtype):
    """Of several sizes at once, also none, and beyond a block; poisoned room is overwritten."""
    skip_where_refused(kernel, dtype)
    mix, generator = MIXES[name], torch.Generator().manual_seed(0)
    sizes = (1, 0, 63, 64, 8193, 150_001)
    kind = getattr(torch, dtype)
    grads = [torch.randn(size, generator=generator, dtype=torch.float64).to(kind) for size in sizes]
    rows = [torch.randn(len(mix.weights), size, generator=generator, dtype=torch.float64).to(kind) for size in sizes]
    answers = [expected(grad, held, mix) for grad, held in zip(grads, rows, strict=True)]
    averages = [torch.full_like(grad, torch.nan) for grad in grads]
    kept = [grad.clone() for grad in grads]
    prepared(manager_for(kernel).site("history_mix", "torch", "test"), grads, rows, averages, mix)()
    eps = torch.finfo(kind).eps
    for average, held, (average_there, held_there) in zip(averages, rows, answers, strict=True):
        # Sums of five products of order 1; up to 5 standard deviations in 150000 values.
        torch.testing.assert_close(average.double(), average_there, rtol=eps, atol=10 * eps)
        torch.testing.assert_close(held.double(), held_there, rtol=2 * eps, atol=10 * eps)
    assert all(torch.equal(one, other) for one, other in zip(grads, kept, strict=True))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@every_kernel
def test_what_weighs_nothing_may_be_infinite(kernel, dtype):
    """In a ring a gradient is left out at random, or lies in room that was not used yet."""
    skip_where_refused(kernel, dtype)
    grad, rows = torch.ones(5, dtype=getattr(torch, dtype)), torch.full((4, 5), torch.inf, dtype=getattr(torch, dtype))
    rows[2:] = 1.0
    for weights, total in (((0.0, 0.0, 0.25, 0.25), 1.0), ((0.0,) * 4, 0.5)):
        average = torch.empty_like(grad)
        site = manager_for(kernel).site("history_mix", "torch", "test")
        prepared(site, [grad], [rows.clone()], [average], Mix(0.5, weights, (1.0, 0.0, 0.0, 0.0)))()
        assert torch.equal(average, torch.full_like(grad, total))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{"differentiable": True}, {"capturable": True}, {}], ids=str)
@pytest.mark.parametrize("memory", [10, "exponentials"])
@every_kernel
def test_autocast_rounds_no_average(kernel, memory, options, dtype):
    skip_where_refused(kernel)
    group = {"alpha": 0.5, "kind": "integral", "memory": memory, **options}
    runs = []
    for is_on in (False, True):
        p, found = torch.zeros(50, dtype=dtype), []
        state: dict = {}
        site = manager_for(kernel).site("history_mix", "torch", "test")
        for count, (grad,) in enumerate(gradients([p], 12)):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_on):
                (direction,) = KINDS["integral"].prepared(group, [p], [grad], [state], site)()
            found.append(direction.clone())
            state["step"] = torch.tensor(count + 1.0)
        runs.append(torch.stack(found))
    assert torch.equal(*runs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("options", [{"kind": "integral"}, {"kind": "difference"}, AVERAGES[-1]], ids=named)
def test_half_precision_rounds_an_average_once(options, capturable, dtype):
    """A constant gradient is its own average; moving averages in half precision would stop short of it."""
    group = {"alpha": 0.3, "memory": 10, "capturable": capturable, **options}
    p, state, wide = torch.zeros(2, 3, dtype=dtype), dict[str, Any](), dict[str, Any]()
    site = BackendManager(Settings(mode="prior", wisdom="off")).site("history_mix", "torch", "test")
    generator = torch.Generator().manual_seed(0)
    for count in range(300):
        grad = torch.full_like(p, 0.7) if count < 200 else torch.randn(2, 3, generator=generator).to(dtype)
        (direction,) = KINDS[group["kind"]].prepared(group, [p], [grad], [state], site)()
        (exact,) = KINDS[group["kind"]].prepared(group, [p.double()], [grad.double()], [wide], site)()
        state["step"] = wide["step"] = torch.tensor(count + 1.0)
        # Half a unit in the last place, and what single precision makes of sums of terms of order 1.
        torch.testing.assert_close(direction.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-5)


@every_average
@every_class
def test_forced_kernels_agree_to_rounding(cls, options):
    runs = []
    for kernel in KERNELS:
        if kernel.refuses(workload([torch.zeros(3)], MIXES["ring"])) is None:
            manager, generator = manager_for(kernel), torch.Generator().manual_seed(0)
            given = {"alpha": 0.7, "manager": manager, "generator": generator, **options}
            before = kernel.calls["run"]
            runs.append(train(cls, 20, lr=0.01, **given))
            assert kernel.calls["run"] == before + 20
    assert len(runs) >= 2
    assert max(distance(runs[0], run) for run in runs) < 1e-12  # 20 steps in float64, divided by roots of squares


@every_average
def test_the_manager_is_asked_once_in_a_step(options):
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    optimizer = FractionalAdam(parameters(), alpha=0.7, manager=manager, **options)
    for step in range(1, 8):
        optimizer.step(quartic(optimizer))
        assert manager.counters()["forward"] == step
    (plan,) = {plan.kernel.name for site in manager.sites() for plan in site.plans()}
    assert plan in {kernel.name for kernel in KERNELS}


def test_each_dtype_and_group_is_a_call_and_alpha_1_is_none():
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    params = [*parameters(), torch.nn.Parameter(torch.randn(3))]
    optimizer = FractionalAdam([{"params": params[:2]}, {"params": params[2:]}], alpha=0.7, manager=manager)
    optimizer.step(quartic(optimizer))
    assert manager.counters()["forward"] == 3  # one and two dtypes
    optimizer.param_groups[1]["alpha"] = 1.0
    optimizer.step(quartic(optimizer))
    assert manager.counters()["forward"] == 4


def test_another_kernel_goes_on_where_one_fails():
    def fails(grads, rows, averages, mix):
        raise RuntimeError("out of order")

    broken = register(Kernel("history_mix", "torch", "torch", "broken", fails, cost=lambda work: KERNELS[0].cost(work)))
    try:
        broken.cost = lambda work: type(KERNELS[0].cost(work))({}, bytes=0.0, launches=0)
        manager = BackendManager(Settings(mode="prior", wisdom="off"))
        plan = manager.plan(workload([torch.zeros(3)], MIXES["ring"]))
        assert plan.kernel is broken
        run = train(FractionalSGD, 12, lr=0.01, alpha=0.5, manager=manager)
    finally:
        unregister(broken)
    assert distance(run, train(FractionalSGD, 12, lr=0.01, alpha=0.5)) < 1e-13


@pytest.mark.skipif(unusable() is not None, reason="Numba compiles nothing here")
def test_threads_share_the_work_of_numba():
    kernel = next(kernel for kernel in KERNELS if kernel.backend == "numba")
    results = []
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            params = parameters(((500, 500), (3,), (70_000,)))
            optimizer = FractionalSGD(params, lr=1.0, alpha=0.5, manager=manager_for(kernel))
            for step in gradients(params, 3):
                for p, grad in zip(params, step, strict=True):
                    p.grad = grad
                optimizer.step()
        finally:
            torch.set_num_threads(before)
        results.append(optimizer)
    assert distance(*results) == 0


MEMORY = {"integral": 10, "difference": 10, "fcgd": 10, "caputo": 1, "integral-exponentials": 5}


@every_open_kind
def test_as_many_copies_of_the_parameters_are_kept_as_documented(options):
    p = torch.nn.Parameter(torch.zeros(1000))
    optimizer = FractionalSGD([p], alpha=0.5, **options)
    for _ in range(20):
        p.grad = torch.ones(1000)
        optimizer.step()
    kept = sum(each.untyped_storage().nbytes() for each in optimizer.state[p].values() if torch.is_tensor(each))
    assert kept == MEMORY[named(options)] * 4000
    optimizer.param_groups[0]["alpha"] = 1.0
    optimizer.step()
    assert optimizer.state[p] == {}


class Allocations(TorchDispatchMode):
    """Counts the bytes of results that are no part of what went in."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {each.untyped_storage().data_ptr() for each in tree_leaves((args, kwargs)) if torch.is_tensor(each)}
        made = func(*args, **(kwargs or {}))
        for each in tree_leaves(made):
            if torch.is_tensor(each) and each.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return made


@every_average
@every_kernel
def test_a_step_needs_no_temporary_room_of_the_parameters_size(kernel, options):
    skip_where_refused(kernel)
    p = torch.nn.Parameter(torch.zeros(1000))
    optimizer = FractionalSGD([p], lr=0.1, alpha=0.5, foreach=False, manager=manager_for(kernel), **options)
    for _ in range(3):
        p.grad = torch.ones(1000)
        with Allocations() as allocations:
            optimizer.step()
    assert allocations.largest < 1000


@every_kernel
def test_a_gradient_that_is_not_finite_leaves_the_window(kernel):
    skip_where_refused(kernel)
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = FractionalSGD([p], lr=0.0, alpha=0.5, memory=4, manager=manager_for(kernel))
    finite = []
    for step in range(10):
        p.grad = torch.full((3,), torch.inf if step == 1 else 1.0)
        optimizer.step()
        finite.append(bool(optimizer.state[p]["direction"].isfinite().all()))
    assert finite == [True, *[False] * 4, *[True] * 5]


def test_a_limit_on_memory_refuses_no_step():
    """The rows and the averages are there: a step takes no memory."""
    manager = BackendManager(Settings(mode="prior", wisdom="off", memory_limit=100))
    train(FractionalAdam, 3, alpha=0.5, manager=manager)
    assert manager.counters()["forward"] == 3


def recorded_run(options, steps, grads, as_tensor):
    """Return the directions where the number of steps is a whole one, a tensor, or changes between them."""
    p = torch.nn.Parameter(torch.zeros(3, 2, dtype=torch.float64))
    group = {"alpha": 0.4, "memory": 10, **options}
    site = BackendManager(Settings(mode="prior", wisdom="off")).site("history_mix", "torch", "test")
    state: dict = {}
    found = []
    for count in range(steps):
        group["capturable"] = as_tensor(count)
        (direction,) = KINDS[group["kind"]].prepared(group, [p], [grads[count]], [state], site)()
        found.append(direction.clone())
        state["step"] = torch.tensor(count + 1.0)  # by the base optimizer
    return torch.stack(found)


@pytest.mark.parametrize("options", [{"kind": "integral"}, {"kind": "difference"}, AVERAGES[-1]], ids=named)
@pytest.mark.parametrize("as_tensor", [lambda n: True, lambda n: n > 5, lambda n: n < 5], ids=["all", "late", "early"])
def test_capturable_groups_count_by_the_base_optimizers_step(options, as_tensor):
    grads = [grad for (grad,) in gradients([torch.zeros(3, 2, dtype=torch.float64)], 25)]
    runs = [recorded_run(options, 25, grads, counted) for counted in (as_tensor, lambda n: False)]
    torch.testing.assert_close(*runs, rtol=0, atol=1e-14)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{"kind": "integral"}, AVERAGES[-1]], ids=named)
def test_a_cuda_graph_replays_the_step(options):
    runs = []
    for is_captured in (False, True):
        p = torch.nn.Parameter(torch.zeros(50, device="cuda"))
        p.grad = torch.zeros(50, device="cuda")
        optimizer = FractionalAdam([p], lr=0.1, alpha=0.5, capturable=True, **options)
        generator = torch.Generator().manual_seed(0)
        graph = None
        for step in range(25):
            p.grad.copy_(torch.randn(50, generator=generator))
            if is_captured and step == 3:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    optimizer.step()
            graph.replay() if graph else optimizer.step()
        runs.append(p.detach().clone())
    torch.testing.assert_close(*runs)


RECORDED = {
    "two": Window(2, directions.integral, is_normalised=True),
    "ten": Window(10, directions.integral, is_normalised=True),
    "difference": Window(5, directions.difference, is_normalised=False),
    "exponentials": Exponentials(),
}


@pytest.mark.parametrize("memory", RECORDED.values(), ids=RECORDED)
def test_what_a_graph_replays_is_what_python_computes(memory):
    """The number of gradients as a tensor, in place of a whole number: the same averages and rows."""
    rows = torch.zeros(memory.rows, 7, dtype=torch.float64)
    others = rows.clone()
    stored = torch.zeros(())
    for count, (grad,) in enumerate(gradients([torch.zeros(7, dtype=torch.float64)], 25)):
        mix = memory.mix(0.4, count, None)
        average, others = expected(grad, others, mix)
        torch.testing.assert_close(memory.recorded(0.4, stored, grad, rows), average, rtol=0, atol=1e-14)
        torch.testing.assert_close(rows, others, rtol=0, atol=1e-14)
        stored += 1
