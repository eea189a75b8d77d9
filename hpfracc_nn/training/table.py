"""The rows of a report as a table: plain text, Markdown, or printed by the package rich.

`cells` are the texts of a table: a list of texts for the header, then a list for each row.
"""

import importlib
import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence

from hpfracc_nn.errors import printable
from hpfracc_nn.selection import ReportRow
from hpfracc_nn.selection.observe.explain import aligned

WHAT: dict[str, Callable[[ReportRow], str]] = {
    "Module": lambda row: row.label,
    "Op": lambda row: row.op,
    "Input": lambda row: row.workload,
    "dtype": lambda row: row.dtype,
    "Device": lambda row: row.device,
    "Backend": lambda row: row.backend,
    "Algorithm": lambda row: row.algorithm,
}
HOW: dict[str, Callable[[ReportRow], str]] = {
    "Forward calls": lambda row: str(row.forwards),
    "Backward calls": lambda row: str(row.backwards),
    "Share %": lambda row: f"{100 * row.share:.1f}",
    "Forward ms": lambda row: _number(row.forward_ms, ".3g"),
    "Backward ms": lambda row: _number(row.backward_ms, ".3g"),
    "Predicted ms": lambda row: _number(row.predicted_ms, ".3g"),
}
WHY: dict[str, Callable[[ReportRow], str]] = {
    "x vs 2nd best": lambda row: _number(row.speed_up, ".3g"),
    "Confidence %": lambda row: f"{100 * row.confidence:.0f}",
    "Explored %": lambda row: _number(None if row.explored is None else 100 * row.explored, ".1f"),
    "Switches": lambda row: str(row.switches),
    "Failures": lambda row: str(row.failures),
    "Reason": lambda row: row.reason,
}
PARTS = (WHAT, HOW, WHY)
ALL = {**WHAT, **HOW, **WHY}
TEXT = (*WHAT, "Reason")  # the columns that hold no number
TITLE = "Which kernel ran"
WIDTH = 80  # characters, where the terminal says nothing else
LEAST = 12  # characters that are left of a cell at least when its text is cut
CAPTION = (
    "Input: rows x n x width. Forward and backward ms: 20 % quantiles of sampled\n"
    "calls; predicted: both together. x vs 2nd best: predicted. Confidence: that none\n"
    "is faster. Explored: calls that only tried the kernel."
)


def has_rich() -> bool:
    """Return whether rich is installed, without loading it."""
    return is_installed("rich")


def is_installed(package: str) -> bool:
    """Return whether a package is installed, without loading it."""
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # sys.modules[package] is None: an import of it is blocked
        return False


def render(rows: Sequence[ReportRow], form: str) -> str:
    """Return the table as `form`, "rich" or "plain", no wider than the terminal, or than 80 columns elsewhere."""
    if form == "rich":
        return _rich(rows)
    return plain(rows, shutil.get_terminal_size((WIDTH, 0)).columns if sys.stdout.isatty() else WIDTH)


def plain(rows: Sequence[ReportRow], width: int = WIDTH) -> str:
    """Return the table as text, in three parts if it is wider than `width`; only the ends of long names are shown."""
    text = aligned(_cells(rows, ALL))
    if max(map(len, text)) > width:
        parts = [_shortened(_numbered(rows, part), width, _plain_width) for part in PARTS]
        first, *others = [aligned(_headed(part)) for part in parts]
        text = [*first, *(line for part in others for line in ("", *part))]
    return "\n".join([TITLE, *text, CAPTION, ""])


def markdown(rows: Sequence[ReportRow], footer: str) -> str:
    """Return the table in Markdown, with the caption and the text `footer` below."""
    header, *lines = cells(rows)
    marked = [" | ".join(line) for line in (header, ["---"] * len(header), *lines)]
    return "\n".join([*(f"| {line} |" for line in marked), "", CAPTION, "", footer])


def cells(rows: Sequence[ReportRow]) -> list[list[str]]:
    """Return the table's cells as text: a list for the header, then a list for each row."""
    return _cells(rows, ALL)


def _rich(rows: Sequence[ReportRow]) -> str:
    console = importlib.import_module("rich.console").Console(markup=False, highlight=False)
    parts = [_cells(rows, ALL)]
    if _rich_width(parts[0]) > console.width:
        parts = [_shortened(_numbered(rows, part), console.width, _rich_width) for part in PARTS]
    with console.capture() as captured:
        console.print(TITLE, style="bold")
        for header, *lines in parts:
            table = importlib.import_module("rich.table").Table(
                box=importlib.import_module("rich.box").SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)
            )
            for name in header:
                table.add_column(_folded(name), justify="left" if name in TEXT else "right")
            for line in lines:
                table.add_row(*line)
            console.print(table)
        console.print(CAPTION, style="dim")
    return str(captured.get())


def _shortened(
    cells: list[list[str]], width: int, width_of: Callable[[Sequence[Sequence[str]]], int]
) -> list[list[str]]:
    """Return the cells, changed in place: long texts cut to their ends until the table fits into `width` characters.

    The names of modules, in the first column of texts, are cut first. `width_of` returns the width of a table's cells.
    """
    header, *lines = cells
    for column, name in enumerate(header):
        excess = width_of(cells) - width
        if name in TEXT and lines and excess > 0:
            most = max(LEAST, max(len(line[column]) for line in lines) - excess)
            for line in lines:
                if len(line[column]) > most:
                    line[column] = ".." + line[column][2 - most :]
    return cells


def _plain_width(cells: Sequence[Sequence[str]]) -> int:
    """Return the width in characters of the longest line of a plain-text table, its headers broken where they fit."""
    return max(map(len, aligned(_headed(cells))))


def _rich_width(cells: Sequence[Sequence[str]]) -> int:
    """Return the width in characters of a table that rich prints, its headers broken into lines."""
    header, *lines = cells
    longest = [max(_folded(name).split("\n"), key=len) for name in header]
    return sum(max(map(len, column)) + 2 for column in zip(longest, *lines, strict=True))


def _folded(name: str) -> str:
    return textwrap.fill(name, 10)  # "Confidence"


def _headed(cells: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the cells with the header broken into several lines, each a row of the table."""
    header, *lines = cells
    folded = [_folded(name).split("\n") for name in header]
    height = max(map(len, folded))
    padded = [[""] * (height - len(part)) + part for part in folded]
    return [*zip(*padded, strict=True), *lines]


def _cells(rows: Sequence[ReportRow], columns: dict[str, Callable[[ReportRow], str]]) -> list[list[str]]:
    return [list(columns), *([printable(cell(row)) for cell in columns.values()] for row in rows)]


def _numbered(rows: Sequence[ReportRow], columns: dict[str, Callable[[ReportRow], str]]) -> list[list[str]]:
    """Return the cells of some columns, after a first column with the number of each row.

    By these numbers the parts of a table that is printed in several can be read together.

    Args:
        rows: The rows of the report.
        columns: By header, the function that makes a cell's text of a row.
    """
    header, *lines = _cells(rows, columns)
    return [["#", *header], *([str(number), *line] for number, line in enumerate(lines, 1))]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
