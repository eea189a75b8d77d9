"""fsdeint in JAX: reference values, derivatives, transforms and refusals. Parity with torch is in `parity_cases`."""

import functools
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy

from jax.experimental import checkify  # noqa: E402
from jax.extend.core import jaxprs_in_params  # noqa: E402

from hpfracc_nn.fractional.namespace import NUMPY  # noqa: E402
from hpfracc_nn.selection import BackendManager, Cost, Settings, kernels  # noqa: E402
from hpfracc_nn.solvers import SDE, Brownian, FractionalBrownian, Given, Window  # noqa: E402
from hpfracc_nn.solvers.jax import fsdeint  # noqa: E402
from hpfracc_nn.solvers.noise.fractional import fgn_autocovariance  # noqa: E402

KEY = jax.random.key(0)
TS = np.linspace(0, 1.2, 9)
REFERENCE = json.loads((pathlib.Path(__file__).parent / "reference" / "sdes.json").read_text("utf-8"))
DRIFTLESS = SDE(lambda t, y: jnp.zeros_like(y), lambda t, y: jnp.ones_like(y), "additive")
NETWORK = SDE(
    lambda t, y, args: jnp.tanh(y @ args[0]) + jnp.sin(t),
    lambda t, y, args: jnp.broadcast_to(args[1], y.shape) * jnp.cos(y),
)


@pytest.fixture
def doubles():
    with jax.enable_x64(True):
        yield


def parameters():
    return jnp.linspace(-1, 1, 9).reshape(3, 3), jnp.asarray([0.3, 0.5, 0.7])


def start():
    return jnp.linspace(-1, 1, 12).reshape(4, 3)


def loss(args, y0, key=KEY, **options):
    ys = fsdeint(NETWORK, y0, TS, args=args, key=key, **options)
    return jnp.sum(ys * jnp.cos(jnp.arange(float(ys.size))).reshape(ys.shape))


def along(tree):
    return jax.tree.map(lambda each: jnp.sin(jnp.arange(1.0, each.size + 1)).reshape(each.shape), tree)


def assert_close(found, expected, rtol=1e-11):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * float(jnp.abs(other).max()))


def responses(sde, y0, n, is_double, end=1.0, **options):
    """Return the state at the end without noise, and what a unit of each increment adds to it; see `sde_cases.py`."""
    count = n * (2 if is_double else 1)
    units = np.eye(count).reshape((n, 2, count) if is_double else (n, count))
    noise = Given(np.concatenate([0 * units[..., :1], units], -1), **options.pop("given", {}))
    solve = jax.jit(lambda: fsdeint(sde, jnp.full(count + 1, y0), [0.0, end], dt=end / n, noise=noise, **options)[-1])
    found = np.asarray(solve())
    return found[0], found[1:] - found[0]


CASES = REFERENCE["discrete_scheme_moments_N100"]["cases"]


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["left", "average", "isometry", "hybrid"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"alpha {case['alpha']}")
def test_the_variance_of_the_driftless_process_is_that_of_the_scheme(case, weights, doubles):
    name = {"left": "var_left", "average": "var_avg", "isometry": "var_iso", "hybrid": "var_hybrid1"}[weights]
    alpha = float(case["alpha"])
    mean, units = responses(DRIFTLESS, 0.7, 100, weights == "hybrid" and alpha < 1, alpha=alpha, weights=weights)
    assert mean == pytest.approx(0.7, rel=1e-12)
    assert (units**2).sum() / 100 == pytest.approx(float(case[name]), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["volterra_ou"]["cases"], ids=lambda case: f"alpha {case['alpha']}")
def test_the_volterra_ornstein_uhlenbeck_process_has_the_moments_of_its_closed_form(case, doubles):
    sde, alpha = SDE(lambda t, y: -y, lambda t, y: jnp.ones_like(y), "additive"), float(case["alpha"])
    mean, units = responses(sde, 1.0, 100, alpha < 1, alpha=alpha)
    assert mean == pytest.approx(float(case["mean"]), rel=6e-3)  # a drift that is frozen on each cell
    assert (units**2).sum() / 100 == pytest.approx(float(case["var"]), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["fou_variance"]["cases"], ids=lambda case: f"H {case['H']}")
