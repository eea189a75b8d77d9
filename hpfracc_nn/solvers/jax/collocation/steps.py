"""The steps by collocation: their stage equations, and the loop that chooses their lengths or follows a mesh.

The loop is a `while_loop`, so that a program serves all tolerances; JAX does not differentiate this loop: see
`adjoint`. Arrays have room for a number of steps that is known when the program is traced.

F are the values of f at the stages of a step, Y the states there. The stage equations are F = f(Y), Y = H + M F, with H
the Taylor polynomial plus the integrals over earlier steps, and M = h**alpha times the weights within a step.

Shapes: a state [a, r], with a orders alpha and r numbers for each, d = a r; s stages of a step; N steps for which
arrays have room.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.jax.arrays import JAX, Array, widest
from hpfracc_nn.fractional.jax.float64 import jointly_in_float64
from hpfracc_nn.solvers.collocation import (
    BLIND,
    FLOOR,
    GUESSES,
    LAST,
    PART,
    SHORTEST,
    SLOW,
    SMALL,
    WORSE,
    Collocation,
    Controller,
    Rule,
    estimated,
    extension,
    rule_of,
    spread,
    within,
)
from hpfracc_nn.solvers.jax.collocation.past import sums
from hpfracc_nn.solvers.jax.roots import divided
from hpfracc_nn.solvers.jax.state import Layout, Orders, RightSide
from hpfracc_nn.solvers.schemes import TOLERANCES

STATUSES = ("running", "finished", "max_steps", "failed")
RUNNING, FINISHED, MAX_STEPS, FAILED = range(4)
F = TypeVar("F", bound=Callable[..., Any])
_KRYLOV = 1e-3  # relative residual of the linear equations of a step by GMRES


def promoting(function: F) -> F:
    """Return `function` made to run with NumPy's rules of broadcasting and dtype promotion, whatever JAX is set to."""

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **options)

    return called  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Problem:
    """The initial value problem D^alpha y = f(t, y) that collocation solves.

    Attributes:
        layout: How the user's state is laid out.
        right_side: The right-hand side f, a function of states [a, *rest].
        scheme: How many stages a step has, and how their equations are solved.
        orders: The orders, by which weights are computed: concrete or traced.
        alpha: The values of the orders, [a], concrete or traced.
        begin: The time at the start, in the caller's unit.
        z0: The state at the start, [a, r].
        dz0: The derivative of the state at the start, [a, r], or None.
    """

    layout: Layout
    right_side: RightSide
    scheme: Collocation
    orders: Orders
    alpha: Array
    begin: Array
    z0: Array
    dz0: Array | None

    @cached_property
    def rule(self) -> Rule:
        """Gauss's quadrature rule on [0, 1], whose nodes are the stages of a step."""
        return rule_of(self.scheme.stages)

    @property
    def nodes(self) -> Array:
        """The places of the stages in a step, as fractions of the step, [s]."""
        return jnp.asarray(self.rule.nodes.astype(widest()))  # a copy, see `JAX.constant`

    def of(self, alpha: Array, z0: Array, dz0: Array | None, read: tuple[Array, ...]) -> Problem:
        """Return this problem with other orders, another start, and other arrays `read` that f reads."""
        return replace(self, alpha=alpha, z0=z0, dz0=dz0, right_side=self.right_side.reading(read))

    def values(self, start: Array, h: Array, states: Array) -> Array:
        """Return f at the stages of a step, [s, a, r].

        Args:
            start: The beginning of the step, as time since the start of the solve.
            h: The length of the step.
            states: The states at the stages, [s, a, r].
        """
        times = (self.begin + (start + h * self.nodes)).astype(states.dtype)
        return jax.vmap(self.value)(times, states)

    def value(self, t: Array, state: Array) -> Array:
        """Return f(t, state), [a, r], at a time t in the caller's unit."""
        return self.right_side(t, state.reshape(self.layout.shape)).reshape(state.shape)

    def base(self, elapsed: Array) -> Array:
        """Return the Taylor polynomial z0 + elapsed * dz0 at times since the start, [times, a, r]."""
        if self.dz0 is None:
            return jnp.broadcast_to(self.z0, (*elapsed.shape, *self.z0.shape))
        return self.z0 + elapsed.astype(self.z0.dtype)[:, None, None] * self.dz0

    def own(self, alpha: Array) -> Array:
        """Return the weights of F in the integrals over a step of length 1 up to its stages and its end, [a, s + 1, s].

        `alpha` are orders [a] in place of the problem's, in which the caller may differentiate.
        """
        stages, ends = self.scheme.stages, np.append(self.rule.nodes, 1.0)
        dtype = self.z0.dtype
        return jnp.asarray(self.orders.computed(lambda a, xp: within(stages, a, ends, xp), dtype, alpha), dtype)

    def power(self, h: Array) -> Array:
        """Return h**alpha for each order, [a]."""
        lengths = jnp.broadcast_to(h, self.alpha.shape)
        return jointly_in_float64(lambda a, h: jnp.exp(a * jnp.log(h)), (self.alpha, lengths), self.z0.dtype)  # type: ignore[no-any-return]

    def spread(self) -> Array:
        """Return the most that the first Legendre polynomial left out adds to y in a step of length 1, [a].

        See `solvers.collocation.spread`.
        """
        stages, dtype = self.scheme.stages, self.z0.dtype
        return jnp.asarray(self.orders.computed(lambda a, xp: spread(stages, a, xp), dtype, self.alpha), dtype)

    def sizes(self, x: Array, scale: Array | float) -> Array:
        """Return the root mean squares of x / scale for each sample, [k, samples] for x [k, a, r].

        A sample belongs to one index of the first axis of the user's arrays, if all have several axes and the same
        number of samples; else all of the state is one sample.
        """
        layout = self.layout
        leaves = jax.tree.leaves(layout.parted((x / scale).reshape(-1, *layout.shape)))
        shapes = [(*shape, 2) if layout.is_complex else shape for shape in layout.shapes]
        first = {shape[0] for shape in shapes if len(shape) > 1}
        samples = first.pop() if len(first) == 1 and all(len(shape) > 1 for shape in shapes) else 1
        parts = [jnp.abs(leaf).reshape(x.shape[0], samples, -1) for leaf in leaves]
        numbers = sum(map(math.prod, shapes)) // samples
        largest = jnp.max(jnp.stack([part.max(-1) for part in parts]), 0)  # squares may overflow
        unit = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1.0)[..., None]
        return unit[..., 0] * jnp.sqrt(sum(((part / unit) ** 2).sum(-1) for part in parts) / numbers)


