"""Equations without memory, alpha = 1: a loop over steps, and its exact adjoint, which takes the steps again backwards.

Forward, the states of all steps are kept, or of each so many steps one; backwards each step is taken once more with its
derivative. So the gradient is that of the numbers that were computed, and parameters' gradients add up as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.namespace import Array

Carry = tuple[Array, ...]  # what a step takes from the one before, the state first
Given = tuple[Array, ...]
Advance = Callable[[Given, Carry, Array, Array], Carry]  # (given, carry, n, noise of step n) -> carry


@dataclass(frozen=True, eq=False)
class Loop:
    """The steps of a solve.

    Attributes:
        advance: Takes a step.
        n_steps: How many.
        outputs: The steps whose states are wanted, increasing, from 0 on.
        kept: Every so many steps one state is kept for the adjoint.
    """

    advance: Advance
    n_steps: int
    outputs: np.ndarray
    kept: int = 1

    def plain(self, given: Given, carry: Carry, noise: Array) -> Array:
        """Return the states at the outputs, for every kind of derivative; what is inside of all steps is kept."""

        def taken(carry: Carry, x: tuple[Array, Array]) -> tuple[Carry, Array]:
            after = self.advance(given, carry, *x)
            return after, after[0]

        _, states = lax.scan(taken, carry, (jnp.arange(self.n_steps), noise))
        return jnp.concatenate([carry[0][None], states])[self.outputs]

    def adjoint(self, given: Given, carry: Carry, noise: Array) -> Array:
        """Return the same, with the exact adjoint for gradients."""

        @jax.custom_vjp
        def solved(given: Given, carry: Carry, noise: Array) -> Array:
            return self._states(given, carry, noise)[0]

        def forward(given: Any, carry: Any, noise: Any) -> tuple[Array, Any]:
            is_moved = noise.perturbed
            values = jax.tree.map(lambda each: each.value, (given, carry, noise), is_leaf=_is_primal)
            states, carries = self._states(*values)
            return states, (values[0], carries, values[2], jnp.zeros(()) if is_moved else None)

        def backward(residuals: Any, cotangents: Array | SymbolicZero) -> tuple[Given, Carry, Array | None]:
            given, carries, noise, moved = residuals
            return self._pulled(given, carries, noise, cotangents, moved is not None)

        solved.defvjp(forward, backward, symbolic_zeros=True)
        return solved(given, carry, noise)  # type: ignore[no-any-return]

    def _groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield what blocks of equal length there are: the first step, how many blocks, and their length."""
        blocks, rest = divmod(self.n_steps, self.kept)
        if blocks:
            yield 0, blocks, self.kept
        if rest:
            yield blocks * self.kept, 1, rest

    def _steps(self, noise: Array, first: int, blocks: int, length: int) -> tuple[Array, Array]:
        """Return the numbers and the noise of a group's steps, by blocks."""
        last = first + blocks * length
        rows = noise[first:last].reshape(blocks, length, *noise.shape[1:])
        return jnp.arange(first, last).reshape(blocks, length), rows

    @property
    def _slots(self) -> np.ndarray:
        """Which of the outputs each step is; one more than there are for those that are none."""
        found = np.full(self.n_steps + 1, self.outputs.size)
        found[self.outputs] = np.arange(self.outputs.size)
        return found

    def _states(self, given: Given, carry: Carry, noise: Array) -> tuple[Array, list[Carry]]:
        """Return the states at the outputs, and of each group what its blocks begin with."""
        slots = jnp.asarray(self._slots)
        found = jnp.zeros((self.outputs.size + 1, *carry[0].shape), carry[0].dtype)
        found = found.at[slots[0]].set(carry[0])

        def taken(given_carry: tuple[Carry, Array], x: tuple[Array, Array]) -> tuple[tuple[Carry, Array], None]:
            carry, found = given_carry
            n, row = x
            carry = self.advance(given, carry, n, row)
            return (carry, found.at[slots[n + 1]].set(carry[0])), None

        def block(begun: tuple[Carry, Array], xs: tuple[Array, Array]) -> tuple[tuple[Carry, Array], Carry]:
            return lax.scan(taken, begun, xs)[0], begun[0]

        def single(begun: tuple[Carry, Array], xs: tuple[Array, Array]) -> tuple[tuple[Carry, Array], Carry]:
            return taken(begun, jax.tree.map(lambda each: each[0], xs))[0], begun[0]

        carries = []
        for group in self._groups():
            (carry, found), begins = lax.scan(
                block if group[2] > 1 else single, (carry, found), self._steps(noise, *group)
            )
            carries.append(begins)
        return found[:-1], carries

    def _pulled(
        self, given: Given, carries: list[Carry], noise: Array, cotangents: Array | SymbolicZero, moves_noise: bool
    ) -> tuple[Given, Carry, Array | None]:
        """Return the gradients of what is given, of the first carry, and of the noise, or None."""
        slots, state = jnp.asarray(self._slots), carries[0][0][0]
        if isinstance(cotangents, SymbolicZero):
            cotangents = jnp.zeros((self.outputs.size, *state.shape), state.dtype)
        wanted = jnp.concatenate([cotangents, jnp.zeros_like(state)[None]])

        def pulled(moved: tuple[Carry, Given], x: tuple[Array, Array, Carry]) -> tuple[tuple[Carry, Given], Any]:
            (y, *others), total = moved
            n, row, carry = x
            after = (y + wanted[slots[n + 1]], *others)
            if moves_noise:
                _, pull = jax.vjp(lambda *each: self.advance(each[0], each[1], n, each[2]), given, carry, row)
                own, before, along = pull(after)
            else:
                _, pull = jax.vjp(lambda *each: self.advance(each[0], each[1], n, row), given, carry)
                (own, before), along = pull(after), None
            return (before, jax.tree.map(jnp.add, total, own)), along

        def block(moved: tuple[Carry, Given], xs: tuple[Array, Array, Carry]) -> tuple[tuple[Carry, Given], Any]:
            steps, rows, begin = xs
            _, retaken = lax.scan(lambda carry, x: (self.advance(given, carry, *x), carry), begin, (steps, rows))
            return lax.scan(pulled, moved, (steps, rows, retaken), reverse=True)

        moved = jax.tree.map(jnp.zeros_like, (jax.tree.map(lambda each: each[0], carries[0]), given))
        along: list[Any] = []
        for group, begins in reversed(list(zip(self._groups(), carries, strict=True))):
            steps, rows = self._steps(noise, *group)
            if group[2] > 1:
                moved, found = lax.scan(block, moved, (steps, rows, begins), reverse=True)
            else:
                moved, found = lax.scan(pulled, moved, (steps[:, 0], rows[:, 0], begins), reverse=True)
            if moves_noise:
                along.insert(0, found.reshape(-1, *noise.shape[1:]))
        (y, *others), own = moved
        return own, (y + wanted[slots[0]], *others), jnp.concatenate(along) if moves_noise else None


def _is_primal(x: Any) -> bool:
    return hasattr(x, "perturbed")
