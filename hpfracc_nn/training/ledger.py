"""What the call sites of a model did while it was watched, over stages and over a resumed run."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from typing import Any

from hpfracc_nn.selection import Plan, ReportRow, Site
from hpfracc_nn.selection.reporting import summary

SCHEMA = 1

Key = tuple[Any, ...]  # name, kernel, then the workload's fields: what tells two rows apart


@dataclass(slots=True)
class _Watched:
    """A plan of one site, and the calls of it that are not to be counted."""

    name: str
    plan: Plan
    forwards: int
    backwards: int

    def calls(self) -> tuple[int, int]:
        return self.plan.forwards - self.forwards, self.plan.backwards - self.backwards


class Ledger:
    """Counts the consultations of some sites, by site and plan.

    A plan that is replaced while it is watched keeps its row. Rows are named by the names given to
    `attach`, so two sites with one label stay apart.
    """

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._watched: dict[Plan, _Watched] = {}
        self._paused: dict[Plan, tuple[int, int]] = {}
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
        self._paused = {plan: watched.calls() for plan, watched in self._watched.items()}

    def resume(self) -> None:
        """Count again."""
        self._watch(count=True)
        for plan, watched in self._watched.items():
            forwards, backwards = self._paused.get(plan, (0, 0))
            watched.forwards = plan.forwards - forwards
            watched.backwards = plan.backwards - backwards

    def look(self) -> list[tuple[str, Plan, int, int]]:
        """Return (name, plan, forward calls, backward calls) of every plan since `attach`."""
        self._watch(count=True)
        return [(watched.name, watched.plan, *watched.calls()) for watched in list(self._watched.values())]

    def rows(self) -> list[ReportRow]:
        """Return one row per site and workload that was consulted, the most consulted first within a site.

        A row's share is its part of all calls.
        """
        found = [row for row in self._collected().values() if _calls(row)]
        total = sum(map(_calls, found))
        places = {name: place for place, name in enumerate(dict.fromkeys(row.label for row in found))}
        found.sort(key=lambda row: (places[row.label], -_calls(row)))
        return [replace(row, share=_calls(row) / total) for row in found]

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
                past = (0, 0) if count else (plan.forwards, plan.backwards)
                self._watched[plan] = _Watched(name, plan, *past)

    def _collected(self) -> dict[Key, ReportRow]:
        rows = dict(self._past)
        for name, plan, forwards, backwards in self.look():
            key = (name, plan.kernel.name, *astuple(plan.workload))
            rows[key] = _added(rows.get(key), _row(name, plan, forwards, backwards))
        return rows


def shares(calls: Iterable[tuple[str, int]]) -> dict[str, float]:
    """Return each name's part of all calls; 0 for each where there are none."""
    totals: dict[str, int] = {}
    for name, count in calls:
        totals[name] = totals.get(name, 0) + count
    whole = sum(totals.values())
    return {name: count / whole if whole else 0.0 for name, count in totals.items()}


def _row(name: str, plan: Plan, forwards: int, backwards: int) -> ReportRow:
    work = plan.workload
    second = plan.alternatives[0][1] if plan.alternatives else None
    return ReportRow(
        label=name,
        op=work.op,
        workload=summary(work),
        dtype=work.dtype,
        device=work.device,
        backend=plan.backend,
        algorithm=plan.algorithm,
        forwards=forwards,
        backwards=backwards,
        share=0.0,  # known when all rows are
        forward_ms=milliseconds(plan.quantile("forward")),
        backward_ms=milliseconds(plan.quantile("backward")),
        predicted_ms=1e3 * plan.seconds,
        speed_up=second / plan.seconds if second is not None and plan.seconds else None,
        reason=plan.reason,
    )


def _calls(row: ReportRow) -> int:
    return row.forwards + row.backwards


def milliseconds(seconds: float | None) -> float | None:
    """Return `seconds` in milliseconds."""
    return None if seconds is None else 1e3 * seconds


def _added(past: ReportRow | None, row: ReportRow) -> ReportRow:
    """Return `row` with the calls of `past`, and its times where `row` has none."""
    if past is None:
        return row
    return replace(
        row,
        forwards=past.forwards + row.forwards,
        backwards=past.backwards + row.backwards,
        forward_ms=past.forward_ms if row.forward_ms is None else row.forward_ms,
        backward_ms=past.backward_ms if row.backward_ms is None else row.backward_ms,
    )
