"""Series in blocks, for JAX: the results and gradients of the whole series, however it is cut."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.fractional.definitions import DEFINITIONS, Definition

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytest.importorskip("flax")
import hpfracc_nn.jax as fjx  # noqa: E402
from hpfracc_nn.fractional.exponentials import exponentials_over  # noqa: E402
from hpfracc_nn.fractional.jax import streaming  # noqa: E402
from hpfracc_nn.fractional.streaming import HORIZON  # noqa: E402

F: Any = fjx.functional
DT = 0.5
QUICK = ("caputo-l1_2", "riemann_liouville_integral-trapezoid")  # each is compiled four times
SCHEMES = [
    pytest.param(kind, scheme, id=f"{name}-{scheme}", marks=() if f"{name}-{scheme}" in QUICK else pytest.mark.slow)
    for name, kind in DEFINITIONS.items()
    if kind(0.5).side == "left"
    for scheme in kind.schemes
]
# Of y, and of gradients in x and alpha. float64: what exponentials leave of a weight, and the sums of hundreds of them,
# and of a learned order what is fitted for all orders in its bounds; float32: its rounding in both calls, summed up. Of
# tempered derivatives, whole, it is 4e-7 of y and 5e-6 of the gradient in x, in blocks 1.1e-6 and 7.3e-6.
LARGEST = {"float64": (1e-12, 1e-12, 1e-11), "float32": (1.5e-6, 1e-5, 2e-5)}


@pytest.fixture(params=LARGEST)
def dtype(request: Any) -> Iterator[str]:
    """A dtype, with 64 bit types enabled for float64 only."""
    with jax.enable_x64(request.param == "float64"):
        yield request.param


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def signals(n: int) -> np.ndarray:
    """Return noise, a walk, a wave far from zero and a jump, [4, n]."""
    t = np.arange(n)
    return np.stack([noise(n), 5 + noise(n, seed=1).cumsum(), 20 + np.sin(t / 9), 1.0 * (t == 1)])


def cuts(n: int, seed: int, blocks: int) -> list[int]:
    """Return the lengths of drawn blocks that make up n samples; some are 0."""
    ends = np.sort(np.random.default_rng(seed).integers(0, n + 1, blocks - 1))
    return np.diff(np.concatenate([[0], ends, [n]])).tolist()


def apart(found: Any, wanted: Any) -> float:
    """Return the largest error, relative to the largest value of its row."""
    found, wanted = (np.asarray(each, np.float64) for each in (found, wanted))
    axis = -1 if wanted.ndim else None
    largest = np.maximum(np.abs(wanted).max(axis, keepdims=True), 1e-300)
    return float((np.abs(found - wanted) / largest).max())


def in_blocks(run: Callable[..., Any], x: Any, dim: int, lengths: list[int]) -> tuple[Any, Any]:
    """Return the results for all blocks, joined, and the last state."""
    state, ys = None, []
    for part in jnp.split(x, np.cumsum(lengths)[:-1], dim):
        y, state = run(part, state)
        ys.append(y)
    return jnp.concatenate(ys, dim), state


def is_streamed(definition: Definition) -> bool:
    if definition.subtracts and definition.taylor == 2:
        return False
    return exponentials_over(definition.in_steps(DT), HORIZON, "stream") is not None


@pytest.mark.parametrize(("kind", "scheme"), SCHEMES)
def test_any_blocks_give_the_whole_series(kind: type[Definition], scheme: str, dtype: str) -> None:
    """With gradients in the samples and in a learned order."""
    n = 700
    x, g = (jnp.asarray(each, dtype) for each in (signals(n), noise(4, n, seed=2)))
    low, high = max(kind.lowest, 0.0), min(kind.highest, 1.0)
    definition = kind(0.5 * (low + high), scheme, (low, high))
    if not is_streamed(definition):
        pytest.skip("no exponentials serve all orders in the bounds")

    def of_order(alpha: Any) -> Any:
        return kind(alpha, scheme, (low, high))

    def streamed(x: Any, alpha: Any) -> Any:
        state = streaming.initial_state("test", of_order(alpha), (4,), dt=DT)
        run = lambda part, before: streaming.run("test", part, before or state, 1)  # noqa: E731
        y, after = in_blocks(run, x, 1, [1, 130, 0, 16, n - 147])
        assert after.nbytes == state.nbytes
        return (y * g).sum(), y

    def whole(x: Any, alpha: Any) -> Any:
        y = fjx.derivative(x, of_order(alpha), dt=DT)
        return (y * g).sum(), y

    both = [jax.jit(jax.grad(each, (0, 1), has_aux=True)) for each in (streamed, whole)]
    for alpha in (0.3, 0.9):
        (gradients, y), (wanted, exact) = (each(x, jnp.asarray(alpha, dtype)) for each in both)
        assert y.dtype == x.dtype
        errors = [apart(y, exact), *map(apart, gradients, wanted)]
        assert all(one < other for one, other in zip(errors, LARGEST[dtype], strict=True)), (alpha, errors)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_fixed_orders_go_in_blocks(name: str) -> None:
    kind, x = DEFINITIONS[name], signals(300)
    if kind(0.5).side != "left":
        pytest.skip("it reads samples ahead")
    with jax.enable_x64(True):
        definition = kind(0.5)
        state = streaming.initial_state("test", definition, (4,), dt=DT)
        run = lambda part, before: streaming.run("test", part, before or state, 1)  # noqa: E731
        y, _ = in_blocks(run, jnp.asarray(x), 1, [150, 150])
        assert apart(y, definition(x, dt=DT)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 10, 50])
def test_drawn_blocks_of_a_long_series_give_the_whole(blocks: int) -> None:
    n = 8192
    with jax.enable_x64(True):
        core = F.FractionalLayer(0.4, "caputo", dt=DT, dim=-1)
        x = jnp.asarray(signals(n))
        y, _ = in_blocks(lambda part, state: core.run({}, part, state), x, 1, cuts(n, blocks, blocks))
        assert apart(y, core({}, x)) < 1e-12


def test_an_integral_whose_first_sample_counts_ever_more_goes_in_blocks(dtype: str) -> None:
    """Of a jump at 0: x(0) has a column that grows."""
    x = np.zeros((1, 4000))
    x[0, 0] = 1
    core = F.FractionalLayer(1.9, "riemann_liouville_integral", dim=-1)
    y, _ = in_blocks(lambda part, state: core.run({}, part, state), jnp.asarray(x, dtype), 1, [100, 1900, 2000])
    assert apart(y, core.definition(x)) < 2 * LARGEST[dtype][0]  # the weights of 4000 steps, rounded twice


ORDERS: dict[str, Any] = {"alpha": 0.4, "learn_alpha": True}
# A layer, the shape of its input and the axis of time.
LAYERS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "FractionalLayer": (F.FractionalLayer(0.4, "grunwald_letnikov", learn_alpha=True), (2, 60, 3), 1),
    "an order for each channel": (F.FractionalLayer([0.2, 0.4, 0.7], learn_alpha=True, dt=DT), (2, 60, 3), 1),
    "channels before time": (F.FractionalLayer((0.2, 0.4, 0.7), dim=-1), (2, 3, 60), 2),
    "FractionalLinear": (F.FractionalLinear(3, 4, **ORDERS), (2, 60, 3), 1),
    "FractionalConv1d": (F.FractionalConv1d(3, 2, 4, kernel_dilation=3, padding="CAUSAL", **ORDERS), (2, 60, 3), 1),
    "a kernel of one tap": (F.FractionalConv1d(3, 2, 1, padding="CAUSAL", **ORDERS), (60, 3), 0),
    "FractionalDifference": (F.FractionalDifference(3, 2, start=(0.3, 0.4)), (2, 60, 3), 1),
    "a bank of two parts": (F.FractionalDifference(3, 2, bounds=(-1, 1), start=(-0.5, 0.4), dim=-1), (2, 3, 60), 2),
    "ARFIMA": (F.ARFIMA(2, 3, alpha=0.3), (60, 4), 0),
    "FractionalGRU": (F.FractionalGRU(3, 2, num_layers=2, **ORDERS), (2, 60, 3), 1),
    "FractionalLSTM": (F.FractionalLSTM(3, 5, proj_size=2, dim=0, **ORDERS), (60, 2, 3), 0),
}


def parameters(core: Any) -> Any:
    params = core.init(jax.random.key(0), jnp.float64)
    lags = {name: jnp.full(params[name].shape, 0.2) for name in ("ar", "ma") if name in params}
    return {**params, **lags}


def test_every_layer_with_steps_has_blocks() -> None:
    cores = {type(core) for core, *_ in LAYERS.values()} | {F.FractionalAttention, F.RoughnessFeatures}
    every = {each for each in vars(F).values() if isinstance(each, type)}
    assert {each for each in every if hasattr(each, "step")} == cores
    for core in cores:
        for module in (getattr(fjx.nnx, core.__name__), getattr(fjx.linen, core.__name__)):
            assert hasattr(module, "run")


@pytest.mark.parametrize("name", LAYERS)
def test_layers_go_in_blocks_and_steps(name: str) -> None:
    """Jitted blocks, with steps between them, give the whole series, its gradients too."""
    core, shape, dim = LAYERS[name]
    with jax.enable_x64(True):
        params, x = parameters(core), jnp.asarray(noise(*shape))
        g = jnp.asarray(noise(*jax.eval_shape(core, params, x).shape, seed=1))

        def streamed(params: Any, x: Any) -> Any:
            first, middle, last = jnp.split(x, [21, 22], dim)
            y, state = core.run(params, first)
            ys = [y]
            for part in jnp.moveaxis(middle, dim, 0):
                y, state = core.step(params, part, state)
                ys.append(jnp.expand_dims(y, dim))
            for part in (last[(slice(None),) * dim + (slice(0, 0),)], last):
                y, state = core.run(params, part, state)
                ys.append(y)
            found = jnp.concatenate(ys, dim)
            return (found * g).sum(), found

        def whole(params: Any, x: Any) -> Any:
            found = core(params, x)
            return (found * g).sum(), found

        (gradients, y), (wanted, exact) = (
            jax.jit(jax.grad(each, (0, 1), has_aux=True))(params, x) for each in (streamed, whole)
        )
        bound = 1e-10 if "GRU" in name or "LSTM" in name else 1e-12  # the recurrent layers' own bound of a step
        assert apart(y.ravel(), exact.ravel()) < bound
        for one, other in zip(*map(jax.tree.leaves, (gradients, wanted)), strict=True):
            assert apart(one.ravel(), other.ravel()) < 1e-9


@pytest.mark.parametrize("dim", [-2, 0])
def test_attention_goes_in_blocks(dim: int) -> None:
    with jax.enable_x64(True):
        core = F.FractionalAttention(8, 2, alpha=0.5, add_bias_kv=True, dim=dim)
        x, params = jnp.asarray(noise(30, 2, 8) if dim == 0 else noise(2, 30, 8)), parameters(core)
        state, ys = core.initial_state(params, (2, 8), horizon=32), []
        for part in jnp.split(x, [1, 13, 13, 29], dim):
            y, state = core.run(params, part, state)
            ys.append(y)
        assert apart(jnp.concatenate(ys, dim), core(params, x, is_causal=True)) < 1e-12
        assert int(state.count) == 30
        y, _ = core.run(params, x[:3] if dim == 0 else x[:, :3], state)
        assert bool(jnp.isnan(y).all())
        with pytest.raises(ValueError, match=r"FractionalAttention\.run\(x of 33 samples\): needs at most horizon=32"):
            core.run(params, jnp.zeros((33, 2, 8) if dim == 0 else (2, 33, 8)), state)


@pytest.mark.parametrize("skip", [0, 25])
def test_features_of_blocks_are_those_of_all_samples_so_far(skip: int) -> None:
    with jax.enable_x64(True):
        core, x, state = F.RoughnessFeatures(3, orders=2, skip=skip), jnp.asarray(noise(2, 120, 3)), None
        for first, last in ((0, 10), (10, 60), (60, 120)):
            found, state = core.run({}, x[:, first:last], state)
            if last > skip:
                assert apart(found, core({}, x[:, :last])) < 1e-12


def test_a_scan_over_blocks_is_the_whole_under_vmap_jit_and_grad() -> None:
    core = F.FractionalLayer(0.6, "caputo", dt=DT, learn_alpha=True, dim=0)
    with jax.enable_x64(True):
        params, x = parameters(core), jnp.asarray(noise(5, 120))

        def streamed(params: Any, x: Any) -> Any:
            state = core.initial_state(params, ())
            blocks = x.reshape(4, 30)
            return jax.lax.scan(lambda state, part: core.run(params, part, state)[::-1], state, blocks)[1].reshape(-1)

        def gradients(run: Callable[..., Any]) -> Any:
            total = lambda params, x: (jax.vmap(run, (None, 0))(params, x) ** 2).sum()  # noqa: E731
            return jax.jit(jax.value_and_grad(total, (0, 1)))(params, x)

        for one, other in zip(*map(jax.tree.leaves, (gradients(streamed), gradients(core))), strict=True):
            assert apart(one, other) < 1e-11


def test_truncated_backpropagation_ends_at_a_renewed_state() -> None:
    core = F.FractionalLayer(0.4, "grunwald_letnikov", learn_alpha=True, dim=-1)
    params, x = core.init(), jnp.asarray(noise(2, 200), jnp.float32)

    def loss(params: Any, x: Any) -> Any:
        _, state = core.run(params, x[:, :100])
        y, _ = core.run(params, x[:, 100:], state.renew(core.initial_state(params, (2,))))
        return y.sum()

    of_order, of_x = jax.jit(jax.grad(loss, (0, 1)))(params, x)
    assert not of_x[:, :100].any()
    assert of_x[:, 100:].any()
    assert float(of_order["order"]["raw"]) != 0


def test_a_state_is_pickled_and_modules_of_both_kinds_have_blocks() -> None:
    x = jnp.asarray(noise(2, 40, 3), jnp.float32)
    for layer in (fjx.nnx.FractionalLayer(0.6), fjx.linen.FractionalLayer(0.6).bind({})):
        y, state = layer.run(x[:, :15])
        rest = [layer.run(x[:, 15:], each)[0] for each in (state, pickle.loads(pickle.dumps(state)))]
        assert jnp.array_equal(*rest)
        assert apart(jnp.concatenate([y, rest[0]], 1), layer(x)) < 1e-6


STATES: list[Any] = [
    F.FractionalLayer(0.4).initial_state({}, (2, 3), horizon=9),
    F.FractionalConv1d(3, 4, 3, padding="CAUSAL").initial_state({}, (2, 3), horizon=9),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_state_of_an_unknown_version_is_refused(state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = r"needs a state pickled in version 1 or before, .* 7; load it with the"
    for version, message in ((1, None), (7, refused)):
        with monkeypatch.context() as later:
            later.setattr("hpfracc_nn.fractional.streaming._VERSION", version)
            written = pickle.dumps(state)
        if message is None:
            assert jax.tree.structure(pickle.loads(written)) == jax.tree.structure(state)
        else:
            with pytest.raises(ValueError, match=message):
                pickle.loads(written)


def ones(*shape: int) -> Any:
    return jnp.ones(shape)


REFUSALS: list[tuple[Any, type, str]] = [
    (lambda: F.FractionalLayer(0.4).run({}, [1.0]), TypeError, "needs a JAX array"),
    (lambda: F.FractionalLayer(0.4).run({}, jnp.ones((3, 1), int)), TypeError, "needs float16"),
    (lambda: F.FractionalLayer(0.4).run({}, ones(9, 2), 3), TypeError, "needs a state"),
    (
        lambda: F.FractionalLayer(0.4).run({}, ones(9, 2), F.FractionalLayer(0.4).initial_state({}, (3,))),
        ValueError,
        "(9, 2)",
    ),
    (lambda: F.FractionalLayer(1.4).run({}, ones(9, 2)), ValueError, "looks ahead"),
    (
        lambda: F.FractionalLayer(0.4).run({}, ones(9, 2), F.FractionalLayer(0.5).initial_state({}, (2,))),
        ValueError,
        "needs a state of this one",
    ),
    (
        lambda: F.FractionalLayer(0.4).run({}, ones(9, 2), F.FractionalLayer(0.4).initial_state({}, (2,), horizon=8)),
        ValueError,
        "FractionalLayer.run(step 9): needs at most horizon=8",
    ),
    (lambda: F.FractionalConv1d(3, 2, 4).run({}, ones(2, 9, 3)), ValueError, "padding='CAUSAL'"),
    (lambda: F.FractionalDifference(3, dim=-1).run({}, ones(2, 3, 2, 9)), ValueError, "needs the channels last"),
    (lambda: F.FractionalGRU(3, 2, bidirectional=True).run({}, ones(4, 2, 3)), ValueError, "bidirectional=False"),
]


@pytest.mark.parametrize(("call", "kind", "message"), REFUSALS)
def test_what_cannot_go_in_blocks_is_named(call: Any, kind: type, message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        call()


def test_an_empty_batch_goes_in_blocks():
    layer = fjx.FractionalLayer(0.5, dim=-1)
    y, state = layer.run(jnp.zeros((0, 50)))
    assert y.shape == (0, 50)
    assert layer.run(jnp.zeros((0, 7)), state)[0].shape == (0, 7)
