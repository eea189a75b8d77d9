"""Decisions as OpenTelemetry spans, and what the plans count as metrics.

OpenTelemetry is imported here when a process that has imported it decides something. Without it, or without a provider,
nothing is sent. The attributes are this package's own, `hpfracc.*`: the semantic conventions have none for the choice
of a kernel.

Nothing happens at a call that only uses its plan. Metrics are observable: whoever collects them reads the integers that
the plans' usages keep in any case. A histogram takes the times of the calls that are timed for the manager.
"""

import atexit
import inspect
import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import cache
from importlib import metadata
from typing import Any, Protocol
from urllib.parse import urlsplit

from hpfracc_nn.errors import printable
from hpfracc_nn.forks import in_children
from hpfracc_nn.selection.plan import Counts, Plan, Use
from hpfracc_nn.selection.recorder import Choice, Defeat, Event, ManagerCounts, Recorder, summed
from hpfracc_nn.selection.workload import Direction, Workload, key_of

MOST_KNOWN = 4096


class RateLimiter:
    """A limit to how many things pass in a second, and how soon an equal one may follow.

    Args:
        most: How many things pass in a second.
        apart: Seconds between two equal things.
        clock: Seconds that never go back.

    Attributes:
        dropped: How many were not let through.

    Examples:
        >>> limiter = RateLimiter(most=100, apart=1.0)
        >>> limiter.lets_through("one"), limiter.lets_through("one"), limiter.dropped
        (True, False, 1)
    """

    def __init__(self, most: int, apart: float, clock: Callable[[], float] = time.monotonic):
        self._most, self._apart, self._clock = most, apart, clock
        self._left, self._since = float(most), clock()
        self._last: dict[Hashable, float] = {}
        self.dropped = 0

    def lets_through(self, thing: Hashable) -> bool:
        """Return whether `thing` may pass now, and count it; threads may race here, and let one more through."""
        now = self._clock()
        self._left = min(float(self._most), self._left + self._most * (now - self._since))
        self._since = now
        if self._left < 1 or now - self._last.get(thing, -self._apart) < self._apart:
            self.dropped += 1
            return False
        self._left -= 1
        if len(self._last) >= MOST_KNOWN:
            self._last.clear()
        self._last[thing] = now
        return True


_watching = threading.RLock()  # guards what is watched; no manager's lock is waited for inside


_making = threading.Lock()  # guards the process-wide Telemetry
_setting = threading.Lock()  # guards the process's providers


@in_children
def _after_fork() -> None:
    global _watching, _making, _setting
    _watching, _making, _setting = threading.RLock(), threading.Lock(), threading.Lock()
    for each in _shutdowns:  # the child has none of its parent's threads
        each.start()


class Observed(Protocol):
    """What telemetry watches: a BackendManager, by its recorder."""

    recorder: Recorder


class WatchedManagers:
    """The managers whose counts are read as metrics, each once, and the counts of managers that are gone."""

    def __init__(self) -> None:
        self._alive: dict[ManagerCounts, weakref.ref[Recorder]] = {}
        self._gone = ManagerCounts()

    def add(self, recorder: Recorder) -> None:
        """Read the counts of this recorder's manager from now on."""
        with _watching:
            self._settle()
            self._alive[recorder.counts] = weakref.ref(recorder)

    def remove(self, recorder: Recorder) -> None:
        """Read the counts of this recorder's manager no more."""
        with _watching:
            self._alive.pop(recorder.counts, None)

    def recorders(self) -> list[Recorder]:
        """Return the recorders of the managers that are alive."""
        with _watching:
            return [found for each in self._alive.values() if (found := each()) is not None]

    def counted(self) -> tuple[dict[Use, Counts], Counter[tuple[str, str, str]], float]:
        """Return the counts of all managers, also those that are gone: totals, failures, and seconds of trials."""
        with _watching:
            self._settle()
            every = [self._gone, *self._alive]
            totals = summed(each.totals().items() for each in every)
            failures = sum((each.failures for each in every), Counter[tuple[str, str, str]]())
            return totals, failures, sum(each.explored for each in every)

    def _settle(self) -> None:
        """Add up the counts of managers that no longer exist, which go before the last of their sites."""
        for counts in [each for each, recorder in self._alive.items() if recorder() is None and each.is_final]:
            del self._alive[counts]
            self._gone.absorb(counts)


