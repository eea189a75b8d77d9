"""What is asked of the arguments of a solve, and what is said when it goes wrong."""

from typing import Any

import pytest

pytest.importorskip("torch")

import numpy as np
import torch

from hpfracc_nn.solvers import (
    SCHEMES,
    SDE,
    FFTBlocks,
    FixedPoint,
    Graded,
    MultiTerm,
    NeuralFDE,
    Newton,
    PredictorCorrector,
    Trapezoid,
    Window,
    fdeint,
    fsdeint,
)
from hpfracc_nn.solvers.torch import roots
from tests.solver_cases import tensor

TS = torch.linspace(0, 1, 11, dtype=torch.float64)


def decay(t, y):
    return -y


def call(**changes):
    given = {"f": decay, "y0": tensor(1.0), "ts": TS, "alpha": 0.5, **changes}
    return fdeint(given.pop("f"), given.pop("y0"), given.pop("ts"), given.pop("alpha"), **given)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"f": 3}, TypeError, r"fdeint\(f of type int\): needs a function"),
        ({"y0": 1.0}, TypeError, r"fdeint\(y0 of type float\).*torch\.as_tensor\(y0\)"),
        ({"y0": torch.ones(2, dtype=torch.int64)}, TypeError, r"float32 or float64; convert with y0\.to"),
        ({"y0": torch.ones(0)}, ValueError, r"shape \(0,\)\): needs numbers"),
        ({"y0": tensor(1.0, float("nan"))}, ValueError, r"y0\): needs finite numbers; y0 holds nan at place 1 of 2"),
        ({"alpha": 1.5, "dy0": tensor(float("inf"))}, ValueError, r"dy0\): needs finite numbers; dy0 holds inf"),
        ({"y0": (torch.ones(1), tensor(1.0))}, TypeError, r"one dtype and device"),
        ({"ts": tensor(0, 0.2, 0.1)}, ValueError, r"times must increase; ts\[2\]=0\.1 follows ts\[1\]=0\.2"),
        ({"ts": tensor(0, float("nan"))}, ValueError, r"times must be finite; ts\[1\]=nan"),
        ({"ts": tensor(0.0)}, ValueError, r"needs two times or more"),
        ({"ts": tensor(0, 0.1, 0.3)}, ValueError, r"equal steps.*pass n_steps, or mesh='graded'"),
        ({"n_steps": 0}, ValueError, r"n_steps >= 1"),
        ({"n_steps": 2.0}, TypeError, r"n_steps=2\.0\): needs an integer"),
        ({"alpha": 0.0}, ValueError, r"alpha=0\): needs 0 < alpha < 2; pass an order in between"),
        ({"alpha": 2.5}, ValueError, r"needs 0 < alpha < 2; write.*as a system"),
        ({"alpha": float("nan")}, ValueError, r"needs 0 < alpha < 2"),
        ({"alpha": "half"}, TypeError, r"alpha of type str"),
        ({"alpha": torch.tensor(1)}, TypeError, r"needs a floating tensor"),
        ({"alpha": tensor(0.1, 0.2)}, ValueError, r"a shape that broadcasts to y0's \(1,\)"),
        ({"y0": (tensor(1.0),), "alpha": tensor(0.1, 0.2)}, ValueError, r"needs one alpha for a tuple"),
        ({"alpha": tensor(1.5)}, ValueError, r"alpha=1\.5\).*pass dy0, of y0's shape, or keep a learned order below 1"),
        ({"alpha": tensor(2.5)}, ValueError, r"as a system.*keep a learned order within bounds"),
        ({"alpha": 1.5}, ValueError, r"needs the derivative at the start.*pass dy0"),
        ({"dy0": tensor(1.0)}, ValueError, r"orders above 1.*leave dy0 out"),
        ({"alpha": 1.5, "dy0": tensor(1.0, 2.0)}, ValueError, r"needs the shape of y0"),
        (
            {"scheme": "euler"},
            ValueError,
            r"scheme='euler'\): needs one of 'bdf2', 'collocation', 'predictor_corrector'",
        ),
        ({"scheme": 3}, TypeError, r"scheme of type int"),
        ({"history": "window"}, ValueError, r"history='window'\): needs one of"),
        ({"mesh": "random"}, ValueError, r"mesh='random'\)"),
        ({"scheme": "bdf2", "mesh": "graded"}, ValueError, r"needs a uniform mesh, because a convolution quadrature"),
        ({"history": FFTBlocks(), "mesh": "graded"}, ValueError, r"history='fft'.*or history='full'"),
    ],
)
def test_a_wrong_argument_is_refused_with_the_rule_and_the_way_out(changes, error, text):
    with pytest.raises(error, match=text):
        call(**changes)


