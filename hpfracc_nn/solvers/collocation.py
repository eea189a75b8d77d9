"""Piecewise collocation for D^a y = f(t, y): its weights, how it keeps the past, and how it chooses its steps.

Caputo's problem is y(t) = P(t) + 1 / Gamma(a) * the integral of (t - s)**(a - 1) f(s, y(s)), P the Taylor polynomial
of y at the start. On each step of a mesh, f along the solution is the polynomial through its values F at Gauss nodes,
the stages. On step n, of length h, they solve

    Y = P + sum over m < n of W_nm F_m + h**a L F,    F = f(Y),

where a row of weights is the integral of the kernel times the Lagrange polynomials of one step, seen from one time. All
that depends on a is explicit, so that any framework can differentiate it:

- within the step, and from close after it: what the polynomial is where the kernel is largest, whose integral is
  known, and the rest by one rule for all orders and distances, `Graded`;
- from far away: Gauss's rule with the stages themselves.

Seen from as far as their own length, several steps together are a few points: the kernel is a polynomial there, and
what it is multiplied by are the moments of F with the Lagrange polynomials of these points. Moments are divided by a
unit, about the length of their group, and the kernel is multiplied by it: single precision holds h**alpha of the
shortest steps, but neither h nor h**(alpha - 1). `Tree` joins steps pairwise, so that a step costs O(log n) whatever
the mesh. Nothing in this asks for equal steps or for alpha below 1.

The error of a step is estimated from the last Legendre coefficients of f on it: those that follow are extrapolated, and
what the first of them adds to y within the step is `spread`.

Brugnano, Gurioli & Iavernaro, arXiv 2403.04916, for collocation at Gauss nodes on graded meshes; Soderlind, Numer.
Algorithms 31 (2002) 281, for the choice of steps; DLMF 18.17 for the moments.

Shapes: a orders alpha, s stages, rows: times from which the past is seen, P points of a group of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.polynomial import legendre

from hpfracc_nn import errors
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.solvers.schemes import Newton

FINE = 56  # nodes of the graded rule
FAR = 9.0  # step lengths: from this distance on a step's stages are nodes enough (16 against f's 7: 38**-9 is left out)
POINTS = 18  # points of a group of steps
LAST = 4  # Legendre coefficients that the error estimate is made of
SMALL = 16  # entries of a state up to which a Jacobian costs no more than an iteration or two
SLOW = 0.5  # a worse contraction factor of the stage equations makes a Jacobian
PART = 0.01  # of a step's allowed error: what the stage equations may contribute
FLOOR = 32.0  # times eps: changes of this size are rounding alone
GUESSES = 12.0  # most iterations that a contraction may still need; where it needs more, a Jacobian is made
SHORTEST = 16.0  # times eps and the time: the shortest step
BLIND = 16.0  # shortest steps: so near behind a jump a step may exceed the tolerance; farther on the jump is resolved
WORSE = 2.0  # growth of the changes at which the iteration diverges and begins again
APART = 1.0  # lengths of a group: seen from nearer, the group is split into its parts (5.8**-18 is left out)


@dataclass(frozen=True)
class Collocation:
    """Polynomials through Gauss nodes on each step: to a tolerance, or on a given mesh.

    With `rtol` and `atol` steps follow the error; else they are those of the mesh, and any mesh will do. The equation
    of a step is solved for all of its stages together, by fixed-point iteration where that converges fast and by
    Newton's method otherwise, so that the scheme serves stiff problems and others.

    Args:
        stages: The number of stages of a step, from 4 to 16. The order for smooth f is about stages + alpha.
        roots: Settings of Newton's method. A tolerance of None is a hundredth of the error that rtol and atol allow the
            step, and in a solve without them what it is for other schemes; `dense` counts the numbers of a state times
            the stages.

    Raises:
        ValueError: A number is out of range.
        TypeError: `stages` is no whole number, or `roots` is not Newton.

    Source: Brugnano, Gurioli & Iavernaro, arXiv 2403.04916.

    Examples:
        >>> y = fdeint(
        ...     lambda t, y: -y, torch.ones(1).double(), [0, 1], 0.5, rtol=1e-10, atol=1e-12
        ... )
        >>> y[-1] - mittag_leffler(-1.0, 0.5)
        tensor([0.], dtype=torch.float64)
    """

    stages: int = 8
    roots: Newton = field(default_factory=Newton)
    name: ClassVar[str] = "collocation"
    is_implicit: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if errors.count("Collocation", "stages", self.stages, LAST) > 16:
            raise ValueError(f"Collocation(stages={self.stages}): needs 4 <= stages <= 16; pass for example 8.")
        if not isinstance(self.roots, Newton):
            raise TypeError(
                f"Collocation(roots of type {type(self.roots).__name__}): needs Newton(...), whose options say when an "
                "equation is solved; pass Newton()."
            )

    def order(self, alpha: float) -> float:
        """Return the order of convergence, stages + alpha, for f that is smooth on each step."""
        return self.stages + alpha


_NOWHERE = 1e-200  # in place of a distance of 0
_GRADING = 20.0  # the nodes of the graded rule begin at 1e-15


@dataclass(frozen=True, eq=False)
class Rule:
    """Gauss's quadrature rule on [0, 1], and the interpolation through its nodes.

    Attributes:
        nodes: The nodes, increasing, [s].
        weights: The quadrature weights, [s].
        coefficients: The matrix from values at the nodes to coefficients of Legendre's polynomials on [0, 1], [s, s].
        slopes: Values at the nodes of the derivatives of the Lagrange polynomials, [s, s]: node, then polynomial.
        barycentric: The weights of the barycentric formula, [s].

    Source: Wang & Xiang, Math. Comp. 81 (2012) 861, for the last.
    """

    nodes: np.ndarray
    weights: np.ndarray
    coefficients: np.ndarray
    slopes: np.ndarray
    barycentric: np.ndarray

    def lagrange(self, x: Array, xp: Namespace = NUMPY) -> Array:
        """Return the Lagrange polynomials at x, [*x.shape, s], by the barycentric formula."""
        distance = x[..., None] - self.nodes
        parts = self.barycentric / xp.where(distance == 0, _NOWHERE, distance)  # at a node its own part is all
        return parts / parts.sum(-1, keepdims=True)


@lru_cache(maxsize=32)
def rule_of(count: int) -> Rule:
    """Return Gauss's rule with `count` nodes."""
    x = legendre.leggauss(count)[0]
    basis = legendre.legvander(x, count - 1)  # [node, degree]
    w = 1 / (basis**2 @ (np.arange(count) + 0.5))  # Christoffel's numbers, which `leggauss` has to 1e-12
    coefficients = (basis * (w / 2)[:, None]).T * (2 * np.arange(count) + 1)[:, None]
    slopes = np.stack([2 * legendre.legval(x, legendre.legder(row)) for row in np.eye(count)], 1) @ coefficients
    barycentric = (-1.0) ** np.arange(count) * np.sqrt((1 - x**2) * w)
    return Rule((x + 1) / 2, w / 2, coefficients, slopes, barycentric)


