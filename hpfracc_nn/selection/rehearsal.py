"""One call on made-up data, by which a kernel compiles and loads what its real calls need.

Only an operation knows what its data look like: it registers a function that makes some and runs a plan's kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from hpfracc_nn.selection.plan import Plan

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
