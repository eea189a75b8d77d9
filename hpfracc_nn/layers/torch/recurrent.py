"""LSTM and GRU whose cells remember by a power law, with torch's parameters, layers, directions and packed series.

h is a cell's output, and c an LSTM's cell state; a GRU's h is its cell state too. A memory is a weighted sum of past
cell states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.streaming import HORIZON, StreamSource, slice_shape, versioned
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place, is_spread
from hpfracc_nn.fractional.torch.streaming import StreamState
from hpfracc_nn.layers.order import averaging
from hpfracc_nn.layers.shapes import unit_orders
from hpfracc_nn.layers.torch.fractional import Ordered, PartsState, each_on_its_own, place_of, started, with_weights_of
from hpfracc_nn.layers.torch.recurrence import CELLS, Cell, Inputs, Recurrence, compiled, lag_weights, operation
from hpfracc_nn.selection import BackendManager, given_manager

Hidden = tuple[Tensor, Tensor]  # h and c, or h twice
H = TypeVar("H", bound=Hidden | Tensor)  # a layer's argument `hx`, the initial state
# The arguments that determine which weights there are, and their shapes.
_OF_WEIGHTS = ("input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size")


class Recurrent(Ordered, nn.RNNBase, Generic[H]):
    """The base class of `FractionalLSTM` and `FractionalGRU`: parameters, layers, directions and single steps.

    Neither is a subclass of torch's LSTM or GRU, whose every instance the compiler leaves out of its graphs.

    Attributes:
        cell: The formulas of one step.
        ordinary: Torch's class that the layer stands in for.
    """

    cell: ClassVar[Cell]
    ordinary: ClassVar[type[nn.RNNBase]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        alpha: float | Sequence[float] | Alpha = 0.5,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        memory: int | None = None,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        owner = type(self).__name__
        check_place(owner, device, dtype)
        options = (
            errors.count(owner, "input_size", input_size),
            errors.count(owner, "hidden_size", hidden_size),
            errors.count(owner, "num_layers", num_layers),
            errors.claim(owner, "bias", bias),
            errors.claim(owner, "batch_first", batch_first),
            errors.part(owner, "dropout", dropout),
            errors.claim(owner, "bidirectional", bidirectional),
            errors.count(owner, "proj_size", proj_size, 0),
        )
        super().__init__(self.ordinary.__name__, *options, device, dtype)
        definition, order = started(
            owner,
            GrunwaldLetnikov(0.5),
            alpha,
            bounds=bounds,
            learn_alpha=learn_alpha,
            shape=lambda given: unit_orders(owner, given, "hidden_size", self.hidden_size),
            device=device,
            dtype=dtype,
        )
        self.hold(averaging(owner, definition), order)
        self.memory = None if memory is None else errors.count(owner, "memory", memory)
        self.site = given_manager(owner, manager).site(operation(self.memory), "torch", owner)

    def reset_parameters(self) -> None:
        """Draw the weights anew, as torch does; the order stays."""
        bound = self.hidden_size**-0.5
        for name in self._flat_weights_names:
            nn.init.uniform_(getattr(self, name), -bound, bound)

    @classmethod
    def from_torch(cls, module: nn.RNNBase, **options: Any) -> Self:
        """Return the layer with the options, weights, device and dtype of torch's.

        Args:
            module: Torch's layer of the same name, `nn.LSTM` or `nn.GRU`; its weights are copied.
            options: Keyword arguments of the layer; what is not given is torch's.

        Raises:
            TypeError: `module` is no such layer.
            ValueError: An option is not what the weights are for, such as another `hidden_size`.
        """
        place = place_of(cls, module, cls.ordinary)
        names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"]
        if module.proj_size:
            names.append("proj_size")
        for name in _OF_WEIGHTS:
            own = getattr(module, name)
            if options.get(name, own) != own:
                raise ValueError(
                    f"{cls.__name__}.from_torch({name}={options[name]!r}): needs {name}={own!r}, which the module's "
                    "weights are for; leave it out, or make another layer."
                )
        arguments = {name: getattr(module, name) for name in names}
        return with_weights_of(module, cls(**{**arguments, **place, **options}), options.get("alpha"))

    def extra_repr(self) -> str:
        learns = f"learn_alpha=True, bounds={self.definition.bounds}"
        alpha = learns if self.learn_alpha else f"alpha={self.definition.alpha}"
        return f"{super().extra_repr()}, {alpha}, memory={self.memory}"

    def _on_mesh(self, forward: Callable[..., Any], x: Tensor, hx: H | None) -> Any:
        """Return what `forward` returns, for a DTensor x that is sharded along the batch: each process has its part.

        Raises:
            ValueError: `hx` is not None.
        """
        owner = type(self).__name__
        if hx is not None:
            raise ValueError(
                f"{owner}(input: DTensor, hx): needs hx=None with a DTensor; pass input.to_local() and the part of hx "
                "that belongs to it."
            )
        return each_on_its_own(owner, self, forward, [x], [int(not self.batch_first)] if x.ndim == 3 else [], later=1)

    def _forward(self, x: Any, hx: H | None) -> tuple[Any, Hidden]:
        if torch.jit.is_tracing():
            raise RuntimeError(
                f"{type(self).__name__}(input): torch.jit.trace cannot follow it; call it outside the traced part, or "
                "take torch.export."
            )
        series = opened(type(self).__name__, x, self.batch_first, self.input_size)
        self._check_dtype("input", series.x)
        start = None if hx is None else self._start(series, self._pair(hx))
        alpha = self._order_on(series.x.device)
        out, finals, directions = series.x, [], 2 if self.bidirectional else 1
        for layer in range(self.num_layers):
            if layer and self.dropout:
                out = F.dropout(out, self.dropout, self.training)
            numbers = range(layer * directions, (layer + 1) * directions)
            found = [self._directed(series, out, number, start, alpha) for number in numbers]
            out = found[0][0] if len(found) == 1 else torch.cat([each for each, _ in found], dim=-1)
            finals += [final for _, final in found]
        h, c = [torch.stack(each) for each in zip(*finals, strict=True)]
        return series.closed(out, self.batch_first), (series.restored(h), series.restored(c))

    def _directed(
        self, series: Series, x: Tensor, number: int, start: Hidden | None, alpha: Tensor
    ) -> tuple[Tensor, Hidden]:
        """Return the outputs of one layer in one direction, [n, batch, outputs], and the last h and c of each series.

        Args:
            series: The batch, which knows the length of each series.
            x: The layer's input, [n, batch, inputs].
            number: Layer times directions plus direction, 0 forwards and 1 backwards.
            start: Initial h and c of all layers and directions, [layers * directions, batch, ...]; None: zeros.
            alpha: The present orders, [] or [units], float64.
        """
        is_reversed = self.bidirectional and number % 2 == 1
        if is_reversed:
            x = series.reversed(x)
        weights = self._weights(number)
        projected = F.linear(x, weights["weight_ih"], weights.get("bias_ih"))
        with _exactly(x.device):
            begin = None if start is None else (start[0][number], start[1][number])
            given = self._inputs(projected, weights, alpha, begin)
            recurrence = Recurrence(self.cell, self.site, self.memory, self.definition)
            out, values = compiled(recurrence, given) if torch.compiler.is_compiling() else recurrence(given)
        out, values = out.to(projected.dtype), values.to(projected.dtype)
        final = series.last(out), series.last(values)
        return (series.reversed(out) if is_reversed else out), final

    def _weights(self, number: int) -> dict[str, Tensor]:
        """Return the parameters of one layer in one direction by torch's names without suffix, such as "weight_ih".

        `number` is layer times directions plus direction.
        """
        return {name.partition("_l")[0]: getattr(self, name) for name in self._all_weights[number]}

    def _pair(self, hx: H) -> Hidden:
        """Return the argument `hx` of a call, the initial state, as a pair (h, cell state)."""
        raise NotImplementedError

    def _inputs(self, projected: Tensor, weights: dict[str, Tensor], alpha: Tensor, start: Hidden | None) -> Inputs:
        """Return the Inputs of a recurrence, in float32 where the input has half precision.

        Args:
            projected: The input's part of the gates, [n, batch, gates * units].
            weights: The layer's parameters by name.
            alpha: The present orders, [] or [units], float64.
            start: Initial h and cell state, [batch, ...] each; None: zeros.
        """
        dtype = torch.promote_types(projected.dtype, torch.float32)
        if start is None:
            shape = projected.shape[1:-1]
            zeros = projected.new_zeros(*shape, self.proj_size or self.hidden_size)
            start = zeros, (projected.new_zeros(*shape, self.hidden_size) if self.proj_size else zeros)
        hidden = weights.get("bias_hh")
        projection = weights.get("weight_hr")
        return Inputs(
            projected.to(dtype),
            start[0].to(dtype),
            start[1].to(dtype),
            alpha,
            weights["weight_hh"].to(dtype),
            None if hidden is None else hidden.to(dtype),
            None if projection is None else projection.to(dtype),
        )

    def _order_on(self, device: torch.device) -> Tensor:
        if self.learn_alpha:
            return self.order.beside_local(type(self).__name__)
        return torch.tensor(self.definition.alpha, dtype=torch.float64, device=device)

    def _start(self, series: Series, hx: Hidden) -> Hidden:
        """Return the initial state (h, c), [layers * directions, batch, ...] each, with a batch axis in any case.

        Args:
            series: The input, which has the size of the batch, or none.
            hx: The initial state of a call, as `_pair` returns it.

        Raises:
            TypeError: `hx` is no pair.
            ValueError: h or c has another shape.
        """
        count, owner = len(self._all_weights), type(self).__name__
        if not isinstance(hx, tuple | list) or len(hx) != 2:
            raise TypeError(f"{owner}(hx of type {type(hx).__name__}): needs a pair of tensors; pass (h, c).")
        batch = (series.x.shape[1],) if series.is_batched else ()
        found = []
        for each, width in zip(hx, (self.proj_size or self.hidden_size, self.hidden_size), strict=True):
            wanted = (count, *batch, width)
            if not isinstance(each, Tensor) or tuple(each.shape) != wanted:
                given = f"shape {tuple(each.shape)}" if isinstance(each, Tensor) else f"type {type(each).__name__}"
                raise ValueError(
                    f"{owner}(hx of {given}): needs shape {wanted}, layers times directions first; "
                    "pass what the layer returned for a batch of the same size, or None for zeros."
                )
            found.append(each if series.is_batched else each[:, None])
        return found[0], found[1]

    def _check_dtype(self, name: str, x: Tensor) -> None:
        owner, weight = type(self).__name__, _first_weight(self)
        computed_in(owner, x)  # raises where the dtype is none of ours
        if x.dtype != weight.dtype and not _is_cast(x.device):
            raise ValueError(
                f"{owner}({name} of dtype {x.dtype}): needs the dtype of its weights, {weight.dtype}; "
                f"convert with {name}.to({weight.dtype}), or the layer with layer.to({x.dtype})."
            )

    def initial_state(
        self,
        shape: Sequence[int],
        *,
        hx: H | None = None,
        horizon: int = HORIZON,
        device: torch.device | str | None = None,
    ) -> RecurrentState:
        """Return the state before the first sample, for `step`.

        The state holds the weights of the present alpha, traced where alpha is learned and gradients are on.

        Args:
            shape: Of x without its time axis: (batch, input_size) or (input_size,).
            hx: The initial state, as in a call: (h, c) of an LSTM, h of a GRU; None is 0.
            horizon: The longest series that the state will serve, where the whole past counts; a step costs in
                proportion to the logarithm of the horizon.
            device: Where the samples will be; None is that of the weights.

        Raises:
            ValueError: The layer is bidirectional, or an argument is out of range.

        Examples:
            >>> layer = FractionalLSTM(3, 16)
            >>> state = layer.initial_state((8, 3))
            >>> y, state = layer.step(torch.randn(8, 3), state)
            >>> y.shape
            torch.Size([8, 16])
        """
        owner = f"{type(self).__name__}.initial_state"
        shape = slice_shape(owner, shape)
        if not 1 <= len(shape) <= 2 or shape[-1] != self.input_size:
            raise ValueError(
                f"{owner}(shape={shape}): needs (batch, {self.input_size}) or ({self.input_size},), the shape of x "
                "without its time axis; pass for example x.shape[1:]."
            )
        if self.bidirectional:
            raise ValueError(
                f"{owner}: needs bidirectional=False for step and run, because the other direction begins at the "
                "last sample; use the whole series."
            )
        horizon = errors.count(owner, "horizon", horizon)
        weight = _first_weight(self)
        like = torch.empty(0, device=weight.device if device is None else device)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        batch, width = shape[:-1], self.proj_size or self.hidden_size
        if hx is not None:
            series = Series(like.new_empty(1, *(batch or (1,)), self.input_size), is_batched=bool(batch))
            pair = self._start(series, self._pair(hx))
            start = tuple(each.to(dtype) if batch else each[:, 0].to(dtype) for each in pair)
        hs, memories, alpha = [], [], self._order_on(like.device)
        for layer in range(self.num_layers):
            memory = self._empty_memory(owner, alpha, (*batch, self.hidden_size), horizon, like.device)
            hs.append(like.new_zeros(*batch, width, dtype=dtype) if hx is None else start[0][layer])
            memories.append(memory if hx is None else remembered(owner, start[1][layer], memory, self._source()))
        return RecurrentState(0, tuple(hs), tuple(memories))

    def _empty_memory(
        self, owner: str, alpha: Tensor, shape: tuple[int, ...], horizon: int, device: torch.device
    ) -> streaming.StreamState | Recent:
        if self.memory is not None:
            return Recent.empty(alpha, self.memory, shape, device, self._source())
        definition = replace(self.definition, alpha=alpha) if self.learn_alpha else self.definition
        # An initial state is one sample more. With one or without, the horizon is the same: a state serves `horizon`
        # steps, and can renew any other.
        return streaming.initial_state(
            owner, definition, shape, horizon=horizon + 1, device=device, source=self._source()
        )

    def step(self, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the outputs of the next step and the state after it; `state` itself stays as it is.

        Fed one sample after another, the outputs are those of the whole series, to 1e-10 in float64. Time and memory
        of a step do not grow with the number of steps. Without `torch.no_grad` the graph does.

        Args:
            x: One time slice, [batch, input_size] or [input_size].
            state: From `initial_state` or the step before.

        Raises:
            ValueError: x has another shape or dtype, or the state has reached its horizon or is of another layer.
            TypeError: x is no tensor, or `state` no state.
        """
        owner = f"{type(self).__name__}.step"
        check_dense(owner, "x", x)
        self._check_state(owner, state, 1)
        wanted = (*state.h[0].shape[:-1], self.input_size)
        if tuple(x.shape) != wanted:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs one time slice of shape {wanted}; "
                "pass the samples of one step, without a time axis."
            )
        self._check_dtype("x", x)
        return self._stepped(owner, x, state)

    def _check_state(self, owner: str, state: Any, steps: int) -> None:
        """Raise TypeError or ValueError unless `state` fits this layer, and its horizon allows `steps` more steps."""
        if not isinstance(state, RecurrentState) or len(state.h) != self.num_layers:
            raise TypeError(
                f"{owner}(state of type {type(state).__name__}): needs a state of {self.num_layers} layers; "
                "pass what initial_state returned, or step or run."
            )
        sizes = self.proj_size or self.hidden_size, self.hidden_size
        check_state(owner, state, *sizes, self.memory, self._source(), steps)

    def _stepped(self, owner: str, x: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return the outputs of the next step and the state after it, as `step` does, for arguments already checked."""
        out, hs, memories = x, [], []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                out = F.dropout(out, self.dropout, self.training)
            weights = self._weights(layer)
            projected = F.linear(out, weights["weight_ih"], weights.get("bias_ih"))
            with _exactly(x.device):
                memory = state.memory[layer]
                m = recalled(owner, memory, state.h[layer].dtype, self._source())
                given = self._inputs(projected[None], weights, projected.new_empty(0), (state.h[layer], m))
                h, value = self.cell.step(given, given.projected[0], given.h, m)
                memories.append(remembered(owner, value, memory, self._source()))
            hs.append(h)
            out = h.to(projected.dtype)
        return out, RecurrentState(state.step + 1, tuple(hs), tuple(memories))

    def run(self, x: Tensor, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState]:
        """Return the outputs for the next samples of a series and the state after them; see `FractionalLayer.run`.

        A run takes one `step` after another, each of which autograd follows, and so costs more than `forward`.

        Args:
            x: The next samples, as `forward` takes them, but neither packed nor nested; any number.
            state: From `initial_state`, `step` or the block before; None begins a series, of at most 2**20 samples.

        Raises:
            ValueError: As in `initial_state` and `step`.
            TypeError: As in `initial_state` and `step`.
        """
        owner = f"{type(self).__name__}.run"
        check_dense(owner, "x", x)
        if not 2 <= x.ndim <= 3:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs two axes, time and features, or three with the batch; "
                "pass x[None] or x.flatten(1, -2)."
            )
        axis = 1 if self.batch_first and x.ndim == 3 else 0
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs {self.input_size} features on the last axis; move them "
                "there with x.movedim."
            )
        if state is None:
            state = self.initial_state((*x.shape[:axis], *x.shape[axis + 1 :]), device=x.device)
        outs = []
        n, beside = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])
        self._check_state(owner, state, n)
        wanted = (*state.h[0].shape[:-1], self.input_size)
        if beside != wanted:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs {wanted} besides its time axis, {axis}; pass the next "
                "samples of the same series, or None as the state to begin."
            )
        self._check_dtype("x", x)
        for each in x.unbind(axis):
            out, state = self._stepped(owner, each, state)
            outs.append(out)
        if outs:
            return torch.stack(outs, axis), state
        return x.new_empty(*x.shape[:-1], self.proj_size or self.hidden_size), state

    def _source(self) -> StreamSource:
        return StreamSource(type(self).__name__, self.definition, self.learn_alpha, 1.0)


def _first_weight(module: nn.RNNBase) -> Tensor:
    found = module.weight_ih_l0
    assert isinstance(found, Tensor)
    return found


def _is_cast(device: torch.device) -> bool:
    """Return whether autocast is on for a device; never for the meta device, for which torch raises."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _exactly(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which autocast is off."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)


