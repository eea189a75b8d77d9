"""What the timed calls of one kernel say at one key, one direction apart from the other.

Times are kept as ratios to the kernel's own estimate, so that the sizes that share a key share
what was learnt and not the time.
"""

import math
from collections import deque

from hpfracc_nn.selection.sampling import KEPT_SAMPLES, quantile
from hpfracc_nn.selection.workload import DIRECTIONS, Direction

SLOW, FAST = 1.6, 0.6  # times the level: what lies outside is odd
ODD_IN_A_ROW = 4  # make a change
FEW = 5  # below it the 20 % quantile is the least
MEASURED = 3  # samples after which an arm counts as known
_ONE_SAMPLE = 0.3  # how far off a single sample may be; it falls as 1 / samples


class Track:
    """The last ratios of one direction.

    Attributes:
        alternative: What the level is if it is not what it seems: if another key's change does not
            apply here, or if the one sample was a spike. None where nothing speaks against it.
        estimate: What the ratios were last taken of, in seconds.
        warm: Whether the first call is over.
    """

    __slots__ = ("_first", "_level", "_odd", "_ratios", "_unseen", "alternative", "estimate", "warm")

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=KEPT_SAMPLES)
        self._odd: list[float] = []
        self._first: float | None = None
        self._level: float | None = None
        self._unseen = False
        self.alternative: float | None = None
        self.estimate = 1.0
        self.warm = False

    def __len__(self) -> int:
        return len(self._ratios)

    @property
    def level(self) -> float | None:
        """The 20 % quantile of the ratios, None where there are none."""
        return self._level

    def bounds(self) -> tuple[float, float]:
        """Return between what the level is believed to lie.

        Raises:
            ValueError: There is no sample.
        """
        if self._level is None:
            raise ValueError("Track.bounds(): needs a sample; ask for `level` first.")
        either = 1 + _ONE_SAMPLE / len(self._ratios)
        levels = [self._level] if self.alternative is None else [self._level, self.alternative]
        return min(min(levels) / either, *self._odd, math.inf), max(levels) * either

    @property
    def is_odd(self) -> bool:
        """Whether the last sample was far from the level."""
        return bool(self._odd)

    def add(self, ratio: float) -> float | None:
        """Keep one ratio; return the factor of a change, if this is what completes one.

        After a change only the samples that showed it are kept.
        """
        before = self._level
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
            assert self._level is not None
            return self._level / before
        self._ratios.append(ratio)
        self._level = self._bounded()
        return None

    def begin(self, ratio: float) -> None:
        """Take the first call: no sample, but the level is not above it."""
        self.warm, self._first = True, ratio

    def thin(self) -> None:
        """Keep one sample, so that the arm counts as hardly known."""
        if self._level is not None:
            self._keep([self._level])

    def scale(self, factor: float) -> None:
        """Believe, until a sample says otherwise, that `factor` applies here too."""
        if self._level is not None:
            old, self._first = self._level, None
            self._keep([old * factor])
            self._unseen, self.alternative = True, old

    def fill(self, seconds: float, estimate: float, samples: int) -> None:
        """Start from what an earlier process measured."""
        self._keep([seconds / estimate] * max(1, min(samples, KEPT_SAMPLES)))
        self.estimate = estimate

    def rebase(self, estimate: float) -> None:
        """Take the ratios of another estimate: the seconds stay what they are."""
        factor = self.estimate / estimate
        self._ratios = deque((factor * ratio for ratio in self._ratios), maxlen=KEPT_SAMPLES)
        self._odd = [factor * ratio for ratio in self._odd]
        self._first, self._level, self.alternative = (
            None if ratio is None else factor * ratio for ratio in (self._first, self._level, self.alternative)
        )
        self.estimate = estimate

    def _keep(self, ratios: list[float]) -> None:
        self._ratios = deque(ratios, maxlen=KEPT_SAMPLES)
        self._odd, self._unseen, self.alternative = [], False, None
        self._level = self._bounded()

    def _bounded(self) -> float | None:
        """The quantile of few samples is the least; the first call, which took longer than it should, bounds it too."""
        level = quantile(self._ratios)
        if level is None or self._first is None or len(self._ratios) >= FEW:
            return level
        return min(level, self._first)


def _is_nearer(ratio: float, one: float, other: float) -> bool:
    """Whether `ratio` is nearer to one than to the other, by factors."""
    return abs(math.log(ratio / one)) < abs(math.log(ratio / other))


class Arm:
    """One kernel at one key."""

    __slots__ = ("last", "tracks")

    def __init__(self) -> None:
        self.tracks: dict[Direction, Track] = {direction: Track() for direction in DIRECTIONS}
        self.last = 0  # calls of the key when it was last timed

    @property
    def is_odd(self) -> bool:
        return any(track.is_odd for track in self.tracks.values())

    @property
    def is_warm(self) -> bool:
        """Whether it ran in this process."""
        return any(track.warm for track in self.tracks.values())

    def thin(self) -> None:
        """See `Track.thin`."""
        for track in self.tracks.values():
            track.thin()
