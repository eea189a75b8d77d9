"""Losses for paths on JAX arrays: closed values, gradients where nothing varies, what is refused."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from jax import numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from hpfracc_nn.training.jax.losses import energy_score, moment_loss, trajectory_loss, variogram_loss  # noqa: E402
from tests.jax_compilations import compilations  # noqa: E402


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


@pytest.mark.slow
def test_what_the_mask_leaves_out_may_be_anything():
    ys, observed = normal(6, 3, 2), normal(6, 1, 2, seed=1)
    mask = jnp.zeros((6, 1, 1), bool).at[2:4].set(True)
    value, slope = jax.value_and_grad(trajectory_loss)(ys, jnp.where(mask, observed, jnp.nan), mask=mask)
    assert value == pytest.approx(float(jnp.square(ys - observed)[2:4].mean()))
    assert jnp.isfinite(slope).all()
    assert (slope[:2] == 0).all()


@pytest.mark.slow
def test_moments_are_counted_in_observed_deviations():
    observed = 5 * normal(4, 50, 3)
    deviation = observed.std(1, ddof=1, keepdims=True)
    assert moment_loss(observed + 0.2 * deviation, observed, orders=1) == pytest.approx(0.2**2, rel=1e-4)
    mean = observed.mean(1, keepdims=True)
    assert moment_loss(mean + 1.5 * (observed - mean), observed) == pytest.approx(0.5**2, rel=1e-4)


def test_times_without_variation_count_with_their_mean_alone():
    """Of seven times 0.1 the mean is another number than 0.1, in single precision."""
    ys = normal(1, 7, 2)
    loss = jax.jit(lambda ys: moment_loss(ys, jnp.full((1, 7, 2), 0.1), orders=4))(ys)
    assert float(loss) == pytest.approx(float(jnp.square(ys.mean(1) - 0.1).mean()), rel=1e-5)


@pytest.mark.slow
def test_losses_promote_nothing_implicitly():
    with jax.numpy_dtype_promotion("strict"):
        ys, observed = normal(9, 4, 2), normal(9, 5, 2, seed=1)
        assert jnp.isfinite(trajectory_loss(ys, observed[:, :1], mask=observed[:, :1] > 0))
        for loss in (lambda *both: moment_loss(*both, orders=4), variogram_loss, energy_score):
            assert jnp.isfinite(loss(ys, observed))


@pytest.mark.slow
def test_a_variogram_sees_the_scale():
    observed = normal(20, 30, 2)
    assert variogram_loss(2 * observed, observed) == pytest.approx((2 * np.log(2)) ** 2, rel=1e-5)


@pytest.mark.slow
def test_the_energy_score_is_its_formula():
    ys, observed = normal(5, 4, 2), normal(5, 3, 2, seed=1)
    x, y = (np.asarray(each).swapaxes(0, 1).reshape(each.shape[1], -1) for each in (ys, observed))
    apart = np.mean([np.linalg.norm(a - b) for a in x for b in y])
    among = np.mean([np.linalg.norm(x[i] - x[j]) for i in range(4) for j in range(4) if i != j])
    assert energy_score(ys, observed) == pytest.approx((apart - among / 2) / np.sqrt(10), rel=1e-6)


@pytest.mark.slow
def test_paths_that_start_at_one_point_have_gradients():
    ys, observed = (jnp.concatenate([jnp.ones((1, 20, 1)), normal(3, 20, 1, seed=seed)]) for seed in (0, 1))
    losses = [
        lambda *both: moment_loss(*both, orders=4),
        energy_score,
        lambda *both: variogram_loss(*both, lags=(1,)),
    ]
    for loss in losses:
        for slope in jax.grad(loss, (0, 1))(ys, observed):
            assert jnp.isfinite(slope).all()


OF_HALVES = {
    "trajectory": trajectory_loss,
    "masked": lambda ys, observed: trajectory_loss(ys, observed, mask=ys == ys),
    "moment": lambda *both: moment_loss(*both, orders=4),
    "variogram": variogram_loss,
    "energy": energy_score,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_HALVES)
def test_half_precision_is_computed_in_single(name):
    """More than 65504 entries: neither their number nor their sum is one of float16."""
    loss = OF_HALVES[name]
    halves = [20 * normal(12, 80, 80, seed=seed).astype(jnp.float16) for seed in (0, 1)]
    found, expected = loss(*halves), loss(*(each.astype(jnp.float32) for each in halves))
    assert found.dtype == jnp.float16
    assert float(found) == pytest.approx(float(expected), rel=2**-11)  # rounded once
    assert jnp.isfinite(jax.grad(loss)(*halves)).all()


@pytest.mark.slow
@pytest.mark.parametrize("loss", [trajectory_loss, moment_loss, variogram_loss, energy_score])
def test_a_batch_that_an_explicit_mesh_splits_has_the_loss_of_the_whole(loss):
    mesh = jax.make_mesh((2,), ("paths",), axis_types=(jax.sharding.AxisType.Explicit,))
    ys, observed = normal(9, 4, 2), normal(9, 6, 2, seed=1)[:, :4]
    split = [jax.device_put(x, NamedSharding(mesh, PartitionSpec(None, "paths"))) for x in (ys, observed)]
    both = jax.jit(jax.value_and_grad(loss))
    for found, expected in zip(both(*split), both(ys, observed), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)  # sums in another order


@pytest.mark.slow
def test_the_energy_score_outside_of_jit_compiles_once():
    ys = normal(5, 4, 2)
    for _ in range(2):
        energy_score(ys, ys)
    with compilations() as count:
        energy_score(ys, ys)
    assert count() == 0


@pytest.mark.parametrize("loss", [trajectory_loss, moment_loss, variogram_loss, energy_score])
def test_complex_paths_are_refused(loss):
    paths = jax.ShapeDtypeStruct((9, 4, 2), jnp.complex64)
    with pytest.raises(TypeError, match=re.escape("(ys of dtype complex64): needs real paths")):
        jax.eval_shape(loss, paths, paths)


REFUSALS = [
    (lambda y: trajectory_loss(y, y[:3, :3, 0]), "needs observations that broadcast to the paths"),
    (
        lambda y: trajectory_loss(y, y, mask=y),
        "trajectory_loss(mask of float32 and shape (9, 4, 2)): needs booleans that broadcast to the paths' shape "
        "(9, 4, 2); pass for example observed == observed, False at NaN.",
    ),
    (lambda y: moment_loss(y, y, orders=5), "moment_loss(orders=5): needs 1 <= orders <= 4; pass for example 2."),
    (lambda y: moment_loss(y, y[:, :1]), "moment_loss(observed with 1 paths): needs 2 or more"),
    (lambda y: variogram_loss(y, y, lags=(9,)), "variogram_loss(lags=(9,)): needs lags from 1 to 8"),
    (lambda y: energy_score(y[:, :1], y), "energy_score(ys with 1 paths): needs 2 or more"),
    (lambda y: energy_score(y[0], y), "energy_score(ys of shape (4, 2)): needs axes [time, batch, state]"),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS, ids=[message[:40] for _, message in REFUSALS])
def test_bad_input_is_refused_when_it_is_traced(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        jax.eval_shape(call, jax.ShapeDtypeStruct((9, 4, 2), jnp.float32))
