"""Fits of equations in JAX: the estimates of the fits in PyTorch, and what is refused."""

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax import numpy as jnp

import hpfracc_nn.jax as fjx
from hpfracc_nn import data
from tests.test_fit_fde import TIMES, oscillation

torch = pytest.importorskip("torch")


def decay(t, y, p):
    return -p["rate"] * y


def both(f, ts, observed, y0, params, **options):
    """Return the fits by JAX and by PyTorch; `f` is a function of the namespace's `stack`."""
    from hpfracc_nn.training import fit_fde

    def of(stack, array):
        given = {name: value(stack, array) if callable(value) else value for name, value in options.items()}
        return f(stack), ts, observed, y0(stack, array), params, given

    fits = []
    for function, stack, array in (
        (fjx.fit_fde, jnp.stack, jnp.asarray),
        (fit_fde, torch.stack, lambda x: torch.tensor(x, dtype=torch.float64)),
    ):
        *arguments, given = of(stack, array)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # so few steps are noticed
            fits.append(function(*arguments, **{"n_steps": 20, **given}))
    return fits


def check_same(one, other):
    assert one.names == other.names
    np.testing.assert_allclose(one.values, other.values, rtol=1e-9)  # both end at rounding of one minimum
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-6, atol=1e-12)
    assert (one.observations, one.n_steps) == (other.observations, other.n_steps)
    assert one.summary() == other.summary()


def test_a_fit_is_that_of_pytorch_in_single_precision_too():
    observed = data.relaxation(TIMES, 0.6, noise=0.02, rng=np.random.default_rng(1))
    weights = np.ones(40)
    observed[3], weights[3] = np.nan, 0
    assert not jax.config.read("jax_enable_x64")
    one, other = both(
        lambda _: decay,
        TIMES,
        observed,
        lambda _, array: array(1.0),
        {"rate": 0.7},
        weights=weights,
        alpha=0.5,
        mesh="uniform",
        scheme="predictor_corrector",
        n_steps=40,
    )
    check_same(one, other)
    assert one.observations == 39


@pytest.mark.slow  # four compilations
def test_several_orders_and_experiments_are_those_of_pytorch():
    rng = np.random.default_rng(2)
    early, late = TIMES[:20], TIMES[1::2]

    def measured(times):
        parts = [data.relaxation(times, 0.6), oscillation(1.5, 1.0, 0.5, times)]
        return np.stack(parts, 1) + 0.01 * rng.standard_normal((20, 2))

    one, other = both(
        lambda stack: lambda t, y, p: -stack([p["a"], p["b"]]) * y,
        [early, late],
        [measured(early), measured(late)],
        lambda _, array: array([1.0, 1.0]),
        {"a": 0.8, "b": 0.9, "slope": 0.4},
        alpha=[0.5, 1.4],
        bounds=[(0.02, 1.0), (1.02, 1.98)],
        dy0=lambda stack, _: lambda p: stack([0 * p["slope"], p["slope"]]),
    )
    check_same(one, other)
    for name, true in (("alpha_1", 0.6), ("alpha_2", 1.5), ("slope", 0.5)):
        assert abs(one.estimates[name] - true) < 4 * one.standard_errors[name] < 0.2


def test_a_right_hand_side_without_params_is_shown_the_rule():
    alone: Any = lambda t, y: -y  # noqa: E731
    with pytest.raises(TypeError, match="positional arg") as caught:
        fjx.fit_fde(alone, TIMES, TIMES, jnp.ones(()), {"rate": 1.0}, n_steps=5)
    assert "fit_fde(f): needs a function of (t, y, params); " in "".join(caught.value.__notes__)
    with pytest.raises(TypeError, match="positional arg") as caught:
        fjx.fdeint(alone, jnp.ones(2), TIMES, 0.5, args=1.0)
    assert "fdeint(f): needs a function of (t, y, args); " in "".join(caught.value.__notes__)


def test_what_is_wrong_is_refused():
    with pytest.raises(TypeError, match=r"y0 of type float\): needs an array, .*jnp\.asarray"):
        fjx.fit_fde(decay, TIMES, TIMES, 1.0, {"rate": 1.0})
    with pytest.raises(RuntimeError, match=r"no solution at the first values alpha=0\.5, rate=1: "):
        fjx.fit_fde(lambda t, y, p: p["rate"] * jnp.log(-y), TIMES, TIMES, jnp.ones(()), {"rate": 1.0}, n_steps=5)
    with pytest.raises(ValueError, match=r"observed of shape \(40,\)\): needs the shape of what is predicted"):
        fjx.fit_fde(decay, TIMES, TIMES, jnp.ones(2), {"rate": 1.0}, n_steps=5)
