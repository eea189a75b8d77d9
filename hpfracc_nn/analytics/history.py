"""What a manager remembers of its calls, as one value that can be kept in a file.

A look is a record of how often each kernel had been consulted up to a time. The file is JSON.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hpfracc_nn.selection import BackendManager, Measurement, Plan, Wisdom, Workload
from hpfracc_nn.selection.recorder import Choice, Defeat, Drift, Event, Failure, Look, Quarantined
from hpfracc_nn.selection.workload import DIRECTIONS, LATEST, Direction, known_key

SCHEMA = 1
MOST_BYTES = 2**28  # that are read of a file, since a device file has no end; a manager's history has a few million
KINDS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in (Choice, Drift, Failure, Quarantined, Defeat)}


@dataclass(frozen=True, slots=True)
class Use:
    """A plan, and how often it was consulted.

    Args:
        workload: The plan's workload.
        kernel: The plan's kernel, "backend/algorithm".
        forwards: How often forward passes consulted the plan.
        backwards: How often backward passes consulted the plan.
        seconds: Predicted time of the kernel, forward and backward together.
        second_best: The least predicted time of another kernel; None where no other accepts the workload.
        reason: Why the kernel was chosen, as in `Plan.reason`.

    Examples:
        >>> manager = BackendManager(Settings(mode="prior"))
        >>> y = derivative(np.ones((4, 64)), Caputo(0.5), manager=manager)
        >>> (use,) = History.of(manager).uses
        >>> use.workload.n, use.calls, use.reason
        (64, 1, 'prior')
    """

    workload: Workload
    kernel: str
    forwards: int
    backwards: int
    seconds: float
    second_best: float | None
    reason: str

    @property
    def calls(self) -> int:
        return self.forwards + self.backwards


@dataclass(frozen=True, slots=True)
class Estimate:
    """A kernel's predicted seconds at a workload, forward and backward together, before it was measured there."""

    workload: Workload
    kernel: str
    seconds: float


