"""What a call site is given, what it counts, when it times, and how it is copied."""

import copy
import gc
import pickle
import re
import sys
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace

import pytest

from hpfracc_nn import selection
from hpfracc_nn.selection import BackendManager, Measurement, Workload, default_manager
from hpfracc_nn.selection import manager as managers
from hpfracc_nn.selection.planner import Step
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering


@pytest.fixture(autouse=True)
def torch_probe(monkeypatch):
    monkeypatch.setitem(_probes, "torch", FakeProbe())


@pytest.fixture(autouse=True)
def process_wide(monkeypatch):
    monkeypatch.setattr(managers, "_process_wide", None)


@pytest.fixture(autouse=True)
def add():
    with registering() as add_kernels:
        add_kernels(fake("torch/fft"), fake("torch/dense", lambda w: 3 * w.samples))
        yield add_kernels


class Describe:
    def __init__(self, workload=WORK):
        self.workload = workload
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.workload


def test_a_known_key_is_not_described_again():
    site, describe = fake_manager().site("test_op", "torch"), Describe()
    assert site.pick((4, 100), describe) is site.pick((4, 100), describe)
    assert describe.calls == 1
    site.pick((4, 101), describe)
    assert describe.calls == 2


def test_configuring_makes_every_site_ask_again():
    manager = fake_manager()
    sites, describe = [manager.site("test_op", "torch") for _ in range(2)], Describe()
    assert {site.pick(0, describe).algorithm for site in sites} == {"fft"}
    manager.configure(force_algorithm="dense")
    assert {site.pick(0, describe).algorithm for site in sites} == {"dense"}
    assert describe.calls == 4


def test_a_new_kernel_makes_every_site_ask_again(add):
    site = fake_manager().site("test_op", "torch")
    assert site.pick(0, Describe()).backend == "torch"
    add(fake("numba/dense", lambda w: 0))
    assert site.pick(0, Describe()).backend == "numba"


def test_after_a_fork_every_site_asks_again_what_kernels_refuse(add):
    refused: list[str] = []
    add(fake("numba/dense", lambda w: 0, refuses=lambda w: refused[0] if refused else None))
    site = fake_manager().site("test_op", "torch")
    assert site.pick(0, Describe()).backend == "numba"
    refused.append("this process was forked")
    assert site.pick(0, Describe()).backend == "numba"
    with selection.registry._lock:  # which another thread may have held when the process was forked
        selection.ask_again_after_fork()
    assert site.pick(0, Describe()).backend == "torch"


def test_consultations_are_counted_by_site_and_direction():
    manager = fake_manager()
    first, second = (manager.site("test_op", "torch", label) for label in "ab")
    for _ in range(3):
        plan = first.pick(0, Describe())
    assert first.again(plan) is plan
    second.pick(0, Describe())
    assert manager.counters() == {"forward": 4, "backward": 1, "picks": {"torch/fft": 4}}
    assert [(row.label, row.forwards, row.backwards) for row in manager.report()] == [
        ("a", 3, 1),
        ("b", 1, 0),
    ]


@pytest.mark.slow
def test_counts_outlive_their_plans_and_their_site():
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    site.again(site.pick(0, Describe()))
    manager.configure(force_algorithm="dense")
    site.pick(0, Describe())
    expected = {"forward": 2, "backward": 1, "picks": {"torch/fft": 1, "torch/dense": 1}}
    assert manager.counters() == expected
    del site
    gc.collect()
    assert manager.sites() == []
    assert manager.counters() == expected


# Settings that change while calls are on their way


def test_a_backward_pass_counts_whose_plan_was_let_go_meanwhile():
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    plans = [site.pick(0, Describe()) for _ in range(3)]
    manager.configure(force_algorithm="dense")
    site.pick(0, Describe())  # lets the plan of the first three calls go
    for count, plan in enumerate(plans, 1):
        site.again(plan)
        assert manager.counters()["backward"] == count
    expected = {"forward": 4, "backward": 3, "picks": {"torch/fft": 3, "torch/dense": 1}}
    assert manager.counters() == expected
    del plans, plan
    gc.collect()
    assert manager.counters() == expected


def test_a_backward_pass_counts_whose_plan_is_gone_before_anybody_asks():
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    plan = site.pick(0, Describe())
    manager.configure(force_algorithm="dense")
    site.pick(0, Describe())
    site.again(plan)
    alive = weakref.ref(plan)
    del plan
    assert alive() is None  # nobody keeps it for the sake of its counts
    assert manager.counters()["backward"] == 1


