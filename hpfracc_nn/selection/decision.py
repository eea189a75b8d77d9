"""The values that go into a decision and come out of it."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from hpfracc_nn.selection.bucket import Key
from hpfracc_nn.selection.workload import Direction

Reason = Literal["prior", "wisdom", "measured", "explore"]

_CERTAIN = 1e-6  # of the logarithm: below this deviation a time counts as known


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel that accepts a workload, and what is thought of it before any measurement.

    Args:
        name: "backend/algorithm".
        seconds: Estimate of a call, forward only where `backward` is given.
        uncertainty: The factor either way within which the estimate is believed to be right.
        backward: Estimate of the backward pass, 0 where none can follow.
        compile_seconds: What its next call compiles, 0 where nothing.
        code: What that compilation makes; workloads with equal code share one compilation. None:
            this key's own.
    """

    name: str
    seconds: float
    uncertainty: float
    backward: float = 0.0
    compile_seconds: float = 0.0
    code: Hashable = None

    def __post_init__(self) -> None:
        finite = all(math.isfinite(number) for number in (self.seconds, self.backward, self.compile_seconds))
        if not (finite and self.seconds > 0 and self.backward >= 0 and self.compile_seconds >= 0):
            raise ValueError(f"{self!r}: needs finite seconds > 0, backward >= 0 and compile_seconds >= 0.")
        if not self.uncertainty >= 1:
            raise ValueError(f"Candidate(uncertainty={self.uncertainty!r}): needs a factor >= 1.")

    def estimate(self, direction: Direction) -> float:
        """Return the estimated seconds of one pass."""
        return self.seconds if direction == "forward" else self.backward


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs now.

    Args:
        name: The kernel.
        reason: Best by the estimate ("prior"), by an earlier process ("wisdom") or by what was
            "measured", or tried to learn of it ("explore").
        is_trial: This call only: it must be timed, and the next one asks again.
        period: Ask again after this many calls.
        incumbent: What is believed to be the fastest; another one than `name` in a trial.
    """

    name: str
    reason: Reason
    is_trial: bool
    period: int
    incumbent: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is believed of one kernel at one key: forward and the backward that follows it.

    Args:
        seconds: The expected time.
        low: It may be as little.
        high: It may be as much.
        samples: Of the direction that was timed least.

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
        """Return the prediction of a time that is known to a factor either way."""
        return cls(seconds, seconds / uncertainty, seconds * uncertainty, samples)

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


def predictions(
    name: str,
    seconds: float,
    uncertainty: float,
    alternatives: Iterable[tuple[str, float]],
    doubts: Iterable[float],
) -> dict[str, Prediction]:
    """Return what a plan, or the note of one, says of its kernel and of the others."""
    others = zip(alternatives, doubts, strict=True)
    return {
        name: Prediction.within(seconds, uncertainty),
        **{other: Prediction.within(least, doubt) for (other, least), doubt in others},
    }


def confidence(name: str, found: Mapping[str, Prediction]) -> float:
    """Return the probability that a kernel is no slower than another one, the least over all others; 1 without any.

    Times are taken as lognormal and independent, as in `Prediction.expected_gain`.
    """
    one = found[name]
    return min((_is_no_slower(one, other) for each, other in found.items() if each != name), default=1.0)


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change: `factor` times what the kernel took before."""

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
