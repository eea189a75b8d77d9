"""Equations without memory, alpha = 1: a loop over steps, its derivative, and with it the exact adjoint of the scheme.

The derivative of a solve is a loop itself, linear, along the states that were found, as in `solving.py`: JAX transposes
it for reverse mode. Of all steps, or of each so many one, is kept what it begins with; each is linearised anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.solvers.jax.solving import arrays

Carry = tuple[Array, ...]  # what a step takes from the one before, the state first
Given = tuple[Array, ...]
Advance = Callable[[Given, Carry, Array, Array], Carry]  # (given, carry, n, noise of step n) -> carry


class Inputs(NamedTuple):
    """All that a solve depends on.

    Attributes:
        given: What drift and diffusion read besides t and y.
        carry: What the first step takes.
        noise: Of all steps, [n_steps, ...].
    """

    given: Given
    carry: Carry
    noise: Array


class Found(NamedTuple):
    """What the loop finds.

    Attributes:
        states: At the outputs, [outputs, ...].
        begins: By groups of blocks, what each block begins with, [blocks, ...].
    """

    states: Array
    begins: tuple[Carry, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """The steps of a solve.

    Attributes:
        advance: Takes a step.
        n_steps: How many.
        outputs: The steps whose states are wanted, increasing, from 0 on.
        kept: Every so many steps one state is kept for the derivative.
    """

    advance: Advance
    n_steps: int
    outputs: np.ndarray
    kept: int = 1

    def plain(self, inputs: Inputs) -> Array:
        """Return the states at the outputs, by operations that are differentiated one by one."""

        def taken(carry: Carry, x: Any) -> tuple[Carry, Array]:
            after = self.advance(inputs.given, carry, *x)
            return after, after[0]

        _, states = lax.scan(taken, inputs.carry, (np.arange(self.n_steps), inputs.noise))
        return jnp.concatenate([inputs.carry[0][None], states])[self.outputs]

    def recorded(self, inputs: Inputs) -> Array:
        """Return the same with the derivative of the scheme itself; what blocks begin with is kept only for it."""
        whole = jax.custom_jvp(self._found)
        sparing = replace(self, kept=max(self.kept, math.isqrt(self.n_steps)))
        states = jax.custom_jvp(lambda inputs: sparing._found(inputs).states)

        def rule(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Found, Found]:
            found = whole(*primals)
            return found, self._tangent(primals[0], tangents[0], found, True)

        def rule_of_states(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Array, Array]:
            found = whole(*primals)
            return found.states, self._tangent(primals[0], tangents[0], found, False).states

        whole.defjvp(rule, symbolic_zeros=True)
        states.defjvp(rule_of_states, symbolic_zeros=True)
        return states(inputs)  # type: ignore[no-any-return]

    def _groups(self) -> Iterator[_Group]:
        """Yield what blocks of equal length there are."""
        blocks, rest = divmod(self.n_steps, self.kept)
        if blocks:
            yield _Group.of(self.outputs, 0, blocks, self.kept)
        if rest:
            yield _Group.of(self.outputs, blocks * self.kept, 1, rest)

    def _found(self, inputs: Inputs) -> Found:
        def step(carry: Carry, x: tuple[Any, Array]) -> tuple[Carry, Array]:
            after = self.advance(inputs.given, carry, *x)
            return after, after[0]

        carry, begins, states = inputs.carry, [], self._first(inputs.carry)
        for group in self._groups():

            def block(begin: Carry, xs: Any) -> tuple[Carry, tuple[Carry, Array]]:
                slots, *steps = xs
                after, found = _scanned(step, begin, tuple(steps))
                return after, (begin, group.taken(found, slots))  # noqa: B023

            carry, (kept, found) = lax.scan(block, carry, (group.slots, *group.steps(inputs.noise)))
            begins.append(kept)
            states.append(group.wanted(found))
        return Found(jnp.concatenate(states), tuple(begins))

    def _first(self, carry: Carry) -> list[Array]:
        return [carry[0][None]] if self.outputs[0] == 0 else []

    def _tangent(self, inputs: Inputs, moved: Inputs, found: Found, is_whole: bool) -> Found:
        """Return the derivative of what was found along that of the inputs; of the states alone unless all is asked."""
        which = [k for k, each in enumerate(moved.given) if not isinstance(each, SymbolicZero)]
        parts, slopes = [inputs.given[k] for k in which], [moved.given[k] for k in which]
        moves_noise = not isinstance(moved.noise, SymbolicZero)

        @partial(jax.checkpoint, prevent_cse=False)  # in a loop nothing is merged
        def linear(parts: Any, slopes: Any, carry: Carry, dcarry: Carry, n: Array, row: Array, drow: Any) -> Any:
            def taken(parts: list[Array], carry: Carry, row: Array) -> Carry:
                read = list(inputs.given)
                for k, each in zip(which, parts, strict=True):
                    read[k] = each
                return self.advance(tuple(read), carry, n, row)

            if moves_noise:
                return jax.jvp(taken, (parts, carry, row), (slopes, dcarry, drow))
            return jax.jvp(lambda parts, carry: taken(parts, carry, row), (parts, carry), (slopes, dcarry))

        def steps_of(parts: Any, slopes: Any, begun: tuple[Carry, Carry], xs: Any) -> tuple[Carry, Array]:
            def step(given: tuple[Carry, Carry], x: Any) -> tuple[tuple[Carry, Carry], Array]:
                carry, dcarry = linear(parts, slopes, *given, *x)
                return (carry, dcarry), dcarry[0]

            (_, dcarry), states = _scanned(step, begun, xs)
            return dcarry, states

        dcarry = tuple(map(arrays, moved.carry, inputs.carry))
        begins, states = [], self._first(dcarry)
        for group, kept in zip(self._groups(), found.begins, strict=True):
            retaken = steps_of if group.length == 1 else jax.checkpoint(steps_of, prevent_cse=False)

            def block(dbegin: Carry, xs: Any) -> tuple[Carry, tuple[Any, Array]]:
                begin, slots, *steps = xs
                after, found = retaken(parts, slopes, (begin, dbegin), tuple(steps))  # noqa: B023
                return after, (dbegin if is_whole else None, group.taken(found, slots))  # noqa: B023

            drows = group.steps(moved.noise)[1] if moves_noise else None
            xs = (kept, group.slots, *group.steps(inputs.noise), drows)
            dcarry, (dkept, dstates) = lax.scan(block, dcarry, xs)
            begins.append(dkept)
            states.append(group.wanted(dstates))
        return Found(jnp.concatenate(states), tuple(begins))


class _Group(NamedTuple):
    """Blocks of equal length, and the outputs that their steps lead to.

    Attributes:
        first: The first step.
        length: Of each block.
        slots: The steps of each block that lead to outputs, [blocks, most], the first where there are fewer.
        places: Where the outputs are among these, one after the other, [outputs].
    """

    first: int
    length: int
    slots: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, outputs: np.ndarray, first: int, blocks: int, length: int) -> _Group:
        """Return blocks of so many steps from the first one on."""
        inside = outputs[(outputs > first) & (outputs <= first + blocks * length)]
        block, step = np.divmod(inside - first - 1, length)
        counts = np.bincount(block, minlength=blocks)
        slot = np.arange(inside.size) - (counts.cumsum() - counts)[block]
        slots = np.zeros((blocks, counts.max()), int)
        slots[block, slot] = step
        return cls(first, length, slots, block * slots.shape[1] + slot)

    def steps(self, noise: Array) -> tuple[np.ndarray, Array]:
        """Return the numbers of the steps and their noise, by blocks."""
        shape = (self.slots.shape[0], self.length)
        last = self.first + shape[0] * shape[1]
        rows = noise[self.first : last].reshape(*shape, *noise.shape[1:])
        return np.arange(self.first, last).reshape(shape), rows

    def taken(self, states: Array, slots: Array) -> Array:
        """Return what a block keeps of the states that its steps lead to."""
        return states if self.slots.shape[1] == self.length else states[slots]

    def wanted(self, found: Array) -> Array:
        """Return the states at the outputs of what the blocks kept."""
        states = found.reshape(self.slots.size, *found.shape[2:])
        return states if self.places.size == self.slots.size else states[self.places]


def _scanned(step: Callable[[Any, Any], tuple[Any, Array]], carry: Any, xs: Any) -> tuple[Any, Array]:
    """Return what `lax.scan` does; a single step is no loop."""
    if xs[0].shape[0] > 1:
        return lax.scan(step, carry, xs)  # type: ignore[no-any-return]
    carry, found = step(carry, jax.tree.map(lambda each: each[0], xs))
    return carry, found[None]
