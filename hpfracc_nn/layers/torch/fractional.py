"""`FractionalLayer`, a fractional operator along time; and what layers share: orders, torch's weights, states, series.

States are those between two steps, and series have several lengths: PackedSequences and jagged nested tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import Definition
from hpfracc_nn.fractional.streaming import HORIZON, StreamSource, slice_shape
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.eager import check_dense, computed
from hpfracc_nn.fractional.torch.operator import apply_at
from hpfracc_nn.fractional.torch.parameters import Alpha, is_spread
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.order import Shape, begun, definition_of, options_text
from hpfracc_nn.layers.shapes import beside_channels, channel_axis, check_channels, counted_channels
from hpfracc_nn.selection import BackendManager, given_manager


class Ordered(nn.Module):
    """A layer with one definition; its order is the definition's alpha or, if learned, the submodule `order`."""

    # Attributes are typed where they are assigned: torch.jit.script reads the annotations of a class.

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.order.mean if self.learn_alpha else self.definition.alpha

    def _alpha_text(self) -> str:
        """Return the order as text for the layer's repr."""
        return "learn_alpha=True" if self.learn_alpha else f"alpha={self.definition.alpha}"

    def hold(self, definition: Any, order: Alpha | None) -> None:
        """Store the definition, and the learned order or None.

        With a learned order the definition's own alpha is the upper bound, a placeholder; the property `alpha` has the
        present order.
        """
        self.definition: Any = definition
        self.learn_alpha: bool = order is not None
        if order is not None:
            self.order: Alpha = order


