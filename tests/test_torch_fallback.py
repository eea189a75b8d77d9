"""Operators whose kernels fail: the result and the gradients are those of another kernel, on tensors and on arrays."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hpfracc_nn import BackendManager, Caputo, FractionalDifference, derivative
from hpfracc_nn.fractional import tables
from hpfracc_nn.selection import (
    Kernel,
    Settings,
    Workload,
    kernels,
    register,
    register_operation,
    unregister,
    unregister_operation,
)
from hpfracc_nn.selection.candidates import accepted

DT, N = 0.1, 300


@pytest.fixture
def manager() -> BackendManager:
    return BackendManager(Settings(mode="prior", wisdom="off", calibration="shipped"))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make parts of kernels raise, or do something else, for one test."""

    def change(kernel: Kernel, part: str, action: Any = None) -> list[str]:
        seen: list[str] = []

        def run(*given: Any) -> Any:
            seen.append(part)
            if action is None:
                raise RuntimeError(f"{kernel.name}.{part} is broken")
            return action(*given)

        monkeypatch.setattr(kernel, part, run)
        return seen

    return change


def chosen(manager: BackendManager, framework: str = "torch") -> Kernel:
    """The kernel of the only plan that has run."""
    (site,) = [site for site in manager.sites() if site.framework == framework]
    return max(site.plans(), key=lambda plan: plan.forwards).kernel


def samples(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, N, generator=torch.Generator().manual_seed(0), dtype=dtype)


def gradients(x: Tensor, alpha: float | Tensor, manager: BackendManager) -> list[Tensor]:
    x = x.clone().requires_grad_()
    alpha = alpha.clone().requires_grad_() if isinstance(alpha, Tensor) else alpha
    y = derivative(x, Caputo(alpha, bounds=(0, 1) if isinstance(alpha, Tensor) else None), dt=DT, manager=manager)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape)
    wanted = [x, alpha] if isinstance(alpha, Tensor) else [x]
    return [y.detach(), *torch.autograd.grad(y, wanted, weights)]


def assert_close(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        # two kernels differ by 1e-11 of the weights at most; sums over 300 samples stay below that times the largest
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))


@pytest.mark.parametrize("alpha", [0.6, torch.tensor(0.6, dtype=torch.float64)], ids=["fixed", "learned"])
@pytest.mark.parametrize("part", ["run", "adjoint", "prepare"])
def test_another_kernel_does_what_one_fails_at(manager: BackendManager, broken: Any, part: str, alpha: Any) -> None:
    expected = gradients(samples(), alpha, manager)
    kernel = chosen(manager)
    fresh = BackendManager(manager.settings)
    seen = broken(kernel, part)
    if part == "prepare":
        alpha = alpha if isinstance(alpha, Tensor) else 0.6 + 1e-14  # weights that no kernel was prepared for
    assert_close(gradients(samples(), alpha, fresh), expected)
    assert_close(gradients(samples(), alpha, fresh), expected)
    assert len(seen) == 1
    assert fresh.failures() == {kernel.name: {"RuntimeError": 1}}
    direction = "backward" if part == "adjoint" else "forward"
    assert [each.direction for each in fresh.history() if not each.succeeded] == [direction]
    counters = fresh.counters()
    assert (counters["forward"], counters["backward"]) == (2, 2)


@pytest.mark.parametrize("alpha", [0.6, torch.tensor(0.6, dtype=torch.float64)], ids=["fixed", "learned"])
@pytest.mark.parametrize("part", ["run", "adjoint"])
def test_what_stands_in_computes_a_few_rows_at_a_time_too(
    manager: BackendManager, broken: Any, part: str, alpha: Any
) -> None:
    manager.configure(disable="numba")  # whose kernel takes so little that no other keeps within the same limit
    expected = gradients(samples(), alpha, manager)
    (site,) = manager.sites()
    (plan,) = site.plans()
    least = min(each.need for each in accepted(manager.planner.candidates.fitting(plan.workload)))
    limited = BackendManager(replace(manager.settings, memory_limit=int(least) - 1))
    failing = limited.plan(plan.workload).kernel
    broken(failing, part)
    assert_close(gradients(samples(), alpha, limited), expected)
    (site,) = limited.sites()
    (stand_in,) = [each for each in site.plans() if each.backwards]
    assert stand_in.kernel is not failing
    assert stand_in.chunk in (1, 2)  # of three


