"""What only PyTorch can tell: threads, memory, rates, and whether a call is being traced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame
from torch.autograd import forward_ad

from hpfracc_nn.fractional.torch.place import check_place
from hpfracc_nn.fractional.torch.scratch import drop_scratch
from hpfracc_nn.selection import Rates, register_marker, register_probe
from hpfracc_nn.selection.memory import host_free

_PLAIN = (Tensor, torch.nn.Parameter)
_KNOWS_FRAMES = hasattr(eval_frame, "_FrameAction")  # PyTorch 2.6 does not yet: a call costs a microsecond more there


def is_watched(x: Tensor) -> bool:
    """Whether a compiler, a dispatch mode or a tensor's subclass sees this call's torch operations, and only those."""
    return bool(type(x) not in _PLAIN or torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling())


def is_plain(x: Tensor) -> bool:
    """Whether nothing looks at a call with `x` but autograd, and no mode changes what an operation does."""
    return (
        type(x) in _PLAIN
        and forward_ad._current_level < 0
        and not (
            torch._C._len_torch_dispatch_stack()
            or torch._C._are_functorch_transforms_active()
            or torch.is_inference_mode_enabled()
            or torch._C._is_any_autocast_enabled()
            or torch._C._get_tracing_state() is not None
        )
    )


def is_traced(x: Tensor, weights: tuple[Tensor, ...]) -> bool:
    """Whether a tracer, a functorch transform or forward mode looks at this call."""
    if is_watched(x) or torch._C._are_functorch_transforms_active():
        return True
    return forward_ad._current_level >= 0 and has_tangent(x, *weights)


def has_tangent(*tensors: Tensor) -> bool:
    """Whether forward mode looks at this call, also where only a compiler's graph entered its level."""
    return any(unpacked(tensor)[1] is not None for tensor in tensors)


def unpacked(tensor: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return a tensor's value and its tangent in forward mode."""
    return torch._VF._unpack_dual(tensor, level=0)  # type: ignore[attr-defined]


def is_followed(g: Tensor) -> bool:
    """Whether something looks at a backward pass with the gradient `g`, so that it must consist of torch operations.

    Kernels read memory, which a tensor of a class of its own, or of a dispatch mode, may not have.
    """
    return (
        torch.is_grad_enabled() or is_batched(g) or is_watched(g) or (forward_ad._current_level >= 0 and has_tangent(g))
    )


def is_batched(tensor: Tensor) -> bool:
    """Whether `tensor` stands for a batch of gradients (is_grads_batched) or lives inside a functorch transform."""
    return torch._C._functorch.is_legacy_batchedtensor(tensor) or torch._C._functorch.is_functorch_wrapped_tensor(
        tensor
    )


def uncompiled(function: Any, reason: str | None = None) -> Any:
    """Keep a compiler away from `function` and all that it calls, and return `function`.

    It is what torch.compiler.disable does, but without a cost per call and without importing the compiler. A compiled
    caller breaks its graph here; with fullgraph=True it raises and names the reason. A caller's frame that the
    compiler gave up is safe too: else it would compile what that frame calls, piece by piece.
    """
    if not _KNOWS_FRAMES:
        return torch.compiler.disable(function, recursive=True)
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, reason
    return function


def around_compiled(function: Any) -> Any:
    """Keep a compiler away from `function`, but not from what it calls, and return `function`.

    It is what torch.compiler.disable(recursive=False) does, in the way of `uncompiled`.
    """
    if not _KNOWS_FRAMES:
        return torch.compiler.disable(function, recursive=False)
    action = eval_frame._FrameAction
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
    function._torchdynamo_disable, function._torchdynamo_disable_msg = True, None
    return function


def _keys(*names: str) -> Any:
    found = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, names[0]))
    for name in names[1:]:
        found = found.add(getattr(torch._C.DispatchKey, name))
    return found


# The dispatcher's state in a plain call: views are tracked, autocast is off.
_PLAIN_KEYS = (
    _keys("BackendSelect", "ADInplaceOrView"),
    _keys(*[name for name in torch._C.DispatchKey.__members__ if name.startswith("Autocast")]),
)


