"""What is particular to XLA under torch: memory that is lent, 64 bits, compiled shapes, and when it stays out."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import Caputo, Definition, GrunwaldLetnikov
from hpfracc_nn.fractional.numba import kernel as numba_kernel
from hpfracc_nn.fractional.torch.kernels import xla
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.selection import BackendManager, Kernel, Settings, Workload
from tests.torch_cases import KERNELS, manager_for, shipped_manager

ROOT = Path(__file__).parents[1]
DEFINITION = GrunwaldLetnikov(0.4)
WORK = Workload("toeplitz", "torch", rows=4, n=100, exponentials=30)
XLA = [kernel for kernel in KERNELS if kernel.backend == "xla"]
every_kernel = pytest.mark.parametrize("kernel", XLA, ids=lambda kernel: kernel.name)
needs_jax = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")


def derivative(x: Tensor, kernel: Kernel, definition: Definition = DEFINITION) -> Tensor:
    return apply("test", x, definition, 1.0, -1, manager_for(kernel))


def reference(x: Tensor) -> Tensor:
    """Return the same in float64 by torch's transform."""
    manager = BackendManager(
        Settings(force_backend="torch", force_algorithm="fft", calibration="shipped", mode="prior")
    )
    return apply("test", x.double(), DEFINITION, 1.0, -1, manager)


def deviation(found: Tensor, x: Tensor) -> float:
    expected = reference(x)
    return float((found.double() - expected).norm() / expected.norm())


