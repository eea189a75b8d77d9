"""Linear equations with several orders, as a system with one order for each entry of its state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Forcing = Callable[[Tensor, Tensor], Tensor | float]


class MultiTerm:
    """The right-hand side of sum over a of c_a D^a y = forcing(t, y), Caputo's derivatives.

    The state has one axis more than y, at its end, with y and its derivatives of the orders `derivatives`: those of the
    terms and every whole number below the highest. Each is the derivative of the one before it, of order `alpha` of 0
    to 1, so that `fdeint` solves it with one alpha for each entry.

    Args:
        terms: Coefficients by order: orders from 0 on, coefficients numbers or tensors. That of the highest is not 0.
        forcing: Called as forcing(t, y): a tensor like y, or a number or a tensor that broadcasts to it; None is 0.

    Raises:
        ValueError: There is no order above 0, or one is negative or not finite.

    Source: Diethelm & Ford, BIT 42 (2002) 490; Edwards, Ford & Simpson, J. Comput. Appl. Math. 148 (2002) 401.

    Example:
        >>> equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, lambda t, y: torch.full_like(y, 8.0))  # Bagley-Torvik
        >>> y0 = torch.zeros(1, dtype=torch.float64)
        >>> ts = torch.linspace(0, 5, 501, dtype=torch.float64)
        >>> y = fdeint(equation, equation.state(y0, y0), ts, equation.alpha)[..., 0]
    """

    def __init__(self, terms: Mapping[float, float | Tensor], forcing: Forcing | None = None):
        orders = sorted(float(order) for order in terms)
        if not orders or not all(0 <= order < math.inf for order in orders) or orders[-1] == 0:
            raise ValueError(
                f"MultiTerm(terms of orders {orders}): needs finite orders from 0 on and one above 0; pass for example "
                "{1.5: 1.0, 0: 2.0}."
            )
        self.highest = orders[-1]
        self.derivatives = sorted({0.0, *orders[:-1], *map(float, range(math.ceil(self.highest)))})
        self.forcing = forcing
        self._top = terms[next(order for order in terms if float(order) == self.highest)]
        self._lower = [
            (self.derivatives.index(float(order)), c) for order, c in terms.items() if float(order) != self.highest
        ]

    @property
    def alpha(self) -> Tensor:
        """The order of each entry of the state, [entries], float64."""
        orders = torch.tensor([*self.derivatives, self.highest], dtype=torch.float64)
        return orders.diff()

    def state(self, *initial: Tensor) -> Tensor:
        """Return the state at the start.

        Args:
            initial: y and its whole derivatives below the highest order, tensors of one shape.

        Raises:
            ValueError: There are more or fewer.
        """
        count = math.ceil(self.highest)
        if len(initial) != count:
            raise ValueError(
                f"MultiTerm.state({len(initial)} values): needs {count} of them, y and its whole derivatives below "
                f"order {self.highest:g}; pass one for each."
            )
        nothing = torch.zeros_like(initial[0])
        entries = [initial[int(order)] if order.is_integer() else nothing for order in self.derivatives]
        return torch.stack(entries, -1)

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the derivatives of all entries."""
        entries: Sequence[Tensor] = x.unbind(-1)
        y = entries[0]
        last = torch.zeros_like(y) if self.forcing is None else self._forced(t, y)
        for index, c in self._lower:
            last = last - c * entries[index]
        return torch.stack([*entries[1:], last / self._top], -1)

    def _forced(self, t: Tensor, y: Tensor) -> Tensor:
        assert self.forcing is not None, "there is one"
        found = self.forcing(t, y)
        found = found.to(y.dtype) if isinstance(found, Tensor) else torch.as_tensor(found).to(y)
        padded = (1,) * (y.ndim - found.ndim) + tuple(found.shape)
        if len(padded) != y.ndim or any(size not in (1, y.shape[axis]) for axis, size in enumerate(padded)):
            raise ValueError(
                f"MultiTerm(forcing): needs the shape of y, {tuple(y.shape)}, or one that broadcasts to it; at "
                f"t={float(t):g} it returned {tuple(found.shape)}; return a number for each entry of y, or one for all."
            )
        return found.expand(y.shape)
