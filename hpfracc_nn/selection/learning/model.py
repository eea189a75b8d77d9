"""The performance model: what the timed calls of kernels say, and what they let expect elsewhere.

Times are kept as ratios to the kernel's own estimate, so that the sizes that share a key share what was learnt and
not the time. Where nothing was measured, the estimate is corrected by what was measured nearby: a distance-weighted
mean of log(measured / estimated). Nadaraya (1964) and Watson (1964), kernel regression, with the kernel
1 / (1 + d)**2 of the distance d in octaves.

A key stands for the workloads that share their times, an arm for one kernel at one key, a direction for the forward or
the backward pass. A sample is one timed call; the level of an arm's samples is their 20 % quantile.
"""

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from hpfracc_nn.selection.workload import DIRECTIONS, Direction, Fact, Key

Reason = Literal["prior", "wisdom", "measured", "explore"]

_CERTAIN = 1e-6  # of the logarithm: below this deviation a time counts as known


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that accepts a workload, with its estimates before any measurement.

    Args:
        name: "backend/algorithm".
        seconds: Estimate of a call, forward only where `backward` is given.
        uncertainty: The factor either way within which the estimate is believed to be right.
        backward: Estimate of the backward pass, 0 where none can follow.
        compile_seconds: Seconds that its next call compiles, 0 where nothing is missing.
        code: A key of the compiled code; workloads with equal keys share one compilation. None:
            code for this key alone.
        weight: Factor on its time wherever kernels are compared, for an objective that counts more than time.
    """

    name: str
    seconds: float
    uncertainty: float
    backward: float = 0.0
    compile_seconds: float = 0.0
    code: Hashable = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.seconds < math.inf and 0 <= self.backward < math.inf and 0 <= self.compile_seconds < math.inf):
            raise ValueError(f"{self!r}: needs finite seconds > 0, backward >= 0 and compile_seconds >= 0.")
        if not self.uncertainty >= 1:
            raise ValueError(f"Candidate(uncertainty={self.uncertainty!r}): needs a factor >= 1.")

    def estimate(self, direction: Direction) -> float:
        """Return the estimated seconds of one pass."""
        return self.seconds if direction == "forward" else self.backward


class Decision(NamedTuple):
    """Which kernel runs now at a key, and for how long.

    Args:
        name: The kernel.
        reason: Best by the estimate ("prior"), by an earlier process ("wisdom") or by what was
            "measured", or tried to learn of it ("explore").
        is_trial: This call only: it must be timed, and the next one asks again.
        period: Ask again after this many calls.
        incumbent: What is believed to be the fastest; another one than `name` in a trial.
        basis: What this belief rests on; `reason` where nothing is tried.
        expected: The prediction for each candidate, by name.
    """

    name: str
    reason: Reason
    is_trial: bool
    period: int
    incumbent: str
    basis: Reason
    expected: Mapping[str, "Prediction"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is believed of one kernel at one key: forward and the backward that follows it.

    Args:
        seconds: The expected time.
        low: The least that the time may be.
        high: The most that the time may be.
        samples: How many timed calls this rests on, in the direction with fewer of them.

    Examples:
        >>> known, unknown = Prediction.within(1.1e-3, 1.0), Prediction.within(1.1e-3, 4.0)
        >>> # the unknown one may be worth a trial
        >>> known.expected_gain(now=1e-3), unknown.expected_gain(now=1e-3) > 0
        (0.0, True)
    """

    seconds: float
    low: float
    high: float
    samples: int

    @classmethod
    def within(cls, seconds: float, uncertainty: float, samples: int = 0) -> "Prediction":
        """Return the prediction of a time that is known to a factor `uncertainty` either way."""
        return cls(seconds, seconds / uncertainty, seconds * uncertainty, samples)

    def scaled(self, factor: float) -> "Prediction":
        """Return the prediction of a time that is `factor` times as long."""
        return Prediction(factor * self.seconds, factor * self.low, factor * self.high, self.samples)

    @property
    def uncertainty(self) -> float:
        """The factor between the expected time and the most that it may be."""
        return self.high / self.seconds if self.seconds else 1.0

    def expected_gain(self, now: float) -> float:
        """Return the expectation of max(0, now - time), what a call gains that takes `now` seconds without this kernel.

        The time is taken as lognormal, with its median at `seconds` and two standard deviations to
        either bound. So a kernel that is believed to be slower is worth something too, as long as
        little is known of it.

        Source: Mockus (1975), expected improvement; the formula is that of Black & Scholes (1973).
        """
        deviation = math.log(self.high / self.seconds) / 2
        if deviation < _CERTAIN:
            return max(0.0, now - self.seconds)
        d = math.log(now / self.seconds) / deviation
        mean = self.seconds * math.exp(deviation**2 / 2)
        return max(0.0, now * _normal(d) - mean * _normal(d - deviation))

    def expected_loss(self, now: float) -> float:
        """Return the expectation of max(0, time - now), what a trial costs, the time taken as in `expected_gain`."""
        deviation = math.log(self.high / self.seconds) / 2
        mean = self.seconds if deviation < _CERTAIN else self.seconds * math.exp(deviation**2 / 2)
        return max(0.0, mean - now + self.expected_gain(now))