@dataclass(frozen=True)
class History:
    """What one or more managers remember, at most some thousands of each kind of record.

    Args:
        uses: The plans in use at all sites that are alive.
        measurements: Timed calls, and blocks timed by `BackendManager.profile`; oldest first.
        events: Choices, changes of speed and failures; oldest first.
        looks: How often each kernel had been consulted up to each of some times.
        estimates: Predictions before the first measurement, where no choice among the events holds them.

    Examples:
        >>> history = History.of(BackendManager())
        >>> history.save("history.json")
        >>> History.load("history.json") == history
        True
    """

    uses: tuple[Use, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    events: tuple[Event, ...] = ()
    looks: tuple[Look, ...] = ()
    estimates: tuple[Estimate, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is no use, measurement or event."""
        return not (self.uses or self.measurements or self.events)

    @classmethod
    def of(cls, *managers: BackendManager) -> "History":
        """Return the history of what these managers remember now."""
        uses = [_use(manager, plan) for manager in managers for site in manager.sites() for plan in site.in_use()]
        measured = [each for manager in managers for each in manager.history()]
        events = sorted((each for manager in managers for each in manager.events()), key=lambda each: each.time)
        looks = [manager.looks() for manager in managers]
        return cls(tuple(uses), tuple(measured), tuple(events), _merged(looks))

    @classmethod
    def of_wisdom(cls, wisdom: Wisdom) -> "History":
        """Return a history made of the times in `wisdom` that were measured on this machine.

        Its uses are the fastest kernel of each workload, among those that were timed in every direction.
        """
        found: dict[Workload, dict[str, dict[Direction, float]]] = {}
        thought = []
        for timing in wisdom.timings.values():
            if timing.trust == "own":
                times: dict[Direction, float] = {
                    direction: seconds
                    for direction in DIRECTIONS
                    if (seconds := getattr(timing, direction)) is not None
                }
                try:
                    work = _workload(timing.key)
                except (ValueError, OverflowError):  # text of others, which is kept for them
                    continue
                found.setdefault(work, {})[timing.arm] = times
                said = [getattr(timing, f"{direction}_estimate") for direction in times]
                if None not in said:
                    thought.append(Estimate(work, timing.arm, sum(said)))
        measured = [
            Measurement(work, kernel, seconds, direction)
            for work, kernels in found.items()
            for kernel, times in kernels.items()
            for direction, seconds in times.items()
        ]
        whole = {work: _timed_both_ways(work, kernels) for work, kernels in found.items()}
        fastest = tuple(_fastest(work, kernels) for work, kernels in whole.items() if kernels)
        return cls(fastest, tuple(measured), estimates=tuple(thought))

    def save(self, path: Path | str) -> None:
        """Write the history to a file as JSON.

        Raises:
            OSError: `path` cannot be written.
        """
        body = {
            "schema": SCHEMA,
            "uses": [asdict(each) for each in self.uses],
            "measurements": [asdict(each) for each in self.measurements],
            "estimates": [asdict(each) for each in self.estimates],
            "events": [{"kind": type(each).__name__.lower(), **asdict(each)} for each in self.events],
            "looks": [{"time": each.time, "uses": [[*use, n] for use, n in each.uses.items()]} for each in self.looks],
        }
        Path(path).write_text(json.dumps(_finite(body), separators=(",", ":"), allow_nan=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "History":
        """Return the history that `save` wrote to a file.

        Raises:
            OSError: The file cannot be read.
            ValueError: The file holds no history, or that of another version.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(MOST_BYTES + 1)
            if len(data) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            return _history(json.loads(data.decode()))
        except RecursionError:
            why = "it is nested too deeply"
        except KeyError as error:
            why = f"it has no {error}"
        except (ValueError, TypeError, AttributeError) as error:
            why = str(error).removesuffix(".")
        raise ValueError(f"{path}: needs a file that History.save wrote; {why}; save it again, whole.")


def _use(manager: BackendManager, plan: Plan) -> Use:
    found = {name: each.seconds for name, each in manager.predict(plan.workload).items()}
    seconds = found.pop(plan.kernel.name, plan.seconds)
    second = min(found.values(), default=None)
    return Use(plan.workload, plan.kernel.name, plan.forwards, plan.backwards, seconds, second, plan.reason)


def _timed_both_ways(
    workload: Workload, kernels: Mapping[str, dict[Direction, float]]
) -> dict[str, dict[Direction, float]]:
    """Return the kernels that were timed in each direction that a workload has: forward and, with a gradient, backward.

    Args:
        workload: Says whether there is a gradient.
        kernels: Seconds by direction, by kernel.
    """
    passes = 1 + (workload.needs_gradient or workload.learns_weights)
    return {name: times for name, times in kernels.items() if len(times) == passes}


def _fastest(workload: Workload, kernels: Mapping[str, Mapping[Direction, float]]) -> Use:
    ranked = sorted((sum(times.values()), kernel) for kernel, times in kernels.items())
    second = ranked[1][0] if len(ranked) > 1 else None
    return Use(workload, ranked[0][1], 0, 0, ranked[0][0], second, "wisdom")


def _workload(text: str) -> Workload:
    """Return the smallest workload that a key stands for; a key is the text by which wisdom files name workloads."""
    op, framework, device, dtype, _, shares, needs, learns, threads = (key := known_key(text)).group
    rows, n, width = (round(2**size) for size in key.features)
    return Workload(
        str(op),
        str(framework),
        str(device),
        str(dtype),
        rows=rows,
        n=n,
        width=width,
        channels=1 if shares else 2,
        needs_gradient=bool(needs),
        learns_weights=bool(learns),
        threads=int(threads),
    )


def _merged(looks: Iterable[list[Look]]) -> tuple[Look, ...]:
    """Return the looks of several managers as those of one: at each time, the sum of each manager's last look."""
    every = [(look.time, number, look) for number, each in enumerate(looks) for look in each]
    last: dict[int, Look] = {}
    found = []
    for moment, number, look in sorted(every, key=lambda each: each[:2]):
        last[number] = look
        uses = Counter[tuple[str, str]]()
        for each in last.values():
            uses.update(each.uses)
        found.append(Look(moment, dict(uses)))
    return tuple(found)


def _finite(value: Any) -> Any:
    """Return a value to be written as JSON: None in place of each number in it that is NaN or infinite."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _history(body: Any) -> History:
    """Return the history that a JSON object written by `History.save` holds.

    Raises:
        ValueError: The object holds no such history. KeyError, TypeError and AttributeError mean the same.
    """
    if body["schema"] != SCHEMA:
        raise ValueError(f"its schema is {body['schema']!r}, this version reads {SCHEMA}")
    return History(
        tuple(_made(Use, each) for each in body["uses"]),
        tuple(_made(Measurement, each) for each in body["measurements"]),
        tuple(_made(KINDS[each.pop("kind")], each) for each in body["events"]),
        tuple(_look(each) for each in body["looks"]),
        tuple(_made(Estimate, each) for each in body["estimates"]),
    )


def _look(entry: dict[str, Any]) -> Look:
    uses = {}
    for op, kernel, count in entry["uses"]:
        for name, value in (("op", op), ("kernel", kernel), ("count", count)):
            _check(name, value)
        uses[op, kernel] = count
    _check("time", entry["time"])
    return Look(entry["time"], uses)


def _made(kind: Callable[..., Any], entry: dict[str, Any]) -> Any:
    """Return the object from which an entry of the file was made by `asdict` and `_finite`.

    Args:
        kind: The object's class, such as `Use` or that of an event.
        entry: Its fields by name, with None in place of numbers that are not finite.

    Raises:
        ValueError: The fields are not those of the class, or a value is out of its range.
    """
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if set(entry) != names:
        raise ValueError(f"{sorted(set(entry) ^ names)} are not the same")
    given = dict(entry)
    given["workload"] = Workload(**given["workload"])
    for name in names & INFINITE.keys():
        if given[name] is None:
            given[name] = math.inf if INFINITE[name] or kind is Quarantined else math.nan
    if "alternatives" in names:
        given["alternatives"] = tuple(
            (name, math.nan if seconds is None else seconds) for name, seconds in given["alternatives"]
        )
        given["doubts"] = tuple(math.inf if doubt is None else doubt for doubt in given["doubts"])
        for (name, seconds), doubt in zip(given["alternatives"], given["doubts"], strict=True):
            for what, value in (("kernel", name), ("seconds", seconds), ("uncertainty", doubt)):
                _check(what, value)
    for name in names - {"workload", "alternatives", "doubts"}:
        is_other = kind is Measurement and name in ("kernel", "error")  # a block is no kernel, and most calls succeed
        _check(f"{name} of a measurement" if is_other else name, given[name])
    return kind(**given)


MOST = 1e30  # seconds, bytes and factors
# Fields in which null stands for a number that is not finite: whether it is infinity, else NaN.
INFINITE = {"seconds": False, "workspace": False, "elapsed": False, "factor": False, "uncertainty": True}


def _check(name: str, value: Any) -> None:
    rule, holds = CHECKS[name]
    if not holds(value):
        raise ValueError(f"{name}={repr(value)[:40]} needs to be {rule}")


def _is_number(value: Any, least: float, below: float = MOST) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < below


def _is_amount(value: Any) -> bool:
    return _is_number(value, 0) or (isinstance(value, float) and (math.isnan(value) or value == math.inf))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value, 0, 2**63)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_kernel(value: Any) -> bool:
    return isinstance(value, str) and "/" in value


TEXT = "text", _is_text
COUNT = "a whole number, at least 0 and below 2**63", _is_count
AMOUNT = f"a number, at least 0 and below {MOST:g}", _is_amount
PERHAPS = f"null or a number, at least 0 and below {MOST:g}", lambda value: value is None or _is_number(value, 0)
CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("op", "site", "reason", "error", "message", "kernel of a measurement"), TEXT),
    **dict.fromkeys(("count", "forwards", "backwards"), COUNT),
    **dict.fromkeys(("seconds", "workspace", "elapsed", "factor", "compile_seconds", "transfer_seconds"), AMOUNT),
    **dict.fromkeys(("second_best", "peak_bytes"), PERHAPS),
    "kernel": ("a backend, / and an algorithm", _is_kernel),
    "previous": ("empty, or a backend, / and an algorithm", lambda value: value == "" or _is_kernel(value)),
    "error of a measurement": ("null or text", lambda value: value is None or _is_text(value)),
    "succeeded": ("true or false", lambda value: isinstance(value, bool)),
    "direction": (f"one of {', '.join(DIRECTIONS)}", lambda value: value in DIRECTIONS),
    "time": (f"seconds since 1970, at least 0 and below {LATEST:g}", lambda value: _is_number(value, 0, LATEST)),
    "uncertainty": ("a factor of at least 1", lambda value: _is_number(value, 1) or value == math.inf),
}
