"""The histories of a solver: they add up the same past, and say by how much they do not."""

import math

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.fractional.namespace import NUMPY
from hpfracc_nn.selection import BackendManager, Settings, Workload, kernels
from hpfracc_nn.solvers import SCHEMES, Exponentials, FFTBlocks, Full, Trapezoid, Window, fdeint
from hpfracc_nn.solvers.history import fitting
from hpfracc_nn.solvers.schemes import PredictorCorrector, Weights
from hpfracc_nn.solvers.torch.memory import OPS, Toeplitz, block_length
from tests.solver_cases import tensor

KERNELS = [(op, kernel) for op in OPS.values() for kernel in kernels(op, "torch")]


def solve(history, *, n_steps=300, scheme="predictor_corrector", width=3, alpha=0.5, **options):
    y0 = torch.linspace(0.2, 1, width, dtype=torch.float64)
    ts = torch.linspace(0, 3, n_steps + 1, dtype=torch.float64)
    dy0 = torch.zeros_like(y0) if alpha > 1 else None
    return fdeint(lambda t, y: torch.cos(t) - y, y0, ts, alpha, history=history, scheme=scheme, dy0=dy0, **options)


@pytest.mark.parametrize("width", [1, 300, 2100])  # blocks of 64, 32 and 16 steps
@pytest.mark.parametrize("history", [FFTBlocks(), Exponentials()], ids=str)
def test_exact_histories_agree_with_the_direct_sum(history, width):  # the FFT is used from 512 steps on
    # 1e-11 per weight in float64; the sum over the past of a decaying solution does not amplify it.
    found, expected = (solve(each, width=width, n_steps=600 if width < 2000 else 100) for each in (history, Full()))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("history", [FFTBlocks(), Exponentials()], ids=str)
def test_they_do_for_every_scheme(history, scheme):
    found, expected = (solve(each, scheme=scheme) for each in (history, Full()))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n_steps", [1, 2, 31, 32, 33, 64, 65, 127, 128, 129, 511, 513])
@pytest.mark.parametrize("history", [FFTBlocks(), Exponentials()], ids=str)
def test_they_do_for_every_number_of_steps(history, n_steps):
    found, expected = (solve(each, n_steps=n_steps) for each in (history, Full()))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6, 1e-8])
def test_the_error_of_exponentials_is_near_their_tolerance(tolerance):
    error = (solve(Exponentials(tolerance)) - solve(Full())).abs().max()
    # |f| is below 2, the integral of the memory function up to 3 is 2, and a tolerance is relative to each weight.
    assert error < 4 * tolerance


def test_a_looser_tolerance_needs_fewer_states():

    weights = PredictorCorrector().weights(torch.tensor([0.5]).double().numpy(), 4000, 0.01, NUMPY)
    found = [Exponentials(each).keep(weights, "float64", NUMPY).nodes for each in (1e-2, 1e-6, 1e-11)]
    states = [0 if nodes is None else nodes.states for nodes in found]
    assert 0 < states[0] < states[1] < states[2] <= 56


@pytest.mark.parametrize(("alpha", "tolerance"), [(1.2, 1e-10), (1.5, 1e-6)])
def test_weights_that_grow_are_exponentials_too(alpha, tolerance):
    found = solve(Exponentials(tolerance), alpha=alpha)
    torch.testing.assert_close(found, solve(Full(), alpha=alpha), rtol=10 * tolerance, atol=10 * tolerance)


def test_weights_whose_terms_would_cancel_are_refused_and_left_to_others_by_auto():
    with pytest.raises(ValueError, match=r"tolerance=1e-11.*larger tolerance, or FFTBlocks\(\)"):
        solve(Exponentials(), alpha=1.9, n_steps=1000)
    found, expected = (solve(each, alpha=1.9, n_steps=1000) for each in ("auto", Full()))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_bound_is_infinite_where_it_is_beyond_all_numbers():
    assert Window(1).error_bound(0.5, 0.01, 100.0, 1.0, 10.0) == math.inf


@pytest.mark.parametrize(
    ("f", "y0", "largest", "lipschitz"),
    [
        (lambda t, y: -y, 1.0, 1.0, 1.0),
        (lambda t, y: torch.cos(t) - 0.5 * y, 0.5, 2.0, 0.5),
        (lambda t, y: torch.sin(y) / 2, 1.0, 0.5, 0.5),
    ],
    ids=["relaxation", "forced", "nonlinear"],
)
@pytest.mark.parametrize("n", [20, 100])
def test_the_error_of_a_window_is_below_its_bound(f, y0, largest, lipschitz, n):
    ts = torch.linspace(0, 2, 201, dtype=torch.float64)
    found, exact = (fdeint(f, tensor(y0), ts, 0.6, history=each) for each in (Window(n), Full()))
    bound = Window(n).error_bound(0.6, 0.01, 2.0, largest, lipschitz)
    error = (found - exact).abs().max().item()
    assert 1e-4 < error < bound


