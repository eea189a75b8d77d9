"""A collector for tests: takes OTLP over HTTP and decodes it with OpenTelemetry's own protobuf classes."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

WAYS: dict[str, tuple[Any, Any]] = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse),
}


class Received:
    """What has arrived, by the path it was sent to."""

    def __init__(self, port: int):
        self.endpoint = f"http://127.0.0.1:{port}"
        self.requests: list[tuple[str, Any]] = []

    def spans(self) -> list[Any]:
        return [
            span
            for path, request in self.requests
            if path == "/v1/traces"
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def points(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the last value of each series of a metric, by its attributes' values in the order of their names."""
        found = {}
        for path, request in self.requests:
            if path != "/v1/metrics":
                continue
            for resource in request.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        if metric.name == name:
                            found.update(_points(metric))
        return found


def attributes(thing: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in thing.attributes}


@contextmanager
def receiving() -> Iterator[Received]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request, response = WAYS[self.path]
            received.requests.append((self.path, request.FromString(body)))
            answer = response().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received = Received(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _points(metric: Any) -> dict[tuple[str, ...], float]:
    kind = metric.WhichOneof("data")
    found = {}
    for point in getattr(metric, kind).data_points:
        facts = attributes(point)
        place = tuple(str(facts[name]) for name in sorted(facts))
        if kind == "histogram":
            found[place] = point.count
        else:
            found[place] = point.as_double if point.WhichOneof("value") == "as_double" else point.as_int
    return found


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
