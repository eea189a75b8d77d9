"""What a manager learns from live calls, and shares with other processes: the policy in contact with clock and disk.

Callers hold the manager's lock.

A key stands for the workloads that share their times, a place for a framework, device and dtype (`workload.py`).
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hpfracc_nn.selection.candidates import Assessment, accepted, eligible, handicaps
from hpfracc_nn.selection.learning.fingerprint import digest, facts
from hpfracc_nn.selection.learning.model import MOST_KEYS, Candidate, Change, Decision, Entry, Prediction, State
from hpfracc_nn.selection.learning.policy import Policy
from hpfracc_nn.selection.learning.wisdom import LONGEST, TRUSTS, Timing, Trust, Wisdom, decode, encode
from hpfracc_nn.selection.learning.wisdom_file import Outbox, WisdomFile
from hpfracc_nn.selection.machine import Machine, Place, computed_in
from hpfracc_nn.selection.plan import Plan
from hpfracc_nn.selection.registry import Compilation
from hpfracc_nn.selection.settings import Settings
from hpfracc_nn.selection.workload import DIRECTIONS, Direction, Key, Workload, key_of, known_key, wall_time

SHORTEST = 1e-9  # seconds: a time of zero is below the clock's resolution

_log = logging.getLogger("hpfracc_nn.selection")


Basis = Callable[[Place], str]  # see `Machine.basis`


def understood(wisdom: Wisdom, directory: Path) -> list[tuple[Key, Timing]]:
    """Return (key, timing) for each timing whose key is one of workloads; how many are not is logged.

    `directory` is where the wisdom came from, for the log.
    """
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
    """Return the timings with trust `trust` in the form that `Policy.restore` takes.

    Times of this machine keep their estimate only where the estimate would be the same now. Times of another machine
    keep theirs: what counts is their ratio.
    """
    state: dict[str, dict[str, dict[Direction, Entry]]] = {}
    for key, timing in timings:
        if timing.trust != trust:
            continue
        is_alike = trust == "prior" or timing.basis == basis(place_of(key))
        entry = state.setdefault(timing.key, {}).setdefault(timing.arm, {})
        for direction in DIRECTIONS:
            seconds, estimate = getattr(timing, direction), getattr(timing, f"{direction}_estimate")
            if seconds is not None:
                expected = max(estimate, SHORTEST) if estimate and is_alike else None
                entry[direction] = max(seconds, SHORTEST), expected, timing.samples
    return state


def timings_of(state: State, samples: Mapping[tuple[str, str], int], now: float, basis: Basis) -> Iterator[Timing]:
    """Yield what a policy knows as timings, of those keys and kernels that have new samples.

    Args:
        state: What `Policy.state` returned.
        samples: How many new samples there are, by key's text and kernel.
        now: Unix time.
        basis: Returns what the estimates at a place rest on, see `Machine.basis`.
    """
    for key, arms in state.items():
        for name, directions in arms.items():
            count = samples.get((key, name), 0)
            forward, backward = (_whole(directions.get(each)) for each in DIRECTIONS)
            if count and not forward[0] is backward[0] is None:
                rests_on = basis(place_of(Key.parse(key)))
                yield Timing(key, name, forward[0], backward[0], count, now, "own", forward[1], backward[1], rests_on)


def _whole(entry: Entry | None) -> tuple[float | None, float | None]:
    """Return seconds and estimate for the wisdom file, None in place of one that is missing or too large to store."""
    both = (None, None) if entry is None else entry[:2]
    seconds, estimate = (number if number is not None and number < LONGEST else None for number in both)
    return seconds, estimate


SAVED_AFTER = 60.0  # seconds since the last save, where something was learnt
FREE = 0.005  # seconds that deciding may cost before decisions become rarer
COST = 0.01  # part of the calls' time that deciding may cost from then on
SELDOM = 1024  # calls between decisions, at most


class Learner:
    """The policy, fed with the times of live calls and backed by the wisdom file.

    Args:
        settings: The manager's settings.
        machine: The machine whose rates the file keeps too.

    Attributes:
        cost: Seconds of the processor that deciding and learning took: where the machine is busy, a decision may be
            interrupted for longer than it takes.
        outbox: The wisdom that is on its way to the file.
    """

    def __init__(self, settings: Settings, machine: Machine):
        self._settings, self._machine = settings, machine
        self.cost, self._decisions = 0.0, 0
        self.outbox = Outbox()
        self.policy = Policy(
            settings.explore_fraction, switch_margin=settings.switch_margin, learn=_is_learning(settings)
        )
        self._deterministic: dict[str, bool] = {}  # whether each framework was so when last looked at
        self._file: WisdomFile | None = None
        self._is_read = False
        self._new: Counter[tuple[str, str]] = Counter()  # samples since the last save, by key and kernel
        self._timed: dict[Key, set[str]] = {}  # the kernels that this process has timed itself
        self._saved = time.monotonic()

    def adopt(self, settings: Settings) -> None:
        """Go on under other settings; what was learnt stays."""
        estimates_anew = settings.calibration != self._settings.calibration
        reads_anew = estimates_anew or settings.wisdom != self._settings.wisdom
        if reads_anew or not _is_learning(settings):
            self.packed()
        if estimates_anew:
            self.policy.rebase()
        if reads_anew:
            self._is_read = False
        self._settings = settings
        self.policy.budget.fraction = settings.explore_fraction
        self.policy.switch_margin = settings.switch_margin
        self.policy.learn = _is_learning(settings)

    def is_learning(self, framework: str) -> bool:
        """Return whether live calls change what is chosen for the arrays of a framework."""
        return _is_learning(self._settings) and not self._settings.is_deterministic(framework)

    def has_changed(self, framework: str) -> bool:
        """Return whether a framework has become deterministic, or is so no more, since this was last called for it."""
        now = self._settings.is_deterministic(framework)
        before = self._deterministic.get(framework, now)
        self._deterministic[framework] = now
        return now != before

    def uses_knowledge(self, framework: str) -> bool:
        """Return whether what was learnt, now or by earlier processes, decides for the arrays of a framework."""
        return self._settings.mode in ("learn", "frozen") and not self._settings.is_deterministic(framework)

    def trial(self, workload: Workload) -> str | None:
        """Return the kernel that is being tried for workloads like this one, None where there is none."""
        return self.policy.trial(key_of(workload)) if self.is_learning(workload.framework) else None

    def decide(
        self, workload: Workload, assessments: Sequence[Assessment], calls: int, backwards: int | None
    ) -> tuple[Decision, bool]:
        """Return the Decision on what runs now, and whether this call compiles code, so that sites should ask again.

        Args:
            workload: The workload of the call.
            assessments: What each kernel would take for it; at least one accepts.
            calls: Since the last decision of the same caller, this one included.
            backwards: How many of them were followed by a backward pass; None: all.
        """
        started = time.thread_time()
        self.know()
        candidates = self._candidates(workload, assessments)
        decision = self.policy.decide(key_of(workload), candidates, calls, backwards)
        chosen = next(each for each in candidates if each.name == decision.name)
        self._decisions += 1
        if self.cost > FREE and not decision.is_trial:
            seconds = chosen.seconds + chosen.backward
            paid = math.ceil(self.cost / self._decisions / (COST * seconds))  # calls that one decision is worth
            decision = decision._replace(period=max(decision.period, min(paid, SELDOM)))
        self.cost += time.thread_time() - started
        return decision, chosen.compile_seconds > 0

    def believed(self, workload: Workload, assessments: Sequence[Assessment]) -> tuple[str, dict[str, Prediction]]:
        """Return the kernel that is believed to be the best, and the prediction for each; nothing is changed."""
        candidates, found = self._candidates(workload, assessments), self.expected(workload, assessments)
        incumbent = self.policy.incumbent(key_of(workload))
        if any(each.name == incumbent for each in candidates):
            return incumbent, found
        ready = [each for each in candidates if not each.compile_seconds] or candidates
        return min(ready, key=lambda each: each.weight * found[each.name].seconds).name, found

    def expected(self, workload: Workload, assessments: Sequence[Assessment]) -> dict[str, Prediction]:
        """Return the prediction for each kernel that accepts, by name; nothing is changed."""
        self.know()
        return self.policy.predict(key_of(workload), [_candidate(each) for each in accepted(assessments)])

    def basis(self, workload: Workload, name: str, found: Prediction) -> str:
        """Return what a prediction rests on: "measured" here, "wisdom" of another process, or "prior"."""
        if not found.samples:
            return "prior"
        return "measured" if self._is_timed(key_of(workload), name) else "wisdom"

    def observe(
        self,
        plan: Plan,
        seconds: float,
        direction: Direction,
        keep: bool,
        assessments: Callable[[Workload], Sequence[Assessment]],
    ) -> Change | None:
        """Learn from a timed call; return a Change of the kernel's speed if the call reveals one.

        Args:
            plan: The plan that ran.
            seconds: The time of the call.
            direction: Direction of the pass.
            keep: False: the time says nothing of the plan.
            assessments: Returns the assessments of a workload; called where no site has decided on the plan's workload,
                because the plan is one of `BackendManager.plan`.
        """
        started = time.thread_time()
        key, name = key_of(plan.workload), plan.kernel.name
        if not self.policy.expects(key, name):
            self.know()
            self.policy.introduce(key, self._candidates(plan.workload, assessments(plan.workload)))
            if not self.policy.expects(key, name):
                return None
        change = self.policy.observe(key, name, max(seconds, SHORTEST), direction=direction, keep=keep)
        if keep:
            self._note(key, name)
        self.cost += time.thread_time() - started
        return change

    def forget(self, op: str | None = None) -> None:
        """Drop what is known of an operation, or of all, in this process; the file stays."""
        if op is None:
            self.policy.forget()
            self._new.clear()
            self._timed.clear()
            self.outbox.drop(lambda timing: True)
        else:
            self.policy.forget(lambda key: key.group[0] == op)
            self._timed = {key: names for key, names in self._timed.items() if key.group[0] != op}
            for key, name in [each for each in self._new if Key.parse(each[0]).group[0] == op]:
                del self._new[key, name]
            self.outbox.drop(lambda timing: Key.parse(timing.key).group[0] == op)

    def known(self, timed_here: bool, now: float) -> Wisdom:
        """Return as Wisdom the times of kernels that are known, and the rates that were measured here.

        Args:
            timed_here: Leave out what this process has not timed itself.
            now: Unix time.
        """
        self.know()
        state = self.policy.state()
        samples = {
            (key, name): max(samples for _, _, samples in directions.values())
            for key, arms in state.items()
            for name, directions in arms.items()
            if not timed_here or self._is_timed(Key.parse(key), name)
        }
        return Wisdom.of(timings_of(state, samples, now, self._basis()), self._machine.calibrated())

    def text(self, *, timed_here: bool) -> str:
        """Return what is known as JSON; see `BackendManager.export_wisdom`."""
        return encode(self.known(timed_here, wall_time()), machine_facts()).decode()

    def take_over(self, wisdom: Wisdom, trust: Trust) -> None:
        """Learn the wisdom of another process; what this process has timed itself stays."""
        self.know()
        if trust == "own":
            self._machine.restore(wisdom.rates)
        timings = understood(wisdom, Path("another process"))
        self.policy.restore(state_of(timings, trust, self._basis()), trust)
        self.policy.rounds += 1

    @property
    def has_news(self) -> bool:
        """Whether there is something to save."""
        return bool(self._new or self.outbox)

    @property
    def is_due(self) -> bool:
        """Whether it is time to save something."""
        return self.has_news and time.monotonic() - self._saved > SAVED_AFTER

    def packed(self) -> Outbox:
        """Put what is new into the outbox, and return the outbox, which may be delivered without the manager's lock."""
        self._saved = time.monotonic()
        if self._new:
            self.know()
            if self._file is not None:
                self.outbox.put(self._file, self._learnt())
                self._new.clear()
        return self.outbox

    def after_fork(self) -> None:
        """Forget what is not saved yet, in a child process: the parent saves it."""
        self._new.clear()
        self.outbox.after_fork()

    def know(self) -> None:
        """Read the wisdom file, the first time; not at all where the settings would use nothing of it."""
        if self._is_read or self._settings.mode not in ("learn", "frozen"):
            return
        self._is_read = True
        self._file = WisdomFile.at(str(self._settings.wisdom))
        if self._file is None:
            return
        known = self._file.read()
        self._machine.restore(known.rates)
        timings = understood(known, self._file.path.parent)
        for trust in TRUSTS:
            self.policy.restore(state_of(timings, trust, self._basis()), trust)

    def _note(self, key: Key, name: str) -> None:
        """Record that this process timed the kernel `name` for workloads of a key.

        When many keys have been timed, those that the policy no longer knows are dropped.
        """
        if key not in self._timed and len(self._timed) >= 2 * MOST_KEYS:
            self._timed = {each: names for each, names in self._timed.items() if self.policy.knows(each)}
            for text, other in [each for each in self._new if Key.parse(each[0]) not in self._timed]:
                del self._new[text, other]
        self._timed.setdefault(key, set()).add(name)
        self._new[key.text(), name] += 1

    def _is_timed(self, key: Key, name: str) -> bool:
        return name in self._timed.get(key, ()) and self.policy.knows(key)

    def _learnt(self) -> Wisdom:
        timings = timings_of(self.policy.state(), self._new, wall_time(), self._basis())
        return Wisdom.of(timings, self._machine.calibrated())

    def _basis(self) -> Basis:
        """Return a cached function: place -> what the estimates there rest on, see `Machine.basis`."""
        calibration = self._settings.calibration
        return cache(lambda place: self._machine.basis(place, calibration))

    def _candidates(self, workload: Workload, assessments: Iterable[Assessment]) -> list[Candidate]:
        """Return the kernels that accept a workload, for the policy: with their compilations and weights.

        A kernel that reports an infinite compilation time should not start unasked: it is left out, unless all do.
        """
        able = accepted(assessments)
        missing: dict[str, Compilation | None] = {}
        if self._settings.mode == "learn":
            missing = {each.kernel.name: each.kernel.ask("compiles", workload) for each in able}
            ready = [each for each in able if (found := missing[each.kernel.name]) is None or found.seconds < math.inf]
            able, missing = (ready, missing) if ready else (able, {})
        able = eligible(able, self._settings)
        weights = handicaps(able, self._settings)
        return [_candidate(each, missing.get(each.kernel.name), weights[each.kernel.name]) for each in able]


