"""Whether a package is installed, without importing it."""

import importlib.util
from functools import cache
from importlib.machinery import ModuleSpec


@cache
def find_spec(name: str) -> ModuleSpec | None:
    """Return what importlib finds for a package, looked for once in a process: that takes up to 0.2 ms."""
    return importlib.util.find_spec(name)