def test_a_window_as_long_as_the_solve_drops_nothing():
    torch.testing.assert_close(solve(Window(300)), solve(Full()), rtol=1e-13, atol=1e-13)
    assert Window(700).error_bound(0.5, 0.01, 7.0, 1.0, 1.0) == 0


def test_the_bound_without_feedback_is_the_mass_that_is_dropped():
    assert Window(100).error_bound(0.5, 0.01, 4.0, 3.0, 0.0) == pytest.approx(3 * (2 - 1) / math.gamma(1.5))


@pytest.mark.parametrize(("op", "kernel"), KERNELS, ids=lambda each: getattr(each, "name", each))
@pytest.mark.parametrize(("outs", "ins"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("orders", [1, 3])
def test_every_kernel_adds_up_the_far_past_of_any_weights(op, kernel, outs, ins, orders):

    steps, width, block = 400, 5, block_length(5 * orders)
    generator = torch.Generator().manual_seed(0)
    rates = torch.rand(orders, outs, ins, 1, dtype=torch.float64, generator=generator)
    columns = (1.0 + torch.arange(steps + 1)) ** -(0.2 + rates)
    flat = columns.reshape(orders, outs * ins, -1)
    nodes = fitting(Weights(flat.numpy(), None), 1e-9, "float64")
    assert nodes is not None
    c = torch.as_tensor(flat.numpy()[..., nodes.lags] @ nodes._into @ nodes._out).view(orders, outs, ins, -1)
    operand = Toeplitz(columns, nodes, c)
    values = torch.randn(orders, (steps + 1) * ins, width, dtype=torch.float64, generator=generator)
    whole = operand.rectangle(0, steps + 1, 0, steps + 1)
    expected = torch.einsum("aonk,akr->aonr", whole, values)
    workload = Workload(op, "torch", dtype="float64", rows=orders, n=steps, width=width, exponentials=nodes.states)
    if kernel.refuses(workload) is not None:
        assert kernel.backend in ("numba", "cuda")
        pytest.skip(str(kernel.refuses(workload)))
    form = kernel.prepare(operand, workload)
    for first in range(0, steps + 1, block):
        last = min(first + block, steps + 1)
        out = torch.zeros(orders, outs, last - first, width, dtype=torch.float64)
        kernel.run(form, values, first, last, out)
        begin = max(first - form.overlap, 0)
        recent = values[:, begin * ins : last * ins]
        found = out + torch.einsum("aonk,akr->aonr", form.near(first, last), recent)
        # 1e-9 per weight, 400 of them, values of size 1 with random signs.
        torch.testing.assert_close(found, expected[:, :, first:last], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("mesh", ["uniform", "graded"])
def test_weights_of_a_fixed_order_are_made_once_and_those_of_a_learned_one_are_not_kept(monkeypatch, mesh):
    part, calls = ("weights" if mesh == "uniform" else "block"), 0
    original = getattr(Trapezoid, part)

    def counted(*given):
        nonlocal calls
        calls += 1
        return original(*given)

    monkeypatch.setattr(Trapezoid, part, counted)

    def made(alpha):
        nonlocal calls
        calls = 0
        fdeint(lambda t, y: -y, tensor(1.0), torch.linspace(0, 1, 38), alpha, scheme="trapezoid", mesh=mesh)
        return calls

    assert made(0.5123) > 0
    assert made(0.5123) == 0
    assert made(torch.tensor(0.5124, requires_grad=True)) > 0
    assert made(torch.tensor(0.5124, requires_grad=True)) > 0


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("numba/dense", {"device": "cuda:0"}, "it computes on the CPU and the data lie on cuda:0"),
        ("numba/dense", {"dtype": "float16"}, "it takes float32 and float64"),
        ("torch/recurrence", {"exponentials": 0}, "no sum of exponentials to float64 tolerance"),
    ],
)
def test_a_kernel_refuses_with_its_reason(name, changes, reason):
    (kernel,) = (each for each in kernels("history", "torch") if each.name == name)
    if kernel.backend == "numba":
        pytest.importorskip("numba")
    given = {"dtype": "float64", "n": 100, "exponentials": 40, **changes}
    assert reason in str(kernel.refuses(Workload("history", "torch", **given)))


@pytest.mark.parametrize("name", sorted({kernel.name for op, kernel in KERNELS if op == "history"}))
def test_every_kernel_in_float32_follows_float64(name):
    backend, algorithm = name.split("/")
    (kernel,) = (each for each in kernels("history", "torch") if each.name == name)
    if reason := kernel.refuses(Workload("history", "torch", n=300, exponentials=24)):
        pytest.skip(reason)
    settings = Settings(mode="prior", wisdom="off", force_backend=backend, force_algorithm=algorithm)
    y0, ts = torch.tensor([0.5, 1.0]), torch.linspace(0, 1, 301)
    manager = BackendManager(settings)
    found = fdeint(lambda t, y: torch.cos(t) - y, y0, ts, 0.5, manager=manager)
    expected = fdeint(lambda t, y: torch.cos(t) - y, y0.double(), ts.double(), 0.5)
    # 300 terms of size 1 / sqrt(n) each, rounded to 6e-8.
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)