def test_a_call_whose_kernel_fails_after_its_plan_was_let_go_counts_once():
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    plan = site.pick(0, Describe())
    manager.configure(explore_fraction=0.1)
    site.pick(0, Describe())
    site.again(site.stand_in(plan, ["torch/fft"], "forward"))
    expected = {"forward": 2, "backward": 1, "picks": {"torch/fft": 1, "torch/dense": 1}}
    assert {**manager.counters(), "picks": +Counter(manager.counters()["picks"])} == expected


def test_a_call_that_waited_while_another_thread_chose_counts_for_what_it_runs():
    manager = fake_manager(mode="learn")
    site, picked = manager.site("test_op", "torch"), []
    plan = site.pick(0, Describe())
    plan.usage.left = 1  # the next call decides
    waiting = threading.Thread(target=lambda: picked.append(site.pick(0, Describe())))
    with manager.lock:
        waiting.start()
        while plan.forwards < 2:
            time.sleep(0)
        manager.configure(force_algorithm="dense")
        site.pick(0, Describe())
    waiting.join()
    assert [each.algorithm for each in picked] == ["dense"]
    assert +Counter(manager.counters()["picks"]) == {"torch/fft": 1, "torch/dense": 2}


def test_threads_that_call_fail_and_go_backwards_while_others_configure_are_counted():
    add_up, manager = [], fake_manager()
    site, works = manager.site("test_op", "torch"), [replace(WORK, n=n) for n in (100, 200, 300)]

    def hammer(thread):
        backwards = 0
        for call in range(300):
            if thread < 2:
                manager.configure(explore_fraction=(0.1, 0.2)[call % 2])
                continue
            which = (call + thread) % len(works)
            plan = site.pick(which, Describe(works[which]))
            if call % 10 == thread:
                plan = site.stand_in(plan, [plan.kernel.name], "forward")
            if call % 2:
                site.again(plan)
                backwards += 1
        add_up.append(backwards)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(hammer)
    finally:
        sys.setswitchinterval(interval)
    counted = manager.counters()
    assert (counted["forward"], counted["backward"]) == (6 * 300, sum(add_up))


def test_a_site_keeps_a_bounded_number_of_plans(monkeypatch):
    monkeypatch.setattr("hpfracc_nn.selection.site.MOST_PLANS", 8)
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    for key in range(20):
        site.pick(key, Describe())
    assert len(site.plans()) <= 8
    assert manager.counters()["forward"] == 20


def test_a_site_refuses_a_workload_of_another_op():
    site = fake_manager().site("test_op", "torch")
    message = "Site.pick(describe=...): needs a workload of test_op on torch; it describes test_op on jax."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        site.pick(0, Describe(replace(WORK, framework="jax")))


def test_the_report_compares_with_the_second_best_and_shares_add_up():
    manager = fake_manager()
    sites = [manager.site("test_op", "torch", label) for label in "ab"]
    work = replace(WORK, rows=10**6, n=3, width=2)
    for calls, site in zip((1, 3), sites, strict=True):
        for _ in range(calls):
            plan = site.pick(0, Describe(work))
    for seconds in (1.0, 2e-3):
        manager.record(plan, seconds, "backward")
    rows = manager.report()
    assert [row.share for row in rows] == [0.25, 0.75]
    assert rows[1].speed_up == pytest.approx(3, rel=1e-3)  # launches are 1e-6 s of 6e-3 s
    assert rows[1].predicted_ms == pytest.approx(6, rel=1e-3)
    assert (rows[1].forward_ms, rows[1].backward_ms) == (None, 2.0)
    assert (rows[1].workload, rows[1].dtype, rows[1].device) == ("1000000 x 3 x 2", "float32", "cpu")
    assert (rows[1].backend, rows[1].algorithm, rows[1].reason) == ("torch", "fft", "prior")
    assert manager.report(sites[:1])[0].share == 1


def test_calls_are_timed_ever_more_rarely():
    plan = fake_manager().plan(WORK)
    timed = [call for call in range(1, 2000) if plan.due()]
    assert timed == [1, 3, 7, 15, 31, 63, 127, 255, 511, 767, 1023, 1279, 1535, 1791]


def test_directions_are_timed_apart():
    plan = fake_manager().plan(WORK)
    alternating = [direction for _ in range(4) for direction in ("forward", "backward") if plan.due(direction)]
    assert alternating == ["forward", "backward", "forward", "backward"]


