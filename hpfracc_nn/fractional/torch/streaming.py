"""Streams of PyTorch tensors: the state of `fractional/streaming.py`'s recurrence.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first]

with d the differenced samples and S_q the states of Q exponentials. A time slice of the samples has the shape [*shape],
and the orders have axes [*c] that broadcast to it. The boundary columns are `start` and `analytic`.

A step knows its number, so that the rows of the boundary columns come from their closed formulas, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition, DistributedOrder
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import consecutive
from hpfracc_nn.fractional.streaming import (
    HORIZON,
    Convolution,
    Past,
    Rules,
    StreamSource,
    advanced,
    begun,
    check_block,
    check_horizon,
    check_state,
    check_step,
    differenced,
    recalled,
    remembered,
    rows_first,
    sums,
    versioned,
    weighted,
)
from hpfracc_nn.fractional.torch.custom_op import as_json, from_json
from hpfracc_nn.fractional.torch.eager import check_alpha, check_dense, computed, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.slices import Slices, Start
from hpfracc_nn.fractional.torch.tracing import is_plain, is_traced, is_watched, uncompiled
from hpfracc_nn.selection import Site

_BLOCK = 64  # rows of the boundary columns that are computed together
_EXACT_ROWS, _TABLED = 128, 512  # rows of a CountedState's starting column: the first ones, then in geometric steps
_LONG = 1024  # samples from which a block is computed as a slice is (`slices.py`)


def register_tree(
    kind: type,
    names: Sequence[str],
    facts: Callable[[Any], Any],
    unflatten: Callable[[Any, Any], Any],
    **options: Any,
) -> None:
    """Register a class of states as a pytree of some of its attributes, with their names in paths.

    `torch.load` then reads such states with its default, `weights_only=True`.

    Args:
        kind: The class.
        names: The attributes.
        facts: Returns the rest of a state, which no transform changes.
        unflatten: Returns a state from the attributes and the facts.
        options: Of torch's `register_pytree_node`.
    """

    def flatten(state: Any) -> tuple[list[Any], Any]:
        return [getattr(state, name) for name in names], facts(state)

    def with_keys(state: Any) -> tuple[list[Any], Any]:
        parts, context = flatten(state)
        return list(zip([_pytree.GetAttrKey(name) for name in names], parts, strict=True)), context

    name = f"{kind.__module__}.{kind.__qualname__}"
    _pytree.register_pytree_node(
        kind, flatten, unflatten, flatten_with_keys_fn=with_keys, **({"serialized_type_name": name} | options)
    )
    torch.serialization.add_safe_globals([kind])


_Rules = Rules  # its name in states that an older version pickled


@versioned
@dataclass(frozen=True, eq=False)
class StreamState:
    """What a fractional operator remembers between two steps; see `initial_state`.

    A state is never written to: `step` returns a new one, so that a state may be kept, used twice, copied, pickled and
    moved. It holds the weights of its own alpha, computed when it was made, and takes as much memory after a
    million steps as at the first. It is a pytree of tensors. All of them are float64 whatever the samples are.

    Attributes:
        step: How many samples it has seen.
    """

    step: int
    _rules: Rules
    _alpha: Tensor | None  # the orders, if they are in a tensor
    _taps: Tensor  # exact weights, then coefficients: [first + Q, *c]
    _decay: Tensor  # exp(-s): [Q, 1, ...]
    _boundary: Tensor | None  # a block of rows of the columns on x(0) and d[1]: [block, 2, *c]
    _memory: Tensor  # the last samples of d, then the states of the exponentials: [first + Q, *shape]
    _before: Tensor  # what differencing needs: x and its difference one step ago, or the sum so far: [2, *shape]
    _held: Tensor  # x(0) and d[1]: [2, *shape]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice."""
        return self._rules.shape

    @property
    def horizon(self) -> int:
        """How many steps the state serves."""
        return self._rules.horizon

    @property
    def device(self) -> torch.device:
        """The device of the state's tensors."""
        return self._memory.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the state, the weights included; the same at every step."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values() if t is not None)

    def to(self, device: torch.device | str | int) -> StreamState:
        """Return the state on another device; its dtype stays float64, which takes samples of any.

        Raises:
            TypeError: `device` is something else, such as a dtype.
        """
        if not isinstance(device, torch.device | str | int):
            given = device if isinstance(device, torch.dtype) else type(device).__name__
            raise TypeError(
                f"StreamState.to({given}): needs a device, and stays float64 whatever the samples are; "
                "pass a device such as x.device, and samples of any floating dtype to step."
            )
        return self._mapped(lambda t: t.to(device))

    def detach(self) -> StreamState:
        """Return the state detached from autograd's graph, so that no gradient reaches alpha either; see `renew`."""
        return self._mapped(Tensor.detach)

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamState:
        """Return a copy of the state in memory of its own, with the same history of gradients, alpha's included."""
        return self._mapped(Tensor.clone)

    def renew(self, weights: StreamState) -> StreamState:
        """Return this state's past, detached, with the weights of another state of the same shape and horizon.

        Renewing begins a stretch of truncated backpropagation: after an optimizer's step a new `initial_state` has the
        new alpha, and the past, which does not depend on alpha, goes on.
        """
        self._rules.check_renewal(weights._rules, is_here=weights.device == self.device)
        past = self.detach()
        fresh = replace(past, _rules=weights._rules, _alpha=weights._alpha, _taps=weights._taps)
        return replace(fresh, _boundary=fresh._rows(self.step - self.step % _BLOCK))

    def counted(self) -> CountedState:
        """Return this state for programs of `torch.export`, as a CountedState, whose number of steps is a tensor.

        A program of a module that calls `step` with it serves every number of steps, up to the horizon.
        """
        return counted(self)

    def _tensors(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _TENSORS}

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> StreamState:
        changed: Any = {name: None if t is None else change(t) for name, t in self._tensors().items()}
        return replace(self, **changed)

    def _rows(self, first_row: int) -> Tensor | None:
        """Return the next `_BLOCK` rows of the boundary columns from `first_row` on, [_BLOCK, 2, *c].

        The columns are those of x(0) and of d[1], zeros if only one is there; None if neither is.
        """
        return _stacked(self._columns(first_row, first_row + _BLOCK))

    def _columns(self, begin: int, end: int) -> list[Tensor | None]:
        """Return the rows from `begin` to before `end` of the columns of x(0) and of d[1], each [end - begin, *c]."""
        stencil, xp = self._rules.stencil(self._alpha, TORCH), NUMPY if self._alpha is None else TORCH
        is_read = self._alpha is None or not is_traced(self._alpha, ())
        return [
            None
            if column is None
            else self._time_first(consecutive(column, begin, end, xp) if is_read else column(np.arange(begin, end)))
            for column in (first_of(stencil.analytic_columns), stencil.start_column)
        ]

    def _time_first(self, values: Any) -> Tensor:
        """Return values of the time steps [*c, k], of NumPy or torch, as a tensor that broadcasts to [k, *shape]."""
        tensor = torch.as_tensor(values, device=self.device)
        return rows_first(tensor, len(self.shape), TORCH).contiguous()