class Graded(NamedTuple):
    """A rule on [0, 1] for integrals of (x + v)**(alpha - 1) v p(v), x >= 0, p a polynomial.

    The rule is Gauss's in t, for v = t**2 exp(20 (sqrt(t) - 1)), so that its nodes are dense where the kernel changes,
    at any x. Up to degree 16 of p, and for alpha in (0, 2), its error is below 1e-14 of the integral of the kernel.

    Attributes:
        nodes: The nodes v, increasing, [m].
        weights: The quadrature weights, [m].
    """

    nodes: np.ndarray
    weights: np.ndarray


@lru_cache(maxsize=1)
def graded() -> Graded:
    """Return the graded rule, with `FINE` nodes."""
    gauss = rule_of(FINE)
    t, root = gauss.nodes, np.sqrt(gauss.nodes)
    v = t**2 * np.exp(_GRADING * (root - 1))
    return Graded(v, gauss.weights * v * (2 / t + _GRADING / (2 * root)))


def within(stages: int, alpha: Array, at: Array, xp: Namespace, derivative: int = 0) -> Array:
    """Return the weights of a step's own stages, seen from places within the step, [a, rows, s].

    They are the fractional integrals, or their derivatives in time, of the Lagrange polynomials from the step's
    beginning to each place, for a step of length 1; a step of length h has h**(alpha - derivative) times these.

    Args:
        stages: The number of stages s.
        alpha: Orders, [a].
        at: Places in the step, in (0, 1], [rows], in NumPy or in alpha's namespace.
        xp: The namespace of alpha.
        derivative: 0 for the integral, 1 for its derivative in time.
    """
    rule, times = rule_of(stages), _of_times(at, xp)
    values = rule.lagrange(at[:, None] * (1 - graded().nodes), times), rule.lagrange(at, times)
    inside, here = (each @ rule.slopes for each in values) if derivative else values
    found = _until(alpha, at, inside, here, xp)
    if derivative:  # the integral over the distance x - u has its upper end at the step's beginning, which moves
        found = found + _power(alpha, -1.0, at, xp)[..., None] * xp.constant(rule.lagrange(np.zeros(())), alpha)
    return found * _by_gamma(alpha, xp)