def mixed(weights: Array, values: Array) -> Array:
    """Return the weighted sums over stages: weights [a, k, s] times values [s, a, r], as [k, a, r]."""
    return jnp.einsum("aks,sar->kar", weights, values, precision=lax.Precision.HIGHEST)


def linear_solution(
    problem: Problem,
    times: tuple[Array, Array],
    states: Array,
    weights: Array,
    b: Array,
    tolerance: float,
) -> Array:
    """Return the solution x [s, a, r] of x - J M x = b, J the Jacobians of f at the states of the stages.

    Args:
        problem: The initial value problem.
        times: The beginning of the step, as time since the start, and the length of the step.
        states: The states at the stages, [s, a, r].
        weights: The matrices M, [a, s, s].
        b: The right-hand side, [s, a, r].
        tolerance: The relative residual to which a system too large for a dense matrix is solved.
    """
    s, orders, each = b.shape
    d, roots = orders * each, problem.scheme.roots
    if b.size > roots.dense:
        _, slope = jax.linearize(lambda y: problem.values(*times, y), states)
        return divided(roots, lambda v: v - slope(mixed(weights, v)), b, tolerance)
    t = (problem.begin + (times[0] + times[1] * problem.nodes)).astype(b.dtype)

    def flat(t: Array, y: Array) -> Array:
        return problem.value(t, y.reshape(orders, each)).reshape(d)

    jacobians = jax.vmap(jax.jacfwd(flat, argnums=1))(t, states.reshape(s, d))
    every = jnp.repeat(weights, each, axis=0, total_repeat_length=d)  # [d, s, s]
    matrix = jnp.eye(s * d, dtype=b.dtype) - jnp.einsum("ipq,qij->ipjq", jacobians, every).reshape(s * d, s * d)
    return jnp.linalg.solve(matrix, b.reshape(-1)).reshape(b.shape)