class OfTheStateAlone(torch.nn.Module):
    def forward(self, y):
        return -y


@pytest.mark.parametrize("f", [lambda y: -y, OfTheStateAlone()])
def test_a_right_hand_side_of_other_arguments_is_shown_the_rule(f):
    with pytest.raises(TypeError, match="positional arg") as caught:
        call(f=f)
    assert caught.value.__notes__[0].startswith("fdeint(f): needs a function of (t, y); let it take them all")
    with pytest.raises(TypeError, match="positional arg") as caught:
        fsdeint(SDE(f, lambda t, y: y), torch.ones(2), TS.float())
    assert caught.value.__notes__[0].startswith("fsdeint(sde.drift): needs a function of (t, y);")


def test_an_error_inside_of_a_right_hand_side_has_no_note_on_its_arguments():
    wrong: Any = decay
    with pytest.raises(TypeError, match="positional arg") as caught:
        call(f=lambda t, y: wrong(y))
    assert not hasattr(caught.value, "__notes__")


def test_an_array_of_jax_is_sent_to_the_solvers_of_jax():
    y0 = pytest.importorskip("jax.numpy").ones(2)
    with pytest.raises(TypeError, match=r"torch\.as_tensor\(y0\), or call hpfracc_nn\.jax\.fdeint, which"):
        call(y0=y0)
    with pytest.raises(TypeError, match=r"torch\.as_tensor\(y0\), or call hpfracc_nn\.jax\.fsdeint, which"):
        fsdeint(SDE(lambda t, y: -y, lambda t, y: y), y0, TS)


def neural(bounds):
    class Decay(torch.nn.Module):
        def forward(self, t, y):
            return -y

    return NeuralFDE(Decay(), 0.8, learn_alpha=True, bounds=bounds)


def multi_term(forcing):
    equation = MultiTerm({1.5: 1.0}, forcing)
    start = equation.state(tensor(1.0, 2.0), tensor(0.0, 0.0))
    return fdeint(equation, start, TS, equation.alpha)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Graded(0.5), r"Graded\(exponent=0\.5\): needs a finite exponent >= 1"),
        (lambda: Window(0), r"Window\(n=0\): needs n >= 1"),
        (lambda: Newton(tolerance=0.0), r"Newton\(tolerance=0\.0\)"),
        (lambda: FixedPoint(iterations=0), r"iterations >= 1"),
        (lambda: PredictorCorrector(0), r"corrections >= 1"),
        (lambda: MultiTerm({0: 1.0}), r"one above 0"),
        (lambda: MultiTerm({2: 1.0}).state(tensor(1.0)), r"needs 2 of them"),
        (lambda: NeuralFDE(torch.nn.Identity(), 2.5), r"needs 0 < alpha < 2"),
        (lambda: NeuralFDE(torch.nn.Identity(), 0.5, learn_alpha=True, bounds=(0.6, 1)), r"to be learned within"),
        (lambda: NeuralFDE(torch.nn.Identity(), scheme="bdf2", mesh="graded"), r"NeuralFDE\(scheme='bdf2'"),
        (
            lambda: neural(bounds=(0.5, 1.5))(tensor(1.0), TS),
            r"bounds=\(0\.5, 1\.5\)\).*derivative at the start.*pass dy0",
        ),
        (lambda: neural(bounds=(0.5, 1.5))(tensor(1.0), TS, tensor(2.0)), r"jumps by \(t - ts\[0\]\) dy0 at alpha = 1"),
        (lambda: neural(bounds=(0.5, 1.0))(tensor(1.0), TS, tensor(2.0)), r"orders above 1.*leave dy0 out"),
        (lambda: NeuralFDE(torch.nn.Identity(), 0.7)(tensor(1.0), TS, tensor(2.0)), r"orders above 1.*leave dy0 out"),
        (
            lambda: multi_term(lambda t, y: torch.ones(3)),
            r"forcing\): needs the shape of y, \(2,\).*it returned \(3,\)",
        ),
        (lambda: multi_term(lambda t, y: torch.ones(2, 2)), r"it returned \(2, 2\)"),
    ],
)
def test_so_is_a_wrong_option(make, text):
    with pytest.raises(ValueError, match=text):
        make()


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize(
    ("bad", "error", "text"),
    [
        (lambda y: torch.cat([y, y]), ValueError, r"step 4, t=0\.4, f returned \(2,\)"),
        (lambda y: y.float(), TypeError, r"step 4, t=0\.4, f returned torch\.float32"),
        (lambda y: None, TypeError, r"step 4, t=0\.4, f returned NoneType"),
    ],
    ids=["shape", "dtype", "nothing"],
)
def test_a_right_hand_side_that_changes_is_refused_at_its_step(bad, error, text, adjoint):
    y0 = tensor(1.0).requires_grad_()
    with pytest.raises(error, match=text):
        call(f=lambda t, y: bad(y) if t > 0.35 else -y, y0=y0, adjoint=adjoint)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_right_hand_side_that_writes_to_the_state_is_refused(guard, scheme):
    with guard(), pytest.raises(ValueError, match=r"leaves y as it is; at step 0, t=0, f wrote to it.*y\.clone\(\)"):
        call(f=lambda t, y: y.neg_(), y0=tensor(1.0), scheme=scheme)
    with guard(), pytest.raises(ValueError, match="leaves y as it is"):
        call(f=lambda t, y: (y[0].neg_(), y[1] + 1), y0=(tensor(1.0), tensor(1.0, 2.0)), scheme=scheme)


