"""The arguments of `fsdeint`: what is solved, checked and laid out. `torch/stochastic_call.py` is the twin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import jax
import numpy as np
from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import JAX, Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.definitions import within
from hpfracc_nn.fractional.jax.float64 import in_float64
from hpfracc_nn.fractional.jax.sharding import beside
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.selection import BackendManager, Kernel, Plan, Work, carried_out, given_manager
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers import noise as noises
from hpfracc_nn.solvers.explosions import WINDOW
from hpfracc_nn.solvers.jax.arguments import Orders, State, checked_state, is_traced, resolution
from hpfracc_nn.solvers.jax.coefficients import (
    Coefficients,
    by_order,
    checked_structure,
    coefficients_of,
    joined,
    noise_shape,
    parted,
)
from hpfracc_nn.solvers.jax.explosions import checked_explosion
from hpfracc_nn.solvers.jax.given import as_noise
from hpfracc_nn.solvers.jax.layout import layout_of
from hpfracc_nn.solvers.jax.noise import JaxSource, checked_key
from hpfracc_nn.solvers.jax.one_step import Carry, Given, Loop
from hpfracc_nn.solvers.jax.one_step import Inputs as OneStepInputs
from hpfracc_nn.solvers.jax.past import Past
from hpfracc_nn.solvers.jax.planning import workload_of
from hpfracc_nn.solvers.jax.programs import compiled, is_staged
from hpfracc_nn.solvers.jax.right_side import varying
from hpfracc_nn.solvers.jax.volterra import Inputs, VolterraSolve
from hpfracc_nn.solvers.jax.weights import Grid, Sum, Weights
from hpfracc_nn.solvers.noise.noise import fits
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.sde import (
    OWNER,
    StochasticMethod,
    check_noise,
    check_orders,
    checked_noise,
    mesh_of,
    noise_type_of,
    not_finite,
)
from hpfracc_nn.solvers.sde_schemes import one_step_of
from hpfracc_nn.solvers.volterra import OfRates, residual

_BELOW = float(np.nextafter(1.0, 0.0))


class StochasticCall:
    """The arguments of one call, checked and laid out.

    Raises:
        ValueError: One is out of range, or they do not go together.
        TypeError: One has the wrong type.
    """

    def __init__(
        self, sde: Any, y0: State, ts: Any, args: Any, alpha: Any, dt: float | None, manager: BackendManager | None
    ):
        self.noise_type = noise_type_of(sde)
        self.sde, self.manager = sde, manager
        y0 = checked_state(OWNER, "y0", y0)
        self.orders = orders_of(alpha)
        self.layout = layout_of(OWNER, y0, self.orders.shape)
        outputs = checks.increasing(OWNER, times_of(ts))
        elapsed, self.outputs = mesh_of(outputs, resolution(ts), dt)
        self.times = outputs[0] + elapsed
        self.n_steps = elapsed.size - 1
        self.args = args
        self._begin_at(beside(joined(self.layout, y0), (args, alpha)))

    def _begin_at(self, z0: Array) -> None:
        """Begin at a state that varies over every axis of a mesh over which it or what is read does."""
        self.z0, self.coefficients = varying(
            z0,
            lambda z: coefficients_of(self.sde, self.args, self.layout, self.times, z),
            lambda found: found.given,
        )

    @property
    def has_memory(self) -> bool:
        """Whether it is solved with weights: an order of 1 that is traced is, as others are."""
        return self.orders.values is None or bool((self.orders.values < 1).any())

    def solved(
        self,
        noise: Any,
        scheme: Any,
        weights: Any,
        interpretation: Any,
        history: Any,
        adjoint: bool,
        checkpoint: bool,
        key: Any,
    ) -> State:
        """Return the states at the output times."""
        method = StochasticMethod.of(OWNER, noises.Brownian(), scheme, weights, interpretation, history)
        given = as_noise(noise, self.times, self._streams(method), self.layout.dtype)
        method = replace(method, noise=checked_noise(OWNER, given))
        check_noise(OWNER, self.sde, method.noise)
        least = 0.5 if self.orders.values is None else float(self.orders.values.min())
        method.rule(self.noise_type, min(least, _BELOW if self.has_memory else 1.0))
        self.z0 = checked_structure(self.coefficients, self.z0, method.scheme.needs_diagonal)
        rows = self._drawn(method, key)
        begin = beside(self.z0, rows)
        if begin is not self.z0:
            self._begin_at(begin)
        solve = self._volterra if self.has_memory else self._one_steps
        # At the end all states are looked at, whatever the outputs are.
        last = np.arange(max(0, self.n_steps - WINDOW), self.n_steps + 1)
        places = np.union1d(self.outputs, last)
        found = solve(method, rows, places, adjoint, checkpoint)
        states = found[np.searchsorted(places, self.outputs)] if places.size > self.outputs.size else found
        states = checked_finite(states, self.times[self.outputs], self.coefficients, self.z0)
        states = self._checked_explosion(method, states, last, found[-last.size :])
        return parted(self.layout, states)

    def _streams(self, method: StochasticMethod) -> int:
        """Return how many numbers each channel of the noise needs per step."""
        return 1 + method.weights.has_residual if self.has_memory else method.scheme.streams

    def _drawn(self, method: StochasticMethod, key: Any) -> Array:
        """Return the noise of all steps."""
        own = noise_shape(self.coefficients, self.layout, self.z0)
        shape = (2, *own) if self._streams(method) > 1 else own
        fits(OWNER, method.noise, shape)
        given = isinstance(method.noise, noises.Given)
        source = JaxSource(jax.random.key(0) if given else checked_key(OWNER, key), self.layout.dtype)
        dt = self.coefficients.dt
        state = method.noise.start(self.n_steps, shape, dt, source)
        return method.noise.increments(self.n_steps, shape, dt, source, state)[0]

    def _checked_explosion(self, method: StochasticMethod, result: Array, steps: np.ndarray, states: Array) -> Array:
        """Return the result, or raise where the solution explodes at its end; under checkify where it is traced."""
        if self.orders.values is None:
            return result
        limits = method.limits(
            self.orders.values if self.has_memory else None, self.times - self.times[0], self.times[0]
        )
        if limits is None:
            return result
        ordered = jax.vmap(lambda z: by_order(self.layout, z))
        drifts = jax.vmap(self.coefficients.drift)
        return checked_explosion(
            limits, self.layout, self.z0, result, ordered(states), lambda: ordered(drifts(steps[:-1], states[:-1]))
        )

    def _one_steps(
        self, method: StochasticMethod, noise: Array, places: np.ndarray, adjoint: bool, checkpoint: bool
    ) -> Array:
        c, bare, scheme, interpretation = (
            self.coefficients,
            self.coefficients.bare,
            method.scheme,
            method.interpretation,
        )

        def advance(given: Given, carry: Carry, n: Array, row: Array) -> Carry:
            return one_step_of(scheme, bare.reading(given), interpretation).step(n, carry, row)

        first = one_step_of(scheme, c, interpretation).start(self.z0)
        kept = math.ceil(math.sqrt(self.n_steps)) if checkpoint else 1
        loop = Loop(advance, self.n_steps, places, kept)
        run = loop.recorded if adjoint else loop.plain
        if not is_staged():
            what = scheme, interpretation, tuple(places.tolist()), adjoint, kept
            run = compiled((OWNER, c.facts, self.layout, *what), run)
        return run(OneStepInputs(c.given, first, noise))

    def _volterra(
        self, method: StochasticMethod, noise: Array, places: np.ndarray, adjoint: bool, checkpoint: bool
    ) -> Array:
        orders, layout = self.orders, self.layout
        # Of a scheme, equal steps ask for the weights alone.
        sums = Sum(cast(Scheme, OfRates(method.weights)), method.history, Grid(self.n_steps), layout.dtype.name)
        nodes = sums.nodes(orders)
        manager = given_manager(OWNER, self.manager)
        site = manager.shared_site(method.history.op, "jax", OWNER)
        key = sums, layout.shape, nodes is None, orders.values is None
        plan = site.pick_traced(key, lambda: workload_of(site.op, layout, self.n_steps, nodes))
        states = carried_out(_TRACED, site, plan, self, method, sums, nodes, noise, adjoint, checkpoint)
        return states[places]  # type: ignore[no-any-return]

    def computed(
        self,
        kernel: Kernel,
        method: StochasticMethod,
        sums: Sum,
        nodes: Nodes | None,
        noise: Array,
        adjoint: bool,
        checkpoint: bool,
    ) -> Array:
        """Return the states of all steps, the past added up by a kernel."""
        c, kind = self.coefficients, method.weights
        nodes = nodes if kernel.algorithm == "recurrence" else None
        weights = sums.weights(self.orders, c.dt, nodes)
        is_program, history = not is_staged(), method.history
        is_fixed = isinstance(weights.own, np.ndarray) and not is_program

        def past(weights: Weights) -> Past:
            return kernel.run(weights, nodes, history)  # type: ignore[no-any-return]

        fixed = weights if is_fixed else None
        solve = VolterraSolve(self.layout, c.bare, kind, past, fixed, self.n_steps, checkpoint)
        sigma = deviation_of(self.orders, c.dt, self.layout.dtype) if kind.has_residual else None
        inputs = Inputs(None if is_fixed else weights, sigma, self.z0, c.given, noise)
        run = solve.recorded if adjoint else solve.plain
        if is_program:
            what = c.facts, self.layout, kind, history, kernel.name, kernel.run, nodes
            run = compiled((OWNER, *what, adjoint, checkpoint), run)
        return run(inputs).states


def orders_of(alpha: Any) -> Orders:
    """Return the orders of a call.

    Raises:
        TypeError: It is neither a number nor a floating array.
        ValueError: It is concrete and out of bounds.
    """
    if isinstance(alpha, jax.Array | np.ndarray):
        if not jnp.issubdtype(alpha.dtype, jnp.floating):
            raise TypeError(
                f"{OWNER}(alpha of dtype {alpha.dtype}): needs a floating array; pass alpha.astype(jax.numpy.float32)."
            )
    elif isinstance(alpha, bool) or not isinstance(alpha, int | float | np.floating):
        raise TypeError(
            f"{OWNER}(alpha of type {type(alpha).__name__}): needs a float or a floating array; pass for example 0.7."
        )
    shape = tuple(np.shape(alpha))
    if not is_traced(alpha):
        values = np.asarray(alpha, np.float64).reshape(-1)
        check_orders(values)
        return Orders(values, None, shape, 1.0)
    eps = float(jnp.finfo(alpha.dtype).eps)  # at 1/2 the residual's deviation is infinite
    least = 0.5 + eps
    return Orders(None, within(OWNER, alpha, 0.5, 1.0, (least, 1.0)).reshape(-1), shape, 1.0, least)


def deviation_of(orders: Orders, dt: float, dtype: Any) -> Array:
    """Return the residual's deviation, [a]."""
    if orders.traced is None:
        assert orders.values is not None, "one of the two is there"
        return jnp.asarray(residual(orders.values, dt, NUMPY), dtype)
    return in_float64(lambda alpha: residual(alpha, dt, JAX), orders.traced, dtype)  # type: ignore[no-any-return]


def checked_finite(states: Array, times: np.ndarray, coefficients: Coefficients, z0: Array) -> Array:
    """Return the states of a solution, or raise where they are not finite; under checkify where they are traced.

    Args:
        states: At the output times.
        times: These.
        coefficients: Of the equation.
        z0: The state at the start.

    Raises:
        FloatingPointError: It is not.
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
    """Return the output times.

    Raises:
        TypeError: They are traced.
    """
    if is_traced(ts):
        raise TypeError(
            f"{OWNER}(ts that are traced): needs times that are known when the solve is compiled; pass "
            "numpy.linspace(0, 1, 101), or make them outside of jax.jit and close over them."
        )
    return np.asarray(ts)


def _run(plan: Plan, call: StochasticCall, *given: Any) -> Array:
    plan.kernel.calls["run"] += 1
    return call.computed(plan.kernel, *given)


_TRACED = Work(_run, is_timed=False)  # what is traced tells no time
