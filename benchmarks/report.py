"""The report: what is promised about speed and whether it is met, and every benchmark's figures, in one file.

    python benchmarks/report.py [--only SCRIPT ...] [--quick] [--minutes M] [--strict] [--output DIR]

Runs the scripts of `runs.py` one after another, each a process of its own with one thread unless its table says
otherwise, and judges `promises.py` by the tables that they write. A script that fails, takes longer than it may, or
lacks a package has its line, and what it would have shown is "not measured". Writes `report.md` and `report.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO

from digest import Written, read, scalars, section
from machine import PEERS, facts, is_there, versions
from promise import Promise, Verdict
from promises import PROMISES
from runs import REPORTED, RUNS, Run

HERE = Path(__file__).parent
MINUTES = 24.0
THREADS = (
    "One thread for each call, NumPy's and XLA's included, unless a table says otherwise; nothing is known from "
    "earlier processes (OMP_NUM_THREADS=1, HPFRACC_NN_WISDOM=off). All calls of a table run in one process and take "
    "turns: ratios within a table compare, times of two tables do not."
)
QUICK = "**Quick form: a few small cells and few rounds. It shows that the scripts run; its figures mean nothing.**"


@dataclass(frozen=True)
class Outcome:
    """How a run ended, in words, and after how many seconds."""

    run: Run
    how: str
    seconds: float = 0.0

    @property
    def is_failure(self) -> bool:
        return self.how != "done" and not self.how.startswith("skipped")


def perform(run: Run, folder: Path, seconds: float) -> Outcome:
    """Run one script, for so many seconds at most, and return how it ended; its tables are in `folder` then."""
    absent = [need for need in run.needs if not is_there(need)]
    if absent:
        return Outcome(run, f"skipped: needs {' and '.join(absent)}")
    if seconds <= 0:
        return Outcome(run, "not begun: the time of the report was spent")
    command = [sys.executable, str(HERE / f"{run.script}.py"), *run.arguments, "--output", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HPFRACC_NN_WISDOM": "off"}
    limit, start = min(seconds, run.budget), time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, env=environment, start_new_session=True
        )
        try:
            status = process.wait(limit)
            how = "done" if status == 0 else f"failed: {_last_line(said)}"
        except subprocess.TimeoutExpired:
            how = f"ended after {limit:.0f} s, its limit"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
                process.wait()
    if how == "done":
        missing = set(run.tables) - set(read(folder))
        how = f"failed: wrote no {', '.join(sorted(missing))}" if missing else how
    return Outcome(run, how, time.monotonic() - start)


def markdown(outcomes: list[Outcome], tables: dict[str, Written], head: dict[str, str], quick: bool) -> str:
    """Return the report."""
    verdicts = judged(tables)
    lines = ["# Report", "", *([QUICK, ""] if quick else []), *described(head, outcomes), ""]
    lines += ["## Promises", "", "<!-- --8<-- [start:promises] -->", *promised(verdicts, outcomes), ""]
    lines += ["<!-- --8<-- [end:promises] -->", ""]
    for outcome in outcomes:
        lines += [
            f"## {outcome.run.name}",
            "",
            f"{outcome.how[0].upper()}{outcome.how[1:]}, {outcome.seconds:.0f} s.",
            "",
        ]
        for name in outcome.run.tables:
            lines += section(name, tables[name]) if name in tables else []
    return "\n".join(lines).rstrip() + "\n"


def described(head: dict[str, str], outcomes: list[Outcome]) -> list[str]:
    """Return what was measured on, with what, and for how long."""
    lines = ["<!-- --8<-- [start:machine] -->", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in head.items()]
    lines += [f"| packages | {', '.join(f'{name} {version}' for name, version in versions().items())} |"]
    lines += ["", THREADS, "", "| compared with | version | in what |", "| --- | --- | --- |"]
    lines += [peer.line for peer in PEERS]
    lines += ["", "<!-- --8<-- [end:machine] -->", "", "| script | ended | seconds |", "| --- | --- | --- |"]
    return lines + [f"| {each.run.name} | {each.how} | {each.seconds:.0f} |" for each in outcomes]


def judged(tables: dict[str, Written]) -> dict[str, list[Verdict]]:
    """Return what the tables show of every promise, by subject."""
    records = {name: table.records for name, table in tables.items()}
    return {subject: [each.judge(records) for each in promises] for subject, promises in PROMISES.items()}


def promised(verdicts: dict[str, list[Verdict]], outcomes: list[Outcome]) -> list[str]:
    """Return the table of promises, with its footnotes."""
    everything = [verdict for some in verdicts.values() for verdict in some]
    words = [verdict.word for verdict in everything]
    counted = ", ".join(f"{words.count(word)} {word}" for word in ("met", "NOT met", "not measured"))
    lines, notes = [f"Of {len(words)} promises {counted}."], []
    for subject, some in verdicts.items():
        lines += ["", f"**{subject}**", "", "| what | figure | promised | measured | | table, script |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        for verdict in some:
            promise, mark = verdict.promise, ""
            if promise.note:
                notes += [] if promise.note in notes else [promise.note]
                mark = f" ({notes.index(promise.note) + 1})"
            shown = [promise.workload, promise.figure_of, promise.asked + mark, verdict.measured, verdict.word]
            lines.append("| " + " | ".join([*shown, source(promise, outcomes)]) + " |")
    return lines + [line for i, note in enumerate(notes, 1) for line in ("", f"({i}) {note}")]


def source(promise: Promise, outcomes: list[Outcome]) -> str:
    """Return the table of a promise, and the script that writes it."""
    made = next((each for each in outcomes if promise.table in each.run.tables), None)
    if made is None:
        return f"`{promise.table}`, not run"
    return f"`{promise.table}`, {made.run.script}.py" + ("" if made.how == "done" else f" ({made.how})")


def document(outcomes: list[Outcome], tables: dict[str, Written], head: dict[str, str]) -> dict[str, object]:
    """Return the same for programs: promises, runs, and the records of all tables."""
    return {
        "machine": head,
        "packages": versions(),
        "runs": [{"run": each.run.name, "ended": each.how, "seconds": round(each.seconds, 1)} for each in outcomes],
        "promises": [
            {**_plain(verdict.promise), "subject": subject, "value": verdict.value, "verdict": verdict.word}
            for subject, some in judged(tables).items()
            for verdict in some
        ],
        "tables": {
            name: {"caption": table.caption, "records": scalars(table.records), "notes": table.notes}
            for name, table in tables.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=sorted({run.script for run in RUNS}), help="which scripts")
    parser.add_argument("--quick", action="store_true", help="every script in its quick form, into report-quick")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="after which no script begins or goes on")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 where a script failed or a promise is not met"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results", help="a folder for the report")
    arguments = parser.parse_args()
    chosen = [run for run in RUNS if not arguments.only or run.script in arguments.only]
    head, start, outcomes = facts(), time.monotonic(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, run in enumerate(chosen, 1):
            print(f"[{number}/{len(chosen)}] {run.name} ... ", end="", flush=True)
            each = quick_form(run) if arguments.quick else run
            outcomes.append(perform(each, folder, 60 * arguments.minutes - (time.monotonic() - start)))
            print(f"{outcomes[-1].how}, {outcomes[-1].seconds:.0f} s", flush=True)
        tables = read(folder)
    head["took"] = f"{(time.monotonic() - start) / 60:.1f} minutes"
    stem = arguments.output / ("report-quick" if arguments.quick else "report")
    arguments.output.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".md").write_text(markdown(outcomes, tables, head, arguments.quick))
    stem.with_suffix(".json").write_text(json.dumps(document(outcomes, tables, head), indent=1) + "\n")
    words = [verdict.word for some in judged(tables).values() for verdict in some]
    print(f"{stem.with_suffix('.md')}: {words.count('met')} of {len(words)} promises are met")
    if arguments.strict and ("NOT met" in words or any(each.is_failure for each in outcomes)):
        sys.exit("a script failed or a promise is not met")


def quick_form(run: Run) -> Run:
    """Return a run of a few small cells."""
    return replace(run, arguments=(*(each for each in run.arguments if each not in REPORTED), "--quick"))


def _plain(promise: Promise) -> dict[str, object]:
    figure = promise.figure if isinstance(promise.figure, str) else None
    return {**asdict(replace(promise, figure="")), "figure": figure}


def _last_line(said: IO[str]) -> str:
    said.seek(0)
    lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


if __name__ == "__main__":
    main()
