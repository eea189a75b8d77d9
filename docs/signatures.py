"""Signatures for classes whose constructor does not stand in their text.

An extension of Griffe, which knows `__init__` and dataclasses. The fields of a named
tuple are its arguments too, a Flax module takes its core's and a few besides, and what
has a built-in class as its base takes that one's. A protocol has no constructor.
Keywords that a typed dictionary lists stand in the signature one by one.
"""

from __future__ import annotations

import builtins
from typing import Any

import griffe
from griffe import Class, Module, Parameter, Parameters

KINDS = griffe.ParameterKind
SELF = Parameter("self", kind=KINDS.positional_or_keyword)


class Signatures(griffe.Extension):
    """Gives classes the `__init__` that they have without one in their text."""

    def on_package(self, *, pkg: Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        for cls in classes(pkg):
            for method in cls.functions.values():
                unpack(method, loader)
            bases = {str(base) for base in cls.bases}
            if "core" in cls.keywords:
                core = loader.modules_collection[cls.keywords["core"].canonical_path]
                set_constructor(cls, [*given(core), *besides(cls)])
            elif "__init__" in cls.all_members:
                continue
            elif "NamedTuple" in bases:
                set_constructor(cls, fields(cls))
            else:
                for name in bases & set(vars(builtins)):
                    set_constructor(cls, [taken_by(getattr(builtins, name))])


def classes(module: Module) -> list[Class]:
    """Return the classes of a module and of those below it."""
    members = [member for member in module.members.values() if not member.is_alias]
    below = [
        each
        for member in members
        if isinstance(member, Module)
        for each in classes(member)
    ]
    return [member for member in members if isinstance(member, Class)] + below


def given(cls: Class) -> list[Parameter]:
    """Return what the constructor takes."""
    return list(cls.all_members["__init__"].parameters)[1:]


def besides(module: Class) -> list[Parameter]:
    """Return what a Flax module takes besides its core's arguments."""
    (shell,) = (each for each in module.mro() if each.name == "Shell")
    if "__init__" in shell.members:  # of nnx
        return [each for each in given(shell) if each.kind is KINDS.keyword_only]
    return [
        Parameter(
            "param_dtype",
            annotation="Any",
            kind=KINDS.keyword_only,
            default="jnp.float32",
        )
    ]


def fields(cls: Class) -> list[Parameter]:
    """Return the fields of a named tuple as the parameters that they are."""
    found = [
        member for member in cls.attributes.values() if "property" not in member.labels
    ]
    return [
        Parameter(
            each.name,
            annotation=each.annotation,
            kind=SELF.kind,
            default=each.value,
            docstring=each.docstring,
        )
        for each in found
    ]


def taken_by(builtin: type) -> Parameter:
    """Return what an error takes, anything, or a value, what is to be one."""
    if issubclass(builtin, BaseException):
        return Parameter("args", annotation="object", kind=KINDS.var_positional)
    return Parameter("value", annotation="object", kind=KINDS.positional_only)


def unpack(method: griffe.Function, loader: griffe.GriffeLoader) -> None:
    """Replace `**changes: Unpack[Settings]` by the keys of the typed dictionary."""
    last = list(method.parameters)[-1:]
    if not last or not str(last[0].annotation).startswith("Unpack["):
        return
    keys = loader.modules_collection[last[0].annotation.slice.canonical_path]
    own = list(method.parameters)[:-1]
    named = [
        Parameter(
            each.name,
            annotation=each.annotation,
            kind=KINDS.keyword_only,
            default="...",
        )
        for each in keys.attributes.values()
    ]
    method.parameters = Parameters(*own, *named)


def set_constructor(cls: Class, parameters: list[Parameter]) -> None:
    """Give a class an `__init__` with these parameters."""
    cls.set_member(
        "__init__",
        griffe.Function(
            "__init__", parameters=Parameters(SELF, *parameters), parent=cls
        ),
    )
