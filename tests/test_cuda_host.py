"""Data of the host on a device: parts on two ways there and back, only where it is allowed.

The ways are made up here.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hpfracc_nn import workload
from hpfracc_nn.fractional.cache import nbytes
from hpfracc_nn.fractional.definitions import Caputo, Definition, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.linear import StateSpace
from hpfracc_nn.fractional.torch.kernels import cuda_host, cuda_launch, cuda_product
from hpfracc_nn.fractional.torch.kernels.cuda_product import Arrangement
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.fractional.torch.rehearsal import rehearse
from hpfracc_nn.fractional.torch.tiles import Shape
from hpfracc_nn.fractional.torch.weights import Weights, weights_of
from hpfracc_nn.fractional.weights import CACHE, forget
from hpfracc_nn.selection import BackendManager, Settings, Workload, register, unregister
from hpfracc_nn.selection.settings import from_environment
from tests.cuda_cases import Emulated, emulated, needs_compiler  # noqa: F401  a fixture
from tests.torch_cases import KERNELS, matrix, multiplied

HERE = torch.device("cpu")


class Late:
    """A lane on which nothing happens before it is waited for."""

    def __init__(self, log: list[str], name: str, compute: cuda_host.Compute):
        self.log, self.name, self.compute = log, name, compute
        self.pending: tuple | None = None

    def begin(self, shape: Shape, data: Tensor, room: Tensor) -> None:
        assert self.pending is None, "a lane has room for one part"
        self.log.append(f"{self.name} begins {shape[0]}")
        self.pending = shape, data.clone(), room

    def is_free(self) -> bool:
        return True

    def finish(self) -> None:
        if self.pending is not None:
            self.log.append(f"{self.name} ends")
            shape, data, room = self.pending
            self.pending = None
            self.compute(shape, data.view(shape), room.view(shape))


def doubled(shape: Shape, data: Tensor, room: Tensor) -> None:
    torch.mul(data, 2.0, out=room)


@pytest.mark.parametrize(("batch", "rows"), [(1, 1), (5, 2), (7, 7), (9, 3), (4, 100)])
def test_every_part_comes_back_to_its_place(batch: int, rows: int) -> None:
    x = torch.arange(batch * 6.0).view(batch, 1, 6, 1)
    y = torch.full_like(x, torch.nan)
    log: list[str] = []
    cuda_host.through([Late(log, "a", doubled), Late(log, "b", doubled)], (batch, 1, 6, 1), rows, x, y)
    assert torch.equal(y, 2 * x)
    assert len(log) == 2 * -(-batch // rows)


def test_two_parts_are_under_way_at_a_time() -> None:
    log: list[str] = []
    x = torch.ones(5, 1, 2, 1)
    cuda_host.through([Late(log, "a", doubled), Late(log, "b", doubled)], (5, 1, 2, 1), 2, x, torch.empty_like(x))
    assert log == ["a begins 2", "b begins 2", "a ends", "a begins 1", "b ends", "a ends"]


@pytest.mark.parametrize("shape", [(3, 1, 70, 1), (4, 3, 70, 1), (3, 1, 40, 5)])
@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize("definition", [Caputo(0.5), RiemannLiouvilleIntegral(1.6)], ids=repr)
@pytest.mark.slow
@needs_compiler
def test_the_parts_are_the_operator(emulated: Emulated, shape: Shape, rows: int, definition: Definition) -> None:  # noqa: F811
    batch, channels, n, width = shape
    weights = Weights(definition, n, 0.5, torch.float64, HERE)
    form = weights.chunks(16).cached(cuda_host.There(HERE))
    boundary = weights.boundary
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = x.view(batch * channels, 1, n, width)  # one order for all
    for backward in (False, True):
        y = torch.full_like(data, torch.nan)
        step = partial(cuda_host._step(width, backward), form, boundary)
        lanes = [Late([], "a", step), Late([], "b", step)]
        cuda_host.through(lanes, tuple(data.shape), rows, data, y)  # type: ignore[arg-type]
        dense = matrix(definition, n)
        torch.testing.assert_close(y, multiplied(dense.T if backward else dense, data, 2), rtol=1e-11, atol=1e-10)


def test_the_size_of_cached_weights_includes_what_lies_on_a_device() -> None:
    forget()
    weights = weights_of(Caputo(0.5), 70, 0.5, torch.float64, HERE)
    form = weights.chunks(16)
    before = weights.nbytes
    there = form.cached(cuda_host.There(HERE))
    assert weights.nbytes == before + nbytes((there.intra, there.C, there.B, there.A))
    there.cached(Arrangement(backward=False, multiple=1))
    assert weights.nbytes > before + nbytes((there.intra, there.C, there.B, there.A))
    CACHE.get("another", lambda: None)
    assert CACHE.size > weights.nbytes
    assert form.cached(cuda_host.There(HERE)) is there


@needs_compiler
def test_operands_are_made_before_the_first_part_leaves(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Two streams read them: they are made on the caller's, and waited for."""
    made: list[str] = []
    real = cuda_product.Arrangement.operands

    def operands(self: cuda_product.Arrangement, model: StateSpace) -> cuda_product.Operands:
        made.append("operands")
        return real(self, model)

    def synchronize() -> None:
        made.append("wait")

    class Lane(Late):
        def __init__(self, device: object, count: int, dtype: torch.dtype, compute: cuda_host.Compute):
            super().__init__(made, "lane", compute)

    monkeypatch.setattr(cuda_product.Arrangement, "operands", operands)
    monkeypatch.setattr(cuda_host, "Stream", Lane)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "device", lambda *given: HERE)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=synchronize))
    weights = Weights(Caputo(0.5), 40, 0.5, torch.float64, HERE)
    x = torch.ones(3, 1, 40, 1, dtype=torch.float64)
    for apply_to in (cuda_host.run, cuda_host.adjoint):
        made.clear()
        apply_to(weights.chunks(16), weights.boundary, (3, 1, 40, 1), x, torch.empty_like(x))
        assert made == ["operands", "wait", "lane begins 3", "lane ends"]