NAME = "hpfracc_nn.selection"
SPAN = "hpfracc select"
CANDIDATE = "hpfracc.candidate"
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
        tracer_provider: None is the provider of the process, also where that is set later.
        meter_provider: None is the provider of the process, also where that is set later.

    Raises:
        ModuleNotFoundError: OpenTelemetry's API is not installed.
        ImportError: The API is older than 1.30.

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
        self._limiter = RateLimiter(MOST_SPANS, APART)
        self._watched = WatchedManagers()
        self._shown: dict[tuple[str, Hashable], float] = {}
        meter = metrics.get_meter(NAME, version, meter_provider=meter_provider)
        self._make_observables(meter)
        self._durations = meter.create_histogram(
            "hpfracc.operation.duration",
            unit="s",
            description="Time of the calls that were timed for the manager, a small part of all.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )

    def watch(self, manager: Observed) -> None:
        """Send what `manager` decides from now on, and what it has counted so far; to no other `Telemetry` any more."""
        self._watch(manager.recorder)

    def leave(self, manager: Observed) -> None:
        """Send nothing more of `manager`, if this Telemetry watches it."""
        self._leave(manager.recorder)

    def _watch(self, recorder: Recorder) -> None:
        with _watching:
            if recorder.telemetry is self:
                return
            if recorder.telemetry is not None:
                recorder.telemetry._leave(recorder)
            self._watched.add(recorder)
            recorder.telemetry = self
            recorder.log.listeners.append(self._hear)

    def _leave(self, recorder: Recorder) -> None:
        with _watching:
            if recorder.telemetry is self:
                recorder.telemetry = None
                recorder.log.listeners.remove(self._hear)
                self._watched.remove(recorder)

    def timed(self, plan: Plan, seconds: float, direction: Direction) -> None:
        """Record the time of a call in the histogram."""
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
        for (op, kernel), counts in self._watched.counted()[0].items():
            yield self._grown("selections", counts.forwards, _attributes(op, kernel, "forward"))
            yield self._grown("selections", counts.backwards, _attributes(op, kernel, "backward"))

    def _switches(self) -> Iterator[Any]:
        for (op, kernel), counts in self._watched.counted()[0].items():
            yield self._grown("switches", counts.switches, _attributes(op, kernel))

    def _failures(self) -> Iterator[Any]:
        for (op, kernel, error), count in self._watched.counted()[1].items():
            yield self._grown("failures", count, _printable({**_attributes(op, kernel), "error.type": error}))

    def _exploration(self) -> Iterator[Any]:
        yield self._observation(self._watched.counted()[2])

    def _dropped(self) -> Iterator[Any]:
        yield self._observation(self._limiter.dropped)

    def _quarantined(self) -> Iterator[Any]:
        found = sum((each.quarantined() for each in self._watched.recorders()), Counter[tuple[str, str]]())
        for (op, kernel), count in found.items():
            yield self._observation(count, _attributes(op, kernel))

    def _grown(self, name: str, count: float, facts: dict[str, str]) -> Any:
        """Return an observation of a counter that never falls.

        A call that moves to another kernel is counted for the first one before it is counted for the second; what was
        reported for the first stays.

        Args:
            name: Name of the metric.
            count: The value now.
            facts: The attributes of the metric.
        """
        place = name, tuple(facts.values())
        most = self._shown[place] = max(count, self._shown.get(place, 0))
        return self._observation(most, facts)


_process_wide: Telemetry | None = None


def join(recorder: Recorder) -> None:
    """Let the process-wide Telemetry watch a manager, if this process's OpenTelemetry is not too old."""
    if _can_join():
        process_wide()._watch(recorder)


@cache
def _can_join() -> bool:
    """Return whether this process's OpenTelemetry is recent enough; log once if it is not."""
    try:
        _refuse_old(api("metrics"))
    except ImportError as error:
        _log.warning("%s Nothing is sent.", error)
        return False
    return True


def process_wide() -> Telemetry:
    """Return the Telemetry that sends to the process's own providers.

    Raises:
        ModuleNotFoundError: The API is not installed.
    """
    global _process_wide
    with _making:
        if _process_wide is None:
            _process_wide = Telemetry()
        return _process_wide


def api(name: str, extra: str = "otel") -> Any:
    """Return a module of the API, "trace" or "metrics"; raise an error that names `extra` where it is not installed."""
    try:
        from opentelemetry import metrics, trace
    except ModuleNotFoundError as error:
        raise missing(error, extra) from None
    return {"metrics": metrics, "trace": trace}[name]


def _refuse_old(metrics: Any) -> None:
    """Raise ImportError if the API is older than 1.30, from which on histograms take the bounds of their buckets.

    Args:
        metrics: The module `opentelemetry.metrics`.
    """
    if "explicit_bucket_boundaries_advisory" not in inspect.signature(metrics.Meter.create_histogram).parameters:
        raise ImportError(
            f"{NAME}.telemetry: needs opentelemetry-api >= 1.30; {_version('opentelemetry-api') or 'an older one'} is "
            "there; pip install --upgrade 'hpfracc-nn[otel]'.",
            name="opentelemetry",
        )


def missing(error: ModuleNotFoundError, extra: str) -> ModuleNotFoundError:
    """Return an error that says which extra brings the missing package, or `error` where it is not OpenTelemetry's."""
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
    """Return the attributes of a metric; sizes are left out, because there may be any number of them."""
    backend, algorithm = kernel.split("/", 1)
    facts = {"hpfracc.op": op, "hpfracc.backend": backend, "hpfracc.algorithm": algorithm}
    return _printable(facts if direction is None else {**facts, "hpfracc.direction": direction})


def _printable(facts: dict[str, Any]) -> dict[str, Any]:
    """Return attributes whose texts are cut to single lines of at most `LONGEST_TEXT` characters."""
    return {name: _line(value) if isinstance(value, str) else value for name, value in facts.items()}


def _line(text: str) -> str:
    line = printable(text[: LONGEST_TEXT + 1])
    return line if len(line) <= LONGEST_TEXT else f"{line[: LONGEST_TEXT - 3]}..."


def _nanoseconds(seconds: float) -> int:
    return int(1e9 * seconds)


KINDS = "metrics", "traces"

_set: set[str] = set()  # kinds whose provider was made here
EXIT_SECONDS = 5.0


class _Shutdown:
    """The end of an OpenTelemetry provider, which sends what is left: a thread that waits until it is due.

    The thread is started early, because a process that ends may start none.

    Args:
        provider: The provider, whose `shutdown` the thread calls.
        seconds: How long the end of the process waits for that.
    """

    def __init__(self, provider: Any, seconds: float):
        self.provider, self.seconds = provider, seconds
        self.start()

    def start(self) -> None:
        self.asked = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True, name="hpfracc_nn-otlp-shutdown")
        self.thread.start()

    def _run(self) -> None:
        self.asked.wait()
        self.provider.shutdown()


