"""Models on torch tensors: values are NumPy's, gradients those of differences, also under transforms."""

import numpy as np
import pytest
import torch

from hpfracc_nn.models import Experiment, fit, impedance
from hpfracc_nn.models.impedance import CIRCUITS
from hpfracc_nn.models.rheology import MATERIALS, FractionalMaxwell, SpringPot
from tests.models_cases import PARAMETERS

T = np.geomspace(1e-2, 1e2, 7)


def with_tensors(kind):
    values = PARAMETERS[kind]
    return {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in values.items()}


RESPONSES = ("relaxation", "creep", "complex_modulus")


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("name", MATERIALS)
def test_materials_have_numpys_values_and_gradients_in_every_parameter(name, response):
    kind = MATERIALS[name]
    tensors, t = with_tensors(kind), torch.from_numpy(T)
    found = getattr(kind(**tensors), response)(t)
    expected = getattr(kind(**PARAMETERS[kind]), response)(T)
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-11, atol=1e-14 * np.abs(expected).max())

    def of(*values):
        return getattr(kind(**dict(zip(tensors, values[:-1], strict=True))), response)(values[-1])

    # A dashpot's relaxation is 0, and has no gradient but in its order.
    assert torch.autograd.gradcheck(of, (*tensors.values(), t.clone().requires_grad_()), atol=1e-6)


@pytest.mark.parametrize("name", CIRCUITS)
def test_circuits_have_numpys_values_and_gradients_in_every_parameter(name):
    kind = CIRCUITS[name]
    tensors, omega = with_tensors(kind), torch.from_numpy(T)
    np.testing.assert_allclose(
        kind(**tensors).impedance(omega).detach().numpy(), kind(**PARAMETERS[kind]).impedance(T), rtol=1e-12
    )

    def of(*values):
        return kind(**dict(zip(tensors, values, strict=True))).impedance(omega)

    assert torch.autograd.gradcheck(of, tuple(tensors.values()), atol=1e-6)


def test_histories_have_gradients_in_samples_and_parameters():
    kind = MATERIALS["fractional_zener"]
    tensors = with_tensors(kind)
    x = torch.randn(2, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def of(x, *values):
        model = kind(**dict(zip(tensors, values, strict=True)))
        return model.stress(x, dt=0.1), model.strain(x, dt=0.1)

    assert torch.autograd.gradcheck(of, (x, *tensors.values()), atol=1e-6)
    expected = kind(**PARAMETERS[kind]).stress(x.detach().numpy(), dt=0.1)
    np.testing.assert_allclose(of(x, *tensors.values())[0].detach().numpy(), expected, rtol=1e-10, atol=1e-10)


def test_dtypes_and_devices_are_those_of_the_tensors():
    model = MATERIALS["fractional_maxwell"](**PARAMETERS[MATERIALS["fractional_maxwell"]])
    t = torch.tensor([0.5, 2.0])
    assert model.relaxation(t).dtype == torch.float32
    assert model.complex_modulus(t).dtype == torch.complex64
    assert model.stress(t, dt=0.1).dtype == torch.float32
    np.testing.assert_allclose(model.relaxation(t).numpy(), model.relaxation(t.double().numpy()), rtol=1e-6)
    alpha = torch.tensor(0.5, dtype=torch.float64)
    found = SpringPot(V=1, alpha=alpha).relaxation(T)  # a tensor only among the parameters
    assert found.dtype == torch.float64
    assert found.shape == T.shape
    assert SpringPot(V=1, alpha=alpha).stress(T, dt=0.1).shape == T.shape


def test_whole_numbers_are_computed_in_the_default_dtype():
    model, t = FractionalMaxwell(V=10, alpha=0.8, G=5, beta=0.2), torch.arange(1, 5)
    for response in RESPONSES:
        found = getattr(model, response)(t)
        assert found.dtype == (torch.complex64 if response == "complex_modulus" else torch.float32)
        np.testing.assert_allclose(found.numpy(), getattr(model, response)(t.numpy()), rtol=1e-6)
    assert SpringPot(V=1, alpha=torch.tensor(0.5, dtype=torch.float64)).relaxation(t).dtype == torch.float64


@pytest.mark.parametrize("name", MATERIALS)
def test_at_times_that_are_not_positive_responses_are_nan(name):
    model, t = MATERIALS[name](**PARAMETERS[MATERIALS[name]]), torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    for response in RESPONSES:
        found = getattr(model, response)(t)
        assert torch.isnan(found).tolist() == [True, True, False]
        slope = torch.autograd.grad(found.abs()[2], t)[0]
        assert torch.isfinite(slope[2])


def test_vmap_over_parameters_and_second_derivatives():
    orders = torch.tensor([0.3, 0.6], dtype=torch.float64)
    t = torch.from_numpy(T)

    def relaxation(alpha):
        return FractionalMaxwell(V=2.0, alpha=alpha, G=3.0, beta=0.1).relaxation(t)

    found = torch.func.vmap(relaxation)(orders)
    np.testing.assert_allclose(found[1].numpy(), relaxation(orders[1]).numpy(), rtol=1e-13)
    assert torch.autograd.gradgradcheck(relaxation, orders[0].clone().requires_grad_())


def test_arrays_of_two_frameworks_are_refused():
    pytest.importorskip("jax")
    from jax import numpy as jnp

    with pytest.raises(TypeError, match="needs omega and parameters of one framework"):
        impedance.Resistor(R=jnp.asarray(1.0)).impedance(torch.tensor([1.0]))


def test_data_with_a_gradient_are_refused():
    t = torch.linspace(1, 2, 5, dtype=torch.float64)
    found = fit(SpringPot, Experiment.relaxation(t, 3 * t**-0.4))
    assert found.estimates["alpha"] == pytest.approx(0.4)
    with pytest.raises(ValueError, match=r"G that requires a gradient\): .*G\.detach"):
        Experiment.relaxation(t, (3 * t**-0.4).requires_grad_())
    with pytest.raises(ValueError, match=r"Z that requires a gradient\)"):
        Experiment.impedance(t, torch.complex(t, -t).requires_grad_())
