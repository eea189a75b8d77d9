"""Checks of traced values: checkify sees them under every transform, and nothing else changes.

What is public and checks what is traced stands in `CALLS`, each with what it takes and what it does not.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
fjx = pytest.importorskip("hpfracc_nn.jax")
pytest.importorskip("flax")
pytest.importorskip("optax")

from jax import lax  # noqa: E402
from jax.experimental import checkify  # noqa: E402

from hpfracc_nn.fractional.jax import checked as home  # noqa: E402
from hpfracc_nn.fractional.jax import streaming  # noqa: E402
from hpfracc_nn.fractional.jax.checked import checked  # noqa: E402
from hpfracc_nn.solvers import SDE  # noqa: E402

X = jnp.sin(jnp.arange(12.0)).reshape(2, 6)
Y0 = jnp.asarray([0.2, 0.5])
TS = np.linspace(0, 1, 9)
LATER = np.array([0, 0.3, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.66])
KEY = jax.random.key(0)
ROTATED = SDE(lambda t, y, a: -y, lambda t, y, a: jnp.stack([y[0] + a * y[1], y[1]]))


class Call(NamedTuple):
    """A call whose argument is traced: one that is fine, one that is not, and what is said of that."""

    function: Callable[[Any], Any]
    good: Any
    bad: Any
    message: str


def solved(f: Any, y0: Any = Y0, ts: Any = TS, alpha: Any = 0.5, **options: Any) -> Any:
    return fjx.fdeint(f, y0, ts, alpha, **options)


def stochastic(drift: Any, alpha: Any = 1.0) -> Any:
    return fjx.fsdeint(SDE(drift, lambda t, y: 0.3 * y), Y0, TS, alpha=alpha, key=KEY)


def streamed(count: Any) -> Any:
    state = streaming.initial_state("caputo", fjx.Caputo(0.5), (2,), dt=0.1, horizon=4)
    return streaming.step("caputo", Y0, dataclasses.replace(state, step=count))[0]


def stepped(alpha: Any) -> Any:
    optimizer = fjx.scale_by_fractional(alpha, 3)
    return optimizer.update(Y0, optimizer.init(Y0))[0]


def recurrent(lengths: Any) -> Any:
    core = fjx.functional.FractionalLSTM(2, 3)
    return core(core.init(KEY), X.reshape(2, 3, 2), seq_lengths=lengths)


def convolved(pairs: Any) -> Any:
    core = fjx.functional.FractionalGraphConv(2, 2, func="diffusion", n_steps=1)
    return core(core.init(KEY), X.reshape(6, 2), pairs)


def likelihood(deviation: Any) -> Any:
    return fjx.arfima_nll(X, 0.3, jnp.zeros(0), deviation=deviation)


CALLS = {
    "operator": Call(lambda a: fjx.caputo(X, a, dt=0.1), 0.5, 1.5, "needs every alpha within its bounds .* got one of"),
    "special": Call(
        lambda a: fjx.mittag_leffler(-X, a), 0.5, 2.5, r"mittag_leffler\(alpha=2.5\): needs 0 < alpha <= 2"
    ),
    "stream": Call(streamed, np.int32(3), np.int32(4), "needs at most horizon=4 steps"),
    "optimizer": Call(stepped, 0.5, 1.5, "Invalid alpha value: 1.5: needs 0 < alpha <= 1"),
    "lengths": Call(recurrent, np.array([3, 1]), np.array([3, 4]), "needs 0 <= length <= 3"),
    "edges": Call(convolved, np.array([[0], [5]]), np.array([[0], [6]]), "needs nodes from 0 to 5"),
    "deviation": Call(likelihood, 0.5, -0.5, r"arfima_nll\(deviation=-0.5\): needs deviation > 0"),
    "state": Call(lambda y: solved(lambda t, y: -y, y), Y0, Y0.at[1].set(jnp.nan), r"fdeint\(y0\): needs finite"),
    "order": Call(lambda a: solved(lambda t, y: -y, alpha=a), 0.5, 1.5, "needs every alpha within its bounds"),
    "times": Call(lambda ts: solved(lambda t, y: -y, ts=ts), TS, TS[::-1].copy(), "times must increase"),
    "mesh": Call(
        lambda ts: solved(lambda t, y: -y, ts=ts, n_steps=8), TS, LATER, "are points of the uniform mesh of 8"
    ),
    "equation": Call(lambda r: solved(lambda t, y: r * y * y, scheme="bdf2"), -1.0, 1e3, "step did not converge"),
    "divergence": Call(lambda r: solved(lambda t, y: r * y**3), -1.0, 1e9, "fdeint: the solution is not finite"),
    "explosion": Call(lambda r: solved(lambda t, y: -r * y), 1.0, 200.0, "the solution exploded; take more steps"),
    "rough order": Call(lambda a: stochastic(lambda t, y: -y, a), 0.7, 1.5, "needs every alpha within its bounds"),
    "diffusion": Call(
        lambda a: fjx.fsdeint(ROTATED, Y0, TS, args=a, scheme="milstein", key=KEY),
        0.0,
        1.0,
        "needs entries that depend",
    ),
    "rough divergence": Call(lambda r: stochastic(lambda t, y: r * y**3), -1.0, 1e9, "not finite at some time"),
}
QUICK = ("operator", "state")  # among the fast tests
EVERY = [pytest.param(call, id=name, marks=() if name in QUICK else pytest.mark.slow) for name, call in CALLS.items()]
each_call = pytest.mark.parametrize("call", EVERY)


def array(value: Any) -> Any:
    """Return an argument as JAX has it, floats in single precision."""
    return jnp.asarray(value, jnp.result_type(value))


def said(function: Callable[..., Any], *given: Any) -> str:
    """Return what checkify says of a call, "" where nothing."""
    return checkify.checkify(function)(*given)[0].get() or ""


def python_calls(function: Callable[..., Any], *given: Any) -> int:
    """Return how many functions of Python a call runs."""
    seen = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame) if event == "call" else None)
    try:
        function(*given)
    finally:
        sys.setprofile(before)
    return len(seen)


# What is public.


@each_call
def test_a_call_raises_under_checkify_where_its_argument_is_wrong(call):
    good, bad = array(call.good), array(call.bad)
    with pytest.raises(checkify.JaxRuntimeError, match=call.message):
        checkify.checkify(jax.jit(call.function))(bad)[0].throw()
    assert said(jax.jit(call.function), good) == ""


@each_call
def test_a_compiled_call_runs_without_python(call):
    """An effect would have it dispatched by Python each time."""
    good = array(call.good)
    assert not jax.make_jaxpr(call.function)(good).effects
    program = jax.jit(call.function)
    program(good)
    assert python_calls(program, good) == 0


@each_call
def test_a_call_is_exported(call):
    good = array(call.good)
    exported = jax.export.export(jax.jit(call.function))(good)
    assert not exported.unordered_effects
    if importlib.util.find_spec("flatbuffers"):
        exported = jax.export.deserialize(exported.serialize())
    found, wanted = exported.call(good), jax.jit(call.function)(good)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


PROGRAM = """
import json, sys
import jax, numpy as np
import hpfracc_nn.jax as fjx
from hpfracc_nn.solvers import SDE

