"""How an order is given: a number, nested sequences of numbers, or a framework's tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.dispatch import backend, framework_of, shape_of


def read_fixed(owner: str, alpha: Any) -> float | tuple | None:
    """Return alpha as a float or nested tuple of floats, or None when it is a framework's tensor."""
    number = errors.as_float(alpha)
    if number is not None:
        return number
    if isinstance(alpha, Sequence | np.ndarray) and not isinstance(alpha, str | bytes):
        plain = _plain(alpha)
        if plain is not None:
            return plain
        try:
            values = np.asarray(alpha)
        except ValueError:  # lists of different lengths
            values = np.empty(0)
        if values.dtype.kind not in "fiu" or values.size == 0:
            raise TypeError(
                f"{owner}(alpha={alpha!r}): needs real numbers, one per channel; pass for example alpha=[0.3, 0.7]."
            )
        return _nested(values.astype(np.float64).tolist())
    if hasattr(alpha, "shape") and hasattr(alpha, "dtype") and not isinstance(alpha, np.generic):
        if framework_of(type(alpha)) == "jax":
            backend("jax")  # which registers definitions as pytrees, before the first transform meets one
        return None
    raise TypeError(
        f"{owner}(alpha={alpha!r}): needs a real number, a sequence of them or a tensor; pass for example alpha=0.5."
    )


def _plain(values: Any) -> Any:
    """Return evenly nested lists of numbers as tuples of floats, else None; a compiler follows, as it cannot NumPy."""
    if type(values) in (float, int):
        return float(values)
    if type(values) not in (list, tuple) or not values:
        return None
    parts = tuple([_plain(value) for value in values])
    if any(part is None or shape_of(part) != shape_of(parts[0]) for part in parts):
        return None
    return parts


def flat(values: Any) -> tuple[float, ...]:
    """Return the numbers of nested tuples, one after the other."""
    if not isinstance(values, tuple):
        return (values,)
    return tuple([number for value in values for number in flat(value)])


def _nested(values: Any) -> Any:
    return tuple(_nested(v) for v in values) if isinstance(values, list) else values
