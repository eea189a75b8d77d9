"""What ran where while a model was trained: counts by call site, over a resumed run too, and their summary."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any

from hpfracc_nn.errors import printable
from hpfracc_nn.selection import BackendManager, Plan, ReportRow, Site
from hpfracc_nn.selection.learning.wisdom_file import WisdomFile
from hpfracc_nn.selection.observe.counts import Counts, milliseconds, row_of, shared
from hpfracc_nn.selection.observe.events import MOST_LOOKS, Look
from hpfracc_nn.selection.plan import Usage
from hpfracc_nn.selection.timing import wall_time
from hpfracc_nn.selection.workload import DIRECTIONS

SCHEMA = 3
MOST_ROWS = 1024  # of a table; what was consulted least beyond them is summed by module and kernel
OTHERS = "others"  # in place of a workload, in the row of such a sum

Key = tuple[Any, ...]  # name, kernel, then the workload's fields: what tells two rows apart


@dataclass(slots=True)
class Watched:
    """A plan of one site, and the counts of it that are not to be counted.

    One that stands for others that were let go has their counts as well: `past` is less by them. `seen` is what was
    logged already, or is not to be logged. `is_sum` says that the others had other workloads.
    """

    name: str
    plan: Plan
    past: Counts
    seen: Counts = field(default_factory=Counts)
    is_sum: bool = False

    def counts(self) -> Counts:
        """Return what the plan counted since."""
        return Counts.of(self.plan).minus(self.past)

    def key(self) -> Key:
        """Return what its row is found by."""
        kernel = self.plan.kernel.name
        return (self.name, kernel, OTHERS) if self.is_sum else (self.name, kernel, *astuple(self.plan.workload))


class Ledger:
    """Counts the consultations of some sites, by site and plan.

    A plan that is replaced while it is watched keeps its row. Rows are named by the names given to
    `attach`, so two sites with one label stay apart. What sites let go is summed, and of many rows the least consulted
    are, so that neither grows with the number of workloads.
    """

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._watched: dict[Usage, Watched] = {}
        self._paused: dict[Usage, Counts] | None = None
        self._aside: dict[Usage, Counts] | None = None
        self._leaving: dict[str, tuple[Plan, ...]] = {}
        self._sums: dict[Key, Watched] = {}
        self._past: dict[Key, ReportRow] = {}

    def attach(self, sites: Mapping[str, Site]) -> None:
        """Count the calls of `sites` from now on."""
        self.detach()
        self._sites = dict(sites)
        for site in self._sites.values():
            site.follow(self)
        self._watch(count=False)

    def detach(self) -> None:
        """Keep what was counted, and let the sites go."""
        for site in self._sites.values():
            site.unfollow(self)
        self._past = self._collected()
        self._sites, self._watched, self._paused, self._aside = {}, {}, None, None
        self._leaving, self._sums = {}, {}

    def retiring(self, site: Site, plans: tuple[Plan, ...]) -> None:
        """Keep the counts of plans that a site lets go; the site calls it.

        Those that it let go the time before are summed: of the last ones a backward pass may still be counted.
        """
        for name, each in self._sites.items():
            if each is site:
                self._add(name, plans, count=True)
                for plan in self._leaving.get(name, ()):
                    if plan.usage in self._watched:  # not so where two names have one site
                        self._sum(self._watched.pop(plan.usage))
                self._leaving[name] = plans

    def pause(self) -> None:
        """Leave out the calls from here to `resume`."""
        self._watch(count=True)
        self._paused = {watched.plan.usage: watched.counts() for watched in self._every()}

    def resume(self) -> None:
        """Count again."""
        self._watch(count=True)
        paused, self._paused = self._paused or {}, None
        for watched in self._every():
            watched.past = Counts.of(watched.plan).minus(paused.get(watched.plan.usage, Counts()))

    def set_aside(self) -> None:
        """Count the calls from here to `take_up` in the rows, and in nothing that is logged by the step."""
        self._watch(count=True)
        self._aside = {watched.plan.usage: watched.counts() for watched in self._every()}

    def take_up(self) -> None:
        """Log what is called from here on."""
        self._watch(count=True)
        aside, self._aside = self._aside, None
        for watched in self._every() if aside is not None else []:
            watched.seen = watched.seen.plus(watched.counts()).minus((aside or {}).get(watched.plan.usage, Counts()))

    def look(self) -> list[Watched]:
        """Return every plan, or sum of plans, with its counts since `attach`."""
        self._watch(count=True)
        return self._every()

    def most_consulted(self) -> str:
        """Return the name of the kernel that was consulted most, "" where none was."""
        calls: dict[str, int] = {}
        for each in self.look():
            calls[each.plan.kernel.name] = calls.get(each.plan.kernel.name, 0) + each.counts().calls
        most = max(calls, key=calls.__getitem__, default="")
        return most if calls.get(most) else ""

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

    def _watch(self, *, count: bool) -> None:
        for name, site in self._sites.items():
            self._add(name, site.plans(), count=count)

    def _add(self, name: str, plans: Iterable[Plan], *, count: bool) -> None:
        for plan in plans:
            watched = self._watched.get(plan.usage)
            if watched is None:
                self._watched[plan.usage] = Watched(name, plan, Counts() if count else Counts.of(plan))
            else:
                watched.plan = plan  # which may have taken the place of another for the same kernel

    def _every(self) -> list[Watched]:
        return [*self._watched.values(), *self._sums.values()]

    def _sum(self, gone: Watched) -> None:
        """Let another plan of the same row stand for one that is gone."""
        key = gone.key()
        if key not in self._sums and len(self._sums) >= MOST_ROWS:
            gone.is_sum = True
            key = gone.key()
        kept = self._sums.setdefault(key, gone)
        if kept is gone:
            return
        kept.past = kept.past.minus(gone.counts())
        kept.seen = kept.seen.plus(gone.seen)
        for counts in (self._paused, self._aside):
            if counts is not None:
                mine, its = kept.plan.usage, gone.plan.usage
                counts[mine] = counts.get(mine, Counts()).plus(counts.pop(its, Counts()))

    def _collected(self) -> dict[Key, ReportRow]:
        rows = dict(self._past)
        for each in self.look():
            row = row_of(each.name, each.plan, each.counts())
            key = each.key()
            rows[key] = _added(rows.get(key), replace(row, workload=OTHERS) if each.is_sum else row)
        return _shortened(rows)


class Steps:
    """How often each kernel had been consulted after some steps: at most a few hundred, spread over the run."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.looks: list[Look] = []

    def add(self, step: int, watched: Iterable[Watched]) -> None:
        """Keep the counts after a step; of too many every other one goes."""
        uses: dict[tuple[str, str], int] = {}
        for each in watched:
            use = each.plan.workload.op, each.plan.kernel.name
            uses[use] = uses.get(use, 0) + each.counts().calls
        self.steps.append(step)
        self.looks.append(Look(wall_time(), uses))
        if len(self.steps) > MOST_LOOKS:
            del self.steps[1::2], self.looks[1::2]


