"""Noise in JAX: laws, keys, derivatives in what is learned. That torch draws the same is `parity_cases/noises.py`."""

import json
import math
import pathlib
from dataclasses import replace

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from hpfracc_nn.fractional.jax.arrays import JAX  # noqa: E402
from hpfracc_nn.fractional.namespace import NUMPY  # noqa: E402
from hpfracc_nn.solvers import (  # noqa: E402
    NOISES,
    AlphaStable,
    Brownian,
    Coloured,
    CompoundPoisson,
    FractionalBrownian,
    MarkovFractionalBrownian,
    NormalJumps,
    RiemannLiouvilleBrownian,
)
from hpfracc_nn.solvers.jax import increments, paths  # noqa: E402
from hpfracc_nn.solvers.noise.fractional import circulant_roots, fgn_autocovariance  # noqa: E402

KEY = jax.random.key(0)
REFERENCE = json.loads((pathlib.Path(__file__).parent / "reference" / "noise.json").read_text("utf-8"))
EXAMPLES = [
    pytest.param(each, id=repr(each), marks=[] if name == "brownian" else pytest.mark.slow)
    for name, noise in NOISES.items()
    for each in noise.examples()
]
K = np.array([-7.0, -3.0, -1.5, -0.7, -0.2, 0.1, 0.4, 1.0, 2.5, 6.0])  # over the size of an increment


@pytest.mark.parametrize("noise", EXAMPLES)
def test_every_noise_draws_by_the_law_that_it_states(noise):
    count, steps, dt = 20_000, 8, 0.05
    x = np.asarray(jax.jit(lambda key: increments(noise, steps, (count,), dt=dt, key=key))(KEY), np.float64)
    k = K / np.median(np.abs(x[0][x[0] != 0]))
    z = np.abs(np.exp(1j * k[:, None] * x[0]).mean(1) - noise.characteristic(k, dt)) * math.sqrt(count)
    assert z.max() < 4.5  # the variance of a wave is 1 at most: a chance of 1e-4 for 20 numbers
    expected = noise.covariance(steps, dt)
    if expected is None:
        return
    x -= x.mean(1, keepdims=True)
    products = x @ x.T / count
    errors = np.sqrt(np.maximum((x**2 @ (x**2).T / count - products**2), 1e-300) / count)
    # 36 entries; rare and large jumps are less normal, and their standard errors are estimated from few of them.
    assert (np.abs(products - expected) / errors).max() < (5.0 if noise.is_continuous else 6.0)


