"""What attention is given: orders, sequences with or without a batch, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hpfracc_nn.fractional.torch.eager import check_dense


def is_self_nested(query: Any, key: Any, value: Any) -> bool:
    """Return whether one nested tensor is all three."""
    return query is key is value and isinstance(query, Tensor) and query.is_nested


def padded(x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Return a nested tensor as [batch, time, features] with zeros, where these are, and the lengths of its rows."""
    lengths = [row.shape[0] for row in x.unbind()]
    full = torch.nested.to_padded_tensor(x, 0.0)
    last = torch.tensor(lengths, device=full.device)[:, None]
    return full, torch.arange(full.shape[1], device=full.device) >= last, lengths


def nested(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the first samples of each row, as many as `lengths` says, as a nested tensor."""
    return torch.nested.as_nested_tensor([row[:length] for row, length in zip(x, lengths, strict=True)])


def with_batch(
    owner: str, given: Sequence[Any], batch_first: bool, widths: Sequence[int]
) -> tuple[tuple[Tensor, Tensor, Tensor], bool]:
    """Return query, key and value as [batch, time, features], and whether they came without a batch; or raise."""
    for name, x in zip(("query", "key", "value"), given, strict=True):
        check_dense(owner, name, x)
    query, key, value = given
    if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
        raise ValueError(
            f"{owner}(query, key, value of {query.ndim}, {key.ndim} and {value.ndim} axes): needs batch, time and "
            "features, or time and features, of all three; add a batch with x[None]."
        )
    for name, x, width in zip(("query", "key", "value"), given, widths, strict=True):
        if x.shape[-1] != width:
            raise ValueError(
                f"{owner}({name} of shape {tuple(x.shape)}): needs {width} features on the last axis; "
                f"the layer was made for them."
            )
    is_single = query.ndim == 2
    if is_single:
        query, key, value = (x.unsqueeze(0) for x in given)
    elif not batch_first:
        query, key, value = (x.transpose(0, 1) for x in given)
    if not (query.shape[0] == key.shape[0] == value.shape[0] and key.shape[1] == value.shape[1]):
        raise ValueError(
            f"{owner}(key of shape {tuple(given[1].shape)}, value of shape {tuple(given[2].shape)}): needs a value for "
            f"each key, and the batch of the query, {tuple(given[0].shape)}; see batch_first."
        )
    return (query, key, value), is_single


def merged_bias(
    owner: str, q: Tensor, keys: int, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> Tensor | None:
    """Return what both masks add to the logarithms of the weights, broadcastable to [batch, heads, queries, keys]."""
    batch, heads, queries, _ = q.shape
    bias = None
    if attn_mask is not None:
        shapes = ((queries, keys), (batch * heads, queries, keys))
        bias = _additive(owner, "attn_mask", attn_mask, shapes, q.dtype)
        bias = bias.expand(1, 1, -1, -1) if attn_mask.ndim == 2 else bias.view(batch, heads, queries, keys)
    if key_padding_mask is not None:
        either = ((batch, keys), (keys,))
        padding = _additive(owner, "key_padding_mask", key_padding_mask, either, q.dtype).reshape(-1, 1, 1, keys)
        bias = padding if bias is None else bias + padding
    return bias


def _additive(owner: str, name: str, mask: Tensor, shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers: where it is True, minus infinity."""
    if not isinstance(mask, Tensor):
        raise TypeError(
            f"{owner}({name} of type {type(mask).__name__}): needs a torch tensor; pass torch.as_tensor({name})."
        )
    if tuple(mask.shape) not in shapes:
        raise ValueError(
            f"{owner}({name} of shape {tuple(mask.shape)}): needs {' or '.join(map(str, shapes))}; "
            "the last axis is that of the keys."
        )
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf)
    if not mask.is_floating_point():
        raise TypeError(f"{owner}({name} of dtype {mask.dtype}): needs bool or floating; pass {name}.bool().")
    return mask.to(dtype)
