"""Linear equations with several orders, as a system with one order for each entry of its state; without a framework."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpfracc_nn import errors


class Terms:
    """The terms of sum over a of c_a D^a y, and the entries of the system that they make.

    Args:
        terms: The coefficients c_a by order a.

    Attributes:
        highest: The highest order.
        derivatives: For each entry of the system, the order of the derivative of y that it holds; increasing from 0.

    Raises:
        ValueError: There is no order above 0, or one is negative or not finite.

    Source: Diethelm & Ford, BIT 42 (2002) 490; Edwards, Ford & Simpson, J. Comput. Appl. Math. 148 (2002) 401.
    """

    def __init__(self, terms: Mapping[float, Any]):
        if not isinstance(terms, Mapping):
            raise TypeError(
                f"MultiTerm(terms={terms!r}): needs coefficients by order; pass a dict such as {{1.5: 1.0, 0: 2.0}}."
            )
        found = [errors.as_float(order) for order in terms]
        orders = sorted(order for order in found if order is not None)
        if len(orders) < len(found):
            raise TypeError(
                f"MultiTerm(terms of orders {list(terms)}): needs numbers for orders; pass for example "
                "{1.5: 1.0, 0: 2.0}."
            )
        if not orders or not all(0 <= order < math.inf for order in orders) or orders[-1] == 0:
            raise ValueError(
                f"MultiTerm(terms of orders {orders}): needs finite orders from 0 on and one above 0; pass for example "
                "{1.5: 1.0, 0: 2.0}."
            )
        self.highest = orders[-1]
        self.derivatives = sorted({0.0, *orders[:-1], *map(float, range(math.ceil(self.highest)))})
        given = [(float(order), c.item() if _is_number(c) else c) for order, c in terms.items()]
        self._top = next(c for order, c in given if order == self.highest)
        self._lower = [(self.derivatives.index(order), c) for order, c in given if order != self.highest]

    @property
    def orders(self) -> np.ndarray:
        """The order alpha of each entry's own equation: the next entry, or y's highest derivative, is its D^alpha.

        Shape [entries], float64.
        """
        return np.diff([*self.derivatives, self.highest])

    def entries(self, initial: Sequence[Any], nothing: Any) -> list[Any]:
        """Return the entries of the system at the start.

        Args:
            initial: y and its derivatives of whole order below the highest order.
            nothing: The value of the entries of fractional order: zeros.

        Raises:
            ValueError: `initial` holds more or fewer values than there are such derivatives.
        """
        count = math.ceil(self.highest)
        if len(initial) != count:
            raise ValueError(
                f"MultiTerm.state({len(initial)} values): needs {count} of them, y and its whole derivatives below "
                f"order {self.highest:g}; pass one for each."
            )
        return [initial[int(order)] if order.is_integer() else nothing for order in self.derivatives]

    def slopes(self, entries: Sequence[Any], forcing: Any) -> list[Any]:
        """Return the right-hand side of the system: each entry's derivative of its own order, see `orders`.

        Args:
            entries: The entries of the state, each of y's shape.
            forcing: The right-hand side of the equation, which its terms add up to, of y's shape.
        """
        last = forcing
        for index, c in self._lower:
            last = last - c * entries[index]
        return [*entries[1:], last / self._top]

    def check_forcing(self, found: tuple[int, ...], shape: tuple[int, ...], t: str = "") -> None:
        """Raise ValueError unless a forcing of shape `found` broadcasts to y of shape `shape`.

        Args:
            found: The shape of what the forcing returned.
            shape: The shape of y.
            t: Words that say at which time, for the message, such as "at t=0.5 "; may be empty.

        Raises:
            ValueError: The forcing does not broadcast to y.
        """
        padded = (1,) * (len(shape) - len(found)) + tuple(found)
        if len(padded) != len(shape) or any(size not in (1, shape[axis]) for axis, size in enumerate(padded)):
            raise ValueError(
                f"MultiTerm(forcing): needs the shape of y, {tuple(shape)}, or one that broadcasts to it; {t}it "
                f"returned {tuple(found)}; return a number for each entry of y, or one for all."
            )


def _is_number(c: Any) -> bool:
    """Return whether a coefficient is a NumPy array without axes, which a tensor cannot be multiplied by."""
    return isinstance(c, np.ndarray) and c.ndim == 0
