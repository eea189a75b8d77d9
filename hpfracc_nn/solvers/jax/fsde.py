"""`fsdeint`: stochastic differential equations and stochastic Volterra equations for JAX's arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax.arguments import State
from hpfracc_nn.solvers.jax.stochastic_call import StochasticCall
from hpfracc_nn.solvers.noise import Brownian, Noise
from hpfracc_nn.solvers.sde import StochasticEquation
from hpfracc_nn.solvers.sde_schemes import StochasticScheme
from hpfracc_nn.solvers.volterra import VolterraWeights


def fsdeint(
    sde: StochasticEquation,
    y0: State,
    ts: Array | Sequence[float] | np.ndarray,
    *,
    args: Any = None,
    alpha: float | np.ndarray | Array = 1.0,
    noise: Noise | Array | Any = Brownian(),  # noqa: B008  a frozen value
    scheme: str | StochasticScheme = "euler",
    weights: str | VolterraWeights = "hybrid",
    interpretation: str = "ito",
    history: str | History = "auto",
    adjoint: bool = True,
    checkpoint: bool = False,
    key: Array | None = None,
    dt: float | None = None,
    manager: BackendManager | None = None,
) -> State:
    """Return a path of a stochastic equation at the times `ts`, one for each state of y0.

    At alpha = 1 the equation is dX = f dt + g dZ. For 1/2 < alpha < 1 it is the stochastic Volterra equation

        X(t) = x0 + integral of m(t - s) [f ds + g dW] from ts[0] to t,
        m(t) = t**(alpha - 1) / Gamma(alpha),

    which at alpha = 1 is the same. What goes together is a table, `hpfracc_nn.solvers.rules`, and strong orders are in
    it. A pure function of its arguments and of all that drift and diffusion read, best called inside of `jax.jit`:
    outside, a solve is compiled where it computes something new. Derivatives of any order, in either mode, are taken in
    y0, args, arrays that drift and diffusion close over, alpha, and the noise's own parameters.

    Args:
        sde: Has drift(t, y), of y's shape, diffusion(t, y), and noise_type: "additive", "diagonal", "scalar" or
            "general"; see `StochasticEquation`. `SDE` makes one of two functions; a module may be one.
        y0: The state at ts[0], float32 or float64: an array, or a pytree of arrays. Noise that is not diagonal takes
            its last axis for the state and those before for a batch.
        ts: Increasing times, in the caller's unit, not traced: of NumPy, or made outside of what is compiled.
        args: A pytree that drift and diffusion get as a third argument, where it is not None.
        alpha: In (1/2, 1]: a float, or an array, which may be learned: one number, or one for each entry along some of
            y0's axes. A traced one beyond gives NaN, and raises under `jax.experimental.checkify`; it is solved with
            weights, be it 1 or not.
        noise: What drives the equation: the increments of `Brownian()`, or of another `Noise`; increments of Brownian
            motion as an array, [n_steps, *shape]; or a Brownian path of diffrax, of the shape of a step's noise.
        scheme: "euler", "milstein", "heun", "srk", "reversible_heun", or a `StochasticScheme`.
        weights: Below alpha = 1: "hybrid", "average", "isometry", "left", or a `VolterraWeights`.
        interpretation: Of the integral where the diffusion depends on the state, "ito" or "stratonovich"; against
            noise that is smoother or rougher than Brownian motion the latter is the integral along each path.
        history: Below alpha = 1, how the past is kept; as in `fdeint`.
        adjoint: Whether derivatives are those of the scheme as a whole, which save states alone; else every operation
            is differentiated.
        checkpoint: Whether a backward pass saves less and takes steps again: at alpha = 1 the adjoint keeps one state
            of each block of sqrt(n_steps); below, with adjoint=False, blocks are computed anew.
        key: Where the noise is drawn; not needed where it is given.
        dt: The step, of which all of `ts` must be multiples from ts[0] on; None takes the steps of `ts`.
        manager: Who chooses how the past is added up; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a pytree of such.

    Raises:
        ValueError: An argument is out of range, things do not go together, or drift or diffusion return another shape.
        TypeError: An argument has the wrong type.

    Source: Kloeden & Platen, Numerical Solution of Stochastic Differential Equations (1992); Bennedsen, Lunde &
        Pakkanen, Finance Stoch. 21 (2017) 931.

    Examples:
        >>> ornstein_uhlenbeck = SDE(
        ...     lambda t, y: -y, lambda t, y: 0.1 * jnp.ones_like(y), "additive"
        ... )
        >>> x = fsdeint(
        ...     ornstein_uhlenbeck,
        ...     jnp.ones(1000),
        ...     np.linspace(0, 1, 101),
        ...     alpha=0.7,
        ...     key=jax.random.key(0),
        ... )
        >>> round(float(x[-1].mean()), 2), round(float(mittag_leffler(-1.0, 0.7)), 2)
        (0.4, 0.4)
    """
    call = StochasticCall(sde, y0, ts, args, alpha, dt, manager)
    return call.solved(noise, scheme, weights, interpretation, history, adjoint, checkpoint, key)
