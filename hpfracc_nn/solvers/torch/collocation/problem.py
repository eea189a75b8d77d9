"""The problem that a solve by collocation solves, apart from the tensors whose gradients are wanted.

Shapes: [*shape] a state, a orders alpha, s stages of a step. F are the values of f at the stages.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.solvers.collocation import Collocation, Rule, Statistics, rule_of, spread, within
from hpfracc_nn.solvers.torch.state import Field, Layout

TINIEST = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Mask:
    """Which samples of a batch are still solved; for the others, which failed, f counts as 0.

    Attributes:
        first: The first step for which the mask holds.
        is_solved: Whether each number of a state belongs to a sample that is still solved, [*shape].
        instead: The state at which f is evaluated for samples that are not, [*shape]: one from before they failed.
    """

    first: int
    is_solved: Tensor
    instead: Tensor


@dataclass(eq=False)
class Problem:
    """A solve by collocation: all that it needs beside the tensors whose gradients are wanted.

    Attributes:
        field: The right-hand side.
        scheme: How many stages a step has, and how their equations are solved.
        orders: alpha's values, [a].
        begin: The time at the start, in the caller's unit.
        rtol: The relative tolerance of a step's error, or None on a given mesh.
        atol: The absolute tolerance, a number, or a tensor that broadcasts to a state.
        max_steps: The most steps of a solve to a tolerance.
        throws: Whether a solve that cannot go on raises an error; else it ends, or goes on without samples that fail.
        statistics: What the solve has cost so far.
        mask: Which samples are still solved; None is all.
    """

    field: Field
    scheme: Collocation
    orders: np.ndarray
    begin: float
    rtol: float | None
    atol: float | Tensor
    max_steps: int
    throws: bool = True
    statistics: Statistics = dataclasses.field(default_factory=Statistics)
    mask: Mask | None = None

    def __post_init__(self) -> None:
        self.layout: Layout = self.field.layout
        self.like = self.field.times[0]
        self.eps = torch.finfo(self.like.dtype).eps
        self.rule: Rule = rule_of(self.scheme.stages)
        self.samples = samples_of(self.layout)
        self.ends = np.append(self.rule.nodes, 1.0)
        self.own = within(self.scheme.stages, self.orders, self.ends, NUMPY)  # [a, s + 1, s]
        self.spread = spread_of(self.scheme.stages, tuple(self.orders.tolist()))

    def weights_within(self, h: float) -> Tensor:
        """Return the weights of F of a step of length h, in the states of its stages and at its end, [a, s + 1, s]."""
        return self.as_like(self.own * np.power(h, self.orders)[:, None, None])

    def weights_at(self, h: float, places: np.ndarray) -> Tensor:
        """Return the weights of F of a step of length h in the states at places in it, [a, places, s].

        `places` are times since the step's beginning divided by h.
        """
        own = within(self.scheme.stages, self.orders, np.maximum(places, TINIEST), NUMPY)
        return self.as_like(own * np.power(h, self.orders)[:, None, None])

    def as_like(self, x: np.ndarray | Tensor) -> Tensor:
        """Return x as a tensor of the states' dtype and device."""
        return (torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x).to(self.like)

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the products of weights [a, rows, k] with values [k, *shape], order by order, [rows, *shape]."""
        return self.layout.as_state(weights @ self.layout.as_matrix(values))

    def stages(self, n: int, start: float, h: float, states: Tensor) -> Tensor:
        """Return f at the stages of step n, [s, *shape]; 0 for samples that failed.

        `start` is the step's beginning, as time since the start, h its length, `states` the states of its stages,
        [s, *shape].
        """
        times = torch.from_numpy(self.begin + (start + h * self.rule.nodes)).to(self.like).unbind()
        self.statistics.evaluations += len(times)
        mask = self.mask
        if mask is not None:
            states = torch.where(mask.is_solved, states, mask.instead)
        found = torch.stack([self.field.checked(n, t, z) for t, z in zip(times, states.unbind(), strict=True)])
        return found if mask is None else torch.where(mask.is_solved, found, torch.zeros_like(found))

    def base(self, z0: Tensor, dz0: Tensor | None, elapsed: np.ndarray) -> Tensor:
        """Return the Taylor polynomial of y at times since the start, [times, *shape], or [1, *shape] without dz0."""
        if dz0 is None:
            return z0[None]
        return z0 + self.as_like(elapsed).view(-1, *[1] * z0.ndim) * dz0

    def sizes(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return the root mean squares of x / scale for each sample, [k, samples] for x [k, *shape]."""
        return by_sample(x / scale, self.layout, self.samples)

    def scale(self, *states: Tensor) -> Tensor:
        """Return the error that the tolerances allow in each number of a state, atol + rtol |state|, [*shape].

        |state| is the largest of the `states`.
        """
        assert self.rtol is not None, "the mesh is given"
        largest = torch.stack([each.abs() for each in states]).amax(0)
        return (self.atol + self.rtol * largest).clamp(min=torch.finfo(self.like.dtype).tiny)


@lru_cache(maxsize=256)
def spread_of(stages: int, orders: tuple[float, ...]) -> np.ndarray:
    """Return `collocation.spread` of the orders, [a], cached."""
    return np.asarray(spread(stages, np.array(orders), NUMPY))


def samples_of(layout: Layout) -> int:
    """Return how many samples a state has: the common length of its tensors' first axes, or 1.

    It is 1 where a tensor has one axis or none, or first axes differ. A vector of complex numbers, which is a real
    tensor of two axes here, has one sample for each number.
    """
    first = {shape[0] for shape in layout.shapes if len(shape) > 1}
    return first.pop() if len(first) == 1 and all(len(shape) > 1 for shape in layout.shapes) else 1


def by_sample(x: Tensor, layout: Layout, samples: int) -> Tensor:
    """Return the root mean square over each sample of the k states in x [k, *shape], [k, samples]."""
    parts = layout.unravel(x)
    each = [part.reshape(x.shape[0], samples, -1) for part in (parts if isinstance(parts, tuple) else (parts,))]
    whole = each[0] if len(each) == 1 else torch.cat(each, -1)
    return torch.linalg.vector_norm(whole, dim=-1) / math.sqrt(whole.shape[-1])