class Busy(Late):
    """A lane whose device has so much else to do that a part is back after so many questions."""

    def __init__(self, log: list[str], name: str, questions: int):
        super().__init__(log, name, doubled)
        self.questions, self.left = questions, 0

    def begin(self, shape: Shape, data: Tensor, room: Tensor) -> None:
        super().begin(shape, data, room)
        self.left = self.questions

    def is_free(self) -> bool:
        self.left -= 1
        return self.pending is None or self.left < 0


def test_a_busy_device_gets_fewer_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_host.time, "sleep", lambda seconds: None)
    x, log = torch.arange(120.0).view(60, 1, 2, 1), list[str]()
    y = torch.full_like(x, torch.nan)
    cuda_host.through([Busy(log, "busy", 9), Busy(log, "free", 2)], (60, 1, 2, 1), 1, x, y)
    assert torch.equal(y, 2 * x)
    parts = [sum(line.startswith(f"{name} begins") for line in log) for name in ("busy", "free")]
    assert sum(parts) == 60
    assert parts[1] == pytest.approx(3 * parts[0], rel=0.35)  # ten questions a part, and three


@pytest.mark.usefixtures("present")
def test_devices_that_are_not_there_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    asked = workload((256, 4096), framework="torch")
    manager = BackendManager(Settings(force_backend="cuda", mode="prior", calibration="shipped"))
    manager.configure(offload=["cuda:0", "cuda:1"])
    assert manager.plan(asked).devices == ("cuda:0", "cuda:1")
    manager.configure(deterministic=True)  # which rows a device computes would depend on who is free
    assert manager.plan(asked).devices == ("cuda:0",)
    for device in ("cuda:2", "xpu:0"):
        manager.configure(offload=["cuda:0", device])
        with pytest.raises(LookupError, match=f"torch sees 2 CUDA devices, and {device} is none of them"):
            manager.plan(asked)


