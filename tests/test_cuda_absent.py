"""Without a GPU, CuPy or driver everything works but the kernels for it, which say what is missing."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hpfracc_nn as fnn
import hpfracc_nn.solvers.torch.kernels
import hpfracc_nn.training.torch.optimizers.kernels
from hpfracc_nn import workload
from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product, triton_launch
from hpfracc_nn.selection import (
    BackendManager,
    Compilation,
    Settings,
    Workload,
    kernels,
    register_rehearsal,
    unregister_rehearsal,
)
from hpfracc_nn.selection import registry as rehearsals
from tests.selection_kernels import WORK, fake, registering

ON_DEVICE = Workload("toeplitz", "torch", device="cuda:0", rows=16, n=1024, exponentials=24)
CUDA = [
    kernel
    for op in ("toeplitz", "history_mix", "history", "history.exponentials")
    for kernel in kernels(op, "torch")
    if kernel.backend == "cuda"
]
INSTALL = "CuPy is not installed; pip install 'hpfracc-nn[cuda12]' or 'hpfracc-nn[cuda13]', as the driver has it"


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver, CuPy and a torch for it, as far as can be seen without using them."""
    monkeypatch.setattr(cuda_launch, "_has_driver", lambda: True)
    monkeypatch.setattr(cuda_launch, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(cuda_launch, "facts", lambda device: cuda_launch.Facts(132, 227 << 10))


def test_every_operation_has_a_kernel() -> None:
    assert {kernel.op for kernel in CUDA} == {"toeplitz", "history_mix", "history", "history.exponentials"}


def test_each_thing_that_is_missing_is_named(complete: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in CUDA[:1]:
        assert kernel.refuses(ON_DEVICE) is None
        assert kernel.refuses(Workload("toeplitz", "torch")) == "it computes on a CUDA device and the data lie on cpu"
        other = Workload("toeplitz", "torch", device="cuda:3")
        assert kernel.refuses(other) == "torch sees 1 CUDA devices, and cuda:3 is none of them"
        half = Workload("toeplitz", "torch", device="cuda:0", dtype="float16")
        assert kernel.refuses(half) == "float16 is not computed in; it takes float32 and float64"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for kernel in CUDA:
        asked = Workload(kernel.op, "torch", device="cpu" if kernel.offloads else "cuda:0")
        with monkeypatch.context() as here:
            here.setattr(cuda_launch, "find_spec", lambda name: None)
            assert kernel.refuses(asked) == INSTALL
            here.setattr(torch.version, "cuda", None)
            assert kernel.refuses(asked) == "this torch was built without CUDA; install one that was built with it"
            here.setattr(cuda_launch, "_has_driver", lambda: False)
            assert kernel.refuses(asked) == f"there is no NVIDIA driver here: {cuda_launch._DRIVER} does not load"


@pytest.mark.parametrize(
    ("algorithm", "given", "reason"),
    [
        ("chunked_scan", {"width": 4}, "it takes time as the last axis; 4 samples lie side by side"),
        ("chunked_scan", {"exponentials": 0}, "the weights are no sum of exponentials to float32 tolerance"),
        ("dense", {"n": 513}, "n=513 is longer than 512"),
        ("dense", {"n": 512, "width": 4}, "it takes time as the last axis; 4 samples lie side by side"),
        ("recurrence", {}, "it takes time in the middle, and time is the last axis"),
        ("recurrence", {"width": 4}, None),
        ("dense", {"n": 512}, None),
    ],
)
def test_what_they_do_not_take_is_said(complete: None, algorithm: str, given: dict, reason: str | None) -> None:
    (kernel,) = (each for each in CUDA if each.algorithm == algorithm and each.op == "toeplitz")
    fields = {"device": "cuda:0", "rows": 16, "n": 1024, "exponentials": 24, **given}
    assert kernel.refuses(Workload("toeplitz", "torch", **fields)) == reason


@pytest.mark.usefixtures("complete")
@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"rows": 16, "n": 32}, "cuda/dense"),
        ({"rows": 4096, "n": 4096, "exponentials": 24}, "cuda/chunked_scan"),
        ({"rows": 1, "n": 1_000_000, "exponentials": 40, "needs_gradient": True}, "cuda/chunked_scan"),
        ({"rows": 64, "n": 3000, "width": 64, "exponentials": 24}, "cuda/recurrence"),
        ({"rows": 64, "n": 65536}, "torch/fft"),
    ],
    ids=str,
)
def test_the_estimate_for_a_device_is_the_same_everywhere(
    given: dict, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_launch, "find_spec", lambda name: None)  # the builds of torch for devices bring Triton
    manager = BackendManager(Settings(mode="prior", calibration="shipped", deterministic=True))
    asked = Workload("toeplitz", "torch", device="cuda:0", **given)
    assert manager.plan(asked).kernel.name == chosen
    assert "numba/recurrence" in manager.explain(asked)


