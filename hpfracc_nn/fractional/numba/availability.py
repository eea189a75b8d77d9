"""Whether anything can be compiled in this process. Loads Numba when asked, not before."""

from __future__ import annotations

from functools import cache


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
