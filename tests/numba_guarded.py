"""Runs the compiled core between pages that may not be touched: a read or write outside of an array ends the process.

A program of its own, because it may end so: `python -m tests.numba_guarded`.
"""

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import torch

from hpfracc_nn.fractional.numba.kernel import Backward, Forward, _compiled
from tests.numba_cases import CASES, Case, Operator, random

Keep = Callable[[np.ndarray], np.ndarray]
_KEPT = []  # mappings live as long as the process


def guarded(array: np.ndarray, at_end: bool) -> np.ndarray:
    """Return a copy that touches the page after it, or the one before it, which may not be accessed."""
    page = mmap.PAGESIZE
    size = -(-max(array.nbytes, 1) // page) * page
    memory = mmap.mmap(-1, size + 2 * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for address in (first, first + page + size):
        if protect(ctypes.c_void_p(address), page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    _KEPT.append(memory)
    start = page + (size - array.nbytes if at_end else 0)
    made = np.frombuffer(memory, array.dtype, array.size, start).reshape(array.shape)
    made[...] = array
    return made


def results(case: Case, shape: tuple[int, int, int, int], dtype: torch.dtype, keep: Keep) -> list[np.ndarray]:
    """Return what both maps write when every array that they are given is kept by `keep`."""
    operator = Operator(case, shape[2], shape[1], dtype)
    x, g = (keep(random(shape, dtype, seed).numpy()) for seed in (0, 1))
    columns, *boundary = operator.boundary.arrays
    columns, found = keep(columns), []
    for direction, source, arrangement in (("forward", x, Forward), ("backward", g, Backward)):
        function, units = _compiled(direction, shape[3] == 1)
        result = keep(np.full(shape, np.nan, x.dtype))
        operands = [keep(a) for a in operator.operator.cached(arrangement)]
        function(source, result, 0, units(x), *operands, columns, *boundary)
        found.append(result)
    return found


def check(case: Case, shape: tuple[int, int, int, int], dtype: torch.dtype, at_end: bool) -> None:
    """Run both maps on guarded arrays, and compare with the same on plain ones."""
    plain = results(case, shape, dtype, np.copy)
    for right, found in zip(plain, results(case, shape, dtype, lambda a: guarded(a, at_end)), strict=True):
        assert np.isfinite(right).all(), (case, shape)
        assert np.array_equal(found, right), (case, shape)


def main() -> None:
    """Check shapes where a block, stride, chunk or vector ends, under several boundaries."""
    torch.set_num_threads(1)
    sizes = (1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 127, 128, 129, 130, 1023, 1024, 1025, 1026, 1089, 2049)
    shapes = [(2, 1, n, 1) for n in sizes] + [(1, 3, n, 1) for n in sizes[::3]]
    shapes += [(2, 1, n, width) for n in sizes[:14:3] for width in (2, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 130)]
    for i, shape in enumerate(shapes):
        for case in CASES[i % 7 :: 7]:
            for dtype in (torch.float32, torch.float64):
                check(case, shape, dtype, at_end=bool(i % 2))
                check(case, shape, dtype, at_end=not i % 2)
        _KEPT.clear()


if __name__ == "__main__":
    main()
