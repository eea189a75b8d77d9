"""The exact adjoints of the discrete schemes: blocks of steps are replayed, each with one call of autograd.

The forward pass keeps no graph. Backwards, the steps of a block are taken once more with a graph, from the sums over
the past that they had, the last block first, and one call of autograd takes the cotangents of all of them apart. The
cotangents of the sums go into the same history run backwards in time, which brings those of earlier right-hand sides.
The gradient is that of the numbers that were computed, not of a continuous adjoint equation, which for alpha < 1 is 4
to 10 % off and does not improve with the step.

Shapes: [*shape] a state, a orders alpha, sets of weights of the scheme (`schemes`). g and fg are the loss's cotangents
of a state and of a right-hand side f_n. The starting weights of f_n are what it brings each step besides its weight by
lag.
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

Edge = tuple[Any, int]  # a node, and which of its results


def sources(value: Tensor, wanted: Sequence[Tensor], held: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors whose gradients, passed on, are all of the gradient of `value`.

    A tensor that is wanted or held is one, and the way stops there: its own hooks and what else is asked of it go on
    from there. Where one lies behind another, what reaches it through that one is to be taken off, see
    `direct_parts`.

    Args:
        value: Has a graph, or is a leaf.
        wanted: Are reached, whether the graph of `value` reaches them or not.
        held: Are looked for.
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
    """Return the tensors that the gradient of f is wanted of, and all that f reads at the first step.

    Wanted are all parameters of the modules that f holds, the leaves that it holds, the tensors that are given, and
    what the first step's graph reaches: tensors that f holds, and the leaves that it reaches otherwise.

    Raises:
        ValueError: f may not be evaluated again, or one of the tensors has hooks.
    """
    z, value, read, made = evaluated_twice(field, z0)
    every = held(field.f)
    parameters = [each for module in every if isinstance(module, nn.Module) for each in module.parameters()]
    others = [each for each in every if isinstance(each, Tensor) and each.requires_grad]
    leaves = [each for each in others if each.is_leaf]  # others have graphs that would be kept
    wanted = [each for each in (*parameters, *leaves, *(given or ())) if each.requires_grad]
    reached = [each for each in sources(value, wanted, others) if each is not z]
    own = {id(each) for each in made}  # of leaves that f makes there is no gradient, nor of those of later steps
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
    """Keep the `grad` of tensors that have retain_grad() as it is inside this context.

    Gradients that are taken inside are parts; the whole gradient comes to these tensors afterwards, at once.
    """
    before = [(each, each.grad) for each in tensors if each.retains_grad]
    try:
        yield
    finally:
        for each, grad in before:
            each.grad = grad


class Gradients:
    """The gradients of the tensors that a right-hand side depends on, added up over blocks of steps.

    Args:
        label: The function that has the right-hand side, for error messages.
        parameters: The tensors.
        makes_leaves: Whether the right-hand side makes tensors that require a gradient by itself.

    Attributes:
        totals: The gradients, None of tensors that are not used.
    """

    def __init__(self, label: str, parameters: list[Tensor], makes_leaves: bool):
        self.label, self.parameters, self.makes_leaves = label, parameters, makes_leaves
        self.totals: list[Tensor | None] = [None] * len(parameters)
        self._replayed: dict[int, Tensor] = {}  # leaves that the replay made, where f makes leaves too

    @cached_property
    def _known(self) -> tuple[set[Any], set[Edge]]:
        """Where `check` stops its walk through a graph: the autograd nodes of parameters that are leaves, and the edges
        of the other parameters, whose nodes may have other results too.
        """
        edges = [_edge(each) for each in self.parameters]
        ends = {node for node, _ in edges if hasattr(node, "variable")}
        return ends, {edge for edge in edges if edge[0] not in ends}

    def check(self, values: Iterable[Tensor | None], inputs: Iterable[Tensor], leaves: Iterable[Tensor] = ()) -> None:
        """Raise where a graph reaches a leaf of which no gradient is asked, or what another step was made of.

        Args:
            values: Have the graph.
            inputs: Tensors that the graph begins with; the way stops there.
            leaves: What else the replay made for these values or others, which f must not carry from step to step.

        Raises:
            RuntimeError: A gradient would be lost.
        """
        begins = {_edge(each) for each in inputs if each.requires_grad}
        if self.makes_leaves:
            self._replayed.update((id(each), each) for each in (*inputs, *leaves) if each.is_leaf)
        ends, stops = self._known
        seen: set[Any] = {node for node, _ in begins if hasattr(node, "variable")}
        waiting = [_edge(each) for each in values if each is not None and each.requires_grad]
        while waiting:  # once for every operation of a graph: what is not needed is not looked at
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
        """Return the gradients in `inputs`, None where nothing depends on one, and add up those in the parameters.

        Args:
            outputs: What a block has made, looked at by `check`.
            grads: Their cotangents.
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


