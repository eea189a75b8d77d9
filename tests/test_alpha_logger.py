"""AlphaLogger: which orders it logs, when, under which name and at which step."""

from __future__ import annotations

import csv
import importlib
import pathlib
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import CSVLogger

from hpfracc_nn.layers.torch import Alpha, FractionalLayer, FractionalLinear, ProbabilisticAlpha
from hpfracc_nn.training import AlphaLogger

STEPS = 5


class Net(pl.LightningModule):
    def __init__(self, **layers: torch.nn.Module) -> None:
        super().__init__()
        self.net = torch.nn.ModuleDict(layers)
        self.seen: list[float] = []  # the first order after each step

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        for layer in self.net.values():
            batch = layer(batch)
        return batch.square().mean()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        orders = [part.mean.flatten()[0].item() for part in self.modules() if isinstance(part, Alpha)]
        self.seen += orders[:1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Validated(Net):
    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.training_step(batch, batch_idx)


def one_order(kind: type[Net] = Net) -> Net:
    torch.manual_seed(0)
    return kind(first=torch.nn.Linear(4, 4), second=FractionalLayer(0.4, learn_alpha=True, dtype=torch.float64))


def loader(batches: int = STEPS) -> Any:
    return torch.utils.data.DataLoader(torch.linspace(0, 1, 8 * batches).reshape(-1, 4), batch_size=2)  # type: ignore[arg-type]


def trainer(tmp_path: pathlib.Path, *callbacks: pl.Callback, **options: Any) -> pl.Trainer:
    options = {
        "logger": False,
        "max_epochs": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "log_every_n_steps": 2,
        **options,
    }
    return pl.Trainer(accelerator="cpu", callbacks=list(callbacks), default_root_dir=tmp_path, **options)


def test_the_history_begins_before_training_and_ends_with_the_epoch(tmp_path: pathlib.Path) -> None:
    logger, net = AlphaLogger(), one_order()
    trainer(tmp_path, logger, max_epochs=2).fit(net, loader())
    rows = logger.history()
    assert [(row.step, row.epoch) for row in rows] == [(0, 0), (2, 0), (4, 0), (5, 0), (6, 1), (8, 1), (10, 1)]
    assert {row.name for row in rows} == {"net.second"}
    after = [0.4, *net.seen]
    assert [row.alpha for row in rows] == pytest.approx([after[row.step] for row in rows], abs=1e-12)
    assert rows[-1].alpha != pytest.approx(0.4, abs=1e-3)


def test_every_logger_has_the_orders_at_the_steps_of_its_other_metrics(tmp_path: pathlib.Path) -> None:
    logger, net = AlphaLogger(log_every_n_steps=1), one_order()
    files = [CSVLogger(tmp_path, name) for name in ("one", "other")]
    trainer(tmp_path, logger, logger=files).fit(net, loader())
    for each in files:
        with open(pathlib.Path(each.log_dir) / "metrics.csv") as file:
            rows = [row for row in csv.DictReader(file) if row["AlphaLogger/net.second"]]
        assert [int(row["step"]) for row in rows] == list(range(STEPS))  # Lightning counts from 0
        assert [float(row["AlphaLogger/net.second"]) for row in rows] == pytest.approx(net.seen)


def test_steps_are_those_of_the_optimizer(tmp_path: pathlib.Path) -> None:
    logger = AlphaLogger(log_every_n_steps=1)
    trainer(tmp_path, logger, accumulate_grad_batches=2).fit(one_order(), loader())
    assert [row.step for row in logger.history()] == [0, 1, 2, 3]


def test_several_orders_are_logged_one_by_one_up_to_a_limit(tmp_path: pathlib.Path) -> None:
    net = Net(
        few=FractionalLinear(4, 4, alpha=[0.2, 0.4, 0.6, 0.8], learn_alpha=True, dim=0),
        many=FractionalLayer([0.1] * 2 + [0.5, 0.9], "grunwald_letnikov", learn_alpha=True, dim=0),
        random=FractionalLayer(ProbabilisticAlpha(0.4, std=0.05), "grunwald_letnikov"),
    )
    logger = AlphaLogger(most=3)
    trainer(tmp_path, logger).fit(net, loader())
    first = {row.name: row.alpha for row in logger.history() if row.step == 0}
    assert first == pytest.approx(
        {
            "net.few.mean": 0.5,
            "net.few.min": 0.2,
            "net.few.max": 0.8,
            "net.many.mean": 0.4,
            "net.many.min": 0.1,
            "net.many.max": 0.9,
            "net.random": 0.4,
            "net.random.std": 0.05,
        },
        abs=1e-6,
    )
    logger = AlphaLogger(most=4)
    trainer(tmp_path, logger).fit(net, loader())
    assert [row.name for row in logger.history()[:4]] == [f"net.few.{k}" for k in range(4)]


def test_the_sanity_check_leaves_no_row(tmp_path: pathlib.Path) -> None:
    logger = AlphaLogger()
    runner = trainer(tmp_path, logger, num_sanity_val_steps=2)
    runner.fit(one_order(Validated), loader(), loader(2))
    assert [row.step for row in logger.history()] == [0, 2, 4, 5]
    runner.validate(one_order(Validated), loader(2))
    assert [row.step for row in logger.history()] == [0, 2, 4, 5]


def test_a_resumed_run_continues_the_history(tmp_path: pathlib.Path) -> None:
    whole = AlphaLogger()
    trainer(tmp_path, whole, max_epochs=2).fit(one_order(), loader())
    first, second = AlphaLogger(), AlphaLogger()
    runner = trainer(tmp_path, first)
    runner.fit(one_order(), loader())
    runner.save_checkpoint(tmp_path / "at.ckpt")
    trainer(tmp_path, second, max_epochs=2).fit(one_order(), loader(), ckpt_path=tmp_path / "at.ckpt")
    assert [row[:3] for row in second.history()] == [row[:3] for row in whole.history()]
    assert [row.alpha for row in second.history()] == pytest.approx([row.alpha for row in whole.history()])
    second.load_state_dict({"version": 0})
    assert len(second.history()) == len(whole.history())


def test_a_new_run_begins_a_new_history_and_a_longer_one_continues_it(tmp_path: pathlib.Path) -> None:
    logger = AlphaLogger()
    trainer(tmp_path, logger).fit(one_order(), loader())
    other = Net(other=FractionalLayer(0.7, learn_alpha=True))
    runner = trainer(tmp_path, logger)
    runner.fit(other, loader())
    assert [(row.step, row.name) for row in logger.history()] == [(step, "net.other") for step in (0, 2, 4, 5)]
    assert logger.history()[0].alpha == pytest.approx(0.7)
    runner.fit_loop.max_epochs = 2
    runner.fit(other, loader())
    assert [row.step for row in logger.history()] == [0, 2, 4, 5, 6, 8, 10]


def test_a_checkpoint_without_a_history_leaves_none_of_another_run(tmp_path: pathlib.Path) -> None:
    runner = trainer(tmp_path)
    runner.fit(one_order(), loader())
    runner.save_checkpoint(tmp_path / "without.ckpt")
    logger = AlphaLogger()
    trainer(tmp_path, logger).fit(one_order(), loader())
    trainer(tmp_path, logger, max_epochs=2).fit(one_order(), loader(), ckpt_path=tmp_path / "without.ckpt")
    assert [row.step for row in logger.history()] == [6, 8, 10]


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_run_resumed_with_other_numbers_continues_the_one_history_that_there_is(tmp_path: pathlib.Path) -> None:
    def resumed(*first: AlphaLogger) -> list[int]:
        runner, second = trainer(tmp_path, *first), AlphaLogger(5)
        runner.fit(one_order(), loader())
        runner.save_checkpoint(tmp_path / "at.ckpt")
        trainer(tmp_path, second, max_epochs=2).fit(one_order(), loader(), ckpt_path=tmp_path / "at.ckpt")
        return [row.step for row in second.history()]

    assert resumed(AlphaLogger(1)) == [0, 1, 2, 3, 4, 5, 10]
    with pytest.warns(UserWarning, match=r"the checkpoint has 2 histories and none .* make one of AlphaLogger\{"):
        assert resumed(AlphaLogger(1), AlphaLogger(2)) == [10]


class ByHand(Net):
    """Two optimizers that step after every batch."""

    def __init__(self, **layers: torch.nn.Module) -> None:
        super().__init__(**layers)
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:  # type: ignore[override]
        loss = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        for optimizer in self.optimizers():  # type: ignore[union-attr]
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in self.net.values()]


