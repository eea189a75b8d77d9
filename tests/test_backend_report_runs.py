"""BackendReport in whole runs: what loggers get, what a resumed run knows, when nothing is learnt.

The modules' kernels are made up: the one that is thought to be slow is the fast one.
"""

import csv
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpfracc_nn.selection import BackendManager, WisdomFile, register, register_probe, unregister
from hpfracc_nn.selection.registry import _probes
from tests.selection_kernels import FakeProbe, fake, fake_manager

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import lightning.pytorch as pl

from hpfracc_nn.training import BackendReport
from hpfracc_nn.training import table as tables
from tests.report_cases import Net, Validated, loader, trainer

SECONDS = {"torch/dense": 1e-6, "torch/fft": 3e-7}  # the first as estimated
BEST = "torch/fft"
STEPS = 60
NAME = "BackendReport/"


@pytest.fixture
def kernels() -> Iterator[None]:
    known = dict(_probes)
    register_probe(FakeProbe())
    added = [register(fake("torch/dense")), register(fake("torch/fft", lambda w: 3 * w.samples))]
    yield
    for kernel in added:
        unregister(kernel)
    _probes.clear()
    _probes.update(known)


def learning(**settings: Any) -> BackendManager:
    return fake_manager(mode="learn", explore_fraction=0.5, **settings)


def fitted(tmp_path: Path, report: BackendReport, manager: BackendManager, **options: Any) -> pl.Trainer:
    options = {"max_steps": STEPS, "log_every_n_steps": 10, **options}
    runner = trainer(tmp_path, report, **options)
    runner.fit(Net(manager, fractional=1, seconds=SECONDS), loader(options["max_steps"]))
    return runner


