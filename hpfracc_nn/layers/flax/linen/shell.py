"""A core with its parameters, as a `flax.linen.Module` with the calls of the nnx module.

A linen module holds its core's fields as they were given, and takes `__call__`, `initial_state`, `step` and `run` from
the nnx module of the same name. What differs is where randomness comes from, the `rngs` of `apply`, and that a
right-hand side or an order is a submodule. See `layers.flax.functional.core` for the conventions.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import jax
import numpy as np
from flax import linen
from jax import numpy as jnp

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array, Params, check_dtype, hashable, hyperparameters
from hpfracc_nn.layers.flax.nnx.shell import Plain

_CALLS = ("__call__", "initial_state", "step", "run", "nll", "forecast")

# Any to a type checker, which else derives each constructor from the class's own text, and there are no fields in it.
_Module: Any = linen.Module


class Shell(_Module):
    """A linen module that is a core and its parameters, each under its own name.

    The class of the core is a keyword of a subclass, `class Name(Shell, core=functional.Name)`; another keyword,
    `calls`, is the nnx module whose calls the subclass takes. The core's fields are the module's, with `param_dtype`
    besides, and are checked by the constructor. Methods beside these calls are not wrapped by Flax: `tabulate` would
    list them, and cannot call a method of a module that is not bound.
    """

    core_class: ClassVar[type]

    def __init_subclass__(cls, core: type | None = None, calls: type | None = None, **options: Any) -> None:
        if core is not None:
            cls.core_class = core
            _take_fields(cls, core)
        for name in _CALLS:
            if hasattr(calls, name) and name not in vars(cls):
                setattr(cls, name, inspect.getattr_static(calls, name))
        super().__init_subclass__(**options)

    def __post_init__(self) -> None:
        for name, given in self._fields().items():
            is_step = name == "dt" and isinstance(given, jax.Array) and not isinstance(given, jax.core.Tracer)
            object.__setattr__(self, name, hashable(np.asarray(given) if is_step else given))
        check_dtype(type(self).__name__, "param_dtype", self.param_dtype)
        self._check()
        super().__post_init__()

    @property
    def core(self) -> Any:
        """The core: the hyperparameters, checked and converted, and the functions of the parameters."""
        return self.core_class(**{name: _described(value) for name, value in self._fields().items()})

    def setup(self) -> None:
        """Draw the parameters at `init`, else look them up; those of a shared order are taken from its module."""
        shared = next(iter(self._orders().values()), None)
        self._params = self._made({} if shared is None else {"order": shared.params()})

    @linen.nowrap
    def params(self) -> Params:
        """Return the parameters of the bound module as the core takes them: nested dicts of arrays."""
        return dict(self._params)

    @linen.nowrap
    def _fields(self) -> dict[str, Any]:
        """Return the hyperparameters by name, as the user passed them."""
        return {each.name: getattr(self, each.name) for each in hyperparameters(self.core_class)}

    @linen.nowrap
    def _orders(self) -> dict[str, Alpha]:
        """Return the hyperparameters that are `linen.Alpha` modules, by name."""
        return {name: value for name, value in self._fields().items() if isinstance(value, Alpha)}

    @linen.nowrap
    def _check(self) -> None:
        """Raise TypeError or ValueError where a hyperparameter is wrong, by making the core.

        A `linen.Alpha` that has no parent module is replaced by the functional `Alpha` that it describes.
        """
        for name, value in self._orders().items():
            if value.scope is None:
                object.__setattr__(self, name, value.core)
        assert self.core is not None

    @linen.nowrap
    def _made(self, given: Params) -> Params:
        """Return all parameters of the core: drawn at `init`, else looked up in the module's variables.

        `given` are the parameters that come from elsewhere, such as from the module of a shared order.
        """
        core = self.core
        shapes = {name: of for name, of in _shapes(core, jnp.dtype(self.param_dtype)).items() if name not in given}
        is_complete = all(self.has_variable("params", name) for name in shapes)
        if is_complete or not self.is_mutable_collection("params"):  # then Flax says which one is missing
            first = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes)  # only the shapes are read
        else:
            first = core.init(self.make_rng("params"), self.param_dtype)
        return {**{name: self.param(name, lambda _, name=name: first[name]) for name in shapes}, **given}


@lru_cache(maxsize=1024)
def _shapes(core: Any, param_dtype: Any) -> Params:
    """Return the core's parameters as `jax.ShapeDtypeStruct`s, without drawing them."""
    return jax.eval_shape(lambda key: core.init(key, param_dtype), jax.random.key(0))


def _take_fields(cls: type, core: type) -> None:
    """Declare the fields of a core class, and the field `param_dtype`, as fields of a linen module class.

    Args:
        cls: The module's class, which is changed, before `dataclass` is applied to it.
        core: The core's class.
    """
    declared: dict[str, Any] = {}
    for each in hyperparameters(core):
        declared[each.name] = each.type
        if each.default is not dataclasses.MISSING:
            setattr(cls, each.name, dataclasses.field(default=each.default, kw_only=each.kw_only, repr=each.repr))
    declared["param_dtype"] = Any
    cls.param_dtype = dataclasses.field(default=jnp.float32, kw_only=True)  # type: ignore[attr-defined]
    cls.__annotations__ = {**declared, **inspect.get_annotations(cls)}


