"""The special functions on JAX arrays: arguments, dtypes, derivatives; every transform follows.

The Mittag-Leffler function E_(alpha, beta)(z) is computed in float64 whatever the process has enabled, point by point,
and so is each of its derivatives, which are members of one family (`fractional.special.mittag_leffler`).

An `owner` is the name of the public function, and `name` that of an argument, for messages.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.float64 import family_in_float64, in_float64
from hpfracc_nn.fractional.jax.sharding import placed_like, unplaced
from hpfracc_nn.fractional.special.fractional_fourier import check_shapes, chirps_of, fixed_chirps, nearest, transformed
from hpfracc_nn.fractional.special.mittag_leffler import (
    Options,
    check_each,
    combined,
    is_wrong_alpha,
    is_wrong_beta,
    partial_derivative,
)

Orders = tuple[int, int, int]  # of a derivative in z, alpha and beta

_CHUNK = 4096  # points at once, of which 39 complex numbers each are kept, 77 for complex z
_ARRAYS = (np.ndarray, np.generic, list, tuple)  # what NumPy makes an array of; its numbers stay in float64


def mittag_leffler(z: Any, alpha: Any, beta: Any, derivative: Orders) -> Array:
    """Return the Mittag-Leffler function or a derivative of it; see `fractional.special.functions`."""
    owner = "mittag_leffler"
    given = [_numbers(owner, name, value) for name, value in (("z", z), ("alpha", alpha), ("beta", beta))]
    _check_real(owner, alpha=given[1], beta=given[2])
    fixed_orders = (np.empty(0) if isinstance(value, jax.Array) else np.atleast_1d(value) for value in given[1:])
    check_each(owner, *fixed_orders)
    given[1:] = _checked(owner, *given[1:])
    dtype = jnp.result_type(*given, 1.0)
    shape = jnp.broadcast_shapes(*(jnp.shape(value) for value in given))
    learned: list[tuple[int, Array]] = []
    fixed: list[Any] = [None, None, None]
    for index, value in enumerate(given):
        if isinstance(value, jax.Array):
            learned.append((index, value if value.ndim == 0 else jnp.broadcast_to(value, shape)))
        else:
            fixed[index] = np.asarray(value) if np.ndim(value) == 0 else np.broadcast_to(value, shape)

    own = max(value.ndim for _, value in learned)
    places = [index for index, _ in learned]  # traced values are arguments: compiled programs keep the family

    def family(counts: tuple[int, ...]) -> Any:
        more = dict(zip(places, counts, strict=True))
        in_z, in_alpha, in_beta = (order + more.get(index, 0) for index, order in enumerate(derivative))

        def member(*arguments: Array) -> Array:
            # Under a map arguments have more axes, before their own.
            batch = max((argument.shape for argument in arguments), key=len)[: -own or None]
            every = list(fixed)
            for index, argument in zip(places, arguments, strict=True):
                alone = () if own or argument.ndim == 0 else (1,) * len(shape)
                every[index] = argument.reshape(*argument.shape, *alone)
            full = (*batch, *shape)
            return _computed(*map(_double, every), shape=full, derivative=(in_z, in_alpha, in_beta))

        return member

    arguments = tuple(_floating(value) for _, value in learned)
    like = max(arguments, key=lambda value: value.ndim)  # the first of the result's own shape, if there is one
    return placed_like(like, lambda *given: family_in_float64(family, given, dtype), *arguments)


@partial(jax.jit, static_argnames=("shape", "derivative"))
def _computed(z: Array, alpha: Array, beta: Array, *, shape: tuple[int, ...], derivative: Orders) -> Array:
    """Return d^i/dz^i d^j/dalpha^j d^k/dbeta^k E_(alpha, beta)(z), in double precision, for `derivative` (i, j, k).

    Arguments broadcast to `shape`, which the result has; it is NaN where alpha or beta is out of range.
    """
    alpha = jnp.where(is_wrong_alpha(alpha), jnp.nan, alpha)
    beta = jnp.where(is_wrong_beta(beta), jnp.nan, beta)

    def each(value: Array) -> Array:
        return jnp.broadcast_to(value, shape).reshape(-1)

    points = each(z)
    if points.size == 0:
        return jnp.zeros_like(points).reshape(shape)
    given = {"alpha": alpha, "beta": beta}
    shared = {name: value for name, value in given.items() if value.ndim == 0}
    own = {"points": points, **{name: each(value) for name, value in given.items() if value.ndim}}

    def of_chunk(chunk: dict[str, Array]) -> Array:
        return _combined(**shared, **chunk, derivative=derivative)

    count = -(-points.size // _CHUNK)
    if count == 1:
        return of_chunk(own).reshape(shape)
    rest = count * _CHUNK - points.size
    chunks = {name: jnp.pad(value, (0, rest), mode="edge").reshape(count, _CHUNK) for name, value in own.items()}
    return jax.lax.map(of_chunk, chunks).reshape(-1)[: points.size].reshape(shape)


def _combined(points: Array, alpha: Array, beta: Array, derivative: Orders) -> Array:
    options = Options(block=points.size)
    return combined(points, derivative, lambda m, n: partial_derivative(points, alpha, beta, m, n, JAX, options))


def fractional_fourier(x: Any, order: Any, dim: int, centred: bool) -> Array:
    """Return the fractional Fourier transform; see `fractional.special.functions`."""
    owner = "fractional_fourier"
    samples, orders = jnp.asarray(_numbers(owner, "x", x)), _numbers(owner, "order", order)
    _check_real(owner, order=orders)
    axis = errors.axis(owner, dim, samples.ndim)
    check_shapes(owner, samples.shape, axis, jnp.shape(orders))
    is_double = samples.dtype in (jnp.float64, jnp.complex128)
    data = jnp.moveaxis(samples, axis, -1).astype(jnp.complex128 if is_double else jnp.complex64)
    data = jnp.fft.ifftshift(data, axes=-1) if centred else data
    result = _by_number(data, float(orders)) if _is_number(orders) else _by_array(data, _floating(jnp.asarray(orders)))
    return jnp.moveaxis(jnp.fft.fftshift(result, axes=-1) if centred else result, -1, axis)


def _is_number(order: Any) -> bool:
    return not isinstance(order, jax.Array) and np.ndim(order) == 0


def _by_number(x: Array, order: float) -> Array:
    whole = nearest("fractional_fourier", order)
    if order == whole:
        return _turned(x, whole % 4, None)
    chirps = fixed_chirps(order - whole, x.shape[-1], x.dtype)
    return _turned(x, whole % 4, chirps)


@partial(jax.jit, static_argnames="whole")
def _turned(x: Array, whole: int, chirps: tuple[Array, Array] | None) -> Array:
    with jax.numpy_rank_promotion("allow"):  # a formula of NumPy's too
        return transformed(x, whole, chirps, JAX)


@jax.jit
def _by_array(x: Array, order: Array) -> Array:
    """Return the fractional Fourier transform of complex x over its last axis, for orders in an array.

    The orders broadcast to the other axes of x, and may be traced.
    """
    return unplaced(_by_orders, x, order)


def _by_orders(x: Array, order: Array) -> Array:
    whole = jnp.round(jax.lax.stop_gradient(order))
    n = x.shape[-1]
    chirps = in_float64(lambda rest: chirps_of(rest, n, JAX), order - whole, x.dtype)
    with jax.numpy_rank_promotion("allow"):  # a formula of NumPy's too
        return transformed(x, whole % 4, chirps, JAX)


def _numbers(owner: str, name: str, value: Any) -> Any:
    """Return the value if it is a JAX array, a number or a numeric NumPy array, else raise TypeError."""
    if isinstance(value, jax.Array | int | float | complex):
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{owner}({name}: masked array): needs all values; pass {name}.filled(value) for the gaps.")
    found = np.asarray(value) if isinstance(value, _ARRAYS) else np.empty(0, object)
    if found.dtype.kind not in "iufc":
        raise TypeError(f"{owner}({name}={value!r}): needs numbers; pass a number or an array.")
    return found


def _check_real(owner: str, **values: Any) -> None:
    for name, value in values.items():
        if jnp.iscomplexobj(value):
            dtype = jnp.result_type(value)
            raise TypeError(f"{owner}({name} of dtype {dtype}): needs real numbers; pass {name}.real.")


def _checked(owner: str, alpha: Any, beta: Any) -> list[Any]:
    """Return [alpha, beta], with a check of their range added to traced ones, which raises under `checkify`.

    Elsewhere such a check does nothing, and values out of range give NaN.
    """
    found = []
    for name, value, is_wrong, allowed in (
        ("alpha", alpha, is_wrong_alpha, "0 < alpha <= 2"),
        ("beta", beta, is_wrong_beta, "-1 <= beta <= 5"),
    ):
        if isinstance(value, jax.core.Tracer):
            message = f"{owner}({name}={{value}}): needs {allowed}; see its docstring for the way there."
            value = checked(value, ~jnp.any(is_wrong(value)), message, value=value)
        found.append(value)
    return found


def _floating(value: Array) -> Array:
    """Return an array in a dtype that has derivatives: integers become floats of the default dtype."""
    return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.result_type(float))


def _double(value: Any) -> Array:
    found = jnp.asarray(value)
    return found.astype(jnp.complex128 if jnp.iscomplexobj(found) else jnp.float64)