def test_every_device_is_rehearsed() -> None:
    seen: list[tuple] = []
    real = next(each for each in KERNELS if each.name == "torch/dense")

    def noting(step: Callable[..., None]) -> Callable[..., None]:
        def run(*given: Any, devices: tuple[str, ...] = ()) -> None:
            seen.append(devices)
            step(*given)

        return run

    kernel = replace(real, algorithm="blocks", run=noting(real.run), adjoint=noting(real.adjoint), offloads=True)
    register(kernel)
    try:
        manager = BackendManager(Settings(force_algorithm="blocks", offload=["cuda:0", "cuda:1"], mode="prior"))
        rehearse(manager.plan(workload((3, 40), framework="torch", needs_gradient=True, learns_weights=True)))
    finally:
        unregister(kernel)
    assert seen == [("cuda:0",)] * 9 + [("cuda:1",)] * 9  # three steps, with zero, one and two differences


def test_no_more_lanes_are_made_than_there_are_parts_and_the_estimate_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is a signal of each channel at least, however long they are."""
    held: list[int] = []

    class Lane(Late):
        def __init__(self, device: object, count: int, dtype: torch.dtype, compute: cuda_host.Compute):
            held.append(2 * count * dtype.itemsize)  # there and back
            super().__init__([], "lane", lambda shape, data, room: None)

    monkeypatch.setattr(cuda_host, "Stream", Lane)
    monkeypatch.setattr(cuda_host, "_step_on", lambda *given: None)
    monkeypatch.setattr(cuda_host, "_PART", 1 << 14)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    for batch, channels, n in ((1, 8, 4096), (2, 8, 4096), (9, 8, 4096), (500, 1, 64), (1, 1, 64)):
        x = torch.zeros(batch, channels, n, 1)
        asked = Workload("toeplitz", "torch", rows=batch * channels, channels=channels, n=n)
        for devices in ((), ("cuda:0", "cuda:1", "cuda:2")):
            held.clear()
            cuda_host.run(None, None, tuple(x.shape), x, x.clone(), devices=devices)  # type: ignore[arg-type]
            assert 1 <= len(held) <= min(batch, 2 * max(1, len(devices)))
            assert sum(held) <= 1.01 * cuda_host.cost(asked).workspace


def test_a_warm_up_reaches_devices_where_others_have_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = next(each for each in KERNELS if each.name == "torch/dense")

    def step(*given: Any, devices: tuple[str, ...] = ()) -> None:
        seen.append(devices)

    kernel = replace(real, algorithm="blocks", run=step, adjoint=step, offloads=True, compiles=lambda work: None)
    register(kernel)
    try:
        manager = BackendManager(Settings(force_algorithm="blocks", offload=["cuda:1"], mode="prior"))
        assert set(manager.warm_up([workload((3, 40), framework="torch")])) == {"torch/blocks"}
        manager.configure(offload=True)
        assert manager.warm_up([workload((3, 40), framework="torch")]) == {}
    finally:
        unregister(kernel)
    assert seen == [("cuda:1",)] * 3  # with zero, one and two differences


@needs_compiler
def test_the_devices_that_are_named_share_the_work(
    emulated: Emulated,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a user says it, forward and backward and in the order; the devices are the host."""
    log: list[str] = []
    names: list[str] = []

    class Lane(Late):
        def __init__(self, device: object, count: int, dtype: torch.dtype, compute: cuda_host.Compute):
            super().__init__(log, f"lane {len(names)}", compute)

    def device(name: str) -> torch.device:
        names.append(name)
        return HERE

    monkeypatch.setattr(cuda_host, "Stream", Lane)
    monkeypatch.setattr(cuda_host, "torch", SimpleNamespace(**{**vars(torch), "device": device}))
    monkeypatch.setattr(cuda_host, "refuses", lambda workload: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(synchronize=lambda: None))
    real = next(each for each in KERNELS if each.name == "cuda/offload")
    kernel = replace(
        real, algorithm="blocks", refuses=lambda work: None, compiles=lambda work: None, reaches=lambda device: None
    )
    register(kernel)
    try:
        allowed = Settings(force_backend="cuda", force_algorithm="blocks", mode="prior", calibration="shipped")
        manager = BackendManager(replace(allowed, offload=["cuda:0", "cuda:1"]))
        alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
        x = torch.randn(64, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        found, wanted = (
            torch.autograd.grad(apply("test", x, Caputo(alpha), 0.1, -1, each).square().sum(), (x, alpha))
            for each in (manager, BackendManager(Settings(mode="prior", calibration="shipped")))
        )
    finally:
        unregister(kernel)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-10)
    assert set(names) == {"cuda:0", "cuda:1"}
    assert len(names) == 3 * 2  # forward, backward, and in the order
    assert sum("begins 8" in line for line in log) == 3 * 8  # two parts for each of two lanes of two devices


