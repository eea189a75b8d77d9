"""Derivatives of a whole solution, forward in time: those of the adjoint, whatever the scheme and the mesh."""

import pytest

pytest.importorskip("torch")

import torch

from hpfracc_nn.selection import default_manager
from hpfracc_nn.solvers import SCHEMES, Exponentials, FixedPoint, PredictorCorrector, Trapezoid, fdeint
from hpfracc_nn.solvers.method import Method
from hpfracc_nn.solvers.torch.fde import Call
from hpfracc_nn.training.torch.sensitivity import tangents
from tests.solver_cases import tensor

NUMBERS, Y0 = tensor(1.3, -0.4), tensor(0.5, -0.2, 0.8)
TS = torch.linspace(0, 1.5, 101, dtype=torch.float64)  # two blocks of steps


def right(t, y, numbers):
    return torch.tanh(numbers[0] * y.roll(1)) - y + numbers[1] * torch.cos(t)


def branching(t, y, numbers):
    return right(t, y, numbers) if float(t) < 0.7 else 2 * right(t, y, numbers)


CASES = [
    *({"scheme": name} for name in SCHEMES),
    *({"scheme": name, "mesh": "graded"} for name in SCHEMES if not SCHEMES[name].needs_uniform),
    {"scheme": PredictorCorrector(3)},
    {"scheme": Trapezoid(FixedPoint())},
    {"scheme": "predictor_corrector", "history": Exponentials(1e-4)},
    {"scheme": "trapezoid", "f": branching},
    {"scheme": "predictor_corrector", "f": branching},
]


def _name(options):
    """Say the same in every process: the text of a function holds its address."""
    return ", ".join(f"{key}={getattr(value, '__name__', value)}" for key, value in options.items())


@pytest.mark.parametrize("alpha", [0.3, 1.0, 1.6, (0.4, 0.7, 0.9), (0.8, 1.3, 1.7)], ids=str)
@pytest.mark.parametrize("options", CASES, ids=_name)
@pytest.mark.slow
def test_they_are_the_columns_of_the_jacobian_that_the_adjoint_has_the_rows_of(options, alpha):
    options = {"history": "full", **options}
    f, chosen = options.pop("f", right), {"mesh": "uniform", **options}
    method = Method.of("test", chosen["scheme"], chosen["history"], chosen["mesh"])
    orders = torch.tensor(alpha, dtype=torch.float64)
    count, has_slope = orders.numel(), bool((orders > 1).any())
    dy0 = tensor(0.4, 0.1, -0.6) if has_slope else None
    call = Call(lambda t, y: f(t, y, NUMBERS), Y0, TS, orders, method, n_steps=100, dy0=dy0)
    problem = call.problem(default_manager().shared_site(method.op, "torch", "test"))
    dz0 = None if dy0 is None else call._slope(dy0)
    with torch.no_grad():
        states = problem.solve(problem.pick(False), Y0, dz0)
    start = torch.zeros(count + 2, 3, dtype=torch.float64)
    start[-1] = tensor(1.0, 0.0, 2.0)  # the start depends on the second number
    slope = None
    if has_slope:
        slope = torch.zeros(count + 2, 3, dtype=torch.float64)
        slope[-2] = tensor(0.0, 1.0, -1.0) * (orders > 1)  # and the slope on the first
    found = call.at_outputs(tangents(problem, states, f, NUMBERS, start, dz0, slope))[-1] @ tensor(0.3, -1.0, 0.7)

    learned = orders.clone().requires_grad_()
    numbers = NUMBERS.clone().requires_grad_()
    y0 = Y0 + (numbers[1] - NUMBERS[1]) * start[-1]
    if dy0 is not None and slope is not None:
        dy0 = dy0 + (numbers[0] - NUMBERS[0]) * slope[-2]
    ys = fdeint(lambda t, y: f(t, y, numbers), y0, TS, learned, n_steps=100, dy0=dy0, **options)
    by_order, by_numbers = torch.autograd.grad(ys[-1] @ tensor(0.3, -1.0, 0.7), [learned, numbers])
    by_order = by_order.reshape(-1)
    torch.testing.assert_close(found, torch.cat([by_order, by_numbers]), rtol=1e-10, atol=1e-11)