def confidence(name: str, found: Mapping[str, Prediction]) -> float:
    """Return the probability that a kernel is no slower than another one, the least over all others; 1 without any.

    Times are taken as lognormal and independent, as in `Prediction.expected_gain`.
    """
    one = found[name]
    return min((_is_no_slower(one, other) for each, other in found.items() if each != name), default=1.0)


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change of a kernel's time at one key, in one direction: it takes `factor` times as long as before."""

    key: Key
    name: str
    direction: Direction
    factor: float


def _is_no_slower(one: Prediction, other: Prediction) -> float:
    deviation = math.hypot(*(math.log(each.high / each.seconds) / 2 for each in (one, other)))
    if deviation < _CERTAIN:
        return float(one.seconds <= other.seconds)
    return _normal(math.log(other.seconds / one.seconds) / deviation)


def _normal(d: float) -> float:
    return 0.5 * math.erfc(-d / math.sqrt(2))


KEPT_SAMPLES = 16
LONGEST_PERIOD = 256  # calls between decisions, and between calls that are timed


def quantile(seconds: Sequence[float]) -> float | None:
    """Return the 20 % quantile of `seconds` (an order statistic), or None where there are none.

    A busy machine only ever adds time: a low quantile sees past the spikes, and is not as
    easily fooled as the minimum.
    """
    return sorted(seconds)[len(seconds) // 5] if seconds else None


SLOW, FAST = 1.6, 0.6  # times the level: a ratio outside is an outlier
ODD_IN_A_ROW = 4  # outliers that make a change
FEW = 5  # samples: the 20 % quantile of fewer is the least of them
MEASURED = 3  # samples after which an arm counts as known
_ONE_SAMPLE = 0.3  # part by which a single sample may be off; of several, 1 / samples of it


class RatioSamples:
    """The last ratios of measured to estimated time, of one arm in one direction.

    Attributes:
        level: The 20 % quantile of the ratios, None where there are none.
        alternative: Another value that the level may have: if another key's change does not
            apply here, or if the one sample was a spike. None where nothing speaks against it.
        estimate: The estimate that the ratios refer to, in seconds.
        warm: Whether the first call is over.
    """

    __slots__ = ("_first", "_odd", "_ratios", "_unseen", "alternative", "estimate", "level", "warm")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=KEPT_SAMPLES)
        self._odd: list[float] = []
        self._first: float | None = None
        self.level: float | None = None
        self._unseen = False
        self.alternative: float | None = None
        self.estimate = 1.0
        self.warm = False

    def __len__(self) -> int:
        return len(self._ratios)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds (low, high) between which the level is believed to lie; there is a sample."""
        assert self.level is not None
        either = 1 + _ONE_SAMPLE / len(self._ratios)
        levels = [self.level] if self.alternative is None else [self.level, self.alternative]
        return min(min(levels) / either, *self._odd, math.inf), max(levels) * either

    @property
    def is_odd(self) -> bool:
        """Whether the last sample was far from the level."""
        return bool(self._odd)

    def add(self, ratio: float) -> float | None:
        """Keep one ratio; return the factor of a change if this ratio completes one, else None.

        After a change only the samples that showed it are kept.
        """
        before = self.level
        if before is None:
            self._keep([ratio])
            return None
        if self._unseen and self.alternative is not None and _is_nearer(ratio, self.alternative, before):
            self._keep([ratio])  # the change of another key does not apply here
            return None
        self._unseen = False
        self.alternative = None
        is_slow, is_fast = ratio > SLOW * before, ratio < FAST * before
        if not (is_slow or is_fast):
            self._odd = []
        elif self._odd and (self._odd[-1] > before) != is_slow:
            self._odd = [ratio]
        else:
            self._odd.append(ratio)
        if len(self._odd) == ODD_IN_A_ROW:
            self._first = None
            self._keep(self._odd)
            assert self.level is not None
            return self.level / before
        self._ratios.append(ratio)
        self.level = self._bounded()
        return None

    def begin(self, ratio: float) -> None:
        """Keep the ratio of the first call: it is no sample, but as long as there are few the level is not above it."""
        self.warm, self._first = True, ratio

    def thin(self) -> None:
        """Replace all samples by one, equal to the level, so that the arm counts as hardly known."""
        if self.level is not None:
            self._keep([self.level])

    def scale(self, factor: float) -> None:
        """Multiply the level by `factor`, the change at another key, until a sample says that it does not hold here."""
        if self.level is not None:
            old, self._first = self.level, None
            self._keep([old * factor])
            self._unseen, self.alternative = True, old

    def fill(self, seconds: float, estimate: float, samples: int) -> None:
        """Replace all ratios by the time that another process measured, as so many equal samples."""
        self._keep([seconds / estimate] * max(1, min(samples, KEPT_SAMPLES)))
        self.estimate = estimate

    def rebase(self, estimate: float) -> None:
        """Let the ratios refer to another estimate; the seconds stay the same."""
        factor = self.estimate / estimate
        self._ratios = deque((factor * ratio for ratio in self._ratios), maxlen=KEPT_SAMPLES)
        self._odd = [factor * ratio for ratio in self._odd]
        self._first, self.level, self.alternative = (
            None if ratio is None else factor * ratio for ratio in (self._first, self.level, self.alternative)
        )
        self.estimate = estimate

    def _keep(self, ratios: list[float]) -> None:
        self._ratios = deque(ratios, maxlen=KEPT_SAMPLES)
        self._odd, self._unseen, self.alternative = [], False, None
        self.level = self._bounded()

    def _bounded(self) -> float | None:
        """Return the level, None without samples; of few, at most the ratio of the first call.

        The first call includes one-time costs, so that its ratio is an upper bound.
        """
        level = quantile(self._ratios)
        if level is None or self._first is None or len(self._ratios) >= FEW:
            return level
        return min(level, self._first)


def _is_nearer(ratio: float, one: float, other: float) -> bool:
    """Return whether `ratio` is nearer to `one` than to `other` on a logarithmic scale."""
    return abs(math.log(ratio / one)) < abs(math.log(ratio / other))


class Arm:
    """One kernel at one key.

    Attributes:
        tracks: The ratios, by direction.
        last: Calls of the key when the kernel was last timed.
    """

    __slots__ = ("last", "tracks")

    def __init__(self) -> None:
        self.tracks: dict[Direction, RatioSamples] = {direction: RatioSamples() for direction in DIRECTIONS}
        self.last = 0

    @property
    def is_odd(self) -> bool:
        return any(track.is_odd for track in self.tracks.values())

    @property
    def is_warm(self) -> bool:
        """Whether the kernel ran at this key in this process."""
        return any(track.warm for track in self.tracks.values())

    def thin(self) -> None:
        """Keep one sample in each direction; see `RatioSamples.thin`."""
        for track in self.tracks.values():
            track.thin()


OCTAVE = 0.5  # what an octave of distance adds to the uncertainty u, a factor
OTHER_DIRECTION = 1.0  # octaves: the distance at which the other pass of the same call counts
PRIOR = 6.0  # octaves: the distance at which the estimate itself counts
FOREIGN = 2.0  # octaves: the distance at which another machine's time at the same key counts; u = 2
NEAREST = 16  # keys of an arm that are looked at: the newest; a decision must stay cheap

_Place = tuple[str, Direction]


def backend_of(name: str) -> str:
    """Return the backend in a kernel's name."""
    return name.partition("/")[0]


