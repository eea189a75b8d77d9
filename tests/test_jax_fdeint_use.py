"""`fdeint` in JAX as it is used: derivatives of any kind, modules, batches over devices, traced times, and faults."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax import numpy as jnp
from jax.experimental import checkify
from scipy.special import wofz

from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.solvers import SCHEMES, SDE, FixedPoint, Graded, Newton, Trapezoid
from hpfracc_nn.solvers.jax import MultiTerm, fdeint, fsdeint

TS = np.linspace(0, 1, 21)
Y0 = np.array([0.2, 0.5], np.float32)


def logistic(t, y, rate):
    return rate * y * (1 - y) + 0.1 * jnp.sin(t)


def loss(y0, rate, alpha, **options):
    return jnp.sum(fdeint(logistic, y0, TS, alpha, args=rate, **options) ** 2)


# Programs.


@pytest.mark.parametrize("history", ["full", "exponentials"])
@pytest.mark.parametrize("is_traced", [False, True], ids=["fixed", "traced"])
def test_the_program_does_not_grow_with_the_steps(history, is_traced):
    def length(n):
        def solved(y0, rate, alpha):
            ts, order = np.linspace(0, 1, n + 1), alpha if is_traced else 0.7
            return fdeint(logistic, y0, ts, order, args=rate, history=history, scheme="rectangle").sum()

        return len(re.findall(r" = ", str(jax.make_jaxpr(jax.grad(solved, (0, 1, 2)))(Y0, 1.3, 0.7))))

    # in blocks of 40; alpha's gradient by an FFT above 512 steps
    assert length(2000) == length(1000 if is_traced else 200)


def test_f_is_traced_once():
    calls = []

    def f(t, y):
        calls.append(t)
        return -y

    jax.make_jaxpr(jax.grad(lambda y0: fdeint(f, y0, TS, 0.7, scheme="trapezoid").sum()))(Y0)
    assert len(calls) == 1


@pytest.mark.slow
def test_a_gradient_saves_states_and_not_what_f_computes():
    wide = jnp.ones((2, 512), jnp.float32)

    def bytes_of(**options):
        def f(t, y, w):
            return jnp.tanh(jnp.sin(y @ w)) @ w.T / 512 - y

        def gradient(y0, w):
            ts = np.linspace(0, 1, 201)
            return jax.grad(lambda w: fdeint(f, y0, ts, 0.7, args=w, **options).sum())(w)

        compiled = jax.jit(gradient).lower(jnp.ones((16, 2), jnp.float32), wide).compile()
        found = compiled.memory_analysis()
        assert found is not None
        return found.temp_size_in_bytes

    graph = 200 * 16 * 512 * 4  # bytes of one hidden layer at all steps
    plain = bytes_of(adjoint=False)
    assert plain > 2 * graph
    assert bytes_of(adjoint=False, checkpoint=True) < plain / 4  # blocks of 40 steps of 200
    assert bytes_of() < graph / 8


# Derivatives.


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["rectangle", "predictor_corrector", "trapezoid", "bdf2"])
def test_the_derivative_of_the_scheme_is_that_of_its_operations(scheme):
    with jax.enable_x64(True):
        given = Y0.astype(float), 1.3, 0.7
        for transform in (jax.grad, jax.jacfwd):
            found = jax.jit(transform(lambda *x: loss(*x, scheme=scheme), (0, 1, 2)))(*given)
            for options in ({}, {"checkpoint": True}):
                plain = lambda *x: loss(*x, scheme=scheme, adjoint=False, **options)  # noqa: B023, E731
                for one, other in zip(found, jax.jit(transform(plain, (0, 1, 2)))(*given), strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_the_hessian_is_symmetric_and_that_of_differences():
    with jax.enable_x64(True):
        packed = lambda x: loss(x[:2], x[2], x[3])  # noqa: E731
        at = jnp.array([0.2, 0.5, 1.3, 0.7])
        hessian = jax.jit(jax.hessian(packed))(at)
        np.testing.assert_allclose(hessian, hessian.T, rtol=1e-10, atol=1e-12)
        gradient, step = jax.jit(jax.grad(packed)), 1e-5
        for k in range(4):
            unit = step * jnp.eye(4)[k]
            by_differences = (gradient(at + unit) - gradient(at - unit)) / (2 * step)
            np.testing.assert_allclose(hessian[k], by_differences, rtol=1e-6, atol=1e-6)  # step**2 and 1e-15 / step


@pytest.mark.slow
def test_what_f_closes_over_has_the_gradient_of_what_it_is_given():
    with jax.enable_x64(True):
        y0 = Y0.astype(float)
        closed = jax.grad(lambda rate: fdeint(lambda t, y: logistic(t, y, rate), y0, TS, 0.7).sum())
        given = jax.grad(lambda rate: fdeint(logistic, y0, TS, 0.7, args=rate).sum())
        np.testing.assert_allclose(jax.jit(closed)(1.3), jax.jit(given)(1.3), rtol=1e-14)
        stacked = jax.jit(jax.vmap(closed))(jnp.array([1.3, 0.7]))
        np.testing.assert_allclose(stacked[0], jax.jit(given)(1.3), rtol=1e-13)


@pytest.mark.slow
def test_single_precision_learns_its_order_without_64_bit_types():
    found = jax.jit(jax.grad(loss, (0, 1, 2)))(Y0, jnp.float32(1.3), jnp.float32(0.7))
    with jax.enable_x64(True):
        wanted = jax.jit(jax.grad(loss, (0, 1, 2)))(Y0.astype(float), 1.3, 0.7)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=2e-6)


# States, modules, batches.


RATE = -1.0 + 2.0j


@pytest.mark.parametrize("scheme", ["predictor_corrector", pytest.param("trapezoid", marks=pytest.mark.slow)])
def test_a_complex_decay_is_the_mittag_leffler_function(scheme):
    ts = np.linspace(0, 1, 401)
    solve = jax.jit(
        lambda rate: fdeint(lambda t, y, rate: rate * y, jnp.ones(1, complex), ts, 0.5, args=rate, scheme=scheme)
    )
    found, rates = solve(RATE)[:, 0], RATE * ts**0.5
    assert found.dtype == jnp.result_type(complex)
    # E_(1/2)(z) = exp(z**2) erfc(-z); the first step errs most, by 2e-3
    np.testing.assert_allclose(found, wofz(-1j * rates), rtol=0, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize("history", ["full", "fft", "exponentials"])
@pytest.mark.parametrize("scheme", ["predictor_corrector", "bdf2"])
def test_a_complex_state_is_a_state_of_its_two_parts_and_so_is_its_gradient(scheme, history):
    ts, alpha, options = np.linspace(0, 1, 301), np.array([0.5, 0.8]), {"scheme": scheme, "history": history}
    y0 = np.array([1.0 + 0.5j, 0.5 - 1.0j], np.complex64)

    def squares(parts):
        rate = jax.lax.complex(*parts)
        states = fdeint(lambda t, y: rate * y / (1 + y * y.conj()), y0, ts, alpha, **options)  # not holomorphic
        return (abs(states) ** 2).sum()

    def squares_of_parts(parts):
        def f(t, y):
            rotated = jnp.stack([parts[0] * y[:, 0] - parts[1] * y[:, 1], parts[1] * y[:, 0] + parts[0] * y[:, 1]], -1)
            return rotated / (1 + (y**2).sum(-1, keepdims=True))

        return (fdeint(f, np.stack([y0.real, y0.imag], -1), ts, alpha[:, None], **options) ** 2).sum()

    given = [jnp.asarray(RATE.real), jnp.asarray(RATE.imag)]
    both = [jax.jit(jax.value_and_grad(each))(given) for each in (squares, squares_of_parts)]
    for one, other in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.slow
def test_equations_that_know_nothing_of_each_other_are_solved_as_each_alone():
    def f(t, y):
        return {"slow": -0.5 * y["slow"], "waves": RATE * y["waves"]}

    y0 = {"slow": jnp.ones(2, complex), "waves": jnp.full((3, 1), 0.5j)}
    found = jax.jit(lambda y0: fdeint(f, y0, TS, 0.7))(y0)
    for name, part in y0.items():
        alone = fdeint(lambda t, y: f(t, dict(y0, **{name: y}))[name], part, TS, 0.7)  # noqa: B023
        np.testing.assert_allclose(found[name], alone, rtol=1e-5, atol=1e-6)


def test_a_stochastic_equation_of_complex_numbers_is_refused_with_the_way_out():
    with pytest.raises(TypeError, match=r"pass \(y0.real, y0.imag\), a state of two parts"):
        fsdeint(SDE(lambda t, y: y, lambda t, y: y), jnp.ones(2, complex), TS, key=jax.random.key(0))


@pytest.mark.slow
def test_a_state_may_be_any_pytree():
    state = {"a": jnp.array([0.2, 0.5]), "b": (jnp.array([[0.1]]),)}

    def f(t, y):
        return {"a": -y["a"] + y["b"][0][0], "b": (y["a"].sum()[None, None],)}

    ys = jax.jit(lambda y0: fdeint(f, y0, TS, 0.7))(state)
    joined = jax.jit(lambda y0: fdeint(lambda t, y: jnp.concatenate([-y[:2] + y[2], y[:2].sum()[None]]), y0, TS, 0.7))(
        jnp.array([0.2, 0.5, 0.1])
    )
    assert ys["b"][0].shape == (21, 1, 1)
    np.testing.assert_allclose(ys["a"], joined[:, :2], rtol=1e-6)
    np.testing.assert_allclose(ys["b"][0][:, 0, 0], joined[:, 2], rtol=1e-6)


@pytest.mark.slow
def test_equinox_modules_are_right_hand_sides_and_arguments():
    eqx = pytest.importorskip("equinox")
    net = eqx.nn.MLP(2, 2, 8, 1, key=jax.random.key(0))

    class Field(eqx.Module):  # type: ignore[name-defined,misc]
        net: Any

        def __call__(self, t, y):
            return self.net(y)

    @eqx.filter_jit
    @eqx.filter_grad
    def as_module(field):
        return fdeint(field, Y0, TS, 0.7).sum()

    @eqx.filter_jit
    @eqx.filter_grad
    def as_args(net):
        return fdeint(lambda t, y, net: net(y), Y0, TS, 0.7, args=net).sum()

    one, other = jax.tree.leaves(as_module(Field(net))), jax.tree.leaves(as_args(net))
    assert len(one) == len(other) == 4
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert np.abs(a).max() > 0


@pytest.mark.slow
def test_flax_modules_train_in_a_jitted_step():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")
    net = nnx.Sequential(nnx.Linear(2, 8, rngs=nnx.Rngs(0)), jnp.tanh, nnx.Linear(8, 2, rngs=nnx.Rngs(1)))
    optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)

    @nnx.jit
    def step(net, optimizer):
        def loss(net):
            return jnp.mean((fdeint(lambda t, y: net(y), Y0, TS, 0.7) - 0.3) ** 2)

        value, gradient = nnx.value_and_grad(loss)(net)
        optimizer.update(net, gradient)
        return value

    with jax.numpy_dtype_promotion("standard"):  # Adam of optax mixes dtypes
        losses = [float(step(net, optimizer)) for _ in range(30)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["predictor_corrector", "bdf2"])
@pytest.mark.parametrize("axis", ["Auto", "Explicit"])
def test_a_sharded_batch_is_the_unsharded_one(axis, scheme):
    if jax.device_count() < 4:
        pytest.skip("needs four devices")
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(jax.sharding.AxisType[axis],))
    batch = jax.random.uniform(jax.random.key(0), (8, 3))
    weights = jax.random.normal(jax.random.key(1), (3, 3))

    def f(t, y, w):
        return jnp.tanh(y @ w) - y

    @jax.jit
    def gradients(w, y0, alpha):
        def mean(*given):
            w, y0, alpha = given
            return (fdeint(f, y0, TS, alpha, args=w, scheme=scheme) ** 2).mean()

        return jax.value_and_grad(mean, (0, 1, 2))(w, y0, alpha)

    with jax.set_mesh(mesh):
        found = gradients(weights, jax.device_put(batch, jax.NamedSharding(mesh, jax.P("batch"))), 0.7)
    wanted = gradients(weights, batch, 0.7)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", [True, False])
def test_the_gradient_in_alpha_needs_no_current_mesh(adjoint):
    """Then contractions over explicit axes are refused by JAX unless they are told how the result lies."""
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    batch = jnp.linspace(1, 2, 8)
    spread = jax.device_put(batch, jax.NamedSharding(mesh, jax.P("batch")))
    slope = jax.jit(jax.grad(lambda alpha, y0: jnp.sum(fdeint(lambda t, y: -y, y0, TS, alpha, adjoint=adjoint) ** 2)))
    assert float(slope(0.7, spread)) == pytest.approx(float(slope(0.7, batch)), rel=1e-5)


@pytest.mark.slow
def test_an_equation_too_large_for_a_matrix_is_refused_over_explicit_axes():
    mesh = jax.make_mesh((jax.device_count(),), ("batch",))
    y0 = jax.device_put(jnp.ones((8, 3)), jax.NamedSharding(mesh, jax.P("batch")))
    with pytest.raises(ValueError, match=r"24 numbers over the explicit axes of a mesh.*axis_types=AxisType.Auto"):
        fdeint(lambda t, y: -y, y0, TS, 0.7, scheme=Trapezoid(Newton(dense=4)))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["predictor_corrector", "bdf2"])
def test_nothing_is_promoted_unasked(scheme):
    with jax.numpy_dtype_promotion("strict"):
        assert np.isfinite(jax.jit(jax.grad(lambda alpha: loss(Y0, jnp.float32(1.3), alpha, scheme=scheme)))(0.7))


# Times.


@pytest.mark.slow
def test_traced_times_are_those_that_are_known():
    with jax.enable_x64(True):
        y0 = Y0.astype(float)
        for ts, n_steps in ((TS, None), (np.array([0.0, 0.25, 1.0]), 20)):
            known = jax.jit(lambda y0: fdeint(logistic, y0, ts, 0.7, args=1.3, n_steps=n_steps))(y0)  # noqa: B023
            found = jax.jit(lambda ts: fdeint(logistic, y0, ts, 0.7, args=1.3, n_steps=n_steps))(ts)  # noqa: B023
            np.testing.assert_allclose(found, known, rtol=1e-12)


@pytest.mark.slow
def test_a_traced_time_that_is_no_point_of_the_mesh_is_nan_and_raises_under_checkify():
    def states(ts):
        return fdeint(lambda t, y: -y, Y0, ts, 0.7, n_steps=10)

    ts = jnp.array([0.0, 0.3, 0.55, 1.0])
    np.testing.assert_array_equal(np.isnan(jax.jit(states)(ts)).all(-1), [False, False, True, False])
    error, _ = jax.jit(checkify.checkify(states))(ts)
    with pytest.raises(checkify.JaxRuntimeError, match="points of the uniform mesh"):
        error.throw()


def test_a_gradient_in_times_is_refused():
    with pytest.raises(ValueError, match=r"times that are given.*stop_gradient"):
        jax.make_jaxpr(jax.grad(lambda ts: fdeint(lambda t, y: -y, Y0, ts, 0.7).sum()))(jnp.asarray(TS))


@pytest.mark.slow
def test_late_times_cost_no_digits():
    early = jax.jit(lambda: fdeint(lambda t, y: -y, Y0, TS, 0.7))()
    late = jax.jit(lambda: fdeint(lambda t, y: -y, Y0, TS + 1e6, 0.7))()
    np.testing.assert_allclose(late, early, rtol=1e-6)


# What goes wrong.


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"y0": jnp.arange(2)}, TypeError, r"y0 of dtype int32\): needs float32 or float64"),
        ({"y0": np.array([1.0, np.nan], np.float32)}, ValueError, r"y0 holds nan at place 1 of 2"),
        ({"y0": ()}, ValueError, r"needs an array"),
        ({"y0": "1"}, TypeError, r"y0 of type str"),
        ({"ts": [0.0, 1.0, 0.5]}, ValueError, r"times must increase; ts\[2\]=0.5 follows ts\[1\]=1"),
        ({"ts": [0.0, 0.1, 1.0]}, ValueError, r"equal steps or a number of steps"),
        ({"alpha": 2.5}, ValueError, r"needs 0 < alpha < 2"),
        ({"alpha": 1.5}, ValueError, r"pass dy0"),
        ({"alpha": jnp.array([0.5, 0.6, 0.7])}, ValueError, r"a shape that broadcasts to y0's \(2,\)"),
        ({"alpha": jnp.array(1)}, TypeError, r"needs a floating array"),
        ({"f": lambda t, y: y[:1]}, ValueError, r"needs the state's shape \(2,\); f returned \(1,\)"),
        ({"f": lambda t, y: None}, TypeError, r"needs an array; f returned NoneType"),
        ({"f": lambda t, y: y.astype(jnp.int32)}, TypeError, r"needs the state's dtype float32; f returned int32"),
        ({"f": 1}, TypeError, r"needs a function"),
        ({"dy0": np.zeros(3, np.float32), "alpha": 1.5}, ValueError, r"needs the shape of y0"),
        ({"scheme": "heun"}, ValueError, r"bdf2"),
        ({"scheme": "bdf2", "mesh": "graded"}, ValueError, r"needs a uniform mesh"),
        ({"checkpoint": True}, ValueError, r"adjoint=False"),
    ],
)
def test_wrong_arguments_are_named(given, error, message):
    full = {"f": lambda t, y: -y, "y0": Y0, "ts": TS, "alpha": 0.7} | given
    with pytest.raises(error, match=message):
        fdeint(full.pop("f"), full.pop("y0"), full.pop("ts"), full.pop("alpha"), **full)


def test_a_graded_mesh_wants_its_exponent_where_alpha_is_traced():
    def shaped(mesh):
        return jax.eval_shape(lambda a: fdeint(lambda t, y: -y, Y0, TS, a, mesh=mesh), 0.5)

    with pytest.raises(ValueError, match="needs an exponent where alpha is traced"):
        shaped("graded")
    assert shaped(Graded(3.0)).shape == (21, 2)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["predictor_corrector", "trapezoid"])
def test_a_traced_order_out_of_bounds_is_nan_and_raises_under_checkify(scheme):
    def last(alpha):
        return fdeint(lambda t, y: -y, Y0, TS, alpha, scheme=scheme)[-1]

    assert np.isnan(jax.jit(last)(1.4)).all()
    assert np.isnan(jax.jit(jax.grad(lambda alpha: last(alpha).sum()))(1.4))
    # 0 is the nearest order, which it is the limit of.
    np.testing.assert_array_equal(jax.jit(last)(0.0), jax.jit(last)(float(jnp.finfo(jnp.float32).eps)))
    error, _ = jax.jit(checkify.checkify(last))(1.4)
    with pytest.raises(checkify.JaxRuntimeError, match="alpha within its bounds"):
        error.throw()


@pytest.mark.parametrize(("value", "text"), [(jnp.inf, "infinite"), (jnp.nan, "NaN")])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_forcing_that_has_no_value_at_the_start_is_refused(scheme, value, text):
    with pytest.raises(FloatingPointError, match=rf"fdeint\(f\): .*f is {text} at t = 0, .* size 1; return a finite"):
        fdeint(lambda t, y: jnp.where(t > 0, 1.0, value) - y, np.ones(1), TS, 0.7, scheme=scheme)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "options", "error", "message"),
    [
        (lambda t, y: y**3, {"ts": np.linspace(0, 40, 21)}, FloatingPointError, r"diverged at step \d+, t="),
        (lambda t, y: jnp.log(0.3 - t) * y, {}, FloatingPointError, r"f returned one that is not for a state"),
        (
            lambda t, y: -50 * y,
            {"scheme": Trapezoid(FixedPoint())},
            RuntimeError,
            r"equation of step 1, t=0.05, did not converge in 200 .*pass roots=Newton\(\)",
        ),
    ],
)
def test_a_solve_that_goes_wrong_raises_where_it_is_concrete_and_is_nan_where_it_is_traced(f, options, error, message):
    options = {"ts": TS} | options
    ts = options.pop("ts")

    def states(y0):
        return fdeint(f, y0, ts, 0.7, **options)

    with pytest.raises(error, match=message):
        states(Y0)
    assert not np.isfinite(jax.jit(states)(Y0)[-1]).any()
    failure, _ = jax.jit(checkify.checkify(states))(Y0)
    with pytest.raises(checkify.JaxRuntimeError, match=r"did not converge|not finite"):
        failure.throw()


@pytest.mark.slow
def test_large_states_are_solved_by_products():
    with jax.enable_x64(True):
        n = 64

        def diffusion(t, y, rate):
            return rate * (jnp.roll(y, 1) - 2 * y + jnp.roll(y, -1)) + jnp.sin(y)

        start = jnp.cos(2 * jnp.pi * np.arange(n) / n)

        def gradients(rate, roots):
            scheme = Trapezoid(roots)
            return jax.value_and_grad(lambda r: (fdeint(diffusion, start, TS, 0.7, args=r, scheme=scheme) ** 2).sum())(
                rate
            )

        dense = jax.jit(lambda rate: gradients(rate, Newton()))(30.0)
        products = jax.jit(lambda rate: gradients(rate, Newton(dense=0)))(30.0)
        np.testing.assert_allclose(products, dense, rtol=1e-10)


@pytest.mark.slow
def test_progress_is_told():
    done = []
    jax.jit(lambda: fdeint(lambda t, y: -y, Y0, TS, 0.7, progress=lambda n, total: done.append((n, total))))()
    jax.effects_barrier()
    assert sorted(done) == [(n, 20) for n in range(1, 21)]


def test_the_manager_is_asked_when_a_solve_is_traced():
    manager = BackendManager(Settings(mode="prior", wisdom="off"))

    def shaped(n, **options):
        return jax.eval_shape(lambda y0: fdeint(lambda t, y: -y, y0, np.linspace(0, 1, n), 0.7, **options), Y0)

    shaped(2001, manager=manager)
    assert manager.counters()["forward"] == 1
    manager.configure(force_algorithm="fft")
    shaped(2001, manager=manager)
    assert any(name.endswith("fft") for name in manager.counters()["picks"])
    manager.configure(disable="xla/dense")
    with pytest.raises(LookupError, match=r"history\.full"):
        shaped(21, history="full", manager=manager)


def test_a_multi_term_equation_says_what_it_needs():
    equation = MultiTerm({2: 1.0, 1.5: 0.5, 0: 0.5}, lambda t, y: jnp.ones(3))
    np.testing.assert_array_equal(equation.alpha, [1.0, 0.5, 0.5])
    with pytest.raises(ValueError, match="needs 2 of them"):
        equation.state(jnp.zeros(2))
    with pytest.raises(ValueError, match=r"needs the shape of y, \(2,\)"):
        equation(jnp.zeros(()), equation.state(jnp.zeros(2), jnp.zeros(2)))


# Outside of jit.


def test_a_solve_inside_of_jit_is_compiled_once_whatever_values_it_reads():
    calls = []

    @jax.jit
    def solved(rate, ts, alpha):
        calls.append(rate)
        return fdeint(lambda t, y, args: -args["rate"] * y, Y0, ts, alpha, args={"rate": rate})

    first = solved(1.0, jnp.linspace(0, 1, 21), 0.6)
    found = solved(1.2, jnp.linspace(0, 2, 21), 0.8)
    assert len(calls) == 1
    assert not np.allclose(found, first)
    direct = fdeint(lambda t, y, args: -args["rate"] * y, Y0, np.linspace(0, 2, 21), 0.8, args={"rate": 1.2})
    np.testing.assert_allclose(found, direct, rtol=1e-5)


@pytest.mark.slow
def test_f_may_ask_a_float_in_args_for_its_value():
    def solved(f, rate):
        return fdeint(f, Y0, [0.0, 0.5, 1.0], 0.7, args={"rate": rate}, scheme="rectangle")[-1]

    def decay(t, y, args):
        return -args["rate"] * y

    def capped(t, y, args):
        return -args["rate"] * y if args["rate"] < 1.5 else -1.5 * y

    found = solved(decay, 1.2)
    np.testing.assert_allclose(found, solved(decay, jnp.asarray(1.2)), rtol=1e-6)
    np.testing.assert_allclose(solved(capped, 1.2), found, rtol=1e-6)
    np.testing.assert_allclose(solved(capped, 2.0), solved(decay, 1.5), rtol=1e-6)


def test_a_function_that_has_changed_since_is_seen_to_have():
    factors = [-1.0]

    def last():
        return fdeint(lambda t, y: factors[0] * y, Y0, [0.0, 0.5, 1.0], 0.7, scheme="rectangle")[1]

    first = last()
    factors[0] = -2.0
    assert jnp.allclose(Y0 - last(), 2 * (Y0 - first))


@pytest.mark.parametrize("scheme", ["trapezoid", "bdf2"])
def test_second_derivatives_of_implicit_steps_are_those_of_the_first(scheme: str) -> None:
    with jax.enable_x64(True):

        def loss(scale: Any) -> Any:
            y0, ts = jnp.array([0.4, 0.9]), jnp.linspace(0.0, 1.0, 5)
            return (fdeint(lambda t, y: jnp.sin(y) - 0.3 * y**2, scale * y0, ts, 0.4, scheme=scheme) ** 2).sum()

        slope, step = jax.grad(loss), 1e-4
        difference = (slope(1 + step) - slope(1 - step)) / (2 * step)
        # the difference errs by step**2 times the third derivative, and by 1e-13 / step
        assert abs(jax.grad(slope)(1.0) - difference) < 1e-6


@pytest.mark.parametrize(
    "modes", ["grad jvp jvp", "grad grad grad", "jvp jvp grad", "jvp jvp jvp", "grad grad jvp grad"]
)
def test_higher_derivatives_of_implicit_steps_are_those_of_the_exact_roots(modes: str) -> None:
    def rooted(y: Any) -> Any:  # the steps of y' = -y**2 by the trapezoid rule, h = 1/2, solved for y
        for _ in range(2):
            y = (-1 + jnp.sqrt(1 + (y - y**2 / 4))) / 0.5
        return y

    def solved(y: Any) -> Any:
        return fdeint(lambda t, y: -(y**2), y, np.array([0.0, 0.5, 1.0]), 1.0, scheme="trapezoid")[-1]

    def slope(f: Any) -> Any:
        return lambda y: jax.jvp(f, (y,), (1.0,))[1]

    def derived(f: Any) -> Any:
        for mode in modes.split():
            f = jax.grad(f) if mode == "grad" else slope(f)
        return f

    with jax.enable_x64(True):
        assert abs(derived(solved)(0.7) - derived(rooted)(0.7)) < 1e-11  # a hundred roundings of numbers below 1e3


@pytest.mark.slow
def test_higher_derivatives_of_a_batch_of_implicit_solves_are_those_of_each() -> None:
    def solved(y: Any, rate: Any) -> Any:
        return fdeint(lambda t, y: -rate * y**2, y, np.array([0.0, 0.5, 1.0]), 0.7, scheme="trapezoid")[-1].sum()

    def second(y: Any, rate: Any) -> Any:
        return jax.grad(lambda rate: jax.grad(solved, 1)(y, rate))(rate)

    rates = jnp.array([0.5, 1.0])
    with jax.enable_x64(True):
        for axes in ((0, 0), (None, 0), (0, None)):
            y, rate = (jnp.array([[0.4, 0.9], [0.2, 0.3]]), rates.astype(float))
            y, rate = (y if axes[0] == 0 else y[0]), (rate if axes[1] == 0 else rate[0])
            found = jax.vmap(second, axes)(y, rate)
            each = [second(y[i] if axes[0] == 0 else y, rate[i] if axes[1] == 0 else rate) for i in range(2)]
            np.testing.assert_allclose(found, each, rtol=1e-12)
