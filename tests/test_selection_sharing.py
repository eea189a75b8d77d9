"""What managers tell each other, which kernels each tries, what they note, and plans for each of several devices."""

import json
import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from hpfracc_nn.selection import BackendManager, Prediction, Workload
from hpfracc_nn.selection.learning import learner
from hpfracc_nn.selection.learning.model import Candidate, confidence
from hpfracc_nn.selection.learning.policy import UNHEARD, Policy
from hpfracc_nn.selection.recorder import (
    MOST_LOOKS,
    Choice,
    Defeat,
    Drift,
    EventLog,
    Failure,
    ManagerCounts,
    Quarantined,
)
from hpfracc_nn.selection.registry import _probes, register_probe
from hpfracc_nn.selection.workload import key_of
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering

KEY = key_of(WORK)
SECONDS = {"torch/dense": 1.4e-6, "torch/fft": 3e-7}  # the first as estimated, the other a fifth of it
FAST = "torch/fft"


@pytest.fixture
def kernels() -> Iterator[Any]:
    known = dict(_probes)
    register_probe(FakeProbe())
    with registering() as add:
        add(fake("torch/dense"), fake("torch/fft", lambda w: 1.1 * w.samples))
        yield add
    _probes.clear()
    _probes.update(known)


def learning(**settings: Any) -> BackendManager:
    return fake_manager(mode="learn", explore_fraction=0.5, **settings)


def taught(manager: BackendManager, work: Workload = WORK, calls: int = 100, seconds: Any = None) -> Any:
    """Call a site so often, and return it."""
    site = manager.site("test_op", "torch", "layer")
    for _ in range(calls):
        plan = site.pick(work, lambda: work)
        if plan.due():
            manager.record(plan, (seconds or SECONDS)[plan.kernel.name])
    return site


# Wisdom as text


def test_what_one_manager_learnt_another_one_knows(kernels: Any) -> None:
    first, second = learning(), learning()
    site = taught(first)
    assert second.import_wisdom(first.export_wisdom()) == "own"
    for name, found in first.predict(WORK).items():
        assert second.predict(WORK)[name].seconds == pytest.approx(found.seconds)
    again = taught(second, calls=1)
    ((plan,), (same,)) = again.in_use(), site.in_use()
    assert (plan.kernel.name, same.kernel.name, plan.trials) == (FAST, FAST, 0)


def test_only_what_was_timed_here_is_told_on(kernels: Any) -> None:
    first, second = learning(), learning()
    taught(first)
    second.import_wisdom(first.export_wisdom())
    assert json.loads(second.export_wisdom(timed_here=True))["plans"] == {}
    (arms,) = json.loads(second.export_wisdom())["plans"].values()
    assert set(arms) == set(SECONDS)


def test_what_was_told_is_replaced_by_what_is_told_later_but_not_what_was_timed(kernels: Any) -> None:
    told, teller = learning(), learning()
    taught(teller)
    told.import_wisdom(teller.export_wisdom())
    later = learning()
    taught(later, seconds={"torch/dense": 1.4e-6, "torch/fft": 5e-7})
    told.import_wisdom(later.export_wisdom())
    assert told.predict(WORK)[FAST].seconds == pytest.approx(5e-7)
    teller.import_wisdom(later.export_wisdom())
    assert teller.predict(WORK)[FAST].seconds == pytest.approx(3e-7)


