"""The steps of a solve as plain operations, without a look at a number: for compilers, and for tensors without numbers.

A compiled graph holds every step, and its own product with the whole past. The formula is the schemes' own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.solvers.schemes import PredictorCorrector, Rectangle, Scheme
from hpfracc_nn.solvers.torch.opaque_weights import solver_weights


def last(
    owner: str,
    f: Callable[[Tensor, Tensor], Tensor],
    y0: Tensor,
    alpha: Tensor,
    t1: float,
    n_steps: int,
    scheme: Scheme,
) -> Tensor:
    """Return the state at t1 of D^alpha y = f(t, y), y(0) = y0, in n_steps equal steps.

    Args:
        owner: Who asks, for messages.
        f: The right-hand side.
        y0: The state at 0.
        alpha: At most 1, float64, of no more axes than y0; its shape broadcasts to y0's.
        t1: The end.
        n_steps: How many steps.
        scheme: One that is explicit.

    Raises:
        NotImplementedError: The scheme is implicit.
        ValueError: f returns another shape.
        TypeError: f returns no tensor, or one of another dtype.
    """
    if not isinstance(scheme, Rectangle | PredictorCorrector):
        raise NotImplementedError(
            f"{owner}(scheme={scheme.name!r}): solves equations, for which it looks at numbers that a compiler does "
            "not have; pass scheme='rectangle' or 'predictor_corrector', or keep the compiler away by "
            "torch.compiler.disable."
        )
    aligned = alpha.to(y0.device).reshape((1,) * (y0.ndim - alpha.ndim) + alpha.shape)
    rows = _rows(scheme, aligned, t1 / n_steps, n_steps)
    times = torch.linspace(0, t1, n_steps + 1, dtype=torch.float64).to(y0).unbind()
    corrections = scheme.corrections if isinstance(scheme, PredictorCorrector) else 0

    def rate(n: int, y: Tensor) -> Tensor:
        found = f(times[n], y)
        check_like(owner, "f", found, y0.shape, y0.dtype)
        return found

    y, values = y0, [rate(0, y0)]
    for n in range(1, n_steps + 1):
        weights = rows(n).to(y0)
        past = (weights[:, :-1] * torch.stack(values)).sum(1)
        y = y0 + past[0]
        for _ in range(corrections):
            y = y0 + past[1] + weights[1, -1] * rate(n, y)
        if n < n_steps:
            values.append(rate(n, y))
    return y


def check_like(owner: str, argument: str, found: Any, shape: Sequence[int], dtype: torch.dtype) -> None:
    """Raise unless a right-hand side returned a tensor of this shape and dtype; no number is looked at.

    Args:
        owner: Who asks, for messages.
        argument: What the right-hand side is called there.
        found: What it returned.
        shape: That it needs.
        dtype: That it needs.
    """
    if not isinstance(found, Tensor):
        raise TypeError(
            f"{owner}({argument}): needs a tensor of shape {tuple(shape)}; {argument} returned {type(found).__name__}."
        )
    if found.dtype != dtype:
        raise TypeError(
            f"{owner}({argument}): needs the state's dtype {dtype}; {argument} returned {found.dtype}; convert it "
            "there, or pass the state in that dtype."
        )
    if found.shape != shape:
        raise ValueError(
            f"{owner}({argument}): needs shape {tuple(shape)}; {argument} returned {tuple(found.shape)}; return a "
            "tensor of that shape."
        )


def _rows(scheme: Scheme, alpha: Tensor, dt: float, n_steps: int) -> Callable[[int], Tensor]:
    """Return what gives the weights that f_0 to f_n have in step n, [sets, n + 1, *alpha.shape], float64."""
    weights = solver_weights(alpha.reshape(-1), scheme.name, n_steps, dt)
    columns, starts = weights.split(scheme.sets, dim=1)

    def row(n: int) -> Tensor:
        found = columns[..., : n + 1].flip(-1)
        found = torch.cat([found[..., :1] + starts[..., n : n + 1], found[..., 1:]], -1)
        return found.movedim(0, -1).reshape(*found.shape[1:], *alpha.shape)

    return row
