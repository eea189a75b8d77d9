"""A Lightning callback that reports which kernel ran for each fractional module, how often and how fast."""

import importlib
import logging
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import lightning.pytorch as pl
import numpy as np
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from torch import nn

from hpfracc_nn import errors
from hpfracc_nn.analytics import History, choice_map, predicted_against_measured, shares_over_time, timeline
from hpfracc_nn.selection import BackendManager, ReportRow, Site, probe
from hpfracc_nn.selection.observe.telemetry import enable_otlp
from hpfracc_nn.selection.settings import Mode
from hpfracc_nn.selection.workload import is_host
from hpfracc_nn.training import report, table
from hpfracc_nn.training import table as tables
from hpfracc_nn.training.report import SiteCounts, Steps, plan_table

log = logging.getLogger(__name__)


class Steering:
    """The managers of a model while it is trained: their settings are changed, and restored afterwards.

    Args:
        wisdom: Where managers keep what they learn meanwhile: a directory, or "off"; None leaves their own.

    Attributes:
        managers: The managers that `take` was called with; they stay here after `leave`.
    """

    def __init__(self, wisdom: str | None = None):
        self._wisdom = wisdom
        # Each manager with its wisdom setting before, and the setting that `take` gave it.
        self._before: list[tuple[BackendManager, str | os.PathLike[str], str | os.PathLike[str]]] = []
        self._stopped: list[tuple[BackendManager, Mode]] = []  # each manager with the mode that it was set to
        self._waiting: list[str] = []
        self.managers: list[BackendManager] = []

    def take(self, managers: Iterable[BackendManager]) -> None:
        """Change the wisdom setting of a model's managers, and import the wisdom of a checkpoint into them."""
        self.leave()
        self.managers = list(managers)
        if self._wisdom is not None:
            for manager in self.managers:
                before = manager.settings.wisdom
                manager.configure(wisdom=self._wisdom)
                self._before.append((manager, before, manager.settings.wisdom))
        for text in self._waiting:
            for manager in self.managers:
                _tell(manager, text)
        self._waiting = []

    def leave(self) -> None:
        """Restore the managers' settings, except those that were configured meanwhile, and save what was learnt."""
        self.learn_again()
        for manager in self.managers if self._before else []:
            manager.save()
        for manager, before, given in self._before:
            if manager.settings.wisdom == given:
                manager.configure(wisdom=before)
        self._before = []

    def stop_learning(self, mode: Mode) -> None:
        """Switch the managers that learn to another mode, such as "frozen", until `learn_again`."""
        for manager in self.managers:
            if manager.settings.mode == "learn":
                manager.configure(mode=mode)
                self._stopped.append((manager, mode))

    def learn_again(self) -> None:
        """Restore learning where `stop_learning` ended it, except where another mode was configured meanwhile."""
        for manager, mode in self._stopped:
            if manager.settings.mode == mode:
                manager.configure(mode="learn")
        self._stopped = []

    def learnt(self) -> list[str]:
        """Return the wisdom of each manager as text, for a checkpoint; before `take`, that of the checkpoint loaded."""
        return [manager.export_wisdom() for manager in self.managers] or self._waiting

    def resume(self, texts: Iterable[str]) -> None:
        """Keep the wisdom of a checkpoint, a text for each manager, until `take` imports it."""
        self._waiting = [str(text) for text in texts]


def _tell(manager: BackendManager, text: str) -> None:
    try:
        trust = manager.import_wisdom(text)
    except ValueError as error:
        log.info("BackendReport: what the checkpoint knew of kernels is left out: %s.", error)
        return
    if trust == "prior":
        log.info("BackendReport: the checkpoint is of another machine; its times are only where to start from.")


FIRST = 16  # the step of the first exchange; each further one comes after twice as many steps


class Exchange:
    """An exchange between processes: they share the trials of kernels among them, and pool what was measured.

    Every process makes an exchange, and calls `pool` as often as the others: both wait for all processes. Text is
    transferred by gloo on the CPU, so that no stream of a GPU waits.

    Args:
        managers: The managers whose trials are shared, in the same order in every process.

    Attributes:
        count: The number of processes.
    """

    def __init__(self, managers: Sequence[BackendManager]):
        self._managers = list(managers)
        self.count = dist.get_world_size()
        self._group = dist.new_group(backend="gloo")
        for manager in self._managers:
            manager.share_trials(dist.get_rank(), self.count)

    def pool(self) -> list[str]:
        """Exchange with the other processes the times that each has measured.

        Returns:
            The workloads whose plans must not change and for which processes have different kernels: none, unless a
            kernel has failed or is missing in a process.
        """
        mine = [manager.export_wisdom(timed_here=True) for manager in self._managers]
        fixed = plan_table(each for each in self._managers if is_fixed(each))
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, (mine, fixed), group=self._group)
        for rank, (told, _) in enumerate(everyone):
            if rank != dist.get_rank():
                for manager, text in zip(self._managers, told, strict=True):
                    manager.import_wisdom(text)
        return _disagreed([plans for _, plans in everyone])

    def close(self) -> None:
        """End the exchange: this process tries all kernels itself again."""
        for manager in self._managers:
            manager.share_trials()
        if dist.is_initialized():
            dist.destroy_process_group(self._group)


