"""Explosions of explicit schemes in JAX; `test_solver_explosions.py` is the twin."""

from math import gamma

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.experimental import checkify  # noqa: E402

from hpfracc_nn.solvers import SDE  # noqa: E402
from hpfracc_nn.solvers.jax import fdeint, fsdeint  # noqa: E402

ENDS = np.array([0.0, 1.0])


@pytest.fixture(autouse=True)
def in_float64():
    with jax.enable_x64(True):
        yield


def decay(rate, alpha, n_steps=200, start=None, **options):
    start = jnp.ones(2) if start is None else start
    return fdeint(lambda t, y: -rate * y, start, ENDS, alpha, n_steps=n_steps, **options)


def linear(rate, key=0, **options):
    sde = SDE(lambda t, y: -rate * y, lambda t, y: 0.1 * jnp.ones_like(y), "additive")
    return fsdeint(sde, jnp.ones(3), ENDS, key=jax.random.key(key), dt=0.01, **options)


@pytest.mark.parametrize("scheme", ["predictor_corrector", "rectangle"])
def test_steps_that_are_too_long_for_a_decay_raise(scheme):
    text = r"fdeint: the solution exploded: at step 200, t=1, .*'{}' is stable .* here that is 2\.08; .*'trapezoid'"
    with pytest.raises(FloatingPointError, match=text.format(scheme)):
        decay(6.0, 0.2, scheme=scheme)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "alpha", "mesh"), [(30.0, 0.6, "graded"), (5.0, [0.1, 0.9], "uniform")])
def test_so_do_those_of_other_meshes_and_orders(rate, alpha, mesh):
    with pytest.raises(FloatingPointError, match="exploded"):
        decay(rate, np.array(alpha), mesh=mesh)


@pytest.mark.slow
def test_traced_ones_say_so_under_checkify():
    error, _ = checkify.checkify(jax.jit(lambda: decay(6.0, 0.2)), errors=checkify.user_checks)()
    assert "fdeint: the solution exploded" in str(error.get())
    error, _ = checkify.checkify(jax.jit(lambda: linear(500.0)), errors=checkify.user_checks)()
    assert "fsdeint: the solution exploded" in str(error.get())
    error, _ = checkify.checkify(jax.jit(lambda: (decay(1.0, 0.2), linear(100.0))), errors=checkify.user_checks)()
    assert error.get() is None
    assert jnp.isfinite(jax.jit(lambda: decay(6.0, 0.2))()).all()  # as it is elsewhere


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_so_do_stochastic_equations(alpha):
    with pytest.raises(FloatingPointError, match=r"fsdeint: the solution exploded: at step 100, t=1, "):
        linear(500.0, alpha=alpha)
    assert linear(20.0, alpha=alpha).shape == (2, 3)


@pytest.mark.slow
def test_what_is_right_does_not_raise():
    grown = fdeint(lambda t, y: 8 * y * (1 - y), jnp.full(1, 1e-12), np.array([0.0, 20.0]), 1.0, n_steps=400)
    assert grown[-1, 0] == pytest.approx(1.0, abs=1e-3)
    fdeint(lambda t, y: -3 * jnp.sign(y), jnp.zeros(1), ENDS, 0.9, n_steps=100, scheme="rectangle")


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [208, 209])
def test_what_has_been_larger_does_not_raise(n_steps):
    # D^0.3 of t**2 (1 - t)**2, which rises again after t = 1
    def f(t, y):
        return sum(c * gamma(k + 1) / gamma(k + 0.7) * t ** (k - 0.3) for k, c in {4: 1, 3: -2, 2: 1}.items()) + 0 * y

    def end(times):
        return fdeint(f, jnp.zeros(1), times, 0.3, n_steps=n_steps)[-1, 0]

    times = np.array([0.0, n_steps / 200])
    exact = ((times[1] - 1) * times[1]) ** 2
    assert end(times) == pytest.approx(exact, abs=1e-4)  # of second order, and f moves by 0.06
    error, _ = checkify.checkify(jax.jit(lambda: end(times)), errors=checkify.user_checks)()
    assert error.get() is None


@pytest.mark.slow
def test_few_outputs_have_the_states_and_gradients_of_many():
    sde = SDE(lambda t, y: -y, lambda t, y: 0.1 * jnp.ones_like(y), "additive")

    def last(y0, ts):
        return fsdeint(sde, y0, ts, key=jax.random.key(0), dt=0.02)[-1].sum()

    few, many = (jax.value_and_grad(last)(jnp.ones(3), ts) for ts in (ENDS, np.linspace(0, 1, 51)))
    np.testing.assert_allclose(few[0], many[0], rtol=1e-14)
    np.testing.assert_allclose(few[1], many[1], rtol=1e-14)
