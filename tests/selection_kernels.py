"""Kernels and a probe made up for the tests of selection: they state costs and run nothing."""

import contextlib

from hpfracc_nn.selection import (
    BackendManager,
    Cost,
    Kernel,
    Machine,
    Rates,
    Settings,
    Workload,
    kernels,
    register,
    unregister,
)

RATES = Rates({"matmul": 1e9, "fft": 1e9, "scan": 1e9, "elementwise": 1e9}, bandwidth=1e9, launch=1e-6)
WORK = Workload("test_op", "torch", rows=4, n=100)


class FakeProbe:
    framework = "torch"
    waits_to_be_asked = False

    def __init__(self):
        self.asked = []
        self.released = []

    def threads(self):
        return 1

    def free_memory(self, device):
        return None

    def release(self, device):
        self.released.append(device)

    def deterministic(self):
        return False

    def calibrate(self, device, dtype):
        self.asked.append((device, dtype))
        return RATES


def nothing(*_):
    raise AssertionError("selection runs no kernel, and asks none that is disabled")


def fake(name, flops=lambda w: w.samples, *, launches=1, refuses=lambda w: None, op="test_op", framework="torch"):
    """Return a kernel that takes flops(workload) at RATES, and no traffic."""
    backend, algorithm = name.split("/")
    return Kernel(
        op=op,
        framework=framework,
        backend=backend,
        algorithm=algorithm,
        run=nothing,
        adjoint=nothing,
        prepare=nothing,
        cost=lambda w: Cost({"matmul": flops(w)}, 0, launches, workspace=2 * w.bytes),
        refuses=refuses,
        saves=lambda w: w.bytes if w.learns_weights else 0,
    )


@contextlib.contextmanager
def registering():
    """Yield a function that registers kernels; they are gone afterwards."""
    added: list[Kernel] = []

    def add(*made):
        added.extend(register(kernel) for kernel in made)

    yield add
    for kernel in added:
        unregister(kernel)


def is_registered(name, op, framework):
    try:
        return name in [kernel.name for kernel in kernels(op, framework)]
    except LookupError:
        return False


def fake_manager(**settings):
    """Return a manager that goes by the estimate, and reads and writes no wisdom, unless it is told otherwise."""
    return BackendManager(Settings(**{"mode": "prior", "wisdom": "off", **settings}), machine=Machine())
