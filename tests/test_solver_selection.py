"""The manager and the solver's history: it is asked, followed and told, and what it picks changes no result."""

import copy
import pickle

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn import BackendManager
from hpfracc_nn.selection import Settings, Workload, kernels
from hpfracc_nn.solvers import Exponentials, FFTBlocks, Full, NeuralFDE, Window, fdeint
from tests.solver_cases import tensor

TS = torch.linspace(0, 1, 301, dtype=torch.float64)
NAMES = {kernel.name for kernel in kernels("history", "torch")}


@pytest.fixture
def manager():
    return BackendManager(Settings(mode="prior", wisdom="off", calibration="shipped"))


def solve(manager, **options):
    """Return the solution and the gradients in y0, a parameter and alpha."""
    y0, rate = tensor(1.0, 0.5).requires_grad_(), tensor(1.3).requires_grad_()
    alpha = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    ys = fdeint(lambda t, y: -rate * y**2, y0, TS, alpha, manager=manager, **options)
    return [ys.detach(), *torch.autograd.grad(ys.square().sum(), [y0, rate, alpha])]


def test_every_solve_asks_forward_and_backward(manager):
    for _ in range(3):
        solve(manager)
    with torch.no_grad():
        fdeint(lambda t, y: -y, tensor(1.0), TS, 0.6, manager=manager)
    counted = manager.counters()
    assert (counted["forward"], counted["backward"]) == (4, 3)


def test_plain_backpropagation_does_not_ask(manager):
    solve(manager, adjoint=False)
    assert manager.counters()["forward"] == 0


@pytest.mark.parametrize("name", sorted(NAMES))
def test_forcing_a_kernel_changes_what_runs_and_no_result(manager, name):
    backend, algorithm = name.split("/")
    expected = solve(manager, history=Full())
    manager.configure(force_backend=backend, force_algorithm=algorithm)
    (kernel,) = (each for each in kernels("history", "torch") if each.name == name)
    if reason := kernel.refuses(Workload("history", "torch", dtype="float64", n=300, exponentials=40)):
        pytest.skip(reason)
    before = kernel.calls.copy()
    found = solve(manager)
    assert kernel.calls["run"] > before["run"]
    assert kernel.calls["adjoint"] > before["adjoint"]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)  # 1e-11 per weight, 300 weights


@pytest.mark.parametrize(
    ("history", "algorithm"),
    [(Full(), "dense"), (FFTBlocks(), "fft"), (Exponentials(1e-6), "recurrence"), (Window(300), "dense")],
    ids=str,
)
def test_a_history_names_what_may_run(manager, history, algorithm):
    solve(manager, history=history)
    assert {name.split("/")[1] for name in manager.counters()["picks"]} == {algorithm}


def test_a_history_that_is_named_runs_whatever_is_forced_of_others(manager):
    manager.configure(force_algorithm="fft")
    solve(manager, history="full")
    assert {name.split("/")[1] for name in manager.counters()["picks"]} == {"dense"}


def test_a_history_that_may_not_run_says_so(manager):
    manager.configure(disable=[name for name in NAMES if name.endswith("/dense")])
    with pytest.raises(LookupError, match=r"history\.full"):
        solve(manager, history="full")


@pytest.mark.parametrize("direction", ["run", "adjoint"])
@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_kernel_that_fails_halfway_is_replaced_with_what_it_had_seen(manager, monkeypatch, direction, fails_at):
    expected, calls = solve(manager, history=Full()), 0
    manager.configure(disable="torch/dense")
    (kernel,) = (each for each in kernels("history", "torch") if each.name == "torch/recurrence")
    working = getattr(kernel, direction)

    def failing(*given):
        nonlocal calls
        calls += 1
        if calls == fails_at + 1:
            raise RuntimeError("broken")
        return working(*given)

    monkeypatch.setattr(kernel, direction, failing)
    manager.configure(disable=[name for name in NAMES if name not in ("torch/recurrence", "torch/fft")])
    found = solve(manager)
    assert calls > fails_at
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


def test_an_error_of_the_right_hand_side_is_no_failure_of_a_kernel(manager):
    def f(t, y):
        if t > 0.5:
            raise ZeroDivisionError
        return -y

    with pytest.raises(ZeroDivisionError):
        fdeint(f, tensor(1.0), TS, 0.6, manager=manager)
    assert not [each for each in manager.history() if not each.succeeded]


