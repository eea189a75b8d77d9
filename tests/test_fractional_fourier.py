"""The fractional Fourier transform: whole orders, unitarity, Hermite functions, additivity, both frameworks."""

import numpy as np
import pytest
from numpy.polynomial import hermite

from hpfracc_nn import fractional_fourier

LENGTHS = [64, 65, 128, 129]
ORDERS = np.linspace(-2.5, 2.5, 41)
ROUNDING = 4e-15  # of values up to 1: some FFTs of 129 samples


def hermite_function(k, n):
    """Sampled at t = j / sqrt(n), sample 0 first; of norm 1."""
    t = np.fft.fftfreq(n) * np.sqrt(n)
    values = hermite.hermval(np.sqrt(2 * np.pi) * t, [0] * k + [1]) * np.exp(-np.pi * t**2)
    return values / np.linalg.norm(values)


def noise(*shape):
    rng = np.random.default_rng(7)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


@pytest.mark.parametrize("n", [1, 2, 3, *LENGTHS])
def test_whole_orders_are_the_fft_and_its_powers(n):
    x = noise(3, n)
    forward, inverse = np.fft.fft(x, norm="ortho"), np.fft.ifft(x, norm="ortho")
    backward = x[:, -np.arange(n)]
    for order, expected in {0: x, 1: forward, 2: backward, -2: backward, 3: inverse, -1: inverse, 5.0: forward}.items():
        np.testing.assert_allclose(fractional_fourier(x, order), expected, rtol=0, atol=4 * ROUNDING)
    assert np.array_equal(fractional_fourier(x, 0), x)


@pytest.mark.parametrize("n", [1, 2, 3, *LENGTHS])
def test_every_order_is_unitary_for_every_signal(n):
    x, y = noise(2, n)
    for order in ORDERS:
        found, other = fractional_fourier(np.stack([x, y]), order)
        assert np.vdot(found, other) == pytest.approx(np.vdot(x, y), rel=1e-12, abs=1e-12 * n)
        np.testing.assert_allclose(fractional_fourier(found, -order), x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("k", range(6))
def test_hermite_functions_are_eigenfunctions(k, n):
    x = hermite_function(k, n)
    for order in ORDERS:
        expected = np.exp(-0.5j * np.pi * k * order) * x
        np.testing.assert_allclose(fractional_fourier(x, order), expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("n", LENGTHS)
def test_the_orders_of_confined_signals_add(n):
    x = sum(c * hermite_function(k, n) for k, c in enumerate(noise(6)))
    for first in ORDERS[::4]:
        for second in ORDERS[1::5]:
            twice = fractional_fourier(fractional_fourier(x, first), second)
            np.testing.assert_allclose(twice, fractional_fourier(x, first + second), rtol=0, atol=10 * ROUNDING)


@pytest.mark.parametrize("n", [32, 33, 48, 49])
@pytest.mark.parametrize("width", [0.7, 1.0, 1.6])
def test_gaussians_turn_with_an_error_of_what_lies_outside_the_disc(n, width):
    # exp(-pi t**2 / width**2) becomes sqrt((1 - i c) / (w**-2 - i c)) exp(-pi t**2 g), c = cot(theta), by the integral.
    t = np.fft.fftfreq(n) * np.sqrt(n)
    x = np.exp(-np.pi * t**2 / width**2)
    spread = max(width, 1 / width)
    outside = np.exp(-np.pi * (0.92 * np.sqrt(n) / 2 / spread) ** 2)  # its modulus at the edge of the disc
    for order in (0.1, 0.35, 0.5, 0.8, -0.4):
        cotangent = 1 / np.tan(np.pi * order / 2)
        cosecant = 1 / np.sin(np.pi * order / 2)
        spread_out = width**-2 - 1j * cotangent
        factor = np.sqrt(1 - 1j * cotangent) / np.sqrt(spread_out)
        expected = factor * np.exp(-np.pi * t**2 * (cosecant**2 / spread_out - 1j * cotangent))
        np.testing.assert_allclose(fractional_fourier(x, order), expected, rtol=0, atol=10 * outside + ROUNDING)


def test_the_order_is_continuous_but_for_the_share_outside_the_disc():
    for n in (64, 65):
        x = hermite_function(3, n)
        for half in (-1.5, -0.5, 0.5, 1.5):
            below, above = (fractional_fourier(x, half + step) for step in (-1e-15, 1e-15))
            np.testing.assert_allclose(below, above, rtol=0, atol=10 * ROUNDING)


@pytest.mark.parametrize("n", [16, 17])
def test_centred_means_the_origin_in_the_middle(n):
    x = noise(2, n)
    for order in (0.3, 1.0, 2.0):
        expected = np.fft.fftshift(fractional_fourier(np.fft.ifftshift(x, -1), order), -1)
        np.testing.assert_allclose(fractional_fourier(x, order, centred=True), expected, rtol=0, atol=ROUNDING)


def test_axes_and_orders_of_every_signal():
    x, orders = noise(3, 8, 2), np.array([[0.2, 1.4], [0.0, 0.5], [-1.3, 2.0]])
    found = fractional_fourier(x, orders, dim=1)
    for row in range(3):
        for column in range(2):
            expected = fractional_fourier(x[row, :, column], orders[row, column])
            np.testing.assert_allclose(found[row, :, column], expected, rtol=0, atol=ROUNDING)
    per_column = fractional_fourier(x, orders[0], 1)
    np.testing.assert_allclose(per_column[2, :, 1], fractional_fourier(x[2, :, 1], 1.4), rtol=0, atol=ROUNDING)


def test_dtypes():
    x = noise(10)
    assert fractional_fourier(x.real, 0.5).dtype == np.complex128
    assert fractional_fourier(np.arange(4), 1).dtype == np.complex128
    single = fractional_fourier(x.astype(np.complex64), 0.5)
    assert single.dtype == np.complex64
    np.testing.assert_allclose(single, fractional_fourier(x, 0.5), rtol=0, atol=2e-6)  # float32, four FFTs of ten
    assert fractional_fourier(x.real.astype(np.float16), 0.5).dtype == np.complex64


def test_the_input_is_not_written_to():
    x = noise(6)
    x.flags.writeable = False
    for order in (0, 1, 0.4):
        fractional_fourier(x, order)[0] = 7.0


def test_bad_input_is_refused():
    x = noise(2, 5)
    with pytest.raises(
        ValueError, match=r"^fractional_fourier\(x of shape \(2, 0\)\): needs at least one sample along"
    ):
        fractional_fourier(x[:, :0], 0.5)
    with pytest.raises(
        ValueError, match=r"^fractional_fourier\(order of shape \(3,\), x of shape \(2, 5\)\): needs ord"
    ):
        fractional_fourier(x, np.zeros(3))
    with pytest.raises(
        ValueError, match=r"^fractional_fourier\(order=nan\): needs a finite order; pass such as order="
    ):
        fractional_fourier(x, float("nan"))
    with pytest.raises(ValueError, match=r"^fractional_fourier\(order=inf\): needs a finite order"):
        fractional_fourier(x, np.array([0.0, np.inf]))
    with pytest.raises(
        TypeError, match=r"^fractional_fourier\(order of dtype complex128\): needs real numbers; pass or"
    ):
        fractional_fourier(x, 1j)
    with pytest.raises(ValueError, match=r"^fractional_fourier\(dim=2\): needs -2 <= dim < 2 for 2 axes"):
        fractional_fourier(x, 0.5, 2)


# PyTorch


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("n", [1, 8, 9])
@pytest.mark.parametrize("centred", [False, True])
def test_tensors_give_what_arrays_give(torch, n, centred):
    x = noise(3, n)
    for order in (0, 1, 0.5, -1.2, 2.7):
        expected = fractional_fourier(x, order, centred=centred)
        for given in (order, torch.tensor(order, dtype=torch.float64)):
            found = fractional_fourier(torch.tensor(x), given, centred=centred)
            np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=ROUNDING)
    orders = np.array([0.2, 1.6, -0.9])
    found = fractional_fourier(torch.tensor(x), torch.tensor(orders), centred=centred)
    np.testing.assert_allclose(found.numpy(), fractional_fourier(x, orders, centred=centred), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.4, -0.7])
