"""A Lightning callback that reports which kernel ran for each fractional module, how often and how fast."""

import logging
import sys
from typing import Any, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only, rank_zero_warn
from torch import nn

from hpfracc_nn.selection import Plan, ReportRow, Site
from hpfracc_nn.selection.workload import DIRECTIONS
from hpfracc_nn.training import table as tables
from hpfracc_nn.training.ledger import Ledger, milliseconds, shares

log = logging.getLogger(__name__)

TABLES = ("auto", "rich", "plain", None)


class BackendReport(Callback):
    """Reports each fractional module's backend, algorithm, calls, times and reasons.

    Counts what happens while the trainer runs (fit, validate, test, predict), without the sanity check.
    At the end of `fit` rank zero prints a table of its own calls. Every `log_every_n_steps` steps each
    logger gets, under "BackendReport/" (or the logger's own separator):

    - `share/<backend>`: part of the consultations since the last time;
    - `select_per_step`: consultations per batch since then;
    - `plans`: plans in use so far;
    - `op_ms/<module>.forward` and `.backward`: 20 % quantile of sampled calls, in milliseconds, of the
      module's plan that was consulted most since then.

    Args:
        every: When the table is printed besides the end of `fit`: "epoch" after each training epoch, a
            number after each that many batches, "fit" not at all.
        table: "rich", "plain", "auto" for rich where it is installed, None for no table.
        prog_bar: Whether the progress bar shows the backend and algorithm that ran most.

    Raises:
        ValueError: `every` or `table` is none of these.
        ModuleNotFoundError: `table` is "rich" and rich is not installed.

    Example:
        >>> trainer = Trainer(callbacks=[BackendReport()])
    """

    def __init__(
        self,
        every: Literal["fit", "epoch"] | int = "fit",
        table: Literal["auto", "rich", "plain"] | None = "auto",
        prog_bar: bool = False,
    ):
        super().__init__()
        is_number = isinstance(every, int) and not isinstance(every, bool)
        if every not in ("fit", "epoch") and not (is_number and every > 0):  # type: ignore[operator]
            raise ValueError(f"BackendReport(every={every!r}): needs 'fit', 'epoch' or a number of batches > 0.")
        if table not in TABLES:
            raise ValueError(f"BackendReport(table={table!r}): needs one of {', '.join(map(repr, TABLES))}.")
        if table == "rich" and not tables.has_rich():
            raise ModuleNotFoundError(
                "BackendReport(table='rich'): needs the package 'rich'; pip install 'hpfracc-nn[cli]', "
                "or pass table='plain'.",
                name="rich",
            )
        self.every = every
        self.table = table
        self.prog_bar = prog_bar
        self._ledger = Ledger()
        self._warned = False
        self._watching = False
        self._batches = 0  # since the last scalars
        self._logged: dict[Plan, int] = {}  # calls of each plan at the last scalars

    @property
    def state_key(self) -> str:
        return self._generate_state_key(every=self.every)

    def rows(self) -> list[ReportRow]:
        """Return the rows of the table: one per module and workload, calls and times so far."""
        return self._ledger.rows()

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._ledger.detach()  # a run that raised never came to teardown
        self._watching = False

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._ledger.detach()
        bar = trainer.progress_bar_callback
        if bar is not None:
            vars(bar).pop("get_metrics", None)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)
        self._batches, self._logged = 0, {}
        bar = trainer.progress_bar_callback
        if self.prog_bar and bar is not None:
            bar.get_metrics = self._bar_metrics  # type: ignore[method-assign]

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)

    def on_test_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)

    def on_predict_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._watch(pl_module)

    def on_sanity_check_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ledger.pause()

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._ledger.resume()

    @rank_zero_only
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._batches += 1
        if isinstance(self.every, int) and trainer.fit_loop.total_batch_idx % self.every == self.every - 1:
            self._print()
        loop = trainer.fit_loop.epoch_loop
        if trainer.loggers and trainer._logger_connector.should_update_logs and not loop._should_accumulate():
            scalars = self._scalars()
            for logger in trainer.loggers:
                prefix = f"{type(self).__name__}{logger.group_separator}"
                named = {f"{prefix}{name}": value for name, value in scalars.items()}
                logger.log_metrics(named, step=loop._batches_that_stepped)

    @rank_zero_only
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.every == "epoch":
            self._print()

    @rank_zero_only
    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._print()

    def state_dict(self) -> dict[str, Any]:
        return self._ledger.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._ledger.load(state_dict):
            log.info("BackendReport: the checkpoint's counts are of another version; counting from zero.")

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
        self._ledger.attach(sites)
        self._watching = True

    def _scalars(self) -> dict[str, float]:
        """Return what happened since the last time."""
        looked = self._ledger.look()
        recent = []
        for name, plan, forwards, backwards in looked:
            calls = forwards + backwards
            recent.append((name, plan, calls - self._logged.get(plan, 0)))
            self._logged[plan] = calls
        scalars = {
            f"share/{backend}": share
            for backend, share in shares((plan.backend, calls) for _, plan, calls in recent).items()
        }
        scalars["select_per_step"] = sum(calls for _, _, calls in recent) / self._batches
        scalars["plans"] = float(len(looked))
        scalars |= _times(recent)
        self._batches = 0
        return scalars

    def _bar_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        bar = trainer.progress_bar_callback
        rows = self.rows()
        metrics: dict[str, Any] = type(bar).get_metrics(bar, trainer, pl_module)  # type: ignore
        if rows:
            most = max(rows, key=lambda row: row.share)
            metrics["backend"] = f"{most.backend}/{most.algorithm}"
        return metrics

    def _print(self) -> None:
        rows = self.rows()
        if rows and self.table is not None:
            form = ("rich" if tables.has_rich() else "plain") if self.table == "auto" else self.table
            sys.stdout.write("\n" + tables.render(rows, form))


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


def _times(recent: list[tuple[str, Plan, int]]) -> dict[str, float]:
    """Return the measured times of each module's most consulted plan."""
    most: dict[str, tuple[int, Plan]] = {}
    for name, plan, calls in recent:
        if name not in most or calls > most[name][0]:
            most[name] = (calls, plan)
    measured = {
        f"op_ms/{name}.{direction}": milliseconds(plan.quantile(direction))
        for name, (_, plan) in most.items()
        for direction in DIRECTIONS
    }
    return {name: value for name, value in measured.items() if value is not None}
