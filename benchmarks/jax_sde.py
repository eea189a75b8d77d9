"""The solver of stochastic equations in JAX against PyTorch's and diffrax, side by side in one process.

    python benchmarks/jax_sde.py [--group NAME ...] [--cells NAME] [--output DIR]

Groups: `classical` (alpha = 1, Euler: the equation of `sde.py`, forward and training), `volterra` (alpha = 0.7, the
same), `noise` (fractional Brownian motion); of a network 8-64-64-8 and diagonal noise. `outputs`: the gradient of the
mean square of a linear equation's states at all of its steps, in its rate, beside a loop of `jax.lax.scan` as one
writes it and diffrax. All by default. float32, one thread of torch and of XLA. Compiled before. Medians of interleaved
rounds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import numpy as np
import sde as on_torch
import torch
from extent import Cells, add_cells
from jax import numpy as jnp
from results import Group, Table
from timing import Call, interleaved, machine, torch_threads

from hpfracc_nn.solvers import SDE, FractionalBrownian
from hpfracc_nn.solvers.jax import fsdeint
from hpfracc_nn.solvers.jax import increments as jax_increments
from hpfracc_nn.solvers.torch import increments as torch_increments


def drift(t, y, args):
    *hidden, (last, bias) = args[0]
    for weight, shift in hidden:
        y = jnp.tanh(y @ weight.T + shift)
    return y @ last.T + bias


def diffusion(t, y, args):
    return args[1] * jax.nn.sigmoid(y)


EQUATION = SDE(drift, diffusion)
ROUNDS = {Cells.QUICK: 3, Cells.REPORT: 5, Cells.FULL: 9}


def parameters(sde: on_torch.Equation):
    linear = [(each.weight, each.bias) for each in sde.net if isinstance(each, torch.nn.Linear)]
    weights = [tuple(jnp.asarray(part.detach().numpy()) for part in pair) for pair in linear]
    return weights, jnp.asarray(sde.scale.detach().numpy())


def calls(sde: on_torch.Equation, n: int, batch: int, **options) -> tuple[Call, Call]:
    """Return a forward solve, and one with the gradient of its mean square, both compiled."""
    y0, args = jnp.asarray(on_torch.start(batch).numpy()), parameters(sde)
    keys = iter(range(1 << 30))

    def solve(args, key):
        return fsdeint(EQUATION, y0, [0.0, 1.0], args=args, dt=1 / n, key=key, **options)[-1]

    return tuple(  # type: ignore[return-value]
        compiled(function, args, keys)
        for function in (solve, jax.value_and_grad(lambda args, key: jnp.mean(solve(args, key) ** 2)))
    )


def compiled(function: Callable, args, keys) -> Call:
    jitted = jax.jit(function)

    def call() -> None:
        jax.block_until_ready(jitted(args, jax.random.key(next(keys))))

    call()
    return call


def table_of(name: str, title: str) -> Callable[[Cells], Table]:
    def table(cells: Cells) -> Table:
        columns = {
            "what": ("", ""),
            "n": ("steps", ""),
            "us": ("us per step", ".4g"),
            "ratio": ("JAX's over it", ".3g"),
            "rounds": ("rounds", ""),
        }
        return Table(f"jax-sde-{name}", f"{title}, one thread, {machine()}, jax {jax.__version__}.", columns)

    return table


def fill(table: Table, passes: dict[str, dict[str, Call]], n: int, cells: Cells) -> None:
    for part, each in passes.items():
        times = interleaved(each, ROUNDS[cells], budget=60)
        for name in each:
            ratio = times["JAX"] / times[name]
            table.add(what=f"{part}: {name}", n=n, us=1e6 * times[name] / n, ratio=ratio, rounds=times.rounds)


def fill_classical(table: Table, allocator: str, cells: Cells) -> None:
    sde, n = on_torch.Equation(), 50 if cells.is_quick else 1000
    forward, training = calls(sde, n, 256)
    passes = {
        "forward": {"JAX": forward, "PyTorch": on_torch.forward(lambda: on_torch.ours(sde, n))},
        "forward and backward": {"JAX": training, "PyTorch": on_torch.CALLS["fsdeint"](sde, n)},
    }
    fill(table, passes, n, cells)
    if find_spec("diffrax") is None:
        table.note("diffrax is not installed.")
        return
    # Few steps: diffrax's gradient takes some 50 ms for each, and its compilation a minute.
    few = 10 if cells.is_quick else 50
    both = import_module("sde_diffrax").calls(sde.net, sde.scale, on_torch.start(256), few)
    pairs = zip(passes, calls(sde, few, 256), both, strict=True)
    fill(table, {part: {"JAX": ours, "diffrax": theirs} for part, ours, theirs in pairs}, few, cells)


def fill_volterra(table: Table, allocator: str, cells: Cells) -> None:
    sde, alpha = on_torch.Equation(), on_torch.ALPHA
    for n in {Cells.QUICK: (50,), Cells.REPORT: (1000,), Cells.FULL: (1000, 4000)}[cells]:
        forward, training = calls(sde, n, 64, alpha=alpha)
        passes = {
            "forward": {
                "JAX": forward,
                "PyTorch": on_torch.forward(lambda: on_torch.ours(sde, n, 64, alpha)),  # noqa: B023
            },
            "forward and backward": {"JAX": training, "PyTorch": on_torch.CALLS["fsdeint, alpha 0.7"](sde, n)},
        }
        fill(table, passes, n, cells)


def fill_noise(table: Table, allocator: str, cells: Cells) -> None:
    n, noise, shape = 64 if cells.is_quick else 1000, FractionalBrownian(0.3), (256, 8)
    keys = iter(range(1 << 30))
    drawn = compiled(lambda args, key: jax_increments(noise, n, shape, dt=0.01, key=key), (), keys)
    fill(table, {"draw": {"JAX": drawn, "PyTorch": lambda: torch_increments(noise, n, shape, dt=0.01)}}, n, cells)


LINEAR = SDE(lambda t, y, rate: -rate * y, lambda t, y, rate: 0.5 * jnp.ones_like(y), "additive")


def written_loop(n: int, y0: jax.Array) -> Callable:
    """Return Euler and Maruyama's method as one writes it: (rate, key) -> the states at all steps."""

    def states(rate, key):
        def step(y, dw):
            after = y - rate * y / n + 0.5 * dw
            return after, after

        increments = jax.random.normal(key, (n, *y0.shape)) / n**0.5
        return jnp.concatenate([y0[None], jax.lax.scan(step, y0, increments)[1]])

    return states


