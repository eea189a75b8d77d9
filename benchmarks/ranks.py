"""One series on two processes against one: seconds for a forward and a backward pass.

Each process computes its slice with one thread; what is compared is the largest of the two with the time of the whole
series on one. Processor time leaves out what others do on the machine, and the wait for the other process; wall time
has both. The two processes begin each pass together.

Run:  python benchmarks/ranks.py [--rows 64] [--samples 1000000] [--repeats 3] [--dtype float32]
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable

os.environ.setdefault("HPFRACC_NN_WISDOM", "off")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

import hpfracc_nn as fnn
from hpfracc_nn import distributed

Call = Callable[[Tensor], Tensor]


def seconds(call: Call, x: Tensor, repeats: int, together: Callable[[], object]) -> list[float]:
    """Return the least processor and wall time of the operator alone, and of it with its backward pass.

    `together` is called before each pass.
    """
    found, g = [], torch.ones_like(x)
    given = x.detach().requires_grad_()
    for _ in range(repeats + 1):  # the first call computes the weights
        together()
        began = time.process_time(), time.perf_counter()
        with torch.no_grad():
            call(x)
        half = time.process_time(), time.perf_counter()
        together()
        again = time.process_time(), time.perf_counter()
        torch.autograd.grad(call(given), given, g)
        ended = time.process_time(), time.perf_counter()
        found.append([half[0] - began[0], ended[0] - again[0], half[1] - began[1], ended[1] - again[1]])
    return [min(each) for each in zip(*found[1:], strict=True)]


def one_of_two(rank: int, port: int, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    n = arguments.samples // 2
    x = torch.randn(arguments.rows, n, dtype=getattr(torch, arguments.dtype))
    for definition in operators():
        found = torch.tensor(
            seconds(lambda x, d=definition: distributed.derivative(x, d, dt=0.01), x, arguments.repeats, dist.barrier)
        )
        gathered = [torch.zeros_like(found) for _ in range(2)]
        dist.all_gather(gathered, found)
        if rank == 0:
            alone = seconds(lambda x, d=definition: d(x, dt=0.01), whole(arguments), arguments.repeats, lambda: None)
            for k, what in enumerate(("forward", "forward and backward") * 2):
                each = [float(one[k]) for one in gathered]
                print(
                    f"{type(definition).__name__}, {what}, {'processor' if k < 2 else 'wall'}: one process "
                    f"{alone[k]:.3f} s, two {each[0]:.3f} and {each[1]:.3f} s, ratio {max(each) / alone[k]:.2f}",
                    flush=True,
                )
        dist.barrier()
    dist.destroy_process_group()


def whole(arguments: argparse.Namespace) -> Tensor:
    return torch.randn(arguments.rows, arguments.samples, dtype=getattr(torch, arguments.dtype))


def operators() -> tuple[fnn.fractional.Definition, ...]:
    return fnn.GrunwaldLetnikov(0.6), fnn.Caputo(0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(one_of_two, (port, arguments), nprocs=2)


if __name__ == "__main__":
    main()
