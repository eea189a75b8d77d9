"""Whether a right-hand side may be evaluated again, as the adjoint does: it must return the same and change nothing.

It is evaluated twice at the start. Seen are random numbers of torch's own generators, a result that differs, and
tensors that f changes in place from one evaluation to the next, wherever it holds them. What f does at later steps only
is not seen, nor what it changes outside of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.held import modules_of
from hpfracc_nn.solvers.torch.solving import evaluated, size


def evaluated_twice(field: Field, z0: Tensor) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """Return the state at the start as a leaf, f there, which has a graph, the other tensors that f reads, and those
    that it makes.

    Raises:
        ValueError: f draws random numbers, changes a tensor that it holds, or returns something else the second time.
    """
    random, watch = _generators(z0), _Watch()
    with watch:
        z, value = evaluated(field, 0, z0)
    if not all(map(torch.equal, random, _generators(z0))):
        raise ValueError(
            f"{field.label}: draws random numbers, as dropout does while training; the adjoint evaluates f again and "
            "would get others; call eval() on the module, as f.eval(), or pass adjoint=False."
        )
    changed = [(each, each.detach().clone()) for each in watch.changed()]
    with torch.no_grad():
        again = field(0, z0.detach()).detach()
    for each, once in changed:
        if not torch.equal(each, once):
            raise ValueError(
                f"{field.label}: changes {_named(each, field.f)}, as batch normalisation does while training; the "
                "adjoint evaluates f again and would change it twice; call eval() on the module, as f.eval(), or pass "
                "adjoint=False."
            )
    # Rounding may differ where a device adds up in any order.
    if size(again - value.detach()) > torch.finfo(value.dtype).eps ** 0.5 * max(size(again), size(value.detach())):
        raise ValueError(
            f"{field.label}: returns something else when it is evaluated again for the same t and y; the adjoint "
            "does so; let f depend on its arguments and on what stays as it is, or pass adjoint=False."
        )
    return z, value, [each for each in watch.unchanged() if each is not z], watch.made()


# Write statistics into their arguments without giving them a new version.
_SILENT = (functional.batch_norm, functional.instance_norm, torch.batch_norm, torch.instance_norm)


class _Watch(TorchFunctionMode):
    """Remembers the version of every tensor that was there before."""

    def __init__(self) -> None:
        super().__init__()
        self._silent: list[Tensor] = []
        self._before: dict[int, tuple[Tensor, int]] = {}
        self._made: dict[int, Tensor] = {}  # kept, so that no address comes twice

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        for each in _tensors((*args, *given.values())):
            if id(each) not in self._made and id(each) not in self._before and not each.is_inference():
                self._before[id(each)] = each, each._version
        if func in _SILENT:
            self._silent += [each for each in _tensors((*args, *given.values())) if not each.requires_grad]
        found = func(*args, **given)
        for each in _tensors((found,)):
            if id(each) not in self._before:
                self._made[id(each)] = each
        return found

    def changed(self) -> list[Tensor]:
        """Return the tensors that may hold something else now."""
        return [each for each, version in self._before.values() if each._version != version] + self._silent

    def made(self) -> list[Tensor]:
        """Return the tensors that were not there before."""
        return list(self._made.values())

    def unchanged(self) -> list[Tensor]:
        """Return the tensors that were there before and hold the same now."""
        return [each for each, version in self._before.values() if each._version == version]


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple | list):
            yield from _tensors(each)


def _generators(like: Tensor) -> list[Tensor]:
    """Return the states of the generators that f may draw from unasked."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(like.device)] if like.is_cuda else states


def _named(changed: Tensor, f: Any) -> str:
    for module in modules_of(f):
        for name, buffer in module.named_buffers():
            if buffer is changed:
                return f"its buffer {name!r}"
    return f"a tensor of shape {tuple(changed.shape)} that it holds"
