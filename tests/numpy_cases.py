"""What the tests of the NumPy operators share: the kernels, the definitions, the dense float64 oracle."""

from functools import lru_cache

import numpy as np
import pytest

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.numpy import operator  # noqa: F401  registers the kernels
from hpfracc_nn.selection import Kernel, Workload, kernels
from tests.definition_cases import SCHEMES

EPS = np.finfo(float).eps
DT = 0.25
ALPHAS = (0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 1.5, 1.9, 2.0)
SIZES = (1, 2, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 130, 200)


def rng() -> np.random.Generator:
    """Return the same generator for every test."""
    return np.random.default_rng(0)


@lru_cache(maxsize=256)
def matrix(definition: Definition, n: int, dt: float = DT) -> np.ndarray:
    """Return the dense float64 matrix of a definition, read-only."""
    found = definition.stencil(n, dt, NUMPY).as_matrix()
    found.flags.writeable = False
    return found


def _param(kernel: Kernel) -> object:
    """Return a kernel as a parameter; it is skipped where it refuses even the smallest workload."""
    reason = kernel.refuses(Workload("toeplitz", "numpy"))
    return pytest.param(kernel, id=kernel.name, marks=[pytest.mark.skip(reason=reason)] if reason else [])


KERNELS = [_param(kernel) for kernel in kernels("toeplitz", "numpy")]
every_kernel = pytest.mark.parametrize("kernel", KERNELS)
every_scheme = pytest.mark.parametrize(("kind", "scheme"), SCHEMES)
