"""Steps by collocation, as the tolerance allows them or along a mesh that is given.

Shapes: [*shape] a state, s stages.
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
from hpfracc_nn.solvers.torch.state import Signature, is_finite


@dataclass(eq=False)
class Track:
    """The steps that a solve has taken.

    Attributes:
        lengths: Of the steps.
        values: F of each, [s, *shape].
        states: Where f was evaluated last in each, [s, *shape].
        signatures: Of its values there, [2, s].
        ends: The states at the ends of the steps, [*shape].
        errors: The estimate of each, as a part of what was allowed; NaN on a given mesh.
        status: Why the solve ended: "finished", "event", "max_steps" or "failed".
        message: What an error would have said, or "".
        end: The time of the end, since the start.
        masks: Which samples were solved, from which step on.
        failed: When a sample failed, as time since the start.
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
    """A step that was tried: its length, F, the states and the values of the last evaluation, and its end."""

    h: float
    values: Tensor
    states: Tensor
    found: Tensor
    end: Tensor
    error: float = math.nan


Watch = Callable[["Integrator", Step], bool]


class Integrator:
    """Takes the steps of a solve.

    Args:
        problem: What is solved.
        z0: The state at the start, [*shape].
        dz0: Its derivative, or None.
        past: What was taken before: empty, or the history of a solve that is continued.
        before: The state at the end of the past.
    """

    def __init__(self, problem: Problem, z0: Tensor, dz0: Tensor | None, past: Past, before: Tensor):
        self.problem, self.z0, self.dz0, self.past, self.before = problem, z0, dz0, past, before
        self.stages, self.track, self.signature = Stages(problem), Track(), Signature()
        self.controller = Controller(problem.scheme.stages, float(problem.orders.min()))
        self.time = self.origin = past.tree.times[-1]  # of the present, and where f may have jumped last
        self._last: Tensor | None = None  # F of the step before
        self._length = 0.0

    @property
    def n(self) -> int:
        """The number of the next step."""
        return len(self.past.values)

    def sums(self, rows: np.ndarray) -> Tensor:
        """Return the Taylor polynomial and the past at times after the present one, [rows, *shape]."""
        return self.problem.base(self.z0, self.dz0, self.time + rows) + self.past.sums(self.n, rows)

    def tried(self, h: float) -> Step | None:
        """Return the step of length h, or None where its equations are not solved."""
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
        """Return the values of f on the next step, about: those of the step before, extended as far as they decay."""
        problem, last = self.problem, self._last
        if last is None:
            value = self._value(0.0, self.before)
            return value.expand(problem.scheme.stages, *value.shape)
        coefficients = problem.as_like(problem.rule.coefficients) @ last.reshape(last.shape[0], -1)
        sizes = torch.linalg.vector_norm(coefficients, dim=1).double().cpu().numpy()
        basis = extension(problem.rule, h / self._length, sizes, NUMPY)
        return (problem.as_like(basis) @ coefficients).view_as(last)

    def _value(self, later: float, state: Tensor) -> Tensor:
        """Return f at a state and a time after the present one, at the least behind a jump that is here."""
        problem = self.problem
        problem.statistics.evaluations += 1
        time = problem.begin + (self.time + max(later, self._least()))
        return problem.field.checked(self.n, torch.tensor(time, dtype=torch.float64).to(problem.like), state)

    def accept(self, step: Step) -> None:
        """Take a step."""
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
        """Take the steps of a mesh, given as times since the start."""
        for h in np.diff(mesh).tolist():
            step = self.tried(h)
            if step is None:
                raise self._unsolved(h)
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
        """Take steps to a time since the start, as the tolerance allows them.

        Args:
            end: The time.
            watch: What looks at each step before it is accepted, and may end the solve.
            progress: Called after each step.
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
        """Forget what steps before a time at which f may jump say of those after it."""
        self.origin, self._last = self.time, None

    def _until(
        self,
        stop: float,
        end: float,
        watch: Watch | None,
        progress: Callable[[int, int], None] | None,
        max_step: float,
    ) -> None:
        """Take steps up to `stop`, before which f does not jump; see `to`."""
        h, track, is_again = self._first(stop), self.track, False
        before = math.nan, math.nan  # error and length of the step before, where it led to this one without a rejection
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
                        return self._ended("failed", self._stuck(h))
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
        """Return the step that is taken in place of h, where as much is left."""
        return float(self.controller.fitted(max(h, self._least()), left, self.time, max_step))

    def _least(self) -> float:
        """Return the shortest step whose stages all lie behind a jump at `origin` by a rounding of the time or more."""
        if not self.origin:
            return 0.0
        problem = self.problem
        return problem.eps * max(self.origin, abs(problem.begin + self.origin)) / float(problem.rule.nodes[0])

    def _is_blind(self, h: float, error: float) -> bool:
        """Return whether a step is too close behind a jump for a shorter one: its times would be before the jump."""
        least = self._least()
        return error < math.inf and h <= 1.5 * least and self.time - self.origin < BLIND * least

    def _shortest(self) -> float:
        return max(SHORTEST * float(np.finfo(np.float64).eps) * self.time, 1e-300)

    def _ended(self, status: str, error: Exception) -> None:
        if self.problem.throws:
            raise error
        self.track.status, self.track.message = status, str(error)

    def _left_out(self, h: float) -> bool:
        """Go on without the sample that keeps a step from being taken; return whether there are others."""
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
        """Return the estimate of a step's error, as a part of what is allowed."""
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
        """Return a first step: one in which f changes by as much as its error may be, about."""
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

    def _unsolved(self, h: float) -> Exception:
        iterations = self.stages.iterations
        return checks.unsolved(
            "fdeint", self.n, self._at(), iterations, "take more steps, or pass rtol and atol, which choose them"
        )

    def _too_many(self, end: float, h: float) -> Exception:
        return checks.too_many("fdeint", self.problem.max_steps, self._at(), self.problem.begin + end, h)

    def _stuck(self, h: float) -> Exception:
        size = float(self.before.abs().max())
        return checks.stuck("fdeint", self.n, self._at(), h, size)
