"""Operators on tensors at times that are not equally spaced: against NumPy's, gradients, transforms, selection."""

import itertools
import re
from functools import partial

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import hpfracc_nn as fnn
from hpfracc_nn.fractional import Caputo, RiemannLiouville, RiemannLiouvilleIntegral
from hpfracc_nn.fractional.product_integration import LENGTH, OP, cellwise
from hpfracc_nn.fractional.sample_times import Times
from hpfracc_nn.fractional.torch import product_integration
from hpfracc_nn.selection import BackendManager, kernels
from tests.test_nonuniform import ANY_TIMES, manager_for, random_times

KERNELS = kernels(OP, "torch")
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=[kernel.name for kernel in KERNELS])
every_scheme = pytest.mark.parametrize(("kind", "scheme"), ANY_TIMES)


def randn(*shape, seed=0, **given):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape), **given)


@every_kernel
@every_scheme
def test_tensors_give_what_arrays_give(kind, scheme, kernel):
    manager, x, t = manager_for(kernel), randn(2, 3, 3 * LENGTH + 2), random_times(3 * LENGTH + 1)
    for alpha in (0.0, 0.3, 1.0, 1.6):
        if kind is RiemannLiouvilleIntegral and alpha > 1 and kernel.algorithm != "dense":
            continue
        wanted = kind(alpha, scheme)(x.numpy(), t=t)
        got = kind(alpha, scheme)(x, t=t, manager=manager)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())
        learned = kind(torch.tensor(alpha, dtype=torch.float64), scheme, bounds=(1, 2) if alpha > 1 else (0, 1))
        if alpha:  # a tensor on its lower bound is the limit from above
            got = learned(x, t=torch.as_tensor(t), manager=manager)
            size = np.abs(wanted).max()
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-11 * size)
        single = kind(alpha, scheme)(x.to(torch.float32), t=t, manager=manager)
        assert single.dtype == torch.float32
        rounded = kind(alpha, scheme)(x.to(torch.float32).numpy().astype(np.float64), t=t)
        np.testing.assert_allclose(single, rounded, rtol=0, atol=1e-6 * np.abs(rounded).max())


@pytest.mark.parametrize("bounds", [(0, 1), (1, 2)])
@every_kernel
@every_scheme
@pytest.mark.slow
def test_gradients_of_first_and_second_order(kind, scheme, kernel, bounds):
    if kind is RiemannLiouvilleIntegral and bounds == (1, 2) and kernel.algorithm != "dense":
        pytest.skip("above order 1 an integral's memory grows")
    manager, n = manager_for(kernel), LENGTH + 4
    x = randn(1, n, 2).requires_grad_()
    alpha = torch.tensor([0.3, 0.8], dtype=torch.float64).add(bounds[0]).requires_grad_()
    # Data and times of size 1: else what a difference quotient rounds is amplified by step**-alpha.
    t = n * random_times(n - 1)

    def apply(x, alpha):
        return kind(alpha, scheme, bounds)(x, t=t, dim=1, manager=manager)

    before = kernel.calls.copy()
    assert torch.autograd.gradcheck(apply, (x, alpha), fast_mode=True, check_batched_grad=True)
    assert {"run", "adjoint", "derivative"} <= set(kernel.calls - before)
    assert torch.autograd.gradgradcheck(apply, (x, alpha), fast_mode=True)


@pytest.mark.parametrize("order", [0.0, 1e-12, 1e-4, 0.5, 1.0])
@pytest.mark.parametrize("kind", [Caputo, RiemannLiouvilleIntegral])
def test_kernels_agree_on_the_gradient_also_where_the_order_is_a_bound(kind, order):
    x, g, t = randn(90), randn(90, seed=1), 90 * random_times(89)
    found = []
    for kernel in KERNELS:
        for create_graph in (False, True):  # by a complex step, and by autograd
            alpha = torch.tensor(order, dtype=torch.float64, requires_grad=True)
            y = kind(alpha)(x, t=t, manager=manager_for(kernel))
            found.append(torch.autograd.grad((y * g).sum(), alpha, create_graph=create_graph)[0].detach())
    torch.testing.assert_close(torch.stack(found), found[0].expand(4), rtol=1e-10, atol=1e-10)


