"""How often each kernel was consulted, took over and failed, at sites that live and at those that are gone."""

import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from hpfracc_nn.selection.plan import Plan, Uses
from hpfracc_nn.selection.reporting import Counters
from hpfracc_nn.selection.workload import Direction

T = TypeVar("T")
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

    def add(self, uses: Iterable[Uses]) -> None:
        """Count these too."""
        for op, name, forwards, backwards, switches in uses:
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
        self._late: weakref.WeakSet[Plan] = weakref.WeakSet()  # added up, and still somebody's, who may count on
        self._last = deque[Uses]()  # what others of these had counted when they went

    def close(self, number: int, plans: tuple[Plan, ...]) -> None:
        """Retire the plans of a site that is gone; it takes no lock."""
        self.retired.append(plans)
        self.open.discard(number)

    def fold(self) -> None:
        """Add up the plans that are retired, for good, and what those before them have counted since."""
        retired = [plan for plans in _drain(self.retired) for plan in plans]  # held until they are added up
        self._late.update(retired)
        for plan in list(self._late):
            plan.heir = self._last.append
            self._past.add([plan.settle()])  # one that an interrupt left in two places counts once
        self._past.add(_drain(self._last))

    def totals(self, plans: Iterable[Plan]) -> Totals:
        """Return the counts of all plans there were, of which `plans` are in use."""
        self.fold()
        found = self._past.copy()
        found.add(plan.uncounted() for plan in plans)
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


def _drain(queue: deque[T]) -> Iterator[T]:
    while queue:
        yield queue.popleft()
