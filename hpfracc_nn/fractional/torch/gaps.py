"""A look at the ends of results: whether samples that are not finite reached them.

Every plain call on a CPU looks at the ends of its results (`fractional.gaps`), so that this must take no longer than
one small call of torch. `y.numpy()` alone takes that long, and afterwards y's memory could never be resized.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.gaps import are_finite

_FEW = 64  # numbers, up to which Python adds them up sooner than NumPy multiplies them (measured)
_READ_AS = {torch.bfloat16: "h", torch.float16: "e", torch.float32: "f", torch.float64: "d"}
_UPPER = int(sys.byteorder == "little")  # where the bits of bfloat16 stand in single precision
_memory = (ctypes.c_char * (1 << 46)).from_address


def is_clear(y: Tensor, shape: tuple[int, int, int, int], *, at_end: bool) -> bool:
    """Return whether a contiguous y of a canonical shape, on a CPU, is finite at its last time or its first."""
    return _look(shape, y.dtype, at_end)(_memory(y.data_ptr()))


@lru_cache(maxsize=4096)
def _look(shape: tuple[int, int, int, int], dtype: torch.dtype, at_end: bool) -> Callable[[Any], bool]:
    """Return a function of a result's memory: whether its numbers at the last time (or the first) are all finite.

    The result is contiguous, of `shape` [batch, channels, n, width] and of `dtype`; its memory is a ctypes array.
    """
    (batch, channels, n, width), kind = shape, _READ_AS[dtype]
    rows, size = batch * channels, struct.calcsize(kind)
    other = (n - 1) * width * size  # bytes of all other times
    place = other if at_end else 0

    def reader(kind: str) -> Callable[[Any], tuple[float, ...]]:
        return struct.Struct("=" + (f"{place}x{width}{kind}{other - place}x") * rows).unpack_from

    if rows * width > _FEW:
        strides, read = (n * width * size, size), np.dtype(kind)

        def look(memory: Any) -> bool:
            found = np.ndarray((rows, width), read, memory, place, strides)
            return are_finite(_widened(found) if dtype == torch.bfloat16 else found)

        return look
    if dtype == torch.bfloat16:
        signed, unsigned = reader("h"), reader("H")
        # Only ones in the exponent: the largest numbers of either sign.
        return lambda memory: max(signed(memory)) < 0x7F80 and max(unsigned(memory)) < 0xFF80
    numbers = reader(kind)
    return lambda memory: isfinite(sum(numbers(memory)))


def _widened(bits: np.ndarray) -> np.ndarray:
    """Return numbers in bfloat16 as float32; `bits` are those of each number, in int16."""
    found = np.zeros((*bits.shape, 2), np.int16)
    found[..., _UPPER] = bits
    return found.view(np.float32)
