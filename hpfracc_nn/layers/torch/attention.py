"""Power-law attention: weights that fall like a power of the distance, with a fixed or a learned order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hpfracc_nn import errors
from hpfracc_nn.fractional.streaming import slice_shape, versioned
from hpfracc_nn.fractional.torch.eager import check_dense
from hpfracc_nn.fractional.torch.parameters import Alpha, check_place, is_spread
from hpfracc_nn.fractional.torch.streaming import register_tree
from hpfracc_nn.layers.order import ATTENTION, attention_bounds, attention_orders
from hpfracc_nn.layers.shapes import check_heads, check_is_state
from hpfracc_nn.layers.torch.attention_ops import Attention, Inputs, attended
from hpfracc_nn.layers.torch.fractional import PartsState, each_on_its_own, place_of, with_weights_of
from hpfracc_nn.selection import BackendManager, given_manager

_OWNER = "FractionalAttention"


class FractionalAttention(nn.Module):
    """`nn.MultiheadAttention` whose weights fall like a power of the distance between query and key.

    The weights of query i are those of a step of a Levy flight of index alpha in `dimension` = D dimensions,

        A_ij = phi(d_ij) exp(b_ij) / sum_m phi(d_im) exp(b_im),
        phi(d) = (1 + d / sqrt(bandwidth))**-(D + alpha)   for 0 < alpha < 2,
        phi(d) = exp(-d**2 / bandwidth)                    for alpha = 2, Brownian motion,

    with b the mask. d is the Euclidean distance of query and key after all keys were lifted to one sphere,

        d_ij**2 = |q_i|**2 + R_i**2 - 2 q_i . k_j,   R_i the greatest |k_j| that query i sees:

    a key gets one more coordinate, `sqrt(R_i**2 - |k_j|**2)`, and a query a zero. At alpha = 2 the terms that do not
    depend on j cancel, and with the default bandwidth 2 sqrt(head_dim) the layer is `nn.MultiheadAttention` with the
    same weights, to rounding. Without the lift, as in the paper, that holds for keys of equal norm only; for such keys
    the two distances are the same. As in the paper the family jumps at alpha = 2: the power law has the exponent D + 2
    there. A learned alpha stays below.

    Memory is proportional to the number of queries and keys, not to their product, where the manager chooses the
    kernel "blocks"; asking for the weights, or dropout in training, takes the product, of one byte each for dropout.

    Args:
        embed_dim: Features of queries and of the result.
        num_heads: The number of heads, which share the features.
        dropout: The part of the weights that is dropped in training.
        bias: Whether the projections have a bias.
        add_bias_kv: Whether a learned key and value are added to those of each sequence.
        add_zero_attn: Whether a key and value of zeros are added to those of each sequence.
        kdim: Features of keys; None is embed_dim.
        vdim: Features of values; None is embed_dim.
        batch_first: Whether data are [batch, time, features] and not [time, batch, features].
        device: Of the parameters.
        dtype: Of the parameters; alpha is float64 whatever it is.
        alpha: The order, or one for each head, in (0, 2]; 2 is ordinary attention, for all heads or none. Or an `Alpha`
            or `ProbabilisticAlpha` of shape [] or [num_heads], which then is the layer's `order`, with its own bounds.
        learn_alpha: Whether alpha is a parameter, within (0, 2); an `Alpha` always is one.
        bounds: Where a learned alpha stays; None is (0, 2).
        dimension: D; None is head_dim. The smaller it is, the more alpha counts.
        bandwidth: The square of the distance where the power law sets in; None is 2 sqrt(head_dim).
        manager: Who chooses the kernels; None is the process-wide BackendManager.

    Shape:
        As `nn.MultiheadAttention`: time is the axis that is neither the batch's nor the features'.

    Raises:
        ValueError: An argument is out of range or of the wrong shape.
        TypeError: An argument has the wrong type.

    Source: Qu, Ly & Gong, Fractional neural attention for efficient multiscale sequence processing, arXiv 2511.10208
        (2025): the formula follows the paper's description and its authors' published code, with the intrinsic
        dimension and the bandwidth as parameters; its text was not at hand, so that no equation is cited by number.
        The lift is that of Bachrach et al., RecSys (2014) 257.

    Examples:
        >>> layer = FractionalAttention(32, 4, batch_first=True, alpha=1.2, learn_alpha=True)
        >>> x = torch.randn(8, 50, 32)
        >>> layer(x, x, x, need_weights=False, is_causal=True)[0].shape
        torch.Size([8, 50, 32])
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
    order: Alpha

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        alpha: float | Sequence[float] | Alpha = 1.5,
        learn_alpha: bool = False,
        bounds: tuple[float, float] | None = None,
        dimension: float | None = None,
        bandwidth: float | None = None,
        manager: BackendManager | None = None,
    ):
        factory = {"device": device, "dtype": dtype}
        errors.claim(_OWNER, "batch_first", batch_first)
        check_place(_OWNER, device, dtype)
        super().__init__()
        self.embed_dim = errors.count(_OWNER, "embed_dim", embed_dim)
        self.num_heads = errors.count(_OWNER, "num_heads", num_heads)
        check_heads(_OWNER, "embed_dim", self.embed_dim, self.num_heads)
        self.head_dim = self.embed_dim // self.num_heads
        for name, claimed in (("bias", bias), ("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            errors.claim(_OWNER, name, claimed)
        self.add_zero_attn = add_zero_attn
        self.kdim = self.embed_dim if kdim is None else errors.count(_OWNER, "kdim", kdim)
        self.vdim = self.embed_dim if vdim is None else errors.count(_OWNER, "vdim", vdim)
        self._make_weights(bias, add_bias_kv, factory)
        self.dropout, self.batch_first = errors.part(_OWNER, "dropout", dropout), batch_first
        self.dimension = errors.real(_OWNER, "dimension", self.head_dim if dimension is None else dimension, 0.0)
        ordinary = 2 * math.sqrt(self.head_dim)
        self.bandwidth = errors.real(_OWNER, "bandwidth", ordinary if bandwidth is None else bandwidth, 0.0, above=True)
        self._make_order(alpha, bounds, learn_alpha, device, dtype)
        self.site = given_manager(_OWNER, manager).site(ATTENTION, "torch")

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, **options: Any) -> FractionalAttention:
        """Return the layer with the weights, device and dtype of torch's; `options` are the keyword arguments.

        What is frozen stays so, and training or evaluation is taken over. Nothing is shared with `module`.

        Raises:
            TypeError: `module` is no `torch.nn.MultiheadAttention`.

        Examples:
            >>> ordinary, x = torch.nn.MultiheadAttention(32, 4), torch.randn(50, 8, 32)
            >>> layer = FractionalAttention.from_torch(ordinary, alpha=2.0)
            >>> torch.allclose(layer(x, x, x)[0], ordinary(x, x, x)[0], atol=1e-6)
            True
        """
        own = place_of(cls, module, nn.MultiheadAttention)
        own |= {name: getattr(module, name) for name in ("dropout", "add_zero_attn", "kdim", "vdim", "batch_first")}
        own |= {"bias": module.in_proj_bias is not None, "add_bias_kv": module.bias_k is not None, **options}
        return with_weights_of(module, cls(module.embed_dim, module.num_heads, **own), options.get("alpha"))

    @property
    def alpha(self) -> float | tuple[float, ...] | Tensor:
        """The order in real units: a float64 tensor where it is learned, the mean where it is random."""
        return self.order.mean if self.learn_alpha else self._fixed

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

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result and, unless need_weights is False, the weights; see `nn.MultiheadAttention`.

        Args:
            query: [batch, queries, embed_dim], or with the first two axes exchanged, or without the batch's. A nested
                tensor, as `nn.TransformerEncoder` makes of a padded batch in evaluation, is padded again where it is
                key and value too and batch_first holds; the result is nested, the weights are padded.
            key: [batch, keys, kdim].
            value: [batch, keys, vdim].
            key_padding_mask: [batch, keys]: True, or minus infinity, hides a key; other numbers are added to the
                logarithms of the weights. A key is also hidden where its mask lies 1e4 or more below the greatest that
                the query sees, as -1e9 and the least number of a dtype do: no weight is left, and what is hidden has
                no part in R_i. A query that sees no key gets zeros before the last projection, and weights of zeros
                where torch returns NaN.
            need_weights: Whether the weights are returned, which takes memory for all of them.
            attn_mask: [queries, keys] or [batch * num_heads, queries, keys], as key_padding_mask.
            average_attn_weights: Whether the returned weights are the mean over the heads.
            is_causal: Query i sees keys up to i. With an attn_mask, that is used and this only a hint, as in torch.
        """
        if any(map(is_spread, (query, key, value))):
            if key_padding_mask is not None or attn_mask is not None:
                raise ValueError(
                    f"{_OWNER}(query: DTensor, mask): needs no masks with a DTensor; pass query.to_local() and masks "
                    "of its part."
                )
            options = {
                "need_weights": need_weights,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
            axes = [int(not self.batch_first)] if query.ndim == 3 else []
            found: tuple[Tensor, Tensor | None] = each_on_its_own(
                _OWNER, self, FractionalAttention.forward, [query, key, value], axes, later=0, **options
            )
            return found
        if is_self_nested(query, key, value) and self.batch_first and key_padding_mask is None:
            x, padding, lengths = padded(query)
            y, weights = self(x, x, x, padding, need_weights, attn_mask, average_attn_weights, is_causal)
            return nested(y, lengths), weights
        given, is_single = with_batch(_OWNER, (query, key, value), self.batch_first, self._widths)
        q, k, v = self._projected(*given)
        causal = is_causal and attn_mask is None
        bias = merged_bias(_OWNER, q, k.shape[2], key_padding_mask, attn_mask)
        y, weights = self._averaged(q, k, v, bias, self._present(), causal, need_weights)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if is_single:
            y = y.squeeze(0)
        elif not self.batch_first:
            y = y.transpose(0, 1)
        if weights is None:
            return y, None
        weights = weights.mean(dim=1) if average_attn_weights else weights
        return y, weights.squeeze(0) if is_single else weights

    def initial_state(
        self, shape: Sequence[int], *, horizon: int | None = None, device: torch.device | str | None = None
    ) -> AttentionState:
        """Return the state before the first sample, for `step`: no keys and values, and the order as it is now.

        The state grows by a key and a value with each step, O(n) memory after n steps, and step n costs O(n): a power
        law of the distance in a space of features has no shorter memory.

        Args:
            shape: Of one time slice, [batch, embed_dim].
            horizon: The most steps that the state will serve; None is no bound.
            device: Of the samples; None is that of the weights.

        Raises:
            ValueError: The shape is another, or keys or values have features of their own.
        """
        owner = f"{_OWNER}.initial_state"
        if not self.kdim == self.vdim == self.embed_dim:
            raise ValueError(
                f"{owner}: needs kdim = vdim = embed_dim, because each sample is query, key and value; "
                f"kdim={self.kdim}, vdim={self.vdim}, embed_dim={self.embed_dim}, call forward with is_causal=True."
            )
        shape = slice_shape(owner, shape)
        if len(shape) != 2 or shape[1] != self.embed_dim:
            raise ValueError(
                f"{owner}(shape={shape}): needs [batch, {self.embed_dim}], the shape of one time slice; "
                f"pass for example (1, {self.embed_dim})."
            )
        weight = self.out_proj.weight
        place = weight.device if device is None else device
        none = torch.empty(shape[0], self.num_heads, 0, self.head_dim, device=place, dtype=weight.dtype)
        most = None if horizon is None else errors.count(owner, "horizon", horizon)
        alpha = self._present()
        return AttentionState(none, none, None if alpha is None else alpha.to(place), most)

    def step(self, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """Return the next sample of causal self-attention, [batch, embed_dim], and the state after it.

        Args:
            x: One time slice, [batch, embed_dim].
            state: From `initial_state` or the step before; it stays as it is.

        Raises:
            ValueError: x has another shape than the state, or the state has reached its horizon.
            TypeError: `state` is no state.
        """
        owner = f"{_OWNER}.step"
        check_dense(owner, "x", x)
        self._check_state(owner, state)
        if tuple(x.shape) != (state.key.shape[0], self.embed_dim):
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs one time slice [{state.key.shape[0]}, {self.embed_dim}]; "
                "pass the samples of one step, without a time axis."
            )
        y, state = self._continued(owner, x[:, None], state)
        return y.squeeze(1), state

    def run(self, x: Tensor, state: AttentionState | None = None) -> tuple[Tensor, AttentionState]:
        """Return causal self-attention for the next samples of a series and the state after them.

        A series in blocks gives the results of the whole series, as `FractionalLayer.run` does; here the state grows.

        Args:
            x: The next samples, [batch, n, embed_dim], or [n, batch, embed_dim] with `batch_first=False`; any n.
            state: From `initial_state`, `step` or the block before; None begins a series.

        Raises:
            ValueError: x has another shape than the state, or the state has reached its horizon.
            TypeError: `state` is no state.
        """
        owner = f"{_OWNER}.run"
        check_dense(owner, "x", x)
        if x.ndim != 3 or x.shape[2] != self.embed_dim:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs three axes, batch, time and {self.embed_dim} features; "
                "add the missing ones."
            )
        data = x if self.batch_first else x.transpose(0, 1)
        if state is None:
            state = self.initial_state((data.shape[0], self.embed_dim), device=x.device)
        self._check_state(owner, state)
        if data.shape[0] != state.key.shape[0]:
            raise ValueError(
                f"{owner}(x of shape {tuple(x.shape)}): needs the state's batch of {state.key.shape[0]}; "
                "pass the samples of the same series."
            )
        y, state = self._continued(owner, data, state)
        return (y if self.batch_first else y.transpose(0, 1)), state

    def _check_state(self, owner: str, state: Any) -> None:
        check_is_state(owner, state, AttentionState)
        heads, size = state.key.shape[1], state.key.shape[3]
        if (heads, size) != (self.num_heads, self.head_dim):
            raise ValueError(
                f"{owner}(state of {heads} heads of {size} features): needs {self.num_heads} heads of {self.head_dim}; "
                "pass what this layer's initial_state returned."
            )

    def _continued(self, owner: str, x: Tensor, state: AttentionState) -> tuple[Tensor, AttentionState]:
        """Return the results for the next samples x, both [batch, n, embed_dim], and the state after these samples."""
        q, k, v = self._projected(x, x, x)
        n, before = x.shape[1], state.step
        state = state.grown(owner, k, v)
        bias = None
        if n > 1:  # a sample does not see those after it
            later = torch.ones(n, before + n, dtype=torch.bool, device=x.device).triu(before + 1)
            bias = merged_bias(owner, q, before + n, None, later)
        y, _ = self._averaged(q, state.key, state.value, bias, state.alpha, False, False)
        return self.out_proj(y.transpose(1, 2).flatten(2)), state

    def extra_repr(self) -> str:
        alpha = "learn_alpha=True" if self.learn_alpha else f"alpha={self._fixed}"
        return (
            f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout:g}, batch_first={self.batch_first}, {alpha}, "
            f"dimension={self.dimension:g}, bandwidth={self.bandwidth:.4g}"
        )

    def _make_weights(self, bias: bool, add_bias_kv: bool, factory: dict[str, Any]) -> None:
        """Make the parameters of `nn.MultiheadAttention` in its order, so that a seed gives the same weights.

        Args:
            bias: Whether the projections have biases.
            add_bias_kv: Whether a learned key and value are appended to each sequence.
            factory: Keywords of the parameters, device and dtype.
        """
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

    @property
    def _widths(self) -> tuple[int, int, int]:
        """How many features queries, keys and values have."""
        return self.embed_dim, self.kdim, self.vdim

    @property
    def _added(self) -> int:
        """How many keys are appended to those of each sequence: the learned one, zeros, both or none."""
        return int(self.bias_k is not None) + int(self.add_zero_attn)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of each head, [batch, heads, time, head_dim].

        Arguments are the layer's, [batch, time, features].
        """
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

    def _with_added(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, [batch, heads, time, head_dim], with the learned ones and zeros appended."""
        if not self._added:
            return k, v
        return self._extended(k, self.bias_k), self._extended(v, self.bias_v)

    def _extended(self, x: Tensor, learned: Tensor | None) -> Tensor:
        """Return keys or values x, [batch, heads, time, head_dim], with a vector, zeros or both appended along time.

        `learned` is the vector, [1, 1, embed_dim], or None.
        """
        batch, heads, _, size = x.shape
        parts = [x]
        if learned is not None:
            parts.append(learned.view(1, heads, 1, size).expand(batch, -1, -1, -1).to(x.dtype))
        if self.add_zero_attn:
            parts.append(x.new_zeros(batch, heads, 1, size))
        return torch.cat(parts, 2)

    def _make_order(
        self,
        alpha: float | Sequence[float] | Alpha,
        bounds: tuple[float, float] | None,
        learn_alpha: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Check the constructor's alpha; store fixed orders as `_fixed`, or the module of learned ones as `order`."""
        self.learn_alpha = errors.claim(_OWNER, "learn_alpha", learn_alpha) or isinstance(alpha, Alpha)
        if isinstance(alpha, Alpha):
            attention_bounds(_OWNER, alpha.bounds_for(_OWNER, bounds, (self.num_heads,) if alpha.shape else ()))
            self.order = alpha
            return
        self._fixed = attention_orders(_OWNER, alpha, self.num_heads)
        if self.learn_alpha:
            shape = () if isinstance(self._fixed, float) else (self.num_heads,)
            within = attention_bounds(_OWNER, bounds)
            self.order = Alpha(self._fixed, within, shape, owner=_OWNER, device=device, dtype=dtype)

    def _averaged(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        alpha: Tensor | None,
        is_causal: bool,
        needs_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the averages of the values, [batch, heads, queries, head_dim], and the weights or None.

        Keys that the layer appends are seen by every query.

        Args:
            q: Queries, [batch, heads, queries, head_dim].
            k: Keys, [batch, heads, keys, head_dim].
            v: Values, as k.
            bias: Added to the logarithms of the weights, broadcasts to [batch, heads, queries, keys]; or None.
            alpha: Orders, broadcasting to [heads, 1, 1]; None for alpha = 2.
            is_causal: Whether a query sees no later keys.
            needs_weights: Whether the weights are returned.
        """
        more = self._added
        if more and is_causal:
            hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1)
            later = torch.zeros_like(hidden, dtype=q.dtype).masked_fill(hidden, -torch.inf)
            bias, is_causal = later[None, None] if bias is None else bias + later, False
        if more and bias is not None:
            bias = functional.pad(bias, (0, more))
        k, v = self._with_added(k, v)
        share = 1 - self.dropout if self.training else 1.0
        kept = None
        if share < 1:
            kept = torch.rand(*q.shape[:3], k.shape[2], device=q.device) < share
        gain = 1 / share if share else 0.0
        attention = Attention(self.dimension, self.bandwidth, is_causal, needs_weights, gain)
        return attended(attention, Inputs(q, k, v, bias, alpha, kept), self.site)

    def _present(self) -> Tensor | None:
        """Return the present alpha, [] or [heads, 1, 1]; None where it is fixed at 2."""
        if self.learn_alpha:
            found = self.order.beside_local(_OWNER)
            return found if found.ndim == 0 else found[:, None, None]
        if self._fixed == 2.0 or (isinstance(self._fixed, tuple) and set(self._fixed) == {2.0}):
            return None
        device = self.out_proj.weight.device
        found = torch.tensor(self._fixed, dtype=torch.float64, device=device)
        return found if found.ndim == 0 else found[:, None, None]


def is_self_nested(query: Any, key: Any, value: Any) -> bool:
    """Return whether query, key and value are one and the same nested tensor."""
    return query is key is value and isinstance(query, Tensor) and query.is_nested


def padded(x: Tensor) -> tuple[Tensor, Tensor, list[int]]:
    """Return a nested tensor padded with zeros, the mask of the padding, and the lengths of the rows.

    The padded tensor is [batch, time, features], the mask [batch, time], True at the zeros.
    """
    lengths = [row.shape[0] for row in x.unbind()]
    full = torch.nested.to_padded_tensor(x, 0.0)
    last = torch.tensor(lengths, device=full.device)[:, None]
    return full, torch.arange(full.shape[1], device=full.device) >= last, lengths


def nested(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the rows of x, [batch, time, features], each cut to its length, as a nested tensor."""
    return torch.nested.as_nested_tensor([row[:length] for row, length in zip(x, lengths, strict=True)])


def with_batch(
    owner: str, given: Sequence[Any], batch_first: bool, widths: Sequence[int]
) -> tuple[tuple[Tensor, Tensor, Tensor], bool]:
    """Return query, key and value as [batch, time, features], and whether they came without a batch.

    Args:
        owner: The layer, for messages.
        given: Query, key and value as the layer was called with them.
        batch_first: Whether three axes have the batch first.
        widths: The number of features of query, key and value.

    Raises:
        TypeError: One is no dense tensor.
        ValueError: Numbers of axes, batches, keys and values, or features do not fit.
    """
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
    """Return the sum of both masks as a bias on the logarithms of the weights, None where there is no mask.

    The bias broadcasts to [batch, heads, queries, keys].

    Args:
        owner: The layer, for messages.
        q: The queries, [batch, heads, queries, head_dim].
        keys: The number of keys.
        key_padding_mask: [batch, keys] or [keys], or None.
        attn_mask: [queries, keys] or [batch * heads, queries, keys], or None.

    Raises:
        TypeError: A mask is no tensor, or neither bool nor floating.
        ValueError: A mask has another shape.
    """
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
    """Return a mask as numbers that are added to logarithms of weights: minus infinity where a bool mask is True.

    Args:
        owner: The layer, for messages.
        name: The argument, for messages.
        mask: Bool or floating.
        shapes: The shapes that the mask may have.
        dtype: The dtype of the result.

    Raises:
        TypeError: The mask is no tensor, or neither bool nor floating.
        ValueError: The mask has another shape.
    """
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


@versioned
@dataclass(frozen=True, eq=False)
class AttentionState(PartsState):
    """The keys and values of all samples so far, and the order.

    A state is never written to, and is a pytree of tensors.

    Attributes:
        key: The keys of each head, [batch, heads, steps, head_dim].
        value: The values of each head, of the same shape.
        alpha: The order that the state was made with, float64, [] or [heads, 1, 1]: a random order is drawn once for a
            stream. None for alpha = 2.
        horizon: The most steps that the state serves; None is no bound.
    """

    key: Tensor
    value: Tensor
    alpha: Tensor | None = None
    horizon: int | None = None

    @property
    def step(self) -> int:
        """How many samples the state has seen."""
        return self.key.shape[2]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one time slice, (batch, embed_dim)."""
        batch, heads, _, size = self.key.shape
        return batch, heads * size

    @property
    def device(self) -> torch.device:
        """The device of keys and values."""
        return self.key.device

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values; they grow with every step."""
        return sum(each.numel() * each.element_size() for each in (self.key, self.value))

    def renew(self, weights: AttentionState) -> AttentionState:
        """Return this state, detached, with the order and the horizon of another state.

        Keys and values stay as the projections made them when the samples came.
        """
        return replace(self.detach(), alpha=weights.alpha, horizon=weights.horizon)

    def grown(self, owner: str, key: Tensor, value: Tensor) -> AttentionState:
        """Return the state with the keys and values of the next steps appended, [batch, heads, n, head_dim] each.

        Raises:
            ValueError: There are more steps than the horizon allows.
        """
        if self.horizon is not None and self.step + key.shape[2] > self.horizon:
            raise ValueError(
                f"{owner}: the state has reached its horizon of {self.horizon} steps; "
                "call initial_state with a longer horizon."
            )
        if not self.step:
            return replace(self, key=key, value=value)  # of the samples' dtype from now on
        return replace(self, key=torch.cat((self.key, key), 2), value=torch.cat((self.value, value), 2))


register_tree(
    AttentionState,
    ("key", "value", "alpha"),
    lambda state: state.horizon,
    lambda parts, horizon: AttentionState(*[*parts, horizon]),
    serialized_type_name="hpfracc_nn.layers.torch.attention_state.AttentionState",
    to_dumpable_context=lambda horizon: horizon,
    from_dumpable_context=lambda horizon: horizon,
)
