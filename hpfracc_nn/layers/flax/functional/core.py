"""The parts of a layer for Flax, and the conventions that all of these layers keep.

A layer is a *core*, a frozen value of its hyperparameters and two pure functions of its parameters, in
`layers.flax.functional`; and two thin shells around it, the class of the same name in `layers.flax.nnx` and in
`layers.flax.linen`. Whoever wants neither uses the core itself:

    core = FractionalLinear(3, 5, alpha=0.4, learn_alpha=True)
    params = core.init(jax.random.key(0))  # {"kernel": [3, 5], "bias": [5], "order": {"raw": []}}
    y = core(params, x)

Conventions:

1. *Constructors.* Each class is called as its core is, whose fields are PyTorch's arguments in PyTorch's order, under
   Flax's name where Flax has one: `use_bias`, `kernel_init`, `bias_init`, `strides`, `kernel_dilation`,
   `feature_group_count`, `dtype` (what is computed in; None promotes inputs and parameters). Sizes are those of `nnx`,
   `in_features` and `out_features`, in both shells: nothing is inferred from the first input, so that a stream can
   begin without one. A shell adds `param_dtype`, and that of nnx `rngs`. `init` is a method of Flax's: what PyTorch
   calls so is `start` here.
2. *Arrays.* Features are the last axis, and time is axis -2 unless `dim` says otherwise.
3. *Parameters* are nested dicts of arrays: `kernel` [in, out], `bias`, and a learned order as
   {"order": {"raw": ...}}, which alpha = low + (high - low) sigmoid(raw) is made of. `nnx.to_pure_dict(nnx.state(m))`,
   linen's variables["params"] and what `core.init` returns are the same tree.
4. *Hyperparameters* are attributes: of the core, of the nnx module, and, as they were given, of the linen module.
   `core.definition` is the operator that the given name, class or value stands for.
5. *The order in real units* is `core.alpha_of(params)`, the property `alpha` of the nnx module, and
   `alpha_of(variables)` of the linen module: an array where it is learned, the mean where it is random, else the
   number.
6. *A random order* (`ProbabilisticAlpha`) is drawn where there is a key, else it is its mean. A core takes `key`; an
   nnx module draws from its stream `alpha` until `eval()`; a linen module draws where `apply` is given
   `rngs={"alpha": key}`.
7. *A shared order* is a module, `nnx.Alpha` or `linen.Alpha`, that several layers are given as `alpha`. A functional
   `Alpha` says how an order is to be made, and each layer that is given it makes its own.
8. *Parts.* A new layer is a core and two classes of a few lines: `class Name(Layer, core=functional.Name)` in
   `nnx/modules.py`, whose methods call the core with `self.params()`, `self._run(x)` being its value; and
   `class Name(Layer, core=functional.Name, calls=modules.Name)` in `linen/modules.py`, which takes those methods of the
   nnx module that `linen/shell.py` names. `settle_fields` reads the fields that all cores have. A core with an order
   inherits from `WithOrder`, and with an operator from `Ordered`, whose `settle_order` sets `definition` and `order`;
   its parameters are {**own, **self._order_params(key, param_dtype)}, and `self._present(params, key)` is the learned
   alpha, None where alpha is fixed. Fields that are the user's modules are named in the nnx module's `held`.
9. *Streams.* `initial_state(params, shape, horizon=...)`, `step(params, x, state)` and, for a block of samples,
   `run(params, x, state)` of a core; shells leave out `params`. A state is a pytree, which `lax.scan` carries.
10. *Static and traced.* A core is compared by its value and hashable: it may be a static argument of `jax.jit`,
   and is so in an nnx graphdef. Everything in `params` may be traced. Wrong hyperparameters raise in the constructor,
   wrong shapes and dtypes when the function is traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from flax import serialization
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.distributions import (
    DISTRIBUTIONS,
    Bounds,
    Distribution,
    Pair,
    broadcast,
    check_inside,
    check_order_fits,
    finite_bounds,
    first_spread,
    first_unconstrained,
    first_values,
    order_shape,
    prior_of,
)
from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.layers.order import Shape, begun
from hpfracc_nn.selection import given_manager

Params = dict[str, Any]  # nested dicts of arrays
Initializer = Callable[..., Array]

BIAS_INIT: Initializer = jax.nn.initializers.zeros


def kernel_init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return a first kernel as Flax draws it, `lecun_normal`: a function with a name, which pickle needs."""
    return jax.nn.initializers.lecun_normal()(key, shape, dtype)


