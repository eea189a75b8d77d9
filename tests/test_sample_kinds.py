"""What samples may be besides floats: integers, lists, the other byte order, complex numbers; and an axis of orders."""

import numpy as np
import pytest

import hpfracc_nn as fnn
from hpfracc_nn import DEFINITIONS, Caputo, GrunwaldLetnikov, PeriodicWeyl, derivative, fdiff

FRAMEWORKS = ["numpy", "torch", "jax"]
frameworks = pytest.mark.parametrize("framework", FRAMEWORKS)
definitions = pytest.mark.parametrize("kind", [*DEFINITIONS.values(), PeriodicWeyl], ids=lambda kind: kind.__name__)


def taken(framework, x):
    """The samples as an array of a framework; those of JAX in single precision."""
    if framework == "torch":
        return pytest.importorskip("torch").as_tensor(x)
    return pytest.importorskip("jax.numpy").asarray(x) if framework == "jax" else x


def near(framework, found, expected):
    scale = np.abs(np.asarray(expected)).max()
    return np.allclose(np.asarray(found), expected, rtol=0, atol=(1e-12 if framework == "numpy" else 1e-5) * scale)


@frameworks
@definitions
def test_integers_are_the_floats_that_they_stand_for(framework, kind):
    x = np.arange(2, 26).reshape(2, 12) ** 2 % 7
    for dtype in (np.int64, np.int8, np.uint8, np.bool_):
        given = taken(framework, x.astype(dtype))
        found = derivative(given, kind(0.5), dt=0.1)
        expected = derivative(x.astype(dtype).astype(np.float64), kind(0.5), dt=0.1)
        assert near(framework, found, expected)
        assert found.dtype == fdiff(given, 0.5).dtype


@definitions
def test_lists_and_the_other_byte_order_are_taken(kind):
    x = [[1, 4, 9, 16, 25, 36], [0, 1, 0, 1, 0, 1]]
    expected = derivative(np.array(x, np.float64), kind(0.5))
    assert np.array_equal(derivative(x, kind(0.5)), expected)
    for dtype in (np.float64, np.float32, np.int32, np.complex128):
        swapped = np.array(x).astype(np.dtype(dtype).newbyteorder())
        found = derivative(swapped, kind(0.5))
        assert found.dtype.isnative
        assert np.allclose(found, expected, rtol=0, atol=1e-5)


@frameworks
@definitions
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_parts_of_complex_samples_are_taken_apart(framework, kind, dtype):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((2, 30)) + 1j * rng.standard_normal((2, 30))).astype(dtype)
    given = taken(framework, x)
    found = derivative(given, kind(0.5), dt=0.1)
    assert found.dtype == given.dtype
    expected = derivative(x.real.copy(), kind(0.5), dt=0.1) + 1j * derivative(x.imag.copy(), kind(0.5), dt=0.1)
    scale = np.abs(expected).max()
    single = dtype == np.complex64 or framework == "jax"
    assert np.allclose(np.asarray(found), expected, rtol=0, atol=(1e-4 if single else 1e-12) * scale)


def test_a_gap_in_the_imaginary_part_leaves_the_real_one():
    x = np.ones(20, np.complex128)
    x.imag[10] = np.nan
    found = derivative(x, Caputo(0.5))
    assert (found.real == 0).all()
    assert np.isnan(found.imag[10:]).all()


def test_complex_samples_at_times_and_their_gradients():
    torch = pytest.importorskip("torch")
    t = np.array([0.0, 0.1, 0.3, 0.4, 0.8])
    x = t**2 + 1j * t
    found = derivative(x, Caputo(0.5), t=t)
    assert np.array_equal(found.real, derivative(t**2, Caputo(0.5), t=t))
    assert np.array_equal(found.imag, derivative(t, Caputo(0.5), t=t))
    a = torch.as_tensor(x, dtype=torch.complex128).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: derivative(a, Caputo(0.5)), (a,))
    assert torch.allclose(derivative(a.conj(), Caputo(0.5)), derivative(a, Caputo(0.5)).conj())


@frameworks
@pytest.mark.parametrize("kind", [Caputo, GrunwaldLetnikov])
def test_an_axis_of_length_one_grows_to_that_of_the_orders(framework, kind):
    x = np.cumsum(np.random.default_rng(0).standard_normal((3, 40)), axis=1)
    orders = [0.1, 0.3, 0.5, 0.7, 0.9]
    expected = np.stack([derivative(x, kind(alpha), dt=0.1) for alpha in orders])
    given = taken(framework, x)
    assert near(framework, derivative(given[0][None], kind(orders), dt=0.1), expected[:, 0])
    assert near(framework, derivative(given[0][:, None], kind(orders), dt=0.1, dim=0), expected[:, 0].T)
    of_each = kind([[alpha] for alpha in orders])
    assert near(framework, derivative(given[None], of_each, dt=0.1), expected)
    with pytest.raises(ValueError, match="needs alpha to broadcast"):
        derivative(given[0], kind(orders))
    with pytest.raises(ValueError, match="needs alpha to broadcast"):
        derivative(given, kind(orders))


def test_orders_with_a_gradient_grow_too():
    torch = pytest.importorskip("torch")
    x = torch.randn(1, 12, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64, requires_grad=True)
    assert derivative(x, Caputo(alpha)).shape == (3, 12)
    assert torch.autograd.gradcheck(lambda x, alpha: derivative(x, Caputo(alpha)), (x, alpha))


@pytest.mark.parametrize("of", ["integral", "caputo", "riemann_liouville", "grunwald_letnikov"])
def test_the_other_functions_take_them_too(of):
    x = np.arange(10) ** 2
    found = getattr(fnn, of)(x.tolist(), 0.5, dt=0.1)
    assert np.array_equal(found, getattr(fnn, of)(x.astype(np.float64), 0.5, dt=0.1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what dynamo tells about its own parts
def test_they_are_taken_in_compiled_graphs_and_traced():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    z = torch.randn(2, 20, dtype=torch.complex128)
    for x in (z, torch.arange(20)):
        whole = torch.compile(lambda x: derivative(x, Caputo(0.5)), fullgraph=True)
        assert torch.allclose(whole(x), derivative(x, Caputo(0.5)))
    a = jax.numpy.asarray(z.numpy())
    assert np.allclose(jax.jit(lambda a: derivative(a, Caputo(0.5)))(a), derivative(a, Caputo(0.5)), atol=1e-5)
