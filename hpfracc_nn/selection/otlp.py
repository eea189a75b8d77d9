"""Providers of OpenTelemetry that send by OTLP, for a process that has none."""

import atexit
import logging
import os
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from hpfracc_nn.selection.telemetry import NAME, api, missing

KINDS = "metrics", "traces"

_log = logging.getLogger(NAME)
_setting = threading.Lock()
_set: set[str] = set()  # kinds whose provider was made here
EXIT_SECONDS = 5.0


class _Shutdown:
    """The end of a provider: it sends what is left in a thread that waits for that, since the end may start none."""

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
    """Send what is left, and wait for that only so long: a server that answers slowly must not hold the process."""
    started = time.monotonic()
    for each in _shutdowns:
        each.asked.set()
    for each in _shutdowns:
        each.thread.join(max(0.0, each.seconds - (time.monotonic() - started)))


def _after_fork() -> None:
    global _setting
    _setting = threading.Lock()
    for each in _shutdowns:  # the child has none of its parent's threads
        each.start()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
    """Return why no provider is made for a kind of signal, "" where one is."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return "OTEL_SDK_DISABLED is true"
    variable = f"OTEL_{kind.upper()}_EXPORTER"
    if os.environ.get(variable, "").strip().lower() == "none":
        return f"{variable} is none"
    if kind in _set:
        return "an earlier call has said where they go"
    provider = api("trace").get_tracer_provider() if kind == "traces" else api("metrics").get_meter_provider()
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
    """Return the address for one kind of signal, as OpenTelemetry makes it of that for all."""
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{kind}"


def _is_unset(provider: Any) -> bool:
    """Whether the API's own stand-in answers; the one for metrics has no public name."""
    return "Proxy" in type(provider).__name__
