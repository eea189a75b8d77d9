"""The report of the benchmarks: its promises find their records, and a script that fails is a line in it."""

import ast
import contextlib
import functools
import json
import pathlib
import re

import pytest

pytest.importorskip("torch")

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"

pytestmark = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="a source distribution carries no benchmarks")

WRITES = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
table = {"caption": "A caption.", "records": [{"what": "fsdeint", "error": 1e-15}], "notes": ["A note."]}
(folder / "sde-gradient.json").write_text(json.dumps(table))
(folder / "sde-gradient.md").write_text("# x\\n\\n| what | error |\\n| --- | --- |\\n| fsdeint | 1e-15 |\\n")
"""


def promises(load):
    return [each for some in load("promises").PROMISES.values() for each in some]


def fitting(wanted):
    """Return a value that fits a pattern."""
    if isinstance(wanted, tuple):
        return fitting(wanted[0])
    return wanted.replace("*", "x") if isinstance(wanted, str) else wanted


def record_for(promise, value):
    """Return the record that a promise looks for, with such a figure."""
    first, *inner = promise.figure.split(".")
    for key in reversed(inner):
        value = {key: value}
    return {**{key: fitting(wanted) for key, wanted in promise.where.items()}, first: value}


@functools.cache
def nodes_of(script):
    return list(ast.walk(ast.parse((BENCHMARKS / f"{script}.py").read_text())))


def strings_of(script):
    """Return the strings and keywords of a script and of the benchmarks that it imports, as patterns."""
    found, waiting, seen = set(), [script], set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        for node in nodes_of(name):
            if isinstance(node, ast.ImportFrom) and (BENCHMARKS / f"{node.module}.py").exists():
                waiting += [] if node.module in seen else [node.module]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(re.escape(node.value))
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(re.escape(node.arg))
            elif isinstance(node, ast.JoinedStr):
                parts = [re.escape(str(each.value)) if isinstance(each, ast.Constant) else ".+" for each in node.values]
                found.add("".join(parts))
    return found - {".+"}


def constants_of(script):
    """Return what a script's constants are set to, where that is written out."""
    found = {}
    for node in nodes_of(script):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            names, values = (
                each.elts if isinstance(each, ast.Tuple) else [each] for each in (node.targets[0], node.value)
            )
            for name, value in zip(names, values, strict=False):
                with contextlib.suppress(ValueError):
                    found[ast.unparse(name)] = ast.literal_eval(value)
    return found


def test_a_promise_is_judged_by_its_worst_record(load):
    for promise in promises(load):
        if callable(promise.figure):
            continue
        better = 0.5 if promise.side == "at most" else 2.0
        kept, broken = (
            [record_for(promise, promise.bound * better), record_for(promise, promise.bound * factor)]
            for factor in (1.0, 1 / better)
        )
        assert promise.judge({promise.table: kept}).word == "met"
        assert promise.judge({promise.table: kept}).records == 2
        assert promise.judge({promise.table: broken}).word == "NOT met"


def test_what_is_not_found_is_not_measured(load):
    for promise in promises(load):
        found: list[dict[str, list[dict[str, str]]]]
        found = [{}, {promise.table: []}, {promise.table: [{"what": "something else"}]}]
        for tables in found:
            verdict = promise.judge(tables)
            assert (verdict.word, verdict.measured) == ("not measured", "")


def test_every_promised_table_is_run_and_named_in_its_script(load):
    runs = load("runs").RUNS
    assert {promise.table for promise in promises(load)} <= {name for run in runs for name in run.tables}
    for run in runs:
        assert (BENCHMARKS / f"{run.script}.py").exists()
        strings = strings_of(run.script)
        for name in run.tables:
            made = (re.fullmatch(pattern, name) for pattern in strings if ".+" in pattern)
            assert re.escape(name) in strings or any(made), (run.script, name)
        for promise in promises(load):
            if promise.table in run.tables and isinstance(promise.figure, str):
                assert re.escape(promise.figure.split(".")[0]) in strings, promise


def test_every_table_has_one_run(load):
    names = [name for run in load("runs").RUNS for name in run.tables]
    assert len(names) == len(set(names))
    assert set(load("digest").DIGESTS) <= set(names)


def test_figures_of_several_records(load):
    figures, quotient = load("figures"), load("promise").quotient
    calls = {"layer": 10, "bare kernel": 6, "layer, x requires grad": 13}
    calls["minimal Function around the bare kernel"] = 12
    dispatch = [{"call": call, "us": us} for call, us in calls.items()]
    assert figures.added_by_autograd(dispatch) == 3 / 6
    assert quotient("us", {"call": "layer"}, {"call": "bare*"})(dispatch) == 10 / 6
    assert figures.geometric_mean([{"ratio": 1.0}, {"ratio": 4.0}]) == pytest.approx(2)
    replays = [
        {"policy": figures.OURS, "regrets": {"a": [0.2, 0.4]}},
        {"policy": figures.KNOWING, "regrets": {"a": [0.1]}},
    ]
    assert figures.cost_of_learning(replays) == pytest.approx(0.2)
    live = [{"player": who, "seconds": s} for who, s in (("learner", 3.0), ("a alone", 2.0), ("b alone", 4.0))]
    assert figures.over_fastest_alone(live) == 1.5
    kernels = [{"shape": shape, "fft": fft} for shape, fft in (("1", 3.0), ("1", 7.0), ("2", 6.0))]
    assert figures.fastest_kernel("fft", least=False)(kernels) == 6
    assert figures.fastest_kernel("fft", least=True)(kernels) == 6


