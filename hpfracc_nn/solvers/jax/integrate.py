"""The loops over the steps of `fdeint` and `fsdeint`. JAX differentiates them, in either mode, to any order.

Only the inputs of a step are saved, and `jax.checkpoint` computes the step again in a backward pass: O(n) states are
saved, and nothing of what f computes. Memories are linear in the values, so that nothing is saved for them if the
weights are constants. The derivative in the weights of a traced order is written by hand: one product of the weights'
derivative with the values of all steps, which the linearised loop adds to its memories. JAX's own rule would save the
past once more for each block.

Shapes and terms are those of `memory`: [a, *rest] is a state, with a orders alpha; a step's value is what the step adds
to the past, such as f(t_j, y_j); a step's memory is the weighted sum of the values of all steps before it, one for each
of `sets` columns of weights; the head are the first values, which have weights of their own. A drive is an array that
is added to the memories of all steps, [steps, sets, a, *rest].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.fractional.jax.checked import checked
from hpfracc_nn.fractional.jax.sharding import product
from hpfracc_nn.solvers.explosions import GROWTH, WINDOW, Limits
from hpfracc_nn.solvers.jax.coefficients import Coefficients
from hpfracc_nn.solvers.jax.memory import Past, Weights, causal, zeros
from hpfracc_nn.solvers.jax.roots import at_root, root
from hpfracc_nn.solvers.jax.state import Layout, RightSide, is_traced
from hpfracc_nn.solvers.schemes import Scheme
from hpfracc_nn.solvers.volterra import VolterraWeights

Carry = tuple[Array, ...]  # what a step passes to the next


class Anew(NamedTuple):
    """What a backward pass computes again instead of saving.

    Attributes:
        steps: Whether the backward pass computes each step again.
        blocks: Whether the backward pass computes each block of steps again.
    """

    steps: bool
    blocks: bool

    def each(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function `step`, wrapped in `jax.checkpoint` if a backward pass computes each step again."""
        # In a loop XLA cannot merge the second computation with the first, so that prevent_cse is not needed.
        return jax.checkpoint(step, prevent_cse=False) if self.steps else step


class Solution(NamedTuple):
    """The result of the loop over the steps of a deterministic equation.

    Attributes:
        states: The states at all steps, [n_steps + 1, a, *rest].
        values: The right-hand sides f at all steps but the last, [n_steps, a, *rest].
        is_solved: Whether the iteration for each implicit step converged, [n_steps]; True for an explicit scheme.
    """

    states: Array
    values: Array
    is_solved: Array


