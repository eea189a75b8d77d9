"""Which kernel runs now: the decision, apart from clocks, threads and kernels.

Estimates and times go in, names of kernels come out, so that a replay of recorded times decides by the very code that
decides in a running model. Callers hold a lock where threads share it.

A key stands for the workloads that share their times. Its *incumbent* is the arm (kernel) believed to be the fastest.
Another arm replaces it when it is faster by `switch_margin`. An arm that may be faster, because little is known of it,
is tried on live calls while the time lost that way stays below `explore_fraction` of all time. Code that must be
compiled first is bought when it would have gained its price in the calls so far.

In the private functions, `record` is the state of one key, `found` the prediction for each arm by name, and `ready` the
names of the arms that need no compilation.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal

from hpfracc_nn.selection.learning.model import (
    LONGEST_PERIOD,
    MEASURED,
    Candidate,
    Change,
    Decision,
    KeyState,
    PerformanceModel,
    Prediction,
    Reason,
    State,
)
from hpfracc_nn.selection.workload import DIRECTIONS, Direction, Key


class Budget:
    """The seconds that calls, trials and compilations have taken, and what trials may take.

    Args:
        fraction: Most of all time that trials may cost.
        allowance: Seconds that trials may cost besides.

    Attributes:
        total: Seconds that all calls took, as far as is known.
        explored: Seconds that trials took longer than the incumbent would have.
        compiled: Seconds of calls that compiled.
    """

    def __init__(self, fraction: float, allowance: float):
        self.fraction = fraction
        self.allowance = allowance
        self.total = self.explored = self.compiled = 0.0

    def allows(self, expected: float, most: float) -> bool:
        """Return whether there is enough left for a trial.

        Args:
            expected: Seconds that it is expected to take longer than the incumbent; a quarter of what is left is enough
                for that, since it may take longer than expected.
            most: Seconds that it may take longer; all that is left must be enough for that.
        """
        left = self.fraction * self.total + self.allowance - self.explored
        return 4 * expected <= left and most <= left


class SkiRental:
    """What each piece of code would have gained by now if it had been compiled, and with that whether to compile it.

    Two sums of seconds are kept for each piece: of the gains believed at each call, and of all calls at the gain
    believed now. Compiling when the first sum reaches the price costs at most twice what knowing the future would,
    however long the process goes on and whatever changes (Karlin et al., 1988). The second sum keeps from compiling by
    a belief that was corrected meanwhile. Code that is not compiled at a decision is not used until the next one, so
    that the calls until then count as made.
    """

    def __init__(self) -> None:
        self._then: dict[Hashable, float] = defaultdict(float)
        self._now: dict[Hashable, dict[Key, float]] = defaultdict(dict)
        self._sums: dict[Hashable, float] = defaultdict(float)
        self._ahead: dict[Hashable, dict[Key, int]] = defaultdict(dict)

    def add(self, code: Hashable, key: Key, gain: float, calls: int, all_calls: int, coming: int) -> float:
        """Add calls of a key; return the lesser sum: the seconds that `code` would have gained by the next decision.

        Args:
            code: What would be compiled.
            key: The key at which the code would have been used.
            gain: Seconds of each call, as is believed now.
            calls: Calls of the key since the last decision.
            all_calls: Calls of the key in all.
            coming: Calls of the key until the next decision.
        """
        ahead, worth = self._ahead[code], self._now[code]
        self._then[code] += (calls + coming - ahead.get(key, 0)) * gain
        ahead[key] = coming
        self._sums[code] += (all_calls + coming) * gain - worth.get(key, 0.0)
        worth[key] = (all_calls + coming) * gain
        return min(self._then[code], self._sums[code])

    def bought(self, code: Hashable) -> None:
        """Forget what `code` would have gained, now that it is compiled."""
        for kept in (self._then, self._now, self._sums, self._ahead):
            kept.pop(code, None)


Trust = Literal["own", "prior"]

WARM_UP = 2  # decisions after the first for an incumbent: one sample only bounds its time, one is kept
AFTER_CHANGE = 4  # calls in the longest period while little is known
APART = 0.01  # seconds of the longest period (a decision of some 100 us adds 1 %), but never fewer calls than above
UNHEARD = 2  # exchanges of wisdom after which an arm outside this process's share is tried here
REMEMBERED = 64  # calls over which the share of backward passes is averaged


class Policy:
    """Decides, learns and predicts.

    Numbers are checked where users pass them: by `Settings`, `BackendManager.record` and `wisdom.decode`.

    Args:
        explore_fraction: Most of all time, in [0, 1), that trials may cost.
        allowance: Seconds that trials may cost besides.
        switch_margin: Part of the incumbent's time, in [0, 1], by which another arm must be faster to replace it.
        learn: False: nothing is tried or compiled for its gain, and times passed to `observe` change nothing.

    Attributes:
        budget: The seconds that were spent.
        share: (rank, count) among the processes that share the trials: every count-th kernel is tried here.
        rounds: How often wisdom of other processes was taken over.

    Examples:
        >>> policy = Policy()
        >>> key = Key(("toeplitz", "cpu"), (4.0, 10.0))
        >>> policy.decide(
        ...     key, [Candidate("torch/fft", 2e-4, 2.0), Candidate("torch/dense", 3e-4, 2.0)]
        ... ).name
        'torch/fft'
        >>> policy.observe(key, "torch/fft", 2.5e-4)
    """

    def __init__(
        self,
        explore_fraction: float = 0.02,
        allowance: float = 0.25e-3,
        switch_margin: float = 0.1,
        learn: bool = True,
    ):
        self.budget = Budget(explore_fraction, allowance)
        self.switch_margin = switch_margin
        self.learn = learn
        self.share = 0, 1
        self.rounds = 0
        self._model = PerformanceModel()
        self._ski_rental = SkiRental()

    def decide(
        self, key: Key, candidates: Sequence[Candidate], calls: int = 1, backwards: int | None = None
    ) -> Decision:
        """Return the Decision: what runs now, and when to ask again.

        Where the call compiles, or `observe` returns a change, every key of the group should ask
        again at once: there is more to choose from, or what is believed of all has changed.

        Args:
            key: see `workload.key_of`.
            candidates: Those that may run: accepted, not quarantined; one at least.
            calls: Calls of this key since the last decision, this one included.
            backwards: How many of them were followed by a backward pass; None: all.
        """
        record = self._model.record(key, self.rounds)
        self._count(record, calls, calls if backwards is None else backwards)
        record.candidates = {each.name: each for each in candidates}
        found = self._model.predict(key, candidates)
        ready = [each.name for each in candidates if not each.compile_seconds]
        changed = self._choose(record, found, ready or [_soonest(candidates)])
        record.trial = None
        if self.learn and len(candidates) > 1:
            compared = _compared(record, found)
            record.trial = self._purchase(key, record, calls, compared) or self._trial(record, compared, ready)
        name = record.trial or record.incumbent
        record.compiling = record.candidates[name].compile_seconds
        record.expected = self._model.expected(key, record, record.candidates[record.incumbent])
        record.reason = _reason(record, found)
        if record.trial:
            return Decision(name, "explore", True, 1, record.incumbent, record.reason, found)
        record.period = self._period(record, found[name], changed)
        return Decision(name, record.reason, False, record.period, name, record.reason, found)

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
        """Learn that a call took `seconds`; return a Change if this time reveals one.

        The first call of each arm at each key paid for compilation, prepared weights, page faults
        and cold caches: it is no sample, and says only that the arm takes no longer.

        Args:
            key: The key that was decided for.
            name: The kernel that ran.
            seconds: Its time in this direction, positive and finite.
            direction: Direction of the pass.
            estimate: The estimate for exactly this call; None is the last decision's.
            keep: False: the call was preempted; its time counts as spent, and is no sample.

        A time is not learnt where its key was forgotten since the decision.
        """
        record = self._model.records.get(key)
        if record is None or name not in record.candidates:
            return None
        self._spend(record, name, seconds, direction)
        if estimate is None:
            estimate = record.candidates[name].estimate(direction)
        if not (self.learn and keep and estimate > 0):
            return None
        return self._model.learn(key, name, direction, seconds, estimate)

    def incumbent(self, key: Key) -> str:
        """Return the kernel that was last believed to be the fastest, "" before the first decision."""
        record = self._model.records.get(key)
        return "" if record is None else record.incumbent

    def trial(self, key: Key) -> str | None:
        """Return the kernel that the last decision tries, None where it tries none."""
        record = self._model.records.get(key)
        return None if record is None else record.trial

    def knows(self, key: Key) -> bool:
        """Return whether something is kept of `key`."""
        return key in self._model.records

    def expects(self, key: Key, name: str) -> bool:
        """Return whether `observe` learns times of a kernel: the key's last decision had it, or it was introduced."""
        record = self._model.records.get(key)
        return record is not None and name in record.candidates

    def introduce(self, key: Key, candidates: Iterable[Candidate]) -> None:
        """Let `observe` learn times of these candidates too, though no decision has had them yet."""
        record = self._model.record(key)
        record.candidates = {**{each.name: each for each in candidates}, **record.candidates}

    def predict(self, key: Key, candidates: Iterable[Candidate]) -> dict[str, Prediction]:
        """Return the prediction for each candidate, by name; nothing is changed."""
        return self._model.predict(key, tuple(candidates))

    def rebase(self) -> None:
        """Go on after all estimates have changed: the measured seconds stay, as times of kernels at their keys.

        What is known only from other machines is forgotten; `restore` it anew.
        """
        self._model.rebase()

    def forget(self, matches: Callable[[Key], bool] | None = None) -> None:
        """Drop what is known of the keys that `matches` accepts, of all keys where it is None; the budget stays."""
        self._model.forget(matches)
        if matches is None:
            self._ski_rental = SkiRental()

    def state(self) -> State:
        """Return what was measured, for JSON: key's text -> kernel -> direction -> [seconds, estimate, samples].

        `restore` uses only the ratio of the two times; under another calibration the estimate must be left out.
        """
        return self._model.state()

    def restore(self, state: State, trust: Trust = "own") -> None:
        """Add what another process measured; what this one measured itself stays.

        Args:
            state: What `state` returned. An estimate may be None: it is then that of the key's next
                candidates, before which the entry says nothing of other keys.
            trust: "own": measured on this machine, as good as if measured here. "prior": on
                another; it corrects estimates as a neighbour two octaves away does.
        """
        self._model.restore(state, trust == "own")

    def _count(self, record: KeyState, calls: int, backwards: int) -> None:
        """Add the calls since the last decision, at their expected time, to the budget and the key's record.

        A call on trial is left out: its time was added when it was measured.
        """
        record.backwards += min(1.0, calls / REMEMBERED) * (backwards / calls - record.backwards)
        untold = calls - 1 if record.trial else calls
        self.budget.total += untold * (record.expected[0] + record.backwards * record.expected[1])
        record.calls += calls

    def _choose(self, record: KeyState, found: Mapping[str, Prediction], ready: Sequence[str]) -> bool:
        """Make the fastest ready arm the incumbent if it wins by the margin; return whether the incumbent changed."""
        times = {name: record.candidates[name].weight * found[name].seconds for name in ready}
        before, best = record.incumbent, min(times, key=times.__getitem__)
        if before in times and times[best] >= (1 - self.switch_margin) * times[before]:
            return False
        record.incumbent = best
        return True

    def _trial(self, record: KeyState, found: Mapping[str, Prediction], ready: Sequence[str]) -> str | None:
        """Return the arm to try at the next call, the one that may be fastest of those the budget allows, or None."""
        now = found[record.incumbent]
        if not now.samples:
            return None
        bar = (1 - self.switch_margin) * now.seconds
        hopeful = [name for name in ready if name != record.incumbent and found[name].low < bar]
        for name in sorted(hopeful, key=lambda name: found[name].low):
            arm = found[name]
            is_open = _is_open(record, name, arm.samples) and self._is_mine(record, name)
            if is_open and self.budget.allows(arm.expected_loss(now.seconds), arm.high - now.seconds):
                return name
        return None

    def _is_mine(self, record: KeyState, name: str) -> bool:
        """Return whether this process may try an arm: it is in its share, or two exchanges have passed at this key."""
        rank, count = self.share
        return sorted(record.candidates).index(name) % count == rank or self.rounds >= record.born + UNHEARD

    def _purchase(self, key: Key, record: KeyState, calls: int, found: Mapping[str, Prediction]) -> str | None:
        """Return the arm to compile now, or None.

        It would have gained its compilation time in the calls so far, and may be faster than the incumbent.
        """
        now = found[record.incumbent].seconds
        best, most = None, 1.0
        for each in record.candidates.values():
            if each.compile_seconds and each.name != record.incumbent:
                gain = found[each.name].expected_gain(now)
                saved = self._ski_rental.add(_code(key, each), key, gain, calls, record.calls, record.period)
                worth = saved / each.compile_seconds
                if worth >= most and found[each.name].low < now:
                    best, most = each, worth
        if best is None:
            return None
        self._ski_rental.bought(_code(key, best))
        return best.name

    def _period(self, record: KeyState, found: Prediction, changed: bool) -> int:
        """Return how many calls the decision holds, before the next one is due.

        That is 1 until a new incumbent was timed, then doubles at each decision; it is 1 again after an outlier. The
        maximum is less for long calls, so that a change is seen soon.
        """
        if not self.learn:
            return LONGEST_PERIOD
        record.decisions = 0 if changed else record.decisions + 1
        if record.decisions <= WARM_UP:
            return 1
        is_odd = record.incumbent in record.arms and record.arms[record.incumbent].is_odd
        if is_odd and record.period > AFTER_CHANGE:
            return 1
        longest = min(LONGEST_PERIOD, max(AFTER_CHANGE, int(APART / found.seconds)))
        return min(2 * record.period, longest if found.samples >= MEASURED else AFTER_CHANGE)

    def _spend(self, record: KeyState, name: str, seconds: float, direction: Direction) -> None:
        if record.compiling:  # whatever it takes beyond a plain call is the price of the code
            price = max(0.0, seconds - record.candidates[name].estimate(direction))
            self.budget.compiled += price
            seconds, record.compiling = seconds - price, 0.0
        if name == record.trial and direction == "forward":
            self.budget.total += seconds
        if record.incumbent not in ("", name):  # a trial, also where another decision came between its passes
            self.budget.explored += max(0.0, seconds - record.expected[DIRECTIONS.index(direction)])


def _compared(record: KeyState, found: Mapping[str, Prediction]) -> Mapping[str, Prediction]:
    """Return the predictions in units of the incumbent's weight: times scaled as the objective compares them."""
    one = record.candidates[record.incumbent].weight
    if all(each.weight == one for each in record.candidates.values()):
        return found
    return {name: each.scaled(record.candidates[name].weight / one) for name, each in found.items()}


def _is_open(record: KeyState, name: str, samples: int) -> bool:
    """Return whether more samples of an arm are useful: it has few, its last is an outlier, or they are old."""
    return samples < MEASURED or record.arms[name].is_odd or record.staleness(name, samples) > 0


def _reason(record: KeyState, found: Mapping[str, Prediction]) -> Reason:
    if not found[record.incumbent].samples:
        return "prior"
    return "measured" if record.arms[record.incumbent].is_warm else "wisdom"


def _code(key: Key, candidate: Candidate) -> Hashable:
    return (key, candidate.name) if candidate.code is None else candidate.code


def _soonest(candidates: Iterable[Candidate]) -> str:
    """Return the name of the kernel whose first call ends first, compilation and backward pass included."""
    return min(candidates, key=lambda each: each.compile_seconds + each.seconds + each.backward).name
