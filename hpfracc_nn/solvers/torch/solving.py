"""The equation of an implicit step, y = m + w f(y), and the linear one of its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hpfracc_nn.solvers.roots import FixedPoint, Roots
from hpfracc_nn.solvers.torch.field import Field, product
from hpfracc_nn.solvers.torch.gmres import gmres

_TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-13}
_ROUNDING = 1e3  # times the tolerance
_SLOW = 0.1  # a change that is not smaller than this part of the last one has the Jacobian made anew
_CHEAP = 32  # numbers of a state: up to so many factors are made for every w
_NEAR = 0.05  # of w: factors of larger states serve for one that differs by less


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

    def _allowed(self, *like: Tensor) -> float:
        """Return the change that is small for a solution of the size of these."""
        return self.tolerance * max(torch.finfo(like[0].dtype).tiny, *map(_size, like))

    @staticmethod
    def _is_small(change: float, last: float, allowed: float) -> bool:
        """Whether the last change was small, or as small as rounding lets it get in a stiff equation."""
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
        y, change, allowed = guess, torch.inf, self._allowed(guess, m)
        for _ in range(self.iterations):
            found = m + w * self.field(n, y)
            last, change, y = change, _size(found - y), found
            allowed = max(allowed, self._allowed(y))  # from rest the first guess says nothing of the size
            if self._is_small(change, last, allowed):
                return y
            if not change < torch.inf:
                break
        raise self._failed(n, change, "the equation")

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """See `Equation`."""
        start = g if fg is None else g + product(value, [z], fg)[0]
        mu, change, allowed = start, torch.inf, self._allowed(start)
        for _ in range(self.iterations):
            found = start + product(value, [z], mu * w)[0]
            last, change, mu = change, _size(found - mu), found
            if self._is_small(change, last, allowed):
                return mu
        raise self._failed(n, change, "the adjoint equation")


class Factorised(_Iteration):
    """Newton's iteration with a dense Jacobian that is kept while it serves, and the factors of 1 - w J for the "
    "last w.
    """

    def __init__(self, field: Field, tolerance: float, iterations: int):
        super().__init__(field, tolerance, iterations)
        self._jacobian: Tensor | None = None
        self._factors: tuple[Tensor, Tensor] | None = None
        self._factored: float | Tensor = 0.0  # the w of the factors
        self._near = 0.0 if field.packing.shape.numel() <= _CHEAP else _NEAR

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """See `Equation`."""
        y, change, allowed = guess, torch.inf, self._allowed(guess, m)
        for _ in range(self.iterations):
            residual = m + w * self.field(n, y) - y
            if self._jacobian is None:
                self._jacobian, self._factors = self._made(n, y), None
            delta = torch.linalg.lu_solve(*self._ready(w, y), residual.reshape(-1, 1)).view_as(y)
            last, change = change, _size(delta)
            if not change < torch.inf:
                break
            y = y + delta
            allowed = max(allowed, self._allowed(y))  # from rest the first guess says nothing of the size
            if self._is_small(change, last, allowed):
                return y
            if change > _SLOW * last:
                self._jacobian = None
        self._jacobian = None
        raise self._failed(n, change, "the equation")

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """See `Equation`."""
        mu, change = torch.zeros_like(g), torch.inf
        residual = g if fg is None else g + product(value, [z], fg)[0]
        start, allowed = residual, self._allowed(residual)
        for _ in range(self.iterations):
            if self._jacobian is None:
                self._jacobian, self._factors = _rows(z, value), None
            delta = torch.linalg.lu_solve(*self._ready(w, g), residual.reshape(-1, 1), adjoint=True).view_as(g)
            last, change = change, _size(delta)
            mu = mu + delta
            if self._is_small(change, last, allowed):
                return mu
            if change > _SLOW * last:
                self._jacobian = None
            residual = start + product(value, [z], mu * w)[0] - mu
        raise self._failed(n, change, "the adjoint equation")

    def _ready(self, w: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return factors that serve for w: those of a w so near where making them anew costs more than an iteration."""
        assert self._jacobian is not None, "it has been made"
        if self._factors is None or not self._is_near(w):
            weights = w.expand_as(like).reshape(-1, 1) if isinstance(w, Tensor) else w
            unit = torch.eye(like.numel(), dtype=like.dtype, device=like.device)
            self._factors, self._factored = torch.linalg.lu_factor(unit - weights * self._jacobian), w
        return self._factors

    def _is_near(self, w: float | Tensor) -> bool:
        before = self._factored
        if isinstance(w, Tensor):
            assert isinstance(before, Tensor), "a solve has weights of one kind"
            return w is before or bool(((w - before).abs() <= self._near * before.abs()).all())
        assert not isinstance(before, Tensor), "a solve has weights of one kind"
        return abs(w - before) <= self._near * abs(before)

    def _made(self, n: int, y: Tensor) -> Tensor:
        with torch.enable_grad():
            z = y.detach().requires_grad_()
            return _rows(z, self.field(n, z))


class Krylov(_Iteration):
    """Newton's iteration, each system by GMRES with products only."""

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """See `Equation`."""
        y, change, allowed = guess, torch.inf, self._allowed(guess, m)
        for _ in range(self.iterations):
            with torch.enable_grad():
                z = y.detach().requires_grad_()
                value = self.field(n, z)
                forward = _forward_product(z, value)
            delta = gmres(lambda v: v - w * forward(v), m + w * value.detach() - y, self.tolerance)  # noqa: B023
            last, change, y = change, _size(delta), y + delta
            allowed = max(allowed, self._allowed(y))  # from rest the first guess says nothing of the size
            if self._is_small(change, last, allowed):
                return y
            if not change < torch.inf:
                break
        raise self._failed(n, change, "the equation")

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor, fg: Tensor | None) -> Tensor:
        """See `Equation`."""
        start = g if fg is None else g + product(value, [z], fg)[0]
        return gmres(lambda v: v - product(value, [z], v * w)[0], start, self.tolerance)


def _forward_product(z: Tensor, value: Tensor) -> Callable[[Tensor], Tensor]:
    """Return v -> J v: the derivative of u -> J' u, which is linear, times v."""
    if not value.requires_grad:
        return torch.zeros_like
    u = torch.zeros_like(value, requires_grad=True)
    (pulled,) = torch.autograd.grad(value, z, u, create_graph=True, allow_unused=True)
    if pulled is None or not pulled.requires_grad:
        return torch.zeros_like
    return lambda v: torch.autograd.grad(pulled, u, v, retain_graph=True)[0]


def _rows(z: Tensor, value: Tensor) -> Tensor:
    """Return the Jacobian of a value, [numbers, numbers], row by row."""
    count = z.numel()
    units = torch.eye(count, dtype=z.dtype, device=z.device).view(count, *z.shape)
    return torch.stack([product(value, [z], unit)[0].reshape(-1) for unit in units])


def _size(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, torch.inf))
