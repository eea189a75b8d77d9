"""A function at many steps at once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# What a function may raise where its arguments stand for many: it, and not the solver, is asked again one by one, and
# raises again what is its own.
_NOT_TOGETHER = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,  # vmap's own: values that are read, in-place writes to what is not of the batch, no rule
    TypeError,
    ValueError,
)

_log = logging.getLogger("hpfracc_nn.solvers")


class Together:
    """Evaluations at many steps, as one under `torch.func.vmap` where the function can be taken so.

    A small network is as fast for 64 steps as for one. Where the function's control flow depends on values, or an
    operation has no rule for a batch, forward or backward, it is called step by step from then on.

    Args:
        function: Of tensors that have no axis of steps, to one tensor.
        may_batch: Whether it may be called for many at once.
    """

    def __init__(self, function: Callable[..., Any], may_batch: bool = True):
        self._function, self._may_batch = function, may_batch

    def __call__(self, columns: tuple[Tensor, ...], then: Callable[[Tensor], T]) -> T:
        """Return `then` of the function's values, [steps, ...], at arguments that each have an axis of steps in front.

        Args:
            columns: The arguments.
            then: Called a second time where a batch fails in it.
        """
        if self._may_batch:
            try:
                return then(torch.func.vmap(self._function)(*columns))
            except _NOT_TOGETHER as error:
                self._may_batch = False
                _log.debug("f is evaluated step by step: %s", str(error).partition("\n")[0])
        each = zip(*(column.unbind() for column in columns), strict=True)
        return then(torch.stack([self._function(*arguments) for arguments in each]))
