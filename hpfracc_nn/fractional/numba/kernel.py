"""What the kernels by Numba share: operands, the compiled call, threads, cost, and whether Numba can compile here.

Data are NumPy arrays [batch, channels, n, width] in row order, aligned and writeable: for any other kind the functions
would be compiled once more. Numba is imported when a kernel is first considered for a workload that nothing else rules
out.

A model is the StateSpace of `fractional/linear.py`, over chunks of 16 samples with K states: B takes a chunk to the
states, C the states to a chunk, A has their decay over one chunk.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from hpfracc_nn.fractional.linear import StateSpace, refuses_long
from hpfracc_nn.selection import Compilation, Cost, Workload
from hpfracc_nn.selection.registry import find_spec

CHUNK = 16
_PANEL = 8  # chunks
_WHOLE = 64  # samples: a shorter series takes as long
_NARROW, _VECTOR = 24, 64  # bytes of one time step
_FILLED = 8  # states are a whole number of half vectors
_GRAIN = 65536  # samples for a thread: a hand-over costs as long as some 20000
_ONE_COMPILED, _ONE_LOADED = 3.0, 0.1  # seconds, on a core of 2.5 GHz

_ready: set[tuple[str, bool, int]] = set()  # functions that have run: direction, layout, bytes of a sample

Around = tuple[np.ndarray, int, bool, int, int]  # `Boundary.arrays`


class Operands(NamedTuple):
    """The arrays that the compiled functions take, for C channels and K states, a multiple of 8; see `recurrence.py`.

    Attributes:
        near: Weights inside a chunk, [C, 16, 16].
        into: From a chunk to the states, [1 or C, 16, K].
        out: From the states to a chunk, [1 or C, K, 16].
        decay: The states' decay over 1, 4 and 8 chunks, float64, [3, K].
        powers: The states' decay over 0 to 7 chunks, [8, K].
    """

    near: np.ndarray
    into: np.ndarray
    out: np.ndarray
    decay: np.ndarray
    powers: np.ndarray


class Forward:
    """The arrangement of the product: `operands` makes Operands of a model whose chunks have 16 samples."""

    @staticmethod
    def operands(model: StateSpace) -> Operands:
        inward, _ = model.cached_shared(_Entries)
        return Operands(_rows(model.intra), inward, _rows(_filled(model.C, 1)), *model.cached_shared(_Decays))


class Backward:
    """The arrangement of the transposed product: `operands` makes its Operands of the same model."""

    @staticmethod
    def operands(model: StateSpace) -> Operands:
        _, outward = model.cached_shared(_Entries)
        intra, inward = (_array(each).swapaxes(1, 2) for each in (model.intra, model.C))
        return Operands(_rows(intra), _rows(_filled(inward, 2)), outward, *model.cached_shared(_Decays))


class _Entries:
    """B in the layouts that the compiled functions read: `operands` returns both, contiguous.

    The first, [1, 16, K], takes a chunk to the states in the product; the second, [1, K, 16], takes the states to a
    chunk in the transposed product.
    """

    @staticmethod
    def operands(model: StateSpace) -> tuple[np.ndarray, np.ndarray]:
        B = _array(model.B)
        return _rows(_filled(B[None], 2)), _rows(_filled(B.T[None], 1))


class _Decays:
    """The decay of every state over some chunks: `operands` returns two arrays.

    The first, [3, K] in float64, is the decay over 1, 4 and 8 chunks; the second, [8, K] in the product's dtype, that
    over 0 to 7 chunks.
    """

    @staticmethod
    def operands(model: StateSpace) -> tuple[np.ndarray, np.ndarray]:
        decay, power = _filled(_array(model.A[0]), 0), np.arange(_PANEL)[:, None]
        over = np.stack([decay, decay ** (_PANEL // 2), decay**_PANEL])
        return over, (decay**power).astype(_array(model.intra).dtype)


def apply(
    direction: Literal["forward", "backward"],
    operands: Operands,
    around: Around,
    x: np.ndarray,
    y: np.ndarray,
    threads: Callable[[], int],
) -> None:
    """Write the operator on x, or its transpose on x, into y.

    Args:
        direction: "forward" for the operator, "backward" for its transpose.
        operands: The operands of `Forward` or `Backward`, as the direction is.
        around: The boundary columns, m, `subtract`, `taylor` and `start`, as in `Boundary.arrays`.
        x: The data.
        y: The array that the result is written to, of x's shape and dtype.
        threads: Returns how many threads may be used; called only where there is work for two.
    """
    if _is_narrow(x):
        result = np.empty((x.shape[0] * x.shape[3], 1, x.shape[2], 1), x.dtype)
        apply(direction, operands, around, _turned(x), result, threads)
        y[:, 0] = result.reshape(x.shape[0], x.shape[3], x.shape[2]).swapaxes(1, 2)
        return
    function, units = _compiled(direction, x.shape[3] == 1)
    _ready.add((direction, x.shape[3] == 1, x.itemsize))  # the name of a dtype is slow to look up
    count, parts = units(x), 1 if x.size < 2 * _GRAIN else _parts(x, threads())
    if parts == 1:
        function(x, y, 0, count, *operands, *around)
        return
    _module("threads").spread(
        lambda part, begin, end: function(x, y, begin, end, *operands, *around),
        count,
        parts,
    )


def cost(workload: Workload) -> Cost:
    """Return the cost of a workload: products inside the chunks, into the states and out of them.

    Rates are those of all the workload's threads: where the kernel can use only some, its operations count as more.
    """
    length = -(-workload.n // _WHOLE) * _WHOLE
    lanes = _VECTOR // workload.itemsize
    is_narrow = workload.width * workload.itemsize <= _NARROW
    width = workload.width if is_narrow else -(-workload.width // lanes) * lanes
    samples = workload.rows * length * width
    states = -(-workload.exponentials // _FILLED) * _FILLED
    passes = 1 + workload.needs_gradient + workload.learns_weights
    threads = max(1, min(workload.threads, workload.samples // _GRAIN, workload.rows * workload.width))
    return Cost(
        flops={"matmul": samples * (2.0 * CHUNK + 4.0 * states) * passes * workload.threads / threads},
        bytes=2.0 * passes * workload.bytes,
        launches=1 + workload.needs_gradient + 3 * workload.learns_weights,
        workspace=float(workload.bytes) if is_narrow and workload.width > 1 else 0.0,  # turned
    )


def refuses(workload: Workload) -> str | None:
    """Return, as a text, why the kernel cannot compute a workload here; or None."""
    return refusal(workload, refuses_long(workload, CHUNK))


def compiles(workload: Workload) -> Compilation | None:
    """Return the Compilation that the next call brings, of the functions of its passes for this dtype and layout.

    None where they have run before.
    """
    is_last = workload.width == 1 or workload.width * workload.itemsize <= _NARROW
    names = ["forward", "backward"] if workload.needs_gradient else ["forward"]
    missing = [name for name in names if (name, is_last, workload.itemsize) not in _ready]
    if not missing:
        return None
    key = ("numba", is_last, workload.dtype, *names)
    return compilation(key, compiled=len(missing) * _ONE_COMPILED, loaded=len(missing) * _ONE_LOADED)


def _is_narrow(x: np.ndarray) -> bool:
    """Return whether the width of x [batch, channels, n, width] is above 1, but so small that time is moved last.

    A copy with time last is then faster than computing with time in the middle.
    """
    return 1 < x.shape[3] <= _NARROW // x.itemsize


def _turned(x: np.ndarray) -> np.ndarray:
    """Return x [batch, 1, n, width] with time last, a contiguous copy [batch * width, 1, n, 1]."""
    batch, _, n, width = x.shape
    return np.ascontiguousarray(x[:, 0].swapaxes(1, 2)).reshape(batch * width, 1, n, 1)


def _parts(x: np.ndarray, threads: int) -> int:
    return max(1, min(threads, x.size // _GRAIN, x.size // x.shape[2]))


@cache
def _compiled(name: str, is_last: bool) -> tuple[Any, Any]:
    """Return the compiled function `name`, "forward" or "backward", and one that counts the units of work in x.

    Both are for data with time last (width 1) if `is_last`, else with time in the middle. The first is called with
    (x, y, begin, end, *operands, *around) and computes the units from begin to end.
    """
    module = _module("recurrence" if is_last else "side_by_side")
    return getattr(module, name), module.units


@cache
def _module(name: str) -> Any:
    return import_module(f"hpfracc_nn.fractional.numba.{name}")


def _array(values: Any) -> np.ndarray:
    """Return values as a NumPy array; a tensor on the CPU shares its memory with it."""
    if isinstance(values, np.ndarray):
        return values
    return (values.detach() if values.requires_grad else values).numpy()


def _rows(values: Any) -> np.ndarray:
    return np.ascontiguousarray(_array(values))


def _filled(values: Any, axis: int) -> np.ndarray:
    """Return an array padded with zeros along `axis`, that of the states, to a multiple of 8 states."""
    a = _array(values)
    short = -a.shape[axis] % _FILLED
    if not short:
        return a
    return np.pad(a, [(0, short if i == axis else 0) for i in range(a.ndim)])


# Beside the code that Numba keeps on disk lies an empty file whose name says for which sources it was compiled.
MARK = ".hpfracc_nn"
_DTYPES = ("float32", "float64")
_NUMBA_LOADED = 0.5  # seconds, on a core of 2.5 GHz


def refusal(workload: Workload, other: str | None = None) -> str | None:
    """Return, as a text, why a compiled kernel cannot compute a workload here; or None.

    Args:
        workload: The workload.
        other: The kernel's own reason, if it has one. Numba is loaded only where there is no other reason.
    """
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    if workload.dtype not in _DTYPES:
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return other or unusable()


def compilation(key: tuple, *, compiled: float, loaded: float, beside: str = __file__) -> Compilation:
    """Return the Compilation of a first call: functions not used before, and Numba's import if it is not loaded yet.

    Args:
        key: Identifies the functions that are then ready.
        compiled: Seconds that compiling them takes, on a core of 2.5 GHz.
        loaded: Seconds that loading their code takes instead where it is on disk.
        beside: See `is_kept`.
    """
    seconds = loaded if is_kept(beside) else compiled
    return Compilation(seconds + _NUMBA_LOADED * ("numba.core" not in sys.modules), key)


@cache
def unusable() -> str | None:
    """Return, as a text, why Numba, which is installed, compiles nothing here; or None."""
    try:
        from numba import config
    except (ImportError, OSError) as error:  # a NumPy that is too new for it, a library that cannot be loaded
        return f"Numba cannot be imported ({error}); install versions of Numba and NumPy that fit each other"
    if config.DISABLE_JIT:
        return "Numba compiles nothing where NUMBA_DISABLE_JIT is set; unset it"
    return None


@cache
def sources() -> str:
    """Return a hash of every source of this folder: compiled code is good for these only."""
    found = sorted(files(__package__).iterdir(), key=str)
    return hashlib.sha256(b"".join(file.read_bytes() for file in found if file.name.endswith(".py"))).hexdigest()


def is_kept(beside: str = __file__) -> bool:
    """Return whether code compiled from the sources as they are is on disk, looked up without loading Numba.

    Args:
        beside: A file of the folder whose functions are meant, by default this one.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    where, now = chosen or os.path.dirname(beside), time.monotonic()
    found, looked = _seen.get(where, (False, -math.inf))
    if not found and now >= looked + _LOOK_AGAIN:
        folder, mark = Path(where) if chosen else Path(where) / "__pycache__", sources()[:16] + MARK
        found = next(iter(folder.rglob(mark) if chosen else folder.glob(mark)), None) is not None
        _seen[where] = found, now
    return found


_LOOK_AGAIN = 1.0  # seconds after which a directory without code is read again: every first decision asks
_seen: dict[str, tuple[bool, float]] = {}  # by directory: whether it had code, and when it was last looked up
