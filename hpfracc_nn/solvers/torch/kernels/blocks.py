"""What the kernels of a history share: its operations, the length of a block, and the call."""

from __future__ import annotations

from torch import Tensor

from hpfracc_nn.selection import Workload
from hpfracc_nn.solvers.history import ANY_MESH, Automatic, Exponentials, FFTBlocks, Full, Window
from hpfracc_nn.solvers.torch.forms import Form

# By the history's name; that of meshes whose steps are not equal has an operation of its own.
OPS = {each.name: each.op for each in (Automatic, Full, FFTBlocks, Exponentials, Window)} | {"mesh": ANY_MESH}

# Numbers of a state -> steps of a block: what a block's own steps are added up with is read from memory at every step.
_LENGTHS = ((256, 64), (2048, 32))
_SHORTEST = 16


def block_length(numbers: int) -> int:
    """Return how many steps a block has for states of so many numbers."""
    return next((length for most, length in _LENGTHS if numbers <= most), _SHORTEST)


def saves(workload: Workload) -> float:
    """Return the bytes held for the backward pass: the states."""
    return float(workload.bytes if workload.needs_gradient else 0)


def run(form: Form, values: Tensor, first: int, last: int, out: Tensor) -> None:
    """Add the far past to a block's memories; its transpose is the same on a transposed operand."""
    form.far(values, first, last, out)
