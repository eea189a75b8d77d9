"""What optax's transformations compute: averages by their definition, optax's own at alpha = 1, states, wrappers."""

import math
import re
from typing import Any

import numpy as np
import pytest
from scipy.special import digamma

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

from jax import numpy as jnp  # noqa: E402
from jax.experimental import checkify  # noqa: E402

from hpfracc_nn.training import directions  # noqa: E402
from hpfracc_nn.training.jax.optimizers import (  # noqa: E402
    fractional_adam,
    fractional_adamw,
    fractional_rmsprop,
    fractional_sgd,
    scale_by_fractional,
)
from hpfracc_nn.training.jax.optimizers.optimizers import KINDS  # noqa: E402
from hpfracc_nn.training.jax.optimizers.transformations import _dropped  # noqa: E402
from tests.jax_compilations import compilations  # noqa: E402

AVERAGES = [("integral", 10), ("integral", 20), ("integral", "exponentials"), ("difference", 10), ("fcgd", 10)]
QUICK = 1  # what XLA compiles, it compiles slowly
every_average = pytest.mark.parametrize(
    ("kind", "memory"), [*AVERAGES[:QUICK], *(pytest.param(*each, marks=pytest.mark.slow) for each in AVERAGES[QUICK:])]
)
OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sgd": (fractional_sgd, optax.sgd, {"momentum": 0.9, "nesterov": True}),
    "adam": (fractional_adam, optax.adam, {"b1": 0.8}),
    "adamw": (fractional_adamw, optax.adamw, {"weight_decay": 0.1}),
    "rmsprop": (fractional_rmsprop, optax.rmsprop, {"centered": True}),
}
SHAPES = {"w": (3, 2), "inner": {"b": (4,)}}


@pytest.fixture
def mixing():
    """Types are mixed by optax: Adam in powers of a count, `MultiSteps` in means, `apply_updates` in half precision."""
    with jax.numpy_dtype_promotion("standard"):
        yield


optax_mixes = pytest.mark.usefixtures("mixing")


