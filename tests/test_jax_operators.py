"""The operators on JAX arrays: their values, every transform, sharding, plans, and what is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.fractional import DEFINITIONS, dispatch
from hpfracc_nn.selection import BackendManager, Settings, kernels
from tests import reference_cases

jax = pytest.importorskip("jax")
jnp = jax.numpy
fjx = pytest.importorskip("hpfracc_nn.jax")
checkify = pytest.importorskip("jax.experimental.checkify")

pytest.importorskip("hpfracc_nn.fractional.jax.kernels")
interpreted = pytest.importorskip("tests.pallas_cases").interpreted  # a fixture
KERNELS = [kernel.name for kernel in kernels("toeplitz", "jax")]
ROUNDING = 20 * np.finfo(np.float64).eps  # of weights that sum to a few, times samples of a few
SINGLE = 1e-6


def forced(name: str) -> BackendManager:
    backend, algorithm = name.split("/")
    return BackendManager(
        Settings(mode="prior", calibration="shipped", force_backend=backend, force_algorithm=algorithm)
    )


def applied(x: Any, definition: Any, dim: int = -1, manager: BackendManager | None = None) -> Any:
    return dispatch.apply("test", x, definition, 0.1, dim, manager)


def walk(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).cumsum(-1)


def relative(found: Any, wanted: np.ndarray) -> float:
    assert np.shape(found) == np.shape(wanted)
    return float(np.abs(np.asarray(found, np.float64) - wanted).max() / (np.abs(wanted).max() or 1.0))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((2, 1), -1),
        pytest.param((3, 2), -1, marks=pytest.mark.slow),
        pytest.param((1, 127), -1, marks=pytest.mark.slow),
        pytest.param((2, 129), -1, marks=pytest.mark.slow),
        ((2, 301, 3), 1),
        pytest.param((515,), 0, marks=pytest.mark.slow),
    ],
)
def test_every_kernel_and_layout_gives_what_numpy_gives(name, shape, dim):
    x, definition = walk(*shape), DEFINITIONS["caputo"](0.6)
    wanted = applied(x, definition, dim)
    with jax.enable_x64(True):
        assert relative(applied(jnp.asarray(x), definition, dim, forced(name)), wanted) <= 1e-12
    single = applied(jnp.asarray(x, jnp.float32), definition, dim, forced(name))
    assert single.dtype == jnp.float32
    assert relative(single, wanted) <= SINGLE


@pytest.mark.slow
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("order", [(), (2,), (3, 2)])
def test_orders_of_channels_are_those_of_numpy(name, order):
    x = walk(2, 3, 2, 200)
    alpha = np.linspace(0.2, 0.9, int(np.prod(order))).reshape(order)
    wanted = applied(x, DEFINITIONS["caputo"](alpha.tolist()))
    with jax.enable_x64(True):
        for given in (alpha.tolist(), jnp.asarray(alpha)):
            assert relative(applied(jnp.asarray(x), fjx.Caputo(given), -1, forced(name)), wanted) <= 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [None, *sorted({s for kind in DEFINITIONS.values() for s in kind.schemes})])
@pytest.mark.parametrize("case", [pytest.param(c, id=i) for i, c in reference_cases.CASES.items()])
def test_reference_values_are_met_as_by_numpy(case, scheme):
    """NumPy's own error is tested with its tolerances; here stands what JAX adds to it, which is rounding."""
    kind = reference_cases.kind_of(case)
    if scheme is not None and scheme not in kind.schemes:
        pytest.skip("no scheme of it")
    definition = reference_cases.definition_of(case, scheme)
    x, dt = reference_cases.samples(case, 200)
    wanted = dispatch.apply("test", x, definition, dt, -1, None)
    with jax.enable_x64(True):
        found = dispatch.apply("test", jnp.asarray(x), definition, dt, -1, None)
    if not np.isfinite(x).all():
        pytest.skip("the first sample is infinite")
    assert relative(found, wanted) <= 1e-11


def test_long_series_keep_single_precision():
    """Three digits of a half million steps would be lost by a scan whose decays are rounded once and multiplied."""
    x = walk(1, 65536).astype(np.float32)
    wanted = applied(x.astype(np.float64), DEFINITIONS["caputo"](0.5))
    assert relative(applied(jnp.asarray(x), fjx.Caputo(0.5), -1, forced("xla/chunked_scan")), wanted) <= SINGLE


