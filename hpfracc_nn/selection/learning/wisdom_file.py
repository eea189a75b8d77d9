"""What was learnt, on disk: one JSON file for each kind of machine, shared by all processes that may write there.

A writer holds a lock, reads again, merges, and puts a new file in the place of the old one; a reader takes no lock,
because the file that it opened is whole and never changes. Nothing is kept open between calls, so a fork is safe.
"""

import contextlib
import functools
import logging
import os
import stat
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpfracc_nn.forks import at_fork
from hpfracc_nn.selection.learning.fingerprint import differing, digest, facts
from hpfracc_nn.selection.learning.wisdom import TRUSTS, OtherSchemaError, Timing, Trust, Wisdom, decode, encode

LOCK_SECONDS = 2.0
POLL_SECONDS = 0.01
DEFAULT, OFF = "default", "off"
ASIDE = ("corrupt", "foreign")  # suffixes of files that were set aside
MOST_BYTES = 8 * 2**20  # of a file that is read; `MOST_TIMINGS` with long keys take less than a tenth of it

_log = logging.getLogger("hpfracc_nn.selection")

# A child that is forked while a thread imports has half of a package, and waits for that thread for ever.
_importing = threading.Lock()
at_fork(before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release)


class ForeignError(ValueError):
    """The wisdom is of another machine, or of other versions."""


class OpenToOthersError(ValueError):
    """Other users may write the wisdom."""


# What is whole, and not for this process: at what level the log says so.
_OF_OTHERS = {ForeignError: logging.INFO, OtherSchemaError: logging.INFO, OpenToOthersError: logging.WARNING}


def default_directory() -> Path:
    """Return the default directory of wisdom, in the user's cache.

    Raises:
        FileNotFoundError: There is no home directory.
    """
    found = None if os.environ.get("HOME") == "" and not os.environ.get("XDG_CACHE_HOME") else _user_cache()
    if found is None or not found.is_absolute():
        raise FileNotFoundError("wisdom needs a home directory; name a directory in HPFRACC_NN_WISDOM.")
    return found / "hpfracc_nn" / "wisdom"


def _user_cache() -> Path | None:
    """Return the directory of the user's caches; without platformdirs that of the XDG base directory specification."""
    try:
        try:
            from platformdirs import user_cache_path  # not at the top: it may be absent
        except ModuleNotFoundError:
            said = Path(os.environ.get("XDG_CACHE_HOME", ""))
            return said if said.is_absolute() else Path.home() / ".cache"
        return user_cache_path()
    except RuntimeError:  # both raise it where the user has no home directory
        return None


@functools.cache
def _say_that_there_is_no_home(reason: str) -> None:
    _log.info("nothing that is learnt is kept: %s", reason)


