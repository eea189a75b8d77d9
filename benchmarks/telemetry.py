"""What OpenTelemetry and the Lightning callback cost.

    python benchmarks/telemetry.py [--quick] [--output benchmarks/results]

First the look-up of a site whose manager tells nobody beside that of one whose manager tells OpenTelemetry's SDK, with
spans and metrics on and exported by threads of their own: between decisions there must be no difference. A decision
that is told, and a collection of all metrics, are given beside it. Then the part of a training that `BackendReport`
takes: the time within its hooks between the first step and the last, of the time of all steps, at
`log_every_n_steps=50`; what it does once, at the end, is given apart. That is processor time of the thread: a call that
writes for TensorBoard hands over to another thread, and on a busy machine waits long to come back.

Targets: the look-up within 5 % of the one without (what two sites alike differ by), the callback at most 1 % of a step.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from calls import calibrate, signals
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from results import Table, microseconds
from timing import Call, interleaved, machine, set_allocator, torch_threads

from hpfracc_nn import BackendManager, FractionalLayer
from hpfracc_nn.selection import Plan, Settings, Site
from hpfracc_nn.selection.observe import telemetry
from hpfracc_nn.selection.observe.telemetry import RateLimiter
from hpfracc_nn.selection.plan import NEVER
from hpfracc_nn.training import BackendReport

ROWS, N, LAYERS = 16, 64, 4
EVERY = 50  # log_every_n_steps
ALIKE, CALLBACK = 0.05, 0.01
PAIRS = 5

clock = time.thread_time


def learnt(heard: telemetry.Telemetry | None) -> tuple[Site, Plan]:
    """Return a site that has learnt of one size, and its plan; its manager tells `heard`, or nobody."""
    manager = BackendManager(Settings(mode="learn", wisdom="off", disabled=frozenset({"numba", "xla"})))
    if heard is not None:
        heard.watch(manager)
    layer, x = FractionalLayer(0.5, manager=manager), signals(ROWS, N)
    for _ in range(2000):
        layer(x)
    (site,) = [each for each in manager.sites() if each.in_use()]
    return site, site.in_use()[0]


def lookup(site: Site, plan: Plan) -> Call:
    (key,) = [key for key, each in site._plans.items() if each.usage is plan.usage]
    plan.usage.left = NEVER  # the next decision
    return lambda: site.pick(key, lambda: plan.workload)


class Timed(BackendReport):
    """Adds up the seconds of its hooks, those of the steps apart from those at the end."""

    def __init__(self) -> None:
        super().__init__(table=None)
        self.in_steps = self.at_end = 0.0
        self.began = self.ended = 0.0

    def on_train_batch_start(self, *_: Any) -> None:
        self.began = self.began or clock()

    def on_train_batch_end(self, *given: Any) -> None:
        start = clock()
        super().on_train_batch_end(*given)
        self.ended = clock()
        self.in_steps += self.ended - start

    def on_fit_end(self, *given: Any) -> None:
        start = clock()
        super().on_fit_end(*given)
        self.at_end += clock() - start


class Model(pl.LightningModule):
    """Four fractional layers between linear ones, over [batch, time]."""

    def __init__(self, n: int) -> None:
        super().__init__()
        pairs = [(torch.nn.Linear(n, n), FractionalLayer(0.5, learn_alpha=True)) for _ in range(LAYERS)]
        self.layers = torch.nn.Sequential(*(each for pair in pairs for each in pair))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layers(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def training(steps: int, folder: str) -> Timed:
    """Train for so many steps of 32 x 256 samples."""
    report = Timed()
    data = torch.utils.data.DataLoader(list(torch.randn(32 * 100, 256)), batch_size=32)  # type: ignore[arg-type]
    trainer = pl.Trainer(
        callbacks=[report],
        logger=pl.loggers.TensorBoardLogger(folder),
        log_every_n_steps=EVERY,
        max_steps=steps,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Model(256), data)
    return report


def told(heard: telemetry.Telemetry, count: int) -> float:
    """Return the median seconds of sending a decision."""
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    heard.watch(manager)
    layer, x = FractionalLayer(0.5, manager=manager), signals(ROWS, N)
    layer(x)
    (event,) = manager.events()
    heard._limiter = RateLimiter(10**9, 0.0)
    times = []
    for _ in range(count):
        start = time.perf_counter()
        heard._hear(event)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    rounds, steps = (15, 300) if arguments.quick else (101, 2000)
    calibrate()
    set_allocator("warm")
    warnings.simplefilter("ignore")
    telemetry.API = "nobody"  # a manager that is to tell nobody does not find the process's OpenTelemetry
    tracing, reader = TracerProvider(), InMemoryMetricReader()
    tracing.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    heard = telemetry.Telemetry(tracing, MeterProvider([reader]))
    with torch_threads(1), tempfile.TemporaryDirectory() as folder:
        table = Table(
            "telemetry",
            f"Telling OpenTelemetry, {machine()}, one thread. Medians of {rounds} interleaved rounds.",
            {"call": ("call", ""), "us": ("us", ".3f")},
        )
        table.begin("microseconds")
        calls: dict[str, Call] = {}
        for i in range(PAIRS):
            calls[f"quiet {i}"], calls[f"telling {i}"] = lookup(*learnt(None)), lookup(*learnt(heard))
        times = interleaved(calls, rounds, seconds=0.05, clock=time.process_time)
        ratios = [times[f"telling {i}"] / times[f"quiet {i}"] - 1 for i in range(PAIRS)]
        more = statistics.median(ratios)
        for name in ("quiet", "telling"):
            table.add(
                call=f"Site.pick, {name}",
                us=microseconds(statistics.median(times[f"{name} {i}"] for i in range(PAIRS))),
                added=more if name == "telling" else 0.0,
            )
        table.add(call="sending a decision", us=microseconds(told(heard, 20 * rounds)))
        table.add(call="collecting all metrics", us=microseconds(interleaved({"": reader.collect}, rounds)[""]))
        report = training(steps, folder)
        part = report.in_steps / (report.ended - report.began)
        table.add(call="a step of the training", us=microseconds((report.ended - report.began) / steps))
        table.add(call="the callback, each step", us=microseconds(report.in_steps / steps))
        table.add(call="the callback, at the end", us=microseconds(report.at_end))
        table.note(
            f"the SDK adds {100 * more:.1f} % [{100 * min(ratios):.1f}, {100 * max(ratios):.1f}] to the look-up, "
            f"at most {100 * ALIKE:.0f}: {_verdict(more <= ALIKE)}."
        )
        table.note(
            f"the callback takes {100 * part:.2f} % of a step at log_every_n_steps={EVERY}, at most "
            f"{100 * CALLBACK:.0f}: {_verdict(part <= CALLBACK)}."
        )
    if arguments.output:
        table.write(arguments.output)


def _verdict(reached: bool) -> str:
    return "pass" if reached else "FAIL"


if __name__ == "__main__":
    main()