NAMES = [name for name in DEFINITIONS if name != "distributed_order"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_transform_follows_samples_and_orders(name):
    """In single precision without 64 bit types, where weights are float64 inside; the oracle is float64 with them."""
    kind = DEFINITIONS[name]

    def loss(x: Any, alpha: Any) -> Any:
        return (applied(x, kind(alpha)) ** 2).sum()

    x, alpha = walk(2, 30), np.array([0.35, 0.6])
    with jax.enable_x64(True):
        exact = jax.jit(jax.hessian(loss, argnums=1))(jnp.asarray(x), jnp.asarray(alpha))
        gradients = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(x), jnp.asarray(alpha))
    single = jnp.asarray(x, jnp.float32), jnp.asarray(alpha, jnp.float32)
    assert relative(jax.jit(jax.hessian(loss, argnums=1))(*single), np.asarray(exact)) <= 1e-5
    by_reverse = jax.jit(jax.grad(loss, argnums=(0, 1)))(*single)
    by_forward = jax.jit(jax.jacfwd(loss, argnums=(0, 1)))(*single)
    for found, other, wanted in zip(by_reverse, by_forward, gradients, strict=True):
        assert relative(found, np.asarray(wanted)) <= 5e-6
        assert relative(other, np.asarray(wanted)) <= 5e-6
    mapped = jax.jit(jax.vmap(jax.grad(loss, argnums=1), (None, 0)))(single[0], jnp.stack([single[1], single[1]]))
    assert relative(mapped[1], np.asarray(gradients[1])) <= 5e-6

    def steps(x: Any, alpha: Any) -> Any:
        return jax.lax.scan(jax.checkpoint(lambda c, _: (c + loss(x, alpha), None)), 0.0, None, length=2)[0]

    assert relative(jax.jit(jax.grad(steps, argnums=1))(*single), 2 * np.asarray(gradients[1])) <= 5e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_on_four_devices_is_the_batch_on_one(name):
    if len(jax.devices()) < 4:
        pytest.skip("needs four devices: XLA_FLAGS=--xla_force_host_platform_device_count=4")
    sharding = jax.sharding
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(sharding.AxisType.Auto,))
    rows, none = sharding.PartitionSpec("rows"), sharding.PartitionSpec()
    kind = DEFINITIONS[name]

    def loss(x: Any, alpha: Any) -> Any:
        return (applied(x, kind(alpha)) ** 2).sum()

    with jax.enable_x64(True):
        x, alpha = jnp.asarray(walk(8, 40)), jnp.asarray(0.4)
        alone = jax.jit(lambda x: applied(x, kind(alpha)))(x)
        wanted = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, alpha)
        spread = jax.device_put(x, sharding.NamedSharding(mesh, rows))
        automatic = jax.jit(lambda x: applied(x, kind(alpha)))(spread)
        assert relative(automatic, np.asarray(alone)) <= 1e-14
        assert len(automatic.sharding.device_set) == 4
        mapped = jax.jit(
            jax.shard_map(lambda x, alpha: applied(x, kind(alpha)), mesh=mesh, in_specs=(rows, none), out_specs=rows)
        )
        assert relative(mapped(x, alpha), np.asarray(alone)) <= 1e-14

        def total(x: Any, alpha: Any) -> Any:
            return jax.shard_map(
                lambda x, alpha: jax.lax.psum(loss(x, alpha), "rows"), mesh=mesh, in_specs=(rows, none), out_specs=none
            )(x, alpha)

        for found, each in zip(jax.jit(jax.grad(total, argnums=(0, 1)))(x, alpha), wanted, strict=True):
            assert relative(found, np.asarray(each)) <= 1e-13


def test_half_precision_is_computed_in_single():
    x = walk(2, 40)
    for dtype in (jnp.float16, jnp.bfloat16):
        given = jnp.asarray(x, dtype)
        found = applied(given, fjx.Caputo(0.5))
        assert found.dtype == dtype
        exact = applied(np.asarray(given, np.float64), fjx.Caputo(0.5))
        assert relative(found, exact) <= jnp.finfo(dtype).eps


