"""All that was measured, and what it lets expect of a kernel at a key."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hpfracc_nn.selection.arms import Arm, Track
from hpfracc_nn.selection.bucket import Key
from hpfracc_nn.selection.decision import Candidate, Change, Prediction, Reason
from hpfracc_nn.selection.estimate import FOREIGN, OCTAVE, Neighbours, backend_of
from hpfracc_nn.selection.sampling import KEPT_SAMPLES
from hpfracc_nn.selection.workload import DIRECTIONS, Direction

State = Mapping[str, Mapping[str, Mapping[str, Sequence[float | None]]]]  # see `Knowledge.state`
Entry = tuple[float, float | None, int]  # seconds, estimate, samples

MOST_KEYS = 4096
STALE = 64  # calls of a key, for each sample of an arm, after which its time is doubted


@dataclass(slots=True)
class Record:
    """What is kept for one key: the arms that were timed, and how the last decision went.

    Attributes:
        arms: By the kernel's name.
        candidates: Of the last decision.
        incumbent: The arm believed to be the fastest; "" before the first decision.
        reason: Why, at the last decision.
        expected: Its seconds at the last decision, forward and backward.
        trial: The arm that the last decision tries, if any.
        compiling: Seconds that the last decision's call compiles.
        calls: So far.
        backwards: Backward passes for each call, lately.
        period: Of the last decision.
        asked: Decisions since the incumbent is another.
        born: Rounds of telling that there had been before the first decision.
    """

    arms: dict[str, Arm] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    incumbent: str = ""
    reason: Reason = "prior"
    expected: tuple[float, float] = (0.0, 0.0)
    trial: str | None = None
    compiling: float = 0.0
    calls: int = 0
    backwards: float = 1.0
    period: int = 1
    asked: int = 0
    born: int = 0

    def staleness(self, name: str, samples: int) -> float:
        """Return for how many octaves of calls an arm was not timed for too long; none for the incumbent."""
        if name == self.incumbent or not samples:
            return 0.0
        return max(0.0, math.log2(max(1, self.calls - self.arms[name].last) / (STALE * samples)))


class Knowledge:
    """The records of all keys, and what they say of one another."""

    def __init__(self) -> None:
        self.records: dict[Key, Record] = {}
        self._neighbours = Neighbours()
        self._without_estimate: dict[Key, list[tuple[str, Direction, Entry, bool]]] = {}
        self._on_old_basis: set[tuple[Key, str]] = set()  # arms, until they are candidates again

    def record(self, key: Key, rounds: int = 0) -> Record:
        """Return the record of `key`, a new one where there is none; of too many the one not asked for longest goes.

        Args:
            key: Whose.
            rounds: Of telling so far, for a new one.
        """
        record = self.records.pop(key, None)
        if record is None:
            if len(self.records) >= MOST_KEYS:
                oldest = next(iter(self.records))
                del self.records[oldest]
                self._neighbours.forget(oldest.__eq__)
            record = Record(born=rounds)
        self.records[key] = record  # so that it is the last
        return record

    def predict(self, key: Key, candidate: Candidate) -> Prediction:
        """Add up both directions, the backward one as often as it follows."""
        record = self.records.get(key) or Record()
        seconds = low = high = 0.0
        samples = KEPT_SAMPLES
        for direction, share in zip(DIRECTIONS, (1.0, record.backwards), strict=True):
            estimate = share * candidate.estimate(direction)
            if estimate:
                ratio, least, most, count = self._ratio(key, record, candidate, direction)
                seconds, low, high = seconds + ratio * estimate, low + least * estimate, high + most * estimate
                samples = min(samples, count)
        return Prediction(seconds, low, high, samples)

    def expected(self, key: Key, candidate: Candidate) -> tuple[float, float]:
        """Return the seconds of the forward and of the backward pass."""
        record = self.record(key)
        forward, backward = (
            candidate.estimate(direction) * self._ratio(key, record, candidate, direction)[0]
            for direction in DIRECTIONS
        )
        return forward, backward

    def learn(self, key: Key, name: str, direction: Direction, seconds: float, estimate: float) -> Change | None:
        """Take one time; return a change if this is what reveals one."""
        record = self.records[key]
        arm = record.arms.setdefault(name, Arm())
        arm.last = record.calls
        track, ratio = arm.tracks[direction], seconds / estimate
        track.estimate = estimate
        if not track.warm:
            track.begin(ratio)
            return None
        is_first = track.level is None
        expected, either = self._neighbours.correction(key, name, direction, record.candidates[name].uncertainty)
        factor = track.add(ratio)
        if factor is not None:
            self._spread(key, name, direction, factor)
        elif is_first and ratio > expected * either:
            track.alternative = expected  # it may have been a spike
        assert track.level is not None
        self._neighbours.set(key, name, direction, track.level)
        return None if factor is None else Change(key, name, direction, factor)

    def forget(self, matches: Callable[[Key], bool] | None) -> None:
        """Drop the keys that match, or all."""
        if matches is None:
            self.records, self._neighbours, self._without_estimate = {}, Neighbours(), {}
            self._on_old_basis.clear()
            return
        for key in [key for key in self.records if matches(key)]:
            del self.records[key]
        self._neighbours.forget(matches)
        for key in [key for key in self._without_estimate if matches(key)]:
            del self._without_estimate[key]
        self._on_old_basis = {each for each in self._on_old_basis if not matches(each[0])}

    def rebase(self) -> None:
        """Forget what was thought of other keys, and keep the seconds of each, until its candidates are here."""
        self._neighbours = Neighbours()
        self._on_old_basis = {(key, name) for key, record in self.records.items() for name in record.arms}

    def state(self) -> State:
        """Return key's text -> kernel -> direction -> [seconds, estimate, samples]."""
        kept: dict[str, dict[str, dict[str, Sequence[float | None]]]] = {}
        for key, record in self.records.items():
            for name, arm in record.arms.items():
                for direction, track in arm.tracks.items():
                    if track.level is not None:
                        entry = kept.setdefault(key.text(), {}).setdefault(name, {})
                        estimate = None if (key, name) in self._on_old_basis else track.estimate
                        entry[direction] = [track.level * track.estimate, estimate, len(track)]
        return kept

    def restore(self, state: State, is_own: bool) -> None:
        """Add what `state` returned elsewhere; what was measured here stays.

        Raises:
            ValueError: It is no state; nothing is changed then.
        """
        for key, name, direction, entry in list(_entries(state)):
            if entry[1] is None:
                self._without_estimate.setdefault(key, []).append((name, direction, entry, is_own))
            else:
                self._take(key, name, direction, entry, is_own)

    def complete(self, key: Key, candidates: Iterable[Candidate]) -> None:
        """Give what was restored without its estimate the estimates of `candidates`, where they are of this key."""
        candidates = tuple(candidates)
        if self._on_old_basis:
            self._rebase(key, candidates)
        waiting = self._without_estimate.pop(key, None)
        if waiting is None:
            return
        known = {each.name: each for each in candidates}
        for name, direction, entry, is_own in waiting:
            estimate = known[name].estimate(direction) if name in known else 0.0
            if estimate:
                self._take(key, name, direction, (entry[0], estimate, entry[2]), is_own)
            else:
                self._without_estimate.setdefault(key, []).append((name, direction, entry, is_own))

    def _rebase(self, key: Key, candidates: Iterable[Candidate]) -> None:
        for each in candidates:
            if (key, each.name) not in self._on_old_basis:
                continue
            self._on_old_basis.remove((key, each.name))
            arm = self.record(key).arms.get(each.name, Arm())
            for direction, track in arm.tracks.items():
                if each.estimate(direction):
                    track.rebase(each.estimate(direction))
                if track.level is not None:
                    self._neighbours.set(key, each.name, direction, track.level)

    def _take(self, key: Key, name: str, direction: Direction, entry: Entry, is_own: bool) -> None:
        record = self.records.get(key) or Record()
        track = record.arms[name].tracks[direction] if name in record.arms else Track()
        seconds, estimate, samples = entry
        is_told = is_own and not track.warm  # it came from elsewhere too, and may be newer now
        if estimate is None or (track.level is not None and not is_told):
            return
        self._neighbours.set(key, name, direction, seconds / estimate, 0.0 if is_own else FOREIGN)
        if is_own:
            arm = self.record(key).arms.setdefault(name, Arm())
            arm.tracks[direction].fill(seconds, estimate, samples)

    def _ratio(
        self, key: Key, record: Record, candidate: Candidate, direction: Direction
    ) -> tuple[float, float, float, int]:
        """Return the factor on the estimate, its bounds, and how many samples say so."""
        name = candidate.name
        arm = record.arms.get(name)
        track = None if arm is None else arm.tracks[direction]
        if track is None or track.level is None:
            ratio, either = self._neighbours.correction(key, name, direction, candidate.uncertainty)
            return ratio, ratio / either, ratio * either, 0
        low, high = track.bounds()
        return track.level, low / (1 + OCTAVE * record.staleness(name, len(track))), high, len(track)

    def _spread(self, key: Key, name: str, direction: Direction, factor: float) -> None:
        """Doubt the other arms of this key, and apply a change to the backend wherever it was measured.

        It is applied to the direction that showed it: what slows both down shows in both, and would count twice.
        """
        for other, arm in self.records[key].arms.items():
            if other != name:
                arm.thin()
        backend = backend_of(name)
        self._neighbours.shift(key.group, backend, direction, factor)
        for each, record in self.records.items():
            if each.group == key.group:
                record.asked = 0
                for other, arm in record.arms.items():
                    if backend_of(other) == backend and (each, other) != (key, name):
                        arm.tracks[direction].scale(factor)


def _entries(state: State) -> Iterator[tuple[Key, str, Direction, Entry]]:
    for text, arms in state.items():
        key = Key.parse(text)
        for name, directions in arms.items():
            for direction in DIRECTIONS:
                if direction in directions:
                    yield key, name, direction, _checked(directions[direction])


def _checked(entry: Sequence[float | None]) -> Entry:
    if len(entry) == 3:
        seconds, estimate, samples = entry
        if _is_positive(seconds) and (estimate is None or _is_positive(estimate)) and _is_positive(samples):
            return float(seconds), estimate, int(samples)  # type: ignore[arg-type]  # checked
    raise ValueError(
        f"restore(...: {entry!r}): needs [seconds, estimate, samples], positive and finite; the estimate may be None."
    )


def _is_positive(number: object) -> bool:
    return isinstance(number, int | float) and 0 < number < math.inf
