"""The special functions on JAX arrays: reference values, closed forms, every transform, in both precisions."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from scipy import special

from hpfracc_nn import fractional_fourier, mittag_leffler

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.experimental import checkify  # noqa: E402

EPS, SINGLE = 2.0**-52, float(np.finfo(np.float32).eps)
FILE = pathlib.Path(__file__).parent / "reference" / "mittag_leffler.json"
CASES = {case["id"]: case for case in json.loads(FILE.read_text("utf-8"))["cases"]}
# In each zone and at each kind of pole; the last two have a pole next to the parabola.
POINTS = np.array([-30.0, -2.0, -0.06, 0.0, 0.09, 0.8, 3.0, np.sqrt(8), -(8**0.9)])
ALPHAS = np.array([0.4, 0.8, 1.2, 1.9, 0.3, 1.0, 1.5, 0.75, 1.8])


def case(name: str) -> tuple[np.ndarray, np.ndarray]:
    found = CASES[name]
    return np.array(found["points"]), np.array(found["values"], dtype=float)


def derivative_at(points: Any, alpha: Any, beta: Any, orders: tuple[int, int, int]) -> np.ndarray:
    """NumPy's, which is tested against mpmath."""
    return mittag_leffler(
        np.asarray(points, float), np.asarray(alpha, float), np.asarray(beta, float), derivative=orders
    )


# The Mittag-Leffler function


@pytest.mark.parametrize(
    "is_double", [pytest.param(True, id="float64"), pytest.param(False, id="float32", marks=pytest.mark.slow)]
)
def test_the_reference_cases_are_met(is_double):
    with jax.enable_x64(is_double):
        dtype, rounding = (jnp.float64, 1e-13) if is_double else (jnp.float32, SINGLE)
        for name, alpha, beta, argument in [
            ("ml_half_erfcx", 0.5, 1.0, lambda z: -z),
            ("ml_2_cosh", 2.0, 1.0, lambda z: z**2),
            ("ml_22_sin", 2.0, 2.0, lambda z: -(z**2)),
        ]:
            points, values = case(name)
            z = jnp.asarray(argument(points), dtype)
            found = mittag_leffler(z, alpha, beta)
            assert found.dtype == dtype
            # What rounding z to the dtype changes, and that of the result.
            change = abs(points) * abs(derivative_at(argument(points), alpha, beta, (1, 0, 0))) * 2 * abs(points)
            assert (abs(np.asarray(found, float) - values) <= rounding * (abs(values) + change)).all()


@pytest.mark.slow
def test_the_reference_derivative_in_alpha_is_met_by_the_gradient():
    t, values = case("ml_dalpha_a07")
    with jax.enable_x64(True):
        found = jax.jit(jax.jacfwd(lambda alpha: mittag_leffler(-(jnp.asarray(t) ** alpha), alpha)))(0.7)
    np.testing.assert_allclose(found, values, rtol=1e-9)


@pytest.mark.slow
def test_closed_forms_are_met_on_the_line_and_in_the_plane():
    line = np.concatenate([-np.logspace(3, -8, 60), np.logspace(-8, 2, 60)])
    plane = np.exp(np.random.default_rng(1).uniform(-8, 4, 100) + 1j * np.random.default_rng(2).uniform(-4, 4, 100))
    for z in (line, plane):
        forms: list[tuple[float, float, Any]] = [
            (1.0, 1.0, np.exp),
            (1.0, 2.0, lambda z: np.expm1(z) / z),
            (2.0, 1.0, lambda z: np.cosh(np.sqrt(z + 0j))),
            (2.0, 2.0, lambda z: np.sinh(np.sqrt(z + 0j)) / np.sqrt(z + 0j)),
            (0.5, 1.0, lambda z: special.wofz(-1j * z)),
        ]
        for alpha, beta, form in forms:
            with np.errstate(over="ignore", invalid="ignore"):
                inside = abs(form(z)) < 1e250
            wanted, points = form(z[inside]), z[inside]
            with jax.enable_x64(True):
                found = np.asarray(mittag_leffler(jnp.asarray(points), alpha, beta))
            change = abs(points * mittag_leffler(points, alpha, beta, derivative=(1, 0, 0)))
            # The closed forms lose some 1e-13 themselves.
            assert (abs(found - wanted) <= 4e-13 * abs(wanted) + 16 * EPS * (change + abs(wanted))).all()


