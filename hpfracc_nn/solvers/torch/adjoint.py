"""The exact adjoints of the discrete schemes: blocks of steps are replayed, each with one call of autograd.

The forward pass keeps no graph. Backwards, the last block first, the steps of a block are taken once more with a graph,
from the sums over the past that they had in the forward pass, and one call of autograd propagates the cotangents
through all steps of the block. The cotangents of the sums go into the same history run backwards in time, which returns
the cotangents of earlier right-hand sides. The gradient is that of the numbers that were computed, not of a continuous
adjoint equation, which for alpha < 1 is 4 to 10 % off and does not improve with the step.

Shapes: [*shape] a state, a orders alpha, sets of weights of the scheme (`schemes`). g and fg are the loss's cotangents
of a state and of a right-hand side f_n. The starting weights of f_n are what its weight at each step has beside the
weight by lag.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.selection import Plan
from hpfracc_nn.solvers.sde import OWNER
from hpfracc_nn.solvers.torch.blocks import (
    Advance,
    Anticipation,
    Forgetful,
    NoiseRows,
    Recollection,
    Solve,
    Tensors,
    Weighting,
)
from hpfracc_nn.solvers.torch.integrate import ExplicitStep, Problem, order_gradient, step_of
from hpfracc_nn.solvers.torch.snapshot import Snapshot, evaluated_twice, held
from hpfracc_nn.solvers.torch.state import MOVED, Field, Signature, check_once, evaluated, without

Edge = tuple[Any, int]  # a node of an autograd graph, and the index of one of its results


def sources(value: Tensor, wanted: Sequence[Tensor], held: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors through which all of the gradient of `value` passes: where walks back through its graph end.

    A walk through the graph ends at leaves and at tensors of `wanted` and `held`; backpropagation goes on from these by
    itself, with their hooks. Where one of the tensors was made of another, the part of the other's gradient that comes
    through the first has to be subtracted, see `direct_parts`.

    Args:
        value: A tensor with a graph, or a leaf.
        wanted: Tensors that are returned whether the graph of `value` reaches them or not.
        held: Tensors that are returned where the graph reaches them.
    """
    if not value.requires_grad:
        return list({id(each): each for each in wanted}.values())
    own = list(map(_edge, wanted))
    stops = dict(zip((*map(_edge, held), *own), (*held, *wanted), strict=True))
    reached = _reached([_edge(value), *own], stops)
    return [stops[each] if each in stops else each[0].variable for each in reached]


def _reached(begins: Iterable[Edge], stops: Container[Edge]) -> dict[Edge, None]:
    """Return the edges at which walks through an autograd graph end: the stops and the leaves, in the order reached.

    An edge is a node and the index of one of its results. The walks begin at `begins` and do not go on behind a stop.
    """
    found: dict[Edge, None] = {}
    seen: set[Any] = set()
    waiting = list(begins)[::-1]
    while waiting:
        edge = waiting.pop()
        node = edge[0]
        if edge in stops or hasattr(node, "variable"):
            found[edge] = None
        elif node is not None and node not in seen:
            seen.add(node)
            waiting += node.next_functions
    return found


def _edge(x: Tensor) -> Edge:
    if x.grad_fn is not None:
        return x.grad_fn, x.output_nr
    edge = get_gradient_edge(x)
    return edge.node, edge.output_nr