def _until(alpha: Array, x: Array, inside: Array, here: Array, xp: Namespace) -> Array:
    """Return the integrals of (x - u)**(alpha - 1) p(u) over u from 0 to x, [a, rows, k].

    Args:
        alpha: Orders, [a].
        x: Upper ends of the integrals, positive, [rows].
        inside: The values of k polynomials p at x (1 - v), v the nodes of the graded rule, [rows, m, k].
        here: The values of the polynomials at x, [rows, k].
        xp: The namespace of alpha.
    """
    v, weights = graded()
    rest, times = weights[:, None] * (inside - here[:, None]), _of_times(x, xp)
    columns = xp.constant(times.contiguous(rest.transpose(1, 0, 2)).reshape(v.size, -1), alpha)
    found = xp.matmul(_power(alpha, -1.0, v, xp), columns).reshape(-1, *here.shape)
    found = found + xp.constant(here, alpha) / alpha[:, None, None]
    return _power(alpha, 0.0, x, xp)[..., None] * found


def _by_gamma(alpha: Array, xp: Namespace) -> Array:
    return xp.exp(-xp.gammaln(alpha))[:, None, None]


def _of_times(x: Array, xp: Namespace) -> Namespace:
    """Return the namespace of times `x`: NumPy for a NumPy array, else `xp`, which is alpha's."""
    return NUMPY if isinstance(x, np.ndarray) else xp


def _power(alpha: Array, exponent: float, x: Array, xp: Namespace) -> Array:
    """Return x**(alpha + exponent), [a, *x.shape]."""
    each = alpha.reshape(-1, *[1] * x.ndim)
    return xp.exp((each + exponent) * xp.constant(_of_times(x, xp).log(x), alpha))


def after(stages: int, alpha: Array, gap: Array, h: Array, xp: Namespace, derivative: int = 0) -> Array:
    """Return the weights of the stages of earlier steps, seen from later times, for p pairs of a time and a step.

    Args:
        stages: The number of stages s.
        alpha: Orders, [a].
        gap: The time since the step's end, positive, [p]. In NumPy, or in alpha's namespace, in which the rule for near
            steps serves all pairs: it is exact for far ones too.
        h: The step's length, [p].
        xp: The namespace of alpha.
        derivative: 0 for the integral, 1 for its derivative in time.

    Returns:
        The fractional integrals over the step of its Lagrange polynomials, or their derivatives, [a, p, s].
    """
    rule = rule_of(stages)
    if not isinstance(gap, np.ndarray):
        return _close(rule, alpha, gap, h, xp, derivative) * _by_gamma(alpha, xp)
    is_far = gap > FAR * h
    order = np.argsort(is_far, kind="stable")
    parts = []
    for kind, weights in ((False, _close), (True, _far)):
        some = order[is_far[order] == kind]
        if some.size:
            parts.append(weights(rule, alpha, gap[some], h[some], xp, derivative))
    back = np.empty_like(order)
    back[order] = np.arange(order.size)
    return xp.take(xp.concat(parts, axis=1), back, axis=1) * _by_gamma(alpha, xp)


