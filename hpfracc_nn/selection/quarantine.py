"""Which kernels are left alone for a while after they failed, and why.

Pure: the time is an argument, in seconds of any clock that never goes back. Callers hold a lock where threads share it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hpfracc_nn.selection.bucket import Key, key_of
from hpfracc_nn.selection.failure import Kind
from hpfracc_nn.selection.memory import in_bytes
from hpfracc_nn.selection.registry import Kernel
from hpfracc_nn.selection.workload import Workload

BACK_OFF = 60.0  # seconds after the first failure; twice as long after each further one
LONGEST = 86400.0
MOST_HOLDS = 4096

_Place = Kernel | tuple[Kernel, str | Key]


@dataclass(slots=True)
class Hold:
    """Why a kernel is left alone.

    Args:
        cause: Class and text of the error.
        until: When it may be tried again.
        failures: How often it failed, each time after it had been left alone.
        size: Of the smallest call that ran out of memory, in bytes; 0 where memory is not the cause.
    """

    cause: str
    until: float
    failures: int = 1
    size: float = 0.0


class Quarantine:
    """The kernels that failed, and for what: a bucketed workload, sizes from one on, or everything.

    Examples:
        >>> kernel = Kernel("total", "numpy", "numpy", "pairwise", run=np.sum)
        >>> workload = Workload("total", "numpy", n=4096)
        >>> quarantine = Quarantine()
        >>> quarantine.add(kernel, workload, "kernel", "RuntimeError: boom", size=0, now=100.0)
        60.0
        >>> quarantine.refusal(kernel, workload, size=0, now=102.0)
        'quarantined for 58 s after RuntimeError: boom'
    """

    def __init__(self) -> None:
        self._holds: dict[_Place, Hold] = {}

    def __bool__(self) -> bool:
        """Whether any kernel has failed since the last `lift`."""
        return bool(self._holds)

    def add(self, kernel: Kernel, workload: Workload, kind: Kind, cause: str, *, size: float, now: float) -> float:
        """Leave a kernel alone after it failed; return for how many seconds.

        That is a minute, and twice as long each time it fails again after that. A failure while it is left alone
        anyway, in another thread or because every other kernel failed too, changes nothing.

        Args:
            kernel: What failed.
            workload: At what.
            kind: "kernel": this bucketed workload. "memory": calls of this size and above on this device.
                "environment": everything, until `lift`.
            cause: Class and text of the error.
            size: Bytes that the call takes.
            now: The time.
        """
        place = _place(kind, kernel, workload)
        hold = self._holds.get(place)
        if hold is None:
            if len(self._holds) >= MOST_HOLDS:
                del self._holds[next(iter(self._holds))]
            hold = self._holds[place] = Hold(cause, -math.inf, 0, size if kind == "memory" else 0.0)
        if kind == "memory":
            hold.size = min(hold.size, size)
        if now >= hold.until:
            hold.failures += 1
            hold.until = math.inf if kind == "environment" else now + min(BACK_OFF * 2 ** (hold.failures - 1), LONGEST)
            hold.cause = cause
        return hold.until - now

    def refusal(self, kernel: Kernel, workload: Workload, *, size: float, now: float) -> str | None:
        """Return why a kernel is left alone at a workload that takes `size` bytes, None where it is not."""
        for kind in ("environment", "memory", "kernel"):
            hold = self._holds.get(_place(kind, kernel, workload))  # type: ignore[arg-type]
            if hold is None or now >= hold.until or size < hold.size:
                continue
            if kind == "environment":
                return f"quarantined until something is configured, after {hold.cause}"
            above = f" from {in_bytes(hold.size)} on" if kind == "memory" else ""
            return f"quarantined for {max(1, round(hold.until - now))} s{above} after {hold.cause}"
        return None

    def held(self, now: float) -> Iterator[Kernel]:
        """Yield the kernel of each hold that lasts: one for each workload, size or computer it is left alone at."""
        for place, hold in self._holds.items():
            if now < hold.until:
                yield place if isinstance(place, Kernel) else place[0]

    def forgive(self, kernel: Kernel, workload: Workload, *, size: float, now: float) -> None:
        """Forget the failures whose time is over, and which a success refutes: the next one counts as the first."""
        for kind in ("environment", "memory", "kernel"):
            place = _place(kind, kernel, workload)  # type: ignore[arg-type]
            hold = self._holds.get(place)
            if hold is not None and now >= hold.until and size >= hold.size:
                del self._holds[place]

    def lift(self) -> None:
        """Let every kernel be tried again."""
        self._holds.clear()


def _place(kind: Kind, kernel: Kernel, workload: Workload) -> _Place:
    """Return what is left alone; a kernel is meant by itself, so that a new one of its name begins afresh."""
    if kind == "environment":
        return kernel
    return (kernel, workload.device) if kind == "memory" else (kernel, key_of(workload))
