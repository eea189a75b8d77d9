"""alpha's gradient: the weights', from one correlation of cotangents and right-hand sides, through the formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.solvers.torch.problem import Problem

_AT_ONCE = 1 << 20  # numbers that are transformed together
_ROWS = 64


def order_gradient(problem: Problem, alpha: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """Return the gradient in alpha [a], float64.

    Args:
        problem: What was solved.
        alpha: The orders, [a].
        cotangents: Of the memories, [a, n_steps + 1, sets, r].
        values: The right-hand sides, [a, n_steps + 1, r].
        own: Gradients of the weights of f_n at step n, [a, n_steps + 1].
    """
    with torch.enable_grad():
        orders = alpha.detach().double().requires_grad_()
        if problem.kept is None:
            return _of_matrix(problem, orders, cotangents, values, own)
        weights = problem.history.used(
            problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH), problem.kept.nodes, TORCH
        )
    columns = by_lag(cotangents, values)
    columns[:, -1, 0] = own.double().sum(-1)
    outputs, grads = [weights.columns], [columns]
    if weights.starts is not None:
        starts = _of_starts(cotangents, values, own, weights.starts.shape[-1])
        outputs.append(weights.starts)
        grads.append(starts)
    (found,) = torch.autograd.grad(outputs, orders, grads)
    return found


def by_lag(cotangents: Tensor, values: Tensor) -> Tensor:
    """Return sum over n, r of cotangents[n] values[n - lag], [a, sets, n_steps + 1] in float64; lag 0 is left out."""
    a, n, sets, width = cotangents.shape
    total = torch.zeros(a, sets, n + 1, dtype=torch.complex128, device=values.device)
    part = max(1, _AT_ONCE // (2 * n * sets))
    for begin in range(0, width, part):
        some = slice(begin, begin + part)
        later = torch.fft.rfft(cotangents[..., some].double(), 2 * n, dim=1)
        earlier = torch.fft.rfft(values[..., some].double(), 2 * n, dim=1)
        total += torch.einsum("afcr,afr->acf", later, earlier.conj())
    found = torch.fft.irfft(total, 2 * n)[..., :n]
    found[..., 0] = 0
    return found


def _of_starts(cotangents: Tensor, values: Tensor, own: Tensor, count: int) -> Tensor:
    """Return the gradients of the starts, [a, sets, n_steps + 1, count]."""
    n = cotangents.shape[1]
    found = torch.einsum("ancr,akr->acnk", cotangents.double(), values[:, :count].double())
    found = found * (torch.arange(n, device=found.device)[:, None] > torch.arange(count, device=found.device))
    for k in range(min(count, n)):
        found[:, -1, k, k] += own[:, k]
    return found


def _of_matrix(problem: Problem, orders: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """The same by blocks of rows of the matrix, whose formulas are traced one block at a time."""
    found = torch.zeros_like(orders)
    steps = torch.arange(problem.n_steps + 1, device=values.device)
    for first in range(1, problem.n_steps + 1, _ROWS):
        last = min(first + _ROWS, problem.n_steps + 1)
        rows = problem.scheme.block(orders, problem.times, range(first, last), range(last), TORCH)
        grads = torch.einsum("ancr,akr->acnk", cotangents[:, first:last].double(), values[:, :last].double())
        grads = grads * (steps[first:last, None] > steps[:last])
        grads[:, -1, steps[: last - first], steps[first:last]] = own[:, first:last].double()
        found = found + torch.autograd.grad(rows, orders, grads)[0]
    return found
