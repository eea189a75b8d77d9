"""What ran where while a model was trained: counts by call site, over a resumed run too, and their summary.

A snapshot holds the calls counted so far: a row for each call site, kernel and workload, which its key names.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any
from weakref import WeakSet

from hpfracc_nn.errors import printable
from hpfracc_nn.selection import BackendManager, Plan, ReportRow, Site
from hpfracc_nn.selection.learning.wisdom_file import WisdomFile
from hpfracc_nn.selection.plan import Counts, Usage
from hpfracc_nn.selection.recorder import MOST_LOOKS, Look, milliseconds, row_of, shared
from hpfracc_nn.selection.workload import DIRECTIONS, wall_time

SCHEMA = 3
MOST_ROWS = 1024  # of a table; what was consulted least beyond them is summed by module and kernel
MOST_COUNTED = 4 * MOST_ROWS  # rows that are counted one by one
OTHERS = "others"  # in place of a workload, in the row of such a sum

Key = tuple[Any, ...]  # name, kernel, then the workload's fields: what tells two rows apart


@dataclass(frozen=True, slots=True)
class SiteRow:
    """The counts of one call site with one kernel and workload, and the plan that was used last."""

    name: str
    plan: Plan
    counts: Counts


Snapshot = dict[Key, SiteRow]


class SiteCounts:
    """Counts of the calls of some sites, by site, kernel and workload: the difference of two snapshots.

    Rows are named by the names given to `attach`, so that two sites with one label stay apart. Plans that a site lets
    go keep their row. Workloads beyond the first thousands share one row for each module and kernel, so that memory
    does not grow with their number.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a site drops plans in the thread that calls it
        self._past: dict[Key, ReportRow] = {}
        self._sites: dict[str, Site] = {}
        self._clear()

    def _clear(self) -> None:
        self._since: Snapshot = {}  # what was counted before
        self._logged: Snapshot = {}  # of what was counted since, what was logged or is not to be logged
        self._paused: Snapshot | None = None
        self._aside: Snapshot | None = None
        self._known: set[Key] = set()
        self._ended: Snapshot = {}
        self._closed: dict[str, WeakSet[Usage]] = {}  # whose counts are in `_ended`
        self._leaving: dict[str, tuple[Plan, ...]] = {}

    def attach(self, sites: Mapping[str, Site]) -> None:
        """Count the calls of `sites` from now on."""
        self.detach()
        self._sites = dict(sites)
        for site in self._sites.values():
            site.follow(self)
        self._since = self._snapshot()

    def detach(self) -> None:
        """Add the counts to the past ones, and drop the sites."""
        for site in self._sites.values():
            site.unfollow(self)
        self._past = self._collected()
        self._sites = {}
        self._clear()

    def retiring(self, site: Site, plans: tuple[Plan, ...]) -> None:
        """Keep the plans that a site drops; the site calls it.

        Counts of those that it let go the time before are final: of the last ones a backward pass may still be counted.
        """
        with self._lock:
            for name in (name for name, each in self._sites.items() if each is site):
                for plan in self._leaving.get(name, ()):
                    self._add(self._ended, name, plan)
                    self._closed.setdefault(name, WeakSet()).add(plan.usage)
                self._leaving[name] = plans

    def pause(self) -> None:
        """Leave out the calls from here to `resume`."""
        self._paused = self._snapshot()

    def resume(self) -> None:
        """Count again."""
        now, paused, self._paused = self._snapshot(), self._paused, None
        self._since = now if paused is None else _plus(self._since, _minus(now, paused))

    def set_aside(self) -> None:
        """Count the calls from here to `take_up` in the rows, and in nothing that is logged by the step."""
        self._aside = self.look()

    def take_up(self) -> None:
        """Log what is called from here on."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self._logged = _plus(self._logged, _minus(self.look(), aside))

    def look(self) -> Snapshot:
        """Return the counts since `attach`."""
        return _minus(self._snapshot(), self._since)

    def recent(self, now: Snapshot) -> list[SiteRow]:
        """Return what was counted from what is logged to `now`, which is logged then."""
        before, self._logged = self._logged, now
        return list(_minus(now, before).values())

    def most_consulted(self) -> str:
        """Return the name of the kernel that was consulted most, "" where none was."""
        calls = Counter[str]()
        for each in self.look().values():
            calls[each.plan.kernel.name] += each.counts.calls
        ((most, count),) = calls.most_common(1) or [("", 0)]
        return most if count else ""

    def rows(self) -> list[ReportRow]:
        """Return one row per site and workload that was consulted, the most consulted first within a site.

        A row's share is its part of all calls.
        """
        found = [row for row in self._collected().values() if row.counts.calls]
        places = {name: place for place, name in enumerate(dict.fromkeys(row.label for row in found))}
        found.sort(key=lambda row: (places[row.label], -row.counts.calls))
        return shared(found)

    def state(self) -> dict[str, Any]:
        """Return the counts in numbers, strings, lists and dicts only."""
        rows = [{"key": list(key), "row": asdict(row)} for key, row in self._collected().items()]
        return {"schema": SCHEMA, "rows": rows}

    def load(self, state: Mapping[str, Any]) -> bool:
        """Count on from `state`; return False, and change nothing, if it is of another schema."""
        names = {each.name for each in fields(ReportRow)}
        rows = state.get("rows", [])
        if state.get("schema") != SCHEMA or any(set(line["row"]) != names for line in rows):
            return False
        self._past = {tuple(line["key"]): ReportRow(**line["row"]) for line in rows}
        return True

    def _snapshot(self) -> Snapshot:
        live = [(name, plan) for name, site in self._sites.items() for plan in site.plans()]
        with self._lock:
            found = dict(self._ended)
            leaving = [(name, plan) for name, plans in self._leaving.items() for plan in plans]
            for (name, usage), plan in {(name, plan.usage): plan for name, plan in (*leaving, *live)}.items():
                if usage not in self._closed.get(name, ()):
                    self._add(found, name, plan)
        return found

    def _add(self, found: Snapshot, name: str, plan: Plan) -> None:
        key: Key = (name, plan.kernel.name, *astuple(plan.workload))
        if key not in self._known and len(self._known) >= MOST_COUNTED:
            key = (name, plan.kernel.name, OTHERS)
        self._known.add(key)
        counts, before = plan.usage.counts(), found.get(key)
        if before is not None:
            counts = counts.plus(before.counts)
            plan = before.plan if plan.quantile() is None else plan  # whose times are known
        found[key] = SiteRow(name, plan, counts)

    def _collected(self) -> dict[Key, ReportRow]:
        rows = dict(self._past)
        for key, each in self.look().items():
            row = row_of(each.name, each.plan, each.counts)
            rows[key] = _added(rows.get(key), replace(row, workload=OTHERS) if key[2:] == (OTHERS,) else row)
        return _shortened(rows)


def _minus(now: Snapshot, before: Snapshot) -> Snapshot:
    """Return the calls that were counted from the snapshot `before` to the snapshot `now`."""
    return {
        key: replace(row, counts=row.counts.minus(before[key].counts)) if key in before else row
        for key, row in now.items()
    }


def _plus(some: Snapshot, others: Snapshot) -> Snapshot:
    """Return the sum of two snapshots: rows with the same key become one."""
    return some | {
        key: replace(row, counts=row.counts.plus(some[key].counts)) if key in some else row
        for key, row in others.items()
    }


class Steps:
    """How often each kernel had been consulted after some steps: at most a few hundred, spread over the run."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.looks: list[Look] = []

    def add(self, step: int, rows: Iterable[SiteRow]) -> None:
        """Keep the counts after a step; of too many every other one goes."""
        uses = Counter[tuple[str, str]]()
        for each in rows:
            uses[each.plan.workload.op, each.plan.kernel.name] += each.counts.calls
        self.steps.append(step)
        self.looks.append(Look(wall_time(), dict(uses)))
        if len(self.steps) > MOST_LOOKS:
            del self.steps[1::2], self.looks[1::2]


