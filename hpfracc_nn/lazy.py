"""Lazy loading: a package's names are imported when they are first used, and listed once, below `if TYPE_CHECKING:`.

There each name is imported as itself, `from module import name as name`, which exports it for type checkers; a star
takes over the names of another such package, except those that another line imports:

    if TYPE_CHECKING:
        from hpfracc_nn.layers.torch import *
        from hpfracc_nn.solvers.torch import fdeint as fdeint
    else:
        __getattr__, __dir__, __all__ = lazy.attach(__name__)

Type checkers do not read the `else` branch: with a `__getattr__` in sight they would accept any name.

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

    A loaded name becomes an attribute of the package. A name whose module needs a package that is not installed raises
    a ModuleNotFoundError that says which extra brings the missing package.

    Args:
        package: Dotted name of the package.
        extras: Exported name -> the extra to install for it, where another one than usual brings the missing package.
        renamed: Old name -> present name; the old one warns, and is not listed.
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
    """Import a module of an optional package now, and return it.

    Args:
        module: Dotted name of the module.
        needing: Beginning of the error message, such as "plot(): needs".

    Raises:
        ModuleNotFoundError: The package is not installed; the message says which extra brings it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise _explained(error, needing) from None


def _explained(error: ModuleNotFoundError, needing: str, extra: str | None = None) -> ModuleNotFoundError:
    """Return an error that says which extra brings the missing package, or `error` itself where no extra does."""
    if error.name not in _EXTRAS:
        return error
    usual, distribution = _EXTRAS[error.name]
    return ModuleNotFoundError(
        f"{needing} the package {distribution!r}; pip install 'hpfracc-nn[{extra or usual}]'.", name=error.name
    )


@cache
def exports(package: str) -> dict[str, tuple[str, str]]:
    """Return where a package's exports come from: exported name -> (module, name in that module).

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
    """Yield the `from ... import ...` statements below `if TYPE_CHECKING:` in a package's source.

    Raise ImportError where the source cannot be read.
    """
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
        package: The package that exports `name`.
        module: The module to import from; the package itself where `name` is one of its submodules.
        name: The name in that module.
    """
    if module == package:  # a submodule: getattr would call the package's `__getattr__`, and that this function
        return importlib.import_module(f"{package}.{name}")
    return getattr(__import__(module, fromlist=[name]), name)
