"""The estimate corrected by what was measured nearby: a distance-weighted mean of log(measured / estimated).

Nadaraya (1964) and Watson (1964), kernel regression, with the kernel 1 / (1 + d)**2 of the distance d in octaves.
"""

import math
from collections.abc import Callable

from hpfracc_nn.selection.bucket import Fact, Key
from hpfracc_nn.selection.workload import DIRECTIONS, Direction

OCTAVE = 0.5  # what an octave of distance adds to the factor u
OTHER_DIRECTION = 1.0  # octaves: as far as the other pass of the same call counts
PRIOR = 6.0  # octaves: as far as the estimate itself counts
FOREIGN = 2.0  # octaves: as far as what another machine measured at the same key counts; u = 2
NEAREST = 16  # keys of an arm that are looked at: the newest; a decision must stay cheap

Place = tuple[tuple[Fact, ...], str, Direction]


def backend_of(name: str) -> str:
    """Return the backend in a kernel's name."""
    return name.partition("/")[0]


class Neighbours:
    """log(measured / estimated) of each kernel wherever it was measured, and what follows for elsewhere."""

    def __init__(self) -> None:
        self._logs: dict[Place, dict[Key, tuple[float, float]]] = {}
        self._shifts: dict[Place, float] = {}  # by backend

    def set(self, key: Key, name: str, direction: Direction, ratio: float, penalty: float = 0.0) -> None:
        """Remember a ratio; `penalty` is in octaves."""
        logs = self._logs.setdefault((key.group, name, direction), {})
        logs.pop(key, None)  # so that the newest is the last
        logs[key] = (math.log(ratio), penalty)
        if len(logs) > NEAREST:
            del logs[next(iter(logs))]

    def correction(self, key: Key, name: str, direction: Direction, most: float) -> tuple[float, float]:
        """Return the factor on the estimate and the factor u >= 1 either way, at most `most`."""
        weight = 1 / (1 + PRIOR) ** 2
        total = weight * self._shifts.get((key.group, backend_of(name), direction), 0.0)
        nearest = math.inf
        for each in DIRECTIONS:
            apart = 0.0 if each == direction else OTHER_DIRECTION
            for other, (log, penalty) in self._logs.get((key.group, name, each), {}).items():
                distance = key.distance(other) + penalty + apart
                nearest = min(nearest, distance)
                share = 1 / (1 + distance) ** 2
                weight += share
                total += share * log
        return math.exp(total / weight), min(most, 1 + OCTAVE * nearest)

    def shift(self, group: tuple[Fact, ...], backend: str, direction: Direction, factor: float) -> None:
        """Apply the factor of a change to all that is known of one direction of one backend in one group."""
        log = math.log(factor)
        place = (group, backend, direction)
        self._shifts[place] = self._shifts.get(place, 0.0) + log
        for (of_group, name, of), logs in self._logs.items():
            if (of_group, backend_of(name), of) == place:
                for key, (old, penalty) in logs.items():
                    logs[key] = (old + log, penalty)

    def forget(self, matches: Callable[[Key], bool]) -> None:
        """Drop what was measured at the keys that match."""
        for logs in self._logs.values():
            for key in [key for key in logs if matches(key)]:
                del logs[key]
