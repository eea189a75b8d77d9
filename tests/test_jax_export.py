"""`jax.export` with a symbolic batch: one program for any number of rows, whose values are those of a direct call."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
fjx = pytest.importorskip("hpfracc_nn.jax")
pytest.importorskip("flax")

from jax import export  # noqa: E402

from hpfracc_nn.fractional import DEFINITIONS, MULTIPLIERS  # noqa: E402
from hpfracc_nn.selection import BackendManager, Settings  # noqa: E402
from hpfracc_nn.solvers import SDE  # noqa: E402

KEY, TS, LONG = jax.random.key(0), np.linspace(0, 1, 9), np.linspace(0, 1, 301)
ORDERS = np.array([0.3, 0.5, 0.6])
HALF = jnp.asarray(0.5)
STOCHASTIC = SDE(lambda t, y: -y, lambda t, y: 0.1 * jnp.cos(y))
Function = Callable[[Any], Any]


class Call(NamedTuple):
    """A function of one array, and its shape, whose batch is open."""

    function: Function
    shape: str = "b, 24"


def layer(name: str, *given: Any, **options: Any) -> Function:
    def run(x: Any) -> Any:
        core = getattr(fjx.functional, name)(*given, **options)
        return core(core.init(KEY), x)

    return run


def applied(kind: Any, alpha: float = 0.5) -> Call:
    return Call(lambda x: kind(alpha)(x, dt=0.1, dim=-1))


def solved(ts: Any = TS, alpha: Any = 0.5, **options: Any) -> Call:
    return Call(lambda y: fjx.fdeint(lambda t, y: -y, y, ts, alpha, **options), "b, 3")


def squares(function: Function) -> Function:
    return jax.grad(lambda x: (function(x) ** 2).sum())


CALLS: dict[str, Call] = {
    **{name: applied(kind) for name, kind in {**DEFINITIONS, **MULTIPLIERS}.items()},
    "riesz": applied(fjx.Riesz, 1.5),
    "learned": Call(lambda x: fjx.caputo(x, HALF, dt=0.1)),
    "compiled": Call(lambda x: jax.jit(lambda a: fjx.caputo(x, a, dt=0.1))(0.5)),
    "gradient": Call(squares(lambda x: fjx.caputo(x, HALF, dt=0.1))),
    "map": Call(jax.vmap(lambda x: fjx.caputo(x, 0.5))),
    "many samples": Call(lambda x: fjx.caputo(x, 0.5), "b, 1500"),
    "time in the middle": Call(lambda x: fjx.caputo(x, 0.5, dim=1), "b, 24, 3"),
    "two open axes": Call(lambda x: fjx.caputo(x, 0.5, dim=1), "b, 24, c"),
    "an order per channel": Call(lambda x: fjx.caputo(x, ORDERS), "b, 3, 24"),
    "an order per last channel": Call(lambda x: fjx.caputo(x, jnp.asarray(ORDERS), dim=1), "b, 24, 3"),
    "two axes": Call(lambda x: fjx.FractionalLaplacian(0.5)(x, dim=(1, 2)), "b, 8, 8"),
    "times": Call(lambda x: fjx.caputo(x, 0.5, t=np.linspace(0, 1, 24) ** 2)),
    "variable_order": Call(lambda x: fjx.variable_order(x, np.linspace(0.3, 0.5, 24))),
    "fdiff": Call(lambda x: fjx.fdiff(x, 0.4)),
    "solve": Call(lambda x: fjx.solve(x, fjx.Caputo(0.5), x0=x[:, 0])),
    "mittag_leffler": Call(lambda x: fjx.mittag_leffler(-(x**2), 0.5)),
    "FractionalLayer": Call(layer("FractionalLayer", 0.4, learn_alpha=True), "b, 24, 2"),
    "FractionalDifference": Call(layer("FractionalDifference", 2, learn_alpha=True), "b, 24, 2"),
    "SpectralFractional": Call(layer("SpectralFractional", 0.4, learn_alpha=True, dim=1), "b, 24, 2"),
    "FractionalLinear": Call(layer("FractionalLinear", 4, 2), "b, 24, 4"),
    "FractionalLSTM": Call(layer("FractionalLSTM", 2, 3), "b, 6, 2"),
    "FractionalGRU": Call(layer("FractionalGRU", 2, 3), "b, 6, 2"),
    "FractionalAttention": Call(layer("FractionalAttention", 4, 2), "b, 6, 4"),
    "FractionalConv1d": Call(layer("FractionalConv1d", 4, 2, 3), "b, 9, 4"),
    "fdeint": solved(),
    "fdeint of a learned order": solved(alpha=HALF),
    "fdeint's gradient": Call(squares(solved().function), "b, 3"),
    "fdeint through operations": solved(adjoint=False),
    "fdeint on a graded mesh": solved(mesh="graded", n_steps=12),
    "a map of fdeint with equations": Call(jax.vmap(solved(scheme="bdf2").function), "b, 3"),
    "fdeint by transforms": solved(LONG, history="fft"),
    "fdeint by exponentials": solved(LONG, history="exponentials"),
    "fsdeint": Call(lambda y: fjx.fsdeint(STOCHASTIC, y, TS, key=KEY), "b, 3"),
    "fsdeint with memory": Call(lambda y: fjx.fsdeint(STOCHASTIC, y, TS, alpha=0.7, key=KEY), "b, 3"),
}
QUICK = ("caputo", "FractionalLayer")
EVERY = [pytest.param(call, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, call in CALLS.items()]


def exported(function: Function, shape: str) -> Any:
    return export.export(jax.jit(function))(jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float32))


def drawn(shape: str, batch: int) -> Any:
    sizes = [int(each) if each.strip().isdigit() else batch for each in shape.split(",")]
    return jnp.asarray(np.random.default_rng(batch).standard_normal(sizes).cumsum(0), jnp.float32)


@pytest.mark.parametrize("call", EVERY)
def test_a_program_of_an_open_batch_has_the_values_of_a_direct_call(call):
    program = exported(call.function, call.shape)
    if importlib.util.find_spec("flatbuffers"):
        program = export.deserialize(program.serialize())
    for batch in (1, 3, 17):
        x = drawn(call.shape, batch)
        wanted = jax.jit(call.function)(x)
        # Rounding of single precision: which kernel runs may differ.
        np.testing.assert_allclose(program.call(x), wanted, rtol=0, atol=1e-5 * float(jnp.abs(wanted).max()))


def test_a_batch_that_is_open_is_not_taken_in_parts():
    manager = BackendManager(Settings(mode="prior", memory_limit="256KiB"))

    def function(x: Any) -> Any:
        return fjx.caputo(x, 0.5, manager=manager)

    x = drawn("b, 512", 300)
    program = exported(function, "b, 512")
    (plan,) = manager.shared_site("toeplitz", "jax", "functions").plans()
    assert plan.chunk is not None
    wanted = fjx.caputo(x, 0.5)
    np.testing.assert_allclose(program.call(x), wanted, rtol=0, atol=1e-5 * float(jnp.abs(wanted).max()))


def test_the_number_of_unknowns_of_an_equation_cannot_be_open():
    call = solved(scheme="bdf2")
    with pytest.raises(ValueError, match=r"y0 of 3\*b numbers\): needs a number .* jax.vmap of the solve"):
        exported(call.function, call.shape)


@pytest.mark.parametrize("function", [lambda x: fjx.caputo(x, 0.5), lambda x: fjx.PeriodicWeyl(0.5)(x)])
def test_the_number_of_samples_cannot_be_open(function):
    with pytest.raises(ValueError, match=r"\(samples=n\): needs a number that is known when the call is traced"):
        exported(function, "b, n")
