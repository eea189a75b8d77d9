"""What metrics read of managers, and what remains of those that are gone."""

import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpfracc_nn.selection.budget import Budget
from hpfracc_nn.selection.tally import Tally, Use

if TYPE_CHECKING:
    from hpfracc_nn.selection.chronicle import Chronicle


@dataclass(frozen=True, eq=False)
class Watched:
    """What metrics read of a manager; the counts stay when it is gone."""

    manager: "weakref.ref[Chronicle]"
    tally: Tally
    budget: Budget

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