_shutdowns: list[_Shutdown] = []


@atexit.register
def _shut_down() -> None:
    """Let the providers send what is left, each within its number of seconds.

    A server that answers slowly must not hold up the end of the process.
    """
    started = time.monotonic()
    for each in _shutdowns:
        each.asked.set()
    for each in _shutdowns:
        each.thread.join(max(0.0, each.seconds - (time.monotonic() - started)))


def enable_otlp(
    endpoint: str | None = None, *, interval: float | None = None, exit_seconds: float = EXIT_SECONDS
) -> set[str]:
    """Send the decisions of this process by OTLP over HTTP, where nobody has said yet where spans and metrics go.

    Providers of OpenTelemetry are made and set for the whole process, of each kind only where there is none: what the
    process has set stays, and gets the decisions anyway. Spans and metrics leave in threads of their own; a collector
    that is down delays no call. The end of the process waits `exit_seconds` at most for what is not sent yet, whatever
    the collector does; the rest is lost. The variables of OpenTelemetry hold, such as OTEL_SERVICE_NAME; with
    OTEL_SDK_DISABLED=true nothing is set, nor spans with OTEL_TRACES_EXPORTER=none, nor metrics with
    OTEL_METRICS_EXPORTER=none.

    Args:
        endpoint: Where the collector listens, such as "http://localhost:4318"; None asks OTEL_EXPORTER_OTLP_ENDPOINT.
        interval: Seconds between two exports of metrics; None asks OTEL_METRIC_EXPORT_INTERVAL, 60 by default.
        exit_seconds: How long the end of the process may wait, for both kinds together.

    Returns:
        What this call has set: "traces", "metrics", both, or nothing, because the process has its own providers, an
        earlier call has set them, or the variables say so. What was left out is logged at level info.

    Raises:
        ModuleNotFoundError: The SDK or the exporter is not installed.
        ValueError: `endpoint` is no address of HTTP, `interval` is not positive, or `exit_seconds` is negative.

    Examples:
        >>> kinds = enable_otlp("http://localhost:4318", interval=10.0)
        >>> enable_otlp()  # an earlier call, or a variable, has said where they go
        set()
    """
    if endpoint is not None and not _is_address(endpoint):
        raise ValueError(f"enable_otlp(endpoint={endpoint!r}): needs an address such as 'http://localhost:4318'.")
    if interval is not None and not interval > 0:
        raise ValueError(f"enable_otlp(interval={interval!r}): needs seconds > 0.")
    if not 0 <= exit_seconds < threading.TIMEOUT_MAX:
        raise ValueError(f"enable_otlp(exit_seconds={exit_seconds!r}): needs seconds >= 0.")
    with _setting:
        left = {kind: _why_not(kind) for kind in KINDS}
        if not left["traces"]:
            _set_tracer_provider(endpoint, exit_seconds)
        if not left["metrics"]:
            _set_meter_provider(endpoint, interval, exit_seconds)
        made = {kind for kind in KINDS if not left[kind]}
        _set.update(made)
    for kind in KINDS:
        if left[kind]:
            _log.info("enable_otlp: %s are left as they are: %s.", kind, left[kind])
    return made


