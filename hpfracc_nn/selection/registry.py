"""The registry: operations, their kernels, and for each framework a probe and the marker of its devices' work."""

import importlib.util
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.machinery import ModuleSpec
from typing import Any, Literal, Protocol
from weakref import WeakSet

from hpfracc_nn import errors
from hpfracc_nn.forks import in_children
from hpfracc_nn.selection.workload import Cost, Rates, Workload

Question = Literal["cost", "refuses", "saves", "compiles"]

BACKENDS = ("torch", "numba", "xla", "triton", "pallas", "cuda", "numpy")
ALGORITHMS = ("dense", "chunked_scan", "recurrence", "fft", "foreach", "matmul", "blocks", "offload")


@dataclass(frozen=True, slots=True)
class Compilation:
    """What must be compiled, or loaded, before a kernel can run.

    Args:
        seconds: About how long that takes; infinite where it should not happen unasked, only where the kernel is forced
            or nothing else is left.
        code: A key of the compiled code; workloads with equal keys share the code.

    Examples:
        >>> compiles = lambda work: Compilation(0.2, work.n)
        >>> jitted = Kernel("total", "numpy", "numpy", "jitted", run=np.sum, compiles=compiles)
        >>> # each length is compiled for itself
        >>> jitted.ask("compiles", Workload("total", "numpy", n=4096)).code
        4096
    """

    seconds: float
    code: Hashable


def _nothing(workload: Workload) -> None:
    return None


def _everywhere(device: str) -> None:
    return None


def _free(workload: Workload) -> float:
    return 0.0


def _one_pass(workload: Workload) -> Cost:
    """Return the default cost of a kernel: the input is read once, and as many bytes are written."""
    return Cost({}, bytes=2.0 * workload.bytes, launches=1)


def _as_they_are(weights: Any, workload: Workload) -> Any:
    return weights


def _no_adjoint(*given: Any) -> Any:
    raise NotImplementedError("this kernel was registered without an adjoint; pass adjoint=... to Kernel.")