def test_a_device_with_little_shared_memory_is_refused(complete: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_launch, "facts", lambda device: cuda_launch.Facts(40, 16 << 10))
    reason = cuda_product._chunked_refuses(ON_DEVICE)
    assert re.fullmatch(r"a block needs \d+ bytes of shared memory and cuda:0 has 16384", str(reason))


@pytest.mark.skipif(cuda_launch.refusal(ON_DEVICE) is None, reason="there is a device, a driver and CuPy")
def test_planning_and_explain_say_why_they_are_refused() -> None:
    manager, reason = BackendManager(Settings(mode="prior", calibration="shipped")), cuda_launch.refusal(ON_DEVICE)
    here = workload((16, 1024), framework="torch")
    assert manager.plan(here).backend != "cuda"
    table = manager.explain(here)
    for kernel in ("cuda/chunked_scan", "cuda/dense", "cuda/recurrence"):
        assert f"{kernel}" in table
    assert str(reason) in " ".join(table.split())
    with pytest.raises(LookupError, match=r"no NVIDIA driver|CuPy is not installed|built without CUDA"):
        BackendManager(Settings(force_backend="cuda", mode="prior")).plan(here)


@pytest.mark.slow
def test_asking_imports_no_cupy() -> None:
    program = (
        "import sys; from hpfracc_nn import workload; from hpfracc_nn.selection import BackendManager, Settings\n"
        "import hpfracc_nn.fractional.torch.operator\n"
        "print(BackendManager(Settings(mode='prior')).explain(workload((16, 1024), framework='torch')))\n"
        "assert 'cupy' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "cuda/chunked_scan" in done.stdout


# Warming up


def test_a_warm_up_runs_every_kernel_that_has_something_to_compile() -> None:
    ready: set[str] = set()

    def compiles(name: str, seconds: float):
        return lambda workload: None if name in ready else Compilation(seconds, name)

    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    with registering() as add:
        register_rehearsal("test_op", "torch", lambda plan: ready.add(plan.kernel.name))
        made = [fake(name) for name in ("torch/dense", "numba/recurrence", "xla/fft", "cuda/dense")]
        for kernel, seconds in zip(made[1:], (2.0, math.inf, 4.0), strict=True):
            kernel.compiles = compiles(kernel.name, seconds)
        add(*made)
        took = manager.warm_up([WORK])
        assert set(took) == {"numba/recurrence", "cuda/dense"} == ready
        assert all(seconds >= 0 for seconds in took.values())
        assert manager.warm_up([WORK]) == {}
        unregister_rehearsal("test_op", "torch")
        with pytest.raises(LookupError, match="no rehearsal of test_op on torch"):
            unregister_rehearsal("test_op", "torch")


def test_an_operation_that_nobody_can_rehearse_is_named() -> None:
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    with pytest.raises(LookupError, match=r"no rehearsal of test_op on torch: there are .*toeplitz on torch"):
        manager.warm_up([WORK])


@pytest.mark.parametrize("shape", [(4, 300), (2, 3, 70), (2, 300, 5)])
@pytest.mark.parametrize("name", ["torch/dense", "torch/chunked_scan", "torch/fft"])
def test_a_rehearsal_runs_a_kernel_in_both_directions(name: str, shape: tuple[int, ...]) -> None:
    (kernel,) = (each for each in kernels("toeplitz", "torch") if each.name == name)
    manager = BackendManager(
        Settings(force_backend="torch", force_algorithm=kernel.algorithm, mode="prior", calibration="shipped")
    )
    alpha = (0.2, 0.5, 0.9) if shape == (2, 3, 70) else 0.5
    dim = -1 if shape[-1] > 5 else 1
    site = manager.site("toeplitz", "torch", "test")
    fnn.derivative(torch.zeros(shape, requires_grad=True), fnn.Caputo(alpha), dim=dim, manager=manager)
    (asked,) = {plan.workload for each in manager.sites() for plan in each.plans()}
    assert asked.needs_gradient
    rehearsals.rehearsal("toeplitz", "torch")(manager.plan(asked))
    assert site.plans() == ()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 5])
def test_a_warm_up_leaves_numba_nothing_to_compile(width: int) -> None:
    numba = next(kernel for kernel in kernels("toeplitz", "torch") if kernel.backend == "numba")
    work = workload((4, 200, width), framework="torch", dim=1, dtype="float64", needs_gradient=True)
    if numba.refuses(work) is not None:
        pytest.skip(str(numba.refuses(work)))
    manager = BackendManager(Settings(mode="prior", calibration="shipped"))
    manager.warm_up([work])
    assert numba.compiles(work) is None
    assert manager.warm_up([work]) == {}
