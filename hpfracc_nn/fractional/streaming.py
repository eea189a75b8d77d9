"""One sample at a time: the operator as a recurrence whose state does not grow with the number of steps.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first].

Here d is the m-th backward difference of the samples x. The samples of one step are a time slice, of any `shape`.

More lags are exact than in the kernels, and the exponentials are fitted to rounding (`exponentials.py`): over
10 000 steps the result is that of the whole series to 1e-12 of its largest sample.

The recurrence stands here once, over a namespace. A framework adds its state, a pytree, and the rows of the boundary
columns `analytic` and `start`: PyTorch's step knows its number, JAX's is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions import Definition, family
from hpfracc_nn.fractional.dispatch import shape_of
from hpfracc_nn.fractional.exponentials import Nodes, exponentials
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import Stencil

HORIZON = 2**20


class StreamSource(NamedTuple):
    """The layer that a state was made by: what it does besides the values that it learns.

    Attributes:
        owner: The class of the layer.
        definition: Its operator; where alpha is learned, at any order.
        learns: Whether alpha is learned.
        dt: Spacing of the samples.
    """

    owner: str
    definition: Definition
    learns: bool
    dt: float

    def __str__(self) -> str:
        kind, low_high = self.definition, self.definition.bounds
        alpha = "alpha learned" if self.learns else f"alpha={kind.alpha}"
        within = "" if low_high is None else f", bounds={low_high}"
        return f"{self.owner} of {type(kind).__name__}({alpha}, scheme={kind.scheme!r}{within}), dt={self.dt}"


Source = StreamSource  # its name in states that an older version pickled


@dataclass(frozen=True)
class Rules:
    """What stays as it is from step to step and is no array.

    Attributes:
        definition: The operator; of an alpha in an array the family at its upper bound.
        dt: Spacing of the samples.
        horizon: How many steps are served.
        shape: Of one time slice.
        first: Lags below it are exact.
        source: The layer that a state was made by.
    """

    definition: Definition
    dt: float
    horizon: int
    shape: tuple[int, ...]
    first: int
    source: StreamSource | None

    @cached_property
    def size(self) -> int:
        """Samples of one time slice."""
        return math.prod(self.shape)

    @cached_property
    def differences(self) -> int:
        """How often the data are differenced."""
        return self.definition.differences

    def stencil(self, alpha: Array | None, xp: Namespace) -> Stencil:
        """Return the operator on `horizon` samples: of orders in an array of `xp`, or of its own in NumPy's."""
        if alpha is None:
            return self.definition.stencil(self.horizon, self.dt, NUMPY)
        return self.definition.stencil_at(alpha, self.horizon, self.dt, xp)

    def check_renewal(self, weights: Rules, *, is_here: bool = True) -> None:
        """Raise unless the past of a state may go on with the weights of another, which `is_here` on its device."""
        one, other = (
            (
                type(each.definition),
                each.definition.scheme,
                each.definition.differences,
                each.shape,
                each.horizon,
                each.dt,
            )
            for each in (self, weights)
        )
        if one != other or not is_here:
            raise ValueError(
                f"StreamState.renew(weights: state of shape {weights.shape}, horizon {weights.horizon}): needs a state "
                f"made as this one was, of shape {self.shape} and horizon {self.horizon}; "
                "make it with the same layer and arguments."
            )


class Past(NamedTuple):
    """What a recurrence carries from step to step.

    Attributes:
        memory: The last samples of d, then the exponentials, [first + Q, *shape].
        before: What differencing needs: x and its difference one step ago, or the sum so far, [2, *shape].
        held: x(0) and d[1], [2, *shape].
    """

    memory: Array
    before: Array
    held: Array


def begun(
    owner: str,
    definition: Definition,
    shape: Any,
    dt: float,
    horizon: int,
    source: StreamSource | None,
    checked_alpha: Callable[[str, Definition], Array],
) -> tuple[Rules, Nodes, Array | None]:
    """Return what stays from step to step, the exponentials that carry the memory, and an alpha in an array, or raise.

    Args:
        owner: Who asks, for messages.
        definition: Which operator.
        shape: Of one time slice; alpha must broadcast to it.
        dt: Spacing of the samples.
        horizon: The longest series.
        source: Who makes the state.
        checked_alpha: Returns a definition's alpha, which is an array, or raises where the framework does not take it.
    """
    dt = errors.positive_step(owner, dt)
    horizon = errors.count(owner, "horizon", horizon)
    shape = slice_shape(owner, shape)
    alpha = None if definition.is_fixed else checked_alpha(owner, definition)
    nodes = _nodes(owner, definition, shape, dt, horizon)
    kept = definition if alpha is None else family(definition)
    return Rules(kept, dt, horizon, shape, nodes.first, source), nodes, alpha


def sums(column: Callable[[np.ndarray], Array], nodes: Nodes, xp: Namespace) -> Array:
    """Return a column's values at the exact lags, then its coefficients of the exponentials, [*c, first + Q]."""
    near = np.arange(nodes.first)
    values = column(np.concatenate([near, nodes.lags]))
    far = xp.take(values, np.arange(nodes.first, nodes.first + nodes.lags.size), axis=-1)
    return xp.concat([xp.take(values, near, axis=-1), nodes.fit(far, xp)], axis=-1)


def rows_first(values: Array, ndim: int, xp: Namespace) -> Array:
    """Return [*c, k] as [k, *c], with ones before c so that it broadcasts to [k, *shape], `ndim` axes after k."""
    moved = xp.moveaxis(values, -1, 0)
    return moved.reshape(moved.shape[0], *(1,) * (ndim + 1 - moved.ndim), *moved.shape[1:])


