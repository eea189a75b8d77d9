"""What the fractional optimizers compute: the averages, limits, fixed points, equivariance."""

import io
import math
from typing import Any

import numpy as np
import pytest
import torch

from hpfracc_nn.training import FractionalAdam, FractionalSGD, directions
from hpfracc_nn.training.torch.optimizers.directions import KINDS, dropped
from tests.optimizer_cases import (
    BASES,
    distance,
    every_average,
    every_class,
    every_open_kind,
    gradients,
    parameters,
    quartic,
    train,
)


@pytest.mark.slow
@every_open_kind
@every_class
def test_near_alpha_1_the_difference_is_linear_in_1_minus_alpha(cls, options):
    """At most C (1 - alpha), with C measured at 0.999 and half as much again for what is not linear there."""

    def run(alpha):
        generator = torch.Generator().manual_seed(0)
        return train(cls, 50, lr=0.01, alpha=alpha, generator=generator, **options)

    away = {alpha: distance(run(alpha), run(1.0)) for alpha in (0.999, 0.9999, 1 - 1e-6)}
    bound = 1.5 * away[0.999] / 1e-3
    assert 0 < away[0.999] < 0.02
    assert all(difference <= bound * (1 - alpha) + 1e-13 for alpha, difference in away.items())  # rounding


def averaged(past, alpha, options, seed=None):
    """Return the average of gradients [steps, ...] by the definition, in float64."""
    newest_first = np.asarray(past)[::-1]
    if options.get("memory") == "exponentials":
        lags = np.arange(1, len(newest_first))
        shapes = directions.decays() ** (lags[:, None] - 1)
        weights = np.concatenate([[1.0], shapes @ directions.coefficients(alpha)])
    else:
        weights = getattr(directions, options["kind"])(alpha, options.get("memory", 10))[: len(newest_first)]
    if seed is not None:
        lag = dropped(seed, len(past) - 1, options.get("memory", 10) - 1)
        if lag < len(weights):
            weights[lag] = 0
    if options["kind"] == "integral":
        weights = weights / weights.sum()
    return np.tensordot(weights, newest_first[: len(weights)], 1)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.95])
@every_average
def test_the_step_is_along_the_average_of_the_last_gradients(alpha, options):
    """Of those that each parameter had: one that has no gradient at a step stays, and remembers none."""
    params = parameters()
    optimizer = FractionalSGD(params, lr=1.0, alpha=alpha, **options)
    past: list[list[Any]] = [[] for _ in params]
    for count, step in enumerate(gradients(params, 25)):
        before = [p.detach().clone() for p in params]
        for index, (p, grad) in enumerate(zip(params, step, strict=True)):
            p.grad = None if count % 3 == 2 and index == 0 else grad
            if p.grad is not None:
                past[index].append(grad.numpy())
        kept = [None if p.grad is None else (p.grad, p.grad.clone()) for p in params]
        optimizer.step()
        for p, old, one, was in zip(params, before, past, kept, strict=True):
            if was is None:
                assert torch.equal(p, old)
                continue
            assert p.grad is was[0]
            assert torch.equal(p.grad, was[1])
            expected = old - torch.as_tensor(averaged(one, alpha, options, optimizer.param_groups[0].get("seed")))
            torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-14)  # eps times a few of order 1


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("memory", [1, 2, 3, 10, "exponentials"])
def test_weights_of_the_integral_sum_to_1_at_every_step(alpha, memory):
    params = [torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))]
    optimizer = FractionalSGD(params, lr=1.0, alpha=alpha, memory=memory)
    for step in range(1, 30):
        params[0].grad = torch.tensor([1.0, -2.0, 1e6], dtype=torch.float64)
        optimizer.step()
        expected = -step * params[0].grad
        torch.testing.assert_close(params[0].detach(), expected, rtol=1e-14, atol=0)  # eps for every step


@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("count", [1, 2, 10, 100])
def test_weight_sums_are_as_documented(alpha, count):
    order = 1 - alpha
    product = np.prod(1 - order / np.arange(1, count))
    assert directions.difference(alpha, count).sum() == pytest.approx(product, rel=1e-12)
    rest = math.exp(math.lgamma(count + order) - math.lgamma(order) - math.lgamma(count + 1))
    assert directions.fcgd(alpha, count).sum() == pytest.approx((1 - rest) / alpha, rel=1e-12)
    total = math.exp(math.lgamma(count + order) - math.lgamma(1 + order) - math.lgamma(count))
    assert directions.integral(alpha, count).sum() == pytest.approx(total, rel=1e-12)


def test_weights_of_fcgd_are_the_papers_recurrence():
    """Zhou, Zhao & Huang (2023): w_j = (1 - (alpha + 1) / (j + 1)) w_(j-1)."""
    expected = [1.0]
    for j in range(1, 11):
        expected.append((1 - (0.7 + 1) / (j + 1)) * expected[-1])
    np.testing.assert_allclose(directions.fcgd(0.7, 11), expected, rtol=1e-14)


