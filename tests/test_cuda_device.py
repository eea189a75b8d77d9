"""The CUDA kernels on a device: streams, graphs, determinism, memory.

Values, gradients, layouts, odd sizes and poisoned memory are the tests of every kernel, which run there too. With a
folder in GPU_FIGURES the times and resources of every kernel are written there, as JSON.
"""

import gc
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hpfracc_nn import workload
from hpfracc_nn.fractional.definitions import Caputo
from hpfracc_nn.fractional.torch.kernels import cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_product import Scan
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.weights import forget
from hpfracc_nn.selection import BackendManager, Kernel, Settings, kernels
from hpfracc_nn.solvers import Exponentials, Full, fdeint
from tests.cuda_cases import CUT, waiting_is_an_error
from tests.torch_cases import KERNELS

pytestmark = pytest.mark.gpu
CUDA = [kernel for kernel in KERNELS if kernel.backend == "cuda" and not kernel.offloads]
SHAPES = {"chunked_scan": (64, 3000), "dense": (64, 300), "recurrence": (4, 3000, 64)}
every_kernel = pytest.mark.parametrize("kernel", CUDA, ids=lambda kernel: kernel.name)


def forced(kernel: Kernel, **settings: object) -> BackendManager:
    chosen = {"force_backend": kernel.backend, "force_algorithm": kernel.algorithm, "mode": "prior", **settings}
    return BackendManager(Settings(**chosen))  # type: ignore[arg-type]


def data(kernel: Kernel, seed: int = 0) -> tuple[Tensor, int]:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = SHAPES[kernel.algorithm]
    return torch.randn(shape, device="cuda", generator=generator), 1 if len(shape) == 3 else -1


@pytest.fixture(autouse=True)
def usable() -> Iterator[None]:
    refusal = CUDA[0].refuses(workload((4, 100), framework="torch", device="cuda:0"))
    if refusal is not None:
        pytest.skip(refusal)
    yield
    torch.cuda.synchronize()


@every_kernel
def test_values_and_gradients_are_those_of_the_host(kernel: Kernel) -> None:
    """First, since nothing else says anything where this fails; the data begin at no multiple of 16 bytes."""
    manager = forced(kernel)
    given, dim = data(kernel)
    room = torch.empty(given.numel() + 1, device="cuda")
    x = room[1:].view(given.shape).copy_(given).requires_grad_()
    there = given.cpu().double().requires_grad_()
    g = data(kernel, seed=1)[0]
    for alpha in (0.5, 1.7):
        y, wanted = (apply("test", each, Caputo(alpha), 0.1, dim, how) for each, how in ((x, manager), (there, None)))
        pairs = [
            (y, wanted),
            (torch.autograd.grad(y, x, g)[0], torch.autograd.grad(wanted, there, g.cpu().double())[0]),
        ]
        errors = [float((one.detach().cpu().double() - other).norm() / other.norm()) for one, other in pairs]
        written(kernel, **{f"errors at {alpha}": errors})
        assert max(errors) <= 5e-6  # ten times the bound of smooth data; faults are of order one


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rows", "n"), CUT)
@pytest.mark.parametrize("algorithm", ["chunked_scan", "recurrence"])
def test_signals_that_are_cut_into_segments_are_those_of_the_host(
    algorithm: str, rows: int, n: int, dtype: torch.dtype
) -> None:
    (kernel,) = (each for each in CUDA if each.algorithm == algorithm)
    shape, dim = ((1, n, rows + 1), 1) if algorithm == "recurrence" else ((rows, n), -1)
    assert scan_of(algorithm).cut(*cut_of(shape, dim, dtype)).segments > 1
    generator = torch.Generator().manual_seed(n)
    there, g = (torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(2))
    x, bound = there.to("cuda", dtype).requires_grad_(), {torch.float32: 5e-6, torch.float64: 1e-10}[dtype]
    there.requires_grad_()
    calls = (x, forced(kernel)), (there, None)
    for definition in (Caputo(0.5), Caputo(1.7)):
        y, wanted = (apply("test", each, definition, 0.1, dim, manager) for each, manager in calls)
        gx = torch.autograd.grad(y, x, g.to("cuda", dtype))[0], torch.autograd.grad(wanted, there, g)[0]
        for one, other in ((y, wanted), gx):
            assert (one.detach().cpu().double() - other).norm() <= bound * other.norm()


