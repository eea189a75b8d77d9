"""Without Triton or a GPU everything works but the kernels in Triton, which say what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hpfracc_nn import workload
from hpfracc_nn.fractional.torch.kernels import cuda_launch, triton_launch
from hpfracc_nn.fractional.torch.kernels.cuda_launch import Facts
from hpfracc_nn.selection import BackendManager, Settings, Workload, backends, kernels
from hpfracc_nn.training.torch.optimizers.kernels import triton_mix  # noqa: F401  registers its kernel

TRITON = [kernel for op in ("toeplitz", "history_mix") for kernel in kernels(op, "torch") if kernel.backend == "triton"]
SCAN = TRITON[0]
ON_DEVICE = Workload("toeplitz", "torch", device="cuda:0", rows=65536, n=1024, exponentials=24)
ONE = Workload("toeplitz", "torch", device="cuda:0", n=2**20, exponentials=24)


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, and Triton, as far as can be seen without using them; no CuPy."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda_launch, "facts", lambda device: Facts(132, 227 << 10))
    monkeypatch.setattr(cuda_launch, "_has_driver", lambda: True)
    monkeypatch.setattr(cuda_launch, "find_spec", lambda name: None)
    monkeypatch.setattr(triton_launch, "find_spec", lambda name: object())


def test_both_operations_have_a_kernel() -> None:
    assert [kernel.op for kernel in TRITON] == ["toeplitz", "history_mix"]
    assert "triton" in backends()


def test_each_thing_that_is_missing_is_named(complete: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in TRITON:
        asked = Workload(kernel.op, "torch", device="cuda:0")
        assert kernel.refuses(asked) is None
        assert kernel.refuses(Workload(kernel.op, "torch")) == "it computes on a GPU and the data lie on cpu"
        other = Workload(kernel.op, "torch", device="cuda:3")
        assert kernel.refuses(other) == "torch sees 1 CUDA devices, and cuda:3 is none of them"
        half = Workload(kernel.op, "torch", device="cuda:0", dtype="float16")
        assert kernel.refuses(half) == "float16 is not computed in; it takes float32 and float64"
        with monkeypatch.context() as here:
            here.setattr(triton_launch, "find_spec", lambda name: None)
            said = "Triton is not installed; pip install triton, in the version that this torch names"
            assert kernel.refuses(asked) == said
            here.setattr(torch.version, "cuda", None)
            said = "this torch was built without a GPU; install one that was built with CUDA or ROCm"
            assert kernel.refuses(asked) == said
            here.setattr(torch.version, "hip", "6.4")
            assert kernel.refuses(asked) != said


def test_weights_that_are_no_sum_of_exponentials_are_refused(complete: None) -> None:
    asked = Workload("toeplitz", "torch", device="cuda:0", n=1000)
    assert SCAN.refuses(asked) == "the weights are no sum of exponentials to float32 tolerance"


@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize("width", [1, 64])
def test_without_cupy_the_plan_for_a_large_batch_is_triton(width: int) -> None:
    asked = Workload("toeplitz", "torch", device="cuda:0", rows=4096 // width, n=4096, width=width, exponentials=24)
    manager = BackendManager(Settings(mode="prior", calibration="shipped", deterministic=True))
    assert manager.plan(asked).kernel is SCAN
    assert "cuda/chunked_scan" in manager.explain(asked)


@pytest.mark.parametrize("width", [1, 64])
def test_with_both_the_first_plan_is_the_one_with_fewer_instructions(
    complete: None, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(cuda_launch, "find_spec", lambda name: object())
    asked = Workload("toeplitz", "torch", device="cuda:0", rows=65536 // width, n=1024, width=width, exponentials=24)
    costs = {
        kernel.name: kernel.cost(asked).flops["matmul"]
        for kernel in kernels("toeplitz", "torch")
        if kernel.backend in ("cuda", "triton") and kernel.refuses(asked) is None
    }
    assert min(costs, key=costs.__getitem__) == "triton/chunked_scan"
    manager = BackendManager(Settings(mode="prior", calibration="shipped", deterministic=True))
    assert manager.plan(asked).kernel is SCAN


@pytest.mark.usefixtures("complete")
def test_the_estimate_is_by_instructions() -> None:
    one, two = SCAN.cost(ON_DEVICE), SCAN.cost(ONE)
    samples = ON_DEVICE.samples
    assert one.bytes == 2 * 4 * samples
    assert one.flops["matmul"] == pytest.approx(2 * samples * 133, rel=0.01)
    assert two.bytes == 3 * 4 * 2**20  # a signal that is cut is read twice
    assert two.launches == 3 * one.launches


@pytest.mark.usefixtures("complete")
def test_what_is_compiled_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_launch, "_ready", set())
    first = SCAN.compiles(ON_DEVICE)
    assert first is not None
    assert first.seconds == triton_launch._COMPILED
    triton_launch.ran(torch.device("cuda:0"), first.code[2])  # type: ignore[index]
    assert SCAN.compiles(ON_DEVICE) is None
    assert SCAN.compiles(Workload("toeplitz", "torch", device="cuda:0", rows=9, n=4097, exponentials=24)) is not None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_planning_and_explain_say_why_they_are_refused() -> None:
    here = workload((16, 1024), framework="torch")
    table = BackendManager(Settings(mode="prior", calibration="shipped")).explain(here)
    assert "it computes on a GPU and the data lie on cpu" in " ".join(table.split())
    with pytest.raises(LookupError, match="it computes on a GPU"):
        BackendManager(Settings(force_backend="triton", mode="prior")).plan(here)


def test_asking_imports_no_triton() -> None:
    program = (
        "import sys; from hpfracc_nn import workload; from hpfracc_nn.selection import BackendManager, Settings\n"
        "import hpfracc_nn.fractional.torch.operator\n"
        "BackendManager(Settings(mode='prior')).explain(workload((16, 1024), framework='torch'))\n"
        "assert 'triton' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # nor does torch say that it is absent