def tree(seed, dtype=np.float32, *before):
    """Return a tree of random arrays, with further axes before theirs."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: rng.standard_normal((*before, *shape)).astype(dtype),
        SHAPES,
        is_leaf=lambda each: isinstance(each, tuple),
    )


def at_step(trees, step):
    """Return what stands at a step of arrays that have one more axis."""
    return jax.tree.map(lambda each: each[step], trees)


def ran(optimizer, params, gradients, state=None):
    """Return parameters and state after stepping along given gradients, one after another, under scan."""

    def step(carry, grads):
        params, state = carry
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), updates

    state = optimizer.init(params) if state is None else state
    (params, state), updates = jax.jit(lambda *carry: jax.lax.scan(step, carry, gradients))(params, state)
    return params, state, updates


def assert_trees_equal(found, expected, **tolerance):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), **tolerance),
        found,
        expected,
    )


def by_definition(past, alpha, kind, memory, lag=None):
    """Return the average of gradients [steps, ...], in float64."""
    newest_first = np.asarray(past)[::-1]
    if memory == "exponentials":
        lags = np.arange(1, len(newest_first))
        weights = np.concatenate([[1.0], directions.decays() ** (lags[:, None] - 1) @ directions.coefficients(alpha)])
    else:
        weights = directions.LAWS[kind].weights(alpha, memory)[: len(newest_first)]
    if lag is not None and lag < len(weights):
        weights[lag] = 0
    if kind == "integral":
        weights = weights / weights.sum()
    return np.tensordot(weights, newest_first[: len(weights)], 1)


@pytest.mark.parametrize("alpha", [pytest.param(0.05, marks=pytest.mark.slow), 0.95])
@every_average
def test_updates_are_averages_of_the_last_gradients(kind, memory, alpha):
    with jax.enable_x64(True):
        params, gradients = tree(0, np.float64), tree(1, np.float64, 25)
        optimizer = scale_by_fractional(alpha, memory, kind, key=7)
        updates = ran(optimizer, params, gradients)[2]
        for step in range(25):
            lag = int(_dropped(7, jnp.int32(step), 9)) if kind == "fcgd" else None
            for found, past in zip(jax.tree.leaves(updates), jax.tree.leaves(gradients), strict=True):
                expected = by_definition(past[: step + 1], alpha, kind, memory, lag)
                np.testing.assert_allclose(found[step], expected, rtol=0, atol=1e-14)  # eps times a few of order 1


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 2, 10, "exponentials"])
def test_weights_of_the_integral_sum_to_1_at_every_step(memory):
    """In float32, the weights of up to nine rounded by 1.5 eps each."""
    gradient = jnp.asarray([1.0, -2.0, 1e6])
    optimizer = scale_by_fractional(0.4, memory)
    gradients = jnp.broadcast_to(gradient, (30, 3))
    updates = ran(optimizer, jnp.zeros(3), gradients)[2]
    np.testing.assert_allclose(updates, gradients, rtol=4 * float(jnp.finfo(jnp.float32).eps))


@pytest.mark.parametrize("alpha", [pytest.param(alpha, marks=pytest.mark.slow) for alpha in (0.02, 1.0)] + [0.6])
@every_average
def test_a_traced_alpha_has_the_weights_of_a_number(kind, memory, alpha):
    """In float64: the formulas are the same, but the exponentials' fit goes by another decomposition."""
    with jax.enable_x64(True):
        params, gradients = tree(0, np.float64), tree(1, np.float64, 15)
        traced = jax.jit(lambda alpha: ran(scale_by_fractional(alpha, memory, kind), params, gradients)[2])
        expected = ran(scale_by_fractional(lambda count: alpha, memory, kind), params, gradients)[2]
        assert_trees_equal(traced(jnp.asarray(alpha)), expected, rtol=0, atol=2e-14)


@pytest.mark.slow
@every_average
def test_weights_of_a_traced_alpha_are_float64_where_64_bit_types_are_not_enabled(kind, memory):
    gradients = tree(1, np.float32, 15)
    traced = jax.jit(lambda alpha: ran(scale_by_fractional(alpha, memory, kind), tree(0), gradients)[2])
    expected = ran(scale_by_fractional(0.5, memory, kind), tree(0), gradients)[2]
    assert_trees_equal(traced(jnp.asarray(0.5)), expected, rtol=0, atol=2e-6)  # 10 terms of order 1, each rounded


@pytest.mark.parametrize(
    "name", ["adam", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "adamw", "rmsprop"))]
)
@optax_mixes
def test_at_alpha_1_it_is_optaxs_optimizer_bit_for_bit(name):
    ours, theirs, options = OPTIMIZERS[name]
    params, gradients = tree(0), tree(1, np.float32, 20)
    found, state, _ = ran(ours(0.01, **options), params, gradients)
    expected, base, _ = ran(theirs(0.01, **options), params, gradients)
    assert_trees_equal(found, expected, rtol=0, atol=0)
    assert_trees_equal(state[-1], base, rtol=0, atol=0)
    assert not jax.tree.leaves(state[:-1])  # nothing is kept


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "memory"), [("integral", 4), ("integral", "exponentials"), ("caputo", 4)])
def test_a_step_at_alpha_1_drops_what_was_remembered(kind, memory):
    gradients = tree(1, np.float32, 12)
    alpha = lambda count: jnp.where(count == 5, 1.0, 0.5)  # noqa: E731
    optimizer = optax.chain(scale_by_fractional(alpha, memory, kind), optax.scale(-0.1))
    start, state, updates = ran(optimizer, tree(0), jax.tree.map(lambda g: g[:6], gradients))
    assert_trees_equal(jax.tree.map(lambda u: u[5], updates), jax.tree.map(lambda g: -0.1 * g[5], gradients), rtol=1e-7)
    rest = jax.tree.map(lambda g: g[6:], gradients)
    anew = optax.chain(scale_by_fractional(lambda count: jnp.asarray(0.5), memory, kind), optax.scale(-0.1))
    assert_trees_equal(ran(optimizer, start, rest, state)[0], ran(anew, start, rest)[0], rtol=1e-6)


