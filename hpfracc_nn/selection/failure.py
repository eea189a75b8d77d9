"""Which plan was running when a kernel failed.

`with running(plan):` costs a few hundred nanoseconds. Where that matters, a plain `try` costs
none until something fails:

    try:
        y = plan.kernel.run(weights, x, layout)
    except BaseException as error:
        error.add_note(failure_note(plan))
        raise
"""

from hpfracc_nn.selection.workload import Plan


class Running:
    """Name `plan` in a note on whatever is raised inside; nothing is swallowed.

    Example:
        >>> with running(plan):
        ...     y = plan.kernel.run(weights, x, layout)
    """

    __slots__ = ("plan",)

    def __init__(self, plan: Plan):
        self.plan = plan

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            error.add_note(failure_note(self.plan))


running = Running  # reads as what it says: `with running(plan):`


def failure_note(plan: Plan) -> str:
    """Return the line that says what was running, and how to do without it."""
    work = plan.workload
    return (
        f"while running {work.op} by {plan.kernel.name} on {work.place}, rows={work.rows} n={work.n} "
        f"width={work.width}; to do without it: configure(disable={plan.kernel.name!r})"
    )
