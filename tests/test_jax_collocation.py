"""Solves to a tolerance in JAX: errors, equality with PyTorch, derivatives, compilations, samples, dense output."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
import jax.test_util
from jax import numpy as jnp
from jax.experimental import checkify

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.fractional.special.functions import mittag_leffler
from hpfracc_nn.solvers import Collocation, Newton, Points, StepLimit
from hpfracc_nn.solvers.collocation import after, rule_of
from hpfracc_nn.solvers.jax import fdeint
from hpfracc_nn.solvers.jax.collocation.past import sums
from tests.jax_compilations import compilations
from tests.test_jax_fdeint import CASES, reference

TS = np.concatenate([[0], np.logspace(-6, 0, 13)])
MESH = Points(tuple(np.concatenate([[0.0], np.geomspace(1e-6, 2, 14)])))
MATRIX = np.random.default_rng(0).normal(size=(3, 3)) - 2 * np.eye(3)
STATE, SLOPE = np.array([1.0, -0.5, 0.3]), np.array([0.3, 0.2, -0.1])


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("n", [0, 1, 33])
def test_sums_over_steps_are_those_of_their_weights(n):
    rng, stages = np.random.default_rng(0), 8
    lengths, alpha, values = np.exp(2 * rng.normal(size=40)), np.array([0.3, 1.4]), rng.normal(size=(40, stages, 2, 3))
    rows, times = 0.7 * rule_of(stages).nodes, np.concatenate([[0], np.cumsum(lengths)])
    a, s, x, v = map(jnp.asarray, (alpha, lengths, rows, values))
    found = sums(stages, a, s, n, x, v)
    gap = (times[n] - times[1 : n + 1])[None] + rows[:, None]
    h = np.broadcast_to(lengths[:n], gap.shape)
    weights = after(stages, alpha, gap.reshape(-1), h.reshape(-1), NUMPY) if n else np.zeros((2, 0, stages))
    weights = weights.reshape(2, rows.size, n, stages)
    expected = np.einsum("akms,msar->kar", weights, values[:n])
    scale = np.einsum("akms,msar->kar", np.abs(weights), np.abs(values[:n])).max(initial=1e-300)
    assert np.abs(found - expected).max() <= 1e-14 * scale


def test_sums_have_derivatives_to_any_order():
    rng = np.random.default_rng(0)
    lengths, rows = jnp.asarray(np.exp(rng.normal(size=12))), jnp.array([0.1, 0.4])
    alpha, values = jnp.array([0.3, 1.4]), jnp.asarray(rng.normal(size=(12, 4, 2, 1)))

    def f(alpha, values):
        return sums(4, alpha, lengths, jnp.asarray(9), rows, values)

    jax.test_util.check_grads(f, (alpha, values), order=2, atol=1e-5, rtol=1e-5)
    batch = jnp.stack([alpha, 1.1 * alpha])
    jax.test_util.check_grads(jax.vmap(f, (0, None)), (batch, values), order=1, atol=1e-5, rtol=1e-5)


def relaxation(y0, rate, alpha, tolerance, ts=TS, **options):
    """Return the solution of D^alpha y = -rate y, at rest where alpha is above 1."""
    given: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "full": True, "max_steps": 400, **options}
    return fdeint(lambda t, y, rate: -rate * y, y0, ts, alpha, args=rate, dy0=jnp.zeros_like(y0), **given)


solved_relaxation = jax.jit(relaxation)  # one program for all tests


def test_one_program_solves_relaxations_to_all_tolerances():
    solve = solved_relaxation
    solve(jnp.ones(1), 1.0, 0.5, 1e-3)
    with compilations() as count:
        for alpha in (0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 1.9):
            for rate in (1.0, 1000.0):
                for tolerance in (1e-4, 1e-7, 1e-10):
                    found = solve(jnp.ones(1), rate, alpha, tolerance)
                    exact = mittag_leffler(-rate * TS**alpha, alpha)
                    assert found.reason == "finished"
                    error = np.abs(np.asarray(found.ys)[:, 0] - exact)
                    assert (error <= 10 * tolerance * (1 + np.abs(exact))).all(), (alpha, rate, tolerance)
        assert count() == 0


KNOWN = [name for name, case in CASES.items() if case.get("closed_form")]
FAST = ("fde_diethelm2004_a025", "bagley_torvik_1pt")  # each is a program of its own, compiled in seconds


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in KNOWN]
)
def test_reference_problems_are_solved_to_the_tolerance(name):
    f, y0, alpha, dy0, values, known = reference(name)
    points = np.array(CASES[name]["points"], dtype=float)
    ts = np.concatenate([[0.0], points])
    solve = jax.jit(lambda y0, tolerance: fdeint(f, y0, ts, alpha, dy0=dy0, rtol=tolerance, atol=tolerance))
    for tolerance in (1e-4, 1e-7, 1e-10):
        found = np.asarray(solve(y0, tolerance))[1:, known]
        assert (np.abs(found - values) <= 10 * tolerance * (1 + np.abs(values))).all(), tolerance


def system(xp, matrix):
    return lambda t, y: xp.tanh(matrix @ y) + xp.sin(3 * t)


@pytest.mark.parametrize("orders", [[0.6], [0.5, 1.4, 1.0]])
def test_values_and_gradients_are_those_of_pytorch_on_the_same_mesh(orders):
    torch = pytest.importorskip("torch")
    from hpfracc_nn.solvers.torch import fdeint as other

    ts = [0.0, 0.37, 1.1, 2.0]
    options: dict[str, Any] = {"scheme": "collocation", "mesh": MESH}
    arrays = [np.array(orders), STATE, MATRIX, SLOPE]
    leaves = [torch.tensor(each, requires_grad=True) for each in arrays]
    slope = {"dy0": leaves[3]} if max(orders) > 1 else {}
    expected = other(system(torch, leaves[2]), leaves[1], ts, leaves[0], **options, **slope)
    cotangent = np.random.default_rng(1).normal(size=expected.shape)
    count = 4 if slope else 3
    slopes = torch.autograd.grad((expected * torch.tensor(cotangent)).sum(), leaves[:count])

    def solve(alpha, y0, matrix, dy0=None):
        return fdeint(system(jnp, matrix), y0, ts, alpha, dy0=dy0, **options)

    @jax.jit
    def both(*arrays):
        found, pull = jax.vjp(solve, *arrays)
        return found, pull(jnp.asarray(cotangent))

    found, pulled = both(*map(jnp.asarray, arrays[:count]))
    assert np.abs(found - expected.detach().numpy()).max() <= 1e-12
    for one, exact in zip(pulled, slopes, strict=True):
        assert np.abs(one - exact.numpy()).max() <= 1e-12 * max(1.0, float(exact.abs().max()))


def test_the_steps_to_a_tolerance_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    from hpfracc_nn.solvers.torch import fdeint as other

    y0 = torch.tensor(STATE)
    expected = other(system(torch, torch.tensor(MATRIX)), y0, [0, 2], 0.6, rtol=1e-7, atol=1e-8, full=True)
    solve = jax.jit(lambda y0: fdeint(system(jnp, MATRIX), y0, [0, 2], 0.6, rtol=1e-7, atol=1e-8, full=True))
    found = solve(STATE)
    n = int(found.statistics.steps)
    assert n == expected.statistics.steps
    # Steps follow the error, of which the equations' allowance is a hundredth.
    np.testing.assert_allclose(found.mesh[1 : n + 1], expected.mesh[1:], rtol=1e-2)
    np.testing.assert_allclose(found.ys, expected.ys, rtol=1e-8)


def test_derivatives_in_both_modes_are_those_of_the_solution_and_of_the_steps_that_were_taken():
    calls, most = [0], 2000

    def counted(y):
        def called(y):
            calls[0] += 1
            return np.ones(y.shape, np.float32)  # a callback runs without the 64 bit types of `wide`

        shape = jax.ShapeDtypeStruct(y.shape, jnp.float32)
        return jax.pure_callback(called, shape, y.astype(jnp.float32), vmap_method="broadcast_all").astype(y.dtype)

    @jax.custom_jvp
    def product(rate, y):
        return -rate * y

    @product.defjvp
    def slope(primals, tangents):
        (rate, y), (of_rate, of_y) = primals, tangents
        return -rate * y, -(of_rate * y + rate * of_y) * counted(y)

    @jax.jit
    def end(rate, alpha):
        options: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9, "max_steps": most}
        return fdeint(lambda t, y: product(rate, y), jnp.ones(1), [0, 1], alpha, **options)[-1, 0]

    found = jax.jit(jax.grad(end, (0, 1)))(2.0, 0.6)
    forward = jax.jit(lambda *x: jax.jvp(end, x, (1.0, 0.5))[1])(2.0, 0.6)
    assert calls[0] < most / 2, "f is differentiated at each of some 30 steps, not at all that there may be"
    step = 1e-5
    exact = [
        float(mittag_leffler(-2.0 - step, 0.6) - mittag_leffler(-2.0 + step, 0.6)) / (2 * step),
        float(mittag_leffler(-2.0, 0.6 + step) - mittag_leffler(-2.0, 0.6 - step)) / (2 * step),
    ]
    np.testing.assert_allclose(found, exact, atol=1e-8)
    np.testing.assert_allclose(forward, found[0] + 0.5 * found[1], rtol=1e-12)


@pytest.mark.slow  # three programs, one of them a derivative of a derivative
@pytest.mark.parametrize("adjoint", [True, False])
def test_second_derivatives_are_those_of_the_solution(adjoint):
    def end(x):
        options: dict[str, Any] = {"scheme": "collocation", "mesh": MESH, "adjoint": adjoint}
        return fdeint(lambda t, y: -x[0] * y, jnp.ones(1), [0, 2], x[1], **options)[-1, 0]

    x, step = jnp.array([1.3, 0.6]), 1e-5
    slope = jax.jit(jax.grad(end))
    expected = [(slope(x + step * e) - slope(x - step * e)) / (2 * step) for e in jnp.eye(2)]
    for both in (jax.hessian(end), jax.jacrev(slope)):
        np.testing.assert_allclose(jax.jit(both)(x), np.stack(expected), atol=1e-8)


def test_each_sample_of_a_batch_has_its_own_steps_and_status():
    """The solution of D^a y = y**2 ends where it is infinite, the earlier the larger it begins."""

    def solve(y0):
        options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8, "max_steps": 60, "throw": False, "full": True}
        return fdeint(lambda t, y: y**2, y0, [0, 0.5, 1], 0.7, **options)

    batch = jnp.array([[-1.0], [0.1], [5.0]])
    every = jax.jit(jax.vmap(solve))
    found = every(batch)
    assert list(found.reason[:2]) == ["finished"] * 2
    assert found.reason[2] != "finished"
    assert bool(jnp.isnan(found.ys[2, 1:]).all())
    assert bool(jnp.isfinite(found.ys[:2]).all())
    assert float(found.end[2]) < 0.5
    steps = np.asarray(found.statistics.steps)
    assert steps[0] != steps[2]
    one = jax.jit(solve)(batch[0])
    np.testing.assert_allclose(found.ys[0], one.ys, rtol=1e-12)
    slopes = jax.jit(jax.grad(lambda y0: jax.vmap(solve)(y0).ys[:2].sum()))(batch)
    step = 0.01
    expected = (every(batch + step).ys - every(batch - step).ys)[:2].sum((1, 2)) / (2 * step)
    np.testing.assert_allclose(slopes[:2, 0], expected, rtol=2e-3)  # the step's square, and the tolerance by the step


@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_dense_output_is_as_accurate_as_the_steps(alpha):
    found = solved_relaxation(jnp.ones(1), 1.0, alpha, 1e-9)
    t = np.linspace(0.05, 1, 23)
    values, slopes = jax.jit(lambda x: (x(t), x(t, derivative=1)))(found)
    assert np.abs(values[:, 0] - mittag_leffler(-(t**alpha), alpha)).max() <= 1e-8
    exact = -(t ** (alpha - 1)) * mittag_leffler(-(t**alpha), alpha, alpha)
    assert np.abs(slopes[:, 0] - exact).max() <= 1e-6
    assert found(0.5).shape == (1,)
    at_start = float(found(0.0, derivative=1)[0])
    assert at_start == -math.inf if alpha < 1 else abs(at_start) <= 1e-12
    assert bool(jnp.isnan(found(1.1)).all())
    with pytest.raises(ValueError, match="needs 0 or 1"):
        found(1.0, derivative=2)


def test_a_pulse_between_breakpoints_is_solved():
    on, off, alpha = 0.31, 0.47, 0.6

    def g(s):
        s = np.maximum(s, 0.0)
        return 1 - mittag_leffler(-(s**alpha), alpha)

    ts = np.array([0.0, 0.2, 0.31, 0.32, 0.4, 0.47, 0.48, 0.7, 1.0])

    @jax.jit
    def solve(points, longest):
        options: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8, "full": True, "max_step": longest}
        options |= {"breakpoints": points}
        return fdeint(lambda t, y: -y + jnp.where((t > on) & (t < off), 3.0, 0.0), jnp.zeros(1), ts, alpha, **options)

    found = solve(jnp.array([-1.0, on, off, 2.0]), 0.05)
    assert np.abs(found.ys[:, 0] - 3 * (g(ts - on) - g(ts - off))).max() <= 1e-7
    assert float(np.diff(found.mesh).max()) <= 0.05 * (1 + 1e-12)
    assert min(abs(np.asarray(found.mesh) - on)) <= 1e-15


def test_a_complex_state_and_a_tree_are_solved():
    def f(t, y):
        return {"z": 1j * y["z"], "w": -y["w"]}

    y0 = {"z": jnp.ones(2, complex), "w": jnp.full((3,), 2.0 + 0j)}
    ys = jax.jit(lambda y0: fdeint(f, y0, [0, 1], 1.0, rtol=1e-9, atol=1e-9))(y0)
    assert np.abs(ys["z"][-1] - np.exp(1j)).max() <= 1e-8
    assert np.abs(ys["w"][-1] - 2 * math.exp(-1)).max() <= 1e-8


def test_a_large_state_is_solved_by_products():
    n = 140
    second = 2 * np.eye(n) - np.diag(np.ones(n - 1), 1) - np.diag(np.ones(n - 1), -1)
    rate = 4 * (n + 1) ** 2 * math.sin(math.pi / (2 * (n + 1))) ** 2
    shape = np.sin(math.pi * np.arange(1, n + 1) / (n + 1))
    options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8, "scheme": Collocation(roots=Newton(dense=64))}
    ys = jax.jit(lambda y0: fdeint(lambda t, y: -((n + 1) ** 2) * (second @ y), y0, [0, 0.1], 0.8, **options))(shape)
    assert np.abs(ys[-1] - mittag_leffler(-rate * 0.1**0.8, 0.8) * shape).max() <= 1e-5


def test_single_precision_needs_no_64_bit_types():
    with jax.enable_x64(False):
        solve = jax.jit(lambda y0, alpha: fdeint(lambda t, y: -y, y0, [0, 0.5, 1], alpha, rtol=2e-5, atol=1e-6))
        for alpha in (0.3, 0.8):
            ys = solve(jnp.ones(1), alpha)
            assert ys.dtype == jnp.float32
            exact = mittag_leffler(-(np.array([0, 0.5, 1.0]) ** alpha), alpha)
            assert np.abs(ys[:, 0] - exact).max() <= 1e-4


@pytest.mark.parametrize("transform", [jax.jacrev, jax.jacfwd], ids=["reverse", "forward"])
def test_batched_derivatives_need_no_64_bit_types(transform):
    """At the rates 1, 1 + d the differences of solutions are those of the Mittag-Leffler function."""
    with jax.enable_x64(False):

        def solve(rate):
            return fdeint(
                lambda t, y, p: -p * y, jnp.ones(2), [0, 1], 0.6, args=rate, rtol=2e-5, atol=2e-5, max_steps=16
            )[-1]

        found = jax.jit(transform(solve))(1.0)
        exact = (mittag_leffler(-(1 + 1e-4), 0.6) - mittag_leffler(-(1 - 1e-4), 0.6)) / 2e-4
        assert np.abs(found - exact).max() <= 1e-3


def test_a_long_mesh_in_single_precision_reaches_its_end():
    with jax.enable_x64(False):
        ys = fdeint(lambda t, y: -y, jnp.ones(1), [0, 0.5, 1], 0.5, scheme="collocation", n_steps=1000)
        exact = mittag_leffler(-np.sqrt([0, 0.5, 1.0]), 0.5)
        assert np.abs(ys[:, 0] - exact).max() <= 1e-4


def test_times_of_a_solution_are_taken_at_their_own_precision_and_have_no_gradient():
    solution = fdeint(lambda t, y: -y, jnp.ones(1), [0.7, 1], 0.5, rtol=1e-6, atol=1e-8, full=True)
    assert jnp.isfinite(solution(jnp.array([0.7, 1], jnp.float32))).all()
    with pytest.raises(ValueError, match=r"Solution.*stop_gradient"):
        jax.grad(lambda t: solution(t)[0])(0.8)


def test_the_slope_at_the_start_is_that_before_any_jump():
    def f(t, y):
        return jnp.where(t < 0.5, 1.0, -1.0) * jnp.ones_like(y)

    options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8, "breakpoints": [0.5], "full": True}
    solution = fdeint(f, jnp.ones(1), [0, 1], 0.5, **options)
    assert solution(0.0, derivative=1)[0] == jnp.inf


REFUSED: list[tuple[dict[str, Any], Any, str]] = [
    ({"rtol": 1e-8, "max_steps": 2}, StepLimit, "reached t="),
    ({"rtol": 1e-20}, ValueError, "100 times the rounding"),
    ({"rtol": 1e-6, "n_steps": 5}, ValueError, "choose the steps"),
    ({"rtol": 1e-6, "max_step": 0.0}, ValueError, "max_step > 0"),
    ({"rtol": 1e-6, "atol": jnp.ones(3)}, ValueError, r"atol of shape \(3,\).*broadcasts to y0's \(1,\)"),
    ({"scheme": "collocation", "breakpoints": [0.5]}, ValueError, "breakpoints.*pass rtol"),
    ({"scheme": "trapezoid", "rtol": 1e-6}, ValueError, "needs scheme='collocation'"),
    ({"full": True}, ValueError, "needs scheme='collocation'"),
    ({"rtol": 1e-6, "history": "fft"}, ValueError, "keeps all of the past"),
    ({"scheme": "midpoint"}, ValueError, "collocation"),
    ({"scheme": "collocation", "mesh": Points((0.0, 0.5))}, ValueError, "end there"),
]


@pytest.mark.parametrize(("options", "kind", "text"), REFUSED)
def test_what_cannot_be_done_is_refused(options, kind, text):
    with pytest.raises(kind, match=text):
        fdeint(lambda t, y: -y, jnp.ones(1), [0, 1], 0.5, **options)


@pytest.mark.parametrize("name", ["rtol", "max_step"])
def test_a_traced_option_that_holds_for_all_entries_has_no_axes(name):
    with pytest.raises(ValueError, match=rf"{name} of shape \(1,\)"):
        jax.jit(lambda value: fdeint(lambda t, y: -y, jnp.ones(1), [0, 1], 0.5, atol=1e-6, **{name: value}))(
            jnp.ones(1)
        )


def test_a_solution_that_ends_raises_where_nothing_is_traced():
    with pytest.raises(FloatingPointError, match="were too long for the tolerance"):
        fdeint(lambda t, y: y**2, jnp.full(1, 5.0), [0, 1], 0.7, rtol=1e-6)
    with pytest.raises(FloatingPointError, match="f is NaN at t = 0"):
        fdeint(lambda t, y: jnp.log(-y), jnp.ones(1), [0, 1], 0.7, rtol=1e-6)


def test_steps_that_do_not_suffice_are_seen_by_checkify():
    def solve(y0):
        return fdeint(lambda t, y: -y, y0, [0, 1], 0.5, rtol=1e-8, max_steps=3)

    error, ys = jax.jit(checkify.checkify(solve))(jnp.ones(1))
    assert bool(jnp.isnan(ys[-1]).all())
    with pytest.raises(checkify.JaxRuntimeError, match="max_steps"):
        error.throw()


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [1.02, 1.5])
def test_the_derivative_at_the_start_is_the_one_given_above_order_one(alpha):
    with jax.enable_x64(True):
        solution = fdeint(lambda t, y: 1e3 - y, jnp.ones(1), [0, 1], alpha, dy0=jnp.full(1, 0.7), rtol=1e-6, full=True)
        assert float(solution(0.0, derivative=1)[0]) == 0.7
