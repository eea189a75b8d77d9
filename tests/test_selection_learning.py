"""A site that learns from made-up times: what it ends with, what that costs, and what it keeps."""

import gc
import logging
import math
import re
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from filelock import FileLock

from hpfracc_nn.selection import (
    BackendManager,
    Compilation,
    Machine,
    Rates,
    Settings,
    Timing,
    Wisdom,
    WisdomFile,
    lifecycle,
    register,
    unregister,
)
from hpfracc_nn.selection.learning import learner as learning_module
from hpfracc_nn.selection.learning import model
from hpfracc_nn.selection.learning.policy import APART
from hpfracc_nn.selection.learning.wisdom_file import LOCK_SECONDS, Outbox
from hpfracc_nn.selection.plan import LOOKED_AFTER, Samples
from hpfracc_nn.selection.planner import Planner
from hpfracc_nn.selection.registry import _probes
from hpfracc_nn.selection.workload import Key, key_of
from tests.selection_kernels import RATES, WORK, FakeProbe, fake, fake_manager, registering

WORK = replace(WORK, needs_gradient=True)
# The estimate says fft, and is wrong: forward and backward take these seconds each.
FFT, DENSE, JIT = "torch/fft", "torch/dense", "numba/dense"
ESTIMATES = {FFT: 1e-4, DENSE: 1.5e-4}
TIMES = {FFT: 3e-4, DENSE: 1.2e-4, JIT: 1e-5}
CLOSE = {FFT: 1.1e-4, DENSE: 0.8e-4}  # so near to the estimates that only a trial can tell


class Flagged(FakeProbe):
    is_deterministic = False

    def deterministic(self):
        return self.is_deterministic


@pytest.fixture(autouse=True)
def probe(monkeypatch):
    made = Flagged()
    monkeypatch.setitem(_probes, "torch", made)
    return made


@pytest.fixture(autouse=True)
def add():
    with registering() as add_kernels:
        for name, seconds in ESTIMATES.items():
            add_kernels(estimated(name, seconds))
        yield add_kernels


def estimated(name, seconds, **given):
    """A kernel that is estimated at so many seconds each way."""
    return fake(name, lambda w: (1 + w.needs_gradient) * seconds * 1e9, launches=0, **given)


def learning(**settings):
    return fake_manager(mode="learn", **settings)


def call(site, times=TIMES, work=WORK, backward=True, fails=False):
    """One live call, as the product makes it; return its plan and whether it was timed."""
    plan = site.pick(work, lambda: work)
    timed = plan.due()
    if fails and plan.reason == "explore":
        raise KeyboardInterrupt
    if timed:
        site.manager.record(plan, times[plan.kernel.name])
    if backward:
        site.again(plan)
        if plan.due("backward"):
            site.manager.record(plan, times[plan.kernel.name], "backward")
    return plan, timed


def calls(site, count, **given):
    """Return kernel, reason and whether it was timed, of each call."""
    found = []
    for _ in range(count):
        plan, timed = call(site, **given)
        found.append((plan.kernel.name, plan.reason, timed))
    return found


def learnt(**settings):
    """A manager that knows better, and its site."""
    manager = learning(**settings)
    site = manager.site("test_op", "torch")
    calls(site, 300)
    return manager, site


def test_a_site_begins_with_the_estimate_and_ends_with_what_measured_best():
    site = learning().site("test_op", "torch")
    found = calls(site, 300)
    assert found[0] == (FFT, "prior", True)
    assert found[-1][:2] == (DENSE, "measured")
    assert sum(name == FFT for name, _, _ in found) < 20


def test_a_trial_runs_once_and_is_timed():
    site = learning().site("test_op", "torch")
    last, trials = None, 0
    for _ in range(300):
        plan, timed = call(site, times=CLOSE)
        if plan.reason == "explore":
            trials += 1
            assert timed
            assert site.plans()[0] is not plan  # the incumbent stays, and is asked at the next call
            assert site.plans()[0].usage.left == 1
        last = plan
    assert 1 <= trials <= 10
    assert site.plans()[0] is last
    assert last.kernel.name == DENSE