_ROUNDING = 1e3  # times eps: what two passes may differ by whose kernels add up in another order


def check_repeated(
    label: str, eps: float, found: Tensor, expected: Tensor, moved: Callable[[Sequence[int]], Tensor]
) -> None:
    """Raise where the backward pass did not compute what the forward pass did: one look for all steps.

    A right-hand side that remembers earlier calls, or draws random numbers, has other results when blocks of steps are
    replayed from the last to the first. One that counts its calls, or keeps a log, has not.

    Args:
        label: Whose right-hand side, for messages.
        eps: Of what it is computed in.
        found: Weighted sums of what it computed, [n].
        expected: Signatures of the forward pass, [2, n].
        moved: Returns, of those that are apart, how far each moves with its state; see `Signature.moved`.

    Raises:
        RuntimeError: They differ.
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
    """Return of gradients what reaches each tensor other than through another of them.

    What a tensor is made of has, in `totals`, the part that comes through it; backpropagation goes on behind each
    tensor and brings that part once more.

    Args:
        tensors: Whose gradients they are.
        totals: All of each gradient, [*shape of the tensor]; None where nothing reaches it.
    """
    found, behind = list(totals), [_behind(each) for each in tensors]
    # What another is made of has less behind it, so that its own part is known later.
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
    """Return the states at all steps, [n_steps + 1, *shape], with their gradients.

    Args:
        problem: What is solved.
        plan: Of both passes.
        z0: The state at the start, [*shape].
        dz0: Its derivative, for orders above 1, or None.
        alpha: The orders as a tensor of [a] values whose gradient is wanted, or None.
        parameters: The tensors that f has graphs to.
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
        return states.clone()  # the caller may write to its own, and f may have kept a view of these

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

    Each block's steps are taken once more with a graph, from the sums over the past that they had, and one call of
    autograd takes the cotangents of all of them apart.

    Args:
        problem: What was solved.
        plan: The kernel that the forward pass ran.
        states: Its solution, [n_steps + 1, *shape].
        sums: The sums over the past of each step, [n_steps + 1, sets, *shape], or None where the states say enough.
        signatures: The `Signature` of each of its right-hand sides and of the last state, [2, n_steps + 1].
        g: The loss's cotangents of the states.
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
        self.is_sum = isinstance(self.step, ExplicitStep)  # whether a state is the sums and no result of its own
        self.known = (states if sums is None else sums).unbind()
        self.of_own = [torch.zeros_like(self.own[0])] * (problem.n_steps + 1) if learns else []

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the gradients in the state at the start and in its derivative."""
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
            totals = problem.layout.as_state(memory.values.sum(2))  # of step n_steps - k at k
            return z0_gradient + totals.sum(0), torch.tensordot(problem.elapsed.flip(0), totals, 1)

    def _block(self, first: int, end: int) -> None:
        """Replay steps `first` to `end`; the cotangents of their sums over the past go into the reversed memory."""
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
                self.gradients.check((state, value), mine, [head])  # its own sums: f may carry nothing over
                self.step.leaves.clear()
                made.append((state if n == last or value is None else value).detach())
                if not self.is_sum:
                    outs.append(state)
                    grads.append(self.g[n])
            if self.is_sum:  # from the last on all are gone through, whether f reads them or not
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
        """Put the cotangent of the sums of step n into the memory: g, and the loss's where they are the state."""
        slot = self.memory.slots[self.problem.n_steps - n - self.memory.first]
        if self.is_sum:
            torch.add(g, self.g[n], out=slot)
        else:
            slot.copy_(g)

    def of_value(self, n: int) -> Tensor:
        """Return the cotangent of f_n, where the memory has those of the sums of later steps."""
        return self._with_starts(n, self.memory.memory(self.problem.n_steps - n))

    def _start(self, g: Tensor) -> Tensor:
        """Return the gradient in the state at the start through f_0: g, the cotangent of f_0, times f's Jacobian."""
        z, value = evaluated(self.problem.field, 0, self.states[0])
        self.found[:1] = self.signature.sums(value.detach()[None])
        if self.values is not None:
            self.values[0] = value.detach()
        self.gradients.check([value], [z])
        (found,) = self.gradients.of([value], [g], [z])
        return torch.zeros_like(g) if found is None else found

    def _moved(self, steps: Sequence[int]) -> Tensor:
        """See `check_repeated`; of the last state, which has no right-hand side, the state itself is compared."""
        found = []
        for n in steps:
            with torch.enable_grad():
                z = self.states[n].detach().requires_grad_()
                value = z.clone() if n == self.problem.n_steps else self.problem.field(n, z)
                found.append(self.signature.moved(z, value))
        return torch.stack(found)

    def order_gradient(self, alpha: Tensor) -> Tensor:
        """Return alpha's gradient, from the cotangents of the sums and the right-hand sides."""
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
        """Return fg, the cotangent of f_n, plus what comes to f_n through its starting weights in later steps."""
        starts = self._starts(n)
        if starts is None:
            return fg
        later = starts[:, :, n + 1 :].flip(-1).to(fg)  # [a, sets, later steps]
        found = torch.einsum("acn,ancr->ar", later, self.memory.values[:, : later.shape[-1]])
        return fg + self.problem.layout.as_state(found)

    def _starts(self, n: int) -> Tensor | None:
        """Return the starting weights of f_n in all steps, [a, sets, n_steps + 1], or None if it has none."""
        kept = self.problem.kept
        if kept is None or kept.starts is None or n >= kept.starts.shape[-1]:
            return None
        return torch.as_tensor(kept.starts)[..., n]


