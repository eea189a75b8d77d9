"""Writers of one wisdom file that get in each other's way, are killed, interrupted or short of room.

A program of its own, because it forks and dies so: `python -m tests.wisdom_writers NAME DIRECTORY`.
"""

import atexit
import contextlib
import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from filelock import FileLock

from hpfracc_nn.selection import Timing, Wisdom, WisdomFile
from hpfracc_nn.selection.learning.wisdom_file import inspect

MACHINE = {"cpu": "abacus", "cores": 2}
PROCESSES, WRITES = 8, 50
SYSTEM_CALLS = (("fsync", "before"), ("fsync", "after"), ("replace", "before"), ("replace", "after"))


def one(key: str, arm: str = "torch/fft") -> Wisdom:
    return Wisdom.of([Timing(key, arm, 1e-3, None, 1, time.time())])


def write_all(file: WisdomFile, name: str, count: int) -> None:
    """Write `count` timings one by one, each until it is there."""
    for number in range(count):
        while not file.merge(one(f"{name}/{number}")):
            pass


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a fork of this process, and return its number."""
    child = os.fork()
    if not child:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def storm(directory: Path, writes: int = WRITES) -> int:
    """Return how many timings are there after eight processes have written `writes` each, at once."""
    file = WisdomFile(directory, MACHINE)
    children = [in_child(partial(write_all, file, str(number), writes)) for number in range(PROCESSES)]
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, status
    return len(inspect(file.path)[0].timings)


@contextlib.contextmanager
def not_locked(self: WisdomFile, seconds: float) -> Iterator[None]:
    yield


def storm_without_lock(directory: Path) -> int:
    WisdomFile._locked = not_locked  # type: ignore[method-assign]
    return storm(directory, writes=20)


def threads(directory: Path) -> int:
    """Return the same of four threads that share one WisdomFile, and fork a process that writes, too."""
    file = WisdomFile(directory, MACHINE)
    workers = [threading.Thread(target=write_all, args=(file, str(number), 20)) for number in range(4)]
    for worker in workers:
        worker.start()
    children = [in_child(partial(write_all, file, f"child{number}", 5)) for number in range(4)]
    for worker in workers:
        worker.join()
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    return len(inspect(file.path)[0].timings)


def killed_at_random(directory: Path, rounds: int = 20) -> int:
    """Kill writers at random moments; return how many of their timings were there, after checking that all were."""
    file, generator = WisdomFile(directory, MACHINE), random.Random(0)
    file.update(Wisdom.of(Timing(f"old/{number}", "torch/fft", 1e-3, None, 1, 0.0) for number in range(100)))
    written = 0
    for round_ in range(rounds):
        out, into = os.pipe()

        def work(round_: int = round_, into: int = into) -> None:
            for number in range(10_000):
                file.update(one(f"{round_}/{number}"))
                os.write(into, b".")

        child = in_child(work)
        os.close(into)
        time.sleep(generator.uniform(0.0, 0.04))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with open(out, "rb") as said:
            claimed = len(said.read())
        found = sum(key.startswith(f"{round_}/") for key, _ in inspect(file.path)[0].timings)
        assert claimed <= found <= claimed + 1, (claimed, found)
        written += claimed
    finish(file)
    return written


def killed_at_each_step(directory: Path) -> list[str]:
    """Kill a writer around each system call that matters; return what the file held after each."""
    held = []
    for name, moment in SYSTEM_CALLS:
        file = WisdomFile(directory / f"{name}-{moment}", MACHINE)
        file.update(one("old"))

        def work(name: str = name, moment: str = moment, file: WisdomFile = file) -> None:
            call = getattr(os, name)

            def last(*arguments: object) -> None:
                if moment == "after":
                    call(*arguments)
                os.kill(os.getpid(), signal.SIGKILL)

            setattr(os, name, last)
            file.update(one("new"))

        os.waitpid(in_child(work), 0)
        held.append(" ".join(sorted(key for key, _ in inspect(file.path)[0].timings)))
        finish(file)
    return held


def interrupted_at_random(directory: Path, rounds: int = 100) -> int:
    """Interrupt merges at random moments; return how many were, after checking that each left file and lock whole."""
    file, generator = WisdomFile(directory, MACHINE), random.Random(0)
    file.update(one("old"))
    interrupted = 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for number in range(rounds):
        try:
            signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 3e-3))
            file.merge(one(str(number)))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        inspect(file.path)
        with FileLock(file.path.with_suffix(".lock")).acquire(timeout=0):
            pass
    finish(file)
    return interrupted


def no_room(directory: Path) -> list[bool]:
    """Return what merges say when the file may not grow, and then when it may."""
    file = WisdomFile(directory, MACHINE)
    file.update(one("old"))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.path.stat().st_size, limits[1]))
    said = [file.merge(one("new")), file.merge(one("new"))]
    inspect(file.path)
    assert not leftovers(file)
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return [*said, file.merge(one("new"))]


def read_only(directory: Path) -> list[bool]:
    """Return the same where the directory, and then its parent, cannot be written by this user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        file = WisdomFile(made, MACHINE)
        file.update(one("old"))
        os.chmod(file.path, 0o644)
        os.chmod(made, 0o555)
        if os.geteuid() == 0:
            os.seteuid(65534)
        said = [file.merge(one("new")), WisdomFile(Path(made) / "below", MACHINE).merge(one("new"))]
        assert len(file.read().timings) == 1
        if os.getuid() == 0:
            os.seteuid(0)
        os.chmod(made, 0o755)
    return said


def at_exit(directory: Path) -> None:
    atexit.register(WisdomFile(directory, MACHINE).merge, one("last"))


def finish(file: WisdomFile) -> None:
    """Write once more: the lock is free, and what killed writers left is swept away."""
    file.update(one("end"))
    assert not leftovers(file), leftovers(file)


def leftovers(file: WisdomFile) -> list[str]:
    return [path.name for path in file.path.parent.iterdir() if path.suffix == ".tmp"]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
