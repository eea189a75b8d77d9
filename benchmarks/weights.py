"""The weights of a learned order: tables against the traced formulas.

    python benchmarks/weights.py [--quick] [--output DIR]

One thread, float32, bounds (0, 1). One call goes from the tensor alpha to the tensors of a form and the boundary
columns ("forward"), and on to the gradient in alpha ("both"). Medians of interleaved rounds in one process. "1st" is
the call that builds the tables, with the node set and everything else that is made once already there.
"""

from __future__ import annotations

import argparse
import time
from itertools import product
from pathlib import Path

import torch
from results import Table
from timing import interleaved, machine, set_allocator, torch_threads
from torch import Tensor

from hpfracc_nn.fractional import tables
from hpfracc_nn.fractional.definitions import Caputo, Definition, GrunwaldLetnikov, RiemannLiouville
from hpfracc_nn.fractional.linear import Column
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
        columns = weights.boundary_columns()
        tensors = [form.weights] if isinstance(form, Column) else [form.intra, form.C]
        return tensors if columns is None else [*tensors, columns]

    def both(self) -> Tensor:
        found = self.forward()
        if self.gradients is None:
            self.gradients = [torch.ones_like(tensor) for tensor in found]
        return torch.autograd.grad(found, self.alpha, self.gradients)[0]


def first_call(step: Step) -> float:
    """Return the seconds of a forward call that finds no tables, less those of one that does."""
    step.forward()
    tables.CACHE.clear()
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
    gain = found["traced both"] / found["table both"]
    times = {f"{key.replace(' ', '_')}_ms": 1e3 * seconds for key, seconds in found.medians.items()}
    return {
        "definition": name,
        "n": n,
        "channels": channels,
        "form": form,
        **times,
        "gain": gain,
        "first_ms": 1e3 * first,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one length, few rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    set_allocator("warm")
    rounds = 11 if arguments.quick else 31
    table = empty(rounds)
    with torch_threads(1):
        table.begin("all")
        for name, form, n, channels in product(KINDS, FORMS, QUICK if arguments.quick else LENGTHS, CHANNELS):
            fewer = max(3, rounds * 16384 // max(16384, n * channels))  # the traced way takes seconds there
            table.add(**measure(name, n, channels, form, fewer))
    if arguments.output:
        table.write(arguments.output)


def empty(rounds: int) -> Table:
    """Return the table."""
    return Table(
        "weights",
        f"{machine()}, one thread, float32; medians of up to {rounds} interleaved rounds, ms.",
        {
            "definition": ("definition", ""),
            "form": ("form", ""),
            "n": ("n", ""),
            "channels": ("channels", ""),
            "traced_forward_ms": ("traced forward", ".3g"),
            "table_forward_ms": ("table forward", ".3g"),
            "traced_both_ms": ("traced both", ".3g"),
            "table_both_ms": ("table both", ".3g"),
            "gain": ("gain", ".1f"),
            "first_ms": ("1st", ".3g"),
        },
    )


if __name__ == "__main__":
    main()
