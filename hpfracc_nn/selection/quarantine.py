"""The kinds of a kernel's exceptions, and the circuit breaker: kernels that failed are not chosen for a while.

The quarantine is pure: the time is an argument, in seconds of any clock that never goes back. Callers hold a lock where
threads share it.

A hold says why, and until when, a kernel is not chosen.
"""

import gc
import math
import signal
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, Literal

from hpfracc_nn import errors
from hpfracc_nn.selection.memory import in_bytes
from hpfracc_nn.selection.registry import Kernel, probes
from hpfracc_nn.selection.workload import Key, Workload, key_of

Kind = Literal["kernel", "memory", "environment"]

LONGEST_CAUSE = 120  # characters of an error's text that are repeated elsewhere

# How the frameworks word it. Their classes cannot be imported here, and some are plain RuntimeErrors.
_MEMORY = (
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "unable to allocate",
    "out of memory",
    "out_of_memory",
    "resource_exhausted",
)
_ENVIRONMENT = (
    "no kernel image",
    "driver version is insufficient",
    "unsupported toolchain",
    "no cuda-capable device",
    "shared object file",
)
# A source that does not compile does so at no size: NVRTC's errors, as CuPy raises them.
_COMPILERS = {"CompileException"}
# Exceptions by which torch.utils.checkpoint stops a computation that it repeats: nothing has failed.
_CONTROL_FLOW = {"_StopRecomputationError"}


class WrongResult(ArithmeticError):
    """A kernel returned what cannot be the result. The text says what is wrong with it.

    The exception reaches the caller where the result of every kernel is wrong.

    Examples:
        >>> def fault(y, x):
        ...     return None if np.ndim(y) == 0 else "it is no number"
        >>> total = register_operation(
        ...     "total", lambda x: Workload("total", "numpy", n=x.size), fault=fault
        ... )
        >>> # all of them, not the last
        >>> running = register(Kernel("total", "numpy", "numpy", "running", run=np.cumsum))
        >>> try:
        ...     BackendManager().run("total", np.ones(3))
        ... except WrongResult as error:
        ...     print(error)
        it is no number
        >>> unregister(running)
        >>> unregister_operation("total")
    """


class Doubt(str):
    """What seems wrong with a result, but may be the data's doing: it is where a second result seems wrong too.

    Examples:
        >>> def fault(y, x):
        ...     return None if np.isfinite(y) else Doubt("the total is not finite")
        >>> total = register_operation(
        ...     "total", lambda x: Workload("total", "numpy", n=x.size), fault=fault
        ... )
        >>> runs = {"pairwise": np.sum, "running": lambda x: np.cumsum(x)[-1]}
        >>> sums = [
        ...     register(Kernel("total", "numpy", "numpy", how, run))
        ...     for how, run in runs.items()
        ... ]
        >>> # both say so: no kernel is to blame
        >>> float(BackendManager().run("total", np.array([1.0, math.nan])))
        nan
        >>> for kernel in sums:
        ...     unregister(kernel)
        >>> unregister_operation("total")
    """

    __slots__ = ()


def kind_of(error: Exception) -> Kind:
    """Return the kind of a failure: what has to be different before the same kernel can work.

    "memory": less data, or more free memory. "environment": a package, a driver or a device, so that every call fails
    alike. "kernel": not known, perhaps only this workload.
    """
    text = errors.text_of(error).lower()
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if isinstance(error, RuntimeError | OSError) and any(words in text for words in _MEMORY):
        return "memory"
    if isinstance(error, ImportError) or type(error).__name__ in _COMPILERS:
        return "environment"
    # A library that does not load raises an OSError without a number; one of a file or a disk has its number.
    is_library = isinstance(error, OSError) and error.errno is None and bool(error.args)
    return "environment" if is_library or any(words in text for words in _ENVIRONMENT) else "kernel"


def is_control_flow(error: Exception) -> bool:
    """Return whether `error` only passes through a kernel, which has not failed.

    Such are warnings that the user turned into errors, exceptions by which a framework leaves a computation, and those
    that the handler of a signal raised, to end what takes too long.
    """
    return isinstance(error, Warning) or type(error).__name__ in _CONTROL_FLOW or is_from_signal(error)


def is_from_signal(error: Exception) -> bool:
    """Return whether the handler of a signal raised `error`, to end what takes too long.

    The error's traceback then enters the code of a handler, which is known by being still registered.
    """
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: Any) -> CodeType | None:
    """Return the code object of a signal handler, None where it is not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not callable(handler):
        return None
    found = handler if hasattr(handler, "__code__") else type(handler).__call__
    return getattr(found, "__code__", None)


def cause_of(error: Exception) -> str:
    """Return class and text of an error, on one short line."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def text_of(error: BaseException) -> str:
    """Return the text of an error, on one short line."""
    text = errors.printable(" ".join(errors.text_of(error).split()))
    return text if len(text) <= LONGEST_CAUSE else text[: LONGEST_CAUSE - 3] + "..."