class FractionalLSTM(Recurrent[Hidden]):
    """`torch.nn.LSTM` whose forget gate looks at a power-law average of all past cell states, not at the last one.

        c_t = f_t * m_t + i_t * tanh(...),
        m_t = sum over k >= 1 of a_k c_(t-k),    a_k = -w_k(alpha),

    where w_k are Grünwald's weights, `(1 - z)**alpha = sum of w_k z**k`; gates, candidate and output
    `h_t = o_t * tanh(c_t)` are torch's. For 0 < alpha <= 1 no a_k is negative and they add up to 1: m is an average, in
    which lag k counts about `alpha k**(-1-alpha) / Gamma(1 - alpha)`. At alpha = 1 it is c_(t-1), and the layer is
    `torch.nn.LSTM`. c_0 is the one state before the series; what would be before it is 0, and the weights are not
    divided by the sum of those that are used: m_1 = alpha c_0.

    The paper's cell with a long memory, mLSTM, has no forget gate, c_t = m_t + i_t * tanh(...), sums over the last K
    states and has d = alpha between 0 and 1/2, which its dynamic form computes from the inputs. Here the gate stays, so
    that torch's LSTM is a special case, and alpha is a parameter.

    With `memory=None` the whole past counts, in time O(n): by exponentials whose error is below 1e-7 of a weight in
    float32 and 1e-11 in float64, or whatever else the BackendManager picks. With `memory=K` the sum ends at lag K,
    where it is exact; the weights that are left out, about K**-alpha / Gamma(1 - alpha) together, are missing, not
    shared out. A backward pass keeps seven numbers per unit and step beside the inputs.

    Args:
        input_size: Inputs.
        hidden_size: Units.
        num_layers: Layers, each on the outputs of the one before.
        bias: Whether gates have a bias.
        batch_first: Whether inputs and outputs are [batch, n, ...].
        dropout: Of the outputs of all layers but the last, in training.
        bidirectional: Whether a second set of units reads the series from its end.
        proj_size: Outputs per direction, where they are a projection of the units; 0 is none.
        alpha: The order, one for all units of all layers and directions, or a list with one for each of `hidden_size`;
            or an `Alpha` or `ProbabilisticAlpha` of shape [] or [hidden_size], which then is the layer's `order`.
        learn_alpha: Whether alpha is a parameter, `order`; an `Alpha` always is one.
        bounds: Where a learned alpha stays, within (0, 1), which is the default.
        memory: The largest lag that counts, or None for all.
        manager: Who chooses how the past is added up; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        Input [n, batch, input_size], or [n, input_size], or a PackedSequence; hx a pair (h, c), each
        [num_layers * directions, batch, outputs or units] (no batch where the input has none). Output of the same
        layout with directions * outputs at each step, and the pair of the last h and c. Half precision is computed in
        float32. The pair does not hold the past before it: to go on exactly where a series ended use `step`.

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> layer = FractionalLSTM(3, 16, alpha=0.6, learn_alpha=True)
        >>> out, (h, c) = layer(torch.randn(100, 8, 3))
        >>> out.shape
        torch.Size([100, 8, 16])
    """

    cell: ClassVar[Cell] = CELLS["lstm"]
    ordinary: ClassVar[type[nn.RNNBase]] = nn.LSTM

    def forward(
        self, input: Tensor | PackedSequence, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, Tensor]]:
        """Return the outputs of the last layer at all steps, and the last (h, c) of every layer and direction."""
        if type(input) is not Tensor and is_spread(input):
            return self._on_mesh(FractionalLSTM.forward, input, hx)  # type: ignore[no-any-return, arg-type]
        return self._forward(input, hx)

    def _pair(self, hx: Hidden) -> Hidden:
        return hx

    def _weights(self, number: int) -> dict[str, Tensor]:
        found = super()._weights(number)
        if self.bias:  # both are added before the gates
            found["bias_ih"] = found["bias_ih"] + found.pop("bias_hh")
        return found