def test_the_first_call_of_a_site_may_be_a_trial_and_its_next_one_runs_what_is_believed_to_be_best():
    manager = learning()
    for _ in range(100):  # until the budget allows a trial
        site = manager.site("test_op", "torch")
        plan, timed = call(site, times=CLOSE)
        (present,) = site.in_use()
        if plan.reason == "explore":
            break
        assert (present, plan.forwards) == (plan, 1)
    assert (plan.kernel.name, plan.forwards, plan.trials, timed) == (DENSE, 1, 1, True)
    assert (present.kernel.name, present.forwards, present.usage.left) == (FFT, 0, 1)
    assert call(site, times=CLOSE)[0].reason != "prior"
    assert sum(each.forwards for each in site.plans()) == 2


def test_a_traced_call_is_never_a_trial_and_follows_what_was_measured():
    manager = learning()
    site = manager.site("test_op", "torch")
    picked = [site.pick_traced("key", lambda: WORK) for _ in range(600)]
    assert {(plan.kernel.name, plan.reason) for plan in picked} == {(FFT, "prior")}
    assert picked[-1].forwards == 600
    for name, seconds in TIMES.items():
        if name != JIT:
            plan = manager.plan_with(name, "measured", WORK)
            for _ in range(8):
                manager.record(plan, seconds)
                manager.record(plan, seconds, "backward")
    manager.reconsider()
    plan = site.pick_traced("key", lambda: WORK)
    assert (plan.kernel.name, plan.reason, plan.switches, plan.forwards) == (DENSE, "measured", 1, 1)


def test_what_trials_lose_stays_within_their_budget():
    manager = learning()
    calls(manager.site("test_op", "torch"), 5000, times=CLOSE)
    budget, picks = manager.learner.policy.budget, manager.counters()["picks"]
    assert 0 < budget.explored <= budget.fraction * budget.total + budget.allowance
    # What the policy believes was spent is what was, two passes of each call, less those since its last decision.
    spent = sum(2 * CLOSE[name] * count for name, count in picks.items())
    assert spent - 256 * 2 * CLOSE[DENSE] <= 1.01 * budget.total <= 1.02 * spent


