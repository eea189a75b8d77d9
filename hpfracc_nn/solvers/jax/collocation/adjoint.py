"""The derivatives of a solve by collocation, attached to the steps that were taken.

With F the right-hand sides at the stages of all steps, G the Taylor polynomial at the start, and W the weights, block
lower triangular, the equations F = f(G + W F) give the tangent of F step by step, by one linear equation each; the
transpose of this loop goes from the last step to the first. The mesh is a constant. Nothing is saved but F and the
states of the stages.

How many steps were taken is known only when the program runs: both loops end there, and JAX differentiates neither of
them in reverse. A primitive therefore has rules of its own: it is linear in the tangents, its transpose is the loop
back, and its derivatives in all else are those of a loop over all N steps, which JAX differentiates in both modes, to
any order.

Shapes: a orders alpha; r numbers of the state for each order; s stages of a step; N steps for which arrays have room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from hpfracc_nn.fractional.jax.arrays import Array
from hpfracc_nn.solvers.jax.collocation.past import spread_back, sums
from hpfracc_nn.solvers.jax.collocation.steps import Problem, Steps, linear_solution, mixed, promoting
from hpfracc_nn.solvers.schemes import TOLERANCES

_BLOCK = 16  # steps that are computed again together, where tangents are differentiated
_TINY = 1e-37  # in place of a length of 0


class Moved(NamedTuple):
    """Tangents, or cotangents, of all that a solve depends on; None in place of those that are symbolic zeros.

    Attributes:
        alpha: The tangent of the orders, [a].
        z0: The tangent of the state at the start, [a, r].
        dz0: The tangent of the derivative at the start, [a, r].
        read: The tangents of the arrays that f reads.
    """

    alpha: Array | None
    z0: Array | None
    dz0: Array | None
    read: tuple[Array | None, ...]


def attached(problem: Problem, found: Steps, adjoint: bool) -> Array:
    """Return F, the values of f at the stages of all steps, with derivatives in alpha, z0, dz0 and what f reads.

    Args:
        problem: The initial value problem that was solved.
        found: The steps, without derivatives.
        adjoint: Whether a backward pass of a derivative of a derivative evaluates f and the weights again instead of
            saving them.
    """
    given = problem.alpha, problem.z0, problem.dz0, problem.right_side.read

    @jax.custom_jvp
    def pair(given: Any, still: tuple[Array, Steps]) -> tuple[Array, Array]:
        return still[1].values, still[1].states

    def rule(primals: tuple[Any, tuple[Array, Steps]], tangents: tuple[Any, Any]) -> Any:
        (given, still), (moved, _) = primals, tangents
        (begin, found), (values, states) = still, pair(given, still)
        same = replace(problem, begin=begin).of(*given)  # a rule may hold nothing that is traced
        some = jax.tree.map(lambda each: None if isinstance(each, SymbolicZero) else each, moved)
        replay = Replay(same, found.lengths, found.n, values, states)
        return (values, states), replay.tangents(Moved(*some), adjoint)

    pair.defjvp(rule, symbolic_zeros=True)
    return pair(given, jax.tree.map(lax.stop_gradient, (problem.begin, found)))[0]


class PastStep(NamedTuple):
    """One step of a solve; in place of a step that was not taken, a very short one at the start.

    Attributes:
        is_taken: Whether the step was taken.
        n: The step's number; 0 for a step that was not taken.
        times: The beginning of the step, as time since the start, and the length of the step.
        values: F, the values of f at the stages, [s, a, r].
        states: The states at the stages, [s, a, r].
    """

    is_taken: Array
    n: Array
    times: tuple[Array, Array]
    values: Array
    states: Array


@dataclass(frozen=True, eq=False)
class Replay:
    """The steps of a solve, taken once more to compute their tangents and cotangents.

    Attributes:
        problem: The initial value problem that was solved.
        lengths: The lengths of the steps, [N].
        n: How many steps were taken.
        values: F, the values of f at the stages, [N, s, a, r].
        states: The states at the stages, [N, s, a, r].
    """

    problem: Problem
    lengths: Array
    n: Array
    values: Array
    states: Array

    def tangents(self, moved: Moved, adjoint: bool) -> tuple[Array, Array]:
        """Return the tangents of F and of the states at the stages, [N, s, a, r] both, by the primitive.

        `moved` are the tangents of what the solve depends on; `adjoint` is that of `attached`.
        """
        leaves, moving = jax.tree.flatten(moved)
        if not leaves:
            return jnp.zeros_like(self.values), jnp.zeros_like(self.states)
        problem = self.problem
        known, tree = jax.tree.flatten(
            (
                (problem.alpha, problem.z0, problem.dz0, problem.right_side.read),
                problem.begin,
                (self.lengths, self.n, self.values, self.states),
            )
        )
        frame = replace(problem, orders=replace(problem.orders, traced=None)).of(None, None, None, ())  # type: ignore[arg-type]
        kind = _Linear(replace(frame, begin=None), tree, moving, len(known), adjoint)  # type: ignore[arg-type]
        return tuple(_LINEAR.bind(self.n, *known, *leaves, kind=kind))  # type: ignore[return-value]

    def forward(self, most: Array, moved: Moved) -> tuple[Array, Array]:
        """Return the tangents of F and of the states at the stages, by a loop over `most` steps, `most` >= n."""
        starts, local = self._starts(), self._local(moved.alpha is not None)

        def one(k: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
            x = self._taken(k, starts)
            rows = local(x)(self._past(x, found[0]), moved)
            return tuple(map(partial(lax.dynamic_update_index_in_dim, index=k, axis=0), found, rows))  # type: ignore[return-value]

        return lax.fori_loop(0, most, one, (jnp.zeros_like(self.values), jnp.zeros_like(self.states)))  # type: ignore[no-any-return]

    def backward(self, most: Array, cotangents: tuple[Array, Array], nothing: Moved) -> Moved:
        """Return the cotangents of what the solve depends on: the transpose of `forward`.

        Args:
            most: How many steps the loop takes, n or more.
            cotangents: Those of F and of the states at the stages, [N, s, a, r] both.
            nothing: Zeros in the shapes of the result; None for what needs no cotangent.
        """
        starts, local = self._starts(), self._local(nothing.alpha is not None)
        problem, none = self.problem, jnp.zeros_like(self.values[0])

        def one(later: Array, found: tuple[Array, Moved]) -> tuple[Array, Moved]:
            k = most - 1 - later
            x, (of_values, total) = self._taken(k, starts), found
            rows = tuple(jnp.where(x.is_taken, each[k], 0) for each in (of_values, cotangents[1]))
            past, more = jax.linear_transpose(local(x), none, nothing)(rows)
            times = x.times[1] * problem.nodes
            of_values = spread_back(problem.scheme.stages, problem.alpha, self.lengths, x.n, times, past, of_values)
            return of_values, jax.tree.map(jnp.add, total, more)

        return lax.fori_loop(0, most, one, (cotangents[0], nothing))[1]  # type: ignore[no-any-return]

    def scanned(self, moved: Moved, adjoint: bool) -> tuple[Array, Array]:
        """Return what `forward` returns, by a loop over all N steps, which JAX differentiates.

        Steps that were not taken are computed too, and not left out by `lax.cond`: `vmap` makes a select of a `cond`,
        of which JAX has no transpose inside of a derivative rule.
        """
        starts, local = self._starts(), self._local(moved.alpha is not None)

        def one(tangents: Array, k: Array) -> tuple[Array, Array]:
            x = self._taken(k, starts)
            of_values, of_states = local(x)(self._past(x, tangents), moved)
            is_there = k < count  # the last block may be longer than what is left
            place = jnp.minimum(k, count - 1)
            row = jnp.where(is_there, of_values, tangents[place])
            return lax.dynamic_update_index_in_dim(tangents, row, place, 0), of_states

        def block(tangents: Array, ks: Array) -> tuple[Array, Array]:
            return lax.scan(one, tangents, ks)

        block = jax.checkpoint(block, prevent_cse=False) if adjoint else block
        count = self.lengths.size
        size = min(_BLOCK, count)
        ks = jnp.arange(-(-count // size) * size).reshape(-1, size)
        of_values, of_states = lax.scan(block, jnp.zeros_like(self.values), ks)
        return of_values, of_states.reshape(-1, *self.states.shape[1:])[:count]

    def _starts(self) -> Array:
        return jnp.append(0.0, jnp.cumsum(self.lengths)[:-1])

    def _taken(self, k: Array, starts: Array) -> PastStep:
        """Return step k; `starts` are the times since the start at which the steps begin, [N]."""
        is_taken = k < self.n
        n = jnp.where(is_taken, k, 0)
        # In place of a step that was not taken f is evaluated at the start, and the result is not used.
        h, start = jnp.where(is_taken, self.lengths[n], _TINY), jnp.where(is_taken, starts[n], 0)
        states = jnp.where(is_taken, self.states[n], self.problem.z0)
        return PastStep(is_taken, n, (start, h), self.values[n], states)

    def _past(self, x: PastStep, tangents: Array) -> Array:
        """Return the tangents of the integrals over all earlier steps at the stages of step x, [s, a, r].

        `tangents` are those of F, [N, s, a, r].
        """
        problem = self.problem
        return sums(problem.scheme.stages, problem.alpha, self.lengths, x.n, x.times[1] * problem.nodes, tangents)

    def _local(self, is_alpha_moved: bool) -> Callable[[PastStep], Callable[[Array, Moved], tuple[Array, Array]]]:
        """Return a function that takes a step and returns `local`, the solution of the step's linear equation.

        local(past, moved) is linear in the tangents `past` of the integrals over earlier steps, [s, a, r], and `moved`
        of what the solve depends on. The result are the step's tangents of F and of the states at the stages, [s, a, r]
        both. `is_alpha_moved` says whether orders have a tangent.
        """
        problem = self.problem
        alpha, stages = problem.alpha, problem.scheme.stages
        if is_alpha_moved:
            own, slope = (each[:, :-1] for each in jax.jvp(problem.own, (alpha,), (jnp.ones_like(alpha),)))
        else:
            own, slope = problem.own(alpha)[:, :-1], None

        def of(x: PastStep) -> Callable[[Array, Moved], tuple[Array, Array]]:
            start, h = x.times
            rows, power = h * problem.nodes, problem.power(h)[:, None, None]
            weights, in_alpha = own * power, None
            if slope is not None:
                in_alpha = sums(stages, alpha, self.lengths, x.n, rows, self.values, in_alpha=1)
                in_alpha = in_alpha + mixed((slope + own * jnp.log(h).astype(own.dtype)) * power, x.values)

            def local(past: Array, moved: Moved) -> tuple[Array, Array]:
                direction = past
                if in_alpha is not None:
                    direction = direction + in_alpha * moved.alpha.astype(in_alpha.dtype)[:, None]  # type: ignore[union-attr]
                if moved.z0 is not None:
                    direction = direction + moved.z0
                if moved.dz0 is not None:
                    direction = direction + (start + rows).astype(past.dtype)[:, None, None] * moved.dz0
                pushed = self._pushed(x, direction, moved.read)
                tolerance = problem.scheme.roots.tolerance or TOLERANCES[pushed.dtype.name]
                solved = linear_solution(problem, x.times, x.states, weights, pushed, tolerance)
                found = solved, direction + mixed(weights, solved)
                return tuple(jnp.where(x.is_taken, each, 0) for each in found)  # type: ignore[return-value]

            return local

        return of

    def _pushed(self, x: PastStep, direction: Array, moved: tuple[Array | None, ...]) -> Array:
        """Return the tangent of f at the stages of step x, [s, a, r].

        Args:
            x: The step.
            direction: The tangents of the states at the stages, [s, a, r].
            moved: The tangents of the arrays that f reads; None for those without.
        """
        problem, read = self.problem, self.problem.right_side.read
        moving = {k: each for k, each in enumerate(moved) if each is not None}

        def f(states: Array, some: list[Array]) -> Array:
            every = dict(enumerate(read)) | dict(zip(moving, some, strict=True))
            reading = replace(problem, right_side=problem.right_side.reading(tuple(every.values())))
            return reading.values(*x.times, states)

        some = [read[k] for k in moving]
        return jax.jvp(f, (x.states, some), (direction, list(moving.values())))[1]


@dataclass(frozen=True, eq=False)
class _Linear:
    """Which linear function the primitive `tangents_of_steps` computes: its parameters besides arrays.

    The primitive's arguments are the number of steps of the loop; the leaves of what is known, that is the problem's
    arrays and the steps; and the arrays in which the function is linear: the leaves of `Moved`, or the cotangents of F
    and of the states at the stages.

    Attributes:
        frame: The problem that was solved, without arrays.
        tree: The structure of what is known, as a pytree.
        moving: The structure of the tangents, a `Moved`.
        known: How many leaves are known.
        adjoint: See `attached`.
        is_transposed: Whether the function takes cotangents back, and not tangents forward.
        batches: For each axis that `vmap` added, the outermost first: whether the number of steps and each known leaf
            have this axis, as their first. The arrays in which the function is linear always have it.
    """

    frame: Problem
    tree: Any
    moving: Any
    known: int
    adjoint: bool
    is_transposed: bool = False
    batches: tuple[tuple[bool, ...], ...] = ()

    @promoting
    def __call__(self, most: Array, *arguments: Array, is_looped: bool = True) -> tuple[Array, ...]:
        """Return the function's value for arrays without batch axes.

        The value is computed by a loop over `most` steps, or if not `is_looped` by one that JAX differentiates.
        """
        given, begin, rest = jax.tree.unflatten(self.tree, arguments[: self.known])
        replay, linear = Replay(replace(self.frame, begin=begin).of(*given), *rest), arguments[self.known :]
        full = Moved(*jax.tree.map(jnp.zeros_like, given))

        def run(leaves: tuple[Array, ...]) -> tuple[Array, Array]:
            moved = jax.tree.unflatten(self.moving, leaves)
            return replay.forward(most, moved) if is_looped else replay.scanned(moved, self.adjoint)

        if not self.is_transposed:
            return run(linear)
        nothing = _like(full, self.moving)
        if is_looped:
            return tuple(jax.tree.leaves(replay.backward(most, linear, nothing)))  # type: ignore[arg-type]
        return jax.linear_transpose(run, tuple(jax.tree.leaves(nothing)))(tuple(linear))[0]  # type: ignore[no-any-return]


def _like(full: Moved, moving: Any) -> Moved:
    """Return the entries of `full`, zeros for all tangents, that the structure `moving` has; None for the others."""
    some = jax.tree.unflatten(moving, [True] * moving.num_leaves)
    return jax.tree.map(lambda is_moved, zero: zero if is_moved else None, some, full, is_leaf=lambda x: x is None)


_LINEAR = Primitive("tangents_of_steps")
_LINEAR.multiple_results = True


def _found(*arguments: Array, kind: _Linear, is_looped: bool = True) -> list[Array]:
    """Return the values of the primitive; if not `is_looped`, by a loop that JAX differentiates."""
    function: Callable[..., Any] = partial(kind, is_looped=is_looped)
    for each in reversed(kind.batches):
        known = tuple(0 if is_batched else None for is_batched in each)
        function = jax.vmap(function, in_axes=(*known, *[0] * (len(arguments) - len(known))))
    return list(function(*arguments))


def _types(*types: Any, kind: _Linear) -> list[Any]:
    """Abstract evaluation rule of the primitive: return the shapes and dtypes of its values."""
    linear, known = types[1 + kind.known :], types[1 : 1 + kind.known]
    batch = linear[0].shape[: len(kind.batches)]
    like = [
        jax.core.ShapedArray((*batch, *each.shape[sum(flags[k] for flags in kind.batches) :]), each.dtype)
        for k, each in enumerate(known, 1)
    ]
    if not kind.is_transposed:
        return like[-2:]
    return jax.tree.leaves(_like(Moved(*jax.tree.unflatten(kind.tree, like)[0]), kind.moving))


def _moved(primals: Sequence[Array], tangents: Sequence[Any], *, kind: _Linear) -> tuple[list[Array], list[Any]]:
    """JVP rule of the primitive: return its values and their tangents.

    Tangents of the linear arguments alone are pushed forward by the primitive itself; any others by the loop that JAX
    differentiates.
    """
    found, first = _LINEAR.bind(*primals, kind=kind), 1 + kind.known
    moving = [k for k, each in enumerate(tangents) if not isinstance(each, ad.Zero)]
    if not moving:
        return found, [ad.Zero(jax.typeof(each).to_tangent_aval()) for each in found]
    if min(moving) >= first:
        linear = map(ad.instantiate_zeros, tangents[first:])
        return found, _LINEAR.bind(*primals[:first], *linear, kind=kind)

    def function(*some: Array) -> list[Array]:
        every = dict(enumerate(primals)) | dict(zip(moving, some, strict=True))
        return _found(*every.values(), kind=kind, is_looped=False)

    return found, jax.jvp(function, [primals[k] for k in moving], [tangents[k] for k in moving])[1]


def _transposed(cotangents: Sequence[Any], *arguments: Any, kind: _Linear) -> list[Any]:
    """Transposition rule of the primitive: return the cotangents of its linear arguments, None for the others."""
    first = 1 + kind.known
    nothing: list[Any] = [None] * first
    if all(isinstance(each, ad.Zero) for each in cotangents):
        return nothing + [ad.Zero(each.aval) for each in arguments[first:]]
    back = replace(kind, is_transposed=not kind.is_transposed)
    return nothing + _LINEAR.bind(*arguments[:first], *map(ad.instantiate_zeros, cotangents), kind=back)


def _batched(arguments: Sequence[Array], axes: Sequence[int | None], *, kind: _Linear) -> tuple[list[Array], list[int]]:
    """Batching rule of the primitive: return the batched values, and 0 for each, the number of the batch axis.

    All members of a batch take as many steps of the loop as the member that needs most. The linear arguments always get
    the batch axis, so that the transpose needs no sum over the batch.
    """
    size = next(each.shape[axis] for each, axis in zip(arguments, axes, strict=True) if axis is not None)
    most, *given = [
        each if axis is None else jnp.moveaxis(each, axis, 0) for each, axis in zip(arguments, axes, strict=True)
    ]
    if axes[0] is not None:
        most = most.max(0)
    for k in range(kind.known, len(given)):
        if axes[k + 1] is None:
            given[k] = jnp.broadcast_to(given[k], (size, *given[k].shape))
    batched = (False, *(axis is not None for axis in axes[1 : 1 + kind.known]))
    found = _LINEAR.bind(most, *given, kind=replace(kind, batches=(batched, *kind.batches)))
    return found, [0] * len(found)


_LINEAR.def_impl(partial(jax.jit, static_argnames="kind")(_found))
_LINEAR.def_abstract_eval(_types)
mlir.register_lowering(_LINEAR, mlir.lower_fun(_found, multiple_results=True))
ad.primitive_jvps[_LINEAR] = _moved
ad.primitive_transposes[_LINEAR] = _transposed
batching.primitive_batchers[_LINEAR] = _batched