class FractionalGRU(Recurrent[Tensor]):
    """`torch.nn.GRU` whose update gate mixes in a power-law average of all past outputs, not the last one.

        h_t = (1 - z_t) * n_t + z_t * m_t,
        m_t = sum over k >= 1 of a_k h_(t-k),    a_k = -w_k(alpha),

    with the weights of `FractionalLSTM`; the gates and n_t, which see h_(t-1), are torch's. At alpha = 1 it is
    `torch.nn.GRU`. The paper has no such cell: it is the same change to a cell that has no state beside its output.

    Args:
        input_size: Inputs.
        hidden_size: Units.
        num_layers: Layers, each on the outputs of the one before.
        bias: Whether gates have a bias.
        batch_first: Whether inputs and outputs are [batch, n, ...].
        dropout: Of the outputs of all layers but the last, in training.
        bidirectional: Whether a second set of units reads the series from its end.
        alpha: The order, one for all units of all layers and directions, or a list with one for each of `hidden_size`;
            or an `Alpha` or `ProbabilisticAlpha` of shape [] or [hidden_size], which then is the layer's `order`.
        learn_alpha: Whether alpha is a parameter, `order`; an `Alpha` always is one.
        bounds: Where a learned alpha stays, within (0, 1), which is the default.
        memory: The largest lag that counts, or None for all.
        manager: Who chooses how the past is added up; None is the process-wide BackendManager.
        device: Of the parameters.
        dtype: Of the parameters; alpha and its weights are computed in float64 whatever it is.

    Shape:
        As of `FractionalLSTM`, with h in place of the pair (h, c).

    Raises:
        ValueError: An argument is out of range, alpha outside 0 < alpha <= 1 among them.
        TypeError: An argument has the wrong type.

    Source: Zhao et al., Do RNN and LSTM have long memory?, ICML 2020, arXiv 2006.03860.

    Examples:
        >>> out, h = FractionalGRU(3, 16, alpha=0.6)(torch.randn(100, 8, 3))
        >>> h.shape
        torch.Size([1, 8, 16])
    """

    cell: ClassVar[Cell] = CELLS["gru"]
    ordinary: ClassVar[type[nn.RNNBase]] = nn.GRU

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        alpha: float | Sequence[float] | Alpha = 0.5,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        memory: int | None = None,
        manager: BackendManager | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            bias,
            batch_first,
            dropout,
            bidirectional,
            alpha=alpha,
            learn_alpha=learn_alpha,
            bounds=bounds,
            memory=memory,
            manager=manager,
            device=device,
            dtype=dtype,
        )

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        """Return the outputs of the last layer at all steps, and the last h of every layer and direction."""
        if type(input) is not Tensor and is_spread(input):
            return self._on_mesh(FractionalGRU.forward, input, hx)  # type: ignore[no-any-return, arg-type]
        out, (h, _) = self._forward(input, hx)
        return out, h

    def _pair(self, hx: Tensor) -> Hidden:
        return hx, hx


