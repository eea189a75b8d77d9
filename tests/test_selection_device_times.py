"""Calls on a device are timed between two marks in its own work, and nobody waits; the device here is made up."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hpfracc_nn.selection import BackendManager, Plan, Settings, Work, carried_out, register_marker, unregister_marker
from hpfracc_nn.selection import plan as times
from hpfracc_nn.selection.plan import DeviceTimes
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import WORK, FakeProbe, fake, registering

ON_DEVICE = replace(WORK, framework="fake", device="cuda:0")
LEARNING = Settings(mode="learn", wisdom="off", calibration="shipped")


class Device:
    """A queue of work that is done when the test says so. Every mark is where the device will be then."""

    def __init__(self) -> None:
        self.queued = self.reached = 0.0
        self.is_capturing = False
        self.marks = 0

    def mark(self, device: str) -> Any:
        if self.is_capturing:
            return None
        self.marks += 1
        return _Mark(self, self.queued)


class _Mark:
    def __init__(self, device: Device, at: float):
        self.device, self.at = device, at

    def passed(self) -> bool:
        return not self.device.is_capturing and self.device.reached >= self.at

    def seconds_since(self, earlier: "_Mark") -> float:
        return self.at - earlier.at


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device()
    monkeypatch.setitem(_probes, "fake", FakeProbe())
    register_marker("fake", made.mark)
    yield made
    unregister_marker("fake")


def computing(device: Device, seconds: dict[str, float]) -> Work:
    def run(plan: Plan) -> str:
        device.queued += seconds[plan.kernel.name]
        return plan.kernel.name

    return Work(run)


def test_a_call_is_recorded_when_the_device_has_done_it_and_not_before(device: Device) -> None:
    manager, seconds = BackendManager(LEARNING), {"torch/dense": 0.25}
    with registering() as add:
        add(fake("torch/dense", framework="fake"))
        site, work = manager.site("test_op", "fake"), computing(device, seconds)
        for _ in range(3):
            carried_out(work, site, site.pick("x", lambda: ON_DEVICE))
        assert not manager.history()
        device.reached = device.queued
        manager.harvest()
        # the first of a plan is dropped, as on the host
        assert {each.seconds for each in manager.history()} == {0.25}
        count = len(manager.history())
        manager.harvest()
        assert len(manager.history()) == count


def test_what_a_device_took_decides(device: Device) -> None:
    seconds = {"torch/dense": 4e-3, "torch/fft": 1e-3}
    manager = BackendManager(replace(LEARNING, explore_fraction=0.5))
    with registering() as add:
        add(fake("torch/dense", framework="fake"), fake("torch/fft", lambda w: 1.2 * w.samples, framework="fake"))
        site, work = manager.site("test_op", "fake"), computing(device, seconds)
        ran = []
        for _ in range(300):
            ran.append(carried_out(work, site, site.pick("x", lambda: ON_DEVICE)))
            device.reached = device.queued - 0.002  # a few calls behind the host
    assert ran[0] == "torch/dense"
    assert set(ran[200:]) == {"torch/fft"}


def test_while_a_graph_is_captured_nothing_is_marked_or_asked(device: Device) -> None:
    manager = BackendManager(LEARNING)
    with registering() as add:
        add(fake("torch/dense", framework="fake"))
        site, work = manager.site("test_op", "fake"), computing(device, {"torch/dense": 1.0})
        carried_out(work, site, site.pick("x", lambda: ON_DEVICE))
        device.reached, device.is_capturing, marks = device.queued, True, device.marks
        for _ in range(5):
            carried_out(work, site, site.pick("x", lambda: ON_DEVICE))
        manager.harvest()
        assert device.marks == marks
        assert not manager.history()


def test_a_device_that_never_answers_costs_no_memory(device: Device) -> None:
    pending = DeviceTimes()
    with registering() as add:
        add(fake("torch/dense", framework="fake"))
        plan = BackendManager(LEARNING).plan(ON_DEVICE)
        for _ in range(10 * times.MOST_PENDING):
            device.queued += 1
            begin = pending.begin(plan)
            assert begin is not None
            pending.end(plan, "forward", begin)
    assert len(pending._pending) == times.MOST_PENDING
    assert pending.finished() == []


def test_a_device_without_marks_is_not_timed() -> None:
    with registering() as add:
        add(fake("torch/dense", framework="unmarked"))
        manager = BackendManager(replace(LEARNING, mode="prior"))
        plan = manager.plan(replace(ON_DEVICE, framework="unmarked"))
        assert DeviceTimes().begin(plan) is None
    with pytest.raises(LookupError, match="no marker for framework 'unmarked'"):
        unregister_marker("unmarked")
