"""Series over a mesh axis of four devices, for JAX: the results and gradients of one device, and what is exchanged."""

from __future__ import annotations

import json
import math
import pathlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.fractional.definitions import DEFINITIONS
from tests.test_jax_blocks import apart, dtype, noise, signals  # noqa: F401  dtype is a fixture

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytest.importorskip("flax")
import hpfracc_nn.jax as fjx  # noqa: E402
from hpfracc_nn.fractional.exponentials import exponentials_over  # noqa: E402
from hpfracc_nn.fractional.streaming import HORIZON  # noqa: E402

pytestmark = pytest.mark.skipif("jax.device_count() < 4", reason="needs four devices")

DT = 0.5
# Of y, and of the gradients in x and alpha, relative to a row's largest value, from one device in double precision.
# float64: the exponentials of both calls; float32: rounding, which adds up in the gradients. One device has up to 3e-6,
# 2e-5 and 1e-6 in these cases.
LARGEST = {"float64": (1e-12, 1e-12, 1e-11), "float32": (3e-6, 2e-5, 1e-4)}
TIME = jax.P("time")
EXPLICIT, AUTO = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto


def mesh_of(kind: Any = AUTO) -> Any:
    return jax.make_mesh((4,), ("time",), axis_types=(kind,))


def over_time(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return a function of x [rows, n] and alpha, on slices of x."""
    spec = jax.P(None, "time")
    return jax.jit(jax.shard_map(function, mesh=mesh_of(), in_specs=(spec, jax.P()), out_specs=spec, **options))


def with_gradients(function: Callable[..., Any], g: Any) -> Any:
    """Return a jitted function that returns the gradients in x and alpha, and y."""

    def loss(x: Any, alpha: Any) -> Any:
        y = function(x, alpha)
        return (y * g).sum(), y

    return jax.jit(jax.grad(loss, (0, 1), has_aux=True))


def compared(name: str, alpha: float, n: int, dtype: str, **options: Any) -> list[float]:  # noqa: F811
    """Return the errors of y and of both gradients."""
    kind, low = DEFINITIONS[name], math.floor(alpha)
    bounds = (float(max(low, kind.lowest)), float(min(low + 1, kind.highest)))
    given = [np.asarray(each, dtype) for each in (signals(n), noise(4, n, seed=2), alpha)]

    def sliced(x: Any, alpha: Any) -> Any:
        return fjx.distributed.derivative(x, kind(alpha, bounds=bounds, **options), dt=DT, axis_name="time")

    def whole(x: Any, alpha: Any) -> Any:
        return fjx.derivative(x, kind(alpha, bounds=bounds, **options), dt=DT)

    def of(function: Callable[..., Any], dtype: str) -> Any:
        x, g, alpha = (jnp.asarray(each, dtype) for each in given)
        return with_gradients(function, g)(x, alpha)

    found, y = of(over_time(sliced), dtype)
    assert y.dtype == dtype
    with jax.enable_x64(True):
        wanted, exact = of(whole, "float64")
    return [apart(y, exact), *map(apart, found, wanted)]


FEW: list[tuple[str, float, int, dict[str, Any]]] = [
    ("caputo", 0.6, 1000, {}),  # chunks in each slice
    ("riemann_liouville", 1.6, 88, {}),  # the first slope is subtracted
    ("riemann_liouville_integral", 1.5, 400, {}),  # samples are summed up
    ("caputo", 0.4, 120, {"side": "right"}),
]


@pytest.mark.parametrize(("name", "alpha", "n", "options"), FEW)
def test_four_slices_have_the_results_and_gradients_of_one(
    name: str,
    alpha: float,
    n: int,
    options: dict[str, Any],
    dtype: str,  # noqa: F811
) -> None:
    errors = compared(name, alpha, n, dtype, **options)
    assert all(one < other for one, other in zip(errors, LARGEST[dtype], strict=True)), errors


def is_sliced(name: str, alpha: float) -> bool:
    kind, low = DEFINITIONS[name], math.floor(alpha)
    if not kind.lowest <= alpha <= kind.highest:
        return False
    bounds = (float(max(low, kind.lowest)), float(min(low + 1, kind.highest)))
    return exponentials_over(kind(alpha, bounds=bounds).to_the_left.in_steps(DT), HORIZON, "stream") is not None


@pytest.mark.slow
@pytest.mark.parametrize("n", [80, 2000])
@pytest.mark.parametrize("alpha", [-0.5, 0.3, 0.9, 1.1, 1.7])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_definition_goes_over_slices(name: str, alpha: float, n: int, dtype: str) -> None:  # noqa: F811
    if not is_sliced(name, alpha):
        pytest.skip("no exponentials serve all orders in the bounds")
    errors = compared(name, alpha, n, dtype)
    assert all(one < other for one, other in zip(errors, LARGEST[dtype], strict=True)), errors


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5, 1.0, 1.2, 2.0])
def test_fixed_orders_and_schemes_go_over_slices(name: str, alpha: float) -> None:
    """Those near 0 subtract x(0) without differences, those just above 1 a straight line after one."""
    kind, x = DEFINITIONS[name], signals(300)
    if not kind.lowest <= alpha <= kind.highest:
        pytest.skip("no such order")
    with jax.enable_x64(True):
        for scheme in kind.schemes:
            definition = kind(alpha, scheme)
            of_slice = lambda x, _, of=definition: fjx.distributed.derivative(x, of, axis_name="time")  # noqa: E731
            assert apart(over_time(of_slice)(jnp.asarray(x), 0.0), definition(x)) < 1e-12, scheme


def exchanges(compiled: Any) -> dict[str, list[int]]:
    """Return the sizes, numbers of each kind of exchange in a compiled program, for a device's results."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    found: dict[str, list[int]] = {}
    for shapes, kind in re.findall(rf"= (\S+|\(.*?\)) ({kinds})(?:-start)?\(", compiled.as_text()):
        sizes = [math.prod(map(int, filter(None, each.split(",")))) for each in re.findall(r"\[([\d,]*)\]", shapes)]
        found.setdefault(kind, []).append(sum(sizes))
    return found


def test_no_more_than_the_carries_is_gathered_at_any_length() -> None:
    """Nor sent back: alpha's gradient is one number, and the series stays where it is."""

    def sliced(x: Any, alpha: Any) -> Any:
        return fjx.distributed.derivative(x, fjx.Caputo(alpha), dt=DT, axis_name="time")

    found = []
    for n in (1024, 65536):
        x = jax.ShapeDtypeStruct((8, n), jnp.float32, sharding=jax.NamedSharding(mesh_of(), jax.P(None, "time")))
        step = with_gradients(over_time(sliced), 1.0)
        found.append(exchanges(step.lower(x, jax.ShapeDtypeStruct((), jnp.float32)).compile()))
    assert found[0] == found[1]
    assert found[0].pop("all-gather") == [4 * 8 * 57]  # slices, signals, exponentials
    assert max(max(sizes) for sizes in found[0].values()) <= 4 * 8 * 57


@pytest.mark.parametrize("options", [{}, {"check_vma": False}], ids=["checked", "unchecked"])
def test_slices_shorter_than_what_is_exchanged_are_gathered(options: dict[str, Any]) -> None:
    x = jnp.asarray(signals(48), jnp.float32)
    for definition in (fjx.GrunwaldLetnikov(0.5), fjx.Riesz(0.7)):
        of_slice = lambda x, _, of=definition: fjx.distributed.derivative(x, of, axis_name="time")  # noqa: E731
        assert apart(over_time(of_slice, **options)(x, 0.0), fjx.derivative(x, definition)) < 1e-6


def test_integrals_and_other_axes_of_time_go_over_slices() -> None:
    x, spec = jnp.asarray(noise(200, 3), jnp.float32), jax.P("time")
    of_slice = partial(fjx.distributed.integral, alpha=0.5, dim=0, axis_name="time")
    found = jax.jit(jax.shard_map(of_slice, mesh=mesh_of(), in_specs=spec, out_specs=spec))(x)
    assert apart(found.T, fjx.integral(x, 0.5, dim=0).T) < 1e-6
    named = jax.jit(jax.vmap(partial(of_slice, dim=-1), axis_name="time"))  # no devices, and the same program
    assert apart(named(x[:, 0].reshape(4, 50)).reshape(-1), found[:, 0]) < 1e-6


def test_time_over_an_explicit_axis_is_computed_in_slices_where_it_lies() -> None:
    """Also of an array whose sharding is known because nothing traces it."""
    definition = fjx.Caputo([0.3, 0.6, 0.7, 0.8], bounds=(0, 1))
    x = jnp.asarray(signals(400)[:, None], jnp.float32).transpose(1, 2, 0)  # [1, n, 4]
    wanted = fjx.derivative(x, definition, dim=1)
    for kind in (EXPLICIT, AUTO):
        spec = jax.P(None, "time")
        lies = jax.device_put(x, jax.NamedSharding(mesh_of(kind), spec))
        found = fjx.derivative(lies, definition, dim=1)
        assert found.sharding.spec[:2] == (None, "time")
        assert apart(np.asarray(found)[0].T, np.asarray(wanted)[0].T) < 1e-6
    lies = jax.device_put(x, jax.NamedSharding(mesh_of(EXPLICIT), spec))
    program = jax.jit(lambda x: fjx.derivative(x, definition, dim=1)).lower(lies).compile()
    assert exchanges(program)["all-gather"] == [4 * 4 * 57]
    layer = fjx.nnx.FractionalLayer(0.6, "caputo", dt=DT)
    assert apart(np.asarray(layer(lies))[0].T, np.asarray(layer(x))[0].T) < 1e-6


def spread(x: Any) -> Any:
    return jax.device_put(x, jax.NamedSharding(mesh_of(EXPLICIT), jax.P("time")))


def ones() -> Any:
    return jnp.ones((200, 1))


def of_slices(x: Any, definition: Any, name: str = "time", spec: Any = TIME) -> Any:
    of_slice = partial(fjx.distributed.derivative, definition=definition, dim=0, axis_name=name)
    return jax.shard_map(of_slice, mesh=mesh_of(), in_specs=spec, out_specs=jax.P("time"))(x)


def of_layer(make: Callable[..., Any], x: Any, g: Any, axis_name: str | None) -> tuple[Any, Any]:
    """Return the output of a layer [batch, n, features], and gradients in its parameters and x."""
    layer = make(axis_name=axis_name)
    params, spec = layer.init(jax.random.key(0), x.dtype), jax.P(None, "time")

    def call(params: Any, x: Any) -> Any:
        return layer(params, x)

    if axis_name:
        call = jax.shard_map(call, mesh=mesh_of(), in_specs=(jax.P(), spec), out_specs=spec)

    def loss(params: Any, x: Any) -> Any:
        y = call(params, x)
        return (y * g).sum(), y

    slopes, y = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(params, x)
    return y, slopes


LEARNED: dict[str, Any] = {"learn_alpha": True, "dt": DT}
LAYERS: dict[str, Callable[..., Any]] = {
    "FractionalLayer": partial(fjx.functional.FractionalLayer, 0.6, **LEARNED),
    "orders of channels": partial(fjx.functional.FractionalLayer, [0.3, 0.6, 0.8], **LEARNED),
    "a fixed order": partial(fjx.functional.FractionalLayer, 1.5, "riemann_liouville_integral", dt=DT),
    "FractionalLinear": partial(fjx.functional.FractionalLinear, 3, 3, alpha=[0.3, 0.6, 0.8], **LEARNED),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_over_an_axis_has_the_results_and_gradients_of_one_device(name: str) -> None:
    with jax.enable_x64(True):
        x, g = (jnp.asarray(noise(2, 160, 3, seed=seed)) for seed in (0, 1))
        found, wanted = (of_layer(LAYERS[name], x, g, axis_name) for axis_name in ("time", None))
    # As of the operators; a kernel's gradient is a sum over the samples, as alpha's is.
    assert all(apart(*each) < 1e-11 for each in zip(*map(jax.tree.leaves, (found, wanted)), strict=True))


def test_modules_take_the_axis_and_have_no_steps_over_it() -> None:
    x, spec = jnp.asarray(noise(2, 160, 3), jnp.float32), jax.P(None, "time")
    whole = fjx.nnx.FractionalLayer(0.6)(x)
    for layer in (
        fjx.nnx.FractionalLayer(0.6, axis_name="time"),
        fjx.linen.FractionalLayer(0.6, axis_name="time").bind({}),
    ):
        y = jax.jit(jax.shard_map(layer, mesh=mesh_of(), in_specs=spec, out_specs=spec))(x)
        assert apart(y, whole) < 2e-6
        with pytest.raises(ValueError, match=r"axis_name='time'\): needs whole series for step and run"):
            layer.initial_state((2, 3))


MIXED = (-0.5, 1.5)  # one set of exponentials does not serve both
REFUSALS: list[tuple[Callable[[], Any], type, str]] = [
    (
        lambda: fjx.distributed.derivative(ones(), fjx.Caputo(0.5), axis_name="time"),
        ValueError,
        "inside of jax.shard_map",
    ),
    (
        lambda: of_slices(ones(), fjx.Caputo(0.5), "rows"),
        ValueError,
        "axis_name='rows'): needs the name of a mesh axis",
    ),
    (lambda: of_slices(ones(), fjx.Caputo(0.5), spec=jax.P()), ValueError, "x is the same on all devices"),
    (
        lambda: of_slices(ones() * jnp.ones((1, 2)), fjx.GrunwaldLetnikov(MIXED)),
        ValueError,
        "sum of decaying exponentials",
    ),
    (lambda: of_slices(ones(), "caputo"), TypeError, "needs a definition"),
    (lambda: of_slices(jnp.ones((200, 1), int), fjx.Caputo(0.5)), TypeError, "needs float16"),
    (
        lambda: fjx.derivative(spread(jnp.ones((200, 2))), fjx.GrunwaldLetnikov(MIXED), dim=0),
        ValueError,
        "time over the mesh axis 'time'): needs weights that are a sum of decaying exponentials",
    ),
    (
        lambda: fjx.functional.FractionalLayer(0.4).run({}, spread(ones())),
        ValueError,
        "time over the mesh axis 'time'): needs a block on one device",
    ),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_what_cannot_go_over_slices_is_named(call: Callable[[], Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_time_may_lie_over_two_axes_in_any_order(names: tuple[str, str]) -> None:
    mesh, spec = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AUTO, AUTO)), jax.P(None, names)
    x = jnp.asarray(signals(128), jnp.float32)
    sliced = jax.shard_map(
        lambda x: fjx.distributed.derivative(x, fjx.Caputo(0.6), axis_name=names),
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
    )
    wanted = fjx.derivative(x, fjx.Caputo(0.6))
    assert apart(jax.jit(sliced)(x), wanted) < 3e-6
    assert apart(fjx.derivative(jax.device_put(x, jax.NamedSharding(mesh, spec)), fjx.Caputo(0.6)), wanted) < 3e-6


@pytest.mark.slow
def test_two_processes_with_two_devices_each_have_the_results_of_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = str(pathlib.Path(__file__).with_name("jax_process_programs.py"))
    processes = [
        subprocess.Popen([sys.executable, program, port, rank], stdout=subprocess.PIPE, text=True) for rank in "01"
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        devices, local, errors = json.loads(printed.splitlines()[-1])
        assert (devices, local) == (4, 2)
        assert all(one < other for one, other in zip(errors, LARGEST["float64"], strict=True)), errors
