"""Power-law attention, pair by pair."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpfracc_nn.layers.torch import FractionalAttention
from tests.layer_cases import LayerCase


def array(value: Any) -> np.ndarray:
    return np.asarray(value.detach() if isinstance(value, Tensor) else value)


def projections(layer: Any, *given: np.ndarray) -> list[np.ndarray]:
    """Return queries, keys and values, [batch, time, heads, features]."""
    if layer.in_proj_weight is not None:
        weights = np.split(array(layer.in_proj_weight), 3)
    else:
        weights = [array(getattr(layer, f"{name}_proj_weight")) for name in "qkv"]
    biases = np.split(array(layer.in_proj_bias), 3)
    shape = layer.num_heads, layer.head_dim
    return [
        (x @ weight.T + bias).reshape(*x.shape[:2], *shape)
        for x, weight, bias in zip(given, weights, biases, strict=True)
    ]


def one(layer: Any, alpha: float, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the average for one query of one head over the keys that it sees, and its weights."""
    greatest = max(np.sum(key**2) for key in k)
    weights = np.zeros(len(k))
    for j, key in enumerate(k):
        lifted = np.append(key, np.sqrt(greatest - np.sum(key**2)))
        distance = np.sqrt(np.sum((np.append(q, 0.0) - lifted) ** 2))
        if alpha == 2:
            weights[j] = np.exp(-(distance**2) / layer.bandwidth)
        else:
            weights[j] = (1 + distance / np.sqrt(layer.bandwidth)) ** -(layer.dimension + alpha)
    weights /= weights.sum()
    return weights @ v, weights


def reference(layer: Any, *given: np.ndarray, causal: bool = False) -> tuple[np.ndarray, np.ndarray]:
    q, k, v = projections(layer, *given)
    (batch, queries, heads, size), keys = q.shape, k.shape[1]
    alphas = np.broadcast_to(array(layer.alpha), (heads,))
    y, weights = np.zeros((batch, queries, heads, size)), np.zeros((batch, heads, queries, keys))
    for b, i, h in np.ndindex(batch, queries, heads):
        seen = i + 1 if causal else keys
        y[b, i, h], weights[b, h, i, :seen] = one(layer, float(alphas[h]), q[b, i, h], k[b, :seen, h], v[b, :seen, h])
    result = y.reshape(batch, queries, heads * size) @ array(layer.out_proj.weight).T + array(layer.out_proj.bias)
    return result, weights.mean(1)


class Stream(FractionalAttention):
    """Causal self-attention of one input, which has a time axis that can be streamed."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False, is_causal=True)[0]


def of_stream(layer: Any, x: np.ndarray) -> np.ndarray:
    return reference(layer, x, x, x, causal=True)[0]


def torch_twin(layer: Any) -> nn.MultiheadAttention:
    """Return torch's own layer with the same weights."""
    kept = layer.out_proj.weight
    twin = nn.MultiheadAttention(
        layer.embed_dim, layer.num_heads, kdim=layer.kdim, vdim=layer.vdim, batch_first=True, dtype=kept.dtype
    )
    twin.load_state_dict({name: value for name, value in layer.state_dict().items() if not name.startswith("order")})
    return twin


def causal_twin(layer: Any) -> Callable[..., Any]:
    def call(x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return torch_twin(layer)(x, x, x, need_weights=False, attn_mask=mask)[0]

    return call


def as_any(value: Any) -> Any:
    return value


def made(**options: Any) -> FractionalAttention:
    return FractionalAttention(6, 2, batch_first=True, **options)


X = torch.zeros(2, 5, 6)
CASES = [
    LayerCase(
        FractionalAttention,
        (6, 2),
        lambda draw, batch: (draw(batch, 4, 6), draw(batch, 5, 6), draw(batch, 5, 6)),
        reference,
        {"batch_first": True},
        alphas=(0.6, 1.2, 1.8),
        limit=(2.0, torch_twin),
        refusals=(
            ("heads", lambda: FractionalAttention(6, 4), ValueError, "num_heads=4"),
            ("alpha", lambda: made(alpha=2.5), ValueError, "alpha=2.5"),
            ("zero", lambda: made(alpha=0), ValueError, "0 < alpha"),
            ("per head", lambda: made(alpha=[1.0, 1.2, 1.4]), ValueError, "each of 2 heads"),
            ("two of some", lambda: made(alpha=[1.0, 2.0]), ValueError, "all heads or none"),
            ("bounds", lambda: made(alpha=1.0, learn_alpha=True, bounds=(0, 3)), ValueError, "high <= 2"),
            ("learned two", lambda: made(alpha=2.0, learn_alpha=True), ValueError, "within bounds"),
            ("dropout", lambda: made(dropout=1.5), ValueError, "dropout=1.5"),
            ("bandwidth", lambda: made(bandwidth=0), ValueError, "bandwidth=0"),
            ("rank", lambda: made()(X[0, 0], X[0, 0], X[0, 0]), ValueError, "axes"),
            ("features", lambda: made()(X, X[..., :4], X), ValueError, "6 features"),
            ("batch", lambda: made()(X, X[:1], X[:1]), ValueError, "batch of the query"),
            ("mask", lambda: made()(X, X, X, attn_mask=X[0, :, :4] > 0), ValueError, "attn_mask of shape"),
            ("mask dtype", lambda: made()(X, X, X, attn_mask=X[0, :, :5].int()), TypeError, "bool or floating"),
            ("mask type", lambda: made()(X, X, X, attn_mask=[0.0]), TypeError, "attn_mask of type list"),
            (
                "padding type",
                lambda: made()(X, X, X, key_padding_mask=[False]),
                TypeError,
                "key_padding_mask of type list",
            ),
            ("dropout type", lambda: made(dropout="a"), TypeError, "dropout='a'"),
            ("slice", lambda: made().initial_state((-1, 6)), ValueError, "shape=-1"),
            ("sample", lambda: made().step(as_any([1.0]), made().initial_state((2, 6))), TypeError, "x of type list"),
            (
                "another's state",
                lambda: made().step(X[:, 0], FractionalAttention(6, 3).initial_state((2, 6))),
                ValueError,
                "needs 2 heads of 3",
            ),
            ("stream", lambda: made(kdim=4).initial_state((2, 6)), ValueError, "kdim"),
        ),
    ),
    LayerCase(
        FractionalAttention,
        (6, 2),
        lambda draw, batch: (draw(batch, 4, 6), draw(batch, 5, 4), draw(batch, 5, 3)),
        reference,
        {"batch_first": True, "kdim": 4, "vdim": 3, "dimension": 1.0},
        name="orders of the heads, other features",
        alphas=([0.6, 1.3], 1.2, [1.8, 0.4]),
        limit=(2.0, torch_twin),
    ),
    LayerCase(
        Stream,
        (6, 2),
        lambda draw, batch: (draw(batch, 7, 6),),
        of_stream,
        {"batch_first": True, "dimension": 1.0},
        alphas=(0.6, 1.2, 1.8),
        limit=(2.0, causal_twin),
        time=1,
    ),
]
