"""All summaries and plots of a history in one file."""

import base64
import html
import importlib
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpfracc_nn.analytics import figures, tables
from hpfracc_nn.analytics.history import History
from hpfracc_nn.errors import printable

FORMATS = (".html", ".png")
TITLE = "Choice of kernels"
PLOTS: tuple[Callable[..., Any], ...] = (
    figures.choice_map,
    figures.predicted_against_measured,
    figures.shares_over_time,
    figures.timeline,
)
TABLES: tuple[tuple[str, Callable[[History], list[tables.Row]], Sequence[str]], ...] = (
    ("Usage", tables.usage_rows, tables.USAGE),
    ("Performance (times in ms)", tables.performance_rows, tables.PERFORMANCE),
    ("Errors", tables.error_rows, tables.ERRORS),
    ("Events, the last 200", lambda history: tables.event_rows(history)[-200:], tables.EVENTS),
)
STYLE = """body{font:14px sans-serif;margin:2em auto;max-width:75em;padding:0 1em}
table{border-collapse:collapse;font-size:12px}th,td{padding:2px 8px;text-align:left;border-bottom:1px solid #ddd}
td.number{text-align:right;font-variant-numeric:tabular-nums}div{overflow-x:auto}img{max-width:100%}"""
DPI = 110


def report(history: History, path: Path | str) -> Path:
    """Write one page with all plots and tables, and return its path.

    Args:
        history: What a manager remembers.
        path: Name of the file to write. One that ends in .html gets plots and tables, and needs no other file; one that
            ends in .png gets the plots alone.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: The file cannot be written.
        ValueError: The name ends in something else.

    Examples:
        >>> report(History.of(BackendManager()), "report.html").name
        'report.html'
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"report(path={str(path)!r}): needs a name that ends in {' or '.join(FORMATS)}.")
    pictures = [_png(plot(history)) for plot in PLOTS]
    if path.suffix == ".png":
        path.write_bytes(_tiled(pictures))
    else:
        path.write_text("".join(_page(history, pictures)), encoding="utf-8")
    return path


def _page(history: History, pictures: Sequence[bytes]) -> Iterator[str]:
    yield f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{TITLE}</title>"
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    yield f"<style>{STYLE}</style></head><body><h1>{TITLE}</h1><p>Made {made}</p>"
    for plot, picture in zip(PLOTS, pictures, strict=True):
        name = plot.__name__.replace("_", " ")
        yield f"<p><img alt='{name}' src='data:image/png;base64,{base64.b64encode(picture).decode()}'></p>"
    for title, rows, names in TABLES:
        yield f"<h2>{title}</h2>"
        yield from _table(rows(history), names)
    yield "</body></html>"


def _table(rows: Sequence[tables.Row], names: Sequence[str]) -> Iterator[str]:
    if not rows:
        yield f"<p>{figures.NOTHING}</p>"
        return
    yield "<div><table><tr>" + "".join(f"<th>{name}</th>" for name in names) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(_cell(name, row[name]) for name in names) + "</tr>"
    yield "</table></div>"


def _cell(name: str, value: Any) -> str:
    if name in ("time", "first", "last"):
        return f"<td>{time.strftime('%H:%M:%S', time.gmtime(value))}</td>"
    if isinstance(value, int | float) and not isinstance(value, bool):
        said = f"{value:.4g}" if isinstance(value, float) and math.isfinite(value) else str(value)
        return f"<td class='number'>{said}</td>"
    return f"<td>{'' if value is None else html.escape(printable(str(value)))}</td>"


def _png(figure: Any) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=DPI)
    return written.getvalue()


def _tiled(pictures: Sequence[bytes]) -> bytes:
    """Return four PNG images in two columns, as one PNG image."""
    image = importlib.import_module("matplotlib.image")
    made = importlib.import_module("matplotlib.figure").Figure(figsize=(2 * figures.SIZE[0], 2 * figures.SIZE[1]))
    made.subplots_adjust(0, 0, 1, 1, 0, 0)
    for axes, picture in zip(made.subplots(2, 2).flat, pictures, strict=True):
        axes.imshow(image.imread(io.BytesIO(picture)))
        axes.set_axis_off()
    return _png(made)
