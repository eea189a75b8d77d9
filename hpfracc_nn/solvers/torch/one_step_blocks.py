"""Blocks of steps of an equation without memory: alpha = 1."""

from __future__ import annotations

from torch import Tensor

from hpfracc_nn.solvers.schemes.one_step import OneStep
from hpfracc_nn.solvers.torch.blocks import Advance, Tensors, steps_of_block


class OneStepBlocks:
    """See `blocks.Steps`; the carry is the scheme's.

    Args:
        step: The scheme's.
        n_steps: From 0 to this one.
        numbers: Of a state.
    """

    def __init__(self, step: OneStep, n_steps: int, numbers: int):
        self.step, self.n_steps, self.block = step, n_steps, steps_of_block(numbers)

    def run(self, first: int, last: int, carry: Tensors, shared: Tensors, past: Tensors, noise: Tensor) -> Advance:
        """See `blocks.Steps`."""
        if first == 0:
            carry = self.step.start(*carry)
        states = [carry[0]]
        for n, row in enumerate(noise.unbind(), start=first):
            carry = self.step.step(n, carry, row)
            states.append(carry[0])
        if last > self.n_steps:
            return Advance(states, ())
        states.pop()
        return Advance(states, carry)