def trainable(
    field: Field, z0: Tensor, given: Iterable[Tensor] | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the tensors in which f's gradient is wanted, and the tensors that f reads at the first step.

    Wanted are, as far as they require a gradient, all parameters of modules that f holds, the leaves that f holds, the
    tensors `given` by the caller, and what the graph of f at the first step reaches: tensors that f holds, and other
    leaves, except those that f creates. As a side effect, `field.makes_leaves` is set.

    Raises:
        ValueError: f cannot be evaluated again with the same result, or one of the tensors has hooks.
    """
    z, value, read, made = evaluated_twice(field, z0)
    every = held(field.f)
    parameters = [each for module in every if isinstance(module, nn.Module) for each in module.parameters()]
    others = [each for each in every if isinstance(each, Tensor) and each.requires_grad]
    leaves = [each for each in others if each.is_leaf]  # others have graphs that would be kept
    wanted = [each for each in (*parameters, *leaves, *(given or ())) if each.requires_grad]
    reached = [each for each in sources(value, wanted, others) if each is not z]
    own = {id(each) for each in made}  # leaves that f creates get no gradient, at this step or later ones
    found = [each for each in reached if id(each) not in own]
    field.makes_leaves = len(found) < len(reached)
    for each in found:
        if each._backward_hooks:
            what = "parameter" if each.is_leaf else "tensor"
            raise ValueError(
                f"{field.label}: a {what} of shape {tuple(each.shape)} has a hook on its gradient, which the adjoint "
                "would call twice; remove it, use register_post_accumulate_grad_hook, which leaves have, or pass "
                "adjoint=False."
            )
    return tuple(found), tuple(read)


@contextmanager
def _retained(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore, at the end of this context, the `grad` of tensors that have retain_grad().

    Gradients that are taken inside are parts; autograd adds the whole gradient to `grad` afterwards, at once.
    """
    before = [(each, each.grad) for each in tensors if each.retains_grad]
    try:
        yield
    finally:
        for each, grad in before:
            each.grad = grad


class Gradients:
    """The gradients in the tensors that a right-hand side depends on, added up over blocks of steps.

    Args:
        label: The solver and its argument that the right-hand side is, for error messages.
        parameters: The tensors whose gradients are wanted.
        makes_leaves: Whether the right-hand side creates leaf tensors that require a gradient.

    Attributes:
        totals: The gradient in each of the parameters so far, None where nothing depends on it.
    """

    def __init__(self, label: str, parameters: list[Tensor], makes_leaves: bool):
        self.label, self.parameters, self.makes_leaves = label, parameters, makes_leaves
        self.totals: list[Tensor | None] = [None] * len(parameters)
        self._replayed: dict[int, Tensor] = {}  # leaves that the replay created, where f creates leaves too

    @cached_property
    def _known(self) -> tuple[set[Any], set[Edge]]:
        """Where `check` ends its walk through a graph: at the autograd nodes of parameters that are leaves, and at the
        edges of the other parameters, whose nodes may have other results too.
        """
        edges = [_edge(each) for each in self.parameters]
        ends = {node for node, _ in edges if hasattr(node, "variable")}
        return ends, {edge for edge in edges if edge[0] not in ends}

    def check(self, values: Iterable[Tensor | None], inputs: Iterable[Tensor], leaves: Iterable[Tensor] = ()) -> None:
        """Raise RuntimeError where a graph reaches a leaf whose gradient would be lost.

        Such a leaf is neither a parameter nor one of `inputs`: f reads it at a later step only, or carries it over from
        another step. Where f creates leaves itself, only leaves that the replay created count.

        Args:
            values: The tensors whose graph is walked through.
            inputs: Tensors at which the walk ends.
            leaves: Further leaves that the replay created, which f must not carry from step to step.

        Raises:
            RuntimeError: A gradient would be lost.
        """
        begins = {_edge(each) for each in inputs if each.requires_grad}
        if self.makes_leaves:
            self._replayed.update((id(each), each) for each in (*inputs, *leaves) if each.is_leaf)
        ends, stops = self._known
        seen: set[Any] = {node for node, _ in begins if hasattr(node, "variable")}
        waiting = [_edge(each) for each in values if each is not None and each.requires_grad]
        while waiting:  # runs once for every operation of a graph, so that it does as little as it can
            edge = waiting.pop()
            node = edge[0]
            if node is None or node in seen or node in ends or edge in begins or edge in stops:
                continue
            seen.add(node)
            if following := node.next_functions:
                waiting += following
            elif hasattr(node, "variable") and (not self.makes_leaves or id(node.variable) in self._replayed):
                raise RuntimeError(
                    f"{self.label}: a tensor of shape {tuple(node.variable.shape)} requires a gradient and is not read "
                    "before the first step is over, so that the adjoint does not know of it; pass it, or what is made "
                    "of it, as params=[...], or pass adjoint=False, as for a right-hand side that remembers what it "
                    "was called with."
                )

    def of(self, outputs: list[Tensor], grads: list[Tensor], inputs: list[Tensor]) -> Sequence[Tensor | None]:
        """Return the gradients in `inputs`, None for an unused input, and add those in the parameters to `totals`.

        Args:
            outputs: The results of a block of steps, whose graphs `check` has accepted.
            grads: The cotangents of the outputs.
            inputs: Leaves that the block begins with.
        """
        kept = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out.requires_grad]
        if not kept:
            return [None] * len(inputs)
        outs, cotangents = zip(*kept, strict=True)
        every = [*inputs, *self.parameters]
        with _retained(self.parameters):
            # The graph is kept: blocks may share a part of it, such as what a parameter is made of.
            found = torch.autograd.grad(outs, every, cotangents, retain_graph=True, allow_unused=True)
        for k, part in enumerate(found[len(inputs) :]):
            before = self.totals[k]
            if part is not None:
                self.totals[k] = part if before is None else before + part  # one part may be that of two tensors
        return found[: len(inputs)]


