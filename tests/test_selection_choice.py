"""Which kernel is chosen, and what is said when none can be."""

import re
from dataclasses import astuple, fields, replace
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.selection import (
    Cost,
    CostModel,
    Machine,
    Rates,
    Workload,
    choose,
    kernels,
    probe,
    register,
    register_probe,
    unregister,
    unregister_probe,
)
from hpfracc_nn.selection.registry import _probes
from hpfracc_nn.selection.workload import Key, key_of
from tests.selection_kernels import (
    RATES,
    WORK,
    FakeProbe,
    fake,
    fake_manager,
    is_registered,
    nothing,
    registering,
)

LIFT = "lift the force with configure(force_backend=None, force_algorithm=None)"
ENABLE = "enable one with configure(disable=None)"
WHERE = " or in the environment (HPFRACC_NN_FORCE_*, HPFRACC_NN_DISABLE*, HPFRACC_FORCE_*, HPFRACC_DISABLE_*)."


@pytest.fixture(autouse=True)
def torch_probe(monkeypatch):
    monkeypatch.setitem(_probes, "torch", FakeProbe())
    return probe("torch")


@pytest.fixture
def add():
    with registering() as add_kernels:
        yield add_kernels


def test_the_lowest_estimate_wins_and_changes_with_the_workload(add):
    add(fake("torch/dense", lambda w: w.samples * w.n), fake("torch/fft", lambda w: 1000 * w.samples))
    plans = [fake_manager().plan(replace(WORK, n=n)) for n in (999, 1001)]
    assert [plan.algorithm for plan in plans] == ["dense", "fft"]
    assert plans[0].reason == "prior"


def test_launches_decide_where_there_is_little_work(add):
    add(fake("torch/fft", lambda w: 2 * w.samples), fake("numba/dense", launches=9))
    assert fake_manager().plan(replace(WORK, rows=1)).backend == "torch"
    assert fake_manager().plan(replace(WORK, rows=10_000)).backend == "numba"


def test_of_equal_estimates_the_first_registered_wins(add):
    add(fake("torch/fft"), fake("torch/dense"))
    assert fake_manager().plan(WORK).kernel.name == "torch/fft"


def test_the_estimate_is_launches_plus_the_longer_of_work_and_traffic():
    rates = Rates({"matmul": 10.0, "fft": 5.0, "scan": 1.0, "elementwise": 1.0}, bandwidth=2.0, launch=0.5)
    assert CostModel.seconds(Cost({"matmul": 10.0, "fft": 10.0}, bytes=1.0, launches=2), rates) == 1 + 3
    assert CostModel.seconds(Cost({"matmul": 10.0}, bytes=8.0, launches=2), rates) == 1 + 4


def test_a_plan_lists_its_alternatives_fastest_first(add):
    add(
        fake("torch/dense", lambda w: 3e6, launches=0),
        fake("torch/fft", lambda w: 1e6, launches=0),
        fake("numba/fft", lambda w: 2e6, launches=0),
    )
    plan = fake_manager().plan(WORK)
    assert plan.alternatives == (("numba/fft", pytest.approx(2e-3)), ("torch/dense", pytest.approx(3e-3)))
    assert plan.seconds == pytest.approx(1e-3)
    assert plan.workspace == 2 * WORK.bytes


def test_a_refused_kernel_is_passed_over_and_the_last_one_is_the_only_one(add):
    add(fake("numba/dense", lambda w: 0, refuses=lambda w: "numba is not installed"), fake("torch/fft"))
    plan = fake_manager().plan(WORK)
    assert (plan.kernel.name, plan.reason) == ("torch/fft", "only")


@pytest.mark.parametrize(
    ("force", "expected"),
    [
        ({"force_backend": "numba"}, "numba/dense"),
        ({"force_algorithm": "fft"}, "torch/fft"),
        ({"force_backend": "torch", "force_algorithm": "dense"}, "torch/dense"),
    ],
)
def test_a_force_overrules_the_estimate(add, force, expected):
    add(fake("torch/chunked_scan", lambda w: 0), fake("torch/dense"), fake("torch/fft"), fake("numba/dense"))
    plan = fake_manager(**force).plan(WORK)
    assert (plan.kernel.name, plan.reason) == (expected, "forced")


