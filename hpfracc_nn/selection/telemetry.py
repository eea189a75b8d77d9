"""Decisions as OpenTelemetry spans, and what the plans count as metrics.

OpenTelemetry is imported here when a process that has imported it decides something. Without it, or without a provider,
nothing is sent. The attributes are this package's own, `hpfracc.*`: the semantic conventions have none for the choice
of a kernel.

Nothing happens at a call that only uses its plan. Metrics are observable: whoever collects them reads the integers that
the plans keep in any case. A histogram takes the times of the calls that are timed for the manager.
"""

import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from hpfracc_nn.errors import printable
from hpfracc_nn.selection import watched
from hpfracc_nn.selection.bucket import key_of
from hpfracc_nn.selection.journal import Choice, Defeat, Event
from hpfracc_nn.selection.limiter import Limiter
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.workload import Direction, Workload

if TYPE_CHECKING:
    from hpfracc_nn.selection.chronicle import Chronicle

NAME = "hpfracc_nn.selection"
SPAN = "hpfracc select"
CANDIDATE = "hpfracc.candidate"
API = "opentelemetry.trace"
BOUNDARIES = (*(step * 10.0**power for power in range(-6, 0) for step in (1, 2, 5)), 1.0)  # seconds
MOST_SPANS = 100  # a second
LONGEST_TEXT = 256  # characters of a name or a message in an attribute
APART = 1.0  # seconds between two spans of one workload, kernel and reason

_log = logging.getLogger(NAME)


