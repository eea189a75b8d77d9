"""One manager that learns in threads, forked processes, compiled models and processes one after the other."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import hpfracc_nn as fnn
from hpfracc_nn.selection import BackendManager, Settings, WisdomFile, lifecycle
from hpfracc_nn.selection import manager as managers
from hpfracc_nn.selection.recorder import Recorder
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import WORK, FakeProbe, fake, fake_manager, registering

ROOT = Path(__file__).parents[1]
LEARNING = Settings(mode="learn", wisdom="off", calibration="shipped", disabled=frozenset({"numba", "xla"}))
# Seconds of each way, made up, and longer than the estimates, so that all are tried at the sizes below.
TIMES = {"torch/dense": 4e-4, "torch/fft": 2e-4, "torch/chunked_scan": 1e-4}
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let real kernels take made-up times."""
    record = Recorder.record

    def recorded(self: Recorder, plan: Any, seconds: float, direction: Any = "forward", **given: Any) -> None:
        record(self, plan, TIMES[plan.kernel.name], direction, **{**given, "keep": True})

    monkeypatch.setattr(Recorder, "record", recorded)


def program(name: str, argument: object) -> Any:
    command = [sys.executable, "-m", "tests.learning_programs", name, str(argument)]
    settings = {"HPFRACC_NN_SELECTION": "learn", "HPFRACC_NN_WISDOM": "off", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **settings}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


# Processes


@pytest.mark.parametrize("manager", ["at_exit", "gone_at_exit"])
def test_what_was_learnt_is_saved_when_the_process_ends(manager: str, tmp_path: Path) -> None:
    program(manager, tmp_path)
    assert {arm for _, arm in WisdomFile(tmp_path).read().timings} == {"torch/fft", "torch/dense"}


@forks
def test_a_forked_process_does_not_save_what_its_parent_learnt(tmp_path: Path) -> None:
    assert program("child_at_exit", tmp_path) == 0


@forks
def test_a_worker_of_multiprocessing_saves_what_it_learnt_itself(tmp_path: Path) -> None:
    parent, child, grandchild = program("worker", tmp_path)
    assert 0 < parent < child < grandchild
    assert program("new_worker", tmp_path / "new") > 0


@forks
def test_a_child_that_is_forked_while_a_thread_imports_has_the_whole_package(tmp_path: Path) -> None:
    assert program("fork_while_a_thread_imports", tmp_path)


def test_a_fork_waits_for_threads_that_decide_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = fake_manager()

    def is_free() -> bool:
        with ThreadPoolExecutor() as other:
            return other.submit(tried).result()

    def tried() -> bool:
        is_free = manager.lock.acquire(blocking=False)
        if is_free:
            manager.lock.release()
        return is_free

    lifecycle._before_fork()
    assert not is_free()  # whoever decides has to wait now, and nobody is half way
    lifecycle._after_fork_in_parent()
    monkeypatch.setattr(lifecycle, "FORK_SECONDS", 0.01)
    with in_thread_held(manager.lock):
        lifecycle._before_fork()
        lifecycle._after_fork_in_parent()
    assert is_free()


@pytest.mark.slow
def test_five_processes_of_different_speed_have_the_same_deterministic_plans() -> None:
    tables = [program("deterministic_plans", speed) for speed in ("0000", "3000", "0300", "0030", "0333")]
    assert all(table == tables[0] for table in tables)
    assert len(set(tables[0])) > 1


# Threads


def test_eight_threads_learn_at_one_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_probes, "torch", FakeProbe())
    works, times = [replace(WORK, n=100 * n) for n in range(1, 4)], {"torch/fft": 3e-5, "torch/dense": 1e-5}
    with registering() as add:
        add(fake("torch/fft"), fake("torch/dense", lambda w: 2 * w.samples))
        manager = fake_manager(mode="learn")
        site, count, done = manager.site("test_op", "torch"), 2000, []

        def hammer(thread: int) -> None:
            for call in range(count):
                work = works[(call + thread) % len(works)]
                plan = site.pick(work.n, lambda work=work: work)
                assert plan.workload is work
                if plan.due():
                    manager.record(plan, times[plan.kernel.name])
                if call % 500 == 499:
                    manager.counters()
                    manager.report()
            done.append(thread)

        threads = [threading.Thread(target=hammer, args=(thread,)) for thread in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert sorted(done) == list(range(8))
        # An update may be lost between threads, none invented; a switch falls on one call in thousands.
        assert 0.99 * 8 * count <= manager.counters()["forward"] <= 8 * count
        assert {plan.kernel.name for plan in site.plans()[: len(works)]} == {"torch/dense"}


def test_a_known_key_that_learns_waits_for_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_probes, "torch", FakeProbe())
    with registering() as add:
        add(fake("torch/fft"), fake("torch/dense", lambda w: 2 * w.samples))
        manager = fake_manager(mode="learn")
        site = manager.site("test_op", "torch")
        for _ in range(50):
            plan = site.pick(0, lambda: WORK)
            if plan.due():
                manager.record(plan, 1e-5)
        assert plan.usage.left > 1  # the next call decides nothing
        waiting = threading.Thread(target=site.pick, args=(0, lambda: WORK), daemon=True)
        with manager.lock:
            waiting.start()
            waiting.join(10)
            assert not waiting.is_alive()


