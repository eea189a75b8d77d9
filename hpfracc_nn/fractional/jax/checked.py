"""Checks of traced values, seen only by `jax.experimental.checkify`.

`checkify.debug_check` is an effect: a program that holds one is not exported, is called from Python each time, and is
compiled anew in each process. Here a check is an operation without an effect, that returns one of its arguments.

The operation is a JAX primitive of arrays (value, holds, *details), which returns `value`. Its parameters are
`message`, a format string, and `names`, those of the details in it. The private functions are its rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp
from jax.experimental import checkify
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpfracc_nn.fractional.jax.arrays import Array

try:
    from jax._src.checkify import check_p, error_checks
except ImportError:  # JAX names them nowhere else; without them checks are effects
    error_checks = None  # type: ignore[assignment]


def checked(value: Array, holds: Array, message: str, /, **details: Array) -> Array:
    """Return `value`; under `jax.experimental.checkify` report an error where `holds` is False.

    The check is part of the computation of what is returned: use the returned array, and the check is made where that
    is needed. Everything else, derivatives and compiled programs among it, is that of `value` alone.

    Args:
        value: What depends on the check.
        holds: Of no axes, bool.
        message: What the error says, as in `checkify.check`: a format string that may name the details.
        details: Arrays that the message shows.
    """
    if error_checks is None:
        checkify.debug_check(holds, message, **details)
        return value
    return _CHECKED.bind(value, holds, *details.values(), message=message, names=tuple(details))


_CHECKED = Primitive("checked")


def _alone(value: Any, holds: Any, *details: Any, message: str, names: tuple[str, ...]) -> Any:
    return value


def _moved(
    primals: Sequence[Array], tangents: Sequence[Any], *, message: str, names: tuple[str, ...]
) -> tuple[Array, Any]:
    return _CHECKED.bind(*primals, message=message, names=names), tangents[0]


def _transposed(cotangent: Any, *given: Any, message: str, names: tuple[str, ...]) -> list[Any]:
    return [cotangent, *(None for _ in given[1:])]


def _batched(
    given: Sequence[Array], axes: Sequence[int | None], *, message: str, names: tuple[str, ...]
) -> tuple[Array, int | None]:
    """Batching rule: check the whole batch at once; the message shows the details of its first failing item.

    `given` are the primitive's arrays and `axes` their batch axes, None where there is none. Return the batched value
    and its batch axis.
    """
    (value, holds, *details), (axis, *others) = given, axes
    if others[0] is not None:
        is_first = jnp.arange(holds.shape[0]) == jnp.argmin(holds)
        details = [
            each if place is None else _picked(is_first, jnp.moveaxis(each, place, 0))
            for each, place in zip(details, others[1:], strict=True)
        ]
        holds = holds.all()
    else:
        details = [
            each if place is None else jax.lax.index_in_dim(each, 0, place, keepdims=False)
            for each, place in zip(details, others[1:], strict=True)
        ]
    return _CHECKED.bind(value, holds, *details, message=message, names=names), axis


def _picked(is_it: Array, rows: Array) -> Array:
    """Return the row of `rows` [batch, ...] at the one place where `is_it` [batch] is True.

    The row is computed as a sum over the batch, because sharded rows cannot be indexed.
    """
    wanted = is_it.reshape(-1, *(1,) * (rows.ndim - 1))
    return jnp.where(wanted, rows, jnp.zeros((), rows.dtype)).sum(0, dtype=rows.dtype)


def _seen(*given: Any, message: str, names: tuple[str, ...]) -> tuple[Any, Array]:
    """Checkify rule: return the error that checkify carries, with this check added to it, and `value`.

    The rule of JAX's own check is applied. `given` begins with that rule's leading arguments, the error among them,
    which differ between versions of JAX; the primitive's arrays follow.
    """
    first = len(given) - len(names) - 2
    value, holds, *details = given[first:]
    shown: dict[str, Any] = dict(zip(names, map(jnp.asarray, details), strict=True))
    found, _ = checkify.checkify(lambda: checkify.check(holds, message, **shown))()
    values, structure = jax.tree.flatten(found)
    error, _ = error_checks[check_p](*given[:first], *values, err_tree=structure, debug=True)
    return error, value


_CHECKED.def_impl(_alone)
_CHECKED.def_abstract_eval(_alone)
mlir.register_lowering(_CHECKED, lambda _, value, *others, **__: [value])
ad.primitive_jvps[_CHECKED] = _moved
ad.primitive_transposes[_CHECKED] = _transposed
batching.primitive_batchers[_CHECKED] = _batched
if error_checks is not None:
    error_checks[_CHECKED] = _seen
