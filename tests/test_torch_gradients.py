"""Gradients of every order, in the data and in alpha, are those of the operator, whatever kernel runs it."""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jvp

from hpfracc_nn.fractional.definitions import (
    Caputo,
    Definition,
)
from tests.definition_cases import CLASSICAL
from tests.torch_cases import DT, Forced, Tally, every_kernel, every_kernel_always, every_scheme, matrix, multiplied

REFERENCE = json.loads((Path(__file__).parent / "reference" / "dalpha.json").read_text())
INTERVALS = {(0.0, 1.0): (0.3, 0.45, 0.8), (1.0, 2.0): (1.2, 1.5, 1.85)}  # orders, one per channel
SMALL, LARGE = (1, 2, 5), (63, 64, 65, 131)
# name: shape, time axis, whether every channel has its own order
LAYOUTS: dict[str, tuple[tuple[Any, ...], int, bool]] = {
    "last": ((2, "n"), -1, False),
    "middle": ((2, "n", 2), 1, False),
    "last, per channel": ((2, 3, "n"), -1, True),
    "middle, per channel": ((2, "n", 3), 1, True),
    "first, not contiguous": (("n", 3), 0, False),
}
every_definition = pytest.mark.parametrize("kind", CLASSICAL, ids=lambda kind: kind.__name__)
every_interval = pytest.mark.parametrize("bounds", INTERVALS, ids=str)
SLOW = pytest.mark.slow


def default_scheme(kind: Any) -> str:
    return kind(0.5).scheme


def checked(
    forced: Forced,
    kind: type[Definition],
    scheme: str,
    bounds: tuple[float, float],
    n: int,
    layout: str,
) -> None:
    """Compare first and second gradients with finite differences; along one direction where n is large."""
    template, dim, per_channel = LAYOUTS[layout]
    shape = tuple(n if size == "n" else size for size in template)
    x = forced.random(*shape, seed=n)
    if "not contiguous" in layout:
        x = forced.random(*reversed(shape), seed=n).mT
    x.requires_grad_()
    values = INTERVALS[bounds] if per_channel else INTERVALS[bounds][1]
    alpha = torch.tensor(values, dtype=torch.float64, device=forced.device, requires_grad=True)

    def learned(x: Tensor, alpha: Tensor) -> Tensor:
        return forced(x, kind(alpha, scheme, bounds), DT, dim)

    def fixed(x: Tensor) -> Tensor:
        return forced(x, kind(values, scheme, bounds), DT, dim)

    fast = n > max(SMALL)
    assert gradcheck(learned, (x, alpha), fast_mode=fast, check_batched_grad=True)
    assert gradcheck(fixed, (x,), fast_mode=True, check_batched_grad=True)
    assert gradgradcheck(learned, (x, alpha), fast_mode=True, check_batched_grad=True)
    assert gradgradcheck(fixed, (x,), fast_mode=True)


