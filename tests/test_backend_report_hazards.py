"""BackendReport where a run is short, long, validated, resumed, or changed by its user on the way."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpfracc_nn.selection import BackendManager, Workload, register, register_probe, unregister
from hpfracc_nn.selection.registry import _probes
from hpfracc_nn.training import report as counting
from hpfracc_nn.training.report import SiteCounts
from tests.selection_kernels import FakeProbe, fake, fake_manager

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import lightning.pytorch as pl

from hpfracc_nn.training import BackendReport
from tests.report_cases import STEPS, Net, Validated, loader, trainer

NAME = "BackendReport/"


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    known = dict(_probes)
    register_probe(FakeProbe())
    added = [register(fake("torch/dense")), register(fake("torch/fft", lambda w: 3 * w.samples))]
    yield
    for kernel in added:
        unregister(kernel)
    _probes.clear()
    _probes.update(known)


class Kept(pl.loggers.Logger):
    """Keeps what it is given."""

    name, version = "kept", 0

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, *_: Any, **__: Any) -> None: ...


class Doing(pl.Callback):
    """Does something after a step."""

    def __init__(self, step: int, what: Any) -> None:
        self.step, self.what = step, what

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            self.what()


def fitted(tmp_path: Path, report: BackendReport, manager: BackendManager, *others: pl.Callback, **options: Any) -> Any:
    runner = trainer(tmp_path, report, **options)
    runner.callbacks += others
    runner.fit(Net(manager, fractional=1), loader())
    return runner


def learning(**settings: Any) -> BackendManager:
    return fake_manager(mode="learn", **settings)


def calling(manager: BackendManager, sizes: range) -> tuple[Any, SiteCounts]:
    site, counts = manager.site("test_op", "torch", "one"), SiteCounts()
    counts.attach({"one": site})
    consult(site, sizes)
    return site, counts


def consult(site: Any, sizes: range) -> None:
    for n in sizes:
        site.pick(n, partial(Workload, "test_op", "torch", rows=1, n=n))


def test_plans_that_a_site_lets_go_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpfracc_nn.selection.site.MOST_PLANS", 4)
    monkeypatch.setattr(counting, "MOST_ROWS", 6)
    monkeypatch.setattr(counting, "MOST_COUNTED", 6)
    _, counts = calling(fake_manager(), range(1, 201))
    found = counts.look()
    assert sum(each.counts.calls for each in found.values()) == 200
    assert len(found) <= 6 + 1  # by row, and one of the others
    rows = counts.rows()
    assert sum(row.counts.calls for row in rows) == 200
    assert len(rows) <= 7
    assert [row.counts.calls > 100 for row in rows if row.workload == "others"] == [True]
    assert len(counts.state()["rows"]) == len(rows)
    counts.detach()
    assert sum(row.counts.calls for row in counts.rows()) == 200


def test_what_was_seen_stays_seen_where_plans_are_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpfracc_nn.selection.site.MOST_PLANS", 2)
    monkeypatch.setattr(counting, "MOST_ROWS", 1)
    monkeypatch.setattr(counting, "MOST_COUNTED", 1)
    site, counts = calling(fake_manager(), range(1, 8))
    counts.recent(counts.look())
    consult(site, range(10, 17))
    assert sum(each.counts.calls for each in counts.recent(counts.look())) == 7


def test_calls_of_validation_are_in_the_table_and_not_in_what_is_logged_by_the_step(tmp_path: Path) -> None:
    kept, report = Kept(), BackendReport(table=None)
    runner = trainer(tmp_path, report, logger=kept, log_every_n_steps=STEPS, max_steps=-1, max_epochs=2)
    runner.fit(Validated(fake_manager(), fractional=1), loader(), loader(20))
    assert [line[NAME + "select_per_step"] for _, line in kept.lines if NAME + "plans" in line] == [2.0, 2.0]
    assert sum(row.counts.calls for row in report.rows()) == 2 * (2 * STEPS + 20)


def test_a_run_shorter_than_the_rhythm_of_the_loggers_is_logged_at_its_end(tmp_path: Path) -> None:
    kept, report = Kept(), BackendReport(table=None)
    fitted(tmp_path, report, fake_manager(), logger=kept, log_every_n_steps=50)
    assert [step for step, line in kept.lines if NAME + "plans" in line] == [STEPS - 1]
    assert [sum(look.uses.values()) for look in report._steps.looks] == [0, 2 * STEPS]


def test_what_the_user_configures_meanwhile_stays(tmp_path: Path) -> None:
    manager, mine = learning(), str(tmp_path / "mine")
    change = Doing(3, lambda: manager.configure(mode="prior", wisdom=mine))
    report = BackendReport(table=None, freeze_after=2, wisdom=str(tmp_path / "theirs"))
    fitted(tmp_path, report, manager, change)
    assert (manager.settings.mode, str(manager.settings.wisdom)) == ("prior", mine)


def test_who_learns_on_after_the_freeze_is_not_frozen_again(tmp_path: Path) -> None:
    manager, modes = learning(), []
    on = Doing(3, lambda: manager.configure(mode="learn"))
    look = Doing(STEPS, lambda: modes.append(manager.settings.mode))
    fitted(tmp_path, BackendReport(table=None, freeze_after=2), manager, on, look)
    assert modes == ["learn"]


def test_a_run_resumed_beyond_the_freeze_learns_nothing(tmp_path: Path) -> None:
    class Look(pl.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            modes.append(second.settings.mode)

    modes: list[str] = []
    first, second = learning(), learning()
    fitted(tmp_path, BackendReport(table=None, freeze_after=2), first).save_checkpoint(tmp_path / "a.ckpt")
    runner = trainer(tmp_path, BackendReport(table=None, freeze_after=2), max_steps=STEPS + 2)
    runner.callbacks.append(Look())
    runner.fit(Net(second, fractional=1), loader(), ckpt_path=tmp_path / "a.ckpt")
    assert modes == ["frozen"] * 2
    assert second.settings.mode == "learn"


@pytest.mark.parametrize("prog_bar", [True, False])
def test_a_bar_keeps_the_metrics_of_its_user(tmp_path: Path, prog_bar: bool) -> None:
    bar, seen = pl.callbacks.TQDMProgressBar(), []
    own = vars(bar)["get_metrics"] = lambda trainer, module: {"mine": 1}
    runner = trainer(tmp_path, BackendReport(table=None, prog_bar=prog_bar), enable_progress_bar=True)
    runner.callbacks = [each for each in runner.callbacks if not isinstance(each, pl.callbacks.ProgressBar)]
    look = Doing(STEPS, lambda: seen.append(bar.get_metrics(runner, runner.lightning_module)))
    runner.callbacks += [look, bar]
    runner.fit(Net(fake_manager(), fractional=1), loader())
    assert seen == [{"mine": 1, "backend": "torch/dense"} if prog_bar else {"mine": 1}]
    assert vars(bar)["get_metrics"] is own


def test_a_bar_collects_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, looks = BackendReport(table=None, prog_bar=True), []

    def most_consulted() -> str:
        looks.append(1)
        return "torch/dense"

    monkeypatch.setattr(report._counts, "most_consulted", most_consulted)
    monkeypatch.setattr("hpfracc_nn.training.torch.backend_report.BAR_SECONDS", 1e3)
    runner = trainer(tmp_path, report, enable_progress_bar=True)
    bar = runner.progress_bar_callback
    ask = [Doing(step, lambda: bar.get_metrics(runner, runner.lightning_module)) for step in range(1, STEPS)]
    runner.callbacks += ask
    runner.fit(Net(fake_manager(), fractional=1), loader())
    assert len(looks) == 1
