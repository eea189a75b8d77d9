"""Steps by collocation, chosen by a tolerance or along a given mesh.

F are the values of f at the stages of a step. Shapes: [*shape] a state, s stages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.solvers import checks
from hpfracc_nn.solvers.collocation import BLIND, LAST, SHORTEST, Controller, estimated, extension
from hpfracc_nn.solvers.torch.collocation.past import Past
from hpfracc_nn.solvers.torch.collocation.problem import Mask, Problem
from hpfracc_nn.solvers.torch.collocation.stages import Stages
from hpfracc_nn.solvers.torch.state import NAMES, Signature, is_finite


@dataclass(eq=False)
class Track:
    """The steps that a solve has taken, and how it ended. Lists have one entry for each step.

    Attributes:
        lengths: The lengths of the steps.
        values: F of each step, [s, *shape].
        states: The states at which f was evaluated last in each step, [s, *shape].
        signatures: The `Signature` of f at these states, [2, s].
        ends: The states at the ends of the steps, [*shape].
        errors: The estimated error of each step, relative to what was allowed; NaN on a given mesh.
        status: Why the solve ended: "finished", "event", "max_steps" or "failed".
        message: The message of the error that was not raised, or "".
        end: The time at the end of the last step, since the start.
        masks: The masks of samples that were still solved, one for each sample that failed.
        failed: By the index of each sample that failed, the time since the start when it did.
    """

    lengths: list[float] = dataclasses.field(default_factory=list)
    values: list[Tensor] = dataclasses.field(default_factory=list)
    states: list[Tensor] = dataclasses.field(default_factory=list)
    signatures: list[Tensor] = dataclasses.field(default_factory=list)
    ends: list[Tensor] = dataclasses.field(default_factory=list)
    errors: list[float] = dataclasses.field(default_factory=list)
    status: str = "finished"
    message: str = ""
    end: float = 0.0
    masks: list[Mask] = dataclasses.field(default_factory=list)
    failed: dict[int, float] = dataclasses.field(default_factory=dict)


@dataclass(eq=False)
class Step:
    """A step whose stage equations were solved, before it is accepted or rejected.

    Attributes:
        h: The length of the step.
        values: F, [s, *shape].
        states: The states at which f was evaluated last, [s, *shape].
        found: f at `states`, [s, *shape].
        end: The state at the end of the step, [*shape].
        error: The estimated error, relative to what is allowed; NaN on a given mesh.
    """

    h: float
    values: Tensor
    states: Tensor
    found: Tensor
    end: Tensor
    error: float = math.nan


Watch = Callable[["Integrator", Step], bool]


class Integrator:
    """The loop over the steps of a solve, and its present state.

    Args:
        problem: The solve.
        z0: The state at the start, [*shape].
        dz0: The derivative at the start, or None.
        past: The steps that were taken before: none, or those of a solve that is continued.
        before: The state at the end of the past, [*shape].

    Attributes:
        before: The present state, at the end of the last accepted step.
        time: The present time, since the start.
        origin: The time, since the start, of the start or of the last breakpoint, behind which f may have jumped.
        track: The steps that were accepted.
    """

    def __init__(self, problem: Problem, z0: Tensor, dz0: Tensor | None, past: Past, before: Tensor):
        self.problem, self.z0, self.dz0, self.past, self.before = problem, z0, dz0, past, before
        self.stages, self.track, self.signature = Stages(problem), Track(), Signature()
        self.controller = Controller(problem.scheme.stages, float(problem.orders.min()))
        self.time = self.origin = past.tree.times[-1]
        self._last: Tensor | None = None  # F of the last accepted step; None at the start and behind a breakpoint
        self._length = 0.0  # length of that step

    @property
    def n(self) -> int:
        """The index of the next step."""
        return len(self.past.values)

    def sums(self, rows: np.ndarray) -> Tensor:
        """Return the Taylor polynomial plus the integrals over the past at `rows`, times after the present time.

        Shape [rows, *shape].
        """
        return self.problem.base(self.z0, self.dz0, self.time + rows) + self.past.sums(self.n, rows)

    def tried(self, h: float) -> Step | None:
        """Return the next step with length h, or None where its equations are not solved or its end is not finite."""
        problem, n = self.problem, self.n
        history = self.sums(h * problem.ends)
        weights = problem.weights_within(h)
        scale = None if problem.rtol is None else problem.scale(self.before)
        found = self.stages.solve(
            n, self.time, h, history[:-1], weights[:, :-1], self._guess(h), None if scale is None else scale
        )
        if found is None:
            return None
        end = history[-1] + problem.mixed(weights[:, -1:], found[0])[0]
        if not is_finite(end):
            return None
        return Step(h, *found, end)

    def _guess(self, h: float) -> Tensor:
        """Return a guess of F of the next step, of length h, [s, *shape].

        It is extrapolated from the Legendre coefficients of the step before, or is f at the present state where there
        is none.
        """
        problem, last = self.problem, self._last
        if last is None:
            value = self._value(0.0, self.before)
            return value.expand(problem.scheme.stages, *value.shape)
        coefficients = problem.as_like(problem.rule.coefficients) @ last.reshape(last.shape[0], -1)
        sizes = torch.linalg.vector_norm(coefficients, dim=1).double().cpu().numpy()
        basis = extension(problem.rule, h / self._length, sizes, NUMPY)
        return (problem.as_like(basis) @ coefficients).view_as(last)

    def _value(self, later: float, state: Tensor) -> Tensor:
        """Return f at a state, `later` after the present time, and behind a jump that may be at the present time."""
        problem = self.problem
        problem.statistics.evaluations += 1
        time = problem.begin + (self.time + max(later, self._least()))
        return problem.field.checked(self.n, torch.tensor(time, dtype=torch.float64).to(problem.like), state)

    def accept(self, step: Step) -> None:
        """Accept a step: append it to the past and the track, and move to its end."""
        track = self.track
        track.lengths.append(step.h)
        track.values.append(step.values)
        track.states.append(step.states)
        track.signatures.append(self.signature(step.found))
        track.ends.append(step.end)
        track.errors.append(step.error)
        self.past.append(step.h, step.values)
        self.time = self.past.tree.times[-1]
        self.before, self._last, self._length = step.end, step.values, step.h
        self.problem.statistics.steps += 1

    def along(self, mesh: np.ndarray, watch: Watch | None, progress: Callable[[int, int], None] | None) -> Track:
        """Take the steps of a mesh, given as times since the start, and return the track.

        `watch` is called with each step before it is accepted and may end the solve; `progress` is called after each
        step.
        """
        for h in np.diff(mesh).tolist():
            step = self.tried(h)
            if step is None:
                raise self._unsolved()
            if watch is not None and watch(self, step):
                self.accept(step)
                self.track.status = "event"
                break
            self.accept(step)
            if progress is not None:
                progress(self.n, mesh.size - 1)
        self.track.end = self.time
        return self.track

    def to(
        self,
        end: float,
        watch: Watch | None,
        progress: Callable[[int, int], None] | None,
        breakpoints: Sequence[float] = (),
        max_step: float = math.inf,
    ) -> Track:
        """Take steps of lengths that the tolerances allow, up to the time `end`, and return the track.

        Args:
            end: The time at the end, since the start.
            watch: Called with each step before it is accepted; returns whether the solve ends with it. None is none.
            progress: Called as progress(steps done, steps in all, about) after each step, or None.
            breakpoints: Times since the start at which a step ends, and steps begin small again.
            max_step: The longest step.
        """
        for stop in (*(each for each in breakpoints if self.time < each < end), end):
            self._begin()
            self._until(stop, end, watch, progress, max_step)
            if self.track.status != "finished":
                break
        self.track.end = self.time
        return self.track

    def _begin(self) -> None:
        """Begin anew behind a time at which f may jump: F of the step before no longer serves as a guess."""
        self.origin, self._last = self.time, None

    def _until(
        self,
        stop: float,
        end: float,
        watch: Watch | None,
        progress: Callable[[int, int], None] | None,
        max_step: float,
    ) -> None:
        """Take steps up to `stop`, the next breakpoint or the end; other arguments as of `to`."""
        h, track, is_again = self._first(stop), self.track, False
        before = math.nan, math.nan  # error and length of the step before; NaN after a rejection
        while self.time < stop:
            if len(track.lengths) >= self.problem.max_steps:
                return self._ended("max_steps", self._too_many(end, h))
            h = self._fitted(h, stop - self.time, max_step)
            step = self.tried(h)
            error = math.inf if step is None else self._error(step)
            if step is None or not (error <= 1 or self._is_blind(h, error)):
                self.problem.statistics.rejected += 1
                h = float(self.controller.shrunk(error, h, self.time == self.origin))
                before, is_again = (math.nan, math.nan), True
                if h <= self._shortest():
                    if not self._left_out(h):
                        return self._ended("failed", self._stuck(h, error))
                    h = max(1e3 * h, 1e-9 * self.time)
                continue
            step.error = error
            is_over = watch is not None and watch(self, step)
            self.accept(step)
            if is_over:
                track.status = "event"
                return None
            if progress is not None:
                progress(self.n, self.n + math.ceil((end - self.time) / h))
            longer = float(self.controller.grown(error, h, *before, self.time - self.origin))
            h, before, is_again = min(longer, h) if is_again else longer, (error, h), False
        return None

    def _fitted(self, h: float, left: float, max_step: float) -> float:
        """Return the length of the step to take where h is wanted and `left` is the time to the next stop."""
        return float(self.controller.fitted(max(h, self._least()), left, self.time, max_step))

    def _least(self) -> float:
        """Return the shortest step whose stages all lie behind a jump at `origin` by a rounding of the time or more."""
        if not self.origin:
            return 0.0
        problem = self.problem
        return problem.eps * max(self.origin, abs(problem.begin + self.origin)) / float(problem.rule.nodes[0])

    def _is_blind(self, h: float, error: float) -> bool:
        """Return whether a step is so close behind a jump that a shorter one would evaluate f before the jump.

        Such a step is accepted although its error is larger than allowed.
        """
        least = self._least()
        return error < math.inf and h <= 1.5 * least and self.time - self.origin < BLIND * least

    def _shortest(self) -> float:
        return max(SHORTEST * float(np.finfo(np.float64).eps) * self.time, 1e-300)

    def _ended(self, status: str, error: Exception) -> None:
        if self.problem.throws:
            raise error
        self.track.status, self.track.message = status, str(error)

    def _left_out(self, h: float) -> bool:
        """Mask the sample that keeps a step of length h from being taken; return False where that is not possible.

        Masking is not possible where errors are raised, or where no other sample is left. The masked sample fails at
        the present time.
        """
        problem, layout = self.problem, self.problem.layout
        if problem.throws or len(self.track.failed) + 1 >= problem.samples:
            return False
        weights, guess = problem.weights_within(h)[:, :-1], self._guess(h)
        states = self.sums(h * problem.rule.nodes) + problem.mixed(weights, guess)
        change = problem.stages(self.n, self.time, h, states) - guess
        sizes = problem.sizes(change, problem.scale(self.before)).amax(0)
        sizes = torch.where(torch.isfinite(sizes), sizes, torch.full_like(sizes, torch.inf))
        sizes[list(self.track.failed)] = -1.0
        worst = int(sizes.argmax())
        self.track.failed[worst] = self.time
        is_solved = torch.ones(problem.samples, dtype=torch.bool, device=problem.like.device)
        is_solved[list(self.track.failed)] = False
        each = [is_solved.view(-1, *[1] * (len(shape) - 1)).expand(shape) for shape in layout.shapes]
        mask = layout.ravel(tuple(each)) if layout.is_tuple else each[0]
        good = (
            self.before
            if problem.mask is None
            else torch.where(problem.mask.is_solved, self.before, problem.mask.instead)
        )
        problem.mask = Mask(self.n, mask, good)
        self.track.masks.append(problem.mask)
        self.stages = Stages(problem)
        self._last = None if self._last is None else torch.where(mask, self._last, torch.zeros_like(self._last))
        self.before = torch.where(mask, self.before, torch.zeros_like(self.before))
        return True

    def _error(self, step: Step) -> float:
        """Return the estimated error of a step, relative to what the tolerances allow."""
        problem = self.problem
        some = problem.as_like(problem.rule.coefficients[-LAST:])
        last = (some @ step.values.reshape(step.values.shape[0], -1)).view(LAST, *step.end.shape)
        factor = problem.layout.broadcast(problem.as_like(np.power(step.h, problem.orders) * problem.spread))
        last = last * factor
        if problem.mask is not None:
            last = torch.where(problem.mask.is_solved, last, torch.zeros_like(last))
        sizes = problem.sizes(last, problem.scale(self.before, step.end))
        return float(estimated(sizes.double().cpu().numpy(), NUMPY).max())

    def _first(self, end: float) -> float:
        """Return the length of a first step, over which f's change adds about as much to y as its error may be.

        `end` is the next stop, as time since the start.
        """
        problem, z0 = self.problem, self.before
        value = self._value(0.0, z0)
        scale = problem.scale(z0)
        slope = float(problem.sizes(value[None], scale).max())
        duration = end - self.time
        h = float(self.controller.begun(slope, duration))
        factor = problem.layout.broadcast(problem.as_like(np.power(h, problem.orders)))
        moved = z0 + factor * value
        if self.dz0 is not None:
            moved = moved + h * self.dz0
        later = self._value(h, moved)
        change = float(problem.sizes(((later - value) * factor)[None], scale).max())
        return float(self.controller.first(h, change, duration))

    def _at(self) -> float:
        return self.problem.begin + self.time

    def _unsolved(self) -> Exception:
        iterations = self.stages.iterations
        return checks.unsolved(
            "fdeint", self.n, self._at(), iterations, "take more steps, or pass rtol and atol, which choose them"
        )

    def _too_many(self, end: float, h: float) -> Exception:
        return checks.too_many("fdeint", self.problem.max_steps, self._at(), self.problem.begin + end, h)

    def _stuck(self, h: float, error: float) -> Exception:
        # States are sums of the right-hand sides since the start: those that have decayed keep the rounding they had.
        problem = self.problem
        largest = torch.stack([self.z0, *self.track.ends]).abs().amax(0)
        if problem.mask is not None:
            largest = torch.where(problem.mask.is_solved, largest, torch.zeros_like(largest))
        scale = problem.scale(self.before)
        worst = (largest / scale).argmax()
        size, allowed = float(largest.reshape(-1)[worst]), float(scale.reshape(-1)[worst])
        if math.isfinite(error) and allowed < 2 * problem.eps * size:  # else f is not finite, or no step was solved
            return checks.below_rounding("fdeint", self.n, self._at(), size, allowed, NAMES[problem.like.dtype])
        size = float(self.before.abs().max())
        return checks.stuck("fdeint", self.n, self._at(), h, size)
