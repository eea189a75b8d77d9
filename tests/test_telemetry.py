"""What OpenTelemetry hears of the choices: through its SDK in this process, and over HTTP from another one.

The kernels are made up: `run` of each says how long it took, and fails when it is told to.
"""

import contextlib
import importlib
import json
import os
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.selection import (
    BackendManager,
    Cost,
    Kernel,
    Settings,
    Workload,
    register,
    register_operation,
    unregister,
    unregister_operation,
)
from hpfracc_nn.selection.observe import telemetry as telemetries
from hpfracc_nn.selection.observe.telemetry import RateLimiter, Telemetry, enable_otlp

pytest.importorskip("opentelemetry.sdk")
pytest.importorskip("opentelemetry.proto")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from tests.otlp_receiver import attributes, receiving

ROOT = Path(__file__).parents[1]
OP = "telemetry_op"
MADE = "numpy/made", "numpy/other"


class Kernels:
    """Two kernels of one operation, that count their calls and fail on demand."""

    def __init__(self) -> None:
        self.fails: set[str] = set()
        self.calls = dict.fromkeys(MADE, 0)

    def run(self, name: str, x: np.ndarray) -> np.ndarray:
        self.calls[name] += 1
        if name in self.fails:
            raise RuntimeError("boom")
        return x


def said(cost: Cost, workload: Workload) -> Cost:
    return cost


@pytest.fixture
def kernels() -> Iterator[Kernels]:
    made = Kernels()
    register_operation(OP, lambda x: Workload(OP, "numpy", dtype=x.dtype.name, n=x.size))
    added = []
    for speed, name in enumerate(MADE, 1):
        backend, algorithm = name.split("/")
        cost = Cost({"elementwise": 1e6 * speed}, 0, 1, workspace=100.0)
        run, costs = partial(made.run, name), partial(said, cost)
        added.append(register(Kernel(OP, "numpy", backend, algorithm, run, cost=costs)))
    yield made
    for kernel in added:
        unregister(kernel)
    unregister_operation(OP)


class Heard:
    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracing = TracerProvider()
        tracing.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer_provider = tracing
        self.telemetry = Telemetry(tracing, MeterProvider([self.reader]))

    def spans(self) -> Any:
        return self.exporter.get_finished_spans()

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        data = self.reader.get_metrics_data()
        for resource in [] if data is None else data.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        place = tuple(str(value) for _, value in sorted(dict(point.attributes or {}).items()))
                        value = point.count if hasattr(point, "count") else point.value
                        found.setdefault(metric.name, {})[place] = value
        return found


@pytest.fixture
def heard() -> Heard:
    return Heard()


def manager_of(heard: Heard | None = None, **settings: Any) -> BackendManager:
    made = BackendManager(Settings(**{"mode": "prior", "wisdom": "off", "calibration": "shipped", **settings}))
    if heard is not None:
        heard.telemetry.watch(made)
    return made


def x(n: int = 100) -> np.ndarray:
    return np.ones(n, dtype=np.float32)


# Spans


def test_the_first_decision_is_a_span_with_all_that_led_to_it(kernels: Kernels, heard: Heard) -> None:
    manager = manager_of(heard)
    manager.run(OP, x())
    (span,) = heard.spans()
    assert (span.name, span.kind.name, span.status.status_code) == ("hpfracc select", "INTERNAL", StatusCode.UNSET)
    assert span.instrumentation_scope.name == "hpfracc_nn.selection"
    facts = dict(span.attributes)
    seconds = manager.predict(Workload(OP, "numpy", n=100))[MADE[0]].seconds
    assert facts.pop("hpfracc.predicted_seconds") == pytest.approx(seconds)
    # Twice the seconds and either known to a factor: Phi(ln 2 / hypot(d, d)) with d = ln(uncertainty) / 2.
    assert 0.5 < facts.pop("hpfracc.confidence") < 1
    assert facts == {
        "hpfracc.op": OP,
        "hpfracc.backend": "numpy",
        "hpfracc.algorithm": "made",
        "hpfracc.direction": "forward",
        "hpfracc.site": "run",
        "hpfracc.decision.reason": "prior",
        "hpfracc.shape": (1, 100, 1),
        "hpfracc.dtype": "float32",
        "hpfracc.framework": "numpy",
        "hpfracc.device": "cpu",
        "hpfracc.needs_gradient": False,
        "hpfracc.memory.required_bytes": 100.0,
    }
    assert [event.name for event in span.events] == ["hpfracc.candidate"] * 2
    assert [event.attributes["hpfracc.algorithm"] for event in span.events] == ["made", "other"]
    low, high = (span.events[0].attributes[f"hpfracc.predicted_seconds.{end}"] for end in ("low", "high"))
    assert low < seconds < high
    assert 0 <= span.end_time - span.start_time < 1e9
    assert abs(span.end_time - time.time_ns()) < 60e9