def test_the_transform_of_no_signal_is_none(torch, order, centred):
    """Also where the library refuses it, and with gradients."""
    for dtype, made in (("float32", "complex64"), ("complex128", "complex128")):
        x = np.empty((0, 16), dtype)
        signals = torch.as_tensor(x).requires_grad_()
        learned = torch.tensor(float(order), requires_grad=True)
        for found in (
            fractional_fourier(x, order, centred=centred),
            fractional_fourier(signals, order, centred=centred),
            fractional_fourier(signals, learned, centred=centred),
        ):
            assert (found.shape, str(found.dtype).removeprefix("torch.")) == ((0, 16), made)
        found.abs().sum().backward()
        assert signals.grad.shape == (0, 16)
        assert learned.grad.item() == 0


def test_order_one_is_torch_fft(torch):
    x = torch.randn(4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(fractional_fourier(x, 1), torch.fft.fft(x, norm="ortho"))
    torch.testing.assert_close(fractional_fourier(x, 1, 0), torch.fft.fft(x, dim=0, norm="ortho"))
    assert fractional_fourier(x.half(), 0.3).dtype == torch.complex64


@pytest.mark.parametrize("n", [4, 5])
def test_samples_and_order_have_derivatives_of_every_mode(torch, n):
    x = torch.tensor(noise(3, n), requires_grad=True)
    order = torch.tensor([0.0, 0.7, -1.3], dtype=torch.float64, requires_grad=True)
    gradcheck, gradgradcheck = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    assert gradcheck(fractional_fourier, (x, order), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(fractional_fourier, (x, order))
    assert gradcheck(lambda x: fractional_fourier(x, 1.4), (x,))


def test_the_adjoint_is_the_transform_back(torch):
    x = torch.tensor(noise(9), requires_grad=True)
    gradient = torch.tensor(noise(9))
    (found,) = torch.autograd.grad(fractional_fourier(x, 0.6), x, gradient)
    torch.testing.assert_close(found, fractional_fourier(gradient, -0.6))


@pytest.mark.slow
def test_transforms_and_compilation(torch):
    x = torch.tensor(noise(3, 8))
    orders = torch.tensor([0.2, 1.1, -0.7], dtype=torch.float64)
    expected = fractional_fourier(x, orders)
    torch.testing.assert_close(torch.func.vmap(fractional_fourier)(x, orders), expected)
    compiled = torch.compile(fractional_fourier, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, orders), expected)
    for order in (0.2, 1.0, 0.7, -1, 2.3):
        torch.testing.assert_close(compiled(x, order), fractional_fourier(x, order))


def test_an_order_is_learned(torch):
    x = torch.tensor(hermite_function(1, 64) + 0.5 * hermite_function(4, 64))
    observed = fractional_fourier(x, 0.35)
    order = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([order], lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        (fractional_fourier(x, order) - observed).abs().square().sum().backward()
        optimizer.step()
    assert float(order.detach()) == pytest.approx(0.35, abs=1e-6)
