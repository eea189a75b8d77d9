"""What the processes of one training run tell each other about kernels, between steps and never inside of one."""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from hpfracc_nn.selection import BackendManager
from hpfracc_nn.training.summary import plan_table

FIRST = 16  # the step after which they first tell each other; then after twice as many each time


class Exchange:
    """Shares the trials of some managers among the processes, and pools what comes of them.

    Every process makes one, and calls `pool` as often as the others: both wait for all of them. What goes over the wire
    is text, by gloo on the CPU, so that no stream of a GPU waits for it.

    Args:
        managers: In the same order in every process.

    Attributes:
        count: Of processes.
    """

    def __init__(self, managers: Sequence[BackendManager]):
        self._managers = list(managers)
        self.count = dist.get_world_size()
        self._group = dist.new_group(backend="gloo")
        for manager in self._managers:
            manager.share_trials(dist.get_rank(), self.count)

    def pool(self) -> list[str]:
        """Tell the other processes what was timed here, and take over what they have.

        Returns:
            The workloads for which processes whose plans must not change have different ones: none, unless a kernel has
            failed or is missing somewhere.
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
        """Try all kernels here again."""
        for manager in self._managers:
            manager.share_trials()
        if dist.is_initialized():
            dist.destroy_process_group(self._group)


def is_distributed() -> bool:
    """Return whether other processes train the same model."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_due(step: int) -> bool:
    """Return whether the processes tell each other after this step of the optimizer."""
    return step >= FIRST and step & (step - 1) == 0


def is_fixed(manager: BackendManager) -> bool:
    """Return whether the plans of torch's tensors must not change."""
    return manager.settings.is_deterministic("torch")


def _disagreed(tables: Sequence[dict[str, str]]) -> list[str]:
    """Return the workloads with several kernels."""
    known: dict[str, set[str]] = {}
    for table in tables:
        for workload, kernel in table.items():
            known.setdefault(workload, set()).add(kernel)
    return sorted(workload for workload, kernels in known.items() if len(kernels) > 1)
