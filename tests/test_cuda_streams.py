"""What is kept on a device may be read by any stream: after it was made, and as long as that one reads it.

Streams are made up here, and data of the host stand for a device's; tests/test_cuda_device.py has the same on one.
"""

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import hpfracc_nn as fnn
from hpfracc_nn.fractional import tables
from hpfracc_nn.fractional.definitions import Caputo
from hpfracc_nn.fractional.torch import streams, weights
from hpfracc_nn.fractional.torch.kernels import cuda_launch
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.torch.weights import weights_of
from hpfracc_nn.fractional.weights import forget
from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.training.torch.optimizers import directions
from tests.cuda_cases import Emulated, emulated, needs_compiler  # noqa: F401  a fixture
from tests.cuda_fakes import Cuda, Note
from tests.test_cuda_kernels import CUDA, every_algorithm, manager_for, shape_for

A, B, C = 11, 22, 33
HERE = torch.device("cpu")
OPERANDS = ("inward", "outward", "near", "decay", "columns")


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """Streams for the host, and nothing that was kept before or is kept after."""
    found = Cuda()
    found.install(monkeypatch)
    monkeypatch.setattr(streams, "_ORDERED", ("cuda", "cpu"))
    monkeypatch.setattr(streams, "_captured", set())
    monkeypatch.setattr(weights, "_SMALL", {})
    forget_all()
    yield found
    forget_all()


def forget_all() -> None:
    forget()
    tables.CACHE.clear()
    made: tuple[Any, ...] = directions._weights_on, directions._fading_on
    for each in made:
        each.forget()


def of_kind(kind: str, notes: list[Note]) -> set[Any]:
    return {note.what for note in notes if note.kind == kind}


def kernel_of(framework_kernel: str) -> BackendManager:
    backend, algorithm = framework_kernel.split("/")
    return BackendManager(Settings(force_backend=backend, force_algorithm=algorithm, mode="prior", wisdom="off"))


X = torch.linspace(0.0, 1.0, 300, dtype=torch.float64).square().expand(3, 300).contiguous()
TIMES = np.linspace(0.0, 1.0, 300) ** 1.5
CALLS: dict[str, Callable[[], Any]] = {
    **{
        f"torch/{name}": lambda name=name: apply("test", X, Caputo(0.5), 0.1, -1, kernel_of(f"torch/{name}"))  # type: ignore[misc]
        for name in ("dense", "fft", "chunked_scan")
    },
    "an integral": lambda: fnn.derivative(X, fnn.RiemannLiouvilleIntegral(1.5), dt=0.1),
    "samples at any times": lambda: fnn.derivative(X, fnn.Caputo(0.5), t=TIMES),
    "a multiplier": lambda: fnn.derivative(X, fnn.PeriodicWeyl(0.5)),
    "the weights of an optimizer": lambda: directions._fading_on(0.5, HERE),
}


@pytest.mark.parametrize("name", CALLS)
def test_another_stream_waits_once_and_is_recorded(cuda: Cuda, name: str) -> None:
    call = CALLS[name]
    with cuda.on(A) as first:
        wanted = call()
    made = of_kind("record", first)
    assert made
    assert not of_kind("wait", first)
    assert not of_kind("keep", first)  # it may be used anew in the order of the stream that made it
    with cuda.on(B) as second:
        found = call()
    assert made == of_kind("wait", second)
    assert of_kind("keep", second)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    with cuda.on(A):
        call()  # what B has made, if anything
    for stream in (A, B):
        with cuda.on(stream) as again:
            call()
        assert not again


def test_a_learned_order_reads_its_tables_after_they_are_there(cuda: Cuda) -> None:
    def call() -> Tensor:
        alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        manager = kernel_of("torch/chunked_scan")
        return torch.autograd.grad(apply("test", X, Caputo(alpha), 0.1, -1, manager).square().sum(), alpha)[0]

    with cuda.on(A) as first:
        call()
    with cuda.on(B) as second:
        call()
    assert of_kind("wait", second) >= of_kind("record", first) != set()
    assert of_kind("keep", second)


