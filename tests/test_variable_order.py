"""Orders that change with time: closed forms, constant orders, kernels, gradients, refusals."""

import json
import math
import pathlib
import re

import numpy as np
import pytest

import hpfracc_nn as fnn
from hpfracc_nn.fractional import Caputo, GrunwaldLetnikov, RiemannLiouville, RiemannLiouvilleIntegral, exact
from hpfracc_nn.fractional.operator import VARIABLE_ORDER_SCHEMES
from tests.test_nonuniform import every_kernel, manager_for, random_times, rates

FILE = pathlib.Path(__file__).parent / "reference" / "orders.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))["cases"]}
every_kind = pytest.mark.parametrize("kind", VARIABLE_ORDER_SCHEMES)


@pytest.mark.parametrize(("scheme", "order"), [("l1", 1.2), ("l1_2", 2.2)])  # of the largest order, 0.8
def test_the_reference_case_is_met_at_the_declared_rate(scheme, order):
    case = CASES["variable_t2"]
    wanted, errors = np.array(case["values"], float), []
    np.testing.assert_allclose(
        exact.variable_power(np.array(case["points"]), 2, 0.5 + 0.3 * np.sin(case["points"])), wanted, rtol=1e-14
    )
    for n in (400, 800, 1600):
        t = np.linspace(0, 2, n + 1)
        alpha = eval(case["alpha"], {"np": np, "t": t})
        y = fnn.variable_order(t**2, alpha, scheme=scheme, dt=2 / n)
        errors.append(np.abs(y[np.rint(np.array(case["points"]) * n / 2).astype(int)] - wanted).max())
    assert max(errors) < 1e-10 or min(rates(errors)) > order - 0.1, errors


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0, 1.6])
@every_kernel
@every_kind
def test_a_constant_order_gives_the_operator_of_that_order(kind, kernel, alpha):
    if kind is RiemannLiouvilleIntegral and alpha > 1 and kernel.algorithm != "dense":
        pytest.skip("above order 1 an integral's memory grows")
    x, t = np.random.default_rng(0).standard_normal((2, 90)), random_times(89)
    definition = kind(alpha, VARIABLE_ORDER_SCHEMES[kind])
    wanted = definition(x, t=t)
    got = fnn.variable_order(x, np.full(90, alpha), kind, t=t, manager=manager_for(kernel))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())
    equal = fnn.variable_order(x, np.full(90, alpha), kind, dt=0.1, manager=manager_for(kernel))
    wanted = definition(x, dt=0.1)
    np.testing.assert_allclose(equal, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())


@every_kernel
@every_kind
def test_each_row_is_that_of_its_own_order(kind, kernel):
    rng, t = np.random.default_rng(0), random_times(69)
    x, alpha = rng.standard_normal((2, 70)), rng.uniform(0.1, 0.9, 70)
    got = fnn.variable_order(x, alpha, kind, t=t, manager=manager_for(kernel))
    for k in (0, 1, 2, 33, 69):
        own = kind(alpha[k], VARIABLE_ORDER_SCHEMES[kind])(x, t=t)[:, k]
        np.testing.assert_allclose(got[:, k], own, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_orders_follow_the_time_axis_and_may_differ_by_signal(dim):
    rng, t = np.random.default_rng(0), random_times(39)
    x, alpha = rng.standard_normal((2, 3, 40)), rng.uniform(0.1, 0.9, (3, 40))
    wanted = np.stack([fnn.variable_order(x[:, j], alpha[j], t=t) for j in range(3)], 1)
    moved = fnn.variable_order(np.moveaxis(x, -1, dim), np.moveaxis(alpha[None], -1, dim), t=t, dim=dim)
    np.testing.assert_allclose(np.moveaxis(moved, dim, -1), wanted, rtol=0, atol=1e-11)
    shared = fnn.variable_order(np.moveaxis(x, -1, dim), alpha[0], t=t, dim=dim)
    np.testing.assert_allclose(
        np.moveaxis(shared, dim, -1)[:, 0], fnn.variable_order(x[:, 0], alpha[0], t=t), atol=1e-11
    )
    assert fnn.variable_order(np.zeros((2, 0)), np.zeros(0)).shape == (2, 0)


@pytest.mark.parametrize(
    ("kind", "shift", "sign"), [(Caputo, 0, 1), (Caputo, 1, 1), (RiemannLiouvilleIntegral, 0, -1)], ids=repr
)
def test_a_power_has_its_closed_form(kind, shift, sign):
    errors = []
    for n in (200, 400):
        t = np.linspace(0, 2, n + 1)
        alpha = 0.5 + 0.3 * np.cos(2 * t) + shift
        y = fnn.variable_order(t**3, alpha, kind, dt=2 / n)
        errors.append(np.abs(y - exact.variable_power(t, 3, sign * alpha))[n // 10 :].max())
    assert math.log2(errors[0] / errors[1]) > 1.8, errors  # second order, but for l1_2's 3 - alpha below 1


X = np.zeros((2, 4))
REFUSED = [
    (
        lambda: fnn.variable_order(X, np.full(3, 0.5)),
        "variable_order(alpha of shape (3,), x of shape (2, 4)): needs one number for each of the 4 samples along dim; "
        "pass alpha of that length, or of x's shape.",
    ),
    (
        lambda: fnn.variable_order(X, np.linspace(0.5, 1.5, 4)),
        "Caputo(alpha=(0.5, 1.5)): needs all orders on one side of 1; apply the operator once per side.",
    ),
    (
        lambda: fnn.variable_order(X, np.full(4, 0.5), GrunwaldLetnikov),
        "variable_order(kind=GrunwaldLetnikov): needs one of Caputo, RiemannLiouville, RiemannLiouvilleIntegral; "
        "pass the class, such as Caputo.",
    ),
    (
        lambda: fnn.variable_order(X, np.full(4, 0.5), RiemannLiouville, scheme="bdf2"),
        "variable_order(RiemannLiouville(scheme='bdf2'), t=...): needs a scheme that takes any steps; "
        "pass scheme='l1' or 'l1_2', or dt.",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_orders_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        call()


def test_one_order_is_no_order_for_each_sample():
    with pytest.raises(TypeError, match="for one order call derivative"):
        fnn.variable_order(X, 0.5)


# Tensors


@every_kind
def test_tensors_give_what_arrays_give_and_orders_learn(kind):
    torch = pytest.importorskip("torch")
    rng, t = np.random.default_rng(0), 40 * random_times(39)
    x, alpha = torch.as_tensor(rng.standard_normal((2, 40))), torch.as_tensor(rng.uniform(0.2, 0.8, 40))
    wanted = fnn.variable_order(x.numpy(), alpha.numpy(), kind, t=t)
    np.testing.assert_allclose(fnn.variable_order(x, alpha.numpy(), kind, t=t), wanted, rtol=0, atol=1e-11)
    np.testing.assert_allclose(fnn.variable_order(x, alpha, kind, t=t), wanted, rtol=0, atol=1e-11)
    x.requires_grad_()
    alpha.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, a: fnn.variable_order(x, a, kind, t=t), (x, alpha), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x, a: fnn.variable_order(x, a, kind, t=t), (x, alpha), fast_mode=True)
    y = fnn.variable_order(x, alpha, kind, t=t)
    (gradient,) = torch.autograd.grad(y[:, 17].sum(), alpha)
    assert torch.count_nonzero(gradient) == 1  # a row depends on its own order only


def test_a_tensor_of_orders_needs_a_tensor_of_data():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="needs an array of floats for a NumPy x"):
        fnn.variable_order(np.zeros(3), torch.full((3,), 0.5))
