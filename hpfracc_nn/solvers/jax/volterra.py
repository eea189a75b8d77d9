"""Stochastic Volterra equations: a loop over steps with the deterministic solver's sum over the past as its memory.

    X_n = x0 + sum over j < n of h w_(n-j) Z_j + sigma g_(n-1) zeta_(n-1),        Z_j = f_j + g_j dW_j / h.

The derivative of a solve is a solve itself, linear, along the states that were found, as in `solving.py`: JAX
transposes it for reverse mode, which makes it the exact adjoint of the scheme. What is saved are states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import product
from hpfracc_nn.solvers.jax.coefficients import Coefficients, by_order, from_orders
from hpfracc_nn.solvers.jax.layout import Layout
from hpfracc_nn.solvers.jax.past import Past
from hpfracc_nn.solvers.jax.solving import arrays
from hpfracc_nn.solvers.jax.toeplitz import causal
from hpfracc_nn.solvers.jax.weights import Weights
from hpfracc_nn.solvers.volterra import VolterraWeights

Rest = tuple[Array, ...]  # what a step adds to the next state beside its memory, [a, *rest]; none without a residual


class Inputs(NamedTuple):
    """All that a solve depends on.

    Attributes:
        weights: Of the past, or None where they are fixed.
        sigma: The residual's deviation, [a], or None.
        z0: The state at the start.
        read: What drift and diffusion read besides t and y.
        noise: Of all steps, [n_steps, *shape], or with two numbers for each channel, [n_steps, 2, *shape].
    """

    weights: Weights | None
    sigma: Array | None
    z0: Array
    read: tuple[Array, ...]
    noise: Array


class Solution(NamedTuple):
    """What the loop finds.

    Attributes:
        states: At all steps, [n_steps + 1, *shape].
        values: What each step brings the past, [n_steps, a, *rest].
    """

    states: Array
    values: Array


@dataclass(frozen=True, eq=False)
class VolterraSolve:
    """What is static in a solve.

    Attributes:
        layout: Of the states.
        coefficients: Drift and diffusion.
        kind: How the past is weighted.
        past: Makes the sum over the past of the weights.
        fixed: The weights where they are, or None.
        n_steps: How many.
        is_remade: Whether plain backpropagation computes blocks of steps anew.
    """

    layout: Layout
    coefficients: Coefficients
    kind: VolterraWeights
    past: Callable[[Weights], Past]
    fixed: Weights | None
    n_steps: int
    is_remade: bool

    def plain(self, inputs: Inputs) -> Solution:
        """Return the solution, by operations that are differentiated one by one."""
        z0, weights = inputs.z0, self._weights(inputs)

        def advance(rest: Rest, past: Array, x: tuple[Array, Array], counts: Any) -> tuple[Rest, Array, Array]:
            y = z0 + self._state(past, rest)
            if counts is not None:  # steps that only fill up a block stay at the start
                y = jnp.where(counts, y, z0)
            value, rest = self._step(inputs.read, inputs.sigma, x[1], x[0], y)
            return rest, value, y

        xs = (np.arange(self.n_steps), inputs.noise)
        values, states, rest = self._marched(weights, advance, xs, z0)
        last = z0 + self._state(_last(weights.later, values), rest)
        return Solution(jnp.concatenate([states, last[None]]), values)

    def recorded(self, inputs: Inputs) -> Solution:
        """Return the solution with the derivative of the scheme itself."""
        solution = jax.custom_jvp(self.plain)

        def rule(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Solution, Solution]:
            found = solution(*primals)
            return found, self._tangent(primals[0], tangents[0], found)

        solution.defjvp(rule, symbolic_zeros=True)
        return solution(inputs)  # type: ignore[no-any-return]

    def _tangent(self, inputs: Inputs, moved: Inputs, found: Solution) -> Solution:
        """Return the derivative of what was found along that of the inputs."""
        which = [k for k, each in enumerate(moved.read) if not isinstance(each, SymbolicZero)]
        parts = {"read": [inputs.read[k] for k in which]}
        slopes = {"read": [moved.read[k] for k in which]}
        if inputs.sigma is not None and not isinstance(moved.sigma, SymbolicZero):
            parts["sigma"], slopes["sigma"] = inputs.sigma, moved.sigma  # type: ignore[assignment]
        dz0 = arrays(moved.z0, inputs.z0)
        moves_noise = not isinstance(moved.noise, SymbolicZero)

        @partial(jax.checkpoint, prevent_cse=False)  # in a loop nothing is merged
        def linear(dy: Array, parts: Any, slopes: Any, x: dict[str, Array]) -> tuple[Array, Rest]:
            def step(parts: Any, row: Array, y: Array) -> tuple[Array, Rest]:
                read = list(inputs.read)
                for k, each in zip(which, parts["read"], strict=True):
                    read[k] = each
                return self._step(tuple(read), parts.get("sigma", inputs.sigma), row, x["n"], y)

            if moves_noise:
                return jax.jvp(step, (parts, x["row"], x["y"]), (slopes, x["drow"], dy))[1]  # type: ignore[no-any-return]
            given = jax.jvp(lambda parts, y: step(parts, x["row"], y), (parts, x["y"]), (slopes, dy))
            return given[1]  # type: ignore[no-any-return]

        drive, last = self._driven(moved.weights, found.values)

        def advance(rest: Rest, past: Array, x: dict[str, Array], counts: Any) -> tuple[Rest, Array, Array]:
            memory = past + x["drive"] if "drive" in x else past
            dy = dz0 + self._state(memory, rest)
            value, rest = linear(dy, parts, slopes, x)
            return rest, value, dy

        xs = {"n": np.arange(self.n_steps), "row": inputs.noise, "y": found.states[:-1]}
        xs |= {"drow": moved.noise} if moves_noise else {}
        xs |= {} if drive is None else {"drive": drive}
        weights = self._weights(inputs)
        values, dy, rest = self._marched(weights, advance, xs, dz0)
        memory = _last(weights.later, values)
        end = dz0 + self._state(memory if last is None else memory + last, rest)
        return Solution(jnp.concatenate([dy, end[None]]), values)

    def _weights(self, inputs: Inputs) -> Weights:
        found = self.fixed if inputs.weights is None else inputs.weights
        assert found is not None, "one of the two is there"
        return found

    def _driven(self, moved: Weights | None, values: Array) -> tuple[Array | None, Array | None]:
        """Return what memories have of weights that move: of all steps but the last, and of the last; or None."""
        if moved is None or isinstance(moved.later, SymbolicZero):
            return None, None
        return causal(moved.later, values), _last(moved.later, values)

    def _step(self, read: tuple[Array, ...], sigma: Array | None, row: Array, n: Array, y: Array) -> tuple[Array, Rest]:
        """Return what a step brings the past, [a, *rest], and what it adds to the next state beside."""
        c, layout = self.coefficients.reading(read), self.layout
        f, g = c.drift(n, y), c.diffusion(n, y)
        rest: Rest
        if sigma is None:
            driven, rest = c.applied(g, row / c.dt), ()
        else:
            driven = c.applied(g, row[0] / c.dt)
            rest = (layout.spread(sigma) * by_order(layout, c.applied(g, row[1] / math.sqrt(c.dt))),)
        if self.kind.sets == 1:
            return by_order(layout, f + driven), rest
        return jnp.stack([by_order(layout, f), by_order(layout, driven)], 1), rest

    def _state(self, memory: Array, rest: Rest) -> Array:
        """Return what the past, [sets, a, *rest], and the newest cell beside add to a state."""
        first = memory[0]
        if self.kind.sets > 1:
            first = first[:, 0] + memory[1][:, 1]  # drift and noise each by their own weights
        return from_orders(self.layout, sum(rest, first))

    def _marched(
        self, weights: Weights, advance: Callable[..., tuple[Rest, Array, Array]], xs: Any, state: Array
    ) -> tuple[Array, Array, Rest]:
        """Take all steps; return the values, the states, and what the last step adds beside."""
        none = jnp.zeros_like(by_order(self.layout, state))
        like = none if self.kind.sets == 1 else jnp.stack([none, none], 1)

        def kept(rest: Rest, past: Array, x: Any, counts: Any) -> tuple[Rest, Array, Array]:
            after, value, y = advance(rest, past, x, counts)
            if counts is not None:
                after = jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, rest)
            return after, value, y

        nothing = (none,) if self.kind.has_residual else ()
        rest, values, states = self.past(weights).march(kept, nothing, xs, like, self.is_remade)
        return values, states, rest


def _last(columns: Array, values: Array) -> Array:
    """Return the memory after all steps, [sets, a, *rest]."""
    n = values.shape[0]
    backwards = columns[..., n - np.arange(n)]
    return product("asj,ja...->sa...", backwards, values)
