"""What all layers for Flax owe: each of PyTorch's is there and compared; values, meshes, transforms, files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")
optax = pytest.importorskip("optax")

from flax import linen, nnx, serialization  # noqa: E402

import hpfracc_nn.jax as fjx  # noqa: E402
from hpfracc_nn import fractional, layers  # noqa: E402
from hpfracc_nn.fractional.jax import streaming  # noqa: E402
from hpfracc_nn.layers.flax import functional  # noqa: E402
from tests.parity_cases import every_case  # noqa: E402

jnp = jax.numpy
KEY = jax.random.key(0)
RENAMED = {"param_groups": "param_labels"}  # optax takes labels
LAYERS = [name for name in vars(layers)["__all__"] if name not in RENAMED]
DRAWN = {  # those that draw their first weights
    "FractionalAttention": (4, 2),
    "FractionalConv1d": (4, 2, 3),
    "FractionalConv2d": (4, 2, 3),
    "FractionalGRU": (4, 3),
    "FractionalGraphConv": (4, 4),
    "FractionalLSTM": (4, 3),
    "FractionalLinear": (4, 2),
}
RECURRENT = ("FractionalLSTM", "FractionalGRU")


def series(*shape: int) -> Any:
    return jax.random.normal(jax.random.key(1), shape)


def recurrent(name: str, **options: Any) -> tuple[Any, Any]:
    core = getattr(functional, name)(4, 3, learn_alpha=True, **options)
    return core, core.init(KEY)


def test_every_name_of_the_layers_for_torch_is_there() -> None:
    for name in vars(layers)["__all__"]:
        assert RENAMED.get(name, name) in vars(fjx)["__all__"]
    for name in LAYERS:
        for room in (fjx.functional, fjx.nnx, fjx.linen):
            assert name in vars(room)["__all__"]


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_compared_with_that_for_torch(name: str) -> None:
    assert any(case.name.split()[0] == name for case in every_case())


@pytest.mark.parametrize("name", DRAWN)
def test_a_core_that_draws_is_a_value_too(name: str) -> None:
    core = getattr(functional, name)(*DRAWN[name])
    assert core == getattr(functional, name)(*DRAWN[name])
    assert pickle.loads(pickle.dumps(core)) == core
    assert hash(core) == hash(getattr(functional, name)(*DRAWN[name]))


@pytest.mark.parametrize("name", DRAWN)
def test_first_weights_are_drawn_in_half_precision_too(name: str) -> None:
    core = getattr(functional, name)(*DRAWN[name])
    params = jax.eval_shape(lambda key: core.init(key, jnp.bfloat16), KEY)
    assert {each.dtype.name for each in jax.tree.leaves(params)} == {"bfloat16"}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("name", [*RECURRENT, "FractionalAttention", "FractionalGraphConv"])
def test_half_precision_is_computed_where_nothing_is_promoted_unasked(name: str, dtype: Any) -> None:
    core = getattr(functional, name)(*DRAWN[name])
    more = (jnp.asarray([[0, 1], [1, 2]]),) if name == "FractionalGraphConv" else ()
    x = jnp.ones((3, 4) if more else (2, 5, 4), dtype)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = jax.eval_shape(lambda key: core(core.init(key, dtype), x, *more), KEY)
    assert found.dtype == dtype


def test_a_part_may_be_called_value() -> None:
    params = {"value": {"raw": 0.0}, "net": {"value": 0.0}, "kernel": 0.0}
    assert functional.param_labels(params) == {
        "value": {"raw": "orders"},
        "net": {"value": "weights"},
        "kernel": "weights",
    }


def test_linen_tabulates_a_layer_as_one_row() -> None:
    rows = fjx.linen.FractionalLayer(0.4, learn_alpha=True).tabulate(KEY, jnp.ones((1, 4, 2)))
    assert "_run" not in rows
    assert rows.count("FractionalLayer") == 2  # the title and its row


# Meshes


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_runs_on_a_mesh_of_explicit_axes(name: str) -> None:
    core, params = recurrent(name, num_layers=2)
    x = series(4, 20, 4)
    gradient = jax.jit(jax.grad(lambda params, x: (core(params, x) ** 2).sum()))
    wanted = gradient(params, x)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        found = gradient(jax.device_put(params, jax.P()), jax.device_put(x, jax.P("batch")))
    for one, two in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5 * float(jnp.abs(two).max()))  # sums in another order


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["x", "params"])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_runs_inside_of_shard_map(name: str, axis: str) -> None:
    core, params = recurrent(name)
    x = series(4, 20, 4)
    several = jax.tree.map(lambda each: jnp.stack([each * (1 + k) for k in range(4)]), params)
    mesh = jax.make_mesh((4,), ("m",), axis_types=(jax.sharding.AxisType.Auto,))
    if axis == "x":
        found = jax.jit(jax.shard_map(core, mesh=mesh, in_specs=(jax.P(), jax.P("m")), out_specs=jax.P("m")))(params, x)
        wanted = core(params, x)
    else:

        def one_of_them(params: Any, x: Any) -> Any:
            return core(jax.tree.map(lambda each: each[0], params), x)[None]

        found = jax.jit(jax.shard_map(one_of_them, mesh=mesh, in_specs=(jax.P("m"), jax.P()), out_specs=jax.P("m")))(
            several, x
        )
        wanted = jax.vmap(core, (0, None))(several, x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)  # numbers below 1


# What pads a series


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT)
def test_what_pads_a_series_reaches_neither_the_state_nor_a_gradient(name: str) -> None:
    core, params = recurrent(name)
    lengths = jnp.array([20, 3, 0])
    counts = (jnp.arange(20)[None] < lengths[:, None])[..., None]

    def loss(params: Any, x: Any) -> Any:
        state, y = core(params, x, seq_lengths=lengths, return_carry=True)
        return jnp.where(counts, y, 0).sum() + sum(each.sum() for each in jax.tree.leaves(state))

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    x = series(3, 20, 4)
    found, wanted = (gradient(params, jnp.where(counts, x, pad)) for pad in (jnp.nan, 0.0))
    for one, two in zip(*map(jax.tree.leaves, (found, wanted)), strict=True):
        np.testing.assert_array_equal(one, two)


# Streams


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize(
    ("kind", "scheme"),
    [
        (kind, scheme)
        for kind in ("AtanganaBaleanu", "CaputoFabrizio", "Marchaud", "TemperedCaputo", "TemperedRiemannLiouville")
        for scheme in getattr(fractional, kind).schemes
    ],
)
def test_every_definition_streams(kind: str, scheme: str, alpha: float) -> None:
    definition = getattr(fractional, kind)(alpha, scheme=scheme)
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).standard_normal((300, 2)) + 3)
        state = streaming.initial_state("test", definition, (2,), dt=0.05, horizon=300)
        _, y = jax.lax.scan(lambda state, x: streaming.step("test", x, state)[::-1], state, x)
        wanted = fractional.derivative(x, definition, dt=0.05, dim=0)
        np.testing.assert_allclose(y, wanted, rtol=0, atol=1e-12 * float(jnp.abs(wanted).max()))


# Flax's transforms and files


@pytest.mark.slow
def test_modules_are_mapped_scanned_and_computed_again_by_flax() -> None:
    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def made(rngs: Any) -> Any:
        return fjx.FractionalLinear(4, 4, alpha=0.4, learn_alpha=True, rngs=rngs)

    module, x = made(nnx.Rngs(0)), series(2, 8, 4)
    each = [
        nnx.merge(graph, jax.tree.map(lambda array, k=k: array[k], state))
        for graph, state in [nnx.split(module)]
        for k in range(3)
    ]
    every = nnx.vmap(lambda module, x: module(x), in_axes=(0, None))(module, x)
    np.testing.assert_allclose(every, jnp.stack([one(x) for one in each]), rtol=0, atol=1e-5)
    deep = nnx.scan(lambda x, module: module(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, module)
    np.testing.assert_allclose(deep, each[2](each[1](each[0](x))), rtol=0, atol=1e-4)

    def loss(module: Any) -> Any:
        return (module(x) ** 2).sum()

    def again(module: Any) -> Any:
        return nnx.remat(loss)(module)

    for one, two in zip(*(jax.tree.leaves(nnx.grad(of)(each[0])) for of in (loss, again)), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5)
    mapped = linen.vmap(
        fjx.linen.FractionalLinear, variable_axes={"params": 0}, split_rngs={"params": True}, in_axes=None, axis_size=3
    )(4, 4, learn_alpha=True)
    assert mapped.init(KEY, x)["params"]["order"]["raw"].shape == (3,)


class Model(nnx.Module):
    """Layers with weights, with dropout and with a random order."""

    def __init__(self, rngs: Any) -> None:
        self.linear = fjx.FractionalLinear(4, 4, alpha=0.4, learn_alpha=True, rngs=rngs)
        self.attention = fjx.FractionalAttention(4, 2, dropout_rate=0.1, alpha=1.2, learn_alpha=True, rngs=rngs)
        self.last = fjx.FractionalLayer(fjx.ProbabilisticAlpha(0.6, std=0.05, rngs=rngs))

    def __call__(self, x: Any) -> Any:
        return self.last(self.attention(self.linear(x)))


@pytest.mark.slow
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    tx = optax.partition({"weights": optax.adamw(1e-2), "orders": optax.adam(1e-1)}, functional.param_labels)

    def begun(seed: int) -> tuple[Any, Any]:
        model = Model(nnx.Rngs(seed))
        return model, nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def train(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradient = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return loss

    x, running = series(2, 8, 4), begun(0)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam takes a power of a count
        train(*running, x)
    with checkpoint.StandardCheckpointer() as files:
        files.save(tmp_path / "state", nnx.state(running))
        files.wait_until_finished()
        graph, state = nnx.split(begun(1))
        assert graph == nnx.graphdef(begun(0))
        read = nnx.merge(graph, files.restore(tmp_path / "state", state))
    with jax.numpy_dtype_promotion("standard"):
        assert [float(train(*running, x)) for _ in range(2)] == [float(train(*read, x)) for _ in range(2)]


STREAMS: dict[str, tuple[tuple[Any, ...], dict[str, Any], dict[str, Any], int]] = {  # arguments, of the state, inputs
    "ARFIMA": ((1,), {}, {}, 3),
    "FractionalAttention": ((4, 2), {}, {"horizon": 8}, 4),
    "FractionalConv1d": ((3, 4, 3), {"padding": "CAUSAL", "alpha": 0.5}, {}, 3),
    "FractionalDifference": ((3,), {"orders": 2}, {}, 3),
    "FractionalGRU": ((3, 4), {}, {}, 3),
    "FractionalLSTM": ((3, 4), {}, {}, 3),
    "FractionalLayer": ((0.6,), {}, {}, 3),
    "RoughnessFeatures": ((3,), {}, {}, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_through_a_file_and_on(name: str) -> None:
    arguments, options, begun, features = STREAMS[name]
    core = getattr(functional, name)(*arguments, **options)
    params = core.init(KEY)
    start = core.initial_state(params, (2, features), **begun)
    _, state = core.step(params, series(2, features), start)
    again = serialization.from_bytes(start, serialization.to_bytes(state))
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, again, state)
    found, expected = (core.step(params, series(2, features), each)[0] for each in (again, state))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_a_stream_of_another_shape_is_not_read() -> None:
    core, params = recurrent("FractionalGRU")
    written = serialization.to_bytes(core.initial_state(params, (2, 4)))
    with pytest.raises(ValueError, match=r"RecurrentState\(state with h of shapes .*\): needs .*; read it into what"):
        serialization.from_bytes(core.initial_state(params, (5, 4)), written)
    with pytest.raises(ValueError, match="RecurrentState: needs h, value, near, far, horizon, and what is read has a;"):
        serialization.from_bytes(core.initial_state(params, (2, 4)), serialization.to_bytes({"a": 1}))


@pytest.mark.slow
def test_a_checkpoint_that_lacks_a_parameter_is_refused_as_flax_does() -> None:
    layer, x = fjx.linen.FractionalLinear(4, 2), series(2, 5, 4)
    kernel = functional.FractionalLinear(4, 2).init(KEY)["kernel"]
    for module in (layer, linen.Dense(2)):
        with pytest.raises(flax.errors.ScopeParamNotFoundError, match='"bias"'):
            module.apply({"params": {"kernel": kernel}}, x)


# Arrays of NumPy


def pulled(t: Any, z: Any, *_: Any) -> Any:
    return -z


EDGES = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
TAKEN: dict[str, tuple[tuple[Any, ...], tuple[int, ...], dict[str, Any]]] = {  # arguments, shape of x, what else is
    "ARFIMA": ((1,), (2, 6, 1), {}),
    "FDEBlock": ((pulled, 0.5), (2, 3), {}),
    "FSDEBlock": ((pulled, pulled), (2, 3), {"alpha": 0.8}),
    "FractionalAttention": ((4, 2), (2, 6, 4), {}),
    "FractionalConv1d": ((4, 2, 3), (2, 6, 4), {"padding": "CAUSAL"}),
    "FractionalConv2d": ((4, 2, 3), (2, 6, 6, 4), {}),
    "FractionalDifference": ((4,), (2, 6, 4), {"learn_alpha": False}),
    "FractionalGRU": ((4, 3), (2, 6, 4), {}),
    "FractionalGraphConv": ((4, 4), (4, 4), {}),
    "FractionalLSTM": ((4, 3), (2, 6, 4), {}),
    "FractionalLayer": ((0.4,), (2, 6, 4), {}),
    "FractionalLinear": ((4, 2), (2, 6, 4), {}),
    "RoughnessFeatures": ((4,), (2, 6, 4), {}),
    "SpectralFractional": ((0.4,), (2, 6, 4), {"dim": -2}),
}


def test_whatever_takes_samples_is_tried_with_those_of_numpy() -> None:
    assert {*TAKEN, "Alpha", "ProbabilisticAlpha"} == set(LAYERS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("is_learned", [False, True], ids=["fixed", "learned"])
@pytest.mark.parametrize("name", TAKEN)
def test_samples_of_numpy_are_taken_as_flax_takes_them(name: str, is_learned: bool, dtype: str) -> None:
    arguments, shape, options = TAKEN[name]
    options = {**options, "learn_alpha": is_learned}
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    more = {"edge_index": EDGES} if name == "FractionalGraphConv" else {}
    drawn = {"noise_key": KEY} if name == "FSDEBlock" else {}
    core = getattr(functional, name)(*arguments, **options)
    params = core.init(KEY)
    module = getattr(fjx.nnx, name)(*arguments, **options, rngs=nnx.Rngs(0))
    shell = getattr(fjx.linen, name)(*arguments, **options)
    keys = {"params": KEY, "noise": KEY}
    variables = shell.init(keys, x, **more)
    calls = (
        lambda x: core(params, x, **more, **drawn),
        lambda x: module(x, **more, **({"key": KEY} if drawn else {})),
        lambda x: shell.apply(variables, x, **more, rngs={"noise": KEY}),
    )
    for call in calls:
        found, wanted = call(x), call(jnp.asarray(x))
        assert isinstance(found, jax.Array)
        assert found.dtype == wanted.dtype == jnp.float32
        np.testing.assert_array_equal(found, wanted)
    if name in STREAMS:
        begun = core.initial_state(params, shape[:-2] + shape[-1:], **STREAMS[name][2])
        one, other = (core.step(params, each, begun)[0] for each in (x[:, 0], jnp.asarray(x[:, 0])))
        assert isinstance(one, jax.Array)
        np.testing.assert_array_equal(one, other)
