"""Formulas of networks on the arrays of a framework: in double precision, rounded once to the caller's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.dispatch import FRAMEWORKS, backend, framework_of, type_name
from hpfracc_nn.fractional.namespace import NAMESPACES, NUMPY, Array, Namespace
from hpfracc_nn.models.networks import Network, Values

Formula = Callable[[Network, Array, Values, Namespace], Array]


def evaluated(
    owner: str,
    name: str,
    formula: Formula,
    network: Network,
    x: Any,
    *,
    is_complex: bool = False,
    of: Any = None,
) -> Array:
    """Return formula(network, x, values, xp), in the framework of x and of the parameters.

    Args:
        owner: The public function, for messages.
        name: Name of the argument x, for messages.
        formula: A function that is elementwise in x and in the parameters that are arrays, which broadcast. Where
            parameters have no axes and x is a NumPy array it may be any function.
        network: A network with a value in each field.
        x: Positive numbers. Values of tensors and JAX arrays are not checked: where they are not positive the result is
            NaN.
        is_complex: Whether the result is complex.
        of: An array that decides the framework of the result where x and the parameters are NumPy arrays.

    Raises:
        TypeError: x is not an array of real numbers, or arrays are of two frameworks.
        ValueError: x, or an entry of it, is not positive, and x is no tensor or JAX array.
    """
    template, values = _split(network)
    kinds = {framework_of(type(each)) for each in (x, of, *values.values())} - {"numpy"}
    if len(kinds) > 1 or not kinds <= set(FRAMEWORKS):
        raise TypeError(
            f"{owner}({name} of type {type_name(x)}): needs {name} and parameters of one framework; convert one of "
            "them to the other's arrays."
        )
    framework = kinds.pop() if kinds else "numpy"
    backend(framework)
    if framework_of(type(x)) == "numpy":
        x = _positive(owner, name, x)
    else:
        formula = _on_positive(formula)  # to look at values would wait for the device, and a traced array has none
    if framework == "jax":
        from hpfracc_nn.models.jax import computed

        return computed(formula, template, x, values, is_complex=is_complex)
    xp = NAMESPACES[framework]
    like = x
    if framework == "torch":
        tensors = [each for each in (x, *values.values(), of) if framework_of(type(each)) == "torch"]
        like = next((each for each in tensors if each.dtype.is_floating_point), tensors[0])
    arrays = {key: _double(value, like, xp) for key, value in values.items()}
    points = _double(x, like, xp)
    axes = max((each.ndim for each in arrays.values()), default=0)
    points = points.reshape((1,) * (axes - points.ndim) + tuple(points.shape))  # as the nodes are one more axis
    found = formula(template, points, arrays, xp)
    # torch's default dtype where there are whole numbers alone
    dtype = (like * 1.0).dtype if xp is not NUMPY else like.dtype if like.dtype.kind == "f" else np.dtype(np.float64)
    found = xp.astype(found, xp.complex_of(dtype) if is_complex else dtype)
    return found[()] if framework == "numpy" else found


def _on_positive(formula: Formula) -> Formula:
    """Return the formula that takes NaN in place of each point x that is not positive."""
    return lambda network, x, values, xp: formula(network, xp.where(x > 0, x, np.nan), values, xp)


def _split(network: Network) -> tuple[Network, dict[str, Any]]:
    """Return a network with names in place of arrays, and the arrays by these names."""
    values: dict[str, Any] = {}

    def field(value: Any) -> Any:
        number = errors.as_float(value)
        if number is not None:
            return number
        values[f"_{len(values)}"] = value
        return f"_{len(values) - 1}"

    return network.mapped(field), values


def arrays_of(network: Network) -> list[Any]:
    """Return the parameters of a network that are arrays."""
    return list(_split(network)[1].values())


def _positive(owner: str, name: str, x: Any) -> Any:
    """Return x as an array; raise TypeError unless it holds real numbers, and ValueError unless all are positive."""
    found = errors.as_numbers(x)
    if found is None:
        raise TypeError(f"{owner}({name} of type {type_name(x)}): needs real numbers; pass an array of them.")
    for wrong in found[~(found > 0)].reshape(-1)[:1]:
        raise ValueError(f"{owner}({name}): needs {name} > 0; got {wrong:g}; leave it out.")
    return np.asarray(x) if isinstance(x, np.ndarray | np.generic) else found


def _double(value: Any, like: Any, xp: Namespace) -> Array:
    if xp is NUMPY or framework_of(type(value)) != "numpy":
        return xp.asarray(value)
    return xp.constant(np.asarray(value, dtype=np.float64), like)


def float_dtype(owner: str, name: str, x: Array, xp: Namespace) -> Any:
    """Return the dtype of samples, or float64 where they are whole numbers; raise TypeError where they are complex.

    Args:
        owner: The public function, for messages.
        name: Name of the argument x, for messages.
        x: An array of the framework of xp.
        xp: The namespace of x.
    """
    if xp.iscomplexobj(x):
        raise TypeError(f"{owner}({name} of dtype {x.dtype}): needs real numbers; pass its real and imaginary parts.")
    return x.dtype if "float" in str(x.dtype) else xp.float64