def settle(core: Any, **values: Any) -> None:
    """Set `values` as attributes of a frozen dataclass: converted fields and derived values, in its `__post_init__`."""
    for name, value in values.items():
        object.__setattr__(core, name, value)


_FROM_ZERO = ("ar", "ma", "proj_size", "skip")  # counts that may be 0


def settle_fields(owner: str, core: Any) -> None:
    """Check the fields of a core by their names and annotations, and store them converted.

    Whole numbers are counts, except for the axis `dim`. Fields that only the core itself can check are stored as they
    are, with lists and arrays as tuples, which have a hash.

    Raises:
        TypeError: A field has the wrong type.
        ValueError: A field is out of range.
    """
    for each in hyperparameters(type(core)):
        settle(core, **{each.name: _read(owner, each.name, each.type, getattr(core, each.name))})


def _read(owner: str, name: str, kind: Any, value: Any) -> Any:
    """Return the value of a core's field, converted; raise TypeError or ValueError where it is wrong.

    Args:
        owner: The core's class, for messages.
        name: The field's name.
        kind: The field's annotation, a string.
        value: The constructor's argument.
    """
    if kind == "bool":
        return errors.claim(owner, name, value)
    if kind == "int" and name == "dim":
        return errors.index(owner, name, value)
    if kind == "int" or (kind == "int | None" and value is not None):
        return errors.count(owner, name, value, 0 if name in _FROM_ZERO else 1)
    if kind == "float" and name == "dt":
        return errors.positive_step(owner, value)
    if name == "t1":
        return errors.real(owner, name, value, 0.0, above=True)
    if name == "dropout_rate":
        return errors.part(owner, name, value)
    if name == "dtype" and value is not None:
        check_dtype(owner, name, value)
    if name == "manager":
        given_manager(owner, value)
    if kind in ("Initializer", "Field"):
        errors.function(owner, name, value)
    return hashable(value)


def check_dtype(owner: str, argument: str, dtype: Any) -> None:
    """Raise TypeError unless `dtype` is a floating dtype of at most 8 bytes."""
    try:
        found = jnp.dtype(dtype)
        is_floating = dtype is not None and jnp.issubdtype(found, jnp.floating) and found.itemsize <= 8
    except (TypeError, ValueError, AttributeError):  # NumPy cannot make a dtype of it
        is_floating = False
    if not is_floating:
        raise TypeError(f"{owner}({argument}={dtype!r}): needs a floating dtype; pass such as jnp.float32.")


def hashable(given: Any) -> Any:
    """Return lists and NumPy arrays as nested tuples, anything else unchanged: fields of a core must have a hash."""
    if isinstance(given, np.ndarray):
        return hashable(given.tolist())
    return tuple(map(hashable, given)) if isinstance(given, list | tuple) else given


def hyperparameters(core: type) -> list[dataclasses.Field]:
    """Return the fields of a core class that its constructor takes, without those of `field(init=False)`."""
    return [each for each in dataclasses.fields(core) if each.init]


def keys(owner: str, key: Array | None, count: int) -> list[Array]:
    """Return `count` keys split from `key`; raise TypeError where `key` is None."""
    if key is None:
        raise TypeError(
            f"{owner}: needs randomness for its first weights; pass rngs=nnx.Rngs(0), or key=jax.random.key(0) to init."
        )
    return list(jax.random.split(key, count))