class Stages(NamedTuple):
    """The state of the iteration for the stage equations, F = f(H + M F).

    Attributes:
        values: F, the values of f at the stages, [s, a, r].
        states: The states at which f was evaluated last, [s, a, r].
        last: The size of the last change of the stages' states; infinite before the first.
        rate: All changes that are still to come, as a part of the last change; estimated.
        is_newton: Whether the iteration is Newton's, with Jacobians, and not fixed-point iteration.
        taken: The number of iterations.
        jacobians: How many times the Jacobians of all stages were computed.
        is_found: Whether the iteration has converged.
        is_lost: Whether the iteration was given up: Newton's method diverged, or its change was not finite.
    """

    values: Array
    states: Array
    last: Array
    rate: Array
    is_newton: Array
    taken: Array
    jacobians: Array
    is_found: Array
    is_lost: Array


def staged(
    problem: Problem,
    times: tuple[Array, Array],
    history: Array,
    weights: Array,
    guess: Array,
    scale: Array | None,
    rate: Array,
) -> Stages:
    """Return the solution of the stage equations F = f(H + M F) of a step, by fixed-point or Newton's iteration.

    Args:
        problem: The initial value problem.
        times: The beginning of the step, as time since the start, and the length of the step.
        history: H, the states at the stages without this step's own part, [s, a, r].
        weights: The matrices M, [a, s, s].
        guess: The first iterate of F, [s, a, r].
        scale: The error that the step may have, [a, r], or None if the equations are solved to the tolerance of
            `problem.scheme.roots`.
        rate: The last `Stages.rate` of the step before.
    """
    roots, dtype = problem.scheme.roots, history.dtype
    allowed = PART if scale is not None and roots.tolerance is None else 1.0
    most = roots.iterations if scale is None else min(roots.iterations, 20)
    eps, tolerance = float(jnp.finfo(dtype).eps), roots.tolerance or TOLERANCES[dtype.name]

    def iterate(x: Stages) -> Stages:
        states = history + mixed(weights, x.values)
        residual = problem.values(*times, states) - x.values
        delta = lax.cond(
            x.is_newton,
            lambda: linear_solution(problem, times, states, weights, residual, _KRYLOV),
            lambda: residual,
        )
        largest = jnp.maximum(jnp.abs(states), jnp.abs(history)).max(0)
        unit = jnp.maximum(tolerance * largest.max(), jnp.finfo(dtype).tiny) if scale is None else scale
        sizes = problem.sizes(jnp.concatenate([mixed(weights, delta), FLOOR * eps * largest[None]]), unit).max(1)
        change, floor = sizes[:-1].max(), sizes[-1]
        theta = jnp.where(x.last > 0, change / x.last, 0)
        is_second = x.last < jnp.inf
        seen = jnp.where(theta < 1, theta / (1 - theta), jnp.inf)
        seen = jnp.where((change <= floor) & (seen > 0.5), 0, seen)  # rounding is all that is left
        rate = jnp.where(is_second, seen, x.rate)
        if scale is None:
            rate = jnp.where(rate > 0, jnp.maximum(rate, 1), rate)
        is_finite = change < jnp.inf
        is_found = is_finite & (change * rate <= allowed)
        left = most - x.taken - 1
        needed = jnp.log(allowed * (1 - theta) / change) / jnp.log(theta)
        is_slow = (theta >= 1) | (needed > jnp.minimum(left, GUESSES)) | ((theta > SLOW) & (needed > 3))
        is_renewed = ~x.is_newton & ~is_found & (~is_finite | (is_second & is_slow))
        is_lost = x.is_newton & (~is_finite | (is_second & (theta >= WORSE) & (scale is not None)))
        is_worse = is_renewed & (~is_finite | (theta >= WORSE))
        return Stages(
            jnp.where(is_worse, guess, x.values + delta),
            states,
            jnp.where(is_renewed, jnp.inf, change).astype(dtype),
            jnp.where(is_renewed, 1, rate).astype(dtype),
            x.is_newton | is_renewed,
            x.taken + 1,
            x.jacobians + x.is_newton,
            is_found,
            is_lost & ~is_found,
        )

    none, no = jnp.zeros((), int), jnp.zeros((), bool)
    is_newton = jnp.asarray(problem.z0.size <= SMALL)
    first = jnp.maximum(rate, 0.01) ** 0.8
    begin = Stages(guess, history, jnp.asarray(jnp.inf, dtype), first, is_newton, none, none, no, no)
    return lax.while_loop(lambda x: ~(x.is_found | x.is_lost) & (x.taken < most), iterate, begin)


