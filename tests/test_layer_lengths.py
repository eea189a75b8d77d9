"""Series of several lengths, packed or jagged: each layer makes of them what it makes of each series alone."""

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

import hpfracc_nn as fnn
from tests.layer_cases import all_cases

LENGTHS = [5, 1, 9, 2]
TAKEN = (fnn.FractionalLayer, fnn.FractionalLinear, fnn.FractionalConv1d, fnn.FractionalDifference, fnn.ARFIMA)
STREAMING = [case for case in all_cases() if case.time is not None and issubclass(case.layer, TAKEN)]
AHEAD: dict[str, Callable[[], Any]] = {
    "Caputo above 1": lambda: fnn.FractionalLayer(1.6, learn_alpha=True, dim=1, dtype=torch.float64),
    "the right side": lambda: fnn.FractionalLayer(0.6, fnn.Caputo(0.6, side="right"), dim=1, dtype=torch.float64),
    "Riesz": lambda: fnn.FractionalLayer(1.6, "riesz", learn_alpha=True, dim=1, dtype=torch.float64),
    "a layer of features": lambda: fnn.FractionalLinear(3, 4, alpha=1.6, definition="caputo", dtype=torch.float64),
    "a convolution to both sides": lambda: fnn.FractionalConv1d(3, 4, 3, padding="same", dtype=torch.float64),
}


