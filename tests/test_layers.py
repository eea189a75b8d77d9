"""The layers: the functional operator with an order that is fixed or learned, and checks at the door."""

import copy
import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hpfracc_nn.fractional.definitions import DEFINITIONS, Caputo, GrunwaldLetnikov
from hpfracc_nn.fractional.torch.operator import apply
from hpfracc_nn.layers.torch import Alpha, FractionalDifference, FractionalLayer
from hpfracc_nn.selection import BackendManager, Settings
from tests.definition_cases import CLASSICAL

DT = 0.25
every_definition = pytest.mark.parametrize("name", DEFINITIONS)


@pytest.fixture
def manager() -> BackendManager:
    return BackendManager(Settings(mode="prior", calibration="shipped"))


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_definition
@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(("shape", "dim"), [((4, 3, 90), -1), ((4, 90, 3), 1), ((90,), 0), ((2, 3, 4, 90), 3)])
def test_the_layer_is_the_operator(
    name: str, learn: bool, shape: tuple[int, ...], dim: int, manager: BackendManager
) -> None:
    x, kind = data(*shape), DEFINITIONS[name]
    options: Any = {"learn_alpha": learn, "dt": DT, "dim": dim, "manager": manager, "dtype": torch.float64}
    layer, by_class = (FractionalLayer(0.6, definition, **options) for definition in (name, kind))
    assert layer.definition.scheme == by_class.definition.scheme
    definition = kind(0.6, layer.definition.scheme, (0, 1) if learn else None)
    expected = apply("test", x, definition, DT, dim, manager)
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(by_class(x), layer(x))


