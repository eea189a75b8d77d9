"""What only PyTorch knows of a device: threads, memory, rates, and marks in its work."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from hpfracc_nn.fractional.torch.parameters import check_place
from hpfracc_nn.fractional.torch.tiles import drop_scratch
from hpfracc_nn.selection import Rates, register_marker, register_probe
from hpfracc_nn.selection.memory import host_free


class TorchProbe:
    """PyTorch's answers about devices: threads, free memory and rates. See `selection.Probe`."""

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
        # Large enough to fill a GPU and to take longer than a launch, but only a few milliseconds.
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
    """Return the shortest time, in seconds, of a few calls, waiting for the device, so that no layer may use this.

    A CUDA device is given several calls at a time: it computes one while the host launches the next, as in a model.
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
    """A CUDA event on the stream that was current when it was made; see `selection.registry.Mark`."""

    def __init__(self, device: torch.device) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record(torch.cuda.current_stream(device))

    def passed(self) -> bool:
        # While a graph is captured, a look at an event would spoil it.
        return not torch.cuda.is_current_stream_capturing() and self._event.query()

    def seconds_since(self, earlier: EventMark) -> float:
        return 1e-3 * earlier._event.elapsed_time(self._event)


def mark(device: str) -> EventMark | None:
    """Return a mark in the work of a CUDA device; None on other devices and while a graph is captured."""
    where = torch.device(device)
    return EventMark(where) if where.type == "cuda" and not torch.cuda.is_current_stream_capturing() else None


register_probe(TorchProbe())
register_marker("torch", mark)