def serializable(kind: type, *names: str) -> None:
    """Register a dataclass of states with `flax.serialization`, which then writes and reads the fields `names`.

    Other fields are not written: a state is read into one that the same layer made for the same shape.
    """

    def written(state: Any) -> dict[str, Any]:
        return {name: serialization.to_state_dict(getattr(state, name)) for name in names}

    def read(state: Any, found: dict[str, Any]) -> Any:
        if found.keys() != set(names):
            raise ValueError(
                f"{kind.__name__}: needs {', '.join(names)}, and what is read has {', '.join(found)}; read what was "
                "written of such a state."
            )
        parts = {name: serialization.from_state_dict(getattr(state, name), found[name], name=name) for name in names}
        _check_alike(kind.__name__, state, parts)
        return dataclasses.replace(state, **parts)

    serialization.register_serialization_state(kind, written, read)


def _check_alike(owner: str, state: Any, parts: dict[str, Any]) -> None:
    """Raise ValueError unless arrays read from a checkpoint have the shapes of the arrays that they replace in a state.

    Args:
        owner: The state's class, for messages.
        state: The state that the arrays are read into.
        parts: The arrays by the names of the state's fields.
    """
    for name, part in parts.items():
        wanted, found = ([np.shape(each) for each in jax.tree.leaves(tree)] for tree in (getattr(state, name), part))
        if wanted != found:
            raise ValueError(
                f"{owner}(state with {name} of shapes {found}): needs {wanted}; read it into what initial_state of the "
                "same layer returns for the same shape and horizon."
            )


def weights(params: Params) -> Params:
    """Return the parameters of Flax's ordinary layer: all but the order."""
    return {name: value for name, value in params.items() if name != "order"}


@dataclass(frozen=True)
class Alpha:
    """Orders that stay between two bounds: alpha = low + (high - low) sigmoid(raw).

    A layer with `learn_alpha=True` makes an `Alpha` and calls it `order`. An `Alpha` that is passed as a layer's alpha
    sets the first value and the bounds of that layer's order.

    Attributes:
        start: The first value or values, strictly inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `start` is broadcast; None is its own.
        owner: The class that messages name.

    Raises:
        ValueError: `start` is not strictly inside the bounds, or they are no finite interval.

    Examples:
        >>> order = fjx.functional.Alpha(0.4, (0, 1))
        >>> float(order(order.init()).round(4))
        0.4
    """

    start: float | Sequence[float]
    bounds: Bounds
    shape: Any = None
    _: KW_ONLY
    owner: str = field(default="Alpha", repr=False, compare=False)

    is_random: ClassVar[bool] = False

    def __post_init__(self) -> None:
        bounds = finite_bounds(self.owner, self.bounds)
        values = first_values(self.owner, self.start)
        shape = order_shape(self.owner, self.shape, values)
        settle(self, start=hashable(values.tolist()), bounds=bounds, shape=shape)
        self._check(values)

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"raw": [*shape]}, made of `start`; nothing is drawn."""
        low, high = self._ends()
        share = np.broadcast_to((np.asarray(self.start) - low) / (high - low), self.shape)
        return {"raw": jnp.asarray(np.log(share) - np.log1p(-share), dtype=param_dtype)}

    def __call__(self, params: Params, *, key: Array | None = None) -> Array:
        """Return alpha in real units, [*shape]: float64 where 64 bit types are enabled, else float32."""
        return self._scaled(jax.nn.sigmoid(params["raw"].astype(widest())))

    def mean(self, params: Params) -> Array:
        """Return alpha in real units; of a random one (`ProbabilisticAlpha`) its mean, which is never drawn."""
        return self(params)

    def bounds_for(self, owner: str, bounds: Any, shape: Shape) -> Bounds:
        """Return the order's bounds, for a layer that takes it as its argument `alpha`.

        Args:
            owner: The layer, for messages.
            bounds: The layer's own argument `bounds`, which must be None.
            shape: The shape of alpha that the layer needs.

        Raises:
            ValueError: `bounds` is not None, or alpha has another shape.
        """
        check_order_fits(owner, type(self).__name__, self.bounds, self.shape, bounds, shape)
        return self.bounds

    def _check(self, values: np.ndarray) -> None:
        """Raise ValueError unless the first values of the orders lie strictly between the bounds."""
        check_inside(self.owner, self.start, values, self.bounds)

    def _ends(self) -> tuple[Any, Any]:
        """Return the bounds (low, high): numbers, or arrays with an entry for each order."""
        return self.bounds

    def _scaled(self, u: Array) -> Array:
        low, high = self._ends()
        return low + (high - low) * u


Operator = Any  # a definition's name, its class or a definition; a core holds the definition that it stands for


class WithOrder:
    """A core that has an order, fixed or learned.

    Attributes:
        alpha: The constructor's argument; where the order is fixed, its value.
        order: The learned order, or None.
    """

    alpha: Any
    order: Alpha | None

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return {"order": {"raw": [*shape of alpha]}} where alpha is learned, else {}; nothing is drawn."""
        return self._order_params(key, param_dtype)

    def _order_params(self, key: Array | None, param_dtype: Any) -> Params:
        """Return the first parameters of the order as `{"order": ...}`, {} where it is fixed.

        Args:
            key: Passed on to the order's `init`; may be None, because first orders are not drawn.
            param_dtype: The dtype of the parameters.
        """
        return {} if self.order is None else {"order": self.order.init(key, param_dtype)}

    def alpha_of(self, params: Params) -> Any:
        """Return the order in real units: an array where it is learned, the mean where it is random."""
        return self.alpha if self.order is None else self.order.mean(params["order"])

    def _present(self, params: Params, key: Array | None) -> Array | None:
        """Return the learned alpha, computed from the parameters; None where alpha is fixed.

        A random alpha is drawn by `key`; without a key its mean is returned.
        """
        return None if self.order is None else self.order(params["order"], key=key)


