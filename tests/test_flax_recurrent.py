"""What is particular to the recurrent layers for Flax: the ordinary cells, the memory, states, lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
flax = pytest.importorskip("flax")
from flax import nnx  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from hpfracc_nn.fractional.namespace import NUMPY  # noqa: E402
from hpfracc_nn.fractional.schemes.differences import binomial  # noqa: E402
from hpfracc_nn.layers.flax import functional, linen  # noqa: E402
from hpfracc_nn.layers.flax import nnx as modules  # noqa: E402
from hpfracc_nn.layers.flax.functional.recurrence import CELLS  # noqa: E402

KINDS: dict[str, Any] = {"lstm": functional.FractionalLSTM, "gru": functional.FractionalGRU}
each_kind = pytest.mark.parametrize("kind", KINDS)
FEATURES, UNITS = 3, 4


def series(*shape: int) -> Any:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape))


def made(kind: str, **options: Any) -> tuple[Any, Any]:
    """Return a core and its parameters, with biases that are not 0."""
    core = KINDS[kind](FEATURES, UNITS, bias_init=jax.nn.initializers.normal(0.5), **options)
    return core, core.init(jax.random.key(1), jnp.result_type(float))


def worst(found: Any, wanted: Any) -> float:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(jnp.abs(a - b).max(initial=0)) for a, b in pairs)


@pytest.mark.slow
@each_kind
def test_at_alpha_one_it_is_flaxs_layer(kind: str) -> None:
    with jax.enable_x64(True):
        core, params = made(kind, alpha=1.0)
        cell_class: Any = {"lstm": nnx.OptimizedLSTMCell, "gru": nnx.GRUCell}[kind]
        cell = cell_class(FEATURES, UNITS, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        own = params["layer_0"]
        for name in ("dense_i", "dense_h"):
            getattr(cell, name).kernel[...] = own[name]["kernel"]
        if kind == "lstm":
            cell.dense_h.bias[...] = own["dense_h"]["bias"]
        else:  # Flax's has no bias of its own for what the reset gate multiplies
            cell.dense_i.bias[...] = own["dense_i"]["bias"]
            own["dense_h"]["bias"] = jnp.zeros(UNITS)
        x = series(2, 40, FEATURES)
        lengths = jnp.array([40, 17])
        carry, wanted = nnx.RNN(cell, return_carry=True)(x, seq_lengths=lengths)
        state, found = core(params, x, seq_lengths=lengths, return_carry=True)
        counted = jnp.arange(40)[None] < lengths[:, None]  # Flax's reads on behind the end of a series
        assert worst(found[counted], wanted[counted]) < 1e-14
        last = (state.value[:, 0], state.h[:, 0]) if kind == "lstm" else state.h[:, 0]
        assert worst(last, carry) < 1e-14


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("memory", [None, 6, 50])
@pytest.mark.parametrize("alpha", [0.4, [0.1, 0.5, 0.8, 1.0]], ids=["one", "each"])
def test_the_memory_is_the_sum_over_the_past_with_exact_weights(kind: str, memory: int | None, alpha: Any) -> None:
    """Step by step in float64, by the definition; 1e-10: exponentials are right to 1e-11 of a weight."""
    with jax.enable_x64(True):
        core, params = made(kind, alpha=alpha, memory=memory)
        x, n = series(2, 90, FEATURES), 90
        weights, projected = core._weights(params["layer_0"], x.swapaxes(0, 1), jnp.float64)
        lag = np.arange(1, n + 1)
        a = -binomial(np.atleast_1d(np.asarray(alpha, dtype=np.float64)), lag, NUMPY).T
        a = a if memory is None else a * (lag <= memory)[:, None]
        step, values, h = jax.jit(CELLS[kind].step), [np.zeros((2, UNITS))], jnp.zeros((2, UNITS))
        wanted = []
        for k in range(n):
            m = np.einsum("lu,lbu->bu", np.broadcast_to(a[: k + 1], (k + 1, UNITS)), np.stack(values[::-1]))
            h, value = step(weights, projected[k], h, m)
            values.append(np.asarray(value))
            wanted.append(h)
        assert worst(core(params, x), jnp.stack(wanted, axis=1)) < 1e-10


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize("memory", [None, 20])
def test_a_series_in_parts_or_step_by_step_is_the_whole_series(kind: str, memory: int | None) -> None:
    with jax.enable_x64(True):
        core, params = made(kind, num_layers=2, alpha=0.4, learn_alpha=True, memory=memory)
        x = series(3, 2, 53, FEATURES)  # a batch of two axes
        start = core.initial_state(params, (3, 2, FEATURES))
        whole, out = core(params, x, initial_carry=start, return_carry=True)
        first, before = core(params, x[..., :21, :], return_carry=True)
        second, after = core(params, x[..., 21:, :], initial_carry=first, return_carry=True)
        assert worst(jnp.concatenate([before, after], axis=-2), out) < 1e-13
        assert worst(second, whole) < 1e-13

        def step(state: Any, x: Any) -> Any:
            y, state = core.step(params, x, state)
            return state, y

        last, each = jax.lax.scan(step, start, jnp.moveaxis(x, -2, 0))
        assert worst(jnp.moveaxis(each, 0, -2), out) < 1e-13
        assert worst(last, whole) < 1e-13
        assert worst(core(params, x), out) < 1e-10  # other exponentials, for n and not for the horizon


@pytest.mark.slow
@each_kind
def test_a_state_goes_on_with_new_weights_of_the_whole_past(kind: str) -> None:
    """The gradient in alpha sees the lags behind a state through which none is taken."""
    with jax.enable_x64(True):
        core, params = made(kind, alpha=0.5, learn_alpha=True)
        state, _ = core(params, series(1, 30, FEATURES), return_carry=True)

        def end(raw: Any) -> Any:
            return core.step({**params, "order": {"raw": raw}}, jnp.zeros((1, FEATURES)), state)[0].sum()

        raw, small = params["order"]["raw"], 1e-6
        slope = (end(raw + small) - end(raw - small)) / (2 * small)
        assert float(jax.grad(end)(raw)) == pytest.approx(float(slope), rel=1e-6)
        assert abs(float(slope)) > 1e-4


@pytest.mark.slow
@each_kind
def test_series_of_several_lengths_are_computed_each_for_itself(kind: str) -> None:
    with jax.enable_x64(True):
        core, params = made(kind, num_layers=2, bidirectional=True, memory=9)
        x, lengths = series(3, 40, FEATURES), (40, 23, 1)
        state, out = core(params, x, seq_lengths=jnp.array(lengths), return_carry=True)
        for item, length in enumerate(lengths):
            alone, its = core(params, x[item : item + 1, :length], return_carry=True)
            assert worst(out[item, :length], its[0]) < 1e-14
            assert (
                worst(
                    jax.tree.map(lambda each, item=item: each[item], state), jax.tree.map(lambda each: each[0], alone)
                )
                < 1e-14
            )
        nothing, _ = core(params, x[:1], seq_lengths=jnp.array([0]), return_carry=True)
        assert worst(nothing, core.initial_state(params, (1, FEATURES))) == 0


@pytest.mark.slow
@each_kind
def test_both_modules_are_the_core(kind: str) -> None:
    name = {"lstm": "FractionalLSTM", "gru": "FractionalGRU"}[kind]
    options = {"alpha": 0.6, "learn_alpha": True, "num_layers": 2, "dropout_rate": 0.5}
    x = series(2, 20, FEATURES).astype(jnp.float32)
    module = getattr(modules, name)(FEATURES, UNITS, **options, rngs=nnx.Rngs(params=0, dropout=1))
    params = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    wanted = module.core(params, x)
    first, second = module(x), module(x)
    assert worst(first, second) > 1e-3  # other weights are dropped
    module.eval()
    assert worst(module(x), wanted) == 0
    assert worst(module(x, deterministic=False, rngs=jax.random.key(3)), wanted) > 1e-3
    layer = getattr(linen, name)(FEATURES, UNITS, **options)
    assert jax.tree.map(jnp.shape, layer.init(jax.random.key(0), x)["params"]) == jax.tree.map(jnp.shape, params)
    variables = {"params": params}
    assert worst(layer.apply(variables, x), wanted) == 0
    dropped = layer.apply(variables, x, rngs={"dropout": jax.random.key(3)})
    assert worst(dropped, module.core(params, x)) > 1e-3
    assert worst(layer.apply(variables, x, deterministic=True, rngs={"dropout": jax.random.key(3)}), wanted) == 0
    state = module.initial_state((2, FEATURES))
    y, _ = module.step(x[:, 0], state)
    assert worst(layer.apply(variables, x[:, 0], state, method="step")[0], y) == 0
    assert worst(y, wanted[:, 0]) < 1e-6


@pytest.mark.slow
@each_kind
def test_the_program_does_not_grow_with_the_series(kind: str) -> None:
    core, params = made(kind, learn_alpha=True)

    def size(n: int) -> int:
        x = jnp.zeros((2, n, FEATURES))
        return len(jax.jit(jax.grad(lambda params: core(params, x).sum())).lower(params).as_text().splitlines())

    assert size(1000) <= 1.05 * size(100)


@pytest.mark.slow
@each_kind
def test_half_precision_is_computed_in_single(kind: str) -> None:
    core, params = made(kind, learn_alpha=True)
    x = series(2, 20, FEATURES).astype(jnp.float32)
    half = KINDS[kind](FEATURES, UNITS, learn_alpha=True, dtype=jnp.bfloat16)
    found = half(params, x)
    assert found.dtype == jnp.bfloat16
    assert worst(found.astype(jnp.float32), core(params, x)) < 2**-8  # one rounding of numbers below 1


@pytest.mark.slow
@each_kind
def test_time_may_be_any_axis_but_the_last(kind: str) -> None:
    core, params = made(kind)
    first = KINDS[kind](FEATURES, UNITS, dim=0)
    x = series(7, 2, FEATURES).astype(jnp.float32)
    assert worst(first(params, x), core(params, x.swapaxes(0, 1)).swapaxes(0, 1)) == 0
    assert worst(core(params, x[:, 0]), first(params, x)[:, 0]) < 1e-6  # without a batch


@pytest.mark.slow
def test_a_sharded_batch_is_the_whole_one() -> None:
    core, params = made("lstm", learn_alpha=True)
    x = series(8, 20, FEATURES).astype(jnp.float32)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType.Auto,))
    spread = jax.device_put(x, jax.NamedSharding(mesh, jax.P("batch")))
    gradient = jax.jit(jax.grad(lambda params, x: (core(params, x) ** 2).sum()))
    found, wanted = gradient(params, spread), gradient(params, x)
    assert worst(found, wanted) < 1e-5  # sums over the batch in another order


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "alpha": ({"alpha": 1.2}, r"FractionalLSTM\(alpha=1.2\): needs 0 < alpha <= 1"),
    "bounds": ({"learn_alpha": True, "alpha": 1.2, "bounds": (0, 2)}, "needs 0 < alpha <= 1"),
    "orders": ({"alpha": [0.1, 0.2]}, r"alpha of shape \(2,\)\): needs one order"),
    "memory": ({"memory": 0}, "needs memory >= 1"),
    "dropout": ({"dropout_rate": 1.5}, "needs 0 <= dropout_rate <= 1"),
    "projection": ({"proj_size": 4}, "needs fewer outputs than units"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_hyperparameters_are_refused(name: str) -> None:
    options, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        functional.FractionalLSTM(FEATURES, UNITS, **options)


def test_wrong_inputs_are_refused() -> None:
    core: Any = functional.FractionalLSTM(FEATURES, UNITS)
    params = {"layer_0": {"dense_h": {"kernel": jnp.zeros(1)}}}
    with pytest.raises(ValueError, match=r"needs 3 inputs on the last axis; x has shape \(2, 5, 4\)"):
        core(params, jnp.zeros((2, 5, 4)))
    with pytest.raises(TypeError, match="needs a real floating array"):
        core(params, jnp.zeros((2, 5, 3), int))
    with pytest.raises(ValueError, match="needs at least one step"):
        core(params, jnp.zeros((2, 0, 3)))
    with pytest.raises(ValueError, match=r"seq_lengths of shape \(3,\)"):
        core(params, jnp.zeros((2, 5, 3)), seq_lengths=jnp.ones(3, int))
    for lengths in ([2, -1], [2, 6]):
        with pytest.raises(ValueError, match=r"FractionalLSTM\(seq_lengths=\[2, (-1|6)\]\): needs 0 <= length <= 5"):
            core(params, jnp.zeros((2, 5, 3)), seq_lengths=jnp.array(lengths))
    with pytest.raises(ValueError, match=r"initial_carry of shape \(2, 5\)"):
        core(params, jnp.zeros((2, 5, 3)), initial_carry=(jnp.zeros((2, 5)), jnp.zeros((2, 4))))
    with pytest.raises(TypeError, match="needs a state; pass what initial_state returned"):
        core.step(params, jnp.zeros((2, 3)), None)
    state = core.initial_state(params, (2, 3), horizon=10)
    with pytest.raises(ValueError, match="state with h of shape"):
        core.step(params, jnp.zeros((5, 3)), state)
    both = functional.FractionalLSTM(FEATURES, UNITS, bidirectional=True)
    with pytest.raises(ValueError, match="needs bidirectional=False"):
        both.step(params, jnp.zeros((2, 3)), state)
