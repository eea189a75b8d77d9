"""What an exception that a kernel raised says: about this kernel here, about memory, or about this computer."""

import gc
import signal
import traceback
from collections.abc import Iterable
from functools import partial
from types import CodeType
from typing import Any, Literal

from hpfracc_nn import errors
from hpfracc_nn.selection.probe import probes

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

    It reaches the caller where the result of every kernel is wrong.

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
    """What seems wrong with a result, but may be the data's doing: where a second kernel agrees, it is.

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
    """Return what has to be different before the same kernel can work.

    "memory": less data, or more that is free. "environment": a package, a driver or a device, so that every call
    fails alike. "kernel": not known, perhaps only this workload.
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
    """Return whether `error` is no failure, but passes through a kernel.

    A framework leaves a computation so, the user wants to see a warning, or the handler of a signal raised it, to end
    what takes too long. Such a handler is known by its being registered still.
    """
    return isinstance(error, Warning) or type(error).__name__ in _CONTROL_FLOW or is_from_signal(error)


def is_from_signal(error: Exception) -> bool:
    """Return whether the handler of a signal raised it, to end what takes too long; it is registered still."""
    handlers = {_code(signal.getsignal(number)) for number in signal.valid_signals()}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code(handler: Any) -> CodeType | None:
    """Return what runs when a handler is called, None for one that is not of Python."""
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
    """Give back what failed calls held and what the framework keeps for later, before the next attempt."""
    for error in errors:
        cause: BaseException | None = error
        while cause is not None:
            traceback.clear_frames(cause.__traceback__)  # their variables are the results that were begun
            cause = cause.__context__
    gc.collect()
    for probe in probes():
        if probe.framework == framework:
            probe.release(device)