class Telemetry:
    """Sends what managers decide to OpenTelemetry.

    Spans are sent in the thread that decided, under its current span, for a first, changed, failed or slow decision; at
    most 100 a second, and one a second for each workload, kernel and reason.

    Args:
        tracer_provider: None is the one of the process, also where it is set later.
        meter_provider: The same.

    Raises:
        ModuleNotFoundError: The API is not installed.
        ImportError: It is older than 1.30.

    Examples:
        >>> telemetry, manager = Telemetry(), BackendManager()
        >>> telemetry.watch(manager)
        >>> # a span, where the process has a provider
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> telemetry.leave(manager)
    """

    def __init__(self, tracer_provider: Any = None, meter_provider: Any = None):
        for name, provider, asked in (
            ("tracer_provider", tracer_provider, "get_tracer"),
            ("meter_provider", meter_provider, "get_meter"),
        ):
            if provider is not None and not hasattr(provider, asked):
                raise TypeError(
                    f"Telemetry({name}={provider!r}): needs a provider; leave it out for OpenTelemetry's own."
                )
        trace, metrics = api("trace"), api("metrics")
        _refuse_old(metrics)
        version = _version()
        self._trace, self._observation = trace, metrics.Observation
        self._tracer = trace.get_tracer(NAME, version, tracer_provider=tracer_provider)
        self._limiter = Limiter(MOST_SPANS, APART)
        self._roll = watched.Roll()
        self._shown: dict[tuple[str, Hashable], float] = {}
        meter = metrics.get_meter(NAME, version, meter_provider=meter_provider)
        self._make_observables(meter)
        self._durations = meter.create_histogram(
            "hpfracc.operation.duration",
            unit="s",
            description="Time of the calls that were timed for the manager, a small part of all.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )

    def watch(self, manager: "Chronicle") -> None:
        """Send what `manager` decides from now on, and what it has counted so far; to no other `Telemetry` any more."""
        with watched.lock:
            if manager.telemetry is self:
                return
            if manager.telemetry is not None:
                manager.telemetry.leave(manager)
            self._roll.add(manager)
            manager.telemetry = self
            manager.journal.listeners.append(self._hear)

    def leave(self, manager: "Chronicle") -> None:
        """Send nothing more of `manager`, if this one sends it."""
        with watched.lock:
            if manager.telemetry is self:
                manager.telemetry = None
                manager.journal.listeners.remove(self._hear)
                self._roll.remove(manager)

    def timed(self, plan: Plan, seconds: float, direction: Direction) -> None:
        """Take the time of a call."""
        self._durations.record(seconds, _attributes(plan.workload.op, plan.kernel.name, direction))

    def _hear(self, event: Event) -> None:
        if isinstance(event, Choice):
            if self._limiter.lets_through((key_of(event.workload), event.kernel, event.reason)):
                self._send_choice(event)
        elif isinstance(event, Defeat) and self._limiter.lets_through((key_of(event.workload), event.kernel, Defeat)):
            self._send_defeat(event)

    def _send_choice(self, event: Choice) -> None:
        end = _nanoseconds(event.time)
        span = self._start(event, end - _nanoseconds(event.elapsed), _of_choice(event))
        if span.is_recording():
            for name, found in event.candidates.items():
                backend, algorithm = name.split("/", 1)
                facts = {
                    "hpfracc.backend": backend,
                    "hpfracc.algorithm": algorithm,
                    "hpfracc.predicted_seconds": found.seconds,
                    "hpfracc.predicted_seconds.low": found.low,
                    "hpfracc.predicted_seconds.high": found.high,
                }
                span.add_event(CANDIDATE, _printable(facts), end)
            if event.error:
                span.add_event("exception", _of_error(event.error, event.message), end)
        span.end(end)

    def _send_defeat(self, event: Defeat) -> None:
        end = _nanoseconds(event.time)
        facts = {**_of_workload(event.workload), **_attributes(event.workload.op, event.kernel, event.direction)}
        span = self._start(event, end, {**facts, "error.type": event.error})
        span.add_event("exception", _of_error(event.error, event.message), end)
        span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, "every kernel failed"))
        span.end(end)

    def _start(self, event: Event, start: int, facts: dict[str, Any]) -> Any:
        kind = self._trace.SpanKind.INTERNAL
        return self._tracer.start_span(SPAN, kind=kind, attributes=_printable(facts), start_time=max(start, 0))

    def _make_observables(self, meter: Any) -> None:
        def counter(name: str, unit: str, description: str, callback: Callable[[], Iterator[Any]]) -> None:
            meter.create_observable_counter(name, [lambda _: list(callback())], unit, description)

        counter("hpfracc.backend.selections", "{selection}", "Consultations of the manager.", self._selections)
        counter("hpfracc.backend.switches", "{switch}", "Kernels that replaced another one.", self._switches)
        counter("hpfracc.backend.failures", "{failure}", "Exceptions and wrong results of kernels.", self._failures)
        counter("hpfracc.selection.exploration.time", "s", "Time that trials cost beyond the best.", self._exploration)
        counter("hpfracc.selection.spans.dropped", "{span}", "Decision spans beyond the limit.", self._dropped)
        meter.create_observable_gauge(
            "hpfracc.backend.quarantined",
            [lambda _: list(self._quarantined())],
            "{workload}",
            "Workloads, sizes or places at which a kernel is left alone.",
        )

    def _selections(self) -> Iterator[Any]:
        found = self._roll.sum(lambda each: each.uses())
        for (op, kernel, direction), count in found.items():
            yield self._grown("selections", count, _attributes(op, kernel, direction))

    def _switches(self) -> Iterator[Any]:
        for (op, kernel), count in self._roll.sum(lambda each: each.switches()).items():
            yield self._grown("switches", count, _attributes(op, kernel))

    def _failures(self) -> Iterator[Any]:
        for (op, kernel, error), count in self._roll.sum(lambda each: each.failures()).items():
            yield self._grown("failures", count, _printable({**_attributes(op, kernel), "error.type": error}))

    def _exploration(self) -> Iterator[Any]:
        yield self._observation(self._roll.explored())

    def _dropped(self) -> Iterator[Any]:
        yield self._observation(self._limiter.dropped)

    def _quarantined(self) -> Iterator[Any]:
        for (op, kernel), count in watched.total(each.quarantined() for each in self._roll).items():
            yield self._observation(count, _attributes(op, kernel))

    def _grown(self, name: str, count: float, facts: dict[str, str]) -> Any:
        """Observe what never falls: a call that moves to another kernel is counted here first, and then there."""
        place = name, tuple(facts.values())
        most = self._shown[place] = max(count, self._shown.get(place, 0))
        return self._observation(most, facts)


