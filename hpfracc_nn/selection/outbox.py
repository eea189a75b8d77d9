"""What was learnt and is on its way to the wisdom files: nothing is lost because a file cannot be written now."""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hpfracc_nn.selection.wisdom import Timing, Wisdom
from hpfracc_nn.selection.wisdom_file import WisdomFile


class Outbox:
    """Wisdom with the file that it is for, until it is there.

    Threads may share it: whoever puts something in waits for nobody, and one at a time delivers.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[WisdomFile, Wisdom]] = deque()
        self._delivering = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, file: WisdomFile, wisdom: Wisdom) -> None:
        """Keep `wisdom` until it is in `file`."""
        self._waiting.append((file, wisdom))

    def absorb(self, other: "Outbox") -> None:
        """Take over what another one holds, as one value for each file unless somebody is delivering."""
        with contextlib.suppress(IndexError):  # until it is empty; a thread may be delivering from it meanwhile
            while True:
                self._waiting.append(other._waiting.popleft())
        if self._delivering.acquire(blocking=False):
            try:
                self._waiting.extend(self._taken().values())
            finally:
                self._delivering.release()

    def deliver(self, seconds: float) -> bool:
        """Merge all of it into its files, and return whether there was some and it is there; the rest is kept.

        Args:
            seconds: How long to wait, all in all, for other threads and processes that write.
        """
        deadline = time.monotonic() + seconds
        if not self._delivering.acquire(timeout=seconds):
            return False
        try:
            return self._delivered(deadline)
        finally:
            self._delivering.release()

    def drop(self, matches: Callable[[Timing], bool]) -> None:
        """Do not deliver the timings that match."""
        for _ in range(len(self._waiting)):
            file, wisdom = self._waiting.popleft()
            kept = Wisdom.of((each for each in wisdom.timings.values() if not matches(each)), wisdom.rates)
            self._waiting.append((file, kept))

    def after_fork(self) -> None:
        """Leave all of it to the parent process, a thread of which may be delivering."""
        self._waiting.clear()
        self._delivering = threading.Lock()

    def _delivered(self, deadline: float) -> bool:
        left = self._taken()
        had_some = bool(left)
        try:
            for path, (file, wisdom) in list(left.items()):
                if file.merge(wisdom, seconds=max(0.0, deadline - time.monotonic())):
                    del left[path]
        finally:
            self._waiting.extend(left.values())
        return had_some and not left

    def _taken(self) -> dict[Path, tuple[WisdomFile, Wisdom]]:
        """Take all out, as one value for each file."""
        found: dict[Path, tuple[WisdomFile, Wisdom]] = {}
        while self._waiting:
            file, wisdom = self._waiting.popleft()
            known = found.get(file.path, (file, Wisdom()))[1]
            found[file.path] = file, known.merged(wisdom)
        return found
