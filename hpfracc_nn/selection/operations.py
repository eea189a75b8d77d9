"""Operations of the user's own, and how an operation is run on made-up data, so that its kernels compile."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpfracc_nn.selection.fallback import Work
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.workload import Workload


@dataclass(frozen=True)
class Operation:
    """An operation of the user's own; see `register_operation`.

    Args:
        name: Of the operation.
        describe: As there.
        fault: As there.

    Examples:
        >>> total = register_operation("total", lambda x: Workload("total", "numpy", n=x.size))
        >>> total.described((np.ones(3),), {}).n
        3
        >>> unregister_operation("total")
    """

    name: str
    describe: Callable[..., Workload]
    fault: Callable[..., str | None] | None = None

    def described(self, args: tuple, kwargs: dict[str, Any]) -> Workload:
        """Return the workload of a call.

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
        op: Its name, which its kernels name too.
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


def _run(plan: Plan, operation: Operation, args: tuple, kwargs: dict[str, Any]) -> Any:
    plan.kernel.calls["run"] += 1
    return plan.kernel.run(*args, **kwargs)


def _fault(result: Any, operation: Operation, args: tuple, kwargs: dict[str, Any]) -> str | None:
    return None if operation.fault is None else operation.fault(result, *args, **kwargs)


RUN = Work(_run, _fault)


Rehearsal = Callable[[Plan], None]

_rehearsals: dict[tuple[str, str], Rehearsal] = {}


def register_rehearsal(op: str, framework: str, run: Rehearsal) -> None:
    """Let `run(plan)` run a plan's kernel once, in every direction that its workload asks for, on data of its own.

    `BackendManager.warm_up` calls it for each kernel that has something to compile.

    Args:
        op: The operation.
        framework: Whose arrays.
        run: Of a plan, whose workload says how large the data are.

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
    """Return what rehearses `op` for the arrays of `framework`.

    Raises:
        LookupError: Nobody has said how.
    """
    found = _rehearsals.get((op, framework))
    if found is None:
        known = ", ".join(sorted({f"{op} on {framework}" for op, framework in _rehearsals})) or "none"
        raise LookupError(
            f"no rehearsal of {op} on {framework}: there are {known}; "
            f"register_rehearsal({op!r}, {framework!r}, run) says how it is run on made-up data."
        )
    return found
