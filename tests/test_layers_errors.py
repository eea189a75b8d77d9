"""Bad arguments and bad data are named with the rule, the value and the way out, whole messages."""

import re
from typing import Any

import pytest
import torch

from hpfracc_nn.fractional.definitions import DEFINITIONS, DistributedOrder, GrunwaldLetnikov
from hpfracc_nn.layers.torch import Alpha, FractionalConv1d, FractionalDifference, FractionalLayer

NAMES = ", ".join(map(repr, sorted(DEFINITIONS)))

CONSTRUCTORS = [
    (
        lambda: FractionalLayer(2.3),
        ValueError,
        "Caputo(alpha=2.3): needs 0 <= alpha <= 2; take the samples' own derivative first, "
        "such as scipy.interpolate.CubicSpline(t, x, axis=-1)(t, 1), then alpha=1.3 of it.",
    ),
    (
        lambda: FractionalLayer(float("nan")),
        ValueError,
        "Caputo(alpha=nan): needs a finite alpha; pass 0 <= alpha <= 2.",
    ),
    (
        lambda: FractionalLayer(-0.5),
        ValueError,
        "Caputo(alpha=-0.5): needs 0 <= alpha <= 2; for an integral of order 0.5 use RiemannLiouvilleIntegral(0.5).",
    ),
    (
        lambda: FractionalLayer(dt=0),
        ValueError,
        "FractionalLayer(dt=0): needs a finite dt > 0; pass the spacing of the samples, such as dt=0.01.",
    ),
    (
        lambda: FractionalLayer(dt=float("nan")),
        ValueError,
        "FractionalLayer(dt=nan): needs a finite dt > 0; pass the spacing of the samples, such as dt=0.01.",
    ),
    (
        lambda: FractionalLayer(0.5, "grunwald_letnikov", scheme="l1"),
        ValueError,
        "GrunwaldLetnikov(scheme='l1'): needs one of 'bdf2', 'grunwald'; pass one of these names.",
    ),
    (
        lambda: FractionalLayer(0.5, "weil"),
        ValueError,
        f"FractionalLayer(definition='weil'): needs one of {NAMES}; pass one of these names.",
    ),
    (
        lambda: FractionalLayer(0.5, 3),  # type: ignore[arg-type]
        TypeError,
        f"FractionalLayer(definition=3): needs a name, a definition or the class of one; pass one of {NAMES}.",
    ),
    (
        lambda: FractionalLayer(torch.tensor(0.5)),  # type: ignore[arg-type]
        TypeError,
        "FractionalLayer(alpha of type Tensor): needs a float or a list of floats; pass "
        "learn_alpha=True to train it, "
        "or use derivative() for an alpha that you compute.",
    ),
    (
        lambda: FractionalLayer(1.0, learn_alpha=True),
        ValueError,
        "FractionalLayer(alpha=1.0): needs low < alpha < high to be learned within bounds (0, "
        "1); start inside, "
        "for example at 0.99.",
    ),
    (
        lambda: FractionalLayer(0.5, learn_alpha=True, bounds=(0, 2)),
        ValueError,
        "Caputo(bounds=(0, 2)): needs no whole number between the bounds, where the operator jumps; pass (1, 2).",
    ),
    (
        lambda: FractionalLayer([0.2, 0.4], channels=3),
        ValueError,
        "FractionalLayer(alpha of 2 values, channels=3): needs one order per channel; pass channels=2.",
    ),
    (
        lambda: FractionalLayer(channels=0),
        ValueError,
        "FractionalLayer(channels=0): needs channels >= 1; pass a whole number such as 1.",
    ),
    (
        lambda: FractionalDifference(2.5),  # type: ignore[arg-type]
        TypeError,
        "FractionalDifference(channels=2.5): needs an integer; pass a whole number such as 1.",
    ),
    (
        lambda: FractionalDifference(2, 3, init=[0.1, 0.2]),
        ValueError,
        "FractionalDifference(init of 2 values): needs 1, orders=3 or channels * orders=6 values; "
        "pass one for every order.",
    ),
    (
        lambda: FractionalDifference(2, bounds=0.5),  # type: ignore[arg-type]
        TypeError,
        "FractionalDifference(bounds=0.5): needs two numbers; pass a pair such as (0, 1).",
    ),
    (
        lambda: FractionalDifference(1, init=1.0),
        ValueError,
        "FractionalDifference(alpha=[1.0]): needs low < alpha < high to be learned within bounds (0, 1); "
        "start inside, for example at 0.99.",
    ),
    (
        lambda: FractionalLayer([0.5, 1.5], "grunwald_letnikov", learn_alpha=True),
        ValueError,
        "FractionalLayer(alpha=(0.5, 1.5), bounds=None): needs bounds for orders on both sides of a whole number; pass "
        "bounds=(0, 2).",
    ),
    (
        lambda: FractionalLayer(torch.nn.Linear(1, 1)),  # type: ignore[arg-type]
        TypeError,
        "FractionalLayer(alpha of type Linear): needs numbers or an Alpha; make your module a subclass of Alpha, whose "
        "call returns the orders.",
    ),
    (
        lambda: FractionalDifference(2, init=torch.nn.Linear(1, 1)),  # type: ignore[arg-type]
        TypeError,
        "FractionalDifference(init of type Linear): needs numbers or an Alpha; make your module a subclass of Alpha, "
        "whose call returns the orders.",
    ),
    *(
        (
            lambda given=given: FractionalLayer(0.5, given),
            TypeError,
            "FractionalLayer(definition=DistributedOrder): needs a definition with one order, and this one sums over "
            "its own; call the definition itself on the samples.",
        )
        for given in (DistributedOrder, DistributedOrder(nodes=(0.3,), weights=(1.0,)))
    ),
    (
        lambda: FractionalConv1d(2, 3, 4, padding="Causal"),
        ValueError,
        "FractionalConv1d(padding='Causal'): needs one of 'causal', 'same', 'valid'; pass one of these names.",
    ),
]


