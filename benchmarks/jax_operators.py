"""Time the operators on JAX arrays against those on torch tensors, and against hpfracc for JAX where it is installed.

Run:  python benchmarks/jax_operators.py [--quick] [--output benchmarks/results]

All run on one thread in one process, in float32, and take turns. Calls of JAX are jitted and waited for; "outside of
jit" is what a user of a notebook waits for.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"  # before JAX is loaded

import jax
import numpy as np
import torch
from jax import numpy as jnp
from results import Table
from timing import Call, interleaved, machine, torch_threads

import hpfracc_nn.jax as fjx
from hpfracc_nn import Caputo, derivative
from hpfracc_nn.selection import BackendManager, Settings

SHAPES = ((256, 1024), (64, 256), (1, 65536), (16, 16384))
MOST = 1.2  # times torch's chunked scan, forward, at the first shape
DT = 0.1
_LONGEST_PEER = 4096  # it multiplies by a matrix of n x n


def forced(algorithm: str) -> BackendManager:
    return BackendManager(Settings(mode="prior", calibration="shipped", force_algorithm=algorithm, force_backend=None))


def of_torch(x: np.ndarray) -> dict[str, Call]:
    """Return the calls on a tensor: its chunked scan forward, with gradient, and with a learned order."""
    manager = BackendManager(
        Settings(mode="prior", calibration="shipped", force_algorithm="chunked_scan", force_backend="torch")
    )
    data = torch.from_numpy(x)
    moving = data.clone().requires_grad_()
    order = torch.tensor(0.5, requires_grad=True)

    def backward(alpha: float | torch.Tensor) -> None:
        moving.grad = order.grad = None
        derivative(moving, Caputo(alpha), dt=DT, manager=manager).square().sum().backward()

    return {
        "forward": lambda: derivative(data, Caputo(0.5), dt=DT, manager=manager),
        "gradient": lambda: backward(0.5),
        "order": lambda: backward(order),
    }


def of_jax(x: np.ndarray) -> dict[str, Call]:
    """Return the same on a JAX array, and the call outside of jit."""
    data, order = jnp.asarray(x), jnp.asarray(0.5, jnp.float32)

    def loss(x: jax.Array, alpha: float | jax.Array) -> jax.Array:
        return (derivative(x, Caputo(alpha), dt=DT) ** 2).sum()

    forward = jax.jit(lambda x: derivative(x, Caputo(0.5), dt=DT))
    gradient = jax.jit(jax.grad(lambda x: loss(x, 0.5)))
    both = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return {
        "forward": lambda: jax.block_until_ready(forward(data)),
        "gradient": lambda: jax.block_until_ready(gradient(data)),
        "order": lambda: jax.block_until_ready(both(data, order)),
        "outside of jit": lambda: jax.block_until_ready(derivative(data, Caputo(0.5), dt=DT)),
    }


def of_peer(x: np.ndarray) -> dict[str, Call]:
    """Return the forward call of hpfracc for JAX in its two ways, time first; nothing where it is not installed."""
    if find_spec("hpfracc") is None or x.shape[1] > _LONGEST_PEER:
        return {}
    caputo: Callable[..., jax.Array] = import_module("hpfracc.ops").caputo
    data = jnp.asarray(x.T)
    ways = {
        history: jax.jit(lambda x, h=history: caputo(x, dt=DT, order=0.5, history=h)) for history in ("full", "fft")
    }
    return {f"hpfracc {name}": lambda way=way: jax.block_until_ready(way(data)) for name, way in ways.items()}


def empty() -> Table:
    """Return the table."""
    return Table(
        "jax_operators",
        f"Milliseconds of Caputo's derivative of order 0.5, float32, one thread, {machine()}, jax {jax.__version__}; "
        "medians of interleaved rounds. Gradient: forward and backward in the samples; order: in a learned order too.",
        {
            "rows": ("rows", ""),
            "n": ("n", ""),
            "what": ("what", ""),
            "kernel": ("kernel", ""),
            "ms": ("ms", ".3f"),
            "torch_ms": ("torch chunked_scan, ms", ".3f"),
            "ratio": ("ratio", ".2f"),
        },
    )


def fill(table: Table, shapes: tuple[tuple[int, int], ...], rounds: int) -> None:
    """Add the times of all shapes."""
    rng = np.random.default_rng(0)
    for rows, n in shapes:
        x = rng.standard_normal((rows, n)).astype(np.float32)
        base, ours = of_torch(x), {**of_jax(x), **of_peer(x)}
        calls = {**{f"torch {name}": call for name, call in base.items()}, **ours}
        times = interleaved(calls, rounds, seconds=0.05)
        kernel = fjx.choose("toeplitz", (rows, n)).algorithm
        for name in ours:
            like = times[f"torch {name if name in base else 'forward'}"]
            table.add(
                rows=rows,
                n=n,
                what=name,
                kernel="" if name.startswith("hpfracc") else kernel,
                ms=1e3 * times[name],
                torch_ms=1e3 * like,
                ratio=times[name] / like,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two shapes and fewer rounds")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    table = empty()
    with torch_threads(1):
        table.begin("all")
        fill(table, SHAPES[:2] if arguments.quick else SHAPES, 3 if arguments.quick else 15)
    first = next(record for record in table.records if record["what"] == "forward")
    table.note(f"Forward at {first['rows']} x {first['n']}: {first['ratio']:.2f} times torch; at most {MOST} wanted.")
    if find_spec("hpfracc") is None:
        table.note("hpfracc for JAX is not installed.")
    if arguments.output:
        table.write(arguments.output)


if __name__ == "__main__":
    main()
