"""Noise in JAX: increments drawn as pure functions of a key, or passed as arrays or as Brownian paths of diffrax."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn import errors
from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.float64 import jointly_in_float64
from hpfracc_nn.fractional.jax.sharding import unplaced
from hpfracc_nn.fractional.namespace import NUMPY, Namespace
from hpfracc_nn.solvers.noise import Given, Noise
from hpfracc_nn.solvers.noise.noise import fits, is_tensor
from hpfracc_nn.solvers.noise.source import Formulas
from hpfracc_nn.solvers.sde import OWNER


class JaxSource:
    """JAX's `solvers.noise.Source` of random numbers: each draw splits a new key off, in the order of the draws.

    Args:
        key: The key that all draws are split from.
        dtype: The dtype of what is drawn, float64 or float32.
    """

    at_once = sys.maxsize  # one call, however much: a loop would be unrolled into the program

    def __init__(self, key: Array, dtype: Any):
        self._key, self.dtype = key, jnp.dtype(dtype)

    @property
    def xp(self) -> Namespace:
        return JAX

    def _next(self) -> Array:
        self._key, key = jax.random.split(self._key)
        return key

    def computed(self, formulas: Formulas, *parameters: Any) -> tuple[Array, ...]:
        """See `Source.computed`; the formulas are computed by NumPy where all parameters are numbers."""
        if not any(is_tensor(each) for each in parameters):
            found = formulas(NUMPY, *(np.asarray(each, np.float64) for each in parameters))
            return tuple(self.cast(each) for each in found)
        arrays = [each if is_tensor(each) else jnp.asarray(each, self.dtype) for each in parameters]
        return jointly_in_float64(partial(_for_each, formulas), tuple(arrays), self.dtype)  # type: ignore[no-any-return]

    def normal(self, shape: tuple[int, ...]) -> Array:
        """See `Source.normal`."""
        return jax.random.normal(self._next(), shape, self.dtype)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """See `Source.uniform`."""
        eps = float(jnp.finfo(self.dtype).eps)
        found = jax.random.uniform(self._next(), shape, self.dtype) + eps / 4  # in the middle of its cell
        return jnp.minimum(found, 1 - eps / 2)

    def exponential(self, shape: tuple[int, ...]) -> Array:
        """See `Source.exponential`."""
        return -jnp.log(self.uniform(shape))

    def poisson(self, mean: float, shape: tuple[int, ...]) -> Array:
        """See `Source.poisson`."""
        return jax.random.poisson(self._next(), mean, shape).astype(self.dtype)

    def gamma(self, concentration: Array) -> Array:
        """See `Source.gamma`."""
        is_positive = concentration > 0
        found = jax.random.gamma(self._next(), jnp.where(is_positive, concentration, 1.0), dtype=self.dtype)
        return jnp.where(is_positive, found, 0.0)

    def cast(self, x: Any) -> Array:
        """See `Source.cast`."""
        return jnp.asarray(x, self.dtype)

    def complex_normal(self, shape: tuple[int, ...], scale: Array) -> Array:
        """See `Source.complex_normal`."""
        parts = self.normal((*shape, 2)) * jnp.broadcast_to(self.cast(scale)[..., None], (*shape, 2))
        return jax.lax.complex(parts[..., 0], parts[..., 1])

    def by_time(self, pairs: Iterable[Array], count: int) -> Array:
        """See `Source.by_time`."""
        both = [jnp.moveaxis(part, -1, 0) for x in pairs for part in (x.real, x.imag)]
        return jnp.concatenate(both, 1)

    def joined(self, some: list[Array], axis: int) -> Array:
        """See `Source.joined`."""
        return unplaced(partial(jnp.concatenate, axis=axis), some)  # type: ignore[no-any-return]


def _for_each(formulas: Formulas, *parameters: Array) -> tuple[Array, ...]:
    """Return formulas(JAX, *parameters), arrays [*c, ...] each, for parameters that broadcast to [*c].

    `formulas` is called with scalar parameters, under `vmap`.
    """
    arrays = jnp.broadcast_arrays(*parameters)
    shape = arrays[0].shape
    if not shape:
        return formulas(JAX, *arrays)
    found = jax.vmap(partial(formulas, JAX))(*(each.reshape(-1) for each in arrays))
    return tuple(each.reshape(*shape, *each.shape[1:]) for each in found)


def increments(
    noise: Noise, n_steps: int, shape: Sequence[int] = (), *, dt: float, key: Array, dtype: Any = None
) -> Array:
    """Return the increments of a noise over equal steps, [n_steps, *shape].

    A pure function of the key, differentiable in the noise's parameters that are arrays; functions of these parameters
    alone, such as spectra, are computed in float64 whatever the process has enabled.

    Args:
        noise: The noise.
        n_steps: How many steps.
        shape: The shape of one step's increments: batch axes and channels; all entries are independent.
        dt: The step, positive, in the caller's time unit.
        key: The random key, from `jax.random.key`.
        dtype: The dtype of the increments, floating; None is JAX's default. Half precision is drawn in float32.

    Raises:
        ValueError: A number is out of range, `shape` is not that of the noise's parameters, or the dtype not floating.
        TypeError: `key` is no random key.

    Examples:
        >>> from hpfracc_nn.solvers import FractionalBrownian
        >>> dw = increments(
        ...     FractionalBrownian(0.3), 100, (32, 3), dt=0.01, key=jax.random.key(0)
        ... )
        >>> dw.shape, round(float(dw.var()), 2)  # dt**(2 hurst) = 0.063
        ((100, 32, 3), 0.06)
    """
    steps = errors.count("increments", "n_steps", n_steps)
    sizes = tuple(errors.count("increments", "shape", size, 0) for size in shape)
    fits("increments", noise, sizes)
    step = errors.positive_step("increments", dt)
    wanted = jnp.dtype(jax.dtypes.canonicalize_dtype(float) if dtype is None else dtype)
    if not jnp.issubdtype(wanted, jnp.floating):
        raise ValueError(f"increments(dtype={wanted}): needs a floating dtype; pass for example jnp.float32.")
    source = JaxSource(checked_key("increments", key), wanted if wanted.itemsize >= 4 else jnp.float32)
    state = noise.start(steps, sizes, step, source)
    return noise.increments(steps, sizes, step, source, state)[0].astype(wanted)


def paths(noise: Noise, n_steps: int, shape: Sequence[int] = (), *, dt: float, key: Array, dtype: Any = None) -> Array:
    """Return paths of a noise at the times 0, dt, ..., n_steps dt, [n_steps + 1, *shape]: zero, and running sums.

    The sums are those of the increments that `increments` returns for the same key. Arguments and errors are as of
    `increments`.

    Examples:
        >>> from hpfracc_nn.solvers import FractionalBrownian
        >>> x = paths(FractionalBrownian(0.3), 100, (32,), dt=0.01, key=jax.random.key(0))
        >>> x.shape, x[0].any()
        ((101, 32), Array(False, dtype=bool))
    """
    steps = increments(noise, n_steps, shape, dt=dt, key=key, dtype=dtype)
    return jnp.concatenate([jnp.zeros_like(steps[:1]), jnp.cumsum(steps, 0)])


def checked_key(owner: str, key: Any) -> Array:
    """Return `key`, a random key of JAX: a typed key, or an old one, an array of uint32.

    Raises:
        TypeError: `key` is no key.
    """
    is_key = isinstance(key, jax.Array) and (
        jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or jnp.issubdtype(key.dtype, jnp.uint32)
    )
    if not is_key:
        raise TypeError(f"{owner}(key of type {type(key).__name__}): needs a key; pass jax.random.key(0).")
    return key


def as_noise(noise: Any, times: np.ndarray, streams: int, dtype: Any) -> Any:
    """Return the user's `noise` argument as a `Noise`.

    Arrays and paths are taken to be those of Brownian motion. What is none of these is returned as it is.

    Args:
        noise: A `Noise`, which is returned as it is; an array of increments; or a path with diffrax's `evaluate`.
        times: The times of all steps, [n_steps + 1].
        streams: How many normal numbers the scheme needs for each channel and step: 1, or 2.
        dtype: The dtype of the states.

    Raises:
        ValueError: The scheme needs two normal numbers, and the path has no space-time Levy area.
    """
    if isinstance(noise, Noise):
        return noise
    if isinstance(noise, jax.Array | np.ndarray):
        return Given(jnp.asarray(noise, dtype))
    if callable(getattr(noise, "evaluate", None)):
        return Given(_path_increments(noise, jnp.asarray(times, dtype), streams).astype(dtype))
    return noise


def _path_increments(path: Any, times: jax.Array, streams: int) -> jax.Array:
    """Return the increments of a diffrax path over the steps between `times` [n_steps + 1], [n_steps, *shape].

    For two `streams` the result is [n_steps, 2, *shape]: the increments, and independent numbers of the same law, made
    of the path's space-time Levy area.
    """
    if streams == 1:
        return jax.vmap(path.evaluate)(times[:-1], times[1:])  # type: ignore[no-any-return]
    area = getattr(path, "levy_area", None)
    if area is None or not hasattr(_evaluated(path, times), "H"):
        raise ValueError(
            f"{OWNER}(noise of type {type(path).__name__}): needs the space-time Levy area of each step beside its "
            "increment, for this scheme or these weights; pass levy_area=diffrax.SpaceTimeLevyArea to the path, or "
            "scheme='euler' and, below alpha = 1, weights='average'."
        )
    found = jax.vmap(lambda begin, end: path.evaluate(begin, end, use_levy=True))(times[:-1], times[1:])
    # The integral of W over a step h is h (W / 2 + H), and ours h (W + V / sqrt(3)) / 2.
    return jnp.stack([found.W, math.sqrt(12) * found.H], 1)


def _evaluated(path: Any, times: jax.Array) -> Any:
    return jax.eval_shape(lambda: path.evaluate(times[0], times[1], use_levy=True))
