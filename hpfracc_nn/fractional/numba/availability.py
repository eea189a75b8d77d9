"""Whether anything can be compiled in this process. Loads Numba when asked, not before."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from importlib.resources import files
from pathlib import Path

# Beside the code that Numba keeps on disk lies an empty file whose name says for which sources it was compiled.
MARK = ".hpfracc_nn"


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
