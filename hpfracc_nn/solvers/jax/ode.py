"""`fdeint`: Caputo's initial value problem for pytrees of JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax.arguments import State
from hpfracc_nn.solvers.jax.call import Call, Progress
from hpfracc_nn.solvers.mesh import Mesh
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.schemes import Scheme


def fdeint(
    f: Callable[..., State],
    y0: State,
    ts: Array | np.ndarray | Sequence[float],
    alpha: float | np.ndarray | Array,
    *,
    args: Any = None,
    scheme: str | Scheme = "predictor_corrector",
    history: str | History = "auto",
    mesh: str | Mesh = "uniform",
    n_steps: int | None = None,
    dy0: State | None = None,
    adjoint: bool = True,
    checkpoint: bool = False,
    progress: Progress | None = None,
    manager: BackendManager | None = None,
) -> State:
    """Return the solution of D^alpha y = f(t, y), Caputo's derivative from ts[0] on, at the times `ts`.

    A pure function: `jit`, `grad`, `jvp`, `vmap`, `jacfwd`, `hessian` and sharding follow it, in y0, dy0, alpha, args
    and whatever else f reads. Call it best inside of `jax.jit`: outside, f is traced at every call, and the solve is
    compiled where it computes something new. The program is as long for 2000 steps as for 100.

    Costs n_steps evaluations of f (twice that for predictor_corrector, some more where a step solves an equation) and
    the history's sum over the past. Where derivatives are wanted, states are saved and f is linearised at each step.

    Args:
        f: Called as f(t, y), or f(t, y, args) where args are given, with t an array of no axes and y like y0: dy, a
            pytree like y0. Any callable will do: a function, an Equinox module, a Flax module.
        y0: The state at ts[0], float32 or float64: an array of any shape, or a pytree of arrays.
        ts: Increasing times, in the caller's unit; on a uniform mesh, points of it. Traced ones are taken for such, and
            states at times that are not are NaN.
        alpha: In (0, 2): a float, or an array, which may be traced: one number, or one for each entry along some of
            y0's axes (a shape that broadcasts to y0's). A traced one beyond, without `dy0` above 1, is NaN.
        args: A pytree that f is given, or None.
        scheme: "rectangle", "predictor_corrector", "trapezoid", "bdf2", or a `Scheme` with its options.
        history: "auto", which asks the BackendManager, "full", "fft", "exponentials", or a `History` with its options.
        mesh: "uniform", "graded", or a `Mesh`. Graded meshes suit y that begins like t**alpha.
        n_steps: Steps from ts[0] to ts[-1]; None takes those of `ts`.
        dy0: The derivative at ts[0], like y0, where an order is above 1; the entries of lower orders are not looked at.
            An alpha that is an array may have it at any value: where a learned order passes 1, the solution jumps by
            (t - ts[0]) dy0, which no gradient sees, unless dy0 is 0.
        adjoint: Whether derivatives are those of the scheme as a whole, which save the states alone; else every
            operation is differentiated, which saves what f computes at every step and evaluates it once less.
        checkpoint: With adjoint=False, whether a backward pass computes blocks of steps anew, and saves less.
        progress: Called as progress(steps done, steps in all) after each step, by `jax.debug.callback`.
        manager: Who chooses the history; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a pytree of such. Traced solutions that diverge are not
        finite from there on, NaN where the equation of a step was not solved; `jax.experimental.checkify` raises.

    Raises:
        ValueError: An argument is out of range, or f returns another shape.
        TypeError: An argument has the wrong type, or f returns one.
        FloatingPointError: f returns what is not finite, or the solution diverges or explodes, where nothing is traced.
        RuntimeError: The equation of an implicit step is not solved, where nothing is traced.
        LookupError: No kernel that the manager allows can keep this history.

    Source: Diethelm, Ford & Freed, Nonlinear Dynamics 29 (2002) 3; Garrappa, Mathematics 6 (2018) 16.

    Examples:
        >>> ts = jnp.linspace(0, 1, 101)
        >>> y = jax.jit(lambda y0: fdeint(lambda t, y: -y, y0, ts, 0.5))(jnp.ones(1))
        >>> y[-1].round(4)  # E_(1/2)(-1) = e erfc(1) = 0.4276
        Array([0.4276], dtype=float32)
    """
    method = Method.of("fdeint", scheme, history, mesh)
    if checkpoint and adjoint:
        raise ValueError(
            "fdeint(checkpoint=True, adjoint=True): needs one of them, because the adjoint saves states alone; leave "
            "checkpoint out, or pass adjoint=False."
        )
    call = Call(f, y0, ts, alpha, args, method, n_steps, dy0)
    return call.solved(adjoint, checkpoint, progress, manager)