class _Sums(torch.autograd.Function):
    """The sums over the past of step n, as a function of f_(n - 1) and of the sums of the step before.

    Forward returns the sums that the solve computed. Backward puts their cotangent into the reversed memory, and takes
    that of f_(n - 1) from it. The sums before get none: they are an argument so that later steps are done first.
    """

    @staticmethod
    def forward(ctx: Any, replay: Replay, n: int, value: Tensor, before: Tensor) -> Tensor:
        ctx.given = replay, n
        return replay.known[n]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        replay, n = ctx.given
        replay.put(n, grads[0])
        return None, None, replay.of_value(n - 1), None


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
        solve: What was solved.
        weighting: The weights of the past, or None.
        plan: The kernel of the history, or None.
        weights: The weights by lag, for each length of a block.
        signatures: Of what each block computed in the forward pass.
        parameters: The tensors whose gradients are wanted.
        learns: Whether the gradient in alpha is wanted.
        noise: All of the noise, where its gradient is wanted, else None.

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
            self.memory.past.tell()
        return z0_gradient + of_carry[0]

    def _block(
        self, i: int, g: Tensor, carry: Tensors, rows: Tensor | None, of_carry: Sequence[Tensor]
    ) -> tuple[list[Tensor], Tensor | None]:
        """Replay block i; return the cotangents of its carry, and of `rows`, or None if these are None.

        `g` are the cotangents of the solve's outputs, `carry` and `rows` what the block began with: the state passed
        from block to block, and its steps' sums over the past. `of_carry` are the cotangents of the carry that it
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
        """See `check_repeated`; without a memory states are compared, of which f is a small part."""
        if not made.values:
            return torch.zeros(len(steps), dtype=torch.float64, device=made.states[0].device)
        return torch.stack([self.signature.moved(made.states[k], made.values[k]) for k in steps])

    def _outputs(
        self, made: Advance, first: int, last: int, g: Tensor, of_carry: Sequence[Tensor], later: Tensors
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return those results of the replayed steps `first` to last - 1 that have cotangents, and the cotangents.

        `made` are the results. `g` are the cotangents of the solve's outputs, `of_carry` those of the carry to the next
        block, `later` those of what the block put into the memory; it is empty where there is no memory.
        """
        low, high = self.solve.wanted(first, last)
        outputs = [*(made.states[n - first] for n in self.solve.outputs[low:high]), *made.carry]
        grads = [*g[low:high].unbind(), *of_carry]
        if later:
            outputs += made.values
            grads += later[0][: len(made.values)].unbind()
        return outputs, grads

    def order_gradient(self, alpha: Tensor) -> Tensor:
        """Return alpha's gradient, from the cotangents of all states and what the steps brought the past."""
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
