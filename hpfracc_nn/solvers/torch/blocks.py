"""A stochastic solve in blocks of steps, and its exact adjoint, which replays one block after the other.

Forward, no graph is kept: of each block only what it begins with, and of its noise what it takes to draw it again.
Backwards, a block is run once more with a graph, and one call of autograd takes the cotangents of all its steps apart.
So a solve costs one evaluation more than plain backpropagation and the memory of one block, and its gradient is that of
the numbers that were computed, for every scheme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.solvers.explosions import WINDOW, Limits
from hpfracc_nn.solvers.stochastic import not_finite
from hpfracc_nn.solvers.torch.explosions import Watch, largest
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.noise import NoisePath
from hpfracc_nn.solvers.torch.problem import Progress
from hpfracc_nn.solvers.torch.wrapped import is_finite

Tensors = tuple[Tensor, ...]

_NUMBERS = 1 << 16  # of the states of a block, which each step's sum over its own block reads from the cache
_SHORTEST, _LONGEST = 16, 128  # steps: the graph of one block is held when it is replayed


def steps_of_block(numbers: int) -> int:
    """Return how many steps a block has for states of so many numbers, a power of two.

    A block costs some ten calls of torch forward and again backward, beside its steps.
    """
    most = min(_LONGEST, max(_SHORTEST, _NUMBERS // max(1, numbers)))
    return 1 << (most.bit_length() - 1)


@dataclass
class Advance:
    """What a block of steps has made.

    Attributes:
        states: Of each of its steps.
        carry: What the next block begins with; empty after the last step.
        values: What each of its steps brings the past, [*shape], or [sets, *shape] where there are several sets of
            weights; none where there is no memory.
        sums: What each of its steps has of the past, [*shape]; none where there is no memory.
    """

    states: list[Tensor]
    carry: Tensors
    values: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)


class Steps(Protocol):
    """How the states of a block of steps are made.

    Attributes:
        block: Steps of a block.
    """

    block: int

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """Return the states of steps first to last - 1, and what follows.

        Args:
            first: A multiple of `block`.
            last: After the last of the steps.
            carry: What the block before has left; the first block has the state at the start.
            shared: Tensors that all blocks read and whose gradient is wanted.
            past: What a memory has of the steps before the block, and the weights of the block's own steps; or none.
            noise: Of the steps from `first` on, [steps, *shape].
        """
        ...


class Memory(Protocol):
    """The past of a solve, which grows by blocks."""

    def opened(self, first: int, last: int) -> Tensors:
        """Return what steps first to last - 1 have of those before, [rows, ...], and their own weights by lag."""
        ...

    def add(self, first: int, values: list[Tensor]) -> None:
        """Let the steps from `first` on be in the past."""
        ...


class Forgetful:
    """The memory of a solve that has none."""

    def opened(self, first: int, last: int) -> Tensors:
        """See `Memory`."""
        return ()

    def add(self, first: int, values: list[Tensor]) -> None:
        """See `Memory`."""


class NoiseRows:
    """The noise of a solve by steps: drawn in the path's own blocks, or given as one tensor.

    Args:
        path: Where it is drawn.
        whole: All of it, where gradients are wanted of it.

    Attributes:
        has_gradients: Whether what is drawn may have a graph; the adjoint would lose it.
    """

    def __init__(self, path: NoisePath, whole: Tensor | None = None):
        self.path, self.whole, self.has_gradients = path, whole, True
        self._at, self._block = -1, torch.empty(0)

    def rows(self, first: int, last: int) -> Tensor:
        """Return that of steps first to last - 1, [steps, *shape]."""
        last = min(last, self.path.n_steps)
        if self.whole is not None:
            return self.whole[first:last]
        length, parts = self.path.block_steps, []
        while first < last:
            i = first // length
            if i != self._at:
                self._at, self._block = i, self._drawn(i)
            end = min(last, (i + 1) * length)
            parts.append(self._block[first - i * length : end - i * length])
            first = end
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else self._block[:0]

    def _drawn(self, i: int) -> Tensor:
        """Return a block of the path.

        Raises:
            ValueError: It has a graph where none is expected.
        """
        if self.has_gradients:
            return self.path.block(i)
        with torch.enable_grad():
            found = self.path.block(i)
        if found.requires_grad:
            kind = type(self.path.noise).__name__
            raise ValueError(
                f"fsdeint(noise of type {kind}): its increments have a gradient, and no tensor that it holds has one; "
                "keep what is learned as an attribute of the noise, in a container or a module of it, or pass "
                "adjoint=False."
            )
        return found


@dataclass(eq=False)
class Solve:
    """One solve.

    Attributes:
        steps: How its states are made.
        noise: What drives it.
        n_steps: From 0 to this one.
        outputs: The steps whose states are wanted, increasing.
        times: Of all steps, for messages.
        progress: Called as progress(steps done, steps in all) after each block, or None.
        makes_leaves: Whether drift or diffusion are known to make tensors that require a gradient by themselves.
        limits: How fast a decay the steps can follow, or None where that is not known.
        drift: Of the equation, where there are limits.
    """

    steps: Steps
    noise: NoiseRows
    n_steps: int
    outputs: np.ndarray
    times: np.ndarray
    progress: Progress | None = None
    makes_leaves: bool = False
    limits: Limits | None = None
    drift: Field | None = None

    def __post_init__(self) -> None:
        bounds = range(0, self.n_steps + 1, self.steps.block)
        self.blocks = [(first, min(first + self.steps.block, self.n_steps + 1)) for first in bounds]

    def wanted(self, first: int, last: int) -> tuple[int, int]:
        """Return which of the outputs lie in a block: from the first up to the second."""
        low, high = np.searchsorted(self.outputs, (first, last))
        return int(low), int(high)

    def run(
        self, z0: Tensor, shared: Tensors, memory: Memory, keeps: bool
    ) -> tuple[Tensor, list[Tensors], list[Tensors]]:
        """Return the states at the outputs, what each block began with, and what its steps had of the past: their
        sums, and the weights of the block's own steps.

        Without a graph, and both without members unless it `keeps` them, for a replay.

        Raises:
            FloatingPointError: A state is not finite, or the solution explodes.
        """
        watch = self._watch(z0)
        found = z0.new_empty(self.outputs.size, *z0.shape)
        carry: Tensors = (z0,)
        carries: list[Tensors] = []
        pasts: list[Tensors] = []
        recent: list[Tensor] = []
        for first, last in self.blocks:
            past = memory.opened(first, last)
            made = self.steps.run(first, last, carry, shared, past, self.noise.rows(first, last))
            if keeps:
                carries.append(carry)
                pasts.append((torch.stack(made.sums), past[1]) if past else ())
            self.check(first, made.states, recent, watch)
            recent = [*recent, *made.states][-WINDOW - 1 :]
            memory.add(first, made.values)
            low, high = self.wanted(first, last)
            if high - low == last - first:
                torch.stack(made.states, out=found[low:high])
            else:
                for row in range(low, high):
                    found[row] = made.states[self.outputs[row] - first]
            carry = made.carry
            if self.progress is not None:
                self.progress(last - 1, self.n_steps)
        return found, carries, pasts

    def plain(self, z0: Tensor, shared: Tensors, past: Tensors) -> Tensor:
        """Return the states at the outputs with the graph of every step: one block for all.

        Raises:
            FloatingPointError: A state is not finite, or the solution explodes.
        """
        last = self.n_steps + 1
        states = self.steps.run(0, last, (z0,), shared, past, self.noise.rows(0, last)).states
        self.check(0, states, [], self._watch(z0))
        return torch.stack([states[n] for n in self.outputs])

    def _watch(self, z0: Tensor) -> Watch | None:
        """Return what looks after explosions."""
        return None if self.limits is None or self.drift is None else Watch(self.limits, self.drift.packing, z0)

    def check(self, first: int, states: list[Tensor], before: list[Tensor], watch: Watch | None) -> None:
        """Raise where a state is not finite, or the solution explodes: one look for a block, at its last.

        Args:
            first: The block's first step.
            states: Of its steps.
            before: The last ones before these.
            watch: What looks after explosions, or None.
        """
        n, size = first + len(states) - 1, largest(states[-1])
        if size < math.inf:
            self._look(n, size, [*before, *states], watch)
            return
        for n, state in enumerate(states, start=first):
            if not is_finite(state):
                finite = [*before, *states[: n - first]]
                self._look(n - 1, largest(finite[-1]) if finite else 0.0, finite, watch)
                raise FloatingPointError(not_finite(f"at step {n}, t={self.times[n]:g}"))

    def _look(self, n: int, size: float, states: list[Tensor], watch: Watch | None) -> None:
        """Raise where the solution explodes up to step n, the last of the states, which has this size."""
        if watch is not None and watch.is_due(size):
            recent = states[-WINDOW - 1 :]
            watch.look(n, size, recent, lambda k: self._drift(n - WINDOW + k, recent[k]))

    def _drift(self, n: int, state: Tensor) -> Tensor:
        """Return the drift at a step, without a graph."""
        assert self.drift is not None, "there are limits"
        with torch.no_grad():
            return self.drift(n, state)
