"""Learn the order of one long series that lies over two processes, each of which holds half of the time axis.

The series is white noise integrated to the order 0.35. Each process differentiates its own half, and what it needs of
the other one is exchanged: the same few numbers however long the halves are. The order that makes the result least is
learned on both, with a gradient that is complete on each. For comparison one process does the same on the whole series,
and both halves once as if they were series of their own.

Run:  python examples/time_over_ranks.py [--quick]
"""

import argparse
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import hpfracc_nn as fnn

TRUE = 0.35


def series(n):
    noise = torch.randn(1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return fnn.GrunwaldLetnikov(-TRUE)(noise)


def learned(layer, x, steps):
    """The order that makes the mean square of the derivative least, and the last result."""
    optimizer = torch.optim.Rprop(layer.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        optimizer.step()
    return float(layer.alpha.detach()), y.detach()


def difference():
    return fnn.FractionalLayer(0.2, "grunwald_letnikov", learn_alpha=True, dtype=torch.float64)


def process(rank, port, n, steps):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    cut = 2 * n // 3  # slices need not be equal
    x = series(n)
    own = (x[:, :cut], x[:, cut:])[rank]
    alpha, y = learned(difference().split_time(), own, steps)
    alphas = [None, None]
    dist.all_gather_object(alphas, alpha)
    alone, whole = learned(difference(), x, steps)
    part = (whole[:, :cut], whole[:, cut:])[rank]
    with torch.no_grad():
        as_if_alone = fnn.GrunwaldLetnikov(alone)(own)
    errors = torch.stack([(each - part).abs().max() / whole.abs().max() for each in (y, as_if_alone)])
    dist.all_reduce(errors, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"order, true:              {TRUE:.4f}")
        print(f"learned on two processes: {alphas[0]:.4f} and {alphas[1]:.4f}")
        print(f"learned on one:           {alone:.4f}")
        print(f"largest error of the derivative, two processes: {errors[0]:.1e}")
        print(f"the same, slices as series of their own:        {errors[1]:.1e}")
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short series")
    quick = parser.parse_args().quick
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    n, steps = (20_000, 40) if quick else (1_000_000, 40)
    mp.spawn(process, (port, n, steps), nprocs=2)


if __name__ == "__main__":
    main()