@dataclass(frozen=True, eq=False)
class Deterministic:
    """The initial value problem D^a y = f(t, y) with Caputo's derivative, and how it is solved.

    Attributes:
        layout: How the user's state is laid out as an array [a, *rest].
        right_side: The right-hand side f(t, z) of states z laid out as [a, *rest].
        scheme: The scheme, which says how a step is taken.
        past: Makes the loop over the steps, a `Past`, from the weights.
        times: The time t of each step, [n_steps + 1].
        elapsed: The time since the start at each step, [n_steps + 1].
        anew: What a backward pass computes again.
        on_step: Called after each step with the step's number; or None.
    """

    layout: Layout
    right_side: RightSide
    scheme: Scheme
    past: Callable[[Weights], Past]
    times: Array
    elapsed: Array
    anew: Anew
    on_step: Callable[[Array], None] | None

    def solve(self, weights: Weights, z0: Array, dz0: Array | None) -> Solution:
        """Return the solution that starts at the state z0 with the derivative dz0 (None: 0), [a, *rest] both."""
        given = weights.own, self.right_side.read, z0, dz0, self.times, self.elapsed
        nothing = zeros(z0, self.times.size, weights.head.shape[2])
        values, (states, is_solved) = along_weights(self._march, self._added, weights, given, nothing)
        return Solution(jnp.concatenate([z0[None], states]), values[:-1], is_solved)

    def _march(self, weights: Weights, given: Any, drive: Array | None) -> tuple[Array, tuple[Array, Array]]:
        own, read, z0, dz0, times, elapsed = given
        n_steps, head, spread = self.times.size - 1, weights.head.shape[1], self.layout.spread
        f, fixed = self.right_side.reading(read), self.right_side.reading(lax.stop_gradient(read))

        @self.anew.each
        def taken(memory: Array, begun: Array, x: dict[str, Array]) -> tuple[Array, Array]:
            y = step(self.scheme, partial(f, x["t"]), memory, spread(x["own"]), begun)
            # After the last step f is evaluated at the start, not at y: f need not be defined at y, nor is it used.
            return y, f(x["inner"], jnp.where(x["step"] < n_steps, y, z0))

        def advance(given: Carry, past: Array, x: dict[str, Array], counts: Any) -> tuple[Carry, Array, Any]:
            before, early = given
            past = past + sum(spread(x["head"][j]) * early[j][None] for j in range(head))
            memory = past + _base(z0, dz0, x["elapsed"])
            if "drive" in x:
                memory = memory + x["drive"]
            if counts is not None:  # a step that only fills up a block keeps the state of the step before
                memory = jnp.where(counts, memory, before[None])
            begun, is_solved = before, jnp.ones((), bool)
            if self.scheme.is_implicit:
                m, w, guess = lax.stop_gradient((memory[0], spread(x["own"]), before))
                begun, is_solved = root(self.scheme.roots, partial(fixed, x["t"]), m, w, guess)  # type: ignore[attr-defined]
            y, value = taken(memory, begun, x)
            if self.on_step is not None:
                self.on_step(x["step"])
            if head > 1:  # right-hand sides at the first steps have weights of their own in later memories
                is_own = (np.arange(head) == x["step"]).reshape(-1, *(1,) * value.ndim)
                early, value = jnp.where(is_own, value[None], early), jnp.where(x["step"] < head, 0, value)
            return (jnp.where(x["step"] < n_steps, y, before), early), value, (y, is_solved)

        steps = np.arange(n_steps + 1)
        inner = times[np.where(steps < n_steps, steps, 0)]
        xs = {"step": steps, "t": times, "inner": inner, "elapsed": elapsed, "own": own, "head": weights.head}
        xs |= {} if drive is None else {"drive": drive}
        first = f(times[0], z0)
        begin = z0, jnp.concatenate([first[None], zeros(first, head - 1)])
        after = jax.tree.map(lambda each: each[1:], xs)
        (_, early), values, found = self.past(weights).march(advance, begin, after, first, self.anew.blocks)
        return jnp.concatenate([early, values[head - 1 :]]), found

    def _added(self, weights: Weights, values: Array) -> Array:
        """Return the weighted sums over the past at all steps, [n_steps + 1, sets, a, *rest].

        `values` are the right-hand sides at all steps, [n_steps + 1, a, *rest].
        """
        head = weights.head.shape[1]
        found = product("nhsa,ha...->nsa...", weights.head, values[:head])
        later = jnp.concatenate([zeros(values[0], head - 1), values[head:]])
        if weights.later.ndim == 3:
            rest = causal(weights.later, later)
        else:
            rest = product("nsaj,ja...->nsa...", weights.later[1:, ..., 1:], later)
        return jnp.concatenate([found[:1], found[1:] + rest])


def step(scheme: Scheme, f: Callable[[Array], Array], m: Array, w: Array, begun: Array) -> Array:
    """Return the state y_n, [a, *rest], after one step of a scheme.

    Args:
        scheme: The scheme: implicit, or a predictor with `corrections`.
        f: The right-hand side at time t_n, a function of y.
        m: The weighted sums over the past at t_n plus the Taylor polynomial at the start, [sets, a, *rest].
        w: The weight of f(y_n) in the last of these sums.
        begun: For an implicit scheme the solution of y = m[0] + w f(y), to which a derivative is attached here.
    """
    if scheme.is_implicit:
        return at_root(scheme.roots, f, begun, m[0], w)  # type: ignore[attr-defined]
    y = m[0]
    for _ in range(getattr(scheme, "corrections", 0)):
        y = m[1] + w * f(y)
    return y


def _base(z0: Array, dz0: Array | None, elapsed: Array) -> Array:
    """Return the Taylor polynomial at the start, z0 + elapsed * dz0, as [1, a, *rest]."""
    return (z0 if dz0 is None else z0 + elapsed * dz0)[None]