_ROUNDING = 1e3  # times eps: the difference that two passes may have whose kernels add up in another order


def check_repeated(
    label: str, eps: float, found: Tensor, expected: Tensor, moved: Callable[[Sequence[int]], Tensor]
) -> None:
    """Raise RuntimeError where the backward pass did not compute what the forward pass did, in one test for all steps.

    A right-hand side that remembers earlier calls, or draws random numbers, has other results when blocks of steps are
    replayed from the last to the first. A right-hand side that only counts its calls, or keeps a log, has not.

    Args:
        label: The solver and its argument that the right-hand side is, for the message.
        eps: The rounding of the dtype that the right-hand side is computed in.
        found: The weighted sums (see `Signature`) of what the backward pass computed, [n].
        expected: The signatures of what the forward pass computed, [2, n].
        moved: Returns, for the indices of sums that differ, how far each moves with its state: `Signature.moved`.

    Raises:
        RuntimeError: A sum differs by more than rounding.
    """
    apart = (found - expected[0]).abs()
    allowed = min(_ROUNDING * eps, eps**0.5) * expected[1]  # the latter where f is computed in half precision
    differ = (~(apart <= allowed)).nonzero().flatten().tolist()
    if not differ or bool((apart[differ] <= allowed[differ] + MOVED * eps * moved(differ)).all()):
        return
    raise RuntimeError(
        f"{label}: returned something else in the backward pass, which evaluates it again block by block from the end, "
        "than in the forward pass, as one does that remembers earlier calls or draws random numbers; put what it "
        "remembers into the state, or pass adjoint=False."
    )


