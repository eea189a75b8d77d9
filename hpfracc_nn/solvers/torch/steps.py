"""One step of each scheme, its transpose, and its derivative.

A step makes y_n of the memories m, [sets, *shape], or [*shape] where there is one, and of w, the weight of f_n in the
last of them. Its transpose takes the cotangent of y_n apart: into those of the memories, which go to the past, and into
those of every right-hand side that the step has evaluated, which it pulls through f. Its derivative takes those of the
memories to that of y_n.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hpfracc_nn.solvers.schemes import BDF2, PredictorCorrector, Rectangle, Scheme, Trapezoid
from hpfracc_nn.solvers.torch.field import Field, product
from hpfracc_nn.solvers.torch.solving import Equation, equation_of, newton_matrix

Weight = float | Tensor  # of f_n at step n: a number, or what broadcasts to a state


class Line(NamedTuple):
    """f at one point, and its derivatives.

    Attributes:
        value: f, [d].
        jacobian: By the state, [d, d].
        slopes: By alpha, which f does not know, and by the numbers in f: [d, 1 + k].
    """

    value: Tensor
    jacobian: Tensor
    slopes: Tensor

    def along(self, s: Tensor) -> Tensor:
        """Return the derivatives of f for a state that has the derivatives s, [d, 1 + k]."""
        return torch.addmm(self.slopes, self.jacobian, s)


class Sweep(Protocol):
    """What a transpose asks of the backward pass."""

    def pull(self, n: int, z: Tensor, g: Tensor) -> Tensor:
        """Return g times the Jacobian of f in y at (t_n, z), and remember both for the parameters."""
        ...

    def through(self, n: int, z: Tensor, value: Tensor, g: Tensor) -> Tensor:
        """The same where f(t_n, z) was evaluated before."""
        ...

    def evaluated(self, n: int, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return z as a leaf and f(t_n, z), which has a graph."""
        ...

    def remember(self, n: int, z: Tensor, g: Tensor) -> None:
        """Let f(t_n, z) bring the parameters what they have of g."""
        ...

    def weight(self, n: int, g: Tensor, value: Tensor) -> None:
        """Let the weight of f_n at step n have <g, value>, where alpha is learned."""
        ...


class Step(Protocol):
    """One scheme's step.

    Attributes:
        needs_memories: Whether the transpose needs the memories again.
    """

    needs_memories: bool

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """Write y_n into `out`, from the memories and the state before."""
        ...

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """Return the cotangents of the memories, of the same shape.

        Args:
            sweep: The backward pass.
            n: The step.
            y: y_n.
            g: The loss's own cotangent of y_n.
            fg: That of f_n from later steps, or None where there are none.
            w: The weight of f_n.
            m: The memories, where they are needed.
        """
        ...

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """Return the derivatives of y_n by alpha and by the numbers in f, [d, 1 + k].

        Args:
            m: Those of the memories, [sets, d, 1 + k], or [d, 1 + k] where there is one.
            w: The weight of f_n.
            own: Its derivative by alpha.
            at: f at y_n.
            guesses: f where else the step evaluates it, in that order.
        """
        ...


class ExplicitStep:
    """y_n = m."""

    needs_memories = False

    def __init__(self, scheme: Rectangle, field: Field):
        pass

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """See `Step`."""
        out.copy_(m)

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """See `Step`."""
        return g if fg is None else g + sweep.pull(n, y, fg)

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """See `Step`."""
        return m


class CorrectedStep:
    """p = m[0]; as often as it is corrected, p = m[1] + w f(p); y_n = p."""

    needs_memories = True

    def __init__(self, scheme: PredictorCorrector, field: Field):
        self.corrections, self.field = scheme.corrections, field

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """See `Step`."""
        found, history = m.unbind()
        for _ in range(self.corrections - 1):
            found = _added(history, w, self.field(n, found))
        _added(history, w, self.field(n, found), out)

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """See `Step`."""
        total = g if fg is None else g + sweep.pull(n, y, fg)
        predicted, history = m.unbind()
        graphs = [sweep.evaluated(n, predicted)]
        for _ in range(self.corrections - 1):
            graphs.append(sweep.evaluated(n, _added(history, w, graphs[-1][1].detach())))
        corrected: Tensor | None = None
        for z, value in reversed(graphs):
            corrected = total if corrected is None else corrected + total
            sweep.weight(n, total, value.detach())
            total = sweep.through(n, z, value, total * w)
        assert corrected is not None, "there is a correction"
        return torch.stack([total, corrected])

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """See `Step`."""
        found, history = m.unbind()
        for line in guesses:
            found = history + w * line.along(found)
            found[:, 0] += own * line.value
        return found


class ImplicitStep:
    """y_n = m + w f(t_n, y_n), solved; the transpose is solved with the transposed Jacobian at the solution."""

    needs_memories = False

    def __init__(self, scheme: Trapezoid | BDF2, field: Field):
        self.field = field
        self.equation: Equation = equation_of(scheme.roots, field)

    def forward(self, n: int, m: Tensor, w: Weight, before: Tensor, out: Tensor) -> None:
        """See `Step`."""
        out.copy_(self.equation.root(n, m, w, before))

    def backward(self, sweep: Sweep, n: int, y: Tensor, g: Tensor, fg: Tensor | None, w: Weight, m: Tensor) -> Tensor:
        """See `Step`: (1 - w J') mu = g + J' fg, and f_n has fg + w mu in all."""
        z, value = sweep.evaluated(n, y)
        total = g if fg is None else g + product(value, [z], fg)[0]
        mu = self.equation.transposed(n, z, value, w, total)
        sweep.weight(n, mu, value.detach())
        sweep.remember(n, y, mu * w if fg is None else fg + mu * w)
        return mu

    def tangent(self, m: Tensor, w: Weight, own: float, at: Line, guesses: Sequence[Line]) -> Tensor:
        """See `Step`: (1 - w J) s = m + w q + own f."""
        known = m + w * at.slopes
        known[:, 0] += own * at.value
        return torch.linalg.solve_ex(newton_matrix(at.jacobian, w, at.value), known).result


def _added(history: Tensor, w: Weight, value: Tensor, out: Tensor | None = None) -> Tensor:
    """Return history + w * value."""
    if isinstance(w, Tensor):
        return torch.addcmul(history, w, value, out=out)
    return torch.add(history, value, alpha=w, out=out)


@singledispatch
def step_of(scheme: Scheme, field: Field) -> Step:
    """Return the step of a scheme."""
    raise TypeError(f"{scheme!r} has no step in torch; register one by step_of.register.")


step_of.register(Rectangle, ExplicitStep)
step_of.register(PredictorCorrector, CorrectedStep)
step_of.register(Trapezoid, ImplicitStep)
step_of.register(BDF2, ImplicitStep)
