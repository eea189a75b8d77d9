"""Multipliers on JAX arrays: the matrix of the symbol, every kernel, transforms, traced orders, reference values."""

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.experimental import checkify  # noqa: E402

from hpfracc_nn.fractional import MULTIPLIERS, FractionalLaplacian, PeriodicRiesz, PeriodicWeyl, derivative  # noqa: E402

every_multiplier = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=[] if kind is PeriodicWeyl else [pytest.mark.slow])
        for name, kind in MULTIPLIERS.items()
    ],
)
EPS = float(np.finfo(np.float32).eps)

# exp(i omega t) -> factor, from the docstrings.
SYMBOLS: dict[type, Any] = {
    PeriodicWeyl: lambda omega, alpha: (1j * omega) ** alpha,
    PeriodicRiesz: lambda omega, alpha: -(omega**alpha) + 0j,
    FractionalLaplacian: lambda omega, alpha: omega**alpha + 0j,
}


def dense(kind: type, alpha: float, n: int, dt: float) -> np.ndarray:
    """Return the operator as a matrix: its symbol on the discrete Fourier transform as it stands, for alpha > 0."""
    k = np.arange(n)
    signed = np.where(k <= n // 2, k, k - n)
    factors = np.zeros(n, complex)
    for j in k[1:]:
        factor = SYMBOLS[kind](2 * np.pi * abs(signed[j]) / (n * dt), alpha)
        factors[j] = factor if signed[j] > 0 else np.conj(factor)
    waves = np.exp(2j * np.pi * np.outer(k, k) / n)
    return (waves @ np.diag(factors) @ waves.conj().T / n).real


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape)


@every_multiplier
def test_it_is_the_dense_matrix_along_any_axis_and_for_orders_of_every_shape(kind):
    x, dt = drawn(2, 9, 3), 0.3
    matrix = np.stack([dense(kind, alpha, 9, dt) for alpha in (0.4, 1.0, 1.6)])
    wanted = np.einsum("cij,bjc->bic", matrix, x)
    with jax.enable_x64(True):
        for alpha in ([0.4, 1.0, 1.6], jnp.asarray([0.4, 1.0, 1.6])):
            found = derivative(jnp.asarray(x), kind(alpha), dt=dt, dim=1)
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-13 * np.abs(matrix).max())


@pytest.mark.slow
def test_single_precision_keeps_its_digits_where_64_bit_types_are_not_enabled():
    x = drawn(4, 64).astype(np.float32)
    wanted = PeriodicWeyl(0.7)(x.astype(float), dt=0.1)
    for alpha in (0.7, jnp.float32(0.7)):
        found = PeriodicWeyl(alpha)(jnp.asarray(x), dt=0.1)
        assert found.dtype == jnp.float32
        # Some eps of log2(64) passes, and alpha itself is rounded to float32.
        assert np.abs(found - wanted).max() <= 20 * EPS * np.abs(wanted).max()
    half = PeriodicWeyl(0.7)(jnp.asarray(x, jnp.bfloat16), dt=0.1)
    assert half.dtype == jnp.bfloat16
    assert np.abs(half.astype(np.float32) - wanted).max() <= 0.02 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "axes",
    [pytest.param((1,), marks=pytest.mark.slow), (1, 2), pytest.param((1, 2, 3), marks=pytest.mark.slow)],
    ids=str,
)
def test_the_laplacian_of_a_plane_wave_knows_each_axis_and_its_spacing(axes):
    steps = (0.2, 0.3, 0.5)[: len(axes)]
    sizes = (8, 9, 10)
    place = np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij")
    turns = [2 * np.pi * (k + 1) / sizes[k] for k in range(len(axes))]
    wave = np.cos(sum(turn * place[k] for k, turn in enumerate(turns)))[None]
    omega = np.sqrt(sum((turn / step) ** 2 for turn, step in zip(turns, steps, strict=True)))
    with jax.enable_x64(True):
        found = FractionalLaplacian(0.8)(jnp.asarray(wave), dt=steps, dim=axes)
    np.testing.assert_allclose(found, omega**0.8 * wave, rtol=0, atol=1e-13 * omega)


@every_multiplier
def test_transforms_follow_also_over_the_order_and_without_64_bit_types(kind):
    x, alpha, dt = jnp.asarray(drawn(3, 8), jnp.float32), jnp.asarray([0.4, 1.0, 1.6]), 0.5

    def value(alpha: Any) -> Any:
        return (derivative(x, kind(alpha), dt=dt, dim=-1) * jnp.cos(jnp.arange(8.0))[None]).sum()

    def exact(alpha: float) -> float:
        return float((kind(alpha)(np.asarray(x, float), dt=dt, dim=-1) * np.cos(np.arange(8.0))).sum())

    h = 1e-4  # differences of h**2 = 1e-8 and 1e-16 / h**2
    first = np.array([(exact(a + h) - exact(a - h)) / (2 * h) for a in (0.4, 1.0, 1.6)])
    second = np.array([(exact(a + h) - 2 * exact(a) + exact(a - h)) / h**2 for a in (0.4, 1.0, 1.6)])
    mapped = jax.jit(jax.vmap(lambda a: (value(a), jax.grad(value)(a), jax.hessian(value)(a))))(alpha)
    size = 100 * EPS * np.abs(second).max()
    values = np.array([exact(a) for a in (0.4, 1.0, 1.6)])
    for found, wanted in zip(mapped, (values, first, second), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=size)


def test_a_sharded_batch_equals_the_unsharded_one():
    if jax.device_count() < 4:
        pytest.skip("needs four devices: XLA was started with fewer")
    x = jnp.asarray(drawn(8, 16), jnp.float32)
    mesh = jax.make_mesh((4,), ("batch",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    operator = jax.jit(lambda x: PeriodicWeyl(0.5)(x))
    np.testing.assert_allclose(operator(jax.device_put(x, rows)), operator(x), rtol=0, atol=4 * EPS)


@pytest.mark.slow
def test_traced_orders_beyond_those_of_the_line_are_nan_and_raise_under_checkify():
    x = jnp.asarray(drawn(16), jnp.float32)

    def operator(alpha: Any) -> Any:
        return FractionalLaplacian(alpha, space="line")(x, dt=0.1)

    beyond = jnp.float32(3.0)
    assert np.isnan(jax.jit(operator)(beyond)).all()
    assert np.isnan(jax.jit(jax.grad(lambda alpha: operator(alpha).sum()))(beyond))
    error, _ = checkify.checkify(jax.jit(operator))(beyond)
    assert "within its bounds (0, 2)" in str(error.get())
    with pytest.raises(ValueError, match=r"alpha=3, space='line'\): needs 0 <= alpha <= 2"):
        operator(beyond)


def test_what_is_wrong_is_said_when_it_is_traced():
    with pytest.raises(ValueError, match="needs alpha to broadcast"):
        jax.eval_shape(lambda x, a: PeriodicWeyl(a)(x), jnp.ones((3, 8)), jnp.ones(4))
    assert jax.eval_shape(lambda x: PeriodicWeyl(0.5)(x), jnp.ones(8, jnp.int32)).dtype == jnp.float32
    with pytest.raises(TypeError, match="a floating JAX array"):
        PeriodicWeyl(jnp.asarray(1))(jnp.ones(8))
    assert PeriodicWeyl(jnp.float32(0.5))(jnp.ones((0, 8))).shape == (0, 8)