@pytest.mark.parametrize("weights", [directions.integral, directions.difference, directions.fcgd])
def test_weights_are_1_and_nothing_else_at_alpha_1(weights):
    np.testing.assert_array_equal(weights(1.0, 20), np.eye(20)[0])


def test_exponentials_follow_the_tempered_power_law_as_documented():
    lags = np.arange(2000)
    tempered = np.exp(-lags / directions.TEMPER)
    for alpha in np.linspace(0.01, 0.99, 25):
        shapes = directions.decays() ** (lags[1:, None] - 1)
        kernel = np.concatenate([[1.0], shapes @ directions.coefficients(alpha)])
        weights = directions.integral(alpha, len(lags)) * tempered
        assert (kernel > 0).all()
        assert np.abs(kernel / weights - 1)[: directions.FITTED + 1].max() < 0.04
        assert np.abs(kernel / kernel.sum() - weights / weights.sum()).sum() / 2 < 0.013
    assert not directions.coefficients(1.0).any()


@pytest.mark.parametrize("alpha", [0.3, pytest.param(0.6, marks=pytest.mark.slow), 0.9])
@every_average
@pytest.mark.slow
def test_every_alpha_reaches_the_minimiser_of_a_convex_quadratic(alpha, options):
    """The difference's weights have a small sum and take larger steps; the exponentials' a long delay, and smaller."""
    lr, steps = {"difference": (0.2, 2000), "exponentials": (0.02, 2000)}.get(list(options.values())[-1], (0.05, 700))
    matrix = torch.tensor([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]], dtype=torch.float64)
    best = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    x = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = FractionalSGD([x], lr=lr, alpha=alpha, **options)
    for _ in range(steps):
        x.grad = matrix @ (x.detach() - best)
        optimizer.step()
    torch.testing.assert_close(x.detach(), best, rtol=0, atol=1e-5)


def descend(kind, alpha, steps, lr, start):
    """Return where SGD on (x - 3)**2 / 2 is."""
    x = torch.nn.Parameter(torch.tensor([start], dtype=torch.float64))
    optimizer = FractionalSGD([x], lr=lr, alpha=alpha, kind=kind)

    def closure():
        x.grad = x.detach() - 3
        return x.grad.square().sum() / 2

    for _ in range(steps):
        optimizer.step(closure)
    return x.item()


@pytest.mark.slow
def test_the_closed_form_of_caputo_goes_to_the_right_point_and_stalls():
    """As measured for its documentation: 2.998 after 20000 steps, where the distance still left is 2e-3."""
    assert descend("caputo", 0.7, 20_000, 0.01, 0.0) == pytest.approx(2.998, abs=5e-4)
    assert descend("integral", 0.7, 5_000, 0.01, 0.0) == pytest.approx(3.0, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.9])
def test_caputos_derivative_from_a_fixed_terminal_goes_to_another_point(alpha):
    """To 3 (2 - alpha): there Caputo's derivative of (x - 3)**2 / 2 from 0 vanishes."""
    assert descend("caputo_terminal", alpha, 300, 0.2, 1.0) == pytest.approx(3 * (2 - alpha), rel=1e-12)


@pytest.mark.parametrize("power", [2, 3, 4])
@pytest.mark.parametrize("start", [2.0, -2.0])
def test_the_step_from_a_fixed_terminal_is_caputos_derivative(power, start):
    """Of x**power: Gamma(power + 1) / Gamma(power + 1 - alpha) x**(power - alpha), mirrored where x is negative."""
    x = torch.nn.Parameter(torch.tensor(start, dtype=torch.float64))
    optimizer = FractionalSGD([x], lr=1.0, alpha=0.6, kind="caputo_terminal")

    def closure():
        optimizer.zero_grad()
        loss = x**power
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    derivative = math.gamma(power + 1) / math.gamma(power + 0.4) * abs(start) ** (power - 0.6)
    sign = math.copysign(1, start) ** (power - 1)
    assert start - x.item() == pytest.approx(sign * derivative, rel=1e-12)
    assert loss.item() == start**power
    assert x.grad is not None
    assert x.grad.item() == power * start ** (power - 1)


def test_the_closed_form_of_caputo_is_the_papers():
    x = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = FractionalSGD([x], lr=0.1, alpha=0.3, kind="caputo")
    places = [1.0]
    for gradient in (2.0, -3.0, 0.5):
        x.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
        way = abs(places[-1] - places[-2]) ** 0.7 / math.gamma(1.7) if len(places) > 1 else 1.0
        places.append(places[-1] - 0.1 * gradient * way)
        assert x.item() == pytest.approx(places[-1], rel=1e-14)