def first_of(columns: Callable[[np.ndarray], Any] | None) -> Callable[[np.ndarray], Any] | None:
    """Return a function of the rows of the first analytic column, that of x(0); None where there is no column."""
    return None if columns is None else lambda rows: columns(rows)[..., 0, :]


def _stacked(columns: list[Tensor | None]) -> Tensor | None:
    present = [c for c in columns if c is not None]
    return torch.stack([0 * present[0] if c is None else c for c in columns], dim=1) if present else None


@versioned
@dataclass(frozen=True, eq=False)
class CountedState:
    """A `StreamState` whose number of steps is a tensor: what programs of `torch.export` take and return.

    Where the number of a step is not known in Python, rows of the boundary columns cannot be computed a block at a
    time. The column on x(0) is a sum of exponentials as the weights are; that on d[1] is a table, exact in the first
    rows, and from there on cubic in log(t + 1), where t times the column hardly changes.

    Attributes:
        step: How many samples it has seen, int64, [].
    """

    step: Tensor
    _rules: Rules
    _taps: Tensor  # as of `StreamState`
    _rates: Tensor  # s: [Q, 1, ...]
    _analytic: Tensor | None  # of the column on x(0): exact rows, then coefficients, [first + Q, *c]
    _start: Tensor | None  # of the column on d[1]: its rows at the knots, [knots, *c]
    _knots: Tensor  # those rows' numbers, int64
    _memory: Tensor
    _before: Tensor
    _held: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice."""
        return self._rules.shape

    @property
    def horizon(self) -> int:
        """How many steps the state serves. Programs, and calls on a GPU, do not check whether there were more."""
        return self._rules.horizon

    @property
    def device(self) -> torch.device:
        """The device of the state's tensors."""
        return self._memory.device

    def counted(self) -> CountedState:
        """Return the state itself."""
        return self

    def _advanced(self, x: Tensor) -> tuple[Tensor, CountedState]:
        """Return the next sample of the result in float64, and the state after it."""
        t, rules = self.step, self._rules
        past = Past(self._memory, self._before, self._held)
        y, past = advanced(x.to(torch.float64), t, past, self._taps, torch.exp(-self._rates), rules, TORCH)
        if self._analytic is not None:
            y = y + self._analytic_row(self._analytic) * past.held[0]
        if self._start is not None:
            y = y + self._start_row(self._start) * past.held[1]
        memory, before, held = past
        return y, replace(self, step=t + 1, _memory=memory, _before=before, _held=held)

    def _analytic_row(self, column: Tensor) -> Tensor:
        """Return the row of the column on x(0) in this step, [*c]."""
        first, t = self._rules.first, self.step
        exact = column.index_select(0, t.clamp(max=first - 1).reshape(1))[0]
        powers = torch.exp(-self._rates * (t - first).clamp(min=0)).reshape(-1, *(1,) * (column.ndim - 1))
        return torch.where(t < first, exact, (column[first:] * powers).sum(0))

    def _start_row(self, table: Tensor) -> Tensor:
        """Return the row of the column on d[1] in this step, [*c], by cubics through the rows about it."""
        t, knots = self.step, self._knots
        begin = (torch.searchsorted(knots, t.reshape(1), right=True) - 2).clamp(0, knots.numel() - 4)
        places = begin + torch.arange(4, device=t.device)
        near, values = knots.index_select(0, places).to(torch.float64) + 1, table.index_select(0, places)
        u, at = near.log(), (t.to(torch.float64) + 1).log()
        same = torch.eye(4, dtype=torch.bool, device=t.device)
        apart = torch.where(same, 1.0, u[:, None] - u)
        shares = torch.where(same, 1.0, (at - u) / apart).prod(1) * near / (t + 1)
        return (shares.reshape(-1, *(1,) * (values.ndim - 1)) * values).sum(0)


