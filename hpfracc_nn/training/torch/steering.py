"""What a callback changes of the managers of a model, and gives back when the trainer ends."""

import logging
import os
from collections.abc import Iterable
from typing import Literal

from hpfracc_nn.selection import BackendManager

log = logging.getLogger(__name__)


class Steering:
    """Some managers whose settings are changed for a while.

    Args:
        wisdom: Where they keep what they learn meanwhile; None changes nothing.

    Attributes:
        managers: Those that were taken; they stay known after `leave`, to be asked.
    """

    def __init__(self, wisdom: str | None = None):
        self._wisdom = wisdom
        self._before: list[tuple[BackendManager, str | os.PathLike[str]]] = []  # with their wisdom
        self._stopped: list[BackendManager] = []
        self._waiting: list[str] = []
        self.managers: list[BackendManager] = []

    def take(self, managers: Iterable[BackendManager]) -> None:
        """Change the managers of a model, and tell them what a checkpoint knew."""
        self.leave()
        self.managers = list(managers)
        if self._wisdom is not None:
            for manager in self.managers:
                self._before.append((manager, manager.settings.wisdom))
                manager.configure(wisdom=self._wisdom)
        for text in self._waiting:
            for manager in self.managers:
                _tell(manager, text)
        self._waiting = []

    def leave(self) -> None:
        """Give the managers back as they were; what they have learnt is saved first."""
        self.learn_again()
        for manager in self.managers if self._before else []:
            manager.save()
        for manager, wisdom in self._before:
            manager.configure(wisdom=wisdom)
        self._before = []

    def stop_learning(self, mode: Literal["prior", "frozen"]) -> None:
        """Let those that learn go by `mode` instead, until `learn_again`."""
        for manager in self.managers:
            if manager.settings.mode == "learn":
                manager.configure(mode=mode)
                self._stopped.append(manager)

    def learn_again(self) -> None:
        """Let those learn that did before."""
        for manager in self._stopped:
            manager.configure(mode="learn")
        self._stopped = []

    def learnt(self) -> list[str]:
        """Return what each manager knows, as text."""
        return [manager.export_wisdom() for manager in self.managers] or self._waiting

    def resume(self, texts: Iterable[str]) -> None:
        """Keep what a checkpoint knew, for the managers that will be taken."""
        self._waiting = [str(text) for text in texts]


def _tell(manager: BackendManager, text: str) -> None:
    try:
        trust = manager.import_wisdom(text)
    except ValueError as error:
        log.info("BackendReport: what the checkpoint knew of kernels is left out: %s.", error)
        return
    if trust == "prior":
        log.info("BackendReport: the checkpoint is of another machine; its times are only where to start from.")