def saved_and_loaded(state):
    """Return what is read of what was written to disk, where nothing but tensors and numbers may stand."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize(("dtype", "stop"), [(torch.float64, 3), (torch.float64, 17), (torch.bfloat16, 17)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@every_class
@pytest.mark.slow
def test_a_resumed_run_equals_one_that_was_not_interrupted_bit_for_bit(cls, kind, stop, dtype):
    for memory in (10, "exponentials") if kind == "integral" else (10,):
        start = [torch.nn.Parameter(p.detach().to(dtype)) for p in parameters()]
        whole = train(cls, 0, start, lr=0.01, alpha=0.8, kind=kind, memory=memory)
        state = None
        for step in range(25):
            if step == stop:
                state = saved_and_loaded(whole.state_dict())
                middle = [torch.nn.Parameter(p.detach().clone()) for p in start]
            whole.step(quartic(whole))
        resumed = cls(middle, lr=0.5)  # all options come from the state
        resumed.load_state_dict(state)
        for _ in range(25 - stop):
            resumed.step(quartic(resumed))
        assert distance(whole, resumed) == 0


@every_open_kind
def test_it_commutes_with_permuting_and_reshaping_parameters(options):
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    flat = torch.randn(24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ways = {
        "as it is": lambda x: x,
        "permuted": lambda x: x[order],
        "reshaped": lambda x: x.reshape(2, 3, 4),
        "channels last": lambda x: x.reshape(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "one by one": lambda x: x.reshape(24, 1),
    }
    results = {}
    for name, way in ways.items():
        x = torch.nn.Parameter(way(flat).clone(memory_format=torch.preserve_format))
        generator = torch.Generator().manual_seed(3)
        optimizer = FractionalAdam([x], lr=0.05, alpha=0.6, generator=generator, **options)
        for count in range(15):
            x.grad = way((x.detach().reshape(-1) if name != "permuted" else x.detach()[order.argsort()]).sin() + count)
            optimizer.step()
        results[name] = x.detach()
    expected = results["as it is"]
    for name, way in ways.items():
        assert torch.equal(results[name], way(expected)), name


def test_a_tempered_average_and_a_window_differ_less_the_shorter_the_run():
    """Both are exact at the first steps but for the fit of the weights."""
    runs = [train(FractionalSGD, 3, lr=0.01, alpha=0.9, memory=memory) for memory in (10, "exponentials")]
    assert 0 < distance(*runs) < 0.01


@every_class
def test_a_state_of_the_base_optimizer_leaves_alpha_kind_and_memory(cls):
    first, second = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    given = [{"params": [first], "alpha": 0.5, "memory": 5}, {"params": [second], "alpha": 0.9, "kind": "difference"}]
    optimizer = cls(given, lr=0.1)
    base_class: Any = BASES[cls]
    base = base_class([{"params": [first]}, {"params": [second]}], lr=0.3)
    optimizer.load_state_dict(base.state_dict())
    assert [(group["alpha"], group["kind"], group["memory"]) for group in optimizer.param_groups] == [
        (0.5, "integral", 5),
        (0.9, "difference", 10),
    ]
    assert [group["lr"] for group in optimizer.param_groups] == [0.3, 0.3]


def test_a_frozen_parameter_stays_where_it_is_while_others_are_moved_along_the_line():
    def end(with_frozen: bool) -> torch.Tensor:
        w, frozen = (
            torch.nn.Parameter(torch.tensor([2.0])),
            torch.nn.Parameter(torch.tensor([3.0]), requires_grad=False),
        )
        params = [w, frozen] if with_frozen else [w]
        optimizer = FractionalSGD(params, lr=0.1, alpha=0.5, kind="caputo_terminal")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (w * frozen).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        return w.detach()

    assert torch.equal(end(True), end(False))


def test_an_order_that_numpy_gives_is_saved_as_a_number(tmp_path):
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = FractionalAdam([p], alpha=np.float64(0.5))
    optimizer.param_groups[0]["alpha"] = np.float64(0.4)
    p.grad = torch.ones(3)
    optimizer.step()
    torch.save(optimizer.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state", weights_only=True)["param_groups"][0]["alpha"] == 0.4


def test_a_kind_that_is_set_later_drops_gradients_too():
    late, early = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer, other = FractionalSGD([late], lr=0.1, alpha=0.5), FractionalSGD([early], lr=0.1, alpha=0.5, kind="fcgd")
    optimizer.param_groups[0]["kind"] = "fcgd"
    for step in range(12):
        for p, each in ((late, optimizer), (early, other)):
            p.grad = torch.full((3,), float(step))
            if step:
                each.param_groups[0]["seed"] = 7  # the first step draws one, and has nothing to drop
            each.step()
    assert torch.equal(late, early)
