"""Linear equations with several orders, as a system with one order for each entry of its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from hpfracc_nn import errors
from hpfracc_nn.solvers.multi_term import Terms

Forcing = Callable[[Tensor, Tensor], Tensor | float]


class MultiTerm(Terms):
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

    Examples:
        >>> # by which y is t**2
        >>> forcing = lambda t, y: 2 + 2 * (t / torch.pi) ** 0.5 + t**2 / 2
        >>> equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, forcing)  # Bagley and Torvik's
        >>> rest = torch.zeros(1, dtype=torch.float64)
        >>> y = fdeint(
        ...     equation, equation.state(rest, rest), np.linspace(0, 1, 201), equation.alpha
        ... )[..., 0]
        >>> round(y[-1].item(), 3)
        1.0
    """

    def __init__(self, terms: Mapping[float, float | Tensor], forcing: Forcing | None = None):
        super().__init__(terms)
        self.forcing = None if forcing is None else errors.function("MultiTerm", "forcing", forcing)

    @property
    def alpha(self) -> Tensor:
        """The order of each entry of the state, [entries], float64."""
        return torch.from_numpy(self.orders)

    def state(self, *initial: Tensor) -> Tensor:
        """Return the state at the start.

        Args:
            initial: y and its whole derivatives below the highest order, tensors of one shape.

        Raises:
            ValueError: There are more or fewer.
        """
        return torch.stack(self.entries(initial, torch.zeros_like(initial[0]) if initial else None), -1)

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the derivatives of all entries."""
        entries: Sequence[Tensor] = x.unbind(-1)
        y = entries[0]
        return torch.stack(
            self.slopes(entries, torch.zeros_like(y) if self.forcing is None else self._forced(t, y)), -1
        )

    def _forced(self, t: Tensor, y: Tensor) -> Tensor:
        assert self.forcing is not None, "there is one"
        found = self.forcing(t, y)
        if isinstance(found, Tensor):
            found = found.to(y.dtype)
        else:  # its own dtype would be single
            found = torch.as_tensor(found, dtype=y.dtype, device=y.device)
        self.check_forcing(tuple(found.shape), tuple(y.shape), f"at t={float(t):g} ")
        return found.expand(y.shape)