def test_the_fractional_ornstein_uhlenbeck_process_has_the_variance_of_its_closed_form(case, doubles):
    hurst, rate, n = float(case["H"]), float(case["lam"]), 200
    sde = SDE(lambda t, y: -rate * y, lambda t, y: jnp.ones_like(y), "additive")
    given = {"holder": hurst, "brownian": False}
    _, units = responses(sde, 0.0, n, False, scheme="heun", end=float(case["t"]), given=given)
    lag = np.abs(np.arange(n)[:, None] - np.arange(n))
    covariance = (float(case["t"]) / n) ** (2 * hurst) * fgn_autocovariance(hurst, n, NUMPY)[lag]
    assert units @ covariance @ units == pytest.approx(float(case["var"]), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["rough_bergomi_moments"]["cases"], ids=lambda case: f"t {case['t']}")
def test_the_volterra_process_of_rough_bergomi_has_its_moments(case, doubles):
    hurst, eta, t, n = 0.07, 1.9, float(case["t"]), 200
    scale = math.sqrt(2 * hurst) * math.gamma(hurst + 0.5)
    sde = SDE(lambda s, y: jnp.zeros_like(y), lambda s, y: jnp.full_like(y, scale), "additive")
    _, units = responses(sde, 0.0, n, True, end=t, alpha=hurst + 0.5)
    variance = (units**2).sum() * t / n
    for power, name in ((1, "Ev"), (2, "Ev2"), (0.5, "Esqrtv")):
        moment = 0.235 ** (2 * power) * math.exp(
            power**2 * eta**2 * variance / 2 - power * eta**2 * t ** (2 * hurst) / 2
        )
        assert moment == pytest.approx(float(case[name]), rel=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["geometric_fbm"]["cases"][2:], ids=lambda case: f"H {case['H']}")
def test_geometric_fractional_brownian_motion_has_the_moments_of_the_reference(case):
    hurst, mu, sigma, t = (float(case[name]) for name in ("H", "mu", "sigma", "t"))
    sde = SDE(lambda s, y: mu * y, lambda s, y: sigma * y)
    options = {"scheme": "heun", "interpretation": "stratonovich", "noise": FractionalBrownian(hurst), "key": KEY}
    ends = np.asarray(fsdeint(sde, jnp.ones(20_000), [0.0, t], dt=t / 64, **options)[-1], np.float64)
    for power, name in ((1, "EX"), (2, "EX2")):
        sample = ends**power
        deviation = sample.std() / math.sqrt(sample.size)
        assert abs(sample.mean() - float(case[name])) < 4 * deviation + 2e-3 * float(case[name])


@pytest.mark.slow
@pytest.mark.parametrize("case", REFERENCE["ou_gbm_alpha1"]["cases"], ids=lambda case: case["problem"])
def test_brownian_equations_have_the_moments_of_the_reference(case):
    if case["problem"] == "OU":
        rate, sigma = float(case["lam"]), float(case["sigma"])
        sde = SDE(lambda t, y: -rate * y, lambda t, y: jnp.full_like(y, sigma), "additive")
        wanted = {1: float(case["mean"]), 2: float(case["var"]) + float(case["mean"]) ** 2}
    else:
        mu, sigma = float(case["mu"]), float(case["sigma"])
        sde = SDE(lambda t, y: mu * y, lambda t, y: sigma * y)
        wanted = {1: float(case["EX"]), 2: float(case["EX2"])}
    y0 = jnp.full(40_000, float(case["x0"]))
    ends = np.asarray(fsdeint(sde, y0, [0.0, float(case["t"])], dt=0.05, scheme="srk", key=KEY)[-1], np.float64)
    for power, value in wanted.items():
        sample = ends**power
        assert abs(sample.mean() - value) < 4 * sample.std() / 200 + 1e-3 * value