def is_distributed() -> bool:
    """Return whether several processes train the model, by torch.distributed."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_due(step: int) -> bool:
    """Return whether the processes exchange wisdom after this step of the optimizer, as after 16, 32, 64 and so on."""
    return step >= FIRST and step & (step - 1) == 0


def is_fixed(manager: BackendManager) -> bool:
    """Return whether a manager's plans for torch's tensors must not change, because it is set to be deterministic."""
    return manager.settings.is_deterministic("torch")


def _disagreed(tables: Sequence[dict[str, str]]) -> list[str]:
    """Return the workloads for which the processes chose different kernels.

    Args:
        tables: The `plan_table` of each process: kernels by workload.
    """
    known: dict[str, set[str]] = {}
    for plans in tables:
        for workload, kernel in plans.items():
            known.setdefault(workload, set()).add(kernel)
    return sorted(workload for workload, kernels in known.items() if len(kernels) > 1)


PLOTS = (choice_map, predicted_against_measured, timeline)
DPI = 90


def log_scalars(loggers: Sequence[Logger], prefix: str, values: Mapping[str, float], step: int) -> None:
    """Log the values to each logger, under names that begin with the prefix and the logger's own separator."""
    for logger in loggers:
        named = {f"{prefix}{logger.group_separator}{name}": value for name, value in values.items()}
        logger.log_metrics(named, step=step)


