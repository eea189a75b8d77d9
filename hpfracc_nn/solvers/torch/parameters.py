"""The tensors that a right-hand side has graphs to, and their gradients from many steps at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.purity import evaluated_twice, modules_of
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
        self.totals = [torch.zeros_like(each) for each in parameters]
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
            return torch.autograd.grad(out, self.parameters, g, retain_graph=True, allow_unused=True)

        with torch.enable_grad():
            found = self._together((self.field.times[self._at], torch.stack(self._states)), gradients)
        for total, part in zip(self.totals, found, strict=True):
            if part is not None:
                total += part
        self._at, self._states, self._g = [], [], []

    def evaluate(self, states: Tensor) -> Tensor:
        """Return the right-hand sides at the states [steps, *shape] of the first steps, of the same shape."""
        times = self.field.times[: states.shape[0]]
        parts = zip(times.split(_AT_ONCE), states.split(_AT_ONCE), strict=True)
        return torch.cat([self._together(each, lambda values: values) for each in parts])


def discovered(owner: str, field: Field, z0: Tensor, given: Iterable[Tensor] | None) -> tuple[Tensor, ...]:
    """Return the leaves that the gradient of f at the first step reaches, with all parameters of a module.

    Raises:
        ValueError: f may not be evaluated again, or one of the leaves has hooks.
    """
    z, value = evaluated_twice(owner, field, z0)
    leaves: dict[int, Tensor] = {}
    own = [each for each in field.f.parameters() if each.requires_grad] if isinstance(field.f, nn.Module) else []
    passed = tuple(given or ())
    for each in (*own, *passed, *_leaves(value, passed)):
        if each is not z:
            leaves[id(each)] = each
    for each in leaves.values():
        if each._backward_hooks:
            raise ValueError(
                f"{owner}(f): a parameter of shape {tuple(each.shape)} has a hook on its gradient, which the adjoint "
                "would call twice; remove it, use register_post_accumulate_grad_hook, or pass adjoint=False."
            )
    return tuple(leaves.values())


def _leaves(value: Tensor, passed: Iterable[Tensor]) -> Iterable[Tensor]:
    """Yield the leaves of a graph, but not those behind tensors that were passed: their gradients go on from there."""
    if value.is_leaf and value.requires_grad:
        yield value
    seen, waiting = {each.grad_fn for each in passed}, [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(following for following, _ in node.next_functions)


def _has_hooks(f: object) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(each, kind) for module in modules_of(f) for each in module.modules() for kind in kinds)