def advanced(
    x: Array, t: Any, past: Past, taps: Array, decay: Array, rules: Rules, xp: Namespace
) -> tuple[Array, Past]:
    """Return the next sample without what the boundary columns add, and the past after it.

    Args:
        x: One time slice, in the dtype of the past.
        t: Its number: an int, or an array that may be traced.
        past: Before it.
        taps: The exact weights, then the coefficients of the exponentials, [first + Q, *c].
        decay: exp(-s), [Q, 1, ...].
        rules: Of the stream.
        xp: The namespace of x.
    """
    (memory, before, held), first, is_first = past, rules.first, t == 0
    d, before = _difference(x, is_first, before, held, rules, xp)
    if not isinstance(t, int) or t < 2:  # later neither x(0) nor d[1] changes
        held = xp.stack([_chosen(is_first, x, held[0], xp), _chosen(t == 1, d, held[1], xp)], axis=0)
    slow = xp.addcmul(memory[first - 1 : first], memory[first:], decay)
    memory = xp.concat([d[None], memory[: first - 1], slow], axis=0)
    return weighted(taps, memory, rules, xp), Past(memory, before, held)


def weighted(weights: Array, values: Array, rules: Rules, xp: Namespace) -> Array:
    """Return the sum of weights [k, *c] times values [k, *shape] over k."""
    k = weights.shape[0]
    if math.prod(weights.shape) == k:
        return xp.matmul(weights.reshape(1, k), values.reshape(k, rules.size)).reshape(rules.shape)
    return xp.sum(weights * values, axis=0)


def _difference(
    x: Array, is_first: Any, before: Array, held: Array, rules: Rules, xp: Namespace
) -> tuple[Array, Array]:
    """Return d, the m-th backward difference at this step, and what the next step takes as `before`.

    Args:
        x: The time slice of this step, [*shape].
        is_first: Whether it is the first of the stream: a bool, or an array that may be traced.
        before: x and its first difference one step ago, or, for m < 0, the sum so far and x; [2, *shape].
        held: x(0) and d[1], [2, *shape].
        rules: Of the stream: m, and whether x(0) is subtracted.
        xp: The namespace of x.
    """
    m, subtracts = rules.differences, rules.definition.subtracts
    if m == 0:
        return (x - _chosen(is_first, x, held[0], xp) if subtracts else x), before
    if m < 0:
        total = before[0] + x
        return total, xp.stack([total, x], axis=0)
    e = x - before[0]
    if subtracts and is_first is not False:
        e = _chosen(is_first, xp.zeros(x.shape, x), e, xp)
    return (e if m == 1 else e - before[1]), xp.stack([x, e], axis=0)


def _chosen(condition: Any, x: Array, y: Array, xp: Namespace) -> Array:
    """Return x where a condition holds, else y; the condition is a bool, or an array that may be traced."""
    if isinstance(condition, bool):
        return x if condition else y
    return xp.where(condition, x, y)


def slice_shape(owner: str, shape: Any) -> tuple[int, ...]:
    """Return the shape of one time slice as a tuple, or raise."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"{owner}(shape={shape!r}): needs the shape of one time slice; pass x.select(dim, 0).shape.")
    return tuple(errors.count(owner, "shape", size, least=0) for size in shape)


def _nodes(owner: str, definition: Definition, shape: tuple[int, ...], dt: float, horizon: int) -> Nodes:
    """Return the exponentials that stand for the definition's memory over `horizon` steps, or raise ValueError.

    `shape` is that of a time slice, to which the definition's alpha must broadcast.
    """
    kind, (low, high) = type(definition).__name__, definition.interval
    if definition.side != "left":
        raise ValueError(
            f"{owner}({kind}, side={definition.side!r}): needs side='left' one sample at a time, because the "
            "others begin at the last sample; use the whole series."
        )
    if definition.subtracts and definition.taylor == 2:
        raise ValueError(
            f"{owner}({kind}, alpha within ({low:g}, {high:g})): needs alpha <= 1 one sample at a time, because above "
            "it looks ahead 3 samples at the start; use GrunwaldLetnikov, or the whole series."
        )
    layout_of(owner, (*shape, 1), len(shape), shape_of(definition.alpha))  # raises where alpha does not fit
    nodes = exponentials(definition.in_steps(dt), horizon, "stream")
    if nodes is None:
        raise ValueError(
            f"{owner}({kind}, alpha within ({low:g}, {high:g})): needs weights that are a sum of decaying "
            "exponentials, the same for every alpha; keep the orders of one stream, or their bounds, between "
            "neighbouring whole numbers, or, where memory has a time scale, pass a fixed alpha or a shorter horizon."
        )
    return nodes


def check_step(owner: str, shape: Sequence[int], rules: Rules, source: StreamSource | None) -> None:
    """Raise unless samples have the shape of a time slice, and the state is of the layer that takes the step."""
    if shape != rules.shape:
        raise ValueError(
            f"{owner}(x of shape {tuple(shape)}): needs one time slice of the state's shape {rules.shape}; "
            "pass the samples of one step, without a time axis."
        )
    if rules.source != source:
        raise ValueError(
            f"{owner}(state of {rules.source}): needs a state of this one, {source}; "
            "pass what its own initial_state returned."
        )


def check_state(owner: str, state: Any, kind: type) -> None:
    """Raise unless a state is one of the framework's own."""
    if not isinstance(state, kind):
        raise TypeError(
            f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
        )


def check_horizon(owner: str, step: int, horizon: int) -> None:
    """Raise where a state that has seen `step` samples serves no more."""
    if step >= horizon:
        raise ValueError(
            f"{owner}(step {step + 1}): needs at most horizon={horizon} steps, for which the state was "
            "made; make it with a larger horizon."
        )
