"""Dispatch on the framework of an array: NumPy, PyTorch or JAX, and the modules that implement the operators for it.

Each framework has a package here, `numpy`, `torch` and `jax`, with modules of the same names and public functions.
CuPy's arrays go through torch.
None is loaded before it is needed, and this module imports none: `hpfracc_nn.fractional` says how.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.selection import BackendManager

Samples = Any  # an array of any framework, or what NumPy makes one of

FRAMEWORKS = ("numpy", "torch", "jax")


class Modules(NamedTuple):
    """The modules of a framework's package that implement the operators."""

    operator: Any  # equal steps
    product_integration: Any  # any times, orders that vary
    multipliers: Any  # periodic signals
    special: Any


# Framework -> what imports its modules, in the order of `Modules`; filled by the package. torch.compile follows import
# statements, not importlib, and a first call may come inside of it.
IMPORTS: dict[str, Callable[[], tuple[Any, ...]]] = {}

# Filled when a framework is first needed. torch.compile follows dictionaries, not caches.
_backends: dict[str, Any] = {}
_frameworks: dict[type, str] = {}  # of the classes that need no further look
_NUMBERS = (bool, int, float, complex)  # torch.compile cannot look at their ancestors
_PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}


def framework_of(kind: type) -> str:
    """Return "numpy", "torch" or "jax", from the package of the class or of one of its bases."""
    if kind in _NUMBERS:
        return "numpy"
    package = errors.package_of(kind, _PACKAGES)
    return "numpy" if package is None else _PACKAGES[package]


def is_of_cupy(x: Any) -> bool:
    """Return whether `x` is an array of CuPy, which torch computes."""
    kind = type(x)
    return kind not in _frameworks and kind not in _NUMBERS and errors.package_of(kind, ("cupy",)) is not None


def by_torch(owner: str, x: Any, apply: Callable[[Any], Any]) -> Any:
    """Return apply(tensor) for an array of CuPy, as an array of CuPy.

    Raises:
        RuntimeError: torch is not installed, or finds no CUDA device that it can use.
    """
    try:
        (module,) = IMPORTS["cupy"]()
    except ModuleNotFoundError:
        raise RuntimeError(
            f"{owner}(x of type cupy.ndarray): CuPy's arrays are computed by torch, which is not installed; "
            "pip install 'hpfracc-nn[torch]', or pass cupy.asnumpy(x) to compute on the host."
        ) from None
    return module.applied(owner, x, apply)


def type_name(x: Any) -> str:
    """Return the qualified name of the class of `x`, for messages."""
    cls = type(x)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, or of a number or evenly nested tuples of them."""
    if isinstance(values, float):  # torch.compile cannot ask one for attributes
        return ()
    if isinstance(values, tuple):
        return (len(values), *shape_of(values[0]))
    return tuple(getattr(values, "shape", ()))


def backend(framework: str) -> Modules:
    """Return the modules that implement the operators for a framework's arrays."""
    found = _backends.get(framework)
    if found is None:
        found = _backends[framework] = Modules(*IMPORTS[framework]())
        _frameworks.update(dict.fromkeys(found.operator.ARRAYS, framework))
    return found


def load(owner: str, framework: str) -> None:
    """Load the kernels for a framework's arrays unless they are loaded; `owner` is named in messages."""
    backend(errors.one_of(owner, "framework", framework, FRAMEWORKS))


def apply(
    owner: str,
    x: Samples,
    definition: Any,
    dt: float,
    dim: int,
    manager: BackendManager | None,
    t: Samples | None = None,
) -> Samples:
    """Return a Definition applied to `x` by the implementation for its framework; `owner` is named in messages."""
    if is_of_cupy(x):
        return by_torch(owner, x, lambda tensor: apply(owner, tensor, definition, dt, dim, manager, t))
    x, framework = placed(owner, "x", x, manager, definition.alpha)
    found = backend(framework)
    operator = found.operator
    parts = operator.parts(x)
    if parts is not None:
        return operator.whole([apply(owner, part, definition, dt, dim, manager, t) for part in parts])
    if type(definition.alpha) is not float:
        shape = _grown(x.shape, dim, shape_of(definition.alpha))
        x = x if shape is None else operator.broadcast_to(x, shape)
    if t is None:
        return operator.apply(owner, x, definition, dt, dim, manager)
    if dt != 1.0:
        raise ValueError(f"{owner}(dt={dt!r}, t=...): needs one of the two; the times say how far apart samples are.")
    return found.product_integration.apply(owner, x, definition, t, dim, manager)


