"""What is handed to CuPy: the source, the stream, the structure, the memory. CuPy is made up here."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional.torch.kernels import cuda_chunked_scan, cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts, Source
from hpfracc_nn.selection import Workload

SOURCE = cuda_chunked_scan.source_of(torch.float32)
DEVICE = torch.device("cuda", 1)
GIVEN = np.zeros(1, cuda_product.PROBLEM)


class Function:
    """A kernel that notes what it is called with."""

    def __init__(self, cupy: "CuPy", name: str):
        self.cupy, self.name = cupy, name
        self.max_dynamic_shared_size_bytes = 48 << 10

    def __call__(self, grid: tuple, block: tuple, given: tuple, *, shared_mem: int) -> None:
        self.cupy.calls.append((self.name, *self.cupy.inside, grid, block, given, shared_mem))


class CuPy:
    """As much of it as is used."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.inside: list[Any] = []
        self.modules: list[dict] = []
        self.functions: dict[str, Function] = {}
        self.cuda = SimpleNamespace(
            ExternalStream=lambda pointer, device: self._entered(("stream", pointer, device)),
            Device=lambda index: self._entered(("device", index)),
        )

    @contextmanager
    def _entered(self, what: tuple) -> Iterator[None]:
        self.inside.append(what)
        yield
        self.inside.remove(what)

    def RawModule(self, **given: Any) -> Any:
        self.modules.append(given)

        def get_function(name: str) -> Function:
            found = self.functions[name] = Function(self, name)
            return found

        return SimpleNamespace(get_function=get_function)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[CuPy]:
    made = CuPy()
    monkeypatch.setitem(sys.modules, "cupy", made)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=1234))
    monkeypatch.setattr(cuda_launch, "facts", lambda device: Facts(132, 227 << 10))
    monkeypatch.setattr(cuda_launch, "_ready", set())
    cuda_launch._loaded.cache_clear()
    yield made
    cuda_launch._loaded.cache_clear()


def test_a_launch_is_on_torchs_stream_and_the_datas_device(cupy: CuPy) -> None:
    cuda_launch.launch(SOURCE, "forward", DEVICE, 70_000, 64, 1000, GIVEN)
    ((name, device, stream, grid, block, given, shared),) = cupy.calls
    assert (name, device, stream) == ("forward", ("device", 1), ("stream", 1234, 1))
    assert (grid, block, shared) == ((70_000,), (64,), 1000)
    assert given[0] is GIVEN
    assert given[0].size == 1  # CuPy hands over arrays of one by value


def test_a_source_is_compiled_once_for_each_device(cupy: CuPy) -> None:
    work = Workload("toeplitz", "torch", device="cuda:1")
    assert cuda_launch.compilation(work, SOURCE) is not None
    for _ in range(3):
        cuda_launch.launch(SOURCE, "forward", DEVICE, 1, 64, 1000, GIVEN)
    (module,) = cupy.modules
    assert module["code"] == SOURCE.text
    assert module["options"] == ("-std=c++17", "-DSAMPLE=float")
    assert cuda_launch.compilation(work, SOURCE) is None
    other = Workload("toeplitz", "torch", device="cuda:0")
    compilation = cuda_launch.compilation(other, SOURCE)
    assert compilation is not None
    assert compilation.seconds == cuda_launch._COMPILED


def test_more_shared_memory_than_usual_is_asked_for(cupy: CuPy) -> None:
    cuda_launch.launch(SOURCE, "forward", DEVICE, 1, 64, 48 << 10, GIVEN)
    assert cupy.functions["forward"].max_dynamic_shared_size_bytes == 48 << 10
    cuda_launch.launch(SOURCE, "forward", DEVICE, 1, 64, (48 << 10) + 16, GIVEN)
    assert cupy.functions["forward"].max_dynamic_shared_size_bytes == 227 << 10


def test_the_number_of_states_is_compiled_in_where_it_is_known() -> None:
    assert Source("package", "file.cu", "float64", 40).definitions == ("-std=c++17", "-DSAMPLE=double", "-DSTATES=40")