def after_far(stages: int, alpha: Array, gap: Array, h: Array, xp: Namespace, derivative: int = 0) -> Array:
    """Return the weights that `after` returns, for steps that are all more than `FAR` times their length away."""
    return _far(rule_of(stages), alpha, gap, h, xp, derivative) * _by_gamma(alpha, xp)


def _close(rule: Rule, alpha: Array, gap: Array, h: Array, xp: Namespace, derivative: int) -> Array:
    x, times, (v, weights) = gap / h, _of_times(gap, xp), graded()
    values, end = rule.lagrange(1 - v), rule.lagrange(np.ones(()))
    if derivative:  # integrate by parts, because the kernel's derivative is too steep for the rule
        values, end = values @ rule.slopes, end @ rule.slopes
    rest = xp.constant(weights[:, None] * (values - end), alpha)
    longer = xp.expm1(alpha[:, None] * xp.constant(times.log1p(1 / x), alpha))
    whole = _power(alpha, 0.0, x, xp) * longer / alpha[:, None]  # the integral of (x + v)**(alpha - 1)
    found = xp.matmul(_kernel(alpha, x[:, None] + v, xp, 0), rest) + whole[..., None] * xp.constant(end, alpha)
    if derivative:
        for place, sign in ((0.0, 1.0), (1.0, -1.0)):
            at = xp.constant(sign * rule.lagrange(np.asarray(place)), alpha)
            found = found + _kernel(alpha, x + (1 - place), xp)[..., None] * at
    return _power(alpha, -float(derivative), h, xp)[..., None] * found


def _far(rule: Rule, alpha: Array, gap: Array, h: Array, xp: Namespace, derivative: int) -> Array:
    kernel = _kernel(alpha, gap[:, None] + h[:, None] * (1 - rule.nodes), xp, derivative)
    return kernel * xp.constant(h[:, None] * rule.weights, alpha)


def _kernel(alpha: Array, distance: Array, xp: Namespace, derivative: int = 0) -> Array:
    """Return distance**(alpha - 1), or its derivative, [a, *distance.shape]; without Gamma(alpha)."""
    found = _power(alpha, -1.0 - derivative, distance, xp)
    return found * (alpha - 1).reshape(-1, *[1] * distance.ndim) if derivative else found


def from_points(alpha: Array, distance: np.ndarray, unit: np.ndarray, xp: Namespace) -> Array:
    """Return the weights of the moments of groups, [a, rows, P]: the kernel at each point's distance, times the unit.

    Args:
        alpha: Orders, [a].
        distance: The time from a point of a group to the time, of the row, from which the group is seen, [rows, P].
        unit: The `Group.unit` of each point's group, [P].
        xp: The namespace of alpha.
    """
    return _kernel(alpha, distance, xp) * xp.constant(unit, alpha) * _by_gamma(alpha, xp)


