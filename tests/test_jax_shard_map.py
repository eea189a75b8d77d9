"""Solves inside of `jax.shard_map`, whose axes JAX follows through operations: values and gradients of one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
fjx = pytest.importorskip("hpfracc_nn.jax")

from hpfracc_nn.solvers import SDE, FractionalBrownian, Given, Newton, Trapezoid, Window  # noqa: E402

pytestmark = pytest.mark.skipif("jax.device_count() < 4", reason="needs four devices")

TS, LONG = np.linspace(0, 1, 21), np.linspace(0, 1, 301)
KEY = jax.random.key(0)
Y0 = jnp.linspace(0.5, 1.5, 8)
RATES = jnp.linspace(0.8, 1.2, 8)
Solve = Callable[[Any, Any], Any]  # (y0, rates), two numbers of each on a device


def ode(ts: Any = TS, alpha: Any = 0.5, **options: Any) -> Solve:
    return lambda y, r: fjx.fdeint(lambda t, y, r: jnp.sin(t) - r * y, y, ts, alpha, args=r, **options)


def sde(**options: Any) -> Solve:
    equation = SDE(lambda t, y, r: -r * y, lambda t, y, r: 0.2 * r * jnp.cos(y))
    return lambda y, r: fjx.fsdeint(equation, y, TS, args=r, **{"key": KEY} | options)


def additive(y: Any, r: Any) -> Any:
    """Whose diffusion must not be seen to read the state."""
    equation = SDE(lambda t, y, r: -r * y, lambda t, y, r: 0.2 * r * jnp.ones(y.shape), "additive")
    return fjx.fsdeint(equation, y, TS, args=r, noise=FractionalBrownian(0.7), key=KEY)


def by_key(alpha: float) -> Solve:
    """Noise that differs between devices, and nothing else that does."""
    equation = SDE(lambda t, y: -y, lambda t, y: 0.2 * jnp.cos(y))
    return lambda y, r: fjx.fsdeint(
        equation, y, TS, alpha=alpha, key=jax.random.fold_in(KEY, (1000 * r[0]).astype(int))
    )


SOLVES: dict[str, Solve] = {
    "predictor_corrector": ode(),
    "rectangle": ode(scheme="rectangle"),
    "trapezoid": ode(scheme="trapezoid"),
    "bdf2": ode(scheme="bdf2"),
    "every operation of bdf2": ode(scheme="bdf2", adjoint=False),
    "graded": ode(mesh="graded", n_steps=24),
    "window": ode(history=Window(8)),
    "exponentials": ode(LONG, history="exponentials"),
    "fft": ode(LONG, history="fft"),
    "every operation": ode(adjoint=False),
    "blocks": ode(adjoint=False, checkpoint=True),
    "slope": lambda y, r: ode(alpha=1.3, dy0=0.1 * y)(y, r),
    "order": lambda y, r: fjx.fdeint(lambda t, y: -y, y, TS, 0.5 * r.mean()),
    "closure": lambda y, r: fjx.fdeint(lambda t, y: -r * y, y, TS, 0.5),
    "constant": lambda y, r: fjx.fdeint(lambda t, y: jnp.ones_like(t) * jnp.ones(y.shape), y * r, TS, 0.5),
    "traced times": lambda y, r: fjx.fdeint(lambda t, y: -y, y, jax.lax.stop_gradient(r.mean()) * jnp.asarray(TS), 0.5),
    "pytree": lambda y, r: fjx.fdeint(lambda t, y: {"a": -y["b"], "b": r * y["a"]}, {"a": y, "b": r}, TS, 0.5)["a"],
    "euler": sde(),
    "milstein": sde(scheme="milstein"),
    "heun": sde(scheme="heun", interpretation="stratonovich"),
    "srk": sde(scheme="srk"),
    "every operation of euler": sde(adjoint=False),
    "blocks of euler": sde(checkpoint=True),
    "memory": sde(alpha=0.7),
    "left weights": sde(alpha=0.7, weights="left"),
    "every operation with memory": sde(alpha=0.7, adjoint=False),
    "rough order": lambda y, r: sde(alpha=0.7 * r.mean())(y, r),
    "given noise": sde(noise=Given(np.sin(np.arange(40.0)).reshape(20, 2) / 5)),
    "own keys": by_key(1.0),
    "own keys with memory": by_key(0.7),
    "additive": additive,
}
# What is sharded: over the batch of both, or of one, the other the same on each device.
WHERE = {"both": (True, True), "y0": (True, False), "rates": (False, True)}
QUICK = {"predictor_corrector": ("both", "y0"), "euler": ("rates",)}


@pytest.mark.parametrize(
    ("solve", "where"),
    [
        pytest.param(solve, where, id=f"{name}-{at}", marks=() if at in QUICK.get(name, ()) else pytest.mark.slow)
        for name, solve in SOLVES.items()
        for at, where in WHERE.items()
    ],
)
def test_a_solve_on_four_devices_has_the_values_and_gradients_of_one(solve, where):
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = tuple(jax.P("rows") if is_sharded else jax.P() for is_sharded in where)
    given = [each if is_sharded else each[:2] for each, is_sharded in zip((Y0, RATES), where, strict=True)]
    spread = jax.shard_map(solve, mesh=mesh, in_specs=specs, out_specs=jax.P(None, "rows"))

    def alone(*given: Any) -> Any:
        parts = [each.reshape(4, 2) if is_sharded else each for each, is_sharded in zip(given, where, strict=True)]
        return jax.vmap(solve, [0 if is_sharded else None for is_sharded in where], 1)(*parts).reshape(-1, 8)

    def gradients(function: Solve) -> Any:
        def loss(y: Any, r: Any) -> Any:
            found = function(y, r)
            return (found * jnp.cos(jnp.arange(8.0))[None]).sum(), found

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(*given)

    for found, wanted in zip(*(jax.tree.leaves(gradients(each)) for each in (spread, alone)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5 * float(jnp.abs(wanted).max()))  # float32


def test_a_solve_runs_outside_of_jit():
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    solve = ode(scheme="rectangle")
    spread = jax.shard_map(solve, mesh=mesh, in_specs=(jax.P("rows"), jax.P()), out_specs=jax.P(None, "rows"))
    np.testing.assert_allclose(spread(Y0, 1.2), jax.jit(solve)(Y0, 1.2), rtol=1e-5)


def test_an_equation_too_large_for_a_matrix_is_refused():
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    solve = ode(scheme=Trapezoid(Newton(dense=1)))
    specs = {"mesh": mesh, "in_specs": (jax.P("rows"), jax.P()), "out_specs": jax.P(None, "rows")}
    with pytest.raises(ValueError, match=r"2 numbers inside of jax.shard_map.*Newton\(dense=...\).*check_vma=False"):
        jax.jit(jax.shard_map(solve, **specs))(Y0, jnp.asarray(1.2))
    found = jax.jit(jax.shard_map(solve, check_vma=False, **specs))(Y0, jnp.asarray(1.2))
    np.testing.assert_allclose(found, jax.jit(ode(scheme="trapezoid"))(Y0, 1.2), rtol=1e-5)
