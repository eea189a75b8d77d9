"""The exact adjoint of a stochastic solve as one custom autograd function: blocks that are replayed; see `blocks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.selection import Plan
from hpfracc_nn.solvers.torch.blocks import Advance, Forgetful, NoiseRows, Solve, Tensors
from hpfracc_nn.solvers.torch.casts import without
from hpfracc_nn.solvers.torch.faults import check_once
from hpfracc_nn.solvers.torch.parameters import direct_parts
from hpfracc_nn.solvers.torch.sources import check_known
from hpfracc_nn.solvers.torch.tenure import Tenure
from hpfracc_nn.solvers.torch.volterra import Anticipation, Recollection, Weighting


def solved(solve: Solve, weighting: Weighting | None, plan: Plan | None, z0: Tensor) -> Tensor:
    """Return the states at the outputs, [outputs, *shape], without a graph.

    Args:
        solve: What is solved.
        weighting: The weights of the past, or None where there is none.
        plan: Of the history, or None.
        z0: The state at the start.
    """
    with torch.no_grad():
        return _forward(solve, weighting, plan, z0, keeps=False)[0]


def recorded(
    solve: Solve,
    weighting: Weighting | None,
    plan: Plan | None,
    z0: Tensor,
    alpha: Tensor | None,
    parameters: Tensors,
    functions: Sequence[Callable[..., Any]],
    read: Tensors,
) -> Tensor:
    """Return the states at the outputs with their gradients.

    Args:
        solve: What is solved; its noise is one tensor where gradients are wanted of it.
        weighting: The weights of the past, or None.
        plan: Of the history, or None.
        z0: The state at the start.
        alpha: The orders as a tensor of [a] values, or None.
        parameters: The tensors that drift and diffusion have graphs to.
        functions: Drift and diffusion.
        read: The tensors that they read.
    """
    holders = functions, read
    return _Solve.apply(solve, weighting, plan, holders, z0, alpha, solve.noise.whole, *parameters)  # type: ignore[no-any-return]


def _forward(
    solve: Solve, weighting: Weighting | None, plan: Plan | None, z0: Tensor, keeps: bool
) -> tuple[Tensor, list[Tensors], list[Tensors]]:
    if weighting is None:
        return solve.run(z0, (), Forgetful(), keeps)
    assert plan is not None, "there is a history"
    memory = Recollection(weighting.problem, plan, z0)
    found = solve.run(z0, weighting.fixed(), memory, keeps)
    memory.tell()
    return found


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, solve: Solve, weighting: Weighting | None, plan: Plan | None, holders: Any, *tensors: Tensor
    ) -> Tensor:
        found, carries, pasts = _forward(solve, weighting, plan, tensors[0].detach(), keeps=True)
        ctx.given = solve, weighting, plan, Tenure(*holders)
        ctx.weights = {past[0].shape[0]: past[1] for past in pasts if past}  # those of blocks of one length are equal
        ctx.counts = len(tensors), [len(carry) for carry in carries]
        each = [part for carry in carries for part in carry]
        ctx.save_for_backward(*tensors[1:], *each, *(past[0] for past in pasts if past))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_once("fsdeint", grads)
        solve, weighting, plan, tenure = ctx.given
        if weighting is not None:
            weighting.problem.site.again(plan)
        count, lengths = ctx.counts
        saved = iter(ctx.saved_tensors)
        alpha, whole, *parameters = (next(saved) for _ in range(count - 1))
        carries = [tuple(next(saved) for _ in range(length)) for length in lengths]
        needs = ctx.needs_input_grad[4:]
        wanted = [each for each, is_needed in zip(parameters, needs[3:], strict=True) if is_needed]
        replay = Replay(solve, weighting, plan, ctx.weights, wanted, needs[1], whole if needs[2] else None)
        with without(grads[0].device.type), tenure.renewed(wanted):
            z0_gradient = replay.run(grads[0].contiguous(), carries, list(saved))
            totals = iter(direct_parts(wanted, replay.totals))
        return (
            None,
            None,
            None,
            None,
            z0_gradient,
            replay.order_gradient(alpha) if needs[1] else None,
            replay.of_noise,
            *(next(totals) if is_needed else None for is_needed in needs[3:]),
        )


class Replay:
    """The sweep from the last block to the first.

    Args:
        solve: What was solved.
        weighting: The weights of the past, or None.
        plan: Of the history, or None.
        weights: By lag, for each length of a block.
        parameters: Whose gradients are wanted.
        learns: Whether alpha's is.
        noise: All of the noise, where its gradient is wanted, else None.

    Attributes:
        totals: The parameters' gradients, None of those that are not used.
        of_noise: The noise's, or None.
    """

    def __init__(
        self,
        solve: Solve,
        weighting: Weighting | None,
        plan: Plan | None,
        weights: dict[int, Tensor],
        parameters: list[Tensor],
        learns: bool,
        noise: Tensor | None,
    ):
        self.solve, self.weighting, self.weights, self.parameters, self.learns = (
            solve,
            weighting,
            weights,
            parameters,
            learns,
        )
        self.totals: list[Tensor | None] = [None] * len(parameters)  # None of those that are not used
        self.of_noise = None if noise is None else torch.zeros_like(noise)
        self.memory: Forgetful | Anticipation = Forgetful()
        if weighting is not None and plan is not None:
            self.memory = Anticipation(weighting.problem, plan)
        self.shared = () if weighting is None else weighting.fixed()
        self.of_shared = [torch.zeros_like(each) for each in self.shared]
        self.noise = solve.noise if noise is None else NoiseRows(solve.noise.path, noise)
        self.values: list[list[Tensor]] = []  # what each block brought the past, the last block first

    def run(self, g: Tensor, carries: list[Tensors], rows: list[Tensor]) -> Tensor:
        """Return the gradient in the state at the start.

        Args:
            g: The loss's cotangents of the states at the outputs.
            carries: What each block began with.
            rows: What the steps of each block had of the past; none where there is no memory.
        """
        z0_gradient = torch.zeros_like(carries[0][0])
        of_carry: Sequence[Tensor] = ()
        for i in reversed(range(len(carries))):
            of_carry, of_rows = self._block(i, g, carries[i], rows[i] if rows else None, of_carry)
            if of_rows is not None:
                self.memory.add(self.solve.blocks[i][0], list(of_rows.unbind()))
                z0_gradient = z0_gradient + of_rows.sum(0)
        if isinstance(self.memory, Anticipation):
            self.memory.tell()
        return z0_gradient + of_carry[0]

    def _block(
        self, i: int, g: Tensor, carry: Tensors, rows: Tensor | None, of_carry: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Return the cotangents of what a block began with: its carry, and what it had of the past."""
        first, last = self.solve.blocks[i]
        later = self.memory.opened(first, last)
        carry, shared = _leaves(carry), _leaves(self.shared)
        past = () if rows is None else (*_leaves((rows,)), self.weights[rows.shape[0]])
        noise = self.noise.rows(first, last)
        if self.of_noise is not None:
            (noise,) = _leaves((noise,))
        with torch.enable_grad():
            made = self.solve.steps.run(first, last, carry, shared, past, noise)
        if self.learns:
            self.values.append([value.detach() for value in made.values])
        inputs = [*carry, *past[:1], *shared, *([] if self.of_noise is None else [noise])]
        parts = self._products(made, first, last, g, of_carry, later, [*inputs, *self.parameters])
        found = (torch.zeros_like(each) if part is None else part for part, each in zip(parts, inputs, strict=False))
        found_of_parameters = parts[len(inputs) :]
        mine = [next(found) for _ in carry]
        of_rows = next(found) if rows is not None else None
        for total in self.of_shared:
            total += next(found)
        if self.of_noise is not None:
            self.of_noise[first : first + noise.shape[0]] = next(found)
        for k, part in enumerate(found_of_parameters):
            before = self.totals[k]
            if part is not None:
                self.totals[k] = part if before is None else before + part  # one part may be that of two tensors
        return mine, of_rows

    def _products(
        self,
        made: Advance,
        first: int,
        last: int,
        g: Tensor,
        of_carry: Sequence[Tensor],
        later: Tensors,
        inputs: list[Tensor],
    ) -> Sequence[Tensor | None]:
        """Return the products of all cotangents of a block with its Jacobians, None where there is none."""
        low, high = self.solve.wanted(first, last)
        outputs = [made.states[n - first] for n in self.solve.outputs[low:high]]
        grads = list(g[low:high].unbind())
        outputs += made.carry
        grads += of_carry
        if later:
            outputs += made.values
            grads += later[0][: len(made.values)].unbind()
        kept = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
        if not kept:
            return [None] * len(inputs)
        outs, their = zip(*kept, strict=True)
        if not self.solve.makes_leaves:
            check_known("fsdeint(sde)", outs, self.parameters, inputs[: len(inputs) - len(self.parameters)])
        # The graph is kept: blocks may share a part of it, such as what a parameter is made of.
        return torch.autograd.grad(outs, inputs, their, retain_graph=True, allow_unused=True)

    def order_gradient(self, alpha: Tensor) -> Tensor:
        """Return alpha's gradient, from the cotangents of all states and what the steps brought the past."""
        weighting = self.weighting
        assert weighting is not None, "alpha is learned"
        assert isinstance(self.memory, Anticipation), "alpha is learned"
        packing, sets = weighting.problem.packing, weighting.weights.sets
        values = torch.stack([value for block in reversed(self.values) for value in block])
        values = values.view(values.shape[0], sets, *packing.shape)
        by_set = [packing.matrix(torch.cat([values[:, k], torch.zeros_like(values[:1, k])])) for k in range(sets)]
        sigma = tuple(self.of_shared)
        return weighting.order_gradient(alpha, self.memory.cotangents, torch.stack(by_set, 2), sigma)


def _leaves(tensors: Sequence[Tensor]) -> Tensors:
    return tuple(each.detach().requires_grad_() for each in tensors)
