"""Labels for optax: orders apart from the weights."""

from __future__ import annotations

from typing import Any

import jax

from hpfracc_nn.layers.flax.functional.core import Params

_OF_AN_ORDER = ({"raw"}, {"raw", "spread"})


def param_labels(params: Any) -> Any:
    """Return "orders" or "weights" for every parameter, a tree that `optax.partition` (`multi_transform`) takes.

    An order moves slowly beside the weights of a network, in the free number that is mapped into its bounds; ten times
    the weights' learning rate is a start. Weight decay would draw it to the middle of its bounds: orders want none.

    Args:
        params: Parameters of a network: linen's variables["params"], nested dicts, or an `nnx.State`. An order's are
            those that stand alone as `raw`, or as `raw` and `spread`, as `Alpha` and `ProbabilisticAlpha` have them,
            whatever the part is called that holds them.

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
    paths = [tuple(_name(key) for key in path if not _is_variables(key)) for path, _ in _leaves(params)]
    beside: dict[tuple[str, ...], set[str]] = {}
    for path in paths:
        beside.setdefault(path[:-1], set()).add(path[-1])
    labels = ["orders" if beside[path[:-1]] in _OF_AN_ORDER else "weights" for path in paths]
    if "orders" not in labels:
        raise ValueError(
            "param_labels(params): needs a learned order; make a layer with learn_alpha=True, or use one optimizer for "
            "all parameters."
        )
    return jax.tree.unflatten(jax.tree.structure(params), labels)


def _leaves(params: Params) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(params)[0]


def _is_variables(key: Any) -> bool:
    """Whether a step leads from a variable of an `nnx.State` into its value: dicts have keys and no attributes."""
    return isinstance(key, jax.tree_util.GetAttrKey) and key.name == "value"


def _name(key: Any) -> str:
    """One step of a path, as the attribute, key or index that it is."""
    return str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key))))
