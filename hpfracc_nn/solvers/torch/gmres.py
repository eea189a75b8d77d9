"""GMRES for a linear map that is known by its products only.

Saad & Schultz, SIAM J. Sci. Stat. Comput. 7 (1986) 856.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_RESTART = 40
_CYCLES = 50  # where no number of products is given


def gmres(apply: Callable[[Tensor], Tensor], b: Tensor, tolerance: float, products: int | None = None) -> Tensor | None:
    """Return x with apply(x) = b, or None where it is not found.

    Args:
        apply: Linear, from tensors like b to such.
        b: The right-hand side.
        tolerance: Of the residual's norm, relative to that of b.
        products: After how many the search ends, in cycles of 40; None is 2000.
    """
    x, size = torch.zeros_like(b), float(b.norm())
    if size == 0:
        return x
    if not size < torch.inf:
        return None
    residual, left = b, size
    for _ in range(_CYCLES if products is None else -(-products // _RESTART)):
        x = x + _cycle(apply, residual, tolerance * size)
        residual = b - apply(x)
        last, left = left, float(residual.norm())
        if left <= 4 * tolerance * size or (left <= 1e3 * tolerance * size and left > 0.5 * last):
            return x  # what rounding leaves grows with the condition of the map
        if not left < torch.inf:
            break
    return None


def _cycle(apply: Callable[[Tensor], Tensor], residual: Tensor, tolerance: float) -> Tensor:
    """Return the correction of least residual in the Krylov space, by Arnoldi's method, orthogonalised twice."""
    size = residual.norm()
    count = min(_RESTART, residual.numel())
    basis = residual.new_zeros(count + 1, residual.numel())
    hessenberg = residual.new_zeros(count + 1, count)
    basis[0] = residual.reshape(-1) / size
    target = residual.new_zeros(count + 1, 1)
    target[0] = size
    solution = target[:0]
    for k in range(count):
        v = apply(basis[k].view_as(residual)).reshape(-1)
        for _ in range(2):
            along = basis[: k + 1] @ v
            v = v - along @ basis[: k + 1]
            hessenberg[: k + 1, k] += along
        hessenberg[k + 1, k] = length = v.norm()
        square = hessenberg[: k + 2, : k + 1]
        solution = torch.linalg.lstsq(square, target[: k + 2]).solution
        if float((square @ solution - target[: k + 2]).norm()) <= tolerance or float(length) <= 1e-15 * float(size):
            break
        basis[k + 1] = v / length
    return (solution[:, 0] @ basis[: solution.shape[0]]).view_as(residual)
