"""A Lightning callback that reports which kernel ran for each fractional module, how often and how fast."""

import logging
import os
import sys
import time
from dataclasses import replace
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from torch import nn

from hpfracc_nn import errors
from hpfracc_nn.analytics import History
from hpfracc_nn.selection import ReportRow, Site, probe
from hpfracc_nn.selection.observe.telemetry import enable_otlp
from hpfracc_nn.selection.workload import is_host
from hpfracc_nn.training import summary
from hpfracc_nn.training import table as tables
from hpfracc_nn.training.ledger import Ledger, Steps
from hpfracc_nn.training.torch import exchange, publishing
from hpfracc_nn.training.torch.steering import Steering

log = logging.getLogger(__name__)

BAR_SECONDS = 1.0  # between two looks for what the progress bar says
TABLES = ("auto", "rich", "plain", None)


class BackendReport(Callback):
    """Reports each fractional module's backend, algorithm, calls, times and reasons, and steers what is learnt.

    Counts what happens while the trainer runs (fit, validate, test, predict), without the sanity check, in which
    nothing is learnt either. At the end of `fit` rank zero prints a table of its own calls, gives it to TensorBoard as
    text and to Weights & Biases as a table, and TensorBoard gets four figures: which kernel at which size, predicted
    against measured times, each kernel's part of the calls by step, and a timeline of choices, changes and failures.
    Every `log_every_n_steps` steps, and at the end of `fit` for those that are left, each logger gets, under
    "BackendReport/" (or the logger's own separator), of the steps since the last time, without validation:

    - `share/<backend>`: part of the consultations;
    - `select_per_step`: consultations per batch;
    - `plans`: plans in use so far;
    - `explore_fraction`: part of the time that trials cost;
    - `switches`, `fallbacks`: kernels that took over, and calls at which one ran in place of another that failed;
    - `quarantined`: workloads, sizes or places at which a kernel is left alone now;
    - `regret_estimate`: part of the predicted time that the best kernel everywhere would have saved;
    - `overhead_us`: microseconds of deciding and learning per consultation; the look-up at each call is not in it;
    - `op_ms/<module>.forward` and `.backward`: 20 % quantile of sampled calls, in milliseconds, of the
      module's plan that was consulted most;
    - `gpu_free_MB`: free memory of the device, where it is not the host.

    Checkpoints keep the counts and all that was learnt, so that a resumed run explores nothing anew. Several processes
    try different kernels, and tell each other what they found after 16, 32, 64, ... steps and after each epoch.

    Args:
        every: When the table is printed and figures are drawn besides the end of `fit`: "epoch" after each training
            epoch, a number after each that many batches, "fit" not at all.
        table: "rich", "plain", "auto" for rich where it is installed, None for no table.
        figures: Whether TensorBoard gets figures; they need matplotlib.
        otel: Where an OpenTelemetry collector listens, such as "http://localhost:4318"; see `enable_otlp`.
            None leaves it to the process.
        sync_plans: Whether several processes share the trials and what comes of them.
        freeze_after: The step of the optimizer from which on nothing more is tried or learnt, until the trainer ends.
        wisdom: The directory for what is learnt meanwhile, or "off"; None leaves the managers' own.
        prog_bar: Whether the progress bar shows the backend and algorithm that ran most.

    Raises:
        ValueError: An argument is none of these.
        ModuleNotFoundError: `table` is "rich" and rich is not installed.

    Examples:
        >>> trainer = lightning.Trainer(callbacks=[BackendReport(table="plain")])
    """

    def __init__(
        self,
        every: Literal["fit", "epoch"] | int = "fit",
        table: Literal["auto", "rich", "plain"] | None = "auto",
        prog_bar: bool = False,
        *,
        figures: bool = True,
        otel: str | None = None,
        sync_plans: bool = True,
        freeze_after: int | None = None,
        wisdom: str | None = None,
    ):
        super().__init__()
        if not _is_number(every) and not (isinstance(every, str) and every in ("fit", "epoch")):
            raise ValueError(f"BackendReport(every={every!r}): needs 'fit', 'epoch' or a number of batches > 0.")
        if not isinstance(table, str | None) or table not in TABLES:
            raise ValueError(f"BackendReport(table={table!r}): needs one of {', '.join(map(repr, TABLES))}.")
        if freeze_after is not None and not _is_number(freeze_after):
            raise ValueError(f"BackendReport(freeze_after={freeze_after!r}): needs None or a number of steps > 0.")
        if table == "rich" and not tables.has_rich():
            raise ModuleNotFoundError(
                "BackendReport(table='rich'): needs the package 'rich'; pip install 'hpfracc-nn[cli]', "
                "or pass table='plain'.",
                name="rich",
            )
        for name, claimed in (("prog_bar", prog_bar), ("figures", figures), ("sync_plans", sync_plans)):
            errors.claim("BackendReport", name, claimed)
        for name, text in (("otel", otel), ("wisdom", wisdom)):
            if not isinstance(text, str | os.PathLike | None):
                raise TypeError(f"BackendReport({name}={text!r}): needs text; leave it out to do without.")
        self.every = every
        self.table = table
        self.prog_bar = prog_bar
        self.figures = figures
        self.otel = otel
        self.sync_plans = sync_plans
        self.freeze_after = freeze_after
        self._ledger = Ledger()
        self._steering = Steering(wisdom)
        self._exchange: exchange.Exchange | None = None
        self._steps = Steps()
        self._warned = False
        self._watching = False
        self._bar_before: dict[str, Any] = {}
        self._begin()

    @property
    def state_key(self) -> str:
        return self._generate_state_key(every=self.every)

    def rows(self) -> list[ReportRow]:
        """Return the rows of the table: one per module and workload, calls and times so far."""
        return self._ledger.rows()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._end()  # a run that raised never came to teardown
        if self.otel is not None:
            enable_otlp(self.otel)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._end()
        bar = trainer.progress_bar_callback
        if bar is not None and vars(bar).get("get_metrics") == self._bar_metrics:
            del bar.get_metrics
            vars(bar).update(self._bar_before)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)
        self._begin()
        self._steps.add(trainer.fit_loop.epoch_loop._batches_that_stepped, [])
        if self.sync_plans and exchange.is_distributed():
            self._exchange = exchange.Exchange(self._steering.managers)
        bar = trainer.progress_bar_callback
        if self.prog_bar and bar is not None:
            self._bar_before = {name: value for name, value in vars(bar).items() if name == "get_metrics"}
            self._bar_says, self._bar_due = "", 0.0
            bar.get_metrics = self._bar_metrics  # type: ignore[method-assign]

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._ledger.set_aside()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ledger.take_up()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ledger.pause()
        self._steering.stop_learning("prior")

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._steering.learn_again()
        self._ledger.resume()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._freeze(trainer.global_step)  # a resumed run may be beyond that step

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches += 1
        loop = trainer.fit_loop.epoch_loop
        is_steered = self._exchange is not None or self.freeze_after is not None
        if is_steered and not loop._should_accumulate():  # the optimizer has made a step
            self._after_step(trainer.global_step)
        if not trainer.is_global_zero:
            return
        if isinstance(self.every, int) and trainer.fit_loop.total_batch_idx % self.every == self.every - 1:
            self._publish(trainer)
        if trainer.loggers and trainer._logger_connector.should_update_logs and not loop._should_accumulate():
            self._log_scalars(trainer, loop._batches_that_stepped)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._pool()
        if self.every == "epoch" and trainer.is_global_zero:
            self._publish(trainer)

    @rank_zero_only
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if trainer.loggers and self._batches:
            self._log_scalars(trainer, max(0, trainer.fit_loop.epoch_loop._batches_that_stepped - 1))
        self._publish(trainer)

    def state_dict(self) -> dict[str, Any]:
        return {**self._ledger.state(), "wisdom": self._steering.learnt()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._ledger.load(state_dict):
            log.info("BackendReport: the checkpoint's counts are of another version; counting from zero.")
        self._steering.resume(state_dict.get("wisdom", []))

    def _watch(self, pl_module: pl.LightningModule) -> None:
        """Find the fractional modules; not in `setup`, when those of `configure_model` are not there yet."""
        if self._watching:
            return
        sites = fractional_sites(pl_module)
        if not sites and not self._warned:
            rank_zero_warn(
                f"BackendReport: {type(pl_module).__name__} has no fractional module, so there is nothing to "
                "report; make one in __init__ or configure_model, or take the callback out."
            )
            self._warned = True
        self._steering.take(dict.fromkeys(site.manager for site in sites.values()))
        self._ledger.attach(sites)
        self._watching = True

    def _begin(self) -> None:
        """Let what is logged begin here."""
        self._batches = 0
        self._is_frozen = False
        self._spent = summary.Spent.of(self._steering.managers)
        self._steps = Steps()

    def _end(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        self._steering.leave()
        self._ledger.detach()
        self._watching = False

    def _after_step(self, step: int) -> None:
        if self._exchange is not None and exchange.is_due(step):
            self._pool()
        self._freeze(step)

    def _freeze(self, step: int) -> None:
        """Let nothing be learnt from the step on that was asked for; once, for someone may ask for it later."""
        if self.freeze_after is not None and step >= self.freeze_after and not self._is_frozen:
            self._is_frozen = True
            self._steering.stop_learning("frozen")

    def _pool(self) -> None:
        differing = [] if self._exchange is None else self._exchange.pool()
        if differing:
            rank_zero_warn(
                f"BackendReport: the plans of {len(differing)} workloads must not change, and differ between the "
                f"processes, the first for {differing[0]}; a kernel has failed or is not installed in one of them."
            )

    def _log_scalars(self, trainer: pl.Trainer, step: int) -> None:
        watched, managers = self._ledger.look(), self._steering.managers
        found, spent = summary.recent(watched), summary.Spent.of(managers)
        quarantined = sum(each.quarantined().total() for each in managers)
        values = summary.scalars(found, spent.since(self._spent), self._batches, quarantined)
        publishing.log_scalars(trainer.loggers, type(self).__name__, values | _free_memory(found), step)
        self._steps.add(step, watched)
        for each in watched:
            each.seen = each.counts()
        self._spent, self._batches = spent, 0

    def _publish(self, trainer: pl.Trainer) -> None:
        rows, managers = self.rows(), self._steering.managers
        if not rows:
            return
        footer = summary.footer(self._ledger.look(), managers)
        if self.table is not None:
            form = ("rich" if tables.has_rich() else "plain") if self.table == "auto" else self.table
            sys.stdout.write(f"\n{tables.render(rows, form)}{footer}\n")
        name, step = type(self).__name__, trainer.fit_loop.epoch_loop._batches_that_stepped
        publishing.log_table(trainer.loggers, name, rows, footer, step)
        if self.figures and publishing.has_matplotlib():
            history = replace(History.of(*managers), looks=tuple(self._steps.looks))
            publishing.log_figures(trainer.loggers, name, history, self._steps.steps, step)

    def _bar_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        bar = trainer.progress_bar_callback
        if "get_metrics" in self._bar_before:
            metrics = self._bar_before["get_metrics"](trainer, pl_module)
        else:
            metrics = type(bar).get_metrics(bar, trainer, pl_module)  # type: ignore
        if not self._bar_says or time.monotonic() >= self._bar_due:  # a bar may ask after each batch
            self._bar_says = self._ledger.most_consulted()
            self._bar_due = time.monotonic() + BAR_SECONDS
        return metrics | {"backend": self._bar_says} if self._bar_says else metrics


def fractional_sites(module: nn.Module) -> dict[str, Site]:
    """Return the site of each fractional module in `module`, by the module's qualified name.

    A site without a label is given that name.
    """
    sites = {}
    for name, child in module.named_modules():
        site = getattr(child, "site", None)
        if isinstance(site, Site):
            name = name or type(child).__name__
            site.label = site.label or name
            sites[name] = site
    return sites


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _free_memory(found: list[summary.Recent]) -> dict[str, float]:
    """Return the free megabytes of the device with the least, where the host is not the device."""
    devices = {each.plan.workload.device for each in found} - {"cpu"}
    free = [probe("torch").free_memory(device) for device in devices if not is_host(device)]
    known = [count for count in free if count is not None]
    return {"gpu_free_MB": min(known) / 1e6} if known else {}