def log_table(loggers: Sequence[Logger], name: str, rows: Sequence[ReportRow], footer: str, step: int) -> None:
    """Log the report's rows: to TensorBoard as text, to Weights & Biases as a table; other loggers take no tables."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.add_text(f"{name}/table", table.markdown(rows, footer), step)
        elif hasattr(logger, "log_table"):
            header, *lines = table.cells(rows)
            logger.log_table(key=f"{name}/table", columns=header, data=lines, step=step)


def log_figures(loggers: Sequence[Logger], name: str, history: History, steps: Sequence[int], step: int) -> None:
    """Log the plots of a history as images to the TensorBoard loggers, at the optimizer's step `step`.

    `steps` has the step at which each of `history.looks`, the counts of calls so far, was taken.
    """
    boards = [logger for logger in loggers if isinstance(logger, TensorBoardLogger)]
    if not boards:
        return
    drawn = {plot.__name__: plot(history) for plot in PLOTS}
    drawn["shares_over_time"] = shares_over_time(history, steps=steps, unit="step of the optimizer")
    for title, figure in drawn.items():
        pixels = _pixels(figure)
        for board in boards:
            board.experiment.add_image(f"{name}/{title}", pixels, step, dataformats="HWC")


def _pixels(figure: Any) -> np.ndarray:
    """Return a figure as an image [height, width, 3], without pyplot, which would choose a window system."""
    canvas = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


BAR_SECONDS = 1.0  # between two updates of what the progress bar shows


class BarEntry:
    """An entry of a progress bar besides its own: the name of the kernel that was called most.

    Args:
        counts: The counts of calls.
    """

    def __init__(self, counts: SiteCounts):
        self._counts = counts
        self._says, self._due = "", 0.0
        self._before: dict[str, Any] = {}  # the bar's own attribute that the entry replaces, if it had one

    def attach(self, bar: ProgressBar) -> None:
        """Add the entry to those that a progress bar shows."""
        self._before = {name: value for name, value in vars(bar).items() if name == "get_metrics"}
        self._says, self._due = "", 0.0
        bar.get_metrics = self._metrics  # type: ignore[method-assign]

    def detach(self, bar: ProgressBar | None) -> None:
        """Remove the entry from a bar that has it; do nothing for another bar or None."""
        if bar is not None and vars(bar).get("get_metrics") == self._metrics:
            del bar.get_metrics
            vars(bar).update(self._before)

    def _metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        bar = trainer.progress_bar_callback
        if "get_metrics" in self._before:
            metrics = self._before["get_metrics"](trainer, pl_module)
        else:
            metrics = type(bar).get_metrics(bar, trainer, pl_module)  # type: ignore
        if not self._says or time.monotonic() >= self._due:  # a bar may call this after each batch
            self._says = self._counts.most_consulted()
            self._due = time.monotonic() + BAR_SECONDS
        return metrics | {"backend": self._says} if self._says else metrics


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
    - `quarantined`: workloads, sizes or places at which a kernel is not used now, because it failed;
    - `regret_estimate`: part of the predicted time that the best kernel everywhere would have saved;
    - `overhead_us`: microseconds of deciding and learning per consultation, without the look-up at each call;
    - `op_ms/<module>.forward` and `.backward`: 20 % quantile of sampled calls, in milliseconds, of the
      module's plan that was consulted most;
    - `gpu_free_MB`: free memory of the device, where it is not the host.

    Checkpoints keep the counts and all that was learnt, so that a resumed run explores nothing anew. Several processes
    try different kernels, and exchange their measurements after 16, 32, 64, ... steps and after each epoch.

    Args:
        every: When the table is printed and figures are drawn besides the end of `fit`: "epoch" after each training
            epoch, a number after each that many batches, "fit" not at all.
        table: "rich", "plain", "auto" for rich where it is installed, None for no table.
        figures: Whether TensorBoard gets figures; they need matplotlib.
        otel: Where an OpenTelemetry collector listens, such as "http://localhost:4318"; see `enable_otlp`.
            None leaves it to the process.
        sync_plans: Whether several processes share the trials of kernels and their results.
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
        self._counts = SiteCounts()
        self._steering = Steering(wisdom)
        self._exchange: Exchange | None = None
        self._steps = Steps()
        self._warned = False
        self._watching = False
        self._bar_entry = BarEntry(self._counts)
        self._begin()

    @property
    def state_key(self) -> str:
        return self._generate_state_key(every=self.every)

    def rows(self) -> list[ReportRow]:
        """Return the rows of the table: one per module and workload, calls and times so far."""
        return self._counts.rows()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._end()  # a former run that raised an error did not reach `teardown`
        if self.otel is not None:
            enable_otlp(self.otel)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._end()
        self._bar_entry.detach(trainer.progress_bar_callback)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)
        self._begin()
        self._steps.add(trainer.fit_loop.epoch_loop._batches_that_stepped, [])
        if self.sync_plans and is_distributed():
            self._exchange = Exchange(self._steering.managers)
        if self.prog_bar and trainer.progress_bar_callback is not None:
            self._bar_entry.attach(trainer.progress_bar_callback)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._counts.set_aside()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._counts.take_up()

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)

    on_predict_start = on_test_start

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._counts.pause()
        self._steering.stop_learning("prior")

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._steering.learn_again()
        self._counts.resume()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._freeze(trainer.global_step)  # a resumed run may be beyond step `freeze_after`

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
        return {**self._counts.state(), "wisdom": self._steering.learnt()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._counts.load(state_dict):
            log.info("BackendReport: the checkpoint's counts are of another version; counting from zero.")
        self._steering.resume(state_dict.get("wisdom", []))

    def _watch(self, pl_module: pl.LightningModule) -> None:
        """Find the fractional modules of the model, and count their calls from now on.

        This is not done in `setup`, because modules that `configure_model` makes do not exist yet.
        """
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
        self._counts.attach(sites)
        self._watching = True

    def _begin(self) -> None:
        """Reset what is logged: the counted batches, the time spent on learning, and the counts by step."""
        self._batches = 0
        self._is_frozen = False
        self._spent = report.Spent.of(self._steering.managers)
        self._steps = Steps()

    def _end(self) -> None:
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
        self._steering.leave()
        self._counts.detach()
        self._watching = False

    def _after_step(self, step: int) -> None:
        if self._exchange is not None and is_due(step):
            self._pool()
        self._freeze(step)

    def _freeze(self, step: int) -> None:
        """Stop the choice of kernels from learning once training has reached step `freeze_after`.

        Learning is stopped once, so that a later `configure(mode=...)` holds.
        """
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
        now, managers = self._counts.look(), self._steering.managers
        found, spent = self._counts.recent(now), report.Spent.of(managers)
        quarantined = sum(each.quarantined().total() for each in managers)
        values = report.scalars(found, spent.since(self._spent), self._batches, quarantined)
        log_scalars(trainer.loggers, type(self).__name__, values | _free_memory(found), step)
        self._steps.add(step, now.values())
        self._spent, self._batches = spent, 0

    def _publish(self, trainer: pl.Trainer) -> None:
        rows, managers = self.rows(), self._steering.managers
        if not rows:
            return
        footer = report.footer(self._counts.look().values(), managers)
        if self.table is not None:
            form = ("rich" if tables.has_rich() else "plain") if self.table == "auto" else self.table
            sys.stdout.write(f"\n{tables.render(rows, form)}{footer}\n")
        name, step = type(self).__name__, trainer.fit_loop.epoch_loop._batches_that_stepped
        log_table(trainer.loggers, name, rows, footer, step)
        if self.figures and tables.is_installed("matplotlib"):
            history = replace(History.of(*managers), looks=tuple(self._steps.looks))
            log_figures(trainer.loggers, name, history, self._steps.steps, step)


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


def _free_memory(found: list[report.SiteRow]) -> dict[str, float]:
    """Return the free memory in MB, as a metric to log, of the GPU that has least; {} if none was used.

    Args:
        found: Counts of calls, whose workloads name the devices.
    """
    devices = {each.plan.workload.device for each in found} - {"cpu"}
    free = [probe("torch").free_memory(device) for device in devices if not is_host(device)]
    known = [count for count in free if count is not None]
    return {"gpu_free_MB": min(known) / 1e6} if known else {}