March = Callable[[Weights, Any, Array | None], tuple[Array, Any]]  # a loop; see `along_weights`


def along_weights(
    march: March, added: Callable[[Weights, Array], Array], weights: Weights, given: Any, nothing: Array
) -> tuple[Array, Any]:
    """Return march(weights, given, None), the result of a loop over the steps, with a hand-written rule for weights.

    A tangent of the weights changes the memories by the product of this tangent with the values of the solution. The
    derivative rule passes this product to the linearised loop as its drive.

    Args:
        march: The loop, called as march(weights, given, drive), `drive` an array or None; returns the values of all
            steps, [n, a, *rest], and anything else.
        added: Called as added(weights, values); returns the memories [n, sets, a, *rest], linear in the weights.
        weights: The weights of the past.
        given: A pytree of everything else that the loop depends on.
        nothing: A drive of zeros, [n, sets, a, *rest].
    """
    if isinstance(weights.later, np.ndarray):
        return march(weights, given, None)

    @jax.custom_jvp
    def found(weights: Weights, given: Any, nothing: Array) -> tuple[Array, Any]:
        return march(weights, given, None)

    def rule(primals: tuple[Weights, Any, Array], tangents: tuple[Weights, Any, Any]) -> Any:
        (weights, given, nothing), (moved, slopes, _) = primals, tangents
        parts, tree = jax.tree.flatten(given)
        moving = {k: each for k, each in enumerate(jax.tree.leaves(slopes)) if not isinstance(each, SymbolicZero)}

        def of(some: list[Array], drive: Array | None) -> tuple[Array, Any]:
            every = dict(enumerate(parts)) | dict(zip(moving, some, strict=True))
            return march(weights, jax.tree.unflatten(tree, list(every.values())), drive)

        some, slopes = [parts[k] for k in moving], list(moving.values())
        if all(isinstance(each, SymbolicZero) for each in jax.tree.leaves(moved)):
            return jax.jvp(lambda some: of(some, None), (some,), (slopes,))
        moved = jax.tree.map(_array, moved, weights)
        solution, linear = jax.linearize(of, some, nothing)
        return solution, linear(slopes, added(moved, solution[0]))

    found.defjvp(rule, symbolic_zeros=True)
    return found(weights, given, nothing)  # type: ignore[no-any-return]


def _array(moved: Any, like: Array) -> Array:
    """Return the tangent `moved` as an array: in place of JAX's symbolic zero, zeros shaped and sharded as `like`."""
    return jnp.zeros_like(like) if isinstance(moved, SymbolicZero) else moved


