"""What a manager says of its choices: predictions with bounds, the table, advice, and measurements in parts."""

import re
import time
from dataclasses import replace

import pytest

from hpfracc_nn.selection import Compilation, Cost, Measurement, Prediction, Workload
from hpfracc_nn.selection import manager as managers
from hpfracc_nn.selection.observe.advice import Expectation, advice
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering


@pytest.fixture(autouse=True)
def torch_probe(monkeypatch):
    monkeypatch.setitem(_probes, "torch", FakeProbe())
    monkeypatch.setattr(managers, "cores", lambda: 1)  # advice on threads is the same everywhere


@pytest.fixture
def add():
    with registering() as add_kernels:
        yield add_kernels


def measured(manager, workload=WORK, seconds=1e-3, calls=12, label="layer"):
    """Let a site call the workload, each call taking so long; the manager keeps it."""
    site = manager.shared_site(workload.op, workload.framework, label)
    for _ in range(calls):
        plan = site.pick(workload, lambda: workload)
        if plan.due():
            manager.record(plan, seconds)


def cells(manager, workload=WORK):
    """Return the table by kernel, a dict of columns each."""
    lines = manager.explain(workload).splitlines()[1:]
    starts = [match.start() for match in re.finditer(r"(?<!\S)\S+( \S+)*", lines[0])]
    names = [lines[0][a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
    rows = {}
    for line in lines[1:]:
        values = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        rows[values[0]] = {"chosen": line.startswith("*"), **dict(zip(names, values, strict=True))}
    return rows


# predict


def test_an_unmeasured_kernel_is_predicted_by_its_estimate_within_the_estimates_uncertainty(add):
    add(fake("torch/fft", lambda w: 1e6, launches=0), fake("torch/dense", lambda w: 5e5, launches=0))
    for mode in ("prior", "learn"):
        found = fake_manager(mode=mode).predict(WORK)
        assert list(found) == ["torch/dense", "torch/fft"]  # fastest first
        fft = found["torch/fft"]
        assert (fft.low, fft.seconds, fft.high, fft.samples) == pytest.approx((0.5e-3, 1e-3, 2e-3, 0))


def test_live_calls_move_the_prediction_and_narrow_its_bounds(add):
    add(fake("torch/fft", lambda w: 1e6, launches=0))
    manager = fake_manager(mode="learn")
    before = manager.predict(WORK)["torch/fft"]
    measured(manager, seconds=3e-3)
    after = manager.predict(WORK)["torch/fft"]
    assert after.seconds == pytest.approx(3e-3)
    assert after.samples >= 3
    assert after.high / after.low < before.high / before.low
    near = manager.predict(replace(WORK, n=150))["torch/fft"]
    assert near.samples == 0
    assert near.seconds > before.seconds  # a neighbour was three times as slow as its estimate


def test_predict_leaves_out_what_refuses_and_changes_nothing(add):
    add(fake("torch/fft"), fake("xla/fft", refuses=lambda w: "n is odd"))
    manager = fake_manager(mode="learn")
    assert set(manager.predict(WORK)) == {"torch/fft"}
    assert manager.history() == []
    assert not manager.sites()


# explain


def test_explain_marks_the_front_of_seconds_and_bytes(add):
    def kernel(name, seconds, workspace):
        made = fake(name, lambda w: 1e9 * seconds, launches=0)
        made.cost = lambda w: Cost({"matmul": 1e9 * seconds}, 0, 0, workspace=workspace)
        return made

    add(
        kernel("torch/fft", 1e-3, 4000),
        kernel("torch/dense", 2e-3, 5000),  # slower and larger than fft
        kernel("numba/fft", 3e-3, 100),
        kernel("xla/fft", 4e-3, 100),  # as large as numba's, and slower
    )
    found = cells(fake_manager())
    assert {name for name, row in found.items() if row["front"] == "x"} == {"torch/fft", "numba/fft"}


def test_explain_tells_samples_bounds_compilation_and_what_the_choice_rests_on(add):
    ready, jit = fake("torch/fft", lambda w: 1e6, launches=0), fake("numba/fft", lambda w: 2e6, launches=0)
    jit.compiles = lambda w: Compilation(2.5, "code")
    add(ready, jit)
    manager = fake_manager(mode="learn")
    assert cells(manager)["torch/fft"]["reason"] == "chosen, prior: best by the estimate"
    measured(manager, seconds=1.5e-3)
    found = cells(manager)
    assert found["torch/fft"]["chosen"]
    assert found["torch/fft"]["reason"] == "chosen, measured: best by live calls"
    assert int(found["torch/fft"]["samples"]) >= 3
    assert found["torch/fft"]["predicted ms"] == "1.5"
    assert found["torch/fft"]["compile s"] == "-"
    assert found["numba/fft"]["compile s"] == "2.5"
    assert found["numba/fft"]["samples"] == "0"


def test_explain_says_that_a_faster_kernel_waits_for_its_compilation_to_pay(add):
    jit = fake("numba/fft", lambda w: 5e5, launches=0)
    jit.compiles = lambda w: Compilation(2.5, "code")
    add(fake("torch/fft", lambda w: 1e6, launches=0), jit)
    found = cells(fake_manager(mode="learn"))
    assert found["torch/fft"]["chosen"]
    assert found["numba/fft"]["reason"] == "0.5 times the chosen; compiled once that would have paid"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"force_algorithm": "fft"}, "chosen, forced: force_algorithm='fft'"),
        ({"mode": "off"}, "chosen, first: mode off compares nothing"),
        ({"disabled": frozenset({"numba"})}, "chosen, only: the others refuse"),
        ({"objective": "memory"}, "chosen, prior: best by the estimate, for little memory"),
    ],
)
def test_explain_names_the_reason_of_the_choice(add, settings, reason):
    add(fake("torch/fft", lambda w: 1e6), fake("numba/dense", lambda w: 2e6))
    assert cells(fake_manager(**settings))["torch/fft"]["reason"] == reason


