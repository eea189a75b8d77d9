"""What the choice goes by: time, memory, weights of both; and how much memory a call may take."""

import time
from dataclasses import replace

import pytest

from hpfracc_nn.selection import Cost, memory
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering

MIB = 1 << 20


@pytest.fixture(autouse=True)
def torch_probe(monkeypatch):
    monkeypatch.setitem(_probes, "torch", FakeProbe())


@pytest.fixture
def add():
    with registering() as add_kernels:
        yield add_kernels


def kernel(name, seconds, workspace, saves=lambda w: 0.0):
    """Return a kernel of so many seconds; `workspace` and `saves` are functions of the workload."""
    made = fake(name)
    made.cost = lambda w: Cost({"matmul": 1e9 * seconds}, 0, 0, workspace=workspace(w))
    made.saves = saves
    return made


def three():
    """Result 1600 bytes: fast takes four times as much in all, middle twice, slow nothing else."""
    return (
        kernel("torch/fft", 1e-3, lambda w: 3 * w.bytes),
        kernel("torch/dense", 3e-3, lambda w: w.bytes),
        kernel("numba/fft", 16e-3, lambda w: 0.0),
    )


def live(manager, seconds, workload=WORK, calls=400):
    """Return how often each kernel was picked for calls that take seconds[kernel]."""
    site = manager.shared_site(workload.op, workload.framework, "layer")
    for _ in range(calls):
        plan = site.pick(workload, lambda: workload)
        if plan.due():
            manager.record(plan, seconds[plan.kernel.name])
    return manager.counters()["picks"]


# Objectives


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        ("latency", "torch/fft"),
        ("memory", "numba/fft"),
        ({"latency": 1, "memory": 0.5}, "torch/fft"),  # half the bytes for 3 times the time: 2**0.5 < 3
        ({"latency": 1, "memory": 1.7}, "torch/dense"),  # 3 < 2**1.7, 4**1.7 < 16
        ({"latency": 1, "memory": 2.5}, "numba/fft"),  # 16 < 4**2.5, 16/3 < 2**2.5
        ({"memory": 3}, "numba/fft"),
    ],
)
@pytest.mark.parametrize("mode", ["prior", "learn", "frozen"])
def test_the_objective_decides(add, objective, expected, mode):
    add(*three())
    assert fake_manager(objective=objective, mode=mode).plan(WORK).kernel.name == expected


def test_what_is_saved_for_the_backward_pass_counts_as_memory(add):
    add(
        kernel("torch/fft", 1e-3, lambda w: 0.0, saves=lambda w: 2.0 * w.bytes * w.needs_gradient),
        kernel("torch/dense", 2e-3, lambda w: float(w.bytes)),
    )
    manager = fake_manager(objective="memory")
    assert manager.plan(WORK).algorithm == "fft"
    assert manager.plan(replace(WORK, needs_gradient=True)).algorithm == "dense"


def test_of_kernels_that_take_as_little_the_fastest_is_learnt(add):
    add(
        kernel("torch/fft", 1e-3, lambda w: 3 * w.bytes),
        kernel("torch/dense", 2e-3, lambda w: 0.0),
        kernel("numba/fft", 3e-3, lambda w: 0.0),
    )
    manager = fake_manager(objective="memory", mode="learn", explore_fraction=0.5)
    picks = live(manager, {"torch/dense": 4e-3, "numba/fft": 1e-3})  # the estimates had it the other way round
    assert "torch/fft" not in picks
    assert picks["numba/fft"] > picks["torch/dense"]


def test_weighted_choices_are_learnt_and_what_is_told_stays_in_seconds(add):
    add(*three())
    manager = fake_manager(objective={"latency": 1, "memory": 1.7}, mode="learn", explore_fraction=0.5)
    seconds = {"torch/fft": 1e-3, "torch/dense": 20e-3, "numba/fft": 2e-3}
    picks = live(manager, seconds)
    assert max(picks, key=picks.get) == "numba/fft"  # 2 < 4**1.7 * 1, and it takes least
    found = manager.predict(WORK)
    for name, times in picks.items():
        if found[name].samples:
            assert found[name].seconds == pytest.approx(seconds[name]), times
    assert manager.plan(WORK).seconds == pytest.approx(2e-3)


