"""Models on JAX arrays: values are NumPy's, whether 64 bit types are enabled or not, and transforms follow."""

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from hpfracc_nn.models.impedance import CIRCUITS
from hpfracc_nn.models.rheology import MATERIALS
from tests.models_cases import PARAMETERS

T = np.geomspace(1e-2, 1e2, 7)


def times():
    """Return T anew: an array that JAX has seen under 64 bit types it takes for one of these everywhere."""
    return jnp.asarray(T.copy())


RESPONSES = ("relaxation", "creep", "complex_modulus")


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("name", MATERIALS)
def test_materials_have_numpys_values_and_gradients_in_every_parameter(name, response):
    kind = MATERIALS[name]
    values = PARAMETERS[kind]

    def of(values):
        return getattr(kind(**values), response)(times())

    expected = getattr(kind(**values), response)(T)
    with jax.enable_x64(True):
        doubles = {key: jnp.asarray(value, jnp.float64) for key, value in values.items()}
        found = jax.jit(of)(doubles)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-14 * np.abs(expected).max())
        slopes = jax.jacfwd(of)(doubles)
    singles = of({key: jnp.asarray(value, jnp.float32) for key, value in values.items()})
    assert singles.dtype == (jnp.complex64 if response == "complex_modulus" else jnp.float32)
    np.testing.assert_allclose(singles, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    for key, value in values.items():
        high, low = (getattr(kind(**values | {key: value + h}), response)(T) for h in (1e-5, -1e-5))
        difference = (high - low) / 2e-5
        np.testing.assert_allclose(slopes[key], difference, rtol=1e-6, atol=1e-8 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("name", CIRCUITS)
def test_circuits_have_numpys_values(name):
    kind = CIRCUITS[name]
    values = {key: jnp.asarray(value, jnp.float32) for key, value in PARAMETERS[kind].items()}
    found = jax.jit(lambda values: kind(**values).impedance(times()))(values)
    np.testing.assert_allclose(found, kind(**PARAMETERS[kind]).impedance(T), rtol=1e-5)


@pytest.mark.slow
def test_histories_under_transforms():
    kind = MATERIALS["fractional_zener"]
    values = PARAMETERS[kind]
    x = np.random.default_rng(0).standard_normal((3, 40))
    expected = kind(**values).stress(x, dt=0.1)
    with jax.enable_x64(True):
        found = jax.jit(lambda x: kind(**values).stress(x, dt=0.1))(jnp.asarray(x.copy()))
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)

        def energy(alpha):
            return kind(**values | {"alpha": alpha}).stress(jnp.asarray(x.copy()), dt=0.1).var()

        high, low = (float(energy(jnp.asarray(0.7 + h))) for h in (1e-5, -1e-5))
        np.testing.assert_allclose(jax.grad(energy)(jnp.asarray(0.7)), (high - low) / 2e-5, rtol=1e-6)
        orders = jnp.asarray([0.4, 0.7])
        np.testing.assert_allclose(jax.vmap(energy)(orders)[1], energy(orders[1]), rtol=1e-12)
    single = kind(**values).stress(jnp.asarray(x.copy(), jnp.float32), dt=0.1)
    assert single.dtype == jnp.float32
    # In single precision an FFT rounds to eps |differences| |weights|, here of noise.
    np.testing.assert_allclose(single, expected, atol=1e-3 * np.abs(expected).max())