def test_it_is_where_gradients_are_wanted_and_the_state_stays():
    y0 = tensor(1.0).requires_grad_()
    with pytest.raises(ValueError, match="leaves y as it is"):
        call(f=lambda t, y: y.neg_(), y0=y0)
    assert y0.item() == 1


def test_the_parts_of_a_tuple_are_checked_one_by_one():
    y0 = (tensor(1.0), tensor(1.0, 2.0))
    with pytest.raises(TypeError, match=r"needs a tuple of 2 tensors.*step 0, t=0, f returned Tensor"):
        call(f=lambda t, y: y[0], y0=y0)
    with pytest.raises(ValueError, match=r"shape \(2,\) in place 1; at step 0, t=0, f returned \(1,\)"):
        call(f=lambda t, y: (y[0], y[0]), y0=y0)


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("kind", [torch.nan, torch.inf])
@pytest.mark.parametrize("scheme", [*SCHEMES, Trapezoid(FixedPoint()), Trapezoid(Newton(dense=0))], ids=str)
def test_what_is_not_finite_is_refused_at_its_step(scheme, kind, adjoint):
    y0 = tensor(1.0).requires_grad_()
    with pytest.raises(FloatingPointError, match=r"at step 4, t=0\.4, f returned one that is not .* size 0\.\d+"):
        call(f=lambda t, y: torch.where(t > 0.35, kind, -y), scheme=scheme, y0=y0, adjoint=adjoint)


@pytest.mark.parametrize("mesh", ["uniform", "graded"])
@pytest.mark.parametrize("scheme", [*SCHEMES, Trapezoid(FixedPoint())], ids=str)
def test_a_forcing_that_has_no_value_at_the_start_is_refused(scheme, mesh):
    if mesh == "graded" and scheme == "bdf2":
        pytest.skip("it needs equal steps")
    for f, text in ((lambda t, y: t**-0.4 - y, "infinite"), (lambda t, y: y * (torch.sin(t) / t), "NaN")):
        for options in ({}, {"adjoint": False}, {"y0": tensor(1.0).requires_grad_()}):
            with pytest.raises(FloatingPointError, match=rf"fdeint\(f\): .*f is {text} at t = 0, .* size 1; return"):
                call(f=f, scheme=scheme, mesh=mesh, n_steps=10, **options)


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_it_is_inside_a_transform(transform):
    def last(y0):
        return call(f=lambda t, y: torch.where(t > 0.35, torch.nan, -y), y0=y0)[-1].sum()

    with pytest.raises(FloatingPointError, match=r"at step 4, t=0\.4"):
        transform(last)(torch.ones(2, 1, dtype=torch.float64))


def test_an_iterate_where_the_right_hand_side_is_undefined_says_so():
    # Newton's first step leaves the domain of the square root.
    def f(t, y):
        return -100 * torch.sqrt(y)

    with pytest.raises(FloatingPointError, match=r"step 1, t=0\.1.*an iterate of the step's equation; keep f defined"):
        call(f=f, scheme="trapezoid", y0=tensor(0.01))


