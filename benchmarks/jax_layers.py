"""What the layers for Flax cost, beside the same layers for PyTorch and beside Flax's own.

    python benchmarks/jax_layers.py [--cells NAME] [--output DIR]

Forward, and forward with the gradient in all parameters, of `FractionalLSTM` with a learned order; of the same layer
for PyTorch; and of Flax's LSTM: `flax.nnx.RNN` over `OptimizedLSTMCell`. Compilation is not timed, and is told apart.

One thread; medians over rounds in which all calls take turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Read when XLA starts: its share of one thread is what torch has.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import torch
from extent import Cells, add_cells
from flax import nnx
from jax import numpy as jnp
from results import Table
from timing import Call, interleaved, machine, torch_threads

from hpfracc_nn import BackendManager
from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.torch import FractionalLSTM
from hpfracc_nn.selection import Settings

ALPHA = 0.5
BASE = "Flax's LSTM"
SHAPES = {
    Cells.QUICK: [(4, 8, 64)],
    Cells.REPORT: [(32, 64, 512)],
    Cells.FULL: [(32, 64, 512), (1, 64, 512), (32, 64, 4096)],
}
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 7}
OURS = {
    "FractionalLSTM": {},
    "FractionalLSTM, an order per unit": {"each": True},
    "FractionalLSTM, memory=100": {"memory": 100},
}


def compiled(function: Callable[..., Any], *given: Any) -> tuple[Call, float]:
    """Return a call that waits for its result, and the seconds that compiling took."""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*given).compile()
    seconds = time.perf_counter() - begin
    return lambda: jax.block_until_ready(program(*given)), seconds


def on_jax(batch: int, units: int, n: int) -> dict[str, Callable[[], tuple[Call, float]]]:
    """Return what compiles each call."""
    x = jax.random.normal(jax.random.key(0), (batch, n, units))
    made: dict[str, tuple[Callable[..., Any], Any]] = {}
    cell = nnx.OptimizedLSTMCell(units, units, rngs=nnx.Rngs(0))
    graph, weights, rest = nnx.split(nnx.RNN(cell), nnx.Param, ...)
    zeros = jnp.zeros((batch, units)), jnp.zeros((batch, units))
    made[BASE] = lambda weights: nnx.merge(graph, weights, rest)(x, initial_carry=zeros).sum(), weights
    for name, options in OURS.items():
        alpha = [ALPHA] * units if "each" in options else ALPHA
        core = functional.FractionalLSTM(units, units, alpha=alpha, learn_alpha=True, memory=options.get("memory"))
        made[name] = lambda params, core=core: core(params, x).sum(), core.init(jax.random.key(0))
    found: dict[str, Callable[[], tuple[Call, float]]] = {}
    for name, (function, params) in made.items():
        found[f"{name}, forward"] = lambda function=function, params=params: compiled(function, params)
        found[f"{name}, both"] = lambda function=function, params=params: compiled(jax.grad(function), params)
    return found


def on_torch(batch: int, units: int, n: int) -> dict[str, Call]:
    """Return the calls of the layer for PyTorch."""
    manager = BackendManager(Settings(mode="prior", calibration="shipped", wisdom="off"))
    layer = FractionalLSTM(units, units, batch_first=True, alpha=ALPHA, learn_alpha=True, manager=manager)
    x = torch.randn(batch, n, units)

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        layer(x)[0].sum().backward()

    return {"PyTorch's FractionalLSTM, forward": forward, "PyTorch's FractionalLSTM, both": both}


def recurrent(cells: Cells) -> Table:
    """Time the layers."""
    table = Table(
        "jax_layers",
        f"Microseconds per step, float32, one thread, {machine()}. Ratio: over {BASE} in the same pass.",
        {
            "batch": ("batch", ""),
            "units": ("units", ""),
            "n": ("steps", ""),
            "name": ("layer", ""),
            "us": ("us per step", ".1f"),
            "ratio": ("ratio", ".2f"),
            "compile": ("compile, s", ".1f"),
        },
    )
    table.begin("all")
    for batch, units, n in SHAPES[cells]:
        programs = {name: make() for name, make in on_jax(batch, units, n).items()}
        calls = {**{name: call for name, (call, _) in programs.items()}, **on_torch(batch, units, n)}
        times = interleaved(calls, ROUNDS[cells])
        for name in calls:
            base = times[f"{BASE}, {name.rpartition(', ')[2]}"]
            seconds = programs[name][1] if name in programs else 0.0
            each = {"us": 1e6 * times[name] / n, "ratio": times[name] / base, "compile": seconds}
            table.add(batch=batch, units=units, n=n, name=name, **each)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="where to write the tables")
    arguments = parser.parse_args()
    with torch_threads(1):
        table = recurrent(arguments.cells)
    if arguments.output is not None:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