def test_what_another_machine_learnt_is_a_prior(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = learning(), learning()
    taught(first)
    text = first.export_wisdom()
    monkeypatch.setattr(learner, "machine_facts", lambda: {"cpu": "another"})
    assert second.import_wisdom(text) == "prior"
    assert {each.samples for each in second.predict(WORK).values()} == {0}


@pytest.mark.parametrize("text", ["", "{}", "nonsense", None, 3])
def test_what_is_no_wisdom_is_refused(kernels: Any, text: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        learning().import_wisdom(text)


# Shared trials


def tried(policy: Policy, decisions: int = 40) -> set[str]:
    """Return what a policy tries of four kernels that may all be the fastest."""
    names = ["torch/dense", "torch/fft", "torch/chunked_scan", "torch/recurrence"]
    candidates = [Candidate(name, 1e-3 * (1 + 0.01 * number), 2.0) for number, name in enumerate(names)]
    found = set()
    for _ in range(decisions):
        decision = policy.decide(KEY, candidates)
        if decision.is_trial:
            found.add(decision.name)
        policy.observe(KEY, decision.name, 1e-3)
    return found


def test_those_who_share_try_different_kernels_and_together_all() -> None:
    everything = tried(Policy(0.5, 1.0))
    shares = []
    for rank in range(2):
        policy = Policy(0.5, 1.0)
        policy.share = rank, 2
        shares.append(tried(policy))
    assert not shares[0] & shares[1]
    assert shares[0] | shares[1] == everything == {"torch/fft", "torch/chunked_scan", "torch/recurrence"}


def test_what_nobody_told_of_in_two_rounds_is_tried_after_all() -> None:
    policy = Policy(0.5, 1.0)
    policy.share = 0, 2
    before = tried(policy)
    policy.rounds = UNHEARD
    assert tried(policy) | before == {"torch/fft", "torch/chunked_scan", "torch/recurrence"}


@pytest.mark.parametrize(("rank", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_there_is_not_is_refused(rank: int, count: int) -> None:
    with pytest.raises(ValueError, match=r"needs 0 <= rank < count\.$"):
        fake_manager().share_trials(rank, count)


@pytest.mark.parametrize(("rank", "count"), [(0, 2.5), ("0", 2), (True, 2)])
def test_a_rank_that_is_no_integer_is_refused(rank: Any, count: Any) -> None:
    with pytest.raises(ValueError, match=r"^share_trials\(rank=.*\): needs two integers\.$"):
        fake_manager().share_trials(rank, count)


# Devices


def test_each_device_has_plans_and_times_of_its_own(kernels: Any) -> None:
    manager = learning()
    first, second = (Workload("test_op", "torch", device=f"cuda:{index}", rows=4, n=100) for index in (0, 1))
    slow = {"torch/dense": 1.4e-6, "torch/fft": 5e-6}
    ((plan,), (other,)) = taught(manager, first).in_use(), taught(manager, second, seconds=slow).in_use()
    assert (plan.kernel.name, other.kernel.name) == (FAST, "torch/dense")
    assert manager.predict(first)[FAST].seconds == pytest.approx(3e-7)
    assert manager.predict(second)["torch/dense"].seconds == pytest.approx(1.4e-6)


def test_a_kernel_that_runs_out_of_memory_on_one_device_is_left_alone_there_only(kernels: Any) -> None:
    manager = fake_manager()
    works = [Workload("test_op", "torch", device=f"cuda:{index}", rows=4, n=100) for index in (0, 1)]
    manager.recorder.quarantine(manager.plan(works[0]), MemoryError())
    assert [manager.plan(work).kernel.name for work in works] == [FAST, "torch/dense"]


# The journal


def test_the_journal_says_what_was_chosen_and_why_it_changed(kernels: Any) -> None:
    manager = learning()
    site = taught(manager)
    choices = [each for each in manager.events() if isinstance(each, Choice) and each.previous != each.kernel]
    assert [(each.kernel, each.previous, each.reason) for each in choices] == [
        ("torch/dense", "", "prior"),
        (FAST, "torch/dense", "explore"),
        (FAST, "torch/dense", "explore"),
        (FAST, "torch/dense", "measured"),
    ]
    assert {each.site for each in choices} == {"layer"}
    ((plan,),) = [site.in_use()]
    assert (plan.switches, plan.trials) == (1, 2)
    assert manager.totals()["test_op", FAST].switches == 1
    assert choices[0].candidates["torch/dense"].seconds == pytest.approx(1.4e-6)  # 400 operations and one launch


def test_a_change_of_speed_a_failure_and_a_pause_are_noted(kernels: Any, caplog: pytest.LogCaptureFixture) -> None:
    manager = learning()
    site = taught(manager)
    taught_again = {"torch/dense": 1.4e-6, "torch/fft": 9e-7}
    for _ in range(600):
        plan = site.pick(WORK, lambda: WORK)
        if plan.due():
            manager.record(plan, taught_again[plan.kernel.name])
    drifts = [each for each in manager.events() if isinstance(each, Drift)]
    assert drifts[0].factor == pytest.approx(3)
    (plan,) = site.in_use()
    with caplog.at_level(logging.DEBUG, "hpfracc_nn.selection"):
        manager.recorder.failed(plan, RuntimeError("boom"), "forward")
        manager.recorder.quarantine(plan, RuntimeError("boom"))
        manager.recorder.all_failed(plan, RuntimeError("boom"), "forward")
    failure, pause, defeat = manager.events()[-3:]
    assert isinstance(failure, Failure)
    assert isinstance(pause, Quarantined)
    assert isinstance(defeat, Defeat)
    assert (failure.error, pause.seconds, defeat.message) == ("RuntimeError", 60.0, "boom")
    assert manager.quarantined() == {("test_op", plan.kernel.name): 1}
    assert plan.failures == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]  # the pause; failures alone are quiet


def test_a_run_in_which_nothing_fails_logs_nothing(kernels: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "hpfracc_nn"):
        taught(learning())
    assert caplog.records == []


def test_looks_are_spread_over_the_run_and_their_number_is_bounded(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("time.time", lambda: now[0])
    counts = ManagerCounts()
    log, usage = EventLog(counts), counts.add(fake_manager().plan(WORK).usage)
    for _ in range(20_000):
        now[0] += 0.05
        usage.forwards += 1
        usage.backwards += 1
        log.look()
    looks = log.looks()
    assert MOST_LOOKS / 4 < len(looks) <= MOST_LOOKS + 1
    assert looks[0].uses == {("test_op", "torch/dense"): 2}
    gaps = [after.time - before.time for before, after in pairwise(looks)]
    assert max(gaps) < 0.02 * now[0]


def test_confidence_is_the_probability_that_no_other_kernel_is_faster() -> None:
    known = Prediction.within(1.0, 1.0)
    assert confidence("a", {"a": known}) == 1
    assert confidence("a", {"a": known, "b": Prediction.within(2.0, 1.0)}) == 1
    assert confidence("b", {"a": known, "b": Prediction.within(2.0, 1.0)}) == 0
    assert confidence("a", {"a": known, "b": Prediction.within(1.0, 3.0)}) == pytest.approx(0.5)
    # Its logarithm is two deviations above: Phi(2).
    two = Prediction.within(4.0, 4.0)
    assert confidence("a", {"a": known, "b": two}) == pytest.approx(0.97725, abs=1e-5)
    assert confidence("a", {"a": known, "b": two, "c": Prediction.within(1.0, 3.0)}) == pytest.approx(0.5)