def run(source: str, *arguments: str) -> Any:
    """Return the JSON that a fresh process prints last; what belongs to others it may print before."""
    command = [sys.executable, "-c", source, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@needs_jax
@every_kernel
def test_the_users_precision_stays_what_it_was(kernel: Kernel) -> None:
    import jax

    before = jax.config.read("jax_enable_x64")
    x = torch.randn(3, 130, dtype=torch.float64, requires_grad=True)
    y = derivative(x, kernel)
    y.square().sum().backward()
    assert y.dtype == torch.float64
    assert deviation(y.detach(), x.detach()) <= 1e-12  # 1e-7 if it had been float32 on the way
    assert jax.config.read("jax_enable_x64") == before
    assert jax.numpy.ones(1).dtype == ("float64" if before else "float32")


@needs_jax
@every_kernel
def test_single_precision_is_computed_in_single_precision(kernel: Kernel) -> None:
    x = torch.randn(3, 130)
    y = derivative(x, kernel)
    assert y.dtype == torch.float32
    assert 1e-9 < deviation(y, x) < 1e-6


@needs_jax
@every_kernel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("offset", [0, 1, 5, 16])
def test_memory_may_begin_anywhere(kernel: Kernel, dtype: torch.dtype, offset: int) -> None:
    room = torch.randn(offset + 2 * 128, dtype=dtype)
    x = room[offset:].view(2, 128)  # whole buckets: nothing but the alignment makes a copy
    assert torch.equal(derivative(x, kernel), derivative(x.clone(), kernel))


@needs_jax
@pytest.mark.parametrize(("offset", "lent"), [(0, True), (1, False), (16, True)])
def test_aligned_memory_is_lent_and_other_memory_copied(offset: int, lent: bool) -> None:
    import jax

    def doubled(x: Any) -> tuple[Any]:
        return (2 * x,)

    shape = (2, 1, 128, 1)
    x = torch.randn(offset + 2 * 128)[offset:].view(shape).requires_grad_()
    handed = xla._padded("test", x, shape)
    assert (handed.data_ptr() == x.data_ptr()) == lent
    assert jax.dlpack.from_dlpack(handed).unsafe_buffer_pointer() == handed.data_ptr()  # XLA makes no copy of its own
    (found,) = xla.compute(doubled, (x,), shape, ())
    assert torch.equal(found, 2 * x)


@needs_jax
@every_kernel
def test_nothing_of_xlas_shares_memory_with_torch_after_a_call(kernel: Kernel) -> None:
    import jax

    x = torch.randn(2, 128, requires_grad=True)
    order = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    y = derivative(x, kernel, Caputo(order))
    kept = y.detach().clone()
    y.sum().backward()
    shards = [shard.data for array in jax.live_arrays() for shard in array.addressable_shards]  # other tests leave some
    pointers = {shard.unsafe_buffer_pointer() for shard in shards}
    assert x.grad is not None
    assert pointers.isdisjoint({tensor.data_ptr() for tensor in (x, y, x.grad)})
    with torch.no_grad():
        x.fill_(torch.nan)
    assert torch.equal(y, kept)


@needs_jax
@every_kernel
def test_a_bucket_keeps_nothing_of_the_call_before(kernel: Kernel) -> None:
    short = torch.randn(5, 1000)
    before = derivative(short, kernel)
    derivative(1e30 * torch.randn(6, 1024), kernel)  # the same bucket, full
    assert torch.equal(derivative(short, kernel), before)
    assert deviation(before, short) <= 1e-6


def test_a_bucket_pads_less_than_a_half() -> None:
    buckets = [xla.bucket(count) for count in range(1, 4097)]
    assert buckets[:9] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert all(count <= found < 1.5 * count for count, found in enumerate(buckets, 1))
    assert len(set(buckets)) == 24


@needs_jax
@every_kernel
def test_few_shapes_are_compiled(kernel: Kernel) -> None:
    import jax

    compiled = []

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    shapes = [(5 + i % 4, 1060 + 17 * i) for i in range(20)]  # 34 to 44 chunks: one bucket of each, for two of rows
    for rows, n in shapes:
        x = torch.randn(rows, n)
        assert deviation(derivative(x, kernel), x) <= 1e-6
    count = len(compiled)
    assert 1 <= count <= 3  # two, and the transform of the weights
    for rows, n in shapes:
        derivative(torch.randn(rows, n), kernel)
    assert len(compiled) == count


def test_a_missing_jax_and_another_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in XLA:
        reason = kernel.refuses(Workload("toeplitz", "torch", device="mps:0", n=8))
        assert reason == "it computes on the CPU and on CUDA devices, and the data lie on mps:0"
    monkeypatch.setattr(xla, "find_spec", lambda name: None)
    for kernel in XLA:
        assert kernel.refuses(WORK) == "JAX is not installed; pip install 'hpfracc-nn[jax]'"


@pytest.mark.parametrize(
    ("platforms", "loaded", "reason"),
    [
        (None, False, "to start JAX would open its accelerator too; set JAX_PLATFORMS=cpu, or import jax first"),
        (None, True, None),
        ("cpu", False, None),
        ("cuda,cpu", False, None),
        ("cuda", False, "JAX_PLATFORMS='cuda' leaves out the CPU; add cpu to it"),
        ("cuda", True, "JAX_PLATFORMS='cuda' leaves out the CPU; add cpu to it"),
    ],
)
def test_an_accelerator_is_not_opened_unasked(
    platforms: str | None, loaded: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Config:
        jax_platforms = platforms

    class Jax:
        config = Config

    monkeypatch.setattr(xla, "find_spec", lambda name: object())  # JAX and a package with its accelerator
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "jax", Jax)  # type: ignore[arg-type]
    else:
        monkeypatch.delitem(sys.modules, "jax", raising=False)
        if platforms:
            monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert xla.refuses(WORK) == reason


@pytest.mark.parametrize(
    ("packages", "environment", "loaded", "reason"),
    [
        ("jax", {}, False, "this JAX computes on no CUDA device; pip install 'jax[cuda12]' or 'jax[cuda13]', as the d"),
        (
            "jax jax_cuda12_plugin",
            {},
            False,
            "to start JAX would reserve most of the device's memory; set XLA_PYTHON_C",
        ),
        ("jax jax_cuda12_plugin", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, False, None),
        ("jax jax_cuda13_plugin", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, False, None),
        ("jax jax_cuda13_plugin", {}, True, None),
        (
            "jax jax_cuda13_plugin",
            {"JAX_PLATFORMS": "cpu"},
            False,
            "JAX_PLATFORMS='cpu' leaves out CUDA; add cuda to it",
        ),
    ],
)
def test_a_device_is_taken_only_where_jax_reserves_nothing_unasked(
    packages: str, environment: dict[str, str], loaded: bool, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Jax:
        config = type("Config", (), {"jax_platforms": None})

    monkeypatch.setattr(xla, "find_spec", lambda name: object() if name in packages.split() else None)
    for name in ("JAX_PLATFORMS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "jax", raising=False)
    if loaded:
        monkeypatch.setitem(sys.modules, "jax", Jax)  # type: ignore[arg-type]
    found = xla.refuses(Workload("toeplitz", "torch", device="cuda:0", n=8))
    assert found is None if reason is None else found is not None and found.startswith(reason)


@pytest.mark.parametrize("numba", [True, False], ids=["with Numba", "without"])
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "gradient"])
@pytest.mark.parametrize(("rows", "n"), [(16, 64), (256, 1024), (16, 16384), (1, 65536), (1024, 1024)])
def test_the_estimate_does_not_pick_it(
    rows: int, n: int, gradient: bool, numba: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not numba:
        monkeypatch.setattr(numba_kernel, "find_spec", lambda name: None)
    manager = shipped_manager() if numba else BackendManager(Settings(mode="prior", calibration="shipped"))
    work = Workload("toeplitz", "torch", rows=rows, n=n, exponentials=30, needs_gradient=gradient)
    assert manager.plan(work).backend != "xla"


WITHOUT = """
import json, sys
sys.modules["jax"] = sys.modules["jaxlib"] = None  # an import raises ImportError
import torch
from hpfracc_nn import BackendManager, Caputo, derivative
from hpfracc_nn.selection import Settings, Workload
manager = BackendManager(Settings(mode="prior", calibration="shipped"))
x = torch.randn(4, 100, requires_grad=True)
derivative(x, Caputo(0.5), manager=manager).sum().backward()
forced = BackendManager(Settings(force_backend="xla", calibration="shipped", mode="prior"))
try:
    derivative(x, Caputo(0.5), manager=forced)
except LookupError as error:
    message = str(error)
explained = manager.explain(Workload("toeplitz", "torch", rows=4, n=100, exponentials=30))
print(json.dumps([bool(x.grad.isfinite().all()), message, explained]))
"""


@pytest.mark.slow
def test_without_jax_everything_else_works_and_the_reason_is_told() -> None:
    finite, message, explained = run(WITHOUT)
    reason = "JAX is not installed; pip install 'hpfracc-nn[jax]'"
    assert finite
    assert f"xla/chunked_scan: {reason}; xla/fft: {reason}; lift the force" in message
    assert explained.count(f"refused: {reason}") == 2


FORKED = """
import json, os, sys, warnings
import torch
from hpfracc_nn import BackendManager, Caputo, derivative
from hpfracc_nn.selection import Settings
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # JAX's own
arms = (Settings(force_backend=name, calibration="shipped", mode="prior") for name in (None, "xla"))
free, forced = map(BackendManager, arms)
x = torch.ones(4, 100, requires_grad=True)

def told(call):
    try:
        call()
    except (LookupError, RuntimeError) as error:
        return [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
    return ["ran"]

def in_child(*calls):
    inlet, outlet = os.pipe()
    child = os.fork()
    if not child:
        os.write(outlet, json.dumps([told(call) for call in calls]).encode())
        os._exit(0)
    os.close(outlet)
    with os.fdopen(inlet) as answer:
        found = json.loads(answer.read())
    return [found, os.waitpid(child, 0)[1]]

def run(manager):
    return derivative(x, Caputo(0.5), manager=manager)

def first():  # before JAX is loaded
    return in_child(lambda: run(forced)) if sys.argv[1] == "early" else None

run(free)
free.explain(next(plan.workload for site in free.sites() for plan in site.plans()))
early, loaded = first(), "jax" in sys.modules
y = None
if sys.argv[1] == "imported":
    import jax
else:
    y = run(forced)
child = in_child(lambda: run(forced), lambda: run(free), lambda: y is not None and y.sum().backward())
print(json.dumps([early, loaded, child, told(lambda: run(forced))]))
"""


@needs_jax
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
@pytest.mark.parametrize("jax", ["ran", "imported", "early"])
def test_a_forked_process_asks_again_and_refuses(jax: str) -> None:
    early, loaded, (answers, status), parent = run(FORKED, jax)
    reason = (
        "this process was forked after JAX was loaded; start DataLoader workers with multiprocessing_context='spawn'"
    )
    assert not loaded  # neither planning nor explaining loads it
    assert early == ([[["ran"]], 0] if jax == "early" else None)
    forced, free, backward = answers
    assert status == 0
    assert forced[0] == "LookupError"
    assert f"xla/chunked_scan: {reason}" in forced[1]
    assert free == ["ran"]
    if jax != "imported":
        assert backward[:2] == ["RuntimeError", f"XLA cannot run: {reason}."]  # the plan was made before the fork
        assert "while running toeplitz by xla/" in backward[2]
    assert parent == ["ran"]