def test_explain_tells_wisdom_from_what_was_measured_here(add, tmp_path):
    add(fake("torch/fft", lambda w: 1e6, launches=0), fake("torch/dense", lambda w: 9e6, launches=0))
    first, second = (fake_manager(mode="learn", wisdom=str(tmp_path)) for _ in range(2))
    measured(first, seconds=2e-3)
    assert first.save()
    assert cells(second)["torch/fft"]["reason"] == "chosen, wisdom: best by what an earlier process measured"
    measured(second, seconds=2e-3)
    assert cells(second)["torch/fft"]["reason"] == "chosen, measured: best by live calls"


def test_explain_says_which_kernel_is_being_tried_for_as_long_as_it_is(add):
    add(fake("torch/fft", lambda w: 1e6, launches=0), fake("torch/dense", lambda w: 1.1e6, launches=0))
    manager = fake_manager(mode="learn", explore_fraction=0.5)
    site, tried = manager.site("test_op", "torch"), []
    for _ in range(200):
        plan = site.pick(WORK, lambda: WORK)
        is_said = "explore: being tried" in manager.explain(WORK)
        assert is_said == (plan.reason == "explore")
        tried.append(is_said)
        if plan.due():
            manager.record(plan, 1e-3 if plan.algorithm == "fft" else 5e-3)
    assert any(tried)
    assert not tried[-1]


# recommend


def test_nothing_is_recommended_before_a_call_was_timed(add):
    add(fake("torch/fft", launches=1000))
    manager = fake_manager()
    site = manager.site("test_op", "torch", "layer")
    assert manager.recommend() == []
    site.pick(0, lambda: WORK)
    assert manager.recommend() == []


def test_calls_that_are_mostly_launches_should_have_more_rows(add):
    add(fake("torch/fft", launches=100))  # 100 us, and 0.4 us of work
    manager = fake_manager()
    measured(manager, seconds=1e-4, calls=64)
    (said,) = manager.recommend()
    assert said.startswith("batch more: layer: 64 calls of 4 x 100 x 1 float32, 100% of each 100 us is launches; ")
    assert "with 256 rows a call they are predicted to take 1 / 51 of the time" in said  # 64 * 100.4 / 125.6
    large = fake_manager()
    measured(large, replace(WORK, rows=10_000), seconds=1e-3, calls=64)  # a tenth is launches
    assert large.recommend() == []