class Series(NamedTuple):
    """A batch of series, time first, made of the caller's input.

    Attributes:
        x: The inputs, [n, batch, inputs], padded where lengths differ.
        is_batched: Whether the caller's input has a batch axis.
        packed: The caller's input where it is a PackedSequence, else None.
        lengths: The length of each series of a PackedSequence, on the CPU, else None.
    """

    x: Tensor
    is_batched: bool = True
    packed: PackedSequence | None = None
    lengths: Tensor | None = None

    def reversed(self, x: Tensor) -> Tensor:
        """Return x, [n, batch, ...], with each series reversed in time within its length; padding stays in place."""
        if self.lengths is None:
            return x.flip(0)
        lengths, step = self.lengths.to(x.device), torch.arange(x.shape[0], device=x.device)[:, None]
        index = torch.where(step < lengths, lengths - 1 - step, step)
        return x.gather(0, index[..., None].expand_as(x))

    def last(self, x: Tensor) -> Tensor:
        """Return the last sample of each series in x, [n, batch, ...]: [batch, ...], in memory of its own."""
        if self.lengths is None:
            return x[-1].clone()
        return x[self.lengths.to(x.device) - 1, torch.arange(x.shape[1], device=x.device)]

    def closed(self, out: Tensor, batch_first: bool) -> Any:
        """Return outputs, [n, batch, outputs], in the form of the caller's input: packed, unbatched or batch first."""
        if self.packed is not None:
            _, batch_sizes, order, back = self.packed
            lengths = self.lengths
            assert lengths is not None, "packed series have lengths"
            if order is not None:
                out, lengths = out.index_select(1, order), lengths[order.cpu()]
            return PackedSequence(pack_padded_sequence(out, lengths).data, batch_sizes, order, back)
        if not self.is_batched:
            return out[:, 0]
        return out.transpose(0, 1) if batch_first else out

    def restored(self, final: Tensor) -> Tensor:
        """Return h or c, [layers * directions, batch, ...], without the batch axis if the caller's input has none."""
        return final if self.is_batched else final[:, 0]