# Forks


class Derived(Dataset):
    """Samples that a worker differentiates with the process-wide manager, and what that chose."""

    def __init__(self, manager: BackendManager):
        self.manager, self.parent = manager, os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, list[str], bool]:
        y = fnn.derivative(torch.arange(32.0).expand(16, 32), fnn.Caputo(0.5), manager=self.manager)
        (site,) = self.manager.sites()
        plan = site.plans()[0]
        return y, [plan.kernel.name, plan.reason], os.getpid() != self.parent and self.manager.lock.acquire(timeout=1)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the workers of a loader: times of another number of threads are another matter."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@forks
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")
def test_workers_of_a_data_loader_know_what_their_parent_learnt(
    made_up: None, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "FORK_SECONDS", 0.01)
    manager = BackendManager(LEARNING)
    x = torch.arange(32.0).expand(16, 32)
    for _ in range(100):
        expected = fnn.derivative(x, fnn.Caputo(0.5), manager=manager)
    loader = DataLoader(Derived(manager), batch_size=None, num_workers=2, multiprocessing_context="fork")
    with in_thread_held(manager.lock):  # by a thread that the workers do not have
        found = list(loader)
    assert len(found) == 8
    for y, plan, locks in found:
        # All kernels agree to the dtype's tolerance, and the worker may try another one.
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        assert plan == ["torch/chunked_scan", "measured"]
        assert locks


class in_thread_held:
    """Another thread holds the lock inside."""

    def __init__(self, lock: Any):
        self.lock, self.is_held, self.is_over = lock, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold)

    def hold(self) -> None:
        with self.lock:
            self.is_held.set()
            self.is_over.wait()

    def __enter__(self) -> None:
        self.thread.start()
        self.is_held.wait()

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()


# Keys


def test_threads_dtype_and_gradient_have_plans_of_their_own() -> None:
    manager, threads = BackendManager(LEARNING), torch.get_num_threads()
    layer, learned = (fnn.FractionalLayer(0.5, learn_alpha=learns, manager=manager) for learns in (False, True))

    def workload(module: nn.Module, x: Tensor) -> Any:
        before = {id(plan): plan.forwards for site in manager.sites() for plan in site.plans()}
        module(x)
        (ran,) = [plan for site in manager.sites() for plan in site.plans() if plan.forwards > before.get(id(plan), 0)]
        return ran.workload

    x = torch.randn(16, 64)
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            for dtype in (torch.float32, torch.float64):
                for module in (layer, learned):
                    for needs in (False, True):
                        data = x.detach().clone().to(dtype).requires_grad_(needs)
                        for enabled in (True, False):
                            with torch.set_grad_enabled(enabled):
                                found = workload(module, data)
                            assert found.threads == count
                            assert found.dtype == str(dtype).removeprefix("torch.")
                            assert found.needs_gradient == (needs and enabled)
                            assert found.learns_weights == (module is learned and enabled)
                            assert found.device == "cpu"
    finally:
        torch.set_num_threads(threads)


# Compiled


@pytest.mark.filterwarnings("ignore")  # what the compiler tells about its own parts
def test_a_model_compiles_once_while_its_kernels_are_tried(monkeypatch: pytest.MonkeyPatch, made_up: None) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    manager = BackendManager(LEARNING)
    monkeypatch.setattr(managers, "_process_wide", manager)
    model = nn.Sequential(nn.Linear(32, 32), fnn.FractionalLayer(0.4), nn.Linear(32, 1))
    torch._dynamo.reset()
    with torch.compiler.config.patch(force_disable_caches=True):  # type: ignore[attr-defined]
        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for _ in range(50):
            compiled(torch.randn(16, 32)).sum().backward()
    torch._dynamo.reset()
    assert counter.frame_count == 1
    counted = manager.counters()
    assert (counted["forward"], counted["backward"]) == (50, 50)
    assert len(counted["picks"]) > 1
    (site,) = [site for site in manager.sites() if site.plans()]
    assert (site.plans()[0].kernel.name, site.plans()[0].reason) == ("torch/chunked_scan", "measured")