def test_concrete_orders_out_of_bounds_raise_and_traced_ones_are_nan():
    x = jnp.ones((2, 9)).cumsum(-1)
    with pytest.raises(ValueError, match=r"caputo\(alpha=1.5.*within its bounds \(0, 1\)"):
        fjx.caputo(x, jnp.asarray(1.5))
    call = jax.jit(lambda alpha: fjx.caputo(x, alpha, dt=0.1))
    assert np.isnan(call(jnp.asarray(1.5))).all()
    assert np.isnan(jax.jit(jax.grad(lambda alpha: fjx.caputo(x, alpha, dt=0.1).sum()))(jnp.asarray(1.5)))
    checked = jax.jit(checkify.checkify(call))
    with pytest.raises(checkify.JaxRuntimeError, match="within its bounds"):
        checked(jnp.asarray(1.5))[0].throw()
    checked(jnp.asarray(0.5))[0].throw()


@pytest.mark.parametrize("n", [9, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name if name == "riesz" else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_a_traced_order_beyond_its_bounds_makes_its_own_channel_nan_and_no_other(name, n):
    kind, x = DEFINITIONS[name], jnp.asarray(walk(2, 2, n))

    def total(alpha):
        y = applied(x, kind(alpha))
        return y.sum(), y

    call = jax.jit(jax.value_and_grad(total, has_aux=True))
    for beyond in (1.5, -0.2):
        (_, y), slope = call(jnp.asarray([0.4, beyond]))
        assert np.isnan(y[:, 1]).all()
        assert np.isnan(slope[1])
        assert np.isfinite(y[:, 0]).all()


def test_a_bound_that_rounding_exceeds_is_the_bound():
    """As low + (high - low) u, computed in single precision, does at u = 1."""
    x = jnp.ones((2, 9)).cumsum(-1)
    call = jax.jit(lambda alpha: applied(x, fjx.Caputo(alpha, bounds=(0.1, 0.7))))
    assert np.array_equal(call(jnp.nextafter(jnp.float32(0.7), jnp.float32(1))), call(jnp.float32(0.7)))
    assert np.isnan(call(jnp.float32(0.7001))).all()


@pytest.mark.slow
def test_the_gradient_on_a_bound_is_whole():
    """From inside: the difference quotient to the left of alpha = 1."""
    x = jnp.asarray(walk(1, 20), jnp.float32)
    slope = jax.jit(jax.grad(lambda alpha: fjx.caputo(x, alpha, dt=0.1).sum()))
    at, below = slope(jnp.asarray(1.0)), slope(jnp.asarray(0.999))
    assert abs(float(at - below)) <= 0.05 * abs(float(at))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_on_both_ends_of_its_interval_the_slope_is_torchs(name):
    torch = pytest.importorskip("torch")
    kind, x = DEFINITIONS[name], walk(20)
    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(lambda alpha: applied(jnp.asarray(x), kind(alpha))[-1]))
        for end in kind(jnp.asarray(0.5)).interval:
            alpha = torch.tensor(end, dtype=torch.float64, requires_grad=True)
            (wanted,) = torch.autograd.grad(applied(torch.tensor(x), kind(alpha))[-1], alpha)
            assert float(slope(jnp.asarray(end))) == pytest.approx(wanted.item(), rel=1e-9), end


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: fjx.caputo(x, 0.5, dim=3), ValueError, "dim"),
        (lambda x: fjx.caputo(x, [0.2, 0.3, 0.4]), ValueError, "needs alpha to broadcast"),
        (lambda x: fjx.caputo(x, jnp.asarray([0.2, 0.3, 0.4])), ValueError, "needs alpha to broadcast"),
        (lambda x: fjx.caputo(x, jnp.asarray(1)), TypeError, "int32 array"),
        (lambda x: fjx.caputo(x.astype("float8_e5m2"), 0.5), TypeError, "needs float16, bfloat16, float32 or float64"),
        (lambda x: fjx.caputo(x, 0.5, dt=0.0), ValueError, "dt"),
        (lambda x: fjx.caputo(x, 0.5, dt=0.1, manager=3), TypeError, "BackendManager"),
    ],
)
def test_bad_input_raises_when_it_is_traced(call, error, words):
    for traced in (call, jax.jit(call)):
        with pytest.raises(error, match=words):
            traced(jnp.ones((2, 9)))


def test_nothing_of_no_samples():
    assert fjx.caputo(jnp.ones((0, 9)), 0.5).shape == (0, 9)
    assert jax.grad(lambda alpha: fjx.caputo(jnp.ones((2, 0)), alpha).sum())(jnp.asarray(0.5)) == 0