def test_a_key_draws_the_same_numbers_and_another_key_others():
    drawn = jax.jit(lambda key: increments(FractionalBrownian(0.3), 20, (3,), dt=0.1, key=key))
    first, again, other = (drawn(jax.random.key(seed)) for seed in (7, 7, 8))
    assert (first == again).all()
    assert not (first == other).any()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_shape_and_dtype_are_those_asked_for(dtype):
    for shape in ((), (2, 5), (0,)):
        found = paths(Brownian(), 3, shape, dt=0.1, key=KEY, dtype=dtype)
        assert found.shape == (4, *shape)
        assert found.dtype == dtype
        assert (found[0] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("noise", [FractionalBrownian(0.3), RiemannLiouvilleBrownian(0.3), AlphaStable(1.6)])
def test_nothing_is_promoted_unasked(noise):
    with jax.numpy_dtype_promotion("strict"):
        assert jnp.isfinite(increments(noise, 4, (2,), dt=0.1, key=KEY)).all()


@pytest.mark.slow
def test_paths_are_running_sums():
    steps, found = (draw(Brownian(), 5, (2,), dt=0.1, key=KEY) for draw in (increments, paths))
    np.testing.assert_allclose(found[1:], np.cumsum(steps, 0), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("make", [FractionalBrownian, RiemannLiouvilleBrownian, Coloured])
def test_every_transform_follows_a_learned_parameter(make):
    def loss(value):
        return jnp.sum(increments(make(value), 9, (3,), dt=0.1, key=KEY) ** 2)

    with jax.enable_x64(True):
        value, step = jnp.asarray(0.31), 1e-5
        slope = (loss(value + step) - loss(value - step)) / (2 * step)
        assert jax.grad(loss)(value) == pytest.approx(float(slope), rel=1e-7)
        assert jax.jit(jax.jacfwd(loss))(value) == pytest.approx(float(jax.grad(loss)(value)), rel=1e-12)
        curve = (jax.grad(loss)(value + step) - jax.grad(loss)(value - step)) / (2 * step)
        assert jax.hessian(loss)(value) == pytest.approx(float(curve), rel=1e-7)
        both = jax.vmap(jax.grad(loss))(jnp.stack([value, value + 0.1]))
        np.testing.assert_allclose(both, [jax.grad(loss)(value), jax.grad(loss)(value + 0.1)], rtol=1e-12)


@pytest.mark.slow
def test_spectra_are_as_good_where_64_bit_types_are_not_enabled():
    def draw(hurst):
        return increments(FractionalBrownian(hurst), 9, (3,), dt=0.1, key=KEY, dtype=jnp.float32)

    index = jnp.float32(0.3)
    found = jax.jit(draw)(index)
    fixed = draw(float(index))
    # Rounded once: the same numbers but for the last bit.
    np.testing.assert_allclose(found, fixed, rtol=0, atol=2e-7 * float(jnp.abs(fixed).max()))


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["fgn_autocov"]["cases"], ids=lambda case: f"H {case['H']}")
def test_autocovariances_are_those_of_the_reference(case):
    with jax.enable_x64(True):
        hurst, step = float(case["H"]), 1 / 64
        found = np.asarray(fgn_autocovariance(jnp.asarray(hurst), 64, JAX)) * step ** (2 * hurst)
        for lag, value in case["lags"].items():
            assert found[int(lag)] == pytest.approx(float(value), rel=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["fgn_logpdf"]["cases"], ids=lambda case: f"H {case['H']}")
def test_the_density_of_fractional_noise_is_that_of_the_reference(case):
    with jax.enable_x64(True):
        n = int(case["n"])
        lag = np.abs(np.arange(n)[:, None] - np.arange(n))
        covariance = fgn_autocovariance(jnp.asarray(float(case["H"])), n, JAX)[lag]
        x = jnp.sin(jnp.arange(1.0, n + 1))
        found = jax.scipy.stats.multivariate_normal.logpdf(x, jnp.zeros(n), covariance)
        assert float(found) == pytest.approx(float(case["value"]), rel=1e-12)


@pytest.mark.slow
def test_the_circulant_is_numpys():
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):  # a formula of NumPy's too
        found = circulant_roots(jnp.asarray([0.1, 0.9]), 50, JAX)
        np.testing.assert_allclose(found, circulant_roots(np.array([0.1, 0.9]), 50, NUMPY), rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"key": None}, TypeError, r"increments\(key of type NoneType\): needs a key; pass jax.random.key"),
        ({"dt": 0.0}, ValueError, r"increments\(dt=0.0\)"),
        ({"n_steps": 0}, ValueError, r"n_steps=0"),
        ({"dtype": "int32"}, ValueError, r"needs a floating dtype"),
        ({"noise": FractionalBrownian((0.1, 0.3)), "shape": (3,)}, ValueError, r"needs \(2,\) as its last axes"),
    ],
)
def test_a_wrong_argument_is_refused(changes, error, message):
    options = {"noise": Brownian(), "n_steps": 3, "shape": (2,), "dt": 0.1, "key": KEY, **changes}
    with pytest.raises(error, match=message):
        increments(options.pop("noise"), options.pop("n_steps"), options.pop("shape"), **options)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda x: CompoundPoisson(9.0, NormalJumps(x)), lambda x: AlphaStable(x + 1.2)])
def test_jumps_have_gradients_in_their_parameters(make):
    slope = jax.jit(jax.grad(lambda x: jnp.tanh(increments(make(x), 4, (2,), dt=0.5, key=KEY)).sum()))(0.4)
    assert jnp.isfinite(slope)
    assert slope != 0


def test_rates_of_a_traced_index_are_those_of_its_bounds():
    bounds, seen = (0.2, 0.5), []

    @jax.jit
    def drawn(hurst):
        noise = MarkovFractionalBrownian(hurst, bounds, 4)
        seen.append(noise.rates(5, 0.05))
        return jax.jvp(lambda each: increments(replace(noise, hurst=each), 5, (3,), dt=0.05, key=KEY), (hurst,), (1.0,))

    with jax.enable_x64(True):
        (after, _), (before, _), (_, slope) = (drawn(jnp.asarray(hurst)) for hurst in (0.30001, 0.29999, 0.3))
        around = (after - before) / 2e-5
    np.testing.assert_allclose(slope, around, rtol=0, atol=1e-7)  # differences of 1e-12, over 2e-5
    assert len(seen) == 1
    np.testing.assert_array_equal(seen[0], MarkovFractionalBrownian(0.4, bounds, 4).rates(5, 0.05))
