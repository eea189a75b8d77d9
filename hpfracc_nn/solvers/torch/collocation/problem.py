"""What a solve by collocation needs beside the tensors that gradients are wanted of."""

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
    """Which samples are still solved: of the others f is 0, and is evaluated at another state.

    Attributes:
        first: The first step that it is for.
        is_solved: For each number of a state, [*shape].
        instead: The states that f is evaluated at, [*shape].
    """

    first: int
    is_solved: Tensor
    instead: Tensor


@dataclass(eq=False)
class Problem:
    """What a solve needs beside the tensors that gradients are wanted of.

    Attributes:
        field: The right-hand side.
        scheme: How many stages a step has, and how they are solved.
        orders: alpha's values, [a].
        begin: The time at the start, in the caller's unit.
        rtol: Of the solution, or None on a given mesh.
        atol: The same; a number, or a tensor that broadcasts to a state.
        max_steps: After how many an error is raised.
        throws: Whether one is; else the solve ends, or goes on without the samples that fail.
        statistics: What was done.
        mask: Which samples are solved now; None is all.
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
        """Return the weights of a step's stages in its stages and at its end, [a, s + 1, s]."""
        return self.as_like(self.own * np.power(h, self.orders)[:, None, None])

    def weights_at(self, h: float, places: np.ndarray) -> Tensor:
        """Return the weights of a step's stages at places in it, parts of h, [a, places, s]."""
        own = within(self.scheme.stages, self.orders, np.maximum(places, TINIEST), NUMPY)
        return self.as_like(own * np.power(h, self.orders)[:, None, None])

    def as_like(self, x: np.ndarray | Tensor) -> Tensor:
        """Return numbers as a tensor of the states' dtype and device."""
        return (torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x).to(self.like)

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return weights [a, rows, k] times values [k, *shape], [rows, *shape]."""
        return self.layout.as_state(weights @ self.layout.as_matrix(values))

    def stages(self, n: int, start: float, h: float, states: Tensor) -> Tensor:
        """Return f at the stages of step n, [s, *shape]."""
        times = torch.from_numpy(self.begin + (start + h * self.rule.nodes)).to(self.like).unbind()
        self.statistics.evaluations += len(times)
        mask = self.mask
        if mask is not None:
            states = torch.where(mask.is_solved, states, mask.instead)
        found = torch.stack([self.field.checked(n, t, z) for t, z in zip(times, states.unbind(), strict=True)])
        return found if mask is None else torch.where(mask.is_solved, found, torch.zeros_like(found))

    def base(self, z0: Tensor, dz0: Tensor | None, elapsed: np.ndarray) -> Tensor:
        """Return the Taylor polynomial at times, [times, *shape], or what broadcasts to that."""
        if dz0 is None:
            return z0[None]
        return z0 + self.as_like(elapsed).view(-1, *[1] * z0.ndim) * dz0

    def sizes(self, x: Tensor, scale: Tensor) -> Tensor:
        """Return the root mean squares of x / scale for each sample, [k, samples] for x [k, *shape]."""
        return by_sample(x / scale, self.layout, self.samples)

    def scale(self, *states: Tensor) -> Tensor:
        """Return what a change of a state is measured by, [*shape]."""
        assert self.rtol is not None, "the mesh is given"
        largest = torch.stack([each.abs() for each in states]).amax(0)
        return (self.atol + self.rtol * largest).clamp(min=torch.finfo(self.like.dtype).tiny)


@lru_cache(maxsize=256)
def spread_of(stages: int, orders: tuple[float, ...]) -> np.ndarray:
    """Return `spread` of orders, [a]."""
    return np.asarray(spread(stages, np.array(orders), NUMPY))


def samples_of(layout: Layout) -> int:
    """Return how many samples a state has: the length of its first axis, where it has more than one.

    A vector of complex numbers, which has two axes here, has a sample for each.
    """
    first = {shape[0] for shape in layout.shapes if len(shape) > 1}
    return first.pop() if len(first) == 1 and all(len(shape) > 1 for shape in layout.shapes) else 1


def by_sample(x: Tensor, layout: Layout, samples: int) -> Tensor:
    """Return the root mean squares over each sample of x [k, *shape], [k, samples]."""
    parts = layout.unravel(x)
    each = [part.reshape(x.shape[0], samples, -1) for part in (parts if isinstance(parts, tuple) else (parts,))]
    whole = each[0] if len(each) == 1 else torch.cat(each, -1)
    return torch.linalg.vector_norm(whole, dim=-1) / math.sqrt(whole.shape[-1])
