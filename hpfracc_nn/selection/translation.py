"""Between what a wisdom file holds and what a policy knows: timings there, a state here."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hpfracc_nn.selection.bucket import Key, known_key, place_of
from hpfracc_nn.selection.knowledge import State
from hpfracc_nn.selection.machine import Place
from hpfracc_nn.selection.wisdom import LONGEST, Timing, Trust, Wisdom

SHORTEST = 1e-9  # seconds: a time of zero is below the clock's resolution

_log = logging.getLogger("hpfracc_nn.selection")


Basis = Callable[[Place], str]  # see `Machine.basis`


def understood(wisdom: Wisdom, directory: Path) -> list[tuple[Key, Timing]]:
    """Return the timings whose key is one of workloads; a line of the log says how many in the directory are not."""
    found, foreign = [], []
    for timing in wisdom.timings.values():
        try:
            key = known_key(timing.key)
        except ValueError as error:
            foreign.append(error)
        else:
            found.append((key, timing))
    if foreign:
        _log.info("wisdom in %s: %d timings ignored, the first: %.200s", directory, len(foreign), foreign[0])
    return found


def state_of(timings: list[tuple[Key, Timing]], trust: Trust, basis: Basis) -> State:
    """Return the timings of one trust as the policy reads them.

    Seconds that were measured here have no estimate where it would be another one now. Those of another machine are of
    use by what they were measured to be of its own estimates.
    """
    state: dict[str, dict[str, dict[str, list[float | None]]]] = {}
    for key, timing in timings:
        if timing.trust != trust:
            continue
        is_alike = trust == "prior" or timing.basis == basis(place_of(key))
        entry = state.setdefault(timing.key, {}).setdefault(timing.arm, {})
        for direction, seconds, estimate in (
            ("forward", timing.forward, timing.forward_estimate),
            ("backward", timing.backward, timing.backward_estimate),
        ):
            if seconds is not None:
                expected = max(estimate, SHORTEST) if estimate and is_alike else None
                entry[direction] = [max(seconds, SHORTEST), expected, timing.samples]
    return state


def timings_of(state: State, samples: Mapping[tuple[str, str], int], now: float, basis: Basis) -> Iterator[Timing]:
    """Yield what a policy knows as timings, of those keys and kernels that have new samples.

    Args:
        state: Of the policy.
        samples: New ones, by key's text and kernel.
        now: Unix time.
        basis: Of the estimates in the state.
    """
    for key, arms in state.items():
        for name, directions in arms.items():
            count = samples.get((key, name), 0)
            forward, backward = (_whole(directions.get(each, (None, None))) for each in ("forward", "backward"))
            if count and not forward[0] is backward[0] is None:
                rests_on = basis(place_of(Key.parse(key)))
                yield Timing(key, name, forward[0], backward[0], count, now, "own", forward[1], backward[1], rests_on)


def _whole(entry: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Return seconds and estimate as a file can hold them; an estimate may be as wrong as its kernel's cost."""
    seconds, estimate = (number if number is not None and number < LONGEST else None for number in entry[:2])
    return seconds, estimate
