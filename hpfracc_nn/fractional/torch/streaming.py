"""One sample at a time: the operator as a recurrence whose state does not grow with the number of steps.

    y[t] = sum_(lag < first) w[lag] d[t-lag] + sum_q c_q S_q[t] + analytic[t] x(0) + start[t] d[1],
    S_q[t] = exp(-s_q) S_q[t-1] + d[t-first].

More lags are exact than in the kernels, and the exponentials are fitted to rounding (`schemes/exponentials.py`): over
10 000 steps the result is that of the whole series to 1e-12 of its largest sample. The boundary columns come from their
closed formulas, a block of rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.schemes.exponentials import Nodes
from hpfracc_nn.fractional.streaming import (
    HORIZON,
    Source,
    check_horizon,
    check_slice,
    check_source,
    slice_shape,
    stream_nodes,
)
from hpfracc_nn.fractional.torch.eager import alpha_shape, check_alpha, check_dense, computed_in
from hpfracc_nn.fractional.torch.namespace import TORCH

_BLOCK = 64  # rows of the boundary columns that are computed together


@dataclass(frozen=True)
class _Rules:
    """What stays as it is from step to step and is no tensor; alpha's own tensor is in the state."""

    definition: Definition
    dt: float
    horizon: int
    shape: tuple[int, ...]
    first: int
    source: Source | None


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
    _rules: _Rules
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
        if weights._kept_by() != self._kept_by():
            raise ValueError(
                f"StreamState.renew(weights: state of shape {weights.shape}, horizon {weights.horizon}): needs a state "
                f"made as this one was, of shape {self.shape} and horizon {self.horizon}; "
                "make it with the same layer and arguments."
            )
        past = self.detach()
        fresh = replace(past, _rules=weights._rules, _alpha=weights._alpha, _taps=weights._taps)
        return replace(fresh, _boundary=fresh._rows(self.step - self.step % _BLOCK))

    def _kept_by(self) -> tuple:
        rules, definition = self._rules, self._rules.definition
        kind = type(definition), definition.scheme, definition.differences
        return kind, rules.shape, rules.horizon, rules.dt, self.device

    def _tensors(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _TENSORS}

    def _mapped(self, change: Any) -> StreamState:
        changed: Any = {name: None if t is None else change(t) for name, t in self._tensors().items()}
        return replace(self, **changed)

    def _rows(self, first_row: int) -> Tensor | None:
        """The block of the boundary columns that begins at `first_row`, or None where there are no columns."""
        rules = self._rules
        definition, xp = _traceable(rules.definition, self._alpha)
        stencil, rows = definition.stencil(rules.horizon, rules.dt, xp), np.arange(first_row, first_row + _BLOCK)
        columns = (
            None if stencil.analytic_columns is None else stencil.analytic_columns(rows)[..., 0, :],
            None if stencil.start_column is None else stencil.start_column(rows),
        )
        present = [c for c in columns if c is not None]
        if not present:
            return None
        block = [_time_first(0 * present[0] if c is None else c, rules.shape, self.device) for c in columns]
        return torch.stack(block, dim=1)


_TENSORS = ("_alpha", "_taps", "_decay", "_boundary", "_memory", "_before", "_held")


