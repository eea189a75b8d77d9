"""Equations without memory, alpha = 1: a loop over steps, its derivative, and with it the exact adjoint of the scheme.

The derivative of a solve is a loop itself, linear, along the states that were found, as in `solving.py`: JAX transposes
it for reverse mode. Of all steps, or of each so many one, is kept what it begins with; each is linearised anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero

from hpfracc_nn.fractional.jax.namespace import Array
from hpfracc_nn.solvers.jax.past import zeros
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
        states = jax.custom_jvp(lambda inputs: self._found(inputs).states)

        def rule(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Found, Found]:
            found = whole(*primals)
            return found, self._tangent(primals[0], tangents[0], found, True)

        def rule_of_states(primals: tuple[Inputs], tangents: tuple[Inputs]) -> tuple[Array, Array]:
            found = whole(*primals)
            return found.states, self._tangent(primals[0], tangents[0], found, False).states

        whole.defjvp(rule, symbolic_zeros=True)
        states.defjvp(rule_of_states, symbolic_zeros=True)
        return states(inputs)  # type: ignore[no-any-return]

    def _groups(self) -> Iterator[tuple[int, int, int]]:
        """Yield what blocks of equal length there are: the first step, how many blocks, and their length."""
        blocks, rest = divmod(self.n_steps, self.kept)
        if blocks:
            yield 0, blocks, self.kept
        if rest:
            yield blocks * self.kept, 1, rest

    def _steps(self, noise: Array, first: int, blocks: int, length: int) -> tuple[np.ndarray, Array, np.ndarray]:
        """Return the numbers of a group's steps, their noise, and which of the outputs they lead to, by blocks.

        One more output than there are is where the states go that are none.
        """
        last = first + blocks * length
        places = np.full(self.n_steps + 1, self.outputs.size)
        places[self.outputs] = np.arange(self.outputs.size)
        rows = noise[first:last].reshape(blocks, length, *noise.shape[1:])
        return (
            np.arange(first, last).reshape(blocks, length),
            rows,
            places[first + 1 : last + 1].reshape(blocks, length),
        )

    def _begun(self, state: Array) -> Array:
        """Return room for the states at the outputs, and for one that is none; the first is there."""
        room = zeros(state, self.outputs.size + 1)
        return _put(room, state, 0) if self.outputs[0] == 0 else room

    def _found(self, inputs: Inputs) -> Found:
        def step(begun: tuple[Carry, Array], x: Any) -> tuple[tuple[Carry, Array], None]:
            (carry, states), (n, row, place) = begun, x
            carry = self.advance(inputs.given, carry, n, row)
            return (carry, _put(states, carry[0], place)), None

        def block(begun: tuple[Carry, Array], xs: Any) -> tuple[tuple[Carry, Array], Carry]:
            return lax.scan(step, begun, xs)[0], begun[0]

        def single(begun: tuple[Carry, Array], xs: Any) -> tuple[tuple[Carry, Array], Carry]:
            return step(begun, _only(xs))[0], begun[0]

        begun, begins = (inputs.carry, self._begun(inputs.carry[0])), []
        for group in self._groups():
            begun, kept = lax.scan(block if group[2] > 1 else single, begun, self._steps(inputs.noise, *group))
            begins.append(kept)
        return Found(begun[1][:-1], tuple(begins))

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

        def single(begun: tuple[Carry, Array], xs: Any) -> tuple[tuple[Carry, Array], Any]:
            dcarry, dstates = begun
            n, row, place, drow = _only(xs[:-1])
            carry = xs[-1]
            _, after = linear(parts, slopes, carry, dcarry, n, row, drow)
            return (after, _put(dstates, after[0], place)), dcarry if is_whole else None

        @partial(jax.checkpoint, prevent_cse=False)
        def retaken(parts: Any, slopes: Any, begun: tuple[Carry, Array], xs: Any) -> tuple[Carry, Array]:
            def step(given: Any, x: Any) -> Any:
                (carry, dcarry, dstates), (n, row, place, drow) = given, x
                carry, after = linear(parts, slopes, carry, dcarry, n, row, drow)
                return (carry, after, _put(dstates, after[0], place)), None

            *steps, begin = xs
            return lax.scan(step, (begin, *begun), tuple(steps))[0][1:]  # type: ignore[no-any-return]

        def block(begun: tuple[Carry, Array], xs: Any) -> tuple[tuple[Carry, Array], Any]:
            return retaken(parts, slopes, begun, xs), begun[0] if is_whole else None

        dcarry = tuple(map(arrays, moved.carry, inputs.carry))
        begun, begins = (dcarry, self._begun(dcarry[0])), []
        for group, kept in zip(self._groups(), found.begins, strict=True):
            n, rows, places = self._steps(inputs.noise, *group)
            drows = self._steps(moved.noise, *group)[1] if moves_noise else None
            xs = (n, rows, places, drows, kept)
            begun, dkept = lax.scan(block if group[2] > 1 else single, begun, xs)
            begins.append(dkept)
        return Found(begun[1][:-1], tuple(begins))


def _put(states: Array, state: Array, place: Any) -> Array:
    return lax.dynamic_update_index_in_dim(states, state, place, 0)


def _only(xs: Any) -> Any:
    """Return what a block of one step has of it."""
    return jax.tree.map(lambda each: each[0], xs)