@dataclass(frozen=True, eq=False)
class Group:
    """Consecutive steps that, seen from far away, are `POINTS` points with a moment each; or a single step.

    Attributes:
        first: Index of the first step.
        last: Index of the step after the last.
        start: The time, since the start of the solve, at which the first step begins.
        length: The time that all steps of the group take.
        parts: The two groups that this group joins; None for a single step.
    """

    first: int
    last: int
    start: float
    length: float
    parts: tuple[Group, Group] | None = None

    @property
    def is_step(self) -> bool:
        """Whether the group is a single step, which is seen as its stages."""
        return self.parts is None

    @property
    def unit(self) -> float:
        """The power of two above the length; moments are divided by it without rounding."""
        return math.ldexp(1.0, math.frexp(self.length)[1])

    def upward(self, part: Group, stages: int) -> np.ndarray:
        """Return the matrix from a part's moments to what they add to this group's moments, [POINTS, P].

        Moments are divided by the `unit` of their group. For a part that is a single step, the matrix acts on the
        values of f at the step's stages, [POINTS, s].
        """
        rule = rule_of(POINTS)
        place, scale = (part.start - self.start) / self.length, part.length / self.length
        values = rule.lagrange(place + scale * rule.nodes).T  # [POINTS, node of the part]
        if not part.is_step:
            return part.unit / self.unit * values
        return part.length / self.unit * (values * rule.weights) @ rule_of(stages).lagrange(rule.nodes)


class Tree:
    """The steps taken so far, joined pairwise into groups of 2, 4, 8, ... steps, as a binary counter carries digits.

    Attributes:
        times: The mesh, as time since the start.
        groups: For each step, the groups that end with it, the step itself first and the longest last.
    """

    def __init__(self) -> None:
        self.times = [0.0]
        self.groups: list[list[Group]] = []
        self._roots: list[Group] = []

    def append(self, h: float) -> list[Group]:
        """Append a step of length h; return the groups that end with it, the step itself first."""
        n, start = len(self.groups), self.times[-1]
        self.times.append(start + h)
        joined = [Group(n, n + 1, start, h)]
        while self._roots and self._roots[-1].last - self._roots[-1].first == joined[-1].last - joined[-1].first:
            left, right = self._roots.pop(), joined[-1]
            joined.append(
                Group(left.first, right.last, left.start, right.start - left.start + right.length, (left, right))
            )
        self._roots.append(joined[-1])
        self.groups.append(joined)
        return joined

    def cover(self, n: int, nearest: float) -> tuple[list[Group], list[Group]]:
        """Return groups and single steps that together are all steps before step n, as coarse as accuracy allows.

        They are seen from times that lie `nearest` or more after the beginning of step n. In both lists the oldest come
        first.
        """
        groups: list[Group] = []
        steps: list[Group] = []
        now = self.times[n]
        waiting = self._before(n)
        while waiting:
            one = waiting.pop()
            if one.parts is None:
                steps.append(one)
            elif now - self.times[one.last] + nearest >= APART * one.length:
                groups.append(one)
            else:
                left, right = one.parts
                waiting += [right, left]
        return groups, steps

    def _before(self, n: int) -> list[Group]:
        """Return the longest groups that together are all steps before step n, the newest first."""
        found = []
        while n:
            longest = self.groups[n - 1][-1]
            found.append(longest)
            n = longest.first
        return found

    def gaps(self, n: int, after: np.ndarray, steps: list[Group]) -> tuple[np.ndarray, np.ndarray]:
        """Return the times that have passed since the ends of steps, and the lengths of the steps, both [rows, steps].

        Args:
            n: The step from whose times the past is seen.
            after: These times, counted from the beginning of step n, [rows].
            steps: Single steps before step n.
        """
        since = np.array([self.times[n] - self.times[each.last] for each in steps])
        h = np.array([each.length for each in steps])
        gap = since + after[:, None]
        return gap, np.broadcast_to(h, gap.shape)

    def distances(self, n: int, after: np.ndarray, groups: list[Group]) -> tuple[np.ndarray, np.ndarray]:
        """Return the times that have passed since the points of groups, [rows, points], and the units, [points].

        Args:
            n: The step from whose times the past is seen.
            after: These times, counted from the beginning of step n, [rows].
            groups: Groups before step n, whose points are in the results one after the other.
        """
        behind = 1 - rule_of(POINTS).nodes
        back = [self.times[n] - self.times[each.last] + each.length * behind for each in groups]
        return np.concatenate(back) + after[:, None], np.repeat([each.unit for each in groups], POINTS)


