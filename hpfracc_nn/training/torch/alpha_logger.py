"""A Lightning callback that logs learned orders, in real units."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from hpfracc_nn import errors
from hpfracc_nn.fractional.torch.parameters import Alpha, ProbabilisticAlpha, is_spread

log = logging.getLogger(__name__)

_VERSION = 1  # of the history in a checkpoint
_PARTS = ("derivative", "difference")  # attributes by which layers of this package hold a `FractionalLayer`


class AlphaRow(NamedTuple):
    """One row of the history of `AlphaLogger`: one learned order after one training step.

    Attributes:
        step: Batches so far after which an optimizer stepped, as Lightning counts for its own metrics: a batch counts
            once even if several optimizers step after it.
        epoch: The epoch of training.
        name: The name of the order, as `AlphaLogger` describes.
        alpha: The value of the order, or the statistic of several orders that the name ends with.
    """

    step: int
    epoch: int
    name: str
    alpha: float


class AlphaLogger(Callback):
    """Logs each learned order, and keeps its history.

    Every logger of the trainer gets the orders after every `log_every_n_steps` steps and at the end of each training
    epoch, under "AlphaLogger/" (or the logger's own separator) and at the step that Lightning gives its own metrics. A
    step is a batch after which an optimizer stepped. The history also has the orders before the first step.

    A name is that of the layer whose order it is: "net.0". With several orders "net.0.2" is the third of them, and
    beyond `most` there are "net.0.mean", "net.0.min" and "net.0.max" instead. Of a `ProbabilisticAlpha` the mean
    counts, and "net.0.std" is the standard deviation (with several orders "net.0.std.2" and so on).

    Rank zero logs; orders that lie over several processes (FSDP) are gathered in all of them. The sanity check takes no
    step and leaves no row. A new run begins a new history, and a resumed run continues the history in its checkpoint:
    that of a logger with the same arguments, or else the only one in the checkpoint.

    Args:
        log_every_n_steps: The number of steps from one row to the next; None is the trainer's own number.
        most: The most orders of a layer that are logged one by one.

    Raises:
        ValueError: A number is out of range.
        TypeError: A number is not whole.

    Examples:
        >>> class Model(lightning.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = FractionalLayer(0.5, learn_alpha=True)
        ...
        ...     def training_step(self, batch, index):
        ...         return self.layer(batch).square().mean()
        ...
        ...     def configure_optimizers(self):
        ...         return torch.optim.Adam(self.parameters(), lr=0.1)
        >>> logger = AlphaLogger(log_every_n_steps=1)
        >>> options = {
        ...     "max_steps": 2,
        ...     "logger": False,
        ...     "enable_checkpointing": False,
        ...     "enable_progress_bar": False,
        ... }
        >>> trainer = lightning.Trainer(
        ...     "cpu", callbacks=[logger], enable_model_summary=False, **options
        ... )
        >>> trainer.fit(
        ...     Model(), torch.utils.data.DataLoader(torch.randn(8, 1, 32), batch_size=4)
        ... )
        >>> for row in logger.history():
        ...     print(row.step, row.name, round(row.alpha, 2))
        0 layer 0.5
        1 layer 0.48
        2 layer 0.45
    """

    def __init__(self, log_every_n_steps: int | None = None, most: int = 16):
        super().__init__()
        owner = "AlphaLogger"
        every = log_every_n_steps
        self.log_every_n_steps = None if every is None else errors.count(owner, "log_every_n_steps", every)
        self.most = errors.count(owner, "most", most)
        self._rows: list[AlphaRow] = []
        self._orders: dict[str, Alpha] = {}
        self._warned = False

    @property
    def state_key(self) -> str:
        return self._generate_state_key(log_every_n_steps=self.log_every_n_steps, most=self.most)

    def history(self) -> list[AlphaRow]:
        """Return all rows so far, in the order of time; `pandas.DataFrame` takes them as they are."""
        return list(self._rows)

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.global_step == 0:  # a new run; a checkpoint is read after `setup`
            self._rows = []

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        states = checkpoint.get("callbacks", {})
        others = [key for key in states if key.startswith(type(self).__qualname__ + "{")]
        if self.state_key in states or not others:
            return
        if len(others) > 1:
            rank_zero_warn(
                f"AlphaLogger: the checkpoint has {len(others)} histories and none was made with this one's numbers, "
                f"so that it begins anew; make one of {', '.join(others)} to continue it."
            )
            return
        self.load_state_dict(states[others[0]])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._orders = learned_orders(pl_module)
        if not self._orders and not self._warned:
            rank_zero_warn(
                f"AlphaLogger: {type(pl_module).__name__} has no learned order, so there is nothing to log; make a "
                "layer with learn_alpha=True, or take the callback out."
            )
            self._warned = True
        if trainer.global_step == 0:
            self._note(trainer, 0)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        every = self.log_every_n_steps or trainer.log_every_n_steps  # type: ignore[attr-defined]
        loop = trainer.fit_loop.epoch_loop
        step = loop._batches_that_stepped + 1  # Lightning counts this batch after the callbacks
        if every and step % every == 0 and not loop._should_accumulate():
            self._note(trainer, step, trainer.loggers)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._note(trainer, trainer.fit_loop.epoch_loop._batches_that_stepped, trainer.loggers)

    def state_dict(self) -> dict[str, Any]:
        return {"version": _VERSION, "rows": [tuple(row) for row in self._rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.get("version") == _VERSION:
            self._rows = [AlphaRow(*row) for row in state_dict["rows"]]
        else:
            log.info("AlphaLogger: the checkpoint's history is of another version; it begins anew.")

    @torch.no_grad()
    def _note(self, trainer: pl.Trainer, step: int, loggers: Sequence[Logger] = ()) -> None:
        """Keep the learned orders after `step` training steps and log them to `loggers`, in the main process only."""
        values: dict[str, float] = {}
        with _whole(trainer.model):
            for module, order in self._orders.items():
                if is_spread(order.raw) or trainer.is_global_zero:
                    values |= self._values(module, order)
        if trainer.is_global_zero:
            self._log(trainer, step, values, loggers)

    def _log(self, trainer: pl.Trainer, step: int, values: dict[str, float], loggers: Sequence[Logger]) -> None:
        if self._rows and self._rows[-1].step >= step:
            return
        self._rows += [AlphaRow(step, trainer.current_epoch, name, value) for name, value in values.items()]
        for logger in loggers if values else ():
            prefix = f"{type(self).__name__}{logger.group_separator}"
            logger.log_metrics({f"{prefix}{name}": value for name, value in values.items()}, step=step - 1)

    def _values(self, name: str, order: Alpha) -> dict[str, float]:
        found = self._each(name, order.mean)
        return {**found, **self._each(f"{name}.std", order.std)} if isinstance(order, ProbabilisticAlpha) else found

    def _each(self, name: str, values: Tensor) -> dict[str, float]:
        if values.ndim == 0:
            return {name: values.item()}
        if values.numel() <= self.most:
            return {f"{name}.{k}": value for k, value in enumerate(values.flatten().tolist())}
        return {f"{name}.{what}": getattr(values, what)().item() for what in ("mean", "min", "max")}


def _whole(model: nn.Module | None) -> AbstractContextManager[Any]:
    """Return a context in which every process sees the model's parameters whole.

    With FSDP's first version, where each process holds a part of the parameters, they are gathered; otherwise the
    context does nothing.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    wrapper = None if fsdp is None else fsdp.FullyShardedDataParallel
    if wrapper is None or model is None or not any(isinstance(part, wrapper) for part in model.modules()):
        return nullcontext()
    found: AbstractContextManager[Any] = wrapper.summon_full_params(model, writeback=False)
    return found


def learned_orders(module: nn.Module) -> dict[str, Alpha]:
    """Return the learned orders in a module, each once, by name.

    The name is that of the layer whose attribute `order` the order is; an order that belongs to no layer has its own
    name.
    """
    found, modules = {}, dict(module.named_modules())
    for name, child in modules.items():
        if isinstance(child, Alpha):
            owner = "" if name == "order" else name.removesuffix(".order")
            layer, _, part = owner.rpartition(".")
            if part in _PARTS and type(modules[layer]).__module__.startswith("hpfracc_nn.layers."):
                owner = layer
            found[owner or type(module).__name__] = child
    return found
