"""What metrics read of managers, and what remains of those that are gone."""

import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpfracc_nn.selection.budget import Budget
from hpfracc_nn.selection.tally import Tally, Use

if TYPE_CHECKING:
    from hpfracc_nn.selection.chronicle import Chronicle


lock = (
    threading.RLock()
)  # of all rolls; a manager's own may be held by whoever asks for it, and none is asked for inside


def _after_fork() -> None:
    global lock
    lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@dataclass(frozen=True, eq=False)
class Watched:
    """What metrics read of a manager; the counts stay when it is gone."""

    manager: "weakref.ref[Chronicle]"
    tally: Tally
    budget: Budget

    @property
    def is_over(self) -> bool:
        """Whether its counts are final: the manager goes before the last of its sites."""
        return self.manager() is None and not self.tally.open

    def uses(self) -> Counter[Use]:
        """Return consultations by operation, kernel and direction."""
        manager = self.manager()
        return self.tally.totals(()).uses if manager is None else manager.totals().uses

    def switches(self) -> Counter[tuple[str, str]]:
        """Return switches by operation and kernel."""
        manager = self.manager()
        return self.tally.totals(()).switches if manager is None else manager.totals().switches

    def failures(self) -> Counter[tuple[str, str, str]]:
        """Return failures by operation, kernel and error."""
        return self.tally.failures.copy()

    def explored(self) -> float:
        """Return the seconds that trials cost."""
        return self.budget.explored

    def quarantined(self) -> Mapping[tuple[str, str], int]:
        """Return at how many places each kernel is left alone now."""
        manager = self.manager()
        return {} if manager is None else manager.quarantined()


class Gone:
    """What managers had counted that are gone; it answers as they did."""

    def __init__(self) -> None:
        self._uses = Counter[Use]()
        self._switches = Counter[tuple[str, str]]()
        self._failures = Counter[tuple[str, str, str]]()
        self._explored = 0.0

    def add(self, watched: Watched) -> None:
        """Add one more."""
        self._uses.update(watched.uses())
        self._switches.update(watched.switches())
        self._failures.update(watched.failures())
        self._explored += watched.explored()

    def uses(self) -> Counter[Use]:
        """Return consultations by operation, kernel and direction."""
        return self._uses

    def switches(self) -> Counter[tuple[str, str]]:
        """Return switches by operation and kernel."""
        return self._switches

    def failures(self) -> Counter[tuple[str, str, str]]:
        """Return failures by operation, kernel and error."""
        return self._failures

    def explored(self) -> float:
        """Return the seconds that trials cost."""
        return self._explored


class Roll:
    """The managers of which metrics are read, each once, and what those had counted that are gone."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._gone = Gone()

    def __iter__(self) -> Iterator[Watched]:
        """Return those that are not added up yet."""
        with lock:
            return iter(list(self._watched))

    def add(self, manager: "Chronicle") -> None:
        """Read a manager from now on."""
        with lock:
            self._settle()
            self._watched.append(Watched(weakref.ref(manager), manager.tally, manager.learner.policy.budget))

    def remove(self, manager: "Chronicle") -> None:
        """Read it no more."""
        with lock:
            self._watched = [each for each in self._watched if each.manager() is not manager]

    def sum(self, read: "Callable[[Watched | Gone], Counter[Any]]") -> Counter[Any]:
        """Return what all have counted, also those that are gone."""
        with lock:
            self._settle()
            alive = [(each, manager) for each in self._watched if (manager := each.manager()) is not None]
            kept = {each for each, _ in alive}
            found = total([read(self._gone), *(read(each) for each in self._watched if each not in kept)])
        for each, _ in alive:  # they ask for the manager's lock; held here, it cannot go meanwhile
            found.update(read(each))
        return found

    def explored(self) -> float:
        """Return the seconds that all trials cost."""
        with lock:
            self._settle()
            return self._gone.explored() + sum(each.explored() for each in self._watched)

    def _settle(self) -> None:
        """Add up the managers that are gone, so that they need not be kept."""
        left = []
        for each in self._watched:
            if each.is_over:
                self._gone.add(each)
            else:
                left.append(each)
        self._watched = left


def total(counters: Iterable[Mapping[Any, int]]) -> Counter[Any]:
    """Return the sum of several counts."""
    found: Counter[Any] = Counter()
    for counter in counters:
        found.update(counter)
    return found