ts = np.linspace(0, 1, 9)
sde = SDE(lambda t, y: -y, lambda t, y: 0.3 * y)
events, misses, texts = [], [], []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))


@jax.jit
def everything(alpha, y0, key):
    y = fjx.fdeint(lambda t, y: -y, y0, ts, alpha)
    return fjx.caputo(y, alpha) + fjx.fsdeint(sde, y0, ts, key=key) + fjx.mittag_leffler(y, alpha)


for _ in range(2):
    given = np.float32(0.6), np.ones(2, np.float32), jax.random.key(0)
    events.clear()
    everything(*given)
    misses.append(events.count("/jax/compilation_cache/cache_misses"))
    texts.append(everything.lower(*given).as_text())
    jax.clear_caches()
json.dump([misses, texts], sys.stdout)
"""


@pytest.mark.slow
def test_the_persistent_cache_serves_another_process_and_a_program_that_was_cleared(tmp_path):
    """Its key is the program's text, in which nothing is counted or hashed."""

    def run(seed: str) -> Any:
        settings = {
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            "PYTHONHASHSEED": seed,
        }
        command = [sys.executable, "-c", PROGRAM]
        return json.loads(subprocess.run(command, capture_output=True, check=True, env=os.environ | settings).stdout)

    (found, again), texts = run("1")
    assert found > 0
    assert again == 0
    misses, other = run("2")
    assert misses == [0, 0]
    assert len({*texts, *other}) == 1