def test_weighted_learning_is_saved_in_seconds(add, tmp_path):
    add(*three())
    seconds = {"torch/fft": 2e-3, "torch/dense": 2e-3, "numba/fft": 2e-3}
    first = fake_manager(objective={"latency": 1, "memory": 1.7}, mode="learn", wisdom=str(tmp_path))
    live(first, seconds)
    assert first.save()
    second = fake_manager(mode="learn", wisdom=str(tmp_path))
    measured = {name: each for name, each in second.predict(WORK).items() if each.samples}
    assert measured
    assert all(each.seconds == pytest.approx(2e-3) for each in measured.values())


def test_another_objective_changes_the_plan_from_the_next_call(add):
    add(*three())
    manager = fake_manager(mode="learn")
    live(manager, {"torch/fft": 1e-3, "torch/dense": 3e-3, "numba/fft": 16e-3}, calls=20)
    site = manager.shared_site("test_op", "torch", "layer")
    assert site.pick(WORK, lambda: WORK).algorithm == "fft"
    manager.configure(objective="memory")
    assert site.pick(WORK, lambda: WORK).kernel.name == "numba/fft"


# Memory


BIG = replace(WORK, rows=64, n=4096)  # 1 MiB


def free_is(monkeypatch, amount):
    """Let so many bytes be free, and return the list of questions."""
    asked = []

    def free(*place):
        asked.append(place)
        return amount

    monkeypatch.setattr(memory, "free", free)
    return asked


def test_a_kernel_that_takes_more_than_a_call_may_is_refused_with_the_figures(add, monkeypatch):
    free_is(monkeypatch, 100 * MIB)
    add(*three())
    manager = fake_manager(memory_limit=3 * MIB)
    assert manager.plan(BIG).algorithm == "dense"
    assert "torch/fft " in manager.explain(BIG)
    assert "refused: it takes 4 MiB of memory, and a call may take 3 MiB (memory_limit)" in manager.explain(BIG)
    assert set(manager.predict(BIG)) == {"torch/dense", "numba/fft"}


def test_without_a_setting_a_call_may_take_four_fifths_of_what_is_free(add, monkeypatch):
    free_is(monkeypatch, 5 * MIB)
    add(*three())
    assert fake_manager().plan(BIG).algorithm == "fft"  # exactly 4 MiB
    free_is(monkeypatch, 4 * MIB)
    assert fake_manager().plan(BIG).algorithm == "dense"