@every_kernel
def test_every_transform_follows(kernel):
    manager, n = manager_for(kernel), LENGTH + 4
    x, v, t = randn(3, 2, n), randn(3, 2, n, seed=1), n * random_times(n - 1)
    alpha = torch.tensor(0.4, dtype=torch.float64)

    def apply(x, alpha):
        return Caputo(alpha)(x, t=t, manager=manager)

    rows = torch.stack([apply(each, alpha) for each in x])
    torch.testing.assert_close(torch.func.vmap(apply, (0, None))(x, alpha), rows)
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(lambda x: apply(x, alpha).sum()))(x)[0], _grad(apply, x, alpha)[0][0]
    )
    orders = torch.tensor([0.2, 0.4, 0.7], dtype=torch.float64)
    each = torch.stack([apply(one, order) for one, order in zip(x, orders, strict=True)])
    torch.testing.assert_close(torch.func.vmap(apply)(x, orders), each)
    moved = torch.func.jvp(apply, (x, alpha), (v, torch.ones_like(alpha)))[1]
    gap = 1e-6
    quotient = (apply(x + gap * v, alpha + gap) - apply(x - gap * v, alpha - gap)) / (2 * gap)
    torch.testing.assert_close(moved, quotient, rtol=1e-6, atol=1e-7)


def _grad(apply, x, alpha):
    x, alpha = x.clone().requires_grad_(), alpha.clone().requires_grad_()
    return torch.autograd.grad(apply(x, alpha).sum(), (x, alpha))


@pytest.mark.parametrize("dim", [0, 1, 2, 3])
def test_time_may_be_any_axis_of_any_layout(dim):
    x, t = randn(2, 3, 2, 50), random_times(49)
    wanted = Caputo(0.5)(x, t=t)
    moved = x.movedim(-1, dim).contiguous()
    got = Caputo(0.5)(moved, t=t, dim=dim)
    torch.testing.assert_close(got.movedim(dim, -1), wanted, rtol=0, atol=1e-12)
    assert got.is_contiguous()
    strided = torch.stack([x, x], -1)[..., 0]
    torch.testing.assert_close(Caputo(0.5)(strided, t=t), wanted, rtol=0, atol=0)


def test_signals_may_have_their_own_times_and_learned_orders():
    x, t = randn(2, 3, 70), np.stack([random_times(69, seed) for seed in range(2)])[:, None]
    alpha = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64, requires_grad=True)
    y = Caputo(alpha)(x, t=torch.as_tensor(t))
    y.square().sum().backward()
    total = torch.zeros(3, dtype=torch.float64)
    for i, j in itertools.product(range(2), range(3)):
        one = alpha.detach()[j].clone().requires_grad_()
        apart = Caputo(one)(x[i, j], t=t[i, 0])
        apart.square().sum().backward()
        assert one.grad is not None
        total[j] += one.grad
        torch.testing.assert_close(y[i, j], apart, rtol=0, atol=1e-11)
    torch.testing.assert_close(alpha.grad, total, rtol=1e-11, atol=0)


def test_an_order_is_found_by_its_gradient():
    t = random_times(60, last=2.0)
    wanted = torch.as_tensor(Caputo(0.63)(np.sin(t), t=t))
    alpha = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([alpha], lr=0.05)
    for _ in range(80):
        optimizer.zero_grad()
        (Caputo(alpha)(torch.as_tensor(np.sin(t)), t=t) - wanted).square().mean().backward()
        optimizer.step()
    assert alpha.item() == pytest.approx(0.63, abs=5e-3)


def test_the_manager_is_asked_forward_and_backward():
    manager = BackendManager()
    x = randn(4, 200).requires_grad_()
    Caputo(0.5)(x, t=random_times(199), manager=manager).sum().backward()
    (plan,) = manager.shared_site(OP, "torch", "functions").plans()
    assert (plan.forwards, plan.backwards) == (1, 1)
    assert plan.workload.exponentials > 0
    assert "chunked_scan" in manager.explain(plan.workload)


