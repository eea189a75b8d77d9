"""Equations as layers for Flax: closed forms, what the modules hold, what they draw and what they refuse."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flax")

import jax
from flax import linen, nnx
from jax import numpy as jnp

from hpfracc_nn.layers.flax import functional
from hpfracc_nn.layers.flax import linen as of_linen
from hpfracc_nn.layers.flax import nnx as of_nnx

X = np.random.default_rng(0).standard_normal((4, 3))
AN_ARRAY: Any = jnp.ones(2) / 2  # to a type checker


class Field(nnx.Module):
    def __init__(self, width, rngs):
        self.net = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, t, z):
        return jnp.tanh(self.net(z)) * jnp.cos(t)


class LinenField(linen.Module):
    @linen.compact
    def __call__(self, t, z):
        return jnp.tanh(linen.Dense(z.shape[-1], name="net")(z)) * jnp.cos(t)


class Noisy(nnx.Module):
    def __init__(self, rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, t, z):
        return self.drop(jnp.ones_like(z))


class Counting(nnx.Module):
    def __init__(self):
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))

    def __call__(self, t, z):
        self.count[...] += 1
        return -z


def fields(t, z, variables):
    return jnp.tanh(z @ variables["kernel"] + jnp.broadcast_to(variables["bias"], z.shape)) * jnp.cos(t)


def rectangle(f, x, alpha, n_steps, t1):
    """The sum of the docstring, step by step."""
    h = t1 / n_steps
    b = np.diff(np.arange(n_steps + 1.0) ** alpha) / math.gamma(1 + alpha)
    values, z = [], x
    for n in range(n_steps):
        values.append(f(n * h, z))
        z = x + h**alpha * sum(b[n - j] * value for j, value in enumerate(values))
    return z


def test_the_block_is_the_sum_over_all_earlier_steps():
    rng = np.random.default_rng(1)
    kernel, bias = rng.standard_normal((3, 3)), rng.standard_normal(3)
    expected = rectangle(lambda t, z: np.tanh(z @ kernel + bias) * np.cos(t), X, 0.6, 6, 1.5)
    core = functional.FDEBlock(fields, 0.6, t1=1.5, n_steps=6)
    with jax.enable_x64(True):
        found = jax.jit(core)({}, jnp.asarray(X), {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(bias)})
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_modules_of_both_kinds_are_their_core():
    x = jnp.asarray(X, jnp.float32)
    module = of_nnx.FDEBlock(Field(3, nnx.Rngs(0)), 0.7, n_steps=3, learn_alpha=True)
    state = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    found = nnx.jit(lambda module: module(x))(module)
    shell = of_linen.FDEBlock(LinenField(), 0.7, n_steps=3, learn_alpha=True)
    made = shell.init(jax.random.key(0), x)["params"]
    assert jax.tree.map(jnp.shape, made) == jax.tree.map(jnp.shape, state)
    np.testing.assert_allclose(shell.apply({"params": state}, x), found, rtol=1e-6)
    core = functional.FDEBlock(fields, 0.7, n_steps=3, learn_alpha=True)
    np.testing.assert_allclose(core({"order": state["order"]}, x, state["f"]["net"]), found, rtol=1e-6)


@pytest.mark.slow
def test_gradients_reach_the_field_and_the_order_of_both_kinds():
    x = jnp.asarray(X, jnp.float32)
    module = of_nnx.FDEBlock(Field(3, nnx.Rngs(0)), 0.7, n_steps=4, learn_alpha=True)
    state = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    found = nnx.to_pure_dict(nnx.jit(nnx.grad(lambda module: (module(x) ** 2).sum()))(module))
    shell = of_linen.FDEBlock(LinenField(), 0.7, n_steps=4, learn_alpha=True)
    loss = jax.jit(lambda params: (shell.apply({"params": params}, x) ** 2).sum())
    other = jax.grad(loss)(state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, other)
    # The central difference of float32 values of about 10, a step of 1e-2: 1e-3 at most.
    raised, lowered = ({**state, "order": {"raw": state["order"]["raw"] + step}} for step in (1e-2, -1e-2))
    slope = (loss(raised) - loss(lowered)) / 2e-2
    assert float(found["order"]["raw"]) == pytest.approx(float(slope), rel=5e-3, abs=2e-3)


@pytest.mark.slow
def test_a_block_stands_in_a_network_that_is_trained():
    optax = pytest.importorskip("optax")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 5, rngs=rngs)
            self.block = of_nnx.FDEBlock(Field(5, rngs), 0.7, n_steps=4, learn_alpha=True)
            self.last = nnx.Linear(5, 1, rngs=rngs)

        def __call__(self, x):
            return self.last(self.block(self.first(x)))

    net, x = Net(nnx.Rngs(0)), jnp.asarray(X, jnp.float32)
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def train(net, optimizer):
        loss, grads = nnx.value_and_grad(lambda net: ((net(x)[:, 0] - x[:, 0] * x[:, 1]) ** 2).mean())(net)
        optimizer.update(net, grads)
        return loss

    with jax.numpy_dtype_promotion("standard"):  # optax's Adam takes a power of a count
        losses = [float(train(net, optimizer)) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]
    assert 0 < float(net.block.alpha) < 1


@pytest.mark.slow
def test_a_field_that_draws_draws_once_a_call():
    block = of_nnx.FDEBlock(Noisy(nnx.Rngs(0)), 1.0, t1=1.0, n_steps=4)
    x = jnp.zeros((8, 16))
    first, second = block(x), block(x)
    # Every step added the same mask: sums are 0 or 2, and another call has another mask.
    assert set(np.unique(np.round(first, 5))) == {0.0, 2.0}
    assert not bool((first == second).all())
    block.eval()
    np.testing.assert_allclose(block(x), 1.0, rtol=1e-6)


def test_a_field_that_writes_to_itself_is_refused():
    with pytest.raises(ValueError, match=r"FDEBlock\(f\): needs a module that does not change.*writes to count"):
        of_nnx.FDEBlock(Counting(), 0.5)(jnp.ones((2, 3)))


@pytest.mark.slow
def test_half_precision_reaches_the_field_and_is_added_up_in_single():
    seen = []

    def f(t, z, variables):
        seen.append((t.dtype, z.dtype))
        return -z

    x = jnp.asarray(X, jnp.bfloat16)
    core = functional.FDEBlock(f, 0.5, n_steps=4)
    found = core({}, x)
    assert found.dtype == jnp.bfloat16
    assert set(seen) == {(jnp.dtype("bfloat16"), jnp.dtype("bfloat16"))}
    wide = core({}, x.astype(jnp.float32))
    np.testing.assert_allclose(found.astype(jnp.float32), wide, rtol=0, atol=0.02)  # 2**-8 of values below 4


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: functional.FDEBlock(fields, 1.3), ValueError, r"FDEBlock\(alpha=1.3\): needs 0 < alpha <= 1"),
        (lambda: functional.FDEBlock(fields, 0.5, n_steps=0), ValueError, "n_steps >= 1"),
        (lambda: functional.FDEBlock(fields, 0.5, t1=0.0), ValueError, "t1 > 0"),
        (lambda: functional.FDEBlock(fields, 0.5, bounds=(0.2, 1.5), learn_alpha=True), ValueError, "high <= 1"),
        (lambda: functional.FDEBlock(fields, AN_ARRAY), TypeError, "learn_alpha=True"),
        (lambda: functional.FDEBlock(fields, 0.5, scheme="euler"), ValueError, "scheme='euler'"),
        (lambda: functional.FDEBlock(lambda t, z, _: z[:1], 0.5)({}, jnp.ones((2, 3))), ValueError, "shape"),
        (lambda: functional.FDEBlock(lambda t, z, _: z, 0.5)({}, jnp.ones(3, int)), TypeError, "dtype"),
        (lambda: functional.FSDEBlock(fields, fields, "diagnal"), ValueError, "noise_type='diagnal'"),
        (lambda: functional.FSDEBlock(fields, fields, alpha=0.5), ValueError, "1/2 < alpha <= 1"),
        (
            lambda: functional.FSDEBlock(fields, fields, bounds=(0.4, 1), alpha=0.7, learn_alpha=True),
            ValueError,
            "1/2 <=",
        ),
        (lambda: of_nnx.FSDEBlock(Field(3, nnx.Rngs(0)), Field(3, nnx.Rngs(0)))(jnp.ones((2, 3))), TypeError, "rngs="),
    ],
)
def test_what_cannot_be_is_told(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.slow
def test_a_stochastic_block_draws_at_every_call_and_repeats_with_a_key():
    rngs = nnx.Rngs(0)
    block = of_nnx.FSDEBlock(lambda t, z: -z, lambda t, z: jnp.ones_like(z), n_steps=3, rngs=rngs)
    x, key = jnp.zeros((2, 3)), jax.random.key(1)
    assert not bool((block(x) == block(x)).any())
    np.testing.assert_array_equal(block(x, key=key), block(x, key=key))
    shell = of_linen.FSDEBlock(lambda t, z: -z, lambda t, z: jnp.ones_like(z), n_steps=3)
    np.testing.assert_allclose(shell.apply({}, x, key=key), block(x, key=key), rtol=1e-6)
    drawn = [shell.apply({}, x, rngs={"noise": jax.random.key(k)}) for k in (1, 2)]
    assert not bool((drawn[0] == drawn[1]).any())


def test_the_moments_of_a_stochastic_block_are_those_of_eulers_scheme():
    block = functional.FSDEBlock(lambda t, z, _: -z, lambda t, z, _: 0.5 * jnp.ones_like(z), t1=1.0, n_steps=8)
    found = np.asarray(jax.jit(lambda y, key: block({}, y, noise_key=key))(jnp.ones((4096, 2)), jax.random.key(0)))
    mean, variance = (1 - 1 / 8) ** 8, 0.25 / 8 * sum((1 - 1 / 8) ** (2 * k) for k in range(8))
    n = found.size
    assert abs(found.mean() - mean) < 4 * math.sqrt(variance / n)
    assert abs(found.var() - variance) < 4 * variance * math.sqrt(2 / n)