# The operation itself.


def inverse(a: Any) -> Any:
    return 1 / checked(a, jnp.all((a > 0) & (a < 1)), "needs {name} below 1", name=a)


def by_custom_jvp(function: Any) -> Any:
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: (wrapped(*primals), -tangents[0] * wrapped(*primals) ** 2))
    return wrapped


def by_custom_vjp(function: Any) -> Any:
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(lambda a: (function(a), function(a)), lambda y, g: (-g * y**2,))
    return wrapped


def carried(function: Any) -> Any:
    return lambda a: lax.scan(lambda sum, _: (sum + function(a), None), 0 * a, None, length=3)[0]


def repeated(function: Any) -> Any:
    return lambda a: lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] + function(a), s[1] + 1), (jnp.zeros(()), 0))[0]


def chosen(function: Any) -> Any:
    return lambda a: lax.cond(a > 0, function, lambda a: a, a)


def sharded(function: Any, **options: Any) -> Any:
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.shard_map(function, mesh=mesh, in_specs=jax.P("rows"), out_specs=jax.P("rows"), **options)


FORMS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "jvp": lambda f: lambda a: jax.jvp(f, (a,), (jnp.ones(()),)),
    "hessian": jax.hessian,
    "checkpoint": lambda f: jax.grad(jax.checkpoint(f)),
    "custom_jvp": by_custom_jvp,
    "grad of custom_jvp": lambda f: jax.grad(by_custom_jvp(f)),
    "custom_vjp": by_custom_vjp,
    "grad of custom_vjp": lambda f: jax.grad(by_custom_vjp(f)),
    "scan": carried,
    "grad of scan": lambda f: jax.grad(carried(f)),
    "grad of scan of jit": lambda f: jax.grad(carried(jax.jit(f))),
    "while": repeated,
    "cond": chosen,
    "grad of cond": lambda f: jax.grad(chosen(f)),
    "second of two outputs": lambda f: jax.jit(lambda a: (a, f(a))),
}
ROWS: dict[str, Callable[[Any], Any]] = {
    "vmap": jax.vmap,
    "vmap of jit": lambda f: jax.vmap(jax.jit(f)),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "vmap of vmap": lambda f: lambda rows: jax.vmap(jax.vmap(f))(rows.reshape(2, 2)),
    "vmap of scan": lambda f: jax.vmap(carried(f)),
    "vmap over a named axis": lambda f: jax.vmap(f, spmd_axis_name="rows"),
    "pmap": jax.pmap,
    "shard_map": sharded,
    "shard_map unchecked": lambda f: sharded(f, check_vma=False),
    "shard_map of vmap": lambda f: sharded(jax.vmap(f)),
    "vmap and shard_map": lambda f: lambda rows: jax.vmap(sharded(f))(jnp.stack([rows, rows])),
    "grad of shard_map": lambda f: jax.grad(lambda rows: sharded(f)(rows).sum()),
}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
MAPS = [pytest.param(form, id=name) for name, form in ROWS.items() if "vmap" in name and "shard" not in name]
four_devices = pytest.mark.skipif("jax.device_count() < 4", reason="needs four devices")


