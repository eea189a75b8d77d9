"""A step of `fractional_adam` against one of `optax.adam`, compiled, gradients given.

    python benchmarks/optax_steps.py [--cells NAME] [--output DIR]

Time of the processor, medians of interleaved rounds in one process, one thread, float32. A state that is donated is
written in place where XLA manages to; else each step makes a new one. "scan" are ten steps in one program, per step.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"

import jax
import numpy as np
import optax
from extent import Cells, add_cells
from jax import numpy as jnp
from results import Table
from timing import interleaved, machine

from hpfracc_nn.training.jax.optimizers import fractional_adam

SHAPES = {"1 M, one array": [(1_000_000,)], "1 M, 40 arrays": [(160, 160)] * 40}
QUICK_SHAPES = {"10 k, 4 arrays": [(50, 50)] * 4}
RATE, SCANNED = 1e-3, 10
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "optax.adam": lambda: optax.adam(RATE),
    "alpha 1": lambda: fractional_adam(RATE),
    "memory 10": lambda: fractional_adam(RATE, alpha=0.9),
    "exponentials": lambda: fractional_adam(RATE, alpha=0.9, memory="exponentials"),
    "optax.adam, injected": lambda: optax.inject_hyperparams(optax.adam)(RATE),
    "memory 10, alpha injected": lambda: optax.inject_hyperparams(fractional_adam)(RATE, alpha=0.9),
    "exponentials, alpha injected": lambda: optax.inject_hyperparams(fractional_adam)(
        RATE, alpha=0.9, memory="exponentials"
    ),
}
MODES = ("plain", "donated", "scan")
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 9, Cells.FULL: 25}


def call_of(optimizer: optax.GradientTransformation, shapes: list[tuple[int, ...]], mode: str) -> Callable[[], Any]:
    """Return a call that takes one step, or ten in a scan, from where the last one ended."""
    rng = np.random.default_rng(0)
    params, grads = ([jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes] for _ in range(2))

    def step(carry: Any) -> Any:
        params, state = carry
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    def steps(carry: Any) -> Any:
        return jax.lax.scan(lambda carry, _: (step(carry), None), carry, length=SCANNED)[0]

    compiled = jax.jit(steps if mode == "scan" else step, donate_argnums=() if mode == "plain" else 0)
    held = [(params, optimizer.init(params))]

    def call() -> None:
        held[0] = jax.block_until_ready(compiled(held[0]))

    return call


def fill(table: Table, cells: Cells) -> None:
    """Time the steps of all optimizers."""
    table.begin("a step")
    for name, shapes in (QUICK_SHAPES if cells.is_quick else SHAPES).items():
        for mode in MODES[1:2] if cells is Cells.REPORT else MODES:
            calls = {title: call_of(make(), shapes, mode) for title, make in OPTIMIZERS.items()}
            times = interleaved(calls, ROUNDS[cells], seconds=0.0, clock=time.process_time)
            base, count = times["optax.adam"], SCANNED if mode == "scan" else 1
            for title in OPTIMIZERS:
                seconds = times[title]
                table.add(parameters=name, mode=mode, optimizer=title, ms=1e3 * seconds / count, ratio=seconds / base)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    caption = f"{machine()}, JAX {jax.__version__}, optax {optax.__version__}, one thread, float32."
    columns = {
        "parameters": ("parameters", ""),
        "mode": ("mode", ""),
        "optimizer": ("optimizer", ""),
        "ms": ("ms", ".3f"),
        "ratio": ("times optax.adam", ".2f"),
    }
    table = Table("optax-steps" + "-quick" * arguments.cells.is_quick, caption, columns)
    fill(table, arguments.cells)
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