def opened(owner: str, x: Any, batch_first: bool, inputs: int) -> Series:
    """Return the caller's input as a Series.

    Args:
        owner: The layer, for messages.
        x: The input: a tensor of two or three axes, or a PackedSequence.
        batch_first: Whether a tensor of three axes has the batch first.
        inputs: The number of features that the layer takes.

    Raises:
        TypeError: x is neither a tensor nor a PackedSequence.
        ValueError: x has another number of axes or of features, or no step.
    """
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x)
        series = Series(padded, packed=x, lengths=lengths)
    else:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{owner}(input of type {type(x).__name__}): needs a torch tensor or a PackedSequence; "
                "pass torch.as_tensor(input)."
            )
        check_dense(owner, "input", x)
        if x.ndim not in (2, 3):
            raise ValueError(
                f"{owner}(input of shape {tuple(x.shape)}): needs three axes, time, batch and inputs, or two without a "
                "batch; add the missing ones with input[:, None]."
            )
        if x.ndim == 2:
            series = Series(x[:, None], is_batched=False)
        else:
            series = Series(x.transpose(0, 1) if batch_first else x)
    if series.x.shape[-1] != inputs:
        raise ValueError(
            f"{owner}(input_size={inputs}): needs {inputs} inputs on the last axis; input has shape "
            f"{tuple(series.x.shape)} with time first, pass input_size={series.x.shape[-1]}."
        )
    if series.x.shape[0] == 0:
        raise ValueError(f"{owner}(input of shape {tuple(x.shape)}): needs at least one step; pass a longer series.")
    return series