def free_memory(errors: Iterable[BaseException], framework: str, device: str) -> None:
    """Free what the frames of failed calls hold, and what the framework caches on `device`, before the next attempt."""
    for error in errors:
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)  # their variables are the results that were begun
            cause = cause.__context__
    gc.collect()
    for probe in probes():
        if probe.framework == framework:
            probe.release(device)


BACK_OFF = 60.0  # seconds after the first failure; twice as long after each further one
LONGEST = 86400.0
MOST_HOLDS = 4096

_Place = Kernel | tuple[Kernel, str | Key]


@dataclass(slots=True)
class Hold:
    """Why, and until when, a kernel is in quarantine.

    Args:
        cause: Class and text of the error.
        until: When the kernel may be tried again.
        failures: How often the kernel failed, not counting failures during the quarantine.
        size: Bytes of the smallest call that ran out of memory; 0 where memory is not the cause.
    """

    cause: str
    until: float
    failures: int = 1
    size: float = 0.0


class Quarantine:
    """The kernels that failed, and for what they are not chosen: a bucketed workload, calls above a size, or all.

    Attributes:
        holds: The hold of each failure since the last `lift`, by kernel and what it is not chosen for.

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
        self.holds: dict[_Place, Hold] = {}

    def __bool__(self) -> bool:
        return bool(self.holds)

    def add(self, kernel: Kernel, workload: Workload, kind: Kind, cause: str, *, size: float, now: float) -> float:
        """Leave a kernel alone after it failed; return for how many seconds.

        That is a minute, and twice as long each time it fails again after that. A failure while it is left alone
        anyway, in another thread or because every other kernel failed too, changes nothing.

        Args:
            kernel: The kernel that failed.
            workload: The workload that it failed at.
            kind: What it is not chosen for. "kernel": this bucketed workload. "memory": calls of this size and above on
                this device. "environment": everything, until `lift`.
            cause: Class and text of the error.
            size: Bytes that the call takes.
            now: The present time.
        """
        place = _place(kind, kernel, workload)
        hold = self.holds.get(place)
        if hold is None:
            if len(self.holds) >= MOST_HOLDS:
                del self.holds[next(iter(self.holds))]
            hold = self.holds[place] = Hold(cause, -math.inf, 0, size if kind == "memory" else 0.0)
        if kind == "memory":
            hold.size = min(hold.size, size)
        if now >= hold.until:
            hold.failures += 1
            hold.until = math.inf if kind == "environment" else now + min(BACK_OFF * 2 ** (hold.failures - 1), LONGEST)
            hold.cause = cause
        return hold.until - now

    def refusal(self, kernel: Kernel, workload: Workload, *, size: float, now: float) -> str | None:
        """Return why a kernel is in quarantine for a workload that takes `size` bytes, None where it is not."""
        for kind in ("environment", "memory", "kernel"):
            hold = self.holds.get(_place(kind, kernel, workload))
            if hold is None or now >= hold.until or size < hold.size:
                continue
            if kind == "environment":
                return f"quarantined until something is configured, after {hold.cause}"
            above = f" from {in_bytes(hold.size)} on" if kind == "memory" else ""
            return f"quarantined for {max(1, round(hold.until - now))} s{above} after {hold.cause}"
        return None

    def held(self, now: float) -> Iterator[Kernel]:
        """Yield the kernel of each hold that has not ended, once for each workload, size or device held against it."""
        for place, hold in self.holds.items():
            if now < hold.until:
                yield place if isinstance(place, Kernel) else place[0]

    def forgive(self, kernel: Kernel, workload: Workload, *, size: float, now: float) -> None:
        """Forget the holds of a kernel that have ended, after it succeeded at a workload that takes `size` bytes.

        The next failure there then counts as the first.
        """
        for kind in ("environment", "memory", "kernel"):
            place = _place(kind, kernel, workload)
            hold = self.holds.get(place)
            if hold is not None and now >= hold.until and size >= hold.size:
                del self.holds[place]

    def lift(self) -> None:
        """Let every kernel be tried again."""
        self.holds.clear()


def _place(kind: Kind, kernel: Kernel, workload: Workload) -> _Place:
    """Return what a failure is held against: a kernel, a kernel on one device, or a kernel at one key of workloads.

    The kernel itself, not its name, is in it: a new kernel of the same name begins afresh.

    Which of the three it is depends on the kind of failure: "environment", "memory" or "kernel".
    """
    if kind == "environment":
        return kernel
    return (kernel, workload.device) if kind == "memory" else (kernel, key_of(workload))