@pytest.mark.parametrize("disabled", ["numba", "numba/dense"])
def test_a_disabled_kernel_is_not_even_asked(add, disabled):
    add(fake("numba/dense", lambda w: 0, refuses=nothing), fake("torch/fft"))
    assert fake_manager(disabled=frozenset({disabled})).plan(WORK).kernel.name == "torch/fft"


def test_no_kernel_is_an_error_with_every_refusal(add):
    add(
        fake("torch/fft", refuses=lambda w: "the tail weights underflow"),
        fake("torch/dense", refuses=lambda w: f"n={w.n} needs 8 GiB"),
    )
    message = (
        "no kernel for test_op on torch/cuda:0/float32: torch/fft: the tail weights underflow; "
        "torch/dense: n=100 needs 8 GiB; "
        "change what a refusal names, or register a kernel that accepts this workload."
    )
    with pytest.raises(LookupError, match=f"^{re.escape(message)}$"):
        fake_manager().plan(replace(WORK, device="cuda:0"))


def test_an_impossible_force_is_an_error_that_names_it(add):
    add(fake("torch/fft"), fake("numba/dense", refuses=lambda w: "numba is not installed"))
    message = (
        "no kernel for test_op on torch/cpu/float32 with force_backend='numba': "
        f"numba/dense: numba is not installed; {LIFT}{WHERE}"
    )
    with pytest.raises(LookupError, match=f"^{re.escape(message)}$"):
        fake_manager(force_backend="numba").plan(WORK)


def test_a_force_without_any_kernel_names_those_that_there_are(add):
    add(fake("torch/fft"), fake("numba/dense"))
    message = (
        "no kernel for test_op on torch/cpu/float32 with force_backend='numba' and force_algorithm='fft': "
        f"registered are only torch/fft, numba/dense; {LIFT}{WHERE}"
    )
    with pytest.raises(LookupError, match=f"^{re.escape(message)}$"):
        fake_manager(force_backend="numba", force_algorithm="fft").plan(WORK)


@pytest.mark.parametrize(
    ("force", "here", "there"),
    [
        ({"force_backend": "elsewhere"}, ("torch/fft", "prior"), ("elsewhere/loop", "forced")),
        ({"force_algorithm": "loop"}, ("torch/fft", "prior"), ("elsewhere/loop", "forced")),
        (
            {"force_backend": "elsewhere", "force_algorithm": "fft"},
            ("torch/fft", "forced"),
            ("elsewhere/loop", "forced"),
        ),
        ({"force_backend": "torch", "force_algorithm": "loop"}, ("torch/fft", "forced"), None),
    ],
)
def test_a_force_holds_for_the_operations_that_have_such_a_kernel(add, force, here, there):
    add(fake("torch/fft"), fake("torch/dense", lambda w: 1e9))
    add(*(replace(fake(name), op="other_op") for name in ("elsewhere/loop", "torch/dense")))
    manager = fake_manager(**force)
    plan = manager.plan(WORK)
    assert (plan.kernel.name, plan.reason) == here
    elsewhere = replace(WORK, op="other_op")
    if there is None:
        with pytest.raises(LookupError, match="lift the force"):
            manager.plan(elsewhere)
    else:
        plan = manager.plan(elsewhere)
        assert (plan.kernel.name, plan.reason) == there


def test_disabling_everything_is_an_error_that_names_the_way_back(add):
    add(fake("torch/fft"))
    message = (
        "no kernel for test_op on torch/cpu/float32 with force_algorithm='fft': "
        f"torch/fft: disabled by configure() or the environment; {LIFT}, or {ENABLE}{WHERE}"
    )
    with pytest.raises(LookupError, match=f"^{re.escape(message)}$"):
        fake_manager(disabled=frozenset({"torch"}), force_algorithm="fft").plan(WORK)