@versioned
@dataclass(frozen=True, eq=False)
class Recent(PartsState):
    """A cell's memory with a window of lags: the last cell states themselves, the newest first.

    Attributes:
        weights: a_1, a_2, ..., [window, *c], float64, with *c broadcasting to *shape.
        values: The last cell states, [window, *shape], float64.
        source: The layer that made the memory.
    """

    weights: Tensor
    values: Tensor
    source: StreamSource

    @classmethod
    def empty(
        cls, alpha: Tensor, window: int, shape: tuple[int, ...], device: torch.device, source: StreamSource
    ) -> Recent:
        """Return the memory before the first step, of zeros.

        Args:
            alpha: The orders, [] or broadcasting to `shape`.
            window: The largest lag that counts.
            shape: The shape of a cell state, [*batch, units].
            device: Where the memory will be.
            source: The layer that makes it.
        """
        weights = lag_weights(alpha, window + 1)[..., 1:].movedim(-1, 0).to(device)
        weights = weights.reshape(window, *(1,) * (len(shape) - weights.ndim + 1), *weights.shape[1:])
        return cls(weights, torch.zeros(window, *shape, dtype=torch.float64, device=device), source)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one cell state, [*batch, units]."""
        return tuple(self.values.shape[1:])

    def renew(self, weights: Recent) -> Recent:
        """Return this memory, detached, with the weights of another one."""
        return replace(weights, values=self.values.detach())


@versioned
@dataclass(frozen=True, eq=False)
class RecurrentState(PartsState):
    """The state of a recurrent layer between two steps, made by the layer's `initial_state`.

    A state is a pytree of tensors, and is never written to: `step` returns a new state. A state takes as much memory
    after a million steps as at the first: for each unit some 75 numbers where the whole past counts, and K where a
    window of K does.

    Attributes:
        step: How many samples the state has seen.
        h: The last output of each layer, [*batch, outputs].
        memory: The memory of each layer's cell.
    """

    step: int
    h: tuple[Tensor, ...]
    memory: tuple[StreamState | Recent, ...]


def check_state(
    owner: str, state: RecurrentState, outputs: int, units: int, window: int | None, source: StreamSource, steps: int
) -> None:
    """Raise ValueError unless a state fits the layer, and its horizon allows `steps` more steps.

    Args:
        owner: The layer's public method, for messages.
        state: The state, with the right number of layers.
        outputs: The layer's number of outputs.
        units: The layer's number of units.
        window: The largest lag that counts, or None.
        source: The layer.
        steps: How many steps will be taken.
    """
    batch = state.h[0].shape[:-1]
    for h, memory in zip(state.h, state.memory, strict=True):
        own = memory.values.shape[0] if isinstance(memory, Recent) else None
        sizes = h.shape[-1], memory.shape[-1], own
        if sizes != (outputs, units, window) or h.shape[:-1] != batch or memory.shape[:-1] != batch:
            raise ValueError(
                f"{owner}(state with {sizes[0]} outputs and {sizes[1]} units, memory={own}): needs {outputs} and "
                f"{units} of a layer with memory={window}; pass what its own initial_state returned."
            )
        if isinstance(memory, Recent):
            if memory.source != source:
                raise ValueError(
                    f"{owner}(state of {memory.source}): needs a state of this one, {source}; "
                    "pass what its own initial_state returned."
                )
        elif state.step + steps > memory.horizon - 1:  # an initial state is one sample more
            raise ValueError(
                f"{owner}(step {state.step + steps}): needs at most horizon={memory.horizon - 1} steps, for which the "
                "state was made; make it by initial_state with a larger horizon."
            )


def recalled(owner: str, memory: StreamState | Recent, dtype: torch.dtype, source: StreamSource) -> Tensor:
    """Return the memory m of the next step, [*batch, units] in `dtype`: the weighted sum of the past cell states."""
    if isinstance(memory, Recent):
        return (memory.weights * memory.values).sum(0).to(dtype)
    # The difference's next sample is the next cell state minus the memory; for a cell state of 0, minus the memory.
    nothing = torch.zeros(memory.shape, dtype=torch.float64, device=memory.device)
    return -streaming.step(owner, nothing, memory, source)[0].to(dtype)


def remembered(owner: str, value: Tensor, memory: StreamState | Recent, source: StreamSource) -> StreamState | Recent:
    """Return the memory after one more cell state, `value`, [*batch, units]."""
    if isinstance(memory, Recent):
        return replace(memory, values=torch.cat([value[None].to(memory.values.dtype), memory.values[:-1]]))
    return streaming.step(owner, value, memory, source)[1]


streaming.register_tree(
    Recent, ("weights", "values"), lambda each: each.source, lambda parts, source: Recent(*[*parts, source])
)
streaming.register_tree(
    RecurrentState,
    ("h", "memory"),
    lambda state: state.step,
    lambda parts, step: RecurrentState(step, *map(tuple, parts)),
)
