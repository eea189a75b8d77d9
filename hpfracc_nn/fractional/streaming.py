"""One sample at a time: the operator as a recurrence whose state does not grow with the number of steps.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first].

Here d is the m-th backward difference of the samples x. The samples of one step are a time slice, of any `shape`.

More lags are exact than in the kernels, and the exponentials are fitted to rounding (`exponentials.py`): over
10 000 steps the result is that of the whole series to 1e-12 of its largest sample.

S_q is the state of exponential q: s_q its decay rate, c_q its coefficient, Q how many there are. In shapes *shape are
the axes of a time slice, *c those of the orders, n counts the steps of a block. Lags below `first` are exact.

The recurrence stands here once, over a namespace. A framework adds its class of states and the rows of the boundary
columns `analytic` and `start`: in PyTorch the number of a step is known, in JAX it is traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from hpfracc_nn import errors
from hpfracc_nn.fractional.cache import cached_property
from hpfracc_nn.fractional.definitions import Definition, family
from hpfracc_nn.fractional.dispatch import shape_of
from hpfracc_nn.fractional.exponentials import Nodes, exponentials, exponentials_over
from hpfracc_nn.fractional.layout import layout_of
from hpfracc_nn.fractional.namespace import NUMPY, Array, Namespace
from hpfracc_nn.fractional.stencil import Stencil
from hpfracc_nn.fractional.weights import CACHE

HORIZON = 2**20
_PIECE = 1024  # steps whose powers exp(-s k) are one matrix
_VERSION = 1  # of pickled states; those of version 0 have no number
K = TypeVar("K", bound=type)


def versioned(kind: K) -> K:
    """Return the class of states `kind`, made to pickle its states with a version number and to refuse unknown ones."""

    def getstate(state: Any) -> dict[str, Any]:
        return {**state.__dict__, "version": _VERSION}

    def setstate(state: Any, given: dict[str, Any]) -> None:
        version = given.get("version", 0)
        if version not in range(_VERSION + 1):
            raise ValueError(
                f"{kind.__name__}: needs a state pickled in version {_VERSION} or before, and this one has version "
                f"{version!r}; load it with the version of hpfracc_nn that wrote it, or a newer one."
            )
        state.__dict__.update({name: value for name, value in given.items() if name != "version"})

    kind.__getstate__ = getstate  # type: ignore[method-assign, assignment]
    kind.__setstate__ = setstate  # type: ignore[attr-defined]
    return kind


class StreamSource(NamedTuple):
    """What identifies the layer that made a state: all that its operator depends on but the values it learns.

    Attributes:
        owner: The name of the layer's class.
        definition: The layer's operator; where alpha is learned, at any order.
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