class Ordered(WithOrder):
    """A core with an order and an operator; `__post_init__` sets both attributes by `settle_order`.

    Attributes:
        definition: The operator; with a learned order its alpha is the upper bound, a placeholder.
        order: The learned order, or None.
    """

    definition: Operator

    def settle_order(self, owner: str, given: Definition, shape: Callable[[Shape], Shape]) -> None:
        """Set `definition` and `order` from the fields `alpha`, `bounds` and `learn_alpha`; see `begun`.

        Args:
            owner: The core's class, for messages.
            given: The operator, whose alpha is replaced.
            shape: Maps the shape of `alpha` to the shape that the core's order must have, or raises ValueError.

        Raises:
            TypeError: alpha is neither numbers nor an order; an array of JAX is not.
            ValueError: alpha or bounds are out of range, or alpha has a shape that does not fit.
        """
        fields: Any = self
        how = {"bounds": fields.bounds, "learn_alpha": fields.learn_alpha, "shape": shape}
        definition, order = begun(owner, given, fields.alpha, Alpha, partial(Alpha, owner=owner), **how)
        settle(self, definition=definition, order=order, learn_alpha=order is not None)
        if order is None:
            settle(self, alpha=definition.alpha)


@dataclass(frozen=True)
class ProbabilisticAlpha(Alpha):
    """Orders with a learned law between two bounds: alpha = low + (high - low) u, 0 < u < 1.

    With a key, u is drawn, one number for each order and not for each signal, with a gradient in the law's two
    parameters, `{"raw": [*shape], "spread": [*shape]}`. Without one alpha is the mean. A stream (`initial_state`) has
    the mean.

    - "normal": u = sigmoid(mu + sigma z), z standard normal;
    - "beta": u has a beta law; the gradient is that of `jax.random.gamma`;
    - "uniform": u is anywhere between two learned ends alike.

    Attributes:
        start: The first mean or means, inside the bounds.
        bounds: (low, high).
        shape: Shape of alpha, to which `start` and `std` are broadcast; None is theirs.
        distribution: "normal", "beta" or "uniform".
        std: The first standard deviation or deviations of alpha; None is a quarter of the way to the nearer bound.
        prior: (mean, standard deviation) of the law, of the same kind and between the same bounds, that `kl` compares
            with; None is those of a uniform law between the bounds.
        owner: The class that messages name.

    Raises:
        ValueError: `start` or `prior` is not strictly inside the bounds, or a standard deviation is not positive or
            larger than the law can have between them.

    Source: Kingma & Welling, arXiv 1312.6114; Figurnov, Mohamed & Mnih, arXiv 1805.08498, for the beta law.

    Examples:
        >>> order = fjx.functional.ProbabilisticAlpha(0.6, std=0.05)
        >>> core = fjx.functional.FractionalLayer(order, "caputo")
        >>> params = core.init()
        >>> y = core(params, jnp.ones((4, 100, 1)), key=jax.random.key(0))
        >>> loss = (y**2).mean() + 1e-3 * order.kl(params["order"])
    """

    bounds: tuple[float, float] = (0.0, 1.0)
    shape: Any = None
    _: KW_ONLY
    distribution: str = "normal"
    std: float | Sequence[float] | None = None
    prior: tuple[float, float] | None = None

    is_random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.owner == "Alpha":
            settle(self, owner="ProbabilisticAlpha")
        start, std = first_values(self.owner, self.start), first_spread(self.owner, self.std)
        shape = broadcast(self.owner, start, std) if self.shape is None else self.shape
        settle(self, shape=shape, std=None if std is None else hashable(std.tolist()))
        super().__post_init__()
        errors.one_of(self.owner, "distribution", self.distribution, DISTRIBUTIONS)
        self._first()  # raises where the law has no such member
        settle(self, prior=prior_of(self.owner, self.distribution, self.prior, self.bounds)[0])

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return `{"raw": [*shape], "spread": [*shape]}`, of the first moments; nothing is drawn."""
        found = (jnp.asarray(np.broadcast_to(each, self.shape), param_dtype) for each in self._first())
        return dict(zip(("raw", "spread"), found, strict=True))

    def __call__(self, params: Params, *, key: Array | None = None) -> Array:
        """Return alpha in real units, [*shape]: a draw where there is a key, else the mean."""
        return self.mean(params) if key is None else self.sample(params, key)

    def sample(self, params: Params, key: Array, sample_shape: Sequence[int] = ()) -> Array:
        """Return draws of alpha, [*sample_shape, *shape], differentiable in the law's parameters."""
        with jax.numpy_rank_promotion("allow"):  # formulas of NumPy's too, here and below
            noise = _Noise.of(key, tuple(sample_shape))
            return self._scaled(self._distribution.sample(self._constrained(params), noise, JAX))

    def mean(self, params: Params) -> Array:
        """Return the mean of alpha: in closed form, but for the normal law by quadrature, to 1e-12 in float64."""
        with jax.numpy_rank_promotion("allow"):
            return self._scaled(self._distribution.moments(*self._constrained(params), JAX)[0])

    def std_of(self, params: Params) -> Array:
        """Return the standard deviation of alpha; computed as the mean is."""
        low, high = self.bounds
        with jax.numpy_rank_promotion("allow"):
            return (high - low) * self._distribution.moments(*self._constrained(params), JAX)[1]

    def kl(self, params: Params) -> Array:
        """Return the Kullback-Leibler divergence of the law from the prior in nats, summed over the orders.

        In closed form: no divergence changes when both laws go through the same increasing map, so that this one is
        that of two normal, two beta or two uniform laws. A uniform law that reaches beyond its prior, by more than its
        parameters are rounded, has an infinite divergence.
        """
        parameters = self._constrained(params)
        _, prior = prior_of(self.owner, self.distribution, self.prior, self.bounds)
        one, other = (jnp.asarray(value, parameters[0].dtype) for value in prior)
        with jax.numpy_rank_promotion("allow"):
            rounding = float(jnp.finfo(params["raw"].dtype).eps)
            return self._distribution.divergence(parameters, (one, other), rounding, JAX).sum()

    @property
    def _distribution(self) -> Distribution:
        return DISTRIBUTIONS[self.distribution]

    def _first(self) -> Pair:
        return first_unconstrained(self.owner, self.distribution, self.start, self.std, self.bounds)

    def _constrained(self, params: Params) -> Pair:
        return self._distribution.constrained(params["raw"].astype(widest()), params["spread"].astype(widest()), JAX)


