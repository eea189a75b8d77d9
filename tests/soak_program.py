"""A manager at work for long: `python -m tests.soak_program DIRECTORY SEED CALLS TELEMETRY`; prints JSON.

A program of its own, because it forks, leaves its threads to die with it where something hangs, lowers the bounds of
the tables, and shares a file of wisdom with another process of its kind. Every result is compared with the dense
product in float64. The rounds are equal; after the first one nothing may grow but within its bounds.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import hpfracc_nn as fnn
from hpfracc_nn.selection import (
    BackendManager,
    Kernel,
    Settings,
    Telemetry,
    Workload,
    candidates,
    kernels,
    planner,
    quarantine,
    recorder,
    register,
    register_operation,
    site,
)
from hpfracc_nn.selection.learning import learner as learning
from hpfracc_nn.selection.learning import model

ROUNDS = 5
HANGS = 400.0  # seconds, after which every thread's stack is printed and the process ends
FORKED = 60  # seconds that a child may take
BOUND = 48  # of tables that would need hours to fill else
OP = "soak_op"
TOLERANCE = {"float32": 3e-5, "float64": 1e-11}  # of the largest entry: n * eps at n = 300, and of an FFT less
OPERATORS = (fnn.Caputo(0.4), fnn.RiemannLiouville(0.7), fnn.GrunwaldLetnikov(0.3), fnn.RiemannLiouvilleIntegral(0.6))
CHANGES: tuple[dict[str, Any], ...] = (
    {"mode": "prior"},
    {"mode": "learn"},
    {"disable": "numba"},
    {"disable": None},
    {"explore_fraction": 0.5},
    {"explore_fraction": None},
    {"mode": "frozen"},
    {"mode": "learn"},
    {"memory_limit": "64MiB"},
    {"memory_limit": None},
    {"objective": {"latency": 1, "memory": 0.5}},
    {"objective": None},
    {"deterministic": True},
    {"deterministic": None},
)


class Soak:
    """The manager, what is computed with it, and what went wrong."""

    def __init__(self, directory: str, seed: int, calls: int, watched: bool):
        self.directory, self.seed, self.calls = directory, seed, calls
        self.wrong: list[str] = []
        self.done: list[int] = []
        self.manager = BackendManager(settings(directory))
        self.forgets = watching(self.manager) if watched else lambda: None
        self.cases = list(cases())
        warm(self.cases)
        register_made_up()

    def round(self, number: int) -> None:
        """Call from four threads while settings change, files are written and children are forked."""
        works = [self._of("torch"), self._of("torch"), self._of("numpy"), self._made_up]
        threads = [
            threading.Thread(target=self._worker, args=(work, random.Random(f"{self.seed} {number} {place}")))
            for place, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        change = 0
        while any(thread.is_alive() for thread in threads):
            self.manager.configure(**CHANGES[change % len(CHANGES)])
            self._look(change)
            change += 1
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        self.manager.configure(**{name: None for each in CHANGES for name in each})
        self.manager.save()
        self.forgets()

    def _look(self, change: int) -> None:
        """Read everything that can be read, and fork now and then."""
        if change % 4 == 0:
            self.manager.report()
            self.manager.explain(Workload("toeplitz", "torch", rows=4, n=128))
            json.loads(self.manager.export_wisdom())
        if change % 8 == 0:
            self.wrong += in_child(self._child)
        if change % 16 == 0:
            self.manager.reconsider()

    def _child(self) -> list[str]:
        self.wrong = []
        if self.manager.recorder.telemetry is not None:  # the SDK's locks do not come through a fork
            self.manager.recorder.telemetry.leave(self.manager)
        rng = random.Random(0)
        for work in (self._of("numpy"), self._of("torch"), self._made_up):
            for _ in range(5):
                work(rng)
        return self.wrong

    def _worker(self, work: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            for _ in range(self.calls):
                work(rng)
            self.done.append(self.calls)
        except BaseException as error:  # a thread's exception would be printed, and lost
            self.wrong.append(f"{type(error).__name__}: {error}")

    def _of(self, framework: str) -> Callable[[random.Random], None]:
        mine = [case for case in self.cases if case[0] == framework]

        def work(rng: random.Random) -> None:
            _, operator, x, expected = rng.choice(mine)
            rows, n = rng.choice((1, 3, len(x))), rng.choice(lengths(x.shape[-1]))
            part = x[:rows, :n]
            if framework == "torch":
                part = part.detach().requires_grad_(x.requires_grad)
            found = fnn.derivative(part, operator, dt=0.1, manager=self.manager)
            if framework == "torch" and x.requires_grad:
                found.sum().backward()
                found = found.detach()
            off = np.abs(np.asarray(found) - expected[:rows, :n]).max() / np.abs(expected).max()
            if not off <= TOLERANCE[x.dtype.name if framework == "numpy" else str(x.dtype).split(".")[1]]:
                self.wrong.append(f"{framework} {operator} [{rows}, {n}] is off by {off:.1e}")

        return work

    def _made_up(self, rng: random.Random) -> None:
        x = rng.randint(1, 50_000)
        found = self.manager.run(OP, x)
        if found != 2 * x:
            self.wrong.append(f"{OP}({x}) is {found}")

    def sizes(self) -> dict[str, tuple[int, int]]:
        """Return how many entries each table has, and how many it may have."""
        m, learner = self.manager, self.manager.learner
        sites = m.sites()
        known = learner.policy._model
        kernels = 8  # of one operation
        return {
            "plans": (len(m.planner._plans), BOUND),
            "verdicts": (len(m.planner.candidates._assessed), BOUND),
            "measurements": (len(m.recorder.history), BOUND),
            "events": (len(m.recorder.log._events), BOUND),
            "looks": (len(m.recorder.log._looks), BOUND + 1),
            "holds": (len(m.planner.quarantine.holds), BOUND),
            "sites": (len(sites), 8),
            "plans of a site": (max(len(each._plans) for each in sites), BOUND),
            "other plans of a site": (max(sum(map(len, each._others.values())) for each in sites), BOUND * kernels),
            "tried plans of a site": (max(len(each._tried) for each in sites), BOUND),
            "ended": (len(m.recorder.counts._ended), recorder.MOST_ENDED + 1),
            "records": (len(known.records), BOUND),
            "timed": (len(learner._timed), 2 * BOUND),
            "new": (len(learner._new), 2 * BOUND * kernels),
            "waiting": (len(learner.outbox._waiting), 2),
        }


def settings(directory: str) -> Settings:
    # Kernels that compile for seconds would be all that is measured.
    return Settings(mode="learn", wisdom=directory, calibration="shipped", disabled=frozenset({"xla"}))


def lowered() -> None:
    """Let tables be full soon."""
    for module, name in (
        (planner, "MOST_PLANS"),
        (candidates, "MOST_ASSESSED"),
        (site, "MOST_PLANS"),
        (model, "MOST_KEYS"),
        (learning, "MOST_KEYS"),
        (quarantine, "MOST_HOLDS"),
        (recorder, "MOST_MEASUREMENTS"),
        (recorder, "MOST_EVENTS"),
        (recorder, "MOST_LOOKS"),
    ):
        assert hasattr(module, name), f"{module.__name__} has no {name} any more"
        setattr(module, name, BOUND)


def cases() -> Iterator[tuple[str, Any, Any, np.ndarray]]:
    """Yield framework, operator, samples and the result by the dense product in float64."""
    rng = np.random.default_rng(0)
    dense = BackendManager(Settings(force_algorithm="dense", mode="prior", wisdom="off", calibration="shipped"))
    for operator in OPERATORS:
        for n in (17, 64, 130, 300):
            x = rng.standard_normal((8, n))
            for dtype in ("float32", "float64"):
                rounded = x.astype(dtype)
                exact = fnn.derivative(rounded.astype(np.float64), operator, dt=0.1, manager=dense)
                yield "numpy", operator, rounded, exact
                yield "torch", operator, torch.tensor(rounded, requires_grad=n == 64), exact


def lengths(most: int) -> tuple[int, ...]:
    """Return few, so that the weights of all of them are there after the first round."""
    return most, most - 1, most // 2


def warm(every: list[tuple[str, Any, Any, np.ndarray]]) -> None:
    """Run every kernel on every case: a fork hangs if another thread imports or compiles.

    Both hold locks that are Python's and Numba's own, and that no child gets back.
    """
    for framework in ("numpy", "torch"):
        for kernel in kernels("toeplitz", framework):
            forced = Settings(
                mode="prior",
                wisdom="off",
                calibration="shipped",
                disabled=frozenset({"xla"}),
                force_backend=kernel.backend,
                force_algorithm=kernel.algorithm,
            )
            only = BackendManager(forced)
            for _, operator, x, _ in [case for case in every if case[0] == framework]:
                for n in lengths(x.shape[-1]):
                    try:
                        found = fnn.derivative(x[:, :n], operator, dt=0.1, manager=only)
                    except LookupError:  # it does not accept this one, or may not run
                        continue
                    if framework == "torch" and x.requires_grad:
                        found.sum().backward()


def register_made_up() -> None:
    """Register an operation that doubles, by three kernels of which two fail now and then."""
    calls = iter(range(10**9))

    def failing(every: int, error: Callable[[], Exception]) -> Callable[[int], int]:
        def run(x: int) -> int:
            if next(calls) % every == 0:
                raise error()
            return 2 * x

        return run

    register_operation(OP, lambda x: Workload(OP, "torch", rows=x % 5 + 1, n=x))
    for name, run in (
        ("torch/fft", failing(97, lambda: RuntimeError("boom"))),
        ("numba/dense", failing(31, MemoryError)),
        ("torch/dense", lambda x: 2 * x),
    ):
        backend, algorithm = name.split("/")
        register(Kernel(OP, "torch", backend, algorithm, run))


def watching(watched: BackendManager) -> Callable[[], None]:
    """Send all that the manager does to OpenTelemetry's SDK in this process; return what forgets it."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, spans, tracers = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    Telemetry(tracers, MeterProvider([reader])).watch(watched)

    def forget() -> None:
        assert reader.get_metrics_data() is not None
        spans.clear()

    return forget