def test_alpha_1_is_euler_and_maruyamas_loop(doubles):
    dw = 0.3 * np.random.default_rng(0).standard_normal((8, 4, 3))
    inner, scale = (np.asarray(each) for each in parameters())
    y = np.asarray(start())
    states = [y]
    for n in range(8):
        y = y + (np.tanh(y @ inner) + np.sin(TS[n])) * 0.15 + scale * np.cos(y) * dw[n]
        states.append(y)
    found = jax.jit(lambda y0: fsdeint(NETWORK, y0, TS, args=parameters(), noise=dw))(start())
    np.testing.assert_allclose(found, np.stack(states), rtol=0, atol=1e-15)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_the_adjoint_is_the_derivative_of_the_loop_in_either_mode(alpha, doubles):
    given = (parameters(), start())
    adjoint = functools.partial(loss, alpha=alpha)
    plain = functools.partial(loss, alpha=alpha, adjoint=False)
    expected = jax.jit(jax.grad(adjoint, (0, 1)))(*given)
    products = jax.tree.map(lambda one, other: (one * other).sum(), expected, along(given))
    for each in (adjoint, functools.partial(adjoint, checkpoint=True), plain):
        _, slope = jax.jit(lambda given, moved: jax.jvp(each, given, moved))(given, along(given))  # noqa: B023
        assert float(slope) == pytest.approx(float(sum(jax.tree.leaves(products))), rel=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"checkpoint": True}, {"adjoint": False}, {"adjoint": False, "checkpoint": True}])
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_however_a_gradient_is_made_it_is_the_same(alpha, options, doubles):
    given = (parameters(), start())
    expected = jax.jit(jax.grad(functools.partial(loss, alpha=alpha), (0, 1)))(*given)
    assert_close(jax.jit(jax.grad(functools.partial(loss, alpha=alpha, **options), (0, 1)))(*given), expected)


@pytest.mark.slow
def test_below_1_the_adjoint_follows_forward_mode_too(doubles):
    def of_alpha(alpha):
        return loss(parameters(), start(), alpha=alpha)

    slope = jax.jit(jax.grad(of_alpha))(0.7)
    assert jax.jit(jax.jacfwd(of_alpha))(0.7) == pytest.approx(float(slope), rel=1e-11)
    step = 1e-5
    curve = (jax.grad(of_alpha)(0.7 + step) - jax.grad(of_alpha)(0.7 - step)) / (2 * step)
    assert jax.hessian(of_alpha)(0.7) == pytest.approx(float(curve), rel=1e-6)


@pytest.mark.parametrize("outputs", [np.linspace(0, 1.2, 1201)[[0, 1, 2, 500, 777, 1200]], [0.9, 1.2], [0.0, 1.2]])
@pytest.mark.parametrize("options", [{}, {"checkpoint": True}], ids=["each", "blocks"])
def test_states_at_some_times_and_their_slopes_are_those_of_all(outputs, options, doubles):
    every, start = np.linspace(0, 1.2, 1201), outputs[0]
    steps = np.round((np.asarray(outputs) - start) / 1e-3).astype(int)
    equation = SDE(lambda t, y, args: jnp.sin(args * y), lambda t, y, args: jnp.cos(y) * args)

    def at(ts, args, **options):
        return fsdeint(equation, jnp.ones(2), ts, args=args, key=KEY, dt=1e-3, **options)

    def wanted(args):
        return at(every[every >= start - 1e-9], args, adjoint=False)[steps]

    def slopes(of):
        return jax.jit(lambda args: (of(args), jax.jvp(of, (args,), (1.0,))[1], jax.vjp(of, args)[1](along(of(args)))))

    assert_close(slopes(lambda args: at(outputs, args, **options))(0.7), slopes(wanted)(0.7))


