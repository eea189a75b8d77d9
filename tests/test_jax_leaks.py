"""What is traced stays with its trace: `jax.checking_leaks` finds nothing that a program or a cache has kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
fjx = pytest.importorskip("hpfracc_nn.jax")
pytest.importorskip("flax")

from hpfracc_nn.fractional import DEFINITIONS, MULTIPLIERS  # noqa: E402
from hpfracc_nn.solvers import SDE  # noqa: E402

X = jnp.sin(jnp.arange(80.0)).reshape(2, 40)
TIMES, TS = np.linspace(0, 1, 40) ** 2, np.linspace(0, 1, 7)
Y0, KEY = jnp.asarray([0.2, 0.5]), jax.random.key(0)


def equation(a: Any) -> SDE:
    return SDE(lambda t, y: -a * y, lambda t, y: 0.1 * a * jnp.cos(y))


def layer(core: Any, *shape: int) -> Any:
    """Return a core as a function of a factor of its parameters and of its input."""

    def run(a: Any) -> Any:
        params = jax.tree.map(lambda each: 2 * a * each, core.init(KEY))
        return core(params, a * jnp.ones(shape))

    return run


CALLS: dict[str, Any] = {
    "mittag_leffler": lambda a: fjx.mittag_leffler(-a, a),
    "mittag_leffler of arrays": lambda a: fjx.mittag_leffler(-X * a, a, 1.0),
    **{name: lambda a, kind=kind: kind(a)(X, dt=0.1, dim=-1) for name, kind in {**DEFINITIONS, **MULTIPLIERS}.items()},
    "times": lambda a: fjx.caputo(X, a, t=TIMES),
    "variable_order": lambda a: fjx.variable_order(X, a * jnp.linspace(0.5, 1, 40)),
    "fdiff": lambda a: fjx.fdiff(X, a),
    "solve": lambda a: fjx.solve(X, fjx.Caputo(a), x0=X[:, 0]),
    "fractional_fourier": lambda a: fjx.fractional_fourier(X, a).real,
    "fdeint": lambda a: fjx.fdeint(lambda t, y: -a * y, Y0 * a, TS, a),
    "fdeint bdf2": lambda a: fjx.fdeint(lambda t, y: -a * y, Y0, TS, a, scheme="bdf2"),
    "fdeint graded": lambda a: fjx.fdeint(lambda t, y: -a * y, Y0, TS, a, mesh=fjx.Graded(3.0), n_steps=8),
    "fdeint through operations": lambda a: fjx.fdeint(lambda t, y: -a * y, Y0, TS, a, adjoint=False),
    "fsdeint": lambda a: fjx.fsdeint(equation(a), Y0 * a, TS, key=KEY),
    "fsdeint with memory": lambda a: fjx.fsdeint(equation(a), Y0 * a, TS, alpha=0.4 + a, key=KEY),
    "noise": lambda a: fjx.increments(fjx.FractionalBrownian(a), 8, dt=0.1, key=KEY),
    "FractionalLayer": layer(fjx.functional.FractionalLayer(0.4, learn_alpha=True), 2, 9, 2),
    "FractionalDifference": layer(fjx.functional.FractionalDifference(2, learn_alpha=True), 2, 9, 2),
    "SpectralFractional": layer(fjx.functional.SpectralFractional(0.4, learn_alpha=True, dim=1), 2, 9, 2),
    "FractionalLinear": layer(fjx.functional.FractionalLinear(4, 2, learn_alpha=True), 2, 4),
    "FractionalLSTM": layer(fjx.functional.FractionalLSTM(2, 3, learn_alpha=True), 2, 5, 2),
    "FractionalAttention": layer(fjx.functional.FractionalAttention(4, 2), 2, 5, 4),
    "scale_by_fractional": lambda a: fjx.scale_by_fractional(a, 3).update(Y0, fjx.scale_by_fractional(a, 3).init(Y0)),
}
QUICK = ("mittag_leffler", "caputo", "periodic_weyl", "times")
EVERY = [pytest.param(call, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, call in CALLS.items()]


@pytest.mark.parametrize("call", EVERY)
def test_a_call_and_its_gradient_keep_nothing_that_is_traced(call):
    def loss(a: Any) -> Any:
        return sum((each.astype(float) ** 2).sum() for each in jax.tree.leaves(call(a)))

    with jax.checking_leaks():
        lowered = jax.jit(jax.value_and_grad(loss)).lower(0.4)  # nothing is traced after that
    assert "float32" in str(lowered.out_info)
