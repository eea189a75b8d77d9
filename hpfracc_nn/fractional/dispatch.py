"""Dispatch on the framework of an array: NumPy, PyTorch or JAX, and the modules that implement the operators for it.

Each framework has a package here, `numpy`, `torch` and `jax`, with modules of the same names and public functions.
CuPy's arrays go through torch.
A framework's package is loaded at the first call that needs it, by a function in `IMPORTS`, which
`hpfracc_nn.fractional` fills: this module imports no framework.
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


# Framework -> a function that imports its modules and returns them in the order of `Modules`; filled by the package.
# torch.compile follows import statements, not importlib, and a first call may come inside of a compiled function.
IMPORTS: dict[str, Callable[[], tuple[Any, ...]]] = {}

# Filled when a framework is first needed. torch.compile follows dictionaries, not caches.
_backends: dict[str, Any] = {}
_frameworks: dict[type, str] = {}  # of the classes that need no further look
_NUMBERS = (bool, int, float, complex)  # torch.compile cannot look at their ancestors
_PACKAGES = {"torch": "torch", "jax": "jax", "jaxlib": "jax"}


def framework_of(kind: type) -> str:
    """Return "torch" or "jax" where the class of an array, or one of its bases, is of that package; else "numpy"."""
    if kind in _NUMBERS:
        return "numpy"
    package = errors.package_of(kind, _PACKAGES)
    return "numpy" if package is None else _PACKAGES[package]


def is_of_cupy(x: Any) -> bool:
    """Return whether `x` is a CuPy array, which operators compute by torch."""
    kind = type(x)
    return kind not in _frameworks and kind not in _NUMBERS and errors.package_of(kind, ("cupy",)) is not None


def by_torch(owner: str, x: Any, apply: Callable[[Any], Any]) -> Any:
    """Return `apply` of a CuPy array, passed as a torch tensor; the result is a CuPy array again.

    Args:
        owner: The public function, for messages.
        x: The CuPy array.
        apply: Takes and returns a tensor.

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
    """Return the shape of an array or of evenly nested tuples of numbers; () for a number."""
    if isinstance(values, float):  # torch.compile cannot look up attributes of a float
        return ()
    if isinstance(values, tuple):
        return (len(values), *shape_of(values[0]))
    return tuple(getattr(values, "shape", ()))


def backend(framework: str) -> Modules:
    """Return the modules that implement the operators for a framework's arrays, imported at the first call."""
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
    """Return a definition with side="right" or "both" applied to `x`, by applying its left-sided twin.

    The right side is the left one in reversed time, and "both" is the mean of the two.

    Args:
        x: The samples.
        dtype: The dtype in which the mean of both sides is computed; the result has that of `x`.
        definition: The operator, with side "right" or "both".
        axis: The time axis.
        xp: The namespace of x.
        on_left: Called as on_left(samples, definition, axis): applies a left-sided definition.
    """
    left, backwards = definition.to_the_left, xp.flip(x, axis=axis)
    if definition.side == "right":
        return xp.contiguous(xp.flip(on_left(backwards, left, axis), axis=axis))
    # One call takes both directions of time, stacked. Until the two results are added up they are not rounded: large
    # parts may cancel. They are separated by indices: outside of jit JAX's iteration gathers sharded arrays.
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
    """Return the samples' shape with its axes of length 1 widened to alpha's length; None if no axis is widened.

    Args:
        shape: Shape of the samples.
        dim: Their time axis.
        orders: Shape of alpha, which broadcasts to the axes other than time.
    """
    count = len(shape)
    if len(orders) >= count or type(dim) is not int or not -count <= dim < count:
        return None  # a later check raises, with a message
    others = [i for i in range(count) if i != dim % count]
    found = list(shape)
    for i, many in zip(others[len(others) - len(orders) :], orders, strict=True):
        if shape[i] == 1:
            found[i] = many
    return tuple(found) if found != list(shape) else None


def placed(
    owner: str, name: str, x: Samples, manager: BackendManager | None = None, order: Any = None
) -> tuple[Samples, str]:
    """Return the samples as an array, and the name of the framework that computes them.

    Where the order is a JAX array, NumPy samples become one too; gradients do not reach them.
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
