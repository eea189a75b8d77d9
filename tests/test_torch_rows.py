"""Computing a few rows at a time: the same result within the memory that a call may take; and who takes least."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import hpfracc_nn as fnn  # noqa: E402
from hpfracc_nn.fractional.torch import tiles  # noqa: E402
from hpfracc_nn.fractional.torch.operator import apply  # noqa: E402
from hpfracc_nn.selection import BackendManager, Settings  # noqa: E402
from hpfracc_nn.selection.memory import host_free  # noqa: E402
from hpfracc_nn.training.torch.batch_size import profiled  # noqa: E402
from tests.torch_cases import COMPILED, KERNELS  # noqa: E402

MIB = 1 << 20
needs_clear_refs = pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's /proc/self/clear_refs"
)


def limited(kernel, limit=None):
    return BackendManager(
        Settings(
            force_backend=kernel.backend,
            force_algorithm=kernel.algorithm,
            calibration="shipped",
            memory_limit=limit,
            mode="prior",
        )
    )


def chunks_of(manager):
    return {plan.chunk for site in manager.sites() for plan in site.plans()}


@pytest.mark.parametrize(
    "kernel",
    [each for each in KERNELS if each.backend not in {*COMPILED, "cuda", "triton"}],
    ids=lambda each: each.name,
)
@pytest.mark.parametrize(("shape", "dim"), [((13, 128), -1), ((13, 2, 128), -1), ((13, 128, 5), 1)])
def test_a_few_rows_at_a_time_give_the_same_result_and_gradients(kernel, shape, dim):
    if kernel.backend == "numba":
        pytest.importorskip("numba")
    torch.manual_seed(0)
    channels = shape[1] if len(shape) == 3 and dim == -1 else 1
    data, weight = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)

    def results(manager):
        x = data.clone().requires_grad_()
        alpha = torch.full((channels,) if channels > 1 else (), 0.6, dtype=torch.float64, requires_grad=True)
        y = apply("test", x, fnn.Caputo(alpha), 1.0, dim, manager)
        return y, *torch.autograd.grad(y, (x, alpha), weight)

    unlimited = limited(kernel)
    whole = results(unlimited)
    (plan,) = (plan for site in unlimited.sites() for plan in site.plans())
    (verdict,) = (each for each in unlimited.planner.candidates.fitting(plan.workload) if each.kernel is kernel)
    manager = limited(kernel, int(verdict.need - 8 * data.nbytes / 13))  # some rows too few
    found = results(manager)
    (rows,) = chunks_of(manager)
    assert rows is not None
    assert rows % channels == 0
    assert rows < 13 * channels
    for one, other in zip(whole, found, strict=True):
        # Sums of 13 * 128 * 5 terms in another order, in float64.
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12 * one.abs().max().item())


def test_a_4_mib_limit_on_16_mib_completes_with_the_same_result_and_keeps_within_it():
    (kernel,) = (each for each in KERNELS if each.name == "torch/chunked_scan")
    definition = fnn.Caputo((0.3, 0.5, 0.7, 0.9))  # channels are computed at once, not tile by tile
    x = torch.randn(1024, 4, 1024)
    found, taken = {}, {}
    for limit in (None, "4MiB"):
        manager = limited(kernel, limit)

        def run(rows, limit=limit, manager=manager):
            found[limit] = apply("test", x[:rows], definition, 1.0, -1, manager)

        run(1)  # prepares the weights
        taken[limit] = profiled(run, len(x)).max()
    assert found[None].nbytes == 16 * MIB
    assert taken["4MiB"] <= 16 * MIB + 4 * MIB  # the result and what a call may take
    assert taken[None] > 3 * 16 * MIB
    # The same products in another grouping: a few roundings of sums of 128 terms in float32.
    torch.testing.assert_close(found["4MiB"], found[None], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_gibibyte_limit_on_four_completes_with_the_same_result():
    if (host_free() or 0) < 10 << 30:
        pytest.skip("needs 10 GiB of free memory")
    x = torch.randn(65536, 16384)
    assert x.nbytes == 4 << 30
    manager = BackendManager(Settings(memory_limit="1GiB", mode="prior", calibration="shipped"))
    y = fnn.derivative(x, fnn.Caputo(0.5), manager=manager)
    (rows,) = chunks_of(manager)
    assert rows is not None
    assert rows * 16384 * 4 <= 1 << 30
    for row in (0, rows - 1, rows, 65535):
        expected = fnn.derivative(x[row : row + 1], fnn.Caputo(0.5))
        torch.testing.assert_close(y[row : row + 1], expected, rtol=1e-6, atol=1e-6)  # the rows do not know each other


def test_numpy_arrays_are_computed_a_few_rows_at_a_time_too():
    x = np.random.default_rng(0).standard_normal((64, 512))
    settings = dict(force_backend="numpy", force_algorithm="fft", calibration="shipped", mode="prior")
    manager = BackendManager(Settings(memory_limit=MIB, **settings))  # type: ignore[arg-type]
    found = fnn.derivative(x, fnn.Caputo(0.5), manager=manager)
    (rows,) = chunks_of(manager)
    assert rows is not None
    assert rows < 64
    whole = fnn.derivative(x, fnn.Caputo(0.5), manager=BackendManager(Settings(**settings)))  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, whole)  # each row is transformed by itself


@pytest.mark.parametrize("name", ["torch/dense", "torch/fft", "torch/chunked_scan"])
@pytest.mark.parametrize("shape", [(256, 1024), (64, 4, 1024), (4096, 256)])
def test_what_a_kernel_says_it_takes_is_what_torchs_allocator_hands_out(name, shape):
    (kernel,) = (each for each in KERNELS if each.name == name)
    definition = fnn.Caputo(0.5 if len(shape) == 2 else (0.3, 0.5, 0.7, 0.9))
    manager, x = limited(kernel), torch.randn(shape)

    def run(rows):
        apply("test", x[:rows], definition, 1.0, -1, manager)

    run(1)  # prepares the weights
    tiles._LOCAL.__dict__.pop("kept", None)  # what is kept from an earlier test would not be asked for again
    peak = profiled(run, len(x)).max()
    (plan,) = (plan for site in manager.sites() for plan in site.plans() if plan.workload.rows > 4)
    prepared = 4 * plan.workload.channels * plan.workload.n**2 if name == "torch/dense" else 0
    need = plan.workspace + x.nbytes - prepared
    assert 0.6 * need <= peak <= 1.2 * need  # the transforms' own buffers are not torch's


PEAKS = """
import json, os, re, sys
import torch
import hpfracc_nn as fnn
import hpfracc_nn.fractional.torch.operator
from hpfracc_nn.selection import BackendManager, Settings, kernels

