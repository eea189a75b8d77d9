"""What telemetry must never do: raise into a call, or lose and double what was counted, whatever else goes on."""

import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from hpfracc_nn.selection import listening, otlp
from hpfracc_nn.selection import telemetry as telemetries
from hpfracc_nn.selection.telemetry import Telemetry

pytest.importorskip("opentelemetry.sdk")

from opentelemetry import metrics
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler

from tests.test_telemetry import OP, Heard, Kernels, heard, kernels, manager_of, x

__all__ = ["heard", "kernels"]


@pytest.fixture
def fresh() -> Iterator[None]:
    """Forget what was said once."""
    telemetries._can_join.cache_clear()
    listening._say_once.cache_clear()
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
    assert manager.telemetry is None
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

    monkeypatch.setattr(listening, "is_from_signal", lambda error: isinstance(error, TimeoutError))
    with pytest.raises(TimeoutError):
        listening.tell(listener)


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
    (watched,) = heard.telemetry._roll
    is_open = []
    # A finalizer of the manager runs after its weak references are dead, and before its sites are gone.
    weakref.finalize(manager, lambda: is_open.append((watched.is_over, heard.metrics())))
    del manager
    gc.collect()
    assert not is_open[0][0]
    assert watched.is_over
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
        assert len(manager.journal.listeners) == 1
        assert [each.manager() for each in heard.telemetry._roll].count(manager) == 1


def test_another_telemetry_does_not_make_it_leave(kernels: Kernels, heard: Heard) -> None:
    other, manager = Heard(), manager_of(heard)
    other.telemetry.leave(manager)
    manager.run(OP, x())
    assert len(heard.spans()) == 1
