"""What telemetry must never do: raise into a call, or lose and double what was counted, whatever else goes on."""

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from hpfracc_nn.selection import Cost, Kernel, Workload, register, register_operation, unregister, unregister_operation
from hpfracc_nn.selection import recorder as recording
from hpfracc_nn.selection.observe import telemetry as otlp
from hpfracc_nn.selection.observe import telemetry as telemetries
from hpfracc_nn.selection.observe.telemetry import Telemetry

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from tests.selection_kernels import WORK, fake, fake_manager, registering
from tests.test_telemetry import OP, Heard, Kernels, heard, kernels, manager_of, said, x

__all__ = ["heard", "kernels"]


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget what was said once."""
    telemetries._can_join.cache_clear()
    recording._say_once.cache_clear()
    yield
    telemetries._can_join.cache_clear()


# What others raise


def test_with_an_old_api_calls_go_on_and_one_warning_says_so(
    kernels: Kernels, fresh: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def create_histogram(self: Any, name: str, unit: str = "", description: str = "") -> None: ...

    monkeypatch.setattr(metrics.Meter, "create_histogram", create_histogram)
    manager = manager_of()
    for n in range(1, 5):
        manager.run(OP, x(n))
    assert manager.recorder.telemetry is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "needs opentelemetry-api >= 1.30;" in caplog.text
    with pytest.raises(ImportError, match=r"telemetry: needs opentelemetry-api >= 1\.30;"):
        Telemetry()


def test_what_a_sampler_or_a_meter_raises_is_logged_once_and_the_call_goes_on(
    kernels: Kernels, fresh: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(Sampler):
        def should_sample(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        def get_description(self) -> str:
            return "broken"

    def refuses(*_: Any) -> None:
        raise KeyError

    telemetry = Telemetry(TracerProvider(sampler=Broken()))
    monkeypatch.setattr(telemetry._durations, "record", refuses)
    manager = manager_of()
    telemetry.watch(manager)
    for n in (10, 100, 1000):
        assert len(manager.run(OP, x(n))) == n
    assert sorted(record.getMessage().split(";")[0] for record in caplog.records) == [
        "Telemetry._hear raised ZeroDivisionError",
        "Telemetry.timed raised KeyError",
    ]


def test_the_handler_of_a_signal_may_end_what_a_listener_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def listener() -> None:
        raise TimeoutError

    monkeypatch.setattr(recording, "is_from_signal", lambda error: isinstance(error, TimeoutError))
    with pytest.raises(TimeoutError):
        recording.inform(listener)


# What the process's variables say


@pytest.mark.parametrize(
    ("variables", "made"),
    [
        ({}, {"traces", "metrics"}),
        ({"OTEL_TRACES_EXPORTER": "none"}, {"metrics"}),
        ({"OTEL_METRICS_EXPORTER": "None"}, {"traces"}),
        ({"OTEL_SDK_DISABLED": "true"}, set()),
    ],
)
def test_the_variables_of_opentelemetry_say_what_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variables: dict[str, str], made: set[str]
) -> None:
    done = set()
    monkeypatch.setattr(otlp, "_set", set())
    monkeypatch.setattr(otlp, "_is_unset", lambda provider: True)
    monkeypatch.setattr(otlp, "_set_tracer_provider", lambda *_: done.add("traces"))
    monkeypatch.setattr(otlp, "_set_meter_provider", lambda *_: done.add("metrics"))
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_METRICS_EXPORTER", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert otlp.enable_otlp("http://localhost:4318") == done == made
    with caplog.at_level(logging.INFO):
        assert otlp.enable_otlp("http://localhost:4318") == set()
    assert caplog.text.count("an earlier call has said where they go") == len(made)


def test_an_address_names_a_host() -> None:
    with pytest.raises(ValueError, match=r"^enable_otlp\(endpoint='http://'\): needs an address"):
        otlp.enable_otlp("http://")


# Counts while threads come and go

SELECTIONS = "hpfracc.backend.selections"
PLACE = ("made", "numpy", "forward", OP)


def test_a_manager_that_goes_before_its_sites_loses_no_call(
    kernels: Kernels, heard: Heard, request: pytest.FixtureRequest
) -> None:
    # A collection in between would put manager and sites into two generations, and their finalizers in another order.
    gc.collect()
    gc.disable()
    request.addfinalizer(gc.enable)
    manager = manager_of(heard)
    manager.run(OP, x())
    (counts,) = heard.telemetry._watched._alive
    is_open = []
    # A finalizer of the manager runs after its weak references are dead, and before its sites are gone.
    weakref.finalize(manager, lambda: is_open.append((counts.is_final, heard.metrics())))
    del manager
    gc.collect()
    assert not is_open[0][0]
    assert counts.is_final
    assert heard.metrics()[SELECTIONS][PLACE] == 1


def test_a_manager_is_watched_once_however_many_threads_begin(kernels: Kernels, heard: Heard) -> None:
    for _ in range(20):
        manager, barrier = manager_of(), threading.Barrier(4)

        def watch(manager: Any = manager, barrier: Any = barrier) -> None:
            barrier.wait()
            heard.telemetry.watch(manager)

        threads = [threading.Thread(target=watch) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert len(manager.recorder.log.listeners) == 1
        assert heard.telemetry._watched.recorders().count(manager.recorder) == 1


def test_another_telemetry_does_not_make_it_leave(kernels: Kernels, heard: Heard) -> None:
    other, manager = Heard(), manager_of(heard)
    other.telemetry.leave(manager)
    manager.run(OP, x())
    assert len(heard.spans()) == 1


# What names, errors and exporters of others hold

HOSTILE = "\x1b[31mred\r\nline\u202e" + "x" * 100_000


def texts_of(heard: Heard) -> Iterator[str]:
    """Return every text that spans, their events and metrics carry."""
    for span in heard.spans():
        yield span.name
        for facts in (span.attributes, *(event.attributes for event in span.events)):
            yield from (each for pair in facts.items() for each in pair if isinstance(each, str))
    for name, points in heard.metrics().items():
        yield from (name, *(each for place in points for each in place))


@pytest.fixture
def hostile() -> Iterator[tuple[str, Kernel, type[Exception]]]:
    """An operation whose name, kernels and their error's class hold what a terminal acts upon, at any length."""
    op, kind = f"op {HOSTILE}", type(HOSTILE, (RuntimeError,), {})

    def fails(x: Any) -> Any:
        raise kind(HOSTILE)

    register_operation(op, lambda x: Workload(op, "numpy", device=f"cpu {HOSTILE}", n=x.size))
    runs = {f"bad {HOSTILE}": fails, f"good {HOSTILE}": lambda x: x}
    made = [
        register(Kernel(op, "numpy", f"numpy {HOSTILE}", name, run, cost=partial(said, Cost({"fft": 1e6 * k}, 0, 1))))
        for k, (name, run) in enumerate(runs.items(), 1)
    ]
    yield op, made[1], kind
    for kernel in made:
        unregister(kernel)
    unregister_operation(op)


