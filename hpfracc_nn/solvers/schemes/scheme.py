"""What a scheme for D^a y = f(t, y) is: weights of the past right-hand sides, and how a step uses them.

Caputo's problem is y(t) = P(t) + I^a f, P the Taylor polynomial of y at the start. On a mesh every scheme here reads

    m_n[c] = P(t_n) + sum over j < n of W[c, n, j] f_j,        one memory for each of its sets of weights c,

and makes y_n of the memories and of the weight W[c, n, n] on f_n itself. On a uniform mesh W is Toeplitz but for the
first columns. The classes hold numbers and formulas; frameworks bring the loop.

Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpfracc_nn.fractional.namespace import Array, Namespace


@dataclass(frozen=True, eq=False)
class Weights:
    """The weights of a scheme on a uniform mesh.

    Attributes:
        columns: By lag from 0 on, [a, sets, n_steps + 1]: a orders alpha, and as many sets as the scheme has memories.
        starts: What the first right-hand sides get at every step besides, [a, sets, n_steps + 1, k], or None.
    """

    columns: Array
    starts: Array | None


class Scheme(Protocol):
    """One way to take steps; a frozen value.

    Attributes:
        name: By which it is chosen.
        sets: How many memories a step needs.
        is_implicit: Whether a step solves an equation for y_n.
        needs_uniform: Why it needs a uniform mesh, or None.

    Examples:
        >>> from hpfracc_nn.fractional.namespace import NUMPY
        >>> scheme = Trapezoid()
        >>> scheme.order(0.5), scheme.is_implicit
        (1.5, True)
        >>> weights = scheme.weights(np.array([1.0]), 3, 0.1, NUMPY)
        >>> # the trapezoid rule, half a step to f_0 and to f_n
        >>> weights.columns[0, 0], weights.starts[0, 0, :, 0]
        (array([0.05, 0.1 , 0.1 , 0.1 ]), array([ 0.  , -0.05, -0.05, -0.05]))
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...
    @property
    def sets(self) -> int: ...
    @property
    def is_implicit(self) -> bool: ...
    @property
    def needs_uniform(self) -> str | None: ...

    def order(self, alpha: float) -> float:
        """Return the order of convergence at a fixed time on a uniform mesh, for y that begins like t**alpha."""
        ...

    def weights(self, alpha: Array, n_steps: int, dt: float, xp: Namespace) -> Weights:
        """Return the weights for orders alpha [a] on a uniform mesh."""
        ...

    def block(self, alpha: Array, times: np.ndarray, rows: range, columns: range, xp: Namespace) -> Array:
        """Return W of any mesh for steps `rows` and right-hand sides `columns`, [a, sets, rows, columns]."""
        ...


def lags(n_steps: int) -> np.ndarray:
    """Return 0, 1, ..., n_steps."""
    return np.arange(n_steps + 1)


def scaled(weights: Array, alpha: Array, dt: float, xp: Namespace) -> Array:
    """Return weights [a, k] times dt**alpha."""
    return weights * xp.exp(alpha * float(np.log(dt)))[..., None]
