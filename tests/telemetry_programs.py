"""Programs that the tests of telemetry run in processes of their own: providers can be set once in each."""

import json
import os
import sys
import time
from typing import Any

import numpy as np

from hpfracc_nn.selection import (
    BackendManager,
    Cost,
    Kernel,
    Settings,
    Workload,
    default_manager,
    enable_otlp,
    register,
    register_operation,
)
from hpfracc_nn.selection.observe import telemetry

OP = "telemetry_op"
PAUSES = {"slow": 4e-4, "fast": 1e-4}
failing: set[str] = set()


def kernel(algorithm: str, flops: float) -> Kernel:
    def run(x: np.ndarray) -> np.ndarray:
        if algorithm in failing:
            raise RuntimeError("boom")
        end = time.perf_counter() + PAUSES[algorithm]
        while time.perf_counter() < end:
            pass
        return x

    return Kernel(OP, "numpy", "numpy", algorithm, run, cost=lambda w: Cost({"elementwise": flops}, 0, 1))


def introduce() -> None:
    """Make an operation of which the kernel that is thought to be fast is the slow one."""
    register_operation(OP, lambda x: Workload(OP, "numpy", dtype=x.dtype.name, n=x.size))
    register(kernel("slow", 1e5))
    register(kernel("fast", 2e5))


def called(count: int, manager: BackendManager | None = None) -> float:
    """Call so often, and return the longest seconds of a call."""
    manager, x, longest = manager or default_manager(), np.ones(100, dtype=np.float32), 0.0
    manager.configure(explore_fraction=0.5, calibration="shipped")
    for _ in range(count):
        started = time.perf_counter()
        manager.run(OP, x)
        longest = max(longest, time.perf_counter() - started)
    return longest


def without_the_api() -> Any:
    sys.modules["opentelemetry"] = None  # type: ignore[assignment]
    introduce()
    called(300)
    said = ""
    try:
        enable_otlp()
    except ModuleNotFoundError as error:
        said = str(error)
    return {"calls": default_manager().counters()["forward"], "said": said}


def with_the_api_alone() -> Any:
    from opentelemetry import trace

    introduce()
    called(300)
    joined = default_manager().recorder.telemetry is telemetry.process_wide() and trace is not None
    calls = default_manager().counters()["forward"]
    return {"calls": calls, "joined": joined, "sdk": "opentelemetry.sdk" in sys.modules}


def own_providers(endpoint: str) -> Any:
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    own, exporter = (TracerProvider(), MeterProvider()), InMemorySpanExporter()
    own[0].add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(own[0])
    metrics.set_meter_provider(own[1])
    made = enable_otlp(endpoint)
    introduce()
    called(1)
    kept = (trace.get_tracer_provider(), metrics.get_meter_provider()) == own
    return {"made": sorted(made), "kept": kept, "spans": len(exporter.get_finished_spans())}


def sending(endpoint: str) -> Any:
    """Learn and switch, then fail and fall back; what is left is sent when the process ends."""
    assert enable_otlp(endpoint, interval=0.2) == {"traces", "metrics"}
    introduce()
    longest = called(300)
    failing.add("fast")
    longest = max(longest, called(300))
    return {"calls": default_manager().counters()["forward"], "longest": longest}


def dripped(endpoint: str) -> Any:
    """Have something to send when the process ends; its name is said before."""
    enable_otlp(endpoint)
    introduce()
    called(10)
    sys.stdout.write("ending\n")
    sys.stdout.flush()


def fork() -> Any:
    """Tell of one decision, and of one in a child."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    introduce()
    manager = BackendManager(Settings(mode="prior", wisdom="off", calibration="shipped"))
    telemetry.Telemetry(provider).watch(manager)
    manager.run(OP, np.ones(100, dtype=np.float32))
    parent = len(exporter.get_finished_spans())
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        manager.run(OP, np.ones(1000, dtype=np.float32))
        os.write(writing, bytes([len(exporter.get_finished_spans()) - parent]))
        os._exit(0)
    os.waitpid(child, 0)
    return {"parent": parent, "child": os.read(reading, 1)[0]}


PROGRAMS: dict[str, Any] = {
    program.__name__: program
    for program in (without_the_api, with_the_api_alone, own_providers, sending, dripped, fork)
}


if __name__ == "__main__":
    found = PROGRAMS[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write(json.dumps(found))
