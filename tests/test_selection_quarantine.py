"""What is left alone for how long, and what an exception says of it. Time is an argument."""

import ctypes
import errno
import math
from dataclasses import replace

import numpy as np
import pytest

from hpfracc_nn.selection.quarantine import LONGEST, Quarantine, cause_of, kind_of
from tests.selection_kernels import WORK, fake

KERNEL, OTHER = fake("torch/fft"), fake("torch/dense")


class OutOfMemoryError(RuntimeError):
    """What torch and CuPy call theirs."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("boom"), "kernel"),
        (ValueError("boom"), "kernel"),
        (OSError(errno.ENOSPC, "No space left on device"), "kernel"),
        (MemoryError(), "memory"),
        (OutOfMemoryError("CUDA"), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), "memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (ModuleNotFoundError("No module named 'cupy'"), "environment"),
        (ImportError("cannot import name"), "environment"),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), "environment"),
        (OSError("libcuda.so.1: cannot open shared object file"), "environment"),
        (RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: compiled with an unsupported toolchain."), "environment"),
        (type("CompileException", (Exception,), {})("nvrtc: error: invalid value for -arch"), "environment"),
    ],
    ids=lambda value: value if isinstance(value, str) else cause_of(value)[:40],
)
def test_an_exception_says_what_has_to_change(error, kind):
    assert kind_of(error) == kind


def test_frameworks_raise_what_is_recognised():
    with pytest.raises(MemoryError) as of_numpy:
        np.empty(1 << 60, np.uint8)
    with pytest.raises(OSError, match="libnowhere") as of_ctypes:
        ctypes.CDLL("libnowhere.so")
    assert (kind_of(of_numpy.value), kind_of(of_ctypes.value)) == ("memory", "environment")


def held(quarantine, now, kernel=KERNEL, workload=WORK, size=0.0):
    return quarantine.refusal(kernel, workload, size=size, now=now) is not None


def test_the_back_off_doubles_with_each_failure_after_it():
    quarantine, now, lasted = Quarantine(), 100.0, []
    for _ in range(14):
        lasted.append(quarantine.add(KERNEL, WORK, "kernel", "RuntimeError", size=0, now=now))
        assert held(quarantine, now + lasted[-1] - 1e-3)
        now += lasted[-1]
        assert not held(quarantine, now)
    assert lasted == [min(60.0 * 2**k, LONGEST) for k in range(14)]


def test_a_failure_meanwhile_changes_nothing():
    quarantine = Quarantine()
    quarantine.add(KERNEL, WORK, "kernel", "RuntimeError", size=0, now=0.0)
    assert quarantine.add(KERNEL, WORK, "kernel", "RuntimeError", size=0, now=20.0) == 40.0


def test_a_success_after_the_back_off_lets_it_begin_again_and_one_before_does_not():
    quarantine = Quarantine()
    quarantine.add(KERNEL, WORK, "kernel", "RuntimeError", size=0, now=0.0)
    quarantine.forgive(KERNEL, WORK, size=0, now=30.0)
    assert held(quarantine, 31.0)
    quarantine.forgive(KERNEL, WORK, size=0, now=61.0)
    assert quarantine.add(KERNEL, WORK, "kernel", "RuntimeError", size=0, now=62.0) == 60.0


def test_a_failure_holds_for_workloads_of_its_bucket_and_for_its_kernel_alone():
    quarantine = Quarantine()
    quarantine.add(KERNEL, WORK, "kernel", "RuntimeError", size=0, now=0.0)
    assert held(quarantine, 1.0, workload=replace(WORK, n=WORK.n + 1))
    assert not held(quarantine, 1.0, workload=replace(WORK, n=2 * WORK.n))
    assert not held(quarantine, 1.0, workload=replace(WORK, needs_gradient=True))
    assert not held(quarantine, 1.0, OTHER)
    assert not held(quarantine, 1.0, fake("torch/fft"))  # another kernel of the name


def test_out_of_memory_holds_for_that_size_and_above_on_the_device():
    quarantine = Quarantine()
    quarantine.add(KERNEL, WORK, "memory", "MemoryError", size=1000, now=0.0)
    other = replace(WORK, rows=1, n=7)
    assert [held(quarantine, 1.0, workload=other, size=size) for size in (999, 1000, 5000)] == [False, True, True]
    assert not held(quarantine, 1.0, workload=replace(WORK, device="cuda:0"), size=5000)
    quarantine.add(KERNEL, other, "memory", "MemoryError", size=500, now=2.0)
    assert held(quarantine, 3.0, size=600)
    assert not held(quarantine, 60.0, size=5000)
    quarantine.forgive(KERNEL, WORK, size=400, now=61.0)  # a smaller call refutes nothing
    assert quarantine.add(KERNEL, WORK, "memory", "MemoryError", size=500, now=62.0) == 120.0


def test_a_failure_of_the_environment_holds_everywhere_until_it_is_lifted():
    quarantine = Quarantine()
    assert quarantine.add(KERNEL, WORK, "environment", "ImportError", size=0, now=0.0) == math.inf
    assert held(quarantine, 1e9, workload=replace(WORK, op="another", n=1 << 20, device="cuda:0"))
    quarantine.lift()
    assert not quarantine
    assert not held(quarantine, 0.0)


def test_a_refusal_says_how_long_and_why():
    quarantine = Quarantine()
    quarantine.add(KERNEL, WORK, "kernel", "RuntimeError: boom", size=0, now=0.0)
    quarantine.add(OTHER, WORK, "memory", "MemoryError", size=4.2 * 2**20, now=0.0)
    assert quarantine.refusal(KERNEL, WORK, size=0, now=2.0) == "quarantined for 58 s after RuntimeError: boom"
    refusal = quarantine.refusal(OTHER, WORK, size=1e9, now=2.0)
    assert refusal == "quarantined for 58 s from 4.2 MiB on after MemoryError"
    quarantine.add(OTHER, WORK, "memory", "MemoryError", size=8000, now=0.0)
    refusal = quarantine.refusal(OTHER, WORK, size=1e9, now=2.0)
    assert refusal == "quarantined for 58 s from 7.81 KiB on after MemoryError"
    quarantine.add(KERNEL, WORK, "environment", "ImportError: no xla", size=0, now=0.0)
    refusal = quarantine.refusal(KERNEL, WORK, size=0, now=2.0)
    assert refusal == "quarantined until something is configured, after ImportError: no xla"


def test_a_long_error_is_cut_to_one_line():
    cause = cause_of(RuntimeError("first line\nsecond   line " + "x" * 1000))
    assert cause.startswith("RuntimeError: first line second line xxx")
    assert cause.endswith("...")
    assert len(cause) < 150
