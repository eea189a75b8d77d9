"""What is said of a step where something is not finite, and of a mode that a solve cannot follow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import is_batched
from hpfracc_nn.solvers import faults
from hpfracc_nn.solvers.torch.field import Field
from hpfracc_nn.solvers.torch.wrapped import bare, is_finite


def fault(field: Field, n: int, z: Tensor) -> FloatingPointError:
    """Return what is said of step n, where something is not finite: f at `z`, or the solution after it has grown."""
    if is_undefined(field, n, z):
        return undefined(field, n, z)
    return faults.diverged("fdeint", n, float(field.times[n]), _largest(z))


def is_undefined(field: Field, n: int, z: Tensor) -> bool:
    """Whether f is not finite at a state that is, and that has not grown beyond all measure."""
    return _largest(z) < torch.finfo(z.dtype).max ** 0.1 and not is_finite(field(n, z))


def undefined(field: Field, n: int, z: Tensor, how: str = "") -> FloatingPointError:
    """Return what is said where f is not finite at `z`.

    Args:
        field: The right-hand side.
        n: The step.
        z: The state.
        how: It came about, for the text.
    """
    return faults.undefined("fdeint", n, float(field.times[n]), _largest(z), how)


def check_states(field: Field, states: list[Tensor]) -> None:
    """Raise for the first state that is not finite: one look where all are.

    Raises:
        FloatingPointError: One is not.
    """
    if is_finite(states[-1]):
        return
    for n, state in enumerate(states[1:], 1):
        if not is_finite(state):
            raise fault(field, n if is_finite(field(n - 1, states[n - 1])) else n - 1, states[n - 1])


def check_once(owner: str, grads: Sequence[Tensor]) -> None:
    """Raise where a backward pass is to be differentiated, or is one for many cotangents at once.

    Raises:
        RuntimeError: It is.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"{owner}: the adjoint cannot be differentiated again; pass adjoint=False for second derivatives."
        )
    if any(map(is_batched, grads)):
        raise RuntimeError(
            f"{owner}: the adjoint takes one cotangent at a time, and not many as by is_grads_batched=True or "
            "jacobian(vectorize=True); leave these out, or pass adjoint=False with an explicit scheme."
        )


def check_untraced(owner: str, argument: str) -> None:
    """Raise under torch.jit.trace.

    Raises:
        RuntimeError: It traces.
    """
    if torch.jit.is_tracing():
        raise RuntimeError(f"{owner}({argument}): torch.jit.trace cannot follow it; call it outside the traced part.")


def _largest(z: Tensor) -> float:
    return float(bare(z).abs().max())