def logged(tmp_path: Path, manager: BackendManager) -> tuple[Any, list[dict[str, str]]]:
    """Fit with a TensorBoard and a CSV logger, and return what both hold."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = pl.loggers.TensorBoardLogger(tmp_path)
    sheet = pl.loggers.CSVLogger(tmp_path, name="csv", flush_logs_every_n_steps=1)
    fitted(tmp_path, BackendReport(table=None), manager, logger=[board, sheet])
    found = events.EventAccumulator(board.log_dir)
    found.Reload()
    with open(Path(sheet.log_dir) / "metrics.csv", newline="") as file:
        return found, list(csv.DictReader(file))


# Loggers


def test_both_loggers_get_the_same_scalars_and_they_are_right(tmp_path: Path, kernels: None) -> None:
    manager = learning()
    board, lines = logged(tmp_path, manager)
    assert [int(line["step"]) for line in lines] == [9, 19, 29, 39, 49, 59]
    names = {name.removeprefix(NAME) for name in lines[0] if name.startswith(NAME)}
    assert names >= {
        "share/torch",
        "select_per_step",
        "plans",
        "explore_fraction",
        "switches",
        "fallbacks",
        "quarantined",
        "regret_estimate",
        "overhead_us",
    }
    for name in names:
        sheet = [float(line[NAME + name]) for line in lines if line[NAME + name]]
        assert [event.value for event in board.Scalars(NAME + name)] == pytest.approx(sheet, rel=1e-6)  # float32 there

    def column(name: str) -> list[float]:
        return [float(line[NAME + name]) for line in lines]

    assert sum(column("switches")) == 1  # to the fast one
    assert column("select_per_step") == [2.0] * 6
    assert column("share/torch") == [1.0] * 6
    assert column("regret_estimate")[-1] == 0
    assert max(column("explore_fraction")) < 1
    assert column("overhead_us")[0] > 0
    assert column("fallbacks") == column("quarantined") == [0.0] * 6


def test_tensorboard_gets_the_table_and_figures(tmp_path: Path, kernels: None) -> None:
    np = pytest.importorskip("numpy")
    image = pytest.importorskip("PIL.Image")

    board, _ = logged(tmp_path, learning())
    (text,) = board.Tensors(f"{NAME}table/text_summary")
    table = text.tensor_proto.string_val[0].decode()
    for word in ("| Module |", "Confidence %", "Explored %", "fractional.0", "fft", "Saved against FFT", "Mode learn"):
        assert word in table
    drawn = {f"{NAME}{name}" for name in ("choice_map", "predicted_against_measured", "timeline", "shares_over_time")}
    assert set(board.Tags()["images"]) == drawn
    for name in drawn:
        (picture,) = board.Images(name)
        pixels = np.asarray(image.open(io.BytesIO(picture.encoded_image_string)))
        assert pixels.shape == (432, 720, 3)  # 8 x 4.8 inches of 90 dots
        assert pixels.std() > 10  # not blank
        for border in (pixels[:3], pixels[-3:], pixels[:, :3], pixels[:, -3:]):
            assert (border == 255).all()  # nothing is cut


def test_no_figures_without_matplotlib_or_where_none_are_wanted(
    tmp_path: Path, kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    seen: list[str] = []
    board = pl.loggers.TensorBoardLogger(tmp_path)
    monkeypatch.setattr(board.experiment, "add_image", lambda tag, *_, **__: seen.append(tag))
    fitted(tmp_path, BackendReport(table=None, figures=False), learning(), logger=board)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    fitted(tmp_path, BackendReport(table=None), learning(), logger=board)
    assert seen == []


def test_a_logger_of_tables_gets_one(tmp_path: Path, kernels: None) -> None:
    class Tables(pl.loggers.CSVLogger):
        def log_table(self, **given: Any) -> None:
            seen.append(given)

    seen: list[dict[str, Any]] = []
    fitted(tmp_path, BackendReport(table=None), learning(), logger=Tables(tmp_path))
    (given,) = seen
    assert given["key"] == "BackendReport/table"
    assert given["columns"] == list(tables.ALL)
    assert {line[given["columns"].index("Algorithm")] for line in given["data"]} == {"dense", "fft"}


def test_the_table_is_printed_with_what_was_gained_below_it(tmp_path: Path, kernels: None, capsys: Any) -> None:
    report = BackendReport(table="plain")
    fitted(tmp_path, report, learning())
    printed = capsys.readouterr().out
    assert "Saved against FFT everywhere:" in printed
    assert "us a call. Plans " in printed
    assert "Mode learn, wisdom none." in printed
    rows = {row.algorithm: row for row in report.rows()}
    assert rows["fft"].switches == 1
    assert rows["fft"].trials >= 1
    assert rows["fft"].explored == rows["fft"].trials / rows["fft"].forwards
    assert rows["fft"].confidence > 0.5


def test_the_parts_by_step_begin_where_the_run_does(tmp_path: Path, kernels: None) -> None:
    sheet = pl.loggers.CSVLogger(tmp_path)
    report = BackendReport(table=None)
    fitted(tmp_path, report, learning(), logger=sheet)
    assert report._steps.steps == [0, 9, 19, 29, 39, 49, 59]
    assert [sum(look.uses.values()) for look in report._steps.looks] == [0, 20, 40, 60, 80, 100, 120]


# What is learnt


def trials(manager: BackendManager) -> int:
    return sum(plan.trials for site in manager.sites() for plan in site.plans())


def plan_in_use(manager: BackendManager) -> Any:
    ((plan,),) = [site.in_use() for site in manager.sites() if site.in_use()]
    return plan


def test_a_resumed_run_explores_nothing_anew(tmp_path: Path, kernels: None) -> None:
    first, second = learning(), learning()
    fitted(tmp_path, BackendReport(table=None), first).save_checkpoint(tmp_path / "one.ckpt")
    assert plan_in_use(first).kernel.name == BEST
    assert trials(first) > 0
    report = BackendReport(table=None)
    runner = trainer(tmp_path, report, max_steps=STEPS + 20)
    net = Net(second, fractional=1, seconds=SECONDS)
    runner.fit(net, loader(STEPS), ckpt_path=tmp_path / "one.ckpt")
    assert plan_in_use(second).kernel.name == BEST
    assert trials(second) == 0
    assert {row.algorithm for row in report.rows() if row.forwards > 0} == {"dense", "fft"}  # dense was before


def test_the_state_is_json_and_what_cannot_be_read_is_left_out(tmp_path: Path, kernels: None, caplog: Any) -> None:
    report = BackendReport(table=None)
    fitted(tmp_path, report, learning())
    state = json.loads(json.dumps(report.state_dict()))
    assert [BEST in text for text in state["wisdom"]] == [True]
    state["wisdom"] = ["nonsense"]
    again, manager = BackendReport(table=None), learning()
    again.load_state_dict(state)
    with caplog.at_level(logging.INFO):
        fitted(tmp_path, again, manager)
    assert "what the checkpoint knew of kernels is left out" in caplog.text


def test_times_of_another_machine_are_only_where_to_start_from(
    tmp_path: Path, kernels: None, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = BackendReport(table=None)
    fitted(tmp_path, report, learning())
    again, manager = BackendReport(table=None), learning()
    again.load_state_dict(report.state_dict())
    monkeypatch.setattr("hpfracc_nn.selection.learning.learner.machine_facts", lambda: {"cpu": "another"})
    with caplog.at_level(logging.INFO):
        fitted(tmp_path, again, manager)
    assert "of another machine" in caplog.text
    assert {each.kernel for each in manager.history()} == {BEST}  # it began with that, and measured it here


def test_after_so_many_steps_nothing_is_tried_or_learnt_and_then_it_is_again(tmp_path: Path, kernels: None) -> None:
    class Look(pl.Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
            modes.append(manager.settings.mode)

    modes: list[str] = []
    manager = learning()
    runner = trainer(tmp_path, BackendReport(table=None, freeze_after=20), max_steps=STEPS)
    runner.callbacks.append(Look())
    runner.fit(Net(manager, fractional=1, seconds=SECONDS), loader(STEPS))
    assert modes == ["learn"] * 20 + ["frozen"] * (STEPS - 20)
    assert manager.settings.mode == "learn"
    assert BEST in {each.kernel for each in manager.history()}


def test_nothing_is_learnt_in_the_sanity_check(tmp_path: Path, kernels: None) -> None:
    class Look(pl.Callback):
        def on_validation_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            modes.append((trainer.sanity_checking, manager.settings.mode))

    modes: list[tuple[bool, str]] = []
    manager = learning()
    runner = trainer(tmp_path, BackendReport(table=None), max_epochs=1, max_steps=-1, num_sanity_val_steps=2)
    runner.callbacks.append(Look())
    runner.fit(Validated(manager, fractional=1, seconds=SECONDS), loader(4), loader(3))
    assert modes == [(True, "prior")] * 2 + [(False, "learn")] * 3


def test_a_mode_that_does_not_learn_stays(tmp_path: Path, kernels: None) -> None:
    manager = fake_manager(mode="off")
    fitted(tmp_path, BackendReport(table=None, freeze_after=1), manager)
    assert manager.settings.mode == "off"
    assert plan_in_use(manager).reason == "first"


def test_a_run_that_raises_gives_the_manager_back_too(tmp_path: Path, kernels: None) -> None:
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
            if trainer.global_step == 3:
                raise FloatingPointError

    manager = learning()
    runner = trainer(tmp_path, BackendReport(table=None, freeze_after=1, wisdom=str(tmp_path / "wisdom")))
    runner.callbacks.append(Stop())
    with pytest.raises(FloatingPointError):
        runner.fit(Net(manager, fractional=1, seconds=SECONDS), loader())
    assert (manager.settings.mode, manager.settings.wisdom) == ("learn", "off")


def test_what_is_learnt_goes_to_the_directory_that_was_given(tmp_path: Path, kernels: None) -> None:
    manager = learning()
    fitted(tmp_path, BackendReport(table=None, wisdom=str(tmp_path / "wisdom")), manager)
    assert {arm for _, arm in WisdomFile(tmp_path / "wisdom").read().timings} >= {BEST}
    assert manager.settings.wisdom == "off"


@pytest.mark.parametrize("steps", [0, -1, 1.5, True])
def test_an_unknown_step_to_freeze_after_is_an_error(steps: Any) -> None:
    message = r"^BackendReport\(freeze_after=.*\): needs None or a number of steps > 0\.$"
    with pytest.raises(ValueError, match=message):
        BackendReport(freeze_after=steps)