def direct_parts(tensors: Sequence[Tensor], totals: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return of each tensor's gradient the part that does not come through another of the tensors.

    Where a tensor was made of another, the total of the other includes what comes through the first; backpropagation,
    which goes on behind the first, would add that part once more.

    Args:
        tensors: The tensors.
        totals: The whole gradient in each tensor, [*shape of the tensor]; None where nothing depends on it.
    """
    found, behind = list(totals), [_behind(each) for each in tensors]
    # A tensor that another is made of has fewer nodes behind it, so that its own part is known later.
    for k in sorted(range(len(found)), key=lambda k: len(behind[k]), reverse=True):
        made_of = [
            i for i, each in enumerate(tensors) if torch.autograd.graph.get_gradient_edge(each).node in behind[k]
        ]
        own = found[k]
        if not made_of or own is None:
            continue
        parts = torch.autograd.grad(
            tensors[k], [tensors[i] for i in made_of], own, retain_graph=True, allow_unused=True
        )
        for i, part in zip(made_of, parts, strict=True):
            total = found[i]
            if part is not None and total is not None:
                found[i] = total - part
    return found


def _behind(tensor: Tensor) -> set[object]:
    """Return all nodes of the graph that a tensor was made by, except the one that made the tensor itself."""
    own = tensor.grad_fn
    found: set[object] = set()
    waiting = [] if own is None else [node for node, _ in own.next_functions]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return found


def recorded(
    problem: Problem,
    plan: Plan,
    z0: Tensor,
    dz0: Tensor | None,
    alpha: Tensor | None,
    parameters: tuple[Tensor, ...],
    read: tuple[Tensor, ...],
) -> Tensor:
    """Return the states of a deterministic solve at all steps, [n_steps + 1, *shape], with gradients by the adjoint.

    Args:
        problem: The solve.
        plan: The plan of the history for both passes.
        z0: The state at the start, [*shape].
        dz0: The derivative at the start, for orders above 1, or None.
        alpha: The orders as a tensor, [a], or None where they are no tensor.
        parameters: The tensors in which f's gradient is wanted.
        read: The tensors that f reads.
    """
    return _Solve.apply(problem, plan, read, z0, dz0, alpha, *parameters)  # type: ignore[no-any-return]


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, problem: Problem, plan: Plan, read: tuple[Tensor, ...], *tensors: Tensor) -> Tensor:
        z0, dz0, alpha, *parameters = tensors
        sums, count = None, problem.n_steps + 1
        if problem.scheme.sets > 1:
            sums = problem.like.new_empty(count, problem.scheme.sets, *problem.layout.shape)
        signatures = problem.like.new_empty(2, count, dtype=torch.float64)
        states = problem.solve(plan, z0.detach(), None if dz0 is None else dz0.detach(), sums, signatures)
        ctx.problem, ctx.plan, ctx.snapshot = problem, plan, Snapshot([problem.field.f], read)
        ctx.save_for_backward(states, sums, signatures, dz0, alpha, *parameters)
        return states.clone()  # the caller may write to the result, and f may have kept a view of `states`

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_once("fdeint", grads)
        (g,) = grads
        states, sums, signatures, dz0, alpha, *parameters = ctx.saved_tensors
        problem: Problem = ctx.problem
        problem.site.again(ctx.plan)
        learns = alpha is not None and ctx.needs_input_grad[5]
        wanted = [each for each, needs in zip(parameters, ctx.needs_input_grad[6:], strict=True) if needs]
        replay = Replay(problem, ctx.plan, states, sums, signatures, g.contiguous(), wanted, learns)
        with without(g.device.type), ctx.snapshot.renewed(wanted):
            z0_gradient, dz0_gradient = replay.run()
            of_alpha = replay.order_gradient(alpha) if learns else None
            found = iter(direct_parts(wanted, replay.gradients.totals))
        return (
            None,
            None,
            None,
            z0_gradient,
            None if dz0 is None else dz0_gradient,
            of_alpha,
            *(next(found) if needs else None for needs in ctx.needs_input_grad[6:]),
        )


class Replay:
    """The backward pass of a deterministic solve, block by block from the last step to the first.

    Each block's steps are taken once more with a graph, from the sums over the past that they had in the forward pass,
    and one call of autograd propagates the cotangents through all steps of the block.

    Args:
        problem: The solve.
        plan: The plan whose kernel the forward pass ran.
        states: The states of the forward pass, [n_steps + 1, *shape].
        sums: The sums over the past of each step, [n_steps + 1, sets, *shape], or None for a scheme with one set, whose
            replay needs the states alone.
        signatures: The `Signature` of each right-hand side and of the last state, [2, n_steps + 1].
        g: The loss's cotangents of the states, [n_steps + 1, *shape].
        parameters: The tensors whose gradients are wanted.
        learns: Whether the gradient in alpha is wanted.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        states: Tensor,
        sums: Tensor | None,
        signatures: Tensor,
        g: Tensor,
        parameters: list[Tensor],
        learns: bool,
    ):
        self.problem, self.plan, self.states, self.sums, self.g = problem, plan, states, sums, g
        self.gradients, self.learns = Gradients(problem.field.label, parameters, problem.field.makes_leaves), learns
        self.memory = problem.reversed_past(plan)
        self.values = torch.zeros_like(states) if learns else None  # the right-hand sides
        self.signature, self.expected = Signature(), signatures
        self.found = torch.empty_like(signatures[0])
        self.step = step_of(problem.scheme, problem.field)
        self.own = self._own_weights()
        self.is_sum = isinstance(self.step, ExplicitStep)  # whether a state is the step's sum over the past itself
        self.known = (states if sums is None else sums).unbind()
        self.of_own = [torch.zeros_like(self.own[0])] * (problem.n_steps + 1) if learns else []

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the gradients in the state at the start and in the derivative at the start."""
        problem, memory, last = self.problem, self.memory, self.problem.n_steps
        with torch.no_grad():
            end = 0
            for k in range(0, last, memory.block):
                end = memory.begin(k)
                self._block(last - min(end, last) + 1, last - k)
            if end <= last:
                memory.begin(last)
            z0_gradient = self.g[0] + self._start(self.of_value(0))
            memory.tell()
            check_repeated(problem.field.label, problem.field.eps, self.found, self.expected, self._moved)
            totals = problem.layout.as_state(memory.values.sum(2))  # at index k those of step n_steps - k
            return z0_gradient + totals.sum(0), torch.tensordot(problem.elapsed.flip(0), totals, 1)

    def _block(self, first: int, end: int) -> None:
        """Replay steps `first` to `end`; put the cotangents of their sums over the past into the reversed memory."""
        last = self.problem.n_steps
        head = m = self.known[first].detach().requires_grad_()
        own = [w.detach().requires_grad_() for w in self.own[first : end + 1]] if self.learns else self.own[first:]
        outs: list[Tensor] = []
        grads: list[Tensor] = []
        made: list[Tensor] = []
        value: Tensor | None = None
        with torch.enable_grad():
            for i, y in enumerate(self.states[first : end + 1].unbind()):
                n = first + i
                if i:
                    m = _Sums.apply(self, n, value, m)
                state, value = self.step.replay(n, m, own[i], y, n == last)
                mine = [m, *self.step.leaves, *own[i : i + self.learns]]
                self.gradients.check((state, value), mine, [head])  # walks end at the step's own sums and leaves
                self.step.leaves.clear()
                made.append((state if n == last or value is None else value).detach())
                if not self.is_sum:
                    outs.append(state)
                    grads.append(self.g[n])
            if self.is_sum:  # makes autograd go through the sums of all steps, whether f reads them or not
                outs.append(m)
                grads.append(torch.zeros_like(m))
            if end < last and value is not None:
                outs.append(value)
                grads.append(self.of_value(end))
        results = torch.stack(made)
        self.found[first : end + 1] = self.signature.sums(results)
        if self.values is not None:
            self.values[first : min(end + 1, last)] = results[: last - first]
        found = self.gradients.of(outs, grads, [head, *(own if self.learns else [])])
        self.put(first, torch.zeros_like(head) if found[0] is None else found[0])
        if self.learns:
            for n, part in enumerate(found[1:], start=first):
                if part is not None:
                    self.of_own[n] = part

    def put(self, n: int, g: Tensor) -> None:
        """Put the cotangent of step n's sums into the memory: g, plus the loss's where the sum is the state."""
        slot = self.memory.slots[self.problem.n_steps - n - self.memory.first]
        if self.is_sum:
            torch.add(g, self.g[n], out=slot)
        else:
            slot.copy_(g)

    def of_value(self, n: int) -> Tensor:
        """Return the cotangent of f_n through the sums of later steps, whose cotangents are in the memory already."""
        return self._with_starts(n, self.memory.memory(self.problem.n_steps - n))

    def _start(self, g: Tensor) -> Tensor:
        """Return the part of the gradient in the state at the start that comes through f_0, whose cotangent is g."""
        z, value = evaluated(self.problem.field, 0, self.states[0])
        self.found[:1] = self.signature.sums(value.detach()[None])
        if self.values is not None:
            self.values[0] = value.detach()
        self.gradients.check([value], [z])
        (found,) = self.gradients.of([value], [g], [z])
        return torch.zeros_like(g) if found is None else found

    def _moved(self, steps: Sequence[int]) -> Tensor:
        """Return `Signature.moved` for the right-hand sides of some steps, [steps]; for the last step, of the state."""
        found = []
        for n in steps:
            with torch.enable_grad():
                z = self.states[n].detach().requires_grad_()
                value = z.clone() if n == self.problem.n_steps else self.problem.field(n, z)
                found.append(self.signature.moved(z, value))
        return torch.stack(found)

    def order_gradient(self, alpha: Tensor) -> Tensor:
        """Return the gradient in alpha, [a], from the cotangents of the sums and the right-hand sides; after `run`."""
        assert self.values is not None, "alpha is learned"
        own = torch.stack([part.reshape(-1) for part in self.of_own], -1)
        values = self.problem.layout.as_matrix(self.values)
        return order_gradient(self.problem, alpha, self.memory.values.flip(1), values, own)

    def _own_weights(self) -> list[Any]:
        """Return the weight of f_n at each step: a number, or a tensor where alpha is learned or varies."""
        weights = self.problem.own_weights
        if not self.learns or isinstance(weights[0], Tensor):
            return list(weights)
        return list(torch.tensor(weights, dtype=torch.float64).to(self.states).unbind())

    def _with_starts(self, n: int, fg: Tensor) -> Tensor:
        """Return fg, the cotangent of f_n, plus its part that comes through f_n's starting weights at later steps."""
        starts = self._starts(n)
        if starts is None:
            return fg
        later = starts[:, :, n + 1 :].flip(-1).to(fg)  # [a, sets, later steps]
        found = torch.einsum("acn,ancr->ar", later, self.memory.values[:, : later.shape[-1]])
        return fg + self.problem.layout.as_state(found)

    def _starts(self, n: int) -> Tensor | None:
        """Return the starting weights of f_n in all steps, [a, sets, n_steps + 1], or None if f_n has none."""
        kept = self.problem.kept
        if kept is None or kept.starts is None or n >= kept.starts.shape[-1]:
            return None
        return torch.as_tensor(kept.starts)[..., n]


