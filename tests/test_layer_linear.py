"""What is particular to the layers that stand in for torch's: weights taken over, padding, causality, streams."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils import _pytree

from hpfracc_nn.layers.torch import (
    FractionalAttention,
    FractionalConv1d,
    FractionalConv2d,
    FractionalLayer,
    FractionalLinear,
    ProbabilisticAlpha,
)

DOUBLE: Any = {"dtype": torch.float64}


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


THEIRS: dict[str, tuple[Callable[[], nn.Module], type[Any], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(3, 5, **DOUBLE), FractionalLinear, (2, 20, 3)),
    "linear without bias": (lambda: nn.Linear(3, 5, bias=False, **DOUBLE), FractionalLinear, (20, 3)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 5, 2, 3, 2, 2, **DOUBLE), FractionalConv1d, (2, 4, 30)),
    "conv1d same": (lambda: nn.Conv1d(4, 6, 5, padding="same", **DOUBLE), FractionalConv1d, (4, 30)),
    "conv1d valid": (lambda: nn.Conv1d(4, 6, 4, padding="valid", bias=False, **DOUBLE), FractionalConv1d, (2, 4, 30)),
    **{
        f"conv1d {mode}": (
            partial(nn.Conv1d, 4, 6, 3, padding=2, padding_mode=mode, **DOUBLE),
            FractionalConv1d,
            (2, 4, 30),
        )
        for mode in ("reflect", "replicate", "circular")
    },
    "conv2d": (lambda: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (1, 2), 2, **DOUBLE), FractionalConv2d, (2, 2, 9, 12)),
    "conv2d same": (lambda: nn.Conv2d(2, 4, 3, padding="same", **DOUBLE), FractionalConv2d, (2, 9, 12)),
    "conv2d circular": (
        lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", **DOUBLE),
        FractionalConv2d,
        (2, 2, 9, 12),
    ),
}
every_module = pytest.mark.parametrize("name", THEIRS)


@every_module
def test_torch_modules_are_the_limit_of_what_takes_their_weights(name: str) -> None:
    make, kind, shape = THEIRS[name]
    module, x = make(), data(*shape)
    at_zero = kind.from_torch(module, alpha=0.0)
    torch.testing.assert_close(at_zero(x), module(x), rtol=1e-13, atol=1e-13)  # an order of 0 rounds nothing but by FFT
    layer = kind.from_torch(module, alpha=0.4, learn_alpha=True)
    time = -2 if kind is FractionalLinear else -1
    derivative = FractionalLayer(layer.alpha.item(), "grunwald_letnikov", dim=time)
    torch.testing.assert_close(layer(x), module(derivative(x)), rtol=1e-10, atol=1e-10)


@every_module
def test_weights_are_copied_with_all_that_belongs_to_them(name: str) -> None:
    make, kind, _ = THEIRS[name]
    module: Any = make().to(torch.float32).eval()
    module.weight.requires_grad_(False)
    layer = kind.from_torch(module, alpha=0.4, learn_alpha=True)
    assert torch.equal(layer.weight, module.weight)
    assert layer.weight.data_ptr() != module.weight.data_ptr()
    assert not layer.weight.requires_grad
    assert all(p.requires_grad for name, p in layer.named_parameters() if name != "weight")
    assert all(p.dtype == torch.float32 for p in layer.parameters())
    assert not any(part.training for part in layer.modules())
    assert kind.from_torch(module, dtype=torch.float64).weight.dtype == torch.float64
    given = layer.load_state_dict(module.state_dict(), strict=False)
    assert not given.unexpected_keys
    assert [key for key in given.missing_keys if not key.endswith("order.raw")] == []


def test_weights_behind_a_parametrisation_are_taken_as_they_are() -> None:
    module = parametrizations.weight_norm(nn.Linear(3, 5, **DOUBLE))
    layer = FractionalLinear.from_torch(module, alpha=0.0)
    x = data(2, 20, 3)
    torch.testing.assert_close(layer(x), module(x), rtol=1e-13, atol=1e-13)


def test_an_order_that_is_given_is_not_overwritten_by_weights() -> None:
    order = ProbabilisticAlpha(0.3, **DOUBLE)
    layer: Any = FractionalLinear.from_torch(nn.Linear(3, 5), alpha=order)
    assert layer.alpha.item() == pytest.approx(0.3)
    assert layer.derivative.order is order


def test_what_is_frozen_behind_a_parametrisation_stays_so() -> None:
    module = parametrizations.weight_norm(nn.Linear(3, 5)).requires_grad_(False)
    assert not any(p.requires_grad for p in FractionalLinear.from_torch(module).parameters())
    module.parametrizations.weight.original0.requires_grad_(True)  # type: ignore[index, union-attr]
    assert FractionalLinear.from_torch(module).weight.requires_grad


BY_HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
    "weight norm": nn.utils.weight_norm,
    "spectral norm": nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
@pytest.mark.parametrize("name", BY_HOOKS)
def test_weights_that_a_hook_makes_are_refused_and_taken_once_it_is_removed(name: str) -> None:
    module = nn.Linear(3, 5, **DOUBLE)
    BY_HOOKS[name](module)
    with pytest.raises(ValueError, match=r"needs weight to be a parameter.*remove it first with prune\.remove"):
        FractionalLinear.from_torch(module)
    remove: dict[str, Callable[[], Any]] = {
        "pruned": lambda: prune.remove(module, "weight"),  # type: ignore[no-untyped-call]
        "weight norm": lambda: nn.utils.remove_weight_norm(module),
        "spectral norm": lambda: nn.utils.remove_spectral_norm(module),
    }
    remove[name]()
    assert torch.equal(FractionalLinear.from_torch(module).weight, module.weight)


def test_the_same_holds_for_a_weight_of_a_part() -> None:
    module = nn.MultiheadAttention(8, 2)
    parametrizations.orthogonal(module.out_proj).requires_grad_(False)
    layer = FractionalAttention.from_torch(module)
    assert torch.equal(layer.out_proj.weight, module.out_proj.weight)
    assert not layer.out_proj.weight.requires_grad
    module = nn.MultiheadAttention(8, 2)
    prune.l1_unstructured(module.out_proj, "weight", 0.5)  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match=r"needs out_proj\.weight to be a parameter"):
        FractionalAttention.from_torch(module)


@pytest.mark.parametrize(
    ("module", "kind", "options", "message"),
    [
        (
            nn.Linear(1, 4),
            FractionalLinear,
            {"in_features": 3},
            r"weight of shape \(4, 3\); torch's has \(4, 1\)",
        ),
        (
            nn.Linear(3, 1),
            FractionalLinear,
            {"out_features": 4},
            r"weight of shape \(4, 3\); torch's has \(1, 3\)",
        ),
        (
            nn.Conv1d(1, 4, 1),
            FractionalConv1d,
            {"kernel_size": 5},
            r"shape \(4, 1, 5\); torch's has \(4, 1, 1\)",
        ),
        (
            nn.Linear(3, 4, bias=False),
            FractionalLinear,
            {"bias": True},
            "needs a module with bias; pass one, or leave",
        ),
        (nn.Conv2d(2, 4, 3, bias=False), FractionalConv2d, {"bias": True}, "needs a module with bias"),
    ],
    ids=["in_features", "out_features", "kernel_size", "bias", "bias of an image"],
)
def test_options_that_change_the_weights_are_refused(module: Any, kind: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind.from_torch(module, **options)


@pytest.mark.parametrize("name", ["linear1", "linear2"])
def test_torch_s_encoder_layer_calls_what_stands_in_it_in_evaluation_too(name: str) -> None:
    encoder: Any = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, **DOUBLE)
    setattr(encoder, name, FractionalLinear.from_torch(getattr(encoder, name), alpha=0.7))
    x = data(2, 10, 6)
    trained = encoder(x)
    for layer in (encoder.eval(), copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
        with torch.no_grad():
            torch.testing.assert_close(layer(x), trained, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [FractionalLinear, FractionalConv1d])
def test_an_order_that_is_given_keeps_its_own_mode(kind: Any) -> None:
    order = ProbabilisticAlpha(0.3)
    module = nn.Linear(3, 4) if kind is FractionalLinear else nn.Conv1d(3, 4, 5)
    layer = kind.from_torch(module.eval(), alpha=order)
    assert (layer.training, layer.derivative.training, order.training) == (False, False, True)
    assert kind.from_torch(module.train(), alpha=order.eval()).training
    assert not order.training


def test_a_stream_takes_no_state_of_another_kernel() -> None:
    one, other = (FractionalConv1d(2, 3, kernel, padding="causal", alpha=0.4) for kernel in (3, 4))
    x, state = torch.zeros(2), other.initial_state((2,))
    with pytest.raises(ValueError, match=r"step\(state with 3 past samples\): needs 2 of them"):
        one.step(x, state)
    with pytest.raises(ValueError, match=r"state with past of shape \(2, 3\)\): needs \(2, 2\), that of this one"):
        one.initial_state((2,)).renew(state)


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (4, 3)])
def test_a_causal_convolution_sees_no_later_sample(kernel: int, dilation: int) -> None:
    layer = FractionalConv1d(2, 3, kernel, padding="causal", dilation=dilation, alpha=0.4, **DOUBLE)
    x = data(1, 2, 25)
    y = layer(x)
    assert y.shape == (1, 3, 25)
    changed = x.clone()
    changed[..., 12:] += 1
    torch.testing.assert_close(layer(changed)[..., :12], y[..., :12], rtol=1e-12, atol=1e-12)
    assert (layer(changed)[..., 12] - y[..., 12]).abs().max() > 1e-3
    assert "padding='causal'" in repr(layer)
    moved = nn.Conv1d(2, 3, kernel, dilation=dilation, padding=dilation * (kernel - 1), **DOUBLE)
    moved.load_state_dict({"weight": layer.weight, "bias": layer.bias})
    torch.testing.assert_close(y, moved(layer.derivative(x))[..., :25], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(2, 3), (3,)], ids=["batch", "no batch"])
@pytest.mark.parametrize("alpha", [0.4, [0.2, 0.5, 0.8]], ids=["one order", "orders"])
def test_a_stream_of_a_convolution_is_a_value(shape: tuple[int, ...], alpha: Any) -> None:
    layer = FractionalConv1d(3, 6, 4, padding="causal", dilation=2, groups=3, alpha=alpha, learn_alpha=True, **DOUBLE)
    x = data(*shape, 30)
    whole = layer(x)
    first, found = layer.initial_state(shape), []
    state = first
    for t, sample in enumerate(x.unbind(-1)):
        assert state.step == t
        y, state = layer.step(sample, state)
        found.append(y)
    torch.testing.assert_close(torch.stack(found, -1), whole, rtol=1e-10, atol=1e-10)
    assert torch.equal(layer.step(x[..., 0], first)[0], found[0])
    assert (state.shape, state.horizon, state.device) == (shape, first.horizon, torch.device("cpu"))
    assert state.nbytes == first.nbytes
    leaves, form = _pytree.tree_flatten(state)
    assert all(leaf is None or leaf.dtype == torch.float64 for leaf in leaves)
    again = _pytree.tree_unflatten(leaves, form).to("cpu")
    assert torch.equal(layer.step(x[..., 0], again)[0], layer.step(x[..., 0], state)[0])
    assert not any(leaf is not None and leaf.requires_grad for leaf in _pytree.tree_leaves(state.detach()))


def test_gradients_flow_through_the_steps_of_a_convolution() -> None:
    layer = FractionalConv1d(3, 4, 3, padding="causal", alpha=0.4, learn_alpha=True, **DOUBLE)
    x = data(2, 3, 8)
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    state, total = layer.initial_state((2, 3)), torch.zeros((), **DOUBLE)
    for sample in x.unbind(-1):
        y, state = layer.step(sample, state)
        total = total + y.square().sum()
    for one, other in zip(torch.autograd.grad(total, list(layer.parameters())), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_past_goes_on_with_new_weights() -> None:
    layer = FractionalConv1d(1, 1, 3, padding="causal", alpha=0.4, learn_alpha=True, **DOUBLE)
    x = data(2, 1, 8)
    state = layer.initial_state((2, 1))
    for sample in x[..., :5].unbind(-1):
        _, state = layer.step(sample, state)
    with torch.no_grad():
        layer.derivative.order.raw.add_(0.5)
    renewed = state.renew(layer.initial_state((2, 1)))
    assert renewed.step == 5
    y, _ = layer.step(x[..., 5], renewed)
    d = layer.derivative(x[..., :6])[..., 5:6]  # the present alpha for this sample, the former one for two before
    window = torch.cat([state.past, d], -1)
    torch.testing.assert_close(y, layer._conv_forward(window, layer.weight, layer.bias)[..., 0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_steps_follow_the_dtype_of_the_samples(dtype: torch.dtype) -> None:
    layer = FractionalConv1d(3, 4, 3, padding="causal", alpha=0.4, dtype=dtype)
    y, state = layer.step(torch.ones(2, 3, dtype=dtype), layer.initial_state((2, 3)))
    assert y.dtype == dtype
    assert state.past.dtype == torch.float64
    linear = FractionalLinear(3, 4, alpha=0.4, dtype=dtype)
    assert linear.step(torch.ones(2, 3, dtype=dtype), linear.initial_state((2, 3)))[0].dtype == dtype


def test_axes_of_images_may_share_an_order_or_have_their_own() -> None:
    x = data(2, 3, 10, 12)
    options: Any = {"dims": (-2, -1), "dt": (0.5, 0.25), "padding": 1, "learn_alpha": True, **DOUBLE}
    shared, own = (
        FractionalConv2d(3, 2, 3, alpha=0.4, **options),
        FractionalConv2d(3, 2, 3, alpha=[0.4, 0.7], **options),
    )
    assert [tuple(layer.order.raw.shape) for layer in (shared, own)] == [(1,), (2,)]
    for layer, orders in ((shared, (0.4, 0.4)), (own, (0.4, 0.7))):
        down = FractionalLayer(orders[0], "grunwald_letnikov", dim=-2, dt=0.5)(x)
        both = FractionalLayer(orders[1], "grunwald_letnikov", dim=-1, dt=0.25)(down)
        expected = nn.functional.conv2d(both, layer.weight, layer.bias, padding=1)
        torch.testing.assert_close(layer(x), expected, rtol=1e-9, atol=1e-9)
    turned = FractionalConv2d(3, 2, 3, dims=(-1, -2), dt=(0.25, 0.5), alpha=[0.7, 0.4], padding=1, **DOUBLE)
    turned.load_state_dict({"weight": own.weight, "bias": own.bias})
    torch.testing.assert_close(turned(x), own(x), rtol=1e-9, atol=1e-9)


def test_images_without_a_batch_and_images_of_several_orders_are_time_last() -> None:
    x = data(3, 10, 12)
    layer = FractionalConv2d(3, 2, 3, alpha=0.4, **DOUBLE)
    torch.testing.assert_close(layer(x), layer(x[None])[0], rtol=1e-12, atol=1e-12)
    line = FractionalConv1d(3, 2, 3, alpha=[0.2, 0.5, 0.8], **DOUBLE)
    torch.testing.assert_close(line(x[:, 0]), line(x[None, :, 0])[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("definition", ["caputo", "riemann_liouville", "riemann_liouville_integral"])
def test_every_definition_serves(definition: str) -> None:
    x = data(2, 20, 3)
    layer = FractionalLinear(3, 4, alpha=0.6, definition=definition, dt=0.1, **DOUBLE)
    derivative = FractionalLayer(0.6, definition, dt=0.1, dim=-2)
    expected = nn.functional.linear(derivative(x), layer.weight, layer.bias)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert f"definition={definition!r}" in repr(layer)