class _Noise(NamedTuple):
    """Random draws by a JAX key, for `distributions.Noise`: each call takes the next of four keys.

    Attributes:
        keys: The unused ones of four keys that were split from one key.
        shape: Leading axes of the result: how many draws of each number.
        least: Smallest parameter of a gamma distribution, so that 1 / least**2 is finite.
    """

    keys: list[Array]
    shape: tuple[int, ...]  # how many draws of each number
    least: float

    @classmethod
    def of(cls, key: Array, shape: tuple[int, ...]) -> _Noise:
        return cls(list(jax.random.split(key, 4)), shape, 1e-100 if widest() == jnp.float64 else 1e-15)

    def normal(self, like: Array) -> Array:
        return jax.random.normal(self.keys.pop(), (*self.shape, *like.shape), like.dtype)

    def uniform(self, like: Array) -> Array:
        return 1 - jax.random.uniform(self.keys.pop(), (*self.shape, *like.shape), like.dtype)

    def gamma(self, parameter: Array) -> Array:
        return jax.random.gamma(self.keys.pop(), parameter, (*self.shape, *parameter.shape), parameter.dtype)


_OF_AN_ORDER = ({"raw"}, {"raw", "spread"})


def param_labels(params: Any) -> Any:
    """Return "orders" or "weights" for every parameter, a tree that `optax.partition` (`multi_transform`) takes.

    An order moves slowly beside the weights of a network, in the free number that is mapped into its bounds; ten times
    the weights' learning rate is a start. Weight decay would draw it to the middle of its bounds: orders want none.

    Args:
        params: Parameters of a network: linen's variables["params"], nested dicts, or an `nnx.State`. Those of an order
            stand alone as `raw`, or as `raw` and `spread`, as `Alpha` and `ProbabilisticAlpha` have them, under any
            name.

    Returns:
        The same tree with a word for every leaf.

    Raises:
        ValueError: There is no learned order.

    Examples:
        >>> model = FractionalLinear(3, 5, learn_alpha=True, rngs=nnx.Rngs(0))
        >>> param_labels(nnx.to_pure_dict(nnx.state(model)))
        {'bias': 'weights', 'kernel': 'weights', 'order': {'raw': 'orders'}}
        >>> tx = optax.partition(
        ...     {"weights": optax.adamw(5e-3), "orders": optax.adam(3e-2)}, param_labels
        ... )
        >>> optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(params)
    # An `nnx.State` has the attribute `value` at each of its variables.
    paths = [tuple(_name(key) for key in path if key != jax.tree_util.GetAttrKey("value")) for path, _ in leaves]
    beside: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        beside.setdefault(path[:-1], set()).add(path[-1])
    labels = ["orders" if beside[path[:-1]] in _OF_AN_ORDER else "weights" for path in paths]
    if "orders" not in labels:
        raise ValueError(
            "param_labels(params): needs a learned order; make a layer with learn_alpha=True, or use one optimizer for "
            "all parameters."
        )
    return jax.tree.unflatten(structure, labels)


def _name(key: Any) -> str:
    """Return the entry of a pytree path as a string: its attribute, key or index."""
    return jax.tree_util.keystr((key,), simple=True)