_STEEPEST = 0.9  # the largest ratio of a coefficient to the one before that counts as decay


def spread(stages: int, alpha: Array, xp: Namespace) -> Array:
    """Return the most that f's Legendre polynomial of degree `stages` adds to y within a step of length 1, [a].

    That polynomial, whose coefficient is 1 here, is the first that a step leaves out. The result is the largest
    absolute value of its fractional integral over the step.
    """
    x, last = np.linspace(0, 1, 65)[1:], np.eye(stages + 1)[-1]
    inside = legendre.legval(2 * x[:, None] * (1 - graded().nodes) - 1, last)[..., None]
    added = _until(alpha, x, inside, legendre.legval(2 * x - 1, last)[:, None], xp) * _by_gamma(alpha, xp)
    return xp.max(xp.abs(added[..., 0]), axis=-1)


def extension(rule: Rule, ratio: Any, sizes: Array, xp: Namespace) -> Array:
    """Return the matrix that extrapolates a step's Legendre coefficients to values at the next step's nodes, [s, s].

    Rows are nodes and columns are degrees. Columns are 0 from the degree on at which the extrapolated terms are
    smallest and begin to grow.

    Args:
        rule: Gauss's rule of both steps.
        ratio: The next step's length divided by this step's.
        sizes: The sizes of this step's coefficients, [s].
        xp: The namespace of the sizes.
    """
    x = 1 + 2 * ratio * xp.constant(rule.nodes, sizes)
    columns = [0 * x + 1, x]
    for k in range(1, rule.nodes.size - 1):
        columns.append(((2 * k + 1) * x * columns[k] - k * columns[k - 1]) / (k + 1))
    basis = xp.stack(columns, axis=-1)
    grown = xp.abs(basis[-1]) * sizes
    kept = np.arange(rule.nodes.size) < 1 + grown[1:].argmin()
    return xp.where(kept, basis, 0.0)


def estimated(sizes: Array, xp: Namespace) -> Array:
    """Return an estimate of the sum of all Legendre coefficients that are left out, by a geometric series, [samples].

    Args:
        sizes: The sizes of the last `LAST` coefficients, [LAST, samples].
        xp: The namespace of the sizes.
    """
    before, last = xp.max(sizes[:2], axis=0), xp.max(sizes[2:], axis=0)
    ratio = xp.exp(0.5 * (xp.log(last + TINY) - xp.log(before + TINY)))
    ratio = xp.where(ratio < _STEEPEST, ratio, 0 * ratio + _STEEPEST)
    largest = xp.where(sizes[3] > ratio * sizes[2], sizes[3], ratio * sizes[2])
    return largest * ratio / (1 - ratio)


TINY = 1e-36  # added to sizes, which are relative to the tolerance, to keep their logarithm finite
SAFETY = 0.9
LARGEST, SMALLEST = 32.0, 0.1  # largest and smallest factor from one step size to the next
LARGER = 4.0  # the largest factor after a step that is at most half of the time since the start
UNSOLVED = 0.4  # the factor after a step whose stage equations were not solved
_START = 1e-8  # the smallest factor of the first step, whose error goes like h**(2 alpha)
_WHOLE, _HALF = 0.999, 0.5  # of the time left: a longer step takes all of it, or half


