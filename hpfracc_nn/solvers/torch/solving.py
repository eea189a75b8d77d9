"""The equation of an implicit step, y = m + w f(y), and the linear one of its transpose."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hpfracc_nn.solvers.roots import FixedPoint, Roots
from hpfracc_nn.solvers.torch.field import Field, product
from hpfracc_nn.solvers.torch.gmres import gmres

_TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-13}
_ROUNDING = 1e3  # times the tolerance
_SLOW = 0.1  # a change that is not smaller than this part of the last one has the Jacobian made anew


class NotSolved(RuntimeError):
    """The equation of a step has not been solved to the tolerance."""


class Equation(Protocol):
    """Solves the steps of one solve."""

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """Return y with y = m + w f(t_n, y)."""
        ...

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """Return mu with mu = g + J' (fg + w mu), J the Jacobian of `value` in `z`."""
        ...


def equation_of(roots: Roots, field: Field) -> Equation:
    """Return what solves the steps."""
    tolerance = _TOLERANCES[field.dtype] if roots.tolerance is None else roots.tolerance
    if isinstance(roots, FixedPoint):
        return Iterated(field, tolerance, roots.iterations)
    count = field.packing.shape.numel()
    if count <= roots.dense:
        return Factorised(field, tolerance, roots.iterations)
    return Krylov(field, tolerance, roots.iterations)


class _Iteration:
    """What the iterations share: when one has converged, and what is raised where it does not."""

    def __init__(self, field: Field, tolerance: float, iterations: int):
        self.field, self.tolerance, self.iterations = field, tolerance, iterations

    def _is_small(self, change: float, last: float, y: Tensor, m: Tensor) -> bool:
        """Whether the last change was small, or as small as rounding lets it get in a stiff equation."""
        allowed = self.tolerance * max(_size(y), _size(m), torch.finfo(y.dtype).tiny)
        return change <= allowed or (change <= _ROUNDING * allowed and change > last / 2)

    def _failed(self, n: int, change: float, what: str) -> NotSolved:
        return NotSolved(
            f"fdeint: {what} of step {n}, t={float(self.field.times[n]):g}, did not converge in {self.iterations} "
            f"iterations; the last change was {change:.3g}; {self._way_out}."
        )

    _way_out = "take more steps, or raise the tolerance or the iterations of Newton(...)"


class Iterated(_Iteration):
    """Fixed-point iteration, also for the transpose."""

    _way_out = "take more steps, or pass roots=Newton() to the scheme"

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """See `Equation`."""
        y, change = guess, torch.inf
        for _ in range(self.iterations):
            found = m + w * self.field(n, y)
            last, change, y = change, _size(found - y), found
            if self._is_small(change, last, y, m):
                return y
            if not change < torch.inf:
                break
        raise self._failed(n, change, "the equation")

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """See `Equation`."""
        start = g if fg is None else g + product(value, [z], fg)[0]
        mu, change = start, torch.inf
        for _ in range(self.iterations):
            found = start + product(value, [z], mu * w)[0]
            last, change, mu = change, _size(found - mu), found
            if self._is_small(change, last, mu, start):
                return mu
        raise self._failed(n, change, "the adjoint equation")


class Factorised(_Iteration):
    """Newton's iteration with a dense factorised matrix 1 - w J that is kept while it serves."""

    def __init__(self, field: Field, tolerance: float, iterations: int):
        super().__init__(field, tolerance, iterations)
        self._factors: tuple[Tensor, Tensor] | None = None

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """See `Equation`."""
        y, change = guess, torch.inf
        for _ in range(self.iterations):
            residual = m + w * self.field(n, y) - y
            if self._factors is None:
                self._factors = self._made(n, y, w)
            delta = torch.linalg.lu_solve(*self._factors, residual.reshape(-1, 1)).view_as(y)
            last, change = change, _size(delta)
            if not change < torch.inf:
                break
            y = y + delta
            if self._is_small(change, last, y, m):
                return y
            if change > _SLOW * last:
                self._factors = None
        self._factors = None
        raise self._failed(n, change, "the equation")

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """See `Equation`."""
        mu, change = torch.zeros_like(g), torch.inf
        residual = g if fg is None else g + product(value, [z], fg)[0]
        start = residual
        for _ in range(self.iterations):
            if self._factors is None:
                self._factors = _factors(_jacobian(z, value), w, z.shape)
            delta = torch.linalg.lu_solve(*self._factors, residual.reshape(-1, 1), adjoint=True).view_as(g)
            last, change = change, _size(delta)
            mu = mu + delta
            if self._is_small(change, last, mu, start):
                return mu
            if change > _SLOW * last:
                self._factors = None
            residual = start + product(value, [z], mu * w)[0] - mu
        raise self._failed(n, change, "the adjoint equation")

    def _made(self, n: int, y: Tensor, w: float | Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            value = self.field(n, z)
        return _factors(_jacobian(z, value), w, z.shape)


class Krylov(_Iteration):
    """Newton's iteration, each system by GMRES with products only."""

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """See `Equation`."""
        y, change = guess, torch.inf
        for _ in range(self.iterations):
            with torch.enable_grad():
                z = y.detach().requires_grad_()
                value = self.field(n, z)
                forward = _forward_product(z, value)
            delta = gmres(lambda v: v - w * forward(v), m + w * value.detach() - y, self.tolerance)  # noqa: B023
            last, change, y = change, _size(delta), y + delta
            if self._is_small(change, last, y, m):
                return y
            if not change < torch.inf:
                break
        raise self._failed(n, change, "the equation")

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """See `Equation`."""
        start = g if fg is None else g + product(value, [z], fg)[0]
        return gmres(lambda v: v - product(value, [z], v * w)[0], start, self.tolerance)


def _forward_product(z: Tensor, value: Tensor):  # type: ignore[no-untyped-def]
    """Return v -> J v: the derivative of u -> J' u, which is linear, times v."""
    if not value.requires_grad:
        return torch.zeros_like
    u = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, z, u, create_graph=True, allow_unused=True)
    if pulled is None or not pulled.requires_grad:
        return torch.zeros_like
    return lambda v: torch.autograd.grad(pulled, u, v, retain_graph=True)[0]


def _jacobian(z: Tensor, value: Tensor) -> Tensor:
    """Return the Jacobian, [numbers, numbers], row by row."""
    count = z.numel()
    units = torch.eye(count, dtype=z.dtype, device=z.device).view(count, *z.shape)
    return torch.stack([product(value, [z], unit)[0].reshape(-1) for unit in units])


def _factors(jacobian: Tensor, w: float | Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    count = jacobian.shape[0]
    if isinstance(w, Tensor):
        w = w.expand(shape).reshape(-1, 1)
    return torch.linalg.lu_factor(torch.eye(count).to(jacobian) - w * jacobian)


def _size(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, torch.inf))