@each_form
def test_checkify_sees_a_check_under_every_transform(form):
    applied = form(inverse)
    for function in (applied, jax.jit(applied)):
        assert "needs 1.5 below 1" not in said(function, jnp.asarray(0.5))
        assert "needs 1.5 below 1" in said(function, jnp.asarray(1.5))
    plain = form(lambda a: 1 / a)
    for found, wanted in zip(*(jax.tree.leaves(f(jnp.asarray(1.5))) for f in (applied, plain)), strict=True):
        np.testing.assert_array_equal(found, wanted)


@four_devices
@pytest.mark.parametrize(
    ("form", "made"),
    [pytest.param(form, jax.jit, id=f"jit-{name}") for name, form in ROWS.items()]
    + [
        pytest.param(form, lambda f: f, id=name, marks=() if name == "vmap" else pytest.mark.slow)
        for name, form in ROWS.items()
    ],
)
def test_checkify_sees_a_check_of_one_row_of_several(form, made):
    applied, plain = form(inverse), form(lambda a: 1 / a)
    good, bad = jnp.asarray([0.5, 0.25, 0.5, 0.75]), jnp.asarray([0.5, 0.25, 1.5, 0.75])
    errors = made(checkify.checkify(applied))
    assert errors(good)[0].get() is None
    assert "1.5" in errors(bad)[0].get()
    np.testing.assert_array_equal(made(applied)(bad), plain(bad))


@four_devices
@pytest.mark.parametrize("form", MAPS)
def test_checkify_sees_a_check_of_a_batch_over_an_explicit_axis(form):
    mesh = jax.make_mesh((4,), ("rows",))
    if form is ROWS["vmap of vmap"]:
        form = lambda f: lambda rows: jax.vmap(jax.vmap(f))(jnp.stack([rows, rows], 1))  # noqa: E731
    rows = jax.device_put(jnp.asarray([0.5, 0.25, 1.5, 0.75]), jax.NamedSharding(mesh, jax.P("rows")))
    function = jax.jit(form(inverse))
    assert "needs 1.5 below 1" in said(function, rows)
    assert jax.typeof(function(rows)).sharding.spec[0] == "rows"
    assert said(function, rows * 0.5) == ""


def test_a_check_of_values_that_no_map_runs_over_is_that_of_the_first():
    def function(a: Any, b: Any) -> Any:
        return checked(a, b < 1, "of {a}", a=a)

    assert "of 2.0" in said(jax.vmap(function, (0, None)), jnp.asarray([2.0, 3.0]), jnp.asarray(1.0))
    assert "of 3.0" in said(jax.vmap(function), jnp.asarray([2.0, 3.0]), jnp.asarray([0.0, 1.0]))


def test_a_check_is_linear_in_its_value():
    def doubled(x: Any) -> Any:
        return 2 * checked(x, jnp.isfinite(x).all(), "not finite")

    (found,) = jax.linear_transpose(doubled, jnp.ones(3))(jnp.ones(3))
    np.testing.assert_array_equal(found, 2)


@pytest.mark.slow
@each_form
def test_a_check_leaks_nothing(form):
    with jax.checking_leaks():
        said(jax.jit(form(inverse)), jnp.asarray(1.5))


def test_a_check_says_where_it_was_made():
    error = checkify.checkify(jax.jit(inverse))(jnp.asarray(1.5))[0].get_exception()
    assert error is not None
    assert "inverse" in str(error.traceback_info)


def test_without_the_names_that_jax_does_not_show_checks_are_effects(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax._src.checkify", ModuleType("jax._src.checkify"))
    spec = importlib.util.spec_from_file_location("without", home.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def function(a: Any) -> Any:
        return 1 / module.checked(a, a < 1, "needs {name} below 1", name=a)

    assert jax.make_jaxpr(function)(0.5).effects
    assert "needs 1.5 below 1" in said(jax.jit(function), 1.5)
