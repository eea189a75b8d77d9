"""Whose array it is, told by the package of its class, without loading a framework."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

_NUMBERS = (bool, int, float, complex)  # torch.compile cannot look at their ancestors
_PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}


def framework_of(kind: type) -> str:
    """Return whose array it is: the package of its class, or of one that it derives from."""
    if kind in _NUMBERS:
        return "numpy"
    package = package_of(kind, _PACKAGES)
    return "numpy" if package is None else _PACKAGES[package]


def package_of(kind: type, packages: Container[str]) -> str | None:
    """Return which of the packages a class is from, or one that it derives from; None where it is from none."""
    for cls in kind.__mro__:
        package = cls.__module__.partition(".")[0]
        if package in packages:
            return package
    return None


def type_name(x: Any) -> str:
    """Return the name of the class of `x`, as a message says it."""
    cls = type(x)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