def test_calls_that_change_nothing_send_nothing(
    kernels: Kernels, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpfracc_nn.selection.recorder.SLOW", 10.0)  # a busy machine's pauses aside
    manager = manager_of(heard)
    for _ in range(3000):
        manager.run(OP, x())
    assert len(heard.spans()) == 1


def test_a_slow_decision_is_a_span(kernels: Kernels, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    heard.telemetry._limiter = RateLimiter(100, 0.0)
    monkeypatch.setattr("hpfracc_nn.selection.recorder.SLOW", 0.0)
    manager = manager_of(heard)
    for _ in range(300):  # the plan is looked at again after 256
        manager.run(OP, x())
    assert len(heard.spans()) == 2


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "prior"),
        ({"force_algorithm": "other"}, "forced"),
        ({"deterministic": True}, "deterministic"),
        ({"mode": "off"}, "first"),
        ({"disabled": frozenset({"numpy/other"})}, "only"),
    ],
)
def test_the_span_says_why(kernels: Kernels, heard: Heard, settings: dict, reason: str) -> None:
    manager_of(heard, **settings).run(OP, x())
    (span,) = heard.spans()
    assert span.attributes["hpfracc.decision.reason"] == reason


def test_a_switch_and_a_trial_name_what_ran_before(kernels: Kernels, heard: Heard) -> None:
    heard.telemetry._limiter = RateLimiter(1000, 0.0)
    manager = manager_of(heard, mode="learn", explore_fraction=0.5)
    # The second kernel takes a tenth of what the first one does: it is tried, and taken.
    for _ in range(200):
        site = manager.shared_site(OP, "numpy", "run")
        work = Workload(OP, "numpy", n=100)
        plan = site.pick(work, lambda: work)  # noqa: B023
        if plan.due():
            manager.record(plan, 1e-2 if plan.kernel.name == MADE[0] else 1e-3)
    facts = [dict(span.attributes) for span in heard.spans()]
    assert facts[0]["hpfracc.decision.reason"] == "prior"
    assert "hpfracc.previous_algorithm" not in facts[0]
    others = [each for each in facts if each.get("hpfracc.previous_algorithm") == "made"]
    assert {each["hpfracc.previous_backend"] for each in others} == {"numpy"}
    assert {each["hpfracc.algorithm"] for each in others} == {"other"}
    assert "explore" in {each["hpfracc.decision.reason"] for each in facts}
    assert heard.metrics()["hpfracc.backend.switches"][("other", "numpy", OP)] == 1
    (explored,) = heard.metrics()["hpfracc.selection.exploration.time"].values()
    assert explored == manager.exploration()[0]


def test_a_kernel_that_fails_is_named_by_the_one_that_stands_in(kernels: Kernels, heard: Heard) -> None:
    manager = manager_of(heard)
    kernels.fails = {MADE[0]}
    manager.run(OP, x())
    span = heard.spans()[1]
    facts = span.attributes
    assert (facts["hpfracc.decision.reason"], facts["error.type"]) == ("fallback", "RuntimeError")
    assert (facts["hpfracc.previous_algorithm"], facts["hpfracc.algorithm"]) == ("made", "other")
    assert span.status.status_code is StatusCode.UNSET  # there is a result
    assert span.events[-1].name == "exception"
    assert span.events[-1].attributes == {"exception.type": "RuntimeError", "exception.message": "boom"}
    found = heard.metrics()
    assert found["hpfracc.backend.failures"] == {("RuntimeError", "made", "numpy", OP): 1}
    assert found["hpfracc.backend.quarantined"] == {("made", "numpy", OP): 1}


