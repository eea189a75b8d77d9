"""The tensors that a right-hand side has graphs to, and their gradients from many steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.held import modules_of, tensors_of
from hpfracc_nn.solvers.torch.purity import evaluated_twice
from hpfracc_nn.solvers.torch.sources import check_known, sources
from hpfracc_nn.solvers.torch.together import Together

_AT_ONCE = 64  # evaluations of f


class ParameterGradient:
    """Adds up the gradients of tensors that f depends on, from many evaluations at a time.

    Modules with hooks, which see each call, are called step by step.

    Args:
        field: The right-hand side.
        parameters: The tensors.
    """

    def __init__(self, field: Field, parameters: Sequence[Tensor]):
        self.field, self.parameters = field, list(parameters)
        self.totals: list[Tensor | None] = [None] * len(self.parameters)  # None of those that f does not use
        self._at: list[int] = []
        self._states: list[Tensor] = []
        self._g: list[Tensor] = []
        self._together = Together(field.at, not _has_hooks(field.f))

    def remember(self, n: int, z: Tensor, g: Tensor) -> None:
        """Let f(t_n, z) bring the tensors what they have of its cotangent g."""
        if not self.parameters:
            return
        self._at.append(n)
        self._states.append(z)
        self._g.append(g)
        if len(self._at) >= _AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Add up what was remembered."""
        if not self._at:
            return
        g = torch.stack(self._g)

        def gradients(out: Tensor) -> Sequence[Tensor | None]:
            if not out.requires_grad:
                return [None] * len(self.parameters)
            self.check(out)
            return torch.autograd.grad(out, self.parameters, g, retain_graph=True, allow_unused=True)

        with torch.enable_grad(), _retained(self.parameters):
            found = self._together((self.field.times[self._at], torch.stack(self._states)), gradients)
        for k, part in enumerate(found):
            if part is not None:
                before = self.totals[k]
                self.totals[k] = part if before is None else before + part  # one part may be that of two tensors
        self._at, self._states, self._g = [], [], []

    def check(self, value: Tensor, *own: Tensor) -> None:
        """Raise where f has read a tensor whose gradient would be lost; see `check_known`."""
        if not self.field.makes_leaves:
            check_known(self.field.label, [value], self.parameters, own)

    def evaluate(self, states: Tensor) -> Tensor:
        """Return the right-hand sides at the states [steps, *shape] of the first steps, of the same shape."""
        times = self.field.times[: states.shape[0]]
        parts = zip(times.split(_AT_ONCE), states.split(_AT_ONCE), strict=True)
        return torch.cat([self._together(each, lambda values: values) for each in parts])


def discovered(
    field: Field, z0: Tensor, given: Iterable[Tensor] | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the tensors that the gradient of f is wanted of, and all that f reads at the first step.

    Wanted are all parameters of the modules that f holds, the leaves that it holds, the tensors that are given, and
    what the first step's graph reaches: tensors that f holds, and the leaves that it reaches otherwise.

    Raises:
        ValueError: f may not be evaluated again, or one of the tensors has hooks.
    """
    z, value, read, made = evaluated_twice(field, z0)
    parameters = (each for module in modules_of(field.f) for each in module.parameters())
    held = [each for each in tensors_of(field.f) if each.requires_grad]
    leaves = (each for each in held if each.is_leaf)  # others have graphs that would be kept
    wanted = [each for each in (*parameters, *leaves, *(given or ())) if each.requires_grad]
    reached = [each for each in sources(value, wanted, held) if each is not z]
    own = {id(each) for each in made}  # of leaves that f makes there is no gradient, nor of those of later steps
    found = tuple(each for each in reached if id(each) not in own)
    field.makes_leaves = len(found) < len(reached)
    for each in found:
        if each._backward_hooks:
            what = "parameter" if each.is_leaf else "tensor"
            raise ValueError(
                f"{field.label}: a {what} of shape {tuple(each.shape)} has a hook on its gradient, which the adjoint "
                "would call twice; remove it, use register_post_accumulate_grad_hook, which leaves have, or pass "
                "adjoint=False."
            )
    return found, tuple(read)


@contextmanager
def _retained(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Leave the gradients of tensors with retain_grad() as they are: what comes later brings them all of it at once."""
    before = [(each, each.grad) for each in tensors if each.retains_grad]
    try:
        yield
    finally:
        for each, grad in before:
            each.grad = grad


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
    """Return the nodes of a tensor's graph, but not its own."""
    own = tensor.grad_fn
    found: set[object] = set()
    waiting = [] if own is None else [node for node, _ in own.next_functions]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return found


def _has_hooks(f: object) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(each, kind) for module in modules_of(f) for each in module.modules() for kind in kinds)