_process_wide: Telemetry | None = None
_making = threading.Lock()


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def join(manager: "Chronicle") -> None:
    """Let a manager tell the process's OpenTelemetry, if the process has imported that; else look in `sys.modules`."""
    if API in sys.modules and _can_join():
        process_wide().watch(manager)


@cache
def _can_join() -> bool:
    """Return whether this process's OpenTelemetry can be told; where it is too old, that is said once."""
    try:
        _refuse_old(api("metrics"))
    except ImportError as error:
        _log.warning("%s Nothing is sent.", error)
        return False
    return True


def process_wide() -> Telemetry:
    """Return the one that tells the process's own providers.

    Raises:
        ModuleNotFoundError: The API is not installed.
    """
    global _process_wide
    with _making:
        if _process_wide is None:
            _process_wide = Telemetry()
        return _process_wide


def api(name: str) -> Any:
    """Return a module of the API: "trace" or "metrics"."""
    try:
        from opentelemetry import metrics, trace
    except ModuleNotFoundError as error:
        raise missing(error, "otel") from None
    return {"metrics": metrics, "trace": trace}[name]


def _refuse_old(metrics: Any) -> None:
    """Raise where histograms do not take the bounds of their buckets: before 1.30, in which other names differ too."""
    if "explicit_bucket_boundaries_advisory" not in inspect.signature(metrics.Meter.create_histogram).parameters:
        raise ImportError(
            f"{NAME}.telemetry: needs opentelemetry-api >= 1.30; {_version('opentelemetry-api') or 'an older one'} is "
            "there; pip install --upgrade 'hpfracc-nn[otel]'.",
            name="opentelemetry",
        )


def missing(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return what says how to install what is not there, or `error` itself where that is another package."""
    if (error.name or "").split(".")[0] != "opentelemetry":
        return error
    return ModuleNotFoundError(
        f"{NAME}.telemetry: needs the package {error.name!r}; pip install 'hpfracc-nn[{extra}]'.", name=error.name
    )


def _version(package: str = "hpfracc-nn") -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _of_choice(event: Choice) -> dict[str, Any]:
    facts = {
        **_of_workload(event.workload),
        **_attributes(event.workload.op, event.kernel, event.direction),
        "hpfracc.site": event.site,
        "hpfracc.decision.reason": event.reason,
        "hpfracc.confidence": event.confidence,
        "hpfracc.predicted_seconds": event.seconds,
        "hpfracc.memory.required_bytes": event.workspace,
    }
    if event.previous:
        backend, algorithm = event.previous.split("/", 1)
        facts |= {"hpfracc.previous_backend": backend, "hpfracc.previous_algorithm": algorithm}
    if event.error:
        facts["error.type"] = event.error
    return facts


def _of_workload(workload: Workload) -> dict[str, Any]:
    return {
        "hpfracc.shape": [workload.rows, workload.n, workload.width],
        "hpfracc.dtype": workload.dtype,
        "hpfracc.framework": workload.framework,
        "hpfracc.device": workload.device,
        "hpfracc.needs_gradient": workload.needs_gradient or workload.learns_weights,
    }


def _of_error(kind: str, message: str) -> dict[str, Any]:
    return _printable({"exception.type": kind, "exception.message": message})


def _attributes(op: str, kernel: str, direction: Direction | None = None) -> dict[str, str]:
    """Return what metrics are told apart by: no sizes, of which there may be any number."""
    backend, algorithm = kernel.split("/", 1)
    facts = {"hpfracc.op": op, "hpfracc.backend": backend, "hpfracc.algorithm": algorithm}
    return _printable(facts if direction is None else {**facts, "hpfracc.direction": direction})


def _printable(facts: dict[str, Any]) -> dict[str, Any]:
    """Return attributes whose texts are single lines of no more than `LONGEST_TEXT` characters."""
    return {name: _line(value) if isinstance(value, str) else value for name, value in facts.items()}


def _line(text: str) -> str:
    line = printable(text[: LONGEST_TEXT + 1])
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)