def test_a_matrix_that_is_singular_is_no_error_of_lapack(monkeypatch):
    monkeypatch.setattr(roots, "newton_matrix", lambda jacobian, w, like: 0 * jacobian)
    with pytest.raises(RuntimeError, match=r"the equation of step 1, t=0\.1, did not converge.*more steps"):
        call(scheme="trapezoid")


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("scheme", ["predictor_corrector", "trapezoid"])
def test_a_gradient_that_is_not_finite_comes_back_as_it_is(scheme, adjoint):
    y0 = tensor(1.0).requires_grad_()
    call(y0=y0, scheme=scheme, adjoint=adjoint)[-1].backward(tensor(float("nan")))
    assert y0.grad is not None
    assert y0.grad.isnan()


def test_a_solution_that_diverges_says_when():
    with pytest.raises(FloatingPointError, match=r"diverged at step \d+, t=[\d.]+, where it was [\d.e+]+ one step"):
        call(f=lambda t, y: y**3, y0=tensor(30.0), n_steps=200)


@pytest.mark.parametrize("roots", [Newton(iterations=3), Newton(iterations=3, dense=0), FixedPoint(iterations=3)])
def test_an_equation_that_is_not_solved_says_at_which_step(roots):
    with pytest.raises(RuntimeError, match=r"the equation of step 1, t=0\.1, did not converge in 3 iterations.*more"):
        call(f=lambda t, y: -100 * torch.sign(y) * y.abs().sqrt(), scheme=Trapezoid(roots), y0=tensor(50.0))


def test_an_equation_that_gmres_does_not_solve_is_solved_by_a_dense_jacobian():
    # A second difference on 60 points: its condition is 1e3 and GMRES restarts before it knows the space.
    second = torch.diag(torch.ones(59), 1) + torch.diag(torch.ones(59), -1) - 2 * torch.eye(60)
    matrix, y0 = 3721 * second.double(), torch.linspace(-1, 1, 60, dtype=torch.float64)

    def solved(dense):
        start = y0.clone().requires_grad_()
        ys = call(f=lambda t, y: matrix @ y, y0=start, scheme=Trapezoid(Newton(dense=dense)))
        return ys.detach(), torch.autograd.grad(ys.sum(), start)[0]

    for one, other in zip(solved(0), solved(60), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_a_state_that_is_too_large_for_it_says_so(monkeypatch):
    monkeypatch.setattr(roots, "LARGEST_DENSE", 0)
    monkeypatch.setattr(roots, "gmres", lambda *given: None)
    with pytest.raises(
        RuntimeError, match=r"linear equation of step 1, t=0\.1, .*a state of 1 numbers.*Newton\(dense="
    ):
        call(scheme=Trapezoid(Newton(dense=0)))


def test_errors_of_the_right_hand_side_pass_unchanged():
    class Own(Exception):
        pass

    def f(t, y):
        raise Own

    with pytest.raises(Own):
        call(f=f)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_solve_leaves_everything_as_it_was(kind):
    calls = 0

    def f(t, y):
        nonlocal calls
        calls += 1
        if calls == 700:
            raise kind
        return -y

    ts = torch.linspace(0, 1, 1001, dtype=torch.float64)
    expected = call(ts=ts)
    with pytest.raises(kind):
        call(f=f, ts=ts)
    assert torch.equal(call(ts=ts), expected)


def test_arguments_are_not_written_to():
    y0, ts = tensor(1.0, 2.0), TS.clone()
    call(y0=y0, ts=ts)
    assert torch.equal(y0, tensor(1.0, 2.0))
    assert torch.equal(ts, TS)


@pytest.mark.parametrize("ts", [TS, TS.numpy(), TS.tolist(), TS.float(), np.linspace(0, 1, 11, dtype=np.float32)])
def test_times_may_be_of_any_kind(ts):
    torch.testing.assert_close(call(ts=ts), call(), rtol=1e-6, atol=1e-6)


def test_progress_is_told():
    seen = []
    call(ts=torch.linspace(0, 1, 201), progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (200, 200)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_states_that_are_not_dense_are_refused():
    y0 = torch.eye(2, dtype=torch.float64).to_sparse()
    with pytest.raises(TypeError, match=r"fdeint\(y0 of layout .*: needs a dense tensor"):
        fdeint(lambda t, y: -y, y0, [0.0, 1.0], 0.5)
    with pytest.raises(TypeError, match=r"fsdeint\(y0 of layout .*: needs a dense tensor"):
        fsdeint(SDE(lambda t, y: -y, lambda t, y: y), y0, [0.0, 1.0])
