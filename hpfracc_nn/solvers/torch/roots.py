"""The root of an implicit step's equation, y = m + w f(y), and the solution of its transpose.

Both are found by corrections: x <- x + c(r(x)), r the residual and c an inverse of 1 - w J, or of its transpose: exact,
or out of date, or simply 1. The kinds of `Equation` are kinds of c. For large states GMRES applies c: Saad & Schultz,
SIAM J. Sci. Stat. Comput. 7 (1986) 856.

Under transforms of torch.func and in forward mode the iteration is Newton's in plain operations, each of which a
transform can follow. The last iteration begins at the solution, where a step of Newton's method has the derivatives of
the solution itself, whatever the derivatives of its starting point are: the first derivative exactly, and the second
too where the iteration before the last began near the solution.

m is the step's sum over the past, w the weight of f_n in step n, J the Jacobian of f in the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.tracing import is_batched, is_watched
from hpfracc_nn.solvers import schemes
from hpfracc_nn.solvers.checks import WITH_FIXED_POINT, WITH_NEWTON, NotSolved, unsolved
from hpfracc_nn.solvers.schemes import LARGEST_DENSE, ROUNDING, STALLED, FixedPoint, Roots
from hpfracc_nn.solvers.torch.state import (
    NAMES,
    Field,
    bare,
    evaluated,
    forward_product,
    is_undefined,
    product,
    size,
    undefined,
)

_RESTART = 40  # products of a cycle of GMRES
_CYCLES = 50  # cycles of GMRES where the caller does not limit the products


def gmres(apply: Callable[[Tensor], Tensor], b: Tensor, tolerance: float, products: int | None = None) -> Tensor | None:
    """Return the solution x of apply(x) = b by restarted GMRES, or None where GMRES does not converge.

    Args:
        apply: A linear map of tensors of b's shape.
        b: The right-hand side.
        tolerance: The residual's norm that is aimed at, relative to the norm of b.
        products: The most calls of `apply`, rounded up to cycles of 40; None is 2000.
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
    """Return the x in a Krylov space that makes `residual - apply(x)` smallest in norm, by Arnoldi's method.

    The space grows, by up to `_RESTART` products, until the norm is at most `tolerance`. The basis is orthogonalised
    twice.
    """
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


TOLERANCES = {dtype: schemes.TOLERANCES[name] for dtype, name in NAMES.items()}
_SLOW = 0.1  # where a change is larger than this part of the last change, the Jacobian is made anew
_CHEAP = 32  # numbers of a state up to which factors are made for every w
_NEAR = 0.05  # relative difference of w up to which the factors of larger states serve for another w

Map = Callable[[Tensor], Tensor]


class Equation(Protocol):
    """The solver of the equations of one implicit solve: y = m + w f(t_n, y) at each step n, and its transpose."""

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """Return the y with y = m + w f(t_n, y), found from `guess`."""
        ...

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor) -> Tensor:
        """Return the mu with mu = g + J' w mu, J the Jacobian of `value`, f(t_n, z), in z; NaN if g is not finite."""
        ...


def equation_of(given: Roots, field: Field) -> Equation:
    """Return the `Equation` of a scheme's root finder `given`: fixed-point, dense Newton, or GMRES for large states."""
    tolerance = TOLERANCES[field.dtype] if given.tolerance is None else given.tolerance
    if isinstance(given, FixedPoint):
        return Iterated(field, tolerance, given.iterations)
    if field.layout.shape.numel() <= given.dense:
        return Factorised(field, tolerance, given.iterations)
    return Krylov(field, tolerance, given.iterations)


class Convergence:
    """The test of whether an iteration has converged.

    A small change that an inverse out of date makes says nothing of the error: it is as small where the inverse is too
    small. The error is then estimated from how fast changes shrink: with theta the ratio of the last two changes, the
    changes to come add up to theta / (1 - theta) times the last.

    Args:
        tolerance: The error that is allowed, relative to the size of the solution.
        like: Tensors whose sizes stand for that of the solution before there is one.
        slowest: The largest theta up to which the estimate is trusted.

    Attributes:
        change: The size of the last change; infinite before the first.

    Source: Hairer & Wanner, Solving Ordinary Differential Equations II (1996), section IV.8.
    """

    def __init__(self, tolerance: float, *like: Tensor, slowest: float = 1.0):
        dtype = like[0].dtype
        self.tolerance, self.change, self._slowest = tolerance, torch.inf, slowest
        self._size = max(torch.finfo(dtype).tiny, *map(size, like))
        self._rounding = ROUNDING * TOLERANCES[dtype]
        self._stalled = STALLED * torch.finfo(dtype).eps

    def is_reached(self, change: float, x: Tensor, is_exact: bool) -> bool:
        """Return whether x is the solution to the tolerance, or as near to it as rounding allows.

        Args:
            change: The size of the last change.
            x: The iterate after the change.
            is_exact: Whether the change was made with the inverse at the very iterate from which it began.
        """
        last, self.change = self.change, change
        self._size = max(self._size, size(x))  # a guess of 0 says nothing of the size
        allowed = self.tolerance * self._size
        if is_exact:
            return change <= allowed or (change <= self._rounding * self._size and change > last / 2)
        if not last < torch.inf:
            return False
        theta = change / last if last else 0.0
        if theta < 1:
            return theta <= self._slowest and change * max(1.0, theta / (1 - theta)) <= allowed
        # Changes stall at rounding: that is enough only where no better inverse can be made.
        return self._slowest >= 1 and change <= self._stalled * self._size


