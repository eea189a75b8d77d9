"""What undoes operators, differences of any order, and distributed orders, on JAX arrays."""

from typing import Any

import numpy as np
import pytest

from hpfracc_nn import fdiff, solve
from hpfracc_nn.fractional import (
    Caputo,
    DistributedOrder,
    GrunwaldLetnikov,
    RiemannLiouville,
    RiemannLiouvilleIntegral,
    derivative,
)

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402

SINGLE = float(np.finfo(np.float32).eps)
TOLD = {"x0": 0.3}  # where the values do not tell the first sample
SOLVABLE = [
    pytest.param(Caputo, 0.4, None, TOLD, id="caputo"),
    pytest.param(Caputo, 1.4, (1, 2), {**TOLD, "dx0": 0.7}, id="caputo above one"),
    pytest.param(RiemannLiouville, 0.4, None, {}, id="riemann-liouville"),
    pytest.param(RiemannLiouville, 1.4, (1, 2), {}, id="riemann-liouville above one"),
    pytest.param(GrunwaldLetnikov, 0.4, None, {}, id="grunwald-letnikov"),
    pytest.param(RiemannLiouvilleIntegral, 0.4, None, TOLD, id="integral"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "alpha", "bounds", "told"), SOLVABLE)
def test_solve_undoes_the_operator_and_its_gradient_is_that_of_the_inverse(kind, alpha, bounds, told):
    """Of A(alpha) x = y with y fixed, dx = -A^-1 (dA/dalpha) x."""
    y = np.random.default_rng(0).standard_normal((2, 40)).cumsum(-1)
    with jax.enable_x64(True):

        def solved(alpha: Any, y: Any = y, **told: Any) -> Any:
            return solve(jnp.asarray(y), kind(alpha, bounds=bounds), dt=0.1, **told)

        def applied(alpha: Any, x: Any) -> Any:
            return derivative(x, kind(alpha, bounds=bounds), dt=0.1)

        one = jnp.asarray(alpha)
        x, moved = jax.jit(lambda a: jax.jvp(lambda a: solved(a, **told), (a,), (jnp.ones_like(a),)))(one)
        again, pushed = jax.jit(lambda a: jax.jvp(lambda a: applied(a, x), (a,), (jnp.ones_like(a),)))(one)
        begin = (
            0 if kind is not Caputo and kind is not RiemannLiouvilleIntegral else 1
        )  # these first values tell nothing
        begin += kind is Caputo and alpha > 1  # two where x'(0) is given
        if "dx0" not in told:  # else x'(0) is given, and not what the operator estimates
            np.testing.assert_allclose(again[:, begin:], y[:, begin:], rtol=0, atol=1e-11 * np.abs(y).max())
            by_identity = -solved(alpha, pushed, **dict.fromkeys(told, 0.0))
            np.testing.assert_allclose(moved, by_identity, rtol=0, atol=1e-9 * float(abs(moved).max()))
        fixed = jax.jit(lambda: solved(alpha, **told))()
        np.testing.assert_allclose(x, fixed, rtol=0, atol=1e-11 * float(abs(fixed).max()))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [pytest.param(0.6, id="fixed"), pytest.param(np.float32(0.6), id="traced")])
def test_without_64_bit_types_solve_is_right_to_what_single_precision_tells(alpha):
    x = np.random.default_rng(0).standard_normal((2, 200)).cumsum(-1)
    y = derivative(x, Caputo(0.6), dt=0.1).astype(np.float32)
    order = alpha if isinstance(alpha, float) else jnp.asarray(alpha)
    found = jax.jit(lambda y: solve(y, Caputo(order), x0=jnp.asarray(x[:, 0], y.dtype), dt=0.1))(jnp.asarray(y))
    assert found.dtype == jnp.float32
    assert np.abs(found - x).max() <= 32 * SINGLE * np.abs(x).max()
    with pytest.raises(ValueError, match="broadcasts to that of y without dim"):
        jax.eval_shape(lambda y: solve(y, Caputo(0.6), x0=jnp.ones(3)), jnp.ones((2, 8)))


def sliding(a: np.ndarray, n: float, window: int | None) -> np.ndarray:
    """The sum over lags along the last axis, sample by sample."""
    weights = np.cumprod([1.0, *((k - 1 - n) / k for k in range(1, a.shape[-1]))])[:window]
    reach = [min(t + 1, len(weights)) for t in range(a.shape[-1])]
    return np.stack([(weights[:m] * a[..., t - m + 1 : t + 1][..., ::-1]).sum(-1) for t, m in enumerate(reach)], -1)


