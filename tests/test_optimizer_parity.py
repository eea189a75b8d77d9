"""torch's optimizers and optax's transformations go the same way: the same problem, noise and schedule, 200 steps.

The problem is a quadratic with noise in its gradient, and a run contracts differences: what rounding makes in a step of
length lr is gone after some 1 / lr steps, so that it stands at a few eps / lr, the curvature being about 1.
"""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

from jax import numpy as jnp  # noqa: E402

from hpfracc_nn.training import (  # noqa: E402
    AlphaSchedule,
    FractionalAdam,
    FractionalAdamW,
    FractionalRMSprop,
    FractionalSGD,
)
from hpfracc_nn.training.jax.optimizers import (  # noqa: E402
    fractional_adam,
    fractional_adamw,
    fractional_rmsprop,
    fractional_sgd,
    transformations,
)
from hpfracc_nn.training.torch.optimizers import directions  # noqa: E402

STEPS = 200
LR = 0.05
ROUNDING = 5 / LR  # eps, of the largest entry
NEAR_0 = 100  # times that where a power 1 - alpha is taken of a way: its slope has no bound at 0
BASES: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "sgd": (FractionalSGD, fractional_sgd, {}, {}),
    "nesterov": (FractionalSGD, fractional_sgd, *2 * ({"momentum": 0.8, "nesterov": True},)),
    "decayed": (FractionalSGD, fractional_sgd, *2 * ({"weight_decay": 0.1},)),
    "adam": (FractionalAdam, fractional_adam, *2 * ({"weight_decay": 0.1},)),
    "adamw": (FractionalAdamW, fractional_adamw, *2 * ({"weight_decay": 0.1},)),
    "rmsprop": (FractionalRMSprop, fractional_rmsprop, {}, {"decay": 0.99, "eps_in_sqrt": False}),
}
OPEN: list[dict[str, Any]] = [
    {"kind": "integral", "memory": 10},
    {"kind": "integral", "memory": "exponentials"},
    {"kind": "difference", "memory": 4},
    {"kind": "fcgd", "memory": 11},
    {"kind": "caputo"},
    {"kind": "caputo_terminal"},
]
FAST = [("adam", OPEN[1])]
CASES = [
    pytest.param(base, options, id=f"{base}-{'-'.join(map(str, options.values()))}")
    if (base, options) in FAST
    else pytest.param(base, options, id=f"{base}-{'-'.join(map(str, options.values()))}", marks=pytest.mark.slow)
    for base in BASES
    for options in OPEN
]
ALPHAS = {"constant": lambda step: 0.6 + 0 * step, "scheduled": lambda step: 1 - 0.004 * abs(step - 60)}


def problem():
    """Return matrix [5, 5], minimiser and start [5], and noise [steps, 5]."""
    rng = np.random.default_rng(0)
    half = rng.standard_normal((5, 5)) / 5
    return np.eye(5) + half @ half.T, rng.standard_normal(5), rng.standard_normal(5), rng.standard_normal((STEPS, 5))


def by_torch(cls, dtype, alpha, options):
    """Return the parameters after each step."""
    matrix, best, start, noise = (torch.as_tensor(each, dtype=getattr(torch, dtype)) for each in problem())
    x = torch.nn.Parameter(start)
    optimizer = cls([x], lr=LR, **options)
    schedule = AlphaSchedule(optimizer, alpha)
    way: list[np.ndarray] = []
    for added in noise:

        def closure(added=added):
            x.grad = matrix @ (x.detach() - best) + added
            return x.grad.sum()

        optimizer.step(closure)
        schedule.step() if len(way) < STEPS - 1 else None
        way.append(x.detach().numpy().copy())
    return np.stack(way)


def by_jax(make, dtype, alpha, options):
    """Return the parameters after each step."""
    matrix, best, start, noise = (each.astype(dtype) for each in problem())
    optimizer = make(LR, alpha=alpha, **options)

    def value(x, added):
        return (x - best) @ matrix @ (x - best) / 2 + added @ x

    def step(carry, added):
        x, state = carry
        grads = matrix @ (x - best) + added
        updates, state = optimizer.update(grads, state, x, value_fn=lambda x: value(x, added))
        x = optax.apply_updates(x, updates)
        return (x, state), x

    return np.asarray(jax.jit(lambda *carry: jax.lax.scan(step, carry, noise))(start, optimizer.init(start))[1])


def assert_same_way(base, options, dtype, schedule, monkeypatch):
    if options["kind"] == "fcgd":
        monkeypatch.setattr(directions, "dropped", draws())
    cls, make, theirs, ours = BASES[base]
    alpha = ALPHAS[schedule]
    found = by_jax(make, dtype, alpha, {**ours, **options})
    expected = by_torch(cls, dtype, alpha, {**theirs, **options})
    rounding = ROUNDING * (NEAR_0 if options["kind"].startswith("caputo") else 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding * np.finfo(dtype).eps * np.abs(expected).max())


def draws():
    """Return what the transformation leaves out after each number of gradients, of ten, as torch's optimizer asks."""
    counts = jnp.arange(STEPS, dtype=jnp.int32)
    lags = np.asarray(jax.vmap(lambda count: transformations._dropped(0, count, 10))(counts))
    return lambda seed, stored, past: int(lags[stored])


@pytest.mark.parametrize("schedule", ["constant", pytest.param("scheduled", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("base", "options"), CASES)
def test_both_go_the_same_way(base, options, schedule, monkeypatch):
    with jax.enable_x64(True):
        assert_same_way(base, options, "float64", schedule, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("base", "options"), CASES)
def test_both_go_the_same_way_in_single_precision(base, options, monkeypatch):
    assert_same_way(base, options, "float32", "constant", monkeypatch)