class Steps(NamedTuple):
    """The steps that a solve has taken so far, and the state of the loop that takes them.

    Attributes:
        n: How many steps were taken.
        time: The time since the start that the steps have reached.
        h: The length of the next step that is tried; NaN at the start and at a jump of f, where it is still to be
            chosen.
        before: The state at the end of the last step, [a, r].
        last: The error and the length of the last step; NaN after a rejected attempt, at the start and at a jump of f.
        is_again: Whether the last attempt was rejected.
        origin: The time since the start of the last jump of f; 0 before the first.
        begun: The number of the first step after `origin`.
        first: The right-hand side f just after `origin`, [a, r].
        start: The right-hand side f at the start of the solve, [a, r].
        own: The weights within a step of length 1, see `Problem.own`, [a, s + 1, s].
        spread: See `Problem.spread`, [a].
        rate: The `Stages.rate` of the last stage equations, at most 1; 1 after a rejected attempt.
        lengths: The lengths of the steps, [N]; 0 for steps that were not taken.
        values: The values F of f at the stages of each step, [N, s, a, r].
        states: The states at which f was evaluated last in each step, [N, s, a, r].
        errors: The estimate of each step's error as a part of what is allowed, [N]; NaN on a given mesh.
        status: An index into `STATUSES`.
        counts: The numbers of `Statistics` after `steps`: rejected steps, evaluations, products, Jacobians and
            iterations, [5].
    """

    n: Array
    time: Array
    h: Array
    before: Array
    last: tuple[Array, Array]
    is_again: Array
    origin: Array
    begun: Array
    first: Array
    start: Array
    own: Array
    spread: Array
    rate: Array
    lengths: Array
    values: Array
    states: Array
    errors: Array
    status: Array
    counts: Array


class Step(NamedTuple):
    """A step that was tried: the solution of its stage equations, and the state at its end, [a, r]."""

    stages: Stages
    end: Array


def _tried(problem: Problem, x: Steps, h: Array, scale: Array | None) -> Step:
    """Return the next step, of length h, as it comes out: its stages and the state at its end.

    Args:
        problem: The initial value problem.
        x: The steps before.
        h: The length of the step.
        scale: The error that the step may have, [a, r]; None on a given mesh.
    """
    rows = h * jnp.append(problem.nodes, 1.0)
    past = sums(problem.scheme.stages, problem.alpha, x.lengths, x.n, rows, x.values)
    history, weights = problem.base(x.time + rows) + past, x.own * problem.power(h)[:, None, None]
    found = staged(problem, (x.time, h), history[:-1], weights[:, :-1], _guess(problem, x, h), scale, x.rate)
    return Step(found, history[-1] + mixed(weights[:, -1:], found.values)[0])


def _guess(problem: Problem, x: Steps, h: Array) -> Array:
    """Return a guess of f at the stages of the next step, [s, a, r].

    The guess is the last step's polynomial, extended as far as its Legendre coefficients decay; on the first step after
    the start or a jump, f at the beginning of the step.
    """
    before = jnp.maximum(x.n - 1, 0)
    last, length = x.values[before], jnp.where(x.n > 0, x.lengths[before], 1)
    coefficients = jnp.einsum("ks,sar->kar", jnp.asarray(problem.rule.coefficients.astype(last.dtype)), last)
    sizes = jnp.sqrt((coefficients**2).sum((1, 2)))
    basis = extension(problem.rule, (h / length).astype(last.dtype), sizes, JAX).astype(last.dtype)
    later = jnp.einsum("ik,kar->iar", basis, coefficients)
    return jnp.where(x.n > x.begun, later, x.first[None])


def _begun(problem: Problem, room: int) -> Steps:
    """Return the steps of a solve before the first one, in arrays with room for `room` steps."""
    first = problem.value(problem.begin.astype(problem.z0.dtype), problem.z0)
    a, r = problem.z0.shape
    real, dtype, s = widest(), problem.z0.dtype, problem.scheme.stages
    nothing = jnp.full((), jnp.nan, real)
    return Steps(
        jnp.zeros((), int),
        jnp.zeros((), real),
        nothing,
        problem.z0,
        (nothing, nothing),
        jnp.zeros((), bool),
        jnp.zeros((), real),
        jnp.zeros((), int),
        first,
        first,
        problem.own(problem.alpha),
        problem.spread(),
        jnp.ones((), dtype),
        jnp.zeros(room, real),
        jnp.zeros((room, s, a, r), dtype),
        jnp.zeros((room, s, a, r), dtype),
        jnp.full(room, jnp.nan, real),
        jnp.asarray(RUNNING),
        jnp.array([0, 1, 0, 0, 0]),
    )


