"""Tensors that are kept on a CUDA device for later calls, and the streams that read them.

A kept tensor is made on the stream that is current at the first request. Another stream may read the tensor only after
that, and its memory may be used anew only when that stream has read it; torch sees to neither. So whoever makes a
tensor leaves an event. A stream that comes later waits for the event once, on the device, and is recorded with the
tensor's memory.

A stream that is captured in a CUDA graph cannot wait for what was recorded outside of the capture, and need not:
`torch.cuda.graph` lets the device come to rest before. What a graph reads is never let go, because it replays
addresses; what is first made in a capture holds nothing before the graph runs, and is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


class _Recording(NamedTuple):
    stream: int  # its address
    event: torch.cuda.Event
    tensors: list[Tensor]


class Streams:
    """The tensors that one owner keeps on a CUDA device, and the streams that may read them.

    Args:
        device: The CUDA device.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._made: list[_Recording] = []
        self._seen: dict[int, int] = {}  # how many of `_made` each stream may read, by its address

    def record(self, made: Any) -> None:
        """Record an event behind `made`, tensors of the current stream, so that other streams can wait for them."""
        stream, event = torch.cuda.current_stream(self._device), torch.cuda.Event()
        event.record(stream)
        self._made.append(_Recording(stream.cuda_stream, event, _tensors(made)))

    def follow(self) -> None:
        """Make the current stream wait, before what it does next, for all tensors recorded so far on other streams.

        A captured stream need not wait; the tensors are then kept as long as the process lives.
        """
        if is_captured():
            _captured.add(self)
            return
        stream = torch.cuda.current_stream(self._device)
        seen, count = self._seen.get(stream.cuda_stream, 0), len(self._made)
        if seen == count:
            return
        for made in self._made[seen:count]:
            if made.stream != stream.cuda_stream:
                stream.wait_event(made.event)
                for tensor in made.tensors:
                    tensor.record_stream(stream)
        self._seen[stream.cuda_stream] = count

    def kept(self, store: MutableMapping[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
        """Return store[key], ready for the current stream to read; make() is stored there if the key is missing.

        A captured stream gets make() itself, which is not stored.
        """
        found = store.get(key)
        if found is None:
            found = recorded(self, make())
            if is_captured():
                return found
            found = store.setdefault(key, found)
        self.follow()
        return found


_ORDERED = ("cuda",)  # kinds of devices that work in streams, each of which keeps its own order
_captured: set[Streams] = set()  # those whose tensors a CUDA graph reads: kept alive, because it replays addresses


def is_captured() -> bool:
    """Return whether the current stream is captured in a CUDA graph."""
    return torch.cuda.is_current_stream_capturing()


def is_ordered(device: torch.device) -> bool:
    """Return whether a device works in streams, each of which keeps its own order: CUDA devices do."""
    return device.type in _ORDERED


def streams_on(device: torch.device) -> Streams | None:
    """Return new Streams for an owner of tensors on a device; None for a device that does not work in streams."""
    return Streams(device) if device.type in _ORDERED else None


def streams_of(store: MutableMapping[Any, Any], device: torch.device) -> Streams | None:
    """Return the Streams of the tensors that a dictionary keeps on a device; None if it does not work in streams.

    The Streams are an entry of that dictionary, made on first use.
    """
    return store.setdefault(("streams", device), Streams(device)) if device.type in _ORDERED else None


def recorded(streams: Streams | None, made: T) -> T:
    """Return tensors that the current stream has just made, after recording them in `streams`.

    The tensors are not recorded where `streams` is None or the current stream is captured in a CUDA graph.
    """
    if streams is not None and not is_captured():
        streams.record(made)
    return made


def follow(streams: Streams | None) -> None:
    """Make the current stream wait for all tensors that `streams` has recorded; for None do nothing."""
    if streams is not None:
        streams.follow()


def kept(streams: Streams | None, store: MutableMapping[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """Return store[key], ready for the current stream to read; make() is stored there if the key is missing.

    `streams` are those of the dictionary's owner, or None for a device that does not work in streams.
    """
    if streams is not None:
        return streams.kept(store, key, make)
    found = store.get(key)
    return store.setdefault(key, make()) if found is None else found


def placed(make: Callable[P, T]) -> Callable[P, T]:
    """Return the function `make`, of tensors on the device that is its last argument, with its last 64 results cached.

    The returned function has an attribute `forget`, which clears the cache.
    """

    @lru_cache(maxsize=64)
    def made(*given: Any) -> tuple[Streams | None, T]:
        streams = streams_on(given[-1])
        return streams, recorded(streams, make(*given))  # type: ignore[call-arg]

    @wraps(make)
    def found(*given: P.args, **_: P.kwargs) -> T:
        streams, tensors = made(*given)
        follow(streams)
        return tensors

    found.forget = made.cache_clear  # type: ignore[attr-defined]
    return found


def _tensors(made: Any) -> list[Tensor]:
    """Return the tensors in `made`, which is one tensor or a list, tuple or dataclass of tensors, however nested."""
    if isinstance(made, Tensor):
        return [made]
    if is_dataclass(made):
        made = [getattr(made, each.name) for each in fields(made)]
    return [tensor for each in made for tensor in _tensors(each)] if isinstance(made, list | tuple) else []
