"""Between what a wisdom file holds and what a policy knows: timings there, a state here."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from hpfracc_nn.selection.bucket import known_key
from hpfracc_nn.selection.knowledge import State
from hpfracc_nn.selection.wisdom import LONGEST, Timing, Trust, Wisdom

SHORTEST = 1e-9  # seconds: a time of zero is below the clock's resolution

_log = logging.getLogger("hpfracc_nn.selection")


def understood(wisdom: Wisdom, directory: Path) -> list[Timing]:
    """Return the timings whose key is one of workloads; a line of the log says how many in the directory are not."""
    found, foreign = [], []
    for timing in wisdom.timings.values():
        try:
            known_key(timing.key)
        except ValueError as error:
            foreign.append(error)
        else:
            found.append(timing)
    if foreign:
        _log.info("wisdom in %s: %d timings ignored, the first: %.200s", directory, len(foreign), foreign[0])
    return found


def state_of(timings: list[Timing], trust: Trust) -> State:
    """Return the timings of one trust as the policy reads them."""
    state: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for timing in timings:
        if timing.trust != trust:
            continue
        entry = state.setdefault(timing.key, {}).setdefault(timing.arm, {})
        for direction, seconds, estimate in (
            ("forward", timing.forward, timing.forward_estimate),
            ("backward", timing.backward, timing.backward_estimate),
        ):
            if seconds is not None:
                expected = max(estimate, SHORTEST) if estimate else None
                entry[direction] = [max(seconds, SHORTEST), expected, timing.samples]
    return state


def timings_of(state: State, samples: Mapping[tuple[str, str], int], now: float) -> Iterator[Timing]:
    """Yield what a policy knows as timings, of those keys and kernels that have new samples.

    Args:
        state: Of the policy.
        samples: New ones, by key's text and kernel.
        now: Unix time.
    """
    for key, arms in state.items():
        for name, directions in arms.items():
            count = samples.get((key, name), 0)
            forward, backward = (_whole(directions.get(each, (None, None))) for each in ("forward", "backward"))
            if count and not forward[0] is backward[0] is None:
                yield Timing(key, name, forward[0], backward[0], count, now, "own", forward[1], backward[1])


def _whole(entry: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return seconds and estimate as a file can hold them; an estimate may be as wrong as its kernel's cost."""
    seconds, estimate = (number if number is not None and number < LONGEST else None for number in entry[:2])
    return seconds, estimate
