"""What the kinds do that users must know: where they stand still, how often they call, whom they do not ask."""

import pytest
import torch

from hpfracc_nn.selection import BackendManager, Settings
from hpfracc_nn.training import FractionalAdam, FractionalSGD
from tests.optimizer_cases import parameters, quartic, train


def test_a_gradient_of_zero_stops_the_closed_form_of_caputo_for_ever_but_for_momentum():
    for momentum, moves in ((0.0, False), (0.9, True)):
        x = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        optimizer = FractionalSGD([x], lr=0.1, momentum=momentum, alpha=0.7, kind="caputo")
        for step in range(10):
            x.grad = torch.ones(2, dtype=torch.float64)
            if step == 3:
                before = x.detach().clone()
                x.grad[0] = 0.0
            optimizer.step()
        assert (x.detach() != before).tolist() == [moves, True]


def test_a_parameter_at_the_terminal_stays_there():
    x = torch.nn.Parameter(torch.tensor([0.0, 1.0]))
    optimizer = FractionalSGD([x], lr=0.1, alpha=0.7, kind="caputo_terminal")

    def closure():
        optimizer.zero_grad()
        loss = (x - 3).square().sum()
        loss.backward()
        return loss

    for _ in range(5):
        optimizer.step(closure)
    assert x[0] == 0
    assert x[1] > 1.5


@pytest.mark.parametrize(("kind", "calls"), [("caputo_terminal", 9), ("caputo", 1), ("integral", 1)])
def test_the_closure_is_called_as_often_as_documented(kind, calls):
    """So BatchNorm counts as many batches in a step."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer, x = FractionalSGD(net.parameters(), lr=0.1, alpha=0.5, kind=kind), torch.randn(8, 3)

    def closure():
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert net[1].num_batches_tracked == calls


@pytest.mark.parametrize("options", [{"differentiable": True}, {}], ids=str)
def test_the_manager_is_asked_unless_autograd_follows(options):
    manager = BackendManager(Settings(mode="prior", wisdom="off"))
    train(FractionalAdam, 3, [p.detach() for p in parameters()], alpha=0.6, manager=manager, **options)
    assert manager.counters()["forward"] == (0 if options else 3)


@pytest.mark.parametrize("alpha", [1.0, 0.7])
def test_a_step_is_no_single_graph(alpha):
    optimizer = train(FractionalAdam, 1, alpha=alpha)
    quartic(optimizer)()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"Fractional\.step"):
        torch.compile(optimizer.step, fullgraph=True, backend="eager")()