class FractionalLayer(Ordered):
    """A fractional derivative or integral along `dim`; the shape stays as it is.

    It has no weights but its order: alpha = 1 is the scheme's ordinary difference quotient, alpha = 0 the identity
    (Caputo: less the first sample).

    Args:
        alpha: The order, or one per channel; or an `Alpha` or `ProbabilisticAlpha` of shape [] or [channels], which
            then is the layer's `order`, with its own bounds.
        definition: A name, such as "caputo" or "riemann_liouville_integral", a definition's class, or a definition: its
            options are taken, and its order and bounds are not.
        scheme: The discretisation; None is the definition's default.
        channels: C gives every channel its own alpha: axis 1 when time is the last axis, else the last axis.
        learn_alpha: Whether alpha is a parameter; an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is the unit interval around its first value. They also decide how
            often the data are differenced; with bounds wider than 1.25 it is computed in float64.
        dt: Spacing of the samples, in the caller's time unit.
        dim: The time axis.
        manager: Who chooses the kernels; None is the process-wide BackendManager.
        device: Of the parameter, if the layer makes one.
        dtype: Of the parameter; alpha and the weights are computed in float64 whatever it is.

    Shape:
        Input and output: [..., n, ...], time on `dim`; floating. Half precision is computed in float32. The output has
        the input's units / time**alpha, an integral's times it.

    Raises:
        ValueError: alpha, bounds or dt is out of range.
        TypeError: An argument has the wrong type.

    Source: that of the definition; of the default, Oldham & Spanier, The Fractional Calculus (1974), section 8.2.

    Examples:
        >>> layer = FractionalLayer(0.6, "caputo", dt=0.01, learn_alpha=True)
        >>> layer(torch.randn(8, 3, 256)).shape
        torch.Size([8, 3, 256])
        >>> t = torch.linspace(0, 1, 101)
        >>> # 2 / Gamma(2.5) = 1.5045
        >>> round(FractionalLayer(0.5, "caputo", dt=0.01)(t**2)[-1].item(), 2)
        1.5
    """

    def __init__(
        self,
        alpha: float | Sequence[float] | Alpha = 0.5,
        definition: str | type[Definition] | Definition = "caputo",
        *,
        scheme: str | None = None,
        channels: int | None = None,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dt: float = 1.0,
        dim: int = -1,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        self.dt = errors.positive_step("FractionalLayer", dt)
        self.dim = errors.index("FractionalLayer", "dim", dim)
        self.channels = None if channels is None else errors.count("FractionalLayer", "channels", channels)
        found = started(
            "FractionalLayer",
            definition_of("FractionalLayer", definition, scheme),
            alpha,
            bounds=bounds,
            learn_alpha=learn_alpha,
            shape=self._order_shape,
            device=device,
            dtype=dtype,
        )
        self.hold(*found)
        self.site = given_manager("FractionalLayer", manager).site("toeplitz", "torch")

    _split = cast(Any, None)  # a layer pickled by an older version has none of its own

    def forward(self, x: Tensor) -> Tensor:
        """Return the operator applied to x; same shape, dtype and device."""
        if type(x) is not Tensor:
            if is_spread(x):
                return self._on_mesh(x)
            if self._split is None and has_lengths(x):
                forward = partial(FractionalLayer.forward, self)
                return each_to_its_length("FractionalLayer", x, forward, self.dim, self.definition.looks_ahead)
        if self._split is not None:
            of = partial(self._definition_for, x)
            return self._split("FractionalLayer", x, of, self.dt, self.dim, self.site)
        if self.channels is None:
            definition = self.definition
            alpha = self.order.beside_local("FractionalLayer") if self.learn_alpha else None
            # As `apply_at` does, whose module most calls then have no part in.
            apply = computed if definition.side == "left" and not torch.compiler.is_compiling() else apply_at
            return apply("FractionalLayer", x, definition, self.dt, self.dim, self.site, alpha)
        check_dense("FractionalLayer", "x", x)
        axis = self._time_axis(x)
        if self.learn_alpha:
            alpha = self._aligned(self.order.beside_local("FractionalLayer"), x.ndim, axis)
            return apply_at("FractionalLayer", x, self.definition, self.dt, self.dim, self.site, alpha)
        return apply_at("FractionalLayer", x, self._present(x.ndim, axis), self.dt, self.dim, self.site)

    def split_time(self, group: Any = None) -> Self:
        """Let the time axis lie over the processes of a group from now on, and return the layer.

        Each process then calls the layer with its own slice of the series, in the order of the ranks, and gets its
        slice of the result; see `hpfracc_nn.distributed.derivative`, where more is said. A learned alpha must be equal
        on all processes. Its gradient is that of the sum of their losses, complete on each of them.

        Args:
            group: A process group of `torch.distributed`; None is the default group, of all processes.

        Raises:
            RuntimeError: There is no process group.
            TypeError: `group` is no process group.
            ValueError: This process is not in the group.

        Examples:
            >>> layer = FractionalLayer(0.6, dt=0.01, learn_alpha=True)
            >>> layer.split_time()  # doctest: +SKIP
            >>> y = layer(torch.randn(8, 3, 100))  # the slice of one process
        """
        from hpfracc_nn.distributed.torch.ranks import TimeSplit  # torch.distributed is loaded for those who use it

        self._split = TimeSplit("FractionalLayer.split_time", group)
        return self

    def initial_state(
        self, shape: Sequence[int], *, horizon: int = HORIZON, device: torch.device | str | None = None
    ) -> StreamState:
        """Return the state before the first sample, for `step`.

        The state holds the weights of the present alpha, traced where alpha is learned and gradients are on: a state
        made before an optimizer's step keeps the alpha it was made with, and
        `state.renew(layer.initial_state(...))` is the same past with the new alpha.

        Args:
            shape: Of one time slice: of x without its time axis. [batch, channels] for x [batch, channels, n] with
                time last as well as for x [batch, n, channels] with time in the middle.
            horizon: The longest series that the state will serve. The memory is a sum of exponentials fitted up to the
                horizon; a step costs in proportion to the logarithm of the horizon.
            device: Where the samples will be; None is alpha's own where it is learned, else the default device.

        Raises:
            ValueError: The operator looks ahead, as Caputo's and Riemann-Liouville's do above alpha = 1; or orders lie
                on both sides of a whole number; or time lies over a process group; or an argument is out of range.
            TypeError: An argument has the wrong type.

        Examples:
            >>> layer = FractionalLayer(0.6, dt=0.01)
            >>> state = layer.initial_state((8, 3))
            >>> y, state = layer.step(torch.randn(8, 3), state)
            >>> y.shape
            torch.Size([8, 3])
        """
        owner = "FractionalLayer.initial_state"
        if self._split is not None:
            raise ValueError(
                f"{owner}: needs whole series, and time lies over a process group; use a layer without split_time."
            )
        shape = slice_shape(owner, shape)
        ndim = len(shape) + 1
        axis = errors.axis(owner, self.dim, ndim)
        if self.channels is not None:
            where = channel_axis(ndim, axis)
            check_channels("FractionalLayer", self.channels, shape, ndim, where - (where > axis))
        return streaming.initial_state(
            owner, self._present(ndim, axis), shape, dt=self.dt, horizon=horizon, device=device, source=self._source()
        )

    def step(self, x: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
        """Return the next sample of the result and the state after it; `state` itself stays as it is.

        Fed one time slice after another, the results are those of the whole series, to 1e-12 of their size in float64
        over 10 000 steps. Time and memory of a step do not grow with the number of steps. It is differentiable in x,
        the state and a learned alpha by plain autograd; without `torch.no_grad` the graph grows with every step.

        Args:
            x: One time slice, of the state's shape; any floating dtype.
            state: From `initial_state` or the step before.

        Returns:
            The result in the shape and dtype of x, and the next state.

        Raises:
            ValueError: x has another shape or device than the state, the state was made by another layer, or it has
                reached its horizon.
            TypeError: x is no real floating tensor, or `state` no state.
        """
        return streaming.step("FractionalLayer.step", x, state, self._source())

    def run(self, x: Tensor, state: StreamState | None = None) -> tuple[Tensor, StreamState]:
        """Return the results for the next samples of a series and the state after them.

        A series in blocks of any lengths gives the results of the whole series, and their gradients: relative to the
        largest to 1e-12 in float64 and 2e-6 in float32. With a learned alpha gradients are right to 2e-10 and 1e-5;
        near order 0 float32 has fewer digits, 6e-5 at 0.05, as in one call. Blocks and single steps mix. What a block
        costs grows with its length and with no other. It is differentiable in x, the state and a learned alpha;
        `state.detach()` between blocks ends the graph, as for truncated backpropagation.

        Args:
            x: The next samples, along `dim`; any number, any floating dtype.
            state: From `initial_state`, `step` or the block before; None begins a series, of at most 2**20 samples.

        Returns:
            The result in the shape and dtype of x, and the next state.

        Raises:
            ValueError: As in `initial_state` and `step`.
            TypeError: As in `initial_state` and `step`.

        Examples:
            >>> layer = FractionalLayer(0.6, dt=0.01)
            >>> x = torch.randn(8, 3, 100)
            >>> first, state = layer.run(x[..., :70])
            >>> second, state = layer.run(x[..., 70:], state)
            >>> torch.allclose(torch.cat([first, second], -1), layer(x), atol=1e-4)
            True
        """
        owner = "FractionalLayer.run"
        if state is None:
            check_dense(owner, "x", x)
            axis = errors.axis(owner, self.dim, x.ndim)
            state = self.initial_state((*x.shape[:axis], *x.shape[axis + 1 :]), device=x.device)
        return streaming.run(owner, x, state, self.dim, self.site, self._source())

    def _definition_for(self, x: Tensor) -> Definition:
        """Return the definition with its present alpha, shaped to broadcast with the input x.

        Raises:
            TypeError: x is no dense tensor.
            ValueError: x has no such time axis, or not as many channels as the layer.
        """
        check_dense("FractionalLayer", "x", x)
        return self._present(x.ndim, self._time_axis(x))

    def _time_axis(self, x: Tensor) -> int:
        """Return the time axis of an input, counted from the first axis.

        Raises:
            ValueError: x has no such axis, or not as many channels as the layer.
        """
        axis = errors.axis("FractionalLayer", self.dim, x.ndim)
        if self.channels is not None:
            check_channels("FractionalLayer", self.channels, x.shape, x.ndim, channel_axis(x.ndim, axis))
        return axis

    def _on_mesh(self, x: Tensor) -> Tensor:
        """Return the operator applied to a DTensor x: a DTensor with the placements of x."""
        from hpfracc_nn.distributed.torch.meshes import operated  # torch.distributed.tensor is loaded by now

        owner = "FractionalLayer"
        if self._split is not None:
            raise ValueError(
                f"{owner}(x: DTensor): needs plain slices after split_time; use a layer without it, for a DTensor says "
                "itself how time lies."
            )
        axis = self._time_axis(x)
        definition, alpha = self.definition, None
        if self.learn_alpha:
            alpha = self._aligned(self.order(), x.ndim, axis)
        else:
            definition = self._present(x.ndim, axis)
        return operated(owner, x, definition, alpha, self.dt, axis, self.site)

    def _source(self) -> StreamSource:
        return StreamSource(type(self).__name__, self.definition, self.learn_alpha, self.dt)

    def _present(self, ndim: int, axis: int) -> Definition:
        """Return the definition with its present alpha, shaped to broadcast with the input.

        Args:
            ndim: The input's number of axes.
            axis: The input's time axis.
        """
        definition = self.definition
        if self.learn_alpha:
            return replace(definition, alpha=self._aligned(self.order.beside_local("FractionalLayer"), ndim, axis))
        if isinstance(definition.alpha, tuple):
            return replace(definition, alpha=beside_channels(definition.alpha, ndim - 3 if axis == ndim - 1 else 0))
        return definition

    def extra_repr(self) -> str:
        channels = "" if self.channels is None else f", channels={self.channels}"
        return f"{self._alpha_text()}, {options_text(self.definition)}{channels}, dt={self.dt:g}, dim={self.dim}"

    def _order_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the orders, () or (channels,), for an alpha of the shape `given`.

        Where alpha is not scalar, the attribute `channels` is set to the number of orders.
        """
        self.channels = counted_channels("FractionalLayer", given, self.channels)
        return () if self.channels is None else (self.channels,)

    @staticmethod
    def _aligned(alpha: Tensor, ndim: int, axis: int) -> Tensor:
        if alpha.ndim == 0 or axis != ndim - 1 or ndim == 2:
            return alpha
        return alpha.reshape(-1, *(1,) * (ndim - 3))


def each_on_its_own(*arguments: Any, **options: Any) -> Any:
    """Return a layer's result for DTensors, each process computing its own part; see `meshes.each_on_its_own`."""
    from hpfracc_nn.distributed.torch import meshes  # torch.distributed.tensor is loaded by now

    return meshes.each_on_its_own(*arguments, **options)


def has_lengths(x: Any) -> bool:
    """Return whether x is a batch of series of several lengths: a PackedSequence or a jagged nested tensor."""
    return isinstance(x, PackedSequence) or (isinstance(x, Tensor) and x.is_nested and x.layout is torch.jagged)


def each_to_its_length(owner: str, x: Any, forward: Callable[[Tensor], Tensor], dim: int, looks_ahead: bool) -> Any:
    """Return a layer's results for series of several lengths, the same as for each series alone, in the form of x.

    A causal layer computes all series at once, the shorter ones continued by their last samples: a jump to 0 would
    leave rounding errors. A layer that looks ahead computes each series alone.

    Args:
        owner: The layer, for messages.
        x: A PackedSequence of samples, [samples, *features], which the layer gets as [batch, *features] with its time
            axis inserted at `dim`; or a jagged nested tensor whose ragged axis is `dim`.
        forward: The layer for a batch of series of one length: its class's own `forward`, not a subclass's, which has
            called this function and would be run twice.
        dim: The layer's time axis.
        looks_ahead: Whether a result depends on later samples.

    Raises:
        ValueError: The ragged axis is not `dim`, or the layer does not return a result for every sample.
    """
    is_packed = isinstance(x, PackedSequence)
    axis = errors.axis(owner, dim, x.data.ndim + 1 if is_packed else x.ndim)
    jagged = None if is_packed else _ragged_first(owner, x, axis)
    values, row, time = _packed(x) if jagged is None else _jagged(jagged)
    lengths = torch.bincount(row, minlength=0 if is_packed else x.shape[0])
    n = max([1, *lengths.tolist()])
    where = row * n + time
    padded = _continued(values, where, lengths, n)
    where = where.to(values.device)
    # A packed sequence's time axis is inserted; a jagged tensor's was exchanged with the first axis behind the batch.
    padded = padded.movedim(1, axis) if is_packed else padded.transpose(1, axis)

    def of(series: Tensor) -> Tensor:
        y = forward(series)
        if y.shape[axis] != series.shape[axis]:
            raise ValueError(
                f"{owner}(series of several lengths): needs a result for every sample, and makes {y.shape[axis]} of "
                f"{series.shape[axis]}; take stride=1 and padding='causal' or 'same', or pass the series one by one."
            )
        return y

    if looks_ahead and len(lengths):
        each = zip(padded.split(1, int(axis == 0)), lengths.tolist(), strict=True)
        results = [of(one.narrow(axis, 0, length)).movedim(axis, -1) for one, length in each]
        y = torch.cat([F.pad(one, (0, n - one.shape[-1])) for one in results]).movedim(-1, axis)
    else:
        y = of(padded)
    y = y.movedim(axis, 1) if is_packed else y.transpose(axis, 1)
    out = y.flatten(0, 1).index_select(0, where)
    if jagged is None:
        return PackedSequence(out, *x[1:])
    # With the offsets of x, so that the result can be added to x.
    found = torch.nested.nested_tensor_from_jagged(out, offsets=jagged.offsets())
    return found.transpose(1, axis)


def _continued(values: Tensor, where: Tensor, lengths: Tensor, n: int) -> Tensor:
    """Return series of several lengths as series of n samples, [batch, n, *features], continued by their last samples.

    Args:
        values: The samples of all series, [samples, *features].
        where: For each sample its series times n plus its time step, [samples].
        lengths: The length of each series, [batch].
        n: The greatest length.
    """
    batch, features = len(lengths), values.shape[1:]
    if not len(values):
        return (
            values.new_zeros(batch * n, *features)
            .index_copy(0, where.to(values.device), values)
            .unflatten(0, (batch, n))
        )
    source = torch.zeros(batch * n, dtype=torch.int64).index_copy(0, where, torch.arange(len(values)))
    source = source.unflatten(0, (batch, n))
    last = source.gather(1, (lengths - 1).clamp(min=0)[:, None])
    source = torch.where(torch.arange(n) < lengths[:, None], source, last)
    return values.index_select(0, source.flatten().to(values.device)).unflatten(0, (batch, n))


def _packed(x: PackedSequence) -> tuple[Tensor, Tensor, Tensor]:
    """Return the samples of a PackedSequence, [samples, *features], and the series and time step of each, [samples]."""
    counts = x.batch_sizes
    time = torch.arange(len(counts)).repeat_interleave(counts)
    return x.data, torch.arange(len(time)) - (counts.cumsum(0) - counts)[time], time


def _ragged_first(owner: str, x: Tensor, axis: int) -> Any:
    """Return a jagged tensor, contiguous, with its ragged axis, `axis`, exchanged with axis 1.

    Raises:
        ValueError: The ragged axis is another one.
    """
    ragged = next(k for k, size in enumerate(x.shape) if not isinstance(size, int))
    if axis != ragged:
        raise ValueError(
            f"{owner}(x with the ragged axis {ragged}): needs the series along the layer's time axis, {axis}; pass "
            f"x.transpose({ragged}, {axis}), or dim={ragged} to the layer."
        )
    x = x.transpose(1, axis)
    return x if x.is_contiguous() else x.contiguous()


def _jagged(x: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the samples of a jagged tensor, [samples, *features], and the series and time step of each, [samples].

    The ragged axis is the first behind the batch.
    """
    starts = x.offsets().cpu()
    row = torch.arange(len(starts) - 1).repeat_interleave(starts.diff())
    return x.values(), row, torch.arange(len(row)) - starts[row]


class PartsState:
    """A state of several parts, tensors and other states. A state is never written to, and is a pytree."""

    __slots__ = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors of the state, the weights included; the same at every step."""
        parts, _ = self._flat()
        return sum(each.numel() * each.element_size() if isinstance(each, Tensor) else each.nbytes for each in parts)

    def to(self, device: torch.device | str | int) -> Self:
        """Return the state on another device, see `StreamState.to`."""
        return self._mapped(lambda each: each.to(device))

    def detach(self) -> Self:
        """Return the state without its autograd graph."""
        return self._mapped(lambda each: each.detach())

    def renew(self, weights: Self) -> Self:
        """Return this state, detached, with the weights of another state, which belong to its alpha.

        The states among the parts are renewed, see `StreamState.renew`; the tensors stay as they were computed.
        """
        others = iter(weights._flat()[0])
        return self._mapped(lambda one, other: one.detach() if isinstance(one, Tensor) else one.renew(other), others)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the state in memory of its own, with the same autograd graph."""
        return self._mapped(lambda each: each.clone() if isinstance(each, Tensor) else copy.deepcopy(each, memo))

    def _mapped(self, change: Callable[..., Any], *others: Iterable[Any]) -> Self:
        """Return a state with change(part, *others) in place of each part; `others` yield a value for each part."""
        parts, structure = self._flat()
        changed = [None if one is None else change(one, *each) for one, *each in zip(parts, *others, strict=True)]
        found: Self = _pytree.tree_unflatten(changed, structure)
        return found

    def _flat(self) -> tuple[list[Any], _pytree.TreeSpec]:
        """Return the parts of the state, tensors and states, in the order of its pytree, and the pytree's structure."""
        return _pytree.tree_flatten(self, is_leaf=lambda each: each is not self and hasattr(each, "renew"))


class LayerState(PartsState):
    """A state of several parts, the first of which is the state of a fractional derivative; see `StreamState`."""

    __slots__ = ()

    @property
    def step(self) -> int:
        """How many samples the state has seen."""
        found: int = self._first.step
        return found

    @property
    def horizon(self) -> int:
        """How many steps the state serves."""
        found: int = self._first.horizon
        return found

    @property
    def device(self) -> torch.device:
        """The device of the state's tensors."""
        found: torch.device = self._first.device
        return found

    def counted(self) -> Self:
        """Return the state for programs of `torch.export`, with its step as a tensor; see `StreamState.counted`."""
        return self._mapped(lambda each: each if isinstance(each, Tensor) else each.counted())

    @property
    def _first(self) -> Any:
        """The first part: the state of a fractional derivative, or a state that consists of such states."""
        raise NotImplementedError


def started(
    owner: str,
    given: Definition,
    alpha: Any,
    *,
    bounds: Any,
    learn_alpha: bool,
    shape: Callable[[Shape], Shape],
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> tuple[Definition, Alpha | None]:
    """Return the definition of a layer, and the `Alpha` of its learned order, None where the order is fixed.

    With a learned order the definition's own alpha is the upper bound, a placeholder; see `begun`.

    Args:
        owner: The layer, for messages.
        given: The definition, from `definition_of`.
        alpha: The layer's argument: a number, numbers, or an `Alpha`, which then is the layer's own order.
        bounds: The layer's argument; None is the unit interval around numbers to be learned.
        learn_alpha: Whether numbers are to be learned.
        shape: Maps the shape of `alpha` to the shape that the layer's order must have, or raises ValueError.
        device: The device of a new `Alpha`.
        dtype: The dtype of a new `Alpha`'s parameter.

    Raises:
        TypeError: alpha is a tensor, or a module that is no `Alpha`.
        ValueError: alpha or bounds are out of range, or alpha has a shape that does not fit the layer.
    """
    check_no_module(owner, "alpha", alpha)
    make = partial(Alpha, owner=owner, device=device, dtype=dtype)
    return begun(owner, given, alpha, Alpha, make, bounds=bounds, learn_alpha=learn_alpha, shape=shape)


def check_no_module(owner: str, argument: str, given: Any) -> None:
    """Raise TypeError where an argument that should be numbers or an `Alpha` is another module."""
    if isinstance(given, nn.Module) and not isinstance(given, Alpha):
        raise TypeError(
            f"{owner}({argument} of type {type(given).__name__}): needs numbers or an Alpha; make your module a "
            "subclass of Alpha, whose call returns the orders."
        )


L = TypeVar("L", bound=nn.Module)


def place_of(layer: type[nn.Module], module: Any, kind: type[nn.Module]) -> dict[str, Any]:
    """Return the device and dtype of a module of torch as keyword arguments, for a layer made from it.

    Args:
        layer: The layer's class.
        module: The module of torch, whose weights the layer is to have.
        kind: Torch's class that `layer` stands in for.

    Raises:
        TypeError: `module` is no `kind`, or is a `layer`.
        ValueError: The weights of a lazy module have no shape yet.
    """
    owner, theirs = layer.__name__, f"torch.nn.{kind.__name__}"
    if not isinstance(module, kind) or isinstance(module, layer):
        raise TypeError(
            f"{owner}.from_torch(module of type {type(module).__name__}): needs a {theirs}; pass one"
            + (", or copy the layer with copy.deepcopy." if isinstance(module, layer) else ".")
        )
    if any(is_lazy(parameter) for parameter in module.parameters()):
        raise ValueError(
            f"{owner}.from_torch({type(module).__name__}): needs weights that have a shape; call the module once first."
        )
    weight = next(module.parameters())
    return {"device": weight.device, "dtype": weight.dtype}


def with_weights_of(module: nn.Module, layer: L, alpha: Any) -> L:
    """Return `layer` with the parameters and training flag of a module of torch; parameters frozen there become frozen.

    Orders aside, the layer's parameters must have the same names as torch's.

    Args:
        module: The module of torch.
        layer: The layer, which is changed in place.
        alpha: The layer's argument: an `Alpha` keeps its own training flag, for it may belong to another layer too.

    Raises:
        ValueError: A weight has another shape than torch's, torch has none of that name, or a hook makes it.
    """
    orders = {id(each) for part in layer.modules() if isinstance(part, Alpha) for each in part.parameters()}
    with torch.no_grad():
        for name, own in layer.named_parameters():
            if id(own) not in orders:
                value, is_frozen = _weight_of(type(layer).__name__, module, name)
                if value.shape != own.shape:
                    raise ValueError(
                        f"{type(layer).__name__}.from_torch({type(module).__name__}): needs {name} of shape "
                        f"{tuple(own.shape)}; torch's has {tuple(value.shape)}, leave out the keyword that changes it."
                    )
                own.copy_(value)
                own.requires_grad_(not is_frozen)
    for part in layer.modules():
        part.training = part.training if part is alpha else module.training
    return layer


def _weight_of(owner: str, module: nn.Module, name: str) -> tuple[Tensor, bool]:
    """Return the present value of a parameter of a module of torch, and whether the parameter is frozen.

    The value of a parametrised parameter, such as by weight norm, is the computed one.

    Args:
        owner: The class whose `from_torch` was called, for messages.
        module: The module of torch.
        name: The parameter's path in the module, such as "linear.weight".

    Raises:
        ValueError: The module has no such parameter, or a hook computes it before each call.
    """
    call, (path, _, leaf) = f"{owner}.from_torch({type(module).__name__})", name.rpartition(".")
    part = dict(module.named_modules()).get(path)
    value = getattr(part, leaf, None)
    if value is None:
        raise ValueError(f"{call}: needs a module with {name}; pass one, or leave out the keyword that asks for it.")
    if part is not None and parametrize.is_parametrized(part, leaf):
        originals = part.parametrizations[leaf].parameters()  # type: ignore[index, union-attr]
        return value, not any(original.requires_grad for original in originals)
    if not isinstance(value, nn.Parameter):
        raise ValueError(
            f"{call}: needs {name} to be a parameter, and a hook makes this one anew at each call; remove it first "
            f"with prune.remove(module, {leaf!r}), remove_weight_norm(module) or remove_spectral_norm(module) of "
            "torch.nn.utils."
        )
    return value, not value.requires_grad


def check_images(owner: str, x: Tensor, channels: int, axes: int) -> None:
    """Raise unless x is a dense tensor, [batch, channels, ...] or [channels, ...], where `...` are `axes` axes."""
    check_dense(owner, "input", x)
    if x.ndim not in (axes + 1, axes + 2) or x.shape[-axes - 1] != channels:
        shape = f"{channels}, n" if axes == 1 else f"{channels}, height, width"
        raise ValueError(
            f"{owner}(input of shape {tuple(x.shape)}): needs [batch, {shape}] or [{shape}]; move the channels there "
            "with input.movedim, or make the layer with another in_channels."
        )


def arguments_of(module: nn.Conv1d | nn.Conv2d) -> dict[str, Any]:
    """Return the constructor's arguments of a convolution of torch, by name."""
    names = (
        "in_channels",
        "out_channels",
        "kernel_size",
        "stride",
        "padding",
        "dilation",
        "groups",
        "padding_mode",
    )
    return {"bias": module.bias is not None, **{name: getattr(module, name) for name in names}}


def param_groups(
    module: nn.Module, lr: float | Tensor, alpha_lr: float | Tensor, **defaults: Any
) -> list[dict[str, Any]]:
    """Return two groups for an optimizer: the weights, and the orders with a learning rate of their own.

    An order moves slowly beside the weights of a network, in the free number that is mapped into its bounds; ten
    times the weights' learning rate is a start. Weight decay would draw it to the middle of its bounds: orders have
    none.

    The groups hold every parameter of the module once, in its own order, also those that are frozen, as
    `module.parameters()` does; an optimizer passes over them for as long as they have no gradient.

    Args:
        module: A module with learned orders, which are the parameters of its `Alpha` and `ProbabilisticAlpha`.
        lr: Learning rate of the weights.
        alpha_lr: Learning rate of the orders.
        **defaults: Further options of the optimizer, for both groups; `weight_decay` for the weights.

    Returns:
        [weights, orders], dictionaries as `torch.optim.Optimizer` takes them. Each has a `name`.

    Raises:
        ValueError: The module has no learned order, or a learning rate is negative.
        TypeError: `module` is no module, or a learning rate is no number.

    Examples:
        >>> net = torch.nn.Sequential(
        ...     FractionalDifference(3, orders=2), torch.nn.Conv1d(6, 4, 5)
        ... )
        >>> optimizer = torch.optim.AdamW(
        ...     param_groups(net, lr=5e-3, alpha_lr=3e-2, weight_decay=1e-2)
        ... )
        >>> {
        ...     group["name"]: (group["lr"], group["weight_decay"])
        ...     for group in optimizer.param_groups
        ... }
        {'weights': (0.005, 0.01), 'orders': (0.03, 0.0)}
    """
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"param_groups(module of type {type(module).__name__}): needs a torch module; pass the network."
        )
    if "params" in defaults or "name" in defaults:
        raise TypeError("param_groups: makes the entries 'params' and 'name' itself; leave them out.")
    rates = [
        rate if isinstance(rate, Tensor) else errors.real("param_groups", argument, rate, 0.0)
        for argument, rate in (("lr", lr), ("alpha_lr", alpha_lr))
    ]
    orders = {id(each) for part in module.modules() if isinstance(part, Alpha) for each in part.parameters()}
    if not orders:
        raise ValueError(
            f"param_groups({type(module).__name__}): needs a learned order; make a layer with learn_alpha=True, or "
            "pass module.parameters() to the optimizer."
        )
    parameters = list(module.parameters())
    return [
        {**defaults, "name": "weights", "params": [p for p in parameters if id(p) not in orders], "lr": rates[0]},
        {
            **defaults,
            "name": "orders",
            "params": [p for p in parameters if id(p) in orders],
            "lr": rates[1],
            "weight_decay": 0.0,
        },
    ]
