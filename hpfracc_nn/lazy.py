"""Packages whose names are loaded when they are first used, and stand in one place: below `if TYPE_CHECKING:`.

There each name is imported as itself, `from module import name as name`, which exports it for type checkers; a star
takes those names of another such package that no other line has:

    if TYPE_CHECKING:
        from hpfracc_nn.layers.torch import *
        from hpfracc_nn.solvers.torch import fdeint as fdeint
    else:
        __getattr__, __dir__, __all__ = lazy.attach(__name__)

What type checkers do not see they do not take for a name: a module with `__getattr__` would have all.

Scientific Python Ecosystem Coordination, SPEC 1, for the idea.
"""

from __future__ import annotations

import ast
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any

# Package -> the extra that brings it, and its name on the package index.
_EXTRAS = {
    "flax": ("jax", "flax"),
    "jax": ("jax", "jax"),
    "lightning": ("lightning", "lightning"),
    "matplotlib": ("plot", "matplotlib"),
    "optax": ("jax", "optax"),
    "pandas": ("data", "pandas"),
    "sklearn": ("sklearn", "scikit-learn"),
    "torch": ("torch", "torch"),
}


def attach(
    package: str, extras: Mapping[str, str] | None = None, renamed: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package that says below `if TYPE_CHECKING:` what it exports.

    A name is kept in the package when it was loaded. One whose module needs a package that is not installed raises a
    ModuleNotFoundError that says which extra brings it.

    Args:
        package: Its dotted name.
        extras: Name -> the extra that it needs where that is not the one of the package that is missing.
        renamed: Old name -> the name that it has now; the old one warns, and is not listed.
    """
    homes = exports(package)

    def __getattr__(name: str) -> Any:
        if name in (renamed or {}):
            now = (renamed or {})[name]
            warnings.warn(f"{package}.{name} is now {now}; import that.", DeprecationWarning, stacklevel=2)
            return getattr(sys.modules[package], now)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        try:
            value = _imported(package, module, attribute)
        except ModuleNotFoundError as error:
            raise _explained(error, f"{package}.{name}: needs", (extras or {}).get(name)) from None
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*homes, *(name for name in vars(sys.modules[package]) if name.startswith("__"))})

    return __getattr__, __dir__, sorted(homes)


def required(module: str, needing: str) -> Any:
    """Return a module of a package that one of `_EXTRAS` brings, loaded now.

    Args:
        module: Its dotted name.
        needing: What needs it, for the message.

    Raises:
        ModuleNotFoundError: The package is not installed; the message says which extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _explained(error, needing) from None


def _explained(error: ModuleNotFoundError, needing: str, extra: str | None = None) -> ModuleNotFoundError:
    """Return what says which extra brings the package that is missing, or `error` itself where none does."""
    if error.name not in _EXTRAS:
        return error
    usual, distribution = _EXTRAS[error.name]
    return ModuleNotFoundError(
        f"{needing} the package {distribution!r}; pip install 'hpfracc-nn[{extra or usual}]'.", name=error.name
    )


@cache
def exports(package: str) -> dict[str, tuple[str, str]]:
    """Return the module and the name there of each name that a package exports.

    Raises:
        ImportError: The package's source cannot be read.
    """
    named: dict[str, tuple[str, str]] = {}
    behind_stars: dict[str, tuple[str, str]] = {}
    for node in _imports(package):
        module = str(node.module)
        for alias in node.names:
            if alias.name == "*":
                behind_stars.update(exports(module))
            else:
                named[alias.asname or alias.name] = module, alias.name
    return behind_stars | named


def _imports(package: str) -> Iterator[ast.ImportFrom]:
    """Yield the `from ... import ...` statements below `if TYPE_CHECKING:` in the source of a package, or raise."""
    spec = sys.modules[package].__spec__ if package in sys.modules else find_spec(package)
    source = getattr(getattr(spec, "loader", None), "get_source", lambda name: None)(package)
    if source is None:
        raise ImportError(f"{package}: needs its source, which says what it exports; install it with its .py files.")
    for node in ast.parse(source).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from (each for each in node.body if isinstance(each, ast.ImportFrom))


def _imported(package: str, module: str, name: str) -> Any:
    """Return what `from module import name` binds.

    Args:
        package: The package that `name` is looked up in, whose own modules are imported.
        module: Where it is from, which may be the package itself.
        name: What is imported.
    """
    if module == package:  # a module of its own; looked for as an attribute it would be looked for here again
        return importlib.import_module(f"{package}.{name}")
    return getattr(__import__(module, fromlist=[name]), name)