def counted(state: StreamState) -> CountedState:
    """Return a StreamState as a CountedState, with the number of steps in a tensor."""
    rules, xp = state._rules, NUMPY if state._alpha is None else TORCH
    stencil, nodes = rules.stencil(state._alpha, TORCH), rules.nodes(state._alpha)
    analytic, start, place = first_of(stencil.analytic_columns), stencil.start_column, state.device
    knots = np.arange(max(4, min(_EXACT_ROWS, rules.horizon)))
    far = np.geomspace(_EXACT_ROWS, max(rules.horizon, 2 * _EXACT_ROWS), _TABLED).round().astype(np.int64)
    knots = np.unique(np.concatenate([knots, far]))
    return CountedState(
        torch.tensor(state.step, device=place),
        rules,
        state._taps,
        torch.as_tensor(nodes.rates, device=place).reshape(-1, *(1,) * len(rules.shape)),
        None if analytic is None else state._time_first(sums(analytic, nodes, xp)),
        None if start is None else state._time_first(start(knots)),
        torch.as_tensor(knots, device=place),
        state._memory,
        state._before,
        state._held,
    )


_TENSORS = ("_alpha", "_taps", "_decay", "_boundary", "_memory", "_before", "_held")
_COUNTED = ("step", "_taps", "_rates", "_analytic", "_start", "_knots", "_memory", "_before", "_held")


def initial_state(
    owner: str,
    definition: Definition,
    shape: Sequence[int],
    *,
    dt: float = 1.0,
    horizon: int = HORIZON,
    device: torch.device | str | None = None,
    source: StreamSource | None = None,
) -> StreamState:
    """Return the state before the first sample.

    Args:
        owner: Name of the public function, for messages.
        definition: Which operator, with its alpha; alpha broadcasts over `shape`.
        shape: Of one time slice: of the samples without their time axis.
        dt: Spacing of the samples, in the caller's time unit; positive.
        horizon: The longest series it will serve. The exponentials are fitted to the weights up to it; a step costs
            in proportion to its logarithm.
        device: Where the samples will be; None is that of a tensor alpha, or the default device.
        source: Who makes it; `step` then takes it from no other.

    Raises:
        ValueError: The definition reads samples ahead, its orders lie so far apart that weights grow with the lag, or
            an argument is out of range.
        TypeError: An argument has the wrong type.
    """
    rules, nodes, alpha = begun(owner, definition, shape, dt, horizon, source, _checked_alpha)
    if device is None:
        device = torch.empty(0).device if alpha is None else alpha.device
    taps = sums(rules.stencil(alpha, TORCH).column, nodes, NUMPY if alpha is None else TORCH)
    decay = torch.as_tensor(np.exp(-nodes.rates), device=device).reshape(-1, *(1,) * len(rules.shape))
    zeros = torch.zeros(taps.shape[-1], *rules.shape, dtype=torch.float64, device=device)
    state = StreamState(0, rules, alpha, zeros, decay, None, zeros, zeros[:2].clone(), zeros[:2].clone())
    return replace(state, _taps=state._time_first(taps), _boundary=state._rows(0))


