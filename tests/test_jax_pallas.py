"""The Pallas kernel for JAX: interpreted it is the dense matrix, for CUDA it lowers, and it runs where it is named.

No device has run it. `test_jax_operators.py` tests it as it does every kernel.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax import numpy as jnp

from hpfracc_nn import jax as fjx
from hpfracc_nn.fractional import DEFINITIONS, dispatch
from hpfracc_nn.fractional.jax import pallas_scan
from hpfracc_nn.fractional.jax.kernels import PALLAS_LENGTH
from hpfracc_nn.fractional.jax.probe import JaxProbe
from hpfracc_nn.fractional.jax.weights import Weights
from hpfracc_nn.selection import BackendManager, Settings, Workload
from tests.pallas_cases import KERNEL, interpreted  # noqa: F401  a fixture

# Of JAX 0.12: see docs/gpu.md.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

on_the_host = pytest.mark.usefixtures("interpreted")
ROUNDING = 1e-13  # of float64: products of n random numbers, relative to the largest, and exponentials to 1e-13
SINGLE = 1e-6  # as for JAX's other kernels
ON_DEVICE = Workload("toeplitz", "jax", device="cuda:0", rows=4096, n=4096, exponentials=24, needs_gradient=True)
NAMES = [name for name in DEFINITIONS if name != "distributed_order"]


def forced(backend: str | None, algorithm: str | None = None, **settings: Any) -> BackendManager:
    given = {"mode": "prior", "calibration": "shipped", "wisdom": "off"} | settings
    return BackendManager(Settings(force_backend=backend, force_algorithm=algorithm, **given))


PALLAS, DENSE = forced("pallas"), forced("xla", "dense")


def applied(x: Any, definition: Any, dim: int = -1, manager: BackendManager | None = PALLAS) -> Any:
    return dispatch.apply("test", x, definition, 0.1, dim, manager)


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def relative(found: Any, wanted: Any) -> float:
    assert found.shape == wanted.shape
    wanted = np.asarray(wanted, np.float64)
    return float(np.abs(np.asarray(found, np.float64) - wanted).max() / (np.abs(wanted).max() or 1.0))


def both_ways(x: Any, definition: Any, dim: int, manager: BackendManager) -> list[Any]:
    """Return the operator on x, and its transpose on data of its shape."""
    y, transpose = jax.vjp(lambda x: applied(x, definition, dim, manager), x)
    return [y, *transpose(jnp.asarray(drawn(*x.shape, seed=1), y.dtype))]


def assert_is_the_matrix(definition: Any, shape: tuple[int, ...], dim: int = -1) -> None:
    """Compare both ways with the dense product, in double and in single precision."""
    x = drawn(*shape)
    with jax.enable_x64(True):
        wanted = both_ways(jnp.asarray(x), definition, dim, DENSE)
        for found, exact in zip(both_ways(jnp.asarray(x), definition, dim, PALLAS), wanted, strict=True):
            assert relative(found, exact) <= ROUNDING
    single = jnp.asarray(x, jnp.float32)
    error = farthest(both_ways(single, definition, dim, PALLAS), wanted)
    # Sums of weights that cancel are worse in single precision, and then the dense product is too.
    assert error <= SINGLE or error <= 2 * farthest(both_ways(single, definition, dim, DENSE), wanted)


def farthest(single: list[Any], wanted: list[Any]) -> float:
    assert all(each.dtype == jnp.float32 for each in single)
    return max(relative(found, exact) for found, exact in zip(single, wanted, strict=True))


def loss(manager: BackendManager) -> Any:
    return lambda x, alpha: (applied(x, fjx.Caputo(alpha), -1, manager) ** 2).sum()


def thrice(x: Any) -> Any:
    return jnp.stack([x, x + 0.1, x - 0.1])


def over_rows(check: bool, manager: BackendManager = PALLAS) -> Any:
    """Return the loss with its rows spread over four devices."""
    mesh = jax.make_mesh((4,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, none = jax.P("rows"), jax.P()

    def own(x: Any, alpha: Any) -> Any:
        return jax.lax.psum(loss(manager)(x, alpha), "rows")

    return jax.shard_map(own, mesh=mesh, in_specs=(rows, none), out_specs=none, check_vma=check)


# Of a function of samples and orders, all in both arguments.
TRANSFORMS = {
    "gradient": lambda f: jax.grad(f, (0, 1)),
    "forward": lambda f: jax.jacfwd(f, (0, 1)),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 1)),
    "forward over reverse": lambda f: jax.hessian(f, (0, 1)),
    "vmap over samples": lambda f: lambda x, a: jax.vmap(jax.grad(f, (0, 1)), (0, None))(thrice(x), a),
    "vmap over orders": lambda f: lambda x, a: jax.vmap(jax.grad(f, (0, 1)), (None, 0))(x, thrice(a)),
    "vmap over both": lambda f: lambda x, a: jax.vmap(jax.grad(f, (0, 1)))(thrice(x), thrice(a)),
    "of vmap over samples": lambda f: jax.grad(lambda x, a: jax.vmap(f, (0, None))(thrice(x), a).sum(), (0, 1)),
    "of vmap over orders": lambda f: jax.grad(lambda x, a: jax.vmap(f, (None, 0))(x, thrice(a)).sum(), (0, 1)),
    "checkpoint in a scan": lambda f: jax.grad(
        lambda x, a: jax.lax.scan(jax.checkpoint(lambda c, _: (c + f(x, a), None)), 0.0, None, length=2)[0], (0, 1)
    ),
}


@on_the_host
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((33, 50), -1),  # two programs, the second of one row; the last chunk has two samples
        *(
            pytest.param(shape, dim, marks=pytest.mark.slow)
            for shape, dim in [
                ((1, 1), -1), ((32, 16), -1), ((2, 17), -1), ((64, 33), -1), ((100, 5), -1), ((3, 600), -1),
                ((3, 50, 33), 1), ((2, 17, 2, 20), 1), ((5, 600, 2), 1), ((70,), 0), ((70, 40), 0),
            ]
        ),
    ],
)  # fmt: skip
def test_it_is_the_dense_matrix_at_odd_sizes(shape, dim):
    assert_is_the_matrix(DEFINITIONS["caputo"](0.6), shape, dim)


@on_the_host
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_dense_matrix_at_drawn_sizes(seed):
    rng = np.random.default_rng(seed)
    name, alpha = NAMES[rng.integers(len(NAMES))], float(rng.uniform(0.05, 0.95))
    rows, n, width = map(int, (rng.integers(1, 80), rng.integers(1, 400), rng.choice([1, 2, 40])))
    assert_is_the_matrix(DEFINITIONS[name](alpha), (rows, n) if width == 1 else (2, n, width), 1)


@on_the_host
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_definition_is_its_matrix(name):
    kind = DEFINITIONS[name]
    for number, scheme in enumerate(kind.schemes or (None,)):
        alpha = 1.6 if number % 2 and kind.highest >= 1.6 else 0.3
        assert_is_the_matrix(kind(alpha) if scheme is None else kind(alpha, scheme), (3, 200))


@on_the_host
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_single_precision_rounded_once(dtype):
    x = jnp.asarray(drawn(3, 100), dtype)
    for definition in (DEFINITIONS["caputo"](0.5), DEFINITIONS["riemann_liouville_integral"](0.5)):
        found = applied(x, definition)
        assert found.dtype == dtype
        assert (found == applied(x.astype(jnp.float32), definition).astype(dtype)).all()


@on_the_host
@pytest.mark.slow
def test_long_series_keep_single_precision():
    """States in single precision would drift: to 2e-6 at these 512 chunks, and more at more."""
    x, half = (1 + 0.1 * drawn(1, 8192)).astype(np.float32), DEFINITIONS["riemann_liouville_integral"](0.5)
    assert relative(applied(jnp.asarray(x), half), applied(x.astype(np.float64), half, -1, None)) <= SINGLE


@on_the_host
@pytest.mark.slow
@pytest.mark.parametrize("order", [(), (2,), (3, 2)])
def test_orders_of_channels_have_their_own_weights_and_gradients(order):
    x, alpha = drawn(5, 3, 2, 70), np.linspace(0.2, 0.9, int(np.prod(order))).reshape(order)

    def gradients(manager: BackendManager, x: Any, alpha: Any) -> Any:
        return jax.grad(lambda x, a: jnp.sin(applied(x, fjx.Caputo(a), -1, manager)).sum(), (0, 1))(x, alpha)

    with jax.enable_x64(True):
        given = jnp.asarray(x), jnp.asarray(alpha)
        wanted = gradients(DENSE, *given)
        for found, exact in zip(gradients(PALLAS, *given), wanted, strict=True):
            assert relative(found, exact) <= 1e-12
    single = jnp.asarray(x, jnp.float32), jnp.asarray(alpha, jnp.float32)
    for found, exact in zip(gradients(PALLAS, *single), wanted, strict=True):
        assert relative(found, exact) <= 5e-6  # as for JAX's other kernels


@on_the_host
@pytest.mark.parametrize(
    "name", [name if name == "gradient" else pytest.param(name, marks=pytest.mark.slow) for name in TRANSFORMS]
)
def test_every_transform_follows(name):
    with jax.enable_x64(True):
        given = jnp.asarray(drawn(2, 30)), jnp.asarray([0.35, 0.6])
        found, wanted = (jax.jit(TRANSFORMS[name](loss(manager)))(*given) for manager in (PALLAS, DENSE))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert relative(one, other) <= ROUNDING


@on_the_host
@pytest.mark.slow
def test_a_batch_on_four_devices_is_the_batch_on_one():
    """Without the check of varying axes, which Pallas's interpreter does not pass; what is lowered does."""
    if len(jax.devices()) < 4:
        pytest.skip("needs four devices: XLA_FLAGS=--xla_force_host_platform_device_count=4")
    with jax.enable_x64(True):
        x, alpha = jnp.asarray(drawn(8, 40)), jnp.asarray(0.4)
        wanted = jax.grad(loss(DENSE), (0, 1))(x, alpha)
        for found, exact in zip(jax.jit(jax.grad(over_rows(False), (0, 1)))(x, alpha), wanted, strict=True):
            assert relative(found, exact) <= ROUNDING