@dataclass(frozen=True, eq=False)  # equal as `Definition` says
class Convolution(Definition):
    """The product with the weights of another definition, for samples that are differenced already.

    Attributes:
        of: The other definition, whose weights are taken; its alpha is not read.
    """

    of: Definition = field(kw_only=True)

    subtracts: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Skip validation: all fields are those of a valid definition."""

    @classmethod
    def with_weights_of(cls, definition: Definition) -> Convolution:
        """Return the product with the weights of a definition of fixed order."""
        return cls(definition.alpha, definition.scheme, definition.bounds, of=definition)

    @property
    def differences(self) -> int:
        return 0

    @property
    def is_wide(self) -> bool:
        return self.of.is_wide

    @property
    def is_tabulated(self) -> bool:  # type: ignore[override]
        return self.of.is_tabulated

    @property
    def dt_power(self) -> float:  # type: ignore[override]
        return self.of.dt_power

    @property
    def approximated(self) -> Definition | None:
        return None if self.of.approximated is None else self

    @property
    def fading(self) -> float:
        return self.of.fading

    @property
    def fades(self) -> bool:
        return self.of.fades

    @property
    def own_rates(self) -> tuple[float, ...]:
        return self.of.own_rates

    def in_steps(self, dt: float) -> Definition:
        return replace(self, of=self.of.in_steps(dt))

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        found = self.of.stencil_at(alpha, n, dt, xp)
        return Stencil(n, found.column, 0, False)


@dataclass(frozen=True, eq=False)
class Increments(Convolution):
    """The product with the weights of another definition on the differences inside a slice of a longer series.

    The samples before the slice count as equal to its first one, and there are no boundary columns.
    """

    subtracts: ClassVar[bool] = True

    @property
    def differences(self) -> int:
        return self.of.differences

    @property
    def taylor(self) -> int:
        return 1

    def stencil_at(self, alpha: Array, n: int, dt: float, xp: Namespace, differences: int | None = None) -> Stencil:
        found = self.of.stencil_at(alpha, n, dt, xp)
        return Stencil(n, found.column, self.differences, True)


Source = StreamSource  # its name in states that an older version pickled


@dataclass(frozen=True)
class Rules:
    """The settings of a stream: all that stays the same from step to step, but for arrays.

    Attributes:
        definition: The operator; where alpha is an array, the operator at its upper bound (`definitions.family`).
        dt: Spacing of the samples.
        horizon: The largest number of steps.
        shape: Shape of one time slice.
        first: The first lag that the exponentials stand for; the weights at lags below are exact.
        source: The layer that made the state; None where no layer did.
    """

    definition: Definition
    dt: float
    horizon: int
    shape: tuple[int, ...]
    first: int
    source: StreamSource | None

    @cached_property
    def differences(self) -> int:
        """How often the data are differenced, m; -1 is a cumulative sum."""
        return self.definition.differences

    def rates(self, alpha: Array | None) -> np.ndarray:
        """Return the decay rates s of the exponentials, [Q]; `alpha` are orders in an array, None for fixed ones."""
        return self.nodes(alpha).rates

    def nodes(self, alpha: Array | None) -> Nodes:
        """Return the Nodes of the exponentials; `alpha` are orders in an array, None for fixed ones."""
        found = exponentials if alpha is None else exponentials_over
        nodes = found(self.definition.in_steps(self.dt), self.horizon, "stream")
        assert nodes is not None, "a state was made"
        return nodes

    def stencil(self, alpha: Array | None, xp: Namespace) -> Stencil:
        """Return the operator's stencil on `horizon` samples.

        For orders `alpha` in an array of `xp` it is in arrays of `xp`; for None, fixed orders, in NumPy's.
        """
        if alpha is None:
            return self.definition.stencil(self.horizon, self.dt, NUMPY)
        return self.definition.stencil_at(alpha, self.horizon, self.dt, xp)

    def check_renewal(self, weights: Rules, *, is_here: bool = True) -> None:
        """Raise ValueError unless a state with these rules may continue with the weights of another state.

        Args:
            weights: The rules of the other state.
            is_here: Whether the other state lies on the same device.
        """
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
        memory: The last `first` samples of d, then the states S_q of the exponentials, [first + Q, *shape].
        before: What differencing needs, [2, *shape]: x and its first difference one step ago, or for m = -1 the sum so
            far and x.
        held: x(0) and d[1], which the boundary columns multiply, [2, *shape].
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
    *,
    knows_start: bool = False,
) -> tuple[Rules, Nodes, Array | None]:
    """Return a new stream's Rules, the exponentials that carry its memory, and its alpha if in an array, else None.

    Raise unless the arguments are valid and the operator is a recurrence over `horizon` steps.

    Args:
        owner: The public function, for messages.
        definition: The operator.
        shape: Shape of one time slice; alpha must broadcast to it.
        dt: Spacing of the samples.
        horizon: The largest number of steps.
        source: The layer that makes the state; None where no layer does.
        checked_alpha: Called as checked_alpha(owner, definition) for an alpha in an array: returns it, or raises where
            the framework does not accept it.
        knows_start: Whether the first four samples are known before any result is wanted.
    """
    dt = errors.positive_step(owner, dt)
    horizon = errors.count(owner, "horizon", horizon)
    shape = slice_shape(owner, shape)
    alpha = None if definition.is_fixed else checked_alpha(owner, definition)
    nodes = _nodes(owner, definition, shape, dt, horizon, knows_start)
    kept = definition if alpha is None else family(definition)
    return Rules(kept, dt, horizon, shape, nodes.first, source), nodes, alpha


def sums(column: Callable[[np.ndarray], Array], nodes: Nodes, xp: Namespace) -> Array:
    """Return the factors of a recurrence for a column of weights, [*c, first + Q].

    They are the column's values at the exact lags, then the coefficients of the exponentials that stand for the rest;
    `column` returns the values at given lags.
    """
    near = np.arange(nodes.first)
    values = column(np.concatenate([near, nodes.lags]))
    far = xp.take(values, np.arange(nodes.first, nodes.first + nodes.lags.size), axis=-1)
    return xp.concat([xp.take(values, near, axis=-1), nodes.fit(far, xp)], axis=-1)


def rows_first(values: Array, ndim: int, xp: Namespace) -> Array:
    """Return values [*c, k] as [k, 1, ..., 1, *c], with `ndim` axes after k, so that they broadcast to [k, *shape]."""
    moved = xp.moveaxis(values, -1, 0)
    return moved.reshape(moved.shape[0], *(1,) * (ndim + 1 - moved.ndim), *moved.shape[1:])


def advanced(
    x: Array, t: Any, past: Past, taps: Array, decay: Array, rules: Rules, xp: Namespace
) -> tuple[Array, Past]:
    """Return the result of one step, without what the boundary columns add to it, and the Past after the step.

    Args:
        x: The time slice of the step, in the dtype of the past.
        t: The number of the step: an int, or an array that may be traced.
        past: The Past before the step.
        taps: The exact weights, then the coefficients of the exponentials, [first + Q, *c].
        decay: exp(-s), [Q, 1, ...].
        rules: The stream's rules.
        xp: The namespace of x.
    """
    (memory, before, held), first, is_first = past, rules.first, t == 0
    d, before = _difference(x, is_first, before, held, rules, xp)
    if not isinstance(t, int) or t < 2:  # later neither x(0) nor d[1] changes
        held = xp.stack([_chosen(is_first, x, held[0], xp), _chosen(t == 1, d, held[1], xp)], axis=0)
    slow = xp.addcmul(memory[first - 1 : first], memory[first:], decay)
    memory = xp.concat([d[None], memory[: first - 1], slow], axis=0)
    return weighted(taps, memory, xp), Past(memory, before, held)


class Block(NamedTuple):
    """The differenced samples of a block of steps, and the past after the block except for its memory.

    Attributes:
        d: Differenced samples of the last `first` steps before the block, then of the block, [first + n, *shape].
        before: As in `Past`, after the block.
        held: As in `Past`, after the block.
    """

    d: Array
    before: Array
    held: Array


def differenced(x: Array, t: Any, past: Past, rules: Rules, xp: Namespace) -> Block:
    """Return the Block of some samples: their differences, and what the next block's differences need.

    Args:
        x: Samples of n steps, [n, *shape], n > 0, in the dtype of the past.
        t: The number of the first step: an int, or an array that may be traced.
        past: The Past before the block.
        rules: The stream's rules.
        xp: The namespace of x.
    """
    (memory, before, held), m, subtracts, is_first = past, rules.differences, rules.definition.subtracts, t == 0
    first, last = _chosen(is_first, x[:1], held[:1], xp), x[-1]
    if m == 0:
        d = x - first if subtracts else x
    elif m < 0:
        d = before[:1] + xp.cumulative_sum(x, axis=0, dtype=xp.float64)
        before = xp.stack([d[-1], last], axis=0)
    else:
        e = x - xp.concat([before[:1], x[:-1]], axis=0)
        if subtracts and is_first is not False:
            e = xp.concat([_chosen(is_first, xp.zeros(first.shape, x), e[:1], xp), e[1:]], axis=0)
        d = e if m == 1 else e - xp.concat([before[1:], e[:-1]], axis=0)
        before = xp.stack([last, e[-1]], axis=0)
    second = _chosen(t == 1, d[:1], held[1:], xp)
    if x.shape[0] > 1:
        second = _chosen(is_first, d[1:2], second, xp)
    return Block(
        xp.concat([xp.flip(memory[: rules.first], axis=0), d], axis=0), before, xp.concat([first, second], axis=0)
    )


def remembered(memory: Array, d: Array, rates: np.ndarray, xp: Namespace) -> Array:
    """Return the memory of `Past` after a block of n steps, [first + Q, *shape].

    It holds the last samples of d and the states of the exponentials.

    Args:
        memory: The memory before the block, [first + Q, *shape].
        d: The differenced samples of `Block`, [first + n, *shape].
        rates: Decay rates s of the exponentials, [Q].
        xp: The namespace of d.
    """
    first = memory.shape[0] - rates.size
    n, size = d.shape[0] - first, math.prod(d.shape[1:])
    length = min(n, _PIECE)
    pieces = -(-n // length)
    old = d[:n].reshape(n, size)
    if pieces * length > n:
        old = xp.concat([xp.zeros((pieces * length - n, size), d), old], axis=0)
    within = xp.constant(np.flip(_powers(rates, length)[:, :length], 1).copy(), d)  # [Q, length]
    found = _product(within, old.reshape(pieces, length, size), xp)  # [Q, pieces, size]
    if pieces > 1:
        between = np.exp(-np.outer(rates, length * np.arange(pieces - 1, -1, -1)))[:, :, None]
        found = xp.sum(xp.constant(between, d) * found, axis=1)
    faded = xp.constant(np.exp(-n * rates)[:, None], d) * memory[first:].reshape(rates.size, size)
    slow = (faded + found.reshape(rates.size, size)).reshape(rates.size, *d.shape[1:])
    return xp.concat([xp.flip(d[n:], axis=0), slow], axis=0)


def recalled(values: Array, n: int, rates: np.ndarray, xp: Namespace) -> Array:
    """Return what the exponentials' states before a block contribute to each of its n steps, [n, *shape].

    `values` are these states times the coefficients, [Q, *shape]; `rates` are the decay rates s, [Q].
    """
    size, length = math.prod(values.shape[1:]), min(n, _PIECE)
    starts = length * np.arange(-(-n // length))
    within = xp.constant(_powers(rates, length)[:, 1:].T, values)  # [length, Q]
    between = xp.constant(np.exp(-np.outer(starts, rates))[:, :, None], values)
    found = _product(within, between * values.reshape(1, rates.size, size), xp)  # [length, pieces, size]
    return xp.permute_dims(found, (1, 0, 2)).reshape(starts.size * length, size)[:n].reshape(n, *values.shape[1:])


def _product(matrix: Array, pieces: Array, xp: Namespace) -> Array:
    """Return a matrix [m, k] times each of the pieces [p, k, size], as one product: [m, p, size]."""
    p, k, size = pieces.shape
    return xp.matmul(matrix, xp.permute_dims(pieces, (1, 0, 2)).reshape(k, p * size)).reshape(matrix.shape[0], p, size)


def _powers(rates: np.ndarray, length: int) -> np.ndarray:
    """Return exp(-s k) for rates s [Q] and k up to `length`, [Q, length + 1]."""
    key = "exponentials of a block", rates.tobytes(), length
    return CACHE.get(key, lambda: np.exp(-np.outer(rates, np.arange(length + 1))))


def weighted(weights: Array, values: Array, xp: Namespace) -> Array:
    """Return the sum of weights [k, *c] times values [k, *shape] over k."""
    k = weights.shape[0]
    if math.prod(weights.shape) == k:
        return xp.tensordot(weights.reshape(k), values)
    return xp.sum(weights * values, axis=0)


def _difference(
    x: Array, is_first: Any, before: Array, held: Array, rules: Rules, xp: Namespace
) -> tuple[Array, Array]:
    """Return d, the m-th backward difference at this step, and what the next step takes as `before`.

    Args:
        x: The time slice of this step, [*shape].
        is_first: Whether the step is the first of the stream: a bool, or an array that may be traced.
        before: x and its first difference one step ago, or, for m < 0, the sum so far and x; [2, *shape].
        held: x(0) and d[1], [2, *shape].
        rules: The stream's rules, which have m and say whether x(0) is subtracted.
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
    """Return the shape of one time slice as a tuple; raise unless it is a sequence of whole numbers, none negative."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"{owner}(shape={shape!r}): needs the shape of one time slice; pass x.select(dim, 0).shape.")
    return tuple(errors.count(owner, "shape", size, least=0) for size in shape)


def _nodes(
    owner: str, definition: Definition, shape: tuple[int, ...], dt: float, horizon: int, knows_start: bool
) -> Nodes:
    """Return the exponentials that stand for the definition's memory over `horizon` steps, or raise ValueError.

    `shape` is that of a time slice, to which the definition's alpha must broadcast; `knows_start` is as in `begun`.
    """
    kind, (low, high) = type(definition).__name__, definition.interval
    if definition.side != "left":
        raise ValueError(
            f"{owner}({kind}, side={definition.side!r}): needs side='left' for step and run, because the "
            "others begin at the last sample; use the whole series."
        )
    if definition.subtracts and definition.taylor == 2 and not knows_start:
        raise ValueError(
            f"{owner}({kind}, alpha within ({low:g}, {high:g})): needs alpha <= 1 for step and run, because above "
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
    """Raise ValueError unless samples have the shape of a time slice, and the state was made by the layer `source`."""
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


def check_block(owner: str, shape: Sequence[int], axis: int, rules: Rules) -> None:
    """Raise ValueError unless samples have, without their time axis `axis`, the shape of a state's time slice."""
    if (*shape[:axis], *shape[axis + 1 :]) != rules.shape:
        raise ValueError(
            f"{owner}(x of shape {tuple(shape)}): needs the state's shape {rules.shape} besides its time axis, "
            f"{axis}; pass the state that came with the block before, or None to begin."
        )


def check_state(owner: str, state: Any, kind: type) -> None:
    """Raise TypeError unless a state is of the framework's class of states, `kind`."""
    if not isinstance(state, kind):
        raise TypeError(
            f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned, or "
            "step or run."
        )


def check_horizon(owner: str, step: int, horizon: int) -> None:
    """Raise ValueError where a state has seen `step` samples and was made for no more than these."""
    if step >= horizon:
        raise ValueError(
            f"{owner}(step {step + 1}): needs at most horizon={horizon} steps, for which the state was "
            "made; make it by initial_state with a larger horizon."
        )
