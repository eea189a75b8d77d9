"""Linear equations with several orders, as a system with one order for each entry of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.solvers.multi_term import Terms

Forcing = Callable[[Array, Array], Array | float]


class MultiTerm(Terms):
    """The right-hand side of sum over a of c_a D^a y = forcing(t, y), Caputo's derivatives.

    The state has one axis more than y, at its end, with y and its derivatives of the orders `derivatives`: those of the
    terms and every whole number below the highest. Each is the derivative of the one before it, of order `alpha` of 0
    to 1, so that `fdeint` solves it with one alpha for each entry.

    Args:
        terms: Coefficients by order: orders from 0 on, coefficients numbers or arrays, which may be traced. That of the
            highest is not 0.
        forcing: Called as forcing(t, y): an array like y, or a number or an array that broadcasts to it; None is 0.

    Raises:
        ValueError: There is no order above 0, or an order is negative or not finite.

    Source: Diethelm & Ford, BIT 42 (2002) 490; Edwards, Ford & Simpson, J. Comput. Appl. Math. 148 (2002) 401.

    Examples:
        >>> forcing = lambda t, y: 2 + 2 * (t / jnp.pi) ** 0.5 + t**2 / 2  # by which y is t**2
        >>> equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, forcing)  # Bagley and Torvik's
        >>> rest = jnp.zeros(1)
        >>> y = fdeint(
        ...     equation, equation.state(rest, rest), np.linspace(0, 1, 201), equation.alpha
        ... )[..., 0]
        >>> y[-1].round(3)
        Array([1.], dtype=float32)
    """

    def __init__(self, terms: Mapping[float, float | Array], forcing: Forcing | None = None):
        super().__init__(terms)
        self.forcing = forcing

    @property
    def alpha(self) -> np.ndarray:
        """The order of each entry of the state, [entries], float64."""
        return self.orders

    def state(self, *initial: Array) -> Array:
        """Return the state at the start, [*shape, entries]: y and its derivatives of the orders `derivatives`.

        Args:
            initial: y and its whole derivatives below the highest order, arrays of one shape.

        Raises:
            ValueError: There are more or fewer arrays than the equation has initial values.
        """
        arrays = [jnp.asarray(each) for each in initial]
        return jnp.stack(self.entries(arrays, jnp.zeros_like(arrays[0]) if arrays else None), -1)

    def __call__(self, t: Array, x: Array) -> Array:
        """Return the derivative of each entry of the state x, of the order `alpha` of that entry; like x."""
        entries = [x[..., k] for k in range(x.shape[-1])]
        return jnp.stack([each.astype(x.dtype) for each in self.slopes(entries, self._forced(t, entries[0]))], -1)

    def _forced(self, t: Array, y: Array) -> Array:
        if self.forcing is None:
            return jnp.zeros_like(y)
        found: jax.Array = jnp.asarray(self.forcing(t, y), y.dtype)
        self.check_forcing(found.shape, y.shape)
        return jnp.broadcast_to(found, y.shape)
