"""`fdeint` for JAX against `fdeint` for PyTorch, side by side: forward, and forward with gradient.

    python benchmarks/jax_solvers.py [--cells NAME] [--output DIR]

D^0.7 y = f(y), predictor_corrector, float32, one thread. f is a decay of one state, or a network 32-32-32 on a batch
of 64. JAX's calls are compiled before; what that takes is a column of its own. Medians of interleaved rounds in one
process.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
import torch
from extent import Cells, add_cells
from jax import numpy as jnp
from results import Table
from timing import Call, interleaved, machine, torch_threads

from hpfracc_nn.solvers.jax import fdeint as fdeint_jax
from hpfracc_nn.solvers.torch import fdeint as fdeint_torch

ALPHA = 0.7
WHOLE = [
    ("decay", 200, "auto"),
    ("decay", 2000, "auto"),
    ("network", 100, "auto"),
    ("network", 500, "auto"),
    ("network", 500, "full"),
]
CASES = {Cells.QUICK: WHOLE[:1], Cells.REPORT: [WHOLE[1], WHOLE[2]], Cells.FULL: WHOLE}
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 7}


def weights_of(problem: str) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the state at the start and what f reads."""
    rng = np.random.default_rng(0)
    if problem == "decay":
        return np.ones(1, np.float32), [np.array(1.0, np.float32)]
    layers = [rng.standard_normal((32, 32)).astype(np.float32) / 6 for _ in range(2)]
    return rng.standard_normal((64, 32)).astype(np.float32), layers


def torch_calls(problem: str, n: int, history: str) -> tuple[Call, Call]:
    start, read = weights_of(problem)
    y0, ts = torch.from_numpy(start), torch.linspace(0, 1, n + 1, dtype=torch.float64)
    params = [torch.from_numpy(each).requires_grad_() for each in read]

    def f(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -params[0] * y if problem == "decay" else torch.tanh(y @ params[0]) @ params[1]

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return fdeint_torch(f, y0, ts, ALPHA, history=history)

    def gradient() -> tuple[torch.Tensor, ...]:
        ys = fdeint_torch(f, y0, ts, ALPHA, history=history, params=params)
        return torch.autograd.grad(ys[-1].square().sum(), params)

    return forward, gradient


def jax_calls(problem: str, n: int, history: str, **options: Any) -> tuple[Call, Call, float]:
    """Return both, compiled, and the seconds that compiling the gradient took."""
    start, read = weights_of(problem)
    y0, params = jnp.asarray(start), [jnp.asarray(each) for each in read]
    ts = np.linspace(0, 1, n + 1)

    def f(t: jax.Array, y: jax.Array, params: list[jax.Array]) -> jax.Array:
        return -params[0] * y if problem == "decay" else jnp.tanh(y @ params[0]) @ params[1]

    def solved(y0: jax.Array, params: list[jax.Array]) -> jax.Array:
        return fdeint_jax(f, y0, ts, ALPHA, args=params, history=history, **options)

    def loss(params: list[jax.Array], y0: jax.Array) -> jax.Array:
        return jnp.sum(solved(y0, params)[-1] ** 2)

    forward = jax.jit(solved).lower(y0, params).compile()
    before = time.perf_counter()
    gradient = jax.jit(jax.grad(loss)).lower(params, y0).compile()
    seconds = time.perf_counter() - before
    return (
        lambda: jax.block_until_ready(forward(y0, params)),
        lambda: jax.block_until_ready(gradient(params, y0)),
        seconds,
    )


def fill(table: Table, cells: Cells) -> None:
    for problem, n, history in CASES[cells]:
        on_torch, on_jax = torch_calls(problem, n, history), jax_calls(problem, n, history)
        plain = jax_calls(problem, n, history, adjoint=False)
        calls = {
            "torch": on_torch[0],
            "jax": on_jax[0],
            "torch gradient": on_torch[1],
            "jax gradient": on_jax[1],
            "jax plain": plain[1],
        }
        times = interleaved(calls, ROUNDS[cells])
        difference = np.abs(np.asarray(on_jax[0]()) - on_torch[0]().numpy()).max()
        table.add(
            problem=problem,
            n=n,
            history=history,
            **{name: 1e3 * times[name] for name in calls},
            forward_ratio=times["jax"] / times["torch"],
            gradient_ratio=times["jax gradient"] / times["torch gradient"],
            compiling=on_jax[2],
            difference=float(difference),
            rounds=times.rounds,
        )


def table() -> Table:
    return Table(
        "jax-solvers",
        f"predictor_corrector, float32, one thread, {machine()}, jax {jax.__version__}. Milliseconds.",
        {
            "problem": ("problem", ""),
            "n": ("steps", ""),
            "history": ("history", ""),
            "torch": ("torch", ".4g"),
            "jax": ("JAX", ".4g"),
            "forward_ratio": ("JAX / torch", ".2f"),
            "torch gradient": ("torch, gradient", ".4g"),
            "jax gradient": ("JAX, gradient", ".4g"),
            "gradient_ratio": ("JAX / torch", ".2f"),
            "jax plain": ("JAX, adjoint=False", ".4g"),
            "compiling": ("compiling the gradient, s", ".2f"),
            "difference": ("largest difference", ".1e"),
            "rounds": ("rounds", ""),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="a folder for the table")
    arguments = parser.parse_args()
    with torch_threads(1):
        found = table()
        found.begin("all")
        fill(found, arguments.cells)
        if arguments.output:
            found.write(arguments.output)


if __name__ == "__main__":
    main()