def _is_learning(settings: Settings) -> bool:
    return settings.mode == "learn" and settings.sample


def _candidate(assessment: Assessment, missing: Compilation | None = None, weight: float = 1.0) -> Candidate:
    seconds, code = (0.0, None) if missing is None else (missing.seconds, missing.code)
    forward, backward = max(assessment.forward, SHORTEST), assessment.backward
    return Candidate(assessment.kernel.name, forward, assessment.uncertainty, backward, seconds, code, weight)


def place_of(key: Key) -> Place:
    """Return the Place where the workloads of a key are computed; `key_of` or `known_key` returned the key."""
    _, framework, device, dtype, *_, threads = key.group
    return Place(str(framework), str(device), computed_in(str(dtype)), int(threads))


def understood_text(text: str) -> tuple[Wisdom, Trust]:
    """Return the wisdom in what `Learner.text` returned elsewhere, and "own" where that was on a machine like this one.

    Raises:
        ValueError: `text` is no such text, damaged, or of another version of the format.
    """
    if not isinstance(text, str):
        raise ValueError(f"import_wisdom(text={text!r}): needs the text that export_wisdom returned.")
    wisdom, machine = decode(text.encode())
    if digest(machine) == digest(machine_facts()):
        return wisdom, "own"
    return wisdom.as_prior(), "prior"


@cache  # the facts take milliseconds, and processes exchange wisdom often
def machine_facts() -> dict[str, Any]:
    """Return the facts of this machine."""
    return facts()
