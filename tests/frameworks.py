"""Which packages a test file needs: those that it, or a file of tests that it imports, imports at its top."""

from __future__ import annotations

import ast
import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterator

from hpfracc_nn import lazy

TESTS = pathlib.Path(__file__).parent
OF_PACKAGE = {"torch": "torch", "lightning": "torch", "jax": "jax", "flax": "jax", "optax": "jax"}
GENERIC = re.compile(r"torch\.testing\._internal\.(common_(modules|optimizers|utils)|opinfo)\b")  # import expecttest


@functools.cache
def needed(path: pathlib.Path) -> frozenset[str]:
    """Return the packages without which the file cannot be imported; without others it says itself what it skips."""
    found: set[str] = set()
    for name in _imported(path):
        parts = name.split(".")
        if parts[0] == "hpfracc_nn":
            home = lazy.exports("hpfracc_nn").get(parts[1], (name,))[0] if len(parts) == 2 else name
            found |= {OF_PACKAGE[part] for part in home.split(".") if part in OF_PACKAGE}
        elif parts[0] == "tests":
            files = [TESTS.joinpath(*parts[1:end]).with_suffix(".py") for end in (2, 3)]
            found.update(*(needed(file) for file in files if file.exists() and file != path))
        else:
            found |= {OF_PACKAGE[parts[0]]} if parts[0] in OF_PACKAGE else set()
            found |= {"expecttest"} if GENERIC.match(name) else set()
    return frozenset(found)


@functools.cache
def is_there(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _imported(path: pathlib.Path) -> Iterator[str]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
