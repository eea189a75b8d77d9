"""JAX arrays at times that are not equally spaced, and varying orders: closed forms, kernels, transforms."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from scipy.special import gamma

from hpfracc_nn import variable_order
from hpfracc_nn.fractional import Caputo, RiemannLiouville, RiemannLiouvilleIntegral, derivative
from hpfracc_nn.fractional.operator import VARIABLE_ORDER_SCHEMES
from hpfracc_nn.fractional.product_integration import OP, fixed_weights, workload
from hpfracc_nn.fractional.sample_times import Times
from hpfracc_nn.selection import BackendManager, Settings, kernels

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.experimental import checkify  # noqa: E402

derivative(jnp.zeros(0), Caputo(0.5, "l1"), t=np.zeros(0))  # loads the room, and with it its kernels
KERNELS = {kernel.name: kernel for kernel in kernels(OP, "jax")}
SINGLE = float(np.finfo(np.float32).eps)
FILE = pathlib.Path(__file__).parent / "reference" / "orders.json"
CASE = next(case for case in json.loads(FILE.read_text("utf-8"))["cases"] if case["id"] == "variable_t2")

# A function that the scheme interpolates exactly -> the operator's closed form.
EXACT: dict[Any, Any] = {
    (Caputo, "l1"): lambda t, a: 2 * t ** (1 - a) / gamma(2 - a),
    (RiemannLiouville, "l1"): lambda t, a: 3 * t**-a / gamma(1 - a) + 2 * t ** (1 - a) / gamma(2 - a),
    (RiemannLiouvilleIntegral, "trapezoid"): lambda t, a: 3 * t**a / gamma(1 + a) + 2 * t ** (1 + a) / gamma(2 + a),
}


def random_times(n: int, seed: int = 0) -> np.ndarray:
    """Return n times from 0 on whose steps differ tenfold."""
    steps = np.random.default_rng(seed).uniform(0.1, 1, n - 1)
    return 2 * np.concatenate([[0], np.cumsum(steps) / steps.sum()])


def manager_for(kernel: str) -> BackendManager:
    return BackendManager(Settings(mode="prior", force_algorithm=KERNELS[kernel].algorithm))


@pytest.mark.parametrize(
    "kernel",
    [pytest.param(name, marks=[] if name == "xla/chunked_scan" else [pytest.mark.slow]) for name in KERNELS],
)
@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (Caputo, "l1"),
        pytest.param(RiemannLiouville, "l1", marks=pytest.mark.slow),
        pytest.param(RiemannLiouvilleIntegral, "trapezoid", marks=pytest.mark.slow),
    ],
)
def test_what_the_scheme_interpolates_is_exact_for_fixed_and_for_traced_orders(kind, scheme, kernel):
    t, manager = random_times(80), manager_for(kernel)  # three chunks
    with jax.enable_x64(True):
        x = jnp.asarray(np.stack([3 + 2 * t, 6 + 4 * t]))

        def operator(alpha: Any) -> Any:
            return derivative(x, kind(alpha, scheme), t=t, manager=manager)

        orders = np.array([0.3, 0.8])
        wanted = np.stack([EXACT[kind, scheme](t[1:], a) * k for a, k in zip(orders, (1, 2), strict=True)])
        for found in (jax.jit(lambda: operator(orders.tolist()))(), jax.jit(operator)(jnp.asarray(orders))):
            np.testing.assert_allclose(found[:, 1:], wanted, rtol=1e-11)


@pytest.mark.parametrize("name", KERNELS)
def test_every_adjoint_is_the_transpose(name):
    rng, kernel = np.random.default_rng(0), KERNELS[name]
    weights = fixed_weights(np.array([[0.4]]), Times(random_times(71)[None]), 2, np.dtype(np.float32))
    z, g = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((1, 3, 2, 70), (1, 3, 70)))
    operator = kernel.prepare(weights, workload("jax", weights, z))
    (wanted,) = jax.linear_transpose(lambda z: kernel.run(operator, z), z)(g)
    # Sums of 70 products, through two sums of 40 where there are states.
    np.testing.assert_allclose(kernel.adjoint(operator, g), wanted, rtol=0, atol=70 * SINGLE * float(abs(wanted).max()))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["l1", "l1_2"])
@pytest.mark.parametrize(("kind", "alpha"), [(Caputo, 0.4), (Caputo, 1.6), (RiemannLiouville, 1.3)])
def test_at_equal_steps_it_is_the_operator_of_those_steps(kind, scheme, alpha):
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 50, 3)))
        wanted = derivative(x, kind(alpha, scheme), dt=0.1, dim=1)
        found = derivative(x, kind(alpha, scheme), t=0.1 * np.arange(50), dim=1)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-10 * float(abs(wanted).max()))
        traced = derivative(
            x, kind(jnp.asarray(alpha), scheme, (1, 2) if alpha > 1 else None), t=0.1 * np.arange(50), dim=1
        )
        np.testing.assert_allclose(traced, wanted, rtol=0, atol=1e-10 * float(abs(wanted).max()))


@pytest.mark.slow
def test_each_signal_may_have_its_own_times_and_order():
    times = np.stack([random_times(50, seed) for seed in range(3)])
    x, orders = np.random.default_rng(0).standard_normal((2, 3, 50)), [0.3, 0.5, 0.8]
    with jax.enable_x64(True):
        for alpha in (orders, jnp.asarray(orders)):
            found = derivative(jnp.asarray(x), RiemannLiouville(alpha, "l1_2"), t=times)
            for k in range(3):
                alone = derivative(jnp.asarray(x[:, k]), RiemannLiouville(orders[k], "l1_2"), t=times[k])
                np.testing.assert_allclose(found[:, k], alone, rtol=0, atol=1e-10 * float(abs(alone).max()))


@pytest.mark.slow
def test_transforms_follow_in_single_precision_also_over_the_order():
    t = random_times(40)
    x = jnp.asarray(1 + 2 * t, jnp.float32)

    def last(alpha: Any, x: Any) -> Any:
        return derivative(x, Caputo(alpha, "l1"), t=t)[-1]

    def exact(alpha: float) -> float:
        return float(EXACT[Caputo, "l1"](t[-1], alpha))

    alphas, h = jnp.asarray([0.4, 0.7], jnp.float32), 1e-4
    found = jax.jit(jax.vmap(lambda a: (last(a, x), jax.grad(last)(a, x), jax.hessian(last)(a, x))))(alphas)
    assert all(each.dtype == jnp.float32 for each in found)
    for k, alpha in enumerate(np.asarray(alphas, float)):
        first, second = (
            (exact(alpha + h) - exact(alpha - h)) / (2 * h),
            exact(alpha + h) + exact(alpha - h) - 2 * exact(alpha),
        )
        for each, wanted in zip(found, (exact(alpha), first, second / h**2), strict=True):
            assert float(each[k]) == pytest.approx(wanted, rel=1e-5)
    slope = jax.jit(jax.grad(last, argnums=1))(alphas[0], x)
    along = jax.jit(lambda v: jax.jvp(lambda x: last(alphas[0], x), (x,), (v,))[1])(x)
    assert float(along) == pytest.approx(float(slope @ x), rel=1e-5)


@pytest.mark.slow
def test_traced_orders_beyond_their_bounds_are_nan_and_raise_under_checkify():
    x, t = jnp.arange(10.0), random_times(10)

    def operator(alpha: Any) -> Any:
        return derivative(x, Caputo(alpha, "l1"), t=t)

    assert np.isnan(jax.jit(operator)(jnp.float32(1.5))[1:]).all()
    assert np.isnan(jax.jit(jax.grad(lambda alpha: operator(alpha).sum()))(jnp.float32(1.5)))
    error, _ = checkify.checkify(jax.jit(operator))(jnp.float32(1.5))
    assert "within its bounds (0, 1)" in str(error.get())
    with pytest.raises(ValueError, match=r"within its bounds \(0, 1\)"):
        operator(jnp.float32(1.5))


def test_traced_times_and_wrong_shapes_are_refused_when_a_call_is_traced():
    x, t = jnp.arange(10.0), random_times(10)
    with pytest.raises(TypeError, match="needs times that are known when the call is traced"):
        jax.eval_shape(lambda t: derivative(x, Caputo(0.5), t=t), jnp.asarray(t))
    with pytest.raises(ValueError, match="one number for each of the 10 samples"):
        jax.eval_shape(lambda x: derivative(x, Caputo(0.5), t=t[:5]), x)
    found = derivative(x, Caputo(0.5, "l1"), t=jnp.asarray(t, jnp.float32))
    np.testing.assert_array_equal(found, derivative(x, Caputo(0.5, "l1"), t=t.astype(np.float32)))


# Orders that change with time


@pytest.mark.parametrize(
    "is_traced", [pytest.param(False, id="fixed"), pytest.param(True, id="traced", marks=pytest.mark.slow)]
)
def test_the_reference_case_of_a_variable_order_is_met(is_traced):
    n = 1600
    t = np.linspace(0, 2, n + 1)
    at = np.rint(np.array(CASE["points"]) * n / 2).astype(int)
    alpha = eval(CASE["alpha"], {"np": np, "t": t})
    with jax.enable_x64(True):
        given = jnp.asarray(alpha) if is_traced else alpha
        found = jax.jit(lambda: variable_order(jnp.asarray(t**2), given, dt=2 / n)[at])()
        # Of order 2.2: 1600**-2.2 = 9e-8.
        np.testing.assert_allclose(found, np.array(CASE["values"], float), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", VARIABLE_ORDER_SCHEMES)
def test_each_row_is_that_of_its_own_order_and_so_is_its_gradient(kind, kernel):
    rng, t = np.random.default_rng(0), random_times(70)
    x, alpha = rng.standard_normal((2, 70)), rng.uniform(0.1, 0.9, 70)
    with jax.enable_x64(True):

        def varying(alpha: Any) -> Any:
            return variable_order(jnp.asarray(x), alpha, kind, t=t, manager=manager_for(kernel)).sum(0)

        def own(alpha: Any) -> Any:
            return derivative(jnp.asarray(x), kind(alpha, VARIABLE_ORDER_SCHEMES[kind]), t=t).sum(0)

        found, slopes = jax.jit(lambda a: (varying(a), jax.jacfwd(varying)(a)))(jnp.asarray(alpha))
        assert float(abs(slopes - jnp.diag(jnp.diag(slopes))).max()) == 0
        both = jax.jit(lambda a: (own(a), jax.jacfwd(own)(a)))
        for k in (0, 1, 2, 33, 69):
            value, slope = both(alpha[k])
            np.testing.assert_allclose(found[k], value[k], rtol=1e-9)
            np.testing.assert_allclose(slopes[k, k], slope[k], rtol=1e-9)


@pytest.mark.slow
def test_a_map_over_varying_orders_is_the_loop():
    rng, t = np.random.default_rng(0), random_times(40)
    x, alphas = (
        jnp.asarray(rng.standard_normal(40), jnp.float32),
        jnp.asarray(rng.uniform(0.1, 0.9, (2, 40)), jnp.float32),
    )

    def slope(alpha: Any) -> Any:
        return jax.grad(lambda alpha: variable_order(x, alpha, RiemannLiouville, t=t)[-5:].sum())(alpha)

    mapped = jax.jit(jax.vmap(slope))(alphas)
    np.testing.assert_allclose(mapped, jnp.stack([jax.jit(slope)(alpha) for alpha in alphas]), rtol=1e-4, atol=1e-5)


def test_each_sample_has_an_order():
    with pytest.raises(ValueError, match="one number for each of the 4 samples"):
        variable_order(jnp.ones(4), jnp.full(3, 0.5))
