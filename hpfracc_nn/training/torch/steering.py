"""What a callback changes of the managers of a model, and gives back when the trainer ends."""

import logging
import os
from collections.abc import Iterable

from hpfracc_nn.selection import BackendManager
from hpfracc_nn.selection.settings import Mode

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
        # With the wisdom that each had, and the one that it was given.
        self._before: list[tuple[BackendManager, str | os.PathLike[str], str | os.PathLike[str]]] = []
        self._stopped: list[tuple[BackendManager, Mode]] = []  # with the mode that each was given
        self._waiting: list[str] = []
        self.managers: list[BackendManager] = []

    def take(self, managers: Iterable[BackendManager]) -> None:
        """Change the managers of a model, and tell them what a checkpoint knew."""
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
        """Give the managers back as they were, but for what someone else has configured; what they learnt is saved."""
        self.learn_again()
        for manager in self.managers if self._before else []:
            manager.save()
        for manager, before, given in self._before:
            if manager.settings.wisdom == given:
                manager.configure(wisdom=before)
        self._before = []

    def stop_learning(self, mode: Mode) -> None:
        """Let those that learn go by `mode` instead, until `learn_again`."""
        for manager in self.managers:
            if manager.settings.mode == "learn":
                manager.configure(mode=mode)
                self._stopped.append((manager, mode))

    def learn_again(self) -> None:
        """Let those learn that did before, but for those that someone else has given another mode."""
        for manager, mode in self._stopped:
            if manager.settings.mode == mode:
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
