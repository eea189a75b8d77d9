"""Masks of power-law attention: what is hidden has no influence, and a query that sees nothing gets nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hpfracc_nn import FractionalAttention
from hpfracc_nn.layers.order import ATTENTION
from hpfracc_nn.layers.torch import attention_ops
from hpfracc_nn.layers.torch.attention_ops import Attention, Inputs
from hpfracc_nn.selection import kernels

KERNELS = kernels(ATTENTION, "torch")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
every_order = pytest.mark.parametrize("alpha", [1.2, 2.0])
F64 = torch.float64


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def left_padded() -> Tensor:
    """Return a bias that hides the first two of six keys of the second item, from which two causal queries see none."""
    bias = torch.zeros(2, 1, 1, 6, dtype=F64)
    bias[1, ..., :2] = -torch.inf
    return bias


@every_kernel
@every_order
@pytest.mark.parametrize("block", [1, 1 << 18])
def test_a_query_that_sees_nothing_gets_zeros_and_no_slope(
    kernel: Any, alpha: float, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_ops, "BLOCK", block)
    q, k, v = (drawn(2, 2, 6, 3, seed=seed) for seed in range(3))
    order = None if alpha == 2 else torch.tensor(alpha, dtype=F64)
    given = Inputs(q, k, v, left_padded(), order)
    attention = Attention(3.0, 1.5, is_causal=True, needs_weights=True)
    y, weights = kernel.run(attention, given)
    assert not y[1, :, :2].any()
    assert not weights[1, :, :2].any()
    seen = Inputs(q[1:, :, 2:], k[1:, :, 2:], v[1:, :, 2:], None, order)
    torch.testing.assert_close(y[1:, :, 2:], kernel.run(attention, seen)[0], rtol=0, atol=1e-13)
    g = drawn(2, 2, 6, 3, seed=4)
    wanted = [True, True, True, False, order is not None]
    slopes = kernel.adjoint(attention, given, [g, None], wanted)
    assert all(bool(slope.isfinite().all()) for slope in slopes if slope is not None)
    assert not slopes[0][1, :, :2].any()
    assert not slopes[2][1, :, :2].any()
    expected = kernel.adjoint(attention, seen, [g[1:, :, 2:], None], wanted)
    torch.testing.assert_close(slopes[2][1:, :, 2:], expected[2], rtol=0, atol=1e-13)


@every_order
def test_an_item_of_padding_alone_leaves_an_encoders_weights_finite(alpha: float) -> None:
    layer: Any = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=F64)
    layer.self_attn = FractionalAttention.from_torch(layer.self_attn, alpha=alpha)
    x, padding = drawn(2, 5, 4), torch.tensor([[False] * 5, [True] * 5])
    layer(x, src_key_padding_mask=padding).square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters() if p.grad is not None)
    y, weights = layer.self_attn(x, x, x, key_padding_mask=padding)
    torch.testing.assert_close(y[1], layer.self_attn.out_proj.bias.expand(5, 4))
    assert not weights[1].any()


@every_order
@pytest.mark.parametrize("number", [-1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_what_a_mask_hides_has_no_influence_however_minus_infinity_is_written(alpha: float, number: float) -> None:
    layer = FractionalAttention(4, 2, alpha=alpha, batch_first=True, dtype=F64, dimension=1.0)
    x = drawn(1, 5, 4)
    louder = torch.cat((x[:, :4], 100 * x[:, 4:]), 1)
    mask = torch.zeros(5, 5, dtype=F64)
    mask[:, 4] = number
    expected = layer(x[:, :4], x[:, :4], x[:, :4])[0]
    for keys in (x, louder):
        found = layer(x[:, :4], keys, keys, attn_mask=mask[:4])[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_a_number_that_is_added_to_all_of_a_row_changes_nothing() -> None:
    layer = FractionalAttention(4, 2, alpha=1.2, batch_first=True, dtype=F64)
    x, mask = drawn(2, 5, 4), drawn(5, 5, seed=1)
    mask[0, 3] = -1e9
    torch.testing.assert_close(
        layer(x, x, x, attn_mask=mask - 2.0**20)[0], layer(x, x, x, attn_mask=mask)[0], rtol=0, atol=1e-9
    )


@every_order
def test_without_keys_the_result_is_that_of_a_sum_of_nothing_as_torchs(alpha: float) -> None:
    theirs = nn.MultiheadAttention(4, 2, batch_first=True, dtype=F64)
    nn.init.normal_(theirs.out_proj.bias)
    ours = FractionalAttention.from_torch(theirs, alpha=alpha)
    x, none = drawn(2, 3, 4).requires_grad_(), drawn(2, 0, 4)
    y, weights = ours(x, none, none)
    torch.testing.assert_close(y, theirs(x, none, none)[0])
    assert weights.shape == (2, 3, 0)
    y.sum().backward()
    assert x.grad is not None
    assert not x.grad.any()


@every_order
def test_on_the_meta_device_shapes_come_out_and_nothing_is_computed(alpha: float) -> None:
    layer = FractionalAttention(4, 2, alpha=alpha, batch_first=True, device="meta")
    x = torch.empty(2, 3, 4, device="meta")
    y, weights = layer(x, x, x, is_causal=True)
    assert (y.shape, y.device.type, weights.shape) == ((2, 3, 4), "meta", (2, 3, 3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@every_order
def test_an_encoder_that_was_made_before_its_attention_was_replaced_takes_padding_in_evaluation(alpha: float) -> None:
    """Such an encoder makes a nested tensor of a padded batch."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, dtype=F64)
    encoder: Any = nn.TransformerEncoder(layer, 2)
    for each in encoder.layers:
        each.self_attn = FractionalAttention.from_torch(each.self_attn, alpha=alpha)
    x, padding = drawn(2, 5, 4), torch.arange(5) >= torch.tensor([[5], [3]])
    expected = encoder(x, src_key_padding_mask=padding)
    with torch.no_grad():
        found = encoder.eval()(x, src_key_padding_mask=padding)
    for row, length in enumerate((5, 3)):
        torch.testing.assert_close(found[row, :length], expected[row, :length], rtol=0, atol=1e-12)