def test_only_where_every_kernel_fails_the_span_is_an_error(kernels: Kernels, heard: Heard) -> None:
    kernels.fails = set(MADE)
    with pytest.raises(RuntimeError, match=r"^boom"):
        manager_of(heard).run(OP, x())
    *others, last = heard.spans()
    assert last.status.status_code is StatusCode.ERROR
    assert [event.name for event in last.events] == ["exception"]
    assert all(span.status.status_code is StatusCode.UNSET for span in others)


def test_spans_belong_to_the_span_in_which_the_decision_was_made(kernels: Kernels, heard: Heard) -> None:
    manager = manager_of(heard)
    with heard.tracer_provider.get_tracer("user").start_as_current_span("step") as step:
        manager.run(OP, x())
    assert heard.spans()[0].parent.span_id == step.get_span_context().span_id


def test_in_several_threads_each_decision_belongs_to_its_own_span(kernels: Kernels, heard: Heard) -> None:
    manager, tracer = manager_of(heard), heard.tracer_provider.get_tracer("user")
    heard.telemetry._limiter = RateLimiter(10**6, 0.0)

    def work(number: int) -> None:
        with tracer.start_as_current_span(str(number)):
            for n in range(100 * number, 100 * number + 20):
                manager.run(OP, x(n))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    parents = {span.context.span_id: int(span.name) for span in heard.spans() if span.name.isdigit()}
    decisions = [span for span in heard.spans() if span.name == "hpfracc select"]
    assert len(decisions) == 80
    for span in decisions:
        assert span.attributes["hpfracc.shape"][1] // 100 == parents[span.parent.span_id]


def test_spans_are_few(kernels: Kernels, heard: Heard) -> None:
    manager = manager_of(heard)
    for n in range(1, 130):
        manager.run(OP, x(n))
    sent = len(heard.spans())
    assert sent < 129  # buckets above 32, and one a second for each of them
    (dropped,) = heard.metrics()["hpfracc.selection.spans.dropped"].values()
    assert sent + dropped == 129


def test_the_limiter_lets_through_so_many_a_second() -> None:
    now = [0.0]
    limiter = RateLimiter(most=10, apart=1.0, clock=lambda: now[0])
    assert sum(limiter.lets_through(number) for number in range(50)) == 10
    assert limiter.dropped == 40
    now[0] = 0.5
    assert sum(limiter.lets_through(number) for number in range(100, 150)) == 5
    now[0] = 10.0
    assert [limiter.lets_through("one") for _ in range(3)] == [True, False, False]
    now[0] = 11.0
    assert limiter.lets_through("one")


# Metrics


def test_metrics_read_what_the_plans_have_counted(kernels: Kernels, heard: Heard) -> None:
    manager = manager_of(heard)
    for _ in range(1000):
        manager.run(OP, x())
    found = heard.metrics()
    assert found["hpfracc.backend.selections"][("made", "numpy", "forward", OP)] == 1000
    timed = found["hpfracc.operation.duration"][("made", "numpy", "forward", OP)]
    assert 0 < timed < 20  # the sampled calls: 1, 2, 4, ... 256 apart


def test_counts_stay_when_their_manager_is_gone(kernels: Kernels, heard: Heard) -> None:
    manager = manager_of(heard)
    manager.run(OP, x())
    place = ("made", "numpy", "forward", OP)
    assert heard.metrics()["hpfracc.backend.selections"][place] == 1
    del manager
    importlib.import_module("gc").collect()
    assert heard.metrics()["hpfracc.backend.selections"][place] == 1
    manager_of(heard).run(OP, x())
    assert heard.metrics()["hpfracc.backend.selections"][place] == 2
    assert len(heard.telemetry._watched._alive) == 1  # of the other only the counts are kept


def test_a_manager_tells_one_telemetry_at_a_time(kernels: Kernels, heard: Heard) -> None:
    other, manager = Heard(), manager_of(heard)
    other.telemetry.watch(manager)
    other.telemetry.watch(manager)
    manager.run(OP, x())
    assert (len(heard.spans()), len(other.spans())) == (0, 1)
    other.telemetry.leave(manager)
    assert "hpfracc.backend.selections" not in other.metrics()


