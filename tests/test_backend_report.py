"""BackendReport: what it counts, what it logs, what it prints.

The modules' kernels are made up, so that counts and times are exact.
"""

import csv
import json
import sys

import pytest

from hpfracc_nn.selection import ReportRow, register, register_probe, unregister
from hpfracc_nn.selection.registry import _probes
from hpfracc_nn.training import table as tables
from tests.selection_kernels import FakeProbe, fake, fake_manager

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import lightning.pytorch as pl
import torch

from hpfracc_nn.training import BackendReport
from tests.report_cases import STEPS, Fractional, Net, Validated, loader, trainer


@pytest.fixture
def manager():
    known = dict(_probes)
    register_probe(FakeProbe())
    kernels = [register(fake("torch/dense")), register(fake("torch/fft", lambda w: 3 * w.samples))]
    yield fake_manager()
    for kernel in kernels:
        unregister(kernel)
    _probes.clear()
    _probes.update(known)


def calls(report):
    return [(row.label, row.forwards, row.backwards) for row in report.rows()]


def test_the_calls_of_each_module_are_counted_without_a_logger(tmp_path, manager, capsys):
    report, net = BackendReport(table="plain"), Net(manager)
    net(torch.ones(3, 4))  # before: not counted
    trainer(tmp_path, report).fit(net, loader())
    net(torch.ones(3, 4))  # after: not counted
    assert calls(report) == [("fractional.0", STEPS, STEPS), ("fractional.1", STEPS, STEPS)]
    row = report.rows()[0]
    assert (row.backend, row.algorithm, row.workload, row.share) == ("torch", "dense", "3 x 4 x 1", 0.5)
    assert row.forward_ms == pytest.approx(2)
    assert row.backward_ms is None
    # 12 samples at 1e9 per second and one launch of 1e-6 s, against three times the samples.
    assert row.predicted_ms == pytest.approx(1.012e-3)
    assert row.speed_up == pytest.approx(1.036 / 1.012)
    assert [site.label for site in manager.sites()] == ["fractional.0", "fractional.1"]
    printed = capsys.readouterr().out
    assert printed.count(tables.TITLE) == 1
    assert "fractional.1  test_op  3 x 4 x 1  float32  cpu     torch    dense\n" in printed


def test_the_sanity_check_does_not_count(tmp_path, manager):
    report = BackendReport(table=None)
    runner = trainer(tmp_path, report, num_sanity_val_steps=2, max_epochs=1, max_steps=-1)
    runner.fit(Validated(manager, fractional=1), loader(), loader(3))
    assert calls(report) == [("fractional.0", STEPS, STEPS), ("fractional.0", 3, 0)]  # 3 of validation


def test_other_stages_count_on(tmp_path, manager):
    report, net = BackendReport(table=None), Net(manager, fractional=1)
    runner = trainer(tmp_path, report)
    runner.fit(net, loader())
    net(torch.ones(3, 4))
    runner.predict(net, loader(2))
    assert calls(report) == [("fractional.0", STEPS, STEPS), ("fractional.0", 2, 0)]