def numbers_made(jaxpr):
    """Return how many numbers the operations of a program make, those of a loop as often as it takes them."""
    total = 0
    for equation in jaxpr.eqns:
        inner = [numbers_made(each) for each in jaxprs_in_params(equation.params)]
        own = sum(math.prod(getattr(each.aval, "shape", ())) for each in equation.outvars)
        total += equation.params.get("length", 1) * sum(inner) if inner else own
    return total


@pytest.mark.parametrize("options", [{}, {"checkpoint": True}, {"adjoint": False}], ids=["each", "blocks", "plain"])
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad, lambda f: jax.grad(jax.grad(f))], ids=range(3))
def test_at_alpha_1_the_work_of_a_derivative_grows_as_the_output_times_do(transform, options):
    def made(n):
        def mean(rate):
            equation = SDE(lambda t, y: -rate * y, lambda t, y: jnp.ones_like(y))
            return fsdeint(equation, jnp.ones(3), np.linspace(0, 1, n + 1), key=KEY, **options).mean()

        return numbers_made(jax.make_jaxpr(transform(mean))(1.0).jaxpr)

    assert made(2500) == pytest.approx(5 * made(500), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_a_second_derivative_is_that_of_the_first(alpha, doubles):
    def curved(scale):
        return loss((parameters()[0], scale * parameters()[1]), start(), alpha=alpha)

    step = 1e-5
    curve = (jax.grad(curved)(1 + step) - jax.grad(curved)(1 - step)) / (2 * step)
    assert jax.grad(jax.grad(curved))(1.0) == pytest.approx(float(curve), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("history", ["full", "fft", "exponentials", "auto", Window(200)])
def test_every_history_remembers_the_same(history, doubles):
    def solve(history):
        return jax.jit(
            lambda y0: fsdeint(
                NETWORK, y0, [0.0, 1.2], dt=0.006, args=parameters(), alpha=0.7, key=KEY, history=history
            )
        )(start())

    assert_close(solve(history), solve("full"), 1e-9)  # the tolerance of exponentials, over 200 steps


@pytest.mark.slow
def test_an_index_and_an_order_have_their_slopes(doubles):
    # d Var / d alpha of the driftless process at alpha 0.6 is -15.60; of 100 steps -15.59.
    def variance(alpha):
        units = np.eye(200).reshape(100, 2, 200)
        ends = fsdeint(DRIFTLESS, jnp.zeros(200), [0.0, 1.0], dt=0.01, alpha=alpha, noise=Given(units))[-1]
        return jnp.sum(ends**2) / 100

    assert float(jax.jit(jax.grad(variance))(0.6)) == pytest.approx(-15.60, rel=0.01)

    def second(hurst):
        noise = FractionalBrownian(hurst, bounds=(0.1, 0.6))
        sde = SDE(lambda t, y: -2 * y, lambda t, y: jnp.ones_like(y), "additive")
        ends = fsdeint(sde, jnp.zeros(20_000), [0.0, 1.0], dt=0.01, scheme="heun", noise=noise, key=KEY)[-1]
        return jnp.mean(ends**2)

    case = REFERENCE["fou_variance"]["cases"][1]
    slope = float(jax.jit(jax.grad(second))(float(case["H"])))
    assert slope == pytest.approx(float(case["dvar_dH"]), rel=0.08)  # of 20 000 paths about 2 %, and the steps


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_a_map_over_keys_and_states_is_the_loop(alpha):
    solve = functools.partial(fsdeint, NETWORK, ts=TS, args=parameters(), alpha=alpha)
    keys, states = jax.random.split(KEY, 3), jnp.stack([start(), 2 * start(), -start()])
    both = jax.jit(jax.vmap(lambda key, y0: solve(y0=y0, key=key)))(keys, states)
    for key, y0, found in zip(keys, states, both, strict=True):
        np.testing.assert_allclose(found, solve(y0=y0, key=key), rtol=2e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["Auto", "Explicit"])
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_a_batch_over_several_devices_is_that_of_one(alpha, axis):
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    options = {"alpha": alpha} if alpha == 1 else {}

    def total(args, y0, order):
        return summed(args, y0, **(options or {"alpha": order}))

    gradient = jax.value_and_grad(total, (0, 1, 2))
    alone = jax.jit(gradient)(parameters(), start(), alpha)
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType[axis],))
    with jax.set_mesh(mesh):
        batch = jax.device_put(start(), jax.NamedSharding(mesh, jax.P("batch")))
        shared = jax.jit(gradient)(parameters(), batch, alpha)
    assert_close(shared, alone, 1e-5)  # sums over the batch in another order, in single precision


