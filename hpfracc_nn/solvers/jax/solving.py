"""The loop over the steps, its derivative, and with it the exact adjoint of the scheme.

The derivative of a solve is a solve itself: the same loop, linear, along the states that were found. JAX transposes it
for reverse mode, which makes it the adjoint of the discrete scheme, with the sums over the past run backwards. f is
linearised anew at each step, so that what is saved are states: O(n) of them and no graph of f. Being made of plain
operations the rule can be differentiated again, in either mode, to any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.sharding import product
from hpfracc_nn.solvers.jax.layout import Layout
from hpfracc_nn.solvers.jax.past import Past
from hpfracc_nn.solvers.jax.right_side import RightSide
from hpfracc_nn.solvers.jax.steps import Made, Step
from hpfracc_nn.solvers.jax.toeplitz import causal
from hpfracc_nn.solvers.jax.weights import Weights

Stepping = Callable[..., Made]  # (read, t, m, w, before)


class Inputs(NamedTuple):
    """All that a solve depends on.

    Attributes:
        weights: Of the past, or None where they are fixed.
        z0: The state at the start.
        dz0: Its derivative, or None.
        read: What f reads besides t and y.
        times: What f is given at each step, [n_steps + 1].
        elapsed: The time since the start, [n_steps + 1].
    """

    weights: Weights | None
    z0: Array
    dz0: Array | None
    read: tuple[Array, ...]
    times: Array
    elapsed: Array


class Solution(NamedTuple):
    """What the loop finds.

    Attributes:
        states: At all steps, [n_steps + 1, a, *rest].
        guesses: Where else f was evaluated, [n_steps, corrections, a, *rest].
        values: f at all steps but the last, [n_steps, a, *rest].
        is_solved: Whether each step's equation was, [n_steps].
    """

    states: Array
    guesses: Array
    values: Array
    is_solved: Array


@dataclass(frozen=True, eq=False)
class Solve:
    """What is static in a solve.

    Attributes:
        layout: Of the states.
        right_side: f.
        step: How one is taken.
        is_implicit: Whether it solves an equation.
        past: Makes the sum over the past of the weights.
        fixed: These, where nothing moves them, or None.
        n_steps: How many.
        is_remade: Whether plain backpropagation computes blocks of steps anew.
        told: Called with the number of steps done, from time to time; or None.
    """

    layout: Layout
    right_side: RightSide
    step: Step
    is_implicit: bool
    past: Callable[[Weights], Past]
    fixed: Weights | None
    n_steps: int
    is_remade: bool
    told: Callable[[Array], None] | None

    def plain(self, inputs: Inputs) -> Solution:
        """Return the solution, by operations that are differentiated one by one; see `steps.Step`."""
        f = self.right_side.field(inputs.read)
        weights, spread, n_steps = self._weights(inputs), self.layout.spread, self.n_steps
        step = self._stepping()

        def advance(before: Array, past: Array, x: dict[str, Array], counts: Any) -> tuple[Array, Array, Any]:
            memory = past + _base(inputs.z0, inputs.dz0, x["elapsed"])
            if counts is not None:  # steps that only fill up a block stay where they are
                memory = jnp.where(counts, memory, before[None])
            made = step(inputs.read, x["t"], memory, spread(x["own"]), before)
            if self.told is not None:
                self.told(x["step"])
            # f is not looked at after the last step, where it need not be defined.
            state = jnp.where(x["step"] < n_steps, made.y, before)
            return state, f(x["t_inner"], state), made

        steps = np.arange(n_steps + 1)
        xs = {
            "step": steps,
            "t": inputs.times,
            "t_inner": inputs.times[np.minimum(steps, n_steps - 1)],
            "elapsed": inputs.elapsed,
            "own": weights.own,
        }
        first = f(inputs.times[0], inputs.z0)
        values, made = self._marched(weights, advance, inputs.z0, first, xs)
        states = jnp.concatenate([inputs.z0[None], made.y])
        return Solution(states, made.guesses, values[:n_steps], made.is_solved)

    def recorded(self, inputs: Inputs) -> Solution:
        """Return the solution with the derivative of the scheme itself."""
        solution = jax.custom_jvp(self.plain)
        solution.defjvp(self._rule(solution), symbolic_zeros=True)
        return solution(inputs)  # type: ignore[no-any-return]

    def _rule(self, solution: Callable[[Inputs], Solution]) -> Callable[..., tuple[Solution, Solution]]:
        def rule(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Solution, Solution]:
            (inputs,), (moved,) = primals, tangents
            found = solution(inputs)
            return found, self._tangent(inputs, moved, found)

        return rule

    def _tangent(self, inputs: Inputs, moved: Inputs, found: Solution) -> Solution:
        """Return the derivative of what was found along that of the inputs."""
        weights, n_steps, layout = self._weights(inputs), self.n_steps, self.layout
        moving = self.right_side.moving(inputs.read, moved.read)

        @partial(jax.checkpoint, prevent_cse=False)  # in a loop nothing is merged
        def linear(
            dm: Array, dw: Array, given: list[Array], slopes: list[Array], x: dict[str, Array]
        ) -> tuple[Array, Array, Array]:
            f = moving.at(x["t"], given, slopes)
            dy, dguesses = self.step.tangent(f, dm, layout.spread(x["own"]), dw, x["y"], x["guesses"])
            _, slope = moving.at(x["t_inner"], given, slopes)(x["y_inner"], dy)
            return slope, dy, dguesses

        dz0 = arrays(moved.z0, inputs.z0)
        slope = None if inputs.dz0 is None else arrays(moved.dz0, inputs.dz0)

        def advance(_: None, past: Array, x: dict[str, Array], counts: Any) -> tuple[None, Array, Any]:
            dm = past + _base(dz0, slope, x["elapsed"])
            if "drive" in x:
                dm = dm + x["drive"]
            dw = layout.spread(x["down"]) if "down" in x else jnp.zeros((), dm.dtype)
            value, dy, dguesses = linear(dm, dw, moving.given, moving.slopes, x)
            return None, value, (dy, dguesses)

        steps = np.arange(n_steps + 1)
        inner = np.minimum(steps, n_steps - 1)
        xs = {
            "t": inputs.times,
            "t_inner": inputs.times[inner],
            "elapsed": inputs.elapsed,
            "own": weights.own,
            "y": found.states,
            "y_inner": found.states[inner],
            "guesses": found.guesses[np.maximum(steps - 1, 0)],
            **self._driven(moved.weights, found),
        }
        first = moving.at(inputs.times[0])(inputs.z0, dz0)[1]
        values, (dy, dguesses) = self._marched(weights, advance, None, first, xs)
        none = zero_from_primal(found.is_solved, symbolic_zeros=True)
        return Solution(jnp.concatenate([dz0[None], dy]), dguesses, values[:n_steps], none)

    def _weights(self, inputs: Inputs) -> Weights:
        found = self.fixed if inputs.weights is None else inputs.weights
        assert found is not None, "one of the two is there"
        return found

    def _driven(self, moved: Weights | None, found: Solution) -> dict[str, Array]:
        """Return what the memories and the own weights have of weights that move, by step; nothing where none does."""
        if moved is None or isinstance(moved.own, SymbolicZero):
            return {}
        head = moved.head.shape[1]
        values = jnp.concatenate([found.values, jnp.zeros_like(found.values[:1])])  # none is needed at the last step
        count = min(head, values.shape[0])
        drive = product("nhsa,ha...->nsa...", moved.head[:, :count], values[:count])
        if values.shape[0] > head:
            later = _added(moved.later, values[head:], head)
            drive = jnp.concatenate([drive[:head], drive[head:] + later])
        return {"drive": drive, "down": moved.own}

    def _stepping(self) -> Stepping:
        if self.is_implicit:
            return _implicit(self.step, self.right_side)
        return lambda read, t, m, w, before: self.step.forward(self.right_side.field(read), t, m, w, before)

    def _marched(
        self, weights: Weights, advance: Callable[..., tuple[Any, Array, Any]], carry: Any, first: Array, xs: Any
    ) -> tuple[Array, Any]:
        """Take steps 1 to n_steps; return the values of all steps and what was returned of each but step 0."""
        spread, head = self.layout.spread, weights.head.shape[1]
        values, outs = [first], []
        for n in range(1, min(head, self.n_steps + 1)):
            past = sum(spread(weights.head[n, j]) * value[None] for j, value in enumerate(values))
            carry, value, out = advance(carry, past, jax.tree.map(lambda each: each[n], xs), None)  # noqa: B023
            values.append(value)
            outs.append(out)
        early = jnp.stack(values)
        joined = jax.tree.map(lambda *each: jnp.stack(each), *outs) if outs else None
        if self.n_steps < head:
            return early, joined

        def after(carry: Any, past: Array, x: tuple[Array, Any], counts: Any) -> tuple[Any, Array, Any]:
            row, x = x
            from_head = sum(spread(row[j]) * value[None] for j, value in enumerate(values))
            return advance(carry, past + from_head, x, counts)

        given = jax.tree.map(lambda each: each[head:], (weights.head, xs))
        _, later, made = self.past(weights).march(after, carry, given, first, self.is_remade)
        if joined is not None:
            made = jax.tree.map(lambda *each: jnp.concatenate(each), joined, made)
        return jnp.concatenate([early, later]), made


def _added(weights: Array, values: Array, head: int) -> Array:
    """Return the memories that values after the head have of the weights `Weights.later`, [n, sets, a, *rest]."""
    if weights.ndim == 3:
        return causal(weights, values)
    return product("nsaj,ja...->nsa...", weights[head:, ..., head:], values)


def _base(z0: Array, dz0: Array | None, elapsed: Array) -> Array:
    """Return the Taylor polynomial, for all sets of weights, [1, a, *rest]."""
    return (z0 if dz0 is None else z0 + elapsed * dz0)[None]


def arrays(moved: Any, like: Array) -> Array:
    """Return a derivative, where there is none zeros like what does not move, laid over devices as it is."""
    return jnp.zeros_like(like) if isinstance(moved, SymbolicZero) else moved


def _implicit(step: Step, right_side: RightSide) -> Stepping:
    """Return a step's forward whose derivative is `Step.tangent`, whatever it does inside."""

    @jax.custom_jvp
    def forward(read: tuple[Array, ...], t: Array, m: Array, w: Array, before: Array) -> Made:
        return step.forward(right_side.field(read), t, m, w, before)

    def rule(primals: Any, tangents: Any) -> Any:
        read, t, m, w, before = primals
        dread, _, dm, dw, _ = tangents
        found = forward(read, t, m, w, before)
        f = right_side.moving(read, dread).at(t)
        dy, dguesses = step.tangent(f, arrays(dm, m), w, arrays(dw, w), found.y, found.guesses)
        none = zero_from_primal(found.is_solved, symbolic_zeros=True)
        return found, Made(dy, dguesses, none)

    forward.defjvp(rule, symbolic_zeros=True)
    return forward
