"""A trace of calls, replayed from a table of costs: what a policy spent, and what hindsight would have.

What a call costs is taken from the table without noise, so that regret measures choices; what a policy is told is
noisy. A compilation is paid by the call that needs it first.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

NOISE = 0.1  # of the logarithm
SPIKES, SPIKE = 0.02, (2.0, 20.0)
PARETO = 1.2
SETTLED = 200  # calls of a key
BACK_OFF = 60.0  # seconds


@dataclass(frozen=True)
class Costs:
    """What each arm takes at each size, and what it compiles.

    Args:
        operation: What is computed.
        sizes: Rows and samples.
        seconds: By arm and size.
        estimates: By arm and size.
        shared: Seconds that are paid once for all sizes, by what they make.
        each: Seconds that are paid once for each size, by arm and size.
        needs: What of `shared` an arm needs.
        calibration: Seconds that the estimate's calibration took.
    """

    operation: str
    sizes: Sequence[tuple[int, int]]
    seconds: dict[str, list[float]]
    estimates: dict[str, list[float]]
    shared: dict[str, float]
    each: dict[str, list[float]]
    needs: dict[str, str]
    calibration: float

    @property
    def arms(self) -> list[str]:
        return list(self.seconds)

    def scrambled(self, rng: np.random.Generator) -> Costs:
        """Return the table with each arm's estimates off by a factor of its own, lognormal(ln 2)."""
        factors = {arm: float(np.exp(math.log(2) * rng.standard_normal())) for arm in self.arms}
        estimates = {arm: [factors[arm] * each for each in found] for arm, found in self.estimates.items()}
        return Costs(**{**self.__dict__, "estimates": estimates})


def read(path: Path, caches: str = "cold") -> Costs:
    """Return a table that `selection_tables.py` wrote, with "cold" caches or what an earlier process left on "disk"."""
    found = json.loads(path.read_text())
    shared, each, needs = {}, {}, {}
    for arm, uses in found["first_use"].items():
        seconds = uses[caches]
        if uses["compiles"] == "shared":
            needs[arm], shared[arm] = arm, seconds[0]
        else:
            backend = needs[arm] = arm.split("/")[0]
            usual = statistics.median(seconds[1:])
            shared[backend] = min(shared.get(backend, math.inf), seconds[0] - usual)  # to import it
            each[arm] = [usual, *seconds[1:]]
    return Costs(
        found["operation"],
        [tuple(size) for size in found["sizes"]],
        found["seconds"],
        found["estimates"],
        shared,
        each,
        needs,
        found["calibration"],
    )


@dataclass
class Trace:
    """Which size is asked for, call by call, and what goes wrong meanwhile.

    Args:
        costs: The table.
        keys: Index of the size of each call.
        drifts: From a call on, until a call, the arms whose names begin so take `factor` times as long.
        broken: Arm and size that raise.
        seed: Of the noise.
    """

    costs: Costs
    keys: np.ndarray
    drifts: list[tuple[int, int, str, float]] = field(default_factory=list)
    broken: frozenset[tuple[str, int]] = frozenset()
    seed: int = 0

    def seconds(self, arm: str, key: int, call: int) -> float:
        """Return what a call takes without noise."""
        found = self.costs.seconds[arm][key]
        for begin, end, prefix, factor in self.drifts:
            if begin <= call < end and arm.startswith(prefix):
                found *= factor
        return found

    @property
    def phases(self) -> list[tuple[int, int]]:
        """First call and end of each stretch in which costs stay."""
        cuts = {0, len(self.keys), *(cut for begin, end, *_ in self.drifts for cut in (begin, end))}
        return list(itertools.pairwise(sorted(cut for cut in cuts if cut <= len(self.keys))))


def stationary(costs: Costs, calls: int, seed: int) -> Trace:
    """Return a trace whose sizes have Pareto weights."""
    rng = np.random.default_rng(seed)
    weights = rng.pareto(PARETO, len(costs.sizes)) + 1
    return Trace(costs, rng.choice(len(costs.sizes), calls, p=weights / weights.sum()), seed=seed)