@dataclass(frozen=True)
class Controller:
    """The step size control: formulas for the next step from the error of the last.

    All sizes and errors are relative to what rtol and atol allow. Numbers are Python's, or scalars of a framework.

    Attributes:
        stages: The number of stages of a step.
        alpha: The smallest order.
        xp: The namespace of all numbers.
        shortest: The smallest length of a step.
    """

    stages: int
    alpha: Any
    xp: Namespace = NUMPY
    shortest: float = 1e-290

    def begun(self, slope: Any, duration: Any) -> Any:
        """Return a step size h over which the solution changes by as much as its error may be: h**alpha slope = 1.

        Args:
            slope: The size of f at the start.
            duration: The longest step that is allowed.
        """
        log = self.xp.log
        longest = log(duration)
        return self.least(self.xp.exp(self._smaller(longest, -log(slope + TINY) / self.alpha)))

    def first(self, h: Any, change: Any, duration: Any) -> Any:
        """Return the size of the first step.

        Args:
            h: The step size that `begun` returned.
            change: The size of f's change over a step of size h, times h**alpha.
            duration: The longest step that is allowed.
        """
        xp = self.xp
        factor = xp.exp(self._smaller(-xp.log(change + TINY) / (2 * self.alpha), math.log(1e6)))
        return self.least(xp.where(change < math.inf, self._smaller(duration, h * factor), 1e-3 * h))

    def least(self, h: Any) -> Any:
        """Return the step size h, or `shortest` where h is smaller."""
        return self.xp.where(h > self.shortest, h, self.shortest)

    def fitted(self, h: Any, left: Any, time: Any, max_step: Any) -> Any:
        """Return the step size to take where h is wanted, at most `max_step`.

        `left` is the time that is left to the next stop, `time` the present time. The result is `left`, or half of it,
        where less than a step would remain after h, and otherwise h rounded so that `time` plus the step is exact.
        """
        where = self.xp.where
        h = self._smaller(h, max_step)
        h = where(h > _WHOLE * left, left, where(h > _HALF * left, left / 2, h))
        h = where(h > max_step, left / 2, h)
        return where(h == left, h, (time + h) - time)

    def grown(self, error: Any, h: Any, last: Any, length: Any, time: Any) -> Any:
        """Return the size of the step after an accepted one.

        Args:
            error: The error of the accepted step.
            h: The length of the accepted step.
            last: The error of the step before, or NaN where there is none or steps were rejected since.
            length: The length of the step before.
            time: The time from the start to the end of the accepted step.
        """
        where, power = self.xp.where, 1 / (self.stages + self.alpha)
        error = where(error > 1e-30, error, 1e-30)
        factor = SAFETY * (SAFETY / error) ** power
        # Extrapolate how the error changed with the length from the step before to this one.
        steady = factor * (h / length) * (where(last > 1e-30, last, 1e-30) / error) ** power
        steady = where(last == last, self._smaller(steady, h / length), 0.0)
        factor = where(steady > factor, steady, factor)
        factor = self._smaller(factor, where(h > 0.5 * time, LARGEST, LARGER))
        return h * where(factor > SMALLEST, factor, SMALLEST)

    def shrunk(self, error: Any, h: Any, is_first: Any) -> Any:
        """Return the size of a shorter step in place of a step h whose error is too large or not finite.

        `is_first` says whether the step is the first after the start or after a jump.
        """
        where = self.xp.where
        power = 1 / where(is_first, 2 * self.alpha, self.stages + self.alpha)
        is_finite = error < math.inf
        factor = SAFETY * (SAFETY / where(is_finite, error, 1.0)) ** power
        least = where(is_first, _START, SMALLEST)
        factor = self._smaller(where(factor > least, factor, least), 0.7)
        return h * where(is_finite, factor, UNSOLVED)

    def _smaller(self, x: Any, y: Any) -> Any:
        return self.xp.where(x < y, x, y)


@dataclass
class Statistics:
    """What a solve cost; of fixed steps only `steps` and `evaluations` are counted.

    Attributes:
        steps: Number of accepted steps.
        rejected: Number of rejected steps, which were taken again with a shorter length.
        evaluations: Number of calls of f.
        products: Number of products of f's Jacobian or its transpose with a vector; a dense Jacobian of a state of d
            numbers counts as d products, at each stage that it is made at.
        jacobians: How often dense Jacobians were made, at one stage or at all stages of a step.
        iterations: Number of iterations of the stage equations.

    Examples:
        >>> found = fdeint(
        ...     lambda t, y: -y, torch.ones(1).double(), [0, 1], 0.5, rtol=1e-4, full=True
        ... )
        >>> found.statistics.steps < 10
        True
    """

    steps: int = 0
    rejected: int = 0
    evaluations: int = 0
    products: int = 0
    jacobians: int = 0
    iterations: int = 0