@every_kernel
@every_definition
@every_interval
@pytest.mark.parametrize("sizes", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"])
@pytest.mark.slow
def test_first_and_second_gradients_meet_finite_differences(
    forced: Forced, kind: type[Definition], bounds: tuple[float, float], sizes: tuple[int, ...]
) -> None:
    tally, layouts = Tally(), list(LAYOUTS)
    for position, n in enumerate(sizes):
        layout = layouts[(position + CLASSICAL.index(kind)) % len(layouts)]
        with tally.each():
            checked(forced, kind, default_scheme(kind), bounds, n, layout)
    tally.check()


@every_kernel
@every_scheme
@every_interval
def test_every_scheme_has_the_gradients_of_its_matrix(
    forced: Forced, kind: type[Definition], scheme: str, bounds: tuple[float, float]
) -> None:
    """The gradient in alpha against differences of dense matrices: no kernel takes part in the oracle."""
    n, step = 131, 1e-5
    x, g = forced.random(2, n).requires_grad_(), forced.random(2, n, seed=1)
    middle = INTERVALS[bounds][1]
    alpha = torch.tensor(middle, dtype=torch.float64, device=forced.device, requires_grad=True)
    gx, galpha = torch.autograd.grad(forced(x, kind(alpha, scheme, bounds)), (x, alpha), g)
    later, before = (matrix(kind(middle + way * step, scheme, bounds), n) for way in (1, -1))
    expected = (multiplied((later - before) / (2 * step), x) * g.cpu()).sum()
    dense = matrix(kind(middle, scheme, bounds), n)
    assert (gx.cpu() - multiplied(dense.T, g)).abs().max() <= 1e-12 * n * dense.abs().max()
    size = multiplied(dense.abs(), x.abs()).norm() * g.norm().cpu()
    assert abs(galpha.cpu() - expected) <= 1e-8 * size  # step**2 of the differences, and rounding / step


@pytest.mark.slow
@every_kernel
@every_scheme
@every_interval
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_at_every_size_scheme_and_layout(
    forced: Forced, kind: type[Definition], scheme: str, bounds: tuple[float, float], layout: str
) -> None:
    tally = Tally()
    for n in (*SMALL, 3, 4, *LARGE):
        with tally.each():
            checked(forced, kind, scheme, bounds, n, layout)
    tally.check()


@every_kernel
@every_definition
@pytest.mark.parametrize("per_channel", [False, True], ids=["shared", "per channel"])
def test_an_empty_batch_passes_every_check(forced: Forced, kind: Any, per_channel: bool) -> None:
    shape = (0, 3, 9) if per_channel else (0, 9)
    x = torch.empty(shape, dtype=torch.float64, device=forced.device, requires_grad=True)
    values = INTERVALS[0.0, 1.0] if per_channel else 0.4
    alpha = torch.tensor(values, dtype=torch.float64, device=forced.device, requires_grad=True)

    def learned(x: Tensor, alpha: Tensor) -> Tensor:
        return forced(x, kind(alpha, bounds=(0, 1)))

    assert gradcheck(learned, (x, alpha))
    gx, galpha = torch.autograd.grad(learned(x, alpha).sum(), (x, alpha))
    assert gx.shape == x.shape
    assert torch.equal(galpha, torch.zeros_like(alpha))


@every_kernel
@every_definition
@every_interval
@pytest.mark.parametrize(
    "layout",
    ["last, per channel", *(pytest.param(name, marks=SLOW) for name in LAYOUTS if name != "last, per channel")],
)
def test_the_hessian_in_alpha_meets_differences_of_the_gradient(
    forced: Forced, kind: Any, bounds: tuple[float, float], layout: str
) -> None:
    template, dim, per_channel = LAYOUTS[layout]
    x = forced.random(*(70 if size == "n" else size for size in template))
    values = INTERVALS[bounds] if per_channel else INTERVALS[bounds][1]
    alpha = torch.tensor(values, dtype=torch.float64, device=forced.device)

    def energy(alpha: Tensor) -> Tensor:
        return forced(x, kind(alpha, bounds=bounds), DT, dim).square().sum()

    def gradient(alpha: Tensor) -> Tensor:
        alpha = alpha.clone().requires_grad_()
        return torch.autograd.grad(energy(alpha), alpha)[0].flatten()

    step = 1e-5
    steps = step * torch.eye(alpha.numel()).to(alpha).reshape(-1, *alpha.shape)
    expected = torch.stack([(gradient(alpha + s) - gradient(alpha - s)) / (2 * step) for s in steps])
    for vectorize in (False, True):
        found = torch.autograd.functional.hessian(energy, alpha, vectorize=vectorize)
        assert isinstance(found, Tensor)
        error = (found.reshape(expected.shape) - expected).abs().max()
        assert error <= 1e-7 * expected.abs().max()  # step**2, and rounding / step


@every_kernel
@every_definition
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_double_backward_starts_from_the_same_first_gradient(forced: Forced, kind: Any, layout: str) -> None:
    """The kernel's own adjoint and its run with derived weights, and the formulas that run when a graph is wanted."""
    template, dim, per_channel = LAYOUTS[layout]
    for n in (5, 131, 300):
        x = forced.random(*(n if size == "n" else size for size in template)).requires_grad_()
        values = INTERVALS[0.0, 1.0] if per_channel else 0.4
        alpha = torch.tensor(values, dtype=torch.float64, device=forced.device, requires_grad=True)
        y = forced(x, kind(alpha, bounds=(0, 1)), DT, dim)
        g = forced.random(*y.shape, seed=1)
        kernels = torch.autograd.grad(y, (x, alpha), g, retain_graph=True)
        formulas = torch.autograd.grad(y, (x, alpha), g, create_graph=True)
        for one, other in zip(kernels, formulas, strict=True):
            assert (one - other).abs().max() <= 1e-12 * n * one.abs().max()  # two orders of summation


def saved_by(forward: Any) -> list[Tensor]:
    """Return what autograd keeps of a call for its backward."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return saved


@every_kernel
@every_scheme
@every_interval
@pytest.mark.parametrize(
    ("shape", "dim"), [pytest.param((5000, 96), -1, marks=SLOW), ((500, 96, 10), 1)], ids=["last", "middle"]
)
def test_the_backward_keeps_nothing_of_the_data_unless_alpha_is_learned(
    forced: Forced,
    kind: type[Definition],
    scheme: str,
    bounds: tuple[float, float],
    shape: tuple[int, ...],
    dim: int,
) -> None:
    n, values = 96, INTERVALS[bounds][0]
    x = forced.random(*shape).requires_grad_()
    kept = saved_by(lambda: forced(x, kind(values, scheme), dim=dim))
    assert [tensor.shape for tensor in kept if tensor.numel() >= n] == []
    alpha = torch.tensor(values, dtype=torch.float64, device=forced.device, requires_grad=True)
    kept = saved_by(lambda: forced(x, kind(alpha, scheme, bounds), dim=dim))
    (data,) = [tensor for tensor in kept if tensor.numel() >= x.numel()]  # the weights' table is smaller, and shared
    assert data.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()  # x itself, not a copy


@every_kernel_always
@every_definition
def test_forward_and_backward_run_in_the_forced_kernel(forced: Forced, kind: Any) -> None:
    x = forced.random(3, 131).requires_grad_()
    alpha = torch.tensor(0.4, dtype=torch.float64, device=forced.device, requires_grad=True)
    calls = forced.kernel.calls

    def counted(forward: Any, wanted: list[Tensor]) -> dict[str, int]:
        before = calls.copy()
        y = forward()
        if wanted:
            torch.autograd.grad(y.sum(), wanted)
        return dict(calls - before)

    learned = kind(alpha, bounds=(0, 1))
    assert counted(lambda: forced(x.detach(), kind(0.4)), []) == {"run": 1}
    assert counted(lambda: forced(x, kind(0.4)), [x]) == {"run": 1, "adjoint": 1}
    assert counted(lambda: forced(x, learned), [x, alpha]) == {"run": 1, "adjoint": 1, "derivative": 1}
    assert counted(lambda: forced(x.detach(), learned), [alpha]) == {"run": 1, "derivative": 1}
    with torch.no_grad():
        assert counted(lambda: forced(x, learned), []) == {"run": 1}


@pytest.mark.slow
@every_kernel_always
def test_the_gradient_in_alpha_keeps_its_digits_over_many_signals(forced: Forced) -> None:
    x, g = (forced.random(20000, 40).abs().float() for _ in range(2))

    def gradient(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        alpha = torch.tensor(0.4, dtype=torch.float64, device=forced.device, requires_grad=True)
        moved = jvp(lambda a: forced(x.to(dtype), Caputo(a)), (alpha,), (torch.ones_like(alpha),))[1]
        return torch.autograd.grad(forced(x.to(dtype), Caputo(alpha)), alpha, g.to(dtype))[0], (moved * g).abs().sum()

    (found, _), (right, size) = gradient(torch.float32), gradient(torch.float64)
    assert abs(found - right) <= 1e-6 * size  # a few roundings of float32, not as many as there are signals


def gradient_at(forced: Forced, x: Tensor, alpha: float, dt: float, points: list[int]) -> list[float]:
    """Return d/dalpha of Caputo's derivative by l1_2 at the given samples, each by its own backward."""
    order = torch.tensor(alpha, dtype=torch.float64, device=forced.device, requires_grad=True)
    y = forced(x, Caputo(order, scheme="l1_2"), dt)
    return [float(torch.autograd.grad(y[point], order, retain_graph=True)[0]) for point in points]


@every_kernel_always
@pytest.mark.parametrize("case", REFERENCE["cases"], ids=lambda case: case["id"])
def test_the_gradient_in_alpha_meets_the_reference(forced: Forced, case: dict[str, Any]) -> None:
    start, end = case["interval"]
    assert (case["operator"], case["function"], start) == ("d/dalpha caputo", "t**2", 0)
    n = 1000
    t = torch.linspace(0, end, n + 1, dtype=torch.float64, device=forced.device)
    points = [round(point / end * n) for point in case["points"]]
    found = gradient_at(forced, t**2, case["alpha"], end / n, points)
    assert found == pytest.approx([float(value) for value in case["values"]], abs=1e-7)


@lru_cache(maxsize=16)
def derivative_of_l1_2(alpha: float, n: int, point: int) -> float:
    """Return d/dalpha of the L1-2 scheme on exp at sample `point` on [0, 1], cell by cell in 30 digits."""

    def value(a: mpmath.mpf) -> mpmath.mpf:
        first = [(u * h) ** (1 - a) / (1 - a) for u in range(point + 1)]
        second = [(u * h) ** (2 - a) / (2 - a) for u in range(point + 1)]
        total = mpmath.mpf(0)
        for k in range(1, point + 1):  # the cell from sample k - 1 to k, u = t - s from far to near
            far, near = point - k + 1, point - k
            mass, middle = first[far] - first[near], (far - mpmath.mpf(1) / 2) * h
            total += (x[k] - x[k - 1]) / h * mass
            if k > 1:  # the quadratic's slope varies around its middle
                bend = (x[k] - 2 * x[k - 1] + x[k - 2]) / h**2
                total += bend * (middle * mass - (second[far] - second[near]))
        return total / mpmath.gamma(1 - a)

    with mpmath.workdps(30):
        h = mpmath.mpf(1) / n
        x = [mpmath.exp(k * h) for k in range(point + 1)]
        return float(mpmath.diff(value, mpmath.mpf(alpha)))


def derivative_of_caputo(alpha: float, t: float) -> float:
    """Return d/da of sum over k >= 1 of t**(k - a) / Gamma(k + 1 - a), Caputo's derivative of exp."""
    with mpmath.workdps(30):
        a, t = mpmath.mpf(alpha), mpmath.mpf(t)
        terms = (
            t ** (k - a) / mpmath.gamma(k + 1 - a) * (mpmath.digamma(k + 1 - a) - mpmath.log(t)) for k in range(1, 40)
        )
        return float(mpmath.fsum(terms))


def gradient_on_exp(forced: Forced, alpha: float, n: int, points: list[int]) -> list[float]:
    t = torch.linspace(0, 1, n + 1, dtype=torch.float64, device=forced.device)
    return gradient_at(forced, t.exp(), alpha, 1 / n, points)


@every_kernel
@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_the_gradient_in_alpha_is_the_derivative_of_the_scheme(forced: Forced, alpha: float) -> None:
    points = [1, 10, 100, 500, 1000]
    expected = [derivative_of_l1_2(alpha, 1000, point) for point in points]
    assert gradient_on_exp(forced, alpha, 1000, points) == pytest.approx(expected, abs=1e-9)


@every_kernel
def test_the_gradient_in_alpha_of_an_exponential_meets_its_series(forced: Forced) -> None:
    expected = [derivative_of_caputo(0.3, point / 1000) for point in (100, 500, 1000)]
    assert gradient_on_exp(forced, 0.3, 1000, [100, 500, 1000]) == pytest.approx(expected, abs=1e-7)


@every_kernel
def test_the_gradient_in_alpha_converges_like_the_scheme(forced: Forced) -> None:
    """At alpha 0.9 the scheme's own error, dt**(3 - alpha) log(1 / dt), is above 1e-7 at a thousand steps."""
    exact = derivative_of_caputo(0.9, 1)
    errors = [abs(gradient_on_exp(forced, 0.9, n, [n])[0] - exact) for n in (500, 1000, 2000)]
    for error, following, n in zip(errors[:-1], errors[1:], (500, 1000), strict=True):
        logarithm = math.log(2 * n) / math.log(n)
        assert math.log2(error / following * logarithm) == pytest.approx(3 - 0.9, abs=0.1)
    assert errors[1] <= math.log(1000) * 1000 ** -(3 - 0.9)