def _put(rows: Array, n: Array, row: Array, is_put: Array) -> Array:
    """Return the array `rows` with its row n replaced by `row` if `is_put`, else unchanged."""
    return lax.dynamic_update_index_in_dim(rows, jnp.where(is_put, row.astype(rows.dtype), rows[n]), n, 0)


def _taken(problem: Problem, x: Steps, h: Array, step: Step, is_taken: Array, error: Array) -> Steps:
    """Return the steps x with the step that was tried added if `is_taken`; else only with the cost of the attempt.

    Args:
        problem: The initial value problem.
        x: The steps before.
        h: The length of the step that was tried.
        step: The step that was tried.
        is_taken: Whether the step is accepted.
        error: The estimate of the step's error as a part of what is allowed.
    """
    found, s, d = step.stages, problem.scheme.stages, problem.z0.size
    products = s * d * found.jacobians if s * d <= problem.scheme.roots.dense else 0 * found.jacobians
    cost = [~is_taken, s * found.taken, products, found.jacobians, found.taken]
    return x._replace(
        n=x.n + is_taken,
        before=jnp.where(is_taken, step.end, x.before),
        rate=jnp.where(is_taken, jnp.minimum(found.rate, 1), 1).astype(x.rate.dtype),
        lengths=_put(x.lengths, x.n, h, is_taken),
        values=_put(x.values, x.n, found.values, is_taken),
        states=_put(x.states, x.n, found.states, is_taken),
        errors=_put(x.errors, x.n, error, is_taken),
        counts=x.counts + jnp.stack([jnp.asarray(each, int) for each in cost]),
    )


@promoting
def along(problem: Problem, lengths: Array, on_step: Callable[[Array], None] | None) -> Steps:
    """Return the steps of a mesh, whose lengths are [N]; the solve ends at a step whose equations are not solved."""
    room = lengths.size

    def one(x: Steps) -> Steps:
        h = lengths[x.n]
        step = _tried(problem, x, h, None)
        is_taken = step.stages.is_found & jnp.isfinite(step.end).all()
        after = _taken(problem, x, h, step, is_taken, x.errors[0])
        if on_step is not None:
            on_step(after.n)
        return after._replace(time=x.time + jnp.where(is_taken, h, 0), status=jnp.where(is_taken, RUNNING, FAILED))

    x = lax.while_loop(lambda x: (x.status == RUNNING) & (x.n < room), one, _begun(problem, room))
    return x._replace(status=jnp.where(x.status == FAILED, FAILED, FINISHED))


class Tolerance(NamedTuple):
    """The error that steps may have, and their greatest length.

    Attributes:
        rtol: The tolerance relative to the state.
        atol: The absolute tolerance, [a, r] or a number.
        max_step: The longest step.
    """

    rtol: Array
    atol: Array
    max_step: Array

    def scale(self, *states: Array) -> Array:
        """Return the error that is allowed beside these states, atol + rtol times the largest of them, [a, r]."""
        largest = jnp.max(jnp.stack([jnp.abs(each) for each in states]), 0)
        return jnp.maximum(self.atol + self.rtol * largest, jnp.finfo(largest.dtype).tiny)


