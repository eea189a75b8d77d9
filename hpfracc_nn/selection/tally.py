"""How often each kernel was consulted, took over and failed, at sites that live and at those that are gone."""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.reporting import Counters
from hpfracc_nn.selection.workload import Direction

Use = tuple[str, str, Direction]  # operation, kernel, pass


@dataclass
class Totals:
    """Numbers that only ever grow.

    Args:
        uses: Consultations by operation, kernel and direction.
        switches: How often a kernel replaced another one that had run, by operation and kernel.
    """

    uses: Counter[Use] = field(default_factory=Counter)
    switches: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, plans: Iterable[Plan]) -> None:
        """Count what of the plans was not added up for good."""
        for plan in plans:
            op, name = plan.workload.op, plan.kernel.name
            forwards, backwards, switches = plan.uncounted()
            self.uses[op, name, "forward"] += forwards
            self.uses[op, name, "backward"] += backwards
            self.switches[op, name] += switches

    def copy(self) -> "Totals":
        """Return the same numbers, to be added to."""
        return Totals(self.uses.copy(), self.switches.copy())


class Tally:
    """The counts of one manager; it outlives the manager where somebody still wants to read them.

    Callers hold the manager's lock, except where a plan is retired: the garbage collector does that, and must not wait.

    Attributes:
        open: Numbers of the sites whose plans are not all retired.
        retired: Plans whose site is gone or has let them go, until they are added up.
        failures: By operation, kernel and the class of the error.
        stand_ins: How often a kernel ran in place of one that failed, by operation and kernel.
    """

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.retired: deque[tuple[Plan, ...]] = deque()
        self.failures = Counter[tuple[str, str, str]]()
        self.stand_ins = Counter[tuple[str, str]]()
        self._past = Totals()

    def close(self, number: int, plans: tuple[Plan, ...]) -> None:
        """Retire the plans of a site that is gone; it takes no lock."""
        self.retired.append(plans)
        self.open.discard(number)

    def fold(self) -> None:
        """Add up the plans that are retired, for good."""
        for plans in _drain(self.retired):
            for plan in plans:
                self._past.add([plan])
                plan.settle()  # one that an interrupt left in two places counts once

    def totals(self, plans: Iterable[Plan]) -> Totals:
        """Return the counts of all plans there were, of which `plans` are in use."""
        self.fold()
        found = self._past.copy()
        found.add(plans)
        return found

    def counters(self, plans: Iterable[Plan]) -> Counters:
        """Return the same as consultations by direction, and forward ones by kernel."""
        picks, backward = Counter[str](), 0
        for (_, name, direction), count in self.totals(plans).uses.items():
            if direction == "forward":
                picks[name] += count
            else:
                backward += count
        return {"forward": picks.total(), "backward": backward, "picks": dict(picks)}


def _drain(queue: deque[tuple[Plan, ...]]) -> Iterator[tuple[Plan, ...]]:
    while queue:
        yield queue.popleft()
