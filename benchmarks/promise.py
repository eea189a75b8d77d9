"""A promise about speed, and how its figure is found among the records of a table.

A promise names its table, says which records count by patterns of their values, and which figure of them. Where several
records count, the worst one does. What is not found is "not measured", never met.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

Record = Mapping[str, Any]
Figure = Callable[[Sequence[Record]], float]
Tables = Mapping[str, Sequence[Record]]
Side = Literal["at least", "at most"]


class NotMeasured(LookupError):
    """A record that a promise asks for is not there."""


@dataclass(frozen=True)
class Promise:
    """What a table must show.

    Args:
        workload: What was done, and of which size.
        figure_of: What the figure is, for example "torch's FFT / ours".
        table: Where the records are.
        figure: Key of a record (with dots into what it holds), of which the worst counts; or a function of all records.
        side: On which side of the bound the figure must be.
        bound: The bound.
        where: Key of a record -> what its value must be: a pattern for a string, a tuple of which one must fit.
        unit: Of figure and bound; " %" shows shares in percent.
        note: What was asked before and why it is this now, or another thing to know.
    """

    workload: str
    figure_of: str
    table: str
    figure: str | Figure
    side: Side
    bound: float
    where: Mapping[str, object] = field(default_factory=dict)
    unit: str = ""
    note: str = ""

    def judge(self, tables: Tables) -> Verdict:
        """Return what the tables show of it."""
        try:
            chosen = chosen_from(tables.get(self.table, ()), self.where)
            if callable(self.figure):
                return Verdict(self, self.figure(chosen), 1)
            found = [value_of(record, self.figure) for record in chosen]
        except NotMeasured:
            return Verdict(self, None, 0)
        worst = min if self.side == "at least" else max
        return Verdict(self, worst(found), len(found))

    @property
    def asked(self) -> str:
        """Side, bound and unit in words."""
        return f"{self.side} {self.written(self.bound)}"

    def written(self, value: float) -> str:
        """Return a figure with its unit."""
        return number(100 * value if self.unit == " %" else value) + self.unit


@dataclass(frozen=True)
class Verdict:
    """A promise, and what was found; None where nothing was."""

    promise: Promise
    value: float | None
    records: int

    @property
    def word(self) -> str:
        """Return "met", "NOT met" or "not measured"."""
        if self.value is None:
            return "not measured"
        bound = self.promise.bound
        return "met" if (self.value >= bound if self.promise.side == "at least" else self.value <= bound) else "NOT met"

    @property
    def measured(self) -> str:
        """The figure, and of how many records it is the worst."""
        if self.value is None:
            return ""
        return self.promise.written(self.value) + (f" (worst of {self.records})" if self.records > 1 else "")


def chosen_from(records: Sequence[Record], where: Mapping[str, object]) -> list[Record]:
    """Return the records that `where` asks for.

    Raises:
        NotMeasured: There is none.
    """
    chosen = [record for record in records if all(fits(record.get(key), wanted) for key, wanted in where.items())]
    if not chosen:
        raise NotMeasured(f"no record of {len(records)} with {dict(where)}")
    return chosen


def fits(value: object, wanted: object) -> bool:
    """Return whether a value is what is wanted."""
    if isinstance(wanted, tuple):
        return any(fits(value, each) for each in wanted)
    if isinstance(wanted, str):
        return isinstance(value, str) and fnmatchcase(value, wanted)
    return value == wanted


def value_of(record: Record, key: str) -> float:
    """Return a number that a record holds; dots lead into what it holds.

    Raises:
        NotMeasured: It does not hold it.
    """
    found: Any = record
    for part in key.split("."):
        if not isinstance(found, Mapping) or found.get(part) is None:
            raise NotMeasured(f"no {key} in a record with {', '.join(record)}")
        found = found[part]
    return float(found)


def one(records: Sequence[Record], key: str, where: Mapping[str, object]) -> float:
    """Return the number of the one record that `where` asks for.

    Raises:
        NotMeasured: There is none, or more than one.
    """
    found = chosen_from(records, where)
    if len(found) > 1:
        raise NotMeasured(f"{len(found)} records with {dict(where)}")
    return value_of(found[0], key)


def quotient(key: str, upper: Mapping[str, object], lower: Mapping[str, object]) -> Figure:
    """Return the figure that is one record's number over another's."""
    return lambda records: one(records, key, upper) / one(records, key, lower)


def number(value: float) -> str:
    """Return three digits, or all where the number is large."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