class WisdomFile:
    """The wisdom file of one kind of machine.

    `read` and `merge` are for programs that compute: whatever is wrong with the disk, they say it in one line of the
    log, once, and go on without. `load`, `update`, `export` and `clear` are for people: they raise.

    Args:
        directory: Where the files of all machines lie; None is `default_directory()`. It is made when first written.
        machine: The machine's facts, as `fingerprint.facts` returns them; None is this machine.

    Examples:
        >>> file = WisdomFile("wisdom")
        >>> # no calibration where another process has done one
        >>> this_machine().restore(file.read().rates)
        >>> timing = Timing(
        ...     "total", "numpy/pairwise", forward=2e-6, backward=None, samples=10, time=1.8e9
        ... )
        >>> file.merge(Wisdom.of([timing])), len(file.read().timings)
        (True, 1)
    """

    def __init__(self, directory: Path | str | None = None, machine: Mapping[str, Any] | None = None):
        if not isinstance(directory, str | os.PathLike | None):
            raise TypeError(f"WisdomFile(directory={directory!r}): needs a path; leave it out for the user's cache.")
        if not isinstance(machine, Mapping | None):
            raise TypeError(f"WisdomFile(machine={machine!r}): needs facts by name; leave it out for this machine.")
        self.facts = dict(facts() if machine is None else machine)
        self.path = Path(default_directory() if directory is None else directory) / f"{digest(self.facts)}.json"
        self._said: set[str] = set()

    def read(self) -> Wisdom:
        """Return the wisdom in the file; it is empty where there is no file, or none that can be used.

        A damaged file is renamed to `.corrupt`. No exception but an interrupt reaches the caller: it catches OSError
        and the ValueError of a file that is no wisdom.
        """
        try:
            return self._load_own()
        except FileNotFoundError:
            return Wisdom()
        except tuple(_OF_OTHERS) as error:
            self._say(_OF_OTHERS[type(error)], "ignored", error)
        except OSError as error:
            self._say(logging.WARNING, "not read", error)
        except ValueError as error:
            self._set_damaged_aside(error)
        return Wisdom()

    def merge(self, wisdom: Wisdom, *, seconds: float | None = None) -> bool:
        """Merge `wisdom` into the file, and return whether it is there now.

        Hand over what was learnt since the last merge that returned True, not what was read: samples are counted.
        After False keep the wisdom, and try again later: somebody held the lock, or the disk is full or read-only.
        OSError is caught and nothing else; an interrupt passes, and leaves the old file or the new one.

        Args:
            wisdom: The wisdom to add.
            seconds: How long to wait for another writer; two by default.
        """
        if not wisdom:
            return True
        try:
            self.update(wisdom, LOCK_SECONDS if seconds is None else seconds)
        except TimeoutError as error:
            self._say(logging.INFO, "not written yet", error)
        except OSError as error:
            self._say(logging.WARNING, "not written", error)
        else:
            return True
        return False

    def update(self, wisdom: Wisdom, seconds: float = LOCK_SECONDS) -> None:
        """Merge `wisdom` into the file.

        A file that cannot be used is renamed first: to `.corrupt` where it is damaged, to `.foreign` where it is whole,
        or where others may write it.

        Args:
            wisdom: The wisdom to add.
            seconds: How long to wait for another writer.

        Raises:
            OSError: The file cannot be written; a TimeoutError where the lock was held longer.
        """
        if not self.path.is_absolute() and self.path.parts[0] == "~":
            raise FileNotFoundError(f"{self.path}: needs a home directory; name a directory in HPFRACC_NN_WISDOM.")
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked(seconds):
            before = Wisdom()
            try:
                before = self._load_own()
            except FileNotFoundError:
                pass  # there is none yet
            except tuple(_OF_OTHERS) as error:
                self._set_aside("foreign", _OF_OTHERS[type(error)], error)
            except ValueError as error:
                self._set_aside("corrupt", logging.WARNING, error)
            self._sweep()
            _write(self.path, encode(before.merged(wisdom), self.facts))

    def load(self, path: Path | str, trust: Trust = "own") -> Wisdom:
        """Return the wisdom in any file.

        Args:
            path: The file.
            trust: "own" takes it for times of this machine; "prior" accepts any machine's, as times to start from.

        Raises:
            OSError: The file cannot be read.
            ForeignError: The file is of another machine, and the trust is "own".
            OtherSchemaError: The file is of another version of the format.
            ValueError: The file is damaged or no wisdom, or there is no such trust.
        """
        if trust not in TRUSTS:
            raise ValueError(f"load(trust={trust!r}): needs one of {', '.join(TRUSTS)}.")
        wisdom, machine = inspect(path)
        if trust == "prior":
            return wisdom.as_prior()
        if digest(machine) != digest(self.facts):
            others = ", ".join(differing(machine, self.facts))
            raise ForeignError(
                f"{path}: needs wisdom of a machine like this one, {others} differ; import it as a prior."
            )
        return wisdom

    def export(self, path: Path | str) -> Wisdom:
        """Copy what the file holds to `path`, and return it.

        A link is followed, and what is no regular file, such as /dev/stdout, is written into.

        Raises:
            OSError: There is no file yet, or `path` cannot be written.
            ValueError: The file cannot be used.
        """
        wisdom = self._load_own()
        data = encode(wisdom, self.facts)
        if os.path.exists(path) and not os.path.isfile(path):
            Path(path).write_bytes(data)  # not to where it leads: a pipe that is /dev/stdout has no path
        else:
            _write(Path(os.path.realpath(path)), data)
        return wisdom

    def clear(self, *, others: bool = False) -> list[Path]:
        """Remove the file and those that were set aside, and return the paths of those that there were.

        Args:
            others: Also those of all other machines and versions in the directory.

        Raises:
            OSError: A file cannot be removed; a TimeoutError where the lock was held too long.
        """
        stem = "[0-9a-f]" * len(self.path.stem) if others else self.path.stem
        found = sorted(path for end in ("json", *ASIDE) for path in self.path.parent.glob(f"{stem}.{end}"))
        if found:
            with self._locked(LOCK_SECONDS):
                self._sweep()
                for path in found:
                    path.unlink(missing_ok=True)
        return found

    @classmethod
    def at(cls, where: str) -> "WisdomFile | None":
        """Return the file that a setting names: "default", "off" (None) or a directory.

        None too where there is no home directory for the default one, which is logged once.
        """
        if where == OFF:
            return None
        try:
            return cls(None if where == DEFAULT else where)
        except FileNotFoundError as error:
            _say_that_there_is_no_home(str(error))
            return None

    def _load_own(self) -> Wisdom:
        """Return the wisdom in this file, as `load` does; raise if another user may write the file."""
        if os.name == "posix":
            status = self.path.stat()
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or status.st_uid not in (0, os.geteuid()):
                raise OpenToOthersError(f"{self.path}: needs to be one user's, and others may write it; chmod go-w it.")
        return self.load(self.path)

    @contextlib.contextmanager
    def _locked(self, seconds: float) -> Iterator[None]:
        with _importing:
            from filelock import FileLock  # not at the top: it watches every fork and every audit event

        # Where the file system has no flock, filelock warns and takes a file for the lock. As an error, the warning
        # would leave that file behind, and nobody could lock again.
        warnings.filterwarnings("ignore", "flock not supported on this filesystem", UserWarning)
        lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        try:
            lock.acquire(timeout=seconds, poll_interval=POLL_SECONDS)
            yield
        except NotImplementedError as error:  # what older filelocks say where the file system has no locks
            raise OSError(f"{self.path}: {error}") from None
        finally:
            try:
                lock.release(force=True)
            finally:
                lock.release(force=True)  # does nothing unless an interrupt ended the first one half way

    def _set_damaged_aside(self, error: ValueError) -> None:
        """Rename the damaged file, if a second look under the lock still finds it damaged.

        A writer may have replaced it since it was first read.

        Args:
            error: The error of the first look; logged if the file cannot be renamed.
        """
        try:
            with self._locked(0.0):
                try:
                    self._load_own()
                except (FileNotFoundError, *_OF_OTHERS):
                    pass  # another process was faster
                except ValueError as still:
                    self._set_aside("corrupt", logging.WARNING, still)
        except OSError as why:
            self._say(logging.WARNING, "ignored", error)
            _log.debug("wisdom not renamed: %s", why)  # the next writer will

    def _set_aside(self, end: str, level: int, error: ValueError) -> None:
        os.replace(self.path, self.path.with_suffix(f".{end}"))
        self._say(level, f"ignored, and renamed to .{end}", error)

    def _sweep(self) -> None:
        """Remove the temporary files of writers that were killed; the caller holds the lock, so no other writes now."""
        for left in self.path.parent.glob(f"{self.path.name}.*.tmp"):
            left.unlink(missing_ok=True)

    def _say(self, level: int, what: str, error: Exception) -> None:
        """Log what became of the file (`what`, such as "ignored") because of an error, once for each `what`.

        A process that saves every minute must not fill the log.
        """
        if what not in self._said:
            self._said.add(what)
            _log.log(level, "wisdom in %s %s: %s", self.path.parent, what, error)