def on_other_sides(
    x: Samples,
    dtype: Any,
    definition: Any,
    axis: int,
    xp: Any,
    on_left: Callable[[Samples, Any, int], Samples],
) -> Samples:
    """Return the operator with side="right" (in reversed time), or with "both" (the mean), by the one with "left".

    Args:
        x: The samples.
        dtype: What is computed in.
        definition: Of either side.
        axis: The time axis.
        xp: The namespace of x.
        on_left: Called as on_left(samples, definition, axis): applies a left-sided definition.
    """
    left, backwards = definition.to_the_left, xp.flip(x, axis=axis)
    if definition.side == "right":
        return xp.contiguous(xp.flip(on_left(backwards, left, axis), axis=axis))
    # One call takes both directions of time, stacked. Until they are added up they are not rounded: large parts may
    # cancel. They are taken apart by indices: outside of jit JAX's iteration gathers what is sharded.
    found = on_left(xp.astype(xp.stack([x, backwards], axis=0), dtype), left, axis + 1)
    return xp.astype((found[0] + xp.flip(found[1], axis=axis)) / 2, x.dtype)


def apply_multiplier(
    owner: str, x: Samples, definition: Any, dt: Any, dim: Any, manager: BackendManager | None = None
) -> Samples:
    """Return a FourierMultiplier applied to `x`; `owner` is named in messages."""
    if is_of_cupy(x):
        return by_torch(owner, x, lambda tensor: apply_multiplier(owner, tensor, definition, dt, dim, manager))
    x, framework = placed(owner, "x", x, manager, definition.alpha)
    found = backend(framework)
    parts = found.operator.parts(x)
    if parts is not None:
        return found.operator.whole([apply_multiplier(owner, part, definition, dt, dim, manager) for part in parts])
    return found.multipliers.apply(owner, x, definition, dt, dim, framework)


def _grown(shape: Sequence[int], dim: int, orders: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the samples' shape with axes of length 1 widened to alpha's length on them; None where none is.

    Args:
        shape: Of the samples.
        dim: Their time axis.
        orders: Shape of alpha, which broadcasts to the axes other than time.
    """
    count = len(shape)
    if len(orders) >= count or type(dim) is not int or not -count <= dim < count:
        return None  # what is wrong is said by who looks at it
    others = [i for i in range(count) if i != dim % count]
    found = list(shape)
    for i, many in zip(others[len(others) - len(orders) :], orders, strict=True):
        if shape[i] == 1:
            found[i] = many
    return tuple(found) if found != list(shape) else None


def placed(
    owner: str, name: str, x: Samples, manager: BackendManager | None = None, order: Any = None
) -> tuple[Samples, str]:
    """Return the samples, as an array, and the framework that computes them.

    NumPy's become arrays of the order's framework where it takes them, as constants of what is differentiated.
    """
    if manager is not None and not isinstance(manager, BackendManager):
        raise TypeError(f"{owner}(manager={manager!r}): needs a BackendManager; pass None for the process-wide one.")
    framework = _frameworks.get(type(x)) or framework_of(type(x))
    if framework == "numpy" and is_of_cupy(x):
        raise TypeError(
            f"{owner}({name} of type {type_name(x)}): takes no CuPy array; pass torch.from_dlpack({name}), and "
            "cupy.from_dlpack(result) takes the result back."
        )
    if framework not in FRAMEWORKS:
        raise TypeError(
            f"{owner}({name} of type {type_name(x)}): needs a NumPy array, a torch tensor or a JAX array; "
            f"pass numpy.asarray({name}) where no gradient is needed."
        )
    if framework != "numpy":
        return x, framework
    x, framework = _as_array(owner, name, x), framework_of(type(order))
    of_numpy = getattr(backend(framework).operator, "of_numpy", None)
    return (x, "numpy") if of_numpy is None else (of_numpy(x), framework)


def _as_array(owner: str, name: str, x: Samples) -> np.ndarray:
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(
            f"{owner}({name} of type {type_name(x)}): needs a sample at every step; "
            f"pass {name}.filled(value) with a value for the gaps."
        )
    if not (hasattr(x, "__array__") or isinstance(x, list | tuple | float | int)):
        raise TypeError(
            f"{owner}({name} of type {type_name(x)}): needs samples in an array; "
            "pass a NumPy array, a list, a torch tensor or a JAX array."
        )
    try:
        return np.asarray(x)
    except ValueError:
        raise ValueError(
            f"{owner}({name} of type {type_name(x)}): needs rows of one length; "
            "pass an array, or a list of equal lists."
        ) from None


def preload() -> None:
    """Load the modules that a first call needs; torch's only if torch is imported.

    A first call inside of torch.compile must find what later calls find, or it is compiled twice.
    """
    backend("numpy")
    if "torch" in sys.modules:
        backend("torch")
