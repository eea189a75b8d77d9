"""Layers for Flax: the core, its two shells, their limits, their parameters, what JAX and Flax do with them."""

from __future__ import annotations

import inspect
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")
optax = pytest.importorskip("optax")

from flax import linen, serialization  # noqa: E402
from flax import nnx as flax_nnx  # noqa: E402

from hpfracc_nn.layers.flax import functional, nnx  # noqa: E402
from hpfracc_nn.layers.flax import linen as shells  # noqa: E402

jnp = jax.numpy
KEY = jax.random.key(0)


class Case(NamedTuple):
    """A layer: how it is made, and what it takes."""

    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return self.name

    @property
    def core(self) -> Any:
        return getattr(functional, self.name)(*self.arguments, **self.options)

    @property
    def x(self) -> Any:
        return jax.random.normal(jax.random.key(1), self.shape)


CASES = [
    Case("FractionalLayer", (0.4,), {"learn_alpha": True, "dt": 0.5}, (2, 12, 3)),
    Case("FractionalDifference", (3, 2), {"bounds": (-1, 2), "start": (-0.4, 1.3)}, (2, 12, 3)),
    Case("FractionalLinear", (3, 2), {"alpha": [0.2, 0.5, 0.7], "learn_alpha": True}, (2, 12, 3)),
    Case("FractionalConv1d", (3, 2, 3), {"alpha": 0.4, "padding": "CAUSAL", "learn_alpha": True}, (2, 12, 3)),
    Case("FractionalConv2d", (3, 2, 3), {"alpha": (0.4, 0.6), "dims": (-3, -2), "learn_alpha": True}, (2, 6, 5, 3)),
]
STREAMED = [case for case in CASES if case.name != "FractionalConv2d"]
every_layer = pytest.mark.parametrize("case", CASES, ids=repr)
# One of each property in the fast suite: each is a compilation.
some_layers = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case.name == "FractionalLayer" else [pytest.mark.slow]) for case in CASES],
    ids=repr,
)