def test_short_calls_are_decided_on_seldom_however_odd_their_times(monkeypatch):
    site = learning().site("test_op", "torch")
    odd = [dict.fromkeys(TIMES, seconds) for seconds in (1e-4, 3e-4)]

    def decisions(count):
        return sum(call(site, times=odd[number // 7 % 2])[1] for number in range(count))

    assert decisions(5000) > 2 * (5000 / learning_module.SELDOM + 30)
    monkeypatch.setattr(learning_module, "FREE", 0.0)
    monkeypatch.setattr(learning_module, "COST", 1e-9)  # no call is long enough
    assert decisions(5000) < 5000 / learning_module.SELDOM + 30


def test_the_time_in_which_a_decision_is_interrupted_is_not_what_it_costs(monkeypatch):
    manager, started = learning(), time.perf_counter()
    decide = manager.learner.policy.decide

    def interrupted(*given):
        time.sleep(0.02)
        return decide(*given)

    monkeypatch.setattr(manager.learner.policy, "decide", interrupted)
    calls(manager.site("test_op", "torch"), 40)
    assert manager.overhead() < (time.perf_counter() - started) / 4


def test_switching_keeps_counters_and_report_consistent():
    manager = learning()
    site = manager.site("test_op", "torch", "layer")
    found = [name for name, _, _ in calls(site, 500)]
    counted = manager.counters()
    assert counted == {
        "forward": 500,
        "backward": 500,
        "picks": {name: found.count(name) for name in set(found)},
    }
    rows = {f"{row.backend}/{row.algorithm}": row for row in manager.report()}
    assert {name: row.forwards for name, row in rows.items()} == counted["picks"]
    assert all(row.forwards == row.backwards for row in rows.values())
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    assert rows[DENSE].forward_ms == pytest.approx(0.12)
    # The report predicts what is believed now, not what was estimated at first.
    assert rows[DENSE].predicted_ms == pytest.approx(0.24, rel=0.1)
    assert rows[DENSE].speed_up == pytest.approx(3e-4 / 1.2e-4, rel=0.3)


def test_code_is_bought_only_after_it_would_have_paid(add):
    jit, price = estimated(JIT, 1e-5), 0.05
    compiled: list[str] = []
    jit.compiles = lambda w: None if compiled else Compilation(price, "jit")
    add(jit)
    site = learning().site("test_op", "torch")
    spent, number = 0.0, 0
    while not compiled:
        number += 1
        plan, timed = call(site)
        if plan.kernel.name == JIT:
            compiled.append("now")
            assert (plan.reason, timed) == ("explore", True)
        else:
            spent += 2 * TIMES[plan.kernel.name]
        assert number < 10_000
    # It can have saved no more than all time there was, that until it would be asked again included.
    assert price <= spent + APART
    assert spent <= 3 * price
    calls(site, 300)
    assert call(site)[0].kernel.name == JIT


def test_code_that_must_not_start_unasked_is_never_tried(add):
    jit = estimated(JIT, 1e-7)
    jit.compiles = lambda w: Compilation(math.inf, "jit")
    add(jit)
    site = learning().site("test_op", "torch")
    assert JIT not in {name for name, _, _ in calls(site, 3000)}


def test_compiled_code_makes_every_site_ask_again(add):
    jit = estimated(JIT, 1e-5)
    compiled: list[str] = []
    jit.compiles = lambda w: None if compiled else Compilation(0.05, "jit")
    add(jit)
    manager = learning()
    first, second = (manager.site("test_op", "torch") for _ in range(2))
    other = replace(WORK, n=200)
    calls(second, 300, work=other)
    assert second.plans()[0].usage.left > 1
    while not compiled:
        if call(first)[0].kernel.name == JIT:
            compiled.append("now")
    assert second.plans()[0].usage.left == 1


def test_where_a_site_asks_anew_it_goes_on_with_what_was_decided():
    manager, site = learnt()
    assert {name for name, _, _ in calls(site, 20)} == {DENSE}  # not tried again so soon
    key, work = next(iter(site._plans)), WORK
    manager.planner.kernels_changed()
    plan = site.pick_backward(key, lambda: work)  # which shows the plan, and decides nothing
    assert (plan.kernel.name, plan.reason) == (DENSE, "measured")
    other = manager.site("test_op", "torch").pick_backward(key, lambda: work)
    assert (other.kernel.name, other.reason) == (DENSE, "measured")


def test_a_kernel_that_waits_for_others_at_every_call_is_learnt_of():
    # Its thread has the processor for next to none of the time, as if it was taken away.
    manager = learning()
    site = manager.site("test_op", "torch")
    for _ in range(300):
        plan = site.pick(0, lambda: WORK)
        site.again(plan)
        for direction in ("forward", "backward"):
            if plan.due(direction):
                manager.record(plan, TIMES[plan.kernel.name], direction, keep=plan.kernel.name != FFT)
    assert site.plans()[0].kernel.name == DENSE


def test_a_time_without_the_processor_says_nothing_unless_all_do():
    samples = Samples()
    assert [samples.keeps(keep) for keep in (True, False, False, False, True, False, False, False, False, False)] == [
        True, False, False, False, True, False, False, False, True, True
    ]  # fmt: skip


def test_in_two_operations_a_trial_runs_both_passes():
    # A compiled graph asks twice by the same key, and hands nothing from one pass to the other.
    manager = learning()
    site = manager.site("test_op", "torch")
    tried = 0
    for _ in range(300):
        first = site.pick(0, lambda: WORK)
        second = site.pick_backward(0, lambda: WORK)
        assert second is first
        tried += first.reason == "explore"
        for plan, direction in ((first, "forward"), (second, "backward")):
            if plan.due(direction):
                manager.record(plan, CLOSE[plan.kernel.name], direction)
    assert tried
    assert site.plans()[0].kernel.name == DENSE
    assert site.pick_backward(0, lambda: WORK) is site.plans()[0]  # also where it comes twice


def test_a_change_of_level_makes_every_site_ask_again():
    manager = learning()
    site, other = (manager.site("test_op", "torch") for _ in range(2))
    one_way = replace(WORK, needs_gradient=False)
    alone: dict[str, Any] = {"work": one_way, "backward": False}
    calls(site, 300, **alone)
    calls(other, 300, work=replace(one_way, n=200), backward=False)
    assert other.plans()[0].usage.left > 1
    slower = {FFT: 3e-4, DENSE: 1e-3}
    for _ in range(1000):
        call(site, times=slower, **alone)
        if other.plans()[0].usage.left == 1:
            break
    assert other.plans()[0].usage.left == 1
    calls(site, 300, times=slower, **alone)
    assert call(site, times=slower, **alone)[0].kernel.name == FFT


def test_asking_again_counts_at_least_one_call():
    _, site = learnt()
    plan = site.plans()[0]
    plan.usage.left, plan.usage.period = 100, 50  # as after a race of threads
    site.reconsider()
    assert (plan.usage.left, plan.usage.period) == (1, 1)
    assert call(site)[0].kernel.name == DENSE


@pytest.mark.parametrize(
    "change", [{"switch_margin": 0.2}, {"explore_fraction": 0.0}, {"memory_limit": "1GiB"}, {"sample": False}]
)
def test_settings_change_without_forgetting(change):
    manager, site = learnt()
    spent = manager.learner.policy.budget.total
    manager.configure(**change)
    plan, _ = call(site)
    assert (plan.kernel.name, plan.reason) == (DENSE, "measured")
    assert manager.learner.policy.budget.total >= spent > 0
    assert {name for name, _, _ in calls(site, 200)} == {DENSE}


def test_modes_change_without_forgetting():
    manager, site = learnt()
    for mode, name in (("prior", FFT), ("frozen", DENSE), ("off", FFT), ("learn", DENSE)):
        manager.configure(mode=mode)
        assert call(site)[0].kernel.name == name, mode


@pytest.mark.parametrize("mode", ["off", "prior", "frozen"])
def test_other_modes_try_nothing(mode):
    manager = fake_manager(mode=mode)
    site = manager.site("test_op", "torch")
    found = calls(site, 1000)
    assert {(name, reason) for name, reason, _ in found} == {(FFT, "first" if mode == "off" else "prior")}
    assert manager.learner.policy.state() == {}


def test_frozen_stays_with_what_was_learnt_whatever_it_takes_now():
    manager, site = learnt()
    manager.configure(mode="frozen")
    assert {name for name, _, _ in calls(site, 1000, times={DENSE: 1.0, FFT: 1e-6})} == {DENSE}


def test_without_sampling_nothing_is_learnt():
    site = learning(sample=False).site("test_op", "torch")
    assert set(calls(site, 1000)) == {(FFT, "prior", False)}


def test_forgetting_an_operation_leaves_the_others(add):
    add(*(estimated(name, seconds, op="test_op_2") for name, seconds in ESTIMATES.items()))
    manager, site = learnt()
    other, work = manager.site("test_op_2", "torch"), replace(WORK, op="test_op_2")
    calls(other, 300, work=work)
    manager.forget("test_op")
    assert {each.workload.op for each in manager.history()} == {"test_op_2"}
    plan, _ = call(site)
    assert (plan.kernel.name, plan.reason) == (FFT, "prior")
    plan, _ = call(other, work=work)
    assert (plan.kernel.name, plan.reason) == (DENSE, "measured")
    manager.forget()
    assert manager.history() == []
    assert call(other, work=work)[0].reason == "prior"


def test_of_keys_that_are_forgotten_nothing_is_kept(monkeypatch):
    for module in (model, learning_module):
        monkeypatch.setattr(module, "MOST_KEYS", 4)
    manager = learning(wisdom="off")
    site = manager.site("test_op", "torch")
    works = [replace(WORK, rows=1 << i % 5, n=1 << 4 + i // 5) for i in range(36)]
    for work in works:
        calls(site, 3, work=work)
    learner = manager.learner
    assert len(learner.policy.state()) <= 4
    assert len(learner._timed) <= 2 * 4
    assert len({text for text, _ in learner._new}) <= 2 * 4
    assert works[-1] in (known := [work for work in works if manager.plan(work).reason == "measured"])
    assert set(known) <= set(works[-4:])


def test_an_exception_in_a_trial_leaves_the_site_consistent():
    manager = learning()
    site = manager.site("test_op", "torch")
    raised = 0
    for _ in range(500):  # until the budget allows a trial
        try:
            call(site, times=CLOSE, fails=raised < 2)
        except KeyboardInterrupt:
            raised += 1
            assert site.plans()[0].usage.left == 1  # the next call asks again
    assert raised == 2
    found = calls(site, 300, times=CLOSE)
    assert found[-1][:2] == (DENSE, "measured")
    assert manager.counters()["forward"] == 800
    assert manager.counters()["backward"] == 798


def test_an_exception_while_it_decides_leaves_the_site_consistent(monkeypatch):
    _, site = learnt()
    site.reconsider()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Planner, "next", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(site)
    assert {name for name, _, _ in calls(site, 100)} == {DENSE}


def test_a_second_manager_begins_with_what_the_first_one_saved(tmp_path, probe):
    manager, _ = learnt(wisdom=tmp_path)
    assert manager.save()
    asked = len(probe.asked)
    second = BackendManager(Settings(mode="learn", wisdom=tmp_path), machine=Machine())
    plan, _ = call(second.site("test_op", "torch"))
    assert (plan.kernel.name, plan.reason) == (DENSE, "wisdom")
    assert len(probe.asked) == asked  # the rates were in the file too
    frozen = BackendManager(Settings(mode="frozen", wisdom=tmp_path), machine=Machine())
    assert call(frozen.site("test_op", "torch"))[0].kernel.name == DENSE
    for settings in (Settings(mode="prior", wisdom=tmp_path), Settings(mode="learn", wisdom="off")):
        fresh = BackendManager(settings, machine=Machine())
        assert call(fresh.site("test_op", "torch"))[0].kernel.name == FFT


NO_WORKLOADS = [
    "toeplitz 32 x 1024",
    "[[],[]]",
    '[["test_op","torch"],[1.0]]',
    key_of(WORK).text().replace("true", "[]"),
    key_of(WORK).text().replace("2.0", "NaN"),
    key_of(WORK).text().replace("2.0", "9" * 400),
    "[" * 100_000,
]


def test_a_timing_whose_key_no_workload_has_costs_nothing_but_a_line_of_the_log(tmp_path, caplog):
    manager, _ = learnt(wisdom=tmp_path)
    assert manager.save()
    WisdomFile(tmp_path).update(Wisdom.of(Timing(key, DENSE, 1e-3, None, 5, 0.0, "own", 1e-3) for key in NO_WORKLOADS))
    caplog.set_level(logging.INFO, "hpfracc_nn.selection")
    second = BackendManager(Settings(mode="learn", wisdom=tmp_path), machine=Machine())
    plan, _ = call(second.site("test_op", "torch"))
    assert (plan.kernel.name, plan.reason) == (DENSE, "wisdom")
    second.forget("test_op")
    (line,) = caplog.messages
    assert line.startswith(f"wisdom in {tmp_path}: {len(NO_WORKLOADS)} timings ignored, the first: Key.parse(")


def test_a_timing_that_somebody_wrote_without_an_estimate_is_used(tmp_path):
    timings = [
        Timing(key_of(WORK).text(), name, 1e-4, seconds, 5, 0.0) for name, seconds in {FFT: 3e-4, DENSE: 0.0}.items()
    ]
    WisdomFile(tmp_path).update(Wisdom.of(timings))
    manager = BackendManager(Settings(mode="frozen", wisdom=tmp_path), machine=Machine())
    assert {name: each.seconds for name, each in manager.predict(WORK).items()} == {
        FFT: pytest.approx(4e-4),
        DENSE: pytest.approx(1e-4, rel=1e-4),  # and the shortest time there is
    }


def test_an_estimate_that_no_file_can_hold_keeps_nothing_from_being_saved(tmp_path, add):
    add(*(estimated(name, 1e12, op="test_op_2") for name in ESTIMATES))
    manager, _ = learnt(wisdom=tmp_path)
    calls(manager.site("test_op_2", "torch"), 50, work=replace(WORK, op="test_op_2"))
    assert manager.save()
    estimates = {each.key: each.forward_estimate for each in WisdomFile(tmp_path).read().timings.values()}
    assert len(estimates) == 2
    assert estimates[key_of(WORK).text()]
    assert estimates[key_of(replace(WORK, op="test_op_2")).text()] is None


def test_a_call_does_not_wait_for_another_process_that_saves(tmp_path, monkeypatch):
    manager, site = learnt(wisdom=tmp_path)
    assert manager.save()  # there is a file, and a lock beside it
    waits = []
    merge = WisdomFile.merge

    def watched(self: WisdomFile, learnt: Wisdom, *, seconds: float) -> bool:
        waits.append(seconds)
        return merge(self, learnt, seconds=seconds)

    monkeypatch.setattr(WisdomFile, "merge", watched)
    monkeypatch.setattr(learning_module, "SAVED_AFTER", -1.0)
    (lock,) = tmp_path.glob("*.lock")
    with FileLock(lock):
        calls(site, 300)
        assert waits
        assert not any(waits)
        assert manager.learner.has_news
    assert manager.save()
    assert waits[-1]
    assert not manager.learner.has_news


def saved(directory):
    """Return the samples in the file of this machine, by kernel."""
    return {arm: timing.samples for (_, arm), timing in WisdomFile(directory).read().timings.items()}


@pytest.mark.parametrize("change", [{"mode": "frozen"}, {"mode": "prior"}, {"sample": False}, {"wisdom": "off"}])
def test_what_was_learnt_is_saved_where_the_settings_end_it(tmp_path, change):
    manager, _ = learnt(wisdom=tmp_path)
    manager.configure(**change)
    assert saved(tmp_path).keys() == {FFT, DENSE}
    assert not manager.learner.has_news


def test_another_directory_gets_what_is_learnt_from_then_on(tmp_path, monkeypatch):
    manager, site = learnt(wisdom=tmp_path / "before")
    with monkeypatch.context() as patch:
        patch.setattr(WisdomFile, "merge", lambda self, learnt, *, seconds: False)  # somebody else writes
        manager.configure(wisdom=tmp_path / "after")
    calls(site, 300)
    assert manager.save()
    assert saved(tmp_path / "before").keys() == {FFT, DENSE}
    assert saved(tmp_path / "after").keys() == {DENSE}


def test_what_is_forgotten_before_it_was_saved_is_not_saved(tmp_path, monkeypatch, add):
    add(*(estimated(name, seconds, op="test_op_2") for name, seconds in ESTIMATES.items()))
    manager, _ = learnt(wisdom=tmp_path)
    calls(manager.site("test_op_2", "torch"), 300, work=replace(WORK, op="test_op_2"))
    with monkeypatch.context() as patch:
        patch.setattr(WisdomFile, "merge", lambda self, learnt, *, seconds: False)
        assert not manager.save()
    manager.forget("test_op")
    assert manager.save()
    assert {Key.parse(key).group[0] for key, _ in WisdomFile(tmp_path).read().timings} == {"test_op_2"}


def test_others_may_decide_while_one_saves(tmp_path, monkeypatch):
    manager, _ = learnt(wisdom=tmp_path)
    found = []

    def merge(self: WisdomFile, learnt: Wisdom, *, seconds: float) -> bool:
        with ThreadPoolExecutor() as other:
            found.append(other.submit(manager.plan, WORK).result(timeout=5).kernel.name)
        found.append(manager.save(0.0))  # and who comes second does not wait
        return True

    monkeypatch.setattr(WisdomFile, "merge", merge)
    assert manager.save()
    assert found == [DENSE, False]


@pytest.fixture
def ending(monkeypatch):
    """The managers of this test alone are saved at an end."""
    monkeypatch.setattr(lifecycle, "_recorders", weakref.WeakSet())
    monkeypatch.setattr(lifecycle, "_left", Outbox())


def test_at_the_end_an_error_of_one_manager_keeps_no_other_from_saving(tmp_path, monkeypatch, ending):
    managers = [learnt(wisdom=tmp_path / str(number))[0] for number in range(3)]

    def broken():
        raise ValueError("broken")

    with monkeypatch.context() as patched:  # not in force any more when the managers go, and leave what they learnt
        patched.setattr(managers[1].learner, "packed", broken)
        with pytest.raises(ValueError, match="broken"):
            lifecycle.save_all()
    assert [bool(saved(tmp_path / str(number))) for number in range(3)] == [True, False, True]


@pytest.mark.parametrize("keeps", [True, False])
def test_of_managers_that_are_gone_what_they_learnt_is_left_and_nothing_else(tmp_path, monkeypatch, ending, keeps):
    learners, merges = [], []
    for _ in range(12):
        manager, _ = learnt(wisdom=tmp_path if keeps else "off")
        learners.append(weakref.ref(manager.learner))
        del manager, _
    gc.collect()
    assert [each() for each in learners] == [None] * 12
    merge = WisdomFile.merge

    def counted(self: WisdomFile, learnt: Wisdom, *, seconds: float) -> bool:
        merges.append(self.path.parent)
        return merge(self, learnt, seconds=seconds)

    monkeypatch.setattr(WisdomFile, "merge", counted)
    lifecycle.save_all()
    assert merges.count(tmp_path) == keeps  # others are of tests before
    assert bool(saved(tmp_path)) == keeps


def test_at_the_end_all_managers_together_wait_as_long_as_one(tmp_path, monkeypatch, ending):
    managers = [learnt(wisdom=tmp_path)[0] for _ in range(3)]
    now, waits = [100.0], []

    def merge(self: WisdomFile, learnt: Wisdom, *, seconds: float) -> bool:
        waits.append(seconds)
        now[0] += seconds  # the lock is another's for ever
        return False

    monkeypatch.setattr(WisdomFile, "merge", merge)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lifecycle.save_all()
    assert len(waits) >= len(managers)
    assert sum(waits) == LOCK_SECONDS


SLOWER = Rates(dict.fromkeys(RATES.flops, 1e8), bandwidth=1e8, launch=1e-6)


def expected(manager):
    """Return what is expected of each kernel; `learnt` has taught both."""
    return {name: (each.seconds, each.low, each.high) for name, each in manager.predict(WORK).items()}


@pytest.mark.parametrize("change", ["rates", "setting"])
def test_another_calibration_leaves_what_was_measured_to_the_next_process(tmp_path, change):
    first, _ = learnt(wisdom=tmp_path)
    first.save()
    settings = {"mode": "frozen", "wisdom": tmp_path}
    if change == "rates":  # as somebody measures them while the machine is busy
        file = WisdomFile(tmp_path)
        file.update(Wisdom(rates=dict.fromkeys(file.read().rates, SLOWER)))
    else:
        settings["calibration"] = "shipped"
    second = BackendManager(Settings(**settings), machine=Machine())
    assert (second.plan(WORK).kernel.name, second.plan(WORK).reason) == (DENSE, "wisdom")
    for name, bounds in expected(second).items():
        assert bounds == pytest.approx(expected(first)[name], rel=0.2), name  # fewer samples have wider bounds


def test_another_calibration_leaves_what_was_measured_in_this_process(tmp_path):
    manager, site = learnt(wisdom=tmp_path)
    for calibration in ("shipped", "measured"):
        before = expected(manager)
        manager.configure(calibration=calibration)
        assert expected(manager).keys() == before.keys()
        for name, bounds in expected(manager).items():
            assert bounds == pytest.approx(before[name])
        plan, _ = call(site)
        assert (plan.kernel.name, plan.reason) == (DENSE, "measured")
    elsewhere = replace(WORK, n=2 * WORK.n)
    manager.configure(calibration="shipped")
    assert manager.predict(elsewhere)[FFT].seconds == pytest.approx(
        learning(calibration="shipped").predict(elsewhere)[FFT].seconds
    )  # until its neighbour is asked for, and is measured in these estimates


def test_what_another_machine_measured_counts_less(tmp_path):
    manager, _ = learnt(wisdom=tmp_path / "own")
    manager.save()
    known = WisdomFile(tmp_path / "own").read()
    WisdomFile(tmp_path / "foreign").update(Wisdom.of(known.as_prior().timings.values(), {}))
    found = {}
    for name in ("own", "foreign", "off"):
        wisdom = name if name == "off" else tmp_path / name
        other = BackendManager(Settings(mode="learn", wisdom=wisdom), machine=Machine())
        _, believed = other.learner.believed(WORK, other.planner.candidates.of(WORK)[0])
        found[name] = believed[FFT]
    assert found["off"].seconds < found["foreign"].seconds < found["own"].seconds
    width = {name: each.high / each.low for name, each in found.items()}
    assert width["own"] < width["foreign"] <= width["off"]


def test_toggling_the_deterministic_flag_counts_from_the_next_decision(probe):
    _, site = learnt()
    calls_left = site.plans()[0].usage.left
    probe.is_deterministic = True
    found = calls(site, calls_left + 1000)
    assert {name for name, _, _ in found[: calls_left - 1]} == {DENSE}
    assert set(found[calls_left:]) <= {(FFT, "prior", timed) for timed in (True, False)}
    probe.is_deterministic = False
    found = calls(site, LOOKED_AFTER + 10)
    assert found[-1][:2] == (DENSE, "measured")  # nothing was forgotten
    assert site.manager.counters()["forward"] == 300 + calls_left + 1000 + LOOKED_AFTER + 10


def test_a_question_without_data_follows_the_deterministic_flag_at_once(probe):
    manager, _ = learnt()
    assert manager.plan(WORK).kernel.name == DENSE
    probe.is_deterministic = True
    assert (manager.plan(WORK).kernel.name, manager.plan(WORK).uncertainty) == (FFT, 4.0)  # by shipped rates
    probe.is_deterministic = False
    assert manager.plan(WORK).kernel.name == DENSE


def test_deterministic_plans_do_not_depend_on_the_machine(add, monkeypatch):
    add(fake("numba/fft", lambda w: 1000 * w.samples, launches=0))
    tables = []
    for slower in (1.0, 0.01, 30.0):
        rates = Rates(dict.fromkeys(("matmul", "fft", "scan", "elementwise"), 1e9 / slower), 1e9 * slower, 1e-6)
        monkeypatch.setattr(FakeProbe, "calibrate", lambda self, device, dtype, rates=rates: rates)
        manager = learning(deterministic=True)
        works = [replace(WORK, rows=4**k, n=8 * k + 1) for k in range(9)]
        sites = [manager.site("test_op", "torch") for _ in works]
        tables.append(
            [
                call(site, work=work, times=dict.fromkeys([*TIMES, "numba/fft"], 1.0))[0].kernel.name
                for site, work in zip(sites, works, strict=True)
            ]
        )
    assert tables[0] == tables[1] == tables[2]
    assert len(set(tables[0])) > 1


DIFFERENT: dict[str, Any] = {
    "op": "test_op_2",
    "framework": "numpy",
    "device": "cuda:1",
    "dtype": "float64",
    "width": 2,
    "channels": 4,
    "needs_gradient": False,
    "learns_weights": True,
    "threads": 2,
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_fact_that_times_depend_on_keeps_keys_apart(name):
    assert key_of(replace(WORK, **{name: DIFFERENT[name]})).group != key_of(WORK).group


@pytest.mark.parametrize("name", ["device", "dtype", "needs_gradient", "threads"])
def test_nothing_measured_elsewhere_counts(name):
    manager, site = learnt()
    elsewhere = replace(WORK, **{name: DIFFERENT[name]})
    plan, _ = call(site, work=elsewhere, backward=False)
    assert (plan.kernel.name, plan.reason) == (FFT, "prior")
    assert manager.plan(elsewhere).seconds == pytest.approx((1 + elsewhere.needs_gradient) * ESTIMATES[FFT])


def test_what_a_plan_without_a_site_took_is_learnt(tmp_path):
    manager = learning(wisdom=tmp_path)
    picks = []
    for _ in range(20):
        plan = manager.plan(WORK)
        picks.append((plan.kernel.name, plan.reason))
        for direction in ("forward", "backward"):
            manager.record(plan, TIMES[plan.kernel.name], direction)
    assert picks[0] == (FFT, "prior")
    assert picks[-1] == (DENSE, "measured")
    assert len(manager.history()) >= 30  # of each plan the first in each direction is dropped
    assert manager.save()
    assert manager.learner.policy.budget.explored == 0
    assert calls(manager.site("test_op", "torch"), 1)[0][:2] == (DENSE, "measured")


def test_a_plan_whose_kernel_is_gone_teaches_nothing(add):
    add(other := fake("torch/fft", op="test_op_2"))
    manager = learning()
    plan = manager.plan(replace(WORK, op="test_op_2"))
    unregister(other)
    manager.record(plan, 1.0)
    register(other)  # for the one who cleans up
    assert not manager.learner.has_news


def test_an_unknown_direction_teaches_nothing():
    manager, site = learnt()
    before = manager.learner.policy.state()
    plan, _ = call(site, backward=False)
    with pytest.raises(ValueError, match=re.escape("record(direction='sideways')")):
        manager.record(plan, 1.0, "sideways")  # type: ignore[arg-type]
    assert manager.learner.policy.state() == before
