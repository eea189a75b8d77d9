"""One step of each scheme, and its derivative.

A step makes y_n of the memories m, [sets, a, *rest], and of w, the weight of f_n in the last of them. Its derivative is
that of the equation that y_n solves, at the points where f was evaluated, so that no iteration is differentiated.
"""

from __future__ import annotations

from functools import partial, singledispatch
from typing import NamedTuple, Protocol

from jax import numpy as jnp

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.solvers.jax.right_side import Field, Slope
from hpfracc_nn.solvers.jax.roots import divided, root
from hpfracc_nn.solvers.schemes import BDF2, PredictorCorrector, Rectangle, Scheme, Trapezoid


class Made(NamedTuple):
    """What a step makes.

    Attributes:
        y: y_n.
        guesses: Where else f was evaluated, [corrections, a, *rest].
        is_solved: Whether y_n solves the step's equation.
    """

    y: Array
    guesses: Array
    is_solved: Array


class Step(Protocol):
    """One scheme's step."""

    def forward(self, f: Field, t: Array, m: Array, w: Array, before: Array) -> Made:
        """Return y_n from the memories and the state before."""
        ...

    def tangent(self, f: Slope, dm: Array, w: Array, dw: Array, y: Array, guesses: Array) -> tuple[Array, Array]:
        """Return the derivatives of y_n and of the guesses.

        Args:
            f: The right-hand side at the step's time, with its own derivative.
            dm: That of the memories.
            w: The weight of f_n.
            dw: Its derivative.
            y: y_n.
            guesses: See `Made`.
        """
        ...


class ExplicitStep:
    """y_n = m."""

    def __init__(self, scheme: Rectangle):
        pass

    def forward(self, f: Field, t: Array, m: Array, w: Array, before: Array) -> Made:
        """See `Step`."""
        return Made(m[0], m[:0], jnp.ones((), bool))

    def tangent(self, f: Slope, dm: Array, w: Array, dw: Array, y: Array, guesses: Array) -> tuple[Array, Array]:
        """See `Step`."""
        return dm[0], guesses


class CorrectedStep:
    """p = m[0]; as often as it is corrected, p = m[1] + w f(p); y_n = p."""

    def __init__(self, scheme: PredictorCorrector):
        self.corrections = scheme.corrections

    def forward(self, f: Field, t: Array, m: Array, w: Array, before: Array) -> Made:
        """See `Step`."""
        guesses = [m[0]]
        for _ in range(self.corrections):
            guesses.append(m[1] + w * f(t, guesses[-1]))
        return Made(guesses[-1], jnp.stack(guesses[:-1]), jnp.ones((), bool))

    def tangent(self, f: Slope, dm: Array, w: Array, dw: Array, y: Array, guesses: Array) -> tuple[Array, Array]:
        """See `Step`."""
        moved = [dm[0]]
        for guess in guesses:
            value, slope = f(guess, moved[-1])
            moved.append(dm[1] + dw * value + w * slope)
        return moved[-1], jnp.stack(moved[:-1])


class ImplicitStep:
    """y_n = m + w f(t_n, y_n), solved."""

    def __init__(self, scheme: Trapezoid | BDF2):
        self.roots = scheme.roots

    def forward(self, f: Field, t: Array, m: Array, w: Array, before: Array) -> Made:
        """See `Step`."""
        found = root(self.roots, partial(f, t), m[0], w, before)
        return Made(found.y, m[:0], found.is_found)

    def tangent(self, f: Slope, dm: Array, w: Array, dw: Array, y: Array, guesses: Array) -> tuple[Array, Array]:
        """See `Step`: (1 - w J) dy = dm + w q + dw f, q the derivative of f at a state that stays."""
        value, moved = f(y, jnp.zeros_like(y))

        def at_rest(z: Array) -> Array:
            return f(z, jnp.zeros_like(z))[0]

        return divided(self.roots, at_rest, y, w, dm[0] + w * moved + dw * value), guesses


@singledispatch
def step_of(scheme: Scheme) -> Step:
    """Return the step of a scheme."""
    raise TypeError(f"{scheme!r} has no step in JAX; register one by step_of.register.")


step_of.register(Rectangle, ExplicitStep)
step_of.register(PredictorCorrector, CorrectedStep)
step_of.register(Trapezoid, ImplicitStep)
step_of.register(BDF2, ImplicitStep)
