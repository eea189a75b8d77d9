"""What learning from live calls costs and gains on three traces, against each kernel alone and an oracle.

    python benchmarks/selection_live.py [--quick] [--output benchmarks/results]

`training`: forward and backward, epochs over the same amount of data (10 to 1000 steps) in batches of 1, 16 and 256
rows of 32, 256 and 4096 samples, three times round. `serving`: one row of 256 samples at a time. `batches`: 400 batches
of 40 sizes between 1 x 32 and 128 x 4096, at random. The oracle has measured all kernels at each size before, and runs
the fastest. The learner begins with nothing at each repeat, calibration included, in a process that has loaded all
code; `fresh process` is the training trace in a process that has to load it from disk, which counts. A kernel alone
plays the training trace once round, and its time is taken three times. JAX is not started. Seconds are those of the
processor, so that other work on the machine counts little.

Targets: the learner takes at most 1.10 of the oracle's time, on the training trace at most 0.95 of the best kernel's
alone, and serves over 10 000 calls a second.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch
from calls import signals
from results import Table
from timing import machine, torch_threads
from torch import Tensor

from hpfracc_nn import BackendManager, FractionalLayer
from hpfracc_nn.selection import Machine, Settings

Shape = tuple[int, int]
Player = Callable[[Shape], FractionalLayer]

KERNELS = ("torch/dense", "torch/fft", "torch/chunked_scan", "numba/recurrence")
ROUNDS = 3  # of the training trace
TRAINING = [(rows, n) for n in (32, 256, 4096) for rows in (1, 16, 256)]
SERVING, CALLS = (1, 256), 4000
SLOWER, FASTER, CALLS_PER_SECOND = 1.10, 0.95, 10_000


class Trace:
    """Calls of a layer with inputs of given sizes.

    Args:
        name: In the table.
        calls: One round of it.
        rounds: How often it is played.
        is_training: A backward pass follows each call.
    """

    def __init__(self, name: str, calls: Sequence[Shape], rounds: int, is_training: bool):
        self.name, self.calls, self.rounds, self.is_training = name, calls, rounds, is_training
        self.shapes = list(dict.fromkeys(calls))
        self.inputs = {shape: signals(*shape).requires_grad_(is_training) for shape in self.shapes}
        self.ones = {shape: torch.ones(shape) for shape in self.shapes}

    def play(self, player: Player, rounds: int) -> float:
        """Return the seconds of so many rounds."""
        step = self.trained if self.is_training else self.called
        start = time.process_time()
        with nullcontext() if self.is_training else torch.no_grad():
            for _ in range(rounds):
                for shape in self.calls:
                    step(player(shape), shape)
        return time.process_time() - start

    def trained(self, layer: FractionalLayer, shape: Shape) -> None:
        x = self.inputs[shape]
        torch.autograd.grad(layer(x), [x], self.ones[shape])

    def called(self, layer: FractionalLayer, shape: Shape) -> Tensor:
        return layer(self.inputs[shape])

    def fastest(self, fixed: dict[str, FractionalLayer]) -> dict[Shape, str]:
        """Return the kernel that is the fastest at each size: medians of interleaved calls, after one for each."""
        step = self.trained if self.is_training else self.called
        best = {}
        with nullcontext() if self.is_training else torch.no_grad():
            for shape in self.shapes:
                times: dict[str, list[float]] = {name: [] for name in fixed}
                for _ in range(8 if shape[0] * shape[1] > 100_000 else 40):
                    for name, layer in fixed.items():
                        start = time.process_time()
                        step(layer, shape)
                        times[name].append(time.process_time() - start)
                best[shape] = min(times, key=lambda name: statistics.median(times[name][1:]))
        return best


def training() -> Trace:
    epochs = [[(rows, n)] * max(10, min(1000, 2**18 // (rows * n))) for rows, n in TRAINING]
    return Trace("training", [shape for epoch in epochs for shape in epoch], ROUNDS, is_training=True)


def traces() -> list[Trace]:
    chance = random.Random(0)
    sizes = [(2 ** chance.randint(0, 7), 2 ** chance.randint(5, 12)) for _ in range(40)]
    batches = [chance.choice(sizes) for _ in range(400)]
    return [
        training(),
        Trace("serving", [SERVING] * CALLS, 10, is_training=False),
        Trace("batches", batches, 10, is_training=False),
    ]


def learner() -> Player:
    """A layer whose manager has yet to learn everything, and to calibrate."""
    manager = BackendManager(Settings(mode="learn", wisdom="off"), machine=Machine())
    layer = FractionalLayer(0.5, manager=manager)
    return lambda shape: layer


def alone(kernel: str) -> FractionalLayer:
    backend, algorithm = kernel.split("/")
    settings = Settings(force_backend=backend, force_algorithm=algorithm, mode="off", sample=False, wisdom="off")
    return FractionalLayer(0.5, manager=BackendManager(settings))


def players(trace: Trace) -> dict[str, tuple[Callable[[], Player], int]]:
    """Return how each player is made anew, and how many rounds it plays."""
    fixed = {name: alone(name) for name in KERNELS}
    best = trace.fastest(fixed)
    oracle = {shape: fixed[name] for shape, name in best.items()}
    made: dict[str, tuple[Callable[[], Player], int]] = {
        "learner": (learner, trace.rounds),
        "oracle": (lambda: oracle.__getitem__, trace.rounds),
    }
    for name, layer in fixed.items():
        made[f"{name} alone"] = (lambda layer=layer: lambda shape: layer, 1)  # type: ignore[misc]
    return made


def measured(trace: Trace, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of every player at each repeat; all take turns, in another order each time."""
    everyone = players(trace)
    names = list(everyone)
    found: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(repeats):
        for name in [*names[repeat % len(names) :], *names[: repeat % len(names)]]:
            make, rounds = everyone[name]
            found[name].append(trace.play(make(), rounds) * trace.rounds / rounds)
        if trace.name == "training":
            found.setdefault("learner, fresh process", []).append(in_fresh_process())
    return found