@dataclass(frozen=True, eq=False)
class Volterra:
    """A stochastic Volterra equation, and how the equation is solved.

        X_n = x0 + sum over j < n of h w_(n-j) Z_j + sigma g_(n-1) zeta_(n-1),        Z_j = f_j + g_j dW_j / h.

    Here h is the step, w the weights of the past, f_j and g_j drift and diffusion at step j, dW_j the increment of the
    noise, and sigma the deviation of the residual: the part of the newest cell's integral that dW does not determine,
    with zeta a second normal number. A value is Z_j, [a, *rest], or f_j and g_j dW_j / h as [a, 2, *rest] if they have
    different weights.

    Attributes:
        coefficients: Drift and diffusion.
        kind: The choice of weights, which says how many sets of weights there are and whether sigma is not 0.
        past: Makes the loop over the steps, a `Past`, from the weights.
        anew: What a backward pass computes again.
    """

    coefficients: Coefficients
    kind: VolterraWeights
    past: Callable[[Weights], Past]
    anew: Anew

    def solve(self, weights: Weights, sigma: Array | None, z0: Array, noise: Array) -> Array:
        """Return the states at all steps, [n_steps + 1, a, *rest].

        Args:
            weights: The weights of the past.
            sigma: The deviation of the residual, [a], or None.
            z0: The state at the start, [a, *rest].
            noise: The increments of all steps, [n_steps, *channels]; if sigma is not None [n_steps, 2, *channels], the
                increments and zeta sqrt(h).
        """
        given, n = (self.coefficients.read, sigma, z0, noise), noise.shape[0]
        nothing = zeros(self._like(z0), n, self.kind.sets)
        values, (states, rest) = along_weights(self._march, _all_sums, weights, given, nothing)
        memory = product("asj,ja...->sa...", weights.later[..., n - np.arange(n)], values)
        last = z0 + self._moved(memory, rest)
        return jnp.concatenate([states, last[None]])

    def _march(self, weights: Weights, given: Any, drive: Array | None) -> tuple[Array, tuple[Array, Carry]]:
        read, sigma, z0, noise = given

        @self.anew.each
        def taken(y: Array, n: Array, row: Array) -> tuple[Array, Carry]:
            return self._step(self.coefficients.reading(read), sigma, row, n, y)

        def advance(rest: Carry, past: Array, x: dict[str, Array], counts: Any) -> tuple[Carry, Array, Array]:
            y = z0 + self._moved(past + x["drive"] if "drive" in x else past, rest)
            if counts is None:
                value, rest = taken(y, x["n"], x["row"])
                return rest, value, y
            y = jnp.where(counts, y, z0)  # steps that only fill up a block stay at the start
            value, after = taken(y, x["n"], x["row"])
            return jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, rest), value, y

        nothing = (jnp.zeros_like(z0),) if self.kind.has_residual else ()
        xs = {"n": np.arange(noise.shape[0]), "row": noise} | ({} if drive is None else {"drive": drive})
        rest, values, states = self.past(weights).march(advance, nothing, xs, self._like(z0), self.anew.blocks)
        return values, (states, rest)

    def _step(self, c: Coefficients, sigma: Array | None, row: Array, n: Array, y: Array) -> tuple[Array, Carry]:
        """Return a step's value Z_n, and in a tuple what the residual adds to the next state; () without a residual.

        The value is [a, *rest], or [a, 2, *rest] if drift and noise have different weights; the residual's part is
        [a, *rest].

        Args:
            c: Drift and diffusion.
            sigma: The deviation of the residual, [a], or None.
            row: The noise of the step, [*channels], or [2, *channels] if sigma is not None.
            n: The step's number.
            y: The state at step n.
        """
        f, g = c.drift(n, y), c.diffusion(n, y)
        rest: Carry = ()
        if sigma is not None:
            rest = (c.layout.spread(sigma) * c.applied(g, row[1] / math.sqrt(c.dt)),)
            row = row[0]
        driven = c.applied(g, row / c.dt)
        return f + driven if self.kind.sets == 1 else jnp.stack([f, driven], 1), rest

    def _moved(self, memory: Array, residual: Carry) -> Array:
        """Return X_n - x0, the weighted sum over the past plus the residual of the step before, [a, *rest].

        Args:
            memory: The weighted sum, [1, a, *rest], or [2, a, 2, *rest] if drift and noise have different weights.
            residual: What the residual of the step before adds, [a, *rest], in a tuple; or ().
        """
        first = memory[0] if self.kind.sets == 1 else memory[0][:, 0] + memory[1][:, 1]
        return sum(residual, first)

    def _like(self, z0: Array) -> Array:
        """Return zeros in the shape of a step's value, [a, *rest] or [a, 2, *rest]; `z0` is a state [a, *rest]."""
        none = jnp.zeros_like(z0)
        return none if self.kind.sets == 1 else jnp.stack([none, none], 1)


def _all_sums(weights: Weights, values: Array) -> Array:
    return causal(weights.later, values)