@pytest.mark.slow
def test_derivatives_in_all_arguments_are_members_of_the_family_also_in_single_precision():
    z, alpha, beta = (jnp.asarray(each, jnp.float32) for each in (POINTS, ALPHAS, 1.3))

    def total(z: Any, alpha: Any, beta: Any) -> Any:
        return mittag_leffler(z, alpha, beta).sum()

    found = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(z, alpha, beta)
    assert all(each.dtype == jnp.float32 for each in found)
    for each, orders in zip(found, ((1, 0, 0), (0, 1, 0), (0, 0, 1)), strict=True):
        wanted = derivative_at(z, alpha, beta, orders)
        wanted = wanted.sum() if each.ndim == 0 else wanted
        np.testing.assert_allclose(each, wanted, rtol=4 * SINGLE)


@pytest.mark.slow
def test_the_hessian_in_alpha_is_right_under_a_map_and_without_64_bit_types():
    z, alphas = np.array([-2.0, 0.05, 0.7], np.float32), jnp.asarray([0.4, 0.7, 1.2], jnp.float32)

    def total(alpha: Any) -> Any:
        return mittag_leffler(jnp.asarray(z), alpha).sum()

    hessians = jax.jit(jax.vmap(jax.hessian(total)))(alphas)
    wanted = [derivative_at(z, alpha, 1.0, (0, 2, 0)).sum() for alpha in alphas]
    size = [abs(derivative_at(z, alpha, 1.0, (0, 2, 0))).sum() for alpha in alphas]
    assert (abs(np.asarray(hessians) - wanted) <= 8 * SINGLE * np.array(size)).all()


@pytest.mark.slow
@pytest.mark.parametrize("is_double", [True, False], ids=["float64", "float32"])
def test_every_composition_of_transforms_gives_the_same_derivative(is_double):
    with jax.enable_x64(is_double):
        z = jnp.asarray(POINTS[1:6])
        alpha, rounding = jnp.asarray(0.7, z.dtype), 1e-9 if is_double else 32 * SINGLE

        def total(alpha: Any) -> Any:
            return mittag_leffler(z, alpha).sum()

        wanted = derivative_at(z, alpha, 1.0, (0, 2, 0)).sum()
        one = jnp.ones_like(alpha)
        for second in (
            jax.jacfwd(jax.jacrev(total)),
            jax.jacrev(jax.jacfwd(total)),
            jax.grad(jax.grad(jax.jit(total))),
            jax.jit(jax.jacfwd(jax.jacfwd(total))),
            lambda alpha: jax.jvp(jax.grad(total), (alpha,), (one,))[1],
            lambda alpha: jax.grad(jax.checkpoint(jax.grad(total)))(alpha),
        ):
            assert float(second(alpha)) == pytest.approx(float(wanted), rel=rounding)
        scanned = jax.grad(lambda a: jax.lax.scan(lambda c, x: (c + mittag_leffler(x, a), None), 0 * a, z)[0])(alpha)
        assert float(scanned) == pytest.approx(float(derivative_at(z, alpha, 1.0, (0, 1, 0)).sum()), rel=rounding)


@pytest.mark.slow
@pytest.mark.parametrize(
    "is_array",
    [pytest.param(True, id="points of JAX"), pytest.param(False, id="points of NumPy")],
)
def test_a_map_over_orders_is_the_loop(is_array):
    z, alphas, betas = POINTS[1:6].astype(np.float32), ALPHAS[:3].astype(np.float32), np.array([1.0, 1.3], np.float32)
    points = jnp.asarray(z) if is_array else z
    both = jax.vmap(jax.vmap(lambda alpha, beta: mittag_leffler(points, alpha, beta), (None, 0)), (0, None))
    found = jax.jit(both)(alphas, betas)
    wanted = derivative_at(z, alphas[:, None, None], betas[:, None], (0, 0, 0))
    np.testing.assert_allclose(found, wanted, rtol=2 * SINGLE)


@pytest.mark.slow
def test_many_points_are_taken_in_parts():
    z = np.linspace(-5, 2, 10001).astype(np.float32)
    found = jax.jit(lambda z: mittag_leffler(z, 0.7))(z)
    np.testing.assert_allclose(found, derivative_at(z, 0.7, 1.0, (0, 0, 0)), rtol=2 * SINGLE)
    assert mittag_leffler(jnp.zeros((0, 3)), 0.5).shape == (0, 3)


@pytest.mark.slow
def test_dtypes_follow_jax():
    assert mittag_leffler(jnp.ones(2, jnp.bfloat16), 0.5).dtype == jnp.bfloat16
    with jax.numpy_dtype_promotion("standard"):  # integers with a number, complex points with a real order
        assert mittag_leffler(jnp.ones(2, jnp.int32), 0.5).dtype == jnp.float32
        assert mittag_leffler(jnp.ones(2, jnp.complex64), jnp.float32(0.5)).dtype == jnp.complex64
    assert mittag_leffler(-1.0, jnp.float32(0.5)).dtype == jnp.float32


