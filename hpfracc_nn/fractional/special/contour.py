"""The parabola s(u) = MU (1 + i u)**2 and the trapezoidal rule on it, for integrals exp(s) f(s) ds / (2 pi i).

The step is h = 2 pi / RATE. At the vertex the integrand is exp(MU) times f, which is what rounding costs. A branch
point at s = 0 costs about exp(-RATE) (RATE**2 / MU)**p / Gamma(2 p) where f behaves like s**-p there; the nodes end
where exp(s) is exp(-TAIL).

Weideman & Trefethen, Parabolic and hyperbolic contours for computing the Bromwich integral, Math. Comp. 76 (2007).
"""

from __future__ import annotations

import math

import numpy as np

MU = 2.0
RATE = 52.0
TAIL = 40.0

_LAST = math.ceil(math.sqrt(1 + TAIL / MU) * RATE / (2 * math.pi))


def _rule(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log s and the weight at the nodes u = index h."""
    step = 2 * math.pi / RATE
    root = 1 + 1j * step * index
    return np.log(MU) + 2 * np.log(root), step * MU / math.pi * np.exp(MU * root**2) * root


def _rules(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the same [2, nodes] for nodes at `index` and half a step further."""
    logs, weights = zip(_rule(index), _rule(index + 0.5), strict=True)
    return np.stack(logs), np.stack(weights)


# log s and the weights [2, nodes]. Where the integrand at conj(s) is the conjugate, the upper half is enough.
LOGS, WEIGHTS = _rules(np.arange(-_LAST, _LAST + 1.0))
UPPER_LOGS, UPPER_WEIGHTS = _rules(np.arange(_LAST + 1.0))
UPPER_WEIGHTS *= 2
UPPER_WEIGHTS[0, 0] /= 2  # the node on the real axis has no other half