def test_names_and_errors_of_others_are_sent_as_short_lines(
    hostile: tuple[str, Kernel, type[Exception]], heard: Heard
) -> None:
    op, good, kind = hostile
    assert len(manager_of(heard).run(op, x(7))) == 7
    unregister(good)
    with pytest.raises(kind):
        manager_of(heard).run(op, x(9))
    register(good)
    events = [event.name for span in heard.spans() for event in span.events]
    assert events.count("exception") == 2  # of the kernel that another one stood in for, and of the only one
    found = list(texts_of(heard))
    assert sum("\\x1b[31mred\\r\\nline\\u202e" in text for text in found) > 10
    assert all(text.isprintable() for text in found)
    assert max(map(len, found)) <= telemetries.LONGEST_TEXT
    assert encode_spans(heard.spans()).SerializeToString()  # what OTLP sends


def test_exporters_and_processors_that_raise_reach_no_call(
    kernels: Kernels, fresh: None, caplog: pytest.LogCaptureFixture
) -> None:
    class Refuses(SpanExporter):
        def export(self, spans: Any) -> Any:
            raise ConnectionError("spans")

    class Raises(SpanProcessor):
        def __init__(self, at: str):
            self.at = at

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            if self.at == "start":
                raise OSError("start")

        def on_end(self, span: Any) -> None:
            if self.at == "end":
                raise LookupError("end")

    for processor in (SimpleSpanProcessor(Refuses()), Raises("start"), Raises("end")):
        tracing = TracerProvider()
        tracing.add_span_processor(processor)
        manager = manager_of()
        Telemetry(tracing).watch(manager)
        for n in (10, 100, 1000):
            assert len(manager.run(OP, x(n))) == n
    own = [record.getMessage().split(";")[0] for record in caplog.records if record.name.startswith("hpfracc_nn")]
    assert sorted(own) == ["Telemetry._hear raised LookupError", "Telemetry._hear raised OSError"]


def test_a_manager_is_watched_before_its_first_decision(monkeypatch):
    manager = fake_manager(mode="learn", calibration="shipped")
    seen: list[int] = []
    monkeypatch.setattr(manager.recorder, "_join", lambda recorder: seen.append(len(manager.events())))
    with registering() as add:
        add(fake("torch/fft"), fake("torch/dense"))
        manager.site("test_op", "torch").pick("key", lambda: WORK)
    assert seen[0] == 0 < len(manager.events())