def test_times_are_told_to_the_manager():
    manager = BackendManager(Settings(mode="learn", wisdom="off", calibration="shipped"))
    for _ in range(6):
        solve(manager)
    assert {each.direction for each in manager.history("history")} == {"forward", "backward"}


class Decay(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = torch.nn.Parameter(torch.tensor(1.3))

    def forward(self, t, y):
        return -self.rate * y


def test_a_module_has_a_site_of_its_own(manager):
    model = NeuralFDE(Decay(), 0.5, learn_alpha=True, manager=manager)
    model(torch.ones(2), torch.linspace(0, 1, 21))[-1].sum().backward()
    assert sum(plan.forwards for plan in model.site.plans()) == 1
    assert sum(plan.backwards for plan in model.site.plans()) == 1
    assert all(each.grad is not None and each.grad.abs() > 0 for each in model.parameters())


def test_the_report_lists_the_solver(manager):
    pytest.importorskip("lightning.pytorch")
    import lightning.pytorch as pl

    from hpfracc_nn.training import BackendReport

    class Model(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.solver = NeuralFDE(Decay(), 0.5, manager=manager)

        def training_step(self, batch, index):
            return self.solver(batch[0], torch.linspace(0, 1, 21)).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    report = BackendReport(table=None)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(4, 2)), batch_size=2)
    trainer = pl.Trainer(
        max_epochs=1, callbacks=[report], logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(Model(), data)
    (row,) = report.rows()
    assert (row.label, row.forwards, row.backwards) == ("solver", 2, 2)


@pytest.mark.parametrize("learn_alpha", [False, True])
def test_a_module_is_copied_and_pickled(learn_alpha):
    model = NeuralFDE(Decay(), [0.5, 0.7], learn_alpha=learn_alpha, n_steps=20, mesh="graded")
    y0, ts = torch.ones(2), torch.linspace(0, 1, 5)
    expected = model(y0, ts)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(y0, ts), expected)
    first = [0.1, 0.2] if learn_alpha else [0.5, 0.7]
    fresh = NeuralFDE(Decay(), first, learn_alpha=learn_alpha, n_steps=20, mesh="graded")
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(y0, ts), expected)


def test_a_tuple_is_solved_like_its_parts_joined():
    y0 = (tensor(1.0, 2.0), tensor(0.5).view(1, 1))
    found = fdeint(lambda t, y: (-y[0] * y[1][0], y[0][:1, None] - y[1]), y0, TS, 0.6)
    joined = fdeint(
        lambda t, y: torch.cat([-y[:2] * y[2], y[:1] - y[2:]]), torch.cat([part.reshape(-1) for part in y0]), TS, 0.6
    )
    assert [part.shape for part in found] == [(301, 2), (301, 1, 1)]
    torch.testing.assert_close(torch.cat([part.reshape(301, -1) for part in found], 1), joined, rtol=1e-13, atol=0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_orders_along_an_axis_are_solves_of_their_own(axis):
    generator = torch.Generator().manual_seed(0)
    y0 = torch.rand(2, 3, 4, dtype=torch.float64, generator=generator)
    shape = [1, 1, 1]
    shape[axis] = y0.shape[axis]
    alpha = torch.linspace(0.3, 0.9, y0.shape[axis], dtype=torch.float64)
    found = fdeint(lambda t, y: -(y**2), y0, TS, alpha.view(shape))
    for k, one in enumerate(alpha.tolist()):
        expected = fdeint(lambda t, y: -(y**2), y0.select(axis, k), TS, one)
        torch.testing.assert_close(found.select(axis + 1, k), expected, rtol=1e-12, atol=1e-12)


def test_a_derivative_at_the_start_is_a_condition_of_high_orders_only():
    y0, dy0, alpha = tensor(0.5, 1.0), tensor(2.0, 3.0), tensor(0.7, 1.4)
    found = fdeint(lambda t, y: -y, y0, TS, alpha, dy0=dy0)
    low = fdeint(lambda t, y: -y, y0[:1], TS, 0.7)
    high = fdeint(lambda t, y: -y, y0[1:], TS, 1.4, dy0=dy0[1:])
    torch.testing.assert_close(found, torch.cat([low, high], 1), rtol=1e-12, atol=1e-12)
