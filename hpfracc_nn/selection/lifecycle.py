"""What a fork or the end of the process does to managers: to their locks, and to what they learnt and did not save."""

import atexit
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Callable

from hpfracc_nn.forks import at_fork
from hpfracc_nn.selection.learning.learner import Learner
from hpfracc_nn.selection.learning.wisdom_file import LOCK_SECONDS, Outbox
from hpfracc_nn.selection.recorder import Recorder

FORK_SECONDS = 1.0  # seconds that a fork waits, all in all, for threads that decide


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_left = Outbox()  # what managers that are gone learnt and did not save
_enrolling = threading.Lock()
_held = threading.local()  # .locks: those that the fork of this thread has taken


def enrol(recorder: Recorder) -> None:
    """Handle forks and the end of the process for the manager of this recorder, for as long as the manager lives.

    What the manager learnt and did not save is saved later, also if the manager is garbage-collected before.
    """
    with _enrolling:
        _recorders.add(recorder)
    weakref.finalize(recorder, _orphaned, recorder.planner.learner).atexit = False
    _look_after_workers()


def _alive() -> list[Recorder]:
    with _enrolling:  # else a recorder that is made meanwhile would end the iteration with an error
        return list(_recorders)


@atexit.register
def save_all() -> None:
    """Save what was learnt before the process ends; an error of one manager does not keep the others from it."""
    deadline = time.monotonic() + LOCK_SECONDS
    with contextlib.ExitStack() as stack:
        for recorder in _alive():
            stack.callback(_save, recorder.planner.save, deadline)
        stack.callback(_save, _left.deliver, deadline)


def _save(save: Callable[[float], bool], deadline: float) -> None:
    save(max(0.0, deadline - time.monotonic()))


def _orphaned(learner: Learner) -> None:
    # It runs in the garbage collector, which must not wait for a disk: what is new is kept, the learner is not.
    _left.absorb(learner.packed())


def _before_fork() -> None:
    """Acquire the locks of all managers, so that a forked child inherits no state or import that is half done.

    A lock that is not free within `FORK_SECONDS` is left.
    """
    _held.locks = []
    deadline = time.monotonic() + FORK_SECONDS
    for lock in [recorder.planner.lock for recorder in _alive()]:
        # A lock that is not free in time belongs to a thread that computes long, or that waits for this very one.
        if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            _held.locks.append(lock)


def _after_fork_in_parent() -> None:
    while _held.locks:
        _held.locks.pop().release()


def _after_fork_in_child() -> None:
    global _enrolling
    _enrolling = threading.Lock()
    _held.locks.clear()  # new ones take their place: a thread that the child does not have may hold another
    _left.after_fork()  # the parent saves it
    for recorder in list(_recorders):
        recorder.after_fork()
    _look_after_workers()


at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


_looks_after_workers = False


def _look_after_workers() -> None:
    """Save what was learnt at the end of a child of multiprocessing too, which ends by os._exit and so skips atexit.

    multiprocessing runs finalizers instead, and clears them when a child starts. It is not imported for this: a process
    that has not imported it has no such child.
    """
    global _looks_after_workers
    util = sys.modules.get("multiprocessing.util")
    if util is not None and not _looks_after_workers:
        _looks_after_workers = True
        util.register_after_fork(save_all, _at_the_end_of_a_worker)
        _at_the_end_of_a_worker()  # of this process, where it imported this package itself


def _at_the_end_of_a_worker(_: object = None) -> None:
    process = sys.modules["multiprocessing.process"]
    if process.parent_process() is not None:
        sys.modules["multiprocessing.util"].Finalize(None, save_all, exitpriority=0)