def tolerances(owner: str, rtol: Any, atol: Any, eps: float) -> tuple[float, Any]:
    """Return rtol and atol, with SciPy's defaults, 1e-3 and 1e-6, for None; rtol = 0 becomes the least rtol, 100 eps.

    Raises:
        TypeError: rtol is no real number.
        ValueError: rtol is negative or in (0, 100 eps), or rtol is 0 and atol is not positive.
    """
    least = 100 * eps
    relative = errors.real(owner, "rtol", 1e-3 if rtol is None else rtol, 0.0, example=1e-6)
    if 0 < relative < least:
        raise ValueError(
            f"{owner}(rtol={relative:g}): needs at least 100 times the rounding of the state's dtype, {least:.2g}, or "
            "0, which is as much; pass a larger one, or states in float64."
        )
    absolute: Any = 1e-6 if atol is None else atol
    if not relative and not (bool((absolute > 0).all()) if hasattr(absolute, "all") else errors.as_float(absolute)):
        raise ValueError(f"{owner}(rtol=0, atol={atol!r}): needs atol > 0 where rtol is 0; pass for example atol=1e-8.")
    return max(relative, least), absolute


def check_absolute(owner: str, shape: tuple[int, ...], state: tuple[int, ...]) -> None:
    """Raise ValueError unless an `atol` of shape `shape` broadcasts to a state of shape `state`."""
    fits = len(shape) <= len(state) and all(k in (1, n) for k, n in zip(shape[::-1], state[::-1], strict=False))
    if not fits:
        raise ValueError(
            f"{owner}(atol of shape {tuple(shape)}): needs one number, or a shape that broadcasts to y0's "
            f"{tuple(state)}; pass one for all, or one for each entry along some of y0's axes."
        )


def points_of(owner: str, breakpoints: Any) -> tuple[float, ...]:
    """Return `breakpoints`, the times at which f may jump, as a tuple of numbers.

    Raises:
        TypeError: `breakpoints` are no real numbers.
        ValueError: They are not along one axis, not finite, or not increasing.
    """
    times = errors.as_numbers(breakpoints)
    if times is None:
        raise TypeError(
            f"{owner}(breakpoints of type {type(breakpoints).__name__}): needs real numbers, the times at which f "
            "jumps; pass a list, such as [0.5, 2.0]."
        )
    if times.ndim != 1 or not (np.isfinite(times).all() and (np.diff(times) > 0).all()):
        raise ValueError(
            f"{owner}(breakpoints={breakpoints!r}): needs finite times that increase, along one axis; sort them and "
            "leave out what comes twice."
        )
    return tuple(times.tolist())


def check_history(owner: str, history: Any) -> None:
    """Raise ValueError unless `history` is "auto" or "full": collocation keeps all of the past in its own way."""
    name = history if isinstance(history, str) else getattr(history, "name", history)
    if name not in ("auto", "full"):
        raise ValueError(
            f"{owner}(history={name!r}, scheme='collocation'): keeps all of the past in its own way; leave history out."
        )


def check_fixed(owner: str, scheme: str, events: Any, throw: bool, max_step: Any, breakpoints: Any) -> None:
    """Raise ValueError where an option that needs collocation is passed with a scheme of fixed steps."""
    asked = [
        name
        for name, is_asked in (
            ("events", bool(events)),
            ("throw", not throw),
            ("max_step", max_step is not None),
            ("breakpoints", breakpoints is not None),
        )
        if is_asked
    ]
    if asked:
        raise ValueError(
            f"{owner}({asked[0]}, scheme={scheme!r}): needs scheme='collocation', because the steps of {scheme!r} are "
            f"fixed; pass rtol without a scheme, or leave {asked[0]} out."
        )