@pytest.mark.slow
def test_the_closed_form_of_caputo_is_its_formula():
    """Entries that went no way stay, a tensor of which none did takes its gradient."""
    with jax.enable_x64(True):
        optimizer = scale_by_fractional(0.7, kind="caputo")
        params, grads = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([0.5, -1.0, 2.0])
        first, state = optimizer.update(grads, optimizer.init(params), params)
        np.testing.assert_array_equal(first, grads)
        still, state = optimizer.update(grads, state, params)
        np.testing.assert_array_equal(still, grads)
        way = jnp.asarray([0.25, 0.0, -2.0])
        found, _ = optimizer.update(grads, state, params + way)
        np.testing.assert_allclose(found, grads * abs(way) ** 0.3 / math.gamma(1.3), rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.2, 0.9, 1.0])
def test_caputos_derivative_from_0_is_that_of_a_power(alpha):
    """Of (x - 3)**2 / 2: x**(2 - alpha) / Gamma(3 - alpha) - 3 x**(1 - alpha) / Gamma(2 - alpha); and its slope."""
    with jax.enable_x64(True):
        x = jnp.asarray([0.5, 2.0, 7.0])
        square, line = x ** (2 - alpha) / math.gamma(3 - alpha), 3 * x ** (1 - alpha) / math.gamma(2 - alpha)
        expected = square - line

        def direction(alpha):
            optimizer = scale_by_fractional(alpha, kind="caputo_terminal")
            return optimizer.update(x, optimizer.init(x), x, value_fn=lambda x: ((x - 3) ** 2 / 2).sum())[0]

        for found in (direction(lambda count: alpha), jax.jit(direction)(jnp.asarray(alpha))):
            np.testing.assert_allclose(found, expected, rtol=1e-13)
        slope = square * (digamma(3 - alpha) - jnp.log(x)) - line * (digamma(2 - alpha) - jnp.log(x))
        np.testing.assert_allclose(jax.jacrev(direction)(alpha), slope, rtol=1e-8)  # at 1 of a root of 1e-14


@pytest.mark.slow
def test_alpha_has_exact_derivatives():
    """Of where SGD arrives, against central differences of step 1e-6: an error of about 1e-10."""
    with jax.enable_x64(True):
        gradients = jnp.asarray(np.random.default_rng(0).standard_normal((12, 3)))
        arrived = jax.jit(
            lambda alpha, memory: ran(fractional_sgd(1.0, alpha=alpha, memory=memory), jnp.ones(3), gradients)[0],
            static_argnums=1,
        )
        for memory in (5, "exponentials"):
            for alpha in (0.5, 1 - 1e-6):
                slope = jax.jacfwd(arrived)(alpha, memory)
                apart = (arrived(alpha + 1e-7, memory) - arrived(alpha - 1e-7, memory)) / 2e-7
                np.testing.assert_allclose(slope, apart, rtol=0, atol=1e-6)