@dataclass(eq=False)
class Kernel:
    """One backend times one algorithm: a routine that computes `op` for a framework's arrays.

    Selection calls `cost`, `refuses`, `saves`, `compiles` and `reaches` only, and never on the hot path; the rest is
    for the operation that owns the kernel. What `cost` and `saves` say of a workload is kept until something is
    configured or a kernel comes or goes, and so is that it was accepted. A refusal is asked for again whenever
    something is decided: it may follow what the process has done since.

    Args:
        op: The operation it computes.
        framework: Framework of the arrays.
        backend: What computes, such as "numba".
        algorithm: How, such as "fft".
        run: The operation.
        adjoint: Its transpose; by default there is none.
        prepare: Brings the weights into the form that `run` takes; by default they stay as they are.
        cost: Facts of the algorithm: forward, plus the backward work that the workload implies; by default one pass
            over the data.
        refuses: Why it cannot take a workload, or None; never an exception. It is not asked
            while the kernel is disabled, so a disabled backend is never imported. By default it takes everything.
        saves: Bytes that the backward pass will hold; by default none.
        compiles: What the next call would have to compile or load, None where all is there.
        offloads: Whether it computes elsewhere than the data lie, and brings the result back; it is considered only
            where the settings allow it. Where they name devices, `run` and `adjoint` are given them as `devices`.
        reaches: Why one that offloads cannot compute on a device that the settings name, or None.
        as_stored: Whether it takes samples of a dtype that the caller would convert for others
            (`Workload.converts_to`). One that does not is asked about converted samples, and the way there and back is
            added to its cost.
        inner: Called as `run` is, with data of the result's shape in the place of room for it: returns the sum of the
            results times these data, one for each channel of the weights, and writes no result. It is for gradients in
            the weights; by default whoever wants one runs and multiplies.
        unproven: Why it runs only where its backend is forced, such as that no device has run it; None where it may be
            chosen. Where the backend is not forced, this is why it is refused.
        calls: How often `run`, `adjoint` and others were called, by name; the caller counts.

    Attributes:
        name: "backend/algorithm".

    Examples:
        >>> pairwise = Kernel("total", "numpy", "numpy", "pairwise", run=np.sum)
        >>> pairwise.name, pairwise.is_differentiable
        ('numpy/pairwise', False)
        >>> refuses = lambda work: "too long" if work.n > 64 else None
        >>> loop = Kernel("total", "numpy", "python", "loop", run=sum, refuses=refuses)
        >>> loop.ask("refuses", Workload("total", "numpy", n=4096))
        'too long'
    """

    op: str
    framework: str
    backend: str
    algorithm: str
    run: Callable[..., Any]
    adjoint: Callable[..., Any] = _no_adjoint
    prepare: Callable[..., Any] = _as_they_are
    cost: Callable[[Workload], Cost] = _one_pass
    refuses: Callable[[Workload], str | None] = _nothing
    saves: Callable[[Workload], float] = _free
    compiles: Callable[[Workload], Compilation | None] = _nothing
    offloads: bool = False
    reaches: Callable[[str], str | None] = _everywhere
    as_stored: bool = False
    inner: Callable[..., Any] | None = None
    unproven: str | None = None
    calls: Counter[str] = field(default_factory=Counter, repr=False)
    name: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.name = f"{self.backend}/{self.algorithm}"

    def ask(self, question: Question, workload: Workload) -> Any:
        """Return the kernel's answer to one question about a workload, such as its `cost`.

        Raises:
            Exception: What the kernel raises, with a note that names the kernel.
        """
        try:
            if not workload.converts_to or question == "saves":  # what is saved is saved as it is stored
                return getattr(self, question)(workload)
            given = self.given(workload)
            found = getattr(self, question)(given)
            return found if given is workload or question != "cost" else _with_conversion(found, workload)
        except Exception as error:  # raised again, with the kernel's name
            errors.note(
                error,
                f"while asking {self.name} for its `{question}` at {workload}, rows={workload.rows} n={workload.n} "
                f"width={workload.width}; to do without it: configure(disable={self.name!r})",
            )
            raise

    def given(self, workload: Workload) -> Workload:
        """Return the workload that the kernel computes: samples are converted, unless it takes them as stored."""
        return workload if self.as_stored else workload.converted

    @property
    def is_differentiable(self) -> bool:
        """Whether the kernel has an adjoint, and so its own backward pass."""
        return self.adjoint is not _no_adjoint


def _with_conversion(cost: Cost, workload: Workload) -> Cost:
    """Return the cost, with the conversion of samples and results to another dtype and back added in each pass."""
    wide, arrays = workload.converted, 2 + 2 * workload.needs_gradient + workload.learns_weights
    return replace(
        cost,
        bytes=cost.bytes + arrays * (workload.bytes + wide.bytes),
        launches=cost.launches + arrays,
        workspace=cost.workspace + 2.0 * wide.bytes,
    )


class Watcher(Protocol):
    """An object whose plans grow stale when a kernel is registered or removed."""

    def kernels_changed(self) -> None: ...


_kernels: dict[str, dict[str, tuple[Kernel, ...]]] = {}
_watchers: WeakSet[Any] = WeakSet()
_lock = threading.Lock()


def register(kernel: Kernel) -> Kernel:
    """Add `kernel` to those that its op and framework choose from, and return it.

    Raises:
        ValueError: That op and framework have a kernel of this name.

    Examples:
        >>> pairwise = register(Kernel("total", "numpy", "numpy", "pairwise", run=np.sum))
        >>> kernels("total", "numpy") == (pairwise,)
        True
        >>> unregister(pairwise)
    """
    with _lock:
        frameworks = _kernels.setdefault(kernel.op, {})
        present = frameworks.get(kernel.framework, ())
        if any(other.name == kernel.name for other in present):
            raise ValueError(
                f"register({kernel.name!r}): {kernel.op} on {kernel.framework} has a kernel of that name; "
                "unregister it first or choose another algorithm's name."
            )
        frameworks[kernel.framework] = (*present, kernel)
    _tell_watchers()
    return kernel