class NearbyRatios:
    """log(measured / estimated) of each kernel at the keys where it was measured, and the correction at other keys."""

    def __init__(self) -> None:
        self._logs: dict[tuple[Fact, ...], dict[_Place, dict[Key, tuple[float, float]]]] = {}
        self._shifts: dict[tuple[Fact, ...], dict[_Place, float]] = {}  # by backend

    def set(self, key: Key, name: str, direction: Direction, ratio: float, penalty: float = 0.0) -> None:
        """Keep the ratio of a kernel at a key; `penalty` octaves are added to the distance from there to any key."""
        logs = self._logs.setdefault(key.group, {}).setdefault((name, direction), {})
        logs.pop(key, None)  # so that the newest is the last
        logs[key] = (math.log(ratio), penalty)
        if len(logs) > NEAREST:
            del logs[next(iter(logs))]

    def correction(self, key: Key, name: str, direction: Direction, most: float) -> tuple[float, float]:
        """Return the factor that corrects the estimate at a key, and its uncertainty: a factor u in [1, most]."""
        logs = self._logs.get(key.group)
        if logs is None:  # nothing was measured in this group, and so nothing changed there
            return 1.0, most
        weight = 1 / (1 + PRIOR) ** 2
        total = 0.0
        if self._shifts:
            total = weight * self._shifts.get(key.group, {}).get((backend_of(name), direction), 0.0)
        nearest = math.inf
        for each in DIRECTIONS:
            apart = 0.0 if each == direction else OTHER_DIRECTION
            for other, (log, penalty) in logs.get((name, each), {}).items():
                distance = key.distance(other) + penalty + apart
                nearest = min(nearest, distance)
                share = 1 / (1 + distance) ** 2
                weight += share
                total += share * log
        return math.exp(total / weight), min(most, 1 + OCTAVE * nearest)

    def shift(self, group: tuple[Fact, ...], backend: str, direction: Direction, factor: float) -> None:
        """Multiply by `factor`, a lasting change, all ratios of one backend in one direction and one group of keys."""
        log = math.log(factor)
        shifts, place = self._shifts.setdefault(group, {}), (backend, direction)
        shifts[place] = shifts.get(place, 0.0) + log
        for (name, of), logs in self._logs.get(group, {}).items():
            if (backend_of(name), of) == place:
                for key, (old, penalty) in logs.items():
                    logs[key] = (old + log, penalty)

    def forget(self, matches: Callable[[Key], bool]) -> None:
        """Drop what was measured at the keys that match."""
        for arms in self._logs.values():
            for logs in arms.values():
                for key in [key for key in logs if matches(key)]:
                    del logs[key]


