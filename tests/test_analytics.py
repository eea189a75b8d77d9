"""Summaries, plots and pages of a history whose numbers are known."""

import copy
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from hpfracc_nn.analytics import (
    History,
    Use,
    choice_map,
    errors,
    events,
    performance,
    predicted_against_measured,
    report,
    shares_over_time,
    tables,
    timeline,
    usage,
)
from hpfracc_nn.analytics.figures import SIZE
from hpfracc_nn.analytics.history import Estimate
from hpfracc_nn.analytics.page import _page
from hpfracc_nn.analytics.tables import first_predictions, last_predictions, measured_seconds
from hpfracc_nn.selection import Measurement, Timing, Wisdom, Workload
from hpfracc_nn.selection.recorder import Choice, Defeat, Drift, Failure, Look, Quarantined
from hpfracc_nn.selection.workload import key_of
from tests.selection_kernels import fake, fake_manager, registering

WORK = Workload("op", "numpy", rows=4, n=128, needs_gradient=True)
FAST, SLOW = "numba/recurrence", "numpy/fft"
NOON = 1.7e9  # seconds since 1970


def choice(kernel: str, seconds: float, time: float, **given: Any) -> Choice:
    other = SLOW if kernel == FAST else FAST
    made = Choice(
        time=time,
        workload=WORK,
        kernel=kernel,
        site="layer",
        previous="",
        reason="prior",
        seconds=seconds,
        uncertainty=2.0,
        alternatives=((other, 2 * seconds),),
        doubts=(2.0,),
    )
    return replace(made, **given)


def measured(kernel: str, seconds: float, direction: Any = "forward", **given: Any) -> Measurement:
    return Measurement(WORK, kernel, seconds, direction, **given)


HISTORY = History(
    estimates=(Estimate(replace(WORK, n=1), FAST, 1.0),),
    uses=(Use(WORK, FAST, 60, 40, 3e-3, 6e-3, "measured"),),
    measurements=(
        *(measured(SLOW, 1e-3 * k) for k in (1, 2, 3, 4, 5)),
        measured(SLOW, 4e-3, "backward"),
        measured(FAST, 1e-3),
        measured(FAST, 2e-3, "backward"),
        measured(FAST, 0.5, compile_seconds=0.4),
        measured(SLOW, math.nan, succeeded=False, error="RuntimeError"),
        Measurement(Workload("epoch", "python"), "block", 2.0, "forward"),
    ),
    events=(
        choice(SLOW, 2e-3, NOON),
        choice(FAST, 1e-3, NOON + 1, previous=SLOW, reason="explore"),
        choice(FAST, 1e-3, NOON + 2, previous=SLOW, reason="measured"),
        Drift(time=NOON + 3, workload=WORK, kernel=FAST, direction="forward", factor=3.0),
        Failure(time=NOON + 4, workload=WORK, kernel=FAST, direction="forward", error="RuntimeError", message="boom"),
        Failure(time=NOON + 5, workload=WORK, kernel=FAST, direction="forward", error="RuntimeError", message="bang"),
        choice(SLOW, 2e-3, NOON + 5, previous=FAST, reason="fallback", error="RuntimeError", message="bang"),
        Quarantined(time=NOON + 5, workload=WORK, kernel=FAST, seconds=60.0, error="RuntimeError", message="bang"),
        Quarantined(time=NOON + 6, workload=WORK, kernel=FAST, seconds=math.inf, error="ImportError", message="so"),
        choice(SLOW, 2e-3, NOON + 7, previous=SLOW, elapsed=5e-3),
        Defeat(time=NOON + 8, workload=WORK, kernel=SLOW, direction="backward", error="ValueError", message="all"),
    ),
    looks=(
        Look(NOON, {("op", SLOW): 0}),
        Look(NOON + 2, {("op", SLOW): 30, ("op", FAST): 10}),
        Look(NOON + 10, {("op", SLOW): 40, ("op", FAST): 100, ("other", SLOW): 7}),
    ),
)


# Data frames


def test_usage_counts_all_calls_and_shares_are_of_the_operation() -> None:
    pytest.importorskip("pandas")
    found = usage(HISTORY)
    assert list(found.itertuples(index=False, name=None)) == [
        ("op", "numba", "recurrence", 100, 100 / 140),
        ("op", "numpy", "fft", 40, 40 / 140),
        ("other", "numpy", "fft", 7, 1.0),
    ]


