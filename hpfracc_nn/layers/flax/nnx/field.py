"""A module as a pure function, for what calls it inside of a loop.

Each evaluation sees the module as it was at the call: what it writes to itself would be lost, and raises. Random
numbers are drawn anew at each call of the layer, and are the same in every evaluation of one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx


@dataclass(frozen=True)
class Pure:
    """A module's call, a function of its arguments and, last, of its state.

    Attributes:
        graph: The module without its state.
    """

    graph: nnx.GraphDef

    def __call__(self, *given: Any) -> Any:
        """Return the value of the module whose state comes last."""
        *arguments, state = given
        return nnx.merge(self.graph, state, copy=True)(*arguments)


@dataclass(frozen=True)
class Plain:
    """A function that has no state.

    Attributes:
        f: What is called.
    """

    f: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        """Return f of all but the last."""
        return self.f(*given[:-1])


def described(f: Any) -> Pure | Plain | Any:
    """Return what a core is told of a module or a function."""
    if isinstance(f, nnx.Module):
        return Pure(nnx.graphdef(f))
    return Plain(f) if callable(f) else f


def taken_apart(owner: str, name: str, f: Any, *arguments: Any) -> tuple[Pure | Plain, Any]:
    """Return a module or a function as a pure function, and its state.

    Args:
        owner: Who asks, for messages.
        name: Of the module there.
        f: The module, or a function without a state.
        arguments: Of a call, or what has their shapes and dtypes.

    Raises:
        ValueError: It writes to itself when it is called.
    """
    if not isinstance(f, nnx.Module):
        return Plain(f), ()
    written = _written(f, arguments)
    lost = [path for path, kind in written.items() if not issubclass(kind, nnx.RngState)]
    if lost:
        raise ValueError(
            f"{owner}({name}): needs a module that does not change when it is called, and this one writes to "
            f"{', '.join(lost)}; each step sees it as it was at the start; switch that off, for example by "
            f"{name}.set_attributes(use_running_average=True)."
        )
    if written:
        with nnx.fork_rngs(f, graph=True, graph_updates=True):
            graph, state = nnx.split(f)
            return Pure(graph), jax.tree.map(lambda leaf: leaf, state)  # forking ends with the block
    graph, state = nnx.split(f)
    return Pure(graph), state


def _written(f: nnx.Module, arguments: tuple[Any, ...]) -> dict[str, type]:
    """Return the variables that a call would write to, and their kinds; nothing is computed."""
    graph, state = nnx.split(f)
    found: dict[str, type] = {}

    def call(state: Any, arguments: tuple[Any, ...]) -> None:
        module = nnx.merge(graph, state, copy=True)
        before = dict(nnx.to_flat_state(nnx.state(module)))
        values = {path: variable.get_value() for path, variable in before.items()}
        module(*arguments)
        for path, variable in nnx.to_flat_state(nnx.state(module)):
            if path not in values or variable.get_value() is not values[path]:
                found[".".join(map(str, path))] = type(variable)

    jax.eval_shape(call, state, arguments)
    return found