def test_steps_of_several_optimizers_count_once_a_batch(tmp_path: pathlib.Path) -> None:
    logger = AlphaLogger(1)
    runner = trainer(tmp_path, logger)
    runner.fit(one_order(ByHand), loader())
    assert runner.global_step == 2 * STEPS
    assert [row.step for row in logger.history()] == list(range(STEPS + 1))


def test_the_history_is_a_data_frame_s_rows(tmp_path: pathlib.Path) -> None:
    pandas = pytest.importorskip("pandas")
    logger = AlphaLogger()
    trainer(tmp_path, logger).fit(one_order(), loader())
    frame = pandas.DataFrame(logger.history()).pivot(index="step", columns="name", values="alpha")
    assert frame.columns.tolist() == ["net.second"]
    assert frame.index.tolist() == [0, 2, 4, 5]


def test_a_module_without_learned_orders_is_told_so_once(tmp_path: pathlib.Path) -> None:
    logger, net = AlphaLogger(), Net(only=torch.nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="Net has no learned order, so there is nothing to log"):
        trainer(tmp_path, logger).fit(net, loader())
    assert logger.history() == []


def test_a_module_that_is_an_order_s_own_has_its_class_as_name(tmp_path: pathlib.Path) -> None:
    learned_orders = importlib.import_module("hpfracc_nn.training.torch.alpha_logger").learned_orders
    assert list(learned_orders(FractionalLayer(learn_alpha=True))) == ["FractionalLayer"]
    net = torch.nn.ModuleDict({"shared_order": Alpha(0.4, (0, 1)), "layer": FractionalLayer(learn_alpha=True)})
    assert list(learned_orders(net)) == ["shared_order", "layer"]


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"log_every_n_steps": 0}, ValueError, "AlphaLogger(log_every_n_steps=0): needs log_every_n_steps >= 1"),
        ({"most": 0.5}, TypeError, "AlphaLogger(most=0.5): needs an integer"),
    ],
    ids=["zero", "half"],
)
def test_numbers_out_of_range_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        AlphaLogger(**options)
    assert str(caught.value).startswith(message)


def test_two_of_them_keep_their_own_state(tmp_path: pathlib.Path) -> None:
    often, seldom = AlphaLogger(1), AlphaLogger(5)
    assert often.state_key != seldom.state_key
    trainer(tmp_path, often, seldom).fit(one_order(), loader())
    assert (len(often.history()), len(seldom.history())) == (6, 2)