def test_fdiff_of_squares_is_that_of_the_page_on_differencing():
    a = jnp.asarray([1, 4, 9, 16])
    np.testing.assert_array_equal(fdiff(a, 1, mode="valid"), [3, 5, 7])
    np.testing.assert_allclose(jax.jit(lambda a: fdiff(a, 0.5))(a), [1.0, 3.5, 6.875, 10.9375], rtol=8 * SINGLE)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 1, 7, 200])
@pytest.mark.parametrize("n", [-2.5, -1, -0.3, 0, 0.3, 1, 1.6, 2, 4.5])
def test_fdiff_is_the_sum_over_lags_for_numbers_and_for_traced_orders(n, window):
    a = np.random.default_rng(0).standard_normal((2, 60))
    wanted = sliding(a, n, window)
    with jax.enable_x64(True):
        by_number = fdiff(jnp.asarray(a), n, window=window)
        traced = jax.jit(lambda n: fdiff(jnp.asarray(a), n, window=window))(jnp.asarray(float(n)))
        for found in (by_number, traced):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-11 * np.abs(wanted).max())


@pytest.mark.slow
def test_at_a_whole_order_fdiff_is_that_of_numpy_in_the_same_dtype():
    a = np.random.default_rng(0).integers(-9, 9, (2, 12))
    for dtype in ("int32", "float32", "complex64", "uint8"):
        samples = a.astype(dtype)
        for n, axis in ((0, 0), (1, 0), (2, 1), (5, 1)):
            found = fdiff(jnp.asarray(samples), n, axis, mode="valid")
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, np.diff(samples, n, axis))
    ones = jnp.ones(300, jnp.int8)
    assert int(fdiff(ones, -1)[-1]) == 300
    assert float(fdiff(jnp.ones(4096, jnp.bfloat16), -1)[-1]) == 4096


@pytest.mark.slow
def test_fdiff_of_any_order_has_a_gradient_and_leaves_nan_in_the_window_of_a_gap():
    a = np.random.default_rng(0).standard_normal(30).astype(np.float32)

    def last(n: Any) -> Any:
        return fdiff(jnp.asarray(a), n)[-1]

    slopes = jax.jit(jax.vmap(jax.grad(last)))(jnp.asarray([0.4, 1.0, 2.0], jnp.float32))
    h = 1e-5
    wanted = [
        (sliding(a.astype(float), n + h, None)[-1] - sliding(a.astype(float), n - h, None)[-1]) / (2 * h)
        for n in (0.4, 1, 2)
    ]
    np.testing.assert_allclose(slopes, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    holed = a.copy()
    holed[[5, 20]] = np.nan, np.inf
    found = np.asarray(jax.jit(lambda x: fdiff(x, 0.4, window=7))(jnp.asarray(holed)))
    reached = [5 <= k < 12 or 20 <= k < 27 for k in range(30)]
    np.testing.assert_array_equal(np.isnan(found), reached)
    filled = fdiff(np.where(np.isfinite(holed), holed, 0), 0.4, window=7)
    np.testing.assert_allclose(found[~np.isnan(found)], filled[~np.isnan(found)], rtol=0, atol=8 * SINGLE)
    with pytest.raises(TypeError, match="needs a floating array of no axes"):
        fdiff(jnp.ones(4), jnp.ones(2))
    with pytest.raises(ValueError, match="needs a window"):
        jax.eval_shape(lambda n: fdiff(jnp.ones(4), n, mode="valid"), jnp.float32(0.5))


@pytest.mark.slow
def test_a_distributed_order_is_the_sum_of_its_operators():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 60)).cumsum(-1), jnp.float32)
    both = DistributedOrder(nodes=(0.3, 0.8), weights=(1.0, 2.0))
    found = jax.jit(lambda x: derivative(x, both, dt=0.1))(x)
    wanted = derivative(x, Caputo(0.3), dt=0.1) + 2 * derivative(x, Caputo(0.8), dt=0.1)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=32 * SINGLE * float(abs(wanted).max()))
    np.testing.assert_allclose(
        solve(found, both, x0=x[:, 0], dt=0.1), x, rtol=0, atol=64 * SINGLE * float(abs(x).max())
    )