class _Sums(torch.autograd.Function):
    """The sums over the past of step n, as a function of f_(n - 1) and of the sums of the step before.

    Forward returns the sums that the solve computed, or the state where that stands for them. Backward puts their
    cotangent into the reversed memory and returns the cotangent of f_(n - 1), which it takes from the memory. The sums
    of the step before get no cotangent here: they are an argument so that autograd does later steps first.
    """

    @staticmethod
    def forward(ctx: Any, replay: Replay, n: int, value: Tensor, before: Tensor) -> Tensor:
        ctx.given = replay, n
        return replay.known[n].detach()  # autograd writes this node on what is returned, and the replay keeps its own

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        replay, n = ctx.given
        replay.put(n, grads[0])
        return None, None, replay.of_value(n - 1), None


def solved(solve: Solve, weighting: Weighting | None, plan: Plan | None, z0: Tensor) -> Tensor:
    """Return the states of a stochastic solve at the outputs, [outputs, *shape], without a graph.

    Args:
        solve: The solve.
        weighting: The weights of the past, or None where there is no memory.
        plan: The plan of the history, or None where there is no memory.
        z0: The state at the start, [*shape].
    """
    with torch.no_grad():
        return _forward(solve, weighting, plan, z0, keeps=False)[0]


def recorded_blocks(
    solve: Solve,
    weighting: Weighting | None,
    plan: Plan | None,
    z0: Tensor,
    alpha: Tensor | None,
    parameters: Tensors,
    functions: Sequence[Callable[..., Any]],
    read: Tensors,
) -> Tensor:
    """Return the states of a stochastic solve at the outputs, [outputs, *shape], with gradients by the adjoint.

    Args:
        solve: The solve; its noise is one tensor, `noise.whole`, where the gradient in the noise is wanted.
        weighting: The weights of the past, or None where there is no memory.
        plan: The plan of the history, or None where there is no memory.
        z0: The state at the start, [*shape].
        alpha: The orders as a tensor, [a], or None where they are no tensor.
        parameters: The tensors in which the gradient of drift and diffusion is wanted.
        functions: Drift and diffusion.
        read: The tensors that drift and diffusion read.
    """
    holders = functions, read
    return _BlockSolve.apply(solve, weighting, plan, holders, z0, alpha, solve.noise.whole, *parameters)  # type: ignore[no-any-return]