def unregister(kernel: Kernel) -> None:
    """Remove `kernel`.

    Raises:
        LookupError: `kernel` is not registered.

    Examples:
        >>> pairwise = register(Kernel("total", "numpy", "numpy", "pairwise", run=np.sum))
        >>> unregister(pairwise)
        >>> "pairwise" in algorithms()
        False
    """
    with _lock:
        present = _kernels.get(kernel.op, {}).get(kernel.framework, ())
        if kernel not in present:
            raise LookupError(
                f"unregister({kernel.name!r}): it is not registered for {kernel.op} on {kernel.framework}."
            )
        left = tuple(other for other in present if other is not kernel)
        if left:
            _kernels[kernel.op][kernel.framework] = left
        else:
            del _kernels[kernel.op][kernel.framework]
            if not _kernels[kernel.op]:
                del _kernels[kernel.op]
    _tell_watchers()


def kernels(op: str, framework: str) -> tuple[Kernel, ...]:
    """Return the kernels of `op` for the arrays of `framework`, in order of registration.

    Args:
        op: The operation.
        framework: Framework of the arrays.

    Raises:
        LookupError: No kernel is registered for that op, or for that framework of it.

    Examples:
        >>> # which loads those of NumPy
        >>> work = workload((256, 1024), Caputo(0.5), framework="numpy")
        >>> {"dense", "fft"} <= {kernel.algorithm for kernel in kernels("toeplitz", "numpy")}
        True
    """
    frameworks = _kernels.get(op)
    if frameworks is None:
        raise LookupError(f"no kernels for op {op!r}: needs one of {_listed(_kernels)}.")
    if framework not in frameworks:
        raise LookupError(f"no kernels for {op} on framework {framework!r}: needs one of {_listed(frameworks)}.")
    return frameworks[framework]


def is_elsewhere(op: str, **names: str) -> bool:
    """Return whether only other operations have a kernel of that name, on any framework.

    Args:
        op: The operation.
        names: `backend` or `algorithm`.

    Examples:
        >>> is_elsewhere("my_sum", backend="no such backend")
        False
    """
    bearers = {kernel.op for kernel in _all() if all(getattr(kernel, of) == name for of, name in names.items())}
    return bool(bearers) and op not in bearers


def backends() -> tuple[str, ...]:
    """Return the names of backends that may be forced or disabled: the package's own, then others registered.

    Examples:
        >>> {"torch", "numba", "xla", "cuda", "numpy"} <= set(backends())
        True
    """
    return _known(BACKENDS, (kernel.backend for kernel in _all()))


def algorithms() -> tuple[str, ...]:
    """Return the names of algorithms that may be forced or disabled: the package's own, then others registered.

    Examples:
        >>> pairwise = register(Kernel("total", "numpy", "numpy", "pairwise", run=np.sum))
        >>> "fft" in algorithms(), "pairwise" in algorithms()
        (True, True)
        >>> unregister(pairwise)
    """
    return _known(ALGORITHMS, (kernel.algorithm for kernel in _all()))


def watch(watcher: Watcher) -> None:
    """Call `watcher.kernels_changed()` whenever a kernel comes or goes, for as long as the watcher lives."""
    with _lock:
        _watchers.add(watcher)


def ask_again_after_fork() -> None:
    """Make every watcher ask its kernels again, in a child process where they refuse what they took in its parent.

    Takes no lock: a thread that the child does not have may hold it, and no other thread runs yet.

    Examples:
        >>> manager = BackendManager()
        >>> before = manager.epoch
        >>> # os.register_at_fork(after_in_child=ask_again_after_fork) has it called
        >>> ask_again_after_fork()
        >>> manager.epoch > before  # no plan of before is used again
        True
    """
    for watcher in list(_watchers):
        watcher.kernels_changed()