@on_the_host
@pytest.mark.slow
def test_what_is_not_finite_stays_in_its_row():
    x = drawn(3, 50)
    x[1, 20] = np.nan
    found = np.asarray(applied(jnp.asarray(x), DEFINITIONS["caputo"](0.5)))
    assert np.isfinite(found[[0, 2]]).all()
    assert np.isnan(found[1]).any()


def lowered(function: Any, *given: Any, platform: str = "cuda") -> str:
    """Return what XLA gets for a device, which need not be there."""
    traced = jax.jit(function).trace(*given)
    try:
        return traced.lower(lowering_platforms=(platform,)).as_text()
    except RuntimeError as error:
        if "No supported GPU devices found" not in str(error):
            raise
        pytest.skip("this version of JAX lowers for a device that is there")


@pytest.mark.parametrize("platform", ["cuda", pytest.param("rocm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(300, 1, 1000, 1), (7, 3, 12, 1), (2, 1, 1000, 70)])
def test_each_map_is_one_kernel_and_nothing_else(platform, dtype, shape):
    with jax.enable_x64(dtype == "float64"):
        weights = Weights(DEFINITIONS["caputo"]((0.5,) * shape[1]), shape[2], 1.0, np.dtype(dtype))
        operator, x = pallas_scan.prepare(weights, PALLAS_LENGTH), jax.ShapeDtypeStruct(shape, dtype)

        def in_weights(x: Any, g: Any) -> Any:
            product = jax.linear_transpose(lambda W: pallas_scan.PallasScan(W, operator.model).matvec(x), operator.W)
            return product(g)[0]

        def transpose(g: Any) -> Any:
            return jax.linear_transpose(operator.matvec, g)(g)[0]

        for function, given in ((operator.matvec, (x,)), (transpose, (x,)), (in_weights, (x, x))):
            text = lowered(function, *given, platform=platform)
            assert text.count("gpu.triton") == 1
            assert "stablehlo.dot_general" not in text
            assert "stablehlo.while" not in text


@pytest.mark.parametrize("over", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_gradient_in_samples_and_orders_is_three_kernels(monkeypatch, over):
    monkeypatch.setattr(KERNEL, "refuses", lambda workload: None)
    if over and len(jax.devices()) < 4:
        pytest.skip("needs four devices: XLA_FLAGS=--xla_force_host_platform_device_count=4")
    given = jax.ShapeDtypeStruct((36, 301), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)
    function = over_rows(True, forced("pallas")) if over else loss(forced("pallas"))
    assert lowered(jax.value_and_grad(function, (0, 1)), *given).count("gpu.triton") == 3


@pytest.fixture
def no_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """For workloads of a device that is not there."""
    monkeypatch.setattr(JaxProbe, "free_memory", lambda probe, device: None)


planned = pytest.mark.usefixtures("no_device_is_asked")


@planned
@pytest.mark.parametrize("mode", ["off", "prior", "frozen", "learn"])
def test_only_a_user_who_names_it_runs_it(mode):
    assert forced(None, mode=mode).plan(ON_DEVICE).kernel.backend == "xla"
    assert forced(None, "chunked_scan", mode=mode).plan(ON_DEVICE).kernel.name == "xla/chunked_scan"
    assert forced("pallas", mode=mode).plan(ON_DEVICE).kernel.name == "pallas/chunked_scan"


@planned
def test_it_does_not_step_in_where_all_others_are_disabled():
    with pytest.raises(LookupError, match=r"no device has run it.*configure\(force_backend='pallas'\)"):
        forced(None, disabled="xla").plan(ON_DEVICE)


@planned
def test_an_explanation_says_why_it_is_not_chosen():
    text = forced(None).explain(ON_DEVICE)
    assert re.search(r"pallas/chunked_scan .*no device has run it.*force_backend='pallas'", text)


def test_data_on_a_cpu_are_refused_with_the_way_out():
    with pytest.raises(LookupError, match="computes on a GPU and the data lie on cpu; lift the force"):
        fjx.caputo(jnp.ones((2, 40)), 0.5, manager=forced("pallas"))


@planned
def test_weights_that_are_no_sum_of_exponentials_are_refused():
    with pytest.raises(LookupError, match="no sum of exponentials"):
        forced("pallas").plan(Workload("toeplitz", "jax", device="cuda:0", rows=4, n=64))


@on_the_host
def test_open_sizes_are_refused_with_the_way_out():
    (rows,) = jax.export.symbolic_shape("rows")
    call = jax.jit(lambda x: applied(x, DEFINITIONS["caputo"](0.5)))
    with pytest.raises(ValueError, match=r"needs sizes that are known.*configure\(force_backend=None\)"):
        call.trace(jax.ShapeDtypeStruct((rows, 40), jnp.float32))


on_a_device = pytest.mark.skipif("jax.default_backend() != 'gpu'", reason="needs a CUDA device that JAX finds")


@pytest.mark.gpu
@on_a_device
@pytest.mark.parametrize(("shape", "dim"), [((33, 50), -1), ((300, 1000), -1), ((3, 600, 40), 1)])
def test_on_a_device_it_is_the_dense_matrix(shape, dim):
    for name in ("caputo", "riemann_liouville_integral"):
        assert_is_the_matrix(DEFINITIONS[name](0.6), shape, dim)


@pytest.mark.gpu
@on_a_device
def test_on_a_device_gradients_are_those_of_the_dense_matrix():
    with jax.enable_x64(True):
        given = jnp.asarray(drawn(40, 300)), jnp.asarray(0.6)
        found, wanted = (jax.jit(jax.grad(loss(manager), (0, 1)))(*given) for manager in (PALLAS, DENSE))
        for one, other in zip(found, wanted, strict=True):
            assert relative(one, other) <= 1e-12