def shares(calls: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return each name's part of all calls; 0 for each where there are none."""
    totals = Counter[str]()
    for name, count in calls:
        totals[name] += count
    whole = totals.total()
    return {name: count / whole if whole else 0.0 for name, count in totals.items()}


def _shortened(rows: dict[Key, ReportRow]) -> dict[Key, ReportRow]:
    """Return at most `MOST_ROWS` rows; those consulted least are merged into one for each module and kernel.

    A merged row has the times of the most consulted row in it.
    """
    if len(rows) <= MOST_ROWS:
        return rows
    ranked = sorted(rows, key=lambda key: (rows[key].workload == OTHERS, rows[key].counts.calls), reverse=True)
    kept = set(ranked[:MOST_ROWS])
    found = {key: row for key, row in rows.items() if key in kept}
    for key in ranked[MOST_ROWS:]:
        place = (*key[:2], OTHERS)
        past = found.get(place)
        row = replace(rows[key], workload=OTHERS)
        found[place] = row if past is None else replace(past, **past.counts.plus(row.counts)._asdict())
    return found


def _added(past: ReportRow | None, row: ReportRow) -> ReportRow:
    """Return `row` with the counts of `past` added, and with the times of `past` where `row` has none.

    Args:
        past: The row of the run that was resumed, or None.
        row: That of the present run.
    """
    if past is None:
        return row
    return replace(
        row,
        **past.counts.plus(row.counts)._asdict(),
        forward_ms=past.forward_ms if row.forward_ms is None else row.forward_ms,
        backward_ms=past.backward_ms if row.backward_ms is None else row.backward_ms,
    )


BASELINE = "fft"  # what people use without this package


@dataclass(frozen=True)
class Spent:
    """What managers have spent so far.

    Args:
        deciding: Seconds for deciding and learning.
        exploring: Seconds that trials took longer than the best kernel would have.
        total: Seconds of all calls, as far as is known.
        stand_ins: Calls at which a kernel ran in place of one that failed.
    """

    deciding: float = 0.0
    exploring: float = 0.0
    total: float = 0.0
    stand_ins: int = 0

    @classmethod
    def of(cls, managers: Iterable[BackendManager]) -> "Spent":
        """Return what these have spent, together."""
        found = [(each.overhead(), *each.exploration(), each.recorder.counts.stand_ins.total()) for each in managers]
        deciding, exploring, total, stand_ins = map(sum, zip(*found, strict=True)) if found else (0.0, 0.0, 0.0, 0)
        return cls(deciding, exploring, total, int(stand_ins))

    def since(self, before: "Spent") -> "Spent":
        """Return how much more this is."""
        return Spent(
            self.deciding - before.deciding,
            self.exploring - before.exploring,
            self.total - before.total,
            self.stand_ins - before.stand_ins,
        )


def scalars(found: list[SiteRow], spent: Spent, batches: int, quarantined: int) -> dict[str, float]:
    """Return what happened in so many batches.

    Args:
        found: What each plan did.
        spent: By the managers meanwhile.
        batches: How many there were.
        quarantined: Workloads, sizes or places at which a kernel is left alone now.
    """
    calls = sum(each.counts.calls for each in found)
    by_backend = shares((each.plan.backend, each.counts.calls) for each in found)
    values = {f"share/{backend}": share for backend, share in by_backend.items()}
    values["select_per_step"] = calls / max(1, batches)
    values["plans"] = float(len(found))
    values["explore_fraction"] = spent.exploring / spent.total if spent.total > 0 else 0.0
    values["switches"] = float(sum(each.counts.switches for each in found))
    values["fallbacks"] = float(spent.stand_ins)
    values["quarantined"] = float(quarantined)
    values["regret_estimate"] = regret(found)
    values["overhead_us"] = 1e6 * spent.deciding / calls if calls else 0.0
    return values | times(found)


def times(found: Iterable[SiteRow]) -> dict[str, float]:
    """Return the measured milliseconds of each module's plan that was consulted most."""
    most: dict[str, SiteRow] = {}
    for each in found:
        if each.name not in most or each.counts.calls > most[each.name].counts.calls:
            most[each.name] = each
    measured = {
        f"op_ms/{name}.{direction}": milliseconds(each.plan.quantile(direction))
        for name, each in most.items()
        for direction in DIRECTIONS
    }
    return {name: value for name, value in measured.items() if value is not None}


def regret(found: Iterable[SiteRow]) -> float:
    """Return the part of the predicted time that would not have been spent if the best kernel had always run."""
    spent = least = 0.0
    for each in found:
        best = min((seconds for _, seconds in each.plan.alternatives), default=each.plan.seconds)
        spent += each.counts.forwards * each.plan.seconds
        least += each.counts.forwards * min(best, each.plan.seconds)
    return 1 - least / spent if spent else 0.0


def saved(rows: Iterable[SiteRow]) -> float | None:
    """Return the predicted seconds that the same calls would have taken longer by FFT; None where none could be."""
    found = None
    for each in rows:
        others = [(each.plan.kernel.name, each.plan.seconds), *each.plan.alternatives]
        by_fft = [seconds for name, seconds in others if name.split("/")[1] == BASELINE]
        if by_fft:
            found = (found or 0.0) + each.counts.forwards * (min(by_fft) - each.plan.seconds)
    return found


def plan_table(managers: Iterable[BackendManager]) -> dict[str, str]:
    """Return the kernel of each workload that is in use, as text: what processes compare."""
    return {
        repr(plan.workload): plan.kernel.name
        for manager in managers
        for site in manager.sites()
        for plan in site.in_use()
    }


def plan_hash(table: Mapping[str, str]) -> str:
    """Return 12 hexadecimal digits that differ where another kernel is chosen for a workload."""
    lines = "\n".join(f"{workload} {kernel}" for workload, kernel in sorted(table.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def footer(rows: Iterable[SiteRow], managers: list[BackendManager]) -> str:
    """Return the line below the table: what was gained, what it cost, and what would bring the same plans again."""
    spent, calls = Spent.of(managers), sum(counts.calls for each in managers for counts in each.totals().values())
    said, gained = [], saved(rows)
    if gained is not None:
        said.append(f"Saved against FFT everywhere: {gained:.3g} s (estimated).")
    if calls:
        said.append(f"Deciding and learning: {1e6 * spent.deciding / calls:.3g} us a call.")
    if managers:
        said.append(f"Plans {plan_hash(plan_table(managers))}.")
    for manager in managers:
        file = WisdomFile.at(str(manager.settings.wisdom)) if manager.settings.mode in ("learn", "frozen") else None
        said.append(f"Mode {manager.settings.mode}, wisdom {'none' if file is None else file.path}.")
    return printable(" ".join(said))
