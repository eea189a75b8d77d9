"""Streams of PyTorch tensors: the state of `fractional/streaming.py`'s recurrence.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first]

with d the differenced samples and Q exponentials. A time slice of the samples has the shape [*shape], and the orders
have axes [*c] that broadcast to it. The boundary columns are `start` and `analytic`.

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
from hpfracc_nn.fractional.definitions import Definition
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
    weighted,
)
from hpfracc_nn.fractional.torch.eager import check_alpha, check_dense, computed, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH
from hpfracc_nn.fractional.torch.tracing import is_traced, uncompiled
from hpfracc_nn.selection import Site

_BLOCK = 64  # rows of the boundary columns that are computed together
_Rules = Rules  # its name in states that an older version pickled


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
    _alpha: Tensor | None  # where it is a tensor
    _taps: Tensor  # exact weights, then coefficients: [first + Q, *c]
    _decay: Tensor  # exp(-s): [Q, 1, ...]
    _boundary: Tensor | None  # a block of rows of the columns on x(0) and d[1]: [block, 2, *c]
    _memory: Tensor  # the last samples of d, then the exponentials: [first + Q, *shape]
    _before: Tensor  # what differencing needs: x and its difference one step ago, or the sum so far: [2, *shape]
    _held: Tensor  # x(0) and d[1]: [2, *shape]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice."""
        return self._rules.shape

    @property
    def horizon(self) -> int:
        """How many steps it serves."""
        return self._rules.horizon

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self._memory.device

    @property
    def nbytes(self) -> int:
        """Memory of all its tensors, the weights included; the same at every step."""
        return sum(t.numel() * t.element_size() for t in self._tensors().values() if t is not None)

    def to(self, device: torch.device | str | int) -> StreamState:
        """Return the state on another device; its dtype stays float64, which takes samples of any.

        Raises:
            TypeError: `device` is none, such as a dtype.
        """
        if not isinstance(device, torch.device | str | int):
            given = device if isinstance(device, torch.dtype) else type(device).__name__
            raise TypeError(
                f"StreamState.to({given}): needs a device, and stays float64 whatever the samples are; "
                "pass a device such as x.device, and samples of any floating dtype to step."
            )
        return self._mapped(lambda t: t.to(device))

    def detach(self) -> StreamState:
        """Return the state without its history of gradients; also alpha's ends here, see `renew`."""
        return self._mapped(Tensor.detach)

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamState:
        """Return the state in memory of its own; its graph, and alpha's in it, is that of this one."""
        return self._mapped(Tensor.clone)

    def renew(self, weights: StreamState) -> StreamState:
        """Return this past, detached, with the weights of another state of the same shape and horizon.

        This is one stretch of truncated backpropagation after another: after an optimizer's step a new
        `initial_state` has the new alpha, and the past, which does not depend on alpha, goes on.
        """
        self._rules.check_renewal(weights._rules, is_here=weights.device == self.device)
        past = self.detach()
        fresh = replace(past, _rules=weights._rules, _alpha=weights._alpha, _taps=weights._taps)
        return replace(fresh, _boundary=fresh._rows(self.step - self.step % _BLOCK))

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
    """Return the first of the analytic columns, or None where there are none."""
    return None if columns is None else lambda rows: columns(rows)[..., 0, :]


def _stacked(columns: list[Tensor | None]) -> Tensor | None:
    present = [c for c in columns if c is not None]
    return torch.stack([0 * present[0] if c is None else c for c in columns], dim=1) if present else None


_TENSORS = ("_alpha", "_taps", "_decay", "_boundary", "_memory", "_before", "_held")


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
        owner: Who asks, for messages.
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


def step(owner: str, x: Tensor, state: StreamState, source: StreamSource | None = None) -> tuple[Tensor, StreamState]:
    """Return the operator's next sample, in the dtype of `x`, and the state after it; `state` stays as it is.

    Args:
        owner: Who asks, for messages.
        x: One time slice, of the state's shape.
        state: From `initial_state` or the step before.
        source: Who must have made the state: `initial_state` was given the same.

    Raises:
        TypeError: `x` is no real floating tensor, or `state` is none.
        ValueError: `x` has another shape or device than the state, the state has another source, or it has reached its
            horizon.
    """
    check_state(owner, state, StreamState)
    check_dense(owner, "x", x)
    computed_in(owner, x)  # raises where the dtype is none of ours
    rules, t = state._rules, state.step
    check_step(owner, x.shape, rules, source)
    _check_device(owner, x, state)
    check_horizon(owner, t, rules.horizon)
    past = Past(state._memory, state._before, state._held)
    y, past = advanced(x.to(torch.float64), t, past, state._taps, state._decay, rules, TORCH)
    boundary = state._boundary
    if boundary is not None:
        if t % _BLOCK == 0 and t:
            boundary = state._rows(t)
            assert boundary is not None
        y = y + weighted(boundary[t % _BLOCK], past.held, rules, TORCH)
    return y.to(x.dtype), StreamState(t + 1, rules, state._alpha, state._taps, state._decay, boundary, *past)


def run(
    owner: str, x: Tensor, state: StreamState, dim: int, site: Site, source: StreamSource | None = None
) -> tuple[Tensor, StreamState]:
    """Return the operator's next samples, of the shape and dtype of `x`, and the state after them.

    Args:
        owner: Who asks, for messages.
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
    past, rates = Past(state._memory, state._before, state._held), rules.rates(state._alpha)
    block = differenced(x.movedim(axis, 0).to(torch.float64), t, past, rules, TORCH)
    inner = Convolution.with_weights_of(rules.definition)
    near = computed(owner, block.d.to(computed_in(owner, x, inner)), inner, rules.dt, 0, site, state._alpha)
    y = near[rules.first :] + recalled(state._taps[rules.first :] * past.memory[rules.first :], n, rates, TORCH)
    after = t + n - (t + n) % _BLOCK
    begin = min(t, after)
    columns = state._columns(begin, after + _BLOCK)
    for column, held in zip(columns, block.held, strict=True):
        if column is not None:
            y = torch.addcmul(y, column[t - begin :][:n], held)
    boundary = _stacked([None if column is None else column[-_BLOCK:] for column in columns])
    memory = remembered(past.memory, block.d, rates, TORCH)
    past = Past(memory, block.before, block.held)
    state = StreamState(t + n, rules, state._alpha, state._taps, state._decay, boundary, *past)
    return y.to(x.dtype).movedim(0, axis), state


def _check_device(owner: str, x: Tensor, state: StreamState) -> None:
    if x.device != state._memory.device:
        raise ValueError(
            f"{owner}(x on {x.device}): needs the state's device {state.device}; move it with state.to(x.device)."
        )


for _function in (initial_state, run):
    uncompiled(
        _function, "a block's weights and exponentials are kept where the call is made; it runs outside the graph"
    )


def _flatten(state: StreamState) -> tuple[list[Any], tuple[int, Rules]]:
    return list(state._tensors().values()), (state.step, state._rules)


def _unflatten(tensors: Any, context: tuple[int, Rules]) -> StreamState:
    return StreamState(*context, *tensors)


_pytree.register_pytree_node(StreamState, _flatten, _unflatten)
