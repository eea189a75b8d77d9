"""A core with its parameters, as a `flax.linen.Module`."""

from __future__ import annotations

import dataclasses
import inspect
from functools import lru_cache
from typing import Any, ClassVar

import jax
import numpy as np
from flax import linen
from jax import numpy as jnp

from hpfracc_nn.layers.flax.functional.core import Core, Params, check_dtype, hashable, hyperparameters

# Any to a type checker, which else derives each constructor from the class's own text, and there are no fields in it.
_Module: Any = linen.Module


class Shell(_Module):
    """A linen module that is a core and its parameters, each under its own name.

    The class of the core is a keyword of a subclass, `class Name(Shell, core=functional.Name)`. The core's fields are
    the module's, with `param_dtype` besides. They are checked by the constructor. Methods that no user calls are not
    wrapped by Flax: `tabulate` would list them, and cannot call one of a module that is not bound.
    """

    core_class: ClassVar[type]

    def __init_subclass__(cls, core: type | None = None, **options: Any) -> None:
        if core is not None:
            cls.core_class = core
            _take_fields(cls, core)
        super().__init_subclass__(**options)

    def __post_init__(self) -> None:
        for each in hyperparameters(self.core_class):
            given = getattr(self, each.name)
            is_step = each.name == "dt" and isinstance(given, jax.Array) and not isinstance(given, jax.core.Tracer)
            object.__setattr__(self, each.name, hashable(np.asarray(given) if is_step else given))
        check_dtype(type(self).__name__, "param_dtype", self.param_dtype)
        self._check()
        super().__post_init__()

    @property
    def core(self) -> Any:
        """The core: the hyperparameters as they are understood, and the functions of the parameters."""
        return self.core_class(**{each.name: getattr(self, each.name) for each in hyperparameters(self.core_class)})

    def setup(self) -> None:
        """Make the parameters, or find them."""
        self._params = self._made({})

    @linen.nowrap
    def params(self) -> Params:
        """Return the parameters of the bound module as the core takes them: nested dicts of arrays."""
        return dict(self._params)

    @linen.nowrap
    def _check(self) -> None:
        """Raise where the fields make no core."""
        assert self.core is not None

    @linen.nowrap
    def _made(self, given: Params) -> Params:
        """The parameters: those that are given, and others of the module's own."""
        core = self.core
        shapes = {name: of for name, of in _shapes(core, jnp.dtype(self.param_dtype)).items() if name not in given}
        is_complete = all(self.has_variable("params", name) for name in shapes)
        if is_complete or not self.is_mutable_collection("params"):  # then Flax says which one is missing
            first = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)  # only the shapes are read
        else:
            first = core.init(self.make_rng("params"), self.param_dtype)
        return {**{name: self.param(name, lambda _, name=name: first[name]) for name in shapes}, **given}


@lru_cache(maxsize=1024)
def _shapes(core: Core, param_dtype: Any) -> Params:
    """The parameters' shapes and dtypes."""
    return jax.eval_shape(lambda key: core.init(key, param_dtype), jax.random.key(0))


def _take_fields(cls: type, core: type) -> None:
    """Declare the core's fields as the module's, and `param_dtype`."""
    declared: dict[str, Any] = {}
    for each in hyperparameters(core):
        declared[each.name] = each.type
        if each.default is not dataclasses.MISSING:
            setattr(cls, each.name, dataclasses.field(default=each.default, kw_only=each.kw_only, repr=each.repr))
    declared["param_dtype"] = Any
    cls.param_dtype = dataclasses.field(default=jnp.float32, kw_only=True)  # type: ignore[attr-defined]
    cls.__annotations__ = {**declared, **inspect.get_annotations(cls)}