def shares(calls: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return each name's part of all calls; 0 for each where there are none."""
    totals: dict[str, int] = {}
    for name, count in calls:
        totals[name] = totals.get(name, 0) + count
    whole = sum(totals.values())
    return {name: count / whole if whole else 0.0 for name, count in totals.items()}


def _shortened(rows: dict[Key, ReportRow]) -> dict[Key, ReportRow]:
    """Return as many rows as there may be; those consulted least are one for each module and kernel.

    Such a row has the times of the one of them that was consulted most.
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
    """Return `row` with the counts of `past`, and its times where `row` has none."""
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


@dataclass(frozen=True, slots=True)
class Recent:
    """What a plan of a module did since the last time."""

    name: str
    plan: Plan
    counts: Counts


def recent(watched: Iterable[Watched]) -> list[Recent]:
    """Return what each plan did since it was seen."""
    return [Recent(each.name, each.plan, each.counts().minus(each.seen)) for each in watched]


def scalars(found: list[Recent], spent: Spent, batches: int, quarantined: int) -> dict[str, float]:
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


def times(found: Iterable[Recent]) -> dict[str, float]:
    """Return the measured milliseconds of each module's plan that was consulted most."""
    most: dict[str, Recent] = {}
    for each in found:
        if each.name not in most or each.counts.calls > most[each.name].counts.calls:
            most[each.name] = each
    measured = {
        f"op_ms/{name}.{direction}": milliseconds(each.plan.quantile(direction))
        for name, each in most.items()
        for direction in DIRECTIONS
    }
    return {name: value for name, value in measured.items() if value is not None}


def regret(found: Iterable[Recent]) -> float:
    """Return the part of the predicted time that would not have been spent if the best kernel had always run."""
    spent = least = 0.0
    for each in found:
        best = min((seconds for _, seconds in each.plan.alternatives), default=each.plan.seconds)
        spent += each.counts.forwards * each.plan.seconds
        least += each.counts.forwards * min(best, each.plan.seconds)
    return 1 - least / spent if spent else 0.0


def saved(watched: Iterable[Watched]) -> float | None:
    """Return the predicted seconds that the same calls would have taken longer by FFT; None where none could be."""
    found = None
    for each in watched:
        others = [(each.plan.kernel.name, each.plan.seconds), *each.plan.alternatives]
        by_fft = [seconds for name, seconds in others if name.split("/")[1] == BASELINE]
        if by_fft:
            found = (found or 0.0) + each.counts().forwards * (min(by_fft) - each.plan.seconds)
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


def footer(watched: list[Watched], managers: list[BackendManager]) -> str:
    """Return the line below the table: what was gained, what it cost, and what would bring the same plans again."""
    spent, calls = Spent.of(managers), sum(sum(each.totals().uses.values()) for each in managers)
    said, gained = [], saved(watched)
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