Entry = tuple[float, float | None, int]  # seconds, estimate, samples
State = Mapping[str, Mapping[str, Mapping[Direction, Entry]]]  # see `PerformanceModel.state`

MOST_KEYS = 4096
STALE = 64  # calls of a key, for each sample of an arm, after which its time is doubted


@dataclass(slots=True)
class KeyState:
    """The record of one key: the arms that were timed, and how the last decision went.

    Attributes:
        arms: The arms that were timed, by the kernel's name.
        candidates: The candidates of the last decision, by the kernel's name.
        incumbent: The arm believed to be the fastest; "" before the first decision.
        reason: What that belief rested on at the last decision.
        expected: The incumbent's predicted seconds at the last decision, forward and backward.
        trial: The arm that the last decision tries, if any.
        compiling: Seconds that the call of the last decision compiles.
        calls: Calls so far.
        backwards: Backward passes for each call, lately.
        period: Calls for which the last decision holds.
        decisions: How many there were since the incumbent changed.
        born: Exchanges of wisdom before the first decision.
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
    decisions: int = 0
    born: int = 0

    def staleness(self, name: str, samples: int) -> float:
        """Return how old an arm's samples are, in octaves: log2(calls since the last one / (STALE * samples)), at least
        0.

        It is 0 for the incumbent, which is timed regularly.
        """
        if name == self.incumbent or not samples:
            return 0.0
        return max(0.0, math.log2(max(1, self.calls - self.arms[name].last) / (STALE * samples)))


class PerformanceModel:
    """The records of all keys, and what they say of one another."""

    def __init__(self) -> None:
        self.records: dict[Key, KeyState] = {}
        self._nearby = NearbyRatios()
        self._without_estimate: dict[Key, list[tuple[str, Direction, Entry, bool]]] = {}
        self._on_old_basis: set[tuple[Key, str]] = set()  # arms, until they are candidates again

    def record(self, key: Key, rounds: int = 0) -> KeyState:
        """Return the record of `key`, a new one where there is none; of too many, the least recently used is dropped.

        Args:
            key: The key.
            rounds: Exchanges of wisdom so far, which a new record notes.
        """
        record = self.records.pop(key, None)
        if record is None:
            if len(self.records) >= MOST_KEYS:
                oldest = next(iter(self.records))
                del self.records[oldest]
                self._nearby.forget(oldest.__eq__)
            record = KeyState(born=rounds)
        self.records[key] = record  # so that it is the last
        return record

    def predict(self, key: Key, candidates: Sequence[Candidate]) -> dict[str, Prediction]:
        """Return the prediction for each candidate: forward, plus backward times how often that pass follows."""
        self._complete(key, candidates)
        record = self.records.get(key) or KeyState()
        return {each.name: self._predicted(key, record, each) for each in candidates}

    def _predicted(self, key: Key, record: KeyState, candidate: Candidate) -> Prediction:
        estimate, backward = candidate.seconds, record.backwards * candidate.backward
        ratio, low, high, samples = self._ratio(key, record, candidate, "forward")
        if not backward:
            return Prediction(ratio * estimate, low * estimate, high * estimate, samples)
        then, least, most, count = self._ratio(key, record, candidate, "backward")
        return Prediction(
            ratio * estimate + then * backward,
            low * estimate + least * backward,
            high * estimate + most * backward,
            min(samples, count),
        )

    def expected(self, key: Key, record: KeyState, candidate: Candidate) -> tuple[float, float]:
        """Return a candidate's predicted seconds of the forward and of the backward pass, 0 where none can follow."""
        forward = candidate.seconds * self._ratio(key, record, candidate, "forward")[0]
        if not candidate.backward:
            return forward, 0.0
        return forward, candidate.backward * self._ratio(key, record, candidate, "backward")[0]

    def learn(self, key: Key, name: str, direction: Direction, seconds: float, estimate: float) -> Change | None:
        """Learn one time of a kernel; return a Change if this time reveals one."""
        record = self.records[key]
        arm = record.arms.setdefault(name, Arm())
        arm.last = record.calls
        track, ratio = arm.tracks[direction], seconds / estimate
        track.estimate = estimate
        if not track.warm:
            track.begin(ratio)
            return None
        if track.level is None:
            expected, either = self._nearby.correction(key, name, direction, record.candidates[name].uncertainty)
            factor = track.add(ratio)
            if ratio > expected * either:
                track.alternative = expected  # it may have been a spike
        else:
            factor = track.add(ratio)
            if factor is not None:
                self._spread(key, name, direction, factor)
        assert track.level is not None
        self._nearby.set(key, name, direction, track.level)
        return None if factor is None else Change(key, name, direction, factor)

    def forget(self, matches: Callable[[Key], bool] | None) -> None:
        """Drop what is known of the keys that match, of all where `matches` is None."""
        if matches is None:
            self.records, self._nearby, self._without_estimate = {}, NearbyRatios(), {}
            self._on_old_basis.clear()
            return
        for key in [key for key in self.records if matches(key)]:
            del self.records[key]
        self._nearby.forget(matches)
        for key in [key for key in self._without_estimate if matches(key)]:
            del self._without_estimate[key]
        self._on_old_basis = {each for each in self._on_old_basis if not matches(each[0])}

    def rebase(self) -> None:
        """Prepare for other estimates: drop the corrections, which rest on the old ones.

        Measured seconds stay; they are set in relation to a kernel's new estimate when the kernel is a candidate again.
        """
        self._nearby = NearbyRatios()
        self._on_old_basis = {(key, name) for key, record in self.records.items() for name in record.arms}

    def state(self) -> State:
        """Return what was measured: key's text -> kernel -> direction -> (seconds, estimate, samples)."""
        kept: dict[str, dict[str, dict[Direction, Entry]]] = {}
        for key, record in self.records.items():
            for name, arm in record.arms.items():
                for direction, track in arm.tracks.items():
                    if track.level is not None:
                        entry = kept.setdefault(key.text(), {}).setdefault(name, {})
                        estimate = None if (key, name) in self._on_old_basis else track.estimate
                        entry[direction] = (track.level * track.estimate, estimate, len(track))
        return kept

    def restore(self, state: State, is_own: bool) -> None:
        """Add what `state` returned in another process, on this machine if `is_own`; what was measured here stays."""
        for text, arms in state.items():
            key = Key.parse(text)
            for name, directions in arms.items():
                for direction, entry in directions.items():
                    if entry[1] is None:
                        self._without_estimate.setdefault(key, []).append((name, direction, entry, is_own))
                    else:
                        self._take(key, name, direction, entry, is_own)

    def _complete(self, key: Key, candidates: Iterable[Candidate]) -> None:
        """Take in the times of a key that were restored without estimates, relative to those of `candidates`.

        A ratio needs the kernel's own estimate, which is known only once a workload of the key is planned here.
        """
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
                    self._nearby.set(key, each.name, direction, track.level)

    def _take(self, key: Key, name: str, direction: Direction, entry: Entry, is_own: bool) -> None:
        record = self.records.get(key) or KeyState()
        track = record.arms[name].tracks[direction] if name in record.arms else RatioSamples()
        seconds, estimate, samples = entry
        is_told = is_own and not track.warm  # what is kept is another process's too, and may be older
        if estimate is None or (track.level is not None and not is_told):
            return
        self._nearby.set(key, name, direction, seconds / estimate, 0.0 if is_own else FOREIGN)
        if is_own:
            arm = self.record(key).arms.setdefault(name, Arm())
            arm.tracks[direction].fill(seconds, estimate, samples)

    def _ratio(
        self, key: Key, record: KeyState, candidate: Candidate, direction: Direction
    ) -> tuple[float, float, float, int]:
        """Return the expected ratio of measured to estimated time, its two bounds, and the number of samples.

        Without samples of the kernel at this key, the ratio comes from other keys, and the number is 0.
        """
        name = candidate.name
        arm = record.arms.get(name)
        if arm is None or (track := arm.tracks[direction]).level is None:
            ratio, either = self._nearby.correction(key, name, direction, candidate.uncertainty)
            return ratio, ratio / either, ratio * either, 0
        low, high = track.bounds()
        return track.level, low / (1 + OCTAVE * record.staleness(name, len(track))), high, len(track)

    def _spread(self, key: Key, name: str, direction: Direction, factor: float) -> None:
        """Apply a lasting change in a kernel's speed to its whole backend.

        The other arms of the key count as hardly known from then on.

        Only the direction in which the change was seen is corrected: a change that slows both is seen in both.

        Args:
            key: Where the change was seen.
            name: The kernel that became faster or slower.
            direction: The pass in which it did.
            factor: Its new time over its old one.
        """
        for other, arm in self.records[key].arms.items():
            if other != name:
                arm.thin()
        backend = backend_of(name)
        self._nearby.shift(key.group, backend, direction, factor)
        for each, record in self.records.items():
            if each.group == key.group:
                record.decisions = 0
                for other, arm in record.arms.items():
                    if backend_of(other) == backend and (each, other) != (key, name):
                        arm.tracks[direction].scale(factor)