def _described(field: Any) -> Any:
    """Return a hyperparameter as the core takes it.

    A `linen.Alpha` becomes its core, another module a copy without a parent; anything else is unchanged.
    """
    if isinstance(field, linen.Module):
        return field.core if isinstance(field, Alpha) else field.clone(parent=None, name=None)
    return field


class Alpha(Shell, core=functional.Alpha):
    """Orders that stay between two bounds, a module: see `functional.Alpha`.

    Arguments and errors are the core's; `param_dtype` comes besides, by name.

    A layer of the same parent that is given one as `alpha` has it as its order, so that several layers may share it.

    Examples:
        >>> class Net(linen.Module):
        ...     def setup(self):
        ...         self.order = fjx.linen.Alpha(0.4, (0, 1))
        ...         self.first = fjx.linen.FractionalLayer(self.order)
        ...         self.second = fjx.linen.FractionalLayer(self.order)
        ...
        ...     def __call__(self, x):
        ...         return self.second(self.first(x))
        >>> jax.tree.map(jnp.shape, Net().init(jax.random.key(0), jnp.ones((10, 1))))
        {'params': {'order': {'raw': ()}}}
    """

    def __call__(self) -> Array:
        """Return alpha in real units; of a random one a draw, where there is a stream `alpha` of randomness."""
        key = self.make_rng("alpha") if self.core.is_random and self.has_rng("alpha") else None
        return self.core(self.params(), key=key)

    def mean(self) -> Array:
        """Return alpha in real units; of a random one its mean, which is never drawn."""
        return self.core.mean(self.params())


class ProbabilisticAlpha(Alpha, core=functional.ProbabilisticAlpha):
    """Orders with a learned law between two bounds, a module: see `functional.ProbabilisticAlpha`.

    Arguments and errors are the core's; `param_dtype` comes besides, by name.

    Orders are drawn where `apply` is given `rngs={"alpha": key}`, else they are their means.

    Examples:
        >>> order = fjx.linen.ProbabilisticAlpha(0.6, std=0.05)
        >>> variables = order.init(jax.random.key(0))
        >>> order.apply(variables).round(4)
        Array(0.6, dtype=float32)
        >>> draw = order.apply(variables, rngs={"alpha": jax.random.key(1)})
    """

    def kl(self) -> Array:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders."""
        return self.core.kl(self.params())


class Layer(Shell):
    """A linen module around a core with an order.

    An `Alpha` among the fields that is a submodule of the parent already becomes the order itself, and may be the order
    of several layers; its parameters are then the parent's. Any other `Alpha` describes an order that the layer makes.
    """

    @linen.nowrap
    def alpha_of(self, variables: Mapping[str, Any]) -> Any:
        """Return the order in real units, from the variables of the module: an array where it is learned."""
        return self.core.alpha_of(variables.get("params", {}))

    @linen.nowrap
    def _run(self, *inputs: Any, **options: Any) -> Any:
        """Return the core's value at the inputs; a random order is drawn where `apply` has `rngs={"alpha": key}`."""
        return self.core(self.params(), *inputs, **self._drawing(), **options)

    @linen.nowrap
    def _drawing(self) -> dict[str, Array]:
        """Return the core's keyword `{"key": ...}` where the order is random and drawn, else {}."""
        order = self.core.order
        if order is None or not order.is_random or not self.has_rng("alpha"):
            return {}
        return {"key": self.make_rng("alpha")}

    @linen.nowrap
    def _dropping(self, deterministic: bool | None, rngs: Array | None) -> dict[str, Array]:
        """Return the core's keyword `{"dropout_key": ...}` where dropout is on, else {}.

        Args:
            deterministic: Whether nothing is dropped; None: whether there is neither `rngs` nor a stream "dropout".
            rngs: A key to draw by; None: the next of the stream "dropout".
        """
        is_off = rngs is None and not self.has_rng("dropout") if deterministic is None else deterministic
        if is_off or not self.core.dropout_rate:
            return {}
        return {"dropout_key": self.make_rng("dropout") if rngs is None else rngs}

    @linen.nowrap
    def _noise_key(self) -> Array:
        return self.make_rng("noise")

    @linen.nowrap
    def _as_pure(self, name: str, *arguments: Any) -> tuple[Pure | Plain, Any]:
        """Return the user's right-hand side, the field `name`, as a pure function, and its variables and keys.

        The function is called as `f(*arguments, (variables, keys))`. When the layer is initialised, a submodule's
        parameters are made by a call with `arguments`; a plain function has none.
        """
        f = getattr(self, name)
        if not isinstance(f, linen.Module):
            return Plain(f), ()
        if self.is_initializing():
            f(*arguments)
        module, variables = f.unbind()
        return Pure(module), (variables, {each: self.make_rng(each) for each in self.scope.rngs if each != "params"})


@dataclass(frozen=True)
class Pure:
    """The call of a linen module as a pure function of the arguments and, last, the pair of its variables and keys.

    Each evaluation sees the variables as they were at the call of the layer; Flax raises where the module would write
    to them. Random numbers are drawn anew at each call of the layer, and are the same in every evaluation of one call.

    Attributes:
        module: The module, without variables.
    """

    module: linen.Module

    def __call__(self, *given: Any) -> Any:
        """Return the module's value at the arguments, with the last of `given` as its (variables, keys)."""
        *arguments, (variables, rngs) = given
        return self.module.apply(variables, *arguments, rngs=rngs)
