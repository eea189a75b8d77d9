"""How much memory is free, how much of it a call may take, and how many rows of a workload fit into that.

Reading how much is free takes 0.1 to 0.3 ms on the host: a plan may be made so slowly, but not picked.

A control group (cgroup) is the set of processes that share a memory limit under Linux; groups are nested.
"""

import functools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpfracc_nn.selection.registry import probe
from hpfracc_nn.selection.settings import Settings, amount
from hpfracc_nn.selection.workload import is_host

SHARE = 0.8  # of what is free, where nothing was said: allocators round up, and others allocate as well
SMALL = 1 / 16  # of what was free when it was last read: less is not worth another reading
MOST_ANSWERS = 256  # calls that one reading serves
OLDEST = 1.0  # seconds that one reading serves
PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")

# Limits, usage and, in memory.stat, what of the usage is a cache of files that the kernel gives up first.
_V2 = (("memory.max", "memory.high"), "memory.current", "inactive_file")
_UNLIMITED = 1 << 60  # version 1 writes the largest number of pages
_V1 = (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def host_free(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that this process can still get on the host, None where the system does not say.

    That is the RAM which Linux calls available, or what is left under the limits of the process's control group and
    of the groups around it, whichever is less. Elsewhere it is the pages that the system calls available.

    Args:
        proc: Where procfs is mounted.
        cgroup: Where control groups are mounted, version 2 or, in a folder `memory`, version 1.
    """
    rooms = [room for room in (_available(proc), *_group_rooms(proc, cgroup)) if room is not None]
    return min(rooms) if rooms else _system_pages()


def free(framework: str, device: str) -> int | None:
    """Return the bytes that can still be allocated on `device`, None where it cannot be told.

    Raises:
        LookupError: The framework has no probe, and the device is not the host.
    """
    return host_free() if is_host(device) else probe(framework).free_memory(device)


def limit(framework: str, device: str, settings: Settings) -> int | None:
    """Return the bytes that one call may take on `device` now, beyond what is allocated; None where there is no limit.

    The settings say the limit, by default `SHARE` of what is free; it is never more than that. A limit in bytes also
    holds where nobody knows what is free; a fraction then is no limit.

    Raises:
        LookupError: The framework has no probe, and the device is not the host.
    """
    return allowed(free(framework, device), device, settings)


def allowed(room: int | None, device: str, settings: Settings) -> int | None:
    """Return the limit in bytes of one call on `device`, where `room` bytes are free; None where there is no limit."""
    name = setting_of(device)
    said = getattr(settings, name)
    return limited(SHARE if said is None else amount(name, said), room)


def setting_of(device: str) -> str:
    """Return the name of the setting that limits calls on `device`."""
    return "memory_limit" if is_host(device) else "gpu_memory_limit"


def limited(most: int | float, room: int | None) -> int | None:
    """Return a limit in bytes: an int `most`, or a float `most` as a fraction of the `room` bytes that are free.

    It is at most `room`. Where `room` is None, not known, a fraction gives None, no limit.
    """
    if isinstance(most, float):
        return None if room is None else int(most * room)
    return most if room is None else min(most, room)


def chunks(rows: int, bytes_per_row: float, limit: float | None, *, fixed: float = 0.0) -> int:
    """Return how many rows at a time keep within `limit`: `rows` where all do, 0 where not even one does.

    There are as few chunks as possible, and they are no larger than so few need, which keeps the last one from being
    a small rest: of nine rows, where four would fit, three at a time.

    Args:
        rows: Independent signals.
        bytes_per_row: What one of them takes while it is computed.
        limit: The most bytes at a time; None is no limit.
        fixed: Bytes that are taken however many rows there are.

    Raises:
        ValueError: A number is negative.

    Examples:
        >>> chunks(100, 1 << 20, 40 << 20)  # 34, 34 and 32 rows
        34
    """
    for name, value in {"rows": rows, "bytes_per_row": bytes_per_row, "limit": limit or 0, "fixed": fixed}.items():
        if not value >= 0:
            raise ValueError(f"chunks({name}={value}): needs {name} >= 0.")
    if limit is None or fixed + rows * bytes_per_row <= limit:
        return rows
    if bytes_per_row == 0 or fixed > limit:
        return 0
    most = int((limit - fixed) // bytes_per_row)
    if most == 0:
        return 0
    return -(-rows // -(-rows // most))


@dataclass(slots=True)
class _Reading:
    free: int | None
    read: float
    answers: int = 0


class FreeMemory:
    """What was free on each device, remembered because reading it takes 0.1 to 0.3 ms on the host.

    Attributes:
        plenty: Bytes, by framework and device, up to which a call needs neither another reading nor a check.
    """

    def __init__(self) -> None:
        self.plenty: dict[tuple[str, str], float] = {}
        self._read: dict[tuple[str, str], _Reading] = {}

    def free(self, framework: str, device: str, need: float) -> int | None:
        """Return the bytes that are free, None where it cannot be told.

        They are read anew where `need` is a good part of them and the last reading is old.
        """
        found, now = self._read.get((framework, device)), time.monotonic()
        if found is not None:
            found.answers += 1
            is_old = found.answers > MOST_ANSWERS or now - found.read > OLDEST
            if found.free is None or not is_old or need <= SMALL * found.free:
                return found.free
        try:
            there = free(framework, device)
        except LookupError:  # a framework without a probe
            there = None
        self._read[framework, device] = _Reading(there, now)
        return there


def in_bytes(count: float) -> str:
    """Return a number of bytes as text in a fitting unit, such as "4 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} GiB"


def _available(proc: Path) -> int | None:
    return _entry(_text(proc / "meminfo"), "MemAvailable:", 1024)


def _group_rooms(proc: Path, cgroup: Path) -> Iterator[int]:
    """Yield the bytes left under each memory limit of this process's control group and of those around it.

    Args:
        proc: Where the proc file system is mounted.
        cgroup: Where the control groups are mounted.
    """
    for limits, usage, stat in _group_files(proc, cgroup):
        numbers = [int(text) for path in limits if (text := _text(path).strip()).isdecimal()]
        if numbers and min(numbers) < _UNLIMITED:
            used = int(_text(usage) or 0)
            cached = _entry(_text(stat[0]), stat[1]) or 0
            yield max(min(numbers) - used + cached, 0)


@functools.cache
def _group_files(proc: Path, cgroup: Path) -> tuple[tuple[list[Path], Path, tuple[Path, str]], ...]:
    """Return where each control group of this process keeps its limits, its usage and its cached bytes.

    These are the files with limits, the file with the usage, and a file and the name of its entry. They are looked up
    once, because a process stays in its group.
    """
    found = []
    for folder in _groups(proc, cgroup):
        for limits, usage, cache in (_V2, _V1):
            there = [folder / name for name in limits if (folder / name).is_file()]
            if there:
                found.append((there, folder / usage, (folder / "memory.stat", cache)))
    return tuple(found)


def _groups(proc: Path, cgroup: Path) -> Iterator[Path]:
    for line in _text(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount = cgroup
        elif "memory" in controllers.split(","):
            mount = cgroup / "memory"
        else:
            continue
        # In a container the path may be the host's, or lead out of what is mounted: then only the mount is there.
        parts = [part for part in path.split("/") if part]
        here = mount if ".." in parts else mount.joinpath(*parts)
        yield from (folder for folder in (here, *here.parents) if folder.is_relative_to(mount))


def _entry(text: str, name: str, unit: int = 1) -> int | None:
    """Return `unit` times the number after `name` at the beginning of a line of `text`, None without such a line."""
    for line in text.splitlines():
        if line.split(maxsplit=1)[:1] == [name]:
            return unit * int(line.split()[1])
    return None


def _text(path: Path) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:  # not this system's, not this version's, or not for us to read: it does not say
        return ""


def _system_pages() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if not {"SC_AVPHYS_PAGES", "SC_PAGE_SIZE"} <= names.keys():
        return None
    return max(os.sysconf("SC_AVPHYS_PAGES"), 0) * os.sysconf("SC_PAGE_SIZE")
