"""`fsdeint`: paths of a stochastic equation, for pytrees of JAX arrays.

Inside of a solve a state is an array [a, *rest], with a orders alpha and the axes that share each of them; see `state`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.selection import BackendManager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.explosions import WINDOW
from hpfracc_nn.solvers.history import History
from hpfracc_nn.solvers.jax.coefficients import (
    Coefficients,
    checked_structure,
    coefficients_of,
)
from hpfracc_nn.solvers.jax.integrate import Anew, Volterra, checked_explosion, one_steps
from hpfracc_nn.solvers.jax.kernels import with_history
from hpfracc_nn.solvers.jax.memory import Past, Sum, Weights
from hpfracc_nn.solvers.jax.noise import JaxSource, as_noise, checked_key
from hpfracc_nn.solvers.jax.state import (
    State,
    checked_state,
    is_traced,
    layout_of,
    orders_of,
    resolution,
    varying,
)
from hpfracc_nn.solvers.noise import Brownian, Given, Noise
from hpfracc_nn.solvers.noise.noise import fits
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.sde import (
    OWNER,
    StochasticEquation,
    StochasticMethod,
    check_noise,
    check_orders,
    checked_noise,
    mesh_of,
    noise_type_of,
    not_finite,
)
from hpfracc_nn.solvers.sde_schemes import StochasticScheme, one_step_of
from hpfracc_nn.solvers.volterra import OfRates, VolterraWeights, residual

_BELOW = float(np.nextafter(1.0, 0.0))


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

    which at alpha = 1 is the same equation. Here f is the drift, g the diffusion, Z the noise, and W Brownian motion.
    `hpfracc_nn.solvers.rules` is the table of which noise, scheme and order can be combined, with strong orders of
    convergence. A pure function of its arguments and of all that drift and diffusion read. Call it inside `jax.jit` if
    you can: outside, every call compiles the solve again. JAX differentiates it to any order, in either mode, in y0,
    args, arrays that drift and diffusion close over, alpha, and the parameters of the noise.

    Args:
        sde: Has drift(t, y), of y's shape, diffusion(t, y), and noise_type: "additive", "diagonal", "scalar" or
            "general"; see `StochasticEquation`. `SDE` makes one of two functions; a module may be one.
        y0: The state at ts[0], float32 or float64: an array, or a pytree of arrays. Noise that is not diagonal takes
            its last axis for the state and those before for a batch.
        ts: Increasing times, in the caller's unit, not traced: a NumPy array, or an array made outside of the compiled
            function.
        args: A pytree that drift and diffusion get as a third argument, or None for none.
        alpha: In (1/2, 1]: a float, or an array, which may be traced: one number, or one for each entry along some of
            y0's axes. For a traced alpha outside that range the solution is NaN, and `jax.experimental.checkify` raises
            an error; at 1/2 the nearest order above it is taken. A traced alpha is always solved as a Volterra
            equation, even if it is 1: with the default weights the path of a key is then another one than that of a
            concrete 1.
        noise: What drives the equation: the increments of `Brownian()`, or of another `Noise`; increments of Brownian
            motion as an array, [n_steps, *shape]; or a Brownian path of diffrax, of the shape of a step's noise.
        scheme: "euler", "milstein", "heun", "srk", "reversible_heun", or a `StochasticScheme`.
        weights: Below alpha = 1: "hybrid", "average", "isometry", "left", or a `VolterraWeights`.
        interpretation: How the stochastic integral is meant if the diffusion depends on the state, "ito" or
            "stratonovich"; for noise smoother or rougher than Brownian motion "stratonovich" is the integral along each
            path.
        history: Below alpha = 1, how the past is kept; as in `fdeint`.
        adjoint: Whether only the states are saved for a backward pass, which then evaluates drift and diffusion again;
            if False, all that they compute at every step is saved.
        checkpoint: Whether less is saved and a backward pass takes steps again: at alpha = 1 one state is saved for
            each block of sqrt(n_steps) steps; below alpha = 1 blocks are computed again, with adjoint=False only.
        key: The random key of the noise; not needed if `noise` holds the increments, as an array or a path.
        dt: The length of a step, of which each ts[i] - ts[0] must be a multiple; None takes one step between two times
            of `ts`, which must then be equally spaced.
        manager: The manager that chooses how the past is added up; None is the process-wide BackendManager.

    Returns:
        The states at `ts`, time first: [times, *y0.shape], or a pytree of such arrays.

    Raises:
        ValueError: An argument is out of range, arguments cannot be combined, or drift or diffusion return another
            shape than they should.
        TypeError: An argument has the wrong type.
        FloatingPointError: Nothing is traced, and the solution is not finite or explodes.
        LookupError: No kernel that the manager allows can compute this history.

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
    noise_type = noise_type_of(sde)
    y0 = checked_state(OWNER, "y0", y0)
    orders = orders_of(OWNER, alpha, 0.5, 1.0, check_orders, 0.7)
    layout = layout_of(OWNER, y0, orders.shape)
    outputs = checks.increasing(OWNER, times_of(ts))
    elapsed, index = mesh_of(outputs, resolution(ts), dt)
    times, n_steps = outputs[0] + elapsed, elapsed.size - 1

    def traced(z: Array) -> Coefficients:
        return coefficients_of(sde, args, layout, times, z)

    z0, c = varying(beside(layout.joined(y0), (args, alpha)), traced)
    # A traced order is solved with weights even if it is 1, because its value is not known yet.
    has_memory = orders.values is None or bool((orders.values < 1).any())
    method = StochasticMethod.of(OWNER, Brownian(), scheme, weights, interpretation, history)
    streams = 1 + method.weights.has_residual if has_memory else method.scheme.streams
    method = replace(method, noise=checked_noise(OWNER, as_noise(noise, times, streams, layout.dtype)))
    check_noise(OWNER, sde, method.noise)
    least = 0.5 if orders.values is None else float(orders.values.min())
    method.rule(noise_type, min(least, _BELOW if has_memory else 1.0))
    z0 = checked_structure(c, z0, method.scheme.needs_diagonal)
    rows = _drawn(method.noise, n_steps, streams, c, key)
    begin = beside(z0, rows)
    if begin is not z0:
        z0, c = varying(begin, traced)
    # The states of the last steps are needed to see whether the solution explodes, whatever the outputs are.
    last = np.arange(max(0, n_steps - WINDOW), n_steps + 1)
    places = np.union1d(index, last)
    if has_memory:
        kind, dtype = method.weights, layout.dtype
        # On equal steps `Sum` calls nothing of a scheme but `weights`.
        sums = Sum(cast(Scheme, OfRates(kind)), method.history, n_steps, None, dtype.name)
        sigma = None
        if kind.has_residual:
            sigma = jnp.asarray(orders.computed(lambda alpha, xp: residual(alpha, c.dt, xp), dtype), dtype)

        def solve(weights: Weights, past: Callable[[Weights], Past]) -> Array:
            problem = Volterra(c, kind, past, Anew(adjoint, checkpoint and not adjoint))
            return problem.solve(weights, sigma, z0, rows)

        found = with_history(OWNER, manager, method.history.op, sums, layout, orders, c.dt, solve)[places]
    else:
        step = one_step_of(method.scheme, c, method.interpretation)
        found = one_steps(
            lambda carry, n, row: step.step(n, carry, row), step.start(z0), rows, places, Anew(adjoint, checkpoint)
        )
    states = found[np.searchsorted(places, index)] if places.size > index.size else found
    states = checked_finite(states, times[index], c, z0)
    limits = None
    if orders.values is not None:
        limits = method.limits(orders.values if has_memory else None, times - times[0], times[0])
    if limits is not None:
        end = found[-last.size :]
        drifts = jax.vmap(c.drift)
        states = checked_explosion(limits, layout, z0, states, end, lambda: drifts(last[:-1], end[:-1]))
    return layout.parted(states)


def _drawn(noise: Noise, n_steps: int, streams: int, c: Coefficients, key: Any) -> Array:
    """Return the increments of the noise over all steps: drawn by the key, or those that the user passed.

    The result is [n_steps, *channels], or [n_steps, 2, *channels] for two streams; the channels of an elementwise
    diffusion are laid out as a state is, [a, *rest].
    """
    shape = (streams, *c.noise_shape) if streams > 1 else c.noise_shape
    fits(OWNER, noise, shape)
    source = JaxSource(jax.random.key(0) if isinstance(noise, Given) else checked_key(OWNER, key), c.layout.dtype)
    rows = noise.increments(n_steps, shape, c.dt, source, noise.start(n_steps, shape, c.dt, source))[0]
    if not c.is_elementwise:
        return rows
    joined = jax.vmap(c.layout.joined)
    return (jax.vmap(joined) if streams > 1 else joined)(rows)


def checked_finite(states: Array, times: np.ndarray, coefficients: Coefficients, z0: Array) -> Array:
    """Return the states of a solution, or raise an error if states are not finite; traced states only under `checkify`.

    Args:
        states: The states at the output times, [outputs, *shape].
        times: The output times, [outputs].
        coefficients: Drift and diffusion, evaluated again at the start to see whether one of the two is the cause.
        z0: The state at the start.

    Raises:
        FloatingPointError: The solution, drift or diffusion is not finite.
    """
    is_finite = jnp.isfinite(states)
    if is_traced(states):
        return checked(states, is_finite.all(), not_finite("at some time"))
    if not np.asarray(is_finite).all():
        for name in ("drift", "diffusion"):
            value = np.asarray(getattr(coefficients, name)(0, z0))
            if not np.isfinite(value).all():
                size, is_nan = float(np.abs(np.asarray(z0)).max()), bool(np.isnan(value).any())
                raise checks.singular(f"{OWNER}(sde.{name})", f"sde.{name}", float(times[0]), is_nan, size)
        i = int(np.argmin(np.asarray(is_finite).reshape(times.size, -1).all(-1)))
        raise FloatingPointError(not_finite(f"at t={times[i]:g}"))
    return states


def times_of(ts: Any) -> np.ndarray:
    """Return the output times `ts` as a NumPy array.

    Raises:
        TypeError: `ts` is traced.
    """
    if is_traced(ts):
        raise TypeError(
            f"{OWNER}(ts that are traced): needs times that are known when the solve is compiled; pass "
            "numpy.linspace(0, 1, 101), or make them outside of jax.jit and close over them."
        )
    return np.asarray(ts)
