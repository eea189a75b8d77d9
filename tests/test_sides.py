"""Right and two-sided operators are the left one in reversed time, and the mean of the two."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn.fractional import (
    DEFINITIONS,
    Caputo,
    Definition,
    GrunwaldLetnikov,
    RiemannLiouvilleIntegral,
    derivative,
    exact,
    integral,
)
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.torch import streaming
from hpfracc_nn.layers import FractionalLayer

DT = 0.1
X = np.random.default_rng(0).standard_normal((3, 70, 2))
every_definition = pytest.mark.parametrize("kind", DEFINITIONS.values(), ids=list(DEFINITIONS))
every_other_side = pytest.mark.parametrize("side", ["right", "both"])


@every_definition
@every_other_side
def test_an_operator_on_another_side_is_its_dense_matrix(kind: type[Definition], side: str) -> None:
    definition = kind(0.4, side=side)
    dense = definition.stencil(70, DT, NUMPY).as_matrix()
    left = kind(0.4, side="left").stencil(70, DT, NUMPY).as_matrix()
    flipped = left[::-1, ::-1]
    np.testing.assert_array_equal(dense, flipped if side == "right" else (left + flipped) / 2)
    x, g = torch.as_tensor(X).requires_grad_(), torch.as_tensor(np.cos(X))
    wanted, size = np.einsum("ij,bjc->bic", dense, X), 1e-12 * 70 * np.abs(dense).max()
    np.testing.assert_allclose(derivative(X, definition, dt=DT, dim=1), wanted, rtol=0, atol=size)
    y = derivative(x, definition, dt=DT, dim=-2)
    np.testing.assert_allclose(y.detach(), wanted, rtol=0, atol=size)
    (gx,) = torch.autograd.grad(y, x, g)
    np.testing.assert_allclose(gx, np.einsum("ij,bic->bjc", dense, g.numpy()), rtol=0, atol=size)


@every_other_side
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_half_precision_is_rounded_once_on_every_side(framework: str, dtype: str, side: str) -> None:
    """Large parts that cancel, and sums that are too large for half precision before they are halved."""
    samples = np.stack([1e3 * X[0, :, 0], np.full(70, 5e4), 3 * X[0, :, 1]])
    if (framework, dtype) == ("numpy", "bfloat16"):
        pytest.skip("NumPy has none")

    def cast(x: Any, dtype: str) -> Any:
        return x.to(getattr(torch, dtype)) if framework == "torch" else x.astype(dtype)

    given: Any = torch.as_tensor(samples) if framework == "torch" else samples
    if framework == "jax":
        given = pytest.importorskip("jax.numpy").asarray(samples)
    x = cast(given, dtype)
    for apply, kind in ((derivative, Caputo), (integral, RiemannLiouvilleIntegral)):
        found, single = (apply(each, kind(0.5, side=side), dt=0.01) for each in (x, cast(x, "float32")))
        assert found.dtype == x.dtype
        # Two programs may round float32 differently: beside the largest result of a row, and where a result is halfway
        # between two of half precision.
        one, other = (np.asarray(cast(each, "float32"), np.float64) for each in (found, single))
        ulp = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
        assert (
            np.abs(one - other) <= (0.5 + 1e-3) * ulp * np.abs(other) + 2.0**-23 * np.abs(other).max(-1, keepdims=True)
        ).all()
    assert np.isfinite(np.asarray(cast(found, "float32"))).all()  # the integral


@every_other_side
def test_orders_of_channels_and_learned_orders_know_sides(side: str) -> None:
    orders = [0.2, 0.8]
    definition = Caputo(orders, side=side)
    y = derivative(X, definition, dt=DT, dim=1)
    for channel, order in enumerate(orders):
        alone = derivative(X[..., channel], Caputo(order, bounds=(0, 1), side=side), dt=DT)
        np.testing.assert_allclose(y[..., channel], alone, rtol=0, atol=1e-11)
    alpha = torch.tensor(orders, dtype=torch.float64, requires_grad=True)
    x = torch.as_tensor(X[:, :9]).requires_grad_()

    def learned(x: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        return derivative(x, Caputo(alpha, side=side), dt=DT, dim=1)

    assert torch.autograd.gradcheck(learned, (x, alpha), fast_mode=True)
    compiled = torch.compile(learned, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, alpha), learned(x, alpha))


def test_integrals_by_parts_turn_a_left_derivative_into_a_right_one() -> None:
    """<D x, y> = <x, D' y> for the filter (1 - z)**alpha, which has no boundary terms."""
    x, y = X[0, :, 0], X[1, :, 0]
    left, right = (GrunwaldLetnikov(0.7, side=side) for side in ("left", "right"))
    assert left(x, dt=DT) @ y == pytest.approx(x @ right(y, dt=DT), rel=1e-12)


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1.5])
def test_right_and_two_sided_powers_have_their_closed_forms(alpha: float) -> None:
    errors, at = [], np.array([0.25, 0.5, 0.75])
    for n_steps in (128, 256):
        t = np.linspace(0, 1, n_steps + 1)
        y = Caputo(alpha, side="both")(t**3, dt=1 / n_steps)[np.rint(at * n_steps).astype(int)]
        # t**3 = 1 - 3 s + 3 s**2 - s**3 with s = 1 - t, seen from the right
        from_right = sum(c * exact.power(1 - at, j, Caputo(alpha)) for j, c in ((1, -3), (2, 3), (3, -1)))
        errors.append(np.abs(y - (exact.power(at, 3, Caputo(alpha)) + from_right) / 2).max())
    assert math.log2(errors[0] / errors[1]) > Caputo(alpha).accuracy(alpha) - 0.2


