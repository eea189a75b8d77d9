"""What modules share that solve D^alpha y = f(t, y): the order, fixed or learned, the method, and the site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.fractional.torch.tracing import is_watched
from hpfracc_nn.selection import BackendManager, given_manager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.mesh import Mesh
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch import in_graph
from hpfracc_nn.solvers.torch.arguments import order_numbers
from hpfracc_nn.solvers.torch.ode import solved


class CaputoEquation(nn.Module):
    """An equation whose right-hand side is still to be said; `NeuralFDE` and the layers made of a solve are such.

    Args:
        alpha: As in `NeuralFDE`.
        learn_alpha: As there.
        bounds: As there.
        scheme: As in `fdeint`.
        history: As in `fdeint`.
        mesh: As in `fdeint`.
        n_steps: As in `fdeint`.
        adjoint: As in `fdeint`.
        manager: Who chooses the kernel; None is the process-wide BackendManager.
        device: Of alpha's parameter.
        dtype: Of alpha's parameter; alpha itself is float64.

    Raises:
        ValueError: An argument is out of range, or a learned alpha begins outside its bounds.
    """

    def __init__(
        self,
        alpha: float | Sequence[float] | Alpha,
        *,
        learn_alpha: bool,
        bounds: tuple[float, float] | None,
        scheme: str | Scheme,
        history: str | History,
        mesh: str | Mesh,
        n_steps: int | None,
        adjoint: bool,
        manager: BackendManager | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.method = Method.of(owner, scheme, history, mesh)
        self.n_steps = None if n_steps is None else errors.count(owner, "n_steps", n_steps)
        self.adjoint = errors.claim(owner, "adjoint", adjoint)
        errors.claim(owner, "learn_alpha", learn_alpha)
        check_place(owner, device, dtype)
        self._fixed: Any = None  # no buffer: model.float() would round it
        self.order: Alpha | None = None
        if isinstance(alpha, Alpha):
            _check_bounds(owner, alpha.taken_by(owner, bounds, alpha.shape))
            self.order = alpha
        else:
            values = order_numbers(owner, alpha)
            if not ((values > 0) & (values < 2)).all():
                raise ValueError(f"{owner}(alpha={alpha}): needs 0 < alpha < 2; pass for example 0.5.")
            if learn_alpha:
                low, high = _check_bounds(owner, (0.0, 1.0) if bounds is None else bounds)
                self.order = Alpha(values.tolist(), (low, high), values.shape, owner=owner, device=device, dtype=dtype)
            else:
                self._fixed = values.tolist()
        self.learn_alpha = self.order is not None
        self.site = given_manager(owner, manager).site(self.method.op, "torch")

    @property
    def alpha(self) -> Tensor:
        """The order in real units, float64; of a random one its mean."""
        return self._fixed_alpha() if self.order is None else self.order.mean

    def drawn(self) -> Tensor:
        """Return the order of one solve: alpha, or what a random one draws."""
        return self._fixed_alpha() if self.order is None else self.order()

    def last(self, f: Callable[[Tensor, Tensor], Tensor], y0: Tensor, t1: float) -> Tensor:
        """Return the state at t1 of a solve from 0 on in `n_steps` equal steps, wherever torch runs.

        Where a compiler looks, and where there are no numbers to look at, steps are those of `in_graph`.

        Args:
            f: The right-hand side.
            y0: The state at 0, float32 or float64.
            t1: The end, in the unit of f's time.
        """
        assert self.n_steps is not None, "a layer says how many steps it takes"
        if torch.compiler.is_compiling() or is_watched(y0) or y0.is_meta or y0.numel() == 0:
            return in_graph.last(type(self).__name__, f, y0, self.drawn(), t1, self.n_steps, self.method.scheme)
        states: Tensor = solved(
            f, y0, (0.0, t1), self.drawn(), self.method, self.site, self.n_steps, adjoint=self.adjoint
        )
        return states[-1]

    def _fixed_alpha(self) -> Tensor:
        return torch.tensor(self._fixed, dtype=torch.float64, device="cpu")

    def extra_repr(self) -> str:
        kind = "learn_alpha=True" if self.learn_alpha else f"alpha={self._fixed}"
        method = self.method
        return (
            f"{kind}, scheme={method.scheme.name!r}, history={method.history.name!r}, "
            f"mesh={type(method.mesh).__name__.lower()!r}, n_steps={self.n_steps}"
        )


def _check_bounds(owner: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """Return bounds of an order, or raise."""
    low, high = bounds
    if not 0 <= low < high <= 2:
        raise ValueError(
            f"{owner}(bounds={bounds}): needs 0 <= low < high <= 2; pass for example (0, 1), or (1, 2) where dy0 is "
            "given."
        )
    return low, high
