"""The tensors that a right-hand side has graphs to, and their gradients from many steps at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from hpfracc_nn.solvers.torch.field import Field

_TOGETHER = 64  # evaluations of f

_log = logging.getLogger("hpfracc_nn.solvers")


class ParameterGradient:
    """Adds up the gradients of tensors that f depends on.

    Evaluations at many steps are one under `torch.func.vmap`, where f can be taken so: a small network is as fast for
    64 steps as for one. Where it cannot, because its control flow depends on values or an operation has no rule, or
    where a module has hooks, which see each call, they are made one by one.

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
        self._is_batched = not _has_hooks(field.f)

    def remember(self, n: int, z: Tensor, g: Tensor) -> None:
        """Let f(t_n, z) bring the tensors what they have of its cotangent g."""
        if not self.parameters:
            return
        self._at.append(n)
        self._states.append(z)
        self._g.append(g)
        if len(self._at) >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Add up what was remembered."""
        if not self._at:
            return
        with torch.enable_grad():
            out = self._evaluated(self._at, torch.stack(self._states))
        if out.requires_grad:
            found = torch.autograd.grad(
                out, self.parameters, torch.stack(self._g), retain_graph=True, allow_unused=True
            )
            for total, part in zip(self.totals, found, strict=True):
                if part is not None:
                    total += part
        self._at, self._states, self._g = [], [], []

    def evaluate(self, states: Tensor) -> Tensor:
        """Return the right-hand sides at the states [steps, *shape] of the first steps, of the same shape."""
        parts = []
        for first in range(0, states.shape[0], _TOGETHER):
            some = states[first : first + _TOGETHER]
            parts.append(self._evaluated(list(range(first, first + some.shape[0])), some))
        return torch.cat(parts)

    def _evaluated(self, at: list[int], states: Tensor) -> Tensor:
        if self._is_batched:
            try:
                return torch.func.vmap(self.field.at)(self.field.times[at], states)
            except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:  # one by one it raises again
                self._is_batched = False
                _log.debug("f is evaluated step by step in the adjoint: %s", str(error).partition("\n")[0])
        return torch.stack([self.field(n, z) for n, z in zip(at, states.unbind(), strict=True)])


def discovered(
    owner: str, field: Field, z0: Tensor, given: Iterable[Tensor] | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return f at the first step, and the leaves that its gradient reaches, with all parameters of its module.

    The module is f, or whose method f is.

    Raises:
        ValueError: f draws random numbers or changes a buffer, or one of the leaves has hooks.
    """
    label, module = f"{owner}({field.argument})", _module(field.f)
    buffers = {} if module is None else {name: (each, each._version) for name, each in module.named_buffers()}
    random = _generators(z0)
    with torch.enable_grad():
        z = z0.detach().requires_grad_()
        value = field(0, z)
    if not all(map(torch.equal, random, _generators(z0))):
        raise ValueError(
            f"{label}: draws random numbers, as dropout does while training; the adjoint evaluates f again and "
            "would get others; call f.eval(), or pass adjoint=False."
        )
    for name, (buffer, version) in buffers.items():
        if buffer._version != version:
            raise ValueError(
                f"{label}: changes its buffer {name!r}, as batch normalisation does while training; the adjoint "
                "evaluates f again and would change it twice; call f.eval(), or pass adjoint=False."
            )
    leaves: dict[int, Tensor] = {}
    own = [] if module is None else [each for each in module.parameters() if each.requires_grad]
    passed = tuple(given or ())
    for each in (*own, *passed, *_leaves(value, passed)):
        if each is not z:
            leaves[id(each)] = each
    for each in leaves.values():
        if each._backward_hooks:
            raise ValueError(
                f"{label}: a parameter of shape {tuple(each.shape)} has a hook on its gradient, which the adjoint "
                "would call twice; remove it, use register_post_accumulate_grad_hook, or pass adjoint=False."
            )
    return value.detach(), tuple(leaves.values())


def _module(f: object) -> nn.Module | None:
    owner = getattr(f, "__self__", f)
    return owner if isinstance(owner, nn.Module) else None


def _generators(like: Tensor) -> list[Tensor]:
    """Return the states of the generators that f may draw from unasked."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(like.device)] if like.is_cuda else states


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
    if not isinstance(f, nn.Module):
        return False
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(each, kind) for each in f.modules() for kind in kinds)