@in_children
def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


def _tell_watchers() -> None:
    with _lock:
        watchers = list(_watchers)
    for watcher in watchers:  # outside the lock: a watcher may hold one of its own while it registers
        watcher.kernels_changed()


def _all() -> list[Kernel]:
    with _lock:
        return [kernel for held in _kernels.values() for some in held.values() for kernel in some]


def _known(names: Iterable[str], registered: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *registered)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none (nothing is registered; import the package that registers it)"


@cache
def find_spec(name: str) -> ModuleSpec | None:
    """Return the import spec of a package, None where it is not installed; cached, as a search takes up to 0.2 ms."""
    return importlib.util.find_spec(name)


@dataclass(frozen=True)
class Operation:
    """An operation of the user's own; see `register_operation`.

    Args:
        name: Name of the operation.
        describe: As in `register_operation`.
        fault: As in `register_operation`.

    Examples:
        >>> total = register_operation("total", lambda x: Workload("total", "numpy", n=x.size))
        >>> total.described((np.ones(3),), {}).n
        3
        >>> unregister_operation("total")
    """

    name: str
    describe: Callable[..., Workload]
    fault: Callable[..., str | None] | None = None

    def described(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Workload:
        """Return the workload of a call with these arguments.

        Raises:
            TypeError: `describe` returns something else.
            ValueError: It returns the workload of another operation.
        """
        found = self.describe(*args, **kwargs)
        if isinstance(found, Workload) and found.op == self.name:
            return found
        owner = f"register_operation({self.name!r}, describe=...)"
        if isinstance(found, Workload):
            raise ValueError(f"{owner}: needs a workload of {self.name!r}; it returned {found}.")
        raise TypeError(f"{owner}: needs a Workload; it returned {found!r}.")


_operations: dict[str, Operation] = {}


def register_operation(
    op: str, describe: Callable[..., Workload], *, fault: Callable[..., str | None] | None = None
) -> Operation:
    """Introduce an operation, so that `BackendManager.run` can be called with its name, and return it.

    Its kernels are registered apart, each by `register(Kernel(op, framework, backend, algorithm, run, ...))`, where
    `run` takes the arguments of the call and must not change them: after a failure the next kernel gets the same.

    Args:
        op: Name of the operation, as in its kernels.
        describe: Called as describe(*args, **kwargs) at every call: the workload, from static facts such as shapes.
            What is wrong with the arguments is raised here: an exception in a kernel lets the next one run. Calls of
            equal workloads share a plan.
        fault: Called as fault(result, *args, **kwargs) on the calls that are timed, and where a kernel stands in for
            one that failed: what is wrong with the result, or None. A kernel whose result is wrong where another one's
            is not is left alone for a while; where that of all is, `WrongResult` is raised. Return a `Doubt` for what
            may be the data's doing, such as NaN. What it raises counts as a wrong result too, and reaches the caller
            where every kernel's result makes it raise.

    Raises:
        ValueError: There is an operation of that name.

    Examples:
        >>> total = register_operation(
        ...     "total", lambda x: Workload("total", "numpy", dtype=x.dtype.name, n=x.size)
        ... )
        >>> pairwise = register(Kernel("total", "numpy", "numpy", "pairwise", run=np.sum))
        >>> running = register(
        ...     Kernel("total", "numpy", "numpy", "running", run=lambda x: np.cumsum(x)[-1])
        ... )
        >>> float(BackendManager().run("total", np.arange(5.0)))
        10.0
        >>> for kernel in (pairwise, running):
        ...     unregister(kernel)
        >>> unregister_operation("total")
    """
    if op in _operations:
        raise ValueError(f"register_operation({op!r}): there is one; unregister it first or choose another name.")
    made = _operations[op] = Operation(op, describe, fault)
    return made


def unregister_operation(op: str) -> None:
    """Forget an operation; its kernels stay.

    Raises:
        LookupError: There is none of that name.

    Examples:
        >>> total = register_operation("total", lambda x: Workload("total", "numpy", n=x.size))
        >>> unregister_operation("total")
        >>> BackendManager().run("total", np.ones(3))
        Traceback (most recent call last):
            ...
        LookupError: no operation 'total': registered are ...
    """
    operation(op)
    del _operations[op]


def operation(op: str) -> Operation:
    """Return the operation of that name.

    Raises:
        LookupError: There is none.
    """
    found = _operations.get(op)
    if found is None:
        known = ", ".join(sorted(_operations)) or "none"
        raise LookupError(f"no operation {op!r}: registered are {known}; introduce it by register_operation.")
    return found


Rehearsal = Callable[[Any], None]  # takes a Plan

_rehearsals: dict[tuple[str, str], Rehearsal] = {}


def register_rehearsal(op: str, framework: str, run: Rehearsal) -> None:
    """Let `run(plan)` run a plan's kernel once, in every direction that its workload asks for, on data of its own.

    `BackendManager.warm_up` calls it for each kernel that has something to compile.

    Args:
        op: The operation.
        framework: Framework of the arrays.
        run: Takes a plan, whose workload says how large the data are.

    Examples:
        >>> code = set()  # what was compiled
        >>> compiles = lambda work: None if work.n in code else Compilation(0.2, work.n)
        >>> jitted = register(
        ...     Kernel("total", "numpy", "numpy", "jitted", run=np.sum, compiles=compiles)
        ... )
        >>> register_rehearsal("total", "numpy", lambda plan: code.add(plan.workload.n))
        >>> list(BackendManager().warm_up([Workload("total", "numpy", n=4096)])), code
        (['numpy/jitted'], {4096})
        >>> unregister_rehearsal("total", "numpy")
        >>> unregister(jitted)
    """
    _rehearsals[op, framework] = run


def unregister_rehearsal(op: str, framework: str) -> None:
    """Forget how `op` is rehearsed for the arrays of `framework`.

    Raises:
        LookupError: Nobody has said how.

    Examples:
        >>> register_rehearsal(
        ...     "total", "numpy", lambda plan: plan.kernel.run(np.zeros(plan.workload.n))
        ... )
        >>> unregister_rehearsal("total", "numpy")
    """
    rehearsal(op, framework)
    del _rehearsals[op, framework]


def rehearsal(op: str, framework: str) -> Rehearsal:
    """Return the function that `register_rehearsal` was given for `op` and the arrays of `framework`.

    Raises:
        LookupError: None is registered.
    """
    found = _rehearsals.get((op, framework))
    if found is None:
        known = ", ".join(sorted({f"{op} on {framework}" for op, framework in _rehearsals})) or "none"
        raise LookupError(
            f"no rehearsal of {op} on {framework}: there are {known}; "
            f"register_rehearsal({op!r}, {framework!r}, run) says how it is run on made-up data."
        )
    return found


class Probe(Protocol):
    """Answers for one framework; registered by its package, like the kernels.

    Attributes:
        framework: Framework that the probe answers for.
        waits_to_be_asked: Whether `calibrate` compiles, and runs only where a user asks for it.

    Examples:
        >>> work = workload((256, 1024), Caputo(0.5), framework="numpy")  # which loads NumPy's
        >>> asked = probe("numpy")
        >>> asked.framework, asked.threads() >= 1
        ('numpy', True)
    """

    framework: str
    waits_to_be_asked: bool

    def threads(self) -> int:
        """Return how many threads one of its calls may use."""

    def free_memory(self, device: str) -> int | None:
        """Return the bytes that can still be allocated on `device`, None where it cannot be told."""

    def release(self, device: str) -> None:
        """Give back the memory of `device` that the framework holds and does not use."""

    def deterministic(self) -> bool:
        """Return whether the framework was told to use deterministic algorithms only."""

    def calibrate(self, device: str, dtype: str) -> Rates:
        """Measure the rates of `device` in a few milliseconds, with the threads set now."""


_probes: dict[str, Probe] = {}


def register_probe(probe: Probe) -> Probe:
    """Let `probe` answer for its framework from now on, and return it.

    An operation of the user's own needs none; where its framework has one, calls ask it for threads and free memory.

    Examples:
        >>> class Mine(Probe):  # and so on: all that a Probe answers
        ...     framework, waits_to_be_asked = "mine", False
        ...
        ...     def threads(self):
        ...         return 4
        >>> mine = register_probe(Mine())
        >>> probe("mine").threads()
        4
        >>> unregister_probe("mine")
    """
    _probes[probe.framework] = probe
    return probe


def unregister_probe(framework: str) -> None:
    """Forget the probe of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> unregister_probe("mine")
        Traceback (most recent call last):
            ...
        LookupError: no probe for framework 'mine': registered are ...
    """
    probe(framework)
    del _probes[framework]


def probe(framework: str) -> Probe:
    """Return the probe of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> work = workload((256, 1024), Caputo(0.5), framework="numpy")  # which loads NumPy's
        >>> probe("numpy").free_memory("cpu") > 0
        True
    """
    if framework not in _probes:
        known = ", ".join(sorted(_probes)) or "none"
        raise LookupError(
            f"no probe for framework {framework!r}: registered are {known}; "
            "import the package that registers it, or call configure(calibration='shipped')."
        )
    return _probes[framework]


def probe_of(framework: str) -> Probe | None:
    """Return the probe of `framework`, None where it has none."""
    return _probes.get(framework)


def has_probe(framework: str) -> bool:
    """Return whether `framework` has a probe; the operations of a user's own need none."""
    return framework in _probes


def probes() -> tuple[Probe, ...]:
    """Return every probe, in order of framework."""
    return tuple(_probes[framework] for framework in sorted(_probes))


class Mark(Protocol):
    """A point in the work of a device."""

    def passed(self) -> bool:
        """Return whether the device has come so far, without waiting for it; False where it must not be asked now."""

    def seconds_since(self, earlier: Any) -> float:
        """Return the device's time between an earlier mark and this one; both are passed."""


Marker = Callable[[str], Mark | None]

_markers: dict[str, Marker] = {}


def register_marker(framework: str, marker: Marker) -> None:
    """Let `marker(device)` mark the present point of a device's work for `framework`, or return None if it cannot.

    Args:
        framework: Framework whose calls are timed so.
        marker: Takes a device's name; what it returns has `passed()` and `seconds_since(earlier)`, which must not wait.

    Examples:
        >>> import time
        >>> class Now:  # of a device that is never behind
        ...     def __init__(self, device):
        ...         self.time = time.perf_counter()
        ...
        ...     def passed(self):
        ...         return True
        ...
        ...     def seconds_since(self, earlier):
        ...         return self.time - earlier.time
        >>> register_marker("mine", Now)
        >>> unregister_marker("mine")
    """
    _markers[framework] = marker


def unregister_marker(framework: str) -> None:
    """Forget the marker of `framework`.

    Raises:
        LookupError: None is registered.

    Examples:
        >>> register_marker("mine", lambda device: None)  # no device of it can be marked
        >>> unregister_marker("mine")
    """
    if framework not in _markers:
        raise LookupError(f"no marker for framework {framework!r}: registered are {', '.join(_markers) or 'none'}.")
    del _markers[framework]


def mark(framework: str, device: str) -> Mark | None:
    """Return a mark at the present point of a device's work, None where its framework has none for it."""
    marker = _markers.get(framework)
    return None if marker is None else marker(device)