class Own(GrunwaldLetnikov):
    """A definition of a user's."""


def test_a_layer_shows_a_definition_of_a_user_s() -> None:
    shown = repr(FractionalLayer(0.4, Own))
    assert shown == "FractionalLayer(alpha=0.4, definition=Own, scheme='grunwald', dt=1, dim=-1)"


def test_an_order_of_a_user_s_serves() -> None:
    class Square(Alpha):
        def forward(self) -> torch.Tensor:
            return super().forward().square()

    layer = FractionalLayer(Square(0.5, (0, 1)), "grunwald_letnikov")
    x = torch.linspace(0, 1, 30, dtype=torch.float64)
    assert layer.alpha.item() == pytest.approx(0.25)  # type: ignore[union-attr]
    torch.testing.assert_close(layer(x), GrunwaldLetnikov(0.25)(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("make", "kind", "message"), CONSTRUCTORS)
def test_a_bad_argument_is_named_when_the_layer_is_made(make: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        make()


CALLS = [
    (
        lambda: FractionalLayer()(torch.ones(3, 9, dtype=torch.int64)),
        TypeError,
        "FractionalLayer(x of dtype torch.int64): needs float16, bfloat16, float32 or float64; "
        "convert with x.to(torch.float32).",
    ),
    (
        lambda: FractionalLayer()(torch.ones(3, 9, dtype=torch.complex64)),
        TypeError,
        "FractionalLayer(x of dtype torch.complex64): needs float16, bfloat16, float32 or float64; "
        "take x.real and x.imag apart.",
    ),
    (
        lambda: FractionalLayer(dim=2)(torch.ones(3, 9)),
        ValueError,
        "FractionalLayer(dim=2): needs -2 <= dim < 2 for 2 axes; pass the index of the time axis, such as dim=-1.",
    ),
    (
        lambda: FractionalLayer()(torch.tensor(1.0)),
        ValueError,
        "FractionalLayer(x): needs at least one axis; x has shape (), pass a series of samples.",
    ),
    (
        lambda: FractionalLayer(channels=3)(torch.ones(4, 2, 9)),
        ValueError,
        "FractionalLayer(channels=3): needs 3 channels on axis 1; x has shape (4, 2, 9), pass channels=2.",
    ),
    (
        lambda: FractionalLayer(channels=3)(torch.ones(9)),
        ValueError,
        "FractionalLayer(channels=3): needs a channel axis beside time; x has shape (9,), add one with x[None].",
    ),
    (
        lambda: FractionalDifference(3)(torch.ones(4, 2, 9)),
        ValueError,
        "FractionalDifference(channels=3): needs 3 channels on axis 1; x has shape (4, 2, 9), pass channels=2.",
    ),
    (
        lambda: FractionalDifference(3)(torch.ones(3, 9)),
        ValueError,
        "FractionalDifference(x of shape (3, 9)): needs three axes, batch, channels and time; "
        "add the missing ones with x[None].",
    ),
    (
        lambda: FractionalDifference(3, dim=0)(torch.ones(9, 3, 2)),
        ValueError,
        "FractionalDifference(dim=0): needs time on axis 1 or 2; axis 0 is the batch.",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), CALLS)
def test_bad_data_are_named_when_the_layer_is_called(call: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()