# Without the API, without a provider, with the exporter down, over HTTP


def program(name: str, *arguments: str, **environment: str) -> Any:
    command = [sys.executable, "-m", "tests.telemetry_programs", name, *arguments]
    settings = {"HPFRACC_NN_SELECTION": "learn", "HPFRACC_NN_WISDOM": "off", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_the_api_all_works_and_nothing_imports_it() -> None:
    found = program("without_the_api")
    assert found["calls"] == 300
    assert found["said"] == (
        "hpfracc_nn.selection.telemetry: needs the package 'opentelemetry'; pip install 'hpfracc-nn[otlp]'."
    )


def test_with_the_api_alone_nothing_is_sent_and_nothing_fails() -> None:
    assert program("with_the_api_alone") == {"calls": 300, "joined": True, "sdk": False}


@pytest.mark.slow
def test_a_process_of_its_own_providers_keeps_them() -> None:
    assert program("own_providers", "http://127.0.0.1:9") == {"made": [], "kept": True, "spans": 1}


def test_over_http_a_collector_gets_the_spans_and_metrics_of_a_process() -> None:
    with receiving() as received:
        program("sending", received.endpoint)
    spans = received.spans()
    reasons = {attributes(span)["hpfracc.decision.reason"] for span in spans}
    assert {"fallback", "measured"} <= reasons
    failed = next(span for span in spans if attributes(span)["hpfracc.decision.reason"] == "fallback")
    assert attributes(failed)["error.type"] == "RuntimeError"
    assert attributes(failed)["hpfracc.shape"] == [1, 100, 1]
    assert "hpfracc.candidate" in {event.name for event in failed.events}
    assert sum(received.points("hpfracc.backend.selections").values()) == 600
    assert sum(received.points("hpfracc.backend.failures").values()) >= 1
    assert sum(received.points("hpfracc.operation.duration").values()) > 3
    assert received.points("hpfracc.backend.quarantined")


@pytest.mark.slow
def test_a_collector_that_is_down_neither_delays_nor_fails_a_call() -> None:
    found = program("sending", "http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    assert found["calls"] == 600
    assert found["longest"] < 1.0  # a call takes microseconds; a connection that blocked would take the time-out


@pytest.mark.slow
def test_a_collector_that_drips_does_not_hold_the_end_of_the_process() -> None:
    done = threading.Event()

    class Dripping(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nX-Waiting: " + b"." * 1000:
                    self.request.sendall(bytes([byte]))
                    if done.wait(1.0):  # never as long as a time-out of a read
                        return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Dripping) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            sys.executable,
            "-m",
            "tests.telemetry_programs",
            "dripped",
            f"http://127.0.0.1:{server.server_address[1]}",
        ]
        started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == b"ending\n"
            assert started.wait(timeout=30) == 0  # 5 s are allowed to it; it was a minute
        finally:
            started.kill()
            started.communicate()
            done.set()
            server.shutdown()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_process_goes_on_telling() -> None:
    assert program("fork") == {"parent": 1, "child": 1}


def test_an_endpoint_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^enable_otlp\(endpoint='localhost:4317'\): needs an address such as"):
        enable_otlp("localhost:4317")
    with pytest.raises(ValueError, match=r"^enable_otlp\(interval=0\): needs seconds > 0\.$"):
        enable_otlp("http://localhost:4318", interval=0)
    with pytest.raises(ValueError, match=r"^enable_otlp\(exit_seconds=-1\): needs seconds >= 0\.$"):
        enable_otlp("http://localhost:4318", exit_seconds=-1)


def test_a_missing_package_is_named_with_its_extra() -> None:
    error = telemetries.missing(ModuleNotFoundError(name="opentelemetry.sdk"), "otlp")
    assert str(error).endswith("needs the package 'opentelemetry.sdk'; pip install 'hpfracc-nn[otlp]'.")
    other = ModuleNotFoundError(name="requests")
    assert telemetries.missing(other, "otlp") is other