def inspect(path: Path | str) -> tuple[Wisdom, dict[str, Any]]:
    """Return the wisdom in a file of any machine, and that machine's facts.

    Raises:
        OSError: The file cannot be read.
        OtherSchemaError: The file is of another version of the format.
        ValueError: The file is damaged or no wisdom.
    """
    try:
        return decode(_read(path))
    except OtherSchemaError as error:
        raise OtherSchemaError(f"{path}: {error}.") from None
    except ValueError as error:
        raise ValueError(f"{path}: needs a whole wisdom file; {error}.") from None


def _read(path: Path | str) -> bytes:
    """Return the bytes of a regular file of no more than `MOST_BYTES`; a pipe would block, a device has no end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("it is no regular file")
        parts = bytearray()
        while part := os.read(handle, MOST_BYTES + 1 - len(parts)):
            parts += part
    finally:
        os.close(handle)
    if len(parts) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES} bytes")
    return bytes(parts)


def _write(path: Path, data: bytes) -> None:
    """Replace the file at `path` with one that holds `data`, atomically, readable by its owner only."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):  # it has become `path`
            os.unlink(name)
    if hasattr(os, "O_DIRECTORY"):  # else a crash may bring the old name back
        with contextlib.suppress(OSError):  # file systems that cannot
            handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