def test_calls_of_several_kernels_at_one_site_are_one_case(add):
    add(fake("torch/fft", launches=100), fake("torch/dense", launches=101))
    manager = fake_manager(mode="learn", explore_fraction=0.5)
    measured(manager, seconds=1e-4, calls=64)
    assert len(manager.counters()["picks"]) == 2
    (said,) = manager.recommend()
    assert "64 calls" in said


def test_sites_that_compute_the_same_as_often_should_be_one_call(add):
    add(fake("torch/fft", lambda w: w.samples, launches=2))
    work = replace(WORK, rows=10, n=100)  # 2 us of launches, 1 us of work
    manager = fake_manager()
    for label in ("query", "key", "value"):
        measured(manager, work, seconds=3e-6, calls=9, label=label)
    measured(manager, work, seconds=3e-6, calls=8, label="seldom")
    said = [line for line in manager.recommend() if line.startswith("fuse")]
    assert said == [
        "fuse neighbours: query, key, value compute 10 x 100 x 1 float32 9 times each, 3 us a call; where their "
        "inputs are there at once, one call of 30 rows is predicted to take 5 us in place of 9 us, 1.8 times as fast."
    ]


def test_a_layout_that_is_predicted_to_be_faster_is_recommended_both_ways(add):
    add(fake("torch/fft", lambda w: w.samples * (4 if w.width > 1 else 1), launches=0))
    middle = fake_manager()
    measured(middle, replace(WORK, width=8), calls=3)
    (said,) = middle.recommend()
    assert said.startswith("change layout: layer: 3 calls of 4 x 100 x 8 float32")
    assert "with time last, 4 times as fast" in said
    last = fake_manager()
    measured(last, replace(WORK, rows=32), calls=3)
    assert last.recommend() == []


def test_time_in_the_middle_is_recommended_where_that_is_faster(add):
    add(fake("torch/fft", lambda w: w.samples * (1 if w.width > 1 else 3), launches=0))
    manager = fake_manager()
    measured(manager, replace(WORK, rows=32), calls=3)
    (said,) = manager.recommend()
    assert "with time in the middle, 3 times as fast" in said


@pytest.mark.parametrize(("factor", "count"), [(1.4, 0), (1.6, 1)])
def test_a_package_is_recommended_where_its_kernel_would_be_half_as_fast_again(add, factor, count):
    missing = "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    add(
        fake("torch/fft", lambda w: 1e6, launches=0),
        fake("numba/fft", lambda w: 1e6 / factor, launches=0, refuses=lambda w: missing),
        fake("xla/fft", lambda w: 1e3, launches=0, refuses=lambda w: "n is odd"),  # nothing to install
    )
    manager = fake_manager()
    measured(manager, calls=3)
    said = manager.recommend()
    assert len(said) == count
    assert all(
        line.startswith("install a package: ") and line.endswith(f"1.6 times as fast: {missing}.") for line in said
    )


def planned(workload, forwards):
    plan = Plan(fake("torch/fft"), workload, {"torch/fft": Prediction.within(1e-2, 2.0)}, 0.0, "prior")
    plan.usage.forwards = forwards
    return plan


@pytest.mark.parametrize(
    ("computing", "moving", "times"), [(8e-3, 0.0, "4"), (8e-3, 4e-3, "2"), (8e-3, 7e-3, None), (5e-4, 0.0, None)]
)
def test_more_threads_divide_the_arithmetic_and_not_the_memory_traffic(computing, moving, times):
    work = replace(WORK, threads=1)
    history = [Measurement(work, "torch/fft", 8e-3, "forward")]
    outlook = Expectation("torch/fft", 8e-3, 0.0, computing, moving)
    said = advice([("layer", [planned(work, 10)])], history, lambda w: outlook if w == work else None, cores=8)
    if times is None:
        assert said == []
    else:
        assert len(said) == 1
        assert f"on 4 threads they are predicted to be up to {times} times as fast" in said[0]  # four rows
    two = replace(work, threads=2)
    again = [Measurement(two, "torch/fft", 8e-3, "forward")]
    assert advice([("layer", [planned(two, 10)])], again, lambda w: outlook if w == two else None, cores=8) == []


