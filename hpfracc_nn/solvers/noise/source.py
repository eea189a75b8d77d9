"""Where random numbers come from: a generator, with the dtype and the device of what it draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace


class Source(Protocol):
    """What a framework offers to the noises; each draw is in the source's dtype."""

    @property
    def xp(self) -> Namespace: ...

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Return uniform numbers in (0, 1), neither end among them."""
        ...

    def exponential(self, shape: tuple[int, ...]) -> Array:
        """Return exponential numbers of mean 1, all positive."""
        ...

    def poisson(self, mean: float, shape: tuple[int, ...]) -> Array:
        """Return Poisson counts, as floating numbers."""
        ...

    def gamma(self, concentration: Array) -> Array:
        """Return gamma numbers of scale 1, one for each concentration; 0 where that is 0."""
        ...

    def cast(self, x: Any) -> Array:
        """Return numbers, or an array of the namespace, in the source's dtype and on its device."""
        ...

    def time_first(self, x: Array) -> Array:
        """Return [..., n] as [n, ...]."""
        ...


@dataclass(frozen=True)
class NumpySource:
    """NumPy's source.

    Attributes:
        rng: The generator.
        dtype: float64 or float32.
    """

    rng: np.random.Generator
    dtype: type[np.floating[Any]] = np.float64

    @property
    def xp(self) -> Namespace:
        return NUMPY

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

    def time_first(self, x: np.ndarray) -> np.ndarray:
        """See `Source.time_first`."""
        return np.ascontiguousarray(np.moveaxis(x, -1, 0))