@pytest.mark.slow
def test_a_definition_is_a_pytree():
    definition = fjx.TemperedCaputo(jnp.asarray(0.4), rate=1.5)
    x = jnp.ones((2, 20)).cumsum(-1)
    passed = jax.jit(lambda definition: definition(x, dt=0.1))(definition)
    assert np.allclose(passed, definition(x, dt=0.1), rtol=1e-6)
    slope = jax.grad(lambda definition: definition(x, dt=0.1).sum())(definition)
    assert isinstance(slope, fjx.TemperedCaputo)
    assert slope.rate == 1.5
    assert jax.tree.leaves(fjx.Caputo(0.4)) == []
    assert jax.tree.structure(fjx.Caputo(0.4)) == jax.tree.structure(fjx.Caputo(0.4))


def test_a_distributed_order_is_an_argument_of_a_jitted_function():
    x, made = jnp.ones((2, 20)).cumsum(-1), []

    @jax.jit
    def applied(definition: Any) -> Any:
        made.append(definition)
        return definition(x, dt=0.1)

    for nodes in ((0.2, 0.7), (0.2, 0.7), (0.3, 0.7)):
        definition = fjx.DistributedOrder(nodes=nodes, weights=(1.0, 2.0))
        assert np.allclose(applied(definition), definition(x, dt=0.1), rtol=1e-6)
    assert len(made) == 2  # equal orders share a program


@pytest.mark.slow
def test_a_loop_over_lengths_of_one_bucket_compiles_once():
    """The samples after a signal's own end change nothing before it, and a traced length masks them."""
    rng, compiled = np.random.default_rng(0), []

    @jax.jit
    def step(alpha: Any, x: Any, n: Any) -> Any:
        compiled.append(x.shape)

        def loss(alpha: Any) -> Any:
            y = fjx.caputo(x, alpha, dt=0.1)
            return jnp.where(jnp.arange(x.shape[-1]) < n, y**2, 0.0).sum() / n

        return alpha - 1e-3 * jax.grad(loss)(alpha)

    alpha = jnp.asarray(0.5)
    for n in range(230, 240):
        x, own = fjx.pad_to_bucket(rng.standard_normal((2, n)).astype(np.float32))
        alpha = step(alpha, x, own)
    assert compiled == [(2, 256)]
    assert step._cache_size() == 1
    short = applied(jnp.asarray(x[:, :own]), fjx.Caputo(0.5))
    assert np.allclose(applied(jnp.asarray(x), fjx.Caputo(0.5))[:, :own], short, atol=1e-5)


def test_plans_are_counted_explained_and_obey_force():
    manager = forced("xla/fft")
    x = jnp.ones((4, 100))
    call = jax.jit(functools.partial(fjx.caputo, alpha=0.5, manager=manager))
    call(x)
    call(x)
    (plan,) = [plan for site in manager.sites() for plan in site.plans()]
    assert (plan.kernel.name, plan.forwards) == ("xla/fft", 1)  # a compiled call asks nobody
    assert "xla/chunked_scan" in BackendManager().explain(fjx.workload((4, 100)))


@pytest.mark.slow
def test_a_calibration_is_explicit_and_changes_plans():
    manager = BackendManager(Settings(mode="learn", wisdom="off", calibration="shipped"))
    asked = fjx.workload((2, 200))
    assert manager.plan(asked).reason.startswith("prior")
    fjx.caputo(jnp.ones((2, 200)), 0.5, manager=manager)
    measured = fjx.calibrate((2, 200), manager=manager)
    fjx.caputo(jnp.ones((2, 200)), 0.5, manager=manager)
    (picked,) = [plan for site in manager.sites() for plan in site.in_use()]
    assert picked.reason == "measured"
    assert {each.kernel for each in measured} == {"xla/dense", "xla/chunked_scan", "xla/fft"}
    assert manager.plan(asked).reason == "measured"
    found = {each.kernel: each.seconds for each in measured if each.direction == "forward"}
    assert min(found.values()) > 0


def test_memory_that_is_short_is_used_in_parts():
    manager = BackendManager(Settings(mode="prior", calibration="shipped", force_algorithm="fft"))
    from hpfracc_nn.fractional.jax.operator import Call, computed
    from hpfracc_nn.fractional.layout import layout_of

    x = walk(7, 50).astype(np.float32)
    call = Call(fjx.Caputo(0.5), False, 0.1, layout_of("test", (7, 50), 1, ()), "float32")
    plan = manager.plan(call.workload())
    whole = computed(call, plan.kernel, plan.workload, None, jnp.asarray(x), None)
    parts = computed(call, plan.kernel, plan.workload, 3, jnp.asarray(x), None)
    assert relative(parts, np.asarray(whole)) <= 1e-6