@pytest.mark.slow
def test_an_order_outside_its_range_is_nan_and_raises_under_checkify():
    assert np.isnan(mittag_leffler(1.0, jnp.asarray([2.5, 0.0]))).all()
    error, _ = checkify.checkify(jax.jit(lambda alpha: mittag_leffler(1.0, alpha)))(jnp.float32(2.5))
    assert "needs 0 < alpha <= 2" in str(error.get())


def test_a_number_outside_its_range_and_what_is_no_number_raise():
    with pytest.raises(ValueError, match="needs 0 < alpha <= 2"):
        mittag_leffler(jnp.ones(2), 2.5)
    with pytest.raises(ValueError, match="needs -1 <= beta <= 5"):
        mittag_leffler(jnp.ones(2), 0.5, np.array([1.0, 6.0]))
    with pytest.raises(TypeError, match="needs real numbers"):
        mittag_leffler(jnp.ones(2), jnp.complex64(0.5))
    with pytest.raises(TypeError, match="needs numbers"):
        mittag_leffler(jnp.ones(2), "half")


# The fractional Fourier transform


@pytest.mark.slow
def test_whole_orders_are_the_fft_and_its_powers():
    x = np.random.default_rng(7).normal(size=(3, 9)) + 1j * np.random.default_rng(8).normal(size=(3, 9))
    forward, inverse = np.fft.fft(x, norm="ortho"), np.fft.ifft(x, norm="ortho")
    for order, wanted in {0: x, 1: forward, 2: x[:, -np.arange(9)], 3: inverse, -1: inverse}.items():
        for given in (order, jnp.float32(order)):
            found = fractional_fourier(jnp.asarray(x, jnp.complex64), given)
            assert found.dtype == jnp.complex64
            np.testing.assert_allclose(found, wanted, rtol=0, atol=8 * SINGLE)


@pytest.mark.slow
def test_every_order_is_unitary_and_turns_hermite_functions():
    n = 64
    t = np.fft.fftfreq(n) * np.sqrt(n)
    second = (8 * np.pi * t**2 - 2) * np.exp(-np.pi * t**2)  # H_2 at sqrt(2 pi) t
    orders = np.array([0.3, -0.8, 1.4, 2.5])
    with jax.enable_x64(True):
        found = jnp.stack([fractional_fourier(jnp.asarray(second), float(order)) for order in orders])
        traced = fractional_fourier(jnp.broadcast_to(second, (4, n)), jnp.asarray(orders))
    turned = np.exp(-1j * np.pi * orders)[:, None] * second
    np.testing.assert_allclose(found, turned, rtol=0, atol=1e-13)
    np.testing.assert_allclose(traced, turned, rtol=0, atol=1e-13)


def test_the_derivative_in_the_order_is_that_of_the_rotation_also_under_a_map():
    """Hermite functions turn by exp(-i pi k order / 2): the derivative of the rotation is its generator."""
    n, k = 64, 1
    t = np.fft.fftfreq(n) * np.sqrt(n)
    first = (t * np.exp(-np.pi * t**2)).astype(np.float32)

    def real_part(order: Any) -> Any:
        return fractional_fourier(jnp.asarray(first), order).real

    orders = jnp.asarray([0.3, 1.2, -0.4], jnp.float32)
    slopes = jax.jit(jax.vmap(jax.jacfwd(real_part)))(orders)
    rate = np.pi * k / 2
    wanted = (-rate * np.sin(rate * np.asarray(orders, float)))[:, None] * first
    np.testing.assert_allclose(slopes, wanted, rtol=0, atol=16 * SINGLE)


@pytest.mark.slow
def test_an_axis_without_samples_or_an_order_that_does_not_broadcast_is_refused():
    with pytest.raises(ValueError, match="needs order to broadcast"):
        fractional_fourier(jnp.ones((3, 2)), jnp.ones(4))
    with pytest.raises(ValueError, match="needs at least one sample"):
        fractional_fourier(jnp.ones((3, 0)), 0.5)
    centred = fractional_fourier(jnp.arange(6.0), 0.5, centred=True)
    shifted = jnp.fft.fftshift(fractional_fourier(jnp.fft.ifftshift(jnp.arange(6.0)), 0.5))
    np.testing.assert_allclose(centred, shifted, rtol=0, atol=8 * SINGLE)
