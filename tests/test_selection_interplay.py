"""Kernels that fail while memory is limited or the objective is not time: each rule holds beside the others."""

import math

import pytest

from hpfracc_nn.selection import Compilation, Cost
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering

FAST, MIDDLE, LEAN = "torch/fft", "torch/dense", "numba/fft"
# The result takes 1600 bytes; so much is what the whole call takes.
NEEDS = {FAST: 6400, MIDDLE: 3200, LEAN: 1600}
SECONDS = {FAST: 1e-3, MIDDLE: 3e-3, LEAN: 16e-3}


@pytest.fixture(autouse=True)
def torch_probe(monkeypatch):
    monkeypatch.setitem(_probes, "torch", FakeProbe())


@pytest.fixture(autouse=True)
def three():
    found = {name: fake(name) for name in NEEDS}
    with registering() as add:
        for name, need in NEEDS.items():
            made = found[name]
            made.cost = lambda w, name=name, need=need: Cost(
                {"matmul": 1e9 * SECONDS[name] * w.rows / 4}, 0, 0, workspace=(need / 1600 - 1) * w.bytes
            )
            add(made)
        yield found


def failing(manager, error=RuntimeError):
    """Let the kernel that is chosen fail once; return its name and that of the kernel that runs in its place."""
    site = manager.shared_site("test_op", "torch", "run")
    plan = site.pick(WORK, lambda: WORK)
    manager.recorder.failed(plan, error(), "forward")
    found = site.stand_in(plan, {plan.kernel.name}, "forward")
    manager.recorder.quarantine(plan, error())
    return plan.kernel.name, found.kernel.name


def test_a_kernel_that_takes_too_much_memory_is_not_called_a_failure():
    manager = fake_manager(memory_limit=4000)
    plan = manager.plan(WORK)
    assert (plan.kernel.name, plan.reason, plan.provisional) == (MIDDLE, "prior", False)
    assert failing(manager) == (MIDDLE, LEAN)
    plan = manager.plan(WORK)
    assert (plan.kernel.name, plan.reason, plan.provisional) == (LEAN, "fallback", True)
    text = manager.explain(WORK)
    assert "chosen, fallback: a better one is left alone after it failed" in text
    assert "quarantined" in text
    assert "of memory" in text


@pytest.mark.parametrize("mode", ["prior", "learn"])
def test_what_runs_in_place_of_a_failed_kernel_goes_by_the_objective(mode):
    assert failing(fake_manager(objective="memory", mode=mode)) == (LEAN, MIDDLE)
    assert failing(fake_manager(objective="latency", mode=mode)) == (FAST, MIDDLE)
    # 16 < 4**2.5 and 16 / 3 < 2**2.5, then 3 < 2**2.5
    assert failing(fake_manager(objective={"latency": 1, "memory": 2.5}, mode=mode)) == (LEAN, MIDDLE)
    # 3 < 2**1.7 and 3 * 2**1.7 < 16, then 4**1.7 < 16
    assert failing(fake_manager(objective={"latency": 1, "memory": 1.7}, mode=mode)) == (MIDDLE, FAST)


def test_what_runs_in_place_of_a_failed_kernel_takes_as_many_rows_as_fit():
    manager = fake_manager(memory_limit=1500)
    site = manager.site("test_op", "torch")
    plan = site.pick(WORK, lambda: WORK)
    assert (plan.kernel.name, plan.chunk) == (MIDDLE, 1)  # 800 bytes each; the fast one takes 1600
    stand_in = site.stand_in(plan, {MIDDLE}, "forward")
    assert (stand_in.kernel.name, stand_in.chunk) == (LEAN, 2)  # 400 bytes each, and parts of equal size


def test_a_failure_has_no_speed_and_gives_no_advice():
    manager = fake_manager()
    failing(manager)
    (failure,) = manager.history()
    assert (failure.succeeded, failure.error) == (False, "RuntimeError")
    assert math.isnan(failure.execute_seconds)
    assert math.isnan(failure.throughput)
    assert manager.recommend() == []


def test_a_plan_can_be_made_for_a_kernel_that_refuses_since_it_was_decided_upon():
    manager = fake_manager(memory_limit=4000)
    plan = manager.planner._plan_of(FAST, "measured", manager.planner.candidates.fitting(WORK), WORK)
    assert (plan.kernel.name, plan.seconds) == (FAST, pytest.approx(SECONDS[FAST]))
    assert [name for name, _ in plan.alternatives] == [MIDDLE, LEAN]


def test_a_kernel_is_not_the_only_one_because_the_others_are_left_alone_for_a_while():
    manager, now = fake_manager(mode="learn"), [0.0]
    manager.planner.candidates.clock = lambda: now[0]
    for name in (MIDDLE, LEAN):
        manager.recorder.quarantine(manager.plan_with(name, "prior", WORK), RuntimeError())
    site, found = manager.site("test_op", "torch"), []
    for now[0] in (1.0, 61.0):
        site.reconsider()
        plan = site.pick(WORK, lambda: WORK)
        found.append((plan.kernel.name, plan.reason, len(plan.alternatives)))
    assert found == [(FAST, "prior", 0), (FAST, "prior", 2)]


@pytest.mark.parametrize("settings", [{"objective": "memory"}, {}], ids=["memory", "latency"])
def test_a_kernel_that_alone_comes_into_question_is_not_the_only_one_where_others_accept(three, settings):
    manager = fake_manager(mode="learn", **settings)
    if not settings:  # the others would have to start something that is not started unasked
        for name in (MIDDLE, LEAN):
            three[name].compiles = lambda w: Compilation(math.inf, "code")
    site = manager.site("test_op", "torch")
    for _ in range(20):
        plan = site.pick(WORK, lambda: WORK)
        if plan.due():
            manager.record(plan, 1e-3)
    assert {row.reason for row in manager.report()} == {"measured"}
    assert "chosen, measured: best by live calls" in manager.explain(WORK)


def test_where_the_others_refuse_a_kernel_is_the_only_one_however_much_was_measured():
    manager = fake_manager(mode="learn", disabled=frozenset({MIDDLE, LEAN}))
    site = manager.site("test_op", "torch")
    for _ in range(20):
        plan = site.pick(WORK, lambda: WORK)
        if plan.due():
            manager.record(plan, 1e-3)
    assert {row.reason for row in manager.report()} == {"only"}