class _Iteration:
    """The iteration that the kinds of `Equation` share, and the errors where it does not converge.

    A subclass defines c, which makes a correction of a residual: `_correction` and `_transposed_correction`. Here c is
    1.

    Args:
        field: The right-hand side f.
        tolerance: The error of a state that is allowed, relative to its size.
        iterations: The most iterations; then an error is raised.
    """

    _way_out = WITH_NEWTON
    _slowest = _SLOW  # `slowest` of `Convergence`; where changes shrink more slowly, c is made anew

    def __init__(self, field: Field, tolerance: float, iterations: int):
        self.field, self.tolerance, self.iterations = field, tolerance, iterations

    def root(self, n: int, m: Tensor, w: float | Tensor, guess: Tensor) -> Tensor:
        """Return the y with y = m + w f(t_n, y), by the iteration from `guess`: see `Equation.root`."""

        def residual(y: Tensor) -> Tensor:
            return m + w * self.field(n, y) - y

        y, convergence = guess, Convergence(self.tolerance, guess, m, slowest=self._slowest)
        for _ in range(self.iterations):
            is_exact = self._is_exact()
            delta = self._correction(n, w, y, residual(y))
            last, change = convergence.change, size(delta)
            if not change < torch.inf:
                raise self._lost(n, y, change)
            y = y + delta
            if convergence.is_reached(change, y, is_exact):
                return y
            if change > _SLOW * last:
                self._renew()
        raise self._failed(n, "the equation", convergence.change)

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor) -> Tensor:
        """Return the mu with mu = g + J' w mu, by the iteration from 0: see `Equation.transposed`."""
        if not size(g) < torch.inf:
            return torch.full_like(g, torch.nan)  # as in any other backward pass
        convergence = Convergence(self.tolerance, g, slowest=self._slowest)
        residual, mu = g, torch.zeros_like(g)
        for _ in range(self.iterations):
            is_exact = self._is_exact()
            delta = self._transposed_correction(z, value, w, residual)
            last, change, mu = convergence.change, size(delta), mu + delta
            if convergence.is_reached(change, mu, is_exact):
                return mu
            if change > _SLOW * last:
                self._renew()
            residual = g + product(value, [z], mu * w)[0] - mu
        raise self._failed(n, "the adjoint equation", convergence.change)

    def _correction(self, n: int, w: float | Tensor, y: Tensor, residual: Tensor) -> Tensor:
        """Return c(residual), the correction of the iterate y in step n; the residual is m + w f(t_n, y) - y."""
        return residual

    def _transposed_correction(self, z: Tensor, value: Tensor, w: float | Tensor, residual: Tensor) -> Tensor:
        """Return c(residual) for the transposed equation, mu = g + J' w mu.

        J is the Jacobian of `value`, which is f(z) with its graph, in the solution z.
        """
        return residual

    def _is_exact(self) -> bool:
        """Return whether the next correction uses the inverse at the very iterate that it starts from."""
        return False

    def _renew(self) -> None:
        """Have c made anew, closer to the inverse of 1 - w J, because the iteration converges too slowly.

        Here c stays 1.
        """

    def _lost(self, n: int, y: Tensor, change: float) -> Exception:
        self._renew()
        if is_undefined(self.field, n, y):
            return undefined(self.field, n, y, ", an iterate of the step's equation")
        return self._failed(n, "the equation", change)

    def _failed(self, n: int, what: str, change: float) -> NotSolved:
        t = float(self.field.times[n])
        return unsolved("fdeint", n, t, self.iterations, self._way_out, what, change)


class Iterated(_Iteration):
    """The `Equation` by fixed-point iteration, also for the transpose: c is 1."""

    _way_out = WITH_FIXED_POINT
    _slowest = 1.0