class Outbox:
    """Wisdom that waits to be merged into its files.

    Threads may share it: whoever puts something in waits for nobody, and one at a time delivers.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[WisdomFile, Wisdom]] = deque()
        self._delivering = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, file: WisdomFile, wisdom: Wisdom) -> None:
        """Add `wisdom` to what waits; `deliver` merges it into `file`."""
        self._waiting.append((file, wisdom))

    def absorb(self, other: "Outbox") -> None:
        """Take over the wisdom of another outbox, merged by file unless a thread is delivering."""
        with contextlib.suppress(IndexError):  # until it is empty; a thread may be delivering from it meanwhile
            while True:
                self._waiting.append(other._waiting.popleft())
        if self._delivering.acquire(blocking=False):
            try:
                self._waiting.extend(self._drain().values())
            finally:
                self._delivering.release()

    def deliver(self, seconds: float) -> bool:
        """Merge what waits into its files; return True where there was some, and all is written. The rest is kept.

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
        """Drop the waiting timings that `matches` accepts."""
        for _ in range(len(self._waiting)):
            file, wisdom = self._waiting.popleft()
            kept = Wisdom.of((each for each in wisdom.timings.values() if not matches(each)), wisdom.rates)
            self._waiting.append((file, kept))

    def after_fork(self) -> None:
        """Drop what waits, in a child process: a thread of the parent delivers it. Renew the lock."""
        self._waiting.clear()
        self._delivering = threading.Lock()

    def _delivered(self, deadline: float) -> bool:
        left = self._drain()
        had_some = bool(left)
        try:
            for path, (file, wisdom) in list(left.items()):
                if file.merge(wisdom, seconds=max(0.0, deadline - time.monotonic())):
                    del left[path]
        finally:
            self._waiting.extend(left.values())
        return had_some and not left

    def _drain(self) -> dict[Path, tuple[WisdomFile, Wisdom]]:
        """Remove all that waits to be written; return it merged by path, with the file that it goes to."""
        found: dict[Path, tuple[WisdomFile, Wisdom]] = {}
        while self._waiting:
            file, wisdom = self._waiting.popleft()
            known = found.get(file.path, (file, Wisdom()))[1]
            found[file.path] = file, known.merged(wisdom)
        return found