def summed(args, y0, **options):
    return jnp.sum(jnp.sin(fsdeint(NETWORK, y0, TS, args=args, key=KEY, **options)))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_a_solve_in_a_loop_that_is_taken_again_has_the_gradient_of_one_that_is_not(alpha):
    def repeated(taken, y0):
        keys = jax.random.split(KEY, 2)
        return jax.lax.scan(taken, y0, keys)[0].sum()

    def taken(y, key):
        return fsdeint(NETWORK, y, TS, args=parameters(), key=key, alpha=alpha)[-1], None

    expected = jax.jit(jax.grad(functools.partial(repeated, taken)))(start())
    assert_close(jax.jit(jax.grad(functools.partial(repeated, jax.checkpoint(taken))))(start()), expected, 1e-5)


@pytest.mark.slow
def test_a_kernel_that_stands_in_for_another_has_its_own_weights(monkeypatch):
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    kernel = next(each for each in kernels("history", framework="jax") if each.algorithm == "recurrence")

    def failing(*given):
        raise RuntimeError("it fails")

    def solve(**options):
        return fsdeint(NETWORK, start(), [0.0, 1.2], args=parameters(), alpha=0.7, dt=0.006, key=KEY, **options)

    monkeypatch.setattr(type(kernel), "__setattr__", object.__setattr__)
    monkeypatch.setattr(kernel, "cost", lambda workload: Cost({}, 0.0, 0))  # so that it is the first
    monkeypatch.setattr(kernel, "run", failing)
    np.testing.assert_allclose(solve(manager=manager), solve(history="full"), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_nothing_is_promoted_unasked():
    with jax.numpy_dtype_promotion("strict"):
        for options in ({}, {"alpha": 0.7}, {"scheme": "srk", "noise": Brownian()}):
            assert np.isfinite(fsdeint(NETWORK, start(), TS, args=parameters(), key=KEY, **options)).all()
        assert np.isfinite(jax.jit(jax.grad(lambda alpha: summed(parameters(), start(), alpha=alpha)))(0.7))


@pytest.mark.slow
def test_a_traced_order_beyond_its_bounds_is_nan_and_raises_under_checkify():
    solve = jax.jit(lambda alpha: fsdeint(DRIFTLESS, jnp.zeros(2), [0.0, 1.0], dt=0.5, alpha=alpha, key=KEY))
    assert np.isnan(solve(1.5)[1:]).all()
    assert np.isnan(jax.grad(lambda alpha: solve(alpha).sum())(1.5))
    assert np.isfinite(solve(0.5)).all()  # on the bound the nearest order
    checked = checkify.checkify(solve, errors=checkify.user_checks)
    with pytest.raises(checkify.JaxRuntimeError, match="needs every alpha within its bounds"):
        checked(1.5)[0].throw()
    assert checked(0.9)[0].get() is None


@pytest.mark.slow
def test_states_may_be_pytrees_and_what_is_closed_over_has_gradients():
    def solve(rate):
        sde = SDE(
            lambda t, y: {"a": -rate * y["a"], "b": y["b"] * y["a"].sum()}, lambda t, y: {"a": y["a"], "b": y["b"]}
        )
        ys = fsdeint(sde, {"a": jnp.ones((2, 2)), "b": jnp.ones(3)}, TS, alpha=0.8, key=KEY)
        assert ys["a"].shape == (9, 2, 2)
        return ys["b"].sum()

    assert jax.jit(jax.grad(solve))(0.5) != 0


@pytest.mark.slow
def test_an_equinox_module_is_an_equation():
    eqx = pytest.importorskip("equinox")

    class Equation(eqx.Module):  # type: ignore[name-defined,misc]
        net: Any
        noise_type: str = eqx.field(static=True, default="diagonal")

        def drift(self, t, y):
            return jax.vmap(self.net)(y)

        def diffusion(self, t, y):
            return 0.3 * jnp.ones_like(y)

    sde = Equation(eqx.nn.MLP(3, 3, 8, 1, key=KEY))
    grads = eqx.filter_jit(eqx.filter_grad(lambda sde: (fsdeint(sde, start(), TS, key=KEY)[-1] ** 2).sum()))(sde)
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "solver"), [("euler", "Euler"), ("srk", "SRA1"), ("heun", "Heun")])
def test_a_brownian_path_of_diffrax_gives_what_diffrax_solves(scheme, solver):
    diffrax, lineax = pytest.importorskip("diffrax"), pytest.importorskip("lineax")
    area = diffrax.SpaceTimeLevyArea if scheme == "srk" else diffrax.BrownianIncrement
    path = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-3, (4,), KEY, levy_area=area)
    sde = SDE(lambda t, y: -jnp.sin(y), lambda t, y: 0.5 * jnp.ones_like(y), "additive")
    found = fsdeint(sde, jnp.ones(4), [0.0, 1.0], dt=0.1, scheme=scheme, noise=path)[-1]
    noise = diffrax.ControlTerm(lambda t, y, args: lineax.DiagonalLinearOperator(0.5 * jnp.ones_like(y)), path)
    terms = diffrax.MultiTerm(diffrax.ODETerm(lambda t, y, args: -jnp.sin(y)), noise)
    peer = diffrax.diffeqsolve(terms, getattr(diffrax, solver)(), 0.0, 1.0, 0.1, jnp.ones(4)).ys[-1]
    np.testing.assert_allclose(found, peer, rtol=1e-5)


