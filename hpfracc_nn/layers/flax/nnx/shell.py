"""A core with its parameters, as an `nnx.Module`."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.layers.flax.functional.core import Array, Params


class Shell(nnx.Module):
    """An `nnx.Module` that is a core and its parameters, each an `nnx.Param` under its own name.

    The class of the core is a keyword of a subclass, `class Name(Shell, core=functional.Name)`. The constructor is
    that of the core with `param_dtype` and `rngs` besides, or takes a core in place of its fields. These are
    attributes that cannot be set, because the core is a value.
    """

    core_class: ClassVar[type]

    if TYPE_CHECKING:  # the core's fields and parameters, which a type checker cannot know

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, core: type | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if core is None:
            return
        cls.core_class = core
        cls.__signature__ = _signature(core)  # type: ignore[attr-defined]
        for each in dataclasses.fields(core):
            if not hasattr(cls, each.name):
                setattr(cls, each.name, _field(each.name))

    def __init__(
        self, *arguments: Any, param_dtype: Any = jnp.float32, rngs: nnx.Rngs | None = None, **hyperparameters: Any
    ):
        self._begin(self._core_of(*arguments, **hyperparameters), param_dtype, rngs, {})

    def params(self) -> Params:
        """Return the parameters as the core takes them: nested dicts of arrays."""
        return {name: _arrays(getattr(self, name)) for name in self._names}

    def _core_of(self, *arguments: Any, **hyperparameters: Any) -> Any:
        """The core that the constructor's arguments make; or that they are."""
        if len(arguments) == 1 and isinstance(arguments[0], self.core_class) and not hyperparameters:
            return arguments[0]
        return self.core_class(*arguments, **hyperparameters)

    def _begin(self, core: Any, param_dtype: Any, rngs: nnx.Rngs | None, given: dict[str, nnx.Module]) -> None:
        """Hold the core and its first parameters, but for those parts that are given."""
        self.core = core
        self.param_dtype = param_dtype
        first = core.init(None if rngs is None else rngs.params(), param_dtype)
        self._names = tuple(first)
        for name, value in first.items():
            setattr(self, name, given[name] if name in given else self._part(name, value, rngs))

    def _part(self, name: str, value: Any, rngs: nnx.Rngs | None) -> Any:
        """What the module holds for parameters of the core."""
        return _variables(value)


def _variables(value: Any) -> Any:
    if isinstance(value, dict):
        return nnx.Dict({name: _variables(each) for name, each in value.items()})
    return nnx.Param(value)


def _arrays(part: Any) -> Array | Params:
    if isinstance(part, Shell):
        return part.params()
    if isinstance(part, nnx.Dict):
        return {name: _arrays(each) for name, each in part.items()}
    return part.get_value()


def _field(name: str) -> property:
    return property(lambda module: getattr(module.core, name), doc=f"`{name}` of the core.")


def _signature(core: type) -> inspect.Signature:
    """The core's with what a module takes besides."""
    own = inspect.signature(Shell.__init__).parameters
    added = [own[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in ("param_dtype", "rngs")]
    return inspect.Signature([*inspect.signature(core).parameters.values(), *added])