@contextmanager
def plainly() -> Iterator[None]:
    """Compute as in a plain call, whatever was entered on the way here.

    An operation may run inside a dispatch mode, as the first call of a compiled graph does: there autograd records
    nothing, and the lazy conjugate of a tensor is its plain value.
    """
    with (
        torch.inference_mode(False),
        torch._C._ForceDispatchKeyGuard(*_PLAIN_KEYS),
        torch.no_grad(),
    ):
        yield


class TorchProbe:
    """See `selection.Probe`."""

    framework = "torch"
    waits_to_be_asked = False

    def threads(self) -> int:
        return torch.get_num_threads()

    def free_memory(self, device: str) -> int | None:
        where = torch.device(device)
        if where.type == "cuda":
            free, _ = torch.cuda.mem_get_info(where)
            pool = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
            return free + pool
        return host_free() if where.type == "cpu" else None

    def release(self, device: str) -> None:
        drop_scratch()
        if torch.device(device).type == "cuda":
            torch.cuda.empty_cache()

    def deterministic(self) -> bool:
        return torch.are_deterministic_algorithms_enabled()

    def calibrate(self, device: str, dtype: str) -> Rates:
        """Time a matrix product, a transform, two element-wise passes and a small call; about 20 ms on a CPU."""
        check_place("calibrate", device, None)
        place = {"device": device, "dtype": getattr(torch, dtype)}
        # A device is filled, and its launches take less than what is computed; in a few milliseconds still.
        size, count = (256, 1 << 20) if torch.device(device).type == "cpu" else (4096, 1 << 24)
        a = torch.ones(2 * size, size, **place)
        b = torch.ones(size, size, **place)
        out = torch.empty(2 * size, size, **place)
        signal = torch.ones(count // 16384, 2048, **place)
        large, result = torch.ones(count, **place), torch.empty(count, **place)
        small, smaller = torch.ones(64, 64, **place), torch.empty(64, 64, **place)
        # Freed at once: the C library keeps pages up to this size from now on, as in a process that ran for a while.
        # Without it a transform's result is mapped anew at each call in some processes: a third of the rate.
        torch.empty(2 * large.numel(), **place)
        with torch.no_grad():
            product = _seconds(lambda: torch.mm(a, b, out=out), device, repeats=3)
            transform = _seconds(lambda: torch.fft.rfft(signal), device)
            elementwise = _seconds(lambda: torch.mul(signal, 2.0, out=signal), device)
            passed = _seconds(lambda: torch.add(large, 1.0, out=result), device, repeats=3)
            launch = _seconds(lambda: torch.add(small[0], 1.0, out=smaller[0]), device, repeats=50)
        transforms = 2.5 * signal.numel() * 11
        return Rates(
            flops={
                "matmul": 2 * a.shape[0] * size * size / product,
                "fft": transforms / transform,
                "scan": signal.numel() / elementwise,
                "elementwise": signal.numel() / elementwise,
            },
            bandwidth=2 * large.numel() * large.element_size() / passed,
            launch=launch,
        )


def _seconds(call: Callable[[], object], device: str, repeats: int = 5) -> float:
    """The least of a few runs; the device is waited for, so never call this from a layer.

    A device is given several calls at a time: it computes one while the host launches the next, as in a model.
    """
    best, calls = float("inf"), 16 if device.startswith("cuda") else 1
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        _wait(device)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


class EventMark:
    """A CUDA event on the stream that is current; see `selection.device_times.Mark`."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        # While a graph is captured, a look at an event would spoil it.
        return not torch.cuda.is_current_stream_capturing() and self._event.query()

    def seconds_since(self, earlier: EventMark) -> float:
        return 1e-3 * earlier._event.elapsed_time(self._event)


def mark(device: str) -> EventMark | None:
    """Return a mark in the work of a CUDA device, None on others and while a graph is captured."""
    where = torch.device(device)
    return EventMark(where) if where.type == "cuda" and not torch.cuda.is_current_stream_capturing() else None


register_probe(TorchProbe())
register_marker("torch", mark)
