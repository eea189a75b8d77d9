"""The projections of multi-head attention, with torch's parameters, names and first values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpfracc_nn import errors


class Projections(nn.Module):
    """What `nn.MultiheadAttention` has besides the weights of the average: its parameters, and what they do.

    Args:
        owner: Who asks, for messages.
        embed_dim: As in `nn.MultiheadAttention`, as are the next.
        num_heads: See there.
        bias: See there.
        add_bias_kv: See there.
        add_zero_attn: See there.
        kdim: See there.
        vdim: See there.
        factory: Device and dtype of the parameters.
    """

    # nn.TransformerEncoderLayer hands the weights of attention of one size to a routine that computes torch's own;
    # this name, which it reads, keeps it from doing so.
    _qkv_same_embed_dim = False

    in_proj_weight: nn.Parameter | None
    q_proj_weight: nn.Parameter | None
    k_proj_weight: nn.Parameter | None
    v_proj_weight: nn.Parameter | None
    in_proj_bias: nn.Parameter | None
    bias_k: nn.Parameter | None
    bias_v: nn.Parameter | None

    def __init__(
        self,
        owner: str,
        embed_dim: int,
        num_heads: int,
        bias: bool,
        add_bias_kv: bool,
        add_zero_attn: bool,
        kdim: int | None,
        vdim: int | None,
        factory: dict[str, Any],
    ):
        super().__init__()
        self.embed_dim = errors.count(owner, "embed_dim", embed_dim)
        self.num_heads = errors.count(owner, "num_heads", num_heads)
        if self.embed_dim % self.num_heads:
            raise ValueError(
                f"{owner}(embed_dim={embed_dim}, num_heads={num_heads}): needs heads of equal size; "
                "pass an embed_dim that num_heads divides."
            )
        self.head_dim = self.embed_dim // self.num_heads
        for name, claimed in (("bias", bias), ("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            errors.claim(owner, name, claimed)
        self.add_zero_attn = add_zero_attn
        self.kdim = self.embed_dim if kdim is None else errors.count(owner, "kdim", kdim)
        self.vdim = self.embed_dim if vdim is None else errors.count(owner, "vdim", vdim)
        self._make_weights(bias, add_bias_kv, factory)

    def _make_weights(self, bias: bool, add_bias_kv: bool, factory: dict[str, Any]) -> None:
        """Make torch's parameters in its order, so that a seed gives the same weights."""
        size = self.embed_dim
        is_one = self.kdim == self.vdim == size
        shapes = {
            "in_proj_weight": (3 * size, size) if is_one else None,
            "q_proj_weight": None if is_one else (size, size),
            "k_proj_weight": None if is_one else (size, self.kdim),
            "v_proj_weight": None if is_one else (size, self.vdim),
            "in_proj_bias": (3 * size,) if bias else None,
            "bias_k": (1, 1, size) if add_bias_kv else None,
            "bias_v": (1, 1, size) if add_bias_kv else None,
        }
        for name, shape in shapes.items():
            made = None if shape is None else nn.Parameter(torch.empty(shape, **factory))
            self.register_parameter(name, made)
        self.out_proj = nn.Linear(size, size, bias=bias, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew, as `nn.MultiheadAttention` does; the order stays."""
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                nn.init.xavier_normal_(added)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Features of queries, keys and values."""
        return self.embed_dim, self.kdim, self.vdim

    @property
    def added(self) -> int:
        """How many keys are added to those of each sequence."""
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of each head, [batch, heads, time, head_dim]."""
        weights: Sequence[Tensor | None] = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases: Sequence[Tensor | None] = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        found = []
        for x, weight, bias in zip((query, key, value), weights, biases, strict=True):
            assert weight is not None, "weights are one or three"
            y = functional.linear(x, weight, bias)
            found.append(y.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2))
        return found[0], found[1], found[2]

    def extended(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values with the learned ones and those of zeros."""
        if not self.added:
            return k, v
        return self._extended(k, self.bias_k), self._extended(v, self.bias_v)

    def _extended(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """Return keys or values with the learned one and the one of zeros."""
        batch, heads, _, size = x.shape
        parts = [x]
        if learned is not None:
            parts.append(learned.view(1, heads, 1, size).expand(batch, -1, -1, -1).to(x.dtype))
        if self.add_zero_attn:
            parts.append(x.new_zeros(batch, heads, 1, size))
        return torch.cat(parts, 2)
