"""The weights of a learned order: tables against the traced formulas.

    python benchmarks/weights.py [--quick] [--output DIR]

One thread, float32, bounds (0, 1). One call goes from the tensor alpha to the tensors of a form and the boundary
columns ("forward"), and on to the gradient in alpha ("both"). Medians of interleaved rounds in one process. "1st" is
the call that builds the tables, with the node set and everything else that is made once already there.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from hpfracc_nn.fractional import tables
from hpfracc_nn.fractional.definitions import Caputo, Definition, GrunwaldLetnikov, RiemannLiouville
from hpfracc_nn.fractional.torch.forms import ColumnForm
from hpfracc_nn.fractional.torch.weights import Weights

LENGTHS = (256, 1024, 16384, 65536)
QUICK = (1024,)
CHANNELS = (1, 16)
FORMS = ("column", "chunks of 16")
KINDS: dict[str, type[Definition]] = {
    "grunwald_letnikov": GrunwaldLetnikov,
    "caputo l1_2": Caputo,
    "riemann_liouville bdf2": RiemannLiouville,
}


class Step:
    """One way to the weights of one workload, as a training step takes it."""

    def __init__(self, kind: type[Definition], n: int, channels: int, form: str, tabulated: bool):
        self.kind, self.n, self.form, self.tabulated = kind, n, form, tabulated
        self.alpha = torch.full((channels,) if channels > 1 else (), 0.6, dtype=torch.float64, requires_grad=True)
        self.gradients: list[Tensor] | None = None

    def forward(self) -> list[Tensor]:
        definition = self.kind(self.alpha, bounds=(0, 1))
        weights = Weights(definition, self.n, 0.5, torch.float32, torch.device("cpu"), tabulated=self.tabulated)
        form = weights.column() if self.form == "column" else weights.chunks(16)
        columns = weights.columns()
        tensors = [form.column] if isinstance(form, ColumnForm) else [form.near, form.far]
        return tensors if columns is None else [*tensors, columns]

    def both(self) -> Tensor:
        found = self.forward()
        if self.gradients is None:
            self.gradients = [torch.ones_like(tensor) for tensor in found]
        return torch.autograd.grad(found, self.alpha, self.gradients)[0]


def interleaved(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each call over rounds in which all take turns."""
    repeats = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(0.005 / (time.perf_counter() - start)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: statistics.median(found) for name, found in times.items()}


def first_call(step: Step) -> float:
    """Return the seconds of a forward call that finds no tables, less those of one that does."""
    step.forward()
    tables.forget()
    start = time.perf_counter()
    step.forward()
    middle = time.perf_counter()
    step.forward()
    return 2 * middle - start - time.perf_counter()


def measure(name: str, n: int, channels: int, form: str, rounds: int) -> dict[str, object]:
    traced, tabulated = (Step(KINDS[name], n, channels, form, tabulated) for tabulated in (False, True))
    first = first_call(tabulated)
    found = interleaved(
        {
            "traced forward": traced.forward,
            "table forward": tabulated.forward,
            "traced both": traced.both,
            "table both": tabulated.both,
        },
        rounds,
    )
    times = {f"{key.replace(' ', '_')}_ms": 1e3 * seconds for key, seconds in found.items()}
    return {"definition": name, "n": n, "channels": channels, "form": form, **times, "first_ms": 1e3 * first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one length, few rounds")
    parser.add_argument("--output", type=Path, help="also write weights.json and weights.md into this folder")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 11 if arguments.quick else 31
    lines = [
        f"{_processor()}, one thread, torch {torch.__version__}, float32; medians of {rounds} interleaved rounds, ms.",
        "",
        "| definition | form | n | channels | traced forward | table forward | traced both | table both | gain | 1st |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines))
    records = []
    for name in KINDS:
        for form in FORMS:
            for n in QUICK if arguments.quick else LENGTHS:
                for channels in CHANNELS:
                    fewer = max(3, rounds * 16384 // max(16384, n * channels))  # the traced way takes seconds there
                    record = measure(name, n, channels, form, fewer)
                    records.append(record)
                    ratio = record["traced_both_ms"] / record["table_both_ms"]  # type: ignore[operator]
                    keys = ("traced_forward_ms", "table_forward_ms", "traced_both_ms", "table_both_ms")
                    cells = [f"{record[key]:.3g}" for key in keys]
                    lines.append(
                        f"| {name} | {form} | {n} | {channels} | {' | '.join(cells)} | {ratio:.1f} "
                        f"| {record['first_ms']:.3g} |"
                    )
                    print(lines[-1], flush=True)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "weights.json").write_text(json.dumps(records, indent=1) + "\n")
        (arguments.output / "weights.md").write_text("\n".join(lines) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))


if __name__ == "__main__":
    main()
