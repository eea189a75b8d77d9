"""What rounding leaves of weights that a table gives and a formula is compared with: derived, not measured.

A weight is a sum of a few terms a_i. Where a term is a product of 64 quotients, 128 roundings make it, of
2**-53 / sqrt(3) each; where it is a power k**P = exp(P log k), those of P, of log k and of their product arrive
multiplied by log k and P log k, at most log 16 and 3 log 16. Either way its relative error is about 7 * 2**-53, and the
weight's that times the root of the sum of a_i**2, which `magnitude` returns. Where the terms cancel this is far more
than the weight: third differences of k**3 up to k = 16 are sums of terms of 10**4.

A table is linear in the formula's values at the Chebyshev points, so that their errors, which are independent, add up
by the squares of its coefficients. These are the table's own, with the power of `reach`, and their derivatives those of
the result. The formula that it is compared with has the same error once, its derivative log 16 times as much, and the
difference quotient of that sqrt(130) / (12 h) times as much again.

The bound is four standard deviations for the worst lag, and holds for all. At n = 64 and 1000 the largest excess over
the relative tolerance was a tenth of it for Grunwald's weights and a twenty-fifth for the integral's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes import powers
from hpfracc_nn.fractional.schemes.interpolation import l1_cells
from hpfracc_nn.fractional.tables import _POINTS, Points, domain_of
from hpfracc_nn.fractional.torch.namespace import TORCH

H = 1e-3  # of the difference quotient
_TERM = 7 * 2.0**-53
_LIMIT = 4  # standard deviations
HEAD = powers._HEAD  # lags that are summed directly

Derivatives = Callable[[Callable[[Tensor], Tensor], Tensor], tuple[Tensor, Tensor, Tensor]]


def rounding(
    family: Definition, alpha: Tensor, n: int, dt: float, degree: int, derivatives: Derivatives, boundary: bool = False
) -> list[Tensor]:
    """Return bounds of the errors of any weight, its first and its second derivative, each [channels].

    Args:
        family: The operator at its upper bound.
        alpha: The orders, [channels].
        n: Samples.
        dt: Their spacing.
        degree: Terms of the table's series.
        derivatives: Returns a function's values and its two derivatives, each channel's in its own order.
        boundary: Whether it is a boundary column, not the weights.
    """
    domain = domain_of(family, n)
    angles = np.pi * (np.arange(_POINTS) + 0.5) / _POINTS
    nodes = np.add.outer(domain.centres, domain.radius * np.cos(angles)).ravel()
    transform = np.cos(np.outer(np.arange(degree), angles)) * (2 / _POINTS)
    transform[0] /= 2
    errors = magnitude(family, nodes, n, boundary) * domain.reach ** (-domain.power * nodes)
    made = torch.as_tensor(np.kron(np.eye(domain.cells), transform) * errors)

    def shares(orders: Tensor) -> Tensor:
        points = Points(orders.reshape(-1, 1), domain, dt, TORCH, lambda name, array: torch.as_tensor(array))
        return points.basis(degree) @ made

    own = torch.as_tensor(magnitude(family, alpha.numpy(), n, boundary)) * dt ** (family.dt_power * alpha)
    slope = math.log(max(HEAD, n if boundary else 1))
    of_formula = (1, slope, slope * math.sqrt(130) / (12 * H))
    return [
        _LIMIT * _TERM * torch.sqrt(share.square().sum(dim=1) + (factor * own).square())
        for share, factor in zip(derivatives(shares, alpha), of_formula, strict=True)
    ]


def magnitude(family: Definition, alpha: np.ndarray, n: int, boundary: bool) -> np.ndarray:
    """Return the root of the sum of the squares of what is added to the worst weight at dt = 1, for every order."""
    stencil = family.stencil_at(alpha, n, 1.0, NUMPY)
    rows = np.unique(np.geomspace(1, n, 300).astype(int)) - 1
    columns = [stencil.column(rows)[:, None]]
    if boundary:
        columns += [stencil.start_column(rows)[:, None]] if stencil.start_column else []
        columns += [stencil.analytic_columns(rows)] if stencil.analytic_columns else []
    largest = np.abs(np.concatenate(columns, axis=1)).max(axis=(1, 2))
    if boundary and family.scheme == "bdf2":  # two terms that grow; the power of k has an exponential of log(k) * P
        power = family.taylor - alpha
        size = family.taylor * n**power / _gamma(1 + power)
        return np.maximum(largest, math.sqrt(2) * math.log(max(n, 2)) * size)
    if family.scheme in ("grunwald", "bdf2"):  # products, and sums of them that fall like 3**-j
        return math.sqrt(2) * largest
    exponent, polynomial = _powers(family, alpha)
    # (k + 1)**P is summed less (k + 1)**j, which is exact, j one less than the differences
    j = powers._zeros_at_one(polynomial) - 1
    base = HEAD - np.arange(len(polynomial))
    terms = np.array([float(a) for a in polynomial]) * np.maximum(base ** exponent[:, None], base**j)
    return np.maximum(largest, np.sqrt((terms**2).sum(axis=1)) / _gamma(1 + exponent))


def _powers(family: Definition, alpha: np.ndarray) -> tuple[np.ndarray, tuple[Fraction, ...]]:
    """Return P and the polynomial that is applied to (k + 1)**P."""
    if family.scheme == "trapezoid":
        return 1 + alpha, powers.differences(2 - family.differences)
    return family.taylor - alpha, powers.multiply(l1_cells(family.taylor, family.differences))


def _gamma(values: np.ndarray) -> np.ndarray:
    return np.array([math.gamma(value) for value in values])