def outputs_calls(n: int) -> dict[str, Call]:
    """Return the gradients of the mean square of the states at all of n steps, a batch of 64 times 8."""
    y0, ts, keys = jnp.ones((64, 8)), np.linspace(0, 1, n + 1), iter(range(1 << 30))

    def ours(**options) -> Callable:
        return lambda rate, key: fsdeint(LINEAR, y0, ts, args=rate, key=key, **options)

    solves = {
        "JAX": ours(),
        "JAX, checkpoint": ours(checkpoint=True),
        "JAX, no adjoint": ours(adjoint=False),
        "written loop": written_loop(n, y0),
    }
    if find_spec("diffrax") is not None and n <= 1000:  # some ms for each step
        solves["diffrax"] = import_module("sde_diffrax").linear(n, y0)
    return {
        name: compiled(jax.grad(lambda rate, key, solve=solve: jnp.mean(solve(rate, key) ** 2)), jnp.ones(()), keys)
        for name, solve in solves.items()
    }


def fill_outputs(table: Table, allocator: str, cells: Cells) -> None:
    for n in {Cells.QUICK: (50,), Cells.REPORT: (1000, 4000), Cells.FULL: (1000, 2000, 4000, 8000)}[cells]:
        fill(table, {"gradient": outputs_calls(n)}, n, cells)
    if find_spec("diffrax") is None:
        table.note("diffrax is not installed.")


GROUPS = {
    "classical": Group(table_of("classical", "Euler and Maruyama's method, batch 256"), fill_classical),
    "volterra": Group(table_of("volterra", "Stochastic Volterra equation, alpha 0.7, batch 64"), fill_volterra),
    "outputs": Group(
        table_of("outputs", "Gradient of all states of a linear equation, [64, 8], alpha 1"), fill_outputs
    ),
    "noise": Group(table_of("noise", "Fractional Brownian motion, [256, 8]"), fill_noise),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="what to measure; may be repeated")
    add_cells(parser)
    parser.add_argument("--output", type=Path, help="a folder for the tables")
    arguments = parser.parse_args()
    with torch_threads(1):
        for name in arguments.group or GROUPS:
            table = GROUPS[name].table(arguments.cells)
            table.begin(name)
            GROUPS[name].fill(table, "warm", arguments.cells)
            if arguments.output:
                table.write(arguments.output)


if __name__ == "__main__":
    main()
