"""The autocast that a solve is called under: of the right-hand side alone, forward and when it is evaluated again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch

_KINDS = ("cpu", "cuda", "mps", "xpu", "xla", "hpu", "mtia")


@dataclass(frozen=True)
class Casts:
    """An autocast.

    Attributes:
        dtypes: By the type of device.
        keeps: Whether it keeps the narrow copy of a parameter for further uses.
    """

    dtypes: tuple[tuple[str, torch.dtype], ...]
    keeps: bool

    def eps(self, dtype: torch.dtype, kind: str) -> float:
        """Return the rounding of what is computed of tensors of a dtype on a type of device."""
        return torch.finfo(dict(self.dtypes).get(kind, dtype)).eps

    @contextmanager
    def renewed(self) -> Iterator[None]:
        """Let it be on.

        With a graph no copies are kept: gradients of one that serves many steps would be added up in its own dtype.
        """
        keeps = self.keeps and not torch.is_grad_enabled()
        with ExitStack() as stack:
            for kind, dtype in self.dtypes:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=keeps))
            yield


def present(kind: str) -> Casts | None:
    """Return the autocast that is on, or None.

    Args:
        kind: The states' type of device.
    """
    if not torch._C._is_any_autocast_enabled() and not torch.is_autocast_enabled(kind):
        return None
    dtypes = tuple((each, torch.get_autocast_dtype(each)) for each in _enabled(kind))
    return Casts(dtypes, torch.is_autocast_cache_enabled())


@contextmanager
def without(kind: str) -> Iterator[None]:
    """Let none be on.

    Args:
        kind: The states' type of device.
    """
    with ExitStack() as stack:
        for each in _enabled(kind):
            stack.enter_context(torch.autocast(each, enabled=False))
        yield


def _enabled(kind: str) -> list[str]:
    return [each for each in dict.fromkeys((kind, *_KINDS)) if torch.is_autocast_enabled(each)]