def test_the_two_sided_second_derivative_is_the_second_derivative_and_the_first_vanishes() -> None:
    t = np.linspace(0, 1, 201)
    y = Caputo(2.0, "grunwald", side="both")(np.sin(t), dt=t[1])[3:-3]
    np.testing.assert_allclose(y, -np.sin(t[3:-3]), atol=2e-4)  # dt**2
    np.testing.assert_allclose(Caputo(1.0, side="both")(np.sin(t), dt=t[1])[3:-3], 0, atol=1e-4)


def test_integrals_from_both_sides_add_up_to_that_of_the_whole() -> None:
    t = np.linspace(0, 1, 101)
    y = integral(np.exp(t), RiemannLiouvilleIntegral(1.0, side="both"), dt=t[1])
    np.testing.assert_allclose(y, (math.e - 1) / 2, rtol=1e-5)


def test_a_side_makes_a_difference_and_other_words_are_refused() -> None:
    sides = [Caputo(0.5, side=side) for side in ("left", "right", "both")]
    assert all(one != other for one, other in itertools.combinations(sides, 2))
    assert replace(sides[1], side="left") == sides[0] == sides[2].to_the_left
    with pytest.raises(ValueError, match=r"^Caputo\(side='up'\): needs one of 'both', 'left', 'right'; pass one of"):
        Caputo(0.5, side="up")
    with pytest.raises(ValueError, match=r"needs side='left' for step and run"):
        streaming.initial_state("test", sides[1], (2,))
    with pytest.raises(TypeError, match=r"needs a dense tensor; pass x\.to_dense\(\)"):
        derivative(torch.eye(3).to_sparse(), sides[1])


@every_other_side
def test_nothing_in_gives_nothing_out(side: str) -> None:
    for shape in ((0, 5), (3, 0)):
        assert derivative(np.empty(shape), Caputo(0.5, side=side)).shape == shape
        assert derivative(torch.empty(shape), Caputo(0.5, side=side)).shape == shape


@every_other_side
def test_layers_take_a_definition_with_its_options(side: str) -> None:
    template = DEFINITIONS["tempered_caputo"](0.5, rate=3.0, side=side)  # type: ignore[call-arg]
    x = torch.as_tensor(X).movedim(1, -1)
    layer = FractionalLayer(0.3, template, dt=DT)
    torch.testing.assert_close(layer(x), derivative(x, replace(template, alpha=0.3), dt=DT))
    learned = FractionalLayer(0.3, template, dt=DT, channels=2, learn_alpha=True)
    assert learned(x).shape == x.shape
    assert "rate=3.0" in repr(learned)
    assert f"side='{side}'" in repr(learned)
