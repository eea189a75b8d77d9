"""What every solver does for any order, scheme, history and number of steps: identities on examples that are drawn."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from hpfracc_nn.fractional import mittag_leffler
from hpfracc_nn.solvers import SCHEMES, Graded, fdeint
from tests.properties import holds_for

HISTORIES = ("full", "fft", "exponentials")
schemes, histories = st.sampled_from(sorted(SCHEMES)), st.sampled_from(HISTORIES)
orders = st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.1, 1.9))
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Problem:
    """D^alpha y = tanh(A y) + cos(t - t0) from t0 on, with y, A and y'(0) drawn at random."""

    alpha: float
    scheme: str
    history: str
    n_steps: int
    end: float
    width: int
    seed: int

    @property
    def inputs(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """y(0), A and y'(0): states of a size of about 1, and a matrix whose norm is at most about 1."""
        generator = torch.Generator().manual_seed(self.seed)
        y0, slope = torch.randn(2, self.width, dtype=torch.float64, generator=generator)
        matrix = torch.randn(self.width, self.width, dtype=torch.float64, generator=generator)
        return y0, matrix / (2 * self.width), slope

    def times(self, t0: float = 0.0) -> torch.Tensor:
        return t0 + torch.linspace(0, self.end, self.n_steps + 1, dtype=torch.float64)

    def solve(self, y0: torch.Tensor, matrix: torch.Tensor, slope: torch.Tensor, **options: Any) -> torch.Tensor:
        t0 = options.pop("t0", 0.0)
        given = {"scheme": self.scheme, "history": self.history, "params": [matrix], **options}
        if self.alpha > 1:
            given["dy0"] = slope
        return fdeint(
            lambda t, y: torch.tanh(y @ matrix.T) + torch.cos(t - t0), y0, self.times(t0), self.alpha, **given
        )


@st.composite
def problems(draw: st.DrawFn, most: int = 16, alphas: st.SearchStrategy[float] = orders) -> Problem:
    return Problem(
        draw(alphas),
        draw(schemes),
        draw(histories),
        draw(st.integers(1, most)),
        draw(st.floats(0.1, 1.0)),
        draw(st.integers(1, 3)),
        draw(seeds),
    )


@holds_for(6, problem=problems(), drift=st.floats(-10, 10))
def test_a_constant_drift_has_its_closed_form(problem: Problem, drift: float) -> None:
    """It is y(0) + t y'(0) + drift t**alpha / Gamma(1 + alpha): every scheme integrates constants exactly."""
    y0, _, slope = problem.inputs
    t = problem.times()[:, None]
    exact = y0 + drift * t**problem.alpha / math.gamma(1 + problem.alpha)
    if problem.alpha > 1:
        exact = exact + t * slope
    found = fdeint(
        lambda t, y: 0 * y + drift,
        y0,
        problem.times(),
        problem.alpha,
        scheme=problem.scheme,
        history=problem.history,
        dy0=slope if problem.alpha > 1 else None,
    )
    tolerance = 1e-10 if problem.history == "exponentials" else 1e-12  # 1e-11 for each of the weights
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=tolerance * (1 + abs(drift)))


@holds_for(4, 50, alpha=st.floats(0.3, 1.0), rate=st.floats(0.1, 3.0))
def test_relaxation_is_a_mittag_leffler_function(alpha: float, rate: float) -> None:
    """On a mesh graded by 2 / alpha the trapezoid rule is of second order whatever alpha."""
    errors = []
    for n_steps in (20, 40):
        ts = torch.linspace(0, 1, 5, dtype=torch.float64)
        y = fdeint(
            lambda t, y: -rate * y,
            torch.ones(1, dtype=torch.float64),
            ts,
            alpha,
            scheme="trapezoid",
            mesh=Graded(2 / alpha),
            n_steps=n_steps,
        )
        exact = torch.as_tensor(mittag_leffler(-rate * ts.numpy() ** alpha, alpha))[:, None]
        errors.append((y - exact).abs().max().item())
    assert errors[0] < 0.01
    assert errors[1] < max(errors[0] / 3, 1e-9), errors


