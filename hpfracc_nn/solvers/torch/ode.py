"""`fdeint`: Caputo's initial value problem for tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import uncompiled
from hpfracc_nn.selection import BackendManager, Site, given_manager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.mesh import Mesh
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.torch.call import Call
from hpfracc_nn.solvers.torch.casts import present, without
from hpfracc_nn.solvers.torch.faults import check_untraced
from hpfracc_nn.solvers.torch.field import RightHandSide
from hpfracc_nn.solvers.torch.packing import S, State
from hpfracc_nn.solvers.torch.problem import Progress


def fdeint(
    f: RightHandSide,
    y0: S,
    ts: Tensor | Sequence[float] | np.ndarray,
    alpha: float | Tensor,
    *,
    scheme: str | Scheme = "predictor_corrector",
    history: str | History = "auto",
    mesh: str | Mesh = "uniform",
    n_steps: int | None = None,
    dy0: S | None = None,
    adjoint: bool = True,
    params: Iterable[Tensor] | None = None,
    progress: Progress | None = None,
    manager: BackendManager | None = None,
) -> S:
    """Return the solution of D^alpha y = f(t, y), Caputo's derivative from ts[0] on, at the times `ts`.

    Costs n_steps evaluations of f (twice that for predictor_corrector, some more where a step solves an equation) and
    the history's sum over the past; where gradients are wanted f is evaluated twice more, to see that it may be
    evaluated again. Backwards, only the states are saved, n_steps + 1 of them, and f is evaluated
    again.

    Args:
        f: Called as f(t, y) with t a tensor of no axes and y like y0: dy of the same shape. It must not change y. In
            the adjoint it may be called for many times at once under `torch.func.vmap`.
        y0: The state at ts[0], float32 or float64: a tensor of any shape, or a tuple of tensors.
        ts: Increasing times, in the caller's unit; on a uniform mesh, points of it.
        alpha: In (0, 2): a float, or a tensor, which may be learned: one number, or one for each entry along some of
            y0's axes (a shape that broadcasts to y0's).
        scheme: "rectangle", "predictor_corrector", "trapezoid", "bdf2", or a `Scheme` with its options.
        history: "auto", which asks the BackendManager, "full", "fft", "exponentials", or a `History` with its options.
        mesh: "uniform", "graded", or a `Mesh`. Graded meshes suit y that begins like t**alpha.
        n_steps: Steps from ts[0] to ts[-1]; None takes those of `ts`.
        dy0: The derivative at ts[0], like y0, where an order is above 1; the entries of lower orders are not looked at.
            An alpha that is a tensor may have it at any value: where a learned order passes 1, the solution jumps by
            (t - ts[0]) dy0, which no gradient sees, unless dy0 is 0.
        adjoint: Whether gradients come from the exact adjoint of the scheme; else by plain backpropagation, whose
            memory grows with n_steps**2, which second derivatives and transforms of `torch.func` need.
        params: Tensors that f reads and that want gradients, where they are neither leaves that f holds or names nor
            parameters of such a module, and f does not use them at the first step.
        progress: Called as progress(steps done, steps in all) after each block of steps.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a tuple of such.

    Raises:
        ValueError: An argument is out of range, or f returns another shape.
        TypeError: An argument has the wrong type, or f returns one.
        FloatingPointError: f returns what is not finite, or the solution diverges or explodes.
        RuntimeError: The equation of an implicit step is not solved.
        LookupError: No kernel that the manager allows can keep this history.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16.

    Examples:
        >>> ts = torch.linspace(0, 1, 101, dtype=torch.float64)
        >>> y = fdeint(lambda t, y: -y, torch.ones(1, dtype=torch.float64), ts, 0.5)
        >>> y[-1]  # E_(1/2)(-1) = e erfc(1) = 0.4276
        tensor([0.4276], dtype=torch.float64)
    """
    method = Method.of("fdeint", scheme, history, mesh)
    site = given_manager("fdeint", manager).shared_site(method.op, "torch", "fdeint")
    found: S = solved(f, y0, ts, alpha, method, site, n_steps, dy0, adjoint, params, progress)
    return found


@uncompiled
def solved(
    f: RightHandSide,
    y0: State,
    ts: Any,
    alpha: float | Tensor,
    method: Method,
    site: Site,
    n_steps: int | None = None,
    dy0: State | None = None,
    adjoint: bool = True,
    params: Iterable[Tensor] | None = None,
    progress: Progress | None = None,
) -> Any:
    """Return what `fdeint` does, by a method and a site that the caller keeps; the site is of the method's operation.

    Under autocast f runs as it would elsewhere and its results are taken in the state's dtype; sums over the past are
    not autocast.
    """
    check_untraced("fdeint", "y0")
    call = Call(f, y0, ts, alpha, method, n_steps, dy0)
    kind = call.like.device.type
    call.casts = present(kind)
    if call.casts is None:
        return call.solved(site, adjoint, params, progress)
    with without(kind):
        return call.solved(site, adjoint, params, progress)
