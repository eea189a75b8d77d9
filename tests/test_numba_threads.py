"""Threads change nothing about a result, and neither forks nor errors leave a thread or a caller waiting."""

import importlib.util
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

if importlib.util.find_spec("numba") is None:
    pytest.skip("needs Numba", allow_module_level=True)

import hpfracc_nn as fnn
from hpfracc_nn.fractional.numba import threads
from tests.numba_cases import CASES, Operator, random
from tests.test_numba_process import run
from tests.torch_cases import KERNELS, manager_for

MANAGER = manager_for(next(kernel for kernel in KERNELS if kernel.name == "numba/recurrence"))
SHAPES = [(70, 1, 2100, 1), (24, 3, 2100, 1), (9, 1, 130, 130)]  # more than two threads' worth of samples


@pytest.fixture(params=[1, 2])
def allowed(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def gradients(x: Tensor, dim: int = -1) -> tuple[Tensor, ...]:
    """Return the derivative of x with its gradient, and the order's."""
    alpha = torch.tensor(0.4, dtype=x.dtype, requires_grad=True)
    leaf = x.clone().requires_grad_()
    fixed = fnn.derivative(leaf, fnn.Caputo(0.4), dim=dim, manager=MANAGER)
    learned = fnn.derivative(leaf, fnn.Caputo(alpha, bounds=(0, 1)), dim=dim, manager=MANAGER)
    return (fixed.detach(), *torch.autograd.grad(fixed.square().sum() + learned.square().sum(), (leaf, alpha)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_threads_compute_the_bits_of_one(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    before, found = torch.get_num_threads(), []
    x, g = random(shape, dtype), random(shape, dtype, seed=1)
    operator = Operator(CASES[-1], shape[2], shape[1], dtype)
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append((operator.run(x), operator.adjoint(g)))
    torch.set_num_threads(before)
    (one, two) = found
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


@pytest.mark.usefixtures("allowed")
def test_callers_on_many_threads_get_what_one_gets() -> None:
    inputs = [(random((70, 2100), torch.float32, seed), -1) for seed in range(3)]
    inputs += [(random((20, 64, 131), torch.float32, seed), 1) for seed in range(3)]
    inputs += [(random((3, 700), torch.float64, seed), -1) for seed in range(2)]
    alone = [gradients(*given) for given in inputs]
    together = threading.Barrier(len(inputs))

    def call(given: tuple[Tensor, int]) -> list[tuple[Tensor, ...]]:
        together.wait()
        return [gradients(*given) for _ in range(3)]

    with ThreadPoolExecutor(len(inputs)) as pool:
        for right, found in zip(alone, pool.map(call, inputs), strict=True):
            for again in found:
                assert all(torch.equal(a, b) for a, b in zip(right, again, strict=True))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("parts", [1, 2, 5, 20])
def test_ranges_make_up_the_whole(count: int, parts: int) -> None:
    found: list[tuple[int, int, int]] = []
    threads.spread(lambda *part: found.append(part), count, parts)
    found.sort()
    assert [part for part, _, _ in found] == list(range(parts))
    assert [at for _, begin, end in found for at in range(begin, end)] == list(range(count))


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_an_error_is_raised_when_all_parts_have_ended(failing: int) -> None:
    ended: list[int] = []

    def work(part: int, begin: int, end: int) -> None:
        if part == failing:
            raise ZeroDivisionError(str(part))
        threading.Event().wait(0.01)
        ended.append(part)

    with pytest.raises(ZeroDivisionError, match=str(failing)):
        threads.spread(work, 8, 4)
    assert sorted(ended) == [part for part in range(4) if part != failing]


def test_a_pool_that_takes_no_more_work_leaves_it_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ThreadPoolExecutor(1)
    ended.shutdown()
    monkeypatch.setattr(threads, "_pool", ended)
    found: list[int] = []
    threads.spread(lambda part, begin, end: found.append(part), 8, 4)
    assert found == [0, 1, 2, 3]


def test_a_pool_that_is_busy_leaves_its_part_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    with ThreadPoolExecutor(1) as busy:
        busy.submit(free.wait)
        monkeypatch.setattr(threads, "_pool", busy)
        found: list[int] = []
        threads.spread(lambda part, begin, end: found.append(part), 8, 2)
        free.set()
    assert found == [0, 1]


# Torch's own threads, OpenMP's, do not outlive a fork: only the derivative is allowed two.
FORKED = """
import os, torch, warnings
import hpfracc_nn as fnn
from hpfracc_nn.selection import BackendManager, Settings
manager = BackendManager(Settings(force_backend="numba", calibration="shipped", mode="prior"))
torch.set_num_threads(1)
x = torch.arange(64 * 2100.0).reshape(64, 2100).sin()
def work():
    torch.set_num_threads(2)
    y = fnn.derivative(x, fnn.Caputo(0.5), manager=manager)
    torch.set_num_threads(1)
    return y
right = work()
"""
LOADER = """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return work()
if __name__ == "__main__":
    loader = torch.utils.data.DataLoader(Data(), 2, num_workers=2, multiprocessing_context="fork")
    assert all(torch.equal(y, right) for batch in loader for y in batch)
    assert torch.equal(work(), right)
    print("done")
"""
CHILD = """
for _ in range(2):
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(work(), right) and torch.equal(work(), right) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(work(), right)
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.slow
@pytest.mark.parametrize("program", [LOADER, CHILD], ids=["loader", "fork"])
def test_a_child_of_a_process_that_has_threads_gets_the_same(program: str) -> None:
    assert run("-W", "ignore", "-c", FORKED + program, timeout=60).endswith("done\n")


LATE = """
import threading, time
def late():
    threading.main_thread().join()
    assert torch.equal(work(), right)
    print("done")
threading.Thread(target=late).start()
"""


@pytest.mark.slow
def test_a_thread_that_outlives_the_main_one_still_computes() -> None:
    assert run("-c", FORKED + LATE, timeout=60).endswith("done\n")