def _forward(
    solve: Solve, weighting: Weighting | None, plan: Plan | None, z0: Tensor, keeps: bool
) -> tuple[Tensor, list[Tensors], list[Tensors], list[Tensor]]:
    if weighting is None:
        return solve.run(z0, (), Forgetful(), keeps)
    assert plan is not None, "there is a history"
    memory = Recollection(weighting.problem, plan, z0)
    found = solve.run(z0, weighting.fixed(), memory, keeps)
    memory.past.tell()
    return found


class _BlockSolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, solve: Solve, weighting: Weighting | None, plan: Plan | None, holders: Any, *tensors: Tensor
    ) -> Tensor:
        found, carries, pasts, signatures = _forward(solve, weighting, plan, tensors[0].detach(), keeps=True)
        ctx.given = solve, weighting, plan, Snapshot(*holders), signatures
        ctx.weights = {past[0].shape[0]: past[1] for past in pasts if past}  # those of blocks of one length are equal
        ctx.counts = len(tensors), [len(carry) for carry in carries]
        each = [part for carry in carries for part in carry]
        ctx.save_for_backward(*tensors[1:], *each, *(past[0] for past in pasts if past))
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        check_once("fsdeint", grads)
        solve, weighting, plan, snapshot, signatures = ctx.given
        if weighting is not None:
            weighting.problem.site.again(plan)
        count, lengths = ctx.counts
        saved = iter(ctx.saved_tensors)
        alpha, whole, *parameters = (next(saved) for _ in range(count - 1))
        carries = [tuple(next(saved) for _ in range(length)) for length in lengths]
        needs = ctx.needs_input_grad[4:]
        wanted = [each for each, is_needed in zip(parameters, needs[3:], strict=True) if is_needed]
        of_noise = whole if needs[2] else None
        replay = StochasticReplay(solve, weighting, plan, ctx.weights, signatures, wanted, needs[1], of_noise)
        with without(grads[0].device.type), snapshot.renewed(wanted):
            z0_gradient = replay.run(grads[0].contiguous(), carries, list(saved))
            totals = iter(direct_parts(wanted, replay.gradients.totals))
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


