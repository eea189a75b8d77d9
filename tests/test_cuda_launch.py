"""What is handed to CuPy: the source, the stream, the structure, the memory; to a fake that behaves as the real one."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts, Source
from hpfracc_nn.selection import Workload
from tests.cuda_cases import waiting_is_an_error
from tests.cuda_fakes import CuPy

SOURCE = cuda_product.chunked_source(torch.float32)
DEVICE = torch.device("cuda", 1)
GIVEN = np.zeros(1, cuda_product.PROBLEM)


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> CuPy:
    made = CuPy()
    monkeypatch.setitem(sys.modules, "cupy", made)  # type: ignore[arg-type]
    monkeypatch.setattr(cuda_launch, "facts", lambda device: Facts(132, 227 << 10))
    return made


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A stream of torch, and nothing loaded."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=1234))
    monkeypatch.setattr(cuda_launch, "_ready", set())
    loaded = cuda_launch._loaded
    loaded.cache_clear()
    yield
    loaded.cache_clear()


def test_a_launch_is_on_torchs_stream_and_the_datas_device(cupy: CuPy) -> None:
    cuda_launch.launch(SOURCE, "forward", DEVICE, 70_000, 64, 1000, GIVEN)
    ((name, device, stream, grid, block, given, shared),) = cupy.calls
    assert (name, device, stream) == ("forward", 1, 1234)
    assert cupy.devices == [0]
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


def test_a_mode_that_is_set_with_a_warning_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch does it: `set_sync_debug_mode` warns when the mode is set already."""
    modes = ["default"]

    def set_mode(mode: str) -> None:
        modes.append(mode)
        text = "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
        warnings.warn(text, UserWarning, stacklevel=2)

    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with waiting_is_an_error():
        assert modes[-1] == "error"
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", UserWarning, stacklevel=2)
    with pytest.raises(RuntimeError, match="waits"), waiting_is_an_error():
        raise RuntimeError("waits")
    assert modes == ["default", "error", "default", "error", "default"]


def test_jax_is_told_before_it_is_loaded_that_tests_share_a_device() -> None:
    """conftest.py says so where the caller has not said anything; each process of `-n 8` would take three quarters."""
    assert "XLA_PYTHON_CLIENT_PREALLOCATE" in os.environ


# The fake and the real one, where it is installed; a device is not needed to be told that an argument is wrong.


def launched(cupy: Any) -> Any:
    """Return a kernel that was loaded: of the real CuPy one that no module has."""
    return cupy.cuda.launched if isinstance(cupy, CuPy) else cupy.cuda.Function.__new__(cupy.cuda.Function)


CALLS: dict[str, Callable[[Any], Any]] = {
    "a module": lambda cupy: cupy.RawModule(code=SOURCE.text, options=SOURCE.definitions, backend="nvrtc"),
    "a module by position": lambda cupy: cupy.RawModule(SOURCE.text),
    "a module of nothing": lambda cupy: cupy.RawModule(),
    "a module of bytes": lambda cupy: cupy.RawModule(code=SOURCE.text.encode()),
    "options in a list": lambda cupy: cupy.RawModule(code=SOURCE.text, options=["-std=c++17"]),
    "an option that there is not": lambda cupy: cupy.RawModule(code=SOURCE.text, capability=90),
    "a function": lambda cupy: cupy.RawModule(code=SOURCE.text).get_function("forward"),
    "a function by number": lambda cupy: cupy.RawModule(code=SOURCE.text).get_function(3),
    "a device": lambda cupy: cupy.cuda.Device(1),
    "a device by name": lambda cupy: cupy.cuda.Device("cuda:1"),
    "a device by keyword": lambda cupy: cupy.cuda.Device(index=1),
    "a launch": lambda cupy: launched(cupy)((1,), (64,), (GIVEN,), shared_mem=9, stream=cuda_launch._Stream(5)),
    "a launch on a number": lambda cupy: launched(cupy)((1,), (64,), (GIVEN,), shared_mem=9, stream=5),
    "a launch with an unknown word": lambda cupy: launched(cupy)((1,), (64,), (GIVEN,), shared=9),
    "a grid that is a number": lambda cupy: launched(cupy)(1, (64,), (GIVEN,), stream=cuda_launch._Stream(5)),
    "a block in a list": lambda cupy: launched(cupy)((1,), [64], (GIVEN,), stream=cuda_launch._Stream(5)),
    "negative memory": lambda cupy: launched(cupy)((1,), (64,), (GIVEN,), shared_mem=-1, stream=cuda_launch._Stream(5)),
    "an external stream": lambda cupy: cupy.cuda.ExternalStream(1234, 1),
}


def outcome(cupy: Any, call: Callable[[Any], Any]) -> str:
    """Return the error's name, or that there is none but a device's own."""
    try:
        call(cupy)
    except Exception as error:
        return "" if "cuda" in type(error).__module__ else type(error).__name__
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_the_fake_answers_as_cupy_does(name: str) -> None:
    real = pytest.importorskip("cupy")
    if name == "an external stream" and int(real.__version__.partition(".")[0]) < 14:
        pytest.skip("it is deprecated from CuPy 14 on")
    assert outcome(CuPy(), CALLS[name]) == outcome(real, CALLS[name])


def test_the_fake_has_errors_to_answer() -> None:
    found = {name: outcome(CuPy(), call) for name, call in CALLS.items()}
    assert {name for name, error in found.items() if not error} == {"a module", "a function", "a device", "a launch"}
    assert found["an external stream"] == "DeprecationWarning"  # which stops a launch where warnings are errors


@pytest.mark.skipif(torch.cuda.is_available(), reason="a device would take the addresses for its own")
def test_cupy_itself_takes_a_launch_as_far_as_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning comes before, nor a complaint about an argument."""
    real = pytest.importorskip("cupy")

    def reaches(call: Callable[[], Any]) -> None:
        with pytest.raises(real.cuda.runtime.CUDARuntimeError):
            call()

    reaches(lambda: cuda_launch.launch(SOURCE, "forward", torch.device("cuda", 0), 1, 64, 1000, GIVEN))
    monkeypatch.setattr(real.cuda, "Device", CuPy().cuda.Device)  # a step further: what is loaded is launched
    monkeypatch.setattr(cuda_launch, "_loaded", lambda *given: launched(real))
    reaches(lambda: cuda_launch.launch(SOURCE, "forward", torch.device("cuda", 0), 1, 64, 1000, GIVEN))
