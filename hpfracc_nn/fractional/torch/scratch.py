"""Working memory that is kept between calls, per thread: fresh pages cost more than the arithmetic done on them.

A buffer never leaves the call that asked for it, and each use inside one call has its own name.
"""

from __future__ import annotations

import threading
from math import prod

import torch
from torch import Tensor

_KEPT_BYTES = 8 << 20  # larger buffers are made anew
_LOCAL = threading.local()


def scratch(use: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised buffer of `shape` with the dtype and device of `like`.

    Args:
        use: What it is for; a second request for the same use in the same thread may return the same memory.
        shape: Its shape.
        like: Whose dtype and device.
    """
    kept: dict[tuple[str, torch.dtype], tuple[Tensor, Tensor]] = _LOCAL.__dict__.setdefault("kept", {})
    room, last = kept.get((use, like.dtype), (None, None))
    if last is not None and last.shape == shape and like.device.type == "cpu":
        return last
    size = prod(shape)
    if like.device.type != "cpu" or size * like.element_size() > _KEPT_BYTES:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if room is None or room.numel() < size:
        room = torch.empty(size, dtype=like.dtype, device=like.device)
    view = room[:size].view(shape)
    kept[use, like.dtype] = room, view
    return view


def drop_scratch() -> None:
    """Let go of the buffers that this thread keeps."""
    _LOCAL.__dict__.pop("kept", None)
