"""Processes that learn: `python -m tests.learning_programs NAME ARGUMENT`; each prints what it found, as JSON.

Programs of their own, because they end, fork, or must begin anew.
"""

import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path

from hpfracc_nn.selection import (
    BackendManager,
    Machine,
    Rates,
    Settings,
    Timing,
    Wisdom,
    WisdomFile,
    register,
    register_probe,
)
from tests.selection_kernels import WORK, FakeProbe, fake

KEPT: list[BackendManager] = []
TIMES = {"torch/fft": 3e-6, "torch/dense": 1e-6}
TIMING = Timing("work", "torch/fft", 1e-6, None, 1, 0.0)


def learn(directory: str) -> BackendManager:
    """Learn in 100 calls that dense is the faster one, and save nothing."""
    register_probe(FakeProbe())
    for name, factor in (("torch/fft", 1), ("torch/dense", 2)):
        register(fake(name, lambda w, factor=factor: factor * w.samples))
    manager = BackendManager(Settings(mode="learn", wisdom=directory), machine=Machine())
    call(manager)
    return manager


def call(manager: BackendManager) -> None:
    site = manager.site("test_op", "torch")
    for _ in range(100):
        plan = site.pick(0, lambda: WORK)
        if plan.due():
            manager.record(plan, TIMES[plan.kernel.name])


def timings(directory: str) -> int:
    return len(WisdomFile(Path(directory)).read().timings)


def at_exit(directory: str) -> None:
    """End as any program does: what was learnt is saved then."""
    KEPT.append(learn(directory))


def gone_at_exit(directory: str) -> None:
    """End after the manager."""
    learn(directory)
    gc.collect()


def child_at_exit(directory: str) -> int:
    """Return what a forked child that ends as any program leaves on disk of what its parent had learnt."""
    KEPT.append(learn(directory))
    child = os.fork()
    if not child:
        sys.exit()
    _, status = os.waitpid(child, 0)
    assert status == 0
    found = timings(directory)
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # the parent saves nothing either


def worker(directory: str) -> list[int]:
    """Return the samples on disk before and after a forked worker, which ends by os._exit, has learnt."""
    manager = learn(directory)
    manager.save()
    import multiprocessing  # after this package, as some do

    context = multiprocessing.get_context("fork")
    found = [samples(directory)]
    for target, given in ((call, manager), (grandchild, manager)):
        child = context.Process(target=target, args=(given,))
        child.start()
        child.join()
        assert child.exitcode == 0
        found.append(samples(directory))
    return found


def grandchild(manager: BackendManager) -> None:
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=call, args=(manager,))
    child.start()
    child.join()


def new_worker(directory: str) -> int:
    """Return the samples on disk after a forked worker has made a manager of its own, the first."""
    import multiprocessing

    child = multiprocessing.get_context("fork").Process(target=learn, args=(directory,))
    child.start()
    child.join()
    return samples(directory)


def samples(directory: str) -> int:
    return sum(timing.samples for timing in WisdomFile(Path(directory)).read().timings.values())


def fork_while_a_thread_imports(directory: str) -> bool:
    """Return whether a child that is forked while a thread loads `filelock` can save what it learnt."""
    importing, forked = threading.Event(), threading.Event()

    class Slow:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "filelock":
                importing.set()
                forked.wait(0.3)  # where the fork waits for the import it must go on

    sys.meta_path.insert(0, Slow())  # type: ignore[arg-type]
    saving = threading.Thread(target=learn(directory).save)
    saving.start()
    importing.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(0 if WisdomFile(Path(directory) / "child").merge(Wisdom.of([TIMING])) else 1)
    forked.set()
    saving.join()
    return os.waitpid(child, 0)[1] == 0


def deterministic_plans(speed: str) -> list[str]:
    """Return the plans of real kernels where torch asks for fixed ones, on a machine of made-up speed.

    `speed` has a digit for each unit of work.
    """
    import torch

    from hpfracc_nn.fractional.torch import eager  # noqa: F401  registers the kernels
    from hpfracc_nn.fractional.torch.device import TorchProbe
    from hpfracc_nn.selection import choose, default_manager

    made = dict(
        zip(("matmul", "fft", "scan", "elementwise"), (10.0 ** (9 + float(each)) for each in speed), strict=True)
    )
    TorchProbe.calibrate = lambda self, device, dtype: Rates(made, 1e9, 1e-5)  # type: ignore[method-assign]
    torch.use_deterministic_algorithms(True)
    assert default_manager().settings.mode == "learn"
    return [
        choose(
            "toeplitz",
            (rows, n),
            framework="torch",
            dtype=dtype,
            exponentials=exponentials,
            needs_gradient=gradient,
            threads=1,
        ).kernel.name
        for rows in (1, 16, 256, 4096)
        for n in (16, 64, 1024, 4096)
        for dtype in ("float32", "float64")
        for exponentials in (0, 30)
        for gradient in (False, True)
    ]


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](sys.argv[2])
    if answer is not None:
        sys.stdout.write(json.dumps(answer))