def test_nothing_is_timed_when_sampling_is_off():
    plan = fake_manager(sample=False).plan(WORK)
    assert not any(plan.due(direction) for direction in ("forward", "backward") for _ in range(1000))


def test_the_first_sample_is_dropped_and_the_rest_answer_with_their_quantile():
    manager = fake_manager()
    plan = manager.plan(WORK)
    assert plan.quantile("forward") is None
    for seconds in (100.0, 5.0, 1.0, 2.0, 3.0, 4.0):
        manager.record(plan, seconds, "forward")
    assert plan.quantile("forward") == 2.0
    assert plan.quantile("backward") is None
    assert manager.history()[0] == Measurement(WORK, "torch/fft", 5.0, "forward")
    assert len(manager.history()) == 5


def test_a_measurement_must_make_sense():
    manager = fake_manager()
    plan = manager.plan(WORK)
    with pytest.raises(ValueError, match=r"^record\(seconds=-1\.0\): needs a finite time, not negative\.$"):
        manager.record(plan, -1.0)
    with pytest.raises(ValueError, match=r"^record\(direction='sideways'\): needs one of forward, backward\.$"):
        manager.record(plan, 1.0, "sideways")  # type: ignore[arg-type]


def test_a_copied_site_is_fresh_and_keeps_its_manager():
    manager = fake_manager()
    site = manager.site("test_op", "torch", "layer")
    plan = site.pick(0, Describe())
    for twin in (copy.copy(site), copy.deepcopy({"inside": site})["inside"]):
        assert twin is not site
        assert (twin.manager, twin.op, twin.framework, twin.label) == (manager, "test_op", "torch", "layer")
        assert twin.pick(0, Describe()) is not plan
        assert twin in manager.sites()
    assert plan.forwards == 1


def test_an_unpickled_site_belongs_to_the_process_wide_manager():
    site = pickle.loads(pickle.dumps(fake_manager().site("test_op", "torch", "layer")))
    assert site.manager is default_manager()
    assert (site.op, site.framework, site.label) == ("test_op", "torch", "layer")
    assert site.pick(0, Describe()).forwards == 1


def test_a_manager_is_copied_as_itself_and_pickled_by_its_settings():
    manager = fake_manager(force_backend="numba", sample=False)
    assert copy.deepcopy(manager) is copy.copy(manager) is manager
    loaded = pickle.loads(pickle.dumps(manager))
    assert loaded is not manager
    assert loaded.settings == manager.settings
    assert pickle.loads(pickle.dumps(default_manager())) is default_manager()


def test_the_short_forms_speak_to_the_process_wide_manager():
    selection.configure(force_algorithm="dense")
    assert default_manager().settings.force_algorithm == "dense"
    assert selection.choose("test_op", (4, 100), framework="torch").algorithm == "dense"
    site = default_manager().site("test_op", "torch", "here")
    site.pick(0, Describe())
    assert [row.label for row in selection.report()] == ["here"]


def test_eight_threads_make_one_process_wide_manager():
    made = in_threads(lambda _: default_manager())
    assert len(set(made)) == 1


def test_eight_threads_share_a_site():
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    describes = [Describe(replace(WORK, n=n)) for n in range(1, 6)]
    calls = 2000

    def hammer(thread):
        for call in range(calls):
            which = (call + thread) % len(describes)
            plan = site.pick(which, describes[which])
            assert plan.workload is describes[which].workload
            site.again(plan)
            if plan.due():
                manager.record(plan, 1e-3, "forward")
        return True

    assert all(in_threads(hammer))
    assert [describe.calls for describe in describes] == [1] * 5
    counted = manager.counters()
    for direction in ("forward", "backward"):
        # An update may be lost between threads, none invented; a switch falls on one call in thousands.
        assert 0.99 * 8 * calls <= counted[direction] <= 8 * calls


def test_threads_that_miss_together_describe_once():
    site = fake_manager().site("test_op", "torch")
    described: list[bool] = []

    def describe():
        time.sleep(0.05)  # long enough for the others to miss as well
        described.append(True)
        return WORK

    assert len(set(in_threads(lambda _: site.pick(0, describe)))) == 1
    assert described == [True]


def test_a_countdown_that_threads_took_below_zero_fires_and_starts_again():
    plan = fake_manager().plan(WORK)
    plan.usage.forward.countdown = -1  # two threads decremented before either rearmed it
    assert plan.due()
    assert plan.usage.forward.countdown == plan.usage.forward.period


