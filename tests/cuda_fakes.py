"""What stands for CuPy and for torch's streams where there is no device.

Of CuPy it is as much of version 14 as is used, with its signatures and errors: tests/test_cuda_launch.py compares it
with the real one where that is installed. Streams note what they are asked, in the order in which it is done.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

_USUAL = 48 << 10  # bytes of shared memory


def _of(kind: type, name: str, given: Any) -> None:
    """Raise as Cython does for an argument that has its type."""
    if given is not None and not isinstance(given, kind):
        said = f"(expected {kind.__name__}, got {type(given).__name__})"
        raise TypeError(f"Argument '{name}' has incorrect type {said}")


class CuPy:
    """The module; `calls` holds each launch: name, device, stream's address, grid, block, arguments, shared bytes."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.devices: list[int] = [0]  # the current one comes last
        self.modules: list[dict[str, Any]] = []
        self.functions: dict[str, Any] = {}
        cupy = self

        class Device:
            def __init__(self, device: Any = None) -> None:
                self.id = cupy.devices[-1] if device is None else int(device)

            def __enter__(self) -> Any:
                cupy.devices.append(self.id)
                return self

            def __exit__(self, *args: object) -> None:
                cupy.devices.pop()

        class ExternalStream:
            def __init__(self, ptr: int, device_id: int = -1) -> None:
                warnings.warn("ExternalStream is deprecated.", DeprecationWarning, stacklevel=2)
                self.ptr, self.device_id = ptr, device_id

        class RawKernel:
            def __init__(self, name: str) -> None:
                self.name, self.max_dynamic_shared_size_bytes = name, _USUAL

            def __call__(self, grid: Any, block: Any, args: Any, **kwargs: Any) -> None:
                self.kernel(grid, block, args, enable_cooperative_groups=False, **kwargs)

            def kernel(
                self,
                grid: Any,
                block: Any,
                args: Any,
                shared_mem: int = 0,
                stream: Any = None,
                enable_cooperative_groups: bool = False,
            ) -> None:
                _of(tuple, "grid", grid)
                _of(tuple, "block", block)
                if shared_mem < 0:
                    raise OverflowError("can't convert negative value to size_t")
                pointer = 0 if stream is None else stream.ptr
                for each in args:
                    if isinstance(each, np.ndarray) and each.size != 1:
                        raise TypeError(f"You are trying to pass a numpy.ndarray of shape {each.shape}")
                cupy.calls.append((self.name, cupy.devices[-1], pointer, grid, block, args, shared_mem))

        class RawModule:
            def __init__(
                self,
                *,
                code: Any = None,
                path: Any = None,
                options: Any = (),
                backend: Any = "nvrtc",
                translate_cucomplex: bool = False,
                enable_cooperative_groups: bool = False,
                name_expressions: Any = None,
                jitify: Any = None,
            ) -> None:
                _of(str, "code", code)
                _of(tuple, "options", options)
                _of(str, "backend", backend)
                if (code is None) == (path is None):
                    raise TypeError("Exactly one of `code` and `path` keyword arguments must be given.")
                cupy.modules.append({"code": code, "options": options, "backend": backend})

            def get_function(self, name: Any) -> RawKernel:
                _of(str, "name", name)
                found = cupy.functions[name] = RawKernel(name)
                return found

        self.RawModule = RawModule
        self.cuda = SimpleNamespace(Device=Device, ExternalStream=ExternalStream, launched=RawKernel("launched").kernel)


class Note(NamedTuple):
    """What a stream was told: to `record` an event or `wait` for it, to `keep` memory, to `launch` with addresses."""

    kind: str
    stream: int
    what: Any


class Cuda:
    """Streams of torch: the current one, a log, and whether a graph is captured; `install` puts it in their place."""

    def __init__(self) -> None:
        self.log: list[Note] = []
        self.is_captured = False
        self._numbers = count(1)
        self._current = [1]
        cuda = self

        class Event:
            def __init__(self) -> None:
                self.number = next(cuda._numbers)

            def record(self, stream: Any) -> None:
                assert not cuda.is_captured, "the event would be the graph's own"
                cuda.log.append(Note("record", stream.cuda_stream, self.number))

        class Stream:
            def __init__(self, number: int) -> None:
                self.cuda_stream = number

            def wait_event(self, event: Event) -> None:
                assert not cuda.is_captured, "cudaErrorStreamCaptureIsolation"
                recorded = [note.what for note in cuda.log if note.kind == "record"]
                assert event.number in recorded, "an event that was never recorded is not waited for"
                cuda.log.append(Note("wait", self.cuda_stream, event.number))

        self.Event, self.Stream = Event, Stream

    @property
    def current(self) -> int:
        return self._current[-1]

    @contextmanager
    def on(self, stream: int) -> Iterator[list[Note]]:
        """Make a stream current; the list is what is noted meanwhile."""
        self._current.append(stream)
        begin, noted = len(self.log), list[Note]()
        try:
            yield noted
        finally:
            noted.extend(self.log[begin:])
            self._current.pop()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def keep(tensor: Tensor, stream: Any) -> None:
            self.log.append(Note("keep", stream.cuda_stream, tensor.data_ptr()))

        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.Stream(self.current))
        monkeypatch.setattr(torch.cuda, "Event", self.Event)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_captured)
        monkeypatch.setattr(Tensor, "record_stream", keep)