def test_the_backward_pass_begins_with_the_kernel_that_ran(manager: BackendManager, broken: Any) -> None:
    expected = gradients(samples(), 0.6, manager)
    kernel = chosen(manager)
    fresh = BackendManager(manager.settings)
    broken(kernel, "run")
    seen = broken(kernel, "adjoint")
    assert_close(gradients(samples(), 0.6, fresh), expected)
    assert seen == []
    assert fresh.failures() == {kernel.name: {"RuntimeError": 1}}


@pytest.mark.parametrize(("tabulated", "value"), [(True, 0.613), (False, 0.614)], ids=["tables", "formulas"])
def test_the_gradient_is_that_of_the_alpha_of_the_call_where_another_kernel_stands_in(
    manager: BackendManager, broken: Any, tabulated: bool, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alpha without a gradient may be written to after the call: autograd saves nothing that it could check."""
    tables.CACHE.clear()
    if not tabulated:
        monkeypatch.setattr(tables, "_LARGEST", 1 << 10)
    expected = gradients(samples(), value, manager)[1]
    x, alpha = samples().requires_grad_(), torch.tensor(value, dtype=torch.float64)  # weights of no earlier call
    y = derivative(x, Caputo(alpha, bounds=(0, 1)), dt=DT, manager=manager)
    kernel = max((plan for site in manager.sites() for plan in site.plans()), key=lambda plan: plan.forwards).kernel
    broken(kernel, "adjoint")
    alpha.fill_(0.2)
    (found,) = torch.autograd.grad(y, x, torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view(y.shape))
    assert manager.failures() == {kernel.name: {"RuntimeError": 1}}
    assert_close([found], [expected])
    tables.CACHE.clear()


def test_the_slope_of_a_learned_order_falls_back_too(manager: BackendManager, broken: Any) -> None:
    alpha = torch.tensor(0.6, dtype=torch.float64)
    expected = gradients(samples(), alpha, manager)
    kernel = chosen(manager)
    fresh, run, calls = BackendManager(manager.settings), kernel.run, []

    def first_only(*given: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("the slope's run")
        run(*given)

    broken(kernel, "run", first_only)
    assert_close(gradients(samples(), alpha, fresh), expected)
    assert [each.direction for each in fresh.history() if not each.succeeded] == ["backward"]


def test_nothing_is_saved_twice(manager: BackendManager, broken: Any) -> None:
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    layer = FractionalDifference(3, init=0.5, manager=manager, dtype=torch.float64)
    x = samples()[None].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x).sum().backward()
    plain, kernel = sorted(saved), chosen(manager)
    saved.clear()
    fresh = BackendManager(manager.settings)
    broken(kernel, "run")
    again = FractionalDifference(3, init=0.5, manager=fresh, dtype=torch.float64)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        again(x).sum().backward()
    assert sorted(saved) == plain
    assert fresh.failures() != {}


def test_a_second_derivative_works_after_a_fallback(manager: BackendManager, broken: Any) -> None:
    x = samples()[:1, :12]
    derivative(x, Caputo(0.5), dt=DT, manager=manager)
    broken(chosen(manager), "run")
    fresh = BackendManager(manager.settings)
    assert torch.autograd.gradgradcheck(
        lambda x: derivative(x, Caputo(0.5), dt=DT, manager=fresh), x.clone().requires_grad_()
    )


def test_a_compiled_operation_falls_back(manager: BackendManager, broken: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("hpfracc_nn.selection.manager._process_wide", manager)
    apply = torch.compile(lambda x: derivative(x, Caputo(0.6), dt=DT), backend="eager", fullgraph=True)
    expected = derivative(samples(), Caputo(0.6), dt=DT, manager=manager)
    broken(chosen(manager), "run")
    assert_close([apply(samples())], [expected])
    assert manager.failures() != {}


@pytest.mark.slow
def test_arrays_fall_back_too(manager: BackendManager, broken: Any) -> None:
    x = samples().numpy()
    expected = derivative(x, Caputo(0.6), dt=DT, manager=manager)
    kernel = chosen(manager, "numpy")
    for part in ("run", "prepare"):
        with pytest.MonkeyPatch.context() as patch:
            fresh = BackendManager(manager.settings)

            def fail(*given: Any) -> None:
                raise MemoryError

            patch.setattr(kernel, part, fail)
            order = 0.6 if part == "run" else 0.6 + 1e-14
            found = derivative(x, Caputo(order), dt=DT, manager=fresh)
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())
            assert fresh.failures() == {kernel.name: {"MemoryError": 2}}  # it has a second chance


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_a_kernel_that_returns_nan_is_caught_where_the_data_have_none(
    manager: BackendManager, broken: Any, framework: str
) -> None:
    x: Any = samples() if framework == "torch" else samples().numpy()
    expected = derivative(x, Caputo(0.6), dt=DT, manager=manager)
    kernel = chosen(manager, framework)
    broken(kernel, "run", lambda *given: given[-1].__setitem__(..., float("nan")))
    fresh = BackendManager(manager.settings)
    found = derivative(x, Caputo(0.6), dt=DT, manager=fresh)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-9, atol=1e-9)
    assert fresh.failures() == {kernel.name: {"WrongResult": 1}}


def test_a_gradient_that_is_nan_is_caught(manager: BackendManager, broken: Any) -> None:
    expected = gradients(samples(), 0.6, manager)
    kernel = chosen(manager)
    broken(kernel, "adjoint", lambda *given: given[-1].fill_(float("nan")))
    fresh = BackendManager(manager.settings)
    assert_close(gradients(samples(), 0.6, fresh), expected)
    assert fresh.failures() == {kernel.name: {"WrongResult": 1}}


def test_a_result_of_another_shape_is_caught(manager: BackendManager, broken: Any) -> None:
    expected = derivative(samples(), Caputo(0.6), dt=DT, manager=manager)
    kernel = chosen(manager)
    broken(kernel, "run", lambda *given: given[-1].resize_(7))
    fresh = BackendManager(manager.settings)
    assert_close([derivative(samples(), Caputo(0.6), dt=DT, manager=fresh)], [expected])
    assert fresh.failures() == {kernel.name: {"WrongResult": 1}}


@pytest.mark.filterwarnings("ignore:overflow encountered")  # of NumPy, in the second kernel that is asked
def test_nan_and_overflow_of_the_data_are_nobodys_fault(manager: BackendManager) -> None:
    spoilt = samples(torch.float32)
    spoilt[0, 5] = float("nan")
    assert derivative(spoilt, Caputo(0.6), dt=DT, manager=manager)[0].isnan().any()
    large = torch.full((2, N), 3e38)
    large[:, ::2] = -3e38
    assert not derivative(large, Caputo(0.9), dt=1e-3, manager=manager).isfinite().all()
    assert manager.failures() == {}


def test_what_is_wrong_with_the_input_reaches_no_kernel(manager: BackendManager, broken: Any) -> None:
    seen = [broken(kernel, part) for kernel in kernels("toeplitz", "torch") for part in ("run", "prepare")]
    wrong: list[tuple[Any, Any, dict[str, Any], Any]] = [
        (samples(), Caputo(0.6), {"dt": -1.0}, ValueError),
        (samples(), Caputo(0.6), {"dim": 5}, (IndexError, ValueError)),
        (samples(), Caputo((0.5, 0.6)), {}, ValueError),
        (samples(), Caputo(torch.tensor(1.5), bounds=(0, 1)), {}, ValueError),
        ("text", Caputo(0.6), {}, TypeError),
    ]
    for x, definition, options, error in wrong:
        with pytest.raises(error):
            derivative(x, definition, manager=manager, **options)
    assert not any(seen)
    assert manager.failures() == {}


def test_when_every_kernel_fails_one_error_names_every_cause(manager: BackendManager, broken: Any) -> None:
    derivative(samples(), Caputo(0.6), dt=DT, manager=manager)
    first = chosen(manager).name
    accepted = [first, *(name for name, _ in manager.sites()[0].plans()[0].alternatives)]
    for kernel in kernels("toeplitz", "torch"):
        broken(kernel, "run")
    with pytest.raises(RuntimeError, match=f"{first}.run is broken") as caught:
        derivative(samples(), Caputo(0.6), dt=DT, manager=BackendManager(manager.settings))
    notes = caught.value.__notes__
    assert len(notes) == len(accepted)
    assert "while running toeplitz by " + first in notes[0]
    assert {note.split()[0] for note in notes[1:]} == set(accepted[1:])


def test_a_checkpoint_that_stops_its_recomputation_early_is_no_failure(manager: BackendManager) -> None:
    def describe(x: Tensor) -> Workload:
        return Workload("squared_sine", "torch", dtype="float64", n=x.numel(), needs_gradient=x.requires_grad)

    made = [
        register(Kernel("squared_sine", "torch", "torch", name, run))
        for name, run in {"square": lambda x: x.sin().square(), "half_angle": lambda x: (1 - (2 * x).cos()) / 2}.items()
    ]
    register_operation("squared_sine", describe)
    try:
        x = samples().requires_grad_()
        y = checkpoint(lambda x: manager.run("squared_sine", x), x, use_reentrant=False)
        (found,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(found, (2 * x).sin().detach())
        assert manager.failures() == {}
        assert manager.counters()["forward"] == 2
    finally:
        unregister_operation("squared_sine")
        for kernel in made:
            unregister(kernel)
