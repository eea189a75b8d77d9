"""A submodule as a pure function, for what calls it inside of a loop.

Each evaluation sees its variables as they were at the call; Flax raises where it would write to them. Random numbers
are drawn anew at each call of the layer, and are the same in every evaluation of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flax import linen


@dataclass(frozen=True)
class Pure:
    """A module's call, a function of its arguments and, last, of its variables and its keys.

    Attributes:
        module: Without variables.
    """

    module: linen.Module

    def __call__(self, *given: Any) -> Any:
        """Return the value of the module whose variables and keys come last."""
        *arguments, (variables, rngs) = given
        return self.module.apply(variables, *arguments, rngs=rngs)


@dataclass(frozen=True)
class Plain:
    """A function that has no variables.

    Attributes:
        f: What is called.
    """

    f: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        """Return f of all but the last."""
        return self.f(*given[:-1])


def taken_apart(parent: linen.Module, f: Any, *arguments: Any) -> tuple[Pure | Plain, Any]:
    """Return a submodule or a function as a pure function, and its variables and keys.

    Args:
        parent: Whose field it is.
        f: The submodule, or a function without variables.
        arguments: Of a call, by which the submodule's parameters are made.
    """
    if not isinstance(f, linen.Module):
        return Plain(f), ()
    if parent.is_initializing():
        f(*arguments)
    module, variables = f.unbind()
    assert parent.scope is not None, "only a bound module is called"
    names = [name for name in parent.scope.rngs if name != "params"]
    return Pure(module), (variables, {name: parent.make_rng(name) for name in names})
