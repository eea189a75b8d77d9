"""What a good choice has little of: time, memory, or both.

Memory is a fact of the kernel and needs no learning: what the whole call takes, workspace, what is saved for the
backward pass, and results. Energy counts as time: on one device it is power times time, and the power is not
known by kernel.
"""

from collections.abc import Iterable, Sequence

from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.verdict import Verdict

_ALIKE = 1.01  # times the fewest bytes: allocators round up by more


def eligible(verdicts: Iterable[Verdict], settings: Settings) -> list[Verdict]:
    """Return those of the kernels that accept which come into question: for the memory alone, those that take least."""
    able = [each for each in verdicts if each.refusal is None]
    if _exponent(settings) is not None or not able:
        return able
    least = min(each.need for each in able)
    return [each for each in able if each.need <= _ALIKE * least]


def handicaps(verdicts: Sequence[Verdict], settings: Settings) -> dict[str, float]:
    """Return by kernel the factor on its time that makes the least product the best choice.

    With weights a for time and b for memory the best has the least a log(seconds) + b log(bytes), that is the least
    seconds * bytes**(b / a): twice the bytes cost as much as 2**(b / a) times the time.
    """
    exponent = _exponent(settings) or 0.0
    if not exponent:
        return {each.kernel.name: 1.0 for each in verdicts}
    least = min(max(1.0, each.need) for each in verdicts)
    return {each.kernel.name: (max(1.0, each.need) / least) ** exponent for each in verdicts}


def ranked(verdicts: Iterable[Verdict], settings: Settings) -> list[Verdict]:
    """Return those that come into question, best first by the estimate."""
    found = eligible(verdicts, settings)
    factors = handicaps(found, settings)
    return sorted(found, key=lambda each: each.seconds * factors[each.kernel.name])


def in_words(settings: Settings) -> str:
    """Return what the choice goes by, "" for time alone."""
    weights = settings.weights
    if set(weights) == {"latency"}:
        return ""
    if len(weights) == 1:
        return f"for little {next(iter(weights))}"
    return "for little " + " and ".join(f"{name} (weight {weight:g})" for name, weight in weights.items())


def _exponent(settings: Settings) -> float | None:
    """Return the weight of memory over that of time, None where time does not count."""
    if settings.objective == "latency":
        return 0.0
    weights = settings.weights
    time = weights.get("latency", 0.0) + weights.get("energy", 0.0)
    return weights.get("memory", 0.0) / time if time else None
