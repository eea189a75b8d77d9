"""A state of no axes is solved like one number in an axis."""

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import SCHEMES, fdeint
from tests.solver_cases import tensor

TS = torch.linspace(0, 1, 31, dtype=torch.float64)
WAYS = [(name, mesh) for name in SCHEMES for mesh in ("uniform", "graded")]


@pytest.mark.parametrize("adjoint", [True, False])
@pytest.mark.parametrize("alpha", [0.5, 1.5])
@pytest.mark.parametrize(
    ("scheme", "mesh"), [way for way in WAYS if way[1] == "uniform" or not SCHEMES[way[0]].needs_uniform]
)
@pytest.mark.slow
def test_gradients_are_those_of_one_number_in_an_axis(scheme, mesh, alpha, adjoint):
    def gradients(shape):
        y0, rate, slope = (tensor(value).view(shape).requires_grad_() for value in (0.8, 1.3, -0.2))
        order = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
        options = {"scheme": scheme, "mesh": mesh, "dy0": slope if alpha > 1 else None, "adjoint": adjoint}
        ys = fdeint(lambda t, y: torch.cos(t) - rate * y, y0, TS, order, **options)
        assert ys.shape == (31, *shape)
        wanted = [y0, rate, order, *([slope] if alpha > 1 else [])]
        return [each.reshape(-1) for each in torch.autograd.grad(ys.square().sum(), wanted)]

    for one, other in zip(gradients(()), gradients((1,)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


def test_an_order_of_no_axes_and_of_one_are_the_same():
    found = fdeint(lambda t, y: -y, torch.tensor(1.0), TS, torch.tensor([0.5]))
    torch.testing.assert_close(found, fdeint(lambda t, y: -y, torch.tensor(1.0), TS, 0.5))