def scan_of(algorithm: str) -> Scan:
    return {"chunked_scan": cuda_product.CHUNKED, "recurrence": cuda_product.RECURRENCE}[algorithm]


def cut_of(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> tuple[Any, ...]:
    """Return what a cut follows from: the canonical shape, states, bytes of a sample, the device."""
    canonical = (shape[0], 1, *shape[1:]) if dim == 1 else (shape[0], 1, shape[1], 1)
    return canonical, 24, dtype.itemsize, torch.device("cuda:0")


@every_kernel
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_single_precision_rounded(kernel: Kernel, dtype: torch.dtype) -> None:
    given, dim = data(kernel)
    x, g = given.to(dtype), data(kernel, seed=1)[0].to(dtype)
    runs = []
    for each in (x.requires_grad_(), x.detach().float().requires_grad_()):
        y = apply("test", each, Caputo(0.5), 0.1, dim, forced(kernel))
        runs.append((y.detach(), torch.autograd.grad(y, each, g.to(each.dtype))[0]))
    for found, single in zip(*runs, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, single.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-6)


@every_kernel
def test_the_gradient_in_the_order_is_that_of_the_host(kernel: Kernel) -> None:
    given, dim = data(kernel)
    found = []
    for x, manager in ((given, forced(kernel)), (given.cpu().double(), None)):
        alpha = torch.tensor(0.5, dtype=torch.float64, device=x.device, requires_grad=True)
        y = apply("test", x, Caputo(alpha), 0.1, dim, manager)
        found.append(float(torch.autograd.grad(y.square().sum(), alpha)[0]))
    written(kernel, **{"gradients in the order": found})
    assert found[0] == pytest.approx(found[1], rel=5e-6)  # one sign: nothing cancels


@every_kernel
def test_the_times_and_resources_of_a_kernel_are_written(kernel: Kernel) -> None:
    manager = forced(kernel, sample=False)
    x, dim = data(kernel)
    x.requires_grad_()
    y = apply("test", x, Caputo(0.5), 0.1, dim, manager)
    g = torch.ones_like(y)
    torch.autograd.grad(y, x, g)
    seconds = {}
    for name in ("forward", "both"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(20):
            y = apply("test", x, Caputo(0.5), 0.1, dim, manager)
            if name == "both":
                torch.autograd.grad(y, x, g)
        end.record()
        end.synchronize()
        seconds[name] = 1e-3 * begin.elapsed_time(end) / 20
    assert all(0 < each < 1 for each in seconds.values())
    written(kernel, shape=list(x.shape), seconds=seconds, functions=resources())


def resources() -> dict[str, dict[str, int]]:
    """Return registers, local and shared bytes of every function that was launched so far on this device."""
    import cupy

    found = {}
    for source, device in sorted(cuda_launch._ready):
        module = cupy.RawModule(code=source.text, options=source.definitions, backend="nvrtc")
        for name in ("forward", "forward_ends", "backward", "backward_ends", "chain", "finish", "inner"):
            if f" {name}(const" in source.text:
                found[f"{source.file} {source.dtype} {source.states} {device} {name}"] = {
                    key: int(getattr(module.get_function(name), key))
                    for key in ("num_regs", "local_size_bytes", "max_dynamic_shared_size_bytes", "binary_version")
                }
    return found


def written(kernel: Kernel, **figures: object) -> None:
    """Add figures of a kernel to its file, where a folder is named."""
    if folder := os.environ.get("GPU_FIGURES"):
        path = Path(folder) / f"{kernel.algorithm}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text("utf-8")) if path.exists() else {}
        path.write_text(json.dumps(known | figures, indent=1), "utf-8")


@every_kernel
def test_the_same_call_gives_the_same_bits(kernel: Kernel) -> None:
    manager = forced(kernel)
    x, dim = data(kernel)
    x.requires_grad_()
    runs = []
    for _ in range(5):
        y = apply("test", x, Caputo(0.5), 0.1, dim, manager)
        runs.append((y.detach(), torch.autograd.grad(y.square().sum(), x)[0]))
    assert all(torch.equal(one, other) for run in runs[1:] for one, other in zip(run, runs[0], strict=True))


@every_kernel
def test_work_keeps_the_order_of_the_current_stream(kernel: Kernel) -> None:
    manager = forced(kernel)
    x, dim = data(kernel)
    wanted = apply("test", 2 * x, Caputo(0.5), 0.1, dim, manager)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # the data are made late
        late = 2 * x
        found = apply("test", late, Caputo(0.5), 0.1, dim, manager)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(found, wanted)


@every_kernel
def test_threads_on_streams_of_their_own_do_not_disturb_each_other(kernel: Kernel) -> None:
    manager = forced(kernel)
    given = [data(kernel, seed)[0] for seed in range(4)]
    dim = data(kernel)[1]
    wanted = [apply("test", x, Caputo(0.5), 0.1, dim, manager) for x in given]
    torch.cuda.synchronize()
    found: list[Tensor | None] = [None] * 4

    def work(at: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found[at] = apply("test", given[at], Caputo(0.5), 0.1, dim, manager)
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, wanted, strict=True):
        assert one is not None
        assert torch.equal(one, other)


@every_kernel
def test_operands_that_are_made_late_are_waited_for(kernel: Kernel) -> None:
    """Those of the transpose are made on one stream, behind much else, and read on another at once."""
    x, dim = data(kernel)
    x.requires_grad_()
    g = data(kernel, seed=1)[0]
    definition, manager = Caputo(0.375), forced(kernel)  # of no other test: what is kept is made here
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    y = apply("test", x, definition, 0.1, dim, manager)
    torch.cuda.synchronize()
    with torch.cuda.stream(one):
        torch.cuda._sleep(100_000_000)
        first = torch.autograd.grad(apply("test", x, definition, 0.1, dim, manager), x, g)[0]
    with torch.cuda.stream(other):
        second = torch.autograd.grad(apply("test", x, definition, 0.1, dim, manager), x, g)[0]
    torch.cuda.synchronize()
    assert torch.equal(first, second)
    assert torch.equal(first, torch.autograd.grad(y, x, g)[0])


@every_kernel
def test_weights_are_let_go_only_when_every_stream_has_read_them(kernel: Kernel) -> None:
    x, dim = data(kernel)
    definition = Caputo(0.625)
    wanted = apply("test", x, definition, 0.1, dim, forced(kernel))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        found = apply("test", x, definition, 0.1, dim, forced(kernel))
    forget()
    gc.collect()
    spoilt = [torch.full((size,), torch.nan, device="cuda") for size in 50 * [64, 1024, 16384, 262144]]
    torch.cuda.synchronize()
    assert len(spoilt) == 200
    assert torch.equal(found, wanted)


@every_kernel
def test_a_graph_reads_what_nobody_else_keeps_any_more(kernel: Kernel) -> None:
    manager = forced(kernel, sample=False)
    x, dim = data(kernel)
    definition = Caputo(0.875)
    wanted = apply("test", x, definition, 0.1, dim, manager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = apply("test", x, definition, 0.1, dim, manager)
    forget()
    gc.collect()
    spoilt = [torch.full((size,), torch.nan, device="cuda") for size in 50 * [64, 1024, 16384, 262144]]
    graph.replay()
    torch.cuda.synchronize()
    assert len(spoilt) == 200
    assert torch.equal(y, wanted)


@every_kernel
def test_what_a_graph_makes_first_is_not_kept(kernel: Kernel) -> None:
    """Before it was run, its operands hold nothing: an ordinary call makes its own."""
    manager = forced(kernel, sample=False)
    x, dim = data(kernel)
    g, definition = data(kernel, seed=1)[0], Caputo(0.125)
    x.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        apply("test", x, definition, 0.1, dim, manager)  # forward alone
        torch.autograd.grad(apply("test", x, Caputo(0.5), 0.1, dim, manager), x, g)  # its code is loaded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = torch.autograd.grad(apply("test", x, definition, 0.1, dim, manager), x, g)[0]
    wanted = torch.autograd.grad(apply("test", x, definition, 0.1, dim, manager), x, g)[0]
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(found, wanted)
    there = x.detach().cpu().double().requires_grad_()
    exact = torch.autograd.grad(apply("test", there, definition, 0.1, dim, None), there, g.cpu().double())[0]
    assert (wanted.cpu().double() - exact).norm() <= 5e-6 * exact.norm()


@every_kernel
def test_a_graph_that_captured_a_call_repeats_it(kernel: Kernel) -> None:
    manager = forced(kernel, sample=False)
    x, dim = data(kernel)
    apply("test", x, Caputo(0.5), 0.1, dim, manager)  # compiles, and makes the operands
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = apply("test", x, Caputo(0.5), 0.1, dim, manager)
    x.copy_(data(kernel, seed=1)[0])
    graph.replay()
    wanted = apply("test", x, Caputo(0.5), 0.1, dim, manager)
    assert torch.equal(y, wanted)


@every_kernel
def test_a_graph_that_captured_a_backward_pass_repeats_it(kernel: Kernel) -> None:
    manager = forced(kernel, sample=False)
    x, dim = data(kernel)
    g = data(kernel, seed=2)[0]
    x.requires_grad_()

    def gradient() -> Tensor:
        return torch.autograd.grad(apply("test", x, Caputo(0.5), 0.1, dim, manager), x, g)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # as torch wants it before a backward pass is captured
        gradient()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        found = gradient()
    g.copy_(data(kernel, seed=3)[0])
    graph.replay()
    assert torch.equal(found, gradient())


@every_kernel
def test_a_call_waits_for_nothing(kernel: Kernel) -> None:
    manager = forced(kernel, sample=False)
    x, dim = data(kernel)
    x.requires_grad_()
    g = torch.ones_like(x)
    torch.autograd.grad(apply("test", x, Caputo(0.5), 0.1, dim, manager), x, g)
    torch.cuda.synchronize()
    with waiting_is_an_error():
        torch.autograd.grad(apply("test", x, Caputo(0.5), 0.1, dim, manager), x, g)


@every_kernel
def test_live_calls_are_timed_by_events(kernel: Kernel) -> None:
    manager = BackendManager(Settings(force_backend="cuda", force_algorithm=kernel.algorithm, wisdom="off"))
    x, dim = data(kernel)
    for _ in range(20):
        apply("test", x, Caputo(0.5), 0.1, dim, manager)
    torch.cuda.synchronize()
    manager.harvest()
    times = [each.seconds for each in manager.history()]
    assert times
    assert all(0 < seconds < 1 for seconds in times)


def test_the_chunked_scan_needs_no_more_memory_than_its_data() -> None:
    (kernel,) = (each for each in CUDA if each.algorithm == "chunked_scan")
    manager = forced(kernel, sample=False)
    x = torch.randn(4096, 4096, device="cuda", requires_grad=True)
    apply("test", x, Caputo(0.5), 0.1, -1, manager).sum().backward()
    x.grad = None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = apply("test", x, Caputo(0.5), 0.1, -1, manager)
    torch.autograd.grad(y, x, torch.ones_like(y))
    held = torch.cuda.max_memory_allocated() - before
    assert held <= 3 * x.numel() * 4 + (64 << 20)  # the result, its gradient and that of the data


def test_a_limit_of_a_gibibyte_computes_four_in_parts() -> None:
    x = torch.randn(16384, 65536, device="cuda")  # 4 GiB
    manager = BackendManager(Settings(mode="prior", gpu_memory_limit="9GiB"))
    wanted = apply("test", x, Caputo(0.5), 0.1, -1, manager)
    del manager
    limited = BackendManager(Settings(mode="prior", gpu_memory_limit="1GiB"))
    plan = limited.plan(workload(tuple(x.shape), framework="torch", device="cuda:0"))
    assert plan.chunk is not None
    assert plan.chunk < 16384
    found = apply("test", x, Caputo(0.5), 0.1, -1, limited)
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()


def test_out_of_memory_in_a_kernel_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = (each for each in CUDA if each.algorithm == "chunked_scan")

    def fails(*given: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    x = torch.randn(64, 3000, device="cuda")
    wanted = apply("test", x, Caputo(0.5), 0.1, -1, forced(kernel))
    monkeypatch.setattr(kernel, "run", fails)
    found = apply("test", x, Caputo(0.5), 0.1, -1, BackendManager(Settings(mode="prior")))
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()


def test_another_user_of_the_card_changes_the_plan() -> None:
    manager = BackendManager(Settings(mode="prior"))
    asked = workload((4096, 65536), framework="torch", device="cuda:0", needs_gradient=True)
    roomy = manager.plan(asked)
    free, _ = torch.cuda.mem_get_info()
    filled = torch.empty(max(0, free - (1 << 30)), dtype=torch.uint8, device="cuda")
    try:
        tight = BackendManager(Settings(mode="prior"))
        try:
            plan = tight.plan(asked)
        except LookupError:
            return  # not even a row has room
        assert (plan.kernel.name, plan.chunk) != (roomy.kernel.name, roomy.chunk)
    finally:
        del filled


def test_a_warm_up_leaves_nothing_to_compile() -> None:
    manager = BackendManager(Settings(mode="prior"))
    asked = workload((64, 3000), framework="torch", device="cuda:0", needs_gradient=True)
    manager.warm_up([asked])
    for kernel in CUDA:
        if kernel.refuses(asked) is None:
            assert kernel.compiles(asked) is None


def test_a_solvers_history_on_the_device() -> None:
    (kernel,) = (each for each in kernels("history.exponentials", "torch") if each.backend == "cuda")
    y0 = torch.linspace(0.2, 1, 300, dtype=torch.float64, device="cuda")
    ts = torch.linspace(0, 3, 301, dtype=torch.float64, device="cuda")
    found, wanted = (
        fdeint(lambda t, y: torch.cos(t) - y, y0, ts, 0.6, history=history, manager=manager)
        for history, manager in ((Exponentials(), forced(kernel)), (Full(), None))
    )
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


def test_the_optimizers_average_on_the_device() -> None:
    from hpfracc_nn.training.torch.optimizers.mix import Mix, prepared

    generator = torch.Generator("cuda").manual_seed(0)
    sizes, mix = (1, 63, 1025, 300_000, *range(1, 30)), Mix(0.4, (0.3, -0.2, 0.25, 0.0), (0.7, 0.2, 0.0, 1.0))
    runs = []
    for name in ("blocks", "foreach"):
        generator.manual_seed(0)
        grads = [torch.randn(size, device="cuda", generator=generator) for size in sizes]
        rows = [torch.randn(4, size, device="cuda", generator=generator) for size in sizes]
        averages = [torch.full_like(grad, torch.nan) for grad in grads]
        manager = BackendManager(Settings(force_algorithm=name, mode="prior"))
        prepared(manager.site("history_mix", "torch", "test"), grads, rows, averages, mix)()
        runs.append((averages, rows))
    for one, other in zip([*runs[0][0], *runs[0][1]], [*runs[1][0], *runs[1][1]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