@promoting
def to(
    problem: Problem, stops: Array, tolerance: Tolerance, max_steps: int, on_step: Callable[[Array], None] | None
) -> Steps:
    """Return steps up to the last of the times `stops`, with lengths that keep the error within the tolerance.

    Args:
        problem: The initial value problem.
        stops: Times since the start that do not decrease: those at which f may jump, then the end.
        tolerance: The error that steps may have.
        max_steps: How many steps may be taken.
        on_step: Called after each attempt with the number of steps taken; or None.
    """
    real = widest()
    tiniest = 1e-290 if real == jnp.float64 else 1e-35
    controller = Controller(problem.scheme.stages, problem.alpha.min().astype(real), JAX, tiniest)
    end, eps = stops[-1], float(jnp.finfo(real).eps)

    def one(x: Steps) -> Steps:
        stop = stops[jnp.searchsorted(stops, x.time, side="right")]
        x = lax.cond(jnp.isnan(x.h), lambda: _at_jump(problem, controller, x, stop, tolerance), lambda: x)
        left, least = stop - x.time, _least(problem, x.origin)
        h = controller.fitted(jnp.maximum(x.h, least), left, x.time, tolerance.max_step)
        step = _tried(problem, x, h, tolerance.scale(x.before))
        is_solved = step.stages.is_found & jnp.isfinite(step.end).all()
        error = _error(problem, x, h, step, tolerance.scale(x.before, step.end)).astype(real)
        error = jnp.where(is_solved, error, jnp.inf)
        is_blind = (error < jnp.inf) & (h <= 1.5 * least) & (x.time - x.origin < BLIND * least)
        is_taken = (error <= 1) | is_blind
        shorter = controller.shrunk(error, h, x.n == x.begun)
        time = jnp.where(is_taken, jnp.where(h == left, stop, x.time + h), x.time)
        longer = controller.grown(error, h, *x.last, time - x.origin)
        longer = jnp.where(x.is_again, jnp.minimum(longer, h), longer)
        longer = jnp.where(time >= stop, jnp.nan, longer)
        is_stuck = ~is_taken & (shorter <= jnp.maximum(SHORTEST * eps * x.time, tiniest))
        after = _taken(problem, x, h, step, is_taken, error)
        if on_step is not None:
            on_step(after.n)
        return after._replace(
            time=time,
            h=jnp.where(is_taken, longer, shorter),
            last=(jnp.where(is_taken, error, jnp.nan), jnp.where(is_taken, h, jnp.nan)),
            is_again=~is_taken,
            status=jnp.where(is_stuck, FAILED, RUNNING),
        )

    def goes_on(x: Steps) -> Array:
        return (x.status == RUNNING) & (x.time < end) & (x.n < max_steps)

    x = lax.while_loop(goes_on, one, _begun(problem, max_steps))
    ended = jnp.where(x.time >= end, FINISHED, MAX_STEPS)
    return x._replace(status=jnp.where(x.status == FAILED, FAILED, ended))


def _least(problem: Problem, origin: Array) -> Array:
    """Return the length of the shortest step after a jump at `origin` whose stages are still told apart from the jump.

    The first stage lies behind the jump by the rounding of the time in the states' dtype. After the start, with
    `origin` 0, the result is 0.
    """
    eps = float(jnp.finfo(problem.z0.dtype).eps)
    latest = jnp.maximum(origin, jnp.abs(problem.begin + origin))
    return jnp.where(origin > 0, eps * latest / float(problem.rule.nodes[0]), 0.0)


def _at_jump(problem: Problem, controller: Controller, x: Steps, stop: Array, tolerance: Tolerance) -> Steps:
    """Return the steps x, at the start or at a jump of f, with the length of the next step.

    In a step of this length the change of f adds to the solution about as much as its error may be.
    """
    before, duration, least = x.before, stop - x.time, _least(problem, x.time)
    dtype, scale = before.dtype, tolerance.scale(before)

    def value(later: Array, state: Array) -> Array:
        return problem.value((problem.begin + (x.time + jnp.maximum(later, least))).astype(dtype), state)

    first = value(jnp.zeros_like(x.time), before)
    h = controller.begun(problem.sizes(first[None], scale).max().astype(x.h.dtype), duration)
    power = problem.power(h)[:, None]
    moved = before + power * first
    if problem.dz0 is not None:
        moved = moved + h.astype(dtype) * problem.dz0
    change = problem.sizes(((value(h, moved) - first) * power)[None], scale).max()
    h = controller.first(h, change.astype(x.h.dtype), duration)
    nothing = jnp.full_like(h, jnp.nan), jnp.full_like(h, jnp.nan)
    counts = x.counts.at[1].add(2)
    return x._replace(
        h=h, origin=x.time, begun=x.n, first=first, last=nothing, is_again=x.is_again & False, counts=counts
    )


def _error(problem: Problem, x: Steps, h: Array, step: Step, scale: Array) -> Array:
    """Return the estimate of a step's error, as a part of what is allowed: at most 1 for a step that is accepted.

    Args:
        problem: The initial value problem.
        x: The steps before.
        h: The length of the step.
        step: The step that was tried.
        scale: The error that is allowed, [a, r].
    """
    some = jnp.asarray(problem.rule.coefficients[-LAST:].astype(step.end.dtype))
    last = jnp.einsum("ks,sar->kar", some, step.stages.values)
    last = last * (problem.power(h) * x.spread)[:, None]
    return jnp.max(estimated(problem.sizes(last, scale), JAX))