def series(features: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return series [n, *features] that want gradients."""
    torch.manual_seed(0)
    return [torch.randn(n, *features, dtype=dtype, requires_grad=True) for n in LENGTHS]


def alone(layer: nn.Module, x: Tensor, axis: int) -> Tensor:
    """Return what a layer makes of one series [n, *features], its time on the axis of a batch of one."""
    y = layer(x[None].movedim(1, axis))
    return y.movedim(axis, 1)[0]


def slopes(results: list[Tensor], layer: nn.Module, given: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(1)
    loss = torch.stack([(y * torch.randn(y.shape, dtype=y.dtype)).sum() for y in results]).sum()
    return list(torch.autograd.grad(loss, [*given, *layer.parameters()]))


def check(layer: nn.Module, dim: int, features: tuple[int, ...], *, is_jagged: bool) -> None:
    axis, given = dim % (len(features) + 2), series(features)
    if is_jagged:
        x: Any = torch.nested.as_nested_tensor(given, layout=torch.jagged).transpose(1, axis)
        y = layer(x)
        assert y.shape[axis] == x.shape[axis]  # one ragged axis, so that they can be added up
        found = list(y.transpose(1, axis).unbind())
        wanted = [layer(each[None].transpose(1, axis)).transpose(1, axis)[0] for each in given]
    else:
        packed = layer(pack_sequence(given, enforce_sorted=False))
        assert isinstance(packed, PackedSequence)
        found, wanted = unpack_sequence(packed), [alone(layer, each, axis) for each in given]
    # Kernels differ with the length; 9 samples are sums of 9 products.
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slopes(found, layer, given), slopes(wanted, layer, given), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("is_jagged", [False, True], ids=["packed", "jagged"])
@pytest.mark.parametrize("case", STREAMING, ids=lambda case: case.id)
def test_each_series_is_as_alone(case: Any, is_jagged: bool) -> None:
    shape = list(case.draw(batch=2)[0].shape)
    if is_jagged and case.time % len(shape) == 0:
        pytest.skip("the first axis of a jagged tensor is the batch")
    del shape[case.time]
    check(case.make(), case.time, tuple(shape[1:]), is_jagged=is_jagged)


@pytest.mark.parametrize("is_jagged", [False, True], ids=["packed", "jagged"])
@pytest.mark.parametrize("name", AHEAD)
def test_what_looks_ahead_computes_each_alone(name: str, is_jagged: bool) -> None:
    layer = AHEAD[name]()
    dim = -1 if isinstance(layer, fnn.FractionalConv1d) else 1
    check(layer, dim, (3,), is_jagged=is_jagged)


def test_every_kind_of_layer_is_tried() -> None:
    assert all(any(issubclass(case.layer, each) for case in STREAMING) for each in TAKEN)


def test_order_and_dtype_of_a_packed_sequence_stay() -> None:
    x = pack_sequence(series((2,), torch.float32), enforce_sorted=False)
    y = fnn.FractionalLayer(0.5, dim=1)(x)
    assert y.data.dtype == torch.float32
    assert all(getattr(x, name) is getattr(y, name) for name in ("batch_sizes", "sorted_indices", "unsorted_indices"))


def test_a_bad_sample_stays_in_its_series() -> None:
    given = [each.detach() for each in series((1,))]
    given[0][3] = torch.nan
    found = unpack_sequence(fnn.FractionalLayer(0.5, dim=1)(pack_sequence(given, enforce_sorted=False)))
    assert [int(each.isnan().sum()) for each in found] == [2, 0, 0, 0]


def test_a_jagged_series_can_be_added_to_its_derivative() -> None:
    x = torch.nested.as_nested_tensor([each.detach() for each in series((2,))], layout=torch.jagged)
    layer = fnn.FractionalLayer(0.5, dim=1, dtype=torch.float64)
    assert torch.equal((x + layer(x)).values(), x.values() + layer(x).values())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_bad_input_is_refused_with_the_way_out() -> None:
    x = torch.nested.as_nested_tensor(series((2,)), layout=torch.jagged)
    with pytest.raises(ValueError, match=r"ragged axis 1\): needs .* time axis, 2; pass x.transpose\(1, 2\), or dim=1"):
        fnn.FractionalLayer(0.5)(x)
    with pytest.raises(ValueError, match=r"needs a result for every sample, and makes 1 of 5; take stride=1"):
        fnn.FractionalConv1d(2, 2, 5, dtype=torch.float64)(pack_sequence([torch.zeros(5, 2, dtype=torch.float64)]))
    with pytest.raises(TypeError, match=r"nested tensor\): needs rows of one length; .* take the layout torch.jagged"):
        fnn.FractionalLayer(0.5)(torch.nested.nested_tensor([torch.zeros(2, 3)]))
    packed: Any = pack_sequence([torch.zeros(5, 2)])
    with pytest.raises(TypeError, match=r"PackedSequence\): needs rows of one length"):
        fnn.FractionalLayer(0.5, dim=1).run(packed)


def test_a_short_series_keeps_its_digits_beside_a_long_one() -> None:
    """Caputo's derivative has none of a large constant, and what continues a short series must not bring it back."""
    given = [(101325.0 + torch.arange(n, dtype=torch.float32) % 7)[:, None] for n in (300, 2000)]
    layer = fnn.FractionalLayer(0.6, "caputo", dim=1)
    (found, _) = unpack_sequence(layer(pack_sequence(given, enforce_sorted=False)))
    exact = layer(given[0][None].double())[0]
    assert (found - exact).abs().max() <= 3e-6 * exact.abs().max()  # alone 1e-7, of a longer product more


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_parts_of_a_jagged_tensor_are_taken() -> None:
    base = torch.randn(4, 30, 3, dtype=torch.float64)
    begins, lengths = [0, 3, 5, 29], [30, 5, 1, 1]
    x = torch.nested.narrow(base, 1, torch.tensor(begins), torch.tensor(lengths), layout=torch.jagged)
    layer = fnn.FractionalLayer(0.6, "caputo", dim=1)
    for row, (found, begin, length) in enumerate(zip(layer(x).unbind(), begins, lengths, strict=True)):
        wanted = layer(base[row : row + 1, begin : begin + length])[0]
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("offsets", [[0], [0, 0, 0]], ids=["no series", "empty series"])
@pytest.mark.parametrize("layer", [fnn.FractionalLayer(0.6, dim=1), fnn.FractionalLayer(1.6, "caputo", dim=1)])
def test_what_has_no_samples_is_taken(layer: nn.Module, offsets: list[int]) -> None:
    x = torch.nested.nested_tensor_from_jagged(torch.randn(0, 3), offsets=torch.tensor(offsets))
    y = layer(x)
    assert y.shape[0] == len(offsets) - 1
    assert y.values().shape == (0, 3)