def initial_state(
    owner: str,
    definition: Definition,
    shape: Sequence[int],
    *,
    dt: float = 1.0,
    horizon: int = HORIZON,
    device: torch.device | str | None = None,
    source: Source | None = None,
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
    dt = errors.positive_step(owner, dt)
    horizon = errors.count(owner, "horizon", horizon)
    shape = slice_shape(owner, shape)
    if not definition.is_fixed:
        check_alpha(owner, definition)
    nodes = stream_nodes(owner, definition, shape, alpha_shape(definition), dt, horizon)
    alpha = None if definition.is_fixed else definition.alpha.to(torch.float64)
    definition = definition if alpha is None else definition.at(definition.interval[1])
    if device is None:
        device = torch.empty(0).device if alpha is None else alpha.device
    rules = _Rules(definition, dt, horizon, shape, nodes.first, source)
    return _empty(rules, alpha, nodes, torch.device(device))


def step(owner: str, x: Tensor, state: StreamState, source: Source | None = None) -> tuple[Tensor, StreamState]:
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
    _check(owner, x, state, source)
    rules, t = state._rules, state.step
    u = x.to(torch.float64)
    held = torch.stack([u, torch.zeros_like(u)]) if t == 0 else state._held
    d, before = _difference(u, state._before, held, t, rules.definition)
    if t == 1:
        held = torch.stack([held[0], d])
    memory, first = state._memory, rules.first
    slow = torch.addcmul(memory[first - 1 : first], memory[first:], state._decay)
    memory = torch.cat([d[None], memory[: first - 1], slow])
    y = _weighted(state._taps, memory)
    boundary = state._boundary
    if boundary is not None:
        if t % _BLOCK == 0 and t:
            boundary = state._rows(t)
            assert boundary is not None
        y = y + _weighted(boundary[t % _BLOCK], held)
    return y.to(x.dtype), StreamState(
        t + 1, rules, state._alpha, state._taps, state._decay, boundary, memory, before, held
    )


def _difference(x: Tensor, before: Tensor, held: Tensor, t: int, definition: Definition) -> tuple[Tensor, Tensor]:
    """Return d and what the next difference needs."""
    m = definition.differences
    if m == 0:
        return (x - held[0] if definition.subtracts else x), before
    if m < 0:
        total = before[0] + x
        return total, torch.stack([total, x])
    if definition.subtracts and t == 0:
        return torch.zeros_like(x), torch.stack([x, torch.zeros_like(x)])
    e = x - before[0]
    return (e if m == 1 else e - before[1]), torch.stack([x, e])


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Return the sum of weights [k, *c] times values [k, *shape] over k."""
    shape = values.shape[1:]
    if weights.numel() == weights.shape[0]:
        return (weights.reshape(1, -1) @ values.reshape(values.shape[0], math.prod(shape))).reshape(shape)
    return (weights * values).sum(0)


def _empty(rules: _Rules, alpha: Tensor | None, nodes: Nodes, device: torch.device) -> StreamState:
    """The state at step 0: the weights at the exact lags, the coefficients of the others, no past."""
    definition, xp = _traceable(rules.definition, alpha)
    near = np.arange(rules.first)
    column = definition.stencil(1, rules.dt, xp).column(np.concatenate([near, nodes.lags]))
    far = xp.take(column, np.arange(rules.first, rules.first + nodes.lags.size), axis=-1)
    taps = _time_first(xp.concat([xp.take(column, near, axis=-1), nodes.fit(far, xp)], axis=-1), rules.shape, device)
    decay = torch.as_tensor(np.exp(-nodes.rates), device=device).reshape(-1, *(1,) * len(rules.shape))
    zeros = torch.zeros(taps.shape[0], *rules.shape, dtype=torch.float64, device=device)
    state = StreamState(0, rules, alpha, taps, decay, None, zeros, zeros[:2].clone(), zeros[:2].clone())
    return replace(state, _boundary=state._rows(0))


def _traceable(definition: Definition, alpha: Tensor | None) -> tuple[Definition, Any]:
    """The definition with its own alpha, and the namespace that alpha belongs to."""
    if alpha is None:
        return definition, NUMPY
    return replace(definition, alpha=alpha, bounds=definition.interval), TORCH


def _time_first(values: Any, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return [*c, k] as [k, *c], with ones before c so that it broadcasts to [k, *shape]."""
    tensor = torch.as_tensor(values, device=device).movedim(-1, 0)
    missing = len(shape) + 1 - tensor.ndim
    return tensor.reshape(tensor.shape[0], *(1,) * missing, *tensor.shape[1:]).contiguous()


def _check(owner: str, x: Any, state: Any, source: Source | None) -> None:
    if not isinstance(state, StreamState):
        raise TypeError(
            f"{owner}(state of type {type(state).__name__}): needs a state; pass what initial_state returned."
        )
    check_dense(owner, "x", x)
    computed_in(owner, x)  # raises where the dtype is none of ours
    check_slice(owner, tuple(x.shape), state.shape)
    if x.device != state.device:
        raise ValueError(
            f"{owner}(x on {x.device}): needs the state's device {state.device}; move it with state.to(x.device)."
        )
    check_source(owner, state._rules.source, source)
    check_horizon(owner, state.step, state.horizon)


def _flatten(state: StreamState) -> tuple[list[Any], tuple[int, _Rules]]:
    return list(state._tensors().values()), (state.step, state._rules)


def _unflatten(tensors: Any, context: tuple[int, _Rules]) -> StreamState:
    return StreamState(*context, *tensors)


_pytree.register_pytree_node(StreamState, _flatten, _unflatten)
