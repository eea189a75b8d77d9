"""A batch of series as the recurrent layers take it: time first, of one length or packed, with a batch axis or not."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from hpfracc_nn.fractional.torch.eager import check_dense


class Series(NamedTuple):
    """A batch of series, time first, [n, batch, inputs].

    Attributes:
        x: The inputs; where lengths differ, padded.
        is_batched: Whether the caller's have a batch axis.
        packed: The caller's, where they were packed.
        lengths: Of each, on the CPU, where they were packed.
    """

    x: Tensor
    is_batched: bool = True
    packed: PackedSequence | None = None
    lengths: Tensor | None = None

    def reversed(self, x: Tensor) -> Tensor:
        """Return each series from its own end; what is behind that stays."""
        if self.lengths is None:
            return x.flip(0)
        lengths, step = self.lengths.to(x.device), torch.arange(x.shape[0], device=x.device)[:, None]
        index = torch.where(step < lengths, lengths - 1 - step, step)
        return x.gather(0, index[..., None].expand_as(x))

    def last(self, x: Tensor) -> Tensor:
        """Return the last sample of each series, [batch, ...], in memory of its own."""
        if self.lengths is None:
            return x[-1].clone()
        return x[self.lengths.to(x.device) - 1, torch.arange(x.shape[1], device=x.device)]

    def closed(self, out: Tensor, batch_first: bool) -> Any:
        """Return the outputs as the caller's inputs were."""
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
        """Return h or c, [layers * directions, batch, ...], as the caller has it."""
        return final if self.is_batched else final[:, 0]


def opened(owner: str, x: Any, batch_first: bool, inputs: int) -> Series:
    """Return the caller's inputs, or raise where they are none."""
    if isinstance(x, PackedSequence):
        padded, lengths = pad_packed_sequence(x)
        series = Series(padded, packed=x, lengths=lengths)
    else:
        if not isinstance(x, Tensor):
            raise TypeError(
                f"{owner}(x of type {type(x).__name__}): needs a torch tensor or a PackedSequence; "
                "pass torch.as_tensor(x)."
            )
        check_dense(owner, "x", x)
        if x.ndim not in (2, 3):
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs three axes, time, batch and inputs, or two without a "
                "batch; add the missing ones with x[:, None]."
            )
        if x.ndim == 2:
            series = Series(x[:, None], is_batched=False)
        else:
            series = Series(x.transpose(0, 1) if batch_first else x)
    if series.x.shape[-1] != inputs:
        raise ValueError(
            f"{owner}(input_size={inputs}): needs {inputs} inputs on the last axis; x has shape "
            f"{tuple(series.x.shape)} with time first, pass input_size={series.x.shape[-1]}."
        )
    if series.x.shape[0] == 0:
        raise ValueError(f"{owner}(x of shape {tuple(x.shape)}): needs at least one step; pass a longer series.")
    return series
