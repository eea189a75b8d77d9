"""Which kernels ran while a model was trained: counts by call site, kept over resumed runs, and their summary.

A call site is a place in a program for which a `BackendManager` picks kernels, such as a layer of the model. A snapshot
holds the calls counted so far: a row for each call site, kernel and workload; its keys consist of these three.
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
MOST_ROWS = 1024  # of a table; rows with the fewest calls beyond them are summed by module and kernel
MOST_COUNTED = 4 * MOST_ROWS  # rows that are counted one by one
OTHERS = "others"  # stands in place of a workload in a row that is a sum over several

Key = tuple[Any, ...]  # a row's key: name of the call site, kernel, then the workload's fields


@dataclass(frozen=True, slots=True)
class SiteRow:
    """The counts of one call site with one kernel and workload, and a plan of that kernel and workload."""

    name: str
    plan: Plan
    counts: Counts


Snapshot = dict[Key, SiteRow]


class SiteCounts:
    """Counts of the calls of some sites, by site, kernel and workload: the difference of two snapshots.

    Rows are named by the names given to `attach`, so that two sites with one label stay apart. Plans that a site drops
    keep their rows. Workloads beyond the first `MOST_COUNTED` rows share one row for each module and kernel, so that
    memory does not grow with the number of workloads.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a site drops plans in the thread that calls it
        self._past: dict[Key, ReportRow] = {}
        self._sites: dict[str, Site] = {}
        self._clear()

    def _clear(self) -> None:
        self._since: Snapshot = {}  # calls before `attach`, or while paused
        self._logged: Snapshot = {}  # calls since then that were logged or are not to be logged
        self._paused: Snapshot | None = None
        self._aside: Snapshot | None = None
        self._known: set[Key] = set()
        self._ended: Snapshot = {}
        self._closed: dict[str, WeakSet[Usage]] = {}  # usages of dropped plans, whose counts are in `_ended`
        self._leaving: dict[str, tuple[Plan, ...]] = {}

    def attach(self, sites: Mapping[str, Site]) -> None:
        """Count the calls of `sites`, given by name, from now on, and no longer those of former sites."""
        self.detach()
        self._sites = dict(sites)
        for site in self._sites.values():
            site.follow(self)
        self._since = self._snapshot()

    def detach(self) -> None:
        """Stop counting: add the counts since `attach` to those of earlier runs, and drop the sites."""
        for site in self._sites.values():
            site.unfollow(self)
        self._past = self._collected()
        self._sites = {}
        self._clear()

    def retiring(self, site: Site, plans: tuple[Plan, ...]) -> None:
        """Keep the counts of the plans that a site drops; the site calls this method.

        The counts of plans that the site dropped at the previous call become final now: a backward pass of the newest
        dropped plans may still be counted.
        """
        with self._lock:
            for name in (name for name, each in self._sites.items() if each is site):
                for plan in self._leaving.get(name, ()):
                    self._add(self._ended, name, plan)
                    self._closed.setdefault(name, WeakSet()).add(plan.usage)
                self._leaving[name] = plans

    def pause(self) -> None:
        """Stop counting calls until `resume`."""
        self._paused = self._snapshot()

    def resume(self) -> None:
        """Count calls again; those since `pause` are left out."""
        now, paused, self._paused = self._snapshot(), self._paused, None
        self._since = now if paused is None else _plus(self._since, _minus(now, paused))

    def set_aside(self) -> None:
        """Leave the calls until `take_up` out of what is logged by the step; the rows of the table count them."""
        self._aside = self.look()

    def take_up(self) -> None:
        """Count calls again in what is logged by the step; the opposite of `set_aside`."""
        aside, self._aside = self._aside, None
        if aside is not None:
            self._logged = _plus(self._logged, _minus(self.look(), aside))

    def look(self) -> Snapshot:
        """Return the counts of calls since `attach`, without those between `pause` and `resume`."""
        return _minus(self._snapshot(), self._since)

    def recent(self, now: Snapshot) -> list[SiteRow]:
        """Return rows with the calls since the last `recent`, up to the snapshot `now`, which then counts as logged."""
        before, self._logged = self._logged, now
        return list(_minus(now, before).values())

    def most_consulted(self) -> str:
        """Return the name of the kernel that was called most since `attach`, or "" if there were no calls."""
        calls = Counter[str]()
        for each in self.look().values():
            calls[each.plan.kernel.name] += each.counts.calls
        ((most, count),) = calls.most_common(1) or [("", 0)]
        return most if count else ""

    def rows(self) -> list[ReportRow]:
        """Return one row per site, kernel and workload that was called, within a site the one with most calls first.

        A row's share is the part of all calls that it counts.
        """
        found = [row for row in self._collected().values() if row.counts.calls]
        places = {name: place for place, name in enumerate(dict.fromkeys(row.label for row in found))}
        found.sort(key=lambda row: (places[row.label], -row.counts.calls))
        return shared(found)

    def state(self) -> dict[str, Any]:
        """Return the counts for a checkpoint, made of numbers, strings, lists and dicts only."""
        rows = [{"key": list(key), "row": asdict(row)} for key, row in self._collected().items()]
        return {"schema": SCHEMA, "rows": rows}

    def load(self, state: Mapping[str, Any]) -> bool:
        """Continue the counts of a checkpoint's `state`; return False, and change nothing, if its schema is another."""
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
            plan = before.plan if plan.quantile() is None else plan  # rather a plan whose times were measured
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
    """The calls of each kernel so far, after some of the training steps: at most `MOST_LOOKS` steps over the run."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.looks: list[Look] = []

    def add(self, step: int, rows: Iterable[SiteRow]) -> None:
        """Keep the counts of calls up to a step; if there are too many entries, drop every other one."""
        uses = Counter[tuple[str, str]]()
        for each in rows:
            uses[each.plan.workload.op, each.plan.kernel.name] += each.counts.calls
        self.steps.append(step)
        self.looks.append(Look(wall_time(), dict(uses)))
        if len(self.steps) > MOST_LOOKS:
            del self.steps[1::2], self.looks[1::2]


def shares(calls: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return by name the part of all calls, between 0 and 1; 0 for each name if there are no calls."""
    totals = Counter[str]()
    for name, count in calls:
        totals[name] += count
    whole = totals.total()
    return {name: count / whole if whole else 0.0 for name, count in totals.items()}


