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
    kept = _LOCAL.__dict__
    key = (use, like.dtype, like.device)
    last = kept.get(key)
    if last is not None and last.shape == shape:
        return last
    size = prod(shape)
    if like.device.type != "cpu" or size * like.element_size() > _KEPT_BYTES:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    room = (*key, "room")
    if room not in kept or kept[room].numel() < size:
        kept[room] = torch.empty(size, dtype=like.dtype)
    kept[key] = kept[room][:size].view(shape)
    return kept[key]