torch.set_num_threads(1)
rows, n = int(sys.argv[1]), int(sys.argv[2])
definition = fnn.Caputo(0.5)

def status(key):
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(rf"^{key}:\\s+(\\d+) kB", file.read(), re.M)[1])

def passes(manager, x, g):
    fnn.derivative(x, definition, manager=manager).backward(g)

def peak(settings):
    # A fresh child each: what an allocator keeps of one kernel must not serve the next.
    inlet, outlet = os.pipe()
    if not os.fork():
        code = 1
        try:
            manager = BackendManager(Settings(mode="prior", calibration="shipped", **settings))
            passes(manager, torch.ones(1, n, requires_grad=True), torch.ones(1, n))  # loads and prepares
            x, g = torch.ones(rows, n, requires_grad=True), torch.ones(rows, n)
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # the peak from here on
            before = status("VmRSS")
            passes(manager, x, g)
            (name,) = {plan.kernel.name for s in manager.sites() for plan in s.plans() if plan.workload.rows == rows}
            os.write(outlet, json.dumps([name, status("VmHWM") - before]).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(outlet)
    with os.fdopen(inlet) as answer:
        found = json.loads(answer.read())
    os.wait()
    return found

arms = [each for each in kernels("toeplitz", "torch") if each.backend not in ("cuda", "triton")]
peaks = dict(peak({"force_backend": each.backend, "force_algorithm": each.algorithm}) for each in arms)
print(json.dumps([peak({"objective": "memory"})[0], peaks]))
"""


@needs_clear_refs
@pytest.mark.slow
def test_the_plan_for_little_memory_has_the_smallest_measured_peak_of_all_kernels():
    pytest.importorskip("jax")
    pytest.importorskip("numba")
    rows, n = 256, 16384
    command = [sys.executable, "-c", PEAKS, str(rows), str(n)]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, env=environment)
    assert done.returncode == 0, done.stderr
    chosen, peaks = json.loads(done.stdout.splitlines()[-1])
    assert set(peaks) == {each.name for each in KERNELS if each.backend not in ("cuda", "triton")}
    assert peaks[chosen] == min(peaks.values())
    result = 4 * rows * n
    assert all(peak > 0.9 * result for peak in peaks.values())  # the gradient, at the least
