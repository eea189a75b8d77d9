"""The processes with memory that the examples and tests measure: closed forms, equations, limits, noise."""

import math

import numpy as np
import pytest
from scipy import special

from hpfracc_nn import data

TIMES = np.linspace(0.1, 4, 40)
EVERY = {
    "relaxation": lambda **options: data.relaxation(**{"t": TIMES, "alpha": 0.5, **options}),
    "zener": lambda **options: data.zener(**{"t": TIMES, "alpha": 0.5, **options}),
    "creep": lambda **options: data.creep(**{"t": TIMES, "alpha": 0.5, **options}),
    "subdiffusion": lambda **options: data.subdiffusion(**{"t": TIMES, "x": [0.3, 0.5], "alpha": 0.5, **options}),
}


def test_relaxation_is_the_complementary_error_function_at_one_half():
    t = np.array([0, 1e-6, 0.1, 1, 7, 300])
    np.testing.assert_allclose(data.relaxation(t, 0.5, rate=2.0), special.erfcx(2 * np.sqrt(t)), rtol=1e-13)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.7, 0.95])
def test_relaxation_agrees_with_the_power_series(alpha):
    t = np.array([0.01, 0.3, 0.9])
    series = sum((-(t**alpha)) ** k / math.gamma(1 + alpha * k) for k in range(int(150 / alpha)) if alpha * k < 160)
    np.testing.assert_allclose(data.relaxation(t, alpha), series, rtol=1e-10 if alpha > 0.1 else 1e-3)


def test_relaxation_at_one_is_the_exponential():
    np.testing.assert_allclose(data.relaxation(TIMES, 1.0, rate=3.0), np.exp(-3 * TIMES), rtol=1e-15)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.0])
def test_creep_and_the_zener_solid_are_made_of_relaxation(alpha):
    decay = data.relaxation(TIMES, alpha, rate=2.0**-alpha)
    np.testing.assert_allclose(data.creep(TIMES, alpha, modulus=4.0, tau=2.0), (1 - decay) / 4, rtol=1e-12)
    found = data.zener(TIMES, alpha, glass=5.0, equilibrium=2.0, tau=2.0)
    np.testing.assert_allclose(found, 2 + 3 * decay, rtol=1e-13)
    np.testing.assert_allclose(data.zener(TIMES, alpha, equilibrium=0.0, tau=2.0), decay, rtol=1e-13)


def test_early_creep_keeps_its_digits():
    # J = (t / tau)**alpha / Gamma(1 + alpha) - ..., of which 1 - E_alpha would keep three digits.
    t = 1e-20
    assert data.creep(t, 0.6) == pytest.approx(t**0.6 / math.gamma(1.6) - t**1.2 / math.gamma(2.2), rel=1e-13)


def test_subdiffusion_without_memory_is_heat_conduction():
    x = np.linspace(0, 1, 11)
    found = data.subdiffusion(TIMES, x, 1.0, diffusivity=0.1, modes=(1.0, 0.0, -0.5))
    first, third = (np.outer(np.exp(-0.1 * (k * math.pi) ** 2 * TIMES), np.sin(k * math.pi * x)) for k in (1, 3))
    np.testing.assert_allclose(found, first - 0.5 * third, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("alpha", [0.4, 0.8])
def test_each_solves_its_equation(alpha):
    torch = pytest.importorskip("torch")
    from hpfracc_nn.solvers import fdeint

    t, x = np.linspace(0, 2, 5), np.array([0.2, 0.7])
    shape = np.sin(math.pi * x)
    exact = np.column_stack(
        [
            data.zener(t, alpha, glass=3.0, equilibrium=1.0, tau=0.5),
            data.creep(t, alpha, modulus=2.0, tau=0.7),
            data.subdiffusion(t, x, alpha, diffusivity=0.1),
        ]
    )

    def f(t, y):
        first = (1 - y[:1]) / 0.5**alpha
        second = (0.5 - y[1:2]) / 0.7**alpha
        return torch.cat([first, second, -0.1 * math.pi**2 * y[2:]])  # a mode of u_xx

    start = torch.as_tensor([3.0, 0.0, *shape], dtype=torch.float64)
    found = fdeint(f, start, t, alpha, scheme="trapezoid", mesh="graded", n_steps=400)
    np.testing.assert_allclose(found.numpy(), exact, atol=1e-4)  # order 2 with 400 steps


@pytest.mark.parametrize("name", EVERY)
def test_noise_has_its_deviation_and_comes_from_the_generator(name):
    exact = EVERY[name](t=np.linspace(0, 1, 4000))
    found, again = (EVERY[name](t=np.linspace(0, 1, 4000), noise=0.1, rng=np.random.default_rng(3)) for _ in range(2))
    assert (found == again).all()
    assert np.std(found - exact) == pytest.approx(0.1, rel=0.05)  # four standard errors of 4000 numbers


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": 1.2}, r"alpha=1\.2\): .*above 1 the solution oscillates"),
        ({"noise": 0.1}, r"noise=0\.1\): .*pass rng=numpy\.random"),
        ({"noise": -0.1}, r"noise=-0\.1\): needs a finite noise >= 0"),
        ({"t": -TIMES}, r"t=\.\.\.\): needs finite times, none negative"),
    ],
)
def test_each_refuses_with_the_rule(name, options, text):
    with pytest.raises(ValueError, match=rf"{name}\({text}"):
        EVERY[name](**options)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("relaxation", {"rate": -1.0}, "finite rate > 0"),
        ("zener", {"tau": 0.0}, "finite tau > 0"),
        ("zener", {"glass": 1.0, "equilibrium": 1.0}, "0 <= equilibrium < glass"),
        ("creep", {"modulus": math.inf}, "finite modulus > 0"),
        ("subdiffusion", {"diffusivity": 0.0}, "finite diffusivity > 0"),
        ("subdiffusion", {"x": [1.5]}, r"places in \[0, 1\]"),
    ],
)
def test_what_is_its_own_is_checked_too(name, options, text):
    with pytest.raises(ValueError, match=rf"{name}\(.*{text}"):
        EVERY[name](**options)