AT_ONE = [*AVERAGES, ("caputo", 10), ("caputo_terminal", 10)]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "memory"), AT_ONE)
def test_an_order_of_1_has_the_slope_that_orders_below_it_lead_to(kind, memory):
    """Against differences from one side, of step 1e-4 and second order: an error of about 1e-8."""

    def value(x):
        return (x**2 + x**3).sum()

    with jax.enable_x64(True):
        grad = jnp.asarray([1.0, -2.0, 0.5])
        extra = {"value_fn": value} if kind == "caputo_terminal" else {}
        before = scale_by_fractional(jnp.asarray(0.5), memory, kind)
        state = before.init(grad)
        for size in (1.0, -1.5, 2.0):
            _, state = before.update(size * grad, state, size * grad, **extra)

        @jax.jit
        def update(alpha):
            return scale_by_fractional(alpha, memory, kind).update(3 * grad, state, 5 * grad, **extra)[0]

        below = (3 * update(1.0) - 4 * update(1 - 1e-4) + update(1 - 2e-4)) / 2e-4
        at_one = jax.grad(value)(5 * grad) if extra else 3 * grad
        np.testing.assert_allclose(update(1.0), at_one, rtol=1e-12)
        for slope in (jax.jacrev(update)(1.0), jax.jacfwd(update)(1.0)):
            np.testing.assert_allclose(slope, below, rtol=0, atol=1e-6 * float(jnp.abs(below).max()))


def test_of_a_window_at_order_1_the_slope_is_that_of_its_weights():
    """Its weights begin with 1, 1 - alpha, (1 - alpha) (2 - alpha) / 2, whose slopes at 1 are 0, -1, -1/2."""
    state = scale_by_fractional(jnp.asarray(0.5), 3).init(jnp.zeros(1))
    state = state._replace(stored=jnp.int32(2), gradients=jnp.asarray([[5.0], [7.0], [0.0]]))

    def update(alpha):
        return scale_by_fractional(alpha, 3).update(jnp.asarray([11.0]), state)[0][0]

    assert float(jax.jit(jax.grad(update))(1.0)) == pytest.approx(1.5 * 11 - 7 - 5 / 2, rel=1e-6)


@pytest.mark.slow
def test_a_step_outside_of_jit_compiles_once():
    params = {"a": jnp.ones((3, 2)), "b": jnp.ones(4)}
    optimizer = scale_by_fractional(0.7, 20)
    state = optimizer.init(params)
    for _ in range(2):
        optimizer.update(params, state)
    with compilations() as count:
        optimizer.update(params, state)
    assert count() == 0


# Precision.


@pytest.mark.slow
@pytest.mark.parametrize("memory", [10, "exponentials"])
def test_half_precision_sums_in_single_and_rounds_once(memory):
    params, gradients = tree(0, jnp.bfloat16), tree(1, jnp.bfloat16, 20)
    _, state, updates = ran(scale_by_fractional(0.3, memory), params, gradients)
    wide = ran(scale_by_fractional(0.3, memory), *(jax.tree.map(jnp.float32, each) for each in (params, gradients)))[2]
    jax.tree.map(lambda u, w: np.testing.assert_array_equal(u, w.astype(jnp.bfloat16)), updates, wide)
    kept = {each.dtype for each in jax.tree.leaves(state[2])}
    assert kept == {jnp.dtype(jnp.bfloat16 if memory == 10 else jnp.float32)}


@pytest.mark.slow
@optax_mixes
def test_a_history_keeps_the_dtype_that_it_is_given():
    params, gradients = tree(0, jnp.bfloat16), tree(1, jnp.float32, 12)
    _, state, updates = ran(scale_by_fractional(0.3, 4, history_dtype=jnp.float32), params, gradients)
    assert {each.dtype for each in jax.tree.leaves((state.gradients, updates))} == {jnp.dtype(jnp.float32)}
    assert_trees_equal(at_step(state.gradients, 11 % 4), at_step(gradients, 11), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [4, 20, "exponentials"])