@holds_for(6, problem=problems(), t0=st.floats(-1e3, 1e3))
def test_only_the_time_since_the_start_counts(problem: Problem, t0: float) -> None:
    early, late = problem.solve(*problem.inputs), problem.solve(*problem.inputs, t0=t0)
    # A time t0 + t is rounded by eps t0, its difference to the step by as much: of steps of 0.1 / 16 and more.
    torch.testing.assert_close(late, early, rtol=0, atol=1e-11 + 1e-12 * abs(t0))


@holds_for(6, problem=problems(), rows=st.integers(1, 3))
def test_a_batch_is_solved_as_its_rows_are(problem: Problem, rows: int) -> None:
    y0, matrix, slope = problem.inputs
    factors = torch.linspace(0.5, 1.5, rows, dtype=torch.float64)[:, None]
    together = problem.solve(factors * y0, matrix, factors * slope)
    assert together.shape == (problem.n_steps + 1, rows, problem.width)
    for row, factor in enumerate(factors):
        alone = problem.solve(factor * y0, matrix, factor * slope)
        # an implicit step is solved to 1e-10 or better, whatever is solved beside it
        torch.testing.assert_close(together[:, row], alone, rtol=1e-9, atol=1e-9)


@holds_for(4, problem=problems(most=8))
def test_gradients_are_differences_in_any_direction(problem: Problem) -> None:
    inputs, step = problem.inputs, 1e-6
    ways = [torch.cos(torch.arange(each.numel(), dtype=torch.float64)).reshape(each.shape) for each in inputs]

    def loss(*given: torch.Tensor) -> torch.Tensor:
        return problem.solve(*given).sin().sum()

    leaves = [each.clone().requires_grad_() for each in inputs]
    found = torch.autograd.grad(loss(*leaves), leaves, allow_unused=True)
    along = sum(
        float((gradient * way).sum()) for gradient, way in zip(found, ways, strict=True) if gradient is not None
    )
    ahead, behind = (
        loss(*(each + sign * step * way for each, way in zip(inputs, ways, strict=True))) for sign in (1, -1)
    )
    # Differences lose step**2 of third derivatives, and the rounding of a sum of some 30 terms over the step.
    assert along == pytest.approx(((ahead - behind) / (2 * step)).item(), rel=1e-6, abs=1e-6)


@holds_for(4, 100, problem=problems(most=150))
def test_all_histories_keep_the_same_past(problem: Problem) -> None:
    full, *others = (problem.solve(*problem.inputs, history=history) for history in HISTORIES)
    for other in others:
        torch.testing.assert_close(other, full, rtol=1e-9, atol=1e-9)  # 1e-11 for each weight, implicit steps 1e-10


@holds_for(6, problem=problems(alphas=st.just(1.0)))
def test_order_one_is_the_classical_scheme(problem: Problem) -> None:
    """Euler's rule, the trapezoid rule, the two-step backward difference; the predictor's sum begins at y(0)."""
    y0, matrix, slope = problem.inputs
    y, h, t = problem.solve(y0, matrix, slope), problem.end / problem.n_steps, problem.times()[:, None]

    def f(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(y @ matrix.T) + torch.cos(t)

    now, later = f(t[:-1], y[:-1]), f(t[1:], y[1:])
    sums = torch.cumsum(now, 0)
    found = y[1:] - y0
    match problem.scheme:
        case "rectangle":
            wanted = h * sums
        case "predictor_corrector":
            wanted = h * (sums - now[:1] / 2 + f(t[1:], y0 + h * sums) / 2)
        case "trapezoid":
            wanted = h * (sums + torch.cumsum(later, 0)) / 2
        case "bdf2":
            found, wanted = 1.5 * y[2:] - 2 * y[1:-1] + 0.5 * y[:-2], h * later[1:]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