def _is_address(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _why_not(kind: str) -> str:
    """Return why no provider is made for "traces" or "metrics" (`kind`), "" if one is."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED is true"
    variable = f"OTEL_{kind.upper()}_EXPORTER"
    if os.environ.get(variable, "").strip().lower() == "none":
        return f"{variable} is none"
    if kind in _set:
        return "an earlier call has said where they go"
    if kind == "traces":
        provider = api("trace", "otlp").get_tracer_provider()
    else:
        provider = api("metrics", "otlp").get_meter_provider()
    return "" if _is_unset(provider) else "they go where the process's own provider sends them"


def _set_tracer_provider(endpoint: str | None, exit_seconds: float) -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise missing(error, "otlp") from None
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(_signal(endpoint, "traces"))))
    api("trace").set_tracer_provider(provider)
    _shutdowns.append(_Shutdown(provider, exit_seconds))


def _set_meter_provider(endpoint: str | None, interval: float | None, exit_seconds: float) -> None:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ModuleNotFoundError as error:
        raise missing(error, "otlp") from None
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(_signal(endpoint, "metrics")),
        export_interval_millis=None if interval is None else 1e3 * interval,
    )
    provider = MeterProvider([reader], shutdown_on_exit=False)
    api("metrics").set_meter_provider(provider)
    _shutdowns.append(_Shutdown(provider, exit_seconds))


def _signal(endpoint: str | None, kind: str) -> str | None:
    """Return the address for "traces" or "metrics" (`kind`), which OpenTelemetry derives from the common one."""
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{kind}"


def _is_unset(provider: Any) -> bool:
    """Return whether no provider was set, so that the API's own proxy is there.

    It is recognised by its name, because the proxy for metrics is not public.
    """
    return "Proxy" in type(provider).__name__