@needs_compiler
@every_algorithm
@pytest.mark.parametrize("backward", [False, True])
def test_a_launch_reads_what_its_stream_has_waited_for(
    cuda: Cuda,
    emulated: Emulated,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    algorithm: str,
    backward: bool,
) -> None:
    """Every address of weights in a launch on another stream is memory that was recorded for it before."""

    def launch(source: Any, function: str, device: Any, grid: int, block: int, shared: int, given: np.ndarray) -> None:
        addresses = {int(given[name][0]) for name in OPERANDS} - {0}
        cuda.log.append(Note("launch", cuda.current, frozenset(addresses)))
        emulated.launch(source, function, device, grid, block, shared, given)

    monkeypatch.setattr(cuda_launch, "launch", launch)
    shape, dim = shape_for(algorithm, 3, 70)
    manager = manager_for(CUDA[algorithm].kernel)

    def call() -> None:
        x = CUDA[algorithm].random(*shape).requires_grad_(backward)
        y = apply("test", x, Caputo(1.5), 0.1, dim, manager)
        if backward:
            y.sum().backward()

    with cuda.on(A) as first:
        call()
    with cuda.on(B) as second:
        call()
    read = {address for note in first if note.kind == "launch" for address in note.what}
    assert len(read) >= 2
    kept: set[int] = set()
    waited: set[int] = set()
    for note in second:
        if note.kind == "keep":
            kept.add(note.what)
        elif note.kind == "wait":
            waited.add(note.what)
        elif note.kind == "launch":
            assert note.what & read <= kept
            assert waited >= of_kind("record", first)


@needs_compiler
def test_operands_that_another_stream_makes_later_are_waited_for_too(cuda: Cuda, emulated: Emulated) -> None:  # noqa: F811
    manager = manager_for(CUDA["chunked_scan"].kernel)
    x = torch.randn(3, 70, dtype=torch.float64, requires_grad=True)
    with cuda.on(A):
        y = apply("test", x, Caputo(0.5), 0.1, -1, manager)
    with cuda.on(B) as second:
        torch.autograd.grad(apply("test", x, Caputo(0.5), 0.1, -1, manager).sum(), x)  # those of the transpose
    assert of_kind("record", second)
    with cuda.on(A) as third:
        torch.autograd.grad(y.sum(), x)
    assert of_kind("wait", third) == of_kind("record", second)


@needs_compiler
def test_a_graph_waits_for_nothing_and_keeps_what_it_reads(cuda: Cuda, emulated: Emulated) -> None:  # noqa: F811
    manager = manager_for(CUDA["chunked_scan"].kernel)
    x = torch.randn(3, 70, dtype=torch.float64, requires_grad=True)
    definition = Caputo(0.25)

    def call() -> Tensor:
        return apply("test", x, definition, 0.1, -1, manager)

    def operands() -> dict[Any, Any]:
        return weights_of(definition, 70, 0.1, torch.float64, HERE).chunks(16).made

    with cuda.on(A):
        call()
    before = list(operands())
    assert len(before) == 1
    with cuda.on(C) as captured:
        cuda.is_captured = True  # the fake's events and streams refuse what CUDA refuses then
        (gx,) = torch.autograd.grad(call().sum(), x)
        cuda.is_captured = False
    assert not captured
    assert list(operands()) == before  # the transpose's hold nothing before the graph has run
    with cuda.on(A):
        wanted = torch.autograd.grad(call().sum(), x)[0]
    torch.testing.assert_close(gx, wanted, rtol=0, atol=0)
    assert len(operands()) == 2
    read = [weakref.ref(each) for each in operands()[before[0]]]
    forget_all()
    gc.collect()
    assert all(each() is not None for each in read)
    streams._captured.clear()
    gc.collect()


def test_data_of_the_host_have_no_streams(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_ORDERED", ("cuda",))
    for call in CALLS.values():
        call()
    assert not cuda.log
