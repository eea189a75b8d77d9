"""The weights of power-law attention in plain aten, and their gradients by automatic differentiation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hpfracc_nn.layers.attention import NEGLIGIBLE


class Given(NamedTuple):
    """The tensors of a call.

    `bias` is added to the logarithms of the weights and broadcasts to [batch, heads, queries, keys]. Minus infinity
    hides a key, and so does what lies `NEGLIGIBLE` below the greatest that the query sees. `alpha` is a number of
    orders that broadcasts to [heads, 1, 1], None for alpha = 2. `kept` says which weights are not dropped.
    """

    q: Tensor  # [batch, heads, queries, features]
    k: Tensor  # [batch, heads, keys, features]
    v: Tensor  # [batch, heads, keys, values]
    bias: Tensor | None = None
    alpha: Tensor | None = None
    kept: Tensor | None = None

    def part(self, items: slice, queries: slice, keys: slice) -> Given:
        """Return the views that some queries of some of the batch need."""
        place = (items, slice(None), queries, keys)
        bias = None if self.bias is None else self.bias[along(self.bias, place)]
        kept = None if self.kept is None else self.kept[place]
        return Given(self.q[items, :, queries], self.k[items, :, keys], self.v[items, :, keys], bias, self.alpha, kept)


@dataclass(frozen=True, slots=True)
class Attention:
    """What is computed, and of what.

    Args:
        dimension: The space's, to which alpha is added in the exponent.
        bandwidth: The square of the distance beyond which weights fall.
        is_causal: Whether query i sees keys up to i only.
        needs_weights: Whether the weights are returned.
        gain: Of the weights that are not dropped.
    """

    dimension: float
    bandwidth: float
    is_causal: bool = False
    needs_weights: bool = False
    gain: float = 1.0

    def formula(self, given: Given, first: int = 0) -> tuple[Tensor, Tensor | None]:
        """Return averages and weights in plain aten; `first` is the number of the first query.

        The weights of a query that sees no key are zeros, and it has no slope.
        """
        q = given.q * (1 / self.bandwidth)
        products = q @ given.k.mT
        if not given.k.shape[2]:
            return products @ given.v, products if self.needs_weights else None  # sums of nothing
        hidden = self._hidden(given, products, first)
        logarithms = self._logarithms(given, q, products, hidden)
        if given.bias is None or hidden is None:  # the first key is always seen
            weights = torch.softmax(logarithms, -1)
        else:
            is_blind = hidden.all(-1, keepdim=True)
            # Zeros first, because the softmax of a row of minus infinities is NaN, and so is its slope.
            weights = torch.softmax(logarithms.masked_fill(is_blind, 0.0), -1).masked_fill(is_blind, 0.0)
        if given.kept is not None:
            weights = weights * given.kept * self.gain
        return weights @ given.v, weights if self.needs_weights else None

    def _logarithms(self, given: Given, q: Tensor, products: Tensor, hidden: Tensor | None) -> Tensor:
        """Return those of the weights, up to a number for each query.

        Queries `q` and their products with the keys come divided by the bandwidth.
        """
        if given.alpha is None:
            found = 2 * products
        else:
            exponent = (self.dimension + given.alpha).to(products.dtype)
            found = -exponent * torch.log1p(self._distances(given, q, products, hidden))
        if given.bias is not None:
            found = found + given.bias
        return found if hidden is None else found.masked_fill(hidden, -torch.inf)

    def _distances(self, given: Given, q: Tensor, products: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the distances from queries to lifted keys, in square roots of the bandwidth."""
        squares = given.k.square().sum(-1).unsqueeze(-2) * (1 / self.bandwidth)  # [batch, heads, 1, keys]
        radius = (squares if hidden is None else squares.masked_fill(hidden, 0.0)).amax(-1, keepdim=True)
        own = (q * given.q).sum(-1, keepdim=True)
        squared = torch.add(own + radius, products, alpha=-2)
        # The square root has no slope at 0; what is below is rounding.
        return squared.clamp_min(torch.finfo(squared.dtype).eps).sqrt()

    def _hidden(self, given: Given, products: Tensor, first: int) -> Tensor | None:
        """Return which keys a query does not see, of a shape that broadcasts; None where it sees all."""
        later = None
        if self.is_causal:
            queries, keys = products.shape[-2:]
            later = torch.ones(queries, keys, dtype=torch.bool, device=products.device).triu(first + 1)
        if given.bias is None:
            return later
        bias = given.bias.detach()
        bias = bias if later is None else bias.masked_fill(later, -torch.inf)
        return (bias == -torch.inf) | (bias < bias.amax(-1, keepdim=True) - NEGLIGIBLE)

    def pulled(
        self, given: Given, grads: Sequence[Tensor | None], wanted: Sequence[bool], first: int = 0
    ) -> list[Tensor | None]:
        """Return the gradients in q, k, v, bias and alpha that are wanted: the formula once more, and backwards."""
        with torch.enable_grad():
            leaves = [
                None if tensor is None else tensor.detach().requires_grad_(wants)
                for tensor, wants in zip(given[:5], wanted, strict=True)
            ]
            results = self.formula(Given._make([*leaves, given.kept]), first)
        return gradients(results, grads, leaves)


def gradients(
    results: Sequence[Tensor | None], grads: Sequence[Tensor | None], leaves: Sequence[Tensor | None], **how: bool
) -> list[Tensor | None]:
    """Return the gradients in those leaves that ask for one, None for the others."""
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if y is not None and g is not None]
    asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    ys, gs = [y for y, _ in pairs], [g for _, g in pairs]
    found = iter(torch.autograd.grad(ys, asked, gs, allow_unused=True, **how))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def along(tensor: Tensor, place: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the slices of a tensor that broadcasts: all of an axis of size 1."""
    return tuple(slice(None) if size == 1 else part for size, part in zip(tensor.shape, place, strict=True))