@pytest.mark.parametrize(("share", "count"), [(0.1, 0), (0.5, 1)])
def test_transfers_that_were_measured_should_not_happen(add, share, count):
    add(fake("torch/fft"))
    manager = fake_manager()
    plan = manager.plan(WORK)
    for _ in range(4):
        manager.record(plan, 0.2, transfer_seconds=0.2 * share)
    assert len(manager.recommend()) == count
    if count:
        assert manager.recommend()[0].startswith("keep on device: test_op by torch/fft spent 50% of the 0.6 s")


def test_what_saves_most_comes_first():
    works = [replace(WORK, n=n) for n in (100, 200)]
    history = [Measurement(work, "torch/fft", 1e-2, "forward") for work in works]
    missing = {"numba/fft": ("Numba is not installed", 1e-3)}
    plans = [("rare", [planned(works[0], 1)]), ("often", [planned(works[1], 100)])]
    said = advice(
        plans, history, lambda w: Expectation("torch/fft", 1e-2, missing=missing) if w in works else None, cores=1
    )
    assert [line.split(": ")[1] for line in said] == ["often", "rare"]


# measurements


def test_a_measurement_knows_its_parts_its_throughput_and_its_efficiency():
    found = Measurement(WORK, "torch/fft", 1.0, "forward", compile_seconds=0.5, transfer_seconds=0.25)
    assert found.execute_seconds == 0.25
    assert found.efficiency == 0.25
    assert found.throughput == WORK.samples / 0.25
    assert not found.cache_hit
    assert Measurement(WORK, "torch/fft", 1.0, "forward").cache_hit


def test_a_first_call_that_compiled_is_remembered_as_what_that_took(add):
    jit = fake("numba/fft", lambda w: 1e6, launches=0)
    missing = [Compilation(2.0, "code"), None]
    jit.compiles = lambda w: missing[0]
    add(jit)
    manager = fake_manager()
    plan = manager.plan(WORK).twin()
    missing.pop(0)
    for seconds in (3.0, 1e-3):
        manager.record(plan, seconds)
    first, second = manager.history()
    assert first.compile_seconds == pytest.approx(3.0 - 1e-3)
    assert not first.cache_hit
    assert second.cache_hit
    other = manager.plan(replace(WORK, n=99)).twin()  # its code is there
    manager.record(other, 3.0)
    assert len(manager.history()) == 2  # a first sample, as ever


def test_what_a_transfer_takes_must_be_a_part_of_the_time(add):
    add(fake("torch/fft"))
    manager = fake_manager()
    message = r"^record\(transfer_seconds=2\.0\): needs a part of the 1\.0 seconds\.$"
    with pytest.raises(ValueError, match=message):
        manager.record(manager.plan(WORK), 1.0, transfer_seconds=2.0)


def test_a_block_is_timed_into_the_history_with_its_parts_and_its_failure():
    manager = fake_manager()
    with manager.profile("load") as block:
        with block.transferring():
            time.sleep(0.002)
        with block.compiling():
            time.sleep(0.001)

    def failing():
        with manager.profile("fail"):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        failing()
    (load,) = manager.history("load")
    assert load.transfer_seconds >= 0.002
    assert load.compile_seconds >= 0.001
    assert load.seconds >= load.transfer_seconds + load.compile_seconds
    assert (load.succeeded, load.workload.op) == (True, "load")
    assert [each.succeeded for each in manager.history("fail")] == [False]
    assert len(manager.history()) == 2
    manager.forget("load")
    assert [each.workload.op for each in manager.history()] == ["fail"]


def test_the_history_is_of_one_operation_where_that_is_asked_for(add):
    add(fake("torch/fft"), fake("torch/fft", op="test_op_2"))
    manager = fake_manager()
    for work in (WORK, Workload("test_op_2", "torch", rows=4, n=100)):
        for _ in range(3):
            manager.record(manager.plan(work), 1.0)
    assert [each.workload.op for each in manager.history("test_op")] == ["test_op"] * 2
    assert len(manager.history()) == 4
