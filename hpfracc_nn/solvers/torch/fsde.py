"""`fsdeint`: stochastic differential equations and stochastic Volterra equations for tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import uncompiled
from hpfracc_nn.selection import BackendManager, Site, given_manager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.schemes.stochastic import StochasticScheme
from hpfracc_nn.solvers.schemes.volterra import VolterraWeights
from hpfracc_nn.solvers.sde import StochasticEquation
from hpfracc_nn.solvers.stochastic import StochasticMethod
from hpfracc_nn.solvers.torch.casts import present, without
from hpfracc_nn.solvers.torch.faults import check_untraced
from hpfracc_nn.solvers.torch.packing import S, State
from hpfracc_nn.solvers.torch.problem import Progress
from hpfracc_nn.solvers.torch.stochastic_call import StochasticCall


def fsdeint(
    sde: StochasticEquation,
    y0: S,
    ts: Tensor | Sequence[float] | np.ndarray,
    *,
    alpha: float | Tensor = 1.0,
    noise: Noise = Brownian(),  # noqa: B008  a frozen value
    scheme: str | StochasticScheme = "euler",
    weights: str | VolterraWeights = "hybrid",
    interpretation: str = "ito",
    history: str | History = "auto",
    adjoint: bool = True,
    generator: torch.Generator | None = None,
    dt: float | None = None,
    progress: Progress | None = None,
    params: Iterable[Tensor] | None = None,
    manager: BackendManager | None = None,
) -> S:
    """Return a path of a stochastic equation at the times `ts`, one for each state of y0.

    At alpha = 1 the equation is dX = f dt + g dZ. For 1/2 < alpha < 1 it is the stochastic Volterra equation

        X(t) = x0 + integral of m(t - s) [f ds + g dW] from ts[0] to t,
        m(t) = t**(alpha - 1) / Gamma(alpha),

    which at alpha = 1 is the same. What goes together is a table, `hpfracc_nn.solvers.rules`, and strong orders are in
    it. Backwards, blocks of steps are replayed: memory is the states at `ts` and a state for each block at alpha = 1,
    two states for each step below, and f and g are evaluated once more.

    Args:
        sde: Has drift(t, y), of y's shape, diffusion(t, y), and noise_type: "additive", "diagonal", "scalar" or
            "general"; see `StochasticEquation`. `SDE` makes one of two functions.
        y0: The state at ts[0], float32 or float64: a tensor, or a tuple of tensors. Noise that is not diagonal takes
            its last axis for the state and those before for a batch.
        ts: Increasing times, in the caller's unit.
        alpha: In (1/2, 1]: a float, or a tensor, which may be learned: one number, or one for each entry along some of
            y0's axes. An alpha of 1 that requires a gradient is solved with weights, as are others.
        noise: What drives the equation: the increments of `Brownian()`, or of another `Noise`.
        scheme: "euler", "milstein", "heun", "srk", "reversible_heun", or a `StochasticScheme`.
        weights: Below alpha = 1: "hybrid", "average", "isometry", "left", or a `VolterraWeights`.
        interpretation: Of the integral where the diffusion depends on the state, "ito" or "stratonovich"; against
            noise that is smoother or rougher than Brownian motion the latter is the integral along each path.
        history: Below alpha = 1, how the past is kept; as in `fdeint`.
        adjoint: Whether gradients come from the exact adjoint of the scheme; else by plain backpropagation through
            all steps, which second derivatives and transforms of `torch.func` need.
        generator: Where the noise is drawn; None is the default generator of y0's device.
        dt: The step, of which all of `ts` must be multiples from ts[0] on; None takes the steps of `ts`.
        progress: Called as progress(steps done, steps in all) after each block of steps.
        params: Tensors that drift or diffusion read and that want gradients, where they are neither leaves that these
            hold nor parameters of a module, and are not used at the first step.
        manager: Who chooses the kernel of the history; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a tuple of such.

    Raises:
        ValueError: An argument is out of range, things do not go together, or drift or diffusion return another shape.
        TypeError: An argument has the wrong type.
        FloatingPointError: The solution is not finite, or explodes.
        LookupError: No kernel that the manager allows can keep this history.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992); Bennedsen, Lunde &
        Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> ornstein_uhlenbeck = SDE(
        ...     lambda t, y: -y, lambda t, y: 0.1 * torch.ones_like(y), "additive"
        ... )
        >>> x = fsdeint(
        ...     ornstein_uhlenbeck, torch.ones(1000), torch.linspace(0, 1, 101), alpha=0.7
        ... )
        >>> round(x[-1].mean().item(), 2), round(float(mittag_leffler(-1.0, 0.7)), 2)
        (0.4, 0.4)
    """
    method = StochasticMethod.of("fsdeint", noise, scheme, weights, interpretation, history)
    site = given_manager("fsdeint", manager).shared_site(method.history.op, "torch", "fsdeint")
    found: S = integrated(sde, y0, ts, alpha, method, site, dt, adjoint, generator, progress, params)
    return found


@uncompiled
def integrated(
    sde: StochasticEquation,
    y0: State,
    ts: Any,
    alpha: float | Tensor,
    method: StochasticMethod,
    site: Site,
    dt: float | None = None,
    adjoint: bool = True,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
    params: Iterable[Tensor] | None = None,
) -> Any:
    """Return what `fsdeint` does, by a method and a site that the caller keeps.

    Under autocast drift and diffusion run as they would elsewhere and their results are taken in the state's dtype.
    """
    check_untraced("fsdeint", "y0")
    like = y0[0] if isinstance(y0, tuple | list) and y0 else y0
    kind = like.device.type if isinstance(like, Tensor) else "cpu"
    casts = present(kind)
    with without(kind):
        call = StochasticCall(sde, y0, ts, alpha, method, dt, casts)
        return call.solved(site, adjoint, generator, params, progress)
