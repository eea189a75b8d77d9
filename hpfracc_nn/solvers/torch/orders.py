"""What alpha has of a solve through the weights: its gradient, and the derivative of what the weights add up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.solvers.torch.field import forward_product
from hpfracc_nn.solvers.torch.problem import Problem

_AT_ONCE = 1 << 20  # numbers that are transformed together
_ROWS = 64


def order_gradient(problem: Problem, alpha: Tensor, cotangents: Tensor, values: Tensor, own: Tensor) -> Tensor:
    """Return the gradient in alpha [a], float64: one correlation of cotangents and values, through the formulas.

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
    columns = _by_lag(cotangents, values)
    columns[:, -1, 0] = own.double().sum(-1)
    outputs, grads = [weights.columns], [columns]
    if weights.starts is not None:
        starts = _of_starts(cotangents, values, own, weights.starts.shape[-1])
        outputs.append(weights.starts)
        grads.append(starts)
    (found,) = torch.autograd.grad(outputs, orders, grads)
    return found


def order_tangent(problem: Problem, values: Tensor) -> tuple[Tensor, list[float]]:
    """Return the memories' derivatives by alpha for right-hand sides that stay, and those of the weights of f_n.

    Args:
        problem: What was solved, of one order.
        values: The right-hand sides, [n_steps + 1, r].

    Returns:
        [sets, n_steps + 1, r], and a number for each step.
    """
    orders = torch.as_tensor(problem.orders).to(values.device, torch.float64).requires_grad_()
    found = values.new_zeros(problem.scheme.sets, *values.shape)
    own = torch.zeros(values.shape[0], dtype=torch.float64)
    steps = torch.arange(values.shape[0], device=values.device)
    rows_of = _rows_by_lag(problem, orders) if problem.kept is not None else partial(_rows_of_mesh, problem, orders)
    for first in range(1, values.shape[0], _ROWS):
        last = min(first + _ROWS, values.shape[0])
        rows = rows_of(first, last).to(values)  # [sets, rows, last]
        own[first:last] = rows[-1, steps[: last - first], steps[first:last]]
        found[:, first:last] = (rows * (steps[first:last, None] > steps[:last])) @ values[:last]
    return found, own.tolist()


def _rows_of_mesh(problem: Problem, orders: Tensor, first: int, last: int) -> Tensor:
    """Return the derivatives by alpha of the weights of steps first to last - 1, [sets, rows, last]."""
    with torch.enable_grad():
        block = problem.scheme.block(orders, problem.times, range(first, last), range(last), TORCH)
    return _slope(orders, block)[0]


def _rows_by_lag(problem: Problem, orders: Tensor) -> Callable[[int, int], Tensor]:
    """Return a function that returns the same for a uniform mesh."""
    assert problem.kept is not None, "the mesh is uniform"
    with torch.enable_grad():
        weights = problem.scheme.weights(orders, problem.n_steps, problem.dt, TORCH)
        weights = problem.history.used(weights, problem.kept.nodes, TORCH)
    columns = _slope(orders, weights.columns)[0]
    starts = None if weights.starts is None else _slope(orders, weights.starts)[0]
    backwards = torch.cat([columns.flip(-1), columns.new_zeros(columns.shape)], -1)  # lag n_steps comes first

    def rows(first: int, last: int) -> Tensor:
        windows = backwards.unfold(-1, last, 1)  # the one at i begins with lag n_steps - i
        found = windows[:, problem.n_steps - last + 1 : problem.n_steps - first + 1].flip(1).clone()
        if starts is not None:
            count = min(starts.shape[-1], last)
            found[..., :count] += starts[:, first:last, :count]
        return found

    return rows


def _slope(orders: Tensor, weights: Tensor) -> Tensor:
    """Return the derivative of weights by the one order."""
    return forward_product(orders, weights)(torch.ones_like(orders)).detach()


def _by_lag(cotangents: Tensor, values: Tensor) -> Tensor:
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
