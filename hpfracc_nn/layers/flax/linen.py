"""The layers as linen modules: the calls of the nnx modules, and parameters as linen has them.

A linen module holds its core's fields as they were given, and takes `__call__`, `initial_state` and `step` from the nnx
module of the same name. What differs is where randomness comes from, the `rngs` of `apply`, and that a right-hand side
or an order is a submodule. See `layers.flax.functional.core` for the conventions.
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
from hpfracc_nn.layers.flax.functional.core import Array, Core, Params, check_dtype, hashable, hyperparameters
from hpfracc_nn.layers.flax.nnx import modules
from hpfracc_nn.layers.flax.nnx.shell import Plain

__all__ = [
    "ARFIMA",
    "Alpha",
    "FDEBlock",
    "FSDEBlock",
    "FractionalAttention",
    "FractionalConv1d",
    "FractionalConv2d",
    "FractionalDifference",
    "FractionalGRU",
    "FractionalGraphConv",
    "FractionalLSTM",
    "FractionalLayer",
    "FractionalLinear",
    "ProbabilisticAlpha",
    "RoughnessFeatures",
    "SpectralFractional",
]

_CALLS = ("__call__", "initial_state", "step", "nll", "forecast")

# Any to a type checker, which else derives each constructor from the class's own text, and there are no fields in it.
_Module: Any = linen.Module


class Shell(_Module):
    """A linen module that is a core and its parameters, each under its own name.

    The class of the core is a keyword of a subclass, `class Name(Shell, core=functional.Name)`, as is the nnx module
    whose calls it takes. The core's fields are the module's, with `param_dtype` besides. They are checked by the
    constructor. Methods that no user calls are not wrapped by Flax: `tabulate` would list them, and cannot call one of
    a module that is not bound.
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
        """The core: the hyperparameters as they are understood, and the functions of the parameters."""
        return self.core_class(**{name: _described(value) for name, value in self._fields().items()})

    def setup(self) -> None:
        """Make the parameters, or find them; those of a shared order are its own."""
        shared = next(iter(self._orders().values()), None)
        self._params = self._made({} if shared is None else {"order": shared.params()})

    @linen.nowrap
    def params(self) -> Params:
        """Return the parameters of the bound module as the core takes them: nested dicts of arrays."""
        return dict(self._params)

    @linen.nowrap
    def _fields(self) -> dict[str, Any]:
        """The hyperparameters as they were given."""
        return {each.name: getattr(self, each.name) for each in hyperparameters(self.core_class)}

    @linen.nowrap
    def _orders(self) -> dict[str, Alpha]:
        """The fields that are modules of an order."""
        return {name: value for name, value in self._fields().items() if isinstance(value, Alpha)}

    @linen.nowrap
    def _check(self) -> None:
        """Raise where the fields make no core; an order that is no part of a parent says how to make one."""
        for name, value in self._orders().items():
            if value.scope is None:
                object.__setattr__(self, name, value.core)
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


