"""What the recurrent layers share: parameters as torch has them, layers and directions, series of several lengths."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hpfracc_nn import errors
from hpfracc_nn.fractional.definitions import GrunwaldLetnikov
from hpfracc_nn.fractional.streaming import Source, slice_shape
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.fractional.torch.eager import check_dense, computed_in
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place
from hpfracc_nn.layers.recurrence import averaging
from hpfracc_nn.layers.torch.order import started
from hpfracc_nn.layers.torch.recurrent.cells import Cell, Given
from hpfracc_nn.layers.torch.recurrent.memory import Memory, operation
from hpfracc_nn.layers.torch.recurrent.opaque import compiled
from hpfracc_nn.layers.torch.recurrent.run import Recurrence
from hpfracc_nn.layers.torch.recurrent.series import Series, opened
from hpfracc_nn.layers.torch.recurrent.streaming import Recent, RecurrentState, check_state, recalled, remembered
from hpfracc_nn.layers.torch.transfer import place_of, with_weights_of
from hpfracc_nn.selection import BackendManager, given_manager

Hidden = tuple[Tensor, Tensor]  # h and c, or h twice
_OF_WEIGHTS = ("input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size")  # what shapes them


class Recurrent(nn.RNNBase):
    """The layers' own part; see `FractionalLSTM` and `FractionalGRU`.

    They are no subclasses of torch's LSTM and GRU, whose every instance the compiler leaves out of its graphs.
    """

    cell: ClassVar[Cell]
    ordinary: ClassVar[type[nn.RNNBase]]

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int,
        *,
        alpha: float | Sequence[float] | Alpha,
        learn_alpha: bool,
        bounds: tuple[float, float] | None,
        memory: int | None,
        manager: BackendManager | None,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
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
        super().__init__(mode, *options, device, dtype)
        definition, order = started(
            owner,
            GrunwaldLetnikov(0.5),
            alpha,
            bounds=bounds,
            learn_alpha=learn_alpha,
            shape=self._order_shape,
            device=device,
            dtype=dtype,
        )
        self.definition = averaging(owner, definition)
        self.learn_alpha = order is not None
        if order is not None:
            self.order = order
        self.memory = None if memory is None else errors.count(owner, "memory", memory)
        self.site = given_manager(owner, manager).site(operation(self.memory), "torch", owner)

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.order.mean if self.learn_alpha else self.definition.alpha

    def reset_parameters(self) -> None:
        """Draw the weights anew, as torch does; the order stays."""
        bound = self.hidden_size**-0.5
        for name in self._flat_weights_names:
            nn.init.uniform_(getattr(self, name), -bound, bound)

    @classmethod
    def _from_torch(cls, module: nn.RNNBase, options: dict[str, Any]) -> Self:
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

    def _order_shape(self, given: tuple[int, ...]) -> tuple[int, ...]:
        if given not in ((), (self.hidden_size,)):
            raise ValueError(
                f"{type(self).__name__}(alpha of shape {given}): needs one order, or a flat list with one for each of "
                f"the hidden_size={self.hidden_size} units."
            )
        return given

    def _forward(self, x: Any, hx: Hidden | None) -> tuple[Any, Hidden]:
        if torch.jit.is_tracing():
            raise RuntimeError(
                f"{type(self).__name__}(input): torch.jit.trace cannot follow it; call it outside the traced part, or "
                "take torch.export."
            )
        series = opened(type(self).__name__, x, self.batch_first, self.input_size)
        self._check_dtype("input", series.x)
        start = self._start(series, hx)
        alpha = self._order_on(series.x.device)
        out, finals = series.x, []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                out = F.dropout(out, self.dropout, self.training)
            found = [self._directed(series, out, direction, layer, start, alpha) for direction in self._directions]
            out = found[0][0] if len(found) == 1 else torch.cat([each for each, _ in found], dim=-1)
            finals += [final for _, final in found]
        h, c = (torch.stack(each) for each in zip(*finals, strict=True))
        return series.closed(out, self.batch_first), (series.restored(h), series.restored(c))

    @property
    def _directions(self) -> range:
        return range(2 if self.bidirectional else 1)

    def _directed(
        self, series: Series, x: Tensor, direction: int, layer: int, start: Hidden | None, alpha: Tensor
    ) -> tuple[Tensor, Hidden]:
        """Return what one layer makes of [n, batch, inputs] in one direction, and its last h and c."""
        if direction:
            x = series.reversed(x)
        weights = self._weights(layer, direction)
        projected = F.linear(x, weights["weight_ih"], self._input_bias(weights))
        number = layer * len(self._directions) + direction
        with _exactly(x.device):
            begin = None if start is None else (start[0][number], start[1][number])
            given = self._given(projected, weights, alpha, begin)
            recurrence = Recurrence(self.cell, self._memory())
            out, values = compiled(recurrence, given) if torch.compiler.is_compiling() else recurrence(given)
        out, values = out.to(projected.dtype), values.to(projected.dtype)
        final = series.last(out), series.last(values)
        return (series.reversed(out) if direction else out), final

    def _memory(self) -> Memory:
        return Memory(self.site, self.memory, self.definition)

    def _weights(self, layer: int, direction: int) -> dict[str, Tensor]:
        suffix = f"_l{layer}" + ("_reverse" if direction else "")
        names = self._all_weights[layer * len(self._directions) + direction]
        return {name.removesuffix(suffix): getattr(self, name) for name in names}

    def _input_bias(self, weights: dict[str, Tensor]) -> Tensor | None:
        """What is added to the input's part of the gates."""
        return weights.get("bias_ih")

    def _hidden_bias(self, weights: dict[str, Tensor]) -> Tensor | None:
        """What is added to the output's part of the gates."""
        return weights.get("bias_hh")

    def _given(self, projected: Tensor, weights: dict[str, Tensor], alpha: Tensor, start: Hidden | None) -> Given:
        """Return what a recurrence takes, in the dtype that it is computed in."""
        dtype = torch.promote_types(projected.dtype, torch.float32)
        if start is None:
            shape = projected.shape[1:-1]
            zeros = projected.new_zeros(*shape, self.proj_size or self.hidden_size)
            start = zeros, (projected.new_zeros(*shape, self.hidden_size) if self.proj_size else zeros)
        hidden = self._hidden_bias(weights)
        projection = weights.get("weight_hr")
        return Given(
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
            return self.order()
        return torch.tensor(self.definition.alpha, dtype=torch.float64, device=device)

    def _start(self, series: Series, hx: Hidden | None) -> Hidden | None:
        """Return h and c at the start, [layers * directions, batch, ...], or None for 0."""
        if hx is None:
            return None
        count, owner = self.num_layers * len(self._directions), type(self).__name__
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

    def _initial_state(
        self, owner: str, shape: Sequence[int], hx: Hidden | None, horizon: int, device: Any
    ) -> RecurrentState:
        shape = slice_shape(owner, shape)
        if not 1 <= len(shape) <= 2 or shape[-1] != self.input_size:
            raise ValueError(
                f"{owner}(shape={shape}): needs (batch, {self.input_size}) or ({self.input_size},), the shape of x "
                "without its time axis; pass for example x.shape[1:]."
            )
        if self.bidirectional:
            raise ValueError(
                f"{owner}: needs bidirectional=False one sample at a time, because the other direction begins at the "
                "last sample; use the whole series."
            )
        horizon = errors.count(owner, "horizon", horizon)
        weight = _first_weight(self)
        like = torch.empty(0, device=weight.device if device is None else device)
        dtype = torch.promote_types(weight.dtype, torch.float32)
        batch, width = shape[:-1], self.proj_size or self.hidden_size
        if hx is not None:
            series = Series(like.new_empty(1, *(batch or (1,)), self.input_size), is_batched=bool(batch))
            starts = self._start(series, hx)
            assert starts is not None
            start = tuple(each.to(dtype) if batch else each[:, 0].to(dtype) for each in starts)
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
        # A start is one sample more; whether there is one, a state serves `horizon` steps, and renews another.
        return streaming.initial_state(
            owner, definition, shape, horizon=horizon + 1, device=device, source=self._source()
        )

    def _step(self, owner: str, x: Any, state: Any) -> tuple[Tensor, RecurrentState]:
        if not isinstance(state, RecurrentState) or len(state.h) != self.num_layers:
            raise TypeError(
                f"{owner}(state of type {type(state).__name__}): needs a state of {self.num_layers} layers; "
                "pass what initial_state returned."
            )
        check_dense(owner, "x", x)
        check_state(owner, state, self.proj_size or self.hidden_size, self.hidden_size, self.memory, self._source())
        wanted = (*state.h[0].shape[:-1], self.input_size)
        if tuple(x.shape) != wanted:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs one time slice of shape {wanted}; "
                "pass the samples of one step, without a time axis."
            )
        self._check_dtype("x", x)
        out, hs, memories = x, [], []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                out = F.dropout(out, self.dropout, self.training)
            weights = self._weights(layer, 0)
            projected = F.linear(out, weights["weight_ih"], self._input_bias(weights))
            with _exactly(x.device):
                memory = state.memory[layer]
                m = recalled(owner, memory, state.h[layer].dtype, self._source())
                given = self._given(projected[None], weights, projected.new_empty(0), (state.h[layer], m))
                h, value = self.cell.step(given, given.projected[0], given.h, m)
                memories.append(remembered(owner, value, memory, self._source()))
            hs.append(h)
            out = h.to(projected.dtype)
        return out, RecurrentState(state.step + 1, tuple(hs), tuple(memories))

    def _source(self) -> Source:
        return Source(type(self).__name__, self.definition, self.learn_alpha, 1.0)


def _first_weight(module: nn.RNNBase) -> Tensor:
    found = module.weight_ih_l0
    assert isinstance(found, Tensor)
    return found


def _is_cast(device: torch.device) -> bool:
    """Whether autocast is on; the meta device has none, and torch raises where it is asked."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def _exactly(device: torch.device) -> AbstractContextManager[Any]:
    """Leave operations in the dtype of their arguments."""
    return nullcontext() if device.type == "meta" else torch.autocast(device.type, enabled=False)