def test_half_precision_inference_mode_and_autocast():
    x, t = randn(2, 40, dtype=torch.float32), random_times(39)
    wanted = Caputo(0.5)(x, t=t)
    with torch.inference_mode():
        torch.testing.assert_close(Caputo(0.5)(x, t=t), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(Caputo(0.5)(x, t=t), wanted)
    half = Caputo(0.5)(x.to(torch.bfloat16), t=t)
    torch.testing.assert_close(half, Caputo(0.5)(x.to(torch.bfloat16).float(), t=t).to(torch.bfloat16))


@pytest.mark.slow
def test_a_compiled_function_breaks_its_graph_there_and_gives_the_same():
    x, t = randn(2, 40), random_times(39)

    def apply(x):
        return Caputo(0.5)(2 * x, t=t) + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match="looked at where the call is made"):
        torch.compile(apply, backend="aot_eager", fullgraph=True)(x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(apply, backend="aot_eager")(x), apply(x))


def test_empty_data_have_gradients_too():
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    Caputo(alpha)(torch.zeros(0, 5), t=np.arange(5)).sum().backward()
    assert alpha.grad is not None
    assert alpha.grad.item() == 0


def test_times_with_a_gradient_are_refused():
    t = torch.arange(5.0, requires_grad=True)
    message = "derivative(t): needs times without a gradient, which it does not have; pass t.detach()."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        fnn.derivative(torch.zeros(5), RiemannLiouville(0.5, "l1"), t=t)


def test_a_trace_is_refused():
    with pytest.raises(RuntimeError, match=r"torch.jit.trace cannot follow it"):
        torch.jit.trace(lambda x: Caputo(0.5)(x, t=np.arange(5)), torch.zeros(5))


@pytest.mark.parametrize("orders", ["fixed", "varying", "learned"])
def test_weights_are_made_on_the_device_of_the_data(orders):
    n, x = 3 * LENGTH, torch.empty(1, 3 * LENGTH + 1, device="meta")
    alpha = np.full((1, n if orders == "varying" else 1), 0.4)
    definition = Caputo(torch.tensor(0.4, device="meta") if orders == "learned" else 0.4)
    values = torch.as_tensor(alpha).to("meta") if orders == "learned" else alpha
    times = Times(random_times(n)[None])
    weights = product_integration.weights_of(cellwise("test", definition), values, times, x, torch.float32)
    operator = weights.chunked_scan
    z, g = torch.empty(1, 2, 2, n, device="meta"), torch.empty(1, 2, n, device="meta")
    assert weights.dense.matvec(z).shape == operator.matvec(z).shape == g.shape
    assert weights.dense.rmatvec(g).shape == operator.rmatvec(g).shape == z.shape
    assert {array.device.type for array in (operator.intra, operator.B, operator.C, *operator.A)} == {"meta"}
    if orders == "learned":
        assert weights.of(values, partial(product_integration._derived, torch.float32)).dense.matvec(z).shape == g.shape


def called_on_fakes(call, shape):
    with FakeTensorMode():
        assert call(torch.empty(shape, dtype=torch.float64)).shape == shape


@pytest.mark.parametrize("orders", ["fixed", "varying"])
@every_kernel
def test_real_and_fake_calls_may_follow_each_other(kernel, orders):
    shape = (2, 3 * LENGTH + 2)
    manager, x, t = manager_for(kernel), randn(*shape), random_times(shape[-1] - 1)

    def call(x):
        if orders == "fixed":
            return Caputo(0.37)(x, t=t, manager=manager)
        return fnn.variable_order(x, np.linspace(0.1, 0.9, shape[-1]), t=t, manager=manager)

    called_on_fakes(call, shape)
    wanted = call(x)
    assert type(wanted) is torch.Tensor
    called_on_fakes(call, shape)
    torch.testing.assert_close(make_fx(call, tracing_mode="fake")(x)(x), wanted)
    torch.testing.assert_close(call(x), wanted)