def _described(field: Any) -> Any:
    """A module of an order as what it is made from, other modules without variables, all else as it is."""
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

    They are drawn where `apply` is given `rngs={"alpha": key}`, else they are their means.

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
    """The shell of a core with an order.

    An `Alpha` that already is a part of the parent, among the fields, is the order itself, and may be that of several
    layers; its parameters are then the parent's. Any other says how the layer's own order is to be made.
    """

    @linen.nowrap
    def alpha_of(self, variables: Mapping[str, Any]) -> Any:
        """Return the order in real units, from the variables of the module: an array where it is learned."""
        return self.core.alpha_of(variables.get("params", {}))

    @linen.nowrap
    def _run(self, *inputs: Any, **options: Any) -> Any:
        """The core's value with the parameters, and a draw of a random order."""
        return self.core(self.params(), *inputs, **self._drawing(), **options)

    @linen.nowrap
    def _drawing(self) -> dict[str, Array]:
        """What a core takes besides where its order is random and drawn."""
        order = self.core.order
        if order is None or not order.is_random or not self.has_rng("alpha"):
            return {}
        return {"key": self.make_rng("alpha")}

    @linen.nowrap
    def _dropping(self, deterministic: bool | None, rngs: Array | None) -> dict[str, Array]:
        """What a core takes besides where it drops: a key of the stream `dropout`, or the one that is given."""
        is_off = rngs is None and not self.has_rng("dropout") if deterministic is None else deterministic
        if is_off or not self.core.dropout_rate:
            return {}
        return {"dropout_key": self.make_rng("dropout") if rngs is None else rngs}

    @linen.nowrap
    def _noise_key(self) -> Array:
        return self.make_rng("noise")

    @linen.nowrap
    def _taken_apart(self, name: str, *arguments: Any) -> tuple[Pure | Plain, Any]:
        """Return a field that is a submodule or a function as a pure function, and its variables and keys.

        The submodule's parameters are made by a call with `arguments`.
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
    """A module's call, a function of its arguments and, last, of its variables and its keys.

    Each evaluation sees its variables as they were at the call; Flax raises where it would write to them. Random
    numbers are drawn anew at each call of the layer, and are the same in every evaluation of one call.

    Attributes:
        module: Without variables.
    """

    module: linen.Module

    def __call__(self, *given: Any) -> Any:
        """Return the value of the module whose variables and keys come last."""
        *arguments, (variables, rngs) = given
        return self.module.apply(variables, *arguments, rngs=rngs)


class ARFIMA(Layer, core=functional.ARFIMA, calls=modules.ARFIMA):
    """What a long memory and a few lags cannot foresee of a series: see `functional.ARFIMA`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.ARFIMA(ar=0, alpha=0.5)
        >>> x = jnp.eye(4, 1)
        >>> # Grünwald's weights
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """


class FDEBlock(Layer, core=functional.FDEBlock, calls=modules.FDEBlock):
    """x to z(t1), where D^alpha z = f(t, z) and z(0) = x: see `functional.FDEBlock`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    f is a linen module called as f(t, z), whose parameters are the block's under `f`, or a function without any. It may
    draw random numbers (dropout): new ones at each call of the block, the same in all its steps. It may not write to
    variables: pass `use_running_average=True` to its normalisations.

    Examples:
        >>> class Field(linen.Module):
        ...     @linen.compact
        ...     def __call__(self, t, z):
        ...         return jnp.tanh(linen.Dense(16)(z))
        >>> block = fjx.linen.FDEBlock(Field(), 0.7, n_steps=8, learn_alpha=True)
        >>> variables = block.init(jax.random.key(0), jnp.ones((4, 16)))
        >>> block.apply(variables, jnp.ones((4, 16))).shape
        (4, 16)
    """


class FSDEBlock(Layer, core=functional.FSDEBlock, calls=modules.FSDEBlock):
    """x to z(t1) of a stochastic equation, with memory below alpha = 1: see `functional.FSDEBlock`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    drift and diffusion are linen modules called as drift(t, z), whose parameters are the block's under these names, or
    functions without any. Each call draws other paths, from `rngs={"noise": key}` of `apply`, or from the key that the
    call is given.

    Examples:
        >>> class Field(linen.Module):
        ...     @linen.compact
        ...     def __call__(self, t, z):
        ...         return jnp.tanh(linen.Dense(16)(z))
        >>> block = fjx.linen.FSDEBlock(Field(), Field(), alpha=0.8)
        >>> keys = {"params": jax.random.key(0), "noise": jax.random.key(1)}
        >>> variables = block.init(keys, jnp.ones((4, 16)))
        >>> block.apply(variables, jnp.ones((4, 16)), rngs={"noise": jax.random.key(2)}).shape
        (4, 16)
    """


class FractionalAttention(Layer, core=functional.FractionalAttention, calls=modules.FractionalAttention):
    """Multi-head attention with power-law weights: see `functional.FractionalAttention`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalAttention(32, 4, alpha=1.2, learn_alpha=True)
        >>> x = jnp.ones((8, 50, 32))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 50, 32)
    """


class FractionalConv1d(Layer, core=functional.FractionalConv1d, calls=modules.FractionalConv1d):
    """A convolution of the fractional derivative of each feature along time: see `functional.FractionalConv1d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalConv1d(
        ...     3, 5, 7, padding="CAUSAL", alpha=0.4, learn_alpha=True
        ... )
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 5)
    """


class FractionalConv2d(Layer, core=functional.FractionalConv2d, calls=modules.FractionalConv2d):
    """A convolution of images' fractional derivatives: see `functional.FractionalConv2d`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalConv2d(3, 5, 3, dims=(-3, -2), alpha=(0.4, 0.8))
        >>> x = jnp.ones((8, 28, 28, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 28, 28, 5)
    """


class FractionalDifference(Layer, core=functional.FractionalDifference, calls=modules.FractionalDifference):
    """(1 - z)**alpha with zero history, `orders` of them for every channel: see `functional.FractionalDifference`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalDifference(1, start=0.5)
        >>> x = jnp.eye(4, 1)
        >>> # Grünwald's weights
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[:, 0].round(4)
        Array([ 1.    , -0.5   , -0.125 , -0.0625], dtype=float32)
    """


class FractionalGRU(Layer, core=functional.FractionalGRU, calls=modules.FractionalGRU):
    """Flax's GRU whose cells remember by a power law: see `functional.FractionalGRU`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalGRU(3, 16, alpha=0.6, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 16)
    """


class FractionalGraphConv(Layer, core=functional.FractionalGraphConv, calls=modules.FractionalGraphConv):
    """A diffusion over a graph that remembers: see `functional.FractionalGraphConv`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    A module that is given as `func` is called as func(x, edge_index), func(x, edge_index, edge_weight) where weights
    are given, or func(x, adjacency), and its parameters are the layer's under `func`.

    Examples:
        >>> ring = jnp.stack([jnp.arange(10), (jnp.arange(10) + 1) % 10])
        >>> edges, layer = (
        ...     jnp.concatenate([ring, ring[::-1]], 1),
        ...     fjx.linen.FractionalGraphConv(5, 8, alpha=0.6),
        ... )
        >>> variables = layer.init(jax.random.key(0), jnp.ones((10, 5)), edges)
        >>> layer.apply(variables, jnp.ones((10, 5)), edges).shape
        (10, 8)
    """

    @linen.nowrap
    def longest_step(self, variables: Mapping[str, Any]) -> Any:
        """Return the longest step that is stable on every graph: see `functional.FractionalGraphConv`."""
        return self.core.longest_step(variables["params"])


class FractionalLSTM(Layer, core=functional.FractionalLSTM, calls=modules.FractionalLSTM):
    """Flax's LSTM whose cells remember by a power law: see `functional.FractionalLSTM`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 16)
    """


class FractionalLayer(Layer, core=functional.FractionalLayer, calls=modules.FractionalLayer):
    """A fractional derivative or integral along `dim`: see `functional.FractionalLayer`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLayer(0.5, "caputo", dt=0.01)
        >>> x = jnp.linspace(0, 1, 101)[:, None] ** 2
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[-1].round(2)  # 2 / Gamma(2.5)
        Array([1.5], dtype=float32)
    """


class FractionalLinear(Layer, core=functional.FractionalLinear, calls=modules.FractionalLinear):
    """A linear layer on the fractional derivative of each feature: see `functional.FractionalLinear`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.FractionalLinear(3, 5, alpha=0.4, learn_alpha=True)
        >>> x = jnp.ones((8, 100, 3))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (8, 100, 5)
    """


class RoughnessFeatures(Layer, core=functional.RoughnessFeatures, calls=modules.RoughnessFeatures):
    """The logarithms of the mean squares of fractional differences: see `functional.RoughnessFeatures`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.RoughnessFeatures(2, orders=3)
        >>> x = jnp.ones((4, 100, 2))
        >>> layer.apply(layer.init(jax.random.key(0), x), x).shape
        (4, 6)
    """


class SpectralFractional(Layer, core=functional.SpectralFractional, calls=modules.SpectralFractional):
    """A fractional derivative of a periodic field along `dim`: see `functional.SpectralFractional`.

    Arguments, shapes, errors and source are the core's; `param_dtype` comes besides, by name.

    Examples:
        >>> layer = fjx.linen.SpectralFractional(2.0, dt=1 / 8)
        >>> x = jnp.sin(2 * jnp.pi * jnp.arange(8) / 8)[:, None]
        >>> layer.apply(layer.init(jax.random.key(0), x), x)[2].round(2)  # (2 pi)**2
        Array([39.48], dtype=float32)
    """
