"""What flows along the edges of a graph: messages weighted by attention, or by the edges alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hpfracc_nn import errors


@dataclass(frozen=True)
class Diffusion:
    """x to (A - D) x at every time: each node is drawn to the mean of those that have an edge to it.

    Attributes:
        weights: Of the edges, A's entries, [edges].
        share: Their sum at each node, D's entries: 1, or 0 where no edge arrives, [nodes, 1].
        source: Where each edge begins, [edges].
        target: Where it ends, [edges].
    """

    weights: Tensor
    share: Tensor
    source: Tensor
    target: Tensor

    def __call__(self, t: Tensor, x: Tensor) -> Tensor:
        """Return the right-hand side for node features x [nodes, channels]."""
        messages = self.weights[:, None] * x.index_select(0, self.source)
        return torch.zeros_like(x).index_add(0, self.target, messages) - self.share * x


class MeanDiffusion(nn.Module):
    """Edges as they are: A = D_in**-1 W, the random walk's matrix, of W[i, j] the weight of the edge from j to i."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Diffusion:
        """Return the flow along the edges.

        Args:
            x: Whose dtype is that of the weights, float32 at least, [nodes, channels].
            edge_index: Sources and targets, [2, edges].
            edge_weight: Not negative, [edges]; None is 1.
        """
        source, target = edge_index.unbind(0)
        dtype = torch.promote_types(x.dtype, torch.float32)
        weights = x.new_ones(source.shape, dtype=dtype) if edge_weight is None else edge_weight.to(dtype)
        return normalised(weights, source, target, x.shape[0])


class GraphAttention(nn.Module):
    """Scaled dot products of what the nodes are at the start: GRAND's attention, kept while time goes on.

    With q = W_q x and k = W_k x per head, the edge from j to i has

        A[i, j] = mean over heads of w_ij exp(s_ij) / sum over edges from l to i of w_il exp(s_il),

    s_ij = <q_i, k_j> / sqrt(d).

    Args:
        channels: Of the nodes.
        heads: Attentions whose mean is taken.
        head_channels: d, of each of them; None is channels / heads, rounded up.
        device: Of the parameters.
        dtype: Of the parameters.

    Source: Chamberlain et al., GRAND, ICML 2021 (arXiv:2106.10934).
    """

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        head_channels: int | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        owner = type(self).__name__
        self.heads = errors.count(owner, "heads", heads)
        each = -(-channels // self.heads) if head_channels is None else head_channels
        self.head_channels = errors.count(owner, "head_channels", each)
        width = self.heads * self.head_channels
        self.query = nn.Linear(channels, width, device=device, dtype=dtype)
        self.key = nn.Linear(channels, width, device=device, dtype=dtype)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Diffusion:
        """Return the flow along the edges, weighted by the attention between the nodes' features x.

        Args:
            x: Features, [nodes, channels].
            edge_index: Sources and targets, [2, edges].
            edge_weight: Not negative, [edges]; None is 1. An edge of weight 0 is as one that is not there.
        """
        source, target = edge_index.unbind(0)
        dtype = torch.promote_types(x.dtype, torch.float32)  # exponentials and sums are not those of half precision
        query, key = (self._headed(linear(x)).to(dtype) for linear in (self.query, self.key))
        scores = (query.index_select(0, target) * key.index_select(0, source)).sum(-1) / math.sqrt(self.head_channels)
        sizes = scores.detach()
        if edge_weight is not None:  # beside a far larger score of weight 0 those that count would all be 0
            factor = edge_weight.to(dtype)[:, None]
            is_some = factor > 0
            sizes = torch.where(is_some, sizes + torch.where(is_some, factor.detach(), 1).log(), -torch.inf)
        peak = scores.new_zeros(x.shape[0], self.heads)
        peak = peak.scatter_reduce(0, target[:, None].expand_as(scores), sizes, "amax", include_self=False)
        exponents = scores - peak.clamp(min=torch.finfo(dtype).min).index_select(0, target)
        if edge_weight is None:
            return normalised(exponents.exp(), source, target, x.shape[0])
        # Those of weight 0 may lie far above the peak; they have a gradient in their weight.
        found = factor * exponents.clamp(max=math.log(torch.finfo(dtype).max) / 2).exp()
        return normalised(found, source, target, x.shape[0])

    def _headed(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], self.heads, self.head_channels)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, head_channels={self.head_channels}"


def normalised(weights: Tensor, source: Tensor, target: Tensor, nodes: int) -> Diffusion:
    """Return the flow of which what arrives at a node has weights that add up to 1, or to 0 where nothing arrives.

    Args:
        weights: Not negative, [edges] or [edges, heads], of which the mean is taken.
        source: Where each edge begins, [edges].
        target: Where it ends, [edges].
        nodes: How many there are.
    """
    if weights.ndim == 1:
        weights = weights[:, None]
    total = weights.new_zeros(nodes, weights.shape[1]).index_add(0, target, weights)
    share = (total > 0).to(weights.dtype)
    found = weights / (total + (1 - share)).index_select(0, target)
    return Diffusion(found.mean(1), share.mean(1, keepdim=True), source, target)
