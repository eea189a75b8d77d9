"""Let the manager choose between two ways to compute a moving average, which it learns from the calls themselves.

Run:  python examples/own_operation.py [--quick]
"""

import argparse

import numpy as np

from hpfracc_nn import BackendManager
from hpfracc_nn.selection import Kernel, Settings, Workload, register, register_operation


def describe(x, window):
    """The workload, from static facts; what is wrong with the arguments is raised here, before a kernel runs."""
    if not 1 <= window <= x.size:
        raise ValueError(f"moving_average(window={window}): needs 1 <= window <= {x.size}, the number of samples.")
    return Workload("moving_average", "numpy", dtype=x.dtype.name, n=x.size)


def by_convolution(x, window):
    """O(n window)."""
    return np.convolve(x, np.full(window, 1 / window), "valid")


def by_sums(x, window):
    """O(n)."""
    sums = np.concatenate([[0.0], np.cumsum(x)])
    return (sums[window:] - sums[:-window]) / window


def fault(y, x, window):
    """What is wrong with a result, looked at on the calls that are timed."""
    expected = x.size - window + 1
    return None if y.shape == (expected,) else f"shape {y.shape} in place of ({expected},)"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls")
    arguments = parser.parse_args()

    register_operation("moving_average", describe, fault=fault)
    for algorithm, run in {"convolution": by_convolution, "sums": by_sums}.items():
        register(Kernel("moving_average", "numpy", "numpy", algorithm, run))  # no cost given: one pass over the data

    manager = BackendManager(Settings(mode="learn", wisdom="off"))
    x = np.random.default_rng(0).standard_normal(20_000)
    for _ in range(100 if arguments.quick else 2000):
        manager.run("moving_average", x, 500)
    for name, calls in manager.counters()["picks"].items():
        print(f"{name}: {calls} calls")
    print(manager.explain(describe(x, 500)))


if __name__ == "__main__":
    main()