def in_fresh_process() -> float:
    """Return the seconds of the training trace in a process that has loaded torch and this package, and no kernel."""
    done = subprocess.run([sys.executable, __file__, "--fresh"], capture_output=True, text=True, check=True)
    return float(done.stdout)


def fresh() -> Iterator[str]:
    trace = training()
    player = learner()
    yield str(trace.play(player, trace.rounds))


def fill(table: Table, trace: Trace, repeats: int) -> None:
    found = measured(trace, repeats)
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    calls = len(trace.calls) * trace.rounds
    for name, seconds in medians.items():
        table.add(
            trace=trace.name,
            player=name,
            seconds=seconds,
            least=min(found[name]),
            most=max(found[name]),
            of_oracle=seconds / medians["oracle"],
            calls=calls / seconds,
        )
    ours = medians["learner"]
    best = min((name for name in medians if name.endswith("alone")), key=medians.__getitem__)
    table.note(
        f"{trace.name}: learner / oracle {ours / medians['oracle']:.3f}, at most {SLOWER}: "
        f"{_verdict(ours <= SLOWER * medians['oracle'])}."
    )
    if trace.name == "training":
        table.note(
            f"training: learner / {best} {ours / medians[best]:.3f}, at most {FASTER}: "
            f"{_verdict(ours <= FASTER * medians[best])}."
        )
    if trace.name == "serving":
        table.note(
            f"serving: {calls / ours:.0f} calls/s, over {CALLS_PER_SECOND}: "
            f"{_verdict(calls / ours > CALLS_PER_SECOND)}."
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repeat")
    parser.add_argument("--fresh", action="store_true", help="only print the seconds of the training trace")
    parser.add_argument("--output", type=Path, help="also write the table into this folder")
    arguments = parser.parse_args()
    repeats = 1 if arguments.quick else 5
    with torch_threads(1):
        if arguments.fresh:
            sys.stdout.writelines(fresh())
            return
        table = Table(
            "selection-live",
            f"Learning from live calls, float32, one thread, {machine()}. Seconds of the processor, medians "
            f"of {repeats} interleaved repeats.",
            {
                "trace": ("trace", ""),
                "player": ("player", ""),
                "seconds": ("s", ".3f"),
                "least": ("least", ".3f"),
                "most": ("most", ".3f"),
                "of_oracle": ("/ oracle", ".3f"),
                "calls": ("calls/s", ".0f"),
            },
        )
        table.begin("one thread")
        for trace in traces():
            fill(table, trace, repeats)
    if arguments.output:
        table.write(arguments.output)


def _verdict(reached: bool) -> str:
    return "pass" if reached else "FAIL"


if __name__ == "__main__":
    main()
