"""A core with its parameters, as an `nnx.Module`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
from flax import nnx
from jax import numpy as jnp

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax.functional.core import Array, Params, check_dtype


class Shell(nnx.Module):
    """An `nnx.Module` that is a core and its parameters, each an `nnx.Param` under its own name.

    The class of the core is a keyword of a subclass, `class Name(Shell, core=functional.Name)`. The constructor is
    that of the core with `param_dtype` and `rngs` besides, or takes a core in place of the core's fields. The fields
    are read-only attributes of the module, because the core is a value, except for those named in `held`, which are the
    module's own.

    An `Alpha` among the constructor's arguments becomes the order itself, and may be the order of several layers.
    """

    core_class: ClassVar[type]
    held: ClassVar[tuple[str, ...]] = ()  # modules or functions of the user

    if TYPE_CHECKING:  # the core's fields and parameters, which a type checker cannot know

        def __getattr__(self, name: str) -> Any: ...

    def __init_subclass__(cls, core: type | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if core is None:
            return
        cls.core_class = core
        cls.__signature__ = _signature(core)  # type: ignore[attr-defined]
        for each in dataclasses.fields(core):
            if each.name not in cls.held and not hasattr(cls, each.name):
                setattr(cls, each.name, _field(each.name))

    def __init__(
        self, *arguments: Any, param_dtype: Any = jnp.float32, rngs: nnx.Rngs | None = None, **hyperparameters: Any
    ):
        given: dict[str, Any] = {}
        if len(arguments) == 1 and isinstance(arguments[0], self.core_class) and not hyperparameters:
            core: Any = arguments[0]
        else:
            given = inspect.signature(self.core_class).bind(*arguments, **hyperparameters).arguments
            core = self.core_class(**{name: self._described(name, each) for name, each in given.items()})
        order = next((each for each in given.values() if isinstance(each, Alpha)), None)
        for name in self.held:
            setattr(self, name, given.get(name, getattr(core, name)))
        check_dtype(type(self).__name__, "param_dtype", param_dtype)
        self.core = core
        self.param_dtype = param_dtype
        first = core.init(None if rngs is None else rngs.params(), param_dtype)
        self._names = tuple(first)
        for name, value in first.items():
            if name == "order":
                setattr(self, name, order or module_of(core.order, param_dtype, rngs))
            else:
                setattr(self, name, _variables(value))
        self._begin(rngs)

    def params(self) -> Params:
        """Return the parameters as the core takes them: nested dicts of arrays."""
        return {name: _arrays(getattr(self, name)) for name in self._names}

    def _described(self, name: str, argument: Any) -> Any:
        """Return a constructor's argument as the core takes it: for a module, a hashable value that describes it.

        The value for an `Alpha` is its core, that for a field named in `held` the result of `described`.
        """
        if isinstance(argument, Alpha):
            return argument.core
        return described(argument) if name in self.held else argument

    def _begin(self, rngs: nnx.Rngs | None) -> None:
        """Set a subclass's attributes that need `rngs`, such as streams: the last step of the constructor."""


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
    """Return the signature of a module's constructor: the core's, with `param_dtype` and `rngs` appended."""
    own = inspect.signature(Shell.__init__).parameters
    added = [own[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in ("param_dtype", "rngs")]
    return inspect.Signature([*inspect.signature(core).parameters.values(), *added])


class Alpha(Shell, core=functional.Alpha):
    """Orders that stay between two bounds, a module: see `functional.Alpha`.

    Arguments and errors are the core's; `param_dtype` and `rngs` come besides, by name.

    A layer that is given one as `alpha` has it as its `order`, so that several layers may share it.

    Examples:
        >>> order = Alpha(0.4, (0, 1))
        >>> layers = nnx.List([FractionalLayer(order), FractionalLayer(order)])
        >>> layers[0].order is layers[1].order, order().round(4)
        (True, Array(0.4, dtype=float32))
    """

    def __call__(self) -> Array:
        """Return alpha in real units; of a random one a draw, see `ProbabilisticAlpha`."""
        return self.core(self.params(), key=self.next_key())

    @property
    def mean(self) -> Array:
        """Alpha in real units; of a random one its mean, which is never drawn."""
        return self.core.mean(self.params())

    def next_key(self) -> Array | None:
        """Return the key of the next draw, here None, because the orders are not random."""
        return None


class ProbabilisticAlpha(Alpha, core=functional.ProbabilisticAlpha):
    """Orders with a learned law between two bounds, a module: see `functional.ProbabilisticAlpha`.

    Arguments and errors are the core's; `param_dtype` and `rngs` come besides, by name.

    Every call draws, with the stream `alpha` of `rngs`, until `eval()` sets `deterministic`; `train()` takes it back.

    Examples:
        >>> layer = FractionalLayer(ProbabilisticAlpha(0.6, std=0.05, rngs=nnx.Rngs(0)))
        >>> loss = (layer(jnp.ones((4, 100, 1))) ** 2).mean() + 1e-3 * layer.order.kl()
        >>> layer.order.std.round(3)
        Array(0.05, dtype=float32)
    """

    def _begin(self, rngs: nnx.Rngs | None) -> None:
        self.deterministic = False
        self.rngs = nnx.data(None) if rngs is None else rngs["alpha"].fork()

    def sample(self, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """Return draws of alpha, [*sample_shape, *shape], differentiable in the law's parameters."""
        return self.core.sample(self.params(), key, sample_shape)

    @property
    def std(self) -> Array:
        """The standard deviation of alpha."""
        return self.core.std_of(self.params())

    def kl(self) -> Array:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders."""
        return self.core.kl(self.params())

    def next_key(self) -> Array | None:
        """Return the key of the next draw, or None in evaluation.

        Raises:
            ValueError: The module draws, and was made without `rngs`.
        """
        if self.deterministic:
            return None
        if self.rngs is None:
            raise ValueError(
                "ProbabilisticAlpha(rngs=None): needs randomness to draw from; make it with rngs=nnx.Rngs(0), or call "
                "eval() for its mean."
            )
        return self.rngs()


def module_of(core: functional.Alpha, param_dtype: Any, rngs: nnx.Rngs | None) -> Alpha:
    """Return the nnx module of an order: a `ProbabilisticAlpha` where the order is random, else an `Alpha`."""
    kind = ProbabilisticAlpha if core.is_random else Alpha
    return kind(core, param_dtype=param_dtype, rngs=rngs)


class Layer(Shell):
    """An nnx module around a core with an order, which is the module `order` where it is learned."""

    order: Alpha

    @property
    def alpha(self) -> Any:
        """The order in real units: an array where it is learned, the mean where it is random."""
        return self.core.alpha_of(self.params())

    def _run(self, *inputs: Any, **options: Any) -> Any:
        """Return the core's value at the inputs with the present parameters; a random order is drawn until `eval()`."""
        return self.core(self.params(), *inputs, **self._drawing(), **options)

    def _drawing(self) -> dict[str, Array]:
        """Return the core's keyword `{"key": ...}` where the order is random and drawn, else {}."""
        key = None if self.core.order is None else self.order.next_key()
        return {} if key is None else {"key": key}

    def _as_pure(self, name: str, *arguments: Any) -> tuple[Pure | Plain, Any]:
        """Return the user's right-hand side, the attribute `name`, as a pure function, and the right-hand side's state.

        The function is called as `f(*arguments, state)`; of `arguments`, an example of a call, only shapes and dtypes
        are read.
        """
        return as_pure(type(self).__name__, name, getattr(self, name), *arguments)


Randomness = nnx.Rngs | nnx.RngStream | Array


class Dropping(Layer):
    """A layer with dropout in training, until `eval()` sets `deterministic`.

    Dropout draws by a fork of the stream `dropout` of the constructor's `rngs`, or by the `rngs` of a call.
    """

    def _begin(self, rngs: nnx.Rngs | None) -> None:
        self.deterministic = False
        drops = self.core.dropout_rate > 0 and rngs is not None
        self.dropout_stream = rngs["dropout"].fork() if drops else nnx.data(None)  # type: ignore[index]

    def _dropping(self, deterministic: bool | None, rngs: Randomness | None) -> dict[str, Array]:
        """Return the core's keyword `{"dropout_key": ...}` where dropout is on, else {}.

        Args:
            deterministic: Whether nothing is dropped; None is the mode that `train()` and `eval()` set.
            rngs: Randomness to draw by, a key, a stream or streams; None is the module's own.

        Raises:
            ValueError: Dropout is on, and there is no randomness.
        """
        is_off = self.deterministic if deterministic is None else deterministic
        if is_off or not self.core.dropout_rate:
            return {}
        given = self.dropout_stream if rngs is None else rngs
        if given is None:
            raise ValueError(
                f"{type(self).__name__}(dropout_rate={self.core.dropout_rate:g}): needs randomness in training; pass "
                "rngs=nnx.Rngs(0) to the constructor or the call, or call eval()."
            )
        stream = given["dropout"] if isinstance(given, nnx.Rngs) else given
        return {"dropout_key": stream() if isinstance(stream, nnx.RngStream) else stream}


@dataclass(frozen=True)
class Pure:
    """The call of an nnx module as a pure function of the arguments and, last, the module's state.

    Attributes:
        graph: The module's graph definition, without its state.
    """

    graph: nnx.GraphDef

    def __call__(self, *given: Any) -> Any:
        """Return the module's value at the arguments, with the last of `given` as its state."""
        *arguments, state = given
        return nnx.merge(self.graph, state, copy=True)(*arguments)


@dataclass(frozen=True)
class Plain:
    """A function without a state, in the form of `Pure`: called with a state last, which it ignores.

    Attributes:
        f: The function.
    """

    f: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        """Return f of all arguments but the last, the state."""
        return self.f(*given[:-1])


def described(f: Any) -> Pure | Plain | Any:
    """Return a module as a Pure and a function as a Plain, hashable fields of a core; anything else unchanged."""
    if isinstance(f, nnx.Module):
        return Pure(nnx.graphdef(f))
    return Plain(f) if callable(f) else f


def as_pure(owner: str, name: str, f: Any, *arguments: Any) -> tuple[Pure | Plain, Any]:
    """Return a module or a function as a pure function, and its state, () for a function.

    Args:
        owner: The layer, for messages.
        name: The layer's name for the module, for messages.
        f: The module, or a function without a state.
        *arguments: Arguments of a call, of which only shapes and dtypes are read.

    Raises:
        ValueError: The module writes to itself when it is called, other than by drawing random numbers.
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
    """Return the variables of a module that the call `f(*arguments)` would write to: their types by their paths.

    Paths are joined by dots. The call is traced, not run.
    """
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