def _shortened(rows: dict[Key, ReportRow]) -> dict[Key, ReportRow]:
    """Return `MOST_ROWS` rows at most; beyond them, one row for each module and kernel sums up those with fewest calls.

    Such a sum has the times of the row in it with most calls.
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
        past: The row of earlier runs with the same key, or None.
        row: The row of the present run.
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
    """The time that managers have spent so far, and the calls at which kernels failed.

    Args:
        deciding: Seconds for deciding and learning.
        exploring: Seconds that trials took longer than the best kernel would have taken.
        total: Seconds of all calls, as far as known.
        stand_ins: Calls at which a kernel ran in place of another that failed.
    """

    deciding: float = 0.0
    exploring: float = 0.0
    total: float = 0.0
    stand_ins: int = 0

    @classmethod
    def of(cls, managers: Iterable[BackendManager]) -> "Spent":
        """Return what several managers have spent in all."""
        found = [(each.overhead(), *each.exploration(), each.recorder.counts.stand_ins.total()) for each in managers]
        deciding, exploring, total, stand_ins = map(sum, zip(*found, strict=True)) if found else (0.0, 0.0, 0.0, 0)
        return cls(deciding, exploring, total, int(stand_ins))

    def since(self, before: "Spent") -> "Spent":
        """Return what was spent since `before`: this minus `before`."""
        return Spent(
            self.deciding - before.deciding,
            self.exploring - before.exploring,
            self.total - before.total,
            self.stand_ins - before.stand_ins,
        )


def scalars(found: list[SiteRow], spent: Spent, batches: int, quarantined: int) -> dict[str, float]:
    """Return the metrics of `BackendReport` for some training batches, numbers by name.

    Args:
        found: The counts of each site, kernel and workload in these batches.
        spent: What the managers have spent in these batches.
        batches: The number of batches.
        quarantined: The number of workloads, sizes or places at which a kernel is not used now, because it failed.
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
    """Return the measured milliseconds of the plan with most calls of each module, forward and backward, by name."""
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
    """Return how many seconds more, as predicted, the same calls would have taken by FFT.

    The result is None if no call has an FFT kernel to compare with.
    """
    found = None
    for each in rows:
        others = [(each.plan.kernel.name, each.plan.seconds), *each.plan.alternatives]
        by_fft = [seconds for name, seconds in others if name.split("/")[1] == BASELINE]
        if by_fft:
            found = (found or 0.0) + each.counts.forwards * (min(by_fft) - each.plan.seconds)
    return found


def plan_table(managers: Iterable[BackendManager]) -> dict[str, str]:
    """Return the name of the kernel in use by workload, both as text; processes compare these tables."""
    return {
        repr(plan.workload): plan.kernel.name
        for manager in managers
        for site in manager.sites()
        for plan in site.in_use()
    }


def plan_hash(table: Mapping[str, str]) -> str:
    """Return a hash of a `plan_table`, 12 hexadecimal digits: tables with other kernels have another hash."""
    lines = "\n".join(f"{workload} {kernel}" for workload, kernel in sorted(table.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def footer(rows: Iterable[SiteRow], managers: list[BackendManager]) -> str:
    """Return the line below the table: time saved, time for deciding, and hash, mode and wisdom file of the plans."""
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
