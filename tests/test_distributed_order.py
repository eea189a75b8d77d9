"""Distributed order: one stencil for a sum of operators, and the quadrature of an integral over the order."""

import pickle
import re

import numpy as np
import pytest
import torch
from scipy.special import gamma

import hpfracc_nn as fnn
from hpfracc_nn.fractional import (
    Caputo,
    DistributedOrder,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    exact,
)
from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.stencil import slope_row
from tests.test_nonuniform import rates
from tests.test_variable_order import CASES

KINDS = (Caputo, RiemannLiouville, GrunwaldLetnikov, RiemannLiouvilleIntegral)
SCHEMES = [(kind, scheme) for kind in KINDS for scheme in kind.schemes]
NODES, WEIGHTS = (0.2, 0.5, 0.9), (1.0, -0.3, 2.0)


@pytest.mark.parametrize("above", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "scheme"), SCHEMES)
def test_it_is_the_sum_of_its_operators(kind, scheme, above):
    x, nodes = np.random.default_rng(0).standard_normal((2, 300)), tuple(above + node for node in NODES)
    together = DistributedOrder(nodes=nodes, weights=WEIGHTS, kind=kind, scheme=scheme)
    bounds = (above, above + 1)  # all difference as often as the largest order, which bdf2's start depends on
    parts = [kind(node, scheme, bounds)(x, dt=0.1) for node in nodes]
    wanted = np.tensordot(WEIGHTS, parts, axes=1)
    np.testing.assert_allclose(together(x, dt=0.1), wanted, rtol=0, atol=3e-11 * np.abs(wanted).max())
    matrix = together.stencil(300, 0.1, NUMPY).as_matrix()
    np.testing.assert_allclose(x @ matrix.T, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())


@pytest.mark.parametrize(("scheme", "order"), [("l1", 1.0), ("l1_2", 2.0), ("bdf2", 1.9), ("grunwald", 1.0)])
def test_the_reference_case_is_met(scheme, order):
    case = CASES["distributed_t2"]
    points, wanted, errors = np.array(case["points"]), np.array(case["values"], float), []
    np.testing.assert_allclose(exact.distributed_power(points, 2), wanted, rtol=1e-14)
    density = eval(f"lambda a: {case['weight']}", {"gamma": gamma})
    definition = DistributedOrder.over(density, *case["alpha"], scheme=scheme)
    for n in (400, 800, 1600):
        t = np.linspace(0, 2, n + 1)
        y = definition(t**2, dt=2 / n)
        errors.append(np.abs(y[np.rint(points * n / 2).astype(int)] - wanted).max())
    # Orders up to 1: l1 and l1_2 lose up to a logarithm of n against orders 1 and 2.
    assert min(rates(errors)) > order - 0.1, errors


@pytest.mark.parametrize("kind", KINDS)
def test_the_quadrature_has_converged_with_sixteen_points(kind):
    lags = np.unique(np.geomspace(1, 10**6, 30).astype(int))
    few, many = (
        DistributedOrder.over(lambda a: gamma(3 - a), 0, 1, points=points, kind=kind).stencil(1, 1.0, NUMPY)
        for points in (16, 32)
    )
    narrow, wide = few.column(lags), many.column(lags)
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=1e-14)
    np.testing.assert_allclose(narrow, wide, rtol=1e-9)


def test_the_closed_form_has_its_limit_at_one():
    near = exact.distributed_power(np.array([1 - 1e-9, 1.0, 1 + 1e-9]), 2)
    np.testing.assert_allclose(near, 2.0, rtol=1e-8)


def test_tensors_give_what_arrays_give_with_a_gradient():
    torch = pytest.importorskip("torch")
    definition = DistributedOrder.over(np.ones_like, 0, 1)
    x = torch.as_tensor(np.random.default_rng(0).standard_normal((2, 300))).requires_grad_()
    y = definition(x, dt=0.1)
    np.testing.assert_allclose(y.detach(), definition(x.detach().numpy(), dt=0.1), rtol=0, atol=1e-10)
    g = torch.as_tensor(np.random.default_rng(1).standard_normal((2, 300)))
    (gx,) = torch.autograd.grad(y, x, g)
    matrix = torch.as_tensor(definition.stencil(300, 0.1, NUMPY).as_matrix())
    torch.testing.assert_close(gx, g @ matrix, rtol=0, atol=1e-9)


