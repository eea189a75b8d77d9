"""What a layer for Flax is made of, and the conventions that all of them keep.

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
8. *Parts.* A new layer is a core and two classes of a few lines, `class Name(Layer, core=functional.Name)` in
   `nnx/<name>.py` and in `linen/<name>.py`, whose methods call the core with `self.params()`; `self._run(x)` is its
   value. A core with an order inherits from `Ordered`, which wants `definition` and `order` from `started`; its
   parameters are {**own, **self._order_params(key, param_dtype)}, and `self._present(params, key)` is the learned
   alpha.
9. *Streams.* `initial_state(params, shape, horizon=...)` and `step(params, x, state)` of a core; shells leave out
   `params`. A state is a pytree, which `lax.scan` carries.
10. *Static and traced.* A core is compared by its value and hashable: it may be a static argument of `jax.jit`,
   and is so in an nnx graphdef. Everything in `params` may be traced. Wrong hyperparameters raise in the constructor,
   wrong shapes and dtypes when the function is traced.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from flax import serialization
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.selection import given_manager

if TYPE_CHECKING:
    from hpfracc_nn.layers.flax.functional.order import Alpha

Params = dict[str, Any]  # nested dicts of arrays
Initializer = Callable[..., Array]

BIAS_INIT: Initializer = jax.nn.initializers.zeros


class Core(Protocol):
    """What the shells need of a core, which is a frozen dataclass.

    Attributes:
        order: The learned order, whose parameters are params["order"]; None where there is none.
    """

    @property
    def order(self) -> Alpha | None: ...

    def init(self, key: Array | None = None, param_dtype: Any = jnp.float32) -> Params:
        """Return first parameters.

        Args:
            key: For those that are drawn; None will do where there are none.
            param_dtype: Of all of them.
        """

    def __call__(self, params: Params, *inputs: Any) -> Any:
        """Return the layer's value; where the order may be random the keyword `key` says by which draw, or is None."""

    def alpha_of(self, params: Params) -> Any:
        """Return the order in real units."""


def kernel_init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    """Return a first kernel as Flax draws it, `lecun_normal`: a function with a name, which pickle needs."""
    return jax.nn.initializers.lecun_normal()(key, shape, dtype)


def settle(core: Any, **values: Any) -> None:
    """Give a frozen dataclass, in its `__post_init__`, fields as they were understood and what follows from them."""
    for name, value in values.items():
        object.__setattr__(core, name, value)


def check_fields(owner: str, core: Any) -> None:
    """Raise unless fields that every core reads alike are what they say: claims, axes, dtypes, functions, a manager.

    Which they are is written in their annotations.
    """
    for each in hyperparameters(type(core)):
        value = getattr(core, each.name)
        if each.type == "bool":
            settle(core, **{each.name: errors.claim(owner, each.name, value)})
        elif each.name == "dim" and each.type == "int":
            settle(core, dim=errors.index(owner, "dim", value))
        elif each.name == "dtype" and value is not None:
            check_dtype(owner, "dtype", value)
        elif each.name == "manager":
            given_manager(owner, value)
        elif each.type in ("Initializer", "Field"):
            errors.function(owner, each.name, value)


def check_dtype(owner: str, argument: str, dtype: Any) -> None:
    """Raise unless a dtype is one of JAX's, and floating."""
    try:
        found = jnp.dtype(dtype)
        is_floating = dtype is not None and jnp.issubdtype(found, jnp.floating) and found.itemsize <= 8
    except (TypeError, ValueError, AttributeError):  # whatever it is, NumPy knows no dtype of it
        is_floating = False
    if not is_floating:
        raise TypeError(f"{owner}({argument}={dtype!r}): needs a floating dtype; pass such as jnp.float32.")


def hashable(given: Any) -> Any:
    """Return lists and NumPy arrays as tuples of numbers, all else as it is: fields of a core must have a hash."""
    if isinstance(given, np.ndarray):
        return hashable(given.tolist())
    return tuple(map(hashable, given)) if isinstance(given, list | tuple) else given


def hyperparameters(core: type) -> list[dataclasses.Field]:
    """Return the fields of a core that its constructor takes; others, `field(init=False)`, follow from them."""
    return [each for each in dataclasses.fields(core) if each.init]


def keys(owner: str, key: Array | None, count: int) -> list[Array]:
    """Return `count` keys made of one, or raise where there is none."""
    if key is None:
        raise TypeError(
            f"{owner}: needs randomness for its first weights; pass rngs=nnx.Rngs(0), or key=jax.random.key(0) to init."
        )
    return list(jax.random.split(key, count))


def serializable(kind: type, *names: str) -> None:
    """Let `flax.serialization` write and read these fields of a state, a dataclass.

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
    """Raise unless what was read has the shapes of the state that it is read into."""
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