def path_without_area():
    class Path:
        def evaluate(self, t0, t1, use_levy=False):
            return jnp.zeros(4)

    return Path()


ADDITIVE = SDE(lambda t, y: -y, lambda t, y: jnp.ones_like(y), "additive")
CUT = SDE(lambda t, y: y[:2], ADDITIVE.diffusion, "additive")
REFUSED = [
    ({"key": None}, TypeError, r"fsdeint\(key of type NoneType\): needs a key"),
    ({"alpha": 0.5}, ValueError, r"needs 1/2 < alpha <= 1"),
    ({"alpha": "half"}, TypeError, r"alpha of type str"),
    ({"y0": jnp.zeros(4, int)}, TypeError, r"y0 of dtype int32"),
    ({"y0": jnp.array([1.0, jnp.nan])}, ValueError, r"needs finite numbers; y0 holds nan at place 1"),
    ({"ts": [0.0, 1.0, 0.5]}, ValueError, r"times must increase"),
    ({"ts": [0.0, 1.0, 1.5]}, ValueError, r"needs equal steps or a step"),
    ({"dt": 0.3}, ValueError, r"needs a step of which all times are multiples"),
    ({"scheme": "heum"}, ValueError, r"scheme='heum'"),
    ({"scheme": "milstein"}, ValueError, r"for additive noise it is Euler's method"),
    ({"alpha": 0.7, "noise": FractionalBrownian(0.3)}, ValueError, r"weights stand on the independent increments"),
    ({"noise": jnp.zeros((3, 4))}, ValueError, r"needs the increments of 4 steps, of shape \(4, 4\)"),
    ({"noise": "brownian"}, TypeError, r"noise of type str"),
    ({"noise": path_without_area(), "scheme": "srk"}, ValueError, r"needs the space-time Levy area"),
    (
        {"sde": SDE(lambda t, y: y[:2], ADDITIVE.diffusion, "additive")},
        ValueError,
        r"sde.drift\): needs the state's shape",
    ),
    ({"sde": SDE(lambda t, y: "y", ADDITIVE.diffusion)}, TypeError, r"sde.drift\): needs an array; it returned str"),
    (
        {"sde": SDE(ADDITIVE.drift, lambda t, y: y[:, None], "diagonal")},
        ValueError,
        r"declare noise_type 'additive' or",
    ),
    ({"sde": SDE(ADDITIVE.drift, lambda t, y: y, "additive")}, ValueError, r"does not depend on y"),
    (
        {"sde": SDE(ADDITIVE.drift, lambda t, y: y[::-1] ** 2), "scheme": "milstein"},
        ValueError,
        r"needs entries that depend on the same entry of y alone",
    ),
    (
        {"sde": SDE(lambda t, y: jnp.log(0.3 - t) + y, ADDITIVE.diffusion)},
        FloatingPointError,
        r"is not finite at t=0.75",
    ),
    (
        {"sde": SDE(lambda t, y: jnp.log(-1 - y**2), ADDITIVE.diffusion)},
        FloatingPointError,
        r"fsdeint\(sde\.drift\): .*sde\.drift is NaN at t = 0, where .* size 0; return a finite value",
    ),
    (
        {"sde": SDE(ADDITIVE.drift, lambda t, y: jnp.full((4,), t**-0.3), "diagonal")},
        FloatingPointError,
        r"sde\.diffusion is infinite at t = 0",
    ),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED, ids=[each[2][:40] for each in REFUSED])
