"""The Mittag-Leffler function on tensors: NumPy's values, derivatives of every mode, transforms, compilation."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import hpfracc_nn  # noqa: E402
from hpfracc_nn import mittag_leffler  # noqa: E402

# PyTorch's own forward mode scripts its decompositions on first use.

# In each zone and at each kind of pole; the last two have a pole next to the parabola.
REAL = [-30.0, -2.0, -0.06, 0.0, 0.09, 0.8, 3.0, math.sqrt(8), -(8 ** (0.9))]
COMPLEX = [complex(x, y) for x, y in zip(REAL, [1, -3, 0.01, 0.02, -0.1, 2, -6, 1, -0.5], strict=True)]
ALPHAS = [0.4, 0.8, 1.2, 1.9, 0.3, 1.0, 1.5, 0.75, 1.8]


def points(values):
    return torch.tensor(values, dtype=torch.complex128 if values is COMPLEX else torch.float64, requires_grad=True)


def orders():
    alpha = torch.tensor(ALPHAS, dtype=torch.float64, requires_grad=True)
    return alpha, torch.tensor(1.3, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("values", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("derivative", [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0)])
def test_values_are_those_of_numpy(values, derivative):
    z = points(values).detach()
    for alpha in (0.6, torch.tensor(ALPHAS, dtype=torch.float64)):
        found = mittag_leffler(z, alpha, 1.3, derivative=derivative)
        expected = mittag_leffler(z.numpy(), np.asarray(alpha), 1.3, derivative=derivative)
        # Another libm: a few roundings, of which the poles' exponentials make |w| <= 25 times as many.
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-13)


def test_the_gradient_is_the_derivative():
    z, (alpha, beta) = points(REAL), orders()
    found = torch.autograd.grad(mittag_leffler(z, alpha, beta).sum(), (z, alpha, beta))
    by = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    expected = [mittag_leffler(z, alpha, beta, derivative=derivative).detach() for derivative in by]
    for gradient, derivative in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, derivative.sum() if gradient.ndim == 0 else derivative)


@pytest.mark.slow
@pytest.mark.parametrize(
    "values", [pytest.param(REAL, id="real"), pytest.param(COMPLEX, id="complex", marks=pytest.mark.slow)]
)
def test_first_and_second_derivatives_in_every_mode(values):
    some = [1, 2, 5, 8]
    alpha, beta = orders()
    inputs = (points(values).detach()[some].requires_grad_(), alpha.detach()[some].requires_grad_(), beta)
    assert gradcheck(
        mittag_leffler, inputs, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
    )
    assert gradgradcheck(mittag_leffler, inputs, check_fwd_over_rev=values is REAL)


def test_vmap_equals_the_loop():
    z, alpha = torch.linspace(-8, 3, 6, dtype=torch.float64), torch.linspace(0.3, 1.9, 4, dtype=torch.float64)
    over_alpha = torch.func.vmap(lambda a: mittag_leffler(z, a))(alpha)
    torch.testing.assert_close(over_alpha, torch.stack([mittag_leffler(z, a) for a in alpha]))
    over_both = torch.func.vmap(torch.func.vmap(mittag_leffler, (None, 0)), (0, None))(z, alpha)
    torch.testing.assert_close(over_both, over_alpha.T)
    slopes = torch.func.vmap(torch.func.grad(mittag_leffler, argnums=1), (None, 0))(z[0], alpha)
    torch.testing.assert_close(slopes, mittag_leffler(z[0], alpha, derivative=(0, 1, 0)))


def test_func_transforms_compose():
    z, alpha = points(REAL).detach(), torch.tensor(0.7, dtype=torch.float64)
    expected = mittag_leffler(z, alpha, derivative=(0, 2, 0))
    for outer in (torch.func.jacfwd, torch.func.jacrev):
        for inner in (torch.func.jacfwd, torch.func.jacrev):
            torch.testing.assert_close(outer(inner(lambda a: mittag_leffler(z, a)))(alpha), expected)


@pytest.mark.slow
def test_compiled_code_takes_numbers_of_any_value():
    z = points(COMPLEX).detach()
    compiled = torch.compile(mittag_leffler, fullgraph=True, backend="aot_eager")
    for alpha in (0.2, 0.3, 1, 1.7):
        torch.testing.assert_close(compiled(z, alpha), mittag_leffler(z, alpha), rtol=0, atol=0)


def test_a_compiled_function_computes_the_same_values_and_gradients():
    def loss(z, alpha):
        return mittag_leffler(z, alpha, 0.9).square().sum()

    z, (alpha, _) = points(REAL), orders()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found, expected = (torch.autograd.grad(f(z, alpha), (z, alpha)) for f in (compiled, loss))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "transform", ["vmap", *(pytest.param(name, marks=pytest.mark.slow) for name in ("grad", "jacfwd"))]
)
def test_transforms_inside_a_compiled_function(transform):
    def values(alpha):
        return mittag_leffler(torch.tensor(-2.0, dtype=torch.float64), alpha)

    alpha = torch.tensor([0.6, 1.4], dtype=torch.float64)
    changed = getattr(torch.func, transform)(values)
    given = alpha if transform == "vmap" else alpha[0]
    compiled = torch.compile(changed, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(given), changed(given))


def test_an_exported_program_computes_the_same_and_can_be_differentiated():
    class Relaxation(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, t, alpha):
            return mittag_leffler(-(t**alpha), alpha)

    t, alpha = torch.linspace(0.1, 4, 5, dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
    program = torch.export.export(Relaxation(), (t, alpha)).module()
    learned = alpha.clone().requires_grad_()
    torch.testing.assert_close(program(t, alpha), Relaxation()(t, alpha))
    found, expected = (torch.autograd.grad(f(t, learned).sum(), learned) for f in (program, Relaxation()))
    torch.testing.assert_close(found, expected)
    tangent = torch.func.jvp(lambda alpha: program(t, alpha), (alpha,), (torch.ones_like(alpha),))[1]
    torch.testing.assert_close(tangent, torch.func.jacfwd(lambda alpha: Relaxation()(t, alpha))(alpha))
    batched = torch.func.vmap(program, (None, 0))(t, torch.stack([alpha, alpha + 0.1]))
    torch.testing.assert_close(batched[1], Relaxation()(t, alpha + 0.1))


def test_the_operation_keeps_the_rules_of_custom_operations():
    operation = torch.ops.hpfracc_nn.mittag_leffler.default
    z, alpha, beta = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (-2.0, [0.5, 1.4], 1.0))
    torch.library.opcheck(operation, (z, alpha, beta, 0, 0))


@pytest.mark.slow
def test_the_operation_keeps_the_rules_in_the_plane():
    torch.library.opcheck(torch.ops.hpfracc_nn.mittag_leffler.default, (points(COMPLEX), *orders(), 1, 1))


def test_dtypes_follow_torch():
    z = torch.tensor([-2.0, 0.5])
    double = torch.tensor(0.5, dtype=torch.float64)
    assert mittag_leffler(z, 0.5).dtype == torch.float32
    assert mittag_leffler(z, double).dtype == torch.float32  # no axes: it promotes nothing of its kind
    assert mittag_leffler(z, double.expand(2)).dtype == torch.float64
    assert mittag_leffler(z.half(), 0.5).dtype == torch.float16
    assert mittag_leffler(z.to(torch.complex64), 0.5).dtype == torch.complex64
    assert mittag_leffler(torch.tensor([1, 2]), 1).dtype == torch.float32
    assert mittag_leffler(-1.0, double).dtype == torch.float64
    assert mittag_leffler(1j, double).dtype == torch.complex128
    torch.testing.assert_close(mittag_leffler(z, 0.5), mittag_leffler(z.double(), 0.5).float(), rtol=0, atol=0)


def test_layouts_and_empty_tensors_are_taken():
    z = torch.linspace(-3, 1, 24, dtype=torch.float64).reshape(4, 6).T
    torch.testing.assert_close(mittag_leffler(z, 0.8), mittag_leffler(z.contiguous(), 0.8))
    empty = torch.empty(0, 3, dtype=torch.float64, requires_grad=True)
    mittag_leffler(empty, 0.8).sum().backward()
    assert empty.grad.shape == (0, 3)
    many = -torch.linspace(0, 20, 9001, dtype=torch.float64)
    torch.testing.assert_close(mittag_leffler(many, 0.8)[5000:], mittag_leffler(many[5000:], 0.8))


def test_a_tensor_out_of_range_gives_nan_and_a_number_an_error():
    z = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    assert mittag_leffler(z, torch.tensor([0.5, 2.1])).isnan().tolist() == [False, True]
    assert mittag_leffler(z, 0.5, torch.tensor(-1.5)).isnan().all()
    with pytest.raises(ValueError, match=r"^mittag_leffler\(alpha=2.1\): needs 0 < alpha <= 2"):
        mittag_leffler(z, 2.1)
    with pytest.raises(TypeError, match=r"^mittag_leffler\(alpha=.*\): needs real numbers; pass alpha.real"):
        mittag_leffler(z, z.to(torch.complex128))
    with pytest.raises(
        TypeError, match=r"^mittag_leffler\(alpha=None\): needs numbers; pass a number, an array or a ten"
    ):
        mittag_leffler(z, None)
    with pytest.raises(TypeError, match=r"^mittag_leffler\(z of layout torch.sparse_coo\): needs a dense tensor; pass"):
        mittag_leffler(z.to_sparse(), 0.5)


def test_a_learned_order_is_found_again():
    t = torch.linspace(0.05, 5, 40, dtype=torch.float64)
    observed = mittag_leffler(-(t**0.73), 0.73)
    alpha = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([alpha], lr=0.5, max_iter=40, tolerance_grad=1e-12, tolerance_change=1e-14)

    def closure():
        optimizer.zero_grad()
        loss = (mittag_leffler(-(t**alpha), alpha) - observed).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(alpha.detach()) == pytest.approx(0.73, abs=1e-6)
    assert hpfracc_nn.mittag_leffler is mittag_leffler


@pytest.mark.parametrize(
    ("z", "alpha", "dtype"), [(200.0, 0.7, "float64"), (50.0, 0.3, "float32"), (1e5, 1.0, "float64")]
)
def test_overflow_is_infinite(z, alpha, dtype):
    assert mittag_leffler(torch.tensor(z, dtype=getattr(torch, dtype)), alpha) == torch.inf
