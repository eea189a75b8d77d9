"""JAX operators where they are used: meshes, devices, promotion, calibrations, and functions on the whole line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpfracc_nn.selection import BackendManager, Settings, default_manager
from tests import reference_cases

jax = pytest.importorskip("jax")
jnp = jax.numpy
fjx = pytest.importorskip("hpfracc_nn.jax")
probe = pytest.importorskip("hpfracc_nn.fractional.jax.probe")
in_float64 = pytest.importorskip("hpfracc_nn.fractional.jax.float64").in_float64

SINGLE = 1e-6


def walk(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).cumsum(-1)


def relative(found: Any, wanted: np.ndarray) -> float:
    assert np.shape(found) == np.shape(wanted)
    return float(np.abs(np.asarray(found, np.float64) - wanted).max() / (np.abs(wanted).max() or 1.0))


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "caputo": lambda x, a: fjx.caputo(x, a, dt=0.1),
    "both sides": lambda x, a: fjx.GrunwaldLetnikov(a, side="both")(x, dt=0.1),
    "times": lambda x, a: fjx.caputo(x, a, t=np.linspace(0, 1, 20)),
    "multiplier": lambda x, a: fjx.PeriodicWeyl(a)(x, dt=0.1),
    "fdiff": lambda x, a: fjx.fdiff(x, a),
    "solve": lambda x, a: fjx.solve(x, fjx.Caputo(a), x0=x[..., 0]),
    "solve of an integral": lambda x, a: fjx.solve(x, fjx.RiemannLiouvilleIntegral(a), x0=x[..., 0]),
    "special": lambda x, a: fjx.mittag_leffler(-(x**2), a),
    "rotation": lambda x, a: fjx.fractional_fourier(x, a).real,
}
EVERY = [
    pytest.param(function, id=name, marks=() if name == "multiplier" else pytest.mark.slow)
    for name, function in OPERATORS.items()
]


@pytest.mark.parametrize("function", EVERY)
def test_a_batch_over_the_explicit_axes_of_a_mesh_stays_where_it_lies(function):
    """`jax.make_mesh` makes such axes: a reshape that merges a sharded one must be told how its result lies."""
    if len(jax.devices()) < 4:
        pytest.skip("needs four devices: XLA_FLAGS=--xla_force_host_platform_device_count=4")
    x, alpha = jnp.asarray(walk(4, 2, 20), jnp.float32), jnp.asarray(0.4)
    rows = jax.sharding.NamedSharding(jax.make_mesh((4,), ("rows",)), jax.sharding.PartitionSpec("rows"))
    spread = jax.device_put(x, rows)
    outside = function(spread, alpha)
    assert jax.typeof(outside).sharding.spec[0] == "rows"
    assert relative(outside, np.asarray(function(x, alpha))) <= SINGLE
    gradients = jax.jit(jax.grad(lambda x, alpha: (function(x, alpha) ** 2).mean(), argnums=(0, 1)))
    found, wanted = gradients(spread, alpha), gradients(x, alpha)
    assert jax.typeof(found[0]).sharding.spec[0] == "rows"
    for each, other in zip(found, wanted, strict=True):
        assert relative(each, np.asarray(other)) <= 1e-5


@pytest.mark.slow
def test_reference_values_with_no_beginning_or_two_ends_are_met():
    """Liouville-Weyl with a history that is cut, and both forms of the fractional Laplacian on the line."""
    with jax.enable_x64(True):
        case, cut = reference_cases.EXTENDED["weyl_exp2_a07"], 6
        points, wanted = np.array(case["points"]), np.array(case["values"], float)
        t = np.linspace(-cut, 2, (cut + 2) * 1000 + 1)
        definition = fjx.Marchaud(case["alpha"], history="constant")
        found = np.asarray(definition(jnp.asarray(np.exp(2 * t)), dt=1e-3))[np.rint((points + cut) * 1000).astype(int)]
        # What the cut history weighs, and dt**(3 - alpha) of l1_2 times 2**3.
        assert (abs(found - wanted) <= definition.history_bound(points + cut, np.exp(-2.0 * cut)) + 2e-6 * wanted).all()

        case = reference_cases.EXTENDED["fraclap_gauss_a08"]
        points, wanted = np.array(case["points"]), np.array(case["values"], float)
        x = jnp.asarray((np.arange(512) - 256) / 8)
        line = fjx.FractionalLaplacian(case["alpha"], space="line")(jnp.exp(-(x**2)), dt=1 / 8)
        np.testing.assert_allclose(line[np.rint(points * 8).astype(int) + 256], wanted, rtol=0, atol=1e-6)

        case, errors = reference_cases.EXTENDED["fraclap_getoor_a12"], []
        for n_steps in (200, 400):
            t = np.linspace(-1, 1, n_steps + 1)
            found = fjx.Riesz(case["alpha"])(jnp.asarray(np.maximum(1 - t**2, 0) ** 0.6), dt=2 / n_steps)
            inside = np.rint((np.array(case["points"]) + 1) / 2 * n_steps).astype(int)
            errors.append(np.abs(np.asarray(found)[inside] + np.array(case["values"], float)).max())
        assert abs(np.log2(errors[0] / errors[1]) - (1 + case["alpha"] / 2)) <= 0.1


def test_a_bound_that_single_precision_rounds_is_met_by_its_rounded_value():
    """0.3 becomes 0.30000001 in float32 and 0.30078 in bfloat16; the next number above is outside."""
    x = jnp.ones((0, 9))  # of no samples: the order is checked, and nothing is compiled
    for dtype in (jnp.float32, jnp.bfloat16):
        bound = jnp.asarray(0.3, dtype)
        assert fjx.caputo(x, bound, bounds=(0.0, 0.3)).shape == x.shape
        with pytest.raises(ValueError, match=r"within its bounds \(0, 0.3\)"):
            fjx.caputo(x, jnp.nextafter(bound, jnp.asarray(1, dtype)), bounds=(0.0, 0.3))


SECOND: dict[str, Callable[[Any], Any]] = {
    "hessian": jax.hessian,
    "reverse over reverse": lambda f: jax.grad(jax.grad(f)),
    "forward over reverse": lambda f: lambda a: jax.jvp(jax.grad(f), (a,), (1.0,))[1],
}
LOOPS: dict[str, Callable[[Any], Any]] = {
    "scan": lambda f: lambda a: jax.lax.scan(lambda c, _: (c / 2, f(c)), a, length=2)[1].sum(),
    "map": lambda f: lambda a: jax.lax.map(f, a * jnp.asarray([1.0, 0.5])).sum(),
}


@pytest.mark.parametrize("second", SECOND.values(), ids=SECOND)
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_over_what_is_made_in_float64_has_second_derivatives(loop, second):
    """Differentiating a loop leaves out the rules of `custom_jvp` and `custom_vmap`, and keeps those of a primitive."""
    cubes = loop(lambda order: in_float64(lambda each: each**3, order, jnp.float32))
    assert float(second(cubes)(0.5)) == pytest.approx(6 * 0.5 * (1 + 1 / 8), rel=SINGLE)


LOOPED: dict[str, Callable[[Any], Any]] = {
    "an operator": lambda a: (fjx.caputo(jnp.sin(jnp.arange(4.0)), a) ** 2).sum(),
    "a special function": lambda a: fjx.mittag_leffler(-a, a),
    "a solve": lambda a: fjx.fdeint(lambda t, y: -y, jnp.ones(2), np.linspace(0, 1, 4), a)[-1].sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize("function", LOOPED.values(), ids=LOOPED)
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_has_the_second_derivative_of_its_steps(loop, function):
    hessian = jax.jit(jax.hessian(function))
    wanted = sum(float(hessian(0.6 * part)) * part**2 for part in (1.0, 0.5))
    with jax.enable_x64(True):
        found = jax.jit(jax.hessian(loop(function)))(jnp.asarray(0.6))
    assert float(jax.jit(jax.hessian(loop(function)))(0.6)) == pytest.approx(wanted, rel=1e-4)
    assert float(found) == pytest.approx(wanted, rel=1e-4)  # rounding of single precision, which second slopes enlarge


CLOSED: dict[str, Callable[[Any, Any], Any]] = {
    **OPERATORS,
    "variable order": lambda x, a: fjx.variable_order(x, a * jnp.linspace(0.5, 1, 20)),
    "integral": lambda x, a: fjx.integral(x, a),
}


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(function, id=name, marks=() if name == "fdiff" else pytest.mark.slow)
        for name, function in CLOSED.items()
    ],
)
def test_samples_of_numpy_are_constants_beside_an_order_of_jax(function):
    x, loss = walk(2, 20).astype(np.float32), lambda a, x: (function(x, a) ** 2).mean()
    for transform in (jax.grad, jax.jacfwd, lambda f: lambda a, x: jax.vmap(f, (0, None))(a[None], x)):
        np.testing.assert_allclose(
            transform(loss)(jnp.asarray(0.4), x), transform(loss)(jnp.asarray(0.4), jnp.asarray(x)), rtol=1e-6
        )
    assert isinstance(function(x, jnp.asarray(0.4)), jax.Array)


STEPPED: dict[str, Callable[[Any], Any]] = {
    "an operator": lambda dt: fjx.caputo(jnp.arange(8.0), 0.5, dt=dt),
    "a multiplier": lambda dt: fjx.PeriodicWeyl(0.5)(jnp.arange(8.0), dt=dt),
    "orders of samples": lambda dt: fjx.variable_order(jnp.arange(8.0), jnp.full(8, 0.4), dt=dt),
    "noise": lambda dt: fjx.increments(fjx.FractionalBrownian(0.3), 4, (2,), dt=dt, key=jax.random.key(0)),
    "a core": lambda dt: fjx.functional.FractionalLayer(0.5, dt=dt)({}, jnp.ones((8, 2))),
    "a module": lambda dt: fjx.FractionalLayer(0.5, dt=dt)(jnp.ones((8, 2))),
    "a linen module": lambda dt: fjx.linen.FractionalLayer(0.5, dt=dt).apply({}, jnp.ones((8, 2))),
}


@pytest.mark.parametrize("function", STEPPED.values(), ids=STEPPED)
def test_a_step_is_a_number_of_any_kind_that_is_known_when_it_is_traced(function):
    wanted = function(0.25)
    for step in (jnp.asarray(0.25), np.asarray(0.25), np.float32(0.25)):
        np.testing.assert_array_equal(function(step), wanted)
    for transform in (jax.jit, lambda f: jax.grad(lambda dt: f(dt).sum()), jax.vmap):
        with pytest.raises(TypeError, match=r"dt=.*Tracer.*: needs a step that is known when .* close"):
            transform(function)(jnp.ones(3) if transform is jax.vmap else 0.25)
    with pytest.raises(TypeError, match="needs a real number"):
        function(jnp.ones(2))
    with pytest.raises(ValueError, match="needs a finite dt > 0"):
        function(jnp.asarray(-1.0))


@pytest.mark.slow
def test_a_complex_state_is_that_of_its_two_parts_and_refused_by_stochastic_equations():
    z, ts = jnp.asarray([1.0 + 0.5j]), np.linspace(0, 1, 65)
    real, imaginary = fjx.fdeint(lambda t, y: (-y[1], y[0]), (z.real, z.imag), ts, 0.7)
    whole = fjx.fdeint(lambda t, y: jnp.complex64(1j) * y, z, ts, 0.7)
    np.testing.assert_allclose(whole, np.asarray(real) + 1j * np.asarray(imaginary), rtol=1e-6)  # single precision
    exact = np.asarray(fjx.mittag_leffler(jnp.asarray(1j), 0.7)) * np.asarray(z)
    np.testing.assert_allclose(whole[-1], exact, rtol=2e-3)
    with pytest.raises(TypeError, match=r"complex64\): needs .* pass \(y0.real, y0.imag\), a state of two parts"):
        fjx.fsdeint(fjx.SDE(lambda t, y: y, lambda t, y: y), z, ts, key=jax.random.key(0))


@pytest.mark.slow
def test_names_that_solves_are_given_with_options_stand_beside_them():
    def solved(**options: Any) -> np.ndarray:
        return np.asarray(fjx.fdeint(lambda t, y: -y, jnp.ones(2), np.linspace(0, 1, 9), 0.7, **options))

    for scheme, name in ((fjx.Trapezoid(fjx.Newton()), "trapezoid"), (fjx.BDF2(fjx.Newton()), "bdf2")):
        assert (solved(scheme=scheme) == solved(scheme=name)).all()
    assert relative(solved(history=fjx.Exponentials(1e-9)), solved(history="full")) <= 1e-5
    assert relative(solved(history=fjx.Window(8)), solved(history="full")) <= 1e-6
    exact = np.asarray(fjx.mittag_leffler(-(np.linspace(0, 1, 9) ** 0.7), 0.7))
    assert relative(solved(mesh=fjx.Graded(3.0), n_steps=64)[:, 0], exact) <= 1e-3


@pytest.mark.slow
def test_a_hurst_index_is_estimated_of_an_array():
    drawn = fjx.increments(fjx.FractionalBrownian(0.3), 256, (), dt=1.0, key=jax.random.key(0))
    path = jnp.cumsum(drawn)
    for function in (lambda x: fjx.whittle(x).hurst, lambda x: fjx.structure_function(x).hurst):
        assert function(path) == pytest.approx(function(np.asarray(path, np.float64)), abs=1e-4)


@pytest.mark.slow
def test_loading_all_names_starts_no_device():
    """`jax.distributed.initialize` and jax_platforms must come before the first array."""
    script = (
        "import jax, hpfracc_nn.jax as names\n"
        "[getattr(names, name) for name in names.__all__]\n"
        "jax.config.update('jax_platforms', 'none such')\n"
        "try:\n    jax.devices()\n"
        "except RuntimeError as error:\n    print('none such' in str(error))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "script",
    [
        "import jax, hpfracc_nn.jax as fjx\nfound = jax.jit(lambda definition: definition)(fjx.Caputo(0.5))",
        "import jax, hpfracc_nn\nfound = jax.tree.map(lambda leaf: leaf / 2, hpfracc_nn.Caputo(jax.numpy.ones(())))",
    ],
    ids=["a fixed order", "an array"],
)
def test_a_definition_is_a_pytree_before_any_operator_is_called(script):
    found = subprocess.run([sys.executable, "-c", f"{script}\nprint(found.alpha)"], capture_output=True, text=True)
    assert found.stdout == "0.5\n", found.stderr


@pytest.mark.slow
def test_operators_obey_strict_promotion():
    def failures() -> set[tuple[int, int]]:
        plans = [plan for site in default_manager().sites() for plan in site.plans()]
        return {(id(plan), plan.failures) for plan in plans if plan.failures}

    x, alpha, before = jnp.asarray(walk(2, 12), jnp.float32), jnp.asarray(0.4), failures()
    with jax.numpy_dtype_promotion("strict"):
        for function in (
            lambda alpha: fjx.caputo(x, alpha, dt=0.1),
            lambda alpha: fjx.GrunwaldLetnikov(alpha, side="both")(x),
            lambda alpha: fjx.caputo(x, alpha, t=np.linspace(0, 1, 12)),
            lambda alpha: fjx.solve(x, fjx.Caputo(alpha), x0=0.0),
            lambda alpha: fjx.fdiff(x, alpha),
            lambda alpha: fjx.PeriodicWeyl(alpha)(x),
            lambda alpha: fjx.FractionalLaplacian(alpha, space="line")(x),
            lambda alpha: fjx.mittag_leffler(-(x**2), alpha),
            lambda alpha: fjx.fractional_fourier(x, alpha).real,
        ):
            slope = jax.jit(jax.grad(lambda alpha, function=function: function(alpha).sum()))(alpha)
            assert np.isfinite(slope)
    assert failures() <= before  # what is left is of other tests of this process


@pytest.mark.slow
def test_a_calibration_of_half_precision_is_that_of_what_it_is_computed_in():
    manager = BackendManager(Settings(mode="learn", wisdom="off", calibration="shipped"))
    fjx.calibrate((2, 60), dtype=jnp.bfloat16, manager=manager)
    assert manager.plan(fjx.workload((2, 60), dtype="bfloat16")).reason == "measured"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dtype": "float64"}, ValueError, "needs 64 bit types to be enabled"),
        ({"dtype": "int32"}, TypeError, "needs float16, bfloat16, float32 or float64"),
        ({"definition": fjx.PeriodicWeyl(0.5)}, TypeError, "needs a definition with memory"),
        ({"definition": fjx.Caputo(0.5, side="right")}, ValueError, "needs side='left'"),
        ({"shape": (0, 9)}, ValueError, "needs at least one sample"),
    ],
    ids=["dtype", "integers", "multiplier", "side", "no samples"],
)
def test_a_calibration_refuses_what_no_operator_would_compute(arguments, error, words):
    with pytest.raises(error, match=words):
        fjx.calibrate(**{"shape": (2, 9), **arguments})


def test_devices_are_named_as_calibrations_of_them_are():
    """Rates that were measured for cuda:0 are those of what runs there; a host's devices are one."""
    with jax.default_device(jax.devices()[0]):
        assert probe.device_name() == fjx.workload((2, 9)).device == "cpu"
    assert probe._named("gpu", 1) == "cuda:1"
    with pytest.raises(RuntimeError, match="such devices here"):
        probe._device("cpu:99")
