"""Tables that are printed as they grow, then written as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from extent import Cells


@dataclass
class Table:
    """Records under fixed columns; a record may hold more than the columns show.

    Args:
        name: Of the files that `write` makes.
        caption: What was measured, on what machine, how often.
        columns: Key of a record -> (heading, format specification).
        records: What is in it.
        notes: Lines below it.
        folder: Where it is written anew with each record, so that a script that is ended loses none; None: when asked.
    """

    name: str
    caption: str
    columns: dict[str, tuple[str, str]]
    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: Path | None = None

    def begin(self, part: str) -> None:
        """Print caption and heading of a part of the records."""
        print(f"\n## {self.name}, {part}\n\n{self.caption}\n\n" + "\n".join(self._heading()), flush=True)

    def add(self, **record: Any) -> dict[str, Any]:
        """Keep one record, print its line, and return it."""
        self.records.append(record)
        print(self._line(record), flush=True)
        if self.folder is not None:
            self.write(self.folder)
        return record

    def note(self, text: str) -> None:
        """Keep and print a line that stands below the table."""
        self.notes.append(text)
        print(f"\n{text}", flush=True)
        if self.folder is not None:
            self.write(self.folder)

    def markdown(self) -> str:
        lines = [f"# {self.name}", "", self.caption, "", *self._heading(), *map(self._line, self.records)]
        for text in self.notes:
            lines += ["", text]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write name.md and name.json into `folder`, which is made if need be."""
        folder.mkdir(parents=True, exist_ok=True)
        document = {"caption": self.caption, "records": self.records, "notes": self.notes}
        part = folder / f"{self.name}.part"
        for kind, text in (("md", self.markdown()), ("json", json.dumps(document, indent=1) + "\n")):
            part.write_text(text)
            part.replace(folder / f"{self.name}.{kind}")  # who ends this script meanwhile finds it whole or not at all

    def _heading(self) -> list[str]:
        titles = [title for title, _ in self.columns.values()]
        return ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]

    def _line(self, record: dict[str, Any]) -> str:
        cells = []
        for key, (_, form) in self.columns.items():
            value = record.get(key)
            cells.append("" if value is None else format(value, form))
        return "| " + " | ".join(cells) + " |"


@dataclass(frozen=True)
class Group:
    """A table, and what fills it.

    Args:
        table: Makes the empty table for so many cells.
        fill: Measures with one allocator and adds the records: fill(table, allocator, cells).
        allocators: With which ones.
    """

    table: Callable[[Cells], Table]
    fill: Callable[[Table, str, Cells], None]
    allocators: tuple[str, ...] = ("cold", "warm")


def microseconds(seconds: float) -> float:
    """Return `seconds` in microseconds."""
    return 1e6 * seconds