class Factorised(_Iteration):
    """The `Equation` by Newton's iteration with a dense Jacobian J and LU factors of 1 - w J.

    Both are kept, from step to step, as long as the iteration converges fast; the transpose uses the same factors.
    """

    def __init__(self, field: Field, tolerance: float, iterations: int):
        super().__init__(field, tolerance, iterations)
        self._jacobian: Tensor | None = None
        self._factors: tuple[Tensor, Tensor] | None = None
        self._factored: float | Tensor = 0.0  # the w of the factors
        self._near = 0.0 if field.layout.shape.numel() <= _CHEAP else _NEAR

    def _correction(self, n: int, w: float | Tensor, y: Tensor, residual: Tensor) -> Tensor:
        if self._jacobian is None:
            self._jacobian, self._factors = rows(*evaluated(self.field, n, y)), None
        return torch.linalg.lu_solve(*self._ready(w, y), residual.reshape(-1, 1)).view_as(y)

    def _transposed_correction(self, z: Tensor, value: Tensor, w: float | Tensor, residual: Tensor) -> Tensor:
        if self._jacobian is None:
            self._jacobian, self._factors = rows(z, value), None
        return torch.linalg.lu_solve(*self._ready(w, z), residual.reshape(-1, 1), adjoint=True).view_as(residual)

    def _is_exact(self) -> bool:
        return self._jacobian is None

    def _renew(self) -> None:
        self._jacobian = None

    def _ready(self, w: float | Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the LU factors and pivots of 1 - w J, J the Jacobian that is kept.

        For large states the factors of another w that is near serve too, because new factors cost more than an
        iteration. `like` is a tensor of the state's shape, dtype and device.
        """
        assert self._jacobian is not None, "it has been made"
        if self._factors is None or not self._is_near(w):
            # A matrix that is singular divides by 0: the change is not finite then, which says more than LAPACK does.
            factors, pivots, _ = torch.linalg.lu_factor_ex(newton_matrix(self._jacobian, w, like))
            self._factors, self._factored = (factors, pivots), w
        return self._factors

    def _is_near(self, w: float | Tensor) -> bool:
        before = self._factored
        if isinstance(w, Tensor):
            assert isinstance(before, Tensor), "a solve has weights of one kind"
            return w is before or bool(((w - before).abs() <= self._near * before.abs()).all())
        assert not isinstance(before, Tensor), "a solve has weights of one kind"
        return abs(w - before) <= self._near * abs(before)


class Krylov(_Iteration):
    """The `Equation` by Newton's iteration whose linear systems GMRES solves, with products of J and vectors only.

    From the first system on that GMRES does not solve, the Jacobian is dense instead, for states of up to
    `LARGEST_DENSE` numbers. For these GMRES takes no more products than a dense Jacobian would.
    """

    def __init__(self, field: Field, tolerance: float, iterations: int):
        super().__init__(field, tolerance, iterations)
        count = field.layout.shape.numel()
        self._dense = Factorised(field, tolerance, iterations) if count <= LARGEST_DENSE else None
        self._is_dense = False
        self._products = count if self._dense else None

    def _correction(self, n: int, w: float | Tensor, y: Tensor, residual: Tensor) -> Tensor:
        if not self._is_dense:
            forward = forward_product(*evaluated(self.field, n, y))
            found = self._by_products(lambda v: v - w * forward(v), residual)
            if found is not None:
                return found
        return self._instead(n)._correction(n, w, y, residual)

    def transposed(self, n: int, z: Tensor, value: Tensor, w: float | Tensor, g: Tensor) -> Tensor:
        """Return the mu with mu = g + J' w mu, by GMRES, or with a dense Jacobian: see `Equation.transposed`."""
        if not size(g) < torch.inf:
            return torch.full_like(g, torch.nan)
        if not self._is_dense:
            found = self._by_products(lambda v: v - product(value, [z], v * w)[0], g)
            if found is not None:
                return found
        return self._instead(n).transposed(n, z, value, w, g)

    def _is_exact(self) -> bool:
        return not self._is_dense or self._instead(0)._is_exact()

    def _renew(self) -> None:
        if self._dense is not None:
            self._dense._renew()

    def _by_products(self, apply: Map, b: Tensor) -> Tensor | None:
        return gmres(apply, b, self.tolerance, self._products)

    def _instead(self, n: int) -> Factorised:
        if self._dense is None:
            raise NotSolved(
                f"fdeint: the linear equation of step {n}, t={float(self.field.times[n]):g}, was not solved by GMRES, "
                f"and a state of {self.field.layout.shape.numel()} numbers is too large for a dense Jacobian of its "
                "own accord; take more steps, or allow it by Newton(dense=...)."
            )
        self._is_dense = True
        return self._dense


def rows(z: Tensor, value: Tensor) -> Tensor:
    """Return the Jacobian of `value` in `z`, [numbers, numbers] with z's count of numbers, computed row by row."""
    count = z.numel()
    units = torch.eye(count, dtype=z.dtype, device=z.device).view(count, *z.shape)
    return torch.stack([product(value, [z], unit)[0].reshape(-1) for unit in units])


def newton_matrix(jacobian: Tensor, w: float | Tensor, like: Tensor) -> Tensor:
    """Return the matrix 1 - w J, [numbers, numbers]; w is a number, or a tensor that broadcasts to the state `like`."""
    weights = w.expand_as(like).reshape(-1, 1) if isinstance(w, Tensor) else w
    return torch.eye(like.numel(), dtype=like.dtype, device=like.device) - weights * jacobian


def root_in_graph(field: Field, roots: Roots, n: int, memories: Tensor, w: Tensor, before: Tensor) -> Tensor:
    """Return the root of y = m + w f(t_n, y) by Newton's method in plain operations, with derivatives of any kind.

    m is memories[0] and `before` the state of the step before, where the iteration begins. The Jacobian is dense
    whatever `roots` says, made row by row, so that f need not support torch.func.vmap. In a batch of torch.func.vmap
    the iteration ends where it has converged for all.

    Raises:
        NotSolved: The iteration does not converge.
        FloatingPointError: f is not finite.
        NotImplementedError: The call is traced, and tensors have no values to test for convergence.
    """
    m, y = memories[0], before
    if is_watched(bare(m)):
        raise NotImplementedError(
            "fdeint: an implicit step looks at values to know when it has converged, and a tracer's tensors have none; "
            "trace a solve by scheme='predictor_corrector', or keep the solve out of the traced part."
        )
    tolerance = TOLERANCES[field.dtype] if roots.tolerance is None else roots.tolerance
    convergence = Convergence(tolerance, bare(y), bare(m))
    for _ in range(roots.iterations):
        residual = m + w * field(n, y) - y
        matrix = newton_matrix(_jacobian(field, n, y), w, y)
        delta = torch.linalg.solve_ex(matrix, residual.reshape(-1, 1)).result.view_as(y)
        change = size(bare(delta))
        if not change < torch.inf and is_undefined(field, n, y):
            raise undefined(field, n, y, ", an iterate of the step's equation")
        y = y + delta
        if convergence.is_reached(change, bare(y), is_exact=True):
            return y
        if not change < torch.inf:
            break
    t = float(field.times[n])
    raise unsolved("fdeint", n, t, roots.iterations, WITH_NEWTON, change=convergence.change)


def _jacobian(field: Field, n: int, y: Tensor) -> Tensor:
    found = torch.func.jacrev(lambda z: field(n, z.view_as(y)).reshape(-1), chunk_size=1)(y.reshape(-1))
    assert isinstance(found, Tensor), "f has one argument"
    return found


def number(w: float | Tensor) -> float | Tensor:
    """Return a weight without a graph: a tensor of one number as a float, any other tensor detached."""
    return w if not isinstance(w, Tensor) else w.item() if w.numel() == 1 else w.detach()


def solved_by(
    equation: Equation, n: int, w: float | Tensor, z: Tensor, value: Tensor, m: Tensor
) -> tuple[Tensor, Tensor]:
    """Return y, the known root of y = m + w f(t_n, y), and f(t_n, y), with the implicit function theorem's gradients.

    Args:
        equation: The equation, whose transpose is solved in the backward pass.
        n: Index of the step.
        w: The weight of f_n.
        z: The root, a leaf.
        value: f(t_n, z), with its graph from z.
        m: The sum over the past.
    """
    return _Implicit.apply(equation, n, number(w), z, value, m + w * value)  # type: ignore[no-any-return]


class _Implicit(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, equation: Equation, n: int, weight: float | Tensor, z: Tensor, value: Tensor, total: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.given = equation, n, weight
        ctx.save_for_backward(z, value)  # value with its graph: f may read other tensors in the backward pass
        return z.clone(), value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        g, of_value = grads
        if torch.is_grad_enabled():
            raise RuntimeError(
                "fdeint: an implicit step cannot be differentiated twice; take the derivative by torch.func, "
                "such as torch.func.hessian, or use scheme='predictor_corrector'."
            )
        if any(is_batched(each) for each in grads if each is not None):
            raise RuntimeError(
                "fdeint: an implicit step takes one cotangent at a time, and not many as by is_grads_batched=True or "
                "jacobian(vectorize=True); leave these out, or use torch.func.jacrev."
            )
        equation, n, weight = ctx.given
        z, value = ctx.saved_tensors
        total = torch.zeros_like(z) if g is None else g
        if of_value is not None:
            total = total + product(value, [z], of_value)[0]
        return None, None, None, None, of_value, equation.transposed(n, z, value, weight, total)