def _checked_alpha(owner: str, definition: Definition) -> Tensor:
    check_alpha(owner, definition)
    return definition.alpha.to(torch.float64)  # type: ignore[union-attr]


def step(owner: str, x: Tensor, state: Any, source: StreamSource | None = None) -> tuple[Tensor, Any]:
    """Return the operator's next sample, in the dtype of `x`, and the state after it; `state` stays as it is.

    Args:
        owner: Name of the public function, for messages.
        x: One time slice, of the state's shape.
        state: From `initial_state` or the step before; a StreamState or a CountedState.
        source: Who must have made the state: `initial_state` was given the same.

    Raises:
        TypeError: `x` is no real floating tensor, or `state` is none.
        ValueError: `x` has another shape or device than the state, the state has another source, or it has reached its
            horizon. A CountedState's number is read where that costs nothing: not while a program is traced or run,
            nor on a GPU.
    """
    is_counted = isinstance(state, CountedState)
    check_state(owner, state, CountedState if is_counted else StreamState)
    check_dense(owner, "x", x)
    computed_in(owner, x)  # raises unless x is floating
    rules, t = state._rules, state.step
    check_step(owner, x.shape, rules, source)
    _check_device(owner, x, state)
    if is_counted:
        if t.device.type == "cpu" and not is_watched(t) and not torch._C._are_functorch_transforms_active():
            check_horizon(owner, int(t), rules.horizon)
        y, after = state._advanced(x)
        return y.to(x.dtype), after
    check_horizon(owner, t, rules.horizon)
    past = Past(state._memory, state._before, state._held)
    y, past = advanced(x.to(torch.float64), t, past, state._taps, state._decay, rules, TORCH)
    boundary = state._boundary
    if boundary is not None:
        if t % _BLOCK == 0 and t:
            boundary = state._rows(t)
            assert boundary is not None
        y = y + weighted(boundary[t % _BLOCK], past.held, TORCH)
    return y.to(x.dtype), StreamState(t + 1, rules, state._alpha, state._taps, state._decay, boundary, *past)


def run(
    owner: str, x: Tensor, state: StreamState, dim: int, site: Site, source: StreamSource | None = None
) -> tuple[Tensor, StreamState]:
    """Return the operator's next samples, of the shape and dtype of `x`, and the state after them.

    Args:
        owner: Name of the public function, for messages.
        x: Samples along `dim`, any number; without that axis they have the state's shape.
        state: From `initial_state`, or from the step or block before.
        dim: The time axis.
        site: Where the plans of the product inside the block are kept.
        source: As in `step`.

    Raises:
        TypeError: As in `step`.
        ValueError: As in `step`.
    """
    check_state(owner, state, StreamState)
    check_dense(owner, "x", x)
    computed_in(owner, x)
    axis, rules, t = errors.axis(owner, dim, x.ndim), state._rules, state.step
    n = x.shape[axis]
    check_block(owner, x.shape, axis, rules)
    check_step(owner, rules.shape, rules, source)
    _check_device(owner, x, state)
    if n == 0:
        return x.clone(), state
    check_horizon(owner, t + n - 1, rules.horizon)
    continued = _in_place if _is_sliced(x, state, n) else _recorded
    y, past = continued(owner, x, state, axis, site)
    after = t + n - (t + n) % _BLOCK
    boundary = state._boundary if after == t - t % _BLOCK else state._rows(after)
    return y, StreamState(t + n, rules, state._alpha, state._taps, state._decay, boundary, *past)