def close(found: Any, wanted: Any, rtol: float = 2e-6) -> None:
    """Assert equality up to float32's rounding of the largest entry."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rtol * float(np.abs(wanted).max()))


# A core and its shells


@every_layer
def test_a_core_is_a_value(case: Case) -> None:
    assert case.core == case.core
    assert hash(case.core) == hash(case.core)
    assert pickle.loads(pickle.dumps(case.core)) == case.core


@every_layer
def test_both_shells_are_called_as_the_core_is(case: Case) -> None:
    wanted = list(inspect.signature(type(case.core)).parameters.values())
    assert list(inspect.signature(getattr(nnx, case.name)).parameters.values())[:-2] == wanted
    found = inspect.signature(getattr(shells, case.name)).parameters
    assert [found[each.name].default for each in wanted] == [each.default for each in wanted]
    assert set(found) == {each.name for each in wanted} | {"param_dtype", "parent", "name"}


@some_layers
def test_both_shells_compute_what_the_core_does_from_the_same_tree_of_parameters(case: Case) -> None:
    core, x = case.core, case.x
    params = core.init(KEY)
    wanted = core(params, x)

    module = getattr(nnx, case.name)(*case.arguments, **case.options, rngs=flax_nnx.Rngs(0))
    assert jax.tree.structure(flax_nnx.to_pure_dict(flax_nnx.state(module))) == jax.tree.structure(params)
    flax_nnx.update(module, params)
    np.testing.assert_array_equal(module(x), wanted)
    np.testing.assert_array_equal(module.alpha, core.alpha_of(params))
    assert module.dt == core.dt

    layer = getattr(shells, case.name)(*case.arguments, **case.options)
    assert jax.tree.structure(layer.init(KEY, x)["params"]) == jax.tree.structure(params)
    np.testing.assert_array_equal(layer.apply({"params": params}, x), wanted)
    np.testing.assert_array_equal(layer.alpha_of({"params": params}), core.alpha_of(params))


def test_parameters_have_the_dtype_that_they_are_given() -> None:
    layer = shells.FractionalLinear(3, 2, learn_alpha=True, param_dtype=jnp.bfloat16)
    variables = jax.eval_shape(layer.init, KEY, jnp.ones((1, 4, 3), jnp.bfloat16))
    assert {each.dtype.name for each in jax.tree.leaves(variables)} == {"bfloat16"}
    module = nnx.FractionalLinear(3, 2, param_dtype=jnp.float16, rngs=flax_nnx.Rngs(0))
    assert module.kernel[...].dtype == jnp.float16


def test_weights_are_drawn_and_a_layer_without_randomness_says_what_it_needs() -> None:
    with pytest.raises(TypeError, match=r"FractionalLinear: needs randomness .* pass rngs=nnx.Rngs\(0\)"):
        nnx.FractionalLinear(3, 2)
    first, second = (functional.FractionalLinear(30, 20).init(jax.random.key(seed)) for seed in (0, 1))
    assert float(jnp.abs(first["kernel"] - second["kernel"]).min()) > 0


# Limits


def differenced(x: Any, axis: int = -2) -> Any:
    return jnp.diff(x, axis=axis, prepend=jnp.zeros_like(jax.lax.slice_in_dim(x, 0, 1, axis=axis)))


@pytest.mark.parametrize("alpha", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_at_whole_orders_layers_are_those_of_flax_on_the_samples_or_their_differences(alpha: float) -> None:
    x = CASES[2].x
    given = differenced(x) if alpha else x
    linear = flax_nnx.Linear(3, 2, rngs=flax_nnx.Rngs(0))
    params = flax_nnx.to_pure_dict(flax_nnx.state(linear))
    close(functional.FractionalLinear(3, 2, alpha=alpha)(params, x), linear(given))

    options: dict[str, Any] = {"padding": "CAUSAL", "kernel_dilation": 2, "use_bias": False}
    conv = flax_nnx.Conv(3, 2, (3,), **options, rngs=flax_nnx.Rngs(0))
    params = flax_nnx.to_pure_dict(flax_nnx.state(conv))
    close(functional.FractionalConv1d(3, 2, 3, alpha=alpha, **options)(params, x), conv(given))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_at_whole_orders_images_are_convolved_as_flax_does(alpha: float) -> None:
    x = CASES[4].x
    given = differenced(x, axis=1) if alpha else x
    conv = flax_nnx.Conv(3, 3, (3, 2), 2, feature_group_count=3, rngs=flax_nnx.Rngs(0))
    params = flax_nnx.to_pure_dict(flax_nnx.state(conv))
    core = functional.FractionalConv2d(3, 3, (3, 2), 2, feature_group_count=3, alpha=alpha, dims=(-3,))
    close(core(params, x), conv(given))


# Transforms


@pytest.mark.slow
@every_layer
def test_values_and_gradients_are_the_same_under_jit_checkpointing_and_maps(case: Case) -> None:
    core, x = case.core, case.x
    params = core.init(KEY)

    def loss(params: Any, x: Any) -> Any:
        return (core(params, x) ** 2).mean()

    wanted = jax.jit(jax.value_and_grad(loss))(params, x)
    checkpointed = jax.jit(jax.value_and_grad(jax.checkpoint(loss)))(params, x)
    each = jax.jit(jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0)))(params, x[:, None])
    for leaf, other, rows in zip(*map(jax.tree.leaves, (wanted, checkpointed, each)), strict=True):
        assert bool(jnp.isfinite(leaf).all())
        close(other, leaf)
        close(rows.mean(axis=0), leaf, rtol=1e-5)
    assert float(jnp.abs(wanted[1]["order"]["raw"]).min()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("case", STREAMED, ids=repr)
def test_one_sample_at_a_time_is_the_whole_series(case: Case) -> None:
    core, x = case.core, case.x
    params = core.init(KEY)
    state = core.initial_state(params, (2, 3), horizon=100)
    stepped = jax.jit(lambda state, x: jax.lax.scan(lambda s, x_t: core.step(params, x_t, s)[::-1], state, x))
    _, y = stepped(state, jnp.moveaxis(x, 1, 0))
    close(jnp.moveaxis(y, 0, 1), core(params, x))


@pytest.mark.slow
@every_layer
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_that_of_the_result(case: Case, dtype: str) -> None:
    core = case.core
    params = core.init(KEY, dtype)
    y = core(params, case.x.astype(dtype))
    assert y.dtype == dtype
    exact = core(jax.tree.map(lambda each: each.astype(jnp.float32), params), case.x)
    assert float(jnp.abs(y.astype(jnp.float32) - exact).max() / jnp.abs(exact).max()) < 8 * float(jnp.finfo(dtype).eps)


@pytest.mark.slow
@every_layer
def test_a_batch_on_several_devices_is_the_batch_on_one(case: Case) -> None:
    if len(jax.devices()) < 2:
        pytest.skip("one device")
    core, x = case.core, case.x
    params = core.init(KEY)
    mesh = jax.make_mesh((2,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("batch")))
    close(jax.jit(core)(params, spread), core(params, x))


# Errors


@pytest.mark.slow
def test_a_wrong_shape_raises_when_it_is_traced_with_the_layers_message() -> None:
    linear = functional.FractionalLinear(3, 2)
    with pytest.raises(ValueError, match=r"FractionalLinear\(x of shape \(12, 4\)\): needs \[\.\.\., n, 3\]"):
        jax.eval_shape(linear, linear.init(KEY), jnp.ones((12, 4)))
    bank = functional.FractionalDifference(3)
    with pytest.raises(ValueError, match=r"FractionalDifference\(channels=3\): needs 3 channels on axis 2"):
        jax.eval_shape(bank, bank.init(), jnp.ones((2, 12, 4)))
    # Integers become floats, as in `derivative` and in Flax's own layers.
    assert jax.eval_shape(functional.FractionalLayer(0.5), {}, jnp.ones((12, 3), jnp.int32)).dtype == jnp.float32
    image = functional.FractionalConv2d(3, 2, 3)
    with pytest.raises(ValueError, match=r"FractionalConv2d\(x of shape \(5, 4\)\)"):
        jax.eval_shape(image, image.init(KEY), jnp.ones((5, 4)))


@pytest.mark.parametrize("module", [functional, nnx, shells])
def test_a_wrong_hyperparameter_raises_in_the_constructor(module: Any) -> None:
    with pytest.raises(ValueError, match=r"Caputo\(alpha=3.5\): needs 0 <= alpha <= 2"):
        module.FractionalLayer(3.5)
    with pytest.raises(ValueError, match=r"FractionalLayer\(alpha=0.0\): needs low < alpha < high"):
        module.FractionalLayer(0.0, learn_alpha=True, bounds=(0, 1))
    with pytest.raises(TypeError, match=r"FractionalLayer\(alpha of type .*\): needs a float or a list of floats"):
        module.FractionalLayer(jnp.asarray(0.5))
    with pytest.raises(ValueError, match=r"FractionalConv1d\(out_features=2, feature_group_count=3\)"):
        module.FractionalConv1d(3, 2, 3, feature_group_count=3)
    with pytest.raises(ValueError, match=r"FractionalConv1d\(kernel_size=\(3, 3\)\): needs one number"):
        module.FractionalConv1d(3, 2, (3, 3))
    with pytest.raises(ValueError, match=r"FractionalConv2d\(dims=\(-1,\)\): needs axes of the images"):
        module.FractionalConv2d(3, 2, 3, dims=(-1,))


@pytest.mark.slow
def test_a_stream_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"needs padding='CAUSAL' one sample at a time"):
        functional.FractionalConv1d(3, 2, 3).initial_state({}, (2, 3))
    layer = functional.FractionalLayer(0.5)
    state = layer.initial_state({}, (3,), horizon=1)
    with pytest.raises(ValueError, match=r"FractionalLayer.step\(x of shape \(2,\)\)"):
        layer.step({}, jnp.ones(2), state)
    with pytest.raises(ValueError, match=r"needs a state of this one"):
        functional.FractionalLayer(0.6).step({}, jnp.ones(3), state)
    _, state = layer.step({}, jnp.ones(3), state)
    with pytest.raises(ValueError, match=r"needs at most horizon=1 steps"):
        layer.step({}, jnp.ones(3), state)


# Orders


def test_orders_are_those_that_were_given_in_real_units() -> None:
    for start, bounds in ((0.4, (0, 1)), ([0.1, 1.9], (0, 2)), (1e-3, (0, 1)), (0.999, (0, 1))):
        order = functional.Alpha(start, bounds)
        np.testing.assert_allclose(order(order.init()), start, rtol=1e-6)


def test_a_module_of_an_order_is_shared_by_the_layers_that_are_given_it() -> None:
    class Twice(flax_nnx.Module):
        def __init__(self) -> None:
            order = nnx.Alpha(0.4, (0, 1))
            self.first, self.second = nnx.FractionalLayer(order), nnx.FractionalLayer(order)

    class Both(linen.Module):
        def setup(self) -> None:
            self.order = shells.Alpha(0.4, (0, 1))
            self.first, self.second = shells.FractionalLayer(self.order), shells.FractionalLayer(self.order)

        def __call__(self, x: Any) -> Any:
            return self.second(self.first(x))

    model = Twice()
    assert len(jax.tree.leaves(flax_nnx.state(model))) == 1
    model.first.order.raw[...] = jnp.asarray(0.0)
    assert float(model.second.alpha) == 0.5

    x = CASES[0].x
    variables = Both().init(KEY, x)
    assert list(variables["params"]) == ["order"]
    once = functional.FractionalLayer(0.4)
    close(Both().apply(variables, x), once({}, once({}, x)), rtol=1e-5)


def test_a_description_of_an_order_makes_one_for_each_layer() -> None:
    described = functional.Alpha([0.2, 0.3, 0.4], (0, 1))
    first, second = nnx.FractionalLayer(described), nnx.FractionalLayer(described)
    first.order.raw[...] = jnp.zeros(3)
    np.testing.assert_allclose(second.alpha, [0.2, 0.3, 0.4], rtol=1e-6)
    assert first.channels == 3


@pytest.mark.slow
@pytest.mark.parametrize("distribution", ["normal", "beta", "uniform"])
def test_draws_of_a_random_order_have_its_moments_and_gradients(distribution: str) -> None:
    order, count = functional.ProbabilisticAlpha(0.6, (0, 2), std=0.1, distribution=distribution), 20_000
    params = order.init()
    np.testing.assert_allclose([order.mean(params), order.std_of(params)], [0.6, 0.1], rtol=1e-5)
    drawn = order.sample(params, KEY, (count,))
    assert float(drawn.mean()) == pytest.approx(0.6, abs=4 * 0.1 / count**0.5)
    assert float(drawn.std()) == pytest.approx(0.1, rel=4 / count**0.5)  # a kurtosis of at most 3
    slope = jax.grad(lambda params: order.sample(params, KEY, (count,)).mean())(params)
    wanted = jax.grad(order.mean)(params)
    assert float(slope["raw"]) == pytest.approx(float(wanted["raw"]), rel=0.05)


@pytest.mark.slow
def test_a_random_order_is_drawn_where_there_is_a_key_and_else_its_mean() -> None:
    order = functional.ProbabilisticAlpha(0.6, std=0.1)
    core, x = functional.FractionalLayer(order), CASES[0].x
    params = core.init()
    mean, drawn = core(params, x), core(params, x, key=KEY)
    assert float(jnp.abs(mean - drawn).max()) > 1e-3

    layer = shells.FractionalLayer(order)
    variables = {"params": params}
    np.testing.assert_array_equal(layer.apply(variables, x), mean)
    one, other = (layer.apply(variables, x, rngs={"alpha": jax.random.key(seed)}) for seed in (1, 2))
    assert float(jnp.abs(one - other).max()) > 1e-3

    module = nnx.FractionalLayer(order, rngs=flax_nnx.Rngs(0))
    run = flax_nnx.jit(lambda module, x: module(x))
    assert float(jnp.abs(run(module, x) - run(module, x)).max()) > 1e-3
    module.eval()
    np.testing.assert_allclose(module(x), mean, rtol=1e-6)
    assert float(module.order.kl()) == pytest.approx(float(order.kl(params["order"])))
    with pytest.raises(ValueError, match=r"ProbabilisticAlpha\(rngs=None\): needs randomness"):
        nnx.FractionalLayer(order)(x)


# Training and files


class Model(flax_nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.bank = nnx.FractionalDifference(1, 2)
        self.head = flax_nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.bank(x))


@pytest.mark.slow
def test_orders_learn_at_a_rate_of_their_own() -> None:
    model, x = Model(flax_nnx.Rngs(0)), jax.random.normal(KEY, (4, 16, 1))
    tx = optax.partition({"weights": optax.sgd(0.0), "orders": optax.sgd(0.1)}, functional.param_labels)
    optimizer = flax_nnx.Optimizer(model, tx, wrt=flax_nnx.Param)
    before = jax.tree.map(jnp.copy, flax_nnx.to_pure_dict(flax_nnx.state(model)))

    @flax_nnx.jit
    def step(model: Any, optimizer: Any) -> None:
        optimizer.update(model, flax_nnx.grad(lambda model: (model(x) ** 2).mean())(model))

    step(model, optimizer)
    after = flax_nnx.to_pure_dict(flax_nnx.state(model))
    np.testing.assert_array_equal(after["head"]["kernel"], before["head"]["kernel"])
    assert float(jnp.abs(after["bank"]["order"]["raw"] - before["bank"]["order"]["raw"]).min()) > 0


def test_labels_are_of_every_leaf_and_need_an_order() -> None:
    tree = {"a": {"raw": 0.0}, "b": {"raw": 0.0, "spread": 1.0}, "c": {"raw": 0.0, "kernel": 1.0}}
    assert functional.param_labels(tree) == {
        "a": {"raw": "orders"},
        "b": {"raw": "orders", "spread": "orders"},
        "c": {"raw": "weights", "kernel": "weights"},
    }
    with pytest.raises(ValueError, match=r"param_labels\(params\): needs a learned order"):
        functional.param_labels({"kernel": 0.0})


def test_parameters_go_through_a_file_and_back() -> None:
    model, other = Model(flax_nnx.Rngs(0)), Model(flax_nnx.Rngs(1))
    model.bank.order.raw[...] = jnp.asarray([0.3, -0.7])
    written = serialization.to_bytes(flax_nnx.to_pure_dict(flax_nnx.state(model)))
    read = serialization.from_bytes(flax_nnx.to_pure_dict(flax_nnx.state(other)), written)
    flax_nnx.update(other, read)
    for one, two in zip(*map(jax.tree.leaves, map(flax_nnx.state, (model, other))), strict=True):
        np.testing.assert_array_equal(one, two)

    core = functional.FractionalLinear(3, 2, learn_alpha=True)
    variables, others = ({"params": core.init(jax.random.key(seed))} for seed in (0, 1))
    again = serialization.from_bytes(others, serialization.to_bytes(variables))
    for one, two in zip(*map(jax.tree.leaves, (variables, again)), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_module_is_taken_apart_and_put_together() -> None:
    module = nnx.FractionalLayer([0.2, 0.3], learn_alpha=True)
    graph, state = flax_nnx.split(module)
    assert flax_nnx.split(nnx.FractionalLayer([0.2, 0.3], learn_alpha=True))[0] == graph
    merged = flax_nnx.merge(graph, jax.tree.map(jnp.zeros_like, state))
    np.testing.assert_array_equal(merged.alpha, [0.5, 0.5])
    assert merged.definition == module.definition
