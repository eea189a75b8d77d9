"""Operations of a user's own: described, chosen, run, learnt."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from hpfracc_nn.selection import (
    Cost,
    Kernel,
    Workload,
    choose,
    kernels,
    register,
    register_operation,
    unregister,
    unregister_operation,
)
from tests.selection_kernels import fake_manager

EXAMPLE = Path(__file__).parents[1] / "examples" / "own_operation.py"


@pytest.fixture
def smooth():
    """Two ways to a moving average, one of them a hundred times slower; which is which, nobody says."""
    made = [
        register(Kernel("smooth", "anything", "numpy", "slow", lambda x, window: np.convolve(x, window, "valid"))),
        register(Kernel("smooth", "anything", "numpy", "fast", lambda x, window: by_sums(x, window.size))),
    ]
    register_operation("smooth", lambda x, window: Workload("smooth", "anything", dtype="float64", n=x.size))
    yield made
    unregister_operation("smooth")
    for kernel in made:
        unregister(kernel)


def by_sums(x, count):
    sums = np.concatenate([[0.0], np.cumsum(x)])
    return (sums[count:] - sums[:-count]) / count


ROUGH = Workload("rough", "numpy")
X, WINDOW = np.random.default_rng(0).standard_normal(20_000), np.full(500, 1 / 500)


def test_it_learns_which_of_two_kernels_is_faster(smooth):
    manager = fake_manager(mode="learn")
    results = [manager.run("smooth", X, window=WINDOW) for _ in range(100)]
    expected = np.convolve(X, WINDOW, "valid")
    assert max(abs(each - expected).max() for each in results) < 1e-9  # n * eps * sqrt(n) of partial sums up to 300
    picks = manager.counters()["picks"]
    assert picks["numpy/fast"] > picks["numpy/slow"]
    assert manager.plan(Workload("smooth", "anything", dtype="float64", n=X.size)).kernel is smooth[1]
    assert sum(picks.values()) == sum(kernel.calls["run"] for kernel in smooth) == 100


def test_a_choice_needs_no_data(smooth):
    assert choose("smooth", (20_000,), framework="anything", manager=fake_manager()).kernel is smooth[0]
    smooth[1].cost = lambda work: Cost({}, bytes=work.bytes, launches=1)
    assert choose("smooth", (20_000,), framework="anything", manager=fake_manager()).kernel is smooth[1]
    smooth[1].refuses = lambda work: "not today"
    manager = fake_manager()
    assert choose("smooth", (20_000,), framework="anything", manager=manager).kernel is smooth[0]
    assert "refused: not today" in manager.explain(Workload("smooth", "anything", n=7))


def test_what_a_kernel_leaves_out_has_a_default():
    kernel = Kernel("smooth", "anything", "numpy", "plain", run=len)
    work = Workload("smooth", "anything", n=100)
    assert kernel.cost(work) == Cost({}, bytes=800.0, launches=1)
    assert (kernel.refuses(work), kernel.saves(work), kernel.compiles(work)) == (None, 0.0, None)
    assert kernel.prepare("weights", work) == "weights"
    assert not kernel.is_differentiable
    with pytest.raises(NotImplementedError, match="registered without an adjoint"):
        kernel.adjoint(None)


def test_a_gradient_that_the_framework_computes_does_not_keep_it_from_learning():
    def describe(x):
        return Workload("graded", "anything", n=len(x), needs_gradient=True)

    def cost(work):  # as if the backward pass were run by the kernel
        return Cost({}, bytes=work.bytes * (1 + work.needs_gradient), launches=1)

    def slow(x):
        return [sum(x) for _ in range(200)][0]  # noqa: RUF015

    made = [
        register(Kernel("graded", "anything", "numpy", name, run, cost=cost))
        for name, run in {"slow": slow, "fast": sum}.items()
    ]
    register_operation("graded", describe)
    try:
        manager = fake_manager(mode="learn")
        assert {manager.run("graded", range(100)) for _ in range(200)} == {4950}
        assert manager.plan(describe(range(100))).algorithm == "fast"
    finally:
        unregister_operation("graded")
        for kernel in made:
            unregister(kernel)


def test_names_are_checked(smooth):
    with pytest.raises(ValueError, match=re.escape("register_operation('smooth'): there is one; unregister it first")):
        register_operation("smooth", lambda: Workload("smooth", "anything"))
    message = "no operation 'smoth': registered are smooth; introduce it by register_operation."
    for ask in (unregister_operation, fake_manager().run):
        with pytest.raises(LookupError, match=f"^{re.escape(message)}$"):
            ask("smoth")
    register_operation("kernelless", lambda: Workload("kernelless", "anything"))
    try:
        with pytest.raises(LookupError, match="no kernels for op 'kernelless'"):
            fake_manager().run("kernelless")
    finally:
        unregister_operation("kernelless")


def test_an_argument_may_have_any_name(smooth):
    kernels("smooth", "anything")[0].run = lambda **given: given
    unregister_operation("smooth")
    register_operation("smooth", lambda **given: Workload("smooth", "anything"))
    given = {"op": 1, "self": 2, "plan": 3, "operation": 4, "args": 5, "kwargs": 6, "key": 7, "result": 8}
    assert fake_manager().run("smooth", **given) == given


@pytest.mark.parametrize(
    ("described", "error", "said"),
    [
        (None, TypeError, "needs a Workload; it returned None."),
        (
            Workload("rough", "numpy"),
            ValueError,
            "needs a workload of 'smooth'; it returned rough on numpy/cpu/float32.",
        ),
    ],
)
def test_who_describes_an_operation_must_return_a_workload_of_it(smooth, described, error, said):
    unregister_operation("smooth")
    register_operation("smooth", lambda x: described)
    message = f"register_operation('smooth', describe=...): {said}"
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        fake_manager().run("smooth", 1)


def test_the_example_learns(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--quick"])
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    finally:
        unregister_operation("moving_average")
        for kernel in kernels("moving_average", "numpy"):
            unregister(kernel)
    calls = {name: int(count) for name, count in re.findall(r"^(\S+): (\d+) calls$", capsys.readouterr().out, re.M)}
    assert calls["numpy/sums"] > calls["numpy/convolution"]
    assert sum(calls.values()) == 100


@pytest.mark.parametrize("question", ["refuses", "cost", "saves", "compiles"])
@pytest.mark.parametrize("mode", ["prior", "learn"])
def test_an_exception_where_a_kernel_is_asked_something_names_the_kernel(smooth, question, mode):
    def broken(workload):
        raise KeyError("mine")

    setattr(smooth[0], question, broken)
    manager = fake_manager(mode=mode)
    note = (
        f"while asking numpy/slow for its `{question}` at smooth on anything/cpu/float64, rows=1 n=20000 width=1; "
        "to do without it: configure(disable='numpy/slow')"
    )
    for ask in (
        lambda: manager.run("smooth", X, window=WINDOW),
        lambda: manager.explain(Workload("smooth", "anything", dtype="float64", n=X.size)),
    ):
        with pytest.raises(KeyError, match="mine") as caught:
            ask()
        assert caught.value.__notes__ == [note]