def _recorded(owner: str, x: Tensor, state: StreamState, axis: int, site: Site) -> tuple[Tensor, Past]:
    """Return the results for a block and the past after it, by operations that autograd records, in float64."""
    rules, t, n = state._rules, state.step, x.shape[axis]
    past, rates = Past(state._memory, state._before, state._held), rules.rates(state._alpha)
    block = differenced(x.movedim(axis, 0).to(torch.float64), t, past, rules, TORCH)
    inner = Convolution.with_weights_of(rules.definition)
    near = computed(owner, block.d.to(computed_in(owner, x, inner)), inner, rules.dt, 0, site, state._alpha)
    y = near[rules.first :] + recalled(state._taps[rules.first :] * past.memory[rules.first :], n, rates, TORCH)
    for column, held in zip(state._columns(t, t + n), block.held, strict=True):
        if column is not None:
            y = torch.addcmul(y, column, held)
    memory = remembered(past.memory, block.d, rates, TORCH)
    return y.to(x.dtype).movedim(0, axis), Past(memory, block.before, block.held)


def _is_sliced(x: Tensor, state: StreamState, n: int) -> bool:
    """Whether a block of n samples is computed by `_in_place`: a long one that nobody differentiates or transforms.

    The definition must take differences, or else subtract no first sample.
    """
    rules = state._rules
    is_recorded = torch.is_grad_enabled() and (
        x.requires_grad or any(each is not None and each.requires_grad for each in state._tensors().values())
    )
    is_differenced = rules.differences > 0 or (rules.differences == 0 and not rules.definition.subtracts)
    return n >= _LONG and is_differenced and not is_recorded and is_plain(x)


def _in_place(owner: str, x: Tensor, state: StreamState, axis: int, site: Site) -> tuple[Tensor, Past]:
    """Return the results for a block and the past after it, by `slices.py`, without a copy of the block in float64."""
    rules, t, n = state._rules, state.step, x.shape[axis]
    past, samples = Past(state._memory, state._before, state._held), x.to(computed_in(owner, x)).movedim(axis, 0)
    kept = rules if rules.differences else replace(rules, definition=Convolution.with_weights_of(rules.definition))
    slices = Slices(kept, rules.nodes(state._alpha), (t, n, 1), 1)  # a sample follows, as the past after it is wanted
    part = slices.parts(slices.given(samples, samples)[1])
    inside = samples.movedim(0, axis).to(computed_in(owner, x, slices.inner))
    y = computed(owner, inside, slices.inner, rules.dt, axis, site, state._alpha)
    held = differenced(part.head[:2], t, past, rules, TORCH).held
    columns = state._columns(t, t + n)
    start = Start([value for value, column in zip(held, columns, strict=True) if column is not None], None)
    y = slices.added(y, axis, part, past, start, state._taps, [each for each in columns if each is not None], {})
    after = slices.after(part, n, t, past, start)
    return y.to(x.dtype), after._replace(held=held)


def _check_device(owner: str, x: Tensor, state: StreamState) -> None:
    if x.device != state._memory.device:
        raise ValueError(
            f"{owner}(x on {x.device}): needs the state's device {state.device}; move it with state.to(x.device)."
        )


for _function in (initial_state, run):
    uncompiled(
        _function, "a block's weights and exponentials are kept where the call is made; it runs outside the graph"
    )


def _dumped(rules: Rules) -> dict[str, Any]:
    """Return the rules of a stream as a dictionary of what JSON can hold; `_loaded` takes it back."""
    source = rules.source
    made = None if source is None else [source.owner, as_json(source.definition, False), source.learns, source.dt]
    return {
        "definition": as_json(rules.definition, False),
        "dt": rules.dt,
        "horizon": rules.horizon,
        "shape": rules.shape,
        "first": rules.first,
        "source": made,
    }


def _loaded(found: dict[str, Any]) -> Rules:
    made = found["source"]
    source = None if made is None else StreamSource(made[0], from_json(made[1]), *made[2:])
    return Rules(
        from_json(found["definition"]), found["dt"], found["horizon"], tuple(found["shape"]), found["first"], source
    )


register_tree(
    CountedState,
    _COUNTED,
    lambda state: state._rules,
    lambda parts, rules: CountedState(parts[0], rules, *parts[1:]),
    to_dumpable_context=_dumped,
    from_dumpable_context=_loaded,
)
register_tree(
    StreamState, _TENSORS, lambda state: (state.step, state._rules), lambda parts, facts: StreamState(*facts, *parts)
)
torch.serialization.add_safe_globals([Rules, StreamSource, *DEFINITIONS.values(), DistributedOrder])
