"""Rows spread over several devices: all are done at the same time, and none gets more than it can take."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hpfracc_nn.selection import Workload
from hpfracc_nn.selection.observe.advice import Pace, spread
from hpfracc_nn.selection.registry import _probes, register_probe
from tests.selection_kernels import FakeProbe, fake, fake_manager, registering

# 100 operations and 1e-6 s for each launch, at 1e9 operations per second: 1 us, and 0.1 us for each row.
WORK = Workload("test_op", "torch", device="cuda:0", rows=90, n=100)
LAUNCH, ROW = 1e-6, 1e-7


@pytest.fixture
def kernels() -> Iterator[Any]:
    known = dict(_probes)
    register_probe(FakeProbe())
    with registering() as add:
        add(fake("torch/dense"))
        yield add
    _probes.clear()
    _probes.update(known)


def shares(*given: Any, **more: Any) -> dict[str, int]:
    return {share.device: share.rows for share in fake_manager().place(*given, **more)}


def test_equal_devices_get_equal_shares(kernels: Any) -> None:
    found = fake_manager().place(WORK, ["cuda:0", "cuda:1", "cuda:2"])
    assert [(share.device, share.rows) for share in found] == [("cuda:0", 30), ("cuda:1", 30), ("cuda:2", 30)]
    assert [share.seconds for share in found] == pytest.approx([LAUNCH + 30 * ROW] * 3)


def test_a_busy_device_gets_as_much_less_as_it_is_late(kernels: Any) -> None:
    assert shares(WORK, ["cuda:0", "cuda:1"], busy={"cuda:0": 20 * ROW}) == {"cuda:0": 35, "cuda:1": 55}
    assert shares(WORK, ["cuda:0", "cuda:1"], busy={"cuda:0": 1.0}) == {"cuda:1": 90}


def test_what_has_to_be_moved_counts(kernels: Any) -> None:
    # A row is 400 bytes, there and back: at 8e9 bytes per second it takes as long to move as to compute.
    found = shares(WORK, ["cuda:0", "cuda:1"], bandwidths={"cuda:1": 8e9})
    assert found == {"cuda:0": 60, "cuda:1": 30}


def test_a_device_that_is_measured_to_be_slower_gets_less(kernels: Any) -> None:
    manager = fake_manager(mode="learn")
    for device, factor in (("cuda:0", 1), ("cuda:1", 2)):
        for rows in (1, 90):
            work = Workload("test_op", "torch", device=device, rows=rows, n=100)
            for _ in range(8):
                plan = manager.plan(work)
                manager.record(plan, factor * (LAUNCH + rows * ROW))
    found = {share.device: share.rows for share in manager.place(WORK, ["cuda:0", "cuda:1"])}
    # LAUNCH + 0.1 a = 2 (LAUNCH + 0.1 (90 - a)) in microseconds
    assert found["cuda:0"] == pytest.approx((2 + 0.2 * 90 - 1) / 0.3, abs=1)


def test_no_device_gets_more_than_its_memory_takes(kernels: Any) -> None:
    kernels(fake("torch/fft", refuses=lambda w: "too many rows" if w.rows > 20 and w.device == "cuda:1" else None))
    manager = fake_manager(force_algorithm="fft")
    found = {share.device: share.rows for share in manager.place(WORK, ["cuda:0", "cuda:1"])}
    assert found == {"cuda:0": 79, "cuda:1": 11}  # half of a half of a half of 90


def test_no_row_is_lost_and_no_other_spread_is_done_earlier() -> None:
    paces = [Pace("a", 0.0, 1.0, 100), Pace("b", 2.5, 0.7, 9), Pace("c", 1.0, 2.3, 100)]
    for rows in range(1, 60):
        found = spread(rows, paces)
        assert sum(share.rows for share in found) == rows
        best = min(
            max(pace.seconds(n) if n else 0.0 for pace, n in zip(paces, (a, b, rows - a - b), strict=True))
            for a in range(rows + 1)
            for b in range(min(9, rows - a) + 1)
        )
        assert max(share.seconds for share in found) == pytest.approx(best)


@pytest.mark.parametrize("devices", [[], ["cuda:0", "cuda:0"]])
def test_devices_are_named_once(kernels: Any, devices: list[str]) -> None:
    with pytest.raises(ValueError, match=r"needs one device or more, each once\.$"):
        fake_manager().place(WORK, devices)


def test_a_device_without_a_bandwidth_is_named(kernels: Any) -> None:
    with pytest.raises(ValueError, match=r"needs one for cuda:2 too, in bytes per second\.$"):
        fake_manager().place(WORK, ["cuda:0", "cuda:1", "cuda:2"], bandwidths={"cuda:1": 1e9})


@pytest.mark.parametrize(
    ("rows", "devices", "more", "said"),
    [
        (9, "cuda:0", {}, "needs a list of devices; write"),
        (0, ["cuda:0"], {}, "needs one row or more"),
        (9, ["cuda:0"], {"busy": {"cuda": 1.0}}, "'cuda' is none of"),
        (9, ["cuda:0"], {"busy": {"cuda:0": -1.0}}, "needs seconds that are finite and not negative"),
        (9, ["cuda:0"], {"busy": {"cuda:0": math.nan}}, "needs seconds that are finite and not negative"),
        (9, ["cuda:0"], {"bandwidths": {"cuda:1": 1e9}}, "'cuda:1' is none of"),
        (9, ["cuda:0"], {"bandwidths": {"cuda:0": 0}}, "needs bytes per second > 0"),
        (9, ["cuda:0"], {"bandwidths": {"cuda:0": math.nan}}, "needs bytes per second > 0"),
    ],
)
def test_what_cannot_be_placed_is_refused(kernels: Any, rows: int, devices: Any, more: Any, said: str) -> None:
    with pytest.raises(ValueError, match=rf"^place\(.*{said}.*\.$"):
        fake_manager().place(replace(WORK, rows=rows), devices, **more)


def test_where_no_device_accepts_it_is_said_why(kernels: Any) -> None:
    kernels(fake("torch/fft", refuses=lambda w: "it is Sunday"))
    with pytest.raises(LookupError, match=r"torch/fft: it is Sunday"):
        fake_manager(force_algorithm="fft").place(WORK, ["cuda:0", "cuda:1"])


def test_rows_that_have_no_room_anywhere_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"^spread\(rows=5\): needs room for all; the devices take 4\.$"):
        spread(5, [Pace("a", 0.0, 1.0, 3), Pace("b", 0.0, 1.0, 1)])