def test_bounds_of_scripts_are_those_that_are_promised(load):
    """Scripts say "pass" by constants of their own."""
    found: dict[str, set[float]] = {}
    for promise in promises(load):
        found.setdefault(promise.table, set()).add(round(promise.bound, 12))
    floors, definitions, estimate = map(constants_of, ("floors", "definitions", "estimate"))
    live, replay = constants_of("selection_live"), constants_of("selection")
    cold, warm = zip(*floors["FORWARD_LEAST"].values(), strict=True)
    of = {
        "floors": {*cold, *warm, *floors["ONE_ROW_LEAST"].values(), *floors["LEARNED_LEAST"].values()},
        "estimate-float32-1": {estimate["GEOMETRIC_MEAN"], estimate["WORST"]},
        "dispatch": {constants_of("dispatch")["MOST"]},
        "imports": {constants_of("imports")["AT_MOST"]},
        "definitions": {round(1 / definitions["AT_LEAST"]["caputo_fabrizio"], 12), *definitions["AT_MOST"].values()},
        "special-fractional-fourier": {constants_of("special")["MOST"]},
        "differencing": {constants_of("differencing")["LEAST"]},
        "noise-fractional": {constants_of("noise")["LEAST"]},
        "layers_recurrent": {constants_of("layers")["AT_MOST"]},
        "layers_bank": {constants_of("layers")["BANK_AT_MOST"]},
        "selection": {*replay["TARGETS"].values(), *(replay[each] for each in ("LEARNING", "WORST_KEY", "EXPLORED"))},
        "selection-live": {live["SLOWER"], live["FASTER"], live["CALLS_PER_SECOND"]},
        "telemetry": {constants_of("telemetry")["ALIKE"], constants_of("telemetry")["CALLBACK"]},
        "jax_operators": {constants_of("jax_operators")["MOST"]},
    }
    for name, bounds in of.items():
        assert bounds <= found[name], name


@pytest.fixture
def report(load, tmp_path, monkeypatch):
    """The report over scripts of a few lines."""
    module = load("report")
    scripts = {"writes": WRITES, "fails": "raise SystemExit('this is why')", "waits": "import time; time.sleep(60)"}
    for name, text in scripts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(module, "HERE", tmp_path)
    return module


def test_a_script_that_fails_or_takes_too_long_is_a_line(report, load, tmp_path):
    run = load("runs").Run
    wanted = {
        run("writes", ("sde-gradient",), 60): "done",
        run("writes", ("sde-gradient", "more"), 60): "failed: wrote no more",
        run("fails", (), 60): "failed: this is why",
        run("waits", (), 0.2): "ended after 0 s, its limit",
        run("writes", (), 60, needs=("no_such_module.within",)): "skipped: needs no_such_module.within",
    }
    outcomes = [report.perform(each, tmp_path, 60) for each in wanted]
    assert [each.how for each in outcomes] == list(wanted.values())
    assert [each.is_failure for each in outcomes] == [False, True, True, True, False]
    assert report.perform(next(iter(wanted)), tmp_path, 0).how.startswith("not begun")
    text = report.markdown(outcomes, load("digest").read(tmp_path), {"processor": "abacus"}, quick=False)
    assert "| processor | abacus |" in text
    assert re.search(r"\| adjoint of fsdeint \| .* at most 1e-12 \| 1e-15 \| met \| `sde-gradient`, writes.py \|", text)
    assert re.search(r"fails.py \| failed: this is why", text)
    assert "A caption.\n\n| what | error |\n| --- | --- |\n| fsdeint | 1e-15 |\n\nA note." in text
    assert text.count("start:promises") == text.count("end:promises") == 1


def test_a_report_is_written_and_is_strict_where_it_is_asked_to_be(report, load, tmp_path, monkeypatch, capsys):
    run = load("runs").Run
    monkeypatch.setattr(report, "RUNS", (run("writes", ("sde-gradient",), 60), run("fails", (), 60)))
    arguments = ["report.py", "--output", str(tmp_path / "made"), "--only"]
    monkeypatch.setattr("sys.argv", [*arguments, "writes", "--strict"])
    report.main()
    found = json.loads((tmp_path / "made" / "report.json").read_text())
    assert found["tables"]["sde-gradient"]["records"] == [{"what": "fsdeint", "error": 1e-15}]
    assert {each["verdict"] for each in found["promises"]} == {"met", "not measured"}
    monkeypatch.setattr("sys.argv", [*arguments, "fails"])
    report.main()
    monkeypatch.setattr("sys.argv", [*arguments, "fails", "--strict"])
    with pytest.raises(SystemExit, match="a script failed"):
        report.main()
    assert "[1/1] fails.py ... failed: this is why" in capsys.readouterr().out


def test_long_tables_are_shown_in_part(load):
    digest = load("digest")
    records = [{"name": name, "ratio": ratio} for name, ratio in (("a", 1.0), ("a", 4.0), ("b", 3.0))]
    table = digest.Written("", ["| x |", "| --- |"], ["| 0 |", "| 1 |", "| 2 |"], records, [])
    assert digest.Some({"name": "b"}).lines(table) == ["| x |", "| --- |", "| 2 |"]
    assert digest.Summary(("name",), "ratio", "gain").lines(table)[2:] == [
        "| a | 2 | 2.00 | 1.00 | 4.00 |",
        "| b | 1 | 3.00 | 3.00 | 3.00 |",
    ]


def test_what_make_peers_installs_is_looked_for(load):
    peers = (BENCHMARKS / "peers.txt").read_text().split("\n", 1)[1].split()
    assert set(peers) <= {peer.package for peer in load("machine").PEERS if peer.is_published}
