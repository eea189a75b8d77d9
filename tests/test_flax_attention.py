"""What is particular to power-law attention for Flax: the ordinary layer, its kernels, masks, dropout, streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")
from flax import nnx  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from hpfracc_nn.layers.flax import functional, linen  # noqa: E402
from hpfracc_nn.layers.flax import nnx as modules  # noqa: E402
from hpfracc_nn.layers.flax.functional import attention_ops  # noqa: E402
from hpfracc_nn.layers.flax.functional.attention_ops import (  # noqa: E402
    Attention,
    Inputs,
    workload,
)
from hpfracc_nn.layers.order import ATTENTION  # noqa: E402
from hpfracc_nn.selection import BackendManager, Settings  # noqa: E402
from hpfracc_nn.selection.registry import kernels  # noqa: E402

FEATURES, HEADS = 6, 2
SHARED = Settings(mode="prior", wisdom="off", calibration="shipped")


def series(*shape: int, seed: int = 0) -> Any:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def made(**options: Any) -> tuple[Any, Any]:
    core = functional.FractionalAttention(FEATURES, HEADS, bias_init=jax.nn.initializers.normal(0.5), **options)
    return core, core.init(jax.random.key(1), jnp.result_type(float))


def forced(algorithm: str) -> BackendManager:
    return BackendManager(Settings(mode="prior", wisdom="off", calibration="shipped", force_algorithm=algorithm))


def worst(found: Any, wanted: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(jnp.abs(a - b).max(initial=0)) for a, b in pairs)


@pytest.mark.slow
@pytest.mark.parametrize("masked", [False, True])
def test_at_two_it_is_flaxs_layer_with_the_same_parameters(masked: bool) -> None:
    with jax.enable_x64(True):
        core, params = made(alpha=2.0)
        # Where there might be dropout, because JAX's own function takes the softmax of float64 in float32.
        how: Any = {"decode": False, "deterministic": True, "dropout_rate": 0.5, "param_dtype": jnp.float64}
        theirs = nnx.MultiHeadAttention(HEADS, FEATURES, **how, rngs=nnx.Rngs(0))
        nnx.update(theirs, nnx.State(jax.tree.map(lambda each: each, params)))
        x, y = series(2, 7, FEATURES), series(2, 5, FEATURES, seed=1)
        mask = jnp.asarray(np.random.default_rng(2).random((2, 1, 7, 5)) < 0.7).at[..., 0].set(True) if masked else None
        assert worst(core(params, x, y, mask=mask), theirs(x, y, mask=mask)) < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("bias_shape", [None, (3, 2, 11, 13), (1, 1, 1, 13), (1, 2, 11, 13), (3, 1, 1, 13)], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_every_kernel_is_the_formula_with_its_gradients(bias_shape: Any, causal: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(attention_ops, "BLOCK", 70)  # two queries of an item
    with jax.enable_x64(True):
        arrays = series(3, 2, 11, 4), series(3, 2, 13, 4, seed=1), series(3, 2, 13, 5, seed=2)
        bias = None if bias_shape is None else series(*bias_shape, seed=3)
        given = Inputs(*arrays, bias=bias, alpha=jnp.array([0.7, 1.4]))
        attention = Attention(3.0, 1.7, is_causal=causal, needs_weights=True)

        def total(given: Inputs, run: Any) -> Any:
            y, weights = run(given)
            return (jnp.cos(y) ** 2).sum() + (weights**2).sum()

        def formula(given: Inputs) -> Any:
            return attention.formula(given, jnp.arange(11), jnp.arange(3))

        wanted = jax.value_and_grad(total)(given, formula)
        for kernel in kernels(ATTENTION, "jax"):
            found = jax.value_and_grad(total)(
                given, lambda each, kernel=kernel: kernel.run(attention, each, jnp.arange(3))
            )
            assert worst(found, wanted) < 1e-13


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["dense", "blocks"])
def test_a_query_that_sees_nothing_gets_zeros_and_no_slope(algorithm: str) -> None:
    with jax.enable_x64(True):
        core, params = made(alpha=1.2, learn_alpha=True, manager=forced(algorithm))
        x = series(2, 5, FEATURES)
        mask = jnp.ones((2, 1, 5, 5), bool).at[0, :, 3].set(False)
        y, weights = core(params, x, mask=mask, need_weights=True)
        assert worst(weights[0, :, 3], jnp.zeros((HEADS, 5))) == 0
        assert worst(y[0, 3], params["out"]["bias"]) == 0
        slopes = jax.grad(lambda params, x: core(params, x, mask=mask).sum(), (0, 1))(params, x)
        assert all(np.isfinite(np.asarray(each)).all() for each in jax.tree.leaves(slopes))


@pytest.mark.slow
@pytest.mark.parametrize("number", [-1e9, float(np.finfo(np.float32).min), -np.inf])
def test_what_is_hidden_has_no_influence_however_minus_infinity_is_written(number: float) -> None:
    core, params = made(alpha=0.8)
    x = series(1, 6, FEATURES).astype(jnp.float32)
    hidden = jnp.zeros((6, 6)).at[:, 4].set(number)
    others = x.at[:, 4].set(100.0)
    found, wanted = (core(params, x, keys, bias=hidden) for keys in (x, others))
    assert worst(found, wanted) == 0
    assert worst(found, core(params, x, x, mask=jnp.isfinite(hidden) & (hidden == 0))) == 0


@pytest.mark.slow
def test_dropout_keeps_the_mean_and_is_the_same_whatever_the_kernel(monkeypatch: Any) -> None:
    monkeypatch.setattr(attention_ops, "BLOCK", 70)
    x = series(3, 9, FEATURES).astype(jnp.float32)
    found = {}
    for algorithm in ("dense", "blocks"):
        core, params = made(dropout_rate=0.25, manager=forced(algorithm))
        found[algorithm] = core(params, x, need_weights=True, dropout_key=jax.random.key(0))
        plain = core(params, x, need_weights=True)[1]
    assert worst(found["dense"], found["blocks"]) < 1e-6
    weights = found["dense"][1]
    kept = weights > 0
    assert worst(jnp.where(kept, weights * 0.75, plain), plain) < 1e-6
    assert 0.70 < float(kept.mean()) < 0.80  # 486 draws: four standard errors are 0.08


@pytest.mark.slow
def test_a_stream_is_the_causal_layer_until_its_horizon() -> None:
    with jax.enable_x64(True):
        core, params = made(alpha=[0.6, 1.7], learn_alpha=True, add_zero_attn=True)
        x = series(2, 3, 6, FEATURES)
        state = core.initial_state(params, (2, 3, FEATURES), horizon=6)

        def step(state: Any, x: Any) -> Any:
            y, state = core.step(params, x, state)
            return state, y

        last, each = jax.lax.scan(step, state, jnp.moveaxis(x, -2, 0))
        assert worst(jnp.moveaxis(each, 0, -2), core(params, x, is_causal=True)) < 1e-14
        assert np.isnan(np.asarray(core.step(params, x[..., 0, :], last)[0])).all()


@pytest.mark.slow
def test_blocks_bound_the_memory_of_both_passes() -> None:
    heads, n = 2, 2048
    arrays = [jnp.ones((1, heads, n, 8), jnp.float32)] * 3
    attention, weights = Attention(4.0, 2.0), 4 * heads * n * n
    taken = {}
    for kernel in kernels(ATTENTION, "jax"):

        def total(q: Any, k: Any, v: Any, kernel: Any = kernel) -> Any:
            return kernel.run(attention, Inputs(q, k, v, alpha=jnp.array([1.2])), jnp.arange(1))[0].sum()

        compiled = jax.jit(jax.grad(total, (0, 1, 2))).lower(*arrays).compile()
        taken[kernel.algorithm] = compiled.memory_analysis().temp_size_in_bytes
    assert taken["dense"] > weights
    assert taken["blocks"] < weights / 2  # some arrays of 1 MiB


def test_the_choice_follows_the_size() -> None:
    manager = BackendManager(SHARED)
    short, long = (workload((8, 4, n, 16), n, "float32", False) for n in (32, 8192))
    assert manager.plan(short).kernel.algorithm == "dense"
    assert manager.plan(long).kernel.algorithm == "blocks"
    assert "xla/blocks" in manager.explain(long)


@pytest.mark.slow
def test_within_a_limit_of_memory_items_are_computed_in_turn() -> None:
    settings = Settings(
        mode="prior", wisdom="off", calibration="shipped", force_algorithm="dense", memory_limit=1 << 17
    )
    core, params = made(manager=BackendManager(settings))
    x = series(64, 16, FEATURES).astype(jnp.float32)
    assert worst(core(params, x), functional.FractionalAttention(FEATURES, HEADS)(params, x)) < 1e-6


@pytest.mark.slow
def test_both_modules_are_the_core() -> None:
    options = {"alpha": 0.6, "learn_alpha": True, "dropout_rate": 0.5}
    x = series(2, 5, FEATURES).astype(jnp.float32)
    module = modules.FractionalAttention(FEATURES, HEADS, **options, rngs=nnx.Rngs(params=0, dropout=1))
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    wanted = module.core(params, x, is_causal=True)
    assert worst(module(x, is_causal=True), wanted) > 1e-3
    module.eval()
    assert worst(module(x, is_causal=True), wanted) == 0
    layer_class: Any = linen.FractionalAttention
    layer = layer_class(FEATURES, HEADS, **options)
    assert jax.tree.map(jnp.shape, layer.init(jax.random.key(0), x)["params"]) == jax.tree.map(jnp.shape, params)
    variables = {"params": params}
    assert worst(layer.apply(variables, x, is_causal=True), wanted) == 0
    dropped = layer.apply(variables, x, is_causal=True, rngs={"dropout": jax.random.key(3)})
    assert worst(dropped, wanted) > 1e-3
    state = module.initial_state((2, FEATURES), horizon=3)
    y, _ = module.step(x[:, 0], state)
    assert worst(layer.apply(variables, x[:, 0], state, method="step")[0], y) == 0


@pytest.mark.slow
def test_a_sharded_batch_is_the_whole_one() -> None:
    core, params = made(learn_alpha=True)
    x = series(8, 5, FEATURES).astype(jnp.float32)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("batch")))
    gradient = jax.jit(jax.grad(lambda params, x: (core(params, x) ** 2).sum()))
    assert worst(gradient(params, spread), gradient(params, x)) < 1e-4  # sums over the batch in another order


@pytest.mark.slow
def test_half_precision_is_averaged_in_single() -> None:
    core, params = made(learn_alpha=True)
    x = series(2, 5, FEATURES).astype(jnp.float32)
    half = functional.FractionalAttention(FEATURES, HEADS, learn_alpha=True, dtype=jnp.bfloat16)
    found = half(params, x)
    assert found.dtype == jnp.bfloat16
    assert worst(found.astype(jnp.float32), core(params, x)) < 0.1  # projections of numbers of about 2 are rounded


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "alpha": ({"alpha": 2.5}, r"FractionalAttention\(alpha=2.5\): needs 0 < alpha <= 2"),
    "orders": ({"alpha": [1.0]}, "needs one order, or one for each of 2 heads"),
    "mixed": ({"alpha": [1.0, 2.0]}, "needs 2 for all heads or none"),
    "bounds": ({"learn_alpha": True, "bounds": (0, 3)}, "needs 0 <= low < high <= 2"),
    "dropout": ({"dropout_rate": 2.0}, "needs 0 <= dropout_rate <= 1"),
    "bandwidth": ({"bandwidth": 0.0}, "needs a finite bandwidth > 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_hyperparameters_are_refused(name: str) -> None:
    options, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        functional.FractionalAttention(FEATURES, HEADS, **options)


def test_wrong_inputs_are_refused() -> None:
    core: Any = functional.FractionalAttention(FEATURES, HEADS)
    params = jax.eval_shape(lambda key: core.init(key), jax.random.key(0))

    def call(*inputs: Any, **options: Any) -> Any:
        return jax.eval_shape(lambda params: core(params, *inputs, **options), params)

    x = jnp.zeros((2, 5, FEATURES))
    with pytest.raises(ValueError, match=r"inputs_q of shape \(2, 5, 4\)\): needs time and 6 features"):
        call(jnp.zeros((2, 5, 4)))
    with pytest.raises(ValueError, match="needs a value for each key"):
        call(x, x, x[:, :3])
    with pytest.raises(ValueError, match=r"mask of shape \(3, 5\)\): needs a shape that broadcasts to \(2, 2, 5, 5\)"):
        call(x, mask=jnp.ones((3, 5), bool))
    with pytest.raises(TypeError, match=r"mask of float32\): needs bool"):
        call(x, mask=jnp.ones((5, 5)))
    with pytest.raises(TypeError, match="needs float16, bfloat16, float32 or float64"):
        call(jnp.zeros((2, 5, FEATURES), int))
    with pytest.raises(TypeError, match="needs a state; pass what initial_state returned"):
        core.step(params, x[:, 0], None)