def test_a_known_key_waits_for_no_lock():
    manager = fake_manager()
    site = manager.site("test_op", "torch")
    site.pick(0, Describe())
    waiting = threading.Thread(target=site.pick, args=(0, Describe()), daemon=True)
    with manager.lock:
        waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()


def test_eight_threads_pick_while_another_configures():
    manager = fake_manager()
    site = manager.site("test_op", "torch")

    def hammer(thread):
        for call in range(200):
            if thread == 0:
                manager.configure(force_algorithm=("fft", "dense")[call % 2])
            site.pick(call % 3, Describe())
        return True

    assert all(in_threads(hammer))
    assert site.pick(0, Describe()).algorithm == "dense"


def in_threads(work, count=8):
    barrier, results = threading.Barrier(count), []

    def begin(thread):
        barrier.wait()
        results.append(work(thread))

    threads = [threading.Thread(target=begin, args=(thread,)) for thread in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == count  # one that raised is missing
    return results


def test_a_dropped_manager_is_collected():
    manager = BackendManager(machine=fake_manager().planner.candidates.machine)
    site = manager.site("test_op", "torch")
    site.pick(0, Describe())
    gone: list[bool] = []
    weakref.finalize(manager, gone.append, True)
    del manager, site
    gc.collect()
    assert gone == [True]


@pytest.mark.parametrize("written", ["_others", "_plans"])
def test_a_plan_that_an_interrupt_leaves_in_two_places_counts_once(written):
    class Interrupting(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            raise KeyboardInterrupt

    manager = fake_manager()
    site = manager.site("test_op", "torch")
    plan, *_ = [site.pick(0, Describe()) for _ in range(3)]
    other = fake_manager(force_algorithm="dense").plan(WORK).twin()
    site._others[0] = {other.kernel.name: other}
    if written == "_plans":
        site._plans = Interrupting(site._plans)
    else:
        site._others[0] = Interrupting(site._others[0])
    with pytest.raises(KeyboardInterrupt):
        site._take(0, plan, Step(other, "measured", 4))
    assert len(set(site.plans())) == len(site.plans()) == 2
    assert manager.counters()["forward"] == 3
    assert sum(row.forwards for row in manager.report()) == 3


# Kernels that come, go, or change their mind


def test_a_kernel_that_goes_while_another_thread_plans_is_not_remembered(add):
    inside, go_on = threading.Event(), threading.Event()

    def refuses(work):
        if threading.current_thread() is thread:
            inside.set()
            go_on.wait(10)

    doomed = fake("numba/fft", lambda w: 0)
    manager = fake_manager()
    thread = threading.Thread(target=manager.plan, args=(WORK,))
    add(fake("numba/dense", refuses=refuses))
    selection.register(doomed)
    thread.start()
    assert inside.wait(10)
    selection.unregister(doomed)
    go_on.set()
    thread.join()
    assert manager.plan(WORK).kernel.name == "torch/fft"
    assert "numba/fft" not in manager.explain(WORK)


@pytest.mark.parametrize("mode", ["off", "prior", "frozen", "learn"])
def test_where_every_kernel_refuses_each_is_asked_again_at_the_next_call(add, mode):
    refusals = ["start it first"]
    add(fake("xla/fft", refuses=lambda w: refusals[0] if refusals else None))
    site = fake_manager(mode=mode, force_backend="xla").site("test_op", "torch")
    with pytest.raises(LookupError, match="start it first"):
        site.pick(0, Describe())
    refusals[0] = "it is starting"
    with pytest.raises(LookupError, match="it is starting"):
        site.pick(0, Describe())
    refusals.clear()
    assert site.pick(0, Describe()).kernel.name == "xla/fft"


def test_a_kernel_that_refused_comes_into_question_at_the_next_decision_and_one_that_accepted_is_not_asked_again(add):
    asked: list[Workload] = []
    refusals = ["not yet"]
    late = fake("numba/fft", lambda w: 0, refuses=lambda w: refusals[0] if refusals else None)
    add(late, fake("numba/dense", lambda w: 9 * w.samples, refuses=asked.append))
    site = fake_manager(mode="learn").site("test_op", "torch")
    assert [site.pick(0, Describe()).kernel.name for _ in range(600)] == ["torch/fft"] * 600
    assert asked == [WORK]
    refusals.clear()
    assert "numba/fft" in [site.pick(0, Describe()).kernel.name for _ in range(600)]