@pytest.mark.parametrize("limit", [MIB // 2, MIB // 4, 100_000, 16_384])
def test_where_all_refuse_for_memory_only_each_takes_as_many_rows_as_fit(add, monkeypatch, limit):
    free_is(monkeypatch, 100 * MIB)
    add(*three())
    plan = fake_manager(memory_limit=limit).plan(BIG)
    verdicts = {each.kernel.name: each for each in fake_manager(memory_limit=limit).planner.candidates.fitting(BIG)}
    for name, each in verdicts.items():
        times = {"torch/fft": 4, "torch/dense": 2, "numba/fft": 1}[name]
        row = times * 4 * BIG.n
        if row > limit:
            assert each.refusal is not None
        else:
            assert each.rows is not None
            assert each.rows * row <= limit
            count = -(-64 // each.rows)
            assert count == -(-64 // (limit // row))  # as few parts as possible
            assert each.seconds == pytest.approx(count * {4: 1e-3, 2: 3e-3, 1: 16e-3}[times])
    assert plan.chunk == verdicts[plan.kernel.name].rows


def test_a_part_has_every_channel(add, monkeypatch):
    free_is(monkeypatch, 100 * MIB)
    add(kernel("torch/fft", 1e-3, lambda w: 0.0))
    work = replace(BIG, channels=8)
    plan = fake_manager(memory_limit=20 * 4 * BIG.n).plan(work)  # twenty rows
    assert plan.chunk == 16


def test_a_fixed_workspace_is_not_cut(add, monkeypatch):
    free_is(monkeypatch, 100 * MIB)
    add(kernel("torch/dense", 1e-3, lambda w: 256 * 1024.0))
    assert fake_manager(memory_limit=512 * 1024).plan(BIG).chunk == 16  # 256 KiB are left for rows of 16 KiB
    with pytest.raises(
        LookupError, match=r"it takes 1\.25 MiB of memory, and a call may take 257 KiB \(memory_limit\)"
    ):
        fake_manager(memory_limit=257 * 1024).plan(BIG)


def test_a_limit_of_a_gpu_is_named_where_it_refuses(add, monkeypatch):
    free_is(monkeypatch, 100 * MIB)
    add(kernel("torch/dense", 1e-3, lambda w: 256 * 1024.0))
    with pytest.raises(LookupError, match=r"a call may take 1 KiB \(gpu_memory_limit\); change what a refusal names"):
        fake_manager(gpu_memory_limit=1024).plan(replace(BIG, device="cuda:0"))


def test_one_row_at_a_time_is_said_of_one(add, monkeypatch):
    free_is(monkeypatch, 100 * MIB)
    add(kernel("torch/fft", 1e-3, lambda w: 0.0))
    assert fake_manager(memory_limit=4 * BIG.n).explain(BIG).endswith("; 1 row at a time")
    assert fake_manager(memory_limit=8 * BIG.n).explain(BIG).endswith("; 2 rows at a time")


def test_a_result_that_is_larger_than_what_is_free_is_refused_at_once(add, monkeypatch):
    free_is(monkeypatch, MIB - 1)
    add(kernel("torch/fft", 1e-3, lambda w: 0.0))
    with pytest.raises(LookupError, match=r"torch/fft: the result takes 1 MiB, and 1\.02e\+03 KiB are free"):
        fake_manager().plan(BIG)


def test_what_is_free_is_asked_once_for_small_workloads_and_seldom_for_large_ones(add, monkeypatch):
    asked = free_is(monkeypatch, 64 * MIB)
    add(kernel("torch/fft", 1e-3, lambda w: 0.0))
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    manager = fake_manager()
    for n in range(1, 2000):
        clock[0] += 1.0
        manager.predict(replace(WORK, n=n))
    assert asked == [("torch", "cpu")]
    large = replace(WORK, rows=2000, n=4096)
    for _ in range(1000):
        manager.predict(large)
    assert len(asked) == pytest.approx(1000 / 256, abs=2)
    clock[0] += 2.0
    before = len(asked)
    manager.predict(large)
    assert len(asked) == before + 1


def test_deterministic_plans_go_by_a_limit_in_bytes_and_not_by_what_is_free(add, monkeypatch):
    asked = free_is(monkeypatch, 1)
    add(*three())
    assert fake_manager(deterministic=True).plan(BIG).algorithm == "fft"
    assert fake_manager(deterministic=True, memory_limit=3 * MIB).plan(BIG).algorithm == "dense"
    assert not asked


def test_a_plan_that_learns_follows_the_memory_that_there_is(add, monkeypatch):
    free_is(monkeypatch, 10 * MIB)
    add(kernel("torch/fft", 1e-3, lambda w: 0.0))
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    manager = fake_manager(mode="learn")
    live(manager, {"torch/fft": 1e-3}, BIG, calls=4)
    site = manager.shared_site("test_op", "torch", "layer")
    assert site.pick(BIG, lambda: BIG).chunk is None
    free_is(monkeypatch, MIB)  # four fifths of it are 51 rows
    clock[0] = 10.0
    live(manager, {"torch/fft": 1e-3}, BIG, calls=600)
    assert site.pick(BIG, lambda: BIG).chunk == 32
