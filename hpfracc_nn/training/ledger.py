"""What the call sites of a model did while it was watched, over stages and over a resumed run."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any

from hpfracc_nn.selection import Plan, ReportRow, Site
from hpfracc_nn.selection.journal import MOST_LOOKS, Look
from hpfracc_nn.selection.reporting import Counts, row_of, shared

SCHEMA = 2

Key = tuple[Any, ...]  # name, kernel, then the workload's fields: what tells two rows apart


@dataclass(slots=True)
class Watched:
    """A plan of one site, and the counts of it that are not to be counted."""

    name: str
    plan: Plan
    past: Counts

    def counts(self) -> Counts:
        """Return what the plan counted since."""
        return Counts.of(self.plan).minus(self.past)


class Ledger:
    """Counts the consultations of some sites, by site and plan.

    A plan that is replaced while it is watched keeps its row. Rows are named by the names given to
    `attach`, so two sites with one label stay apart.
    """

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._watched: dict[Plan, Watched] = {}
        self._paused: dict[Plan, Counts] = {}
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
        self._sites, self._watched, self._paused = {}, {}, {}

    def retiring(self, site: Site, plans: tuple[Plan, ...]) -> None:
        """Keep the plans that a site lets go; the site calls it."""
        for name, each in self._sites.items():
            if each is site:
                self._add(name, plans, count=True)

    def pause(self) -> None:
        """Leave out the calls from here to `resume`."""
        self._watch(count=True)
        self._paused = {plan: watched.counts() for plan, watched in self._watched.items()}

    def resume(self) -> None:
        """Count again."""
        self._watch(count=True)
        for plan, watched in self._watched.items():
            watched.past = Counts.of(plan).minus(self._paused.get(plan, Counts()))

    def look(self) -> list[Watched]:
        """Return every plan with its counts since `attach`."""
        self._watch(count=True)
        return list(self._watched.values())

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
        names = {field.name for field in fields(ReportRow)}
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
            if plan not in self._watched:
                self._watched[plan] = Watched(name, plan, Counts() if count else Counts.of(plan))

    def _collected(self) -> dict[Key, ReportRow]:
        rows = dict(self._past)
        for each in self.look():
            key = (each.name, each.plan.kernel.name, *astuple(each.plan.workload))
            rows[key] = _added(rows.get(key), row_of(each.name, each.plan, each.counts()))
        return rows


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
        self.looks.append(Look(time.time(), uses))
        if len(self.steps) > MOST_LOOKS:
            del self.steps[1::2], self.looks[1::2]


def shares(calls: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return each name's part of all calls; 0 for each where there are none."""
    totals: dict[str, int] = {}
    for name, count in calls:
        totals[name] = totals.get(name, 0) + count
    whole = sum(totals.values())
    return {name: count / whole if whole else 0.0 for name, count in totals.items()}


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