def drifting(costs: Costs, calls: int, seed: int) -> Trace:
    """From half of the calls on, the backend that hindsight uses most takes three times as long."""
    trace = stationary(costs, calls, seed)
    plan = Hindsight(trace, fixed=True).plan
    used: dict[str, float] = {}
    for key, count in zip(*np.unique(trace.keys, return_counts=True), strict=True):
        arm = plan[int(key)][0]
        backend = arm.split("/")[0]
        used[backend] = used.get(backend, 0.0) + count * costs.seconds[arm][int(key)]
    trace.drifts = [(calls // 2, calls, max(used, key=used.__getitem__), 3.0)]
    return trace


def passing(costs: Costs, calls: int, seed: int) -> Trace:
    """The same, and from three quarters of the calls on as before."""
    trace = drifting(costs, calls, seed)
    ((begin, _, prefix, factor),) = trace.drifts
    trace.drifts = [(begin, calls * 3 // 4, prefix, factor)]
    return trace


def faulty(costs: Costs, calls: int, seed: int) -> Trace:
    """The arm that hindsight would use raises at a third of the sizes."""
    trace = stationary(costs, calls, seed)
    rng = np.random.default_rng([seed, 1])
    plan = Hindsight(trace, fixed=True).plan
    trace.broken = frozenset((plan[key][0], key) for key in plan if rng.random() < 1 / 3)
    return trace


class Hindsight:
    """The best plan for a whole trace, which knows all costs and pays for what it compiles.

    Args:
        trace: What is asked for.
        fixed: One arm for each size from first to last; else it may change with each drift.
    """

    def __init__(self, trace: Trace, fixed: bool):
        self.trace, self.fixed = trace, fixed
        self._phases = trace.phases
        counts = [np.bincount(trace.keys[a:b], minlength=len(trace.costs.sizes)) for a, b in self._phases]
        self._counts = np.array(counts)
        best = min(self._subsets(), key=lambda found: found[0])
        self.seconds: float = best[0]
        self.plan: dict[int, tuple[str, ...]] = best[1]  # size -> arm of each phase

    def _subsets(self) -> Iterable[tuple[float, dict[int, tuple[str, ...]]]]:
        shared = self.trace.costs.shared
        for size in range(len(shared) + 1):
            for bought in itertools.combinations(shared, size):
                yield self._with(frozenset(bought))

    def _with(self, bought: frozenset[str]) -> tuple[float, dict[int, tuple[str, ...]]]:
        costs = self.trace.costs
        usable = [arm for arm in costs.arms if costs.needs.get(arm) is None or costs.needs[arm] in bought]
        total, plan = sum(costs.shared[name] for name in bought), {}
        for key in np.flatnonzero(self._counts.sum(axis=0)):
            seconds, plan[int(key)] = self._at(int(key), [a for a in usable if (a, int(key)) not in self.trace.broken])
            total += seconds
        return total, plan

    def _at(self, key: int, usable: Sequence[str]) -> tuple[float, tuple[str, ...]]:
        trace, counts = self.trace, self._counts[:, key]
        phases = range(len(counts))
        cost = {arm: [counts[p] * trace.seconds(arm, key, self._phases[p][0]) for p in phases] for arm in usable}
        pays = {arm: trace.costs.each[arm][key] if arm in trace.costs.each else 0.0 for arm in usable}
        if self.fixed:
            arm = min(usable, key=lambda arm: sum(cost[arm]) + pays[arm])
            return sum(cost[arm]) + pays[arm], (arm,) * len(counts)
        found = []
        paid = [arm for arm in usable if pays[arm]]
        for size in range(len(paid) + 1):
            for bought in itertools.combinations(paid, size):
                arms = [arm for arm in usable if not pays[arm] or arm in bought]
                chosen = tuple(min(arms, key=lambda arm: cost[arm][p]) for p in phases)
                seconds = sum(cost[arm][p] for p, arm in enumerate(chosen)) + sum(pays[arm] for arm in bought)
                found.append((seconds, chosen))
        return min(found)


class World:
    """Runs calls: tells noisy times and keeps the account of true ones.

    Attributes:
        now: What each arm takes at each size, as it is at this call.
        seconds: Of all calls, without noise.
        compiled: Seconds of them that compiled.
        failed: Calls that raised.
    """

    def __init__(self, trace: Trace):
        self.trace = trace
        self.now: dict[str, list[float]] = {}
        self.seconds = 0.0
        self.compiled = 0.0
        self.failed = 0
        self._rng = np.random.default_rng([trace.seed, 2])
        self._noise: list[float] = []
        self._bought: set[object] = set()
        self._best: dict[int, float] = {}
        self._begins = {begin for begin, _ in trace.phases}

    def begin(self, call: int) -> None:
        """Go on to a call."""
        if call in self._begins:
            sizes = range(len(self.trace.costs.sizes))
            self.now = {arm: [self.trace.seconds(arm, key, call) for key in sizes] for arm in self.trace.costs.arms}
            self._best.clear()

    def to_compile(self, arm: str, key: int) -> float:
        """Return what the next call of `arm` compiles, in seconds."""
        return sum(seconds for _, seconds in self._parts(arm, key))

    def run(self, arm: str, key: int) -> float | None:
        """Run one call; return the time that a clock would show, None where the arm raised."""
        true, extra = self.now[arm][key], 0.0
        if arm in self.trace.costs.needs:
            compiling = self._parts(arm, key)
            if compiling:
                extra = sum(seconds for _, seconds in compiling)
                self._bought.update(part for part, _ in compiling)
                self._best.clear()
        self.compiled += extra
        self.seconds += true + extra
        if (arm, key) in self.trace.broken:
            self.failed += 1
            return None
        if not self._noise:
            self._noise = self._factors(4096)
        return true * self._noise.pop() + extra

    def best(self, key: int) -> float:
        """Return what the fastest arm takes now of those that need nothing compiled any more."""
        found = self._best.get(key)
        if found is None:
            ready = [a for a in self.trace.costs.arms if not self._parts(a, key) and (a, key) not in self.trace.broken]
            found = self._best[key] = min(self.now[arm][key] for arm in ready)
        return found

    def _factors(self, count: int) -> list[float]:
        noise = np.exp(NOISE * self._rng.standard_normal(count))
        spikes = np.where(self._rng.random(count) < SPIKES, self._rng.uniform(*SPIKE, count), 1.0)
        return (noise * spikes).tolist()

    def _parts(self, arm: str, key: int) -> list[tuple[object, float]]:
        costs = self.trace.costs
        if arm not in costs.needs:
            return []
        parts: list[tuple[object, float]] = [(costs.needs[arm], costs.shared[costs.needs[arm]])]
        if arm in costs.each:
            parts.append(((arm, key), costs.each[arm][key]))
        return [(part, seconds) for part, seconds in parts if part not in self._bought and seconds]


class Player:
    """Someone who chooses: `play` runs a call, or more where it tries out, and returns the arm whose result counts."""

    measures = False  # whether it pays for the calibration of the estimate

    def __init__(self, world: World):
        self.world = world
        self.costs = world.trace.costs

    def play(self, key: int) -> str:
        raise NotImplementedError

    def explored(self) -> tuple[float, float]:
        """Return the part of all time that trials cost beyond what the incumbent would have, and what was allowed."""
        return 0.0, 0.0


def replay(trace: Trace, make: type[Player]) -> dict[str, float]:
    """Play a whole trace and return its figures; ratios, not percent."""
    world = World(trace)
    player = make(world)
    count = len(trace.keys)
    paid, wanted, chosen = np.empty(count), 0.0, []
    for call, key in enumerate(trace.keys.tolist()):
        world.begin(call)
        before = world.seconds
        chosen.append(player.play(key))
        paid[call] = world.seconds - before
        wanted += world.best(key)
    best, fixed = Hindsight(trace, fixed=False), Hindsight(trace, fixed=True)
    spent = world.seconds + (trace.costs.calibration if player.measures else 0.0)
    share, allowed = player.explored()
    return {
        "regret": spent / best.seconds - 1,
        "choice": (world.seconds - world.compiled) / wanted - 1,
        "regret_fixed": spent / fixed.seconds - 1,
        "steady": _steady(trace, paid, best),
        "steady_any": _steady(trace, paid, None),
        "worst_key": _worst_key(trace, paid, best),
        "explored": share,
        "overspent": max(0.0, share - allowed),
        "switches": 1000 * _switches(trace.keys, chosen) / count,
        "failed": world.failed,
        "compiled": world.compiled,
        "seconds": spent,
        "hindsight": best.seconds,
    }


def _steady(trace: Trace, paid: np.ndarray, best: Hindsight | None) -> float:
    """The last quarter against the plan of hindsight, or against the fastest arm, compiled or not."""
    begin = len(paid) * 3 // 4
    wanted = np.empty(len(trace.costs.sizes))
    for key in np.unique(trace.keys[begin:]).tolist():
        arms = [best.plan[key][-1]] if best else [a for a in trace.costs.arms if (a, key) not in trace.broken]
        wanted[key] = min(trace.seconds(arm, key, len(paid) - 1) for arm in arms)
    return float(paid[begin:].sum() / wanted[trace.keys[begin:]].sum() - 1)


def _worst_key(trace: Trace, paid: np.ndarray, best: Hindsight) -> float:
    """The largest ratio to hindsight's plan of what a size takes after its first calls; at least 50 more are there."""
    worst = 1.0
    for key in np.unique(trace.keys).tolist():
        calls = np.flatnonzero(trace.keys == key)[SETTLED:]
        if len(calls) < 50:
            continue
        wanted = 0.0
        for arm, (begin, end) in zip(best.plan[key], trace.phases, strict=True):
            wanted += trace.seconds(arm, key, begin) * np.count_nonzero((begin <= calls) & (calls < end))
        worst = max(worst, float(paid[calls].sum() / wanted))
    return worst


def _switches(keys: np.ndarray, chosen: Sequence[str]) -> int:
    """How often a size is computed by another arm than the time before."""
    last: dict[int, str] = {}
    count = 0
    for key, arm in zip(keys.tolist(), chosen, strict=True):
        count += last.get(key, arm) != arm
        last[key] = arm
    return count
