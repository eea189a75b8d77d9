"""Which kernel runs now: the decision, apart from clocks, threads and kernels.

It is told estimates and times and answers names, so that a replay of recorded times decides by the
very code that decides in a running model. Callers hold a lock where threads share it.

A key's *incumbent* is the arm (kernel) believed to be the fastest. Another arm replaces it when it is
faster by `switch_margin`. An arm that may be faster, because little is known of it, is tried on live
calls while the time lost that way stays below `explore_fraction` of all time. Code that must be
compiled first is bought when it would have gained its price in the calls so far (ski rental; Karlin,
Manasse, Rudolph & Sleator, 1988), the gain being an expectation over what is not known of the arm.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hpfracc_nn.selection.arms import MEASURED, Arm, Track
from hpfracc_nn.selection.bucket import Key
from hpfracc_nn.selection.budget import Budget
from hpfracc_nn.selection.decision import Candidate, Change, Decision, Prediction, Reason
from hpfracc_nn.selection.estimate import FOREIGN, OCTAVE, Neighbours, backend_of
from hpfracc_nn.selection.rental import Rental, expected_gain
from hpfracc_nn.selection.sampling import KEPT_SAMPLES, LONGEST_PERIOD
from hpfracc_nn.selection.workload import DIRECTIONS, Direction

Trust = Literal["own", "prior"]
State = Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]  # see `Policy.state`

MOST_KEYS = 4096
WARM_UP = 2  # decisions after the first for an incumbent: one sample is dropped, one kept
AFTER_CHANGE = 4  # the longest period while little is known
STALE = 64  # calls of a key for each sample of an arm after which, without another, its time is doubted
REMEMBERED = 64  # calls over which the share of backward passes is averaged


@dataclass(slots=True)
class _Record:
    """What is kept for one key."""

    arms: dict[str, Arm] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)  # at the last decision
    incumbent: str = ""
    expected: tuple[float, float] = (0.0, 0.0)  # of the incumbent at the last decision, forward and backward
    trial: str | None = None
    compiles: float = 0.0  # seconds, in the last decision's call
    calls: int = 0
    backwards: float = 1.0  # of each call, lately
    period: int = 1
    asked: int = 0  # decisions since the incumbent is another


class Policy:
    """Decides, learns, and predicts.

    Args:
        explore_fraction: Most of all time that trials may cost.
        allowance: Seconds that they may cost besides.
        switch_margin: Part of its time by which the incumbent must be beaten.
        learn: False: nothing is tried or bought, and times that are told change nothing.

    Attributes:
        budget: What was spent, and on what.

    Raises:
        ValueError: An argument is out of its range.
    """

    def __init__(
        self,
        explore_fraction: float = 0.02,
        allowance: float = 1e-3,
        switch_margin: float = 0.1,
        learn: bool = True,
    ):
        if not 0 <= switch_margin < 1:
            raise ValueError(f"switch_margin={switch_margin!r}: needs 0 <= switch_margin < 1.")
        self.switch_margin = switch_margin
        self.learn = learn
        self.budget = Budget(explore_fraction, allowance)
        self._records: dict[Key, _Record] = {}
        self._neighbours = Neighbours()
        self._rental = Rental()

    def decide(
        self, key: Key, candidates: Sequence[Candidate], calls: int = 1, backwards: int | None = None
    ) -> Decision:
        """Return what runs now, and when to ask again.

        Args:
            key: See `bucket.key_of`.
            candidates: Those that may run: accepted, not quarantined.
            calls: Calls of this key since the last decision, this one included.
            backwards: How many of them were followed by a backward pass; None: all.

        Raises:
            ValueError: There is no candidate.
        """
        if not candidates:
            raise ValueError("Policy.decide(candidates=[]): needs at least one; a caller raises where all are refused.")
        record = self._record(key)
        self._count(record, calls, calls if backwards is None else backwards)
        record.candidates = {each.name: each for each in candidates}
        found = self.predict(key, candidates)
        ready = [each.name for each in candidates if not each.compile_seconds]
        changed = self._choose(record, found, ready or [_soonest(candidates)])
        record.trial = None
        if self.learn and len(candidates) > 1:
            record.trial = self._purchase(key, record, calls, found) or self._trial(record, found, ready)
        name = record.trial or record.incumbent
        record.compiles = record.candidates[name].compile_seconds
        record.expected = self._expected(key, record)
        if record.trial:
            return Decision(name, "explore", True, 1, record.incumbent)
        record.period = self._period(record, found[name].samples, changed)
        return Decision(name, self._reason(record, found), False, record.period, name)

    def observe(
        self,
        key: Key,
        name: str,
        seconds: float,
        *,
        direction: Direction = "forward",
        estimate: float | None = None,
        keep: bool = True,
    ) -> Change | None:
        """Learn that a call took `seconds`; return a change if this is what reveals one.

        The first sample of each arm at each key is counted and not believed: it paid for
        compilation, prepared weights, page faults and cold caches.

        Args:
            key: As it was decided for.
            name: What ran.
            seconds: Its time in this direction.
            direction: Of the pass.
            estimate: Of exactly this call; None is the last decision's.
            keep: False: it was preempted; it counts as spent and says nothing.

        Raises:
            ValueError: The time is not positive and finite, or the key or the kernel was never decided on.
        """
        if not 0 < seconds < math.inf:
            raise ValueError(f"Policy.observe(seconds={seconds!r}): needs a positive, finite time.")
        record = self._records.get(key)
        if record is None or name not in record.candidates:
            raise ValueError(f"Policy.observe(name={name!r}): needs a kernel that was a candidate of {key}.")
        self._spend(record, name, seconds, direction)
        if estimate is None:
            estimate = _estimate(record.candidates[name], direction)
        arm = record.arms.setdefault(name, Arm())
        arm.last = record.calls
        track = arm.tracks[direction]
        if not (self.learn and keep and estimate > 0):
            return None
        if not track.warm:
            track.begin(seconds / estimate)
            return None
        track.estimate = estimate
        return self._learn(key, name, direction, track, seconds / estimate)

    def predict(self, key: Key, candidates: Iterable[Candidate]) -> dict[str, Prediction]:
        """Return what is believed of each candidate; nothing is changed."""
        record = self._records.get(key) or _Record()
        return {each.name: self._predict(key, record, each) for each in candidates}

    def forget(self, matches: Callable[[Key], bool] | None = None) -> None:
        """Drop what is known of the keys that match, of all without an argument; the ledger stays."""
        for key in [key for key in self._records if matches is None or matches(key)]:
            self._drop(key)

    def state(self) -> State:
        """Return what was measured: key's text -> kernel -> direction -> [seconds, estimate, samples].

        Only the ratio of the two times means something to `restore`: keep the calibration with it.
        """
        kept: dict[str, dict[str, dict[str, list[float]]]] = {}
        for key, record in self._records.items():
            for name, arm in record.arms.items():
                for direction, track in arm.tracks.items():
                    if track.level is not None:
                        estimate = track.estimate
                        entry = kept.setdefault(key.text(), {}).setdefault(name, {})
                        entry[direction] = [track.level * estimate, estimate, len(track)]
        return kept

    def restore(self, state: State, trust: Trust = "own") -> None:
        """Add what another process measured; what this one measured itself stays.

        Args:
            state: What `state` returned.
            trust: "own": measured on this machine, as good as if measured here. "prior": on
                another; it corrects estimates as a neighbour two octaves away does.

        Raises:
            ValueError: It is no state; nothing is changed then.
        """
        entries = list(_entries(state))
        for key, name, direction, ratio, samples in entries:
            if trust == "prior":
                self._neighbours.set(key, name, direction, ratio, FOREIGN)
                continue
            record = self._record(key)
            track = record.arms.setdefault(name, Arm()).tracks[direction]
            if track.level is None:
                track.fill(ratio, samples)
                self._neighbours.set(key, name, direction, ratio)

    def _record(self, key: Key) -> _Record:
        record = self._records.get(key)
        if record is None:
            if len(self._records) >= MOST_KEYS:
                self._drop(next(iter(self._records)))
            record = self._records[key] = _Record()
        return record

    def _drop(self, key: Key) -> None:
        del self._records[key]
        self._neighbours.forget(key)

    def _count(self, record: _Record, calls: int, backwards: int) -> None:
        """Account for the calls since the last decision; a trial was accounted for when it was observed."""
        record.backwards += min(1.0, calls / REMEMBERED) * (backwards / calls - record.backwards)
        untold = calls - 1 if record.trial else calls
        self.budget.total += untold * (record.expected[0] + record.backwards * record.expected[1])
        record.calls += calls

    def _predict(self, key: Key, record: _Record, candidate: Candidate) -> Prediction:
        """Add up both directions; the backward one as often as it follows."""
        seconds = low = high = 0.0
        samples = KEPT_SAMPLES
        for direction, share in (("forward", 1.0), ("backward", record.backwards)):
            estimate = share * _estimate(candidate, direction)
            if estimate:
                ratio, least, most, count = self._ratio(key, record, candidate, direction)
                seconds, low, high = seconds + ratio * estimate, low + least * estimate, high + most * estimate
                samples = min(samples, count)
        return Prediction(seconds, low, high, samples)

    def _ratio(
        self, key: Key, record: _Record, candidate: Candidate, direction: Direction
    ) -> tuple[float, float, float, int]:
        """Return the factor on the estimate, its bounds, and how many samples say so."""
        arm = record.arms.get(candidate.name)
        track = None if arm is None else arm.tracks[direction]
        if arm is None or track is None or track.level is None:
            ratio, either = self._neighbours.correction(key, candidate.name, direction, candidate.uncertainty)
            return ratio, ratio / either, ratio * either, 0
        low, high = track.bounds()
        if candidate.name != record.incumbent:
            low /= 1 + OCTAVE * max(0.0, _staleness(record, arm, len(track)))
        return track.level, low, high, len(track)

    def _expected(self, key: Key, record: _Record) -> tuple[float, float]:
        incumbent = record.candidates[record.incumbent]
        forward, backward = (
            _estimate(incumbent, direction) * self._ratio(key, record, incumbent, direction)[0]
            for direction in DIRECTIONS
        )
        return forward, backward

    def _choose(self, record: _Record, found: Mapping[str, Prediction], ready: Sequence[str]) -> bool:
        """Set the incumbent; return whether it is another than before."""
        before = record.incumbent
        best = min(ready, key=lambda name: found[name].seconds)
        if before in ready and found[best].seconds >= (1 - self.switch_margin) * found[before].seconds:
            return False
        record.incumbent = best
        return best != before

    def _trial(self, record: _Record, found: Mapping[str, Prediction], ready: Sequence[str]) -> str | None:
        """Return the arm to try, the one that may be the fastest, if one may be faster and the budget allows it."""
        now = found[record.incumbent]
        if not now.samples:
            return None
        bar = (1 - self.switch_margin) * now.seconds
        hopeful = [name for name in ready if name != record.incumbent and found[name].low < bar]
        for name in sorted(hopeful, key=lambda name: found[name].low):
            if self._is_open(record, name, found[name].samples) and self.budget.allows(max(0.0, found[name].high - now.seconds)):
                return name
        return None

    def _is_open(self, record: _Record, name: str, samples: int) -> bool:
        """Whether there is something to learn of an arm."""
        if samples < MEASURED:
            return True
        arm = record.arms[name]
        return arm.is_odd or _staleness(record, arm, samples) > 0

    def _purchase(
        self, key: Key, record: _Record, calls: int, found: Mapping[str, Prediction]
    ) -> str | None:
        """Return the arm whose code has become worth its price and may be faster here."""
        now = found[record.incumbent].seconds
        best, most = None, 1.0
        for each in record.candidates.values():
            if each.compile_seconds and each.name != record.incumbent:
                gain = calls * expected_gain(now, found[each.name])
                worth = self._rental.add(_code(key, each), gain) / each.compile_seconds
                if worth >= most and found[each.name].low < now:
                    best, most = each, worth
        if best is None:
            return None
        self._rental.bought(_code(key, best))
        return best.name

    def _period(self, record: _Record, samples: int, changed: bool) -> int:
        """Return 1 until a new incumbent was timed, then twice as many calls each time; fewer after an odd sample."""
        record.asked = 0 if changed else record.asked + 1
        if record.asked <= WARM_UP:
            return 1
        is_odd = record.incumbent in record.arms and record.arms[record.incumbent].is_odd
        if is_odd and record.period > AFTER_CHANGE:
            return 1
        return min(2 * record.period, LONGEST_PERIOD if samples >= MEASURED else AFTER_CHANGE)

    def _reason(self, record: _Record, found: Mapping[str, Prediction]) -> Reason:
        if len(found) == 1:
            return "only"
        if not found[record.incumbent].samples:
            return "prior"
        return "measured" if record.arms[record.incumbent].is_warm else "wisdom"

    def _spend(self, record: _Record, name: str, seconds: float, direction: Direction) -> None:
        expected = record.expected[DIRECTIONS.index(direction)]
        if record.compiles:
            self.budget.compiled += min(seconds, record.compiles)
            seconds, record.compiles = max(0.0, seconds - record.compiles), 0.0
        if name == record.trial:
            self.budget.total += seconds
            self.budget.explored += max(0.0, seconds - expected)

    def _learn(self, key: Key, name: str, direction: Direction, track: Track, ratio: float) -> Change | None:
        is_first = track.level is None
        expected, either = self._neighbours.correction(key, name, direction, math.inf)
        factor = track.add(ratio)
        if factor is not None:
            self._spread(key, name, factor)
        elif is_first and either < math.inf and ratio > expected * either:
            track.alternative = expected  # it may have been a spike
        assert track.level is not None
        self._neighbours.set(key, name, direction, track.level)
        return None if factor is None else Change(key, name, direction, factor)

    def _spread(self, key: Key, name: str, factor: float) -> None:
        """Doubt the other arms of this key, and apply a change to the backend wherever it was measured."""
        for other, arm in self._records[key].arms.items():
            if other != name:
                arm.thin()
        backend = backend_of(name)
        self._neighbours.shift(key.group, backend, factor)
        for each, record in self._records.items():
            if each.group == key.group:
                record.period = min(record.period, AFTER_CHANGE)
                for other, arm in record.arms.items():
                    if backend_of(other) == backend and (each, other) != (key, name):
                        arm.scale(factor)


def _code(key: Key, candidate: Candidate) -> Hashable:
    return (key, candidate.name) if candidate.code is None else candidate.code


def _estimate(candidate: Candidate, direction: Direction) -> float:
    return candidate.seconds if direction == "forward" else candidate.backward


def _staleness(record: _Record, arm: Arm, samples: int) -> float:
    """Return the octaves by which an arm was not timed for too long."""
    return math.log2(max(1, record.calls - arm.last) / (STALE * samples))


def _soonest(candidates: Iterable[Candidate]) -> str:
    """Return whose first result is there first, where all must compile."""
    return min(candidates, key=lambda each: each.compile_seconds + each.seconds + each.backward).name