def one_steps(
    step: Callable[[Carry, Array, Array], Carry], carry: Carry, noise: Array, outputs: np.ndarray, anew: Anew
) -> Array:
    """Return the states of an equation without memory (alpha = 1) at some steps, [outputs, ...].

    If few states are wanted, or a backward pass computes blocks again, steps are taken in blocks, and only the wanted
    states of each block are kept.

    Args:
        step: Takes one step: (carry, step number, noise of the step) -> carry; the carry's first entry is the state.
        carry: The carry before the first step.
        noise: The noise of all steps, [n_steps, ...].
        outputs: The numbers of the steps whose states are wanted, increasing, each from 0 to n_steps.
        anew: What a backward pass computes again.
    """
    # While a backward pass computes a block again, all that the block's steps compute is saved.
    n_steps, step = noise.shape[0], step if anew.blocks else anew.each(step)
    is_in_blocks = anew.blocks or 2 * outputs.size < n_steps
    length = math.ceil(math.sqrt(n_steps)) if is_in_blocks else n_steps
    blocks, rest = divmod(n_steps, length)
    states = [carry[0][None]] if outputs[0] == 0 else []

    def taken(carry: Carry, x: tuple[Array, Array]) -> tuple[Carry, Array]:
        after = step(carry, *x)
        return after, after[0]

    for first, count, size in ((0, blocks, length), (blocks * length, 1, rest)):
        if not size:
            continue
        slots, places = _slots(outputs, first, count, size)

        def block(begin: Carry, xs: Any) -> tuple[Carry, Array]:
            wanted, *each = xs
            after, found = lax.scan(taken, begin, tuple(each))
            return after, found if wanted.size == found.shape[0] else found[wanted]

        rows = noise[first : first + count * size].reshape(count, size, *noise.shape[1:])
        steps = np.arange(first, first + count * size).reshape(count, size)
        anew_block = jax.checkpoint(block, prevent_cse=False) if anew.blocks else block
        carry, found = lax.scan(anew_block, carry, (slots, steps, rows))
        found = found.reshape(slots.size, *found.shape[2:])
        states.append(found if places.size == slots.size else found[places])
    return jnp.concatenate(states)


def _slots(outputs: np.ndarray, first: int, blocks: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which steps of each block lead to wanted states, where every block keeps the same number of states.

    Args:
        outputs: The numbers of the steps whose states are wanted, increasing.
        first: The number of the step before the first block.
        blocks: The number of blocks.
        length: The number of steps of a block.

    Returns:
        Indices of steps inside of each block, [blocks, most], filled up with 0 where a block has fewer than `most`
        wanted states; and for each wanted state its index in this array, flattened, [outputs in these blocks].
    """
    inside = outputs[(outputs > first) & (outputs <= first + blocks * length)]
    block, step = np.divmod(inside - first - 1, length)
    counts = np.bincount(block, minlength=blocks)
    slot = np.arange(inside.size) - (counts.cumsum() - counts)[block]
    slots = np.zeros((blocks, counts.max()), int)
    slots[block, slot] = step
    return slots, block * slots.shape[1] + slot


def checked_explosion(
    limits: Limits, layout: Layout, z0: Array, result: Array, states: Array, drifts: Callable[[], Array]
) -> Array:
    """Return `result`, or raise an error if the solution explodes at its end; if states are traced, `checkify` raises.

    Args:
        limits: The rates of decay up to which the solve is stable.
        layout: How the user's state is laid out as an array [a, *rest].
        z0: The state at the start.
        result: The states that the solve returns.
        states: The states of the last steps, at least `WINDOW` + 1 of them or all, [steps, a, *rest].
        drifts: Returns the right-hand sides at all of these steps but the last, [steps - 1, a, *rest].

    Raises:
        FloatingPointError: The solution explodes.
    """
    n = limits.times.size - 1
    if n < WINDOW:
        return result
    states, z0 = lax.stop_gradient((states, z0))
    if not is_traced(states):
        states, z0 = np.asarray(states), np.asarray(z0)  # type: ignore[assignment]
        if not np.abs(states[-1]).max() > GROWTH * np.abs(z0).max():
            return result
    rows, values = states[-WINDOW - 1 :], lax.stop_gradient(drifts()[-WINDOW:])
    reach: Any = limits.reach(n).astype(states.dtype)
    start = abs(z0).max()
    found = limits.are_exploding(rows, values, layout.spread(reach), start, abs(states).max(0))
    if is_traced(found):
        return checked(result, ~found.any(), f"{limits.owner}: the solution exploded; take more steps.")
    if found.any():
        last = abs(rows[-1])
        entry = int(np.argmax(np.where(found, last, 0)))
        rate = float(abs(values[-1]).reshape(-1)[entry] / abs(rows[-2]).reshape(-1)[entry])
        order = entry // (last.size // layout.orders)
        raise limits.error(n, float(last.reshape(-1)[entry]), float(start), rate, order)
    return result
