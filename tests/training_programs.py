"""Trainings that tests run in processes of their own: with a collector of OpenTelemetry, and two at once."""

import json
import os
import sys
import tempfile
import warnings
from typing import Any

import lightning.pytorch as pl
import torch

import hpfracc_nn as fnn
from hpfracc_nn.selection import BackendManager, Machine, Settings, default_manager, kernels, register, register_probe
from hpfracc_nn.training import BackendReport
from hpfracc_nn.training.report import plan_hash, plan_table
from tests.report_cases import Net, loader
from tests.selection_kernels import FakeProbe, fake

STEPS = 60
# Estimates are 1.1, 1.2, 1.3 and 1.4 us for the kernels in this order, so that each may be the fastest.
TIMES = {"torch/dense": 1.1e-6, "torch/fft": 1.2e-6, "torch/chunked_scan": 1e-6, "torch/recurrence": 5e-7}


class Real(pl.LightningModule):
    """A layer that is tested elsewhere, in a training that lets its kernel fail half way."""

    def __init__(self, fails_at: int | None = None):
        super().__init__()
        self.layer = fnn.FractionalLayer(0.5, learn_alpha=True)
        self.fails_at = fails_at

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if self.global_step == self.fails_at:
            let_fail(self.layer.site.in_use()[0].kernel.name)
        return self.layer(batch[:, None, :].expand(-1, 8, 64)).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def let_fail(name: str) -> None:
    def run(*_: Any) -> None:
        raise RuntimeError("boom")

    (kernel,) = [each for each in kernels("toeplitz", "torch") if each.name == name]
    kernel.run = run


def trained(net: pl.LightningModule, callbacks: list[pl.Callback], batches: Any, **options: Any) -> pl.Trainer:
    made: dict[str, Any] = {
        "logger": False,
        "max_steps": STEPS,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "default_root_dir": tempfile.gettempdir(),
        **options,
    }
    runner = pl.Trainer(callbacks=callbacks, **made)
    runner.fit(net, batches)
    return runner


def numbers() -> Any:
    return torch.utils.data.DataLoader(list(torch.randn(4 * STEPS, 64)), batch_size=4)  # type: ignore[arg-type]


def collected(endpoint: str) -> Any:
    """Train with a collector: kernels are tried, one takes over, and it fails."""
    default_manager().configure(explore_fraction=0.5, disable="numba,xla")
    trained(Real(fails_at=40), [BackendReport(table=None, otel=endpoint)], numbers())
    return {"calls": default_manager().counters(), "failures": default_manager().failures()}


def exchange(directory: str) -> Any:
    """Train in one of two processes, and return what was tried here and what is known in the end."""
    register_probe(FakeProbe())
    for number, name in enumerate(TIMES, 1):
        register(fake(name, lambda w, number=number: 1000 + 100 * number, launches=0))
    manager = BackendManager(Settings(mode="learn", wisdom=directory, explore_fraction=0.5), machine=Machine())
    tried = Tried(manager)
    net = Net(manager, fractional=1, seconds=TIMES)
    callbacks = [tried, BackendReport(table=None)]
    runner = trained(net, callbacks, loader(2 * STEPS), strategy="ddp", devices=2)
    (site,) = [each for each in manager.sites() if each.in_use()]
    (plan,) = site.in_use()
    found = manager.predict(plan.workload)
    return {
        "rank": runner.global_rank,
        "tried": sorted(tried.before_the_first_round),
        "known": sorted(name for name, each in found.items() if each.samples),
        "chosen": plan.kernel.name,
        "saved": manager.save(),
    }


class Tried(pl.Callback):
    """Looks which kernels were tried in this process before the others told anything."""

    def __init__(self, manager: BackendManager):
        self.manager = manager
        self.before_the_first_round: set[str] = set()

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step < 16:
            plans = [plan for site in self.manager.sites() for plan in site.plans()]
            self.before_the_first_round |= {plan.kernel.name for plan in plans if plan.trials}


def deterministic(disabled: str) -> Any:
    """Train in one of two processes with plans that must not change; the second one may lack a kernel."""
    default_manager().configure(deterministic=True)
    if os.environ["RANK"] == "1" and disabled:
        default_manager().configure(disable=disabled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner = trained(Real(), [BackendReport(table=None)], numbers(), strategy="ddp", devices=2, max_steps=20)
    said = [str(each.message) for each in caught if "must not change" in str(each.message)]
    return {"rank": runner.global_rank, "hash": plan_hash(plan_table([default_manager()])), "said": said}


PROGRAMS: dict[str, Any] = {program.__name__: program for program in (collected, exchange, deterministic)}


if __name__ == "__main__":
    found = PROGRAMS[sys.argv[1]](*sys.argv[2:])
    sys.stdout.write("\n" + json.dumps(found))