def test_explain_shows_estimates_refusals_and_what_was_measured(add):
    add(
        fake("torch/dense", lambda w: 3e6, launches=0),
        fake("xla/fft", refuses=lambda w: "jax is not installed"),
        fake("numba/fft"),
        fake("torch/fft", lambda w: 1e6, launches=0),
    )
    chooser = fake_manager(disabled=frozenset({"numba"}))
    plan = chooser.plan(WORK)
    for seconds in (9.0, 2e-3, 4e-3):  # the first is dropped
        chooser.record(plan, seconds, "forward")
    lines = chooser.explain(WORK).splitlines()
    assert lines[0] == (
        "test_op on torch/cpu/float32: rows=4 n=100 width=1 channels=1 exponentials=0 threads=1, no gradient"
    )
    assert re.split(r"  +", lines[2]) == [
        *("*", "torch/fft", "1", "0.5-2", "0", "-", "inf", "arithmetic", "3.12 KiB", "0 B", "x", "2", "-"),
        "chosen, prior: best by the estimate",
    ]
    assert re.split(r"  +", lines[3].strip()) == [
        *("torch/dense", "3", "1.5-6", "0", "-", "inf", "arithmetic", "3.12 KiB", "0 B", "-", "-", "3 times the chosen")
    ]
    assert lines[4].endswith("refused: jax is not installed")
    assert lines[5].endswith("refused: disabled by configure() or the environment")


def test_explain_answers_where_no_kernel_is_left(add):
    add(fake("torch/fft", refuses=lambda w: "n is odd"))
    text = fake_manager().explain(replace(WORK, needs_gradient=True, learns_weights=True))
    assert "gradient in the input and the weights" in text
    assert "refused: n is odd" in text
    assert text.endswith("No kernel is left for this workload.")


OTHER: dict[str, Any] = {
    "op": "test_op_2",
    "framework": "numpy",
    "device": "cuda:1",
    "dtype": "float64",
    "rows": 5,
    "n": 101,
    "width": 2,
    "channels": 4,
    "exponentials": 20,
    "needs_gradient": True,
    "learns_weights": True,
    "threads": 2,
    "in_place": True,
    "converts_to": "float64",
}


@pytest.mark.parametrize("name", [field.name for field in fields(Workload)])
def test_workloads_that_differ_in_one_field_share_no_plan(add, monkeypatch, name):
    other = replace(WORK, **{name: OTHER[name]})
    monkeypatch.setitem(_probes, "numpy", FakeProbe())
    for work in (WORK, other):
        if not is_registered("torch/fft", work.op, work.framework):
            add(fake("torch/fft", op=work.op, framework=work.framework))
    chooser = fake_manager()
    assert chooser.plan(other).workload == other
    assert chooser.plan(WORK).workload == WORK
    assert chooser.plan(WORK) is chooser.plan(replace(WORK))


def test_results_that_go_where_there_is_room_count_for_no_limit(add):
    add(fake("torch/fft"))
    chooser = fake_manager(memory_limit=4000)  # the workspace takes 3200, and the results 1600
    assert chooser.plan(WORK).chunk == 2
    assert chooser.plan(replace(WORK, in_place=True)).chunk is None


def test_a_kernel_that_registers_later_is_considered(add):
    add(fake("torch/fft"))
    chooser = fake_manager()
    assert chooser.plan(WORK).algorithm == "fft"
    add(fake("torch/dense", lambda w: 0))
    assert chooser.plan(WORK).algorithm == "dense"