class StochasticReplay:
    """The backward pass of a stochastic solve: its blocks are replayed from the last to the first.

    Args:
        solve: The solve.
        weighting: The weights of the past, or None where there is no memory.
        plan: The plan of the history, or None where there is no memory.
        weights: For each length of a block, the weights of its own steps by lag, [steps, sets, *varying].
        signatures: The signatures of what each block computed in the forward pass, see `Solve.compared`.
        parameters: The tensors whose gradients are wanted.
        learns: Whether the gradient in alpha is wanted.
        noise: The noise of all steps, where its gradient is wanted, else None.

    Attributes:
        of_noise: The gradient in the noise, or None.
    """

    def __init__(
        self,
        solve: Solve,
        weighting: Weighting | None,
        plan: Plan | None,
        weights: dict[int, Tensor],
        signatures: list[Tensor],
        parameters: list[Tensor],
        learns: bool,
        noise: Tensor | None,
    ):
        self.solve, self.weighting, self.weights, self.learns = solve, weighting, weights, learns
        self.gradients = Gradients(f"{OWNER}(sde)", parameters, solve.makes_leaves)
        self.of_noise = None if noise is None else torch.zeros_like(noise)
        self.memory: Forgetful | Anticipation = Forgetful()
        if weighting is not None and plan is not None:
            self.memory = Anticipation(weighting.problem, plan)
        self.shared = () if weighting is None else weighting.fixed()
        self.of_shared = [torch.zeros_like(each) for each in self.shared]
        self.noise = solve.noise if noise is None else NoiseRows(solve.noise.path, noise)
        self.signature, self.expected = Signature(), signatures
        self.values: list[list[Tensor]] = []  # what each step of a block adds to the past, the last block first

    def run(self, g: Tensor, carries: list[Tensors], rows: list[Tensor]) -> Tensor:
        """Return the gradient in the state at the start, [*shape].

        Args:
            g: The loss's cotangents of the states at the outputs, [outputs, *shape].
            carries: The carry that each block began with.
            rows: For each block, its steps' sums over the past, [steps, *shape]; empty where there is no memory.
        """
        z0_gradient = torch.zeros_like(carries[0][0])
        of_carry: Sequence[Tensor] = ()
        for i in reversed(range(len(carries))):
            of_carry, of_rows = self._block(i, g, carries[i], rows[i] if rows else None, of_carry)
            if of_rows is not None:
                self.memory.add(self.solve.blocks[i][0], list(of_rows.unbind()))
                z0_gradient = z0_gradient + of_rows.sum(0)
        if isinstance(self.memory, Anticipation):
            self.memory.past.tell()
        return z0_gradient + of_carry[0]

    def _block(
        self, i: int, g: Tensor, carry: Tensors, rows: Tensor | None, of_carry: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Replay block i; return the cotangents of its carry, and of `rows`, or None where `rows` is None.

        `g` are the cotangents of the solve's outputs. `carry` is what the block began with, passed on from the block
        before, `rows` are its steps' sums over the past. `of_carry` are the cotangents of the carry that the block
        passed on.
        """
        first, last = self.solve.blocks[i]
        later = self.memory.opened(first, last)
        carry, shared = _leaves(carry), _leaves(self.shared)
        past = () if rows is None else (*_leaves((rows,)), self.weights[rows.shape[0]])
        noise = self.noise.rows(first, last)
        if self.of_noise is not None:
            (noise,) = _leaves((noise,))
        with torch.enable_grad():
            made = self.solve.steps.run(first, last, carry, shared, past, noise)
        if compared := self.solve.compared(first, last, made):
            sums = self.signature.sums(torch.stack(compared))
            check_repeated(self.gradients.label, self.solve.eps, sums, self.expected[i], partial(self._moved, made))
        if self.learns:
            self.values.append([value.detach() for value in made.values])
        inputs = [*carry, *past[:1], *shared, *([] if self.of_noise is None else [noise])]
        outputs, grads = self._outputs(made, first, last, g, of_carry, later)
        self.gradients.check(outputs, inputs)
        parts = self.gradients.of(outputs, grads, inputs)
        found = (torch.zeros_like(each) if part is None else part for part, each in zip(parts, inputs, strict=True))
        mine = [next(found) for _ in carry]
        of_rows = next(found) if rows is not None else None
        for total in self.of_shared:
            total += next(found)
        if self.of_noise is not None:
            self.of_noise[first : first + noise.shape[0]] = next(found)
        return mine, of_rows

    def _moved(self, made: Advance, steps: Sequence[int]) -> Tensor:
        """Return `Signature.moved` for what some steps of the block `made` add to the past, [steps].

        Without a memory the result is 0: states are compared there, of which f is a small part.
        """
        if not made.values:
            return torch.zeros(len(steps), dtype=torch.float64, device=made.states[0].device)
        return torch.stack([self.signature.moved(made.states[k], made.values[k]) for k in steps])

    def _outputs(
        self, made: Advance, first: int, last: int, g: Tensor, of_carry: Sequence[Tensor], later: Tensors
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return those results of the replayed steps `first` to last - 1 that have cotangents, and the cotangents.

        `made` are the results. `g` are the cotangents of the solve's outputs, `of_carry` those of the carry to the next
        block, `later` those of what the block's steps added to the past; `later` is empty where there is no memory.
        """
        low, high = self.solve.wanted(first, last)
        outputs = [*(made.states[n - first] for n in self.solve.outputs[low:high]), *made.carry]
        grads = [*g[low:high].unbind(), *of_carry]
        if later:
            outputs += made.values
            grads += later[0][: len(made.values)].unbind()
            # Autograd then goes through all sums of the block in turn, whether drift and diffusion read them or not.
            outputs.append(made.sums[-1])
            grads.append(torch.zeros_like(made.sums[-1]))
        return outputs, grads

    def order_gradient(self, alpha: Tensor) -> Tensor:
        """Return the gradient in alpha, [a], from the cotangents of all states and what the steps added to the past.

        It is called after `run`.
        """
        weighting = self.weighting
        assert weighting is not None, "alpha is learned"
        assert isinstance(self.memory, Anticipation), "alpha is learned"
        layout, sets = weighting.problem.layout, weighting.weights.sets
        values = torch.stack([value for block in reversed(self.values) for value in block])
        values = values.view(values.shape[0], sets, *layout.shape)
        by_set = [layout.as_matrix(torch.cat([values[:, k], torch.zeros_like(values[:1, k])])) for k in range(sets)]
        sigma = tuple(self.of_shared)
        return weighting.order_gradient(alpha, self.memory.cotangents, torch.stack(by_set, 2), sigma)


def _leaves(tensors: Sequence[Tensor]) -> Tensors:
    return tuple(each.detach().requires_grad_() for each in tensors)