def test_a_wrong_argument_is_refused_with_the_rule_and_the_way_out(changes, error, message):
    options = {"sde": ADDITIVE, "y0": jnp.zeros(4), "ts": np.linspace(0, 1, 5), "key": KEY, **changes}
    with pytest.raises(error, match=message):
        fsdeint(options.pop("sde"), options.pop("y0"), options.pop("ts"), **options)


def test_traced_times_and_shapes_are_refused_when_the_solve_is_traced():
    with pytest.raises(TypeError, match=r"needs times that are known when the solve is compiled"):
        jax.jit(lambda ts: fsdeint(ADDITIVE, jnp.zeros(4), ts, key=KEY))(jnp.linspace(0, 1, 5))
    with pytest.raises(ValueError, match=r"needs the state's shape"):
        jax.jit(lambda y0: fsdeint(CUT, y0, [0.0, 1.0], key=KEY))(jnp.zeros(4))
    sde = SDE(ADDITIVE.drift, lambda t, y: 1 + 0 * y, "additive")
    with pytest.raises(ValueError, match=r"as it is written it does"):
        jax.jit(lambda y0: fsdeint(sde, y0, [0.0, 1.0], key=KEY))(jnp.zeros(4))


@pytest.mark.parametrize(
    "diffusion",
    [
        lambda t, y: jnp.where(y > 0.9, 1.0, 2.0),
        lambda t, y: 2 + jnp.sign(y),
        lambda t, y: jax.lax.stop_gradient(y),
        jax.jit(lambda t, y: jnp.round(y)),
    ],
    ids=["threshold", "sign", "detached", "rounded"],
)
def test_an_additive_diffusion_that_reads_the_state_is_refused_without_a_slope_too(diffusion):
    with pytest.raises(ValueError, match=r"does not depend on y"):
        fsdeint(SDE(ADDITIVE.drift, diffusion, "additive"), jnp.zeros(4), [0.0, 1.0], key=KEY)


@pytest.mark.slow
def test_an_additive_diffusion_may_ask_the_state_for_its_shape_and_print_it():
    def diffusion(t, y):
        jax.debug.print("{}", y)
        return jax.jit(lambda t, y: jnp.full(y.shape, t))(t, y)

    sde = SDE(ADDITIVE.drift, diffusion, "additive")
    assert jnp.isfinite(jax.jit(lambda y0: fsdeint(sde, y0, [0.0, 1.0], key=KEY))(jnp.zeros(4))).all()