def test_complex_gradients_are_averaged_as_they_are(memory):
    rng = np.random.default_rng(0)
    gradients = jnp.asarray(rng.standard_normal((6, 3)) + 1j * rng.standard_normal((6, 3)), jnp.complex64)
    updates = ran(scale_by_fractional(0.5, memory), jnp.zeros(3, jnp.complex64), gradients)[2]
    for part in (jnp.real, jnp.imag):
        expected = ran(scale_by_fractional(0.5, memory), jnp.zeros(3), part(gradients))[2]
        np.testing.assert_allclose(part(updates), expected, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_leaves_a_window():
    gradients = jnp.ones((8, 2)).at[2, 0].set(jnp.inf)
    updates = ran(scale_by_fractional(0.5, 3), jnp.zeros(2), gradients)[2]
    assert np.isfinite(updates).all(1).tolist() == [True, True, False, False, False, True, True, True]
    assert np.isfinite(updates[:, 1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("is_double", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.complex64])
@pytest.mark.parametrize(("kind", "memory"), AT_ONE)
def test_steps_promote_nothing_implicitly(kind, memory, dtype, is_double):
    with jax.enable_x64(is_double), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        x, extra = jnp.ones(2, dtype), {}
        if kind == "caputo_terminal":
            extra = {"value_fn": lambda x: (jnp.abs(x) ** 2).sum()}
        for alpha in (0.5, jnp.asarray(0.5)):
            optimizer = scale_by_fractional(alpha, memory, kind)
            state = optimizer.init(x)
            for _ in range(3):
                found, state = optimizer.update(x, state, x, **extra)
            assert found.dtype == dtype
            assert jnp.isfinite(found).all()


@pytest.mark.slow
def test_no_derivative_comes_from_a_gradient_that_weighs_nothing():
    """Where it does not weigh, what is not finite is not seen by the slope in alpha either."""
    optimizer = scale_by_fractional(0.5, 3)
    state = optimizer.init(jnp.zeros(2))
    state = state._replace(gradients=state.gradients.at[1:].set(jnp.inf))  # as it were before the first step

    def updates(alpha):
        return scale_by_fractional(alpha, 3).update(jnp.ones(2), state)[0]

    for slopes in (jax.jacfwd(updates)(0.5), jax.jacrev(updates)(0.5)):
        assert (slopes == 0).all()


def test_the_program_of_a_step_does_not_grow_with_a_long_memory():
    def lines(memory):
        optimizer = scale_by_fractional(0.5, memory)
        return str(jax.make_jaxpr(optimizer.update)(jnp.ones(3), optimizer.init(jnp.ones(3)))).count("\n")

    assert lines(200) == lines(20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_may_be_numbers_and_arrays_of_numpy(kind):
    key: Any = np.array([0, 7], np.uint32)
    optimizer = optax.with_extra_args_support(scale_by_fractional(0.5, 3, kind, key=key))
    value = lambda p: p["number"] ** 2 + (p["array"] ** 2).sum()  # noqa: E731
    params, grads = ({"number": number, "array": np.full(2, number)} for number in (1.0, 2.0))
    state = optimizer.init(params)
    for _ in range(2):
        updates, state = optimizer.update(grads, state, params, value_fn=value)
    np.testing.assert_allclose(updates["number"], updates["array"], rtol=1e-6)


# Inside optax's wrappers.


@pytest.mark.slow
@optax_mixes
def test_hyperparameters_are_injected_and_scheduled():
    """As with a function of the count; the number of steps is a hyperparameter of no effect."""
    params, gradients = tree(0), tree(1, np.float32, 8)
    alpha = optax.linear_schedule(0.3, 0.9, 6)
    found = ran(
        optax.inject_hyperparams(fractional_adam, static_args="memory")(0.1, alpha=alpha, memory=4), params, gradients
    )
    expected = ran(fractional_adam(0.1, alpha=alpha, memory=4), params, gradients)
    assert_trees_equal(found[0], expected[0], rtol=2e-4)  # 1 - b2 of a b2 in float32 is right to 6e-5


def test_a_memory_that_is_injected_is_that_of_the_state():
    params, grads = tree(0), tree(1)
    optimizer = optax.inject_hyperparams(fractional_sgd)(0.1, alpha=0.5, memory=3)
    state = optimizer.init(params)
    assert state.inner_state[0].gradients["w"].shape == (3, 3, 2)
    state.hyperparams["alpha"] = jnp.asarray(0.25)
    updates, state = jax.jit(optimizer.update)(grads, state, params)
    assert_trees_equal(updates, jax.tree.map(lambda g: -0.1 * g, grads), rtol=1e-6)
    with pytest.raises(TypeError, match=r"Invalid memory type: traced array: .* pass static_args='memory'"):
        jax.jit(optimizer.init)(params)


@pytest.mark.slow
def test_masked_parameters_remember_nothing():
    params, gradients = tree(0), tree(1, np.float32, 6)
    optimizer = optax.masked(scale_by_fractional(0.5, 4), {"w": True, "inner": {"b": False}})
    _, state, updates = ran(optimizer, params, gradients)
    np.testing.assert_array_equal(updates["inner"]["b"], gradients["inner"]["b"])
    expected = ran(scale_by_fractional(0.5, 4), params["w"], gradients["w"])[2]
    np.testing.assert_allclose(updates["w"], expected, rtol=1e-6)
    assert [each.shape for each in jax.tree.leaves(state)] == [(), (), (4, 3, 2)]


@pytest.mark.slow
@optax_mixes
def test_parts_of_the_parameters_have_their_own_order():
    params, gradients = tree(0), tree(1, np.float32, 6)
    parts = {"far": fractional_sgd(0.1, alpha=0.2), "near": fractional_adam(0.1, alpha=0.9, memory="exponentials")}
    found = ran(optax.partition(parts, {"w": "far", "inner": "near"}), params, gradients)[0]
    for name, label in (("w", "far"), ("inner", "near")):
        expected = ran(parts[label], params[name], gradients[name])[0]
        assert_trees_equal(found[name], expected, rtol=1e-6)


@pytest.mark.slow
@optax_mixes
def test_accumulated_gradients_are_one():
    """Four gradients of which two are averaged at a time are two gradients."""
    params, gradients = tree(0), tree(1, np.float32, 4)
    optimizer = optax.MultiSteps(fractional_sgd(0.1, alpha=0.5, memory=3), 2)
    found = ran(optimizer, params, gradients)[0]
    pairs = jax.tree.map(lambda g: g.reshape(2, 2, *g.shape[1:]).mean(1), gradients)
    expected = ran(fractional_sgd(0.1, alpha=0.5, memory=3), params, pairs)[0]
    assert_trees_equal(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@optax_mixes
def test_models_side_by_side_have_each_their_alpha():
    params, gradients = tree(0, np.float32, 3), tree(1, np.float32, 3, 8)
    alphas = jnp.asarray([0.2, 0.7, 1.0])

    def arrived(alpha, params, gradients):
        return ran(fractional_adam(0.1, alpha=alpha, memory=4), params, gradients)[0]

    found = jax.vmap(arrived)(alphas, params, gradients)
    for row in range(3):
        expected = arrived(alphas[row], at_step(params, row), at_step(gradients, row))
        assert_trees_equal(at_step(found, row), expected, rtol=1e-4, atol=1e-6)


def test_the_state_has_trees_of_the_parameters():
    """What maps a state by its parameters, as whoever distributes it does, finds every array but two counts."""
    params = tree(0)
    for memory, shapes in ((4, [(4, 4), (4, 3, 2)]), ("exponentials", [(4,), (3, 2)] * 4)):
        optimizer = scale_by_fractional(0.5, memory)
        found = optax.tree.map_params(optimizer, lambda each, p: str(each.shape), optimizer.init(params), params)
        assert jax.tree.leaves(found[2]) == [str(shape) for shape in shapes]


def is_laid_out_as(p, kept):
    """Whether the last axes of what is kept are on the devices that the parameter's are on."""
    shards = {shard.device: shard.index for shard in p.addressable_shards}
    return all(shard.index[-p.ndim :] == shards[shard.device] for shard in kept.addressable_shards)


@pytest.mark.parametrize("memory", [4, pytest.param("exponentials", marks=pytest.mark.slow)])
@optax_mixes
def test_a_saved_run_goes_on_bit_for_bit(memory):
    serialization = pytest.importorskip("flax.serialization")
    optimizer = fractional_adam(0.1, alpha=optax.linear_schedule(0.3, 0.9, 10), memory=memory)
    params, gradients = tree(0, jnp.bfloat16), tree(1, jnp.bfloat16, 12)
    state = optimizer.init(params)
    step = jax.jit(optimizer.update)
    for count in range(12):
        if count == 6:
            saved = serialization.to_bytes((params, state))
            params, state = serialization.from_bytes((params, optimizer.init(params)), saved)
            assert serialization.to_bytes((params, state)) == saved
            at_half = params, state
        updates, state = step(at_step(gradients, count), state, params)
        params = optax.apply_updates(params, updates)
    again, state = at_half
    for count in range(6, 12):
        updates, state = step(at_step(gradients, count), state, again)
        again = optax.apply_updates(again, updates)
    assert_trees_equal(again, params, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [4, "exponentials"])
@optax_mixes
def test_a_state_is_laid_out_as_its_parameters_and_steps_alike(memory):
    devices = jax.devices()
    if len(devices) < 4:
        pytest.skip("needs four devices")
    mesh = jax.sharding.Mesh(np.array(devices[:4]), ("data",))
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    rng = np.random.default_rng(0)
    params, grads = (jnp.asarray(rng.standard_normal((8, 3)), jnp.float32) for _ in range(2))
    optimizer = fractional_adam(0.1, alpha=0.5, memory=memory)
    found, expected = ((jax.device_put(params, place), jax.device_put(grads, place)), (params, grads))
    step = jax.jit(optimizer.update)
    updates = []
    for p, g in (found, expected):
        state = optimizer.init(p)
        assert all(is_laid_out_as(p, each) for each in jax.tree.leaves(state[0][2]))
        for _ in range(3):
            u, state = step(g, state, p)
        assert all(is_laid_out_as(p, each) for each in jax.tree.leaves(state[0][2]))
        updates.append(u)
    np.testing.assert_allclose(updates[0], updates[1], rtol=1e-6)


# What is refused.

INVALID = [
    ({"alpha": 0.0}, ValueError, "Invalid alpha value: 0.0: needs 0 < alpha <= 1; pass alpha=1 for the base optimizer"),
    ({"alpha": 1.5}, ValueError, "Invalid alpha value: 1.5"),
    ({"alpha": float("nan")}, ValueError, "Invalid alpha value: nan"),
    ({"alpha": np.array(2.0)}, ValueError, "Invalid alpha value: 2.0"),
    ({"alpha": "half"}, TypeError, "Invalid alpha type: str: needs a number; pass a float such as alpha=0.9"),
    ({"alpha": True}, TypeError, "Invalid alpha type: bool"),
    ({"alpha": np.ones(2)}, TypeError, "Invalid alpha type: array of float64 and shape (2,): needs a number"),
    ({"memory": 0}, ValueError, "Invalid memory value: 0: needs memory >= 1; pass the number of gradients to average"),
    ({"memory": 2.5}, TypeError, "Invalid memory type: float: needs a whole number or 'exponentials'"),
    ({"memory": "all"}, TypeError, "Invalid memory type: str"),
    ({"memory": np.ones(2)}, TypeError, "Invalid memory type: ndarray"),
    ({"kind": "riesz"}, ValueError, "Invalid kind: 'riesz': needs one of 'integral', 'difference', 'fcgd', 'caputo'"),
    ({"kind": None}, ValueError, "Invalid kind: None: needs one of"),
    ({"kind": "difference", "memory": "exponentials"}, ValueError, "Invalid memory value: 'exponentials' with kind"),
    ({"kind": "caputo", "memory": "exponentials"}, ValueError, "which keeps no past gradients; pass a number"),
]


@pytest.mark.parametrize(("options", "error", "message"), INVALID, ids=[str(each[0]) for each in INVALID])
def test_bad_options_are_refused_at_the_door(options, error, message):
    for make in (fractional_sgd, fractional_adam, fractional_adamw, fractional_rmsprop):
        with pytest.raises(error, match=re.escape(message)):
            make(0.1, **{"alpha": 0.5, **options})


@pytest.mark.slow
def test_a_schedule_that_leaves_its_range_is_refused_where_it_is_known():
    optimizer = scale_by_fractional(lambda count: 0.5 + count.astype(float))
    grads = jnp.ones(2)
    _, state = optimizer.update(grads, optimizer.init(grads))
    with pytest.raises(ValueError, match=r"Invalid alpha value: 1\.5"):
        optimizer.update(grads, state)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.5, -0.5])
def test_a_traced_alpha_beyond_its_range_makes_the_step_nan_and_under_checkify_is_refused(alpha):
    gradients = tree(1, np.float32, 3)

    def updates(alpha):
        return ran(scale_by_fractional(alpha, 3), tree(0), gradients)[2]

    traced = jax.jit(updates)
    assert all(np.isnan(each).all() for each in jax.tree.leaves(traced(alpha)))
    rounded = np.nextafter(np.float32(1), np.float32(2))  # as a schedule may be
    assert_trees_equal(traced(rounded), traced(1.0), rtol=0, atol=0)
    error, _ = checkify.checkify(traced)(alpha)
    with pytest.raises(checkify.JaxRuntimeError, match=r"Invalid alpha value: .*: needs 0 < alpha <= 1"):
        error.throw()
    assert checkify.checkify(traced)(0.5)[0].get() is None


def test_a_state_of_something_else_is_refused():
    params = {"w": jnp.ones(3)}
    state = scale_by_fractional(0.5, 4).init(params)
    refused = [
        (scale_by_fractional(0.5, 3), params, ValueError, "holds what memory=4 remembers and memory=3 was asked for"),
        (scale_by_fractional(0.5, "exponentials"), params, TypeError, "the state is a FractionalWindowState and"),
        (scale_by_fractional(0.5, 4), {"w": jnp.ones(2)}, ValueError, "past gradients of shape (3,), and the gradient"),
        (
            scale_by_fractional(0.5, 4),
            {"w": None},
            ValueError,
            "leave parameters that have no gradient to optax.masked",
        ),
    ]
    for optimizer, grads, error, message in refused:
        with pytest.raises(error, match=re.escape(message)):
            optimizer.update(grads, state)


def test_kinds_along_the_way_say_what_they_need():
    x = jnp.ones(2)
    for kind in ("caputo", "caputo_terminal"):
        optimizer = scale_by_fractional(0.5, kind=kind)
        with pytest.raises(ValueError, match=re.escape("needs the parameters; call update(updates, state, params)")):
            optimizer.update(x, optimizer.init(x))
    with pytest.raises(ValueError, match="needs gradients at other points; pass value_fn"):
        optimizer.update(x, optimizer.init(x), x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_goes_down_a_quadratic(kind):
    """All but the derivative from a fixed terminal, whose limit is at 3 (2 - alpha)."""
    value = lambda x: ((x - 3) ** 2).sum() / 2  # noqa: E731
    optimizer = optax.chain(scale_by_fractional(0.7, kind=kind), optax.scale(-0.05))

    def step(carry, _):
        x, state = carry
        updates, state = optimizer.update(jax.grad(value)(x), state, x, value_fn=value)
        return (x + updates, state), None

    x = jnp.ones(2)
    (x, _), _ = jax.jit(lambda *carry: jax.lax.scan(step, carry, length=2000))(x, optimizer.init(x))
    limit, tolerance = {"caputo_terminal": (3 * 1.3, 1e-5), "caputo": (3, 0.01)}.get(kind, (3, 1e-5))
    np.testing.assert_allclose(x, limit, rtol=tolerance)