@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize(
    ("shape", "dim", "axis"),
    [((4, 3, 90), -1, 1), ((3, 90), -1, 0), ((4, 90, 3), 1, 2), ((4, 3, 5, 90), -1, 1), ((90, 3), 0, 1)],
)
def test_channels_lie_on_axis_one_or_on_the_last(learn: bool, shape: tuple[int, ...], dim: int, axis: int) -> None:
    orders, x = [0.2, 0.5, 0.9], data(*shape)
    layer = FractionalLayer(orders, channels=3, learn_alpha=learn, dt=DT, dim=dim, dtype=torch.float64)
    y = layer(x)
    for channel, alpha in enumerate(orders):
        one = FractionalLayer(alpha, dt=DT, dim=dim)
        alone = one(x.narrow(axis, channel, 1))
        torch.testing.assert_close(y.narrow(axis, channel, 1), alone, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", [name for name, kind in DEFINITIONS.items() if kind in CLASSICAL])
def test_the_limits_are_exact(name: str) -> None:
    x = data(3, 40)
    identity, whole = (FractionalLayer(alpha, name, dt=DT)(x) for alpha in (0, 1))
    first = x[:, :1] if name == "caputo" else 0
    torch.testing.assert_close(identity, x - first, rtol=1e-13, atol=1e-13)
    if name == "riemann_liouville_integral":  # the trapezoid rule
        expected = torch.cumulative_trapezoid(x, dx=DT)
        torch.testing.assert_close(whole[:, 1:], expected, rtol=1e-13, atol=1e-13)
    elif name == "grunwald_letnikov":  # the backward difference
        expected = torch.diff(x, prepend=torch.zeros(3, 1, dtype=x.dtype)) / DT
        torch.testing.assert_close(whole, expected, rtol=1e-12, atol=1e-12)
    else:  # the two-step backward difference, after its first steps
        expected = (1.5 * x[:, 2:] - 2 * x[:, 1:-1] + 0.5 * x[:, :-2]) / DT
        torch.testing.assert_close(whole[:, 2:], expected, rtol=1e-11, atol=1e-11)


def test_alpha_changes_the_result_and_two_inputs_give_two_results() -> None:
    x = data(3, 90)
    layer = FractionalLayer(0.4, learn_alpha=True)
    before = layer(x)
    assert not torch.equal(layer(x + data(3, 90, seed=1)), before)
    assert torch.equal(layer(x), before)
    with torch.no_grad():
        layer.order.raw.add_(0.5)
    assert (layer(x) - before).abs().max() > 0.01
    assert not torch.equal(FractionalLayer(0.4)(x), FractionalLayer(0.41)(x))
    assert not torch.equal(FractionalLayer(0.4)(x), FractionalLayer(0.4, dt=0.5)(x))


def order_of(layer: FractionalLayer) -> float:
    assert isinstance(layer.alpha, Tensor)
    return layer.alpha.item()


def train(model: nn.Module, x: Tensor, target: Tensor, steps: int = 15) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


@every_definition
def test_a_layer_learns_the_order_of_data(name: str) -> None:
    x = data(8, 200).cumsum(-1)
    layer = FractionalLayer(0.3, name, learn_alpha=True, dtype=torch.float64)
    train(layer, x, FractionalLayer(0.62, name)(x))
    assert order_of(layer) == pytest.approx(0.62, abs=1e-4)  # no noise: as far as the search goes


def test_a_layer_learns_one_order_per_channel() -> None:
    x = data(8, 3, 200).cumsum(-1)
    layer = FractionalLayer(0.5, channels=3, learn_alpha=True, dtype=torch.float64)
    train(layer, x, FractionalLayer([0.2, 0.45, 0.8])(x), steps=40)
    assert isinstance(layer.alpha, Tensor)
    assert layer.alpha.tolist() == pytest.approx([0.2, 0.45, 0.8], abs=1e-3)


def test_a_bank_learns_integration_and_differencing() -> None:
    x = data(4, 2, 300)
    bank = FractionalDifference(2, bounds=(-1, 1), init=[-0.5, 0.5], dtype=torch.float64)
    target = FractionalDifference(2, bounds=(-1, 1), init=[-0.2, 0.7], learn_alpha=False)(x)
    train(bank, x, target, steps=40)
    assert bank.alpha.tolist() == pytest.approx([-0.2, 0.7], abs=1e-3)


def test_a_hundred_steps_use_no_stale_weights() -> None:
    """After each step the layer is what a fresh one with the same order is."""
    x = data(4, 70)
    layer = FractionalLayer(0.3, learn_alpha=True, dtype=torch.float64)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    seen = set()
    for _ in range(100):
        optimizer.zero_grad()
        y = layer(x)
        alpha = order_of(layer)
        seen.add(alpha)
        fresh = apply("test", x, Caputo(torch.tensor(alpha, dtype=torch.float64)), 1.0, -1, None)
        torch.testing.assert_close(y, fresh, rtol=1e-12, atol=1e-12)
        (y - x).square().mean().backward()
        optimizer.step()
    assert len(seen) == 100


def binomial_weights(alpha: Fraction, n: int) -> list[Fraction]:
    """Return the coefficients of (1 - z)**alpha, exactly."""
    weights = [Fraction(1)]
    for k in range(1, n):
        weights.append(weights[-1] * (k - 1 - alpha) / k)
    return weights


@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
def test_the_impulse_response_of_a_difference_is_binomial(learn: bool) -> None:
    orders, n = [Fraction(-1, 2), Fraction(1, 4), Fraction(1, 3), Fraction(3, 4)], 150
    bank = FractionalDifference(
        2,
        2,
        bounds=(-1, 1),
        init=[float(order) for order in orders],
        learn_alpha=learn,
        dt=DT,
        dtype=torch.float64,
    )
    x = torch.zeros(1, 2, n, dtype=torch.float64)
    x[..., 0] = 1
    for response, order in zip(bank(x)[0], orders, strict=True):
        expected = np.array([float(weight) for weight in binomial_weights(order, n)]) * DT ** -float(order)
        np.testing.assert_allclose(response.detach().numpy(), expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("learn", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("bounds", [(0, 1), (-1, 1)])
def test_a_bank_keeps_channel_and_order_in_place_in_both_layouts(learn: bool, bounds: tuple[int, int]) -> None:
    init = [0.2, 0.7, 0.5] if bounds == (0, 1) else [0.3, -0.4, 0.6]
    x = data(3, 2, 80)
    options: Any = {"bounds": bounds, "init": init, "learn_alpha": learn, "dtype": torch.float64}
    last = FractionalDifference(2, 3, **options)
    middle = FractionalDifference(2, 3, dim=1, **options)
    y = last(x)
    assert y.shape == (3, 6, 80)
    assert last.alpha.tolist() == pytest.approx(init * 2, abs=1e-12)
    for channel in range(2):
        for number, alpha in enumerate(init):
            expected = apply("test", x[:, channel], GrunwaldLetnikov(alpha), 1.0, -1, None)
            torch.testing.assert_close(y[:, 3 * channel + number], expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(middle(x.mT), y.mT, rtol=1e-11, atol=1e-11)


def test_a_bank_is_split_at_zero() -> None:
    bank = FractionalDifference(1, 4, bounds=(-1, 1), init=[-0.6, 0.6, -0.1, 0.1])
    assert [part.bounds for part in bank.parts if isinstance(part, Alpha)] == [(-1, 0), (0, 1)]
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.fill_(100.0)  # as far up as an order can go
    assert bank.alpha.tolist() == pytest.approx([0, 1, 0, 1])
    spread = FractionalDifference(1, 3, bounds=(-1, 1)).alpha
    assert ((spread > -1) & (spread < 1) & (spread != 0)).all()


LAYERS = {
    "fixed": lambda: FractionalLayer(0.4),
    "learned": lambda: FractionalLayer(0.4, learn_alpha=True),
    "channels": lambda: FractionalLayer(0.4, channels=2, learn_alpha=True),
    "bank": lambda: FractionalDifference(2, 2, bounds=(-1, 1)),
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


@every_layer
def test_state_moves_between_layers(make: Any) -> None:
    x, layer, other = data(3, 2, 60), make(), make()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))
        for one, another in zip(copied.parameters(), layer.parameters(), strict=True):
            assert one.data_ptr() != another.data_ptr()


@every_layer
def test_a_copy_learns_alone(make: Any) -> None:
    x, layer = data(3, 2, 60), make()
    expected, copied = layer(x), copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(0.3)
    assert torch.equal(layer(x), expected)
    assert torch.equal(copied(x), expected) == (not list(layer.parameters()))


@every_layer
def test_dtypes_follow_the_data_and_parameters_their_own(make: Any) -> None:
    x, layer = data(3, 2, 60), make()
    assert all(parameter.dtype == torch.float32 for parameter in layer.parameters())
    assert layer(x).dtype == torch.float64
    assert layer(x.float()).dtype == torch.float32
    before = layer(x)
    layer.to(torch.float64)
    assert all(parameter.dtype == torch.float64 for parameter in layer.parameters())
    assert torch.equal(layer(x), before)  # alpha was float64 all along


def test_parameters_are_made_where_they_are_asked_for() -> None:
    for layer in (
        FractionalLayer(0.4, learn_alpha=True, device="meta", dtype=torch.float16),
        FractionalDifference(2, device="meta", dtype=torch.float16),
    ):
        assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float16)}


def test_a_layer_says_what_it_is() -> None:
    learned = FractionalLayer(0.5, channels=3, learn_alpha=True, dt=0.1, dim=1)
    assert FractionalLayer(0.5).extra_repr() == "alpha=0.5, definition='caputo', scheme='l1_2', dt=1, dim=-1"
    expected = "learn_alpha=True, definition='caputo', scheme='l1_2', channels=3, dt=0.1, dim=1"
    assert learned.extra_repr() == expected
    assert FractionalDifference(2, 3).extra_repr() == "2, orders=3, learn_alpha=True, bounds=(0, 1), dt=1, dim=-1"
    fixed = FractionalDifference(1, init=0.25, learn_alpha=False)
    assert fixed.extra_repr() == "1, orders=1, alpha=[0.25], bounds=(0, 1), dt=1, dim=-1"
