"""The equations of implicit steps: what is returned solves them, however stiffness changes between steps."""

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.solvers import BDF2, FixedPoint, Newton, Trapezoid, fdeint
from tests.solver_cases import tensor


def valve(t, y):
    """Stiff where y > 1 only: a Jacobian from below is wrong by 1e5 above, and the other way round."""
    return (5 * torch.sin(2 * t) - y) - torch.relu(y - 1) * 1e5


@pytest.mark.parametrize("kind", [Trapezoid, BDF2])
@pytest.mark.parametrize(
    ("dtype", "tolerance", "allowed"), [(torch.float32, None, 1e-3), (torch.float64, 1e-8, 1e-6)], ids=str
)
def test_a_jacobian_that_is_out_of_date_proves_nothing(kind, dtype, tolerance, allowed):
    def solved(dtype, tolerance):
        ts = torch.linspace(0, 12, 601, dtype=dtype)
        return fdeint(valve, torch.zeros(1, dtype=dtype), ts, 0.9, scheme=kind(Newton(tolerance=tolerance)))

    expected = solved(torch.float64, 1e-13)
    torch.testing.assert_close(solved(dtype, tolerance).double(), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, None), pytest.param(torch.float64, 1e-6, marks=pytest.mark.slow)], ids=str
)
def test_nor_does_it_for_gradients(dtype, tolerance):
    def gradients(dtype, tolerance):
        theta, y0 = (torch.tensor([value], dtype=dtype, requires_grad=True) for value in (3.0, 0.5))

        def stiff_late(t, y):
            return -torch.where(t < 0.5, 0.5, 1e7).to(y) * (y - theta)

        ts = torch.linspace(0, 1, 1001, dtype=dtype)
        ys = fdeint(stiff_late, y0, ts, 0.9, scheme=Trapezoid(Newton(tolerance=tolerance)))
        return [each.item() for each in torch.autograd.grad(ys.sum(), [theta, y0])]

    assert gradients(torch.float64, 1e-13) == pytest.approx(
        [567.1, 433.9], abs=0.1
    )  # in all 1001: y follows a shift of both
    assert gradients(dtype, tolerance) == pytest.approx([567.1, 433.9], rel=2e-3)


@pytest.mark.parametrize("tolerance", [1e-4, 1e-6, 1e-10])
@pytest.mark.parametrize("rate", [1.0, 3.0, 3.5])
def test_a_fixed_point_iteration_that_is_slow_ends_at_its_tolerance(rate, tolerance):
    # The trapezoid rule's own weight at dt = 0.1 is 0.24: changes shrink by 0.24 to 0.83.
    def solved(roots):
        ts = torch.linspace(0, 1, 11, dtype=torch.float64)
        return fdeint(lambda t, y: -rate * y, tensor(1.0), ts, 0.5, scheme=Trapezoid(roots))

    found = solved(FixedPoint(tolerance=tolerance, iterations=1000))
    # An error of one step stays with the following ones, and adds up to about 1 / (1 - theta) of them.
    torch.testing.assert_close(found, solved(Newton()), rtol=0, atol=5 * tolerance)


def test_one_that_diverges_is_not_taken_for_rounding():
    # Steps so small that a first change is 1e-5 of the state, of which a float32 iteration saw no more than rounding.
    ts = torch.linspace(0, 1, 11)
    with pytest.raises(RuntimeError, match=r"did not converge.*pass roots=Newton\(\)"):
        fdeint(lambda t, y: -5 * (y - 1), torch.tensor([1.0 + 2e-5]), ts, 0.5, scheme=Trapezoid(FixedPoint()))