def test_a_part_holds_one_signal_of_each_channel_at_least() -> None:
    assert cuda_host.part_rows((1000, 3, 1 << 24, 1), 8) == 3
    assert cuda_host.part_rows((10, 3, 64, 1), 4) == 30
    rows = cuda_host.part_rows((100_000, 1, 1024, 1), 4)
    assert rows * 1024 * 4 == cuda_host._PART
    assert cuda_host.part_rows((64, 3, 10, 1), 4, lanes=4) == 8 * 3
    assert cuda_host.part_rows((100_000, 1, 1024, 1), 4, lanes=4) == rows // 2  # as much pinned memory in all
    assert cuda_host.part_rows((1, 1, 10, 1), 4, lanes=4) == 1


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a device, as far as is asked."""
    monkeypatch.setattr(cuda_launch, "missing", lambda: None)
    monkeypatch.setattr(cuda_launch, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.mark.usefixtures("present")
def test_data_leave_the_host_only_where_it_is_allowed() -> None:
    asked = workload((256, 4096), framework="torch")
    manager = BackendManager(Settings(force_backend="cuda", mode="prior", calibration="shipped"))
    with pytest.raises(LookupError, match=r"it would move the data to a device and back; allow it by configure\(offlo"):
        manager.plan(asked)
    manager.configure(offload=True)
    assert manager.plan(asked).kernel.name == "cuda/offload"
    manager.configure(offload=None)
    with pytest.raises(LookupError):
        manager.plan(asked)


def test_the_permission_is_checked_and_may_stand_in_the_environment() -> None:
    for wrong in ("cuda", [], ["cuda:0", "cuda:0"], ["cpu:0"], ["cuda:0", 1], [" cuda:0"], ["cuda"], ["cuda:01"], 3):
        with pytest.raises(
            ValueError, match=r"needs True, False, or a list of devices other than the host, each once, "
        ):
            Settings(offload=wrong)  # type: ignore[arg-type]
    assert from_environment({"HPFRACC_NN_OFFLOAD": "1"}).offload
    assert not from_environment({}).offload
    assert from_environment({"HPFRACC_NN_OFFLOAD": "cuda:0, cuda:2"}).devices == ("cuda:0", "cuda:2")
    assert from_environment({"HPFRACC_NN_OFFLOAD": "1"}).devices == ()
    with pytest.raises(ValueError, match="HPFRACC_NN_OFFLOAD='cuda'"):
        from_environment({"HPFRACC_NN_OFFLOAD": "cuda"})


@pytest.mark.gpu
def test_a_device_returns_what_the_host_computes() -> None:
    x = torch.randn(3000, 8192).requires_grad_()  # three parts
    manager = BackendManager(Settings(force_backend="cuda", offload=True, mode="prior"))
    if reason := cuda_launch.missing():
        pytest.skip(reason)
    found, wanted = (apply("test", x, Caputo(0.5), 0.1, -1, each) for each in (manager, BackendManager(Settings())))
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()
    grads = [torch.autograd.grad(each.square().sum(), x)[0] for each in (found, wanted)]
    assert (grads[0] - grads[1]).norm() <= 1e-6 * grads[1].norm()


@pytest.mark.gpu
def test_two_devices_return_what_the_host_computes() -> None:
    if reason := cuda_launch.missing():
        pytest.skip(reason)
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    x = torch.randn(3000, 8192)
    manager = BackendManager(Settings(force_backend="cuda", offload=["cuda:0", "cuda:1"], mode="prior"))
    found, wanted = (apply("test", x, Caputo(0.5), 0.1, -1, each) for each in (manager, BackendManager(Settings())))
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()
