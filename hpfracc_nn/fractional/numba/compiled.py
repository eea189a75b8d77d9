"""How functions of this folder are compiled, and how their code is kept on disk between processes.

Numba's own cache does not know what a function is made of: it keys the code by the function's own file, so that a
change in a file whose functions are called, or in an intrinsic, would leave old code in use. And it raises where there
is no directory, or no more space, to write to. Here the key holds every source of this folder, and where no cache can
be written each process compiles for itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache

from hpfracc_nn.fractional.numba.kernel import MARK, sources

# For functions that only compiled functions call: neither a wrapper for Python nor a place on disk of their own.
# `summed` also lets sums be reordered, so that vector registers hold parts of them.
inner = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
summed = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, fastmath={"reassoc", "contract"})


def entry(function: Callable[..., None]) -> Any:
    """Return the function compiled for Python to call, without the interpreter's lock; its code is kept on disk."""
    made = njit(nogil=True, error_model="numpy")(function)
    try:
        made._cache = Kept(function)
    except RuntimeError as error:  # no directory that can be written to
        _warn(error)
    return made


class Kept(FunctionCache):
    """Numba's cache of one function on disk, keyed also by a hash of all sources of this folder.

    Where reading or writing fails, it warns and the cache is switched off.
    """

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (*super()._index_key(sig, codegen), sources())

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except OSError as error:
            return self._without(error)

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
            (Path(self.cache_path) / (sources()[:16] + MARK)).touch()
        except OSError as error:
            self._without(error)

    def _without(self, error: OSError) -> None:
        self.disable()
        _warn(error)


def _warn(error: Exception) -> None:
    warnings.warn(
        f"hpfracc_nn: compiled code cannot be kept on disk, so that every process compiles for seconds ({error}); "
        "set NUMBA_CACHE_DIR to a directory that can be written to.",
        RuntimeWarning,
        stacklevel=2,
    )