def test_a_name_can_be_registered_once_only(add):
    add(fake("torch/fft"))
    message = (
        "register('torch/fft'): test_op on torch has a kernel of that name; "
        "unregister it first or choose another algorithm's name."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        register(fake("torch/fft"))


def test_an_unknown_op_or_framework_names_the_known_ones(add):
    add(fake("torch/fft"))
    with pytest.raises(LookupError, match=r"^no kernels for op 'test_oops': needs one of .*test_op.*\.$"):
        kernels("test_oops", "torch")
    with pytest.raises(LookupError, match=r"^no kernels for test_op on framework 'jax': needs one of torch\.$"):
        kernels("test_op", "jax")
    gone = fake("torch/dense")
    with pytest.raises(LookupError, match=r"^unregister\('torch/dense'\): it is not registered"):
        unregister(gone)


def test_choose_reads_rows_n_and_width_from_the_shape(add):
    add(fake("torch/fft"))
    plan = choose("test_op", (2, 3, 50, 7), framework="torch", dim=2, needs_gradient=True, manager=fake_manager())
    assert plan.workload == Workload("test_op", "torch", rows=6, n=50, width=7, needs_gradient=True)
    with pytest.raises(ValueError, match=r"^choose\(dim=2\): needs an axis of shape \(3, 4\)\.$"):
        choose("test_op", (3, 4), framework="torch", dim=2, manager=fake_manager())


def test_rates_are_calibrated_once_for_each_precision(torch_probe):
    machine = Machine()
    for dtype in ("float32", "bfloat16", "float16", "complex64", "float64", "complex128", "float32"):
        assert machine.rates("torch", "cpu", dtype) is RATES
    assert torch_probe.asked == [("cpu", "float32"), ("cpu", "float64")]


def test_shipped_rates_ask_no_probe_and_stand_in_where_there_is_none(add, torch_probe):
    add(fake("torch/fft"))
    unregister_probe("torch")
    with pytest.raises(LookupError, match=r"^no probe for framework 'torch': registered are "):
        unregister_probe("torch")
    try:
        shipped = fake_manager(calibration="shipped").plan(WORK)
        plan = fake_manager().plan(WORK)
        assert (plan.seconds, plan.uncertainty) == (shipped.seconds, shipped.uncertainty)
        with pytest.raises(LookupError, match=r"^no probe for framework 'torch': "):
            Machine().rates("torch", "cpu", "float32")
    finally:
        register_probe(torch_probe)
    assert torch_probe.asked == []


@pytest.mark.parametrize("settings", [{"calibration": "shipped"}, {"deterministic": True}, {"mode": "off"}])
def test_every_device_has_shipped_rates(add, settings):
    add(fake("torch/fft"), fake("torch/dense", lambda w: 1e3 * w.samples))
    manager = fake_manager(**settings)
    for device in ("cpu", "cuda:0", "mps"):
        assert manager.plan(replace(WORK, device=device)).kernel.name == "torch/fft"


def test_numbers_and_truths_of_numpy_become_those_of_python():
    facts: dict[str, Any] = {
        "n": np.prod((10, 10)),
        "threads": np.int64(1),
        "needs_gradient": np.bool_(True),
        "rows": True,
    }
    given = replace(WORK, **facts)
    assert [type(value) for value in astuple(given)] == [type(value) for value in astuple(WORK)]
    assert given == replace(WORK, n=100, needs_gradient=True, rows=1)
    assert Key.parse(key_of(given).text()) == key_of(given)


@pytest.mark.parametrize(
    ("fact", "value", "rule"),
    [
        ("dtype", np.dtype("float64"), "needs a name as text, such as 'cpu' or 'float32'."),
        ("device", None, "needs a name as text, such as 'cpu' or 'float32'."),
        ("n", 1e3, "needs a whole number; int(n) makes one."),
        ("needs_gradient", None, "needs True or False."),
    ],
)
def test_a_fact_of_another_type_is_refused_at_the_door(fact, value, rule):
    with pytest.raises(TypeError, match=f"^{re.escape(f'Workload({fact}={value!r}): {rule}')}$"):
        replace(WORK, **{fact: value})


def test_bad_facts_are_refused_at_the_door():
    with pytest.raises(ValueError, match=r"^Workload\(n=-1\): needs n >= 0\.$"):
        Workload("test_op", "torch", n=-1)
    with pytest.raises(
        ValueError, match=r"^Workload\(dtype='float33'\): needs the name of a dtype, such as 'float32'\.$"
    ):
        Workload("test_op", "torch", dtype="float33")
    message = "Cost(flops={'gemm': ...}): needs a unit among matmul, fft, scan, elementwise."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Cost({"gemm": 1.0}, 0.0, 1)
    with pytest.raises(ValueError, match=r"needs every number finite and not negative\.$"):
        Cost({"fft": float("nan")}, 0.0, 1)
    with pytest.raises(ValueError, match=r"^Rates\(flops=\.\.\.\): needs a rate for scan, elementwise too\.$"):
        Rates({"matmul": 1.0, "fft": 1.0}, 1.0, 1.0)


def test_a_workload_knows_its_size_and_layout():
    work = Workload("test_op", "torch", dtype="bfloat16", rows=2, n=3, width=5, channels=5)
    assert (work.samples, work.itemsize, work.bytes) == (30, 2, 60)
    assert (work.layout, work.shares_weights) == ("time_middle", False)
    assert (WORK.layout, WORK.shares_weights, WORK.itemsize) == ("time_last", True, 4)