def test_a_change_of_settings_in_the_middle_loses_no_count(tmp_path, manager):
    class Configure(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 2:
                manager.configure(force_algorithm="fft")

    report = BackendReport(table=None)
    runner = trainer(tmp_path, report, logger=pl.loggers.CSVLogger(tmp_path), log_every_n_steps=1)
    runner.callbacks.append(Configure())
    runner.fit(Net(manager, fractional=1), loader())
    found = {row.algorithm: (row.forwards, row.backwards, row.reason) for row in report.rows()}
    assert found == {"dense": (2, 2, "prior"), "fft": (3, 3, "forced")}


def test_a_change_of_settings_between_two_looks_loses_no_count(tmp_path, manager):
    class Configure(pl.Callback):
        def on_train_epoch_end(self, *_):
            manager.configure(sample=False)

    report = BackendReport(table=None)
    runner = trainer(tmp_path, report, max_epochs=3, max_steps=-1, num_sanity_val_steps=2)
    runner.callbacks.append(Configure())
    manager.configure(sample=False)
    runner.fit(Validated(manager, fractional=1), loader(), loader(3))
    assert calls(report) == [("fractional.0", 3 * STEPS, 3 * STEPS), ("fractional.0", 3 * 3, 0)]


def test_a_change_of_settings_during_the_sanity_check_counts_none_of_it(tmp_path, manager):
    class Configure(pl.Callback):
        def on_validation_batch_end(self, trainer, *_):
            if trainer.sanity_checking:
                manager.configure(sample=False)

    report = BackendReport(table=None)
    runner = trainer(tmp_path, report, max_epochs=1, max_steps=-1, num_sanity_val_steps=2)
    runner.callbacks.append(Configure())
    runner.fit(Validated(manager, fractional=1), loader(), loader(3))
    assert calls(report) == [("fractional.0", STEPS, STEPS), ("fractional.0", 3, 0)]


def test_a_run_that_raised_does_not_count_what_follows(tmp_path, manager):
    class Stop(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            raise FloatingPointError

    report, net = BackendReport(table=None), Net(manager, fractional=1)
    runner = trainer(tmp_path, report)
    runner.callbacks.append(Stop())
    with pytest.raises(FloatingPointError):
        runner.fit(net, loader())
    net(torch.ones(3, 4))
    assert calls(report) == [("fractional.0", 1, 1)]


def test_modules_made_in_configure_model_are_found(tmp_path, manager):
    class Late(Net):
        def configure_model(self):
            self.fractional.append(Fractional(manager))

    report = BackendReport(table=None)
    trainer(tmp_path, report).fit(Late(manager, fractional=0), loader())
    assert calls(report) == [("fractional.0", STEPS, STEPS)]


def test_a_model_without_fractional_modules_warns_once(tmp_path, manager):
    report = BackendReport()
    with pytest.warns(
        UserWarning, match=r"^BackendReport: Net has no fractional module, so .* take the callback out\.$"
    ):
        trainer(tmp_path, report).predict(Net(manager, fractional=0), loader())
    trainer(tmp_path, report).validate(Validated(manager, fractional=0), loader())  # any warning is an error
    assert report.rows() == []


def logged(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_scalars_reach_the_csv_logger_at_its_steps(tmp_path, manager):
    logger = pl.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    trainer(tmp_path, BackendReport(table=None), logger=logger, log_every_n_steps=2).fit(Net(manager), loader())
    lines = logged(tmp_path / "lightning_logs" / "version_0")
    assert [line["step"] for line in lines] == ["1", "3", "4"]  # the last is what was left
    for line in lines:
        assert float(line["BackendReport/share/torch"]) == 1
        assert float(line["BackendReport/select_per_step"]) == 4  # two modules, forward and backward
        assert float(line["BackendReport/plans"]) == 2
        assert float(line["BackendReport/op_ms/fractional.0.forward"]) == pytest.approx(2)
        assert "BackendReport/op_ms/fractional.0.backward" not in line


def test_accumulated_batches_are_logged_once_per_step(tmp_path, manager):
    logger = pl.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    runner = trainer(
        tmp_path,
        BackendReport(table=None),
        logger=logger,
        log_every_n_steps=1,
        accumulate_grad_batches=2,
        max_steps=2,
    )
    runner.fit(Net(manager), loader())
    lines = logged(tmp_path / "lightning_logs" / "version_0")
    assert [line["step"] for line in lines] == ["0", "1"]
    assert [float(line["BackendReport/select_per_step"]) for line in lines] == [4, 4]


def test_scalars_reach_tensorboard(tmp_path, manager):
    pytest.importorskip("tensorboard")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    logger = pl.loggers.TensorBoardLogger(tmp_path)
    trainer(tmp_path, BackendReport(table=None), logger=logger, log_every_n_steps=1).fit(Net(manager), loader())
    found = events.EventAccumulator(logger.log_dir)
    found.Reload()
    scalars = [(event.step, event.value) for event in found.Scalars("BackendReport/share/torch")]
    assert scalars == [(step, 1.0) for step in range(STEPS)]


def test_counts_go_on_after_a_resume(tmp_path, manager):
    first = trainer(tmp_path, BackendReport(table=None))
    first.fit(Net(manager), loader())
    first.save_checkpoint(tmp_path / "at_five.ckpt")
    report = BackendReport(table=None)
    second = trainer(tmp_path, report, max_steps=STEPS + 2)
    second.fit(Net(manager), loader(), ckpt_path=tmp_path / "at_five.ckpt")
    assert calls(report) == [("fractional.0", 7, 7), ("fractional.1", 7, 7)]
    assert sum(row.share for row in report.rows()) == pytest.approx(1)


def test_the_state_survives_json_and_an_unknown_one_is_left_out(tmp_path, manager, caplog):
    report = BackendReport(table=None)
    trainer(tmp_path, report).fit(Net(manager), loader())
    again = BackendReport(table=None)
    again.load_state_dict(json.loads(json.dumps(report.state_dict())))
    assert again.rows() == report.rows()
    with caplog.at_level("INFO"):
        again.load_state_dict({"schema": 0})
    assert "counting from zero" in caplog.text
    assert again.rows() == report.rows()


def test_reports_of_different_rhythm_have_states_of_their_own():
    assert BackendReport().state_key == BackendReport(table="plain").state_key
    assert BackendReport(every="epoch").state_key != BackendReport(every=3).state_key


@pytest.mark.parametrize(("every", "times"), [("fit", 1), ("epoch", 3), (2, 3), (3, 2)])
def test_the_table_is_printed_as_often_as_asked(tmp_path, manager, capsys, every, times):
    report = BackendReport(every=every, table="plain")
    trainer(tmp_path, report, max_steps=-1, max_epochs=2).fit(Net(manager), loader(2))
    assert capsys.readouterr().out.count(tables.TITLE) == times


@pytest.mark.parametrize("rich", [True, False])
def test_rich_prints_the_table_where_it_is_there(tmp_path, manager, capsys, monkeypatch, rich):
    if rich:
        pytest.importorskip("rich")
        monkeypatch.setenv("COLUMNS", "200")
    else:
        monkeypatch.setitem(sys.modules, "rich", None)
    trainer(tmp_path, BackendReport()).fit(Net(manager), loader())
    printed = capsys.readouterr().out
    assert tables.TITLE in printed
    assert ("───" in printed) is rich
    for word in ("fractional.1", "3 x 4 x 1", "dense", "prior"):
        assert word in printed


def test_rich_may_not_be_asked_for_where_it_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich", None)
    message = (
        r"BackendReport\(table='rich'\): needs the package 'rich'; pip install 'hpfracc-nn\[cli\]', or pass "
        r"table='plain'\."
    )
    with pytest.raises(ModuleNotFoundError, match=f"^{message}$"):
        BackendReport(table="rich")


@pytest.mark.parametrize("every", ["step", 0, -1, 1.5, True])
def test_an_unknown_rhythm_is_an_error(every):
    with pytest.raises(
        ValueError, match=r"^BackendReport\(every=.*\): needs 'fit', 'epoch' or a number of batches > 0\.$"
    ):
        BackendReport(every=every)


def test_an_unknown_table_is_an_error():
    with pytest.raises(
        ValueError, match=r"^BackendReport\(table='html'\): needs one of 'auto', 'rich', 'plain', None\.$"
    ):
        BackendReport(table="html")  # type: ignore[arg-type]


@pytest.mark.parametrize("bar", [pl.callbacks.TQDMProgressBar, pl.callbacks.RichProgressBar])
def test_the_progress_bar_names_the_kernel(tmp_path, manager, capsys, bar):
    if bar is pl.callbacks.RichProgressBar:
        pytest.importorskip("rich")
    seen, made = [], bar()

    class Look(pl.Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            seen.append(made.get_metrics(trainer, pl_module)["backend"])

    runner = trainer(tmp_path, BackendReport(table=None, prog_bar=True), enable_progress_bar=True)
    runner.callbacks += [Look(), made]
    runner.callbacks = [callback for callback in runner.callbacks if not isinstance(callback, pl.callbacks.ProgressBar)]
    runner.callbacks.append(made)
    runner.fit(Net(manager), loader())
    assert seen == ["torch/dense"] * STEPS
    assert "get_metrics" not in vars(made)


def test_a_narrow_table_comes_in_three_parts(tmp_path, manager):
    report = BackendReport(table=None)
    trainer(tmp_path, report).fit(Net(manager), loader())
    wide, narrow = tables.plain(report.rows(), 300), tables.plain(report.rows(), 80)
    assert wide.count("\n") + 10 == narrow.count("\n")  # twice a blank, a header of two lines and two rows
    assert set(narrow.split()) - set(wide.split()) == {"#"}
    assert max(map(len, narrow.splitlines()[:-1])) <= 80


def test_a_table_fits_80_columns_where_nothing_else_is_said(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    (row,) = [
        ReportRow(
            label="model.encoder.blocks.0.mixer.fractional",
            op="toeplitz",
            workload="256 x 16384 x 1",
            dtype="float32",
            device="cuda:0",
            backend="torch",
            algorithm="chunked_scan",
            forwards=1000,
            backwards=1000,
            share=1.0,
            forward_ms=1.23,
            backward_ms=1.23,
            predicted_ms=1.23,
            speed_up=1.23,
            reason="measured",
        )
    ]
    for form in ("plain", "rich") if tables.has_rich() else ("plain",):
        lines = tables.render([row], form).splitlines()
        assert max(map(len, lines)) <= 80
        assert any("fractional " in line for line in lines)
        assert not any("…" in line for line in lines)
