"""Sources of random numbers: a framework's generator, with the dtype and the device of the numbers that are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace

Formulas = Callable[..., tuple[Array, ...]]  # called with a namespace and parameters, arrays of this namespace


class Source(Protocol):
    """A framework's random numbers, as the noises draw them; all are in the source's dtype.

    Attributes:
        xp: The framework's namespace of array functions.
        at_once: How many complex numbers are drawn and transformed together at most.
    """

    @property
    def xp(self) -> Namespace: ...
    @property
    def at_once(self) -> int: ...

    def computed(self, formulas: Formulas, *parameters: Any) -> tuple[Array, ...]:
        """Return formulas(xp, *parameters), computed in float64, in the source's dtype.

        Args:
            formulas: Called as formulas(xp, *parameters); returns arrays [*c, ...], whose entries at an index of [*c]
                depend on the parameters at this index alone.
            parameters: Numbers, or arrays that may be learned; [*c], or one number for all of [*c].
        """
        ...

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return independent standard normal numbers, an array of the given shape."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Return uniform numbers in (0, 1), none of which is 0 or 1, in the given shape."""
        ...

    def exponential(self, shape: tuple[int, ...]) -> Array:
        """Return exponential numbers of mean 1, all of them positive, in the given shape."""
        ...

    def poisson(self, mean: float, shape: tuple[int, ...]) -> Array:
        """Return Poisson counts of the given mean as floating numbers, in the given shape."""
        ...

    def gamma(self, concentration: Array) -> Array:
        """Return gamma numbers of scale 1, one for each entry of `concentration`; 0 where the concentration is 0."""
        ...

    def cast(self, x: Any) -> Array:
        """Return x, numbers or an array, as an array in the source's dtype and on its device."""
        ...

    def complex_normal(self, shape: tuple[int, ...], scale: Array) -> Array:
        """Return `scale` times complex numbers whose real and imaginary parts are independent and standard normal.

        Args:
            shape: The shape of the result.
            scale: An array of the framework or of NumPy, which broadcasts to `shape`.
        """
        ...

    def by_time(self, pairs: Iterable[Array], count: int) -> Array:
        """Return the real and imaginary parts of complex arrays [m, ..., n] as one real array, [n, 2 count, ...].

        Args:
            pairs: The complex arrays, with time as their last axis. Each adds its m real parts, then its m imaginary
                parts, along the second axis of the result.
            count: The sum of all m, at least 1.
        """
        ...

    def joined(self, some: list[Array], axis: int) -> Array:
        """Return the arrays `some` concatenated along `axis`."""
        ...


CACHED = 1 << 15  # complex numbers: 512 KiB in double precision, which stay in the cache


@dataclass(frozen=True)
class NumpySource:
    """A source of random numbers of NumPy.

    Attributes:
        rng: The generator that all numbers are drawn from.
        dtype: The dtype of the numbers, float64 or float32.
    """

    rng: np.random.Generator
    dtype: type[np.floating[Any]] = np.float64

    at_once = CACHED

    @property
    def xp(self) -> Namespace:
        return NUMPY

    def computed(self, formulas: Formulas, *parameters: Any) -> tuple[np.ndarray, ...]:
        """See `Source.computed`."""
        found = formulas(NUMPY, *(np.asarray(each, np.float64) for each in parameters))
        return tuple(self.cast(each) for each in found)

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """See `Source.normal`."""
        return self.rng.standard_normal(shape, self.dtype)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """See `Source.uniform`."""
        eps = np.finfo(self.dtype).eps
        found = self.rng.random(shape, self.dtype) + self.dtype(eps / 4)  # in the middle of its cell, not on its edge
        return np.minimum(found, self.dtype(1 - eps / 2))

    def exponential(self, shape: tuple[int, ...]) -> np.ndarray:
        """See `Source.exponential`."""
        return -np.log(self.uniform(shape))

    def poisson(self, mean: float, shape: tuple[int, ...]) -> np.ndarray:
        """See `Source.poisson`."""
        return self.rng.poisson(mean, shape).astype(self.dtype)

    def gamma(self, concentration: np.ndarray) -> np.ndarray:
        """See `Source.gamma`."""
        return self.rng.standard_gamma(concentration).astype(self.dtype)

    def cast(self, x: Any) -> np.ndarray:
        """See `Source.cast`."""
        return np.asarray(x, self.dtype)

    def complex_normal(self, shape: tuple[int, ...], scale: np.ndarray) -> np.ndarray:
        """See `Source.complex_normal`."""
        pairs = self.normal((*shape, 2)) * self.cast(scale)[..., None]
        return pairs.view(np.result_type(self.dtype, np.complex64))[..., 0]

    def by_time(self, pairs: Iterable[np.ndarray], count: int) -> np.ndarray:
        """See `Source.by_time`."""
        both = [np.moveaxis(part, -1, 0) for x in pairs for part in (x.real, x.imag)]
        return np.concatenate(both, 1)

    def joined(self, some: list[np.ndarray], axis: int) -> np.ndarray:
        """See `Source.joined`."""
        return np.concatenate(some, axis)