def test_it_is_one_product_and_may_be_a_sum_of_exponentials():
    plan = fnn.choose("toeplitz", (16, 4096), framework="numpy", definition=DistributedOrder.over(np.ones_like, 0, 1))
    assert plan.workload.channels == 1
    assert plan.workload.exponentials > 0


def test_values_that_are_equal_have_equal_hashes():
    one, other = (DistributedOrder.over(np.ones_like, 0, 1) for _ in range(2))
    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    assert one != DistributedOrder.over(lambda a: 2 * np.ones_like(a), 0, 1)
    assert one != DistributedOrder.over(np.ones_like, 0, 1, scheme="l1")


@pytest.mark.parametrize("above", [0.0, 1.0])
@pytest.mark.parametrize(("kind", "scheme"), SCHEMES)
def test_a_sum_of_operators_is_undone(kind, scheme, above):
    if kind is RiemannLiouvilleIntegral and above:
        pytest.skip("from order 1 on the trapezoid rule has no bounded inverse")
    x, nodes = np.random.default_rng(0).standard_normal((2, 60)), tuple(above + node for node in NODES)
    definition = DistributedOrder(nodes=nodes, weights=(1.0, 0.3, 2.0), kind=kind, scheme=scheme)
    x0 = x[:, 0] if kind in (Caputo, RiemannLiouvilleIntegral) else None
    dx0 = x @ slope_row(60) / 0.1 if kind is Caputo and above else None
    got = fnn.solve(definition(x, dt=0.1), definition, x0=x0, dx0=dx0, dt=0.1)
    np.testing.assert_allclose(got, x, rtol=0, atol=1e-9)  # rounding errors summed up almost twice


REFUSED = [
    (
        lambda: DistributedOrder(nodes=(0.5,), weights=(1.0, 2.0)),
        "DistributedOrder(nodes of length 1, weights of length 2): needs a weight for each of at least one order; "
        "pass as many.",
    ),
    (
        lambda: DistributedOrder(nodes=(0.5, 1.5), weights=(1.0, 2.0)),
        "Caputo(alpha=(0.5, 1.5)): needs all orders on one side of 1; apply the operator once per side.",
    ),
    (
        lambda: DistributedOrder.over(np.log, -1, -0.5, kind=GrunwaldLetnikov),
        None,
    ),
    (
        lambda: DistributedOrder.over(np.ones_like, 1, 0),
        "DistributedOrder.over(low=1, high=0): needs low < high; exchange the two.",
    ),
    (
        lambda: DistributedOrder(nodes=(0.5,), weights=(1.0,), kind=DistributedOrder),
        "DistributedOrder(kind=DistributedOrder): needs one of Caputo, RiemannLiouville, GrunwaldLetnikov, "
        "RiemannLiouvilleIntegral; pass the class, such as Caputo.",
    ),
]


@pytest.mark.filterwarnings("ignore:invalid value")  # NumPy's, of the density
@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_distributions_are_refused(call, message):
    pattern = "needs finite weights; look at the density" if message is None else f"^{re.escape(message)}$"
    with pytest.raises(ValueError, match=pattern):
        call()


@pytest.mark.parametrize("dt", [1e-6, 1.0, 1e6])
def test_the_exponentials_are_right_whatever_the_step(dt):
    definition = DistributedOrder(nodes=(0.1, 0.95), weights=(1.0, 1.0))
    x = np.random.default_rng(0).standard_normal(2000)
    wanted = sum(Caputo(node, bounds=(0, 1))(x, dt=dt) for node in definition.nodes)
    np.testing.assert_allclose(definition(x, dt=dt), wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


def test_learned_nodes_are_channels_of_one_definition_added_up():
    x = torch.as_tensor(np.random.default_rng(0).standard_normal((2, 4, 64)))
    alpha, weights = (torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in (NODES, WEIGHTS))
    channels = x[..., None, :].expand(*x.shape[:-1], len(alpha), x.shape[-1])
    y = (weights[:, None] * Caputo(alpha)(channels, dt=0.1)).sum(-2)
    wanted = DistributedOrder(nodes=NODES, weights=WEIGHTS)(x, dt=0.1)
    np.testing.assert_allclose(y.detach(), wanted, rtol=0, atol=1e-11 * wanted.abs().max())
    assert all(slope.abs().min() > 0 for slope in torch.autograd.grad(y.square().sum(), (alpha, weights)))
