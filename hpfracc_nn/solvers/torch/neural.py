"""A neural fractional differential equation as a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.mesh import Mesh
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.equation import CaputoEquation
from hpfracc_nn.solvers.torch.ode import solved
from hpfracc_nn.solvers.torch.packing import S
from hpfracc_nn.solvers.torch.problem import Progress
from hpfracc_nn.solvers.torch.wrapped import bare


class NeuralFDE(CaputoEquation):
    """y0 to the solution of D^alpha y = f(t, y) at given times, with a learnable alpha.

    Beside a network that is free to change, an order that is learned is a hyper-parameter and no measurement: the
    network makes up for a wrong one. For the order of a process fit a parametric model, by `fit_fde`.

    Args:
        f: The right-hand side, called as f(t, y); its parameters are learned.
        alpha: The order, or orders along some of y0's axes, in (0, 2); the first value where it is learned; or an
            `Alpha`, which then is the order.
        learn_alpha: Whether alpha is a parameter.
        bounds: Where a learned alpha stays; None is (0, 1). Where they reach above 1 every call needs dy0; where 1 lies
            inside them dy0 is 0, because the solution jumps by (t - ts[0]) dy0 at alpha = 1, which no gradient sees.
        scheme: As in `fdeint`.
        history: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: As in `fdeint`.
        adjoint: As in `fdeint`.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        device: Of alpha's parameter.
        dtype: Of alpha's parameter; alpha itself is float64.

    Shape:
        y0 [*shape] -> [times, *shape]; times in the caller's unit.

    Raises:
        ValueError: An argument is out of range, or a learned alpha begins outside its bounds.
        TypeError: An argument has the wrong type.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3, for the solver.

    Examples:
        >>> class Field(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(2, 2)
        ...
        ...     def forward(self, t, y):
        ...         return torch.tanh(self.net(y))
        >>> model = NeuralFDE(Field(), alpha=0.8, learn_alpha=True)
        >>> model(torch.zeros(16, 2), torch.linspace(0, 1, 51)).shape
        torch.Size([51, 16, 2])
    """

    def __init__(
        self,
        f: nn.Module,
        alpha: float | Sequence[float] | Alpha = 0.5,
        *,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        scheme: str | Scheme = "predictor_corrector",
        history: str | History = "auto",
        mesh: str | Mesh = "uniform",
        n_steps: int | None = None,
        adjoint: bool = True,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            scheme=scheme,
            history=history,
            mesh=mesh,
            n_steps=n_steps,
            adjoint=adjoint,
            manager=manager,
            device=device,
            dtype=dtype,
        )
        self.f = errors.function("NeuralFDE", "f", f)

    def forward(
        self,
        y0: S,
        ts: Tensor | Sequence[float],
        dy0: S | None = None,
        *,
        progress: Progress | None = None,
    ) -> S:
        """Return the states at `ts`, time first; arguments as in `fdeint`."""
        self._check_slope(dy0)
        found: S = solved(
            self.f,
            y0,
            ts,
            self.drawn(),
            self.method,
            self.site,
            self.n_steps,
            dy0,
            self.adjoint,
            progress=progress,
        )
        return found

    def _check_slope(self, dy0: Any) -> None:
        """Raise unless there is a derivative at the start where an order may be above 1, and only there."""
        if self.order is None:
            checks.orders("NeuralFDE", self.alpha.numpy(), dy0 is not None)
            return
        low, high = self.order.bounds
        if high <= 1:
            checks.orders("NeuralFDE", np.array([high]), dy0 is not None)
        elif dy0 is None:
            raise ValueError(
                f"NeuralFDE(bounds={(low, high)}): needs the derivative at the start where a learned order may be "
                "above 1; pass dy0 to the call, zeros for a state at rest, or bounds up to 1."
            )
        elif low < 1 and any(bool(bare(part).any()) for part in (dy0 if isinstance(dy0, tuple) else (dy0,))):
            raise ValueError(
                f"NeuralFDE(bounds={(low, high)}): needs dy0 = 0 where 1 lies between the bounds, because the solution "
                "jumps by (t - ts[0]) dy0 at alpha = 1, which no gradient sees; pass zeros, or bounds on one side of 1."
            )