def test_performance_has_the_quantiles_of_what_was_timed() -> None:
    pytest.importorskip("pandas")
    found = performance(HISTORY).set_index(["algorithm", "direction"])
    assert found.loc[("fft", "forward"), "samples"] == 5
    # the 20 % quantile of five is the second one; the median and the maximum of 1, ..., 5 ms
    assert tuple(found.loc[("fft", "forward"), ["q20_ms", "median_ms", "max_ms"]]) == pytest.approx((2, 3, 5))
    assert found.loc[("fft", "forward"), "samples_per_second"] == pytest.approx(4 * 128 / 2e-3)
    assert found.loc[("recurrence", "forward"), "samples"] == 1  # without the call that compiled
    assert found.loc[("recurrence", "forward"), "compile_ms"] == pytest.approx(400)
    assert set(found.op) == {"op"}  # a block is no kernel
    assert tuple(found.loc[("fft", "forward"), ["rows", "n", "width"]]) == (4, 128, 1)


def test_errors_are_counted_by_class_with_their_last_message() -> None:
    pandas = pytest.importorskip("pandas")
    (row,) = errors(HISTORY).itertuples(index=False)
    assert (row.op, row.backend, row.error, row.count, row.quarantined) == ("op", "numba", "RuntimeError", 2, 1)
    assert row.message == "bang"
    assert row.first == pandas.Timestamp(NOON + 4, unit="s", tz="UTC")
    assert row.last == pandas.Timestamp(NOON + 5, unit="s", tz="UTC")


def test_events_say_in_words_what_happened() -> None:
    pytest.importorskip("pandas")
    found = events(HISTORY)
    assert list(found.kind)[:5] == ["choice", "choice", "choice", "drift", "failure"]
    assert list(found.what) == [
        "first, prior",
        "in place of numpy/fft, explore",
        "in place of numpy/fft, measured",
        "takes 3 times as long",
        "failed: RuntimeError",
        "failed: RuntimeError",
        "in place of numba/recurrence, fallback",
        "left alone for 60 s",
        "left alone",
        "stays, chosen in 5 ms",
        "every kernel failed, the first by ValueError",
    ]


@pytest.mark.parametrize("frame", [usage, performance, errors, events])
def test_a_history_without_anything_has_the_columns_all_the_same(frame: Any) -> None:
    pytest.importorskip("pandas")
    assert list(frame(History()).columns) == list(frame(HISTORY).columns)
    assert len(frame(History())) == 0


@pytest.mark.parametrize("frame", [usage, performance, errors, events])
def test_a_missing_pandas_is_named(frame: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package 'pandas'; pip install 'hpfracc-nn\[data\]'\.$"):
        frame(HISTORY)


# A history


def test_a_history_survives_a_file(tmp_path: Path) -> None:
    HISTORY.save(tmp_path / "history.json")
    again = History.load(tmp_path / "history.json")
    json.loads((tmp_path / "history.json").read_text(), parse_constant=pytest.fail)  # JSON has no NaN
    assert again.uses == HISTORY.uses
    assert again.estimates == HISTORY.estimates
    assert again.events == HISTORY.events
    assert again.looks == HISTORY.looks
    assert repr(again.measurements) == repr(HISTORY.measurements)  # NaN is not equal to itself


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 9}', '{"schema": 1, "uses": [{}]}'])
def test_what_is_no_history_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "no.json").write_text(text)
    with pytest.raises(ValueError, match=r"no\.json: needs a file that History\.save wrote; .*\.$"):
        History.load(tmp_path / "no.json")


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**70, -0.5, 0.0, 1e-300, 1e29, 1e308, 10**400, math.inf, math.nan),
    *("", "x", "a/b", "/", "$\\x", "_/_$", "\x1b[2J/\n", "\ud800/\u202e", "backward", "choice", "float99"),
    *([], {}, [[]], [1], ["a/b", 1.0], {"a": 1}),
)


def mutated(body: Any, generator: random.Random) -> Any:
    """Return what JSON holds with one of its values replaced, left out, doubled or renamed, at any depth."""
    places = [(holder, name) for holder in holders(body) for name in keys(holder)]
    holder, name = generator.choice(places)
    how = generator.choice(["replace"] * 6 + ["leave out", "double", "rename"])
    if how == "replace":
        holder[name] = copy.deepcopy(generator.choice(HOSTILE))
    elif how == "leave out":
        del holder[name]
    elif isinstance(holder, list):
        holder.insert(name, copy.deepcopy(holder[name]))
    else:
        holder[f"{name}_"] = holder.pop(name) if how == "rename" else copy.deepcopy(holder[name])
    return body


def holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for name in keys(value):
            yield from holders(value[name])


def keys(holder: Any) -> list[Any]:
    return list(holder) if isinstance(holder, dict) else list(range(len(holder)))


@pytest.mark.parametrize("seed", range(24))
def test_a_changed_file_is_refused_by_its_name_or_can_be_reported(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("matplotlib")
    generator, path = random.Random(seed), tmp_path / "history.json"
    HISTORY.save(path)
    whole, refusals = path.read_text(), []
    for _ in range(25):
        body = json.loads(whole)
        for _ in range(generator.randint(1, 2)):
            body = mutated(body, generator)
        path.write_text(json.dumps(body))
        try:
            history = History.load(path)
        except ValueError as error:
            said = str(error).removeprefix(f"{path}: needs a file that History.save wrote; ")
            refusals.append(len(said) < len(str(error)) and said.endswith("; save it again, whole."))
            continue
        history.save(tmp_path / "again.json")
        assert repr(History.load(tmp_path / "again.json")) == repr(history)
        for rows in (tables.usage_rows, tables.performance_rows, tables.error_rows, tables.event_rows):
            rows(history)
        for plot in (choice_map, predicted_against_measured, shares_over_time, timeline):
            plot(history).draw_without_rendering()
        "".join(_page(history, [b""] * 4)).encode()
    assert all(refusals)
    assert len(refusals) > 5  # most of them


def test_wisdom_in_keys_of_others_is_left_out_of_a_report() -> None:
    own = Timing(key_of(WORK).text(), SLOW, 1e-3, 1e-3, 9, NOON)
    group = json.loads(own.key)[0]
    others = [
        replace(own, key=key) for key in ("any text", json.dumps([group, [1e9, 1.0, 1.0]]), json.dumps([[1], [1]]))
    ]
    assert History.of_wisdom(Wisdom.of([own, *others])) == History.of_wisdom(Wisdom.of([own]))


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^/dev/zero: needs .* wrote; it has more than 268435456 bytes; "):
        History.load("/dev/zero")


def test_a_file_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text('{"schema":' + "[" * 10**5)
    with pytest.raises(ValueError, match=r"deep\.json: needs .* wrote; it is nested too deeply; "):
        History.load(tmp_path / "deep.json")


def test_times_that_are_infinite_or_none_are_reported(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    nan = choice(FAST, math.nan, NOON, uncertainty=math.inf, alternatives=((SLOW, math.inf),), doubts=(math.inf,))
    history = replace(
        HISTORY,
        uses=(Use(WORK, FAST, 1, 0, 0.0, 1.0, "prior"), Use(replace(WORK, n=2), SLOW, 1, 0, math.inf, None, "prior")),
        measurements=(measured(FAST, 0.0), measured(FAST, 0.0, "backward"), *HISTORY.measurements),
        events=(nan, *HISTORY.events),
        looks=(Look(NOON, {("op", FAST): 1}), Look(NOON, {("op", FAST): 2})),  # a clock that stands still
    )
    history.save(tmp_path / "history.json")
    for each in (history, History.load(tmp_path / "history.json")):
        report(each, tmp_path / "report.html")


def test_a_history_is_what_managers_remember() -> None:
    with registering() as add:
        add(fake("torch/dense"), fake("torch/fft", lambda w: 3 * w.samples))
        work = Workload("test_op", "torch", n=100)
        first, second, alive = fake_manager(), fake_manager(force_algorithm="fft"), []
        for manager, calls in ((first, 3), (second, 2)):
            site = manager.site("test_op", "torch", "layer")
            alive.append(site)
            for _ in range(calls):
                plan = site.pick("key", lambda: work)
                manager.record(plan, 1e-3)
            site.again(plan)
        found = History.of(first, second)
        assert [(use.kernel, use.forwards, use.backwards) for use in found.uses] == [
            ("torch/dense", 3, 1),
            ("torch/fft", 2, 1),
        ]
        assert found.looks[-1].uses == {("test_op", "torch/dense"): 4, ("test_op", "torch/fft"): 3}
        assert [each.reason for each in found.events if isinstance(each, Choice)] == ["prior", "forced"]
        assert len(found.measurements) == 2 + 1  # without the first of each plan


def test_a_history_of_wisdom_knows_the_fastest_of_what_was_timed() -> None:
    key = key_of(WORK).text()
    learnt = Wisdom.of(
        [
            Timing(key, FAST, 1e-3, 2e-3, 5, NOON, "own", 3e-3, 1e-3),
            Timing(key, SLOW, 2e-3, 4e-3, samples=5, time=NOON),
            Timing(key, "torch/dense", 1e-6, None, samples=1, time=NOON),  # its backward pass was never timed
            Timing(key_of(replace(WORK, n=256)).text(), SLOW, 1.0, None, samples=1, time=NOON, trust="prior"),
        ]
    )
    found = History.of_wisdom(learnt)
    (use,) = found.uses
    assert (use.kernel, use.seconds, use.second_best) == (FAST, pytest.approx(3e-3), pytest.approx(6e-3))
    assert (use.workload.rows, use.workload.n) == (4, 128)
    assert len(found.measurements) == 5
    assert first_predictions(found) == {(use.workload, FAST): pytest.approx(4e-3)}
    assert last_predictions(found) == {}  # nothing runs
    assert measured_seconds(found)[use.workload, SLOW] == pytest.approx(6e-3)


# Plots


PLOTS = (choice_map, predicted_against_measured, shares_over_time, timeline)


def pixels(figure: Any) -> np.ndarray:
    canvas = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("history", [HISTORY, History()], ids=["full", "empty"])
def test_a_plot_has_its_labels_and_nothing_is_cut(plot: Any, history: History) -> None:
    pytest.importorskip("matplotlib")
    figure = plot(history)
    (axes,) = figure.axes
    assert axes.get_title()
    drawn = pixels(figure)
    assert drawn.shape[:2] == (SIZE[1] * figure.dpi, SIZE[0] * figure.dpi)
    for border in (drawn[:2], drawn[-2:], drawn[:, :2], drawn[:, -2:]):
        assert (border[..., :3] == 255).all()
    if history is HISTORY:
        assert "(" in axes.get_xlabel() or axes.get_xlabel().startswith("s since")  # its unit
        assert axes.get_ylabel() or len(axes.get_yticklabels()) == 2


def test_the_map_shows_the_kernel_and_its_speed_up_at_each_size() -> None:
    pytest.importorskip("matplotlib")
    uses = tuple(
        Use(replace(WORK, rows=rows, n=n), FAST if n > 100 else SLOW, 1, 0, 1e-3, 1e-3 * n / 64, "prior")
        for rows in (1, 8)
        for n in (64, 128, 256)
    )
    (axes,) = choice_map(History(uses=uses)).axes
    assert [text.get_text() for text in axes.texts] == ["1.0x", "2.0x", "4.0x"] * 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64", "128", "256"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "8"]
    np.testing.assert_array_equal(axes.images[0].get_array(), [[1, 0, 0], [1, 0, 0]])  # by name: numba, numpy


def test_a_map_of_many_sizes_rounds_them_to_powers_of_two() -> None:
    pytest.importorskip("matplotlib")
    uses = tuple(Use(replace(WORK, n=n), FAST, 1, 0, 1e-3, None, "only") for n in range(64, 128))
    (axes,) = choice_map(History(uses=uses)).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["64"]
    assert [text.get_text() for text in axes.texts] == ["only one"]


def test_predictions_stand_against_forward_and_backward_together() -> None:
    pytest.importorskip("matplotlib")
    (axes,) = predicted_against_measured(HISTORY).axes
    points = [tuple(np.concatenate(line.get_data())) for line in axes.lines if len(line.get_xdata()) == 1]
    # numpy/fft: 2 + 4 ms by quantiles, 2 ms predicted first; numba: 1 + 2 ms, first 4 ms, now 3 ms
    assert np.array(sorted(points)) == pytest.approx(np.array(sorted([(6.0, 2.0), (3.0, 4.0), (3.0, 3.0)])))


def test_shares_are_of_the_calls_between_two_looks() -> None:
    pytest.importorskip("matplotlib")
    history = replace(HISTORY, looks=tuple(replace(look, uses=_one_op(look)) for look in HISTORY.looks))
    (axes,) = shares_over_time(history, steps=[0, 10, 20], unit="step").axes
    lower = axes.collections[0].get_paths()[0].vertices  # numba's: 10 of 40 calls, then 90 of 100
    heights = {(x, y) for x, y in lower.tolist() if y > 0}
    assert heights == {(0.0, 25.0), (10.0, 25.0), (10.0, 90.0), (20.0, 90.0)}
    assert axes.get_xlabel() == "step"
    with pytest.raises(ValueError, match=r"needs one step for each of 3 looks; there are 1\.$"):
        shares_over_time(history, steps=[0])


def _one_op(look: Look) -> dict[tuple[str, str], int]:
    return {use: count for use, count in look.uses.items() if use[0] == "op"}


def test_the_timeline_has_a_lane_for_each_kernel_and_says_what_a_mark_means() -> None:
    pytest.importorskip("matplotlib")
    figure = timeline(HISTORY)
    (axes,) = figure.axes
    assert {label.get_text() for label in axes.get_yticklabels()} == {FAST, SLOW}
    said = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert said == {
        "first choice",
        "tried",
        "takes over",
        "slower",
        "failed",
        "stands in",
        "left alone",
        "took long to choose",
        "every kernel failed",
    }


def test_a_timeline_of_many_kernels_keeps_those_that_failed_and_says_how_many_it_leaves_out() -> None:
    pytest.importorskip("matplotlib")
    many = [choice(f"numpy/k{number:02d}", 1.0, NOON + number) for number in range(14)]
    told = [
        Failure(time=NOON + 20, workload=WORK, kernel="numpy/k13", direction="forward", error="E", message=""),
        choice("numpy/k12", 1.0, NOON + 21, previous="numpy/k11", reason="measured"),
        *(choice(f"numpy/k{number:02d}", 1.0, NOON + 30) for number in range(11)),
    ]
    (axes,) = timeline(History(events=(*many, *told))).axes
    shown = {label.get_text() for label in axes.get_yticklabels()}
    assert len(shown) == 12
    assert shown >= {"numpy/k13", "numpy/k12", "numpy/k11"}
    assert axes.get_xlabel().endswith("; 2 more kernels left out")


def test_a_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    monkeypatch.setattr("importlib.import_module", Mock(side_effect=absent))
    with pytest.raises(ModuleNotFoundError, match=r"matplotlib.*; pip install 'hpfracc-nn\[plot\]'\.$"):
        timeline(HISTORY)


# A page


@pytest.mark.slow
def test_a_page_has_all_plots_and_tables_and_needs_nothing_else(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    failure = HISTORY.events[4]
    assert isinstance(failure, Failure)
    injected = replace(failure, message="<script>alert(1)</script>")
    path = report(replace(HISTORY, events=(*HISTORY.events[:5], injected)), tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(PLOTS)
    for title in ("Usage", "Performance", "Errors", "Events", "takes 3 times as long", "RuntimeError"):
        assert title in page
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")


@pytest.mark.slow
def test_a_picture_has_all_plots(tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    drawn = image.imread(report(HISTORY, tmp_path / "page.png"))
    assert drawn.shape[:2] == (2 * SIZE[1] * 110, 2 * SIZE[0] * 110)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^report\(path='page\.pdf'\): needs a name that ends in \.html or \.png\.$"):
        report(HISTORY, "page.pdf")


@pytest.mark.slow
def test_neither_pandas_nor_matplotlib_is_loaded_before_it_is_needed() -> None:
    code = "import sys, hpfracc_nn.analytics; print([name for name in ('pandas', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# The command


def run(*arguments: str) -> Any:
    testing = pytest.importorskip("typer.testing")
    pytest.importorskip("rich")
    from hpfracc_nn import cli

    return testing.CliRunner().invoke(cli.app(), ["report", *arguments])


@pytest.mark.slow
def test_the_command_writes_a_page_of_a_history(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    HISTORY.save(tmp_path / "history.json")
    done = run(str(tmp_path / "history.json"), "--output", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    assert "recurrence" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_without_a_file_the_command_reports_what_this_machine_has_learnt(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("--directory", str(tmp_path), "--output", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    assert "nothing yet" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_report_of_nothing_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("hpfracc_nn.analytics.report", lambda history, path: path)
    done = run("--directory", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "It is empty: " in done.output
    HISTORY.save(tmp_path / "history.json")
    assert "It is empty" not in run(str(tmp_path / "history.json")).output


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run(str(tmp_path / "none.json"))
    assert done.exit_code == 1
    assert "hpfracc-nn report:" in done.output
    assert "none.json" in done.output