def in_child(work: Callable[[], list[str]]) -> list[str]:
    """Return what goes wrong in a fork of this process, which other threads are busy in."""
    child = os.fork()
    if not child:
        faulthandler.register(signal.SIGALRM, chain=True)  # prints where it hangs, and ends
        signal.alarm(FORKED)
        status = 1
        try:
            found = work()
            sys.stderr.write("".join(f"in a child: {each}\n" for each in found))
            status = int(bool(found))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return [] if status == 0 else [f"a child ended with {status}"]


def held() -> dict[str, int]:
    """Return what the process holds at rest."""
    gc.collect()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    return {"threads": threading.active_count(), "files": files, "bytes": tracemalloc.get_traced_memory()[0]}


def main(directory: str, seed: str, calls: str, telemetry: str) -> None:
    faulthandler.dump_traceback_later(HANGS, exit=True)
    torch.set_num_threads(1)
    lowered()
    tracemalloc.start()
    soak = Soak(directory, int(seed), int(calls), telemetry == "on")
    after = []
    for number in range(ROUNDS):
        soak.round(number)
        after.append(held())
    found = {
        "wrong": soak.wrong[:20],
        "calls": sum(soak.done),
        "failures": sum(soak.manager.recorder.counts.failures.values()),
        "sizes": soak.sizes(),
        "held": after,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
