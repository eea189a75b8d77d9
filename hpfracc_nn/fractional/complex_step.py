"""Derivatives of NumPy formulas by a step into the complex plane: exact to rounding, at twice the cost of a value.

For an analytic f that is real on the real axis, Im f(p + i h) / h is f'(p) up to h**2, and nothing is subtracted, so
that h may be as small as one likes.

Squire & Trapp, SIAM Review 40 (1998) 110.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import special

from hpfracc_nn.fractional.namespace import NumpyNamespace

_STEP = 1e-30


class ComplexNamespace(NumpyNamespace):
    """NumPy's instance for complex arguments near the real axis."""

    lgamma = staticmethod(special.loggamma)

    def asarray(self, value: Any) -> np.ndarray:
        return np.asarray(value, dtype=np.complex128)


COMPLEX = ComplexNamespace()


def slope(formula: Callable[[np.ndarray, NumpyNamespace], np.ndarray], alpha: np.ndarray) -> np.ndarray:
    """Return the derivative of each of the formula's numbers in the one entry of alpha that it depends on."""
    return np.imag(formula(alpha + 1j * _STEP, COMPLEX)) / _STEP
