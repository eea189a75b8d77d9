"""Whether anything can be compiled in this process, and what that costs. Loads Numba when asked, not before."""

from __future__ import annotations

import hashlib
import os
import sys
from functools import cache
from importlib.resources import files
from pathlib import Path

from hpfracc_nn.selection import Compilation, Workload
from hpfracc_nn.selection.installed import find_spec

# Beside the code that Numba keeps on disk lies an empty file whose name says for which sources it was compiled.
MARK = ".hpfracc_nn"
_DTYPES = ("float32", "float64")
_NUMBA_LOADED = 0.5  # seconds, on a core of 2.5 GHz


def refusal(workload: Workload, other: str | None = None) -> str | None:
    """Return why a compiled kernel cannot take a workload here, or None.

    Args:
        workload: What is asked for.
        other: What the kernel has against it besides, if anything. Numba is loaded only where nothing else is.
    """
    if workload.device != "cpu":
        return f"it computes on the CPU and the data lie on {workload.device}"
    if find_spec("numba") is None:
        return "Numba is not installed; pip install 'hpfracc-nn[numba]'"
    if workload.dtype not in _DTYPES:
        return f"{workload.dtype} is not computed in; it takes float32 and float64"
    return other or unusable()


def compilation(key: tuple, *, compiled: float, loaded: float, beside: str = __file__) -> Compilation:
    """Return what a first call costs: Numba's own import, where that was not made, and functions not used before.

    Args:
        key: Names what is bought by it.
        compiled: Seconds that compiling takes, on a core of 2.5 GHz.
        loaded: Those that reading the code from disk takes, where it is.
        beside: See `is_kept`.
    """
    seconds = loaded if is_kept(beside) else compiled
    return Compilation(seconds + _NUMBA_LOADED * ("numba.core" not in sys.modules), key)


@cache
def unusable() -> str | None:
    """Return why Numba, which is installed, compiles nothing here, or None."""
    try:
        from numba import config
    except (ImportError, OSError) as error:  # a NumPy that is too new for it, a library that cannot be loaded
        return f"Numba cannot be imported ({error}); install versions of Numba and NumPy that fit each other"
    if config.DISABLE_JIT:
        return "Numba compiles nothing where NUMBA_DISABLE_JIT is set; unset it"
    return None


@cache
def sources() -> str:
    """Return a hash of every source of this room: compiled code is good for these only."""
    found = sorted(files(__package__).iterdir(), key=str)
    return hashlib.sha256(b"".join(file.read_bytes() for file in found if file.name.endswith(".py"))).hexdigest()


def is_kept(beside: str = __file__) -> bool:
    """Return whether code of these sources was put on disk; Numba is not asked, which would load it.

    Args:
        beside: A file of the folder whose functions are meant, by default of this room.
    """
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    where = Path(chosen) if chosen else Path(beside).parent / "__pycache__"
    if where not in _found:
        mark = sources()[:16] + MARK
        if next(iter(where.rglob(mark) if chosen else where.glob(mark)), None) is None:
            return False
        _found.add(where)
    return True


_found: set[Path] = set()  # directories where there was some: every first decision asks
